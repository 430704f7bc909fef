"""What each benchmark gets: a server, a folder, the sizes, and where its results go."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from benchmarks.report import Results
from benchmarks.sizes import Sizes
from benchmarks.stores import Place
from tests.rig.endpoint import Endpoint
from tests.rig.server import shared_server
from tests.rig.users import SCHEMA_PREFIX


@dataclass(frozen=True)
class Bench:
    """A run of the benchmarks."""

    server: Endpoint
    folder: Path
    sizes: Sizes
    results: Results

    @contextmanager
    def place(self) -> Iterator[Place]:
        """A place of its own for the stores, cleaned up afterwards."""
        schema = f"{SCHEMA_PREFIX}{uuid4().hex[:12]}"
        folder = self.folder / schema
        folder.mkdir()
        place = Place(self.server.url(), schema, str(folder))
        try:
            yield place
        finally:
            for name in place.schemas.values():
                self.server.execute(f"DROP DATABASE IF EXISTS {name} SYNC")

    def count(self, sql: str) -> int:
        """The one number that a query gives."""
        return int(self.server.execute(sql))


@contextmanager
def bench(sizes: Sizes, quick: bool) -> Iterator[Bench]:
    """Start a server and make a folder, for the length of a `with` block."""
    with shared_server() as server, tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        yield Bench(server, Path(folder), sizes, Results(machine(server), quick))


def machine(server: Endpoint) -> dict[str, str]:
    """What tells one machine from another."""
    return {
        "ClickHouse": server.version(),
        "cores": str(os.cpu_count()),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
    }
