"""The lock in a KeeperMap as a model: one row per id, made by a strict insert, then changed by compare-and-set.

A client looks at the row first (the row may have changed by the time it acts, so the read may be stale), then takes
the lock by a strict insert or by `UPDATE ... WHERE lock_id = <the one it saw>`. The row keeps the newest token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.checker import Invariant, Step
from tests.model.protocol_tables import StateRow

LOOK, TAKE, GET, SET, CHECK, PUBLISH, RELEASE = "look", "take", "get", "set", "check", "publish", "release"
DONE, GAVE_UP, LOST = "done", "gave up", "lost"
ENDED = frozenset({DONE, GAVE_UP, LOST})


class Cell(NamedTuple):
    """The row: who has, or had, the lock, whether it is released, and the newest token."""

    lock_id: int
    released: bool
    token: int


class Client(NamedTuple):
    """One client; `saw` is the row it looked at, the rest as in `protocol.Client`."""

    at: str = LOOK
    attempt: int = 0
    saw: Cell | None = None
    token: int = 0
    sets: int = 0
    seen: int = 0
    acked: int = 0


class State(NamedTuple):
    """The clients, the row of the id, the state rows, the state rows under way, and the faults left."""

    clients: tuple[Client, ...]
    cell: Cell | None
    states: frozenset[StateRow]
    under_way: tuple[StateRow, ...] = ()
    late: int = 0


@dataclass(frozen=True)
class KeeperBounds:
    """How much one exploration covers; as in `protocol.Bounds`, any lease may run out at any time."""

    clients: int = 2
    clock: tuple[int, ...] = (1, 2)
    attempts: int = 2
    sets: int = 1
    late: int = 0


class KeeperProtocol:
    """The protocol as designed, a `checker.Model`."""

    def __init__(self, bounds: KeeperBounds) -> None:
        self.bounds = bounds
        self._acts = {
            LOOK: self.look, TAKE: self.take, GET: self.get, SET: self.set, CHECK: self.check,
            PUBLISH: self.publish, RELEASE: self.release,
        }  # fmt: skip

    def start(self) -> State:
        clients = (Client(),) * self.bounds.clients
        return State(clients, None, frozenset({StateRow(0, 0)}), (), self.bounds.late)

    def finished(self, state: State) -> bool:
        return all(client.at in ENDED for client in state.clients)

    def steps(self, state: State) -> Iterator[Step[State]]:
        for i, client in enumerate(state.clients):
            if client.at not in ENDED:
                yield from self._acts[client.at](state, i, client)
        for k, row in enumerate(state.under_way):
            rest = state.under_way[:k] + state.under_way[k + 1 :]
            yield f"LATE {row} lands", state._replace(states=state.states | {row}, under_way=rest), False

    def look(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        """See the row: not there, released, or over; a live lock may be waited for."""
        live = state.cell is not None and not state.cell.released
        what = "is over" if live else "is free"
        yield f"K{i} LOOK: {what}", self._with(state, i, client._replace(at=TAKE, saw=state.cell)), not live

    def take(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        """A strict insert, or an UPDATE that hits the row only while its lock_id is the one that was seen."""
        if self._id_of(state.cell) != self._id_of(client.saw):
            yield f"K{i} TAKE: somebody was faster", self._with(state, i, self._start_over(client)), True
            return
        for token in sorted({self.next_token(state, client, clock) for clock in self.bounds.clock}):
            taken = state._replace(cell=Cell(self._lock_id(i, client), False, token))
            after = client._replace(at=GET, token=token, saw=None)
            yield f"K{i} TAKE, token {token}", self._with(taken, i, after), True

    def next_token(self, state: State, client: Client, clock: int) -> int:
        """What the UPDATE computes from the row it changes: the clock, or one step above the row's token."""
        return max(clock, (state.cell.token if state.cell else 0) + 1)

    def get(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        row = max(state.states)
        yield f"K{i} GET {row}", self._with(state, i, client._replace(at=SET, seen=row.holds)), True

    def set(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        row = StateRow(client.token, client.seen | 1 << (i * self.bounds.sets + client.sets))
        written = state._replace(states=state.states | {row})
        after = client._replace(at=CHECK, sets=client.sets + 1, seen=row.holds)
        yield f"K{i} SET {row}", self._with(written, i, after), True
        if state.late:
            lost = state._replace(late=state.late - 1, under_way=tuple(sorted((*state.under_way, row))))
            given_up = client._replace(at=RELEASE)
            yield f"K{i} SET {row} (gives up on the answer)", self._with(lost, i, given_up), False

    def check(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        """An UPDATE again, that hits the row only while it is ours: a read might be stale."""
        if self._id_of(state.cell) != self._lock_id(i, client):
            yield f"K{i} CHECK: lost", self._with(state, i, self._ended(client, LOST)), True
            return
        acked = client._replace(acked=client.acked | 1 << (i * self.bounds.sets + client.sets - 1))
        after = acked._replace(at=PUBLISH if acked.sets < self.bounds.sets else RELEASE)
        yield f"K{i} CHECK: fine, acknowledged", self._with(state, i, after), True

    def publish(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        """The next token under the same lock, compare-and-set too."""
        if self._id_of(state.cell) != self._lock_id(i, client):
            yield f"K{i} PUBLISH: lost", self._with(state, i, self._ended(client, LOST)), True
            return
        token = client.token + 1
        published = state._replace(cell=Cell(self._lock_id(i, client), False, token))
        yield (
            f"K{i} PUBLISH token {token}",
            self._with(published, i, client._replace(at=SET, token=token)),
            True,
        )

    def release(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        ours = self._id_of(state.cell) == self._lock_id(i, client)
        cell = self.released(state.cell) if ours and state.cell else state.cell
        yield f"K{i} RELEASE", self._with(state._replace(cell=cell), i, self._ended(client, DONE)), True

    def released(self, cell: Cell) -> Cell | None:
        """The row after its holder released it."""
        return cell._replace(released=True)

    def _lock_id(self, i: int, client: Client) -> int:
        return client.attempt * self.bounds.clients + i

    @staticmethod
    def _id_of(cell: Cell | None) -> int | None:
        return cell.lock_id if cell else None

    def _start_over(self, client: Client) -> Client:
        if client.attempt + 1 < self.bounds.attempts:
            return Client(attempt=client.attempt + 1)
        return self._ended(client, GAVE_UP)

    @staticmethod
    def _ended(client: Client, how: str) -> Client:
        return Client(how, client.attempt, acked=client.acked)

    @staticmethod
    def _with(state: State, i: int, client: Client) -> State:
        return state._replace(clients=(*state.clients[:i], client, *state.clients[i + 1 :]))

    def no_update_is_lost(self, state: State) -> bool:
        newest = max(state.states)
        return all(newest.holds & client.acked == client.acked for client in state.clients)

    def no_version_twice(self, state: State) -> bool:
        return len({row.version for row in state.states}) == len(state.states)

    def invariants(self) -> dict[str, Invariant[State]]:
        return {"no update is lost": self.no_update_is_lost, "no version twice": self.no_version_twice}


class DeletesOnRelease(KeeperProtocol):
    """Mistake: a release deletes the row, and the next holder knows no other token than the state's version."""

    def released(self, cell: Cell) -> Cell | None:
        return None

    def next_token(self, state: State, client: Client, clock: int) -> int:
        known = [row.version for row in state.states] + ([state.cell.token] if state.cell else [])
        return max(clock, max(known) + 1)


class TokenOfWhatItSaw(KeeperProtocol):
    """Mistake: the token is computed from the row that was seen; meanwhile its holder may have published another."""

    def next_token(self, state: State, client: Client, clock: int) -> int:
        return max(clock, (client.saw.token if client.saw else 0) + 1)
