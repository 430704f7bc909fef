"""An in-memory double of the database, for the tests of this package and of its users.

It keeps the contract of the repositories: rows are replaced by key and version as a ReplacingMergeTree does it, server
times are drawn at each insert, and one conformance suite runs over it and over real servers.

Example:
    >>> store = memory_store()
    >>> store.set(State("dev:tap-to-target", {}, {"singer_state": {}}))
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from meltano_ch_state.globs import matcher
from meltano_ch_state.locker import Locker, LockOptions
from meltano_ch_state.protocol import LiveLock, LockRow, StateRow, View, make_view
from meltano_ch_state.store import State, StateStore
from meltano_ch_state.waiting import Clock

__all__ = ["MemoryDatabase", "MemoryLocks", "MemorySchema", "MemoryStates", "State", "memory_store"]


def _microseconds() -> int:
    return time.time_ns() // 1_000


_Key = tuple[str, str, bool, int]
_Row = tuple[_Key, LiveLock]


@dataclass(slots=True)
class MemoryDatabase:
    """The two tables, shared by all clients of the double.

    Attributes:
        now: The server's clock, microseconds since 1970; tests may give one that steps back.
    """

    now: Callable[[], int] = _microseconds
    states: dict[str, StateRow] = field(default_factory=dict)
    locks: dict[_Key, LiveLock] = field(default_factory=dict)
    mutex: threading.Lock = field(default_factory=threading.Lock)


class MemoryStates:
    """The state table in memory."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    def get(self, state_id: str) -> StateRow | None:
        """The newest version, unless it is a tombstone."""
        row = self._database.states.get(state_id)
        return None if row is None or row.is_deleted else row

    def ids(self, pattern: str | None = None) -> list[str]:
        """The IDs that match, sorted."""
        return [row.state_id for row in self.stream(pattern)]

    def stream(self, pattern: str | None = None, after: str | None = None) -> Iterator[StateRow]:
        """The states that match and come after an ID, sorted by ID."""
        matches = matcher(pattern)
        rows = sorted(self._database.states.items())
        return (
            row
            for state_id, row in rows
            if (after is None or state_id > after) and matches(state_id) and not row.is_deleted
        )

    def keep(self, state_ids: Collection[str]) -> None:
        """Do nothing: there is no history."""

    def insert_versions(self, rows: Iterable[StateRow]) -> None:
        """Insert versions; the greatest of a state ID counts."""
        with self._database.mutex:
            for row in rows:
                current = self._database.states.get(row.state_id)
                if current is None or row.updated_at >= current.updated_at:
                    self._database.states[row.state_id] = row


class MemoryLocks:
    """The lock table in memory."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    def insert(self, rows: Collection[LockRow]) -> None:
        """Insert lock rows; what is None the double draws, as the server does."""
        with self._database.mutex:
            for row in rows:
                now = self._database.now()
                token = now if row.token is None or row.born is None else row.token
                lock = LiveLock(
                    row.state_id,
                    row.lock_id,
                    token,
                    now if row.born is None else row.born,
                    now,
                    row.lease_seconds,
                    row.identity,
                    row.waiting,
                )
                self._replace((row.state_id, row.lock_id, row.released, token), lock)

    def _replace(self, key: _Key, lock: LiveLock) -> None:
        current = self._database.locks.get(key)
        if current is None or lock.locked_at >= current.locked_at:
            self._database.locks[key] = lock

    def read(self, state_ids: Collection[str]) -> Mapping[str, View]:
        """The live locks and the greatest token of each state ID."""
        with self._database.mutex:
            rows: dict[str, list[_Row]] = {state_id: [] for state_id in state_ids}
            for key, lock in self._database.locks.items():
                if key[0] in rows:
                    rows[key[0]].append((key, lock))
            return {state_id: self._view(state_id, rows[state_id]) for state_id in state_ids}

    def alive(self, state_ids: Collection[str], lock_ids: Collection[str]) -> Collection[tuple[str, str]]:
        """Those (state_id, lock_id) that have a row and no tombstone."""
        with self._database.mutex:
            keys = [key for key in self._database.locks if key[0] in state_ids and key[1] in lock_ids]
        dead = {(state_id, lock_id) for state_id, lock_id, released, _ in keys if released}
        return {(state_id, lock_id) for state_id, lock_id, *_ in keys} - dead

    def _view(self, state_id: str, rows: Collection[_Row]) -> View:
        dead = {lock_id for (_, lock_id, released, _), _ in rows if released}
        live: dict[str, LiveLock] = {}
        for (_, lock_id, _, _), lock in sorted(rows, key=lambda row: row[1].token):
            if lock_id not in dead:
                live[lock_id] = lock
        state = self._database.states.get(state_id)
        floor = max([0, *(lock.token for (_, lock_id, _, _), lock in rows if lock_id in dead)])
        version = state.updated_at if state else 0
        return make_view(live.values(), max(floor, version), self._database.now(), state, version)

    def now(self) -> int:
        """The server's time, in microseconds."""
        return self._database.now()

    def settle_seconds(self) -> float:
        """0: an insert is seen at once."""
        return 0.0


class MemorySchema:
    """Tables that are always there."""

    def readable(self) -> bool:
        """There is always something to read."""
        return True

    def make_writable(self) -> None:
        """Nothing to do."""


def memory_store(
    database: MemoryDatabase | None = None, options: LockOptions | None = None, clock: Clock | None = None
) -> StateStore:
    """A store over a database in memory, a new one unless it is given."""
    database = database or MemoryDatabase()
    return StateStore(MemoryStates(database), Locker(MemoryLocks(database), options, clock), MemorySchema())
