"""The lock protocol keeps its promises in every interleaving, whatever fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.model.checker import DEEP, assert_holds
from tests.model.protocol import LockProtocol
from tests.model.protocol_queue import QueueProtocol
from tests.model.protocol_tables import Bounds
from tests.model.variants import Newcomer, OneStatement, PublishesAboveAll

SHORT = (0, 1)
"""A clock that lags behind the state's version, ties with it, and is above it once somebody took a step."""


def holds(protocol: LockProtocol, *gentle: str, at_least: int, limit: int = 400_000) -> None:
    more = [getattr(protocol, promise.replace(" ", "_")) for promise in gentle]
    assert_holds(protocol, protocol.invariants(*more), at_least, limit)


def deep(*bounds: Bounds) -> Sequence[object]:
    """Parameters for a run with MODEL_DEEP=1, which takes minutes."""
    return [pytest.param(bound, marks=pytest.mark.timeout(3600)) for bound in bounds if DEEP]


def test_two_clients_lose_no_update_though_leases_run_out_and_clients_crash_anywhere() -> None:
    holds(LockProtocol(Bounds(crashes=True)), "an end is final", at_least=6_000)


def test_three_clients_lose_no_update_though_leases_run_out_at_any_time() -> None:
    holds(LockProtocol(Bounds(clients=3, clock=SHORT)), "an end is final", at_least=300_000)


def test_clients_that_withdrew_or_were_revoked_start_over_with_a_new_lock_id() -> None:
    holds(LockProtocol(Bounds(attempts=2, clock=SHORT)), "an end is final", at_least=150_000)


@pytest.mark.parametrize("bounds", [
    Bounds(take_over="never", attempts=2, births=(0, 1)),
    Bounds(take_over="never", clients=3, attempts=2, clock=SHORT),
    Bounds(take_over="never", clients=3, births=(0, 1), clock=SHORT),
])  # fmt: skip
def test_without_take_over_there_are_never_two_holders_and_somebody_gets_in(bounds: Bounds) -> None:
    holds(LockProtocol(bounds), "one holder", "somebody got in", "an end is final", at_least=20_000)


@pytest.mark.parametrize("bounds", [
    Bounds(take_over="dead", crashes=True, attempts=2, births=(0, 1), clock=SHORT),
    Bounds(take_over="dead", crashes=True, clients=3, clock=SHORT),
    Bounds(take_over="dead", clients=3, late=1, clock=SHORT),
])  # fmt: skip
def test_with_take_over_from_the_dead_only_there_are_never_two_holders_alive(bounds: Bounds) -> None:
    holds(LockProtocol(bounds), "one holder", "an end is final", at_least=30_000)


@pytest.mark.parametrize("births", [(0,), (0, 1)], ids=["that ties", "that steps back"])
def test_a_clock_as_birth_decides_who_stays(births: tuple[int, ...]) -> None:
    holds(LockProtocol(Bounds(attempts=2, births=births, clock=(1,))), "an end is final", at_least=3_000)


@pytest.mark.parametrize("bounds", [
    Bounds(late=2, clock=SHORT),
    Bounds(late=1, clients=3, clock=(1,), take_over="dead"),
    *deep(Bounds(late=1, clients=3, clock=(1,)), Bounds(late=1, attempts=2, clock=SHORT)),
])  # fmt: skip
def test_inserts_that_land_after_their_client_gave_up_on_them_do_no_harm(bounds: Bounds) -> None:
    holds(LockProtocol(bounds), "an end is final", at_least=3_000, limit=4_000_000)


@pytest.mark.parametrize("bounds", [
    Bounds(copies=2, clock=SHORT),
    Bounds(copies=1, late=1, clock=SHORT),
    Bounds(copies=1, births=(0, 1), attempts=2, clock=(1,), take_over="dead"),
    *deep(Bounds(copies=1, births=(0, 1), attempts=2, clock=SHORT, take_over="dead"),
          Bounds(copies=1, clients=3, clock=SHORT)),
])  # fmt: skip
def test_inserts_that_land_twice_with_newly_drawn_defaults_do_no_harm(bounds: Bounds) -> None:
    holds(LockProtocol(bounds), "an end is final", at_least=3_000, limit=6_000_000)


@pytest.mark.parametrize("bounds", [
    Bounds(renews=True, late=1, crashes=True, clock=SHORT),
    Bounds(renews=True, late=1, sets=2, clock=SHORT),
])  # fmt: skip
def test_renewals_that_land_late_never_revive_a_lock(bounds: Bounds) -> None:
    holds(LockProtocol(bounds), "an end is final", at_least=5_000)


