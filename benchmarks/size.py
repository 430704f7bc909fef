"""Small states and great ones. `python -m benchmarks --only size`."""

from __future__ import annotations

import sys
from functools import partial

from benchmarks import states
from benchmarks.bench import Bench
from benchmarks.report import Curve, Target
from benchmarks.stores import BARE, PRODUCT, make
from benchmarks.timing import Samples, in_turn, spreads

LIMITS_SECONDS = {1_000_000: (0.4, None), 32_000_000: (8.0, 8.0)}
"""Of update and get, by the state's size in bytes."""
PANEL = "bytes"
ROUNDS_OF = 60_000_000
"""A state is written so often that about so many bytes go over the line, but at least 3 times."""


def measure(bench: Bench) -> None:
    """Update and read one state of each size."""
    by_size: dict[int, Samples] = {}
    for size in bench.sizes.state_bytes:
        with bench.place() as place:
            stores = make(place)
            state = states.complete(states.state_id(1), size)
            rounds = max(3, min(bench.sizes.size_rounds, ROUNDS_OF // size))
            warm_up = int(size < max(LIMITS_SECONDS))
            by_size[size] = in_turn({name: partial(it.update, state) for name, it in stores.items()}, rounds, warm_up)
            gets = in_turn({name: partial(it.get, state.state_id) for name, it in stores.items()}, rounds, warm_up)
            for name in set(stores) - {BARE}:
                if stores[name].get(state.state_id).json() != state.json():
                    sys.exit(f"{name}: a state of {size:,} bytes came back changed")
        _row(bench, "update", size, by_size[size], 0)
        _row(bench, "get", size, gets, 1)
    for name in by_size[bench.sizes.state_bytes[0]]:
        points = [spreads(seen, 1e3)[name] for seen in by_size.values()]
        bench.results.curves.append(Curve(PANEL, name, [float(size) for size in by_size], points))


def _row(bench: Bench, call: str, size: int, seen: Samples, which: int) -> None:
    unit, scale = ("s", 1.0) if size >= min(LIMITS_SECONDS) else ("ms", 1e3)
    figures = spreads(seen, scale)
    limit = LIMITS_SECONDS.get(size, (None, None))[which]
    target = None if limit is None else Target("this product", figures[PRODUCT].median, limit, "s")
    kilobytes = size // 1_000
    human = f"{kilobytes // 1_000} MB" if kilobytes >= 1_000 else f"{kilobytes} KB"
    bench.results.add(f"{call} of one state of {human}", unit, figures, target)
