"""Taking times, of several things in turn, so that a busy moment of the machine strikes them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

CALL_SECONDS, COMMAND_SECONDS = 10.0, 150.0
"""A call, or a command in a process of its own, that has taken so long in all sits out the rounds that are left."""
TENTHS_FROM = 10
"""From so many values on a spread is given by its tenths, else by the least and the greatest."""

Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Spread:
    """Some values of one thing.

    Attributes:
        median: The one in the middle.
        low: Of ten and more values the 10th percentile, else the least.
        high: Of ten and more values the 90th percentile, else the greatest.
        runs: How many there were.
    """

    median: float
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Iterable[float], scale: float = 1.0) -> Spread:
        """The spread of values, each multiplied by a scale."""
        scaled = sorted(value * scale for value in values)
        tenths = statistics.quantiles(scaled, n=10) if len(scaled) >= TENTHS_FROM else scaled
        return cls(statistics.median(scaled), tenths[0], tenths[-1], len(scaled))


def timed(call: Callable[[], object]) -> float:
    """How long a call takes, in seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def in_turn(
    calls: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1, longest: float = CALL_SECONDS
) -> Samples:
    """The seconds that each call took, in each round; see `collect`."""
    for _ in range(warm_up):
        for call in calls.values():
            call()
    return collect({name: lambda call=call: timed(call) for name, call in calls.items()}, rounds, longest)  # type: ignore[misc]


def collect(probes: Mapping[str, Callable[[], float]], rounds: int, longest: float) -> Samples:
    """What each probe gave in each round, one after the other; each round starts with another one.

    One that has taken `longest` seconds in all sits out the rounds that are left.
    """
    seen: Samples = {name: [] for name in probes}
    spent = dict.fromkeys(probes, 0.0)
    names = list(probes)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            if spent[name] < longest:
                began = time.perf_counter()
                seen[name].append(probes[name]())
                spent[name] += time.perf_counter() - began
    return seen


def spreads(samples: Mapping[str, Sequence[float]], scale: float = 1.0) -> dict[str, Spread]:
    """The spread of each."""
    return {name: Spread.of(values, scale) for name, values in samples.items()}


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median ratio, round by round."""
    return statistics.median(a / b for a, b in zip(over, under, strict=False))


def difference(more: Sequence[float], less: Sequence[float]) -> float:
    """The median difference, round by round."""
    return statistics.median(a - b for a, b in zip(more, less, strict=False))
