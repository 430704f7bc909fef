"""What many updates leave behind. `python -m benchmarks --only churn`."""

from __future__ import annotations

import multiprocessing
import time
from functools import partial

from benchmarks import states
from benchmarks.bench import Bench
from benchmarks.stores import BARE, PRODUCT, Place, Store, make, opener
from benchmarks.timing import Samples, Spread, in_turn, ratio, spreads

BYTES = 1_000
READS = 50


def measure(bench: Bench) -> None:
    """Read before and after updates of some IDs, each in turn, by several processes with IDs of their own."""
    total, ids, processes = bench.sizes.churn_updates, bench.sizes.churn_ids, bench.sizes.churn_processes
    context = multiprocessing.get_context("spawn")
    with bench.place() as place:
        stores = make(place, [PRODUCT, BARE])
        for number in range(ids):
            for store in stores.values():
                store.update(states.complete(states.state_id(number), BYTES))
        before = _reads(stores)
        with context.Pool(processes) as pool:
            shares = [(place, range(first, ids, processes), total // processes) for first in range(processes)]
            rates = pool.starmap(_update, shares, chunksize=1)
        after = _reads(stores)
        rows = bench.count(f"SELECT count() FROM {place.schema}.state_lock")
        parts = bench.count(f"SELECT count() FROM system.parts WHERE active AND database = '{place.schema}'")
    what = f"{total:,} updates over {ids} IDs"
    bench.results.add(f"get before {what}", "ms", spreads(before, 1e3))
    growth = f"after / before {ratio(after[PRODUCT], before[PRODUCT]):.2f}"
    bench.results.add(f"get after {what}", "ms", spreads(after, 1e3), note=growth)
    bench.results.add(f"active parts after {what}", "", {PRODUCT: Spread.of([parts])})
    bench.results.add(f"rows in state_lock after {what}", "", {PRODUCT: Spread.of([rows])})
    bench.results.add(f"updates by {processes} processes, IDs apart", "/s", {PRODUCT: Spread.of([sum(rates)])})


def _reads(stores: dict[str, Store]) -> Samples:
    return in_turn({name: partial(store.get, states.state_id(0)) for name, store in stores.items()}, READS)


def _update(place: Place, numbers: range, updates: int) -> float:
    """What one process does; returns how many updates it did a second."""
    manager = opener(PRODUCT)(place)
    began = time.perf_counter()
    for turn in range(updates):
        manager.update(states.complete(states.state_id(numbers[turn % len(numbers)]), BYTES, turn))
    return updates / (time.perf_counter() - began)
