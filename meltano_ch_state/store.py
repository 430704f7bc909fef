"""States under locks: what the Meltano facade and other programs call.

A read asks the state table alone. A write takes the state's lock, inserts a version under the lock's token, and counts
only when the lock was still held afterwards.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from meltano_ch_state.errors import InvalidStateError, StateChangedError, StateLockedError
from meltano_ch_state.lock import Lock, merged
from meltano_ch_state.protocol import StateRow
from meltano_ch_state.read_ahead import ReadAhead

BATCH_STATES = 10_000
"""A bulk call locks and writes so many states at a time."""
BATCH_BYTES = 32_000_000
"""A bulk call holds about so many bytes of states at a time."""

JSONObject = dict[str, Any]


class StateLike(Protocol):
    """A state to write; Meltano's `MeltanoState` is one."""

    @property
    def state_id(self) -> str:
        """Which state it is."""

    @property
    def partial_state(self) -> JSONObject | None:
        """What an incomplete run left."""

    @property
    def completed_state(self) -> JSONObject | None:
        """What the last complete run left."""


@dataclass(slots=True)
class State:
    """A state as read; a part that was never set is empty."""

    state_id: str
    partial_state: JSONObject
    completed_state: JSONObject


class States(Protocol):
    """Where versions of states live; `StateRepository` is one."""

    def get(self, state_id: str) -> StateRow | None:
        """The newest version, unless it is a tombstone."""

    def ids(self, pattern: str | None = None) -> list[str]:
        """The IDs that match, sorted."""

    def stream(self, pattern: str | None = None, after: str | None = None) -> Iterator[StateRow]:
        """The states that match and come after an ID, sorted by ID."""

    def keep(self, state_ids: Collection[str]) -> None:
        """Have the history, if there is one, keep the newest versions from now on."""

    def insert_versions(self, rows: Iterable[StateRow]) -> None:
        """Insert versions, all in one statement."""


class Schema(Protocol):
    """Whether the tables are there; `migrate.Schema` is one."""

    def readable(self) -> bool:
        """Whether there is something to read."""

    def make_writable(self) -> None:
        """Create or upgrade the tables where that is due and allowed."""


class TakesLocks(Protocol):
    """What takes locks; a `Locker` is one, a `KeeperLocker`, and a `ModeLocker`."""

    def held(self, state_id: str) -> Lock | None:
        """The lock that this thread holds on a state ID."""

    def hold(self, state_id: str, operation: str = "lock", **limits: float | None) -> AbstractContextManager[Lock]:
        """Hold the lock of one state ID for the length of a `with` block."""

    def hold_each(self, state_ids: Collection[str], operation: str = "lock") -> Generator[Lock, None, None]:
        """Hold the locks of many state IDs, part by part."""


