"""The code of the locks in Keeper, in every order of two clients' statements, and in random ones of more."""

from __future__ import annotations

import pytest

from tests.model.binding import (
    CHECKED_UPDATE,
    CLEAR,
    FAULTS_OF_WRITES,
    JUMP,
    JUMPS,
    RENEWED_UPDATE,
    REPEATED,
    SET,
    SET_ALL,
    SET_ALL_BACKWARDS,
    STALE,
    UPDATE,
    Setup,
    assert_all_is_well,
    assert_caught,
    explore,
    sample,
)
from tests.model.keeper_memory import (
    AsksForNoGuard,
    ChecksNothing,
    CountsNoDepositions,
    LateTakes,
    MemoryKeeper,
    ReleasesWhatOthersHold,
    TakesWhatIsHeld,
)

EVERYBODY = range(6)
ALL_FAULTS = (*FAULTS_OF_WRITES, REPEATED, STALE, JUMP)
OTHER_UPDATE, OTHER_SET = ("update", ("2",)), ("set", ("2",))


def keeper(*scripts: object, **options: object) -> Setup:
    return Setup(scripts, **{"locks": MemoryKeeper, "keeper": EVERYBODY, **options})  # type: ignore[arg-type]


def test_two_clients_that_update_in_every_order() -> None:
    assert_all_is_well(explore(keeper([UPDATE], [UPDATE], most_faults=0)), complete=1, states=50)


def test_two_clients_with_a_lost_answer_in_every_order() -> None:
    assert_all_is_well(explore(keeper([SET], [SET], faults=["lost", REPEATED])), complete=2_500, states=10_000)


@pytest.mark.parametrize("locks", [MemoryKeeper, AsksForNoGuard])
def test_clients_that_are_deposed_while_answers_are_lost_at_random(locks: type[MemoryKeeper]) -> None:
    setup = keeper([UPDATE, RENEWED_UPDATE], [UPDATE], [SET], faults=[REPEATED, STALE, *JUMPS, "lost"], most_faults=4,
                   locks=locks)  # fmt: skip
    assert_all_is_well(sample(setup, 1_000, 5), complete=1_000, states=900)


@pytest.mark.parametrize("locks", [MemoryKeeper, AsksForNoGuard])
def test_bulk_calls_of_clients_that_are_deposed_at_random(locks: type[MemoryKeeper]) -> None:
    setup = keeper([SET_ALL, UPDATE], [SET_ALL_BACKWARDS, OTHER_UPDATE], [OTHER_SET, UPDATE],
                   faults=[REPEATED, *JUMPS, "lost"], most_faults=4, locks=locks)  # fmt: skip
    assert_all_is_well(sample(setup, 800, 6), complete=800, states=700)


def test_three_clients_with_two_faults_at_random() -> None:
    setup = keeper([UPDATE, UPDATE], [CHECKED_UPDATE, SET], [UPDATE, CLEAR], faults=ALL_FAULTS, most_faults=2)
    assert_all_is_well(sample(setup, 800, 1), complete=800, states=700)


def test_bulk_calls_with_faults_at_random() -> None:
    setup = keeper([SET_ALL, UPDATE], [SET_ALL_BACKWARDS], [UPDATE], faults=ALL_FAULTS, most_faults=2)
    assert_all_is_well(sample(setup, 500, 2), complete=500, states=400)


def test_clients_of_both_modes_in_every_order() -> None:
    assert_all_is_well(explore(keeper([UPDATE], [UPDATE], most_faults=0, keeper=[0])), complete=1, states=50)


def test_clients_of_both_modes_with_faults_at_random() -> None:
    setup = keeper([UPDATE, UPDATE], [UPDATE], [UPDATE, SET], faults=("lost", "late", "twice", "crash"), keeper=[0, 2])
    assert_all_is_well(sample(setup, 600, 3), complete=600, states=400)


def test_clients_of_both_modes_that_are_deposed_at_random() -> None:
    setup = keeper([UPDATE, RENEWED_UPDATE], [UPDATE], [UPDATE, SET],
                   faults=(REPEATED, "lost", "late", "twice", *JUMPS), most_faults=4, keeper=[0, 2])  # fmt: skip
    assert_all_is_well(sample(setup, 1_500, 7), complete=1_500, states=1_400)


def test_taking_what_is_held_is_caught() -> None:
    assert_caught(
        sample(keeper([UPDATE, UPDATE], [UPDATE, UPDATE], locks=TakesWhatIsHeld), 500, 4),
        "one holder at once",
        "all is done",
    )


def test_leaving_out_the_check_after_a_write_is_caught() -> None:
    setup = keeper([CHECKED_UPDATE], [UPDATE], faults=[JUMP], locks=ChecksNothing)
    assert_caught(explore(setup), "no update is lost")


def test_a_release_that_tells_nothing_is_caught() -> None:
    setup = keeper([UPDATE], [UPDATE], faults=[JUMP], locks=ReleasesWhatOthersHold)
    assert_caught(explore(setup), "no update is lost")


def test_counting_no_depositions_is_caught() -> None:
    setup = keeper([UPDATE], [UPDATE], faults=[JUMP], locks=CountsNoDepositions)
    assert_caught(explore(setup), "no update is lost")


def test_leaving_out_to_cancel_is_caught() -> None:
    assert_caught(explore(keeper([UPDATE, UPDATE], [], faults=["late"], locks=LateTakes)), "no row is left")
