"""The lock over the in-memory double: contention, take-over, loss, interrupts."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from meltano_ch_state import waiting
from meltano_ch_state.errors import ConfigurationError, NestedLockError, StateLockedError, StateLockLostError
from meltano_ch_state.keeper import KeeperLocker
from meltano_ch_state.lock import locked
from meltano_ch_state.locker import BaseLocker, Locker, LockOptions, Metrics
from meltano_ch_state.process import identify
from meltano_ch_state.protocol import TOKEN_STEP, LockRow, View, tombstone_of
from meltano_ch_state.store import State, StateStore
from meltano_ch_state.testing import MemoryDatabase, MemoryLocks, MemorySchema, MemoryStates
from meltano_ch_state.waiting import Clock
from tests.model.keeper_memory import MemoryKeeper

FAST = LockOptions(timeout_seconds=5, retry_seconds=0.01)


class FakeTime:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.while_asleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.while_asleep()

    def server_now(self) -> int:
        self.seconds += 2e-6
        return int(self.seconds * 1e6)

    def clock(self) -> Clock:
        return Clock(lambda: self.seconds, self.sleep, lambda: 0.5)


@pytest.fixture
def fake() -> FakeTime:
    return FakeTime()


@pytest.fixture
def database(fake: FakeTime) -> MemoryDatabase:
    return MemoryDatabase(now=fake.server_now)


def locker(database: MemoryDatabase, fake: FakeTime, **options: float) -> Locker:
    return Locker(MemoryLocks(database), LockOptions(**options), fake.clock())  # type: ignore[arg-type]


def live_rows(database: MemoryDatabase) -> list[str]:
    dead = {lock_id for (_, lock_id, released, _) in database.locks if released}
    return [lock_id for (_, lock_id, _, _) in database.locks if lock_id not in dead]


def occupy(database: MemoryDatabase, lease: float = 300.0, process: str = "") -> LockRow:
    """A rival's live row, as another host would have left it."""
    identity = replace(identify("update"), holder="rival@elsewhere:9", process=process)
    row = LockRow("s", "rival", False, False, None, None, lease, 1, identity)
    MemoryLocks(database).insert([row])
    return row


def test_an_uncontended_lock_costs_two_inserts_and_one_read() -> None:
    calls: list[str] = []

    class Recorder(MemoryLocks):
        def insert(self, rows: Collection[LockRow]) -> None:
            calls.append("insert")
            super().insert(rows)

        def read(self, state_ids: Collection[str]) -> Mapping[str, View]:
            calls.append("read")
            return super().read(state_ids)

    with Locker(Recorder(MemoryDatabase())).hold("s"):
        calls.append("body")
    assert calls == ["insert", "read", "body", "insert"]


def test_uncontended_nobody_sleeps(database: MemoryDatabase, fake: FakeTime) -> None:
    slept: list[float] = []
    with Locker(MemoryLocks(database), clock=replace(fake.clock(), sleep=slept.append)).hold("s"):
        assert slept == []


def test_a_store_that_is_not_linearizable_is_given_time_to_settle(database: MemoryDatabase, fake: FakeTime) -> None:
    class Slow(MemoryLocks):
        def settle_seconds(self) -> float:
            return 1.0

    slept: list[float] = []
    clock = replace(fake.clock(), sleep=slept.append)
    with Locker(Slow(database), clock=clock).hold("s"):
        assert slept == [1.0]
    fake.seconds += 1
    with Locker(Slow(database), LockOptions(settle_seconds=0.25), clock).hold("s"):
        assert slept == [1.0, 0.25]


