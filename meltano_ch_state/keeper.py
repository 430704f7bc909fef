"""Takes locks in Keeper: one row per state ID, changed by compare-and-set, beside a guard among the ordinary lock rows.

A row is made by a strict insert and never deleted. It is taken by a change that hits it only while it is released and
has the lock_id that was seen last; lock_ids are never used twice, so no late repetition hits anything. A change does
not tell whether it hit: a read after it does, when it shows what only this change can have written.

The guard keeps out those who lock by inserts: a live row in the ordinary lock table, shared by all who lock in Keeper
with the same lease. It is renewed when half its lease is over, so as a rule it costs no statement (decision 0006).

Where nobody is told of a write before the lock is released, the release is the check after the write, too: it fails
unless the row is still the holder's. Whether a failure means that it was deposed, or that an earlier request of the
same release landed, the row tells, whoever has it by then: it counts its depositions. If a successor was deposed since,
one is told of a loss that was none.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from meltano_ch_state.lock import Lock, LockStore, describe, locked, lost
from meltano_ch_state.locker import BaseLocker, LockOptions, tell_of_take_over
from meltano_ch_state.process import Identity, identify
from meltano_ch_state.protocol import GUARD, GUARD_BORN, TOKEN_STEP, LiveLock, LockRow, Verdict, View
from meltano_ch_state.waiting import SHORTEST_PAUSE_SECONDS, Clock, Since, Wait

READS = 3
"""So often one looks for one's own change: a read in Keeper may be old."""
LOOKS = 6
"""A contender that is not through after so many looks starts over."""
FRESH_GUARD = 0.5
"""A guard with more than this part of its lease left need not be renewed."""
RENEWABLE_GUARD = 0.25
"""One with less than this part left is replaced by a new one."""
PLACES_AFTER_CONTENTION = 2
"""Who released what others wait for pauses as if so many were before it."""
GUARDED_FOR = 0.25
"""A guard that was fresh need not be asked for within this part of its lease."""

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

    def take(self, rows: Collection[LockRow], seen: Mapping[str, str], silent: Collection[Cell]) -> None:
        """Give rows to another lock_id, if they have the one that was seen, and are released or silent as it was."""

    def retake(self, rows: Collection[LockRow], seen: Mapping[str, str]) -> None:
        """The same for rows that this holder had last, doing the same."""

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


