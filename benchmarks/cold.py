"""One state in a process that is new, or has just imported what it needs. `python -m benchmarks --only cold`.

A child process reads or updates one state; it says how long that took after its imports, and the parent how long the
whole process took. Each one imports Meltano's state class, the bare statements' too: the columns differ in what the
stores add to that.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from functools import partial

from benchmarks import states
from benchmarks.bench import Bench
from benchmarks.report import Target
from benchmarks.stores import BARE, PRODUCT, Place, make, opener
from benchmarks.timing import Samples, Spread, spreads, timed

FIRST_GET_LIMIT = 12
ACT = "act"
BARE_READS = 5


def measure(bench: Bench) -> None:
    """Add a row for each kind of coldness."""
    with bench.place() as place:
        stores = make(place)
        for store in stores.values():
            store.update(states.complete(states.state_id(1), 1_000))
        whole: dict[str, Samples] = {action: {name: [] for name in stores} for action in ("get", "update")}
        first: dict[str, Samples] = {action: {name: [] for name in stores} for action in ("get", "update")}
        reads = []
        for _ in range(bench.sizes.cold):
            for name in stores:
                for action in whole:
                    began = time.perf_counter()
                    first[action][name].append(_child(name, action, place))
                    whole[action][name].append(time.perf_counter() - began)
            reads += [timed(partial(stores[BARE].get, states.state_id(1))) for _ in range(BARE_READS)]
    times = statistics.median(first["get"][PRODUCT]) / statistics.median(reads)
    target = Target("in bare reads", times, FIRST_GET_LIMIT)
    bench.results.add("new manager and its first get, imports done", "ms", spreads(first["get"], 1e3), target)
    bench.results.add("new manager and its first update, imports done", "ms", spreads(first["update"], 1e3))
    bench.results.add("a bare read at that time", "ms", {BARE: Spread.of(reads, 1e3)})
    for action, seen in whole.items():
        bench.results.add(f"{action}, cold: a whole new process", "ms", spreads(seen, 1e3))


def _child(name: str, action: str, place: Place) -> float:
    command = [sys.executable, "-m", "benchmarks.cold", ACT, name, action]
    done = subprocess.run(command, check=True, input=place.dumps(), stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout))


def _act(name: str, action: str) -> None:
    """What the child process does."""
    place = Place.loads(sys.stdin.read())
    open_it = opener(name)
    began = time.perf_counter()
    store = open_it(place)
    if action == "get":
        store.get(states.state_id(1))
    else:
        store.update(states.complete(states.state_id(1), 1_000))
    sys.stdout.write(json.dumps(time.perf_counter() - began))


if __name__ == "__main__":
    if sys.argv[1:2] == [ACT]:
        _act(*sys.argv[2:])