@pytest.mark.parametrize("make", [Locker, KeeperLocker])
def test_a_lease_too_short_for_the_pause_before_a_decision_is_refused_and_nothing_is_sent(
    database: MemoryDatabase, fake: FakeTime, make: Callable[[MemoryKeeper, LockOptions, Clock], BaseLocker]
) -> None:
    store = MemoryKeeper(database)
    one = make(store, LockOptions(settle_seconds=1.0, lease_seconds=2.9), fake.clock())
    with pytest.raises(ConfigurationError, match=r"stale_lock_seconds is 2\.9, .* settle for 1 s\. .* at least 3, or"):
        next(one.hold_each(["s"]))
    assert (database.locks, store.cells) == ({}, {})
    with make(store, LockOptions(settle_seconds=1.0, lease_seconds=3.0), fake.clock()).hold("s") as lock:
        lock.confirm()


def test_after_the_block_no_row_is_live(database: MemoryDatabase, fake: FakeTime) -> None:
    with locker(database, fake).hold("s"):
        assert len(live_rows(database)) == 1
    assert live_rows(database) == []


def test_a_second_holder_waits_until_the_first_releases() -> None:
    database, order = MemoryDatabase(), []
    first_is_in, may_leave = threading.Event(), threading.Event()

    def first() -> None:
        with Locker(MemoryLocks(database), FAST).hold("s"):
            order.append("first in")
            first_is_in.set()
            may_leave.wait(5)
            order.append("first out")

    thread = threading.Thread(target=first)
    thread.start()
    first_is_in.wait(5)
    threading.Timer(0.05, may_leave.set).start()
    with Locker(MemoryLocks(database), FAST).hold("s"):
        order.append("second in")
    thread.join()
    assert order == ["first in", "first out", "second in"]


def test_two_ids_are_locked_at_once(database: MemoryDatabase, fake: FakeTime) -> None:
    one = locker(database, fake)
    with one.hold("a"), one.hold("b"):
        assert len(live_rows(database)) == 2


def test_nested_use_of_one_id_in_one_thread_is_an_error_at_once(database: MemoryDatabase, fake: FakeTime) -> None:
    one = locker(database, fake)
    with one.hold("s"):
        before = fake.seconds
        with pytest.raises(NestedLockError, match="holds the lock of state 's' already"), one.hold("s"):
            pass
        assert fake.seconds - before < 0.001
    with one.hold("s"):
        pass


@pytest.mark.parametrize("retry", [0.0, 0.5])
def test_the_wait_ends_at_the_timeout_and_the_error_tells_of_whom(
    database: MemoryDatabase, fake: FakeTime, retry: float
) -> None:
    occupy(database)
    before = fake.seconds
    with (
        pytest.raises(StateLockedError) as caught,
        locker(database, fake, timeout_seconds=3, retry_seconds=retry).hold("s"),
    ):
        pass
    assert 3 <= fake.seconds - before < 3.6
    error = caught.value
    assert (error.state_ids, error.holder, error.operation, error.lock_id) == (
        ("s",),
        "rival@elsewhere:9",
        "update",
        "rival",
    )
    assert error.age_seconds == pytest.approx(3, abs=0.7)
    assert error.lease_seconds_left == pytest.approx(297, abs=0.7)
    assert "rival@elsewhere:9" in str(error)
    assert live_rows(database) == ["rival"]


def test_a_timeout_of_zero_tries_once(database: MemoryDatabase, fake: FakeTime) -> None:
    with locker(database, fake, timeout_seconds=0).hold("s"):
        pass
    occupy(database)
    with pytest.raises(StateLockedError), locker(database, fake, timeout_seconds=0).hold("s"):
        pass


def test_pauses_are_never_longer_than_retry_seconds(database: MemoryDatabase, fake: FakeTime) -> None:
    occupy(database)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        fake.sleep(seconds)

    one = Locker(
        MemoryLocks(database), LockOptions(timeout_seconds=20, retry_seconds=0.7), replace(fake.clock(), sleep=sleep)
    )
    with pytest.raises(StateLockedError), one.hold("s"):
        pass
    assert max(slept) <= 0.7
    assert len(slept) > 20 / 0.7


