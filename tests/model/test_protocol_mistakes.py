"""Each rule of the lock protocol is needed: without it the checker finds a counter-example."""

from __future__ import annotations

from tests.model.checker import STUCK, assert_breaks
from tests.model.protocol import LockProtocol
from tests.model.protocol_queue import PlacesTieByLockId
from tests.model.protocol_tables import Bounds
from tests.model.variants import (
    AnyToken,
    ClearByDelete,
    ClockAsVersion,
    EverybodyStays,
    KeyWithoutLockId,
    KeyWithoutReleased,
    KeyWithoutToken,
    LessThanAStep,
    NobodyStays,
    NoCheck,
    OnlyAnsweredSetsCount,
    ReleaseByDelete,
    StateFirst,
    TombstoneAlone,
    TtlAsTimeout,
    UnpublishedToken,
    WithdrawByDelete,
)

LOST, TWICE, ENDED = "no update is lost", "no version twice", "an end is final"
ONE, SOMEBODY = "one holder", "somebody got in"


def breaks(protocol: LockProtocol, promise: str, *events: str) -> None:
    """Look at one promise alone, so that the trace is about that one."""
    invariants = {} if promise == STUCK else {promise: getattr(protocol, promise.replace(" ", "_"))}
    assert_breaks(protocol, invariants, promise, events)


def test_a_token_that_is_used_before_it_is_published_is_used_twice() -> None:
    breaks(
        UnpublishedToken(Bounds()),
        TWICE,
        "token 0",
        "holds with 1",
        "revoke",
        "holds with 1",
        "SET version 1",
    )


def test_without_the_check_for_the_greatest_token_a_version_is_used_twice() -> None:
    breaks(AnyToken(Bounds(clock=(1,))), TWICE, "holds with 1", "SET version 1", "holds with 1", "SET version 1")


def test_without_a_look_at_the_lock_after_the_set_a_deposed_holder_is_told_that_all_is_well() -> None:
    breaks(
        NoCheck(Bounds()),
        LOST,
        "revoke: tombstone of 0",
        "P1 GET",
        "P0 SET",
        "P0 acknowledged without",
        "P1 SET",
    )


def test_a_clock_as_version_loses_the_later_of_two_acknowledged_updates() -> None:
    breaks(ClockAsVersion(Bounds(clock=(1, 2), take_over="never")), LOST, "SET version 1", "CHECK: fine", "release",
           "P1 SELECT: alone, holds with 2", "SET version 1", "CHECK: fine")  # fmt: skip


def test_a_withdrawal_by_delete_is_undone_by_the_insert_that_lands_after_it() -> None:
    breaks(
        WithdrawByDelete(Bounds(late=1)),
        ENDED,
        "gives up on the answer",
        "DELETE own lock rows",
        "LATE row of 0",
    )


def test_a_withdrawal_by_delete_is_undone_by_the_copy_of_an_insert() -> None:
    breaks(WithdrawByDelete(Bounds(copies=1)), ENDED, "a copy is under way", "DELETE own lock rows", "LATE row")


def test_a_release_by_delete_forgets_a_token_that_a_late_write_still_carries() -> None:
    breaks(
        ReleaseByDelete(Bounds(late=1)),
        LOST,
        "SET (gives up",
        "DELETE own lock rows",
        "P1 CHECK: fine",
        "LATE version",
    )


def test_a_clear_by_delete_is_undone_by_the_write_of_a_deposed_holder() -> None:
    breaks(
        ClearByDelete(Bounds(blind=frozenset({1}))),
        LOST,
        "revoke: tombstone of 0",
        "P1 DELETE state",
        "P0 SET",
    )


def test_a_key_without_the_lock_id_lets_a_rivals_row_replace_the_holders() -> None:
    breaks(
        KeyWithoutLockId(Bounds(take_over="never")),
        ONE,
        "holds with 1",
        "candidate: row of 1, token 1",
        "holds with 1",
    )


def test_a_key_without_the_token_lets_a_late_copy_hide_a_greater_token() -> None:
    breaks(KeyWithoutToken(Bounds(copies=1)), LOST, "a copy is under way", "LATE row of 0, token 0", "revoke")


def test_a_tombstone_that_a_later_row_outbids_revives_a_deposed_holder() -> None:
    breaks(KeyWithoutReleased(Bounds(renews=True)), LOST, "revoke: tombstone of 0", "P0 RENEWS", "P0 CHECK: fine")


def test_a_tombstone_that_counts_alone_hides_a_token_published_after_it_was_decided() -> None:
    breaks(TombstoneAlone(Bounds(sets=2)), TWICE, "P1 SELECT: 0 is over", "P0 INSERT next token: row of 0, token 2",
           "P1 INSERT revoke: tombstone of 0, token 1", "P1 SELECT: alone, holds with 2")  # fmt: skip


def test_tokens_less_than_a_step_apart_are_reached_by_the_nth_set_under_the_smaller_one() -> None:
    breaks(LessThanAStep(Bounds(step=2, sets=2, sets_per_token=2)), TWICE, "P0 SELECT: alone, holds with 1",
           "P1 SELECT: alone, holds with 2", "SET version 2", "SET version 2")  # fmt: skip


def test_a_set_without_an_answer_uses_up_its_version_all_the_same() -> None:
    bounds = Bounds(step=2, sets=2, sets_per_token=2, late=1)
    breaks(OnlyAnsweredSetsCount(bounds), LOST, "SET (gives up", "SET version 2", "CHECK: fine", "LATE version 2")


def test_a_statement_that_reads_the_state_before_the_lock_rows_goes_on_from_an_old_state() -> None:
    breaks(StateFirst(Bounds(take_over="never")), LOST, "P1 SELECT, state: version 0", "P0 CHECK: fine",
           "P0 INSERT release", "P1 ... and lock rows: alone", "P1 SET")  # fmt: skip


def test_when_nobody_stays_all_may_give_way_to_each_other() -> None:
    breaks(
        NobodyStays(Bounds(take_over="never", attempts=2)),
        SOMEBODY,
        "not alone",
        "withdraw",
        "not alone",
        "withdraw",
    )


def test_when_everybody_stays_all_wait_for_each_other_for_ever() -> None:
    breaks(EverybodyStays(Bounds(take_over="never")), STUCK, "candidate: row of 0", "candidate: row of 1")


def test_without_take_over_a_crash_blocks_the_others_for_ever() -> None:
    breaks(LockProtocol(Bounds(take_over="never", births=(0, 1), crashes=True)), STUCK, "CRASHES")


def test_with_take_over_there_may_be_two_holders_and_only_the_versions_keep_them_apart() -> None:
    breaks(LockProtocol(Bounds()), ONE, "holds with", "is over", "revoke", "holds with")


def test_a_ttl_that_takes_the_rows_of_the_living_is_a_timeout_and_loses_updates() -> None:
    breaks(TtlAsTimeout(Bounds(prunes=True)), LOST, "holds with", "TTL drops", "holds with", "CHECK: fine")


def test_places_in_a_queue_that_tie_by_lock_id_make_all_give_way_to_each_other() -> None:
    bounds = Bounds(take_over="never", attempts=2, clock=(1,))
    breaks(PlacesTieByLockId(bounds), SOMEBODY, "withdraw: row of -2", "others wait", "others wait")
