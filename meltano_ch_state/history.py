"""What changed between two versions of a state, and what its bookmarks were over time. Nothing here does I/O.

A Singer state is `{"singer_state": {"bookmarks": {stream: bookmark}}}`; any other JSON is compared and plotted by the
same rules, under its own keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from meltano_ch_state.protocol import StateRow

PARTS = ("completed", "partial")
BOOKMARKS = ("singer_state", "bookmarks")
"""Where Meltano keeps the bookmarks of a Singer tap (`meltano.core.singer`), under the name of each stream."""
GREATEST = 1e300
"""What is greater, or no number at all, is not plotted."""
ABSENT: Any = type("Absent", (), {"__repr__": lambda _: "ABSENT"})()
"""Stands for a value that is not there; None is a value in JSON."""

_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(:\d\d)?(?:[.,](\d{1,6})\d*)?\s*(Z|[+-]\d\d:?\d\d)?)?", re.ASCII
)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two versions of a state.

    Attributes:
        part: `completed` or `partial`.
        path: The keys that lead to the value.
        before: The value in the earlier version, or `ABSENT`.
        after: The value in the later version, or `ABSENT`.
    """

    part: str
    path: tuple[str, ...]
    before: Any
    after: Any

    @property
    def stream(self) -> str | None:
        """The Singer stream whose bookmark it is."""
        return self.path[2] if _is_bookmark(self.path) else None

    @property
    def name(self) -> str:
        """What changed, for people: `orders.id`, or `partial orders.id`."""
        return ("partial " if self.part == "partial" else "") + name_of(self.path)


@dataclass(frozen=True, slots=True)
class Point:
    """A bookmark in one version.

    Attributes:
        version: The version, microseconds since 1970, UTC.
        value: A number; of a time, the seconds since 1970, UTC. None: the bookmark was not there.
    """

    version: int
    value: float | None


@dataclass(slots=True)
class Series:
    """A bookmark over time, the oldest version first.

    Attributes:
        name: Such as `orders.id`.
        is_time: Whether its values are times, so that it has a lag.
    """

    name: str
    is_time: bool
    points: list[Point] = field(default_factory=list)

    def lag(self) -> Series:
        """By how many seconds each version was behind its own time."""
        behind = [
            Point(point.version, None if point.value is None else point.version / 1e6 - point.value)
            for point in self.points
        ]
        return Series(self.name, False, behind)


def changes(before: StateRow | None, after: StateRow | None) -> list[Change]:
    """What differs from one version to another; None, and a cleared one, hold nothing."""
    return [
        Change(part, *difference)
        for part in PARTS
        for difference in _differences(_content(before, part), _content(after, part))
    ]


def same(one: StateRow | None, other: StateRow | None) -> bool:
    """Whether readers see the same in two versions; None stands for a state that is not there."""
    there = [row is not None and not row.is_deleted for row in (one, other)]
    return there[0] == there[1] and not changes(one, other)


def series(versions: Iterable[StateRow]) -> list[Series]:
    """Every bookmark, or other value, that is a number or a time, over the versions of one state; sorted by name.

    Args:
        versions: The oldest first.
    """
    found: dict[tuple[str, tuple[str, ...], bool], Series] = {}
    seen: list[int] = []
    for row in versions:
        values = {(part, path, is_time): value for part, path, value, is_time in _values(row)}
        for key in values.keys() - found.keys():
            found[key] = Series(Change(*key[:2], ABSENT, ABSENT).name, key[2], [Point(v, None) for v in seen])
        for key, line in found.items():
            line.points.append(Point(row.updated_at, values.get(key)))
        seen.append(row.updated_at)
    return sorted(found.values(), key=lambda line: line.name)


def name_of(path: tuple[str, ...]) -> str:
    """The keys in one, without those that every Singer state has."""
    return ".".join(path[len(BOOKMARKS) :] if _is_bookmark(path) else path) or "everything"


def _is_bookmark(path: tuple[str, ...]) -> bool:
    return path[: len(BOOKMARKS)] == BOOKMARKS and len(path) > len(BOOKMARKS)


def _content(row: StateRow | None, part: str) -> Any:
    """A part as JSON; what is none stands for itself. A part that was never set is empty."""
    text = None if row is None or row.is_deleted else getattr(row, f"{part}_state")
    try:
        return {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return text


def _differences(before: Any, after: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """The paths at which two values differ; objects are gone into, lists are compared as a whole."""
    todo: list[tuple[tuple[str, ...], Any, Any]] = [((), before, after)]
    while todo:
        path, old, new = todo.pop()
        if old is not ABSENT and new is not ABSENT and _as_text(old) == _as_text(new):
            continue
        ours, theirs = (value if isinstance(value, dict) else {} for value in (old, new))
        if all(value is ABSENT or isinstance(value, dict) for value in (old, new)) and (ours or theirs):
            keys = list(dict.fromkeys([*ours, *theirs]))
            todo += [((*path, key), ours.get(key, ABSENT), theirs.get(key, ABSENT)) for key in reversed(keys)]
        else:
            yield path, old, new


def _as_text(value: Any) -> str:
    """As text, since to Python 1, 1.0 and true are equal; the order of keys means nothing."""
    try:
        return json.dumps(value, sort_keys=True)
    except RecursionError:
        return repr(value)


def _values(row: StateRow) -> Iterator[tuple[str, tuple[str, ...], float, bool]]:
    for part in PARTS:
        for path, _, value in _differences({}, _content(row, part)):
            number, is_time = _as_number(value)
            if number is not None and abs(number) <= GREATEST:
                yield part, path, number, is_time


def _as_number(value: Any) -> tuple[float | None, bool]:
    """A value as a number, and whether it is a time; None when it is neither."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value), False
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            return float(value), False
        if isinstance(value, str) and (found := _TIME.fullmatch(value)):
            return _seconds(*found.groups()), True
    except (ValueError, OverflowError):  # the 30th of February; a number of 400 digits
        pass
    return None, False


def _seconds(day: str, minute: str | None, second: str | None, fraction: str | None, zone: str | None) -> float:
    """A time as seconds since 1970; without a zone it is UTC."""
    offset = "+00:00" if zone in {None, "Z"} else f"{zone[:3]}:{zone[-2:]}"
    text = f"{day}T{minute or '00:00'}{second or ':00'}.{(fraction or '0').ljust(6, '0')}{offset}"
    return datetime.fromisoformat(text).astimezone(timezone.utc).timestamp()
