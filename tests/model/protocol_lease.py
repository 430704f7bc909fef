"""The one promise of the lock that needs time: a bare update may leave the check out while its lease is young.

Time passes in ticks, at any moment and without bound but `Bounds.horizon`. A holder inserts its row, sets, and looks
at its own clock when the answer arrives; a successor takes over when the row is a lease old by the server's clock,
which may step forward, or when it saw the row for a whole lease by its own.
Tokens are in order here and both ways of taking the lock are cut short: `protocol` is about those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.checker import Invariant, Step

NEVER = -1


class Holder(NamedTuple):
    """The holder: its next step, when it began to count its lease, and whether it was told that all is well."""

    at: str = "insert"
    since: int = 0
    acked: bool = False


class Successor(NamedTuple):
    """The successor: its next step, when it first saw the row, and what it read."""

    at: str = "watch"
    saw_row_at: int = NEVER
    seen: bool = False


class State(NamedTuple):
    """Both clients, the tables, and two clocks. `written` and `visible`: the holder's update was set; is seen."""

    holder: Holder = Holder()
    successor: Successor = Successor()
    now: int = 0
    ahead: int = 0
    locked_at: int = NEVER
    revoked: bool = False
    written: bool = False
    visible: bool = False


@dataclass(frozen=True)
class LeaseBounds:
    """Ticks: the lease, how young it has to be for a set without a check, the clock's greatest step, and the end."""

    lease: int = 4
    trusted: int = 2
    clock_step: int = 1
    horizon: int = 14


class LeaseProtocol:
    """The protocol as designed, a `checker.Model`."""

    def __init__(self, bounds: LeaseBounds) -> None:
        self.bounds = bounds

    def start(self) -> State:
        return State()

    def finished(self, state: State) -> bool:
        return state.holder.at == state.successor.at == "ended" or state.now == self.bounds.horizon

    def steps(self, state: State) -> Iterator[Step[State]]:
        yield from self._holder_steps(state, state.holder)
        yield from self._successor_steps(state, state.successor)
        if state.now < self.bounds.horizon:
            yield "a tick", state._replace(now=state.now + 1), True
        if state.ahead < self.bounds.clock_step:
            yield "the server's clock steps forward", state._replace(ahead=state.ahead + 1), False

    def _holder_steps(self, state: State, holder: Holder) -> Iterator[Step[State]]:
        """Each statement is sent, lands, and is answered at different times."""
        if holder.at == "insert":
            sent = holder._replace(at="lands", since=state.now)
            yield "H sends its row", state._replace(holder=sent), True
        elif holder.at == "lands":
            landed = state._replace(locked_at=state.now + state.ahead)
            yield "H's row lands", landed._replace(holder=holder._replace(at="answered")), True
        elif holder.at == "answered":
            yield "H is answered, holds", state._replace(holder=self.counting(state, holder)), True
        elif holder.at == "set":
            after = holder._replace(at="set answered")
            yield "H's SET lands", self._set(state)._replace(holder=after), True
        elif holder.at == "set answered":
            yield from self._answered(state, holder)

    def counting(self, state: State, holder: Holder) -> Holder:
        """The lease counts from before the row was sent."""
        return holder._replace(at="set")

    def _answered(self, state: State, holder: Holder) -> Iterator[Step[State]]:
        age = state.now - holder.since
        fine = holder._replace(at="ended", acked=True)
        if age < self.bounds.trusted:
            yield f"H's SET is answered at age {age}: acknowledged", state._replace(holder=fine), True
        else:
            checked = holder._replace(at="ended") if state.revoked else fine
            yield f"H CHECKS: {'fine' if checked.acked else 'lost'}", state._replace(holder=checked), True

    def _set(self, state: State) -> State:
        """The holder's token is smaller: its set is visible only until its successor's."""
        return state._replace(written=True, visible=state.visible or state.successor.at != "ended")

    def _successor_steps(self, state: State, successor: Successor) -> Iterator[Step[State]]:
        if successor.at == "watch" and state.locked_at != NEVER:
            if successor.saw_row_at == NEVER:
                yield (
                    "S sees the row",
                    state._replace(successor=successor._replace(saw_row_at=state.now)),
                    True,
                )
            if self._is_over(state, successor):
                yield "S: the row is over", state._replace(successor=successor._replace(at="revoke")), True
        elif successor.at == "revoke":
            yield "S REVOKES", state._replace(revoked=True, successor=successor._replace(at="get")), True
        elif successor.at == "get":
            got = successor._replace(at="set", seen=state.written)
            yield f"S GETs {'the' if got.seen else 'no'} update of H", state._replace(successor=got), True
        elif successor.at == "set":
            after = state._replace(successor=successor._replace(at="ended"), visible=successor.seen)
            yield "S SETs", after, True

    def _is_over(self, state: State, successor: Successor) -> bool:
        by_server = state.now + state.ahead - state.locked_at >= self.bounds.lease
        by_own = successor.saw_row_at != NEVER and state.now - successor.saw_row_at >= self.bounds.lease
        return by_server or by_own

    def no_update_is_lost(self, state: State) -> bool:
        return state.visible or not state.holder.acked

    def invariants(self) -> dict[str, Invariant[State]]:
        return {"no update is lost": self.no_update_is_lost}


class CountsFromTheAnswer(LeaseProtocol):
    """Mistake: the lease counts from the answer to the insert; the row may have been there long before."""

    def counting(self, state: State, holder: Holder) -> Holder:
        return holder._replace(at="set", since=state.now)
