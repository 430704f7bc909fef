"""`import` and `export`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from click.testing import Result
from meltano.core.state_store import StateBackend
from meltano.core.state_store.base import MeltanoState
from moto import mock_aws

from meltano_ch_state.cli.source import GENERIC_SETTINGS, source_settings
from meltano_ch_state.protocol import StateRow
from meltano_ch_state.settings import resolve
from tests.acceptance.project import Project
from tests.rig.endpoint import Endpoint
from tests.support.cli import COMMAND, Backend, failed

STATES: dict[str, dict[str, Any]] = {
    "": {"completed": {}, "partial": {"a": [None, True, 1.0]}},
    "100%_done:'\"`\\\n": {"completed": {"n": 123456789012345678901234567890}, "partial": None},
    "dev:tap-ünï-to-target\U0001f600": {"completed": {"text": "\u2028\x00\\"}, "partial": {}},
    "prod:a": {"completed": None, "partial": {"z": 1, "a": 2}},
    "prod:b": {"completed": {"n": float("inf")}, "partial": None},
}


def stored(backend: Backend) -> list[Any]:
    """The states as they lie in the table."""
    return backend.sql("SELECT state_id, partial_state, completed_state FROM {schema}.state FINAL ORDER BY state_id")


def actions(document: dict[str, Any]) -> dict[str, str]:
    return {state["state_id"]: state["action"] for state in document["states"]}


def test_what_is_exported_and_imported_elsewhere_is_exactly_the_same(
    backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("copy")
    copy = Backend(f"{backend.uri.partition('?')[0]}?schema={backend.target.settings.schema}&table=copy")
    backend.output("import", "-", stdin=json.dumps(STATES))
    document = backend.output("export")
    assert json.loads(document) == STATES
    (folder / "states.json").write_text(document)
    assert actions(copy.json("import", str(folder / "states.json"))) == dict.fromkeys(STATES, "new")
    assert copy.output("export") == document
    assert copy.sql("SELECT state_id, partial_state, completed_state FROM {schema}.copy FINAL ORDER BY 1") == stored(
        backend
    )


def test_what_is_there_is_replaced_after_a_question_and_what_is_the_same_stays_untouched(backend: Backend) -> None:
    backend.output("import", "-", stdin='{"a": {"completed": {"n": 1}}, "b": {"completed": {"n": 1}}}')
    updated = {state["state_id"]: state["updated_at"] for state in backend.json("states")}
    new = '{"a": {"completed": {"n": 1}}, "b": {"completed": {"n": 1.0}}, "c": {"partial": {}}}'
    plan = {"a": "unchanged", "b": "replaced", "c": "new"}
    before = stored(backend)
    assert failed(backend.run("import", "-", stdin=new), 2).startswith("Error: Nothing was done: ")
    assert actions(backend.json("import", "-", "--dry-run", stdin=new)) == plan
    assert stored(backend) == before
    assert actions(backend.json("import", "-", "--yes", stdin=new)) == plan
    assert backend.json("states")[0]["updated_at"] == updated["a"]
    assert json.loads(backend.output("export"))["b"] == {"completed": {"n": 1.0}, "partial": None}


def test_the_states_that_would_be_replaced_are_named_before_the_question(on_tables: Backend, tmp_path: Path) -> None:
    ids = ["\x1b[31mred", *(f"id {number:02d}" for number in range(13))]
    on_tables.manager().set_all([MeltanoState(state_id, {}, {}) for state_id in ids])
    (tmp_path / "states.json").write_text(json.dumps({i: {"completed": {"n": 1}} for i in [*ids, "new"]}))

    with on_tables.asking("import", str(tmp_path / "states.json")) as question:
        code, out, error = question.answered("n")

    assert question.text.splitlines() == [
        r"replaced  \x1b[31mred",
        *(f"replaced  id {number:02d}" for number in range(9)),
        "and 4 more",
        "Replace 14 states that are there already? [y/N]: ",
    ]
    assert (code, out, error) == (1, "", "Nothing was done.\n")
    assert {row[2] for row in stored(on_tables)} == {"{}"}


def test_a_dry_run_shows_all_and_makes_no_table(fresh: Backend) -> None:
    shown = fresh.output("import", "-", "--dry-run", stdin='{"a": {}}')
    assert [line.split() for line in shown.splitlines()[:2]] == [["STATE", "ACTION"], ["a", "new"]]
    assert shown.splitlines()[2] == "Would import 1 state (1 new, 0 replaced, 0 unchanged)."
    assert fresh.json("current")["revision"] is None


def test_the_first_import_makes_the_tables(fresh: Backend) -> None:
    assert fresh.output("import", "-", stdin='{"a": {}}') == "Imported 1 state (1 new, 0 replaced, 0 unchanged).\n"
    assert fresh.json("current")["status"] == "current"


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("[1", "Cannot import from -: It is no JSON: line 1, column 3."),
        ("{}\n{}", "It is no JSON: line 2, column 1."),
        ("", "It is no JSON: line 1, column 1."),
        ("[]", "It is no JSON object of states"),
        ('{"good": {}, "a": 3}', "State 'a' is not of the form"),
        ('{"good": {}, "a": {"n": 1}}', "State 'a' is not of the form"),
        ('{"good": {}, "a": {"partial": [1]}}', "The partial part of state 'a' is no JSON object"),
        ('{"good": {}, "\\ud800": {}}', "is no state ID"),
        ("\xff", "Cannot import from -: It is no JSON: line 1, column 1."),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_broken_document_is_one_line_and_nothing_is_written(
    on_server: Backend, document: str, complaint: str
) -> None:
    assert complaint in failed(on_server.run("import", "-", "--yes", stdin=document))
    assert on_server.json("current")["revision"] is None


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("no-such-file.json", ": No such file or directory."),
        (".", "Cannot import from .: Is a directory."),
        ("file:///no/such/folder", "There is no such folder"),
        ("nope://user:very-secret@bucket", "No state backend found for scheme 'nope'"),
        ("clickhouse://user:very-secret@127.0.0.1:1", "No answer from ClickHouse at 127.0.0.1:1"),
        ("clickhouse://user:very-secret/more@127.0.0.1:1", "not percent-encoded"),
        ("clickhouse://127.0.0.1:1?password=very-secret&nope=1", "Unknown option 'nope'"),
        ("nope://[", "Cannot import from nope://["),
        ("systemdb", " Are you in a meltano project?\n"),
    ],
)
def test_a_source_that_cannot_be_read_is_one_line_without_its_secret(
    on_server: Backend, source: str, complaint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    result = on_server.run("import", source)
    line = result.stderr.splitlines(keepends=True)[-1]
    assert (result.exit_code, result.stdout) == (1, "")
    assert line.startswith("Error: Cannot import from ")
    assert complaint in line
    assert "very-secret" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_to_import_from_that_is_mistyped_is_named_and_not_made(on_server: Backend, tmp_path: Path) -> None:
    mistyped = tmp_path / "mistyped"
    assert failed(on_server.run("import", f"chdb://{mistyped}")) == (
        f"Error: Cannot import from chdb://{mistyped}: There is no folder {mistyped}. Name another."
    )
    assert failed(on_server.run("import", f"chdb://{tmp_path}")) == (
        f"Error: Cannot import from chdb://{tmp_path}: There is no state store in folder {tmp_path}. Name another."
    )
    assert list(tmp_path.iterdir()) == []


def test_a_user_who_may_not_write_is_told_and_nothing_is_written(on_tables: Backend, server: Endpoint) -> None:
    reader = Backend(on_tables.uri.replace(server.url(), server.url("reader")))
    failed(reader.run("import", "-", stdin='{"a": {}}'))
    assert stored(on_tables) == []


LOCKED = '{"held": {"completed": {"n": 2}}, "new": {}, "other": {"completed": {"n": 2}}, "same": {}}'


def importing_what_is_held(backend: Backend, *options: str) -> Result:
    """Import some states while another holds one of them."""
    impatient = Backend(f"{backend.uri}&lock_acquire_timeout_seconds=0")
    backend.output("import", "-", stdin='{"held": {}, "other": {}, "same": {}}')
    with backend.manager().acquire_lock("held"):
        return impatient.run("import", "-", "--yes", *options, stdin=LOCKED)


def test_a_state_that_is_locked_is_named_and_what_was_imported_is_told(on_tables: Backend) -> None:
    result = importing_what_is_held(on_tables)
    assert (result.exit_code, result.stdout) == (
        1,
        "Imported 2 states (1 new, 1 replaced, 1 unchanged, 1 locked).\n",
    )
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: State 'held' is locked by ")
    assert {row[0]: row[2] for row in stored(on_tables)} == {
        "held": None,
        "new": None,
        "other": '{"n": 2}',
        "same": None,
    }


def test_in_json_a_state_that_is_locked_has_an_action_of_its_own(on_tables: Backend) -> None:
    result = importing_what_is_held(on_tables, "--json")
    assert result.exit_code == 1
    assert actions(json.loads(result.stdout)) == {
        "held": "locked",
        "new": "new",
        "other": "replaced",
        "same": "unchanged",
    }
    assert result.stderr.startswith("Error: State 'held' is locked by ")


def test_states_come_from_another_backend_of_this_package(on_tables: Backend, on_embedded: Backend) -> None:
    states = [MeltanoState(f"id {number}", {}, {"n": number}) for number in range(250)]
    on_embedded.manager().set_all(states)
    assert len(on_tables.json("import", on_embedded.uri)["states"]) == 250
    assert on_tables.output("export") == on_embedded.output("export")


def without_password(uri: str, user: str = "admin", host: str = "127.0.0.1") -> str:
    """The URI of a backend on the test server, with another login."""
    return f"clickhouse://{user}@{uri.rpartition('@')[2].replace('127.0.0.1', host)}"


def test_a_source_with_the_login_of_the_target_needs_no_password_of_its_own(on_tables: Backend) -> None:
    copy = Backend(f"{on_tables.uri}&table=copy")
    on_tables.output("import", "-", stdin='{"a": {}}')
    assert actions(copy.json("import", without_password(on_tables.uri))) == {"a": "new"}


@pytest.mark.parametrize("login", [{"host": "localhost"}, {"user": "reader"}], ids=str)
def test_a_source_with_another_login_does_not_get_the_targets_password(
    on_tables: Backend, login: dict[str, str]
) -> None:
    line = failed(on_tables.run("import", without_password(on_tables.uri, **login)))
    assert "refused the user or the password." in line
    assert line.endswith(
        "Write the password into the URI of the source, percent-encoded; or export its states to a file, and import"
        " that."
    )
    assert "MELTANO_STATE_BACKEND" not in line


@pytest.mark.parametrize(
    ("source", "password"),
    [
        ("clickhouse://ann@db:8443?secure=true", "of-the-target"),
        ("clickhouse://ann@db?secure=true&schema=other", "of-the-target"),
        ("clickhouse://ann:own@db?secure=true", "own"),
        ("clickhouse://ann@db:8443", ""),  # would send it in the clear
        ("clickhouse://ann@db?secure=true&verify=false", ""),  # would send it to whoever answers
        ("clickhouse://ann@db.elsewhere?secure=true", ""),
        ("clickhouse://bob@db?secure=true", ""),
        ("clickhouse://ann@db:9443?secure=true", ""),
    ],
)
def test_the_targets_password_goes_where_the_target_sends_it_and_nowhere_else(source: str, password: str) -> None:
    target = resolve("clickhouse://ann:of-the-target@db?secure=true")
    assert source_settings(source, target).password == password


def test_states_come_from_a_folder_that_meltano_wrote(on_tables: Backend, tmp_path: Path) -> None:
    (tmp_path / "dev:a").mkdir()
    (tmp_path / "dev:a" / "state.json").write_text('{"completed": {"n": 1}, "partial": {}}')
    assert actions(on_tables.json("import", f"file://{tmp_path}")) == {"dev:a": "new"}
    assert json.loads(on_tables.output("export")) == {"dev:a": {"completed": {"n": 1}, "partial": {}}}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of S3, as an AWS of this process has it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "very-secret")
    with mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="pipelines")
        yield "s3://pipelines/prod"


def test_states_come_from_a_bucket_of_s3(on_tables: Backend, bucket: str) -> None:
    there = StateBackend.get_manager_factory(scheme="s3")(uri=bucket, **GENERIC_SETTINGS)
    for state_id in ("dev:tap-a-to-target-b", "prod:tap-a-to-target-b"):
        there.set(MeltanoState(state_id, {}, {"of": state_id}))
    assert set(actions(on_tables.json("import", bucket)).values()) == {"new"}
    assert {row[0]: json.loads(row[2]) for row in stored(on_tables)} == {
        state_id: {"of": state_id} for state_id in ("dev:tap-a-to-target-b", "prod:tap-a-to-target-b")
    }


@pytest.mark.parametrize(
    ("source", "module", "backend", "extra"),
    [
        ("s3://bucket/prefix", "boto3", "s3", "s3"),
        ("azure://container/prefix", "azure", "azure", "azure"),
        ("gs://bucket/prefix", "google", "google", "gcs"),
    ],
)
def test_a_source_whose_package_is_not_installed_is_told_the_extra_of_meltano(  # noqa: PLR0917 - one parameter a case
    on_server: Backend, source: str, module: str, backend: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for name in [each for each in sys.modules if each.startswith(f"meltano.core.state_store.{backend}")]:
        monkeypatch.delitem(sys.modules, name)
    line = on_server.run("import", source).stderr.splitlines()[-1]
    assert line.startswith(f"Error: Cannot import from {source}: ")
    assert module in line
    assert line.endswith(f". Install what Meltano needs for it: pip install 'meltano[{extra}]'.")


def test_a_binary_file_is_no_json(on_server: Backend, tmp_path: Path) -> None:
    (tmp_path / "states.json").write_bytes(b"\x1f\x8b\x08\x00\xff")
    assert failed(on_server.run("import", str(tmp_path / "states.json"))) == (
        f"Error: Cannot import from {tmp_path}/states.json: It is no JSON."
    )


def test_a_bucket_that_is_not_there_is_one_line_without_the_keys(on_tables: Backend, bucket: str) -> None:
    line = failed(on_tables.run("import", bucket.replace("pipelines", "elsewhere")))
    assert line.startswith("Error: Cannot import from s3://elsewhere/prod: ")
    assert "bucket does not exist" in line
    assert "very-secret" not in line


def test_a_state_that_is_broken_in_its_backend_is_one_line_and_nothing_is_written(
    on_tables: Backend, tmp_path: Path
) -> None:
    for name, contents in (("a", '{"completed": {}}'), ("b", "nonsense"), ("c", "[]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text(contents)
    result = on_tables.run("import", f"file://{tmp_path}")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(f"Error: Cannot import from file://{tmp_path}: ")
    assert stored(on_tables) == []


@pytest.mark.timeout(300)
def test_states_move_from_meltanos_own_database_and_back_in_a_project(on_tables: Backend, tmp_path: Path) -> None:
    """As one migrates: import from systemdb, export, and read that with Meltano's own command."""
    states = {name: parts for name, parts in STATES.items() if name and None not in parts.values()}
    project = Project(tmp_path / "project", {})
    project.output("state", "import", stdin=json.dumps(states))
    done = project.run(*COMMAND, "import", "systemdb", "--json", "--uri", on_tables.uri)
    assert done.returncode == 0, done.stderr
    assert "[debug" not in done.stderr
    assert actions(json.loads(done.stdout)) == dict.fromkeys(states, "new")
    exported = on_tables.output("export")
    assert json.loads(exported) == states
    other = Project(tmp_path / "other", {})
    other.output("state", "import", stdin=exported)
    assert other.states() == states


