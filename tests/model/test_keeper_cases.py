"""Single courses of events with locks in Keeper, on the product's own classes over tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from meltano_ch_state.errors import ServerUnreachableError, StateLockedError, StateLockLostError
from meltano_ch_state.keeper import KeeperLocker, KeeperView
from meltano_ch_state.lock import Lock
from meltano_ch_state.locker import Locker, LockOptions
from meltano_ch_state.protocol import LockRow, StateRow
from meltano_ch_state.store import State, StateStore
from meltano_ch_state.testing import MemoryDatabase, MemorySchema, MemoryStates
from meltano_ch_state.waiting import Clock
from tests.model.keeper_memory import MemoryKeeper

LEASE_SECONDS = 12.0


class Time:
    """The only clock: it moves a little with each look at it."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0
        self.asleep: Callable[[], None] = lambda: None

    def now(self) -> int:
        self.seconds += 0.00001
        return int(self.seconds * 1e6)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.asleep()

    def clock(self) -> Clock:
        return Clock(lambda: self.seconds, self.sleep, lambda: 0.5, lambda: self.seconds)


class Keeper(MemoryKeeper):
    """Tables of which a client's view may be old, or whose answers may be lost."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.old: dict[str, Any] = {}
        self.old_looks = self.conflicts = self.lost_answers = 0
        self.before_repeating: list[Callable[[], None]] = []
        self.before_taking_over: list[Callable[[], None]] = []

    def look(self, state_ids: Collection[str]) -> Mapping[str, KeeperView]:
        views = super().look(state_ids)
        if not self.old_looks:
            return views
        self.old_looks -= 1
        return {state_id: replace(view, cell=self.old[state_id]) for state_id, view in views.items()}

    def insert(self, rows: Collection[LockRow]) -> None:
        if any(row.identity.operation == "take over" for row in rows) and self.before_taking_over:
            self.before_taking_over.pop()()
        super().insert(rows)

    def create(self, rows: Collection[LockRow]) -> None:
        super().create(rows)
        if self.lost_answers:
            self.lost_answers -= 1
            raise ServerUnreachableError("No answer")

    def release_own(self, lock_id: str, state_id: str) -> bool:
        if self.conflicts:
            self.conflicts -= 1
            return False
        answer = super().release_own(lock_id, state_id)
        if self.before_repeating:
            self.before_repeating.pop()()
            answer = super().release_own(lock_id, state_id)
        return answer


class States(MemoryStates):
    """States of which one write takes its time."""

    before: Callable[[], None] | None = None

    def insert_versions(self, rows: Iterable[StateRow]) -> None:
        if self.before:
            act, self.before = self.before, None
            act()
        super().insert_versions(rows)


class World:
    """Tables, and clients of both modes."""

    def __init__(self) -> None:
        self.time = Time()
        self.database = MemoryDatabase(now=self.time.now)
        self.keeper = Keeper(self.database)
        self.states = States(self.database)
        self.paused: list[Held] = []

    def in_keeper(self, timeout_seconds: float = 3.0, lease_seconds: float = LEASE_SECONDS) -> StateStore:
        options = replace(self._options(timeout_seconds), lease_seconds=lease_seconds)
        locker = KeeperLocker(self.keeper, options, self.time.clock())
        return StateStore(self.states, locker, MemorySchema())

    def by_inserts(self, timeout_seconds: float = 3.0) -> StateStore:
        locker = Locker(self.keeper, self._options(timeout_seconds), self.time.clock())
        return StateStore(self.states, locker, MemorySchema())

    @staticmethod
    def _options(timeout_seconds: float) -> LockOptions:
        return LockOptions(lease_seconds=LEASE_SECONDS, timeout_seconds=timeout_seconds, retry_seconds=0.1)

    def pass_leases(self, leases: float) -> None:
        self.time.seconds += leases * LEASE_SECONDS

    def depose_once(self, state_id: str) -> None:
        """Have a holder of a state deposed."""
        self.paused.append(Held(self.in_keeper(), state_id))
        self.pass_leases(1.1)
        self.in_keeper().set(state(state_id, "old"))
        assert self.keeper.cells[state_id].depositions == 1

    def written_after_a_view(self, label: str) -> Held:
        """A holder of state 1 that has written, in a Keeper whose old view is from before its lock."""
        client = self.in_keeper()
        client.set(state("1", "old"))
        self.keeper.old = dict(self.keeper.cells)
        held = Held(client, "1")
        held.write(label)
        return held


class Held:
    """A lock that is held, as Meltano's update does it, and what its holder read."""

    def __init__(self, store: StateStore, state_id: str, *, counts_when_released: bool = True) -> None:
        self.store, self.state_id = store, state_id
        self._stack = ExitStack()
        options: dict[str, Any] = {"counts_when_released": counts_when_released}
        self.lock: Lock = self._stack.enter_context(store.lock(state_id, "update", **options))
        self.read = labels(store, state_id)

    def write(self, label: str) -> None:
        self.store.set(state(self.state_id, *self.read, label))

    def release(self) -> None:
        self._stack.close()


@pytest.fixture
def world() -> World:
    return World()


def state(state_id: str, *by: str) -> State:
    return State(state_id, {}, {"by": list(by)})


def labels(store: StateStore, state_id: str) -> list[str]:
    found = store.get(state_id)
    return found.completed_state["by"] if found and found.completed_state else []


