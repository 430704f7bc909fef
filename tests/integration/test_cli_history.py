"""`history`, `diff`, `restore`, and what `prune` does to old versions."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import structlog
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state import retry
from meltano_ch_state.errors import ServerError
from meltano_ch_state.protocol import StateRow
from meltano_ch_state.repositories.states import PAGE_ROWS
from tests.rig.endpoint import Endpoint
from tests.rig.server import ClickHouseServer
from tests.support.cli import Backend, failed
from tests.support.replicated import create_replicated_tables

ID = "prod:tap-shop-to-target-warehouse"
DAY_MICROSECONDS = 86_400 * 1_000_000


def bookmarks(**streams: Any) -> dict[str, Any]:
    return {"singer_state": {"bookmarks": streams}}


@pytest.fixture
def told(backend: Backend) -> Backend:
    """A state that was written well, then badly, then cleared."""
    manager = backend.manager()
    manager.set(MeltanoState(ID, {"p": 1}, bookmarks(orders={"id": 1}, customers={"id": 7})))
    manager.set(MeltanoState(ID, {}, bookmarks(orders={"id": 2})))
    manager.clear(ID)
    manager.close()
    return backend


def versions(backend: Backend, state_id: str = ID) -> list[int]:
    return [each["version"] for each in backend.json("history", state_id)]


def test_history_lists_each_version_with_its_writer_and_what_changed(told: Backend) -> None:
    cleared, second, first = told.json("history", ID)

    assert first["version"] < second["version"] < cleared["version"]
    assert [each["cleared"] for each in (first, second, cleared)] == [False, False, True]
    assert (first["operation"], first["changes"]) == ("set", None)
    assert re.fullmatch(r".+@.+:\d+", first["writer"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["updated_at"])
    path = ["singer_state", "bookmarks"]
    assert second["changes"] == [
        {"part": "completed", "stream": "orders", "path": [*path, "orders", "id"], "before": 1, "after": 2},
        {"part": "completed", "stream": "customers", "path": [*path, "customers", "id"], "before": 7},
        {"part": "partial", "stream": None, "path": ["p"], "before": 1},
    ]
    lines = told.output("history", ID).splitlines()
    assert [line.split()[0] for line in lines] == ["VERSION", *(str(version) for version in versions(told))]
    assert "orders.id 1 -> 2, - customers.id 7, - partial p 1" in lines[2]


def test_only_the_newest_versions_are_listed_where_that_is_asked(told: Backend) -> None:
    assert [each["version"] for each in told.json("history", ID, "--last", "2")] == versions(told)[:2]
    assert "orders.id 1 -> 2" in told.output("history", ID, "--last", "2").splitlines()[-1]


def test_diff_compares_any_two_versions(told: Backend) -> None:
    cleared, second, first = versions(told)

    newest = told.json("diff", ID)
    assert (newest["from"], newest["to"]) == (second, cleared)
    whole = told.json("diff", ID, "--from", str(first), "--to", str(first))
    assert whole == {"state_id": ID, "from": first, "to": first, "changes": []}
    assert told.json("diff", ID, "--to", str(first))["from"] is None
    lines = told.output("diff", ID, "--to", str(second)).splitlines()
    assert lines[0].startswith(f"from  {first}  20")
    assert lines[2:] == ["orders.id 1 -> 2", "- customers.id 7", "- partial p 1"]
    assert told.output("diff", ID, "--from", str(first), "--to", str(first)).splitlines()[-1] == "Nothing changed."
    assert told.output("diff", ID, "--to", str(first)).splitlines()[0] == "from  nothing: no earlier version is kept"


def test_one_version_is_printed_whole_as_export_does(told: Backend) -> None:
    cleared, second, first = (str(version) for version in versions(told))

    whole = {ID: {"completed": bookmarks(orders={"id": 1}, customers={"id": 7}), "partial": {"p": 1}}}
    assert told.json("history", ID, "--version", first) == whole
    assert told.output("history", ID, "--version", cleared) == "{}\n"
    assert f"no version {int(first) - 1} that is kept" in failed(
        told.run("history", ID, "--version", str(int(first) - 1))
    )
    told.output("import", "-", stdin=told.output("history", ID, "--version", second))
    assert told.output("export") == told.output("history", ID, "--version", second)


@pytest.mark.parametrize("other", [("--last", "1"), ("--html", "-")])
def test_one_version_is_no_list(on_server: Backend, other: tuple[str, ...]) -> None:
    result = on_server.run("history", ID, "--version", "1", *other)
    assert (result.exit_code, result.stdout) == (2, "")


def test_numbers_that_json_has_not_are_strings(on_tables: Backend) -> None:
    contents = '{"a": Infinity, "b": [-Infinity, NaN], "c": 1e400, "d": 1.0, "e": 12345678901234567890}'
    on_tables.target.states.insert_versions([StateRow("x", None, text, n) for n, text in ((1, "{}"), (2, contents))])

    def strict(*arguments: str) -> Any:
        return json.loads(on_tables.output(*arguments, "--json"), parse_constant=pytest.fail)

    expected = {"a": "Infinity", "b": ["-Infinity", "NaN"], "c": "Infinity", "d": 1.0, "e": 12345678901234567890}
    for changes in (strict("history", "x", "--last", "1")[0]["changes"], strict("diff", "x")["changes"]):
        assert {change["path"][0]: change["after"] for change in changes} == expected
    assert "+ a Infinity" in on_tables.output("diff", "x")


def test_a_restore_brings_back_both_parts_as_a_new_version(told: Backend) -> None:
    first = versions(told)[-1]

    assert told.json("restore", ID, "--version", str(first), "--yes")["restored"] is True

    assert told.manager().get(ID) == MeltanoState(ID, {"p": 1}, bookmarks(orders={"id": 1}, customers={"id": 7}))
    newest = told.json("history", ID)[0]
    assert newest["operation"] == "restore"
    assert newest["version"] > first
    assert len(versions(told)) == 4


def test_a_restore_may_be_undone(told: Backend) -> None:
    cleared, second, _ = versions(told)
    told.output("restore", ID, "--version", str(second), "--yes")
    assert told.manager().get(ID) == MeltanoState(ID, {}, bookmarks(orders={"id": 2}))

    told.output("restore", ID, "--version", str(cleared), "--yes")
    assert told.manager().get(ID) is None


def test_a_restore_that_would_change_nothing_writes_nothing(told: Backend) -> None:
    cleared = versions(told)[0]

    assert told.output("restore", ID, "--version", str(cleared)).endswith("already. Nothing was written.\n")
    assert told.json("restore", ID, "--version", str(cleared))["restored"] is False
    assert len(versions(told)) == 3


def test_a_restore_asks_and_without_a_terminal_does_nothing(told: Backend) -> None:
    second = str(versions(told)[1])

    assert "Give --yes" in failed(told.run("restore", ID, "--version", second), code=2)

    assert told.manager().get(ID) is None
    assert len(versions(told)) == 3


def test_a_restore_shows_the_changes_before_it_asks(told: Backend) -> None:
    second = str(versions(told)[1])
    with told.asking("restore", ID, "--version", second) as question:
        assert question.text == f"+ orders.id 2\nRestore state {ID!r} as of version {second}? [y/N]: "
        assert question.answered("n")[:2] == (1, "")
    assert len(versions(told)) == 3

    with told.asking("restore", ID, "--version", second) as question:
        assert question.answered("y") == (0, f"Restored state {ID!r} as of version {second}.\n", "")
    assert told.manager().get(ID) == MeltanoState(ID, {}, bookmarks(orders={"id": 2}))


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_what_another_writes_before_the_answer_is_not_replaced(told: Backend, more: tuple[str, ...]) -> None:
    second = str(versions(told)[1])
    with told.asking("restore", ID, "--version", second, *more) as question:
        told.manager().set(MeltanoState(ID, {}, bookmarks(orders={"id": 9})))
        told.close()
        code, out, error = question.answered("y")

    assert (code, out.strip()) == (1, "")
    assert error == (
        f"Error: Another wrote state {ID!r} meanwhile, so nothing was written."
        f" Look again: meltano-ch-state history {ID}.\n"
    )
    assert told.manager().get(ID) == MeltanoState(ID, {}, bookmarks(orders={"id": 9}))


def test_a_dry_run_of_a_restore_shows_the_changes_and_writes_nothing(told: Backend) -> None:
    cleared, second, _ = versions(told)

    would = told.json("restore", ID, "--version", str(second), "--dry-run")
    assert (would["dry_run"], would["restored"]) == (True, False)
    assert [change["after"] for change in would["changes"]] == [2]
    assert told.output("restore", ID, "--version", str(second), "--dry-run", "--yes").splitlines() == [
        "+ orders.id 2",
        f"Would restore state {ID!r} as of version {second}.",
    ]
    assert "Nothing was written" in told.output("restore", ID, "--version", str(cleared), "--dry-run")
    assert told.manager().get(ID) is None
    assert len(versions(told)) == 3


def test_a_restore_waits_for_the_lock_like_any_other_write(told: Backend) -> None:
    second = str(versions(told)[1])
    manager = told.manager()
    told.uri += "&lock_acquire_timeout_seconds=0" if "?" in told.uri else "?lock_acquire_timeout_seconds=0"
    with manager.acquire_lock(ID):
        line = failed(told.run("restore", ID, "--version", second, "--yes"))
    assert "is locked by" in line
    assert told.manager().get(ID) is None


def test_a_restore_takes_its_lock_in_keeper_where_the_others_do(on_server: Backend) -> None:
    on_server.uri += "&lock_mode=keeper"
    manager = on_server.manager()
    for value in (1, 2):
        manager.set(MeltanoState("a", {}, {"value": value}))

    on_server.output("restore", "a", "--version", str(versions(on_server, "a")[-1]), "--yes")

    assert manager.get("a") == MeltanoState("a", {}, {"value": 1})


def test_what_cannot_be_read_as_json_is_restored_as_it_was(on_tables: Backend) -> None:
    on_tables.target.states.insert_versions([StateRow("a", None, "not JSON", 1_000_000)])
    on_tables.manager().set(MeltanoState("a", {}, {}))

    on_tables.output("restore", "a", "--version", "1000000", "--yes")

    assert on_tables.sql("SELECT completed_state FROM {schema}.state FINAL") == [("not JSON",)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("history", "nope"), "State 'nope' has no history; versions are kept for 90 days"),
        (("diff", "nope"), "State 'nope' has no history"),
        (("restore", "nope", "--version", "1", "--yes"), "State 'nope' has no history"),
        (("restore", ID, "--version", "5", "--yes"), f"State '{ID}' has no version 5 that is kept"),
        (("diff", ID, "--from", "5"), f"State '{ID}' has no version 5 that is kept"),
        (("diff", ID, "--to", "5"), f"State '{ID}' has no version 5 that is kept"),
    ],
)
def test_what_is_not_there_is_one_line_and_nothing_is_written(
    told: Backend, arguments: tuple[str, ...], said: str
) -> None:
    assert said in failed(told.run(*arguments))
    assert len(versions(told)) == 3


@pytest.mark.parametrize("version", ["-1", "x", "1.5", "", str(2**63)])
def test_a_version_is_a_whole_number(on_tables: Backend, version: str) -> None:
    result = on_tables.run("restore", ID, "--version", version, "--yes")
    assert result.exit_code == 2
    assert "--version" in result.stderr


@pytest.mark.parametrize("command", ["history", "diff", "restore"])
@pytest.mark.parametrize("revision", [None, "0001"])
def test_tables_without_a_history_are_named_with_the_remedy(
    on_server: Backend, command: str, revision: str | None
) -> None:
    if revision:
        on_server.output("upgrade", revision)
    more = ("--version", "1", "--yes") if command == "restore" else ()

    line = failed(on_server.run(command, ID, *more))

    assert re.search("has no history yet. Run: meltano-ch-state upgrade.", line)


def test_without_the_right_to_read_the_history_the_grant_is_named(private_server: ClickHouseServer) -> None:
    Backend(private_server.url()).manager().set(MeltanoState("a", {}, {}))
    backend = Backend(private_server.url("meltano_run"))

    for arguments in (("history", "a"), ("diff", "a"), ("restore", "a", "--version", "1", "--yes")):
        line = failed(backend.run(*arguments))
        assert "GRANT SELECT" in line
        assert "meltano.state_history" in line
    backend.manager().set(MeltanoState("a", {}, {"value": 1}))
    backend.close()


def test_a_state_id_does_not_steer_the_terminal(on_tables: Backend) -> None:
    nasty = "\x1b[31mred\n"
    manager = on_tables.manager()
    manager.set(MeltanoState(nasty, {}, {nasty: nasty}))
    manager.set(MeltanoState(nasty, {}, {}))
    version = versions(on_tables, nasty)[-1]

    for arguments in (("history", nasty), ("diff", nasty), ("restore", nasty, "--version", str(version), "--yes")):
        assert "\x1b" not in on_tables.output(*arguments)


def test_a_long_history_is_read_page_by_page(on_tables: Backend) -> None:
    count = 2 * PAGE_ROWS + 5
    now = time.time_ns() // 1_000
    rows = [StateRow("a", None, json.dumps({"n": n}), now + n) for n in range(count)]
    on_tables.target.states.insert_versions(rows)

    assert versions(on_tables, "a") == [now + n for n in range(count)][::-1]


def test_the_run_is_known(backend: Backend) -> None:
    structlog.contextvars.bind_contextvars(run_id="7a6e7d3c-0000-4000-8000-000000000001")
    try:
        backend.manager().update(MeltanoState("a", {}, {"value": 1}))
    finally:
        structlog.contextvars.unbind_contextvars("run_id")
    backend.manager().set(MeltanoState("a", {}, {"value": 2}))

    outside, inside = backend.json("history", "a")
    assert (inside["run_id"], inside["operation"]) == ("7a6e7d3c-0000-4000-8000-000000000001", "update")
    assert (outside["run_id"], outside["operation"]) == ("", "set")


def test_a_page_is_written_whole(told: Backend, tmp_path: Path) -> None:
    page = tmp_path / "history.html"

    assert told.output("history", ID, "--html", str(page)) == f"Wrote 3 versions to {page}.\n"
    assert "orders.id" in page.read_text()
    assert told.json("history", ID, "--html", str(page)) == {"file": str(page), "versions": 3}
    assert "Cannot write" in failed(told.run("history", ID, "--html", str(tmp_path / "no" / "page.html")))
    failed(told.run("history", "nope", "--html", str(tmp_path / "other.html")))
    assert told.output("history", ID, "--html", "-") == page.read_text()
    assert [path.name for path in tmp_path.glob("*.html")] == ["history.html"]


def test_prune_deletes_the_old_versions_and_no_state(backend: Backend) -> None:
    backend.manager().set(MeltanoState("a", {}, {"value": 1}))
    table = f"`{backend.target.settings.schema}`.state_history"
    backend.sql(
        f"INSERT INTO {table} (state_id, completed_state, updated_at, is_deleted, written_at)"
        " SELECT 'a', '{}', now64(6) - toIntervalDay(40), 0, now64(6) - toIntervalDay(40)"
    )
    would = {"dry_run": True, "states": [], "tombstones": [], "lock_rows": 0, "versions": 1, "locked": []}

    assert backend.json("prune", "--history-older-than", "30d", "--dry-run") == would
    assert len(versions(backend, "a")) == 2
    assert "Give --yes" in failed(backend.run("prune", "--history-older-than", "30d"), code=2)
    assert backend.json("prune", "--history-older-than", "30d", "--yes") == would | {"dry_run": False}

    assert len(versions(backend, "a")) == 1
    assert backend.manager().get("a") == MeltanoState("a", {}, {"value": 1})


def written(backend: Backend, days_ago: int, state_id: str, version: int, *, cleared: bool = False) -> None:
    """Have the history have a version since some days ago."""
    values = f"'{state_id}', '{{}}', fromUnixTimestamp64Micro({version}), {int(cleared)}"
    backend.sql(
        "INSERT INTO {schema}.state_history (state_id, completed_state, updated_at, is_deleted, written_at)"
        f" SELECT {values}, now64(6) - toIntervalDay({days_ago})"
    )


def test_prune_keeps_the_newest_version_of_each_state_however_old_it_is(backend: Backend) -> None:
    for state_id, days in (("unchanged", (80, 70, 60)), ("lately", (80, 70, 1)), ("only", (80,))):
        for number, day in enumerate(days):
            written(backend, day, state_id, 1_000_000 + number)
    written(backend, 80, "cleared", 1_000_000)
    written(backend, 70, "cleared", 1_000_001, cleared=True)
    written(backend, 85, "written in another order", 1_000_001)
    written(backend, 80, "written in another order", 1_000_000)

    assert backend.json("prune", "--history-older-than", "30d", "--dry-run")["versions"] == 6
    assert backend.json("prune", "--history-older-than", "30d", "--yes")["versions"] == 6

    left = {
        state_id: versions(backend, state_id)
        for state_id in ("unchanged", "lately", "only", "cleared", "written in another order")
    }
    assert left == {
        "unchanged": [1_000_002],
        "lately": [1_000_002],
        "only": [1_000_000],
        "cleared": [1_000_001],
        "written in another order": [1_000_001],
    }
    assert backend.json("prune", "--history-older-than", "30d", "--yes")["versions"] == 0


def test_the_history_is_not_pruned_of_all_by_a_slip(on_server: Backend) -> None:
    for none in ("0d", "0s", "00w"):
        result = on_server.run("prune", "--history-older-than", none, "--yes")
        assert result.exit_code == 2
        assert f"'{none}' is too short: give at least 1s." in result.stderr


def test_replicas_are_asked_to_look_each_by_itself(
    server: Endpoint, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They refuse a mutation with a subquery else; this server's replica cannot write, and says so only then."""
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)
    create_replicated_tables(server, schema)
    repository = Backend(f"{server.url()}?schema={schema}").target.history
    with pytest.raises(ServerError) as caught:
        repository.erase_older(1)
    assert "nondeterministic" not in str(caught.value)


def test_a_prune_of_a_history_that_is_not_there_finds_nothing(on_server: Backend) -> None:
    on_server.output("upgrade", "0001")
    assert on_server.json("prune", "--history-older-than", "1s", "--yes")["versions"] == 0


def test_upgrade_applies_another_time_to_a_history_that_is_there(on_server: Backend) -> None:
    on_server.output("upgrade")
    on_server.uri += "&history_days=14"

    on_server.manager().set(MeltanoState("a", {}, {}))
    assert on_server.target.schema.kept_days() == 90
    on_server.output("upgrade")
    assert on_server.target.schema.kept_days() == 14


def test_whoever_may_not_change_that_time_is_told_the_grant(private_server: ClickHouseServer) -> None:
    Backend(private_server.url()).output("upgrade")
    backend = Backend(f"{private_server.url('meltano_restore')}?history_days=14")

    assert "GRANT ALTER TTL" in failed(backend.run("upgrade"))
    backend.close()


def test_two_documents_on_standard_output_are_wrong_usage(on_server: Backend) -> None:
    result = on_server.run("history", ID, "--html", "-", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == (
        "Error: --html - and --json both print on standard output: give --html a file, or leave --json out."
    )