class KeeperLock(Lock):
    """A lock as its holder has it, its rows in Keeper."""

    def __init__(
        self, store: KeeperStore, state_ids: Iterable[str], lease_seconds: float, identity: Identity, clock: Clock
    ) -> None:
        """Prepare the rows; nothing is sent yet."""
        super().__init__(store, state_ids, lease_seconds, identity)
        self._keeper = store
        self._clock = clock
        self._sequence = 1
        self._guards: dict[str, str] = {}
        self._guarded = Since(clock)
        self._depositions: dict[str, int] = {}
        self._unchecked = False

    def learn_cell(self, cell: Cell, view: View, guard: LiveLock | None, seen: Since) -> None:
        """Take over what the row has to tell, the state, and the guard that has to stay alive, as seen at a time."""
        state_id = cell.lock.state_id
        self._sequence = max(self._sequence, cell.sequence)
        self._depositions[state_id] = cell.depositions
        self.learn(cell.lock, view)
        if guard:
            self._guards[state_id], self._guarded = guard.lock_id, seen

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

    def check_by_release(self) -> tuple[str, ...]:
        """Release it, if there was a write that was not checked yet; else leave that to others.

        Returns:
            What was released.

        Raises:
            StateLockLostError: If it was deposed, or the guard may have been gone, so that others may have been in.
        """
        if not self._unchecked:
            return ()
        ended = self.state_ids
        (state_id,) = ended
        if self.is_of_another_process or not self._release_own(state_id):
            raise lost(state_id)
        guarded = self._was_guarded(state_id)
        self.forget(ended)
        if not guarded:
            raise lost(state_id)
        return ended

    def confirm(self, state_ids: Collection[str] | None = None) -> None:
        """Change the rows, which is possible only while they are one's own, and see that it was done.

        Raises:
            StateLockLostError: If it was deposed, or the guard is gone, so that others may be in.
        """
        asked = tuple(self.state_ids if state_ids is None else state_ids)
        with self._mutex:
            wanted = self._change(asked)
        guards = {state_id: self._guards[state_id] for state_id in asked}
        for attempt in range(READS):
            if attempt:
                self._clock.sleep(SHORTEST_PAUSE_SECONDS)
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
        guards = tuple(self._guards.items())
        self._keeper.insert([guard_row(state_id, guard, self.lease_seconds) for state_id, guard in guards])
        self.confirm()

    def forget(self, state_ids: Iterable[str]) -> None:
        """Forget the state IDs that are released."""
        ended = tuple(state_ids)
        super().forget(ended)
        for state_id in ended:
            self._guards.pop(state_id, None)
            self._depositions.pop(state_id, None)

    def _release_own(self, state_id: str) -> bool:
        """Release what is held, and tell whether it was held until then."""
        for attempt in range(LOOKS):
            if attempt:
                self._clock.sleep(SHORTEST_PAUSE_SECONDS * 2**attempt)
            if self._keeper.release_own(self.lock_id, state_id):
                return True
            cell = self._keeper.look([state_id])[state_id].cell
            old = cell is None or cell.lock.token < (self._rows[state_id].token or 0)
            if cell and not old and not _is_held_by(cell, self.lock_id):
                return cell.depositions == self._depositions[state_id]  # an earlier request released it
        return False

    def _was_guarded(self, state_id: str) -> bool:
        """Whether those who lock by inserts were kept out until now.

        The guard had half its lease left when it was seen. Its renewals since do not count here: who saw it end before
        that may be about to revoke it.
        """
        if self._guarded.seconds < self.lease_seconds * GUARDED_FOR:
            return True
        return bool(self._store.alive([state_id], [self._guards[state_id]]))

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
        self._seen: dict[str, str] = {}  # the lock_id that each row had when it was last seen
        self._own: dict[str, tuple[str, object]] = {}  # those of this process, and what their rows say of it

    def hold_each(
        self,
        state_ids: Collection[str],
        operation: str = "lock",
        *,
        timeout_seconds: float | None = None,
        retry_seconds: float | None = None,
    ) -> Generator[Lock, None, None]:
        """Hold the locks of many state IDs, part by part; see `BaseLocker`."""
        self._refuse_nested(state_ids)
        turn = _Turn(dict.fromkeys(state_ids), operation, self._new_wait(timeout_seconds, retry_seconds))
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
            self._remember_contention(state_ids, turn.wait)

    @contextmanager
    def _candidacy(self, turn: _Turn) -> Iterator[KeeperLock]:
        """Compete once for each state ID, and hold what was won. Whatever happens, nothing stays taken."""
        turn.wait.attempts += 1
        identity = identify(turn.operation)
        lock = KeeperLock(self._keeper, turn.rest, self.options.lease_seconds, identity, self._clock)
        turn.tried.add(lock.lock_id)
        decided = False
        try:
            seen = self._take(lock, turn)
            self._decide(lock, turn, seen)
            decided = True
            with self._holding(lock, turn.wait):
                yield lock
            self._remember_own(lock, lock.check_by_release())
        finally:
            self._bury(lock, turn, decided)

    def _take(self, lock: KeeperLock, turn: _Turn) -> Mapping[str, str]:
        """Take the rows as they were last seen, and make those that are missing, with their guards.

        Returns:
            The lock_ids that the rows had before, where that is known.
        """
        silent = {state_id: cell.lock.lock_id for state_id, cell in turn.silent.items()}
        unknown = [state_id for state_id in lock.state_ids if state_id not in self._seen and state_id not in silent]
        views = self._look(unknown, turn) if unknown else {}
        self._guard(views)
        free = {**silent, **self._seen} if silent else self._seen
        seen = {state_id: free[state_id] for state_id in lock.state_ids if state_id in free}
        known = [row for row in lock.rows if row.state_id in seen]
        absent = [row for row in lock.rows if row.state_id in views and views[row.state_id].cell is None]
        if absent:
            self._keeper.create(absent)
        own = [row for row in known if self._own.get(row.state_id) == (seen[row.state_id], _details(lock))]
        own_ids = {row.state_id for row in own}
        others = [row for row in known if row.state_id not in own_ids]
        if own:
            self._keeper.retake(own, seen)
        if others:
            self._keeper.take(others, seen, tuple(turn.silent.values()))
        return seen

    def _decide(self, lock: KeeperLock, turn: _Turn, seen: Mapping[str, str]) -> None:
        """See what was won, until each state ID is held or left to others."""
        pending: Collection[str] = lock.state_ids
        looks = 0
        while pending:
            looks += 1
            began = Since(self._clock)
            views = self._look(pending, turn)
            verdicts = {i: judge(view, lock.lock_id, seen.get(i), lock.lease_seconds) for i, view in views.items()}
            logger.debug("lock %s: %s", lock.lock_id, {i: verdict.name for i, verdict in verdicts.items()})
            for view in views.values():
                if view.cell and _is_held_by(view.cell, lock.lock_id):
                    guard = next(iter(_fresh_guards(view.rows, lock.lease_seconds)), None)
                    lock.learn_cell(view.cell, view.rows, guard, began)
            self._guard({i: views[i] for i, verdict in verdicts.items() if verdict in _UNGUARDED})
            again = [i for i, verdict in verdicts.items() if verdict in {Verdict.STAY, Verdict.BUMP}]
            if looks >= LOOKS:
                again = []
            self._leave([i for i in views if i not in again and verdicts[i] is not Verdict.HELD], lock, turn, verdicts)
            if raised := {i: views[i].rows.greatest("") + TOKEN_STEP for i in again if verdicts[i] is Verdict.BUMP}:
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
        if cell is None or cell.released:
            return view.rows.unguarded()
        if cell.lock.lock_id in turn.tried or self._those_over([cell.lock], {cell.lock.state_id: view.rows}, turn.wait):
            if turn.silent.get(cell.lock.state_id) != cell:
                tell_of_take_over(cell.lock, view.rows.now)
            turn.silent[cell.lock.state_id] = cell
            return view.rows.unguarded()
        return (cell.lock, *view.rows.unguarded())

    def _look(self, state_ids: Collection[str], turn: _Turn) -> Mapping[str, KeeperView]:
        """Read; revoke those who lock by inserts and are over, and read again until there are none."""
        while True:
            views = self._keeper.look(state_ids)
            for state_id, view in views.items():
                self._seen.pop(state_id, None)
                if view.cell and view.cell.released:  # to take what is held would be right only if it came too late
                    self._seen[state_id] = view.cell.lock.lock_id
            rows = {state_id: view.rows for state_id, view in views.items()}
            over = self._those_over((lock for each in rows.values() for lock in each.unguarded()), rows, turn.wait)
            if not over:
                return views
            self._take_over(over, rows)

    def _guard(self, views: Mapping[str, KeeperView]) -> None:
        """Insert or renew guards where there is none that has enough of its lease left.

        One whose lease is nearly over is not renewed: somebody may be about to revoke it.
        """
        lease = self.options.lease_seconds
        lacking = {i: view.rows for i, view in views.items() if not _fresh_guards(view.rows, lease)}
        if not lacking:
            return
        new = str(uuid.uuid4())
        old = {i: _fresh_guards(rows, lease, RENEWABLE_GUARD) for i, rows in lacking.items()}
        self._keeper.insert([guard_row(i, guards[0].lock_id if guards else new, lease) for i, guards in old.items()])
        self._settle()

    def _bury(self, lock: KeeperLock, turn: _Turn, decided: bool) -> None:
        """Release a lock, or, when it is not known what became of it, see to it that it cannot be taken any more."""
        ended = [row.state_id for row in lock.end()]
        if not ended:
            return
        try:
            if decided:
                self._keeper.release(lock.lock_id, ended)
            else:
                self._cancel(lock, ended, turn.silent)
        except BaseException as error:
            for state_id in ended:
                self._seen.pop(state_id, None)
            self._leave_behind(lock, error)
            return
        if decided:
            self._remember_own(lock, ended)
        lock.forget(ended)

    def _remember_own(self, lock: KeeperLock, state_ids: Collection[str]) -> None:
        """Remember the rows that this process released: they are taken again without a look at them before."""
        self._seen.update(dict.fromkeys(state_ids, lock.lock_id))
        self._own.update(dict.fromkeys(state_ids, (lock.lock_id, _details(lock))))

    def _cancel(self, lock: KeeperLock, state_ids: Collection[str], silent: Mapping[str, Cell]) -> None:
        """Have what was sent come to nothing, even if it lands only now: the rows get a lock_id that nobody waits for.

        A row that is missing is made, as one that is released.
        """
        seen = {state_id: cell.lock.lock_id for state_id, cell in silent.items()}
        seen |= {state_id: self._seen.pop(state_id) for state_id in state_ids if state_id in self._seen}
        try:
            if absent := [row for row in lock.end() if row.state_id not in seen]:
                self._keeper.create(absent)
        finally:
            self._keeper.cancel(lock.lock_id, state_ids, seen, tuple(silent.values()), str(uuid.uuid4()))


