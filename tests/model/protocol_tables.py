"""The two tables of the lock protocol as a model, and all that may befall a row on its way into them.

Statements are atomic and see all that landed before them (one server, or quorum writes with sequential reads).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.checker import Step

# Where a client is: the statement it sends next, or how it ended.
INSERT, READ, BUMP, REVOKE, WITHDRAW = "insert", "read", "bump", "revoke", "withdraw"
GET, SET, CHECK, PUBLISH, LOOK, RELEASE = "get", "set", "check", "publish", "look", "release"
DONE, GAVE_UP, LOST, DEAD = "done", "gave up", "lost", "dead"

HOLDING = frozenset({GET, SET, CHECK, PUBLISH, LOOK, RELEASE})
RENEWING = HOLDING - {PUBLISH, RELEASE}
ENDED = frozenset({DONE, GAVE_UP, LOST, DEAD})

DRAWN = -1
"""Stands for a column that the server fills in from its clock when the row lands."""


class LockRow(NamedTuple):
    """A row of the lock table. `locked_at` is left out: whether a lease has run out is left to chance."""

    lock_id: int
    released: bool
    token: int
    born: int = 0

    def __str__(self) -> str:
        return f"{'tombstone' if self.released else 'row'} of {self.lock_id}, token {self.token}, born {self.born}"


class StateRow(NamedTuple):
    """A row of the state table. `holds` is a bit mask of the updates its value contains, directly or by having read."""

    version: int
    holds: int

    def __str__(self) -> str:
        return f"version {self.version}, holds {self.holds:b}"


Row = LockRow | StateRow


class Client(NamedTuple):
    """One client.

    `token` is the one it inserted last, `sets` counts the sets it began, `seen` are the updates in the value it goes
    on from, `acked` those the user was told of, and `tombstone` is the row that revokes a rival.
    """

    at: str = INSERT
    attempt: int = 0
    token: int = 0
    born: int = 0
    sets: int = 0
    seen: int = 0
    acked: int = 0
    tombstone: LockRow | None = None


class State(NamedTuple):
    """The clients, both tables, the inserts still under way, and how many faults may still happen.

    `missing` is what each replica has not got yet; only `replicas` uses it.
    """

    clients: tuple[Client, ...]
    locks: frozenset[LockRow]
    states: frozenset[StateRow]
    under_way: tuple[Row, ...] = ()
    late: int = 0
    copies: int = 0
    missing: tuple[frozenset[Row], ...] = ()


@dataclass(frozen=True)
class Bounds:
    """How much of the protocol one exploration covers.

    Attributes:
        clients: How many clients there are.
        clock: What the server's clock may say as a token; several values make it tie and step back.
        births: What the server's clock may say as `born`.
        attempts: How often a client may contend, each time with a new lock_id, before it gives up.
        sets: How many sets a client does under one lock.
        sets_per_token: How many of them one token serves (1000 in the product).
        step: The distance kept between tokens (1000 us in the product).
        take_over: Whose locks may be taken over: nobody's, those of clients that are gone, or any, since a lease runs
            out while its holder sleeps.
        blind: The clients that set or clear without reading first.
        crashes: Whether clients may die.
        renews: Whether holders insert their row anew.
        prunes: Whether old rows of the lock table may vanish.
        late: How many inserts may be given up by their client and land later, or never.
        copies: How many inserts may land a second time, later.
    """

    clients: int = 2
    clock: tuple[int, ...] = (0, 1, 2)
    births: tuple[int, ...] = (0,)
    attempts: int = 1
    sets: int = 1
    sets_per_token: int = 1
    step: int = 1
    take_over: Literal["never", "dead", "any"] = "any"
    blind: frozenset[int] = frozenset()
    crashes: bool = False
    renews: bool = False
    prunes: bool = False
    late: int = 0
    copies: int = 0


class Tables:
    """What a read of the tables says, and what an insert does to them."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds

    # What they say

    def alive(self, locks: Collection[LockRow]) -> frozenset[int]:
        """The lock_ids with a row and without a tombstone, whichever row came last."""
        rows = {row.lock_id: False for row in locks}
        rows.update({row.lock_id: True for row in locks if row.released})
        return frozenset(lock_id for lock_id, released in rows.items() if not released)

    def own_token(self, locks: Collection[LockRow], lock_id: int) -> int:
        return max(row.token for row in locks if row.lock_id == lock_id)

    def born(self, locks: Collection[LockRow], lock_id: int) -> int:
        return min(row.born for row in locks if row.lock_id == lock_id)

    def greatest(self, state: State, me: int) -> int:
        """The greatest token of all others: their live rows, their tombstones, and the state's version."""
        tokens = [row.token for row in state.locks if row.lock_id != me]
        return max(tokens + [row.version for row in state.states])

    def is_above(self, token: int, greatest: int) -> bool:
        return token >= greatest + self.bounds.step

    def newest(self, states: Iterable[StateRow]) -> list[StateRow]:
        """What a read with FINAL may return: rows that tie have no order."""
        states = sorted(states)
        return [row for row in states if row.version == states[-1].version]

    # How rows get into them

    def key(self, row: LockRow) -> tuple[object, ...]:
        """The sorting key of the lock table: of rows with the same key a merge, and a read with FINAL, keeps one."""
        return (row.lock_id, row.released, row.token)

    def send(
        self, state: State, i: int, what: str, row: Row, after: Client, *, unsure: Client | None = None
    ) -> Iterator[Step[State]]:
        """An insert: it lands, or also leaves a copy under way, or its client gives up on it and goes on `unsure`.

        Without `unsure`, a client that does not know whether its row landed withdraws.
        """
        under_way = tuple(sorted((*state.under_way, row), key=repr)) if state.late or state.copies else ()
        for drawn, landed in self.land(state, row):
            gone_on = self.with_client(landed, i, after)
            yield f"P{i} {what} {drawn}", gone_on, True
            if state.copies:
                copied = gone_on._replace(copies=state.copies - 1, under_way=under_way)
                yield f"P{i} {what} {drawn} (a copy is under way)", copied, False
        if state.late:
            unsure = unsure or state.clients[i]._replace(at=WITHDRAW, tombstone=None)
            given_up = state._replace(late=state.late - 1, under_way=under_way)
            yield f"P{i} {what} (gives up on the answer)", self.with_client(given_up, i, unsure), False

    def land(self, state: State, row: Row) -> Iterator[tuple[Row, State]]:
        """The rows that may land, with whatever the server's clock says, and the states after it."""
        if isinstance(row, StateRow):
            yield row, state._replace(states=state.states | {row})
            return
        for token in self.bounds.clock if row.token == DRAWN else (row.token,):
            for born in self.bounds.births if row.born == DRAWN else (row.born,):
                drawn = LockRow(row.lock_id, row.released, token, born)
                for locks in self.merged(state.locks, drawn):
                    yield drawn, state._replace(locks=locks)

    def merged(self, locks: frozenset[LockRow], row: LockRow) -> Iterator[frozenset[LockRow]]:
        """The newer of two rows with the same key stays; the older one when the clock of locked_at stepped back."""
        key = self.key(row)
        same = {other for other in locks if self.key(other) == key}
        yield (locks - same) | {row}
        if same - {row}:
            yield locks

    def landings(self, state: State) -> Iterator[Step[State]]:
        for k, row in enumerate(state.under_way):
            rest = state._replace(under_way=state.under_way[:k] + state.under_way[k + 1 :])
            for drawn, landed in self.land(rest, row):
                yield f"LATE {drawn} lands", landed, False

    def prunings(self, state: State) -> Iterator[Step[State]]:
        """The TTL takes rows away one by one, of lock_ids that nobody uses any more nor has inserts under way for."""
        for row in state.locks:
            if not self.owned(state, row.lock_id) and not state.under_way:
                yield f"TTL drops {row}", state._replace(locks=state.locks - {row}), False

    # Whose rows they are

    def lock_id(self, i: int, client: Client) -> int:
        """Unique to the client and the attempt."""
        return client.attempt * self.bounds.clients + i

    def owned(self, state: State, lock_id: int) -> bool:
        """Whether somebody alive still uses a lock_id."""
        attempt, i = divmod(lock_id, self.bounds.clients)
        client = state.clients[i]
        return client.at not in ENDED and client.attempt == attempt

    @staticmethod
    def ended(client: Client, how: str) -> Client:
        return Client(how, client.attempt, acked=client.acked)

    @staticmethod
    def with_client(state: State, i: int, client: Client) -> State:
        clients = (*state.clients[:i], client, *state.clients[i + 1 :])
        return State(clients, state.locks, state.states, state.under_way, state.late, state.copies, state.missing)
