"""Every query of the Grafana dashboard runs on the tables, and shows what is in them."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from meltano_ch_state.protocol import StateRow
from tests.support.cli import Backend

DASHBOARD = json.loads((Path(__file__).parents[2] / "examples" / "grafana" / "meltano-state.json").read_text())
PANELS: dict[str, dict[str, Any]] = {panel["title"]: panel for panel in DASHBOARD["panels"]}
STATE_IDS = ["prod:shop", "it's"]
MINUTE = 60_000_000


@pytest.fixture
def filled(on_tables: Backend) -> Backend:
    """Two states, one of which has two versions and bookmarks of each kind."""
    now = time.time_ns() // 1_000
    rows = []
    for number, age in ((1, 20), (2, 10)):
        at = datetime.fromtimestamp(now / 1e6 - (age + 5) * 60, timezone.utc).isoformat()
        bookmarks = {"orders": {"id": number, "at": at}, "plain": 7 + number, "odd": {"list": [1], "none": None}}
        contents = json.dumps({"singer_state": {"bookmarks": bookmarks}})
        rows.append(StateRow(STATE_IDS[0], None, contents, now - age * MINUTE, False, "me@host:1", "update", "run-1"))
    rows.append(StateRow(STATE_IDS[1], '{"p": 1}', None, now - MINUTE, False, "me@host:1", "set"))
    on_tables.target.states.insert_versions(rows)
    return on_tables


def as_grafana_sends(sql: str, schema: str) -> str:
    """The query with Grafana's macros and variables replaced, for the last hour."""
    chosen = ",".join("'" + state_id.replace("'", "\\'") + "'" for state_id in STATE_IDS)
    sql = sql.replace("${state_id:singlequote}", chosen)
    sql = re.sub(r"\$__timeFilter\((\w+)\)", r"\1 >= now() - 3600 AND \1 <= now() + 60", sql)
    sql = re.sub(r"\$__timeInterval\((\w+)\)", r"toStartOfInterval(toDateTime(\1), INTERVAL 60 second)", sql)
    assert "$" not in sql
    return sql.replace("meltano.", f"`{schema}`.")


def answer(backend: Backend, sql: str) -> list[Any]:
    target = backend.target
    with target.engine.connect() as connection:
        return list(connection.exec_driver_sql(as_grafana_sends(sql, target.settings.schema).replace("%", "%%")))


def rows_of(backend: Backend, title: str) -> list[Any]:
    (target,) = PANELS[title]["targets"]
    return answer(backend, target["rawSql"])


@pytest.mark.parametrize("title", PANELS)
def test_every_panel_has_an_answer(filled: Backend, title: str) -> None:
    assert rows_of(filled, title)


def test_the_variable_lists_the_states(filled: Backend) -> None:
    variable = DASHBOARD["templating"]["list"][1]
    assert [row[0] for row in answer(filled, variable["query"])] == sorted(STATE_IDS)


def test_lag_is_how_far_a_bookmark_was_behind(filled: Backend) -> None:
    found = [(row[1], row[2]) for row in rows_of(filled, "Lag of bookmarks that are times")]
    assert found == [("prod:shop orders at", pytest.approx(300, abs=1))] * 2


def test_numbers_are_plotted_whether_they_stand_in_an_object_or_not(filled: Backend) -> None:
    found = sorted((row[1].strip(), row[2]) for row in rows_of(filled, "Bookmarks that are numbers"))
    assert found == [
        *(("prod:shop orders id", number) for number in (1, 2)),
        *(("prod:shop plain", number) for number in (8, 9)),
    ]


def test_the_counts_are_right(filled: Backend) -> None:
    assert rows_of(filled, "States") == [(2,)]
    assert rows_of(filled, "Locks held") == [(0,)]
    with filled.manager().acquire_lock("prod:shop"):
        assert rows_of(filled, "Locks held") == [(1,)]
    assert sum(row[2] for row in rows_of(filled, "Versions written")) == 3


def test_panels_do_not_overlap_and_fit() -> None:
    taken = [
        (column, line)
        for panel in PANELS.values()
        for column in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(column for column, _ in taken) < 24