def test_depositions_of_one_state_do_not_stand_for_those_of_another(world: World) -> None:
    world.depose_once("1")
    world.in_keeper().set(state("2", "old"))
    world.pass_leases(1.1)
    world.paused.append(Held(world.by_inserts(), "1"))

    def be_paused() -> None:
        world.pass_leases(1.1)
        world.paused.append(Held(world.in_keeper(), "2"))

    world.states.before = be_paused
    with pytest.raises(StateLockLostError):
        world.in_keeper(60.0).set_all([state("1", "a"), state("2", "a")])


def test_a_release_whose_answer_was_lost_counts_whatever_bulk_call_follows(world: World) -> None:
    world.depose_once("1")
    world.in_keeper().set(state("2", "old"))
    other = world.in_keeper()
    world.keeper.before_repeating.append(lambda: void(other.set_all([state("1", "b"), state("2", "b")])))
    world.in_keeper().set(state("2", "a"))
    assert labels(other, "2") == ["b"]


def void(_: object) -> None:
    """Take what nobody needs."""


def test_who_looks_into_an_old_view_of_keeper_releases_all_the_same(world: World) -> None:
    held = world.written_after_a_view("a")
    world.keeper.old_looks, world.keeper.conflicts = 2, 3
    held.release()
    assert world.keeper.cells["1"].released


def test_an_old_view_of_keeper_does_not_tell_that_a_release_was_in_time(world: World) -> None:
    held = world.written_after_a_view("a")
    world.pass_leases(1.1)
    successor = Held(world.in_keeper(), "1")
    world.keeper.old_looks = 1
    with pytest.raises(StateLockLostError):
        held.release()
    successor.write("b")
    successor.release()


def test_what_cannot_be_released_as_a_check_is_released_without(world: World) -> None:
    client = world.in_keeper()
    world.keeper.conflicts = 100
    with pytest.raises(StateLockLostError):
        client.set(state("1", "a"))
    world.keeper.conflicts = 0
    assert world.keeper.cells["1"].released
    client.set(state("1", "b"))


def test_a_row_whose_creation_and_cancelling_were_not_answered_is_not_left_held(world: World) -> None:
    world.keeper.lost_answers = 2
    with pytest.raises(ServerUnreachableError):
        world.in_keeper().set(state("1", "a"))
    assert world.keeper.cells["1"].released


def test_who_was_found_deposed_by_its_renewal_is_told(world: World) -> None:
    client = world.in_keeper()
    client.set(state("1", "old"))
    held = Held(client, "1")
    held.write("a")
    world.pass_leases(1.1)
    successor = Held(world.in_keeper(), "1")
    with pytest.raises(StateLockLostError):
        held.lock.renew()
    with pytest.raises(StateLockLostError):
        held.release()
    successor.write("b")
    successor.release()
    assert labels(client, "1") == ["old", "a", "b"]


def test_a_renewal_of_a_guard_that_is_over_does_not_stand_for_it(world: World) -> None:
    world.in_keeper().set(state("1", "old"))
    world.pass_leases(0.45)
    held = Held(world.in_keeper(), "1")
    world.pass_leases(0.56)  # the guard is over; the lock is not
    world.keeper.before_taking_over.append(held.lock.renew)
    other = Held(world.by_inserts(), "1")
    held.write("a")
    with pytest.raises(StateLockLostError):
        held.release()
    other.write("b")
    other.release()
    assert not world.keeper.before_taking_over


@pytest.mark.parametrize("counts_when_released", [True, False])
def test_a_late_write_of_a_paused_holder_in_keeper_is_hidden_under_one_by_inserts(
    world: World, counts_when_released: bool
) -> None:
    world.in_keeper().set(state("1", "old"))
    began = world.time.seconds

    def take_in_keeper() -> None:  # while another waits by inserts, with a place that is older than this token
        if world.time.seconds - began > 0.3 and not world.paused:
            world.paused.append(Held(world.in_keeper(), "1", counts_when_released=counts_when_released))

    world.time.asleep = take_in_keeper
    other = Held(world.by_inserts(100.0), "1")
    other.write("b")
    other.release()
    with pytest.raises(StateLockLostError):
        write_and_release(world.paused[0])
    assert labels(other.store, "1") == ["old", "b"]


def write_and_release(held: Held) -> None:
    held.write("a")
    held.release()


def test_a_forked_child_is_told_that_its_parents_write_is_not_its_own(world: World) -> None:
    held = Held(world.in_keeper(), "1")
    held.write("a")
    held.lock._pid = -1
    with pytest.raises(StateLockLostError):
        held.release()


def test_a_late_renewal_by_a_holder_with_a_shorter_lease_does_not_shorten_the_guard_of_another(world: World) -> None:
    world.in_keeper().set(state("1", "old"))
    short = Held(world.in_keeper(lease_seconds=1.0), "1")
    world.time.seconds += 1.1
    held = Held(world.in_keeper(), "1")
    with pytest.raises(StateLockLostError):
        short.lock.renew()
    world.time.seconds += 1.1
    with pytest.raises(StateLockedError):
        world.by_inserts(timeout_seconds=0.5).set(state("1", "b"))
    held.write("a")
    held.release()
    assert labels(held.store, "1") == ["old", "a"]


def test_a_guard_is_not_unlocked_by_hand_so_the_error_names_no_command(world: World) -> None:
    world.in_keeper().set(state("1", "old"))
    with pytest.raises(StateLockedError, match="Set lock_mode to keeper here") as caught:
        world.by_inserts().set(state("1", "b"))
    assert caught.value.unlock_command == ""
