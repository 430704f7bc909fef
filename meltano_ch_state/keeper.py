"""Takes locks in Keeper: one row per state ID, changed by compare-and-set, beside a guard among the ordinary lock rows.

A row is made by a strict insert and never deleted. It is taken by a change that hits it only while it is released and
has the lock_id that was seen last; lock_ids are never used twice, so no late repetition hits anything. A change does
not tell whether it hit: a read after it does, when it shows what only this change can have written.

The guard keeps out those who lock by inserts: a live row in the ordinary lock table, shared by all who lock in Keeper
with the same lease. One counts for half a lease after it was made, whoever renews it: so as a rule it costs no
statement, and nobody can have seen it end before (decision 0006).

Where nobody is told of a write before the lock is released, the release is the check after the write, too: it fails
unless the row is still the holder's. Whether a failure means that it was deposed, or that an earlier request of the
same release landed, the row tells, whoever has it by then: it counts its depositions. If a successor was deposed since,
one is told of a loss that was none.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from meltano_ch_state.lock import Lock, LockStore, describe, locked, lost
from meltano_ch_state.locker import BaseLocker, LockOptions, tell_of_take_over
from meltano_ch_state.process import Identity, identify
from meltano_ch_state.protocol import GUARD, GUARD_BORN, TOKEN_STEP, LiveLock, LockRow, Verdict, View, tombstone_of
from meltano_ch_state.waiting import SHORTEST_PAUSE_SECONDS, Clock, Since, Wait

LOOKS = 6
"""A contender that is not through after so many looks starts over. So often, too, one looks for one's own change: what
is read in Keeper may be old."""
YOUNG_GUARD = 0.5
"""A guard keeps others out for this part of its lease after it was made; then a new one is made."""
PLACES_AFTER_CONTENTION = 2
"""Who released what others wait for pauses as if so many were before it."""
GUARDED_FOR = 0.25
"""A guard that was young need not be asked for within this part of its lease."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cell:
    """The row of one state ID in Keeper.

    Attributes:
        lock: Who has the lock, or had it last.
        released: Whether it is free.
        sequence: How often its holders have changed it.
        depositions: How many of its holders were deposed.
    """

    lock: LiveLock
    released: bool
    sequence: int
    depositions: int = 0


@dataclass(frozen=True, slots=True)
class KeeperView:
    """What one read saw of one state ID: the row in Keeper, and the ordinary lock rows and the state."""

    cell: Cell | None
    rows: View


class KeeperStore(LockStore, Protocol):
    """Where the rows in Keeper live, beside the ordinary ones.

    A change hits the rows that meet its condition when it is done, or none of them; it does not tell.
    """

    def look(self, state_ids: Collection[str]) -> Mapping[str, KeeperView]:
        """What there is about each of the state IDs; it may be old, as far as Keeper is concerned."""

    def create(self, rows: Collection[LockRow]) -> None:
        """Make rows where there are none; nothing happens to those that are there."""

    def take(self, rows: Collection[LockRow], seen: Mapping[str, str]) -> None:
        """Give rows to another lock_id, if they have the one that was seen, and are released."""

    def retake(self, rows: Collection[LockRow], seen: Mapping[str, str]) -> None:
        """The same for rows that this holder had last, doing the same."""

    def take_over(self, rows: Collection[LockRow], silent: Collection[Cell]) -> None:
        """Give rows to another lock_id, if they were not renewed since they were seen so."""

    def touch(self, lock_id: str, state_ids: Collection[str], sequence: int, token: int = 0) -> None:
        """Renew what a lock_id holds, with at least this sequence and token."""

    def release(self, lock_id: str, state_ids: Collection[str]) -> None:
        """Release what a lock_id holds."""

    def release_own(self, lock_id: str, state_id: str) -> bool:
        """Release what a lock_id holds; False when it does not, or somebody else was faster."""

    def cancel(
        self, lock_id: str, state_ids: Collection[str], seen: Mapping[str, str], silent: Collection[Cell], burnt: str
    ) -> None:
        """Release what a lock_id took, or what it would take now: as `burnt`."""

    def sequences(self, lock_id: str, guards: Mapping[str, str]) -> Mapping[str, int]:
        """The sequence of each state ID that a lock_id holds and whose guard is alive."""


@dataclass(frozen=True, slots=True)
class _Hold:
    """What a holder saw of one state ID: its row, the guard that has to stay alive, and when it asked for them."""

    cell: Cell
    guard: LiveLock | None
    seen: Since

    @property
    def guard_id(self) -> str:
        """The guard's lock_id; empty where there was none."""
        return self.guard.lock_id if self.guard else ""


