"""The lock in a KeeperMap: a row that is only ever compared and set, and that keeps the newest token."""

from __future__ import annotations

import pytest

from tests.model.checker import assert_breaks, assert_holds
from tests.model.protocol_keeper import DeletesOnRelease, KeeperBounds, KeeperProtocol, TokenOfWhatItSaw


@pytest.mark.parametrize("bounds", [
    KeeperBounds(late=1, sets=2),
    KeeperBounds(late=1, clients=3, attempts=1),
    KeeperBounds(clients=3, clock=(1,)),
])  # fmt: skip
def test_a_row_that_keeps_its_token_loses_no_update(bounds: KeeperBounds) -> None:
    protocol = KeeperProtocol(bounds)
    assert_holds(protocol, protocol.invariants(), at_least=3_000)


def test_a_row_deleted_on_release_forgets_a_token_that_a_late_write_still_carries() -> None:
    protocol = DeletesOnRelease(KeeperBounds(late=1))
    lost = {"no update is lost": protocol.no_update_is_lost}
    assert_breaks(protocol, lost, "no update is lost", ["gives up", "K0 RELEASE", "K1 CHECK: fine", "LATE"])


def test_a_token_computed_from_an_earlier_look_is_one_that_the_holder_published_meanwhile() -> None:
    protocol = TokenOfWhatItSaw(KeeperBounds(sets=2))
    events = ["K1 LOOK: is over", "K0 PUBLISH token 2", "K1 TAKE, token 2"]
    assert_breaks(protocol, protocol.invariants(), "no version twice", events)