def test_export_replaces_its_file_only_when_it_is_complete(backend: Backend, tmp_path: Path) -> None:
    file = tmp_path / "states.json"
    backend.output("import", "-", stdin='{"a": {}}')
    assert backend.output("export", str(file)) == f"Exported 1 state to {file}.\n"
    before = file.read_text()
    assert json.loads(before) == {"a": {"completed": None, "partial": None}}
    backend.target.states.insert_versions([StateRow("b", None, "nonsense", 1)])
    assert "State 'b' holds something that is no JSON" in failed(backend.run("export", str(file)))
    assert file.read_text() == before
    assert [path.name for path in tmp_path.glob("*.json*")] == ["states.json"]


def test_export_writes_into_a_pipe_and_through_a_link_and_replaces_neither(on_tables: Backend, tmp_path: Path) -> None:
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    link.symlink_to(file)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        on_tables.output("export", str(pipe))
        assert reader.communicate(timeout=60)[0] == "{}\n"
    on_tables.output("export", str(link))
    assert (pipe.is_fifo(), link.is_symlink(), file.read_text()) == (True, True, "{}\n")


def test_export_of_nothing_is_an_empty_document(backend: Backend) -> None:
    assert backend.output("export") == "{}\n"
    assert json.loads(backend.output("export", "-")) == {}


