"""Many items in parts, each of which fits into one statement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

IDS_TEXT_BYTES = 50_000
"""State IDs of about this many bytes go into one query: they stand there twice, escaped to up to twice their length,
and its text may have 256 KiB."""

T = TypeVar("T")


def id_parts(state_ids: Iterable[str]) -> Iterator[list[str]]:
    """State IDs in parts that fit into a query's text."""
    return parts(state_ids, IDS_TEXT_BYTES, lambda state_id: len(state_id.encode()))


def parts(items: Iterable[T], most: int, weigh: Callable[[T], int]) -> Iterator[list[T]]:
    """Items in parts that weigh so much at most; one that is heavier alone is a part of its own."""
    part: list[T] = []
    total = 0
    for item in items:
        weight = weigh(item)
        if part and total + weight > most:
            yield part
            part, total = [], 0
        part.append(item)
        total += weight
    if part:
        yield part
