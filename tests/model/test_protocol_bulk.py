"""Bulk calls over overlapping ids: no update lost, no deadlock."""

from __future__ import annotations

import pytest

from tests.model.checker import DEEP, STUCK, assert_breaks, assert_holds
from tests.model.protocol_bulk import BulkBounds, BulkProtocol, WaitsWhileHolding

BOTH, FIRST, SECOND = frozenset({0, 1}), frozenset({0}), frozenset({1})


@pytest.mark.parametrize("bounds", [
    BulkBounds(take_over="never", births=(0, 1)),
    BulkBounds(take_over="never", wants=(BOTH, BOTH, SECOND), attempts=1),
    BulkBounds(take_over="dead", crashes=True),
    BulkBounds(take_over="dead", crashes=True, wants=(BOTH, FIRST, SECOND), attempts=1, clock=(1,)),
])  # fmt: skip
def test_bulk_calls_over_the_same_ids_never_deadlock_and_never_hold_an_id_twice(bounds: BulkBounds) -> None:
    protocol = BulkProtocol(bounds)
    assert_holds(protocol, protocol.invariants(protocol.one_holder), at_least=3_000)


def test_bulk_calls_lose_no_update_though_leases_run_out_at_any_time() -> None:
    protocol = BulkProtocol(BulkBounds(take_over="any", crashes=True, attempts=1))
    assert_holds(protocol, protocol.invariants(), at_least=50_000)


if DEEP:

    @pytest.mark.timeout(3600)
    def test_bulk_calls_that_start_over_lose_no_update_either() -> None:
        protocol = BulkProtocol(BulkBounds(take_over="any", clock=(1,)))
        assert_holds(protocol, protocol.invariants(), at_least=300_000, limit=4_000_000)


def test_a_bulk_call_that_waits_while_it_holds_deadlocks() -> None:
    protocol = WaitsWhileHolding(BulkBounds(take_over="never", births=(0, 1)))
    assert_breaks(protocol, protocol.invariants(), STUCK, ["B0 SELECT: held, leaving", "B1 SELECT: candidate, held"])
