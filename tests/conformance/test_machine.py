"""Any sequence of what clients may do leaves what a dict would hold.

`STATE_MACHINE_STEPS=20000 pytest tests/conformance/test_machine.py` tries more than the usual hundreds of steps.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state.errors import NestedLockError, StateLockedError
from meltano_ch_state.globs import matcher
from tests.conformance.conftest import Manager, Opener

STEPS = int(os.environ.get("STATE_MACHINE_STEPS", "200"))
STEPS_A_RUN = 50
IDS = st.sampled_from(["a", "b", "dev:tap-to-target", "dev:tap%_", "", "é'\\", "x" * 300])
PATTERNS = st.sampled_from(["*", "dev:*", "?", "[ab]", "*_", "nothing*", "[!a]*"])
PARTS = st.dictionaries(st.sampled_from(["s", "t", "é"]), st.integers() | st.text(max_size=5) | st.none(), max_size=3)


class Clients(RuleBasedStateMachine):
    """Two managers over one database, one of which may hold a lock, and a dict of what they should see."""

    open_manager: Opener
    compact: Any

    def __init__(self) -> None:
        super().__init__()
        self.managers = [self.open_manager(lock_acquire_timeout_seconds=0) for _ in range(2)]
        self.expected: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        self.held: tuple[int, str, Any] | None = None

    @initialize()
    def begin_empty(self) -> None:
        self.managers[0].clear_all()

    def may_write(self, who: int, state_id: str) -> bool:
        return self.held is None or self.held[1] != state_id or self.held[0] == who

    def attempt(self, who: int, state_ids: set[str], call: Any) -> bool:
        """Write; whether nobody else held a lock on any of the states."""
        if all(self.may_write(who, state_id) for state_id in state_ids):
            call()
            return True
        with pytest.raises(StateLockedError):
            call()
        return False

    @rule(who=st.integers(0, 1), state_id=IDS, partial=PARTS, completed=PARTS)
    def set(self, who: int, state_id: str, partial: dict[str, Any], completed: dict[str, Any]) -> None:
        if self.attempt(who, {state_id}, lambda: self.managers[who].set(MeltanoState(state_id, partial, completed))):
            self.expected[state_id] = partial, completed

    @rule(who=st.integers(0, 1), state_id=IDS, partial=PARTS)
    @precondition(lambda self: self.held is None)
    def update_partially(self, who: int, state_id: str, partial: dict[str, Any]) -> None:
        self.managers[who].update(MeltanoState(state_id, partial, {}))
        before, completed = self.expected.get(state_id, ({}, {}))
        self.expected[state_id] = {**before, **partial}, completed

    @rule(who=st.integers(0, 1), state_id=IDS)
    def delete(self, who: int, state_id: str) -> None:
        if self.attempt(who, {state_id}, lambda: self.managers[who].delete(state_id)):
            self.expected.pop(state_id, None)

    @rule(who=st.integers(0, 1), states=st.dictionaries(IDS, PARTS, max_size=4))
    def set_many(self, who: int, states: dict[str, dict[str, Any]]) -> None:
        self.attempt(
            who, set(states), lambda: self.managers[who].set_all(MeltanoState(i, {}, c) for i, c in states.items())
        )
        self.expected.update({i: ({}, c) for i, c in states.items() if self.may_write(who, i)})

    @rule(source=IDS, onto=IDS)
    @precondition(lambda self: self.held is None)
    def copy(self, source: str, onto: str) -> None:
        state = self.managers[0].get(source)
        if state:
            self.managers[1].set(MeltanoState(onto, state.partial_state, state.completed_state))
            self.expected[onto] = self.expected[source]

    @rule(who=st.integers(0, 1), state_id=IDS)
    @precondition(lambda self: self.held is None)
    def lock(self, who: int, state_id: str) -> None:
        lock = self.managers[who].acquire_lock(state_id)
        lock.__enter__()
        self.held = who, state_id, lock

    @rule()
    @precondition(lambda self: self.held is not None)
    def lock_once_more(self) -> None:
        assert self.held
        with pytest.raises(NestedLockError), self.managers[self.held[0]].acquire_lock(self.held[1]):
            pass

    @rule()
    @precondition(lambda self: self.held is not None)
    def release(self) -> None:
        assert self.held
        self.held[2].__exit__(None, None, None)
        self.held = None

    @rule(pattern=PATTERNS)
    def list_by_pattern(self, pattern: str) -> None:
        wanted = sorted(filter(matcher(pattern), self.expected))
        assert self.managers[0].get_state_ids(pattern) == wanted
        assert [state.state_id for state in self.managers[1].get_all(pattern)] == wanted

    @rule(who=st.integers(0, 1))
    def reconnect(self, who: int) -> None:
        self.managers[who].close()

    @rule()
    def merge_parts(self) -> None:
        self.compact()

    @invariant()
    def everybody_sees_what_is_expected(self) -> None:
        for manager in self.managers:
            found = {state.state_id: (state.partial_state, state.completed_state) for state in manager.get_all()}
            assert found == self.expected
        for state_id in list(self.expected)[:1]:
            state = self.managers[0].get(state_id)
            assert state is not None
            assert (state.partial_state, state.completed_state) == self.expected[state_id]

    def teardown(self) -> None:
        if self.held:
            self.release()


@pytest.mark.timeout(3600)
def test_any_sequence_of_calls_by_two_clients_leaves_what_a_dict_would_hold(
    open_manager: Opener, manager: Manager, request: pytest.FixtureRequest
) -> None:
    manager.migrate()

    def compact() -> None:
        states = manager.store._states
        if hasattr(states, "engine"):
            with states.engine.connect() as connection:
                for table in ("state", "state_lock"):
                    connection.exec_driver_sql(f"OPTIMIZE TABLE {manager.settings.schema}.{table} FINAL")

    machine = type(
        "Machine", (Clients,), {"open_manager": staticmethod(open_manager), "compact": staticmethod(compact)}
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, STEPS // STEPS_A_RUN),
            stateful_step_count=STEPS_A_RUN,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
