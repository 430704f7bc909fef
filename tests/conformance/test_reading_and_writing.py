"""What is set is what is got, until it is set again or cleared."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state.errors import InvalidStateError
from tests.conformance.conftest import Manager, Opener

SINGER = {"singer_state": {"bookmarks": {"users": {"replication_key_value": "2024-02-29T12:00:00.123456+00:00"}}}}

VALUES: dict[str, Any] = {
    "beyond 64 bits": [2**64, -(2**63) - 1, 10**400],
    "floats": [0.1, -0.0, 1e308, 5e-324, 1.0, 123456789.123456789],
    "constants": [None, True, False, 1, 0, "true", "null", ""],
    "nested": [[[[[]]], {}], {"a": {"b": [{"c": {}}]}}],
    "deep": json.loads("[" * 500 + "]" * 500),
    "control characters": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "separators": "line\u2028paragraph\u2029next\x85line",
    "emoji": "👩‍👩‍👧 🇨🇭 é e\u0301 \U0010ffff \ufeff",
    "lone surrogate": "\ud800",
    "percent": "100% %s %(x)s %%",
    "placeholders": ":name {k:String} ? $1 {{x}}",
    "backslashes": "\\ \\\\ \\n \\x00 C:\\new",
    "quotes": "' '' \" ` \\' \\\" '; DROP TABLE state; --",
    "keys": {"": 1, "a.b": 2, "'": 3, "\\": 4, "\x00": 5, "é": 6, "%s": 7},
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=10,
)
STATE_IDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PARTS = st.none() | st.dictionaries(st.text(), JSON, max_size=3)


def text(state: MeltanoState | None) -> str:
    """A state for comparisons that tell 1, 1.0 and True apart."""
    assert state is not None
    return state.json()


def test_a_state_that_was_never_set_is_none(manager: Manager) -> None:
    assert manager.get("dev:tap-to-target") is None
    assert manager.get_state_ids() == []


def test_what_was_set_is_got(manager: Manager) -> None:
    state = MeltanoState("dev:tap-to-target", {"partial": 1}, SINGER)
    manager.set(state)
    assert manager.get("dev:tap-to-target") == state


def test_another_process_gets_what_was_set(manager: Manager, other: Manager) -> None:
    assert other.get("a") is None
    manager.set(MeltanoState("a", {}, SINGER))
    assert other.get("a") == MeltanoState("a", {}, SINGER)


def test_a_later_set_replaces_both_parts(manager: Manager) -> None:
    manager.set(MeltanoState("a", {"p": 1}, {"c": 1}))
    manager.set(MeltanoState("a", {}, {"d": 2}))
    assert manager.get("a") == MeltanoState("a", {}, {"d": 2})


def test_the_last_of_many_quick_sets_counts(manager: Manager, other: Manager) -> None:
    for number in range(10):
        (manager, other)[number % 2].set(MeltanoState("a", {}, {"number": number}))
        assert manager.get("a") == MeltanoState("a", {}, {"number": number})


def test_the_last_of_many_sets_under_one_lock_counts(manager: Manager) -> None:
    with manager.acquire_lock("a"):
        for number in range(10):
            manager.set(MeltanoState("a", {}, {"number": number}))
            assert manager.get("a") == MeltanoState("a", {}, {"number": number})
    assert manager.get("a") == MeltanoState("a", {}, {"number": 9})


@pytest.mark.parametrize(
    ("partial", "completed"), [(None, None), ({}, None), (None, {}), ({"p": 1}, None), (None, {"c": 1})]
)
def test_a_part_that_was_not_given_is_an_empty_dict(
    manager: Manager, partial: dict[str, Any] | None, completed: dict[str, Any] | None
) -> None:
    manager.set(MeltanoState("a", partial, completed))
    assert manager.get("a") == MeltanoState("a", partial or {}, completed or {})
    assert list(manager.get_all()) == [MeltanoState("a", partial or {}, completed or {})]


def test_a_state_may_be_set_and_cleared_again_and_again(manager: Manager) -> None:
    state = MeltanoState("a", {}, SINGER)
    for _ in range(20):
        manager.set(state)
        assert manager.get("a") == state
        manager.clear("a")
        assert manager.get("a") is None


def test_a_cleared_state_is_in_no_list(manager: Manager) -> None:
    manager.set_all([MeltanoState("a", {}, {"c": 1}), MeltanoState("b", {}, {"c": 2})])
    manager.clear("a")
    assert manager.get_state_ids() == ["b"]
    assert list(manager.get_all()) == [MeltanoState("b", {}, {"c": 2})]


def test_deleting_is_clearing(manager: Manager) -> None:
    manager.set(MeltanoState("a", {}, SINGER))
    manager.delete("a")
    assert manager.get("a") is None


def test_clearing_a_state_that_is_not_there_is_silent(manager: Manager) -> None:
    manager.clear("a")
    manager.delete("a")
    manager.clear("a")
    assert manager.get("a") is None
    assert manager.get_state_ids() == []


def test_a_partial_state_is_merged_onto_the_partial_one(manager: Manager) -> None:
    manager.update(MeltanoState("a", {"singer_state": {"bookmarks": {"x": {"at": 1}, "y": {"at": 1}}}}))
    manager.update(MeltanoState("a", {"singer_state": {"bookmarks": {"y": {"at": 2}, "z": {"at": 2}}}}))
    merged = {"singer_state": {"bookmarks": {"x": {"at": 1}, "y": {"at": 2}, "z": {"at": 2}}}}
    assert manager.get("a") == MeltanoState("a", merged, {})


def test_a_partial_state_keeps_the_completed_one(manager: Manager) -> None:
    manager.set(MeltanoState("a", {}, SINGER))
    manager.update(MeltanoState("a", {"p": 1}, {}))
    assert manager.get("a") == MeltanoState("a", {"p": 1}, SINGER)


def test_a_completed_state_replaces_both(manager: Manager) -> None:
    manager.set(MeltanoState("a", {"p": 1}, {"old": 1}))
    manager.update(MeltanoState("a", {}, SINGER))
    assert manager.get("a") == MeltanoState("a", {}, SINGER)


def test_an_empty_update_changes_nothing(manager: Manager) -> None:
    manager.set(MeltanoState("a", {"p": 1}, SINGER))
    manager.update(MeltanoState("a", {}, {}))
    assert manager.get("a") == MeltanoState("a", {"p": 1}, SINGER)


def test_an_update_of_a_cleared_state_begins_anew(manager: Manager) -> None:
    manager.set(MeltanoState("a", {"p": 1}, SINGER))
    manager.clear("a")
    manager.update(MeltanoState("a", {"q": 2}))
    assert manager.get("a") == MeltanoState("a", {"q": 2}, {})


def test_every_json_value_comes_back_as_it_was(manager: Manager) -> None:
    states = [MeltanoState(name, {"value": value}, {"value": value}) for name, value in VALUES.items()]
    manager.set_all(states)
    assert {state.state_id: text(state) for state in manager.get_all()} == {
        state.state_id: text(state) for state in states
    }
    for state in states[:3]:
        assert text(manager.get(state.state_id)) == text(state)


@given(st.dictionaries(STATE_IDS, st.tuples(PARTS, PARTS), min_size=1, max_size=8))
# JSON knows none of the three, but Python writes and reads them, and so do Meltano's own stores.
@example({"a": (None, {"numbers": [float("nan"), float("inf"), float("-inf")]})})
# One database for all examples: each looks at its own states only.
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_state_comes_back_as_it_was(manager: Manager, states: dict[str, tuple[Any, Any]]) -> None:
    manager.set_all(MeltanoState(state_id, *parts) for state_id, parts in states.items())
    found = {state.state_id: text(state) for state in manager.get_all()}
    for state_id, (partial, completed) in states.items():
        assert found[state_id] == text(MeltanoState(state_id, partial or {}, completed or {}))
    assert text(manager.get(state_id)) == found[state_id]


def test_a_state_may_have_32_megabytes(manager: Manager) -> None:
    state = MeltanoState("big", {}, {"value": "0123456789'\\%\u2028é" * 1_700_000})
    assert len(state.json()) > 32_000_000
    manager.set(state)
    # not as a whole: the difference would be shown
    assert (manager.get("big") == state) is True


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes"], ids=["a set", "an object", "bytes"])
def test_what_is_not_json_is_refused_and_touches_nothing(manager: Manager, value: object) -> None:
    manager.set(MeltanoState("a", {}, SINGER))
    with pytest.raises(InvalidStateError, match=r"^State 'a' cannot be written as JSON"):
        manager.set(MeltanoState("a", {}, {"value": value}))
    assert manager.get("a") == MeltanoState("a", {}, SINGER)


def test_a_state_may_be_changed_by_who_got_it(manager: Manager) -> None:
    manager.set(MeltanoState("a", {}, {"list": [1]}))
    state = manager.get("a")
    assert state is not None
    assert state.completed_state is not None
    state.completed_state["list"].append(2)
    assert manager.get("a") == MeltanoState("a", {}, {"list": [1]})


def test_a_closed_manager_opens_again_when_it_is_used(manager: Manager) -> None:
    manager.set(MeltanoState("a", {}, SINGER))
    manager.close()
    manager.close()
    assert manager.get("a") == MeltanoState("a", {}, SINGER)


def test_leaving_one_manager_closes_it_for_no_other(open_manager: Opener, manager: Manager) -> None:
    with closing(open_manager()) as short:
        short.set(MeltanoState("a", {}, SINGER))
        assert manager.get("a") == MeltanoState("a", {}, SINGER)
    assert manager.get("a") == MeltanoState("a", {}, SINGER)


def test_migrating_what_is_up_to_date_changes_nothing(manager: Manager) -> None:
    manager.set(MeltanoState("a", {}, SINGER))
    manager.migrate()
    assert manager.get("a") == MeltanoState("a", {}, SINGER)


def test_its_label_is_what_meltano_shows(manager: Manager) -> None:
    assert manager.label == "ClickHouse"
