"""The basic promises of a state's lock."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
from meltano.core.state_store.base import MeltanoState, StateIDLockedError

from meltano_ch_state.errors import NestedLockError, StateLockedError
from meltano_ch_state.process import identify
from tests.conformance.conftest import Manager, Opener

TIMEOUT_SECONDS = 20


@contextmanager
def in_background(work: Callable[[], object]) -> Iterator[None]:
    """Run some work in a thread meanwhile; its error is raised at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(TIMEOUT_SECONDS)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def count_up(manager: Manager, times: int) -> None:
    for _ in range(times):
        with manager.acquire_lock("counter"):
            state = manager.get("counter") or MeltanoState("counter", {}, {"n": 0})
            assert state.completed_state is not None
            state.completed_state["n"] += 1
            manager.set(state)


def test_a_lock_may_be_taken_again_once_it_was_released(manager: Manager, other: Manager) -> None:
    for holder in (manager, manager, other, manager):
        with holder.acquire_lock("a"):
            pass


def test_a_lock_keeps_others_out(manager: Manager, other: Manager) -> None:
    with manager.acquire_lock("a"), pytest.raises(StateLockedError), other.acquire_lock("a"):
        pytest.fail("two holders")


def test_a_lock_keeps_the_writes_of_others_out(manager: Manager, other: Manager) -> None:
    with manager.acquire_lock("a"):
        manager.set(MeltanoState("a", {}, {"by": "holder"}))
        rival = MeltanoState("a", {}, {"by": "other"})
        for write in (
            partial(other.set, rival),
            partial(other.update, rival),
            partial(other.clear, "a"),
            partial(other.delete, "a"),
        ):
            with pytest.raises(StateLockedError):
                write()
    assert manager.get("a") == MeltanoState("a", {}, {"by": "holder"})


def test_reading_needs_no_lock(manager: Manager, other: Manager) -> None:
    manager.set(MeltanoState("a", {}, {"n": 1}))
    with manager.acquire_lock("a"):
        assert other.get("a") == MeltanoState("a", {}, {"n": 1})
        assert list(other.get_all()) == [MeltanoState("a", {}, {"n": 1})]
        assert other.get_state_ids() == ["a"]


def test_a_lock_makes_no_state(manager: Manager) -> None:
    with manager.acquire_lock("a"):
        assert manager.get("a") is None
    assert manager.get_state_ids() == []


def test_a_second_holder_waits_until_the_first_releases(manager: Manager, open_manager: Opener) -> None:
    second = open_manager(lock_acquire_timeout_seconds=TIMEOUT_SECONDS)
    entered = threading.Event()

    def enter() -> None:
        with second.acquire_lock("a", retry_seconds=0.05):
            entered.set()

    with ExitStack() as background:
        with manager.acquire_lock("a"):
            background.enter_context(in_background(enter))
            assert not entered.wait(0.4)
        assert entered.wait(TIMEOUT_SECONDS)


@pytest.mark.parametrize("retry_seconds", [0, 0.1, 60])
def test_a_waiter_gives_up_after_its_timeout(manager: Manager, open_manager: Opener, retry_seconds: float) -> None:
    waiter = open_manager(lock_acquire_timeout_seconds=0.4, lock_retry_seconds=60)
    with manager.acquire_lock("a"):
        started = time.monotonic()
        with pytest.raises(StateLockedError), waiter.acquire_lock("a", retry_seconds=retry_seconds):
            pytest.fail("two holders")
        assert 0.4 <= time.monotonic() - started < 3


def test_who_gave_up_leaves_nothing_behind(manager: Manager, other: Manager, open_manager: Opener) -> None:
    third = open_manager(lock_acquire_timeout_seconds=0)
    with manager.acquire_lock("a"):
        with pytest.raises(StateLockedError), other.acquire_lock("a"):
            pytest.fail("two holders")
        manager.set(MeltanoState("a", {}, {"n": 1}))
    with third.acquire_lock("a"):
        assert third.get("a") == MeltanoState("a", {}, {"n": 1})


