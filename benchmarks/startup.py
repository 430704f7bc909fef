"""How much longer `meltano` takes to start when the add-on is installed. `python -m benchmarks.startup`.

Neither command touches a state. They run in two views of this environment in turn, one with this checkout's package,
the other without it.
"""

from __future__ import annotations

import resource
import sys
from functools import partial

from benchmarks.bench import Bench
from benchmarks.report import Target
from benchmarks.stores import PRODUCT
from benchmarks.timing import COMMAND_SECONDS, Samples, in_turn, spreads
from benchmarks.views import ViewedProject, make_view
from tests.acceptance.project import succeeded

LIMIT_MS = 15
WITHOUT = "Meltano alone"
COMMANDS = {"meltano --version": ("--version",), "meltano config list": ("config", "list", "meltano")}


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
        # a start does the same each time: what else goes on only adds to it, so the least is nearest to its cost
        more = (min(busy[PRODUCT]) - min(busy[WITHOUT])) * 1e3
        target = Target("the least more than without", more, LIMIT_MS, "ms")
        bench.results.add(f"{name}: processor time", "ms", spreads(busy, 1e3), target)


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


if __name__ == "__main__":
    from benchmarks.suite import main

    main(["--only", "startup", *sys.argv[1:]])
