"""How much longer `meltano` takes to start when the add-on is installed. `python -m benchmarks --only startup`.

Neither command touches a state. They run in two views of this environment in turn, one with this checkout's package,
the other without it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from functools import partial

from benchmarks.bench import Bench
from benchmarks.report import Target
from benchmarks.stores import PRODUCT
from benchmarks.timing import COMMAND_SECONDS, Samples, Spread, in_turn, spreads
from benchmarks.views import ViewedProject, make_view
from tests.acceptance.project import succeeded

LIMIT_MS = 15
WITHOUT = "Meltano alone"
COMMANDS = {"meltano --version": ("--version",), "meltano config list": ("config", "list", "meltano")}

_LOAD = """
import time
from meltano.core.behavior.addon import MeltanoAddon
found = list(MeltanoAddon("meltano.settings").installed)
ours = [point for point in found if point.value.startswith("meltano_ch_state.")]
meltanos_own = [point.load() for point in found if point not in ours]
began = time.perf_counter()
assert [point.load() for point in ours]
print(time.perf_counter() - began)
"""


def measure(bench: Bench) -> None:
    """Add rows for each command: the time that passes, and the processor's, which other programs lengthen less."""
    root = bench.folder / "startup"
    root.mkdir()
    projects = {
        PRODUCT: ViewedProject(root / "with", {}, make_view(root / "view-with", ours=True)),
        WITHOUT: ViewedProject(root / "without", {}, make_view(root / "view-without")),
    }
    _check(projects)
    for name, arguments in COMMANDS.items():
        busy: Samples = {view: [] for view in projects}
        calls = {view: partial(_start, project, arguments, busy[view]) for view, project in projects.items()}
        passed = in_turn(calls, bench.sizes.starts, warm_up=0, longest=COMMAND_SECONDS)
        bench.results.add(name, "ms", spreads(passed, 1e3))
        bench.results.add(f"{name}: processor time", "ms", spreads(busy, 1e3))
    loading = Spread.of([_loading() for _ in range(bench.sizes.starts)], 1e3)
    target = Target("this product", loading.median, LIMIT_MS, "ms")
    bench.results.add("loading the add-on's settings, as every command does", "ms", {PRODUCT: loading}, target)


def _loading() -> float:
    """How long a new process takes to load our settings, when it has loaded Meltano's own, which are add-ons, too.

    Two starts of a command differ by more from one another than by this.
    """
    done = subprocess.run([sys.executable, "-c", _LOAD], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def _start(project: ViewedProject, arguments: tuple[str, ...], busy: list[float]) -> None:
    """Run a command, and note how long the processor was busy with it, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    succeeded(project.meltano(*arguments))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def _check(projects: dict[str, ViewedProject]) -> None:
    """End the benchmark if the views do not differ in our settings."""
    host = {"MELTANO_STATE_BACKEND_CLICKHOUSE_HOST": "example.com"}
    shown = {view: "example.com" in it.output("config", "list", "meltano", **host) for view, it in projects.items()}
    if shown != {PRODUCT: True, WITHOUT: False}:
        raise SystemExit(f"the views show the add-on: {shown}")
