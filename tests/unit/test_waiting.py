"""How long a waiter sleeps between two looks."""

from __future__ import annotations

import pytest

from meltano_ch_state.process import identify
from meltano_ch_state.protocol import LiveLock
from meltano_ch_state.waiting import LONGEST_TURN_SECONDS, SHORTEST_PAUSE_SECONDS, Clock, Wait


def pause(wait: Wait, idle_seconds: float, places: int = 0) -> float:
    before = wait.clock.monotonic()
    wait.pause(idle_seconds, places)
    return wait.clock.monotonic() - before


@pytest.fixture
def wait() -> Wait:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return Wait(Clock(lambda: now[0], sleep, lambda: 0.5), timeout_seconds=30.0, retry_seconds=1.0)


def test_who_is_further_back_in_the_queue_looks_less_often(wait: Wait) -> None:
    pauses = [pause(wait, 0.0, places) for places in range(1, 9)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 5 * pauses[0]


def test_silence_lasts_from_the_end_of_the_first_look_to_the_beginning_of_the_last(wait: Wait) -> None:
    lock = LiveLock("s", "other", 1, 1, locked_at=1, lease_seconds=10.0, identity=identify("test"))
    for look_begins, look_ends, expected in ((0.0, 5.0, False), (14.0, 16.0, False), (16.5, 16.6, True)):
        wait.clock.sleep(look_begins - wait.clock.monotonic())
        wait.asks()
        wait.clock.sleep(look_ends - look_begins)
        assert wait.sees_silence(lock) is expected


def test_short_turns_are_asked_for_more_often(wait: Wait) -> None:
    before = pause(wait, 0.0, 3)
    wait.sees_turns(2, 0.02)
    assert pause(wait, 0.0, 3) < before / 2


def test_turns_seen_longer_and_longer_do_not_make_pauses_longer_as_fast(wait: Wait) -> None:
    """A turn ends when the next one takes over, so what is seen of it has that one's pause in it."""
    wait.sees_turns(1, 0.03)
    before = pause(wait, 0.0, 2)
    wait.sees_turns(1, 0.03 + before)
    assert pause(wait, 0.0, 2) < before * 1.2


def test_turns_that_stay_long_are_believed_in_the_end(wait: Wait) -> None:
    wait.sees_turns(1, 0.03)
    for _ in range(30):
        wait.sees_turns(1, 0.15)
    assert wait.turn_seconds == pytest.approx(0.15)


def test_one_long_turn_does_not_make_a_waiter_sleep_through_the_next(wait: Wait) -> None:
    wait.sees_turns(1, 600.0)
    assert pause(wait, 0.0, 1) <= LONGEST_TURN_SECONDS


def test_a_look_at_which_no_turn_has_ended_says_nothing_about_turns(wait: Wait) -> None:
    before = wait.turn_seconds
    wait.sees_turns(0, 9.0)
    assert wait.turn_seconds == before


def test_the_longer_nothing_changes_the_less_often_one_looks_but_never_less_than_each_retry_seconds(wait: Wait) -> None:
    assert pause(wait, 0.0) == pytest.approx(SHORTEST_PAUSE_SECONDS)
    assert pause(wait, 0.4) == pytest.approx(0.1)
    assert pause(wait, 3_600.0) == pytest.approx(1.0)


def test_no_pause_goes_beyond_the_timeout(wait: Wait) -> None:
    wait.clock.sleep(29.75)
    assert pause(wait, 3_600.0) == pytest.approx(0.25)