class KeeperLock(Lock):
    """A lock as its holder has it, its rows in Keeper.

    Attributes:
        seen: Who had the rows that are taken as released.
        silent: The rows that are taken from holders that are over.
    """

    def __init__(
        self, store: KeeperStore, state_ids: Iterable[str], lease_seconds: float, identity: Identity, clock: Clock
    ) -> None:
        """Prepare the rows; nothing is sent yet."""
        super().__init__(store, state_ids, lease_seconds, identity)
        self._keeper = store
        self._clock = clock
        self._sequence = 1
        self._holds: dict[str, _Hold] = {}
        self._unchecked = False
        self.seen: Mapping[str, LiveLock] = {}
        self.silent: Mapping[str, Cell] = {}

    def had(self, state_id: str) -> LiveLock | None:
        """Who had a row before; None where that is not known, or there was none."""
        return self.silent[state_id].lock if state_id in self.silent else self.seen.get(state_id)

    def learn_cell(self, cell: Cell, view: View, seen: Since) -> None:
        """Take over what the row has to tell, the state, and the guard, as seen by a read that began then."""
        self._sequence = max(self._sequence, cell.sequence)
        self._holds[cell.lock.state_id] = _Hold(cell, _young_guard(view, self.lease_seconds), seen)
        self.learn(cell.lock, view)

    def learned(self, state_ids: Iterable[str]) -> dict[str, LiveLock]:
        """What the rows of some state IDs say of this holder, as far as it saw them."""
        return {state_id: self._holds[state_id].cell.lock for state_id in state_ids if state_id in self._holds}

    def raise_tokens(self, tokens: Mapping[str, int]) -> None:
        """Publish greater tokens; how great the next read tells, or with a single state ID it is this one."""
        greatest = max(tokens.values())
        with self._mutex:
            self._change(tokens, greatest)
            self._rows.update({state_id: replace(self._rows[state_id], token=greatest) for state_id in tokens})

    def touch(self) -> None:
        """Say that the owner lives."""
        with self._mutex:
            self._change(self.state_ids)

    def wrote(self, state_ids: Collection[str]) -> None:
        """Leave the check to the release where that does, else make it.

        Raises:
            StateLockLostError: If it was deposed, or the guard is gone, so that others may be in.
        """
        if self.counts_when_released and len(self.state_ids) == 1:
            self._unchecked = True
        else:
            self.confirm(state_ids)

    def check_by_release(self) -> Mapping[str, LiveLock]:
        """Release it, if there was a write that was not checked yet; else leave that to others.

        Returns:
            What the rows that were released say of this holder.

        Raises:
            StateLockLostError: If it was deposed, or the guard may have been gone, so that others may have been in.
        """
        if not self._unchecked:
            return {}
        (state_id,) = self.state_ids
        if self.is_of_another_process or not self._release_own(state_id):
            raise lost(state_id)
        guarded, released = self._was_guarded(state_id), self.learned([state_id])
        self.forget([state_id])
        if not guarded:
            raise lost(state_id)
        return released

    def confirm(self, state_ids: Collection[str] | None = None) -> None:
        """Change the rows, which is possible only while they are one's own, and see that it was done.

        Raises:
            StateLockLostError: If it was deposed, or the guard is gone, so that others may be in.
        """
        with self._mutex:
            asked = tuple(self.state_ids if state_ids is None else state_ids)
            guards = {state_id: self._holds[state_id].guard_id for state_id in asked}
            wanted = self._change(asked)
        for _ in self._looks():
            seen = self._keeper.sequences(self.lock_id, guards)
            missing = [state_id for state_id in asked if seen.get(state_id, 0) < wanted]
            if not missing:
                return
        self._lost = True
        raise lost(missing[0])

    def renew(self) -> None:
        """Renew the guard, then the lock.

        Raises:
            StateLockLostError: If it was deposed.
        """
        guards = [hold.guard for hold in tuple(self._holds.values()) if hold.guard]
        self._keeper.insert([guard_row(each.state_id, each.lock_id, each.lease_seconds, each.token) for each in guards])
        self.confirm()

    def forget(self, state_ids: Iterable[str]) -> None:
        """Forget the state IDs that were released, or could not be."""
        ended = tuple(state_ids)
        super().forget(ended)
        with self._mutex:
            for state_id in ended:
                self._holds.pop(state_id, None)

    def _release_own(self, state_id: str) -> bool:
        """Release what is held, and tell whether it was held until then."""
        for _ in self._looks():
            if self._keeper.release_own(self.lock_id, state_id):
                return True
            cell = self._keeper.look([state_id])[state_id].cell
            old = cell is None or cell.lock.token < (self._rows[state_id].token or 0)
            if cell and not old and not _is_held_by(cell, self.lock_id):
                return cell.depositions == self._holds[state_id].cell.depositions  # an earlier request released it
        return False

    def _was_guarded(self, state_id: str) -> bool:
        """Whether those who lock by inserts were kept out until now.

        The guard was younger than half its lease when it was seen, so nobody can have seen it end before a whole one.
        """
        hold = self._holds[state_id]
        asked_lately = hold.seen.seconds < self.lease_seconds * GUARDED_FOR
        return asked_lately or bool(self._store.alive([state_id], [hold.guard_id]))

    def _looks(self) -> Iterator[None]:
        """Look a few times, with longer and longer pauses between: what one read may be old."""
        for attempt in range(LOOKS):
            if attempt:
                self._clock.sleep(SHORTEST_PAUSE_SECONDS * 2**attempt)
            yield

    def _change(self, state_ids: Collection[str], token: int = 0) -> int:
        self._sequence += 1
        self._keeper.touch(self.lock_id, state_ids, self._sequence, token)
        return self._sequence


