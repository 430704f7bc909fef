"""`doctor` on the server and on the embedded engine."""

from __future__ import annotations

import json
import time
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any

import pytest

from meltano_ch_state.cli import checks
from meltano_ch_state.cli.checks import DOCTORS_STATE_ID, Checks
from meltano_ch_state.cli.target import target_of
from meltano_ch_state.errors import ServerError
from meltano_ch_state.process import identify
from meltano_ch_state.protocol import LockRow, StateRow
from meltano_ch_state.repositories.server import ServerRepository
from meltano_ch_state.settings import resolve
from tests.rig.endpoint import Endpoint
from tests.support.cli import Backend
from tests.support.replicated import create_replicated_tables

ALL = [
    "connection",
    "tls",
    "version",
    "rights",
    "migrating",
    "schema",
    "history",
    "consistency",
    "nodes",
    "clock",
    "latency",
    "locks",
    "mutations",
    "parts",
    "meltano",
    "settings",
]
GENEROUS_SECONDS = 30

Lines = dict[str, dict[str, str]]


def diagnosis(backend: Backend, code: int = 0) -> Lines:
    """The findings by their check; every warning and failure has a remedy."""
    result = backend.run("doctor", "--json")
    assert result.exit_code == code, result.output
    findings = json.loads(result.stdout)
    for finding in findings:
        assert set(finding) == {"check", "status", "message", "remedy"}
        assert finding["status"] == "ok" or finding["remedy"], finding
    return {finding["check"]: finding for finding in findings}


def statuses(lines: Lines, *wanted: str) -> list[str]:
    return [name for name, line in lines.items() if line["status"] in wanted]


def as_user(backend: Backend, server: Endpoint, user: str) -> Backend:
    return Backend(backend.uri.replace(server.url(), server.url(user)))


def lock_row(**changes: Any) -> LockRow:
    row = {"lease_seconds": 300.0, "token": None, "born": None} | changes
    return LockRow("a", "a-lock", False, False, row["token"], row["born"], row["lease_seconds"], 0, identify("set"))


def test_where_all_is_well_every_line_is_ok(backend: Backend) -> None:
    lines = diagnosis(backend)
    assert list(lines) == ALL
    assert statuses(lines, "warn", "fail") == []
    assert "insert " in lines["latency"]["message"]
    assert "release " in lines["latency"]["message"]
    assert "a lock settles for 0 s" in lines["consistency"]["message"]


def test_it_leaves_no_lock_and_no_state(backend: Backend) -> None:
    diagnosis(backend)
    assert backend.json("locks") == []
    assert backend.json("states") == []
    assert backend.target.locks.read_views([DOCTORS_STATE_ID])[DOCTORS_STATE_ID].live == ()


def test_before_the_first_run_it_says_so_and_makes_nothing(fresh: Backend) -> None:
    lines = diagnosis(fresh)
    assert statuses(lines, "warn", "fail") == ["schema"]
    assert lines["schema"]["remedy"] == "Run: meltano-ch-state upgrade"
    assert fresh.json("current")["revision"] is None


