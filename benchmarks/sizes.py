"""How much of everything: the full sizes, which the targets are meant for, and quick ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes of all benchmarks."""

    updates: int = 100
    """Rounds of updating, reading and clearing one state."""
    cold: int = 7
    """Rounds of new processes."""
    bulk_states: int = 10_000
    bulk_rounds: int = 3
    ids: tuple[int, ...] = (1_000, 10_000, 200_000, 1_000_000)
    """How many states a table holds; the last but one are exported, too."""
    scale_rounds: int = 40
    state_bytes: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000, 32_000_000)
    size_rounds: int = 30
    processes: tuple[int, ...] = (1, 2, 4, 8)
    """How many want one lock at once; the last of them several times."""
    contention_rounds: int = 5
    contention_seconds: float = 6.0
    churn_updates: int = 20_000
    churn_ids: int = 50
    churn_processes: int = 4
    starts: int = 20
    """Rounds of starting `meltano`."""
    runs: int = 4
    """Rounds of `meltano run`, besides the first, which makes the tables."""
    messages: int = 30
    """STATE messages of each run."""


FULL = Sizes()
QUICK = Sizes(
    updates=10,
    cold=1,
    bulk_states=200,
    bulk_rounds=1,
    ids=(100, 1_000, 2_000),
    scale_rounds=5,
    state_bytes=(1_000, 20_000, 100_000),
    size_rounds=3,
    processes=(1, 2),
    contention_rounds=1,
    contention_seconds=1.0,
    churn_updates=100,
    churn_ids=5,
    churn_processes=2,
    starts=1,
    runs=1,
    messages=3,
)
