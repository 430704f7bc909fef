"""Runs the benchmarks, prints the table, and writes it and the plot into a folder."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.bench import bench
from benchmarks.plot import draw
from benchmarks.report import Results
from benchmarks.sizes import FULL, QUICK
from benchmarks.stores import EXISTING, existing

PARTS = ("update", "cold", "lock", "bulk", "scale", "size", "startup", "meltano_run", "churn")
"""The modules with a benchmark each, in their order."""
NO_EXISTING = f"{EXISTING}: meltano-state-backend-clickhouse is not installed, so it has no column."
OUTPUT = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: takes a minute, and says little")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder for the results; default: %(default)s")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="some of the benchmarks")
    chosen = parser.parse_args(arguments)
    with bench(QUICK if chosen.quick else FULL, chosen.quick) as it:
        if not existing():
            it.results.notes.append(NO_EXISTING)
        for part in chosen.only:
            began = time.monotonic()
            import_module(f"benchmarks.{part}").measure(it)
            write(it.results, chosen.output)
            sys.stderr.write(f"{part}: {time.monotonic() - began:.0f} s\n")
    sys.stdout.write(it.results.markdown() + "\n")
    sys.stderr.write(f"written to {chosen.output}\n")


def write(results: Results, folder: Path) -> None:
    """Write the table, the figures and the plot of what has been measured so far."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmarks.md").write_text(results.markdown() + "\n")
    (folder / "benchmarks.json").write_text(results.json() + "\n")
    if results.curves:
        draw(results, folder / "benchmarks.png")
