"""A state ID is any text: nothing in it has a meaning, and each differs from every other."""

from __future__ import annotations

import pytest
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state.errors import InvalidStateError
from tests.conformance.conftest import Manager

SPECIALS = [*"/\\%_[]?*:'\"`{}$", "\t", "\n", "\r", "\x00", " ", "-", ";", "#", "é", "\u2028", "☃", "👩‍👩‍👧"]
STATE_IDS = [
    "",
    "dev:tap-to-target",
    "dev:tap-to-target:suffix",
    "dev:TAP-to-target",
    "Dev:tap-to-target",
    *"%*?'\\\x00 ",
    *(f"a{special}b" for special in SPECIALS),
    "ab",
    "%(x)s",
    "%s %d %%",
    ":name",
    "{k:String}",
    "{{x}}",
    "$1 ${x}",
    "x'; DROP TABLE state; --",
    "\\'",
    "\\x00\\n",
    "..",
    "../../etc/passwd",
    " leading and trailing ",
    "e\u0301",
    "\ufffd",
    "\U0010ffff",
    "null",
    "x" * 4_096,
    "é'\\" * 1_024,
]


def number_of(number: int) -> dict[str, object]:
    return {"number": number}


def numbers(manager: Manager) -> dict[str, object]:
    return {state.state_id: (state.completed_state or {})["number"] for state in manager.get_all()}


def test_every_id_holds_its_own_state_until_it_is_cleared(manager: Manager, other: Manager) -> None:
    expected = {state_id: number for number, state_id in enumerate(STATE_IDS)}
    assert len(expected) == len(STATE_IDS)
    for state_id, number in expected.items():
        with manager.acquire_lock(state_id):
            manager.set(MeltanoState(state_id, {}, number_of(number)))
    for state_id, number in expected.items():
        assert other.get(state_id) == MeltanoState(state_id, {}, number_of(number))
    assert numbers(other) == expected
    for state_id in STATE_IDS[::2]:
        manager.delete(state_id)
        del expected[state_id]
        assert other.get(state_id) is None
    assert numbers(other) == expected


def test_every_id_may_be_written_in_bulk(manager: Manager) -> None:
    expected = {state_id: number for number, state_id in enumerate(STATE_IDS)}
    count = manager.set_all(MeltanoState(state_id, {}, number_of(n)) for state_id, n in expected.items())
    assert count == len(STATE_IDS)
    assert numbers(manager) == expected
    assert manager.clear_all() == len(STATE_IDS)
    assert manager.get_state_ids() == []


def test_ids_are_sorted_by_their_characters(manager: Manager) -> None:
    manager.set_all(MeltanoState(state_id, {}, number_of(1)) for state_id in reversed(STATE_IDS))
    assert manager.get_state_ids() == sorted(STATE_IDS)
    assert [state.state_id for state in manager.get_all()] == sorted(STATE_IDS)


def test_every_id_is_found_by_itself_as_a_pattern(manager: Manager) -> None:
    plain = [state_id for state_id in STATE_IDS if state_id and not set("*?[") & set(state_id)]
    manager.set_all(MeltanoState(state_id, {}, number_of(1)) for state_id in STATE_IDS)
    assert [manager.get_state_ids(state_id) for state_id in plain] == [[state_id] for state_id in plain]


def test_a_lock_on_one_id_is_none_on_another(manager: Manager, other: Manager) -> None:
    with manager.acquire_lock("dev:tap%"):
        for state_id in ("dev:TAP%", "dev:tap", "dev:tap_", "dev:tap%%", "dev:tap% ", "dev:tap\\%", ""):
            with other.acquire_lock(state_id):
                other.set(MeltanoState(state_id, {}, number_of(1)))
    assert len(manager.get_state_ids()) == 7


def test_many_long_ids_fit_into_one_call(manager: Manager) -> None:
    state_ids = [f"{number:04}" + "'\\%é" * 800 for number in range(120)]
    assert manager.set_all(MeltanoState(state_id, {}, number_of(1)) for state_id in state_ids) == 120
    assert manager.get_state_ids() == state_ids
    assert manager.clear_all() == 120


@pytest.mark.parametrize("state_id", ["\ud800", "a\udcffb"])
def test_an_id_that_is_no_unicode_is_refused(manager: Manager, state_id: str) -> None:
    for use in (manager.get, manager.clear, lambda name: manager.set(MeltanoState(name, {}, {}))):
        with pytest.raises(InvalidStateError, match="is not valid Unicode"):
            use(state_id)
    with pytest.raises(InvalidStateError, match="is not valid Unicode"):
        manager.set_all([MeltanoState("good", {}, {}), MeltanoState(state_id, {}, {})])
    assert manager.get_state_ids() == []
