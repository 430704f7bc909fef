"""A lock as its holder has it: the rows of one lock_id, versions under its token, the check after a write, release.

Nothing here knows SQL: a `LockStore` inserts and reads. `locker` takes locks; the decisions are in `protocol`.
"""

from __future__ import annotations

import os
import shlex
import threading
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from meltano_ch_state.errors import StateLockedError, StateLockLostError
from meltano_ch_state.process import Identity
from meltano_ch_state.protocol import TOKEN_STEP, LiveLock, LockRow, StateRow, View, next_row

LONG_SECONDS = 86_400.0
"""What was in force for longer is kept once more when it is replaced (docs/history.md)."""
NAMED_IN_ERRORS = 10
"""An error names so many state IDs; its attribute has all."""

GUARDED = "Set lock_mode to keeper here, too, as it is for other clients; or have none of them at work for a lease"
"""The remedy of who locks by inserts, and meets those who lock in Keeper."""


class LockStore(Protocol):
    """Where lock rows live."""

    def insert(self, rows: Collection[LockRow]) -> None:
        """Insert rows: in one statement, or two, those whose token and birth the server draws, then the others.

        When it returns, every later `read` sees them.
        """

    def read(self, state_ids: Collection[str]) -> Mapping[str, View]:
        """What there is about each of the state IDs now, and the state's own token."""

    def alive(self, state_ids: Collection[str], lock_ids: Collection[str]) -> Collection[tuple[str, str]]:
        """Those (state_id, lock_id) that have a row and no tombstone."""

    def now(self) -> int:
        """The server's time, in microseconds."""

    def settle_seconds(self) -> float:
        """How long after an insert a read may not yet see what others inserted before, in seconds."""


class Lock:
    """The rows of one lock_id for one or several state IDs: a contender, a holder, or a place in the queue.

    Attributes:
        lock_id: Whose rows they are.
        lease_seconds: How long the holder may be silent.
        identity: Who the holder is.
        counts_when_released: Whether nobody is told of a write before the lock is released. Then its release may tell
            whether it was held until then, where the store can do both at once.
    """

    def __init__(
        self,
        store: LockStore,
        state_ids: Iterable[str],
        lease_seconds: float,
        identity: Identity,
        *,
        born: int | None = None,
        waiting: bool = False,
    ) -> None:
        """Prepare the rows; nothing is sent yet.

        Args:
            store: Where the rows go.
            state_ids: What to lock.
            lease_seconds: How long the holder may be silent.
            identity: Who the holder is.
            born: Microseconds; None lets the server draw it.
            waiting: Whether it is a place in the queue.
        """
        self.lock_id = str(uuid.uuid4())
        self.lease_seconds = lease_seconds
        self.identity = identity
        self.counts_when_released = False
        self._store = store
        self._pid = os.getpid()
        self._mutex = threading.Lock()  # the renewal thread writes rows, too
        self._writes: dict[str, int] = {}
        self._states: dict[str, StateRow] = {}
        self._replaced: dict[str, int] = {}
        self._lost = False
        self._rows = {
            state_id: LockRow(state_id, self.lock_id, False, waiting, born, born, lease_seconds, 1, identity)
            for state_id in state_ids
        }

    @property
    def state_ids(self) -> tuple[str, ...]:
        """The state IDs that it covers."""
        return tuple(self._rows)

    @property
    def rows(self) -> Sequence[LockRow]:
        """Its newest rows."""
        return tuple(self._rows.values())

    @property
    def born(self) -> int | None:
        """Its birth, in microseconds; None as long as nobody read it."""
        return min((row.born for row in self._rows.values() if row.born is not None), default=None)

    def covers(self, state_id: str) -> bool:
        """Whether it is one of those that it covers."""
        return state_id in self._rows

    @property
    def is_of_another_process(self) -> bool:
        """Whether this is a forked child, which holds nothing."""
        return os.getpid() != self._pid

    def learn(self, own: LiveLock, view: View | None = None) -> None:
        """Take over the token and the birth that the server drew, and what this read saw of the state.

        What an earlier one saw is forgotten: somebody may have been inside since.
        """
        self._rows[own.state_id] = replace(self._rows[own.state_id], token=own.token, born=own.born)
        self._states.pop(own.state_id, None)
        if view:
            self._replaced[own.state_id] = view.version
            if state := view.current_state():
                self._states[own.state_id] = state

    def take_state(self, state_id: str) -> StateRow | None:
        """The state's version that the read brought along which gave us the lock; once, and not after a write."""
        return self._states.pop(state_id, None)

    def long_unchanged(self, state_ids: Iterable[str]) -> list[str]:
        """Those of the state IDs whose version in force is older than `LONG_SECONDS`; none that this holder wrote."""
        long = int(LONG_SECONDS * 1e6)
        return [i for i in state_ids if 0 < self._replaced.get(i, 0) < (self._rows[i].token or 0) - long]

    def raise_tokens(self, tokens: Mapping[str, int]) -> None:
        """Publish greater tokens; the birth stays."""
        self._reinsert({state_id: {"token": token} for state_id, token in tokens.items()})

    def version(self, state_id: str) -> int:
        """The version, in microseconds, for the next write of a state: greater than that of every write before.

        Raises:
            StateLockLostError: If this holder was deposed.
        """
        if self._lost or self.is_of_another_process:
            raise lost(state_id)
        written = self._writes.get(state_id, 0)
        if written >= TOKEN_STEP:  # the next holder's versions begin there
            self._republish(state_id)
            written = 0
        self._states.pop(state_id, None)
        self._replaced.pop(state_id, None)
        self._writes[state_id] = written + 1
        return (self._rows[state_id].token or 0) + written

    def signed(self, row: StateRow, operation: str = "", run_id: str = "") -> StateRow:
        """A row as the next version of its state, with its writer.

        Args:
            row: What to write.
            operation: What the write is; else what the lock was taken for.
            run_id: The run in which it is written.

        Raises:
            StateLockLostError: If this holder was deposed.
        """
        version, by = self.version(row.state_id), self.identity
        return replace(row, updated_at=version, holder=by.holder, operation=operation or by.operation, run_id=run_id)

    def wrote(self, state_ids: Collection[str]) -> None:
        """Make sure, after a write, that nobody deposed this holder: now, or when the lock is released.

        Raises:
            StateLockLostError: If it was deposed.
        """
        self.confirm(state_ids)

    def confirm(self, state_ids: Collection[str] | None = None) -> None:
        """Make sure that nobody deposed this holder until now; without that, no write counts as done.

        Raises:
            StateLockLostError: If it was deposed, or its row is gone.
        """
        asked = self.state_ids if state_ids is None else state_ids
        alive = self._store.alive(asked, [self.lock_id])
        for state_id in asked:
            if (state_id, self.lock_id) not in alive:
                self._lost = True
                raise lost(state_id)

    def renew(self) -> None:
        """Say that the holder lives, then see whether it was deposed.

        Raises:
            StateLockLostError: If it was deposed.
        """
        self.touch()
        self.confirm()

    def touch(self) -> None:
        """Say that the owner lives."""
        self._reinsert({state_id: {} for state_id in self.state_ids})

    def end(self, state_ids: Collection[str] | None = None) -> list[LockRow]:
        """Give up some or all state IDs: the tombstones to insert. None in a forked child, which holds nothing.

        A tombstone's token is the last version that was written: so the next holder sees whether a state is current.
        """
        if self.is_of_another_process:
            return []
        ended = self.state_ids if state_ids is None else [i for i in state_ids if i in self._rows]
        return [next_row(self._rows[state_id], released=True, token=self._last_version(state_id)) for state_id in ended]

    def forget(self, state_ids: Iterable[str]) -> None:
        """Forget the state IDs that were released, or could not be."""
        with self._mutex:
            for state_id in state_ids:
                self._rows.pop(state_id, None)

    def _last_version(self, state_id: str) -> int | None:
        token = self._rows[state_id].token
        return token if token is None else token + max(0, self._writes.get(state_id, 0) - 1)

    def _republish(self, state_id: str) -> None:
        """Publish a greater token, and use it only when nobody has revoked the lock until then."""
        self.raise_tokens({state_id: (self._rows[state_id].token or 0) + TOKEN_STEP})
        self.confirm([state_id])

    def _reinsert(self, changes: Mapping[str, Mapping[str, object]]) -> None:
        with self._mutex:
            rows = {state_id: next_row(self._rows[state_id], **change) for state_id, change in changes.items()}
            self._store.insert(rows.values())
            self._rows.update(rows)


