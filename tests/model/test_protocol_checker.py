"""The model checker finds what is there to be found: tried on models small enough to know the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from tests.model.checker import STUCK, Step, TooManyStatesError, assert_breaks, assert_holds, explore

A, B, C, END = "a", "b", "c", "end"


class Graph:
    """A model given by its edges."""

    def __init__(self, edges: Mapping[str, Iterable[Step[str]]]) -> None:
        self.edges = edges

    def start(self) -> str:
        return A

    def steps(self, state: str) -> Iterable[Step[str]]:
        return self.edges.get(state, ())

    def finished(self, state: str) -> bool:
        return state == END


DETOUR = Graph({A: [("to b", B, True), ("to c", C, True)], B: [("on", C, True)], C: [("out", END, True)]})
TRAP = Graph({A: [("into the trap", B, True), ("out", END, True)], B: [("a crash", END, False)]})


def test_every_state_is_visited_once() -> None:
    assert explore(DETOUR, {}).states == 4


def test_a_counter_example_is_the_shortest_one() -> None:
    outcome = explore(DETOUR, {"not at c": lambda state: state != C})
    assert (outcome.broken, outcome.trace) == ("not at c", ("to c",))


def test_a_state_that_only_a_fault_leads_out_of_is_stuck() -> None:
    outcome = explore(TRAP, {})
    assert (outcome.broken, outcome.trace) == (STUCK, ("into the trap",))


def test_a_circle_without_an_exit_is_stuck() -> None:
    circle = Graph({A: [("round", B, True)], B: [("and round", A, True)]})
    assert explore(circle, {}).broken == STUCK


def test_a_part_of_the_states_proves_nothing() -> None:
    with pytest.raises(TooManyStatesError, match="more than 2 states"):
        explore(DETOUR, {}, limit=2)


def test_an_accidentally_empty_model_does_not_pass() -> None:
    with pytest.raises(AssertionError, match="only 4 states"):
        assert_holds(DETOUR, {}, at_least=5)


def test_a_counter_example_with_other_events_does_not_pass() -> None:
    with pytest.raises(AssertionError, match="no 'to b'"):
        assert_breaks(DETOUR, {"not at the end": lambda state: state != END}, "not at the end", ["to b"])


def test_an_outcome_tells_the_states_and_the_way() -> None:
    assert str(explore(DETOUR, {})) == "4 states, all is well"
    assert str(explore(TRAP, {})).splitlines() == [f"3 states, BROKEN: {STUCK}", "  into the trap"]
