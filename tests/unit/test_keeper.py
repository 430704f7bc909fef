"""What a contender for a row in Keeper makes of what it sees."""

from __future__ import annotations

import pytest

from meltano_ch_state.keeper import Cell, KeeperView, judge
from meltano_ch_state.process import Identity
from meltano_ch_state.protocol import GUARD, GUARD_BORN, TOKEN_STEP, LiveLock, Verdict, make_view

LEASE_SECONDS = 10.0
WHO = Identity("somebody@host:1", "", "update", "1")
KEEPER = Identity("somebody@host:1", "", GUARD, "1")
INSERTED = LiveLock("s", "inserted", 1, 1, 1, LEASE_SECONDS, WHO)


def guard(age_seconds: float = 0.0) -> LiveLock:
    """One that was made so long ago, and renewed just now."""
    return LiveLock("s", "guard", -int(age_seconds * 1e6), GUARD_BORN, 0, LEASE_SECONDS, KEEPER)


def cell(lock_id: str, *, released: bool = False, token: int = 2 * TOKEN_STEP) -> Cell:
    return Cell(LiveLock("s", lock_id, token, 0, 0, LEASE_SECONDS, WHO), released, 1)


def verdict(seen: Cell | None, *rows: LiveLock, greatest: int = 0) -> Verdict:
    return judge(KeeperView(seen, make_view(rows, greatest, 0)), "me", cell("before").lock, LEASE_SECONDS)


def test_who_has_the_row_and_a_fresh_guard_holds() -> None:
    assert verdict(cell("me"), guard()) is Verdict.HELD


@pytest.mark.parametrize(
    "seen",
    [
        None,
        cell("before"),
        cell("before", released=True),
        cell("earlier", token=1),
        cell("earlier", token=1, released=True),
    ],
)
def test_a_row_as_it_was_before_or_earlier_may_be_an_old_read_so_one_looks_again(seen: Cell | None) -> None:
    assert verdict(seen, guard()) is Verdict.STAY


@pytest.mark.parametrize("seen", [cell("other"), cell("other", released=True), cell("me", released=True)])
def test_a_row_that_somebody_else_has_had_since_is_lost(seen: Cell) -> None:
    assert verdict(seen, guard()) is Verdict.LOST


def test_who_finds_somebody_that_locks_by_inserts_gives_the_row_back() -> None:
    assert verdict(cell("me"), INSERTED) is Verdict.WITHDRAW


@pytest.mark.parametrize(("age", "expected"), [(4.9, Verdict.HELD), (5.1, Verdict.STAY)])
def test_a_guard_counts_for_half_a_lease_whoever_renewed_it(age: float, expected: Verdict) -> None:
    assert verdict(cell("me"), guard(age)) is expected


def test_without_a_guard_nobody_is_in() -> None:
    assert verdict(cell("me")) is Verdict.STAY


@pytest.mark.parametrize(("greatest", "expected"), [(TOKEN_STEP, Verdict.HELD), (TOKEN_STEP + 1, Verdict.BUMP)])
def test_a_token_within_a_step_of_an_earlier_one_is_raised(greatest: int, expected: Verdict) -> None:
    assert verdict(cell("me"), guard(), greatest=greatest) is expected