class KeeperLocker(BaseLocker):
    """Takes locks in Keeper. Locks are per thread and state ID; one locker serves all threads."""

    def __init__(self, store: KeeperStore, options: LockOptions | None = None, clock: Clock | None = None) -> None:
        """Bind a store; nothing is sent yet."""
        super().__init__(store, options, clock)
        self._keeper = store
        self._seen: dict[str, LiveLock] = {}  # who had each row when it was last seen released
        self._own: dict[str, tuple[str, object]] = {}  # those of this process, and what their rows say of it

    def _hold_parts(self, state_ids: Collection[str], operation: str, wait: Wait) -> Iterator[Lock]:
        turn = _Turn(dict.fromkeys(state_ids), operation, wait)
        try:
            if self._wanted_lately(state_ids):
                turn.wait.pause(0.0, PLACES_AFTER_CONTENTION)
            while turn.rest:
                with self._candidacy(turn) as lock:
                    for state_id in lock.state_ids:
                        del turn.rest[state_id]
                    if lock.state_ids:
                        yield lock
                if turn.rest:
                    self._until_free(turn)
        finally:
            self._bury(turn)  # unless it is done: an interrupt may have come before

    @contextmanager
    def _candidacy(self, turn: _Turn) -> Iterator[KeeperLock]:
        """Compete once for each state ID, and hold what was won. Whatever happens, nothing stays taken."""
        turn.wait.attempts += 1
        identity = identify(turn.operation)
        lock = KeeperLock(self._keeper, turn.rest, self.options.lease_seconds, identity, self._clock)
        turn.tried.add(lock.lock_id)
        turn.lock, turn.decided = lock, False
        try:
            self._take(lock, turn)
            self._decide(lock, turn)
            turn.decided = True
            with self._holding(lock, turn.wait):
                yield lock
            self._remember_own(lock.check_by_release())
        finally:
            self._bury(turn)

    def _take(self, lock: KeeperLock, turn: _Turn) -> None:
        """Take the rows as they were last seen, and make those that are missing, with their guards."""
        unknown = [
            state_id for state_id in lock.state_ids if state_id not in self._seen and state_id not in turn.silent
        ]
        views = self._look(unknown, turn) if unknown else {}
        self._guard(views)
        lock.seen = {state_id: last for state_id in lock.state_ids if (last := self._seen.get(state_id))}
        lock.silent = {i: cell for i, cell in turn.silent.items() if i in turn.rest and i not in lock.seen}
        absent = [row for row in lock.rows if row.state_id in views and views[row.state_id].cell is None]
        if absent:
            self._keeper.create(absent)
        seen = {state_id: last.lock_id for state_id, last in lock.seen.items()}
        free = [row for row in lock.rows if row.state_id in seen]
        own = [row for row in free if self._own.get(row.state_id) == (seen[row.state_id], _details(lock))]
        own_ids = {row.state_id for row in own}
        if own:
            self._keeper.retake(own, seen)
        if others := [row for row in free if row.state_id not in own_ids]:
            self._keeper.take(others, seen)
        if lock.silent:
            self._keeper.take_over([row for row in lock.rows if row.state_id in lock.silent], lock.silent.values())

    def _decide(self, lock: KeeperLock, turn: _Turn) -> None:
        """See what was won, until each state ID is held or left to others."""
        pending: Collection[str] = lock.state_ids
        looks = 0
        while pending:
            looks += 1
            began = Since(self._clock)
            views = self._look(pending, turn)
            verdicts = {i: judge(v, lock.lock_id, lock.had(i), lock.lease_seconds) for i, v in views.items()}
            logger.debug("lock %s: %s", lock.lock_id, {i: verdict.name for i, verdict in verdicts.items()})
            for view in views.values():
                if view.cell and _is_held_by(view.cell, lock.lock_id):
                    lock.learn_cell(view.cell, view.rows, began)
            self._guard({i: views[i] for i, verdict in verdicts.items() if verdict in _UNGUARDED})
            again = [i for i, verdict in verdicts.items() if verdict in {Verdict.STAY, Verdict.BUMP}]
            if looks >= LOOKS:
                again = []
            self._leave([i for i in views if i not in again and verdicts[i] is not Verdict.HELD], lock, turn, verdicts)
            if raised := {i: views[i].rows.floor + TOKEN_STEP for i in again if verdicts[i] is Verdict.BUMP}:
                lock.raise_tokens(raised)
            pending = again

    def _leave(
        self, state_ids: Collection[str], lock: KeeperLock, turn: _Turn, verdicts: Mapping[str, Verdict]
    ) -> None:
        """Leave state IDs to others, and release those that are ours, or that may turn out to be."""
        if not state_ids:
            return
        turn.wait.contended = True
        if doubtful := [state_id for state_id in state_ids if verdicts[state_id] is not Verdict.LOST]:
            self._keeper.release(lock.lock_id, doubtful)
        lock.forget(state_ids)

    def _until_free(self, turn: _Turn) -> None:
        """Wait, and only look, until nobody has some of the state IDs."""
        changed, before = self._clock.monotonic(), None
        while True:
            views = self._look(tuple(turn.rest), turn)
            now = max(view.rows.now for view in views.values())
            blocked = {state_id: self._blockers(view, turn) for state_id, view in views.items()}
            if not all(blocked.values()) and not turn.wait.last_try:
                turn.wait.last_try = turn.wait.over
                return
            if turn.wait.over:
                raise locked(blocked, now)
            first = next(others[0] for others in blocked.values() if others)
            turn.wait.meets(first, describe(first, now))
            self._guard({i: view for i, view in views.items() if view.rows.unguarded()})
            holders = {other.lock_id for others in blocked.values() for other in others}
            if holders != before:
                changed, before = self._clock.monotonic(), holders
            turn.wait.pause(self._clock.monotonic() - changed, 1)

    def _blockers(self, view: KeeperView, turn: _Turn) -> tuple[LiveLock, ...]:
        """Who has a state ID: a holder in Keeper, unless it is over, and those who lock by inserts."""
        cell = view.cell
        if cell is None:
            return view.rows.unguarded()
        known = turn.silent.pop(cell.lock.state_id, None)
        if cell.released:
            return view.rows.unguarded()
        if cell.lock.lock_id in turn.tried or self._those_over([cell.lock], {cell.lock.state_id: view.rows}, turn.wait):
            if known != cell:
                tell_of_take_over(cell.lock, view.rows.now)
            turn.silent[cell.lock.state_id] = cell
            return view.rows.unguarded()
        return (cell.lock, *view.rows.unguarded())

    def _look(self, state_ids: Collection[str], turn: _Turn) -> Mapping[str, KeeperView]:
        """Read; revoke those who lock by inserts and are over, and read again until there are none."""
        while True:
            turn.wait.asks()
            views = self._keeper.look(state_ids)
            for state_id, view in views.items():
                self._seen.pop(state_id, None)
                if view.cell and view.cell.released:  # to take what is held would be right only if it came too late
                    self._seen[state_id] = view.cell.lock
            rows = {state_id: view.rows for state_id, view in views.items()}
            over = self._those_over((lock for each in rows.values() for lock in each.unguarded()), rows, turn.wait)
            if not over:
                return views
            self._take_over(over, rows)

    def _guard(self, views: Mapping[str, KeeperView]) -> None:
        """Make guards where there is none that is young enough, and revoke those that are over.

        None is renewed here, as somebody who saw it end may be about to revoke it.
        """
        lease = self.options.lease_seconds
        lacking = {i: view.rows for i, view in views.items() if not _young_guard(view.rows, lease)}
        if not lacking:
            return
        made = max(rows.now for rows in lacking.values()) or self._keeper.now()
        lock_id, by = str(uuid.uuid4()), identify("take over")
        guards = [guard_row(state_id, lock_id, lease, made) for state_id in lacking]
        over = [lock for rows in lacking.values() for lock in rows.guards() if lock.lease_seconds_left(rows.now) < 0]
        self._keeper.insert([*guards, *(tombstone_of(lock, by) for lock in over)])
        self._settle()

    def _bury(self, turn: _Turn) -> None:
        """Release a lock, or, when it is not known what became of it, see to it that it cannot be taken any more."""
        lock = turn.lock
        if lock is None or not lock.state_ids or lock.is_of_another_process:
            return
        with self._ending(lock):
            ended = lock.state_ids
            for state_id in ended:
                self._seen.pop(state_id, None)
            if turn.decided:
                self._keeper.release(lock.lock_id, ended)
                self._remember_own(lock.learned(ended))
            else:
                self._cancel(lock, ended)

    def _remember_own(self, released: Mapping[str, LiveLock]) -> None:
        """Remember the rows that this process released: they are taken again without a look at them before."""
        self._seen.update(released)
        self._own.update({state_id: (last.lock_id, _details(last)) for state_id, last in released.items()})

    def _cancel(self, lock: KeeperLock, state_ids: Collection[str]) -> None:
        """Have what was sent come to nothing, even if it lands only now: the rows get a lock_id that nobody waits for.

        A row that is missing is made, as one that is released.
        """
        seen = {state_id: last.lock_id for state_id, last in lock.seen.items()}
        try:
            if absent := [row for row in lock.end() if lock.had(row.state_id) is None]:
                self._keeper.create(absent)
        finally:
            self._keeper.cancel(lock.lock_id, state_ids, seen, lock.silent.values(), str(uuid.uuid4()))