class StateStore:
    """Reads and writes states; every write holds the state's lock."""

    def __init__(
        self, states: States, locker: TakesLocks, schema: Schema, run_id: Callable[[], str] = lambda: ""
    ) -> None:
        """Put the parts together; nothing is sent yet.

        Args:
            states: Where versions live.
            locker: What takes locks.
            schema: Whether the tables are there.
            run_id: Tells the run in which a version is written, for the history; empty outside of one.
        """
        self.locker = locker
        self._run_id = run_id
        self._states = states
        self._schema = schema
        self._ahead = ReadAhead(states.stream)
        self._readable = self._writable = False

    def get(self, state_id: str) -> State | None:
        """The current state, or None.

        Whoever gets IDs in the order of `ids` gets them read ahead, each at most a second old.

        Raises:
            InvalidStateError: If what is stored is not JSON.
        """
        _encodable(state_id)
        held = self.locker.held(state_id)
        row = held.take_state(state_id) if held else self._ahead.take(state_id)
        if row is None and self._check_readable():
            row = self._states.get(state_id)
        return _loaded(row) if row and not row.is_deleted else None

    def ids(self, pattern: str | None = None) -> list[str]:
        """The IDs of the states that match a glob pattern, sorted; None and `*` match all."""
        found = self._states.ids(pattern) if self._check_readable() else []
        self._ahead.expect(pattern, found)
        return found

    def stream(self, pattern: str | None = None) -> Iterator[State]:
        """The states that match a glob pattern, sorted by ID, in bounded memory.

        Raises:
            InvalidStateError: If what is stored is not JSON.
        """
        if self._check_readable():
            yield from map(_loaded, self._states.stream(pattern))

    @contextmanager
    def lock(
        self, state_id: str, operation: str, *, counts_when_released: bool = False, **limits: float | None
    ) -> Iterator[Lock]:
        """Hold a state's lock for the length of a `with` block; writes in it use this lock. See `BaseLocker.hold`.

        Args:
            state_id: What to lock.
            operation: What others are told that the holder does.
            counts_when_released: Whether a write need not be sure before the block ends; see `Lock`.
            limits: As in `BaseLocker.hold`.
        """
        _encodable(state_id)
        self._ensure_writable()
        with self.locker.hold(state_id, operation, **limits) as lock:
            lock.counts_when_released = counts_when_released
            yield lock

    def set(self, state: StateLike) -> None:
        """Replace a state.

        Raises:
            InvalidStateError: If it cannot be written as JSON; nothing is touched.
            StateLockedError: If another holder kept the lock until the timeout.
            StateLockLostError: If this holder was deposed meanwhile.
        """
        self._write({state.state_id: _dumped(state)}, "set")

    def set_all(self, states: Iterable[StateLike]) -> int:
        """Replace many states, in batches; of two with the same ID the later one wins.

        Returns:
            How many states were given.

        Raises:
            InvalidStateError: If one cannot be written as JSON; its batch is not touched.
            StateLockedError: If some stayed locked; the error names them, all others are written.
        """
        return self._write_all(map(_dumped, states), "set_all")

    def clear(self, state_id: str) -> None:
        """Clear a state; one that is not there stays so.

        Raises:
            StateLockedError: If another holder kept the lock until the timeout.
            StateLockLostError: If this holder was deposed meanwhile.
        """
        _encodable(state_id)
        self._write({state_id: tombstone(state_id)}, "clear")

    def clear_all(self) -> int:
        """Clear every state there is.

        Returns:
            How many were cleared.

        Raises:
            StateLockedError: If some stayed locked; the error names them, all others are cleared.
        """
        return self._write_all(map(tombstone, self.ids()), "clear_all")

    def restore(self, version: StateRow, present: StateRow | None) -> None:
        """Make a state what it was in an old version, as a new one; if that is a tombstone, clear it.

        Args:
            version: The old version.
            present: What it replaces: the state as the caller saw it, or None where there was none.

        Raises:
            StateChangedError: If the state is another one by now; nothing is touched.
            StateLockedError: If another holder kept the lock until the timeout.
            StateLockLostError: If this holder was deposed meanwhile.
        """

        def check(lock: Lock) -> None:
            now = lock.take_state(version.state_id) or self._states.get(version.state_id)
            if _version_there(now) != _version_there(present):
                raise _changed(version.state_id)

        self._write({version.state_id: version}, "restore", check)

    def _write_all(self, rows: Iterator[StateRow], operation: str) -> int:
        count = 0
        failures: list[StateLockedError] = []
        for batch in _batches(rows):
            count += len(batch)
            try:
                self._write({row.state_id: row for row in batch}, operation)
            except StateLockedError as error:
                failures.append(error)
        if failures:
            raise merged(failures)
        return count

    def _write(self, rows: dict[str, StateRow], operation: str, check: Callable[[Lock], None] = lambda _: None) -> None:
        self._ensure_writable()
        self._ahead.forget()
        run_id = self._run_id()
        named = "" if operation == "set" else operation  # a set is a part of what its lock is for, such as an update
        with closing(self._locks(rows, operation)) as locks:  # an error releases at once, not when memory is swept
            for lock, state_ids in locks:
                check(lock)
                write_versions(self._states, lock, [rows[state_id] for state_id in state_ids], named, run_id)

    def _check_readable(self) -> bool:
        """Whether there are tables to read; asked until there are, then remembered."""
        self._readable = self._readable or self._schema.readable()
        return self._readable

    def _ensure_writable(self) -> None:
        """Make sure, once, that the tables are there and not too new."""
        if not self._writable:
            self._schema.make_writable()
            self._readable = self._writable = True

    def _locks(self, state_ids: Collection[str], operation: str) -> Generator[tuple[Lock, Collection[str]], None, None]:
        """The locks for some states: those that this thread holds already, then new ones for the rest."""
        held = {state_id: lock for state_id in state_ids if (lock := self.locker.held(state_id))}
        for state_id, lock in held.items():
            yield lock, [state_id]
        rest = [state_id for state_id in state_ids if state_id not in held]
        if rest:
            with closing(self.locker.hold_each(rest, operation)) as locks:
                for lock in locks:
                    lock.counts_when_released = True
                    yield lock, lock.state_ids