def test_a_lock_whose_lease_is_over_is_taken_over(database: MemoryDatabase, fake: FakeTime) -> None:
    occupy(database, lease=2.0)
    with locker(database, fake, retry_seconds=0.5).hold("s"):
        assert 2.0 <= fake.seconds - 1_000 < 3.5
        assert "rival" not in live_rows(database)


def test_a_holder_that_renews_keeps_its_lock_beyond_its_lease(database: MemoryDatabase, fake: FakeTime) -> None:
    row = occupy(database, lease=2.0)
    known = replace(row, token=next(iter(database.locks.values())).token, born=next(iter(database.locks.values())).born)
    fake.while_asleep = lambda: MemoryLocks(database).insert([known])
    with pytest.raises(StateLockedError), locker(database, fake, timeout_seconds=10, retry_seconds=0.5).hold("s"):
        pass
    assert live_rows(database) == ["rival"]


def test_a_rival_that_never_changes_is_over_by_the_waiters_own_clock(fake: FakeTime) -> None:
    database = MemoryDatabase(now=lambda: 5_000_000)  # the server's clock stands still
    occupy(database, lease=2.0)
    with locker(database, fake, timeout_seconds=30, retry_seconds=0.5).hold("s") as held:
        assert 2.0 <= fake.seconds - 1_000 < 3.5
        assert held.version("s") > 5_000_000


def test_a_dead_process_of_this_host_is_taken_over_at_once(database: MemoryDatabase, fake: FakeTime) -> None:
    here, pid, _ = identify("x").process.rsplit("/", 2)
    occupy(database, process=f"{here}/{pid}/1")  # that pid was given to a later process
    before = fake.seconds
    with locker(database, fake).hold("s"):
        assert fake.seconds - before < 0.01


def test_a_process_in_another_container_is_not_taken_for_dead(database: MemoryDatabase, fake: FakeTime) -> None:
    boot, _, pid, started = identify("x").process.rsplit("/", 3)
    occupy(database, process=f"{boot}/pid:[1]/{pid}/{int(started) + 1}")
    with pytest.raises(StateLockedError), locker(database, fake, timeout_seconds=1).hold("s"):
        pass


def test_tokens_never_go_back_though_the_servers_clock_does(fake: FakeTime) -> None:
    times = iter([9_000_000, 9_000_001, 9_000_002, 1_000, 1_001, 1_002, 1_003, 1_004, 1_005, 1_006])
    one = locker(MemoryDatabase(now=lambda: next(times)), fake)
    with one.hold("s") as held:
        first = held.version("s")
    with one.hold("s") as held:
        second = held.version("s")
    assert (first, second) == (9_000_000, 9_000_000 + TOKEN_STEP)


def test_versions_under_one_lock_rise_beyond_a_thousand_writes(database: MemoryDatabase, fake: FakeTime) -> None:
    with locker(database, fake).hold("s") as held:
        versions = [held.version("s") for _ in range(2_500)]
    assert versions == sorted(set(versions))
    with locker(database, fake).hold("s") as held:
        assert held.version("s") >= versions[-1] + 1


def test_a_deposed_holder_is_told_and_gets_no_more_versions(database: MemoryDatabase, fake: FakeTime) -> None:
    with locker(database, fake).hold("s") as held:
        mine = MemoryLocks(database).read(["s"])["s"].live[0]
        MemoryLocks(database).insert([tombstone_of(mine, identify("unlock"))])
        with pytest.raises(StateLockLostError, match="lost to another holder"):
            held.confirm()
    with locker(database, fake).hold("s"):
        pass


def test_a_lock_known_to_be_lost_gives_no_version(database: MemoryDatabase, fake: FakeTime) -> None:
    with locker(database, fake).hold("s") as held:
        mine = MemoryLocks(database).read(["s"])["s"].live[0]
        MemoryLocks(database).insert([tombstone_of(mine, identify("unlock"))])
        with pytest.raises(StateLockLostError):
            held.renew()
        with pytest.raises(StateLockLostError):
            held.version("s")


