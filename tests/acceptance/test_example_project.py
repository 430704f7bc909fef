"""The example of a project without Meltano does what its README says."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine

from meltano_ch_state import open_store
from meltano_ch_state.errors import SchemaMissingError
from tests.rig.endpoint import Endpoint
from tests.rig.server import ClickHouseServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "nightly_report"
Run = Callable[..., subprocess.CompletedProcess[str]]


def clickhouse(server: Endpoint) -> URL:
    admin = server.users["admin"]
    return URL.create("clickhouse+connect", admin.name, admin.password, server.host, server.http_port)


@pytest.fixture
def run(tmp_path: Path, private_server: ClickHouseServer) -> Run:
    """Runs a module or a script of a copy of the project."""
    project = Path(shutil.copytree(EXAMPLE, tmp_path / "project"))
    own = {
        "REPORT_DATABASE": f"sqlite:///{tmp_path / 'report.db'}",
        "REPORT_CLICKHOUSE": clickhouse(private_server).render_as_string(hide_password=False),
    }

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        environment = {**os.environ, **own}
        return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)

    return call


def sell(folder: Path, *amounts: int) -> None:
    with sqlite3.connect(folder / "report.db") as database:
        database.executemany("INSERT INTO orders (amount) VALUES (?)", [(amount,) for amount in amounts])
    database.close()


def test_a_night_counts_only_what_is_new_and_only_one_process_does_it(
    run: Run, tmp_path: Path, private_server: ClickHouseServer
) -> None:
    for _ in range(2):  # both its own tables and ours may be up to date already
        made = run("-m", "alembic", "upgrade", "head")
        assert made.returncode == 0, made.stderr
    checked = run("-m", "alembic", "check")
    assert "No new upgrade operations detected" in checked.stdout

    sell(tmp_path, 3, 4)
    assert run("job.py").stdout == "orders 1 to 2: 7\n"
    assert run("job.py").stdout == "nothing new\n"
    sell(tmp_path, 5)
    engine = create_engine(clickhouse(private_server))
    store = open_store(engine, schema="report")
    with store.lock("report:nightly", "an operator"):
        refused = run("job.py")
    assert refused.returncode == 75
    assert re.match(r"State 'report:nightly' is locked by .+ \(an operator, for .+\n$", refused.stderr)
    assert run("job.py").stdout == "orders 3 to 3: 5\n"
    state = store.get("report:nightly")
    assert state is not None
    assert state.completed_state == {"last_order": 3}
    engine.dispose()


def test_a_project_that_forgot_to_make_the_tables_is_told_how(private_server: ClickHouseServer) -> None:
    engine = create_engine(clickhouse(private_server))
    with pytest.raises(SchemaMissingError, match="meltano-ch-state upgrade"):
        open_store(engine, schema="nowhere").get("a")
    engine.dispose()


def test_a_project_without_meltano_never_loads_it() -> None:
    script = (
        "import sys, meltano_ch_state as m; m.open_store, m.upgrade, m.metadata; sys.exit('meltano' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
