"""An explicit-state model checker: every interleaving, breadth first, so a counter-example is a shortest one.

A model is a start state and the steps that may follow a state. `explore` visits every state that can be reached,
looks at each with the invariants, and then asks whether every one of them can still come to its end.
"""

from __future__ import annotations

import gc
import os
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

Step = tuple[str, S, bool]
"""What happens, the state it leads to, and whether it can be relied upon (False for faults: a crash, a lost answer)."""

Invariant = Callable[[S], bool]

DEEP = os.environ.get("MODEL_DEEP") == "1"
"""Whether to explore what takes minutes and gigabytes, too."""

STUCK = "every state can still come to its end"


class Model(Protocol[S]):
    """What `explore` needs to know of a protocol."""

    def start(self) -> S:
        """The state everything begins in."""

    def steps(self, state: S) -> Iterable[Step[S]]:
        """All that may happen next."""

    def finished(self, state: S) -> bool:
        """Whether everybody who is alive has come to an end."""


class TooManyStatesError(Exception):
    """The model has more states than the limit: a result from a part of them would prove nothing."""


@dataclass(frozen=True)
class Outcome:
    """What an exploration found.

    Attributes:
        states: How many distinct states were visited.
        broken: The invariant that does not hold (or `STUCK`), None when all is well.
        trace: The steps of a shortest way to the offending state.
    """

    states: int
    broken: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.broken is None:
            return f"{self.states} states, all is well"
        return "\n".join([f"{self.states} states, BROKEN: {self.broken}", *(f"  {step}" for step in self.trace)])


def explore(model: Model[S], invariants: Mapping[str, Invariant[S]], limit: int = 1_000_000) -> Outcome:
    """Visit every reachable state.

    Args:
        model: The protocol.
        invariants: What has to be true of every state, by the sentence that says so.
        limit: The number of states beyond which to stop.

    Returns:
        The first invariant that breaks with a shortest trace to it, or a state that cannot finish any more, or neither.

    Raises:
        TooManyStatesError: There are more states than `limit`.
    """
    with _no_collection():
        return _explore(model, invariants, limit)


def _explore(model: Model[S], invariants: Mapping[str, Invariant[S]], limit: int) -> Outcome:
    start = model.start()
    came_from: dict[S, S | None] = {start: None}
    relied_on: dict[S, list[S]] = {}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for _, reached, reliable in model.steps(state):
            if reliable:
                relied_on.setdefault(reached, []).append(state)
            if reached in came_from:
                continue
            came_from[reached] = state
            broken = _first_broken(invariants, reached)
            if broken:
                return Outcome(len(came_from), broken, _trace(model, came_from, reached))
            queue.append(reached)
        if len(came_from) > limit:
            raise TooManyStatesError(f"more than {limit} states")
    return _look_for_stuck(model, came_from, relied_on)


@contextmanager
def _no_collection() -> Iterator[None]:
    """The states are millions of tuples without circles: to look for some would take a fifth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _first_broken(invariants: Mapping[str, Invariant[S]], state: S) -> str | None:
    return next((name for name, holds in invariants.items() if not holds(state)), None)


def _trace(model: Model[S], came_from: Mapping[S, S | None], state: S) -> tuple[str, ...]:
    """The labels of the way to a state, asked from the model again so that no label has to be kept."""
    labels: list[str] = []
    before = came_from[state]
    while before is not None:
        labels.append(next(label for label, reached, _ in model.steps(before) if reached == state))
        state, before = before, came_from[before]
    return tuple(reversed(labels))


def _look_for_stuck(model: Model[S], came_from: dict[S, S | None], relied_on: Mapping[S, list[S]]) -> Outcome:
    """Go backwards from the ends over the reliable steps only: nobody may need a crash to get on."""
    able = {state for state in came_from if model.finished(state)}
    queue = deque(able)
    while queue:
        for before in relied_on.get(queue.popleft(), ()):
            if before not in able:
                able.add(before)
                queue.append(before)
    stuck = [state for state in came_from if state not in able]
    if not stuck:
        return Outcome(len(came_from))
    dead_end = next((state for state in stuck if _is_dead_end(model, state)), stuck[0])
    return Outcome(len(came_from), STUCK, _trace(model, came_from, dead_end))


def _is_dead_end(model: Model[S], state: S) -> bool:
    """Of the states that cannot finish, the first that cannot even move tells the whole story."""
    return not any(reliable and reached != state for _, reached, reliable in model.steps(state))


def assert_holds(model: Model[S], invariants: Mapping[str, Invariant[S]], at_least: int, limit: int = 400_000) -> None:
    """Explore, tell how many states there are, and fail with the trace if anything breaks.

    Args:
        model: The protocol.
        invariants: As for `explore`.
        at_least: The number of states below which the model must have lost something.
        limit: As for `explore`.
    """
    outcome = explore(model, invariants, limit)
    sys.stdout.write(f"{outcome}\n")
    assert outcome.broken is None, str(outcome)
    assert outcome.states >= at_least, f"only {outcome.states} states"


def assert_breaks(
    model: Model[S],
    invariants: Mapping[str, Invariant[S]],
    broken: str,
    events: Sequence[str],
    limit: int = 400_000,
) -> None:
    """Explore, show the counter-example, and fail unless it breaks this invariant by these events, in this order.

    Args:
        model: The protocol with a mistake.
        invariants: As for `explore`.
        broken: The invariant that has to break, or `STUCK`.
        events: Parts of steps that the trace has to contain.
        limit: As for `explore`.
    """
    outcome = explore(model, invariants, limit)
    sys.stdout.write(f"{outcome}\n({len(outcome.trace)} steps)\n")
    assert outcome.broken == broken, str(outcome)
    steps = iter(outcome.trace)
    for event in events:
        assert any(event in step for step in steps), f"no {event!r} in this order\n{outcome}"
