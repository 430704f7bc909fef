"""The lock protocol with places in a queue: who withdraws leaves a row that says since when it waits.

A place locks nothing. It asks those who came later to withdraw although they are alone, so it may cost turns but no
safety; what has to be seen is that nobody waits for ever for a place, and not all for each other. A place is known here
by a negative lock_id, so where lock_ids are compared it comes before all candidates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tests.model.checker import Step
from tests.model.protocol import LockProtocol
from tests.model.protocol_tables import DONE, DRAWN, ENDED, READ, WITHDRAW, Client, LockRow, State


class QueueProtocol(LockProtocol):
    """Places keep the birth of the first candidate, and end with their client; those of the dead do not count."""

    def insert(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        place = self.place(i)
        born = self.born(state.locks, place) if place in self.places(state.locks) else DRAWN
        candidate = LockRow(self.lock_id(i, client), False, DRAWN, born)
        yield from self.send(state, i, "INSERT candidate:", candidate, client._replace(at=READ))

    def enter(self, state: State, i: int, client: Client, greatest: int) -> Iterator[Step[State]]:
        kept = {place for place in self.places(state.locks) if self.owned(state, place)}
        earlier = any(self.comes_before(state, i, place, client) for place in kept)
        if earlier:
            yield f"P{i} SELECT: others wait", self.with_client(state, i, client._replace(at=WITHDRAW)), True
        if not earlier or self.bounds.take_over == "any":
            yield from super().enter(state, i, client, greatest)

    def comes_before(self, state: State, i: int, place: int, client: Client) -> bool:
        """By birth alone: a place and the candidate of its owner are born together, and have different lock_ids."""
        return self.born(state.locks, place) < client.born

    def withdraw(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        """One statement ends the candidacy and keeps its birth as a place; who gives up leaves none."""
        after = self.start_over(client)
        place = LockRow(self.place(i), after.at in ENDED, 0, client.born)
        rows = {LockRow(self.lock_id(i, client), True, client.token), place}
        withdrawn = state._replace(locks=state.locks | rows)
        yield f"P{i} INSERT withdraw: {place}", self.with_client(withdrawn, i, after), True

    def release(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        rows = {LockRow(self.lock_id(i, client), True, client.token), LockRow(self.place(i), True, 0)}
        released = state._replace(locks=state.locks | rows)
        yield f"P{i} INSERT release", self.with_client(released, i, self.ended(client, DONE)), True

    @staticmethod
    def place(i: int) -> int:
        """The lock_id of a client's place."""
        return -1 - i

    def alive(self, locks: Collection[LockRow]) -> frozenset[int]:
        return frozenset(lock_id for lock_id in super().alive(locks) if lock_id >= 0)

    def places(self, locks: Collection[LockRow]) -> frozenset[int]:
        """The places that are kept."""
        return frozenset(lock_id for lock_id in super().alive(locks) if lock_id < 0)

    def owned(self, state: State, lock_id: int) -> bool:
        if lock_id < 0:
            return state.clients[-1 - lock_id].at not in ENDED
        return super().owned(state, lock_id)


class PlacesTieByLockId(QueueProtocol):
    """Mistake: the lock_id decides between a place and a candidate that are born together, be they of one client."""

    def comes_before(self, state: State, i: int, place: int, client: Client) -> bool:
        return (self.born(state.locks, place), place) < (client.born, self.lock_id(i, client))
