"""One state among very many, and exporting them all. `python -m benchmarks --only scale`.

The tables are filled on the server: each ID has one state, and the live row and the tombstone of one lock.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import states
from benchmarks.bench import Bench
from benchmarks.report import Curve, Target
from benchmarks.stores import BARE, PRODUCT, Place, Store, make, opener
from benchmarks.timing import Samples, in_turn, ratio, spreads
from tests.rig.endpoint import Endpoint

BYTES, SMALL_BYTES, SMALL_FROM = 1_000, 200, 200_000
GET_LIMIT_MS, LIST_LIMIT_MS, GROWTH_LIMIT, EXPORT_LIMIT_MB = 40, 300, 3, 600
PREFIX = "prod:tap-shop-to-target-warehouse:tenant-00000*"
READ_ALL = "read-all"
PANEL = "ids"
STORES = [PRODUCT, BARE]


def measure(bench: Bench) -> None:
    """Fill tables of each size, and measure in all of them in turn."""
    with ExitStack() as stack:
        places = {count: stack.enter_context(bench.place()) for count in bench.sizes.ids}
        stores = {count: make(place, STORES) for count, place in places.items()}
        for count, place in places.items():
            for name in STORES:
                fill(bench.server, place.schemas[name], count)
        gets = _in_all(bench, stores, lambda store, name: store.get(name))
        updates = _in_all(bench, stores, _update)
        lists = _in_all(bench, stores, lambda store, _: list(store.get_state_ids(PREFIX)))
        _rows(bench, gets, updates, lists)
        _export(bench, *list(places.items())[-2])


def fill(server: Endpoint, schema: str, count: int) -> None:
    """Put states and the rows of their last locks into tables; where they are very many, small ones."""
    key = '{"singer_state": {"bookmarks": {"orders": {"replication_key_value": "'
    size = BYTES if count <= SMALL_FROM else SMALL_BYTES
    half = (size - len(key)) // 2  # a byte is two digits
    value = f"concat('{key}', hex(randomString({half})), '\"}}}}}}}}')"
    server.execute(
        f"INSERT INTO {schema}.state (state_id, completed_state, updated_at)"
        f" SELECT {states.STATE_ID_SQL}, {value}, now64(6) FROM numbers({count})"
    )
    for released in (0, 1):
        values = f"toString(reinterpretAsUUID(number)), {released}, 300, {released}, 'me@here:1'"
        server.execute(
            f"INSERT INTO {schema}.state_lock (state_id, lock_id, released, lease_seconds, sequence, holder)"
            f" SELECT {states.STATE_ID_SQL}, {values} FROM numbers({count})"
        )


def _in_all(
    bench: Bench, stores: dict[int, dict[str, Store]], act: Callable[[Store, str], object]
) -> dict[str, dict[int, list[float]]]:
    """The seconds of a call with a random ID, by store and number of IDs."""
    chance = random.Random(26)

    def call(name: str, count: int) -> Callable[[], object]:
        return lambda: act(stores[count][name], states.state_id(chance.randrange(count)))

    keys = {f"{name}|{count}": (name, count) for name in STORES for count in stores}
    seen: Samples = in_turn({key: call(*pair) for key, pair in keys.items()}, bench.sizes.scale_rounds)
    return {name: {count: seen[f"{name}|{count}"] for count in stores} for name in STORES}


def _update(store: Store, name: str) -> None:
    store.update(states.complete(name, BYTES))


def _rows(bench: Bench, gets: Any, updates: Any, lists: Any) -> None:
    *_, many, most = bench.sizes.ids
    fewest = bench.sizes.ids[0]

    def row(name: str, seen: Any, count: int, target: Callable[[Samples], Target] | None = None) -> None:
        samples = {store: seen[store][count] for store in STORES}
        bench.results.add(f"{name} among {count:,} IDs", "ms", spreads(samples, 1e3), target and target(samples))

    def median_below(limit: float) -> Callable[[Samples], Target]:
        return lambda samples: Target("this product", spreads(samples, 1e3)[PRODUCT].median, limit, "ms")

    def growth(samples: Samples) -> Target:
        return Target(f"times that among {fewest:,}", ratio(samples[PRODUCT], gets[PRODUCT][fewest]), GROWTH_LIMIT)

    row("get", gets, fewest)
    row("get", gets, many, median_below(GET_LIMIT_MS))
    row("get", gets, most, growth)
    row("listing a prefix", lists, many, median_below(LIST_LIMIT_MS))
    row("listing a prefix", lists, most)
    row("update", updates, many)
    row("update", updates, most)
    for store in STORES:
        counts = [float(count) for count in updates[store]]
        bench.results.curves.append(Curve(PANEL, store, counts, list(spreads(updates[store], 1e3).values())))


def _export(bench: Bench, count: int, place: Place) -> None:
    """Let a child process read all states, one by one."""
    told = [_child(place) for _ in range(bench.sizes.bulk_rounds)]
    if any(one["count"] != count for one in told):
        sys.exit(f"exporting {count:,} states gave {told}")
    peaks = spreads({PRODUCT: [one["peak_mb"] for one in told]})
    target = Target("this product", peaks[PRODUCT].high, EXPORT_LIMIT_MB, "MB")
    bench.results.add(f"exporting {count:,} states of 1 KB: greatest memory of the process", "MB", peaks, target)
    bench.results.add(f"exporting {count:,} states of 1 KB", "s", spreads({PRODUCT: [one["seconds"] for one in told]}))


def _child(place: Place) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.scale", READ_ALL]
    done = subprocess.run(command, check=True, input=place.dumps(), stdout=subprocess.PIPE, text=True)
    told: dict[str, float] = json.loads(done.stdout)
    return told


def _read_all() -> None:
    """What the child process does."""
    store = opener(PRODUCT)(Place.loads(sys.stdin.read()))
    began = time.perf_counter()
    count = sum(1 for _ in store.get_all())
    seconds = time.perf_counter() - began
    sys.stdout.write(json.dumps({"count": count, "seconds": seconds, "peak_mb": _peak_mb()}))


def _peak_mb() -> float:
    """The greatest resident memory of this process, in MB. Linux's ru_maxrss starts with the parent's."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    if sys.argv[1:] == [READ_ALL]:
        _read_all()
