"""With one of its checks removed, the product breaks a promise, and the schedules find that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from meltano_ch_state import locker, protocol
from meltano_ch_state.lock import Lock
from meltano_ch_state.protocol import LiveLock, LockRow, Verdict, View
from meltano_ch_state.testing import MemoryLocks
from tests.model.binding import JUMP, UPDATE, Setup, assert_caught, explore, sample

TWO = [[UPDATE], [UPDATE]]
learn = Lock.learn


class OutbidTombstones(MemoryLocks):
    """A row that is newer than the tombstone brings its lock_id back to life."""

    def _view(self, state_id: str, rows: Collection[tuple[Any, LiveLock]]) -> View:
        return super()._view(state_id, [row for row in rows if row[0] not in self._outbid()])

    def alive(self, state_ids: Collection[str], lock_ids: Collection[str]) -> Collection[tuple[str, str]]:
        outbid = {(state_id, lock_id) for state_id, lock_id, *_ in self._outbid()}
        asked = {key for key in outbid if key[0] in state_ids and key[1] in lock_ids}
        return asked.union(super().alive(state_ids, lock_ids))

    def _outbid(self) -> Collection[tuple[str, str, bool, int]]:
        locks = self._database.locks
        newest = {key[:2]: max(lock.locked_at for k, lock in locks.items() if k[:2] == key[:2]) for key in locks}
        return {key for key, lock in locks.items() if key[2] and lock.locked_at < newest[key[:2]]}


class KeyWithoutLockId(MemoryLocks):
    """Two clients' rows with one token replace each other."""

    def _replace(self, key: tuple[str, str, bool, int], lock: LiveLock) -> None:
        for other in [k for k in self._database.locks if (k[0], *k[2:]) == (key[0], *key[2:])]:
            del self._database.locks[other]
        super()._replace(key, lock)


class DeletedRows(MemoryLocks):
    """Who withdraws deletes its rows, in place of a tombstone."""

    def insert(self, rows: Collection[LockRow]) -> None:
        ended = {(row.state_id, row.lock_id) for row in rows if row.released}
        super().insert([row for row in rows if not row.released])
        for key in [key for key in self._database.locks if key[:2] in ended]:
            del self._database.locks[key]


def held_at_once(view: View, lock_id: str) -> Verdict:
    verdict = protocol.decide(view, lock_id)
    return Verdict.HELD if verdict is Verdict.BUMP else verdict


def held_in_company(view: View, lock_id: str) -> Verdict:
    own = view.own(lock_id)
    return protocol.decide(replace(view, live=(own,) if own else ()), lock_id)


def unordered(view: View, lock_id: str) -> Verdict:
    verdict = protocol.decide(view, lock_id)
    return Verdict.STAY if verdict is Verdict.WITHDRAW and view.rivals(lock_id) else verdict


def keeping_what_was_seen(lock: Any, own: LiveLock, view: View | None = None) -> None:
    seen = lock._states.get(own.state_id)
    learn(lock, own, view)
    if seen:
        lock._states.setdefault(own.state_id, seen)


def test_a_holder_whose_token_is_not_the_greatest_is_caught() -> None:
    with patch.object(locker, "decide", held_at_once):
        outcome = explore(Setup(TWO, tick=0))
    assert_caught(outcome, "no update is lost", "no version twice", "versions rise in the order of holders")
    assert outcome.runs <= 20


def test_a_holder_that_does_not_look_for_rivals_is_caught() -> None:
    with patch.object(locker, "decide", held_in_company):
        outcome = explore(Setup(TWO))
    assert_caught(outcome, "one holder at once")
    assert outcome.runs <= 20


def test_contenders_of_whom_nobody_withdraws_are_caught() -> None:
    with patch.object(locker, "decide", unordered):
        outcome = explore(Setup(TWO))
    assert_caught(outcome, "one holder at once", "everybody comes to an end", "nobody waits in vain", "all is done")
    assert outcome.runs <= 100


def test_a_write_that_is_not_confirmed_is_caught_when_a_lease_is_over() -> None:
    with patch.object(Lock, "confirm", lambda _self, _state_ids=None: None):
        outcome = explore(Setup(TWO, [JUMP], tick=0))
    assert_caught(outcome, "no update is lost")
    assert outcome.runs <= 500


def test_a_state_that_was_read_before_the_last_holder_wrote_is_caught() -> None:
    with patch.object(View, "current_state", lambda view: view.state):
        outcome = explore(Setup(TWO, tick=2_000, torn=True))
    assert_caught(outcome, "no update is lost")
    assert outcome.runs <= 500


def test_a_state_that_an_earlier_look_saw_is_caught_when_who_was_born_later_landed_sooner() -> None:
    with patch.object(Lock, "learn", keeping_what_was_seen):
        outcome = sample(Setup([[UPDATE]] * 3, ["back"], most_faults=2, tick=2_000, torn=True), 4_000, seed=1)
    assert_caught(outcome, "no update is lost")


def test_tombstones_that_a_late_insert_outbids_are_caught() -> None:
    outcome = explore(Setup(TWO, ["late"], locks=OutbidTombstones))
    assert_caught(outcome, "no row is left", "nobody waits in vain")
    assert outcome.runs <= 500


def test_a_key_without_the_lock_id_is_caught_when_clocks_tie() -> None:
    outcome = explore(Setup(TWO, tick=0, locks=KeyWithoutLockId))
    assert_caught(outcome, "one holder at once", "no update is lost", "all is done")
    assert outcome.runs <= 500


def test_rows_that_are_deleted_in_place_of_a_tombstone_are_caught_by_a_late_insert() -> None:
    outcome = explore(Setup(TWO, ["late"], locks=DeletedRows))
    assert_caught(outcome, "no row is left", "nobody waits in vain")
    assert outcome.runs <= 500
