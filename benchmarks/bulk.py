"""Many states at once: set_all, get_all, listing by a pattern, clear_all. `python -m benchmarks --only bulk`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from benchmarks import states
from benchmarks.bench import Bench
from benchmarks.report import Target
from benchmarks.stores import PRODUCT, Store, make
from benchmarks.timing import Samples, spreads, timed

BYTES = 1_000
LIMITS = {"set_all": (4, "s"), "get_all": (3, "s"), "listing by a pattern": (200, "ms"), "clear_all": (3, "s")}
PATTERN = "prod:tap-*-to-target-warehouse:tenant-00000*"
MATCHING = 100
TOO_SLOW_SECONDS = 20
"""A store whose round takes longer has only one."""


def measure(bench: Bench) -> None:
    """Add a row for each call."""
    count = bench.sizes.bulk_states
    many = [states.complete(states.state_id(number), BYTES, number) for number in range(count)]
    with bench.place() as place:
        stores = make(place)
        seen: dict[str, Samples] = {call: {name: [] for name in stores} for call in LIMITS}
        for _ in range(bench.sizes.bulk_rounds):
            for name, store in list(stores.items()):
                took = {call: _checked(call, name, act, expected) for call, act, expected in _calls(store, many)}
                for call, seconds in took.items():
                    seen[call][name].append(seconds)
                if sum(took.values()) > TOO_SLOW_SECONDS:
                    del stores[name]
    for call, (limit, unit) in LIMITS.items():
        figures = spreads(seen[call], 1e3 if unit == "ms" else 1)
        target = Target("this product", figures[PRODUCT].median, limit, unit)
        bench.results.add(f"{call} of {count:,} states of 1 KB", unit, figures, target)


def _calls(store: Store, many: Sequence[object]) -> list[tuple[str, Callable[[], int], int]]:
    """The calls, in their order, and what each shall count."""
    return [
        ("set_all", lambda: int(store.set_all(iter(many))), len(many)),
        ("get_all", lambda: sum(1 for _ in store.get_all()), len(many)),
        ("listing by a pattern", lambda: len(list(store.get_state_ids(PATTERN))), MATCHING),
        ("clear_all", lambda: int(store.clear_all()), len(many)),
    ]


def _checked(call: str, name: str, act: Callable[[], int], expected: int) -> float:
    counted: list[int] = []
    seconds = timed(lambda: counted.append(act()))
    if counted != [expected]:
        sys.exit(f"{call}, {name}: {counted[0]} states, not {expected}")
    return seconds
