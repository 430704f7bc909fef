"""Single courses of events with locks in Keeper, on the product's own classes over tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from meltano_ch_state.errors import ServerUnreachableError, StateLockedError, StateLockLostError
from meltano_ch_state.keeper import Cell, KeeperLocker, KeeperView
from meltano_ch_state.lock import Lock
from meltano_ch_state.locker import Locker, LockOptions
from meltano_ch_state.process import identify
from meltano_ch_state.protocol import GUARD, LiveLock, LockRow, StateRow, View, tombstone_of
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
        self.old_looks = self.old_sequences = self.conflicts = self.lost_answers = 0
        self.before_repeating: list[Callable[[], None]] = []
        self.before_revoking: list[Callable[[], None]] = []
        self.before_taking_over: list[Callable[[], None]] = []
        self.after_reading: list[Callable[[], None]] = []
        self.after_guarding: list[Callable[[], None]] = []
        self.after_taking_over: list[Callable[[], None]] = []
        self.guards: list[LockRow] = []
        self.taken_over = 0
        self.again: Callable[[], None] = void

    def read(self, state_ids: Collection[str]) -> Mapping[str, View]:
        views = super().read(state_ids)
        if self.after_reading:
            self.after_reading.pop()()
        return views

    def sequences(self, lock_id: str, guards: Mapping[str, str]) -> Mapping[str, int]:
        if not self.old_sequences:
            return super().sequences(lock_id, guards)
        self.old_sequences -= 1
        return {}

    def take_over(self, rows: Collection[LockRow], silent: Collection[Cell]) -> None:
        """Take rows; `again` does it once more, as a request that lands twice."""
        if self.before_taking_over:
            self.before_taking_over.pop()()
        super().take_over(rows, silent)
        self.taken_over += 1
        self.again = partial(super().take_over, rows, silent)
        if self.after_taking_over:
            self.after_taking_over.pop()()

    def look(self, state_ids: Collection[str]) -> Mapping[str, KeeperView]:
        views = super().look(state_ids)
        if not self.old_looks:
            return views
        self.old_looks -= 1
        return {state_id: replace(view, cell=self.old[state_id]) for state_id, view in views.items()}

    def insert(self, rows: Collection[LockRow]) -> None:
        if any(row.identity.operation == "take over" for row in rows) and self.before_revoking:
            self.before_revoking.pop()()
        super().insert(rows)
        guards = [row for row in rows if row.identity.operation == GUARD]
        self.guards += guards
        if guards and self.after_guarding:
            self.after_guarding.pop()()

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

    def held_beside_a_younger_guard(self) -> Held:
        """A holder of state 1, silent for a little more than half its lease."""
        self.in_keeper().set(state("1", "old"))
        held = Held(self.in_keeper(), "1")
        self.pass_leases(0.55)
        with pytest.raises(StateLockedError):
            self.in_keeper(0.1).set(state("1", "b"))
        return held

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


def void(*_: object) -> None:
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
    world.keeper.before_revoking.append(held.lock.renew)
    other = Held(world.by_inserts(), "1")
    held.write("a")
    with pytest.raises(StateLockLostError):
        held.release()
    other.write("b")
    other.release()
    assert not world.keeper.before_revoking


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


def write_and_release(held: Held, label: str = "a") -> None:
    held.write(label)
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


def assert_who_came_waits_for(world: World, holder: Callable[[], Held]) -> None:
    """Have another wait by inserts in vain for longer than a lease; then what the holder writes counts."""
    with pytest.raises(StateLockedError):
        Held(world.by_inserts(1.5 * LEASE_SECONDS), "1")
    write_and_release(holder())
    assert labels(world.in_keeper(), "1") == ["old", "a"]


def test_a_guard_that_a_late_repetition_makes_look_alive_again_is_relied_on_by_nobody(world: World) -> None:
    world.in_keeper().set(state("1", "old"))

    def repeat_and_let_another_in() -> None:
        world.keeper.insert(world.keeper.guards[:1])
        world.paused.append(Held(world.in_keeper(), "1"))

    world.keeper.before_revoking.append(repeat_and_let_another_in)
    assert_who_came_waits_for(world, lambda: world.paused[0])


def test_a_guard_that_was_seen_to_end_before_it_was_renewed_is_relied_on_by_nobody(world: World) -> None:
    world.in_keeper().set(state("1", "old"))
    silent = Held(world.in_keeper(), "1")

    def renew_and_let_another_in() -> None:
        silent.lock.renew()
        silent.release()
        world.paused.append(Held(world.in_keeper(), "1"))

    world.keeper.before_revoking.append(renew_and_let_another_in)
    assert_who_came_waits_for(world, lambda: world.paused[0])


def test_a_guard_under_which_one_is_slow_and_that_ends_meanwhile_is_asked_for(world: World) -> None:
    world.in_keeper().set(state("1", "old"))
    world.pass_leases(0.45)
    slow = Held(world.in_keeper(), "1")
    world.pass_leases(0.56)
    other = Held(world.by_inserts(), "1")
    write_and_release(other, "b")
    with pytest.raises(StateLockLostError):
        write_and_release(slow)
    assert labels(other.store, "1") == ["old", "b"]


@pytest.mark.parametrize("holds_in_keeper", [True, False])
def test_a_pause_between_a_look_and_what_is_made_of_it_is_not_taken_for_silence(
    world: World, holds_in_keeper: bool
) -> None:
    world.in_keeper().set(state("1", "old"))
    world.pass_leases(0.0 if holds_in_keeper else 1.1)
    began = world.time.seconds
    holder = Held(world.in_keeper() if holds_in_keeper else world.by_inserts(), "1")

    def renew_for_a_lease() -> None:
        for _ in range(4):
            world.pass_leases(0.3)
            holder.lock.renew()

    def be_paused_once() -> None:
        if world.time.seconds - began > 0.2 * LEASE_SECONDS:
            world.time.asleep = void
            world.keeper.after_reading.append(renew_for_a_lease)

    world.time.asleep = be_paused_once
    assert_who_came_waits_for(world, lambda: holder)


def test_a_take_over_that_lands_again_after_its_holder_released_takes_nothing(world: World) -> None:
    holder = world.held_beside_a_younger_guard()
    world.keeper.before_taking_over.append(holder.lock.renew)
    with pytest.raises(StateLockedError):
        world.in_keeper(0.6 * LEASE_SECONDS).set(state("1", "b"))
    write_and_release(holder)
    world.keeper.again()
    assert world.keeper.cells["1"].released


def test_who_took_over_too_late_does_not_hold_by_a_repetition_what_it_read_too_early(world: World) -> None:
    holder = world.held_beside_a_younger_guard()

    def write_after_the_read() -> None:
        write_and_release(holder)
        world.keeper.again()

    world.keeper.before_taking_over.append(holder.lock.renew)
    world.keeper.after_taking_over.append(lambda: world.keeper.after_reading.append(write_after_the_read))
    other = Held(world.in_keeper(0.6 * LEASE_SECONDS), "1")
    write_and_release(other, "b")
    assert labels(other.store, "1") == ["old", "a", "b"]


def test_who_took_over_and_sees_an_old_view_of_that_looks_again_and_leaves_nothing_held(world: World) -> None:
    holder = world.held_beside_a_younger_guard()
    world.keeper.old = dict(world.keeper.cells)

    def look_back() -> None:
        world.keeper.old_looks = 1

    world.keeper.after_taking_over.append(look_back)
    world.in_keeper(0.6 * LEASE_SECONDS).set(state("1", "b"))
    assert holder.lock.lock_id == world.keeper.old["1"].lock.lock_id
    assert world.keeper.cells["1"].released
    assert world.keeper.taken_over == 1


def test_each_guard_of_a_bulk_call_is_asked_for_by_its_own_age(world: World) -> None:
    client = world.in_keeper(60.0)
    client.set(state("2", "old"))
    world.pass_leases(0.1)
    client.set(state("1", "old"))
    world.pass_leases(0.47)
    rival = Lock(world.keeper, ["2"], LEASE_SECONDS, identify("rival"))

    def come_slowly() -> None:
        world.pass_leases(0.3)
        world.keeper.insert(rival.rows)

    def be_paused() -> None:
        world.pass_leases(0.235)
        world.paused.append(Held(world.by_inserts(), "1"))

    world.keeper.after_guarding.append(come_slowly)
    world.states.before = be_paused
    with pytest.raises(StateLockLostError):
        client.set_all([state("1", "a"), state("2", "a")])
    write_and_release(world.paused[0], "b")
    assert labels(client, "1") == ["old", "b"]


def test_what_two_calls_sent_in_one_outage_is_cancelled_when_it_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.in_keeper()
    client.set(state("1", "old"))
    keeper, late = world.keeper, list[Callable[[], None]]()
    retake = keeper.retake

    def lose(rows: Collection[LockRow], seen: Mapping[str, str]) -> None:
        late.append(lambda: retake(rows, seen))
        if len(late) == 1:
            with monkeypatch.context() as outage:
                outage.setattr(keeper, "cancel", unreachable)
                with pytest.raises(ServerUnreachableError):
                    client.set(state("1", "b"))
        unreachable()

    monkeypatch.setattr(keeper, "retake", lose)
    with pytest.raises(ServerUnreachableError):
        client.set(state("1", "a"))
    late[0]()
    assert keeper.cells["1"].released


def unreachable(*_: object) -> None:
    raise ServerUnreachableError("No answer")


def test_a_check_that_reads_an_old_view_of_keeper_looks_again(world: World) -> None:
    held = world.written_after_a_view("a")
    world.keeper.old_sequences = 4
    held.lock.confirm()
    held.release()


@pytest.mark.parametrize("lock_id", ["0", "z"])
def test_of_two_guards_a_holder_relies_on_the_younger_one(world: World, lock_id: str) -> None:
    world.in_keeper().set(state("1", "old"))
    (older,) = world.keeper.guards
    world.pass_leases(0.4)
    world.keeper.insert([replace(older, lock_id=lock_id, token=world.time.now())])
    held = Held(world.in_keeper(), "1")
    world.pass_leases(0.65)
    world.keeper.insert([tombstone_of(first_guard(world, older.lock_id), identify("take over"))])
    write_and_release(held)
    assert labels(held.store, "1") == ["old", "a"]


def first_guard(world: World, lock_id: str) -> LiveLock:
    return next(guard for guard in world.keeper.read(["1"])["1"].guards() if guard.lock_id == lock_id)


def test_guards_that_are_over_do_not_pile_up(world: World) -> None:
    client = world.in_keeper()
    for _ in range(20):
        client.set(state("1", "a"))
        world.pass_leases(0.6)
    assert len(world.keeper.read(["1"])["1"].guards()) <= 3