@pytest.mark.parametrize("bounds", [
    Bounds(sets=2),
    Bounds(sets=3, clock=(1, 2, 3)),
    Bounds(sets=3, step=2, sets_per_token=2, late=1, clock=SHORT),
    *deep(Bounds(sets=2, attempts=2, clock=SHORT), Bounds(sets=2, clients=3, clock=(1,)),
          Bounds(sets=3, step=2, sets_per_token=2, late=1, clock=(0, 1, 2, 3))),
])  # fmt: skip
def test_many_sets_under_one_lock_publish_further_tokens_before_they_use_them(bounds: Bounds) -> None:
    holds(LockProtocol(bounds), "an end is final", at_least=5_000, limit=6_000_000)


@pytest.mark.parametrize("bounds", [Bounds(sets=2), Bounds(sets=3, late=1, clock=(1,))])
def test_a_further_token_may_as_well_be_above_those_of_all_others(bounds: Bounds) -> None:
    holds(PublishesAboveAll(bounds), "an end is final", at_least=5_000)


@pytest.mark.parametrize("blind", [frozenset({1}), frozenset({0, 1})], ids=["one clears", "both clear"])
def test_a_clear_is_a_row_like_any_other(blind: frozenset[int]) -> None:
    holds(LockProtocol(Bounds(blind=blind, late=1, clock=SHORT)), "an end is final", at_least=3_000)


@pytest.mark.parametrize("bounds", [
    Bounds(prunes=True, crashes=True, clock=SHORT),
    Bounds(prunes=True, copies=1, clock=SHORT),
    *deep(Bounds(prunes=True, attempts=2, clock=(1,)), Bounds(prunes=True, clients=3, clock=(1,))),
])  # fmt: skip
def test_the_ttl_may_take_the_rows_of_clients_that_ended_in_any_order(bounds: Bounds) -> None:
    holds(LockProtocol(bounds), at_least=10_000, limit=6_000_000)


@pytest.mark.parametrize("bounds", [
    Bounds(attempts=2, clock=(1,)),
    *deep(Bounds(attempts=2, clock=SHORT), Bounds(clients=3, clock=SHORT)),
])  # fmt: skip
def test_one_statement_may_read_the_lock_rows_and_then_the_state(bounds: Bounds) -> None:
    holds(OneStatement(bounds), "an end is final", at_least=3_000, limit=2_000_000)


@pytest.mark.parametrize("bounds", [
    Bounds(clients=3, crashes=True, late=1, clock=SHORT),
    Bounds(clients=3, crashes=True, copies=1, clock=(1,)),
    *deep(Bounds(clients=3, crashes=True, copies=1, late=1, clock=SHORT)),
])  # fmt: skip
def test_once_all_is_quiet_a_newcomer_gets_in_past_whatever_the_others_left_behind(bounds: Bounds) -> None:
    holds(Newcomer(bounds), at_least=3_000, limit=2_000_000)


@pytest.mark.parametrize("bounds", [
    Bounds(attempts=3, births=(0, 1), clock=SHORT, take_over="never"),
    Bounds(clients=3, attempts=2, births=(0, 1), clock=(1,), take_over="never"),
])  # fmt: skip
def test_with_places_in_a_queue_somebody_still_gets_in(bounds: Bounds) -> None:
    holds(QueueProtocol(bounds), "one holder", "somebody got in", "an end is final", at_least=5_000)


@pytest.mark.parametrize("bounds", [
    Bounds(attempts=2, births=(0, 1), clock=(1,)),
    Bounds(attempts=2, births=(0, 1), crashes=True, take_over="dead"),
])  # fmt: skip
def test_with_places_in_a_queue_no_update_is_lost_and_nobody_waits_for_the_dead(bounds: Bounds) -> None:
    holds(QueueProtocol(bounds), "an end is final", at_least=20_000)


if DEEP:

    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("bounds", [
        Bounds(clients=3), Bounds(clients=3, crashes=True, clock=SHORT), Bounds(attempts=3, clock=(1,)),
    ])  # fmt: skip
    def test_more_clients_clocks_and_attempts_lose_no_update_either(bounds: Bounds) -> None:
        holds(LockProtocol(bounds), "an end is final", at_least=100_000, limit=8_000_000)
