"""Many states in one call."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from meltano.core.state_store.base import MeltanoState, StateIDLockedError

from meltano_ch_state.errors import InvalidStateError, StateLockedError
from tests.conformance.conftest import Manager, Opener

MANY = 1_050
"""More than a stream fetches at once."""


def states(count: int, value: object = 0) -> Iterator[MeltanoState]:
    return (MeltanoState(f"s{number:05}", {}, {"value": value}) for number in range(count))


def values(manager: Manager, pattern: str | None = None) -> dict[str, object]:
    return {state.state_id: (state.completed_state or {}).get("value") for state in manager.get_all(pattern)}


def test_an_empty_database_has_no_states(manager: Manager) -> None:
    assert list(manager.get_all()) == []
    assert list(manager.get_all("a*")) == []


def test_all_states_are_got_sorted_by_id(manager: Manager) -> None:
    given = [MeltanoState("b", {"p": 1}, {}), MeltanoState("a", {}, {"c": 1}), MeltanoState("C", {}, {})]
    manager.set_all(given)
    assert list(manager.get_all()) == [given[2], given[1], given[0]]


def test_the_states_that_match_a_pattern_are_got(manager: Manager) -> None:
    manager.set_all(states(12))
    assert list(values(manager, "s0000[12]")) == ["s00001", "s00002"]
    assert list(values(manager, "*1?")) == ["s00010", "s00011"]


def test_more_states_than_one_page_are_set_got_and_cleared(manager: Manager) -> None:
    assert manager.set_all(states(MANY)) == MANY
    assert manager.get_state_ids() == [f"s{number:05}" for number in range(MANY)]
    assert list(manager.get_all()) == list(states(MANY))
    assert len(values(manager, "*9")) == MANY // 10
    assert manager.clear_all() == MANY
    assert list(manager.get_all()) == []


def test_a_stream_of_states_may_be_left_early(manager: Manager) -> None:
    manager.set_all(states(3))
    stream = iter(manager.get_all())
    assert next(stream).state_id == "s00000"
    del stream
    assert manager.get_state_ids() == ["s00000", "s00001", "s00002"]


def test_states_may_be_set_while_they_are_streamed(manager: Manager) -> None:
    manager.set_all(states(3))
    for state in manager.get_all():
        manager.set(MeltanoState(state.state_id, {}, {"value": 1}))
    assert set(values(manager).values()) == {1}


def test_a_stream_may_be_set_elsewhere_as_it_comes(manager: Manager) -> None:
    manager.set_all(states(3))
    copies = (MeltanoState(f"copy:{s.state_id}", s.partial_state, s.completed_state) for s in manager.get_all())
    assert manager.set_all(copies) == 3
    assert len(manager.get_state_ids("copy:*")) == 3


def test_setting_nothing_is_done_at_once(manager: Manager) -> None:
    assert manager.set_all([]) == 0
    assert manager.set_all(iter(())) == 0
    assert manager.get_state_ids() == []


def test_the_last_of_two_states_with_one_id_wins(manager: Manager) -> None:
    given = [MeltanoState("a", {}, {"value": value}) for value in (1, 2, 3)]
    assert manager.set_all([given[0], MeltanoState("b", {}, {"value": 0}), *given[1:]]) == 4
    assert values(manager) == {"a": 3, "b": 0}


def test_setting_many_replaces_what_was_there(manager: Manager) -> None:
    manager.set(MeltanoState("s00001", {"p": 1}, {"value": "old"}))
    manager.set(MeltanoState("z", {}, {"value": "old"}))
    manager.set_all(states(2, "new"))
    assert values(manager) == {"s00000": "new", "s00001": "new", "z": "old"}
    assert manager.get("s00001") == MeltanoState("s00001", {}, {"value": "new"})


def test_parts_that_are_none_are_empty_in_bulk_too(manager: Manager) -> None:
    manager.set_all([MeltanoState("a"), MeltanoState("b", {"p": 1}), MeltanoState("c", None, {"c": 1})])
    assert list(manager.get_all()) == [
        MeltanoState("a", {}, {}),
        MeltanoState("b", {"p": 1}, {}),
        MeltanoState("c", {}, {"c": 1}),
    ]


def test_one_state_that_is_not_json_stops_its_batch(manager: Manager) -> None:
    manager.set(MeltanoState("a", {}, {"value": "old"}))
    with pytest.raises(InvalidStateError, match="State 'b' cannot be written as JSON"):
        manager.set_all([MeltanoState("a", {}, {"value": "new"}), MeltanoState("b", {}, {"value": object()})])
    assert values(manager) == {"a": "old"}


def test_an_error_of_the_giver_is_passed_on(manager: Manager) -> None:
    def broken() -> Iterator[MeltanoState]:
        yield MeltanoState("a", {}, {})
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        manager.set_all(broken())
    with manager.acquire_lock("a"):
        pass


def test_clearing_all_counts_and_leaves_nothing(manager: Manager, other: Manager) -> None:
    manager.set_all(states(5))
    manager.clear("s00003")
    assert manager.clear_all() == 4
    assert other.get_state_ids() == []
    assert other.get("s00000") is None
    assert manager.clear_all() == 0


def test_clearing_an_empty_database_counts_none(manager: Manager) -> None:
    assert manager.clear_all() == 0


def test_states_may_be_set_again_after_clearing_all(manager: Manager) -> None:
    manager.set_all(states(3))
    manager.clear_all()
    manager.set_all(states(2))
    assert list(manager.get_all()) == list(states(2))


def test_a_locked_state_is_named_and_the_rest_is_set(manager: Manager, other: Manager) -> None:
    manager.set_all(states(4, "old"))
    with manager.acquire_lock("s00001"), pytest.raises(StateLockedError) as caught:
        other.set_all(states(4, "new"))
    assert caught.value.state_ids == ("s00001",)
    assert "'s00001'" in str(caught.value)
    assert isinstance(caught.value, StateIDLockedError)
    assert values(manager) == {"s00000": "new", "s00001": "old", "s00002": "new", "s00003": "new"}


def test_a_locked_state_is_named_and_the_rest_is_cleared(manager: Manager, other: Manager) -> None:
    manager.set_all(states(4))
    with manager.acquire_lock("s00002"), pytest.raises(StateLockedError) as caught:
        other.clear_all()
    assert caught.value.state_ids == ("s00002",)
    assert manager.get_state_ids() == ["s00002"]


def test_all_that_is_locked_is_named(manager: Manager, other: Manager) -> None:
    with manager.acquire_lock("s00000"), manager.acquire_lock("s00002"), pytest.raises(StateLockedError) as caught:
        other.set_all(states(3))
    assert sorted(caught.value.state_ids) == ["s00000", "s00002"]
    assert manager.get_state_ids() == ["s00001"]


def test_a_bulk_call_waits_for_what_is_locked(manager: Manager, open_manager: Opener) -> None:
    waiter = open_manager(lock_acquire_timeout_seconds=20, lock_retry_seconds=0.05)
    thread = threading.Thread(target=waiter.set_all, args=(list(states(3, "new")),))
    with manager.acquire_lock("s00001"):
        thread.start()
        while len(manager.get_state_ids()) < 2:
            assert thread.is_alive()
        assert manager.get_state_ids() == ["s00000", "s00002"]
        manager.set(MeltanoState("s00001", {}, {"value": "old"}))
    thread.join(20)
    assert values(manager) == {"s00000": "new", "s00001": "new", "s00002": "new"}


def test_a_bulk_call_uses_the_locks_that_its_thread_holds(manager: Manager) -> None:
    with manager.acquire_lock("s00001"):
        assert manager.set_all(states(3)) == 3
        assert manager.clear_all() == 3
        manager.set(MeltanoState("s00001", {}, {"value": 1}))
    assert values(manager) == {"s00001": 1}


def test_states_that_are_listed_and_then_got_one_by_one_are_the_current_ones(manager: Manager, other: Manager) -> None:
    manager.set_all(states(MANY))
    listed = manager.get_state_ids("s*")
    assert [manager.get(state_id) for state_id in listed[:3]] == list(states(3))
    manager.set(MeltanoState("s00003", {}, {"value": "new"}))
    assert manager.get("s00003") == MeltanoState("s00003", {}, {"value": "new"})
    other.clear_all()
    assert manager.get("s00004") is None
    assert [manager.get(state_id) for state_id in manager.get_state_ids()] == []


def test_a_listed_state_is_read_anew_under_its_lock(manager: Manager, other: Manager) -> None:
    manager.set_all(states(5))
    listed = manager.get_state_ids()
    manager.get(listed[0])
    manager.get(listed[1])
    other.set(MeltanoState(listed[2], {}, {"value": "new"}))
    with manager.acquire_lock(listed[2]):
        assert manager.get(listed[2]) == MeltanoState(listed[2], {}, {"value": "new"})
