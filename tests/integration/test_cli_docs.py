"""The transcripts in docs/cli.md are what the commands print. `UPDATE_DOCS=1 pytest tests/integration/test_cli_docs.py`
writes them anew.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from meltano_ch_state.cli import main
from meltano_ch_state.process import Identity
from meltano_ch_state.protocol import LockRow, StateRow
from tests.support.cli import Backend
from tests.support.transcripts import commands_of, replayed

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
STATES = """{
  "dev:tap-shop-to-target-warehouse": {"completed": {"singer_state": {"bookmarks": {"orders": {"id": 41}}}}},
  "prod:tap-shop-to-target-warehouse": {"completed": {"singer_state": {"bookmarks": {"orders": {"id": 97}}}}}
}"""
LOCK_ID = "6f0c2c1e-8f0e-4a8e-9a3c-0d7d5b9f2a11"
DAY_MICROSECONDS = 86_400 * 1_000_000


class World:
    """What there is to be seen in the page."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._seen: set[str] = set()

    def before(self, command: str) -> None:
        """Make what a command is there to show."""
        if command not in self._seen and (make := getattr(self, f"before_{command}", None)):
            make()
        self._seen.add(command)

    def before_locks(self) -> None:
        holder = Identity("meltano@worker-1:4711", "", "update", "0.1.0")
        row = LockRow("prod:tap-shop-to-target-warehouse", LOCK_ID, False, False, None, None, 300.0, 1, holder)
        self._backend.target.locks.insert_rows([row])

    def before_history(self) -> None:
        def version(day: int, writer: str, operation: str, **bookmarks: object) -> StateRow:
            contents = json.dumps({"singer_state": {"bookmarks": bookmarks}})
            at = 1_750_000_000_000_000 + day * DAY_MICROSECONDS
            state_id = "prod:tap-crm-to-target-warehouse"
            return StateRow(state_id, None, contents, at, False, writer, operation, "")

        people, deals = {"updated_at": "2025-06-14T22:10:00+00:00"}, {"id": 1200}
        rows = [
            version(0, "airflow@worker-1:4711", "update", people=people, deals=deals),
            version(
                1, "airflow@worker-2:4712", "update", people={"updated_at": "2025-06-15T22:10:00+00:00"}, deals=deals
            ),
            version(2, "ann@laptop:99", "update", people={"updated_at": "2025-06-16T22:10:00+00:00"}),
        ]
        self._backend.target.states.insert_versions(rows)

    def before_prune(self) -> None:
        now = time.time_ns() // 1_000
        old = StateRow("dev:tap-trial-to-target-warehouse", None, "{}", now - 200 * DAY_MICROSECONDS)
        cleared = StateRow("dev:tap-gone-to-target-warehouse", None, None, now - 60 * DAY_MICROSECONDS, is_deleted=True)
        self._backend.target.states.insert_versions([old, cleared])


def test_the_transcripts_are_what_the_commands_print(
    on_server: Backend, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "states.json").write_text(STATES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MELTANO_STATE_BACKEND_URI", on_server.uri)
    page = PAGE.read_text()
    now = replayed(page, schema, World(on_server).before)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(now)
    assert page == now


def test_every_command_has_a_transcript() -> None:
    assert {arguments[0] for arguments in commands_of(PAGE.read_text())} == set(main.commands)