@dataclass(slots=True)
class _Turn:
    """What one call still wants, its wait, the lock_ids it tried, and the rows whose holders are over."""

    rest: dict[str, None]
    operation: str
    wait: Wait
    tried: set[str] = field(default_factory=set)
    silent: dict[str, Cell] = field(default_factory=dict)


_UNGUARDED = {Verdict.STAY, Verdict.WITHDRAW}


def judge(view: KeeperView, lock_id: str, seen: str | None, lease_seconds: float) -> Verdict:
    """What a contender has to do about one state ID.

    Args:
        view: What it saw after it tried to take the row.
        lock_id: What it took the row by.
        seen: The lock_id that the row had before; None when there was no row.
        lease_seconds: How long the contender may be silent.
    """
    cell = view.cell
    if cell is None or not _is_held_by(cell, lock_id):
        unchanged = cell is None or (cell.released and cell.lock.lock_id == seen)
        return Verdict.STAY if unchanged else Verdict.LOST  # what was read may be old
    if view.rows.unguarded():
        return Verdict.WITHDRAW
    if not _fresh_guards(view.rows, lease_seconds):
        return Verdict.STAY
    return Verdict.HELD if cell.lock.token >= view.rows.greatest("") + TOKEN_STEP else Verdict.BUMP


def guard_row(state_id: str, lock_id: str, lease_seconds: float) -> LockRow:
    """A guard, or its renewal. No process counts as its owner, so none that dies ends it."""
    by = replace(identify(GUARD), process="")
    return LockRow(state_id, lock_id, False, False, GUARD_BORN, GUARD_BORN, lease_seconds, 1, by)


def _fresh_guards(rows: View, lease_seconds: float, part: float = FRESH_GUARD) -> list[LiveLock]:
    """The guards that have more than a part of the lease left, so that they outlast the next renewal of a lock.

    Those with another lease do not count: who renews such a one, if only late, may leave it less than is seen here.
    """
    needed = lease_seconds * part
    alike = (guard for guard in rows.guards() if guard.lease_seconds == lease_seconds)
    return [guard for guard in alike if guard.lease_seconds_left(rows.now) >= needed]


def _details(lock: Lock) -> tuple[float, Identity]:
    return lock.lease_seconds, lock.identity


def _is_held_by(cell: Cell, lock_id: str) -> bool:
    return cell.lock.lock_id == lock_id and not cell.released