def describe(lock: LiveLock, now: int) -> str:
    """Who holds a lock, doing what, for how long, and for how long it may stay silent yet."""
    return (
        f"{lock.identity.holder} ({lock.identity.operation}, for {lock.age_seconds(now):.1f} s,"
        f" lease left {lock.lease_seconds_left(now):.1f} s, lock_id {lock.lock_id})"
    )


def locked(before: Mapping[str, Sequence[LiveLock]], now: int) -> StateLockedError:
    """The error that tells who holds what one waited for in vain.

    Args:
        before: Who is before us, for each state ID that was not got.
        now: The server's time, in microseconds.
    """
    held_first = tuple(sorted(before, key=lambda state_id: not before[state_id]))
    first = next(iter(before[held_first[0]]), None)
    if first is None:
        return _named_error(held_first, "wanted by others all the time")
    if first.is_guard:  # it cannot be unlocked: holders rely on it
        unlock, remedy = "", GUARDED
    else:
        unlock, remedy = f"meltano-ch-state unlock {shlex.quote(first.state_id)} --lock-id {first.lock_id}", ""
    error = _named_error(held_first, f"locked by {describe(first, now)}", unlock, remedy)
    error.holder, error.operation, error.lock_id = first.identity.holder, first.identity.operation, first.lock_id
    error.age_seconds, error.lease_seconds_left = first.age_seconds(now), first.lease_seconds_left(now)
    return error


def merged(errors: Sequence[StateLockedError]) -> StateLockedError:
    """One error for several: the first, with the state IDs of all."""
    if len(errors) == 1:
        return errors[0]
    state_ids = tuple(state_id for error in errors for state_id in error.state_ids)
    return _named_error(state_ids, f"locked, the first by {errors[0].holder}")


def _named_error(state_ids: tuple[str, ...], complaint: str, unlock: str = "", remedy: str = "") -> StateLockedError:
    names = ", ".join(map(repr, state_ids[:NAMED_IN_ERRORS]))
    more = f" and {len(state_ids) - NAMED_IN_ERRORS} more" if len(state_ids) > NAMED_IN_ERRORS else ""
    error = StateLockedError(
        f"State {names}{more} is {complaint}",
        remedy
        or "Wait for it, or raise lock_acquire_timeout_seconds; a dead holder's lock ends by itself with its lease"
        + (f", or at once with: {unlock}" if unlock else ""),
    )
    error.state_ids, error.unlock_command = state_ids, unlock
    return error


def lost(state_id: str) -> StateLockLostError:
    """The error of a holder that was deposed."""
    return StateLockLostError(
        f"The lock of state {state_id!r} was lost to another holder, so this write does not count",
        "Run it again; if it was paused for long, raise stale_lock_seconds",
    )
