"""How much longer a `meltano run` takes when its states are in ClickHouse. `python -m benchmarks --only meltano_run`.

The tap sends 30 STATE messages and the target hands each back at once, so Meltano updates its state 30 times, one after
the other; it is checked that each run made its updates, and from the bookmark of the run before. The stores take turns.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from urllib.parse import quote

from benchmarks.bench import Bench
from benchmarks.report import Target
from benchmarks.stores import EMBEDDED, EXISTING, FILES, PRODUCT, SYSTEM, Place, existing
from benchmarks.timing import COMMAND_SECONDS, Samples, collect, difference, spreads
from benchmarks.views import ViewedProject, make_view
from tests.acceptance.project import succeeded

LIMIT_SECONDS = 1.3
"""What a run may take longer than on Meltano's system database."""
UPDATED = "Incremental state has been updated"


def measure(bench: Bench) -> None:
    """Add rows for the first run, which makes the tables, and for later ones."""
    messages = bench.sizes.messages
    with bench.place() as place:
        pipelines = {name: Pipeline(name, it, messages) for name, it in _projects(bench, place).items()}
        probes = {name: partial(_timed, pipeline) for name, pipeline in pipelines.items()}
        first = collect(probes, 1, COMMAND_SECONDS)
        later: Samples = collect(probes, bench.sizes.runs, COMMAND_SECONDS)
    name = f"`meltano run` with {messages} STATE messages"
    more = Target("more than in SQLite", difference(later[PRODUCT], later[SYSTEM]), LIMIT_SECONDS, "s")
    bench.results.add(f"{name}, first", "s", spreads(first))
    bench.results.add(name, "s", spreads(later), more)


class Pipeline:
    """A pipeline that has more to load at each run."""

    def __init__(self, name: str, project: ViewedProject, messages: int) -> None:
        """Nothing is run yet."""
        self.name = name
        self.project = project
        self.messages = messages
        self.loaded = 0

    def run(self) -> None:
        """Load as many new orders as there shall be STATE messages; the old ones are still there."""
        self.loaded += self.messages
        self.project.sell(*range(1, self.loaded + 1))
        updates = succeeded(self.project.pipeline()).stderr.count(UPDATED)
        if updates != self.messages:
            sys.exit(f"{self.name}: {updates} updates, not {self.messages}")


def _timed(pipeline: Pipeline) -> float:
    began = time.perf_counter()
    pipeline.run()
    return time.perf_counter() - began


def _projects(bench: Bench, place: Place) -> dict[str, ViewedProject]:
    folder = Path(place.folder)
    view = make_view(folder / "view", ours=True)
    views = {EXISTING: make_view(folder / "view-existing", theirs=True)} if existing() else {}
    return {
        name: ViewedProject(folder / name.replace(" ", "-"), settings, views.get(name, view))
        for name, settings in _settings(bench, place).items()
    }


def _settings(bench: Bench, place: Place) -> dict[str, dict[str, str]]:
    """The settings of each store, as environment variables."""
    admin = bench.server.users["admin"]
    uri = f"clickhouse://{quote(admin.name, '')}@{bench.server.host}:{bench.server.http_port}/default"
    login = {"MELTANO_STATE_BACKEND_URI": uri, "MELTANO_STATE_BACKEND_CLICKHOUSE_PASSWORD": admin.password}
    found = {
        name: {**login, "MELTANO_STATE_BACKEND_CLICKHOUSE_SCHEMA": place.schemas[name]}
        for name in (PRODUCT, *([EXISTING] if existing() else []))
    }
    return {
        **found,
        SYSTEM: {},
        FILES: {"MELTANO_STATE_BACKEND_URI": f"file://{place.folder}/states"},
        EMBEDDED: {"MELTANO_STATE_BACKEND_URI": f"chdb://{place.folder}/chdb"},
    }