def test_export_tells_in_json_how_many_it_wrote(on_tables: Backend, tmp_path: Path) -> None:
    file = str(tmp_path / "states.json")
    assert on_tables.json("export", file) == {"file": file, "states": 0}


def test_export_where_there_are_no_tables_is_a_failure_not_an_empty_backup(fresh: Backend, tmp_path: Path) -> None:
    assert "There is nothing to export" in failed(fresh.run("export", str(tmp_path / "states.json")))
    assert not (tmp_path / "states.json").exists()


def test_a_file_that_cannot_be_written_is_one_line(on_tables: Backend) -> None:
    assert failed(on_tables.run("export", "/no/such/folder/states.json")) == (
        "Error: Cannot write /no/such/folder/states.json: No such file or directory."
    )


def test_as_processes_export_and_import_are_piped(on_tables: Backend, on_embedded: Backend) -> None:
    on_tables.output("import", "-", stdin=json.dumps(STATES))
    document = on_tables.process("export")
    done = subprocess.run(
        [*COMMAND, "import", "-", "--uri", on_embedded.uri],
        input=document.stdout,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")  # no progress bar where there is no terminal
    assert done.stdout == "Imported 5 states (5 new, 0 replaced, 0 unchanged).\n"
    assert on_embedded.output("export") == document.stdout
