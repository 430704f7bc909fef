"""One state, nobody else there: update, read, clear, in a warm process. `python -m benchmarks --only update`.

The bare statements of an update are 3 inserts and 2 FINAL reads, also where it is a partial one, which reads the state
that it merges with besides.
"""

from __future__ import annotations

from functools import partial as bind
from typing import Any

from benchmarks import states
from benchmarks.bench import Bench
from benchmarks.report import Target
from benchmarks.stores import BARE, KEEPER, PRODUCT, Place, Store, make, open_all
from benchmarks.timing import in_turn, ratio, spreads

BYTES = 1_000
COMPLETE_LIMIT, PARTIAL_LIMIT, KEEPER_LIMIT = 1.5, 1.6, 1.1


def measure(bench: Bench) -> None:
    """Add a row for each call."""
    with bench.place() as place:
        stores = make(place)
        complete = states.complete(states.state_id(1), BYTES)
        partial = states.partial(states.state_id(2), BYTES)
        for name, state, limit in (("complete", complete, COMPLETE_LIMIT), ("partial", partial, PARTIAL_LIMIT)):
            calls = {store: bind(opened.update, state) for store, opened in stores.items()}
            seen = in_turn(calls, bench.sizes.updates, warm_up=3)
            target = Target("ratio to bare", ratio(seen[PRODUCT], seen[BARE]), limit)
            bench.results.add(f"update, {name}, warm", "ms", spreads(seen, 1e3), target)
        _measure_keeper(bench, place, complete)
        gets = {store: bind(opened.get, state_id=complete.state_id) for store, opened in stores.items()}
        bench.results.add("get, warm", "ms", spreads(in_turn(gets, bench.sizes.updates), 1e3))
        calls = {store: bind(_set_and_clear, opened) for store, opened in stores.items()}
        bench.results.add("update and clear, warm", "ms", spreads(in_turn(calls, bench.sizes.updates // 2), 1e3))


def _measure_keeper(bench: Bench, place: Place, state: Any) -> None:
    """The same update with locks in Keeper; in a schema of its own, where no guard keeps anybody out."""
    opened = open_all(place, [KEEPER, PRODUCT])
    calls = {store: bind(manager.update, state) for store, manager in opened.items()}
    seen = in_turn(calls, bench.sizes.updates, warm_up=3)
    target = Target("ratio to inserts", ratio(seen[KEEPER], seen[PRODUCT]), KEEPER_LIMIT)
    name = "update, complete, warm, locks in Keeper"
    bench.results.add(name, "ms", {PRODUCT: spreads(seen, 1e3)[KEEPER]}, target)


def _set_and_clear(store: Store) -> None:
    store.update(states.complete(states.state_id(3), BYTES))
    store.clear(states.state_id(3))