def write_versions(
    states: States, lock: Lock, rows: Collection[StateRow], operation: str = "", run_id: str = ""
) -> None:
    """Write the next versions of states whose lock is held.

    Args:
        states: Where versions live.
        lock: The lock.
        rows: What to write.
        operation: What the write is; else what the lock was taken for.
        run_id: The run in which it is written.

    Raises:
        StateLockLostError: If the holder was deposed.
    """
    state_ids = [row.state_id for row in rows]
    states.keep(lock.long_unchanged(state_ids))
    states.insert_versions([lock.signed(row, operation, run_id) for row in rows])
    lock.wrote(state_ids)


def tombstone(state_id: str) -> StateRow:
    """What clears a state."""
    return StateRow(state_id, None, None, 0, is_deleted=True)


def _batches(rows: Iterator[StateRow]) -> Iterator[list[StateRow]]:
    for first in rows:
        batch, size = [first], _weight(first)
        for row in islice(rows, BATCH_STATES - 1):
            batch.append(row)
            size += _weight(row)
            if size > BATCH_BYTES:
                break
        yield batch


def _weight(row: StateRow) -> int:
    return len(row.state_id) + len(row.partial_state or "") + len(row.completed_state or "")


def _version_there(row: StateRow | None) -> int | None:
    """The version of a state; None where there is none, or it was cleared."""
    return None if row is None or row.is_deleted else row.updated_at


def _changed(state_id: str) -> StateChangedError:
    return StateChangedError(
        f"Another wrote state {state_id!r} meanwhile, so nothing was written",
        f"Look again: meltano-ch-state history {shlex.quote(state_id)}",
    )


def _encodable(state_id: str) -> None:
    try:
        state_id.encode()
    except UnicodeEncodeError:
        raise InvalidStateError(f"State ID {state_id!r} is not valid Unicode", "Use another ID") from None


def _dumped(state: StateLike) -> StateRow:
    _encodable(state.state_id)
    parts = (state.partial_state, state.completed_state)
    try:
        partial, completed = (None if part is None else json.dumps(part) for part in parts)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidStateError(f"State {state.state_id!r} cannot be written as JSON: {error}") from error
    return StateRow(state.state_id, partial, completed, 0)


def _loaded(row: StateRow) -> State:
    return State(row.state_id, _part(row, row.partial_state), _part(row, row.completed_state))


def _part(row: StateRow, text: str | None) -> JSONObject:
    try:
        part = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        part = None
    if not isinstance(part, dict):
        raise InvalidStateError(
            f"State {row.state_id!r} holds something that is no JSON object",
            "Replace it with: meltano state set, or clear it",
        )
    return part
