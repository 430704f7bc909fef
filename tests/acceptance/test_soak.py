"""The soak, for some seconds: what it counts, and that its counts tell."""

from __future__ import annotations

import pytest

from tests.support.soaking import assert_nothing_was_lost, soak


@pytest.mark.timeout(240)
def test_some_seconds_of_faults_lose_nothing() -> None:
    assert_nothing_was_lost("15", "3")


@pytest.mark.timeout(240)
def test_without_the_lock_the_counts_tell() -> None:
    code, counts = soak("10", "3", "--no-lock")
    assert counts["OVERLAPS"] > 0
    assert code == 1
