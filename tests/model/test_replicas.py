"""The settings that are sent keep the lock's promises over replicas; without one of them they break."""

from __future__ import annotations

import sys

import pytest

from tests.model import replicas
from tests.model.checker import assert_breaks, assert_holds
from tests.model.protocol_tables import Bounds
from tests.model.replicas import LEFT_OUT, REPLICATED, WHOLE, Replicas, Sent, outcome

SHORT = (0, 1)
LOST, ONE = "no update is lost", "one holder"
BROKEN = {name: LOST if name.endswith(("for states", "lags")) else ONE for name in LEFT_OUT}

whole = pytest.mark.parametrize("sent", WHOLE.values(), ids=list(WHOLE))


@whole
@pytest.mark.parametrize("bounds", [
    Bounds(take_over="never", clock=SHORT, births=(0, 1)),
    Bounds(take_over="never", clock=(1,), attempts=2),
    Bounds(take_over="never", clock=(1,), copies=1),
    Bounds(take_over="dead", clock=(1,), crashes=True),
])  # fmt: skip
def test_there_is_one_holder_and_it_sees_what_the_last_one_wrote(sent: Sent, bounds: Bounds) -> None:
    protocol = Replicas(bounds, sent)
    assert_holds(protocol, protocol.invariants(protocol.one_holder, protocol.an_end_is_final), at_least=2_000)


@whole
def test_where_leases_run_out_no_acknowledged_update_is_lost_either(sent: Sent) -> None:
    protocol = Replicas(Bounds(take_over="any", clock=(1,)), sent)
    assert_holds(protocol, protocol.invariants(), at_least=2_000)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_with_one_thing_less_a_promise_breaks(name: str) -> None:
    found = outcome(LEFT_OUT[name])
    sys.stdout.write(f"{name}\n{found}\n")
    assert found.broken == BROKEN[name], str(found)


def test_a_keeper_that_lags_still_leaves_one_holder() -> None:
    """Who sees its own row sees all that came before it: what is stale is the state, when another replica is asked.

    Who does not see its own row starts over, and leaves one behind that has to be taken over.
    """
    protocol = Replicas(Bounds(take_over="dead", clock=(1,)), LEFT_OUT["Replicated, all sent, to a Keeper that lags"])
    assert_holds(protocol, {ONE: protocol.one_holder, "no version twice": protocol.no_version_twice}, at_least=1_000)


def test_without_sequential_reads_of_the_state_the_next_holder_goes_on_from_an_old_one() -> None:
    sent = LEFT_OUT["Replicated without select_sequential_consistency for states"]
    protocol = Replicas(replicas.BOUNDS, sent)
    assert_breaks(protocol, {LOST: protocol.no_update_is_lost}, LOST, ["P0 CHECK: fine", "P1 GET version 0", "P1 SET"])


def test_the_table_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    replicas.main()
    table = capsys.readouterr().out.rpartition("\n\n")[2]
    assert len(table.splitlines()) == len(WHOLE) + len(LEFT_OUT)
    for setting in ("insert_quorum ", "insert_quorum_parallel=0", "select_sequential_consistency"):
        assert setting in table


def test_the_settings_of_the_model_are_those_that_are_sent() -> None:
    assert Sent(shared=False, quorum=replicas.TABLES, one_by_one=True, sequential=replicas.TABLES) == REPLICATED
