"""The product's own classes keep the model's promises in every order of two clients' store calls, whatever fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.model.binding import (
    CLEAR,
    FAULTS_OF_WRITES,
    JUMP,
    SET,
    SET_ALL,
    SET_ALL_BACKWARDS,
    UPDATE,
    Operation,
    Setup,
    assert_all_is_well,
    explore,
    sample,
)
from tests.model.checker import DEEP

Scripts = Sequence[Sequence[Operation]]

TICKS = (0, 1, 2_000)
"""All server times tie; they rise by less than a token's width; by more."""
SEED = 20_240
RUNS = 10_000 if DEEP else 400

deep = pytest.mark.timeout(3600)

THREE: Scripts = [[UPDATE, UPDATE], [UPDATE, CLEAR], [SET_ALL, UPDATE]]
FOUR: Scripts = [[UPDATE], [UPDATE], [UPDATE], [UPDATE]]
FOUR_MIXED: Scripts = [[SET_ALL], [SET_ALL_BACKWARDS], [UPDATE], [SET]]


@pytest.mark.parametrize("tick", TICKS)
@pytest.mark.parametrize("scripts", [
    ([UPDATE], [UPDATE]),
    ([UPDATE], [SET]),
    ([SET], [SET]),
    ([UPDATE], [CLEAR]),
    ([SET], [CLEAR]),
    ([SET_ALL], [SET_ALL_BACKWARDS]),
])  # fmt: skip
def test_two_clients_that_nothing_befalls_both_get_done_in_every_order(scripts: Scripts, tick: int) -> None:
    assert_all_is_well(explore(Setup(scripts, tick=tick)), complete=20, states=280)


@pytest.mark.parametrize("tick", TICKS if DEEP else TICKS[:1])
@pytest.mark.parametrize("scripts", [([SET_ALL], [UPDATE]), ([UPDATE, UPDATE], [UPDATE])])
@deep
def test_two_clients_go_on_in_every_order_where_one_of_them_does_more(scripts: Scripts, tick: int) -> None:
    assert_all_is_well(explore(Setup(scripts, tick=tick)), complete=100, states=1_500)


@pytest.mark.parametrize("tick", TICKS if DEEP else TICKS[1:2])
@pytest.mark.parametrize("fault", ["crash", "crash after", "fails", "lost", "late", "back"])
@deep
def test_two_updates_lose_nothing_whatever_befalls_one_call(fault: str, tick: int) -> None:
    complete, states = (400, 2_000) if tick else (170, 980)  # where times tie, fewer orders differ
    assert_all_is_well(explore(Setup([[UPDATE], [UPDATE]], [fault], tick=tick)), complete=complete, states=states)


@pytest.mark.parametrize("tick", TICKS if DEEP else TICKS[:1])
@pytest.mark.parametrize(("fault", "states"), [("twice", 2_800), (JUMP, 7_000)])
@deep
def test_two_updates_lose_nothing_when_an_insert_lands_twice_or_a_lease_is_over(
    fault: str, states: int, tick: int
) -> None:
    assert_all_is_well(explore(Setup([[UPDATE], [UPDATE]], [fault], tick=tick)), complete=280, states=states)


@pytest.mark.parametrize("fault", [(), ("lost",), ("late",), ("crash after",)])
@pytest.mark.parametrize("scripts", [([UPDATE], [UPDATE]), ([UPDATE], [CLEAR])])
@deep
def test_two_clients_lose_nothing_when_one_read_sees_the_state_earlier_than_the_locks(
    scripts: Scripts, fault: Sequence[str]
) -> None:
    assert_all_is_well(explore(Setup(scripts, fault, tick=2_000, torn=True)), complete=20, states=280)


@pytest.mark.parametrize("crash", ["crash", "crash after"])
@pytest.mark.parametrize("scripts", [([UPDATE], [UPDATE]), ([SET], [CLEAR]), ([SET_ALL], [SET_ALL_BACKWARDS])])
def test_who_runs_on_the_same_host_takes_over_from_the_dead_at_once(scripts: Scripts, crash: str) -> None:
    assert_all_is_well(explore(Setup(scripts, [crash], same_host=True)), complete=350, states=1_500)


@pytest.mark.parametrize("fault", ["crash after", "late", "lost"])
@pytest.mark.parametrize("scripts", [([UPDATE], [SET]), ([UPDATE], [CLEAR]), ([SET_ALL], [SET_ALL_BACKWARDS])])
def test_sets_clears_and_bulk_calls_lose_nothing_whatever_befalls_one_call(scripts: Scripts, fault: str) -> None:
    assert_all_is_well(explore(Setup(scripts, [fault], tick=0)), complete=100, states=600)


@pytest.mark.parametrize("tick", TICKS)
@pytest.mark.parametrize("scripts", [THREE, FOUR, FOUR_MIXED], ids=["three", "four", "four mixed"])
@deep
def test_three_and_four_clients_that_nothing_befalls_get_done_in_random_orders(scripts: Scripts, tick: int) -> None:
    assert_all_is_well(sample(Setup(scripts, tick=tick), RUNS // 2, SEED + tick), complete=200, states=190)


@pytest.mark.parametrize("tick", TICKS)
@pytest.mark.parametrize("scripts", [THREE, FOUR, FOUR_MIXED], ids=["three", "four", "four mixed"])
@deep
def test_three_and_four_clients_lose_nothing_whatever_befalls_some_calls(scripts: Scripts, tick: int) -> None:
    setup = Setup(scripts, FAULTS_OF_WRITES, most_faults=3, tick=tick)
    assert_all_is_well(sample(setup, RUNS, SEED + tick), complete=400, states=390)


@pytest.mark.parametrize("tick", TICKS)
@pytest.mark.parametrize("scripts", [THREE, FOUR, FOUR_MIXED], ids=["three", "four", "four mixed"])
@deep
def test_three_and_four_clients_lose_nothing_when_leases_are_over_too_early(scripts: Scripts, tick: int) -> None:
    setup = Setup(scripts, [*FAULTS_OF_WRITES, JUMP], most_faults=4, tick=tick)
    assert_all_is_well(sample(setup, RUNS, SEED + tick), complete=400, states=390)


@pytest.mark.parametrize("tick", [1, 2_000])
@pytest.mark.parametrize("scripts", [THREE, FOUR, FOUR_MIXED], ids=["three", "four", "four mixed"])
@deep
def test_three_and_four_clients_lose_nothing_when_reads_see_states_earlier_than_locks(
    scripts: Scripts, tick: int
) -> None:
    setup = Setup(scripts, [*FAULTS_OF_WRITES, JUMP], most_faults=4, tick=tick, torn=True)
    assert_all_is_well(sample(setup, RUNS, SEED + tick), complete=400, states=390)
