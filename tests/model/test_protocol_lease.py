"""The check after a set may be left out while the lease, counted from before the insert, is young."""

from __future__ import annotations

from tests.model.checker import assert_breaks, assert_holds
from tests.model.protocol_lease import CountsFromTheAnswer, LeaseBounds, LeaseProtocol

LOST = "no update is lost"


def breaks(protocol: LeaseProtocol, *events: str) -> None:
    assert_breaks(protocol, protocol.invariants(), LOST, events)


def test_within_half_a_lease_no_check_is_needed_though_the_servers_clock_steps_by_half_a_lease() -> None:
    protocol = LeaseProtocol(LeaseBounds(lease=4, trusted=2, clock_step=2, horizon=9))
    assert_holds(protocol, protocol.invariants(), at_least=50_000)


def test_a_servers_clock_that_steps_by_more_than_half_a_lease_loses_an_unchecked_update() -> None:
    breaks(LeaseProtocol(LeaseBounds(clock_step=3)), "clock steps", "is over", "H's SET is answered", "S SETs")


def test_a_lease_trusted_to_its_end_and_beyond_loses_an_unchecked_update() -> None:
    breaks(
        LeaseProtocol(LeaseBounds(trusted=5, clock_step=0)),
        "is over",
        "answered at age 4: acknowledged",
        "S SETs",
    )


def test_a_lease_counted_from_the_answer_to_the_insert_loses_an_unchecked_update() -> None:
    breaks(
        CountsFromTheAnswer(LeaseBounds(clock_step=0)),
        "row lands",
        "a tick",
        "H is answered",
        "is over",
        "S SETs",
    )
