"""What one read of the lock rows means."""

from __future__ import annotations

import pytest

from meltano_ch_state.process import Identity
from meltano_ch_state.protocol import TOKEN_STEP, LiveLock, Verdict, decide, make_view, tombstone_of

WHO = Identity("somebody@host:1", "", "update", "1")


def live(lock_id: str, token: int, born: int = 0) -> LiveLock:
    return LiveLock("s", lock_id, token, born, born, 300.0, WHO)


def test_alone_with_the_greatest_token_holds() -> None:
    assert decide(make_view([live("me", TOKEN_STEP)], 0, 0), "me") is Verdict.HELD


@pytest.mark.parametrize("floor", [1, TOKEN_STEP, 10 * TOKEN_STEP])
def test_alone_but_within_a_step_of_a_greater_token_bumps(floor: int) -> None:
    assert decide(make_view([live("me", TOKEN_STEP)], floor, 0), "me") is Verdict.BUMP


def test_without_a_live_row_of_its_own_a_contender_is_lost() -> None:
    assert decide(make_view([live("other", 1)], 0, 0), "me") is Verdict.LOST
    assert decide(make_view([], 0, 0), "me") is Verdict.LOST


def test_the_earliest_of_two_stays_and_the_other_withdraws() -> None:
    view = make_view([live("early", 5, born=1), live("late", 9, born=2)], 0, 0)
    assert decide(view, "early") is Verdict.STAY
    assert decide(view, "late") is Verdict.WITHDRAW


def test_of_two_born_at_the_same_time_exactly_one_stays() -> None:
    view = make_view([live("b", 5, born=1), live("a", 9, born=1)], 0, 0)
    assert (decide(view, "a"), decide(view, "b")) == (Verdict.STAY, Verdict.WITHDRAW)


def test_an_own_greater_token_does_not_count_against_oneself() -> None:
    view = make_view([live("me", 50)], 10, 0)
    assert view.greatest("me") == 10


def test_a_rivals_token_counts_though_it_is_not_over() -> None:
    assert make_view([live("me", 50), live("you", 90)], 10, 0).greatest("me") == 90


def test_a_tombstone_repeats_the_token_it_read_and_names_its_writer() -> None:
    row = tombstone_of(live("dead", 42, born=7), Identity("me@here:2"))
    assert (row.lock_id, row.released, row.token, row.born) == ("dead", True, 42, 7)
    assert row.identity.holder == "me@here:2"


def test_age_and_lease_are_told_in_seconds() -> None:
    lock = LiveLock("s", "x", 0, 1_000_000, 2_000_000, 10.0, WHO)
    assert lock.age_seconds(4_000_000) == 3.0
    assert lock.lease_seconds_left(4_000_000) == 8.0
