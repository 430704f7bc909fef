"""How long each statement about a lock takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import cached_property
from typing import TypeVar

from meltano_ch_state.protocol import LockRow, View
from meltano_ch_state.repositories.locks import LockRepository

T = TypeVar("T")


class TimedLocks(LockRepository):
    """A lock table that notes how long each kind of statement took at last, in milliseconds."""

    @cached_property
    def milliseconds(self) -> dict[str, float]:
        """The times, by the kind of statement."""
        return {}

    def insert_rows(self, rows: Collection[LockRow]) -> None:
        """Insert lock rows."""
        kind = "release" if any(row.released for row in rows) else "insert"
        self.milliseconds[kind], _ = timed(lambda: super(TimedLocks, self).insert_rows(rows))

    def read_views(self, state_ids: Collection[str]) -> dict[str, View]:
        """Read the locks."""
        self.milliseconds["look"], views = timed(lambda: super(TimedLocks, self).read_views(state_ids))
        return views

    def read_alive(self, state_ids: Collection[str], lock_ids: Collection[str]) -> set[tuple[str, str]]:
        """Read whether a lock is held yet."""
        self.milliseconds["confirm"], alive = timed(lambda: super(TimedLocks, self).read_alive(state_ids, lock_ids))
        return alive


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """The duration of a call in milliseconds, and what it returned."""
    since = time.perf_counter()
    result = call()
    return (time.perf_counter() - since) * 1e3, result
