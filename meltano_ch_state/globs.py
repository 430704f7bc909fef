"""Shell globs over state IDs: `*`, `?`, `[seq]`, `[!seq]`, case-sensitive; everything else is literal."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate


def matcher(pattern: str | None) -> Callable[[str], bool]:
    """A predicate for a pattern; None, the empty pattern and `*` match all."""
    if pattern in {None, "", "*"}:
        return lambda state_id: True
    compiled = re.compile(translate(str(pattern)))
    return lambda state_id: compiled.match(state_id) is not None


def literal_prefix(pattern: str | None) -> str:
    """What every match begins with: the part before the first character with a meaning."""
    return re.split(r"[*?[]", pattern or "", maxsplit=1)[0]
