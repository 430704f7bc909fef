"""The lock's decisions, apart from all I/O: what one read of the lock rows means for a contender or a holder.

A lock is a row in the lock table, its lock_id a UUID. Everybody inserts first and decides afterwards, from one read
(docs/decisions/0001):

- somebody waits who was there earlier: withdraw, and queue up;
- alone, and the own token at least `TOKEN_STEP` above every other: held;
- alone, but not so: publish a greater token and read again;
- not alone: the earliest (born, lock_id) stays and reads again, the others withdraw;
- no live row of one's own: revoked, or never arrived; lost.

Times and tokens are integers of microseconds since 1970, UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from meltano_ch_state.process import Identity

TOKEN_STEP = 1_000
"""Two holders' tokens are at least this far apart, in microseconds: room for the versions written under one token."""

GUARD = "keeper"
"""The operation of a guard: the row by which those who lock in Keeper keep out those who lock by inserts."""
GUARD_BORN = 1
"""The birth of every guard: older than anybody, so that every contender withdraws. Its token is when it was made."""


@dataclass(frozen=True, slots=True)
class LockRow:
    """A row to insert: a candidate, a renewal or a bump (released False), or a tombstone (True).

    Attributes:
        token: Microseconds; None lets the server draw it.
        born: Microseconds; None lets the server draw it, at the first insert only.
        waiting: Whether it is a place in the queue, which locks nothing.
        sequence: Counts the rows that a lock_id got from one client, so that no two are identical.
    """

    state_id: str
    lock_id: str
    released: bool
    waiting: bool
    token: int | None
    born: int | None
    lease_seconds: float
    sequence: int
    identity: Identity


@dataclass(frozen=True, slots=True)
class StateRow:
    """One version of a state; its parts are JSON text, or None.

    Attributes:
        updated_at: The version, microseconds since 1970, UTC.
        is_deleted: Whether it is a tombstone: the state was cleared.
        holder: Who wrote it, `user@host:pid`; empty where that is not known.
        operation: What the writer was doing: `set`, `update`, `restore`, ...
        run_id: The Meltano run in which it was written; empty outside of one.
    """

    state_id: str
    partial_state: str | None
    completed_state: str | None
    updated_at: int
    is_deleted: bool = False
    holder: str = ""
    operation: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class LiveLock:
    """A lock_id that has no tombstone, as one read saw it. Times in microseconds, by the server's clock."""

    state_id: str
    lock_id: str
    token: int
    born: int
    locked_at: int
    lease_seconds: float
    identity: Identity
    waiting: bool = False

    @property
    def order(self) -> tuple[int, str]:
        """Who was there earlier has a lower one; the lock_id decides a tie."""
        return self.born, self.lock_id

    @property
    def is_guard(self) -> bool:
        """Whether it stands for all who lock in Keeper."""
        return self.identity.operation == GUARD and self.born == GUARD_BORN

    def age_seconds(self, now: int) -> float:
        """How long ago it was born, in seconds; a guard: how long ago it was made, whoever renewed it since."""
        return max(0.0, (now - (self.token if self.is_guard else self.born)) / 1e6)

    @property
    def over_at(self) -> int:
        """When its lease is over, unless it is renewed."""
        return self.locked_at + int(self.lease_seconds * 1e6)

    def lease_seconds_left(self, now: int) -> float:
        """How long it may stay silent yet, in seconds; below 0 once it is over."""
        return (self.over_at - now) / 1e6


@dataclass(frozen=True, slots=True)
class View:
    """What one read saw of one state ID.

    Attributes:
        live: The live locks of contenders and holders, the earliest first.
        queue: The places of those who wait, the earliest first.
        floor: The greatest token of tombstones, of their live rows, and of the state itself.
        now: The server's time at the read; 0 where that found no row.
        state: The state's newest version, where the read brought it along.
        version: That version's number; 0 where there is no state.
    """

    live: tuple[LiveLock, ...] = ()
    queue: tuple[LiveLock, ...] = ()
    floor: int = 0
    now: int = 0
    state: StateRow | None = None
    version: int = 0

    def own(self, lock_id: str) -> LiveLock | None:
        """The live lock with this lock_id."""
        return next((lock for lock in self.live if lock.lock_id == lock_id), None)

    def rivals(self, lock_id: str) -> tuple[LiveLock, ...]:
        """The live locks with another lock_id, the earliest first."""
        return tuple(lock for lock in self.live if lock.lock_id != lock_id)

    def guards(self) -> tuple[LiveLock, ...]:
        """The live guards."""
        return tuple(lock for lock in self.live if lock.is_guard)

    def unguarded(self) -> tuple[LiveLock, ...]:
        """The live locks of those who lock by inserts, the earliest first."""
        return tuple(lock for lock in self.live if not lock.is_guard)

    def waiting_before(self, order: tuple[int, str]) -> tuple[LiveLock, ...]:
        """The places in the queue before this one."""
        return tuple(place for place in self.queue if place.order < order)

    def current_state(self) -> StateRow | None:
        """The state's newest version, unless it may be older than what a holder before wrote.

        One read need not see both tables at one time. A tombstone's token is the last version written under its lock.
        """
        return self.state if self.state and self.state.updated_at >= self.floor else None

    def greatest(self, lock_id: str) -> int:
        """The greatest token that anybody else published."""
        return max([self.floor, *(lock.token for lock in self.rivals(lock_id))])

    def without(self, over: Collection[LiveLock]) -> View:
        """The view without some places in the queue, whose owners are gone."""
        return replace(self, queue=tuple(place for place in self.queue if place not in over))


class Verdict(Enum):
    """What a contender has to do after a read."""

    HELD = "held"
    BUMP = "publish a greater token, then read again"
    STAY = "the earliest: read again"
    WITHDRAW = "not the earliest: withdraw, and queue up"
    LOST = "revoked: start over"


def decide(view: View, lock_id: str) -> Verdict:
    """What a contender has to do (design: settle, then decide; the earliest valid lock wins)."""
    own = view.own(lock_id)
    if own is None:
        return Verdict.LOST
    if view.rivals(lock_id):
        return Verdict.STAY if view.live[0] is own else Verdict.WITHDRAW
    if view.waiting_before((own.born, "")):  # a courtesy: it would be safe to go on; an own place has the same birth
        return Verdict.WITHDRAW
    return Verdict.HELD if own.token >= view.greatest(lock_id) + TOKEN_STEP else Verdict.BUMP


def tombstone_of(lock: LiveLock, by: Identity) -> LockRow:
    """The row that ends a lock for ever.

    It repeats the token that was read. A guard stands for others whose tokens are not to be seen: they took their locks
    in the first half of its lease, so none is greater than the time at which it is over.
    """
    token = lock.over_at if lock.is_guard else lock.token
    return LockRow(lock.state_id, lock.lock_id, True, lock.waiting, token, lock.born, lock.lease_seconds, 0, by)


def next_row(row: LockRow, **changes: object) -> LockRow:
    """The next row of the same lock_id by the same client."""
    return replace(row, sequence=row.sequence + 1, **changes)  # type: ignore[arg-type]


def make_view(rows: Iterable[LiveLock], floor: int, now: int, state: StateRow | None = None, version: int = 0) -> View:
    """Put the rows in their order, and those who wait apart."""
    ordered = sorted(rows, key=lambda lock: lock.order)
    live, queue = ([lock for lock in ordered if lock.waiting is waiting] for waiting in (False, True))
    return View(tuple(live), tuple(queue), floor, now, state, version)
