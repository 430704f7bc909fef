"""The benchmarks' command, with its small sizes: that it measures and shows all it says. How fast is not asserted."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stores import existing

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n\x1a\n"
PRODUCT, BARE, SQLITE, FILES = "this product", "bare statements", "Meltano's SQLite", "Meltano's files"
ALL = {PRODUCT, BARE, SQLITE, FILES}
COLUMNS = {
    "update, complete, warm": ALL,
    "update, partial, warm": ALL,
    "update, complete, warm, locks in Keeper": {PRODUCT},
    "get, warm": ALL,
    "update and clear, warm": ALL,
    "get, cold: a whole new process": ALL,
    "update, cold: a whole new process": ALL,
    "new manager and its first get, imports done": ALL,
    "new manager and its first update, imports done": ALL,
    "a bare read at that time": {BARE},
    "2 processes want one lock: acquisitions": {PRODUCT, BARE},
    "2 processes: wait, median": {PRODUCT},
    "2 processes: longest wait of a run": {PRODUCT},
    "2 processes: longest wait / mean wait": {PRODUCT},
    "2 processes: fairness": {PRODUCT},
    "set_all of 200 states of 1 KB": ALL,
    "get_all of 200 states of 1 KB": ALL,
    "listing by a pattern of 200 states of 1 KB": ALL,
    "clear_all of 200 states of 1 KB": ALL,
    "get among 100 IDs": {PRODUCT, BARE},
    "get among 1,000 IDs": {PRODUCT, BARE},
    "get among 2,000 IDs": {PRODUCT, BARE},
    "listing a prefix among 1,000 IDs": {PRODUCT, BARE},
    "listing a prefix among 2,000 IDs": {PRODUCT, BARE},
    "update among 1,000 IDs": {PRODUCT, BARE},
    "update among 2,000 IDs": {PRODUCT, BARE},
    "exporting 1,000 states of 1 KB": {PRODUCT},
    "exporting 1,000 states of 1 KB: greatest memory of the process": {PRODUCT},
    **{f"{call} of one state of {size}": ALL for call in ("update", "get") for size in ("1 KB", "20 KB", "100 KB")},
    **{
        f"meltano {it}{time}": {PRODUCT, "Meltano alone"}
        for it in ("--version", "config list")
        for time in ("", ": processor time")
    },
    "loading the add-on's settings, as every command does": {PRODUCT},
    "meltano run with 3 STATE messages, first": {PRODUCT, SQLITE, FILES, "this product, embedded"},
    "meltano run with 3 STATE messages": {PRODUCT, SQLITE, FILES, "this product, embedded"},
    "get before 100 updates over 5 IDs": {PRODUCT, BARE},
    "get after 100 updates over 5 IDs": {PRODUCT, BARE},
    "active parts after 100 updates over 5 IDs": {PRODUCT},
    "rows in state_lock after 100 updates over 5 IDs": {PRODUCT},
    "updates by 2 processes, IDs apart": {PRODUCT},
}
"""The stores that each row compares, whatever else is installed."""

pytestmark = pytest.mark.timeout(400)  # some eighty processes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with the results, and what was printed."""
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--output", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def results(run: tuple[Path, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run[0] / "benchmarks.json").read_text())
    return found


def test_every_row_has_positive_figures_for_every_store_that_it_compares(results: dict[str, Any]) -> None:
    rows = {row["name"].replace("`", ""): row["figures"] for row in results["rows"]}
    assert set(rows) == set(COLUMNS)
    for name, figures in rows.items():
        assert set(figures) >= COLUMNS[name], name
        for spread in figures.values():
            assert all(math.isfinite(value) and value > 0 for value in spread.values()), name
            assert spread["low"] <= spread["median"] <= spread["high"], name


def test_a_target_is_reported_as_met_just_when_its_figure_keeps_its_limit(results: dict[str, Any]) -> None:
    targets = [row["target"] for row in results["rows"] if row["target"]]
    assert len(targets) >= 15
    for target in targets:
        kept = target["figure"] >= target["limit"] if target["at_least"] else target["figure"] <= target["limit"]
        assert target["met"] is kept


def test_the_table_is_printed_and_kept_with_a_line_for_each_row(run: tuple[Path, str], results: dict[str, Any]) -> None:
    folder, printed = run
    assert (folder / "benchmarks.md").read_text() == printed
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[1:]] == [row["name"] for row in results["rows"]]
    assert len({line.count("|") for line in lines}) == 1


def test_the_plot_is_a_png_of_an_updates_cost_in_three_panels(run: tuple[Path, str], results: dict[str, Any]) -> None:
    assert (run[0] / "benchmarks.png").read_bytes().startswith(PNG)
    assert {curve["panel"] for curve in results["curves"]} == {"ids", "bytes", "processes"}
    assert all(len(curve["x"]) == len(curve["y"]) > 1 for curve in results["curves"])


def test_another_packages_backend_for_clickhouse_is_found_and_ours_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = existing()
    assert installed is None or installed.dist is None or installed.dist.name != "meltano-ch-state"
    metadata = tmp_path / "another_backend-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: another-backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[meltano.state_backends]\nclickhouse = another.backend:Manager\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = existing()
    assert found is not None
    assert found.value == "another.backend:Manager"