def test_the_error_names_the_state_the_holder_its_age_and_the_remedy(manager: Manager, other: Manager) -> None:
    with manager.acquire_lock("dev:tap'"):
        time.sleep(0.1)
        with pytest.raises(StateLockedError) as caught:
            other.set(MeltanoState("dev:tap'", {}, {}))
    error, holder = caught.value, identify("").holder
    assert isinstance(error, StateIDLockedError)
    assert (error.state_ids, error.holder, error.operation) == (("dev:tap'",), holder, "update")
    assert 0.1 <= error.age_seconds < 10
    assert 200 < error.lease_seconds_left <= 300
    line = str(error)
    for part in (repr("dev:tap'"), holder, error.lock_id, "lock_acquire_timeout_seconds", f"{error.age_seconds:.1f} s"):
        assert part in line
    assert "\n" not in line


def test_two_states_may_be_locked_at_once(manager: Manager, other: Manager) -> None:
    with manager.acquire_lock("a"), manager.acquire_lock("b"), other.acquire_lock("c"):
        manager.set(MeltanoState("a", {}, {"n": 1}))
        manager.set(MeltanoState("b", {}, {"n": 2}))
        other.set(MeltanoState("c", {}, {"n": 3}))
        with pytest.raises(StateLockedError), other.acquire_lock("b"):
            pytest.fail("two holders")
    assert [state.completed_state for state in manager.get_all()] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_locks_may_be_released_in_any_order(manager: Manager, other: Manager) -> None:
    first, second = manager.acquire_lock("a"), manager.acquire_lock("b")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with other.acquire_lock("a"), pytest.raises(StateLockedError), other.acquire_lock("b"):
        pytest.fail("two holders")
    second.__exit__(None, None, None)


@pytest.mark.parametrize("error", [KeyError("mine"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_error_in_the_body_releases_and_is_not_masked(
    manager: Manager, other: Manager, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught, manager.acquire_lock("a"):
        raise error
    assert caught.value is error
    with other.acquire_lock("a"):
        pass


def test_a_nested_lock_is_an_error_at_once(manager: Manager, other: Manager) -> None:
    with manager.acquire_lock("a"):
        started = time.monotonic()
        with pytest.raises(NestedLockError, match="holds the lock of state 'a' already"), manager.acquire_lock("a"):
            pytest.fail("two holders")
        assert time.monotonic() - started < 1
        with pytest.raises(NestedLockError):
            manager.update(MeltanoState("a", {}, {"by": "update"}))
        with pytest.raises(StateLockedError), other.acquire_lock("a"):
            pytest.fail("the nested one released the lock")
        manager.set(MeltanoState("a", {}, {"by": "holder"}))
    assert manager.get("a") == MeltanoState("a", {}, {"by": "holder"})


def test_another_thread_of_the_same_manager_waits_like_any_other(open_manager: Opener) -> None:
    manager = open_manager(lock_acquire_timeout_seconds=0)
    with (
        manager.acquire_lock("a"),
        pytest.raises(StateLockedError),
        in_background(lambda: manager.set(MeltanoState("a", {}, {}))),
    ):
        pass


def test_threads_that_are_the_first_to_use_a_manager_share_its_store(open_manager: Opener) -> None:
    """Each lock is known to the store that took it: in another one its holder would wait for itself."""
    fresh, together = open_manager(), threading.Barrier(8)

    def store(_: int) -> object:
        together.wait(TIMEOUT_SECONDS)
        return fresh.store

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert len(set(map(id, pool.map(store, range(8))))) == 1
    finally:
        sys.setswitchinterval(before)


def test_threads_count_without_losing_one(manager: Manager, open_manager: Opener) -> None:
    second = open_manager()
    with (
        in_background(lambda: count_up(manager, 3)),
        in_background(lambda: count_up(manager, 3)),
        in_background(lambda: count_up(second, 3)),
    ):
        count_up(second, 3)
    assert manager.get("counter") == MeltanoState("counter", {}, {"n": 12})


def test_threads_update_different_states_side_by_side(manager: Manager) -> None:
    def update(name: str) -> None:
        for number in range(3):
            manager.update(MeltanoState(name, {f"n{number}": number}))

    with in_background(lambda: update("a")), in_background(lambda: update("b")):
        update("c")
    expected = {f"n{number}": number for number in range(3)}
    assert list(manager.get_all()) == [MeltanoState(name, expected, {}) for name in "abc"]