def test_a_holder_inside_for_long_renews_from_a_thread_of_its_own() -> None:
    database, renewed = MemoryDatabase(), threading.Event()

    class Watching(MemoryLocks):
        def insert(self, rows: Collection[LockRow]) -> None:
            super().insert(rows)
            if any(row.sequence > 1 and not row.released for row in rows):
                renewed.set()

    with Locker(Watching(database), LockOptions(lease_seconds=0.15)).hold("s") as held:
        assert renewed.wait(5)
        held.confirm()


def test_an_exception_in_the_body_releases_and_is_not_masked_by_a_failing_release(
    database: MemoryDatabase, fake: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(MemoryLocks):
        def insert(self, rows: Collection[LockRow]) -> None:
            if any(row.released for row in rows):
                raise ConnectionError("gone")
            super().insert(rows)

    failing = Failing(database)
    one = Locker(failing, clock=fake.clock())
    with pytest.raises(ZeroDivisionError), one.hold("s"):
        raise ZeroDivisionError
    assert "could not be released: gone" in caplog.text
    failing.insert = MemoryLocks(database).insert  # type: ignore[method-assign]
    with one.hold("s"):  # its own orphan does not stand in the way of this process
        pass


def test_an_interrupt_while_waiting_leaves_no_row_and_touches_no_others(
    database: MemoryDatabase, fake: FakeTime
) -> None:
    occupy(database)

    def interrupt() -> None:
        raise KeyboardInterrupt

    fake.while_asleep = interrupt
    with pytest.raises(KeyboardInterrupt), locker(database, fake).hold("s"):
        pass
    assert live_rows(database) == ["rival"]


def test_a_renewal_that_cannot_start_leaves_nothing_held_and_its_error_is_told(
    database: MemoryDatabase, fake: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    one = locker(database, fake)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"), one.hold("s"):
            pass
    assert live_rows(database) == []
    with one.hold("s"):
        pass


def test_an_insert_whose_answer_never_came_is_withdrawn(database: MemoryDatabase, fake: FakeTime) -> None:
    class Unanswered(MemoryLocks):
        def insert(self, rows: Collection[LockRow]) -> None:
            super().insert(rows)
            if not any(row.released for row in rows):
                raise ConnectionError("no answer")

    with pytest.raises(ConnectionError), Locker(Unanswered(database), clock=fake.clock()).hold("s"):
        pass
    assert live_rows(database) == []


def test_a_withdrawal_that_failed_is_done_again(database: MemoryDatabase, fake: FakeTime) -> None:
    occupy(database)
    tombstones: list[int] = []

    class Failing(MemoryLocks):
        def insert(self, rows: Collection[LockRow]) -> None:
            if any(row.released for row in rows):
                tombstones.append(len(rows))
                if len(tombstones) == 1:
                    raise ConnectionError("gone")
            super().insert(rows)

    with pytest.raises(ConnectionError), Locker(Failing(database), clock=fake.clock()).hold("s"):
        pass
    assert live_rows(database) == ["rival"]


@pytest.mark.parametrize("contents", ["short", "x" * 70_000])
def test_who_stayed_beside_a_holder_reads_what_that_wrote_and_not_what_was_there_when_it_stayed(
    fake: FakeTime, contents: str
) -> None:
    """The holder's row was born later but landed sooner; a copy of it lands when all is done, with a later token."""
    offset = 0
    database = MemoryDatabase(now=lambda: fake.server_now() + offset)
    first, second = (StateStore(MemoryStates(database), locker(database, fake), MemorySchema()) for _ in range(2))
    first.set(State("a", {}, {"value": 1}))

    with ExitStack() as held:
        lock = held.enter_context(first.lock("a", "update"))
        offset = -10_000_000

        def end() -> None:
            fake.while_asleep = lambda: None
            first.set(State("a", {}, {"value": contents}))
            held.close()
            MemoryLocks(database).insert([replace(rows[0], token=database.states["a"].updated_at + 1_000)])

        rows, fake.while_asleep = lock.rows, end
        with second.lock("a", "update"):
            assert second.get("a") == State("a", {}, {"value": contents})


def test_a_tombstone_wins_over_a_row_that_lands_later(database: MemoryDatabase, fake: FakeTime) -> None:
    late: list[LockRow] = []

    class Late(MemoryLocks):
        def insert(self, rows: Collection[LockRow]) -> None:
            if not any(row.released for row in rows):
                late.extend(rows)
                raise ConnectionError("no answer")
            super().insert(rows)

    with pytest.raises(ConnectionError), Locker(Late(database), clock=fake.clock()).hold("s"):
        pass
    MemoryLocks(database).insert(late)
    with locker(database, fake, timeout_seconds=0).hold("s"):
        pass


def test_a_bulk_call_does_what_is_free_and_names_what_stayed_locked(database: MemoryDatabase, fake: FakeTime) -> None:
    occupy(database)
    locks = locker(database, fake, timeout_seconds=1).hold_each(["a", "s", "b"])
    assert next(locks).state_ids == ("a", "b")
    with pytest.raises(StateLockedError) as caught:
        next(locks)
    assert caught.value.state_ids == ("s",)
    assert live_rows(database) == ["rival"]


def test_the_error_names_the_held_first_then_those_that_were_not_got_for_another_reason(
    database: MemoryDatabase,
) -> None:
    occupy(database)
    view = MemoryLocks(database).read(["s"])["s"]
    error = locked({"wanted": (), "s": view.live}, view.now)
    assert error.state_ids == ("s", "wanted")
    assert str(error).startswith(f"State 's', 'wanted' is locked by {view.live[0].identity.holder} ")


def test_a_bulk_call_gives_its_rows_one_lock_id_and_one_birth(database: MemoryDatabase, fake: FakeTime) -> None:
    for lock in locker(database, fake).hold_each(["a", "b", "c"]):
        views = MemoryLocks(database).read(lock.state_ids)
        assert len({view.live[0].lock_id for view in views.values()}) == 1
        assert len({view.live[0].born for view in views.values()}) == 1


def test_whom_one_waits_for_is_logged_once(
    database: MemoryDatabase, fake: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    occupy(database)
    caplog.set_level(logging.INFO, waiting.__name__)
    with suppress(StateLockedError), locker(database, fake, timeout_seconds=5).hold("s"):
        pass
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) == 1
    assert "Waiting for the lock of state 's', held by rival@elsewhere:9 (update" in lines[0]


def test_metrics_tell_attempts_wait_and_hold(database: MemoryDatabase, fake: FakeTime) -> None:
    seen: list[Metrics] = []
    occupy(database, lease=1.0)
    options = LockOptions(observe=seen.append)
    with Locker(MemoryLocks(database), options, fake.clock()).hold("s"):
        fake.seconds += 7
    assert seen[0].state_ids == ("s",)
    assert seen[0].attempts == 2
    assert seen[0].wait_seconds >= 1.0
    assert seen[0].hold_seconds == pytest.approx(7, abs=0.01)


def test_an_observer_that_fails_neither_masks_an_error_nor_makes_one(
    database: MemoryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Metrics) -> None:
        raise ValueError("no such gauge")

    one = Locker(MemoryLocks(database), LockOptions(observe=fail))
    with one.hold("s"):
        pass
    with pytest.raises(ZeroDivisionError), one.hold("s"):
        raise ZeroDivisionError
    assert caplog.text.count("no such gauge") == 2


def test_a_forked_child_neither_releases_nor_writes_under_its_parents_lock(database: MemoryDatabase) -> None:
    locks = MemoryLocks(database)
    with Locker(locks).hold("s") as held:
        pid = os.fork()
        if pid == 0:  # the child: its memory is a copy, so it counts its own rows
            rows = len(database.locks)
            locks.insert(held.end())
            refused = False
            with suppress(StateLockLostError):
                held.version("s")
                refused = True
            os._exit(0 if len(database.locks) == rows and not refused else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        held.confirm()