@dataclass(slots=True)
class _Turn:
    """What one call still wants, its wait, the lock_ids it tried, and the rows whose holders are over.

    Attributes:
        lock: The lock that it competes with.
        decided: Whether that is held, or left.
    """

    rest: dict[str, None]
    operation: str
    wait: Wait
    lock: KeeperLock | None = None
    decided: bool = False
    tried: set[str] = field(default_factory=set)
    silent: dict[str, Cell] = field(default_factory=dict)


_UNGUARDED = {Verdict.STAY, Verdict.WITHDRAW}


def judge(view: KeeperView, lock_id: str, seen: LiveLock | None, lease_seconds: float) -> Verdict:
    """What a contender has to do about one state ID.

    Args:
        view: What it saw after it tried to take the row.
        lock_id: What it took the row by.
        seen: Who had the row before; None when there was no row.
        lease_seconds: How long the contender may be silent.
    """
    cell = view.cell
    if cell is None or not _is_held_by(cell, lock_id):
        return Verdict.STAY if cell is None or (seen and _is_old(cell, seen)) else Verdict.LOST
    if view.rows.unguarded():
        return Verdict.WITHDRAW
    if not _young_guard(view.rows, lease_seconds):
        return Verdict.STAY
    return Verdict.HELD if cell.lock.token >= view.rows.floor + TOKEN_STEP else Verdict.BUMP


