"""The lock protocol of bulk calls as a model: several calls over ids that overlap, each call with several ids at once.

A call inserts all its rows in one statement (one lock_id and one `born` for all of them) and reads all ids in one. It
never waits while it holds: what it got it sets and releases, and only then goes on with the rest.
Late rows, copies and renewals are left to `protocol`: ids do not influence each other but by a call that waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.checker import Invariant, Step
from tests.model.protocol_tables import LockRow, StateRow

# What a call does next.
INSERT, READ, ADJUST, REVOKE, SET, CHECK, RELEASE = (
    "insert",
    "read",
    "adjust",
    "revoke",
    "set",
    "check",
    "release",
)
ENDED, DEAD = "ended", "dead"

# How it stands with one id of a call: the last four are ends, and an id that is NAMED is told to the user as locked.
WANTED, CANDIDATE, LOW, LEAVING, HELD, WRITTEN = "wanted", "candidate", "low", "leaving", "held", "written"
NOT_ASKED, DONE, NAMED, LOST = "not asked", "done", "named", "lost"


class Slot(NamedTuple):
    """One id of a call."""

    phase: str = WANTED
    attempt: int = 0
    token: int = 0
    seen: int = 0
    acked: bool = False


class Call(NamedTuple):
    """A bulk call; `tombstone` revokes a rival on the id that it names."""

    slots: tuple[Slot, ...]
    at: str = INSERT
    tombstone: tuple[int, LockRow] | None = None


class State(NamedTuple):
    """The calls, and of each id the lock rows and the state rows."""

    calls: tuple[Call, ...]
    locks: tuple[frozenset[LockRow], ...]
    states: tuple[frozenset[StateRow], ...]


@dataclass(frozen=True)
class BulkBounds:
    """How much one exploration covers.

    Attributes:
        wants: Which ids each call asks for.
        versions: The version each id starts with; a great one makes a call insert a second token for that id.
        clock: What the server's clock may say as a token.
        births: What it may say as `born`.
        attempts: How often a call may contend for one id.
        take_over: As in `protocol.Bounds`.
        crashes: Whether calls may die.
    """

    wants: tuple[frozenset[int], ...] = (frozenset({0, 1}), frozenset({0, 1}))
    versions: tuple[int, ...] = (0, 1)
    clock: tuple[int, ...] = (1, 2)
    births: tuple[int, ...] = (0,)
    attempts: int = 2
    take_over: Literal["never", "dead", "any"] = "dead"
    crashes: bool = False


class BulkProtocol:
    """The protocol as designed, a `checker.Model`."""

    def __init__(self, bounds: BulkBounds) -> None:
        self.bounds = bounds
        self.ids = range(len(bounds.versions))
        self._acts = {
            INSERT: self.insert, READ: self.read, ADJUST: self.adjust, REVOKE: self.revoke, SET: self.set,
            CHECK: self.check, RELEASE: self.release,
        }  # fmt: skip

    def start(self) -> State:
        calls = (Call(tuple(Slot() if id_ in wants else Slot(NOT_ASKED) for id_ in self.ids))
                 for wants in self.bounds.wants)  # fmt: skip
        states = (frozenset({StateRow(version, 0)}) for version in self.bounds.versions)
        return State(tuple(calls), (frozenset(),) * len(self.ids), tuple(states))

    def finished(self, state: State) -> bool:
        return all(call.at in (ENDED, DEAD) for call in state.calls)

    def steps(self, state: State) -> Iterator[Step[State]]:
        for i, call in enumerate(state.calls):
            if call.at in (ENDED, DEAD):
                continue
            yield from self._acts[call.at](state, i, call)
            if self.bounds.crashes and call != self.start().calls[i]:
                yield f"B{i} CRASHES", self._with(state, i, call._replace(at=DEAD, tombstone=None)), False

    # Contending

    def insert(self, state: State, i: int, call: Call) -> Iterator[Step[State]]:
        """Candidates for all ids still wanted, once nobody alive is on those that were busy."""
        again = [id_ for id_, slot in enumerate(call.slots) if slot.phase == WANTED and slot.attempt]
        if any(self._busy(state, id_) for id_ in again):
            return
        after = call._replace(at=READ, slots=self._moved(call, {WANTED: CANDIDATE}))
        for token in self.bounds.clock:
            for born in self.bounds.births:
                rows = {id_: LockRow(self._lock_id(i, slot), False, token, born)
                        for id_, slot in enumerate(call.slots) if slot.phase == WANTED}  # fmt: skip
                yield f"B{i} INSERT {self._text(rows)}", self._landed(state, i, after, rows), True

    def read(self, state: State, i: int, call: Call) -> Iterator[Step[State]]:
        yield from self._revokes(state, i, call)
        slots = tuple(self._decided(state, i, id_, slot) for id_, slot in enumerate(call.slots))
        decided = call._replace(slots=slots)
        adjusts = self._any(decided, LOW, LEAVING)
        after = decided._replace(at=ADJUST) if adjusts else self.next(decided)
        yield f"B{i} SELECT: {', '.join(slot.phase for slot in slots)}", self._with(state, i, after), True

    def _decided(self, state: State, i: int, id_: int, slot: Slot) -> Slot:
        """What the snapshot says of one id, by the rules of `protocol`."""
        if slot.phase != CANDIDATE:
            return slot
        me, alive, locks = self._lock_id(i, slot), self._alive(state, id_), state.locks[id_]
        if me not in alive:
            return self._start_over(slot)
        if alive != {me}:
            earliest = min((row.born, row.lock_id) for row in locks if row.lock_id in alive)[1]
            return slot if earliest == me else slot._replace(phase=LEAVING)
        token = max(row.token for row in locks if row.lock_id == me)
        newest = max(state.states[id_])
        greatest = max([newest.version, *(row.token for row in locks if row.lock_id != me)])
        if token > greatest:
            return slot._replace(phase=HELD, token=token, seen=newest.holds)
        return slot._replace(phase=LOW, token=greatest + 1)

    def _revokes(self, state: State, i: int, call: Call) -> Iterator[Step[State]]:
        for id_, slot in enumerate(call.slots):
            if slot.phase != CANDIDATE:
                continue
            for rival in self._alive(state, id_) - {self._lock_id(i, slot)}:
                if self._may_revoke(state, id_, rival):
                    token = max(row.token for row in state.locks[id_] if row.lock_id == rival)
                    revoking = call._replace(at=REVOKE, tombstone=(id_, LockRow(rival, True, token)))
                    reliable = not self._owned(state, id_, rival)
                    yield (
                        f"B{i} SELECT: {rival} is over on id {id_}",
                        self._with(state, i, revoking),
                        reliable,
                    )

    def revoke(self, state: State, i: int, call: Call) -> Iterator[Step[State]]:
        assert call.tombstone is not None
        rows, after = dict([call.tombstone]), call._replace(at=READ, tombstone=None)
        yield f"B{i} INSERT {self._text(rows)}", self._landed(state, i, after, rows), True

    def adjust(self, state: State, i: int, call: Call) -> Iterator[Step[State]]:
        """Insert greater tokens where alone but too low, and tombstones where others come first."""
        rows = {id_: LockRow(self._lock_id(i, slot), slot.phase == LEAVING, slot.token, self._born(state, i, id_, slot))
                for id_, slot in enumerate(call.slots) if slot.phase in (LOW, LEAVING)}  # fmt: skip
        slots = tuple(self._start_over(slot) if slot.phase == LEAVING else slot for slot in call.slots)
        bumped = call._replace(slots=self._moved(call._replace(slots=slots), {LOW: CANDIDATE}))
        after = bumped._replace(at=READ) if self._any(call, LOW) else self.next(bumped)
        yield f"B{i} INSERT {self._text(rows)}", self._landed(state, i, after, rows), True

    def next(self, call: Call) -> Call:
        """What comes after a decision: first give back what is held, then wait for the rest."""
        if self._any(call, HELD):
            return call._replace(at=SET)
        if self._any(call, CANDIDATE):
            return call._replace(at=READ)
        return call._replace(at=INSERT if self._any(call, WANTED) else ENDED)

    # Holding

    def set(self, state: State, i: int, call: Call) -> Iterator[Step[State]]:
        states = tuple(
            rows | {StateRow(slot.token, slot.seen | 1 << i)} if slot.phase == HELD else rows
            for rows, slot in zip(state.states, call.slots, strict=True)
        )
        yield (
            f"B{i} SET what it holds",
            self._with(state._replace(states=states), i, call._replace(at=CHECK)),
            True,
        )

    def check(self, state: State, i: int, call: Call) -> Iterator[Step[State]]:
        slots = tuple(self._checked(state, i, id_, slot) for id_, slot in enumerate(call.slots))
        after = call._replace(at=RELEASE, slots=slots)
        yield f"B{i} CHECK: {', '.join(slot.phase for slot in slots)}", self._with(state, i, after), True

    def _checked(self, state: State, i: int, id_: int, slot: Slot) -> Slot:
        if slot.phase != HELD:
            return slot
        if self._lock_id(i, slot) in self._alive(state, id_):
            return slot._replace(phase=WRITTEN, acked=True)
        return Slot(LOST, slot.attempt)

    def release(self, state: State, i: int, call: Call) -> Iterator[Step[State]]:
        rows = {id_: LockRow(self._lock_id(i, slot), True, slot.token)
                for id_, slot in enumerate(call.slots) if slot.phase == WRITTEN}  # fmt: skip
        slots = tuple(Slot(DONE, slot.attempt, acked=True) if slot.phase == WRITTEN else slot for slot in call.slots)
        after = self.next(call._replace(slots=slots))
        yield f"B{i} INSERT {self._text(rows)} (releases)", self._landed(state, i, after, rows), True

    # What the tables say, and what may be done to them

    def _lock_id(self, i: int, slot: Slot) -> int:
        return slot.attempt * len(self.bounds.wants) + i

    def _alive(self, state: State, id_: int) -> frozenset[int]:
        rows = state.locks[id_]
        return frozenset(row.lock_id for row in rows) - {row.lock_id for row in rows if row.released}

    def _born(self, state: State, i: int, id_: int, slot: Slot) -> int:
        return min(row.born for row in state.locks[id_] if row.lock_id == self._lock_id(i, slot))

    def _owned(self, state: State, id_: int, lock_id: int) -> bool:
        attempt, i = divmod(lock_id, len(self.bounds.wants))
        call = state.calls[i]
        slot = call.slots[id_]
        return call.at != DEAD and slot.attempt == attempt and slot.phase not in (WANTED, DONE, NAMED, LOST)

    def _busy(self, state: State, id_: int) -> bool:
        return any(self._owned(state, id_, lock_id) for lock_id in self._alive(state, id_))

    def _may_revoke(self, state: State, id_: int, lock_id: int) -> bool:
        if self.bounds.take_over == "dead":
            return not self._owned(state, id_, lock_id)
        return self.bounds.take_over == "any"

    def _start_over(self, slot: Slot) -> Slot:
        last = slot.attempt + 1 == self.bounds.attempts
        return Slot(NAMED, slot.attempt) if last else Slot(WANTED, slot.attempt + 1)

    def _landed(self, state: State, i: int, call: Call, rows: dict[int, LockRow]) -> State:
        locks = tuple(old | {rows[id_]} if id_ in rows else old for id_, old in enumerate(state.locks))
        return self._with(state._replace(locks=locks), i, call)

    @staticmethod
    def _any(call: Call, *phases: str) -> bool:
        return any(slot.phase in phases for slot in call.slots)

    @staticmethod
    def _moved(call: Call, phases: dict[str, str]) -> tuple[Slot, ...]:
        return tuple(slot._replace(phase=phases.get(slot.phase, slot.phase)) for slot in call.slots)

    @staticmethod
    def _with(state: State, i: int, call: Call) -> State:
        return state._replace(calls=(*state.calls[:i], call, *state.calls[i + 1 :]))

    @staticmethod
    def _text(rows: dict[int, LockRow]) -> str:
        return ", ".join(f"{row} on id {id_}" for id_, row in rows.items()) or "nothing"

    # What has to be true

    def no_update_is_lost(self, state: State) -> bool:
        return all(
            max(rows).holds >> i & 1
            for i, call in enumerate(state.calls)
            for rows, slot in zip(state.states, call.slots, strict=True)
            if slot.acked
        )

    def no_version_twice(self, state: State) -> bool:
        return all(len({row.version for row in rows}) == len(rows) for rows in state.states)

    def one_holder(self, state: State) -> bool:
        slots = (tuple(call.slots[id_] for call in state.calls if call.at != DEAD) for id_ in self.ids)
        return all(sum(slot.phase in (HELD, WRITTEN) for slot in of_id) <= 1 for of_id in slots)

    def every_id_is_set_or_named(self, state: State) -> bool:
        ends = (NOT_ASKED, DONE, NAMED, LOST)
        return all(slot.phase in ends for call in state.calls if call.at == ENDED for slot in call.slots)

    def invariants(self, *more: Invariant[State]) -> dict[str, Invariant[State]]:
        holds = (self.no_update_is_lost, self.no_version_twice, self.every_id_is_set_or_named, *more)
        return {promise.__name__.replace("_", " "): promise for promise in holds}


class WaitsWhileHolding(BulkProtocol):
    """Mistake: a call keeps what it got until it has everything."""

    def next(self, call: Call) -> Call:
        waits = next((at for phase, at in ((CANDIDATE, READ), (WANTED, INSERT)) if self._any(call, phase)), None)
        return call._replace(at=waits) if waits else super().next(call)