def test_for_people_it_prints_a_table_and_the_remedies(fresh: Backend) -> None:
    done = fresh.process("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["STATUS", "CHECK", "FOUND"]
    assert any(line.split()[:2] == ["warn", "schema"] for line in lines)
    assert any(line.strip() == "-> Run: meltano-ch-state upgrade" for line in lines)


def test_missing_tables_that_no_run_will_make_are_a_failure(on_server: Backend) -> None:
    backend = Backend(f"{on_server.uri}&auto_upgrade=false")
    assert statuses(diagnosis(backend, code=1), "fail") == ["schema"]


@pytest.mark.parametrize("missing", ["state_history", "state_history_view"])
def test_versions_that_are_not_kept_are_a_warning(on_tables: Backend, missing: str) -> None:
    assert diagnosis(on_tables)["history"]["message"] == "The newest versions are kept, for 90 days"
    on_tables.sql(f"DROP TABLE `{on_tables.target.settings.schema}`.{missing} SYNC")
    on_tables.target.states.insert_versions([StateRow("a", None, "{}", time.time_ns() // 1_000 - 120_000_000)])

    lines = diagnosis(on_tables)

    assert statuses(lines, "warn", "fail") == ["history"]
    assert missing in lines["history"]["message"] or "such as that of state 'a'" in lines["history"]["message"]


def test_versions_that_were_pruned_are_no_warning(on_tables: Backend) -> None:
    on_tables.sql("SYSTEM STOP MERGES {schema}.state")
    minutes_ago = time.time_ns() // 1_000 - 300_000_000
    for number in range(3):
        row = StateRow("a", None, "{}", minutes_ago + number)
        on_tables.target.states.insert_versions([row])
    time.sleep(1.1)
    assert on_tables.json("prune", "--history-older-than", "1s", "--yes")["versions"] == 2

    assert diagnosis(on_tables)["history"]["status"] == "ok"


def test_tables_of_before_have_no_history_yet(on_server: Backend) -> None:
    on_server.output("upgrade", "0001")
    assert statuses(diagnosis(on_server), "warn", "fail") == ["schema"]


def test_a_schema_that_is_too_new_is_a_failure(on_tables: Backend) -> None:
    on_tables.sql("INSERT INTO {schema}.state_alembic SELECT 1, '0009', 9, now64(6)")
    lines = diagnosis(on_tables, code=1)
    assert statuses(lines, "fail") == ["schema"]
    assert lines["schema"]["remedy"] == "Upgrade meltano-ch-state"


def test_a_user_with_the_rights_of_a_run_is_told_what_it_could_not_check(on_tables: Backend, server: Endpoint) -> None:
    lines = diagnosis(as_user(on_tables, server, "runner"))
    assert statuses(lines, "warn") == ["nodes", "mutations", "parts"]
    for name, table in (("nodes", "clusters"), ("mutations", "mutations"), ("parts", "parts")):
        assert lines[name]["remedy"] == f"Have an administrator run: GRANT SELECT ON system.{table} TO runner"
    schema = on_tables.target.settings.schema
    assert lines["migrating"]["remedy"].startswith(
        "Not needed for runs. Have an administrator run: GRANT CREATE TABLE ON"
    )
    for grant in (f"CREATE TABLE ON `{schema}`.*", "TABLE ENGINE ON ReplacingMergeTree", f"SELECT ON `{schema}`.state"):
        assert (f"GRANT {grant} TO runner" in lines["migrating"]["remedy"]) == ("SELECT" not in grant)
    assert "insert " in lines["latency"]["message"]


def test_where_tables_are_missing_that_the_user_may_not_make_runs_will_fail(fresh: Backend, server: Endpoint) -> None:
    if fresh.target.settings.scheme == "chdb":
        return
    lines = diagnosis(as_user(fresh, server, "runner"), code=1)
    assert statuses(lines, "fail") == ["schema"]
    assert lines["schema"]["remedy"].startswith("Have a user run meltano-ch-state upgrade")
    assert "Not needed" not in lines["migrating"]["remedy"]
    assert "GRANT CREATE DATABASE ON" in lines["migrating"]["remedy"]


def test_a_history_that_is_kept_for_other_days_than_the_setting_says_is_a_warning(on_tables: Backend) -> None:
    lines = diagnosis(Backend(f"{on_tables.uri}&history_days=9"))
    assert lines["history"]["status"] == "warn"
    assert lines["history"]["message"] == "The newest versions are kept for 90 days, not history_days=9"
    assert lines["history"]["remedy"].startswith("Run: meltano-ch-state upgrade")


def test_for_a_user_who_only_reads_it_only_reads(on_tables: Backend, server: Endpoint) -> None:
    lines = diagnosis(as_user(on_tables, server, "reader"))
    assert lines["rights"]["status"] == "warn"
    assert "INSERT on state, INSERT on state_lock" in lines["rights"]["message"]
    assert "insert " not in lines["latency"]["message"]
    assert on_tables.sql("SELECT count() FROM {schema}.state_lock") == [(0,)]


def test_a_user_without_any_right_is_told_the_grant(on_tables: Backend, server: Endpoint, schema: str) -> None:
    lines = diagnosis(as_user(on_tables, server, "nobody"), code=1)
    assert list(lines) == ALL
    assert statuses(lines, "fail") == ["rights"]
    grant = f"GRANT SELECT, INSERT ON `{schema}`.* TO nobody"
    assert lines["rights"]["remedy"] == f"Have an administrator run: {grant}"


def test_a_failure_is_one_line_on_standard_error_and_the_exit_code(on_tables: Backend, server: Endpoint) -> None:
    result = as_user(on_tables, server, "nobody").run("doctor")
    assert (result.exit_code, result.stderr) == (1, "Error: Failed: rights.\n")


def test_a_server_that_does_not_answer_is_a_failure_and_what_needs_none_is_checked() -> None:
    lines = diagnosis(Backend("clickhouse://someone:very-secret@127.0.0.1:1"), code=1)
    assert list(lines) == ["connection", "tls", "meltano", "settings"]
    assert "Connection refused" in lines["connection"]["message"]


def test_a_wrong_password_is_a_failure_that_does_not_show_it(on_server: Backend, server: Endpoint) -> None:
    backend = Backend(
        on_server.uri.replace(server.url(), f"clickhouse://runner:very-secret@127.0.0.1:{server.http_port}")
    )
    result = backend.run("doctor")
    assert result.exit_code == 1
    assert "refused the user or the password" in result.stdout
    assert "very-secret" not in result.output


@pytest.mark.parametrize("user", ["admin", "runner", "reader", "nobody"])
def test_no_password_is_ever_printed(on_tables: Backend, server: Endpoint, user: str) -> None:
    backend = as_user(on_tables, server, user)
    for options in ([], ["--json"]):
        output = backend.run("doctor", *options).output
        assert server.users[user].password not in output
        assert server.url(user) not in output


def test_a_clock_that_stepped_back_is_a_warning(backend: Backend) -> None:
    ahead = time.time_ns() // 1_000 + 3_600 * 1_000_000
    backend.target.locks.insert_rows([lock_row(token=ahead, born=ahead)])
    line = diagnosis(backend)["clock"]
    assert line["status"] == "warn"
    assert "the server's clock stepped back" in line["message"]


def test_a_clock_that_differs_from_this_hosts_is_a_warning(on_tables: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_SKEW_SECONDS", -1.0)
    assert diagnosis(on_tables)["clock"]["status"] == "warn"


def test_a_lock_beyond_its_lease_is_a_warning_with_the_command_that_ends_it(backend: Backend) -> None:
    backend.target.locks.insert_rows([lock_row(lease_seconds=0.0)])
    line = diagnosis(backend)["locks"]
    assert line["status"] == "warn"
    assert line["message"].startswith("1 of 1 held beyond the lease")
    assert line["remedy"].endswith("meltano-ch-state unlock a --lock-id a-lock")


def test_many_parts_are_a_warning(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_PARTS", 2)
    backend.sql("SYSTEM STOP MERGES {schema}.state_lock")
    for number in range(3):
        backend.target.locks.insert_rows([lock_row(born=number, token=number)])
    assert diagnosis(backend)["parts"]["status"] == "warn"


def test_a_mutation_that_fails_is_a_warning(on_tables: Backend, server: Endpoint, schema: str) -> None:
    on_tables.sql(
        "INSERT INTO {schema}.state (state_id, partial_state, completed_state, updated_at) VALUES ('a', '', '', 1)"
    )
    mutation = f"ALTER TABLE {schema}.state UPDATE partial_state = toString(throwIf(is_deleted = 0)) WHERE 1"
    server.execute(mutation, mutations_sync=0)
    deadline = time.monotonic() + GENEROUS_SECONDS
    while (line := diagnosis(on_tables)["mutations"])["status"] == "ok" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert line["status"] == "warn"
    assert "KILL MUTATION WHERE database = " in line["remedy"]
    on_tables.sql("KILL MUTATION WHERE database = '{schema}'")


def test_tables_of_another_engine_are_a_failure(on_tables: Backend) -> None:
    on_tables.sql("DROP TABLE {schema}.state SYNC")
    on_tables.sql(
        "CREATE TABLE {schema}.state (state_id String, partial_state Nullable(String),"
        " completed_state Nullable(String), updated_at DateTime64(6), is_deleted UInt8)"
        " ENGINE MergeTree ORDER BY state_id"
    )
    assert "consistency" in statuses(diagnosis(on_tables, code=1), "fail")


def test_it_tells_of_replicas_and_that_no_pause_is_needed(server: Endpoint, schema: str) -> None:
    create_replicated_tables(server, schema)
    backend = Backend(f"{server.url('reader')}?schema={schema}")
    assert diagnosis(backend, code=1)["consistency"]["message"].startswith("Replicas (ReplicatedReplacingMergeTree)")


@pytest.mark.parametrize(("replicated", "status"), [("", "fail"), ("&replicated=false", "ok")])
def test_plain_tables_in_a_cluster_are_a_failure_unless_somebody_vouches_for_them(
    on_tables: Backend, monkeypatch: pytest.MonkeyPatch, replicated: str, status: str
) -> None:
    monkeypatch.setattr(ServerRepository, "clusters", lambda _: ["prod"])
    lines = diagnosis(Backend(on_tables.uri + replicated), code=int(status == "fail"))
    assert lines["nodes"]["status"] == status
    assert "prod" in lines["nodes"]["message"]


@pytest.mark.parametrize(
    ("uri", "status"),
    [
        ("clickhouse://db.example.com", "warn"),
        ("clickhouse://db.example.com?secure=true&verify=false", "warn"),
        ("clickhouse://db.example.com?secure=true", "ok"),
        ("clickhouse://localhost", "ok"),
        ("clickhouse://[::1]", "ok"),
    ],
)
def test_what_can_be_read_on_the_way_is_a_warning(uri: str, status: str) -> None:
    assert Checks(target_of(resolve(uri))).tls()[0] == status


@pytest.mark.parametrize(("version", "status"), [("24.3.1.1", "warn"), ("24.8.4.1", "ok"), ("26.7.2.1", "ok")])
def test_a_server_older_than_what_was_tested_is_a_warning(
    on_tables: Backend, monkeypatch: pytest.MonkeyPatch, version: str, status: str
) -> None:
    monkeypatch.setattr(ServerRepository, "version", lambda _: version)
    assert diagnosis(on_tables)["version"]["status"] == status


def test_slow_statements_are_a_warning(on_tables: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "SLOW_MILLISECONDS", 0.0)
    assert diagnosis(on_tables)["latency"]["status"] == "warn"


def test_while_another_doctor_is_at_it_the_statements_are_not_measured(
    on_tables: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "DOCTOR_TIMEOUT_SECONDS", 0.0)
    with on_tables.target.locks.acquire(DOCTORS_STATE_ID):
        line = diagnosis(on_tables)["latency"]
    assert line["status"] == "warn"
    assert "is locked by" in line["message"]


def test_a_second_package_for_the_scheme_is_a_warning_that_tells_which_one_wins(
    on_tables: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "packages" / "other_backend-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[meltano.state_backends]\nclickhouse = other_backend:Manager\n")
    monkeypatch.syspath_prepend(str(info.parent))
    line = diagnosis(on_tables)["meltano"]
    assert line["status"] == "warn"
    assert line["message"] == "2 packages serve clickhouse:// in Meltano; other-backend wins"
    assert line["remedy"] == "Uninstall other-backend: this package is not used now"


def test_a_server_that_cannot_tell_of_rights_is_a_warning(on_tables: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise ServerError("Syntax error")

    monkeypatch.setattr(ServerRepository, "may", refuse)
    lines = diagnosis(on_tables)
    assert lines["rights"]["message"] == lines["migrating"]["message"] == "This server cannot tell: Syntax error"
    assert statuses(lines, "warn") == ["rights"]
    assert "insert " not in lines["latency"]["message"]


def test_a_misspelt_setting_is_a_warning_wherever_it_is(
    on_tables: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project = "project_id: test\nstate_backend:\n  clickhouse:\n    hots: other.example.com\n    schema: meltano\n"
    (tmp_path / "meltano.yml").write_text(project + "state_backend.clickhouse.tabel: states\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MELTANO_STATE_BACKEND_CLICKHOUSE_PASWORD", "very-secret")
    monkeypatch.setenv("MELTANO_STATE_BACKEND_CLICKHOUSE_TABLE", "state")
    line = diagnosis(on_tables)["settings"]
    assert line["status"] == "warn"
    unknown = "MELTANO_STATE_BACKEND_CLICKHOUSE_PASWORD, state_backend.clickhouse.hots, state_backend.clickhouse.tabel"
    assert line["message"] == f"No settings, so without effect: {unknown}"
    assert line["remedy"].startswith("Known settings are host, port, ")
    assert "very-secret" not in str(line)


def test_a_package_that_meltano_does_not_find_is_a_warning(on_tables: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "entry_points", lambda group: EntryPoints())
    assert diagnosis(on_tables)["meltano"]["message"] == "No installed package serves clickhouse:// in Meltano"