def guard_row(state_id: str, lock_id: str, lease_seconds: float, made: int) -> LockRow:
    """A guard, or its renewal. No process counts as its owner, so none that dies ends it.

    Args:
        state_id: From which state ID it keeps out who locks by inserts.
        lock_id: The lock_id.
        lease_seconds: How long it may be silent.
        made: The server's time at a read before it was first sent, in microseconds: however late a row of it lands, it
            makes the guard no younger.
    """
    by = replace(identify(GUARD), process="")
    return LockRow(state_id, lock_id, False, False, made, GUARD_BORN, lease_seconds, 1, by)


def _young_guard(rows: View, lease_seconds: float) -> LiveLock | None:
    """The youngest guard, if it was made so lately that nobody can see it end for another half of the lease.

    Those with another lease do not count: who renews such a one, if only late, may leave it less than is seen here.
    """
    alike = (guard for guard in rows.guards() if guard.lease_seconds == lease_seconds)
    youngest = max(alike, key=lambda guard: guard.token, default=None)
    return youngest if youngest and youngest.age_seconds(rows.now) <= lease_seconds * YOUNG_GUARD else None


def _is_old(cell: Cell, seen: LiveLock) -> bool:
    """Whether a row shows who was seen before it was taken, or somebody earlier: a read in Keeper may be old."""
    return cell.lock.lock_id == seen.lock_id or cell.lock.token < seen.token


def _details(lock: Lock | LiveLock) -> tuple[float, Identity]:
    return lock.lease_seconds, lock.identity


def _is_held_by(cell: Cell, lock_id: str) -> bool:
    return cell.lock.lock_id == lock_id and not cell.released
