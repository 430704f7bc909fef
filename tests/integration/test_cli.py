"""The command line: locks, and what all commands have in common."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state.cli import main
from meltano_ch_state.errors import StateLockedError, StateLockLostError
from meltano_ch_state.migrate import HEAD
from tests.migrations.helpers import bare_environment
from tests.support.cli import COMMAND, Backend, failed

ID = "dev:tap it's-to-target"
EVERY_COMMAND = sorted(main.commands)
READING = (["doctor"], ["current"], ["states"], ["locks"], ["prune", "--older-than", "1d", "--dry-run"], ["sql"])


def test_locks_lists_who_holds_what(backend: Backend) -> None:
    assert backend.output("locks") == "No state is locked.\n"
    manager = backend.manager()
    with manager.acquire_lock(ID):
        lines = backend.output("locks").splitlines()
        (row,) = backend.json("locks")
    assert lines[0].split() == ["STATE", "HOLDER", "OPERATION", "AGE", "LEASE", "LEFT", "LOCK", "ID"]
    assert lines[1].startswith(f"{ID}  ")
    assert set(row) == {"state_id", "lock_id", "holder", "operation", "age_seconds", "lease_seconds_left"}
    assert (row["state_id"], row["operation"]) == (ID, "update")
    assert 0 <= row["age_seconds"] < 60
    assert 200 < row["lease_seconds_left"] <= 300


def test_the_command_in_the_timeout_error_unlocks_and_the_holder_is_told(backend: Backend) -> None:
    manager, other = backend.manager(), backend.manager(lock_acquire_timeout_seconds=0.2)
    with manager.acquire_lock(ID):
        with pytest.raises(StateLockedError) as caught:
            other.set(MeltanoState(ID, {}, {"n": 1}))
        command = shlex.split(caught.value.unlock_command)
        assert command[0] == "meltano-ch-state"
        assert backend.run(*command[1:], "--yes").exit_code == 0
        other.set(MeltanoState(ID, {}, {"n": 2}))
        with pytest.raises(StateLockLostError):
            manager.set(MeltanoState(ID, {}, {"n": 3}))
    state = manager.get(ID)
    assert state is not None
    assert state.completed_state == {"n": 2}


def test_unlock_tells_whose_lock_it_ended(backend: Backend) -> None:
    with backend.manager().acquire_lock(ID):
        (row,) = backend.json("locks")
        ended = backend.json("unlock", ID, "--lock-id", row["lock_id"], "--yes")
    assert ended == {name: row[name] for name in ("state_id", "lock_id", "holder")}


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_on_a_terminal_unlock_asks_first(on_tables: Backend, answer: str, code: int) -> None:
    manager = on_tables.manager()
    with manager.acquire_lock(ID):
        (row,) = on_tables.json("locks")
        master, terminal = pty.openpty()
        os.write(master, f"{answer}\n".encode())
        try:
            done = on_tables.process("unlock", ID, "--lock-id", row["lock_id"], "--json", stdin=terminal)
        finally:
            os.close(master)
            os.close(terminal)
        assert done.returncode == code, done.stderr
        assert "? [y/N]" in done.stderr
        assert bool(done.stdout.strip()) == (code == 0)  # click 8.2 asks with a space there
        assert len(on_tables.json("locks")) == code


@pytest.mark.parametrize(
    "arguments",
    [["unlock", ID, "--lock-id", "LOCK_ID"], ["prune", "--older-than", "0s"], ["import", "-"]],
    ids=lambda arguments: arguments[0],
)
def test_without_a_terminal_and_without_yes_nothing_is_done(on_tables: Backend, arguments: list[str]) -> None:
    manager = on_tables.manager()
    manager.set(MeltanoState("a", {}, {"n": 1}))
    with manager.acquire_lock(ID):
        (row,) = on_tables.json("locks")
        arguments = [row["lock_id"] if each == "LOCK_ID" else each for each in arguments]
        result = on_tables.run(*arguments, stdin='{"a": {"completed": {"n": 2}}}')
        assert on_tables.json("locks")[0]["lock_id"] == row["lock_id"]
    assert failed(result, 2) == (
        "Error: Nothing was done: this asks first, and there is no terminal. Give --yes to do it."
    )
    assert manager.get("a") == MeltanoState("a", {}, {"n": 1})


@pytest.mark.parametrize("more", [("--yes",), ()], ids=["yes", "asking"])
def test_a_wrong_lock_id_is_one_line_and_writes_nothing(backend: Backend, more: tuple[str, ...]) -> None:
    line = failed(backend.run("unlock", ID, "--lock-id", "nonsense", *more))
    assert line == f"Error: State \"{ID}\" has no live lock with lock_id 'nonsense'. See: meltano-ch-state locks."
    assert backend.sql("SELECT count() FROM {schema}.state_lock") == [(0,)]


def test_a_state_id_that_is_no_text_is_wrong_usage(on_server: Backend) -> None:
    result = on_server.run("unlock", "\udcff", "--lock-id", "x", "--yes")
    assert result.exit_code == 2
    assert "is not valid Unicode" in result.stderr


def test_without_any_configuration_the_command_says_how_to_give_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = failed(CliRunner().invoke(main, ["locks"]))
    assert "No ClickHouse is configured" in line
    assert "--uri" in line


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_every_command_takes_a_uri_and_prints_json_on_demand(command: str) -> None:
    text = CliRunner().invoke(main, [command, "--help"]).stdout
    assert "--uri" in text
    assert "--json" in text


def test_the_help_names_the_exit_codes() -> None:
    assert "Exit codes: 0 done; 1 failed" in CliRunner().invoke(main, ["--help"]).stdout


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: arguments[0])
def test_as_a_process_a_command_prints_one_document_and_nothing_else(on_tables: Backend, arguments: list[str]) -> None:
    done = on_tables.process(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    json.loads(done.stdout)


@pytest.mark.parametrize("command", ["current", "states", "locks", "upgrade", "export"])
def test_a_server_that_does_not_answer_is_one_line(command: str) -> None:
    line = failed(Backend("clickhouse://someone:very-secret@127.0.0.1:1").run(command))
    assert "No answer from ClickHouse at 127.0.0.1:1" in line
    assert "very-secret" not in line


@pytest.mark.parametrize("command", ["states", "locks", "prune --older-than 1d --tombstones --locks --dry-run"])
def test_where_there_are_no_tables_there_is_nothing_and_nothing_is_made(fresh: Backend, command: str) -> None:
    assert fresh.run(*command.split()).exit_code == 0
    assert fresh.json("current")["status"] == "missing"


NOT_MAKING = [
    *(
        ["doctor"],
        ["current"],
        ["states"],
        ["locks"],
        ["export"],
        ["history", "a"],
        ["diff", "a"],
        ["prune", "--locks"],
    ),
    *(["restore", "a", "--version", "1", "--yes"], ["unlock", "a", "--lock-id", "x", "--yes"]),
]


@pytest.mark.parametrize("arguments", NOT_MAKING, ids=lambda arguments: arguments[0])
def test_a_folder_that_is_mistyped_is_named_and_not_made(tmp_path: Path, arguments: list[str]) -> None:
    mistyped = tmp_path / "stat" / "e"
    assert failed(Backend(f"chdb://{mistyped}").run(*arguments)) == (
        f"Error: There is no folder {mistyped}. Name another; or make it: meltano-ch-state upgrade."
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", NOT_MAKING, ids=lambda arguments: arguments[0])
@pytest.mark.parametrize("files", [[], ["meltano.yml", "store"]], ids=["empty", "of something else"])
def test_a_folder_without_a_store_is_named_and_not_littered(
    tmp_path: Path, files: list[str], arguments: list[str]
) -> None:
    for file in files:
        (tmp_path / file).touch()
    assert failed(Backend(f"chdb://{tmp_path}").run(*arguments)) == (
        f"Error: There is no state store in folder {tmp_path}. Name another; or make one there: meltano-ch-state"
        " upgrade."
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == files


@pytest.mark.parametrize("arguments", [["upgrade"], ["import", "-"]], ids=lambda arguments: arguments[0])
@pytest.mark.parametrize("folder", ["state", "."], ids=["missing", "empty"])
def test_what_makes_tables_makes_the_folder_too(tmp_path: Path, folder: str, arguments: list[str]) -> None:
    backend = Backend(f"chdb://{tmp_path / folder}")
    backend.output(*arguments, stdin='{"a": {}}')
    assert backend.json("current")["status"] == "current"
    backend.close()


def test_the_meltano_project_in_the_folder_names_the_backend(tmp_path: Path) -> None:
    (tmp_path / "meltano.yml").write_text("version: 1\nstate_backend:\n  uri: chdb://of-the-project\n")
    done = subprocess.run(
        [*COMMAND, "upgrade", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, json.loads(done.stdout)["after"]) == (0, HEAD), done.stderr
    assert (tmp_path / "of-the-project").is_dir()


WITHOUT_MELTANO = """
import sys
sys.modules["meltano"] = None
from meltano_ch_state.cli import main
main(sys.argv[1:], prog_name="meltano-ch-state")
"""


@pytest.mark.parametrize(
    "arguments",
    [["doctor"], ["upgrade"], ["sql"], ["states"], ["locks"], ["export"], ["import", "-"], ["prune", "--locks"]],
    ids=lambda arguments: arguments[0],
)
def test_what_needs_no_meltano_works_without_it(on_tables: Backend, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MELTANO, *arguments, "--uri", on_tables.uri],
        input='{"a": {}}',
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_traceback(on_tables: Backend) -> None:
    on_tables.manager().set_all([MeltanoState(f"{number}" * 100, {}, {"n": "x" * 1000}) for number in range(300)])
    command = f"{shlex.join(COMMAND)} export --uri {shlex.quote(on_tables.uri)} | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


PRINTING = (["states"], ["export"], ["history", "0", "--json"], ["--help"])


@pytest.mark.parametrize("arguments", PRINTING, ids=shlex.join)
@pytest.mark.parametrize(
    ("redirection", "why"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")], ids=["full", "closed"]
)
@pytest.mark.parametrize("size", [1, 100_000], ids=["short", "long"])
def test_output_that_cannot_be_written_is_a_failure_of_one_line(
    on_tables: Backend, arguments: list[str], redirection: str, why: str, size: int
) -> None:
    on_tables.manager().set(MeltanoState("0", {}, {"n": "x" * size}))
    on_tables.manager().set_all([MeltanoState("1" * size, {}, {})])
    command = f"{shlex.join([*COMMAND, *arguments])} {redirection}"
    environment = bare_environment() | {"MELTANO_STATE_BACKEND_URI": on_tables.uri}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, f"Error: Cannot write standard output: {why}.\n")


@pytest.mark.parametrize("arguments", PRINTING, ids=shlex.join)
def test_a_reader_that_reads_nothing_ends_a_command_quietly(on_tables: Backend, arguments: list[str]) -> None:
    on_tables.manager().set(MeltanoState("0", {}, {}))
    reader, writer = os.pipe()
    os.close(reader)
    try:
        environment = bare_environment() | {"MELTANO_STATE_BACKEND_URI": on_tables.uri}
        done = subprocess.run(
            [*COMMAND, *arguments], env=environment, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_what_else_the_system_refuses_is_not_told_as_a_failure_of_the_output(tmp_path: Path) -> None:
    (tmp_path / "meltano.yml").mkdir()
    done = subprocess.run(
        [*COMMAND, "states"],
        cwd=tmp_path,
        env=bare_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {tmp_path / 'meltano.yml'}: Is a directory.\n"


def test_without_any_standard_input_it_cannot_ask(on_tables: Backend) -> None:
    on_tables.manager().set(MeltanoState("a", {}, {}))
    command = f"{shlex.join([*COMMAND, 'prune', '--older-than', '0s', '--uri', on_tables.uri])} <&-"
    done = subprocess.run(
        command, shell=True, env=bare_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith("Give --yes to do it.\n")
    assert on_tables.manager().get("a") is not None


def test_on_a_terminal_an_import_shows_its_progress(on_tables: Backend, tmp_path: Path) -> None:
    (tmp_path / "states.json").write_text('{"a": {}, "b": {}}')
    master, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, "import", "states.json", "--json", "--uri", on_tables.uri],
            cwd=tmp_path,
            env=bare_environment() | {"TERM": "xterm", "COLUMNS": "80"},
            stdout=subprocess.PIPE,
            stderr=terminal,
            timeout=60,
            check=False,
        )
        shown = os.read(master, 100_000).decode()
    finally:
        os.close(master)
        os.close(terminal)
    assert done.returncode == 0
    assert "Writing" in shown
    assert "2/2" in shown
    assert len(json.loads(done.stdout)["states"]) == 2
