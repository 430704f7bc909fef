"""The lock protocol over replicas that lag, behind a load balancer: every statement may go to another one.

`python -m tests.model.replicas` prints what breaks when one of the settings that are sent is left out.

What the settings do is taken from ClickHouse's documentation; no cluster of several replicas runs in these tests.
- An insert is on one replica when it is answered; the others get it some time later. With `insert_quorum` a majority
  has it when it is answered.
- `select_sequential_consistency` has a replica refuse to answer while it lacks a row that has its quorum. It knows of
  those only when they were written one after the other: `insert_quorum_parallel=0`. Without a quorum it does nothing.
- A replica learns what has its quorum from Keeper, perhaps from a server of Keeper's that lags: then it shows, without
  knowing, what was so some time ago. An insert through it brings it up to date.
- A Shared engine commits an insert for all; a replica learns of it some time later, or, with
  `select_sequential_consistency`, before it answers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.model.checker import Outcome, Step, explore
from tests.model.protocol import LockProtocol
from tests.model.protocol_tables import (
    CHECK,
    GET,
    LOOK,
    READ,
    Bounds,
    Client,
    LockRow,
    Row,
    State,
    StateRow,
)

REPLICAS = 3
LOCKS, STATES = "locks", "states"
TABLES = frozenset({LOCKS, STATES})
READS = {READ: TABLES, GET: frozenset({STATES}), CHECK: frozenset({LOCKS}), LOOK: frozenset({LOCKS})}
"""The tables that a statement reads, by where its client is."""


@dataclass(frozen=True)
class Sent:
    """What is sent along.

    Attributes:
        shared: Whether the engine is a Shared one.
        quorum: The tables whose inserts ask for a quorum.
        one_by_one: Whether these inserts wait for each other: `insert_quorum_parallel=0`.
        sequential: The tables that are read with `select_sequential_consistency`.
        keeper_lags: Whether replicas may learn late what has its quorum; no setting, but the world.
    """

    shared: bool = False
    quorum: frozenset[str] = TABLES
    one_by_one: bool = True
    sequential: frozenset[str] = TABLES
    keeper_lags: bool = False


REPLICATED = Sent()
SHARED = Sent(shared=True, quorum=frozenset())


class Replicas(LockProtocol):
    """The protocol with reads that see what one replica has."""

    def __init__(self, bounds: Bounds, sent: Sent) -> None:
        super().__init__(bounds)
        self.sent = sent
        known = TABLES if sent.shared else sent.quorum if sent.one_by_one and not sent.keeper_lags else frozenset()
        self.guarded = sent.sequential & known
        """The tables of which a replica shows all, or nothing."""

    def start(self) -> State:
        return super().start()._replace(missing=(frozenset(),) * REPLICAS)

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from super().steps(state)
        for r, missing in enumerate(state.missing):
            if missing:
                yield f"replica {r} catches up", self._with_missing(state, r, frozenset()), True

    def act(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        """A read sees one replica; it changes its client only."""
        if client.at not in READS:
            yield from super().act(state, i, client)
            return
        seen = set()
        for r in range(REPLICAS):
            view = self._view(state, r, READS[client.at])
            if view is None or (view.locks, view.states) in seen:
                continue
            seen.add((view.locks, view.states))
            for label, reached, reliable in super().act(view, i, client):
                yield f"{label} (replica {r})", state._replace(clients=reached.clients), reliable

    def _view(self, state: State, r: int, tables: frozenset[str]) -> State | None:
        """What a replica shows of some tables; None when it refuses."""
        guarded = tables & self.guarded
        missing = state.missing[r]
        if self.sent.shared:
            missing = frozenset(row for row in missing if _table(row) not in guarded)
        elif any(_table(row) in guarded for row in missing):
            return None
        return state._replace(locks=state.locks - missing, states=state.states - missing)

    def land(self, state: State, row: Row) -> Iterator[tuple[Row, State]]:
        for drawn, landed in super().land(state, row):
            for missing in self._spread(state, drawn):
                yield drawn, landed._replace(missing=missing)

    def _spread(self, state: State, row: Row) -> Iterator[tuple[frozenset[Row], ...]]:
        """Who has a row when its insert is answered: a majority with a quorum, else one."""
        quorum = _table(row) in self.sent.quorum and not self.sent.keeper_lags
        for first in range(REPLICAS):
            lucky = {(first + k) % REPLICAS for k in range(REPLICAS // 2 + 1 if quorum else 1)}
            spread = [self._lacking(r, state, row) if r not in lucky else old for r, old in enumerate(state.missing)]
            if self.sent.keeper_lags:
                spread[first] = frozenset()
            yield tuple(spread)

    def _lacking(self, r: int, state: State, row: Row) -> frozenset[Row]:
        """What a replica lacks when it lacks a row, too.

        Where it refuses to answer then, or learns of all before it answers, what exactly it lacks makes no difference:
        one row stands for all, which keeps the number of states small.
        """
        if _table(row) not in self.guarded:
            return state.missing[r] | {row}
        others = frozenset(other for other in state.missing[r] if _table(other) != _table(row))
        return others | {_STANDS_FOR[_table(row)]}

    @staticmethod
    def _with_missing(state: State, r: int, missing: frozenset[Row]) -> State:
        return state._replace(missing=(*state.missing[:r], missing, *state.missing[r + 1 :]))


_STANDS_FOR: dict[str, Row] = {LOCKS: LockRow(-1, False, -1), STATES: StateRow(-1, 0)}


def _table(row: Row) -> str:
    return STATES if isinstance(row, StateRow) else LOCKS


BOUNDS = Bounds(take_over="never", clock=(1,))
"""Two clients, nobody deposed: there is one holder, and what one wrote the next one sees."""

WHOLE = {"Replicated, all sent": REPLICATED, "Shared, all sent": SHARED}
LEFT_OUT: dict[str, Sent] = {
    "Replicated without insert_quorum": replace(REPLICATED, quorum=frozenset()),
    "Replicated without insert_quorum for locks": replace(REPLICATED, quorum=frozenset({STATES})),
    "Replicated without insert_quorum for states": replace(REPLICATED, quorum=frozenset({LOCKS})),
    "Replicated without insert_quorum_parallel=0": replace(REPLICATED, one_by_one=False),
    "Replicated without select_sequential_consistency": replace(REPLICATED, sequential=frozenset()),
    "Replicated without select_sequential_consistency for locks": replace(REPLICATED, sequential=frozenset({STATES})),
    "Replicated without select_sequential_consistency for states": replace(REPLICATED, sequential=frozenset({LOCKS})),
    "Replicated, all sent, to a Keeper that lags": replace(REPLICATED, keeper_lags=True),
    "Shared without select_sequential_consistency": replace(SHARED, sequential=frozenset()),
    "Shared without select_sequential_consistency for locks": replace(SHARED, sequential=frozenset({STATES})),
    "Shared without select_sequential_consistency for states": replace(SHARED, sequential=frozenset({LOCKS})),
}
"""One thing less each."""


def outcome(sent: Sent, bounds: Bounds = BOUNDS) -> Outcome:
    """Explore with some settings."""
    protocol = Replicas(bounds, sent)
    return explore(protocol, protocol.invariants(protocol.one_holder))


def main() -> None:
    """Print the counter-examples, then a table: what is left out, and what breaks."""
    found = {name: outcome(sent) for name, sent in {**WHOLE, **LEFT_OUT}.items()}
    for name, each in found.items():
        sys.stdout.write(f"{name}\n{each}\n\n")
    for name, each in found.items():
        broken = f"breaks {each.broken!r} in {len(each.trace)} steps" if each.broken else "keeps its promises"
        sys.stdout.write(f"{name:<62} {broken}\n")


if __name__ == "__main__":
    main()
