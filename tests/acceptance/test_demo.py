"""`make demo`'s program as a newcomer runs it, and that it is honest when something does not work."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo"

pytestmark = pytest.mark.timeout(300)  # it installs a target from PyPI, and starts Meltano seven times


def run_demo(folder: Path, demo: Path = DEMO) -> "subprocess.CompletedProcess[str]":
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, str(demo / "demo.py")],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_demo_loads_each_order_once_and_shows_where_the_bookmark_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MELTANO_STATE_BACKEND_URI", "clickhouse://unreachable.invalid")
    result = run_demo(tmp_path / "a folder")
    assert result.returncode == 0, result.stdout + result.stderr
    shown = [line for line in result.stdout.splitlines() if line.startswith(("loaded", "the bookmark", "dev:"))]
    assert shown[:5] == [
        "loaded 5 rows: orders 1 to 5",
        "the bookmark: order 5",
        "loaded 3 rows: orders 6 to 8",
        "the bookmark: order 8",
        "dev:tap-orders-to-target-csv",
    ]
    assert '"replication_key_value":8' in shown[5].replace(" ", "")
    tables = [line.split()[0] for line in result.stdout.splitlines() if line.endswith(" row versions")]
    assert tables == [f"meltano.{name}" for name in ("state", "state_alembic", "state_history", "state_lock")]
    assert "None" not in result.stdout
    assert list((tmp_path / "a folder" / ".demo" / "state").iterdir())


def test_the_demo_fails_when_the_tap_ignores_its_bookmark(tmp_path: Path) -> None:
    demo = tmp_path / "demo"
    shutil.copytree(DEMO, demo)
    tap = demo / "tap" / "tap_orders.py"
    code = tap.read_text()
    forgetful = code.replace("if order[KEY] > bookmark:", "if True:")
    assert forgetful != code
    tap.write_text(forgetful)
    result = run_demo(tmp_path, demo)
    assert result.returncode == 1
    expected = "The demo FAILED: the orders that the target wrote: found [1, 2, 3, 4, 5, 6, 7, 8], expected [6, 7, 8]"
    assert result.stderr.strip() == expected
