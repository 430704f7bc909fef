"""Every version that is written is kept, whatever wrote it. The in-memory double keeps no history."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meltano.core.state_store.base import MeltanoState
from sqlalchemy import text

from meltano_ch_state.connection import engine_for
from meltano_ch_state.errors import StateChangedError
from meltano_ch_state.process import identify
from meltano_ch_state.protocol import StateRow
from meltano_ch_state.repositories.history import HistoryRepository
from meltano_ch_state.repositories.states import StateRepository
from tests.conformance.conftest import STORES, Manager, Opener
from tests.conformance.test_reading_and_writing import VALUES

LONG_AGO = 1_600_000_000_000_000
"""A version of 2020, in microseconds."""


@pytest.fixture(params=[store for store in STORES if store != "memory"])
def manager(request: pytest.FixtureRequest) -> Iterator[Manager]:
    """A manager over each store that keeps a history."""
    opener: Opener = request.getfixturevalue(f"on_{request.param}")
    manager = opener()
    yield manager
    manager.close()


def history(manager: Manager, state_id: str) -> list[StateRow]:
    """The versions of a state, the oldest first."""
    return list(HistoryRepository(engine_for(manager.settings), manager.settings.names).versions(state_id))[::-1]


def contents(row: StateRow) -> Any:
    """The value that a version has; None where it is a tombstone."""
    return None if row.is_deleted else json.loads(row.completed_state or "{}").get("value")


def state(value: Any, state_id: str = "a") -> MeltanoState:
    return MeltanoState(state_id, {}, {"value": value})


def test_each_way_to_write_makes_a_version(manager: Manager) -> None:
    manager.set(state(1))
    manager.update(state(2))
    manager.set_all([state(3), state(30, "b")])
    manager.delete("a")
    manager.set(state(4))
    manager.clear("a")
    manager.set(state(5))
    manager.clear_all()

    rows = history(manager, "a")
    assert [contents(row) for row in rows] == [1, 2, 3, None, 4, None, 5, None]
    operations = ["set", "update", "set_all", "clear", "set", "clear", "set", "clear_all"]
    assert [row.operation for row in rows] == operations
    assert {row.holder for row in rows} == {identify("").holder}
    versions = [row.updated_at for row in rows]
    assert versions == sorted(set(versions))
    assert [contents(row) for row in history(manager, "b")] == [30, None]


def test_each_write_under_one_lock_is_a_version(manager: Manager) -> None:
    with manager.acquire_lock("a"):
        for value in range(5):
            manager.set(state(value))

    assert [contents(row) for row in history(manager, "a")] == list(range(5))


def test_a_write_under_a_lock_says_what_it_is_itself_and_a_set_what_the_lock_is_for(manager: Manager) -> None:
    with manager.acquire_lock("a"):
        manager.set(state(1))
        manager.set_all([state(2)])
        manager.delete("a")
    with manager.store.lock("a", "report"):
        manager.set(state(3))

    assert [row.operation for row in history(manager, "a")] == ["update", "set_all", "clear", "report"]


def test_ids_do_not_cross_match(manager: Manager) -> None:
    ids = ["a", "A", "a%", "a_b", "a*", "a\\", "a'", 'a"', "%(x)s", ":name {k:String}", "a\nb", "é"]
    manager.set_all([state(number, state_id) for number, state_id in enumerate(ids)])

    for number, state_id in enumerate(ids):
        assert [contents(row) for row in history(manager, state_id)] == [number]


def test_every_version_is_kept_as_it_was_written(manager: Manager) -> None:
    for value in VALUES.values():
        manager.set(state(value))

    assert [contents(row) for row in history(manager, "a")] == list(VALUES.values())


def test_an_old_version_may_be_had_back(manager: Manager) -> None:
    manager.set(MeltanoState("a", {"p": 1}, {"value": 1}))
    manager.set(state(2))
    manager.clear("a")
    (first, _, cleared) = history(manager, "a")

    manager.store.restore(first, None)
    assert manager.get("a") == MeltanoState("a", {"p": 1}, {"value": 1})
    manager.store.restore(cleared, history(manager, "a")[-1])
    assert manager.get("a") is None
    assert [row.operation for row in history(manager, "a")][-2:] == ["restore", "restore"]


def test_a_restore_replaces_only_what_its_caller_saw(manager: Manager) -> None:
    manager.set(state(1))
    manager.set(state(2))
    first, seen = history(manager, "a")
    manager.set(state(3))

    for present in (seen, None):
        with pytest.raises(
            StateChangedError, match=r"Another wrote state 'a' meanwhile, so nothing was written\. Look"
        ):
            manager.store.restore(first, present)
    manager.clear("a")
    with pytest.raises(StateChangedError):
        manager.store.restore(first, seen)

    assert [contents(row) for row in history(manager, "a")] == [1, 2, 3, None]
    manager.store.restore(first, None)
    assert manager.get("a") == state(1)


def test_a_restore_under_a_lock_sees_what_was_written_under_it(manager: Manager) -> None:
    manager.set(state(1))
    (first,) = history(manager, "a")
    with manager.acquire_lock("a"):
        manager.set(state(2))
        with pytest.raises(StateChangedError):
            manager.store.restore(first, first)
        manager.store.restore(first, history(manager, "a")[-1])

    assert manager.get("a") == state(1)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.none() | st.integers(0, 3), max_size=6))
def test_the_history_is_the_list_of_all_writes(manager: Manager, values: list[int | None]) -> None:
    manager.set(state("the first"))
    before = len(history(manager, "a"))
    for value in values:
        if value is None:
            manager.delete("a")
        else:
            manager.set(state(value))

    assert [contents(row) for row in history(manager, "a")][before:] == values


WRITES: dict[str, Callable[[Manager], object]] = {
    "set": lambda manager: manager.set(state(2)),
    "update": lambda manager: manager.update(state(2)),
    "clear": lambda manager: manager.clear("a"),
    "set_all": lambda manager: manager.set_all([state(2), state(2, "b")]),
    "clear_all": lambda manager: manager.clear_all(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_what_was_in_force_for_longer_than_a_version_is_kept_is_there_again_once_it_is_replaced(
    manager: Manager, write: Callable[[Manager], object]
) -> None:
    old = StateRow("a", None, json.dumps({"value": 1}), LONG_AGO, False, "me@host:1", "update", "run")
    manager.migrate()
    repository(manager).insert_versions([old])
    forget_history(manager)

    write(manager)

    assert history(manager, "a")[0] == old
    assert len(history(manager, "a")) == 2


def test_it_is_there_again_though_others_had_the_lock_in_between_and_wrote_nothing(manager: Manager) -> None:
    old = StateRow("a", None, json.dumps({"value": 1}), LONG_AGO, False, "me@host:1", "update", "run")
    manager.migrate()
    repository(manager).insert_versions([old])
    forget_history(manager)

    with manager.store.lock("a", "look"):
        pass
    with pytest.raises(StateChangedError):
        manager.store.restore(old, None)
    manager.set(state(2))

    assert history(manager, "a")[0] == old


def test_what_was_written_today_is_not_copied_when_it_is_replaced(manager: Manager) -> None:
    manager.set_all([state(1), state(1, "b")])
    forget_history(manager)

    manager.set(state(2))
    manager.set_all([state(3), state(3, "b")])

    assert [contents(row) for row in history(manager, "a")] == [2, 3]
    assert [contents(row) for row in history(manager, "b")] == [3]


def repository(manager: Manager) -> StateRepository:
    return StateRepository(engine_for(manager.settings), manager.settings.schema)


def forget_history(manager: Manager) -> None:
    """As when the versions' time is over."""
    with engine_for(manager.settings).connect() as connection:
        connection.execute(text(f"TRUNCATE TABLE {manager.settings.schema}.state_history"))
