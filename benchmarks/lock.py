"""Processes that want one lock all the time. `python -m benchmarks --only lock`.

Each takes it, writes the state, releases it, and wants it again. The bare statements are sent by one process in
sequence, right after each run: as many as an ideal lock could let through, one holder after the other.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from typing import Any
from uuid import uuid4

from benchmarks import states
from benchmarks.bench import Bench
from benchmarks.report import Curve, Target
from benchmarks.stores import BARE, PRODUCT, Place, make, opener
from benchmarks.timing import Samples, Spread, ratio, spreads

RATE_LIMIT, WAIT_LIMIT_SECONDS = 20, 2.0
PANEL = "processes"
BARE_SECONDS = 1.5
BYTES = 1_000


def measure(bench: Bench) -> None:
    """Let more and more processes compete."""
    costs: dict[str, list[Spread]] = {PRODUCT: [], BARE: []}
    with bench.place() as place:
        bare = make(place, [BARE])[BARE]
        for count in bench.sizes.processes:
            rounds = bench.sizes.contention_rounds if count == bench.sizes.processes[-1] else 1
            runs, rates = [], []
            for _ in range(rounds):
                runs.append(_contend(place, count, bench.sizes.contention_seconds))
                rates.append(_bare_rate(bare))
            seen = {PRODUCT: [sum(map(len, run)) / bench.sizes.contention_seconds for run in runs], BARE: rates}
            for name, points in costs.items():
                points.append(Spread.of(1e3 / rate for rate in seen[name]))
    _rows(bench, runs, seen)
    counts = [float(count) for count in bench.sizes.processes]
    bench.results.curves += [Curve(PANEL, name, counts, points) for name, points in costs.items()]


def _rows(bench: Bench, runs: list[list[list[float]]], rates: Samples) -> None:
    """The rows of the run with the most processes: the waits, run by run and process by process."""
    count = bench.sizes.processes[-1]
    share = ratio(rates[PRODUCT], rates[BARE])
    figures = spreads(rates)
    target = Target(
        f"share of bare {share:.2f}; this product", figures[PRODUCT].median, RATE_LIMIT, "/s", at_least=True
    )
    bench.results.add(f"{count} processes want one lock: acquisitions", "/s", figures, target)
    waits = [[wait for process in run for wait in process] for run in runs]
    longest = Spread.of(map(max, waits))
    bench.results.add(
        f"{count} processes: wait, median", "ms", {PRODUCT: Spread.of(map(statistics.median, waits), 1e3)}
    )
    target = Target("the longest of all runs", max(map(max, waits)), WAIT_LIMIT_SECONDS, "s")
    bench.results.add(f"{count} processes: longest wait of a run", "s", {PRODUCT: longest}, target)
    bench.results.add(
        f"{count} processes: longest wait / mean wait",
        "",
        {PRODUCT: Spread.of(max(seen) / statistics.mean(seen) for seen in waits)},
    )
    bench.results.add(
        f"{count} processes: fairness",
        "",
        {PRODUCT: Spread.of(min(map(len, run)) / max(map(len, run)) for run in runs)},
        note="turns of the process that had the fewest / of the one that had the most",
    )


def _bare_rate(bare: Any) -> float:
    """How often a second the statements of an update can be sent, one after the other."""
    sent, began = 0, time.perf_counter()
    while time.perf_counter() - began < BARE_SECONDS:
        bare.update(states.complete("bare", BYTES))
        sent += 1
    return sent / (time.perf_counter() - began)


def _contend(place: Place, count: int, seconds: float) -> list[list[float]]:
    """Let processes take one lock in turn; the seconds that each waited each time."""
    context = multiprocessing.get_context("spawn")
    waits, start, ready = context.Queue(), context.Event(), context.Semaphore(0)
    arguments = (place, seconds, waits, start, ready)
    processes = [context.Process(target=_compete, args=arguments) for _ in range(count)]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    start.set()
    seen = [waits.get() for _ in processes]
    for process in processes:
        process.join()
    return seen


def _compete(place: Place, seconds: float, waits: Any, start: Any, ready: Any) -> None:
    """Take the lock again and again, write under it, and note how long each time it took to get it."""
    manager = opener(PRODUCT)(place)
    manager.set(states.complete(f"warm-up-{uuid4()}", BYTES))
    ready.release()
    start.wait()
    seen = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        with manager.acquire_lock("contended", retry_seconds=1):
            seen.append(time.perf_counter() - began)
            manager.set(states.complete("contended", BYTES))
    waits.put(seen)
