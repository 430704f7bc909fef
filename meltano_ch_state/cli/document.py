"""States as one JSON document, as `import` and `meltano state import` read it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TextIO

from meltano_ch_state.errors import InvalidStateError
from meltano_ch_state.protocol import StateRow


def write_states(rows: Iterable[StateRow], stream: TextIO) -> int:
    """Write the document row by row: it need not fit into memory.

    Returns:
        How many states it has.

    Raises:
        InvalidStateError: If what is stored is not JSON.
    """
    count = 0
    for row in rows:
        parts = {"completed": part_of(row, row.completed_state), "partial": part_of(row, row.partial_state)}
        stream.write(f"{',' if count else '{'}\n{json.dumps(row.state_id)}: {json.dumps(parts)}")
        count += 1
    stream.write("\n}\n" if count else "{}\n")
    return count


def part_of(row: StateRow, text: str | None) -> Any:
    """What a part of a state has; None where it was never set.

    Raises:
        InvalidStateError: If it is not JSON.
    """
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidStateError(
            f"State {row.state_id!r} holds something that is no JSON", "Replace it with: meltano state set, or clear it"
        ) from None
