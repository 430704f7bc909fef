"""Creating, upgrading and dropping the tables from Python."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, event
from sqlalchemy.exc import DatabaseError

from meltano_ch_state import migrate
from meltano_ch_state.alembic_impl import lost_races_forgiven
from meltano_ch_state.connection import engine_for
from meltano_ch_state.errors import PermissionDeniedError, SchemaError, SchemaMissingError, SchemaTooNewError
from meltano_ch_state.migrate import HEAD, Schema, alembic_config, downgrade, upgrade
from meltano_ch_state.models import build
from meltano_ch_state.repositories.schema import SchemaRepository
from meltano_ch_state.settings import Names, resolve
from tests.migrations.helpers import ROOT, bare_environment, quiet_config, tables
from tests.rig.endpoint import Endpoint

CONTENDER = """
import sys
from meltano_ch_state.connection import engine_for
from meltano_ch_state.migrate import Schema, upgrade
from meltano_ch_state.settings import Names, resolve
import alembic.command
uri, schema, how = sys.argv[1:]
engine, names = engine_for(resolve(uri)), Names(schema)
print("ready", flush=True)
sys.stdin.readline()
upgrade(engine, names) if how == "upgrade" else Schema(engine, names).make_writable()
assert Schema(engine, names).readable()
"""


def test_an_upgrade_creates_the_tables_and_leaves_one_revision(server: Endpoint, engine: Engine, names: Names) -> None:
    upgrade(engine, names)

    assert tables(server, names.schema) == [
        "state",
        "state_alembic",
        "state_history",
        "state_history_view",
        "state_lock",
    ]
    assert SchemaRepository(engine, names).revision() == HEAD


def test_names_and_schema_may_be_others(server: Endpoint, engine: Engine, schema: str) -> None:
    upgrade(engine, Names(schema, "ops-2"))

    assert tables(server, schema) == ["ops-2", "ops-2_alembic", "ops-2_history", "ops-2_history_view", "ops-2_lock"]


def test_a_second_upgrade_only_looks(engine: Engine, names: Names, statements: list[str]) -> None:
    upgrade(engine, names)
    statements.clear()

    upgrade(engine, names)

    assert {statement.split()[0] for statement in statements} == {"SELECT", "EXISTS"}


def test_a_downgrade_to_base_drops_the_tables_and_the_revision(server: Endpoint, engine: Engine, names: Names) -> None:
    upgrade(engine, names)

    downgrade(engine, names)

    assert tables(server, names.schema) == ["state_alembic"]
    assert SchemaRepository(engine, names).revision() is None


def test_up_and_down_send_no_mutation_but_to_drop_columns(engine: Engine, names: Names, statements: list[str]) -> None:
    upgrade(engine, names)
    downgrade(engine, names)
    upgrade(engine, names)

    allowed = {"SELECT", "EXISTS", "CREATE", "INSERT", "TRUNCATE", "DROP", "ALTER"}
    assert {statement.split()[0] for statement in statements} == allowed
    altered = {" ".join(statement.split()[3:5]) for statement in statements if statement.startswith("ALTER")}
    assert altered == {"ADD COLUMN", "DROP COLUMN"}


def test_the_migrations_and_the_models_make_the_same_tables(server: Endpoint, engine: Engine, names: Names) -> None:
    upgrade(engine, names)
    modelled = Names(f"{names.schema}_models")
    server.execute(f"CREATE DATABASE {modelled.schema}")
    build(modelled).metadata.create_all(engine)

    try:
        assert definitions(server, modelled) == definitions(server, names)
    finally:
        server.execute(f"DROP DATABASE {modelled.schema} SYNC")


def definitions(server: Endpoint, names: Names) -> str:
    ours = f"database = '{names.schema}' AND table IN ('{names.table}', '{names.lock_table}', '{names.history_table}')"
    columns = server.execute(
        "SELECT table, name, type, default_kind, default_expression, position, comment FROM system.columns"
        f" WHERE {ours} ORDER BY table, position"
    )
    engines = server.execute(f"SELECT table, engine_full, sorting_key FROM system.tables WHERE {ours} ORDER BY table")
    assert columns.count("\n") > 10
    return f"{columns}\n{engines}"


def test_the_revisions_are_numbers_in_a_row_and_the_last_one_is_head(engine: Engine) -> None:
    revisions = [script.revision for script in ScriptDirectory.from_config(alembic_config(engine)).walk_revisions()]

    assert revisions[::-1] == [f"{number:04}" for number in range(1, len(revisions) + 1)]
    assert revisions[0] == HEAD


def test_a_read_of_a_missing_schema_finds_nothing_and_creates_nothing(
    server: Endpoint, engine: Engine, names: Names, statements: list[str]
) -> None:
    assert not Schema(engine, names).readable()

    assert len(statements) == 1
    assert server.execute(f"SELECT count() FROM system.databases WHERE name = '{names.schema}'") == "0"


def test_a_schema_without_the_version_table_counts_as_missing(server: Endpoint, engine: Engine, names: Names) -> None:
    server.execute(f"CREATE DATABASE {names.schema}")

    assert not Schema(engine, names).readable()


def test_the_first_write_creates_the_tables_and_the_next_only_asks_for_the_revision_and_neighbours(
    engine: Engine, names: Names, statements: list[str]
) -> None:
    Schema(engine, names).make_writable()
    statements.clear()

    Schema(engine, names).make_writable()

    assert len(statements) == 2
    assert f"`{names.schema}`.`state_alembic`" in statements[0]
    assert "system.clusters" in statements[1]


def test_without_auto_upgrade_the_first_write_names_the_command(engine: Engine, names: Names) -> None:
    with pytest.raises(SchemaMissingError, match=f"schema {names.schema} are missing.*meltano-ch-state upgrade"):
        Schema(engine, names, auto_upgrade=False).make_writable()


def test_without_auto_upgrade_an_older_schema_is_named_with_both_revisions(
    engine: Engine, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(engine, names)
    monkeypatch.setattr(migrate, "HEAD", "0003")

    with pytest.raises(SchemaMissingError, match=r"at revision 0002, older than 0003.*meltano-ch-state upgrade"):
        Schema(engine, names, auto_upgrade=False).make_writable()


def test_a_newer_schema_is_refused_with_both_revisions(server: Endpoint, engine: Engine, names: Names) -> None:
    upgrade(engine, names)
    server.execute(f"INSERT INTO {names.schema}.state_alembic SELECT 1, '0009', 9, now64(6)")
    schema = Schema(engine, names)

    for attempt in (schema.readable, schema.make_writable, lambda: upgrade(engine, names)):
        with pytest.raises(SchemaTooNewError, match=f"0009.*{HEAD}"):
            attempt()


def test_six_processes_at_once_all_succeed_and_leave_one_revision(
    server: Endpoint, engine: Engine, names: Names
) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CONTENDER, server.url(), names.schema, how],
            cwd=ROOT,
            env=bare_environment(),
            text=True,
            **pipes,
        )
        for how in ["upgrade", "make_writable"] * 3
    ]
    assert [process.stdout.readline() for process in processes if process.stdout] == ["ready\n"] * 6

    for process in processes:
        print("go", file=process.stdin, flush=True)

    assert [(process.communicate(timeout=60), process.returncode) for process in processes] == [(("", ""), 0)] * 6
    assert SchemaRepository(engine, names).revision() == HEAD
    command.check(quiet_config(engine, names))


def test_six_threads_at_once_all_succeed(engine: Engine, names: Names) -> None:
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda _: Schema(engine, names).make_writable(), range(6)))

    assert SchemaRepository(engine, names).revision() == HEAD


WRITES = {"CREATE", "INSERT", "TRUNCATE", "DROP", "ALTER"}


UP, DOWN = 10, 9
"""So many of them an upgrade and a downgrade send."""


class Crash(BaseException):
    """The process dies here."""


@contextmanager
def crash_before(engine: Engine, number: int) -> Iterator[SimpleNamespace]:
    """Die instead of sending the write of this number, counted from 0."""
    count = SimpleNamespace(writes=0)

    def die(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if statement.split(maxsplit=1)[0] in WRITES:
            if count.writes == number:
                raise Crash
            count.writes += 1

    event.listen(engine, "before_cursor_execute", die)
    try:
        yield count
    finally:
        event.remove(engine, "before_cursor_execute", die)


@pytest.mark.parametrize("number", range(UP))
def test_an_upgrade_goes_on_after_a_crash_before_any_statement(engine: Engine, names: Names, number: int) -> None:
    with crash_before(engine, number), pytest.raises(Crash):
        upgrade(engine, names)
    assert SchemaRepository(engine, names).revision() != HEAD

    upgrade(engine, names)

    assert SchemaRepository(engine, names).revision() == HEAD
    command.check(quiet_config(engine, names))


@pytest.mark.parametrize("number", range(DOWN))
def test_a_downgrade_goes_on_after_a_crash_before_any_statement(
    server: Endpoint, engine: Engine, names: Names, number: int
) -> None:
    upgrade(engine, names)
    with crash_before(engine, number), pytest.raises(Crash):
        downgrade(engine, names)
    if SchemaRepository(engine, names).revision() is None:  # it was being replaced: docs/decisions/0003
        upgrade(engine, names)

    downgrade(engine, names)

    assert tables(server, names.schema) == ["state_alembic"]


def test_the_crashes_cover_every_statement(engine: Engine, names: Names) -> None:
    with crash_before(engine, 99) as up:
        upgrade(engine, names)
    with crash_before(engine, 99) as down:
        downgrade(engine, names)

    assert (up.writes, down.writes) == (UP, DOWN)


def test_a_lost_race_is_success_only_for_if_not_exists() -> None:
    def refused(statement: str, code: int) -> DatabaseError:
        cause = Exception("refused")
        cause.code = code  # type: ignore[attr-defined]
        return DatabaseError(statement, {}, cause)

    for code in (57, 82):
        with lost_races_forgiven():
            raise refused("CREATE TABLE IF NOT EXISTS t", code)
    for statement, code in (("CREATE TABLE t", 57), ("CREATE TABLE IF NOT EXISTS t", 497)):
        with pytest.raises(DatabaseError), lost_races_forgiven():
            raise refused(statement, code)


THEIR_STATE = (
    "state_id String, partial_state String, completed_state String, updated_at DateTime64(3) DEFAULT now()"
    ") ENGINE = ReplacingMergeTree(updated_at) ORDER BY state_id"
)
THEIR_LOCK = "state_id String, lock_id String, locked_at DateTime64(3)) ENGINE = MergeTree ORDER BY state_id"


@pytest.mark.parametrize(
    "theirs",
    [{"state": THEIR_STATE}, {"state_lock": THEIR_LOCK}, {"state": THEIR_STATE, "state_lock": THEIR_LOCK}],
)
def test_tables_of_another_program_are_refused_before_anything_is_touched(
    server: Endpoint, engine: Engine, names: Names, statements: list[str], theirs: dict[str, str]
) -> None:
    server.execute(f"CREATE DATABASE {names.schema}")
    for table, definition in theirs.items():
        server.execute(f"CREATE TABLE {names.schema}.{table} ({definition}")

    with pytest.raises(SchemaError, match=r"in the way.*state_backend\.clickhouse\.schema") as refused:
        Schema(engine, names).make_writable()

    assert all(f"{names.schema}.{table}" in str(refused.value) for table in theirs)
    assert {statement.split()[0] for statement in statements} == {"SELECT", "EXISTS"}
    assert tables(server, names.schema) == sorted(theirs)


def test_other_tables_of_the_schema_do_no_harm(server: Endpoint, engine: Engine, names: Names) -> None:
    server.execute(f"CREATE DATABASE {names.schema}")
    server.execute(f"CREATE TABLE {names.schema}.orders (id UInt8) ENGINE = MergeTree ORDER BY id")

    upgrade(engine, names)
    downgrade(engine, names)

    assert tables(server, names.schema) == ["orders", "state_alembic"]


@pytest.mark.parametrize(
    ("database_exists", "missing"), [(False, "CREATE DATABASE ON {}.*"), (True, "CREATE TABLE ON {}.state_alembic")]
)
def test_a_missing_right_is_named_and_none_is_needed_for_a_database_that_exists(
    server: Endpoint, names: Names, database_exists: bool, missing: str
) -> None:
    if database_exists:
        server.execute(f"CREATE DATABASE {names.schema}")
    runner = engine_for(resolve(server.url("runner")))

    with pytest.raises(PermissionDeniedError) as denied:
        Schema(runner, names).make_writable()

    assert f"grant {missing.format(names.schema)}" in str(denied.value)
    assert "\n" not in str(denied.value)
    assert server.users["runner"].password not in str(denied.value)


@pytest.mark.parametrize("user", ["runner", "reader"])
def test_users_without_ddl_rights_work_on_tables_that_are_there(
    server: Endpoint, engine: Engine, names: Names, user: str
) -> None:
    upgrade(engine, names)
    schema = Schema(engine_for(resolve(server.url(user))), names)

    schema.make_writable()

    assert schema.readable()


def test_an_upgrade_prints_nothing_and_leaves_logging_alone(
    engine: Engine, names: Names, capfd: pytest.CaptureFixture[str]
) -> None:
    theirs = logging.getLogger("a.logger.of.the.program")
    before = (logging.root.handlers[:], logging.root.level, logging.getLogger("alembic").level)

    upgrade(engine, names)

    assert capfd.readouterr() == ("", "")
    assert before == (logging.root.handlers, logging.root.level, logging.getLogger("alembic").level)
    assert not theirs.disabled


def test_looking_at_the_schema_does_not_import_alembic(server: Endpoint, engine: Engine, names: Names) -> None:
    upgrade(engine, names)
    script = (
        "import sys; from meltano_ch_state.connection import engine_for; from meltano_ch_state.migrate import Schema;"
        "from meltano_ch_state.settings import Names, resolve;"
        "schema = Schema(engine_for(resolve(sys.argv[1])), Names(sys.argv[2]));"
        "assert schema.readable(); schema.make_writable(); print('alembic' in sys.modules)"
    )

    answer = subprocess.run(
        [sys.executable, "-c", script, server.url(), names.schema], capture_output=True, text=True, check=True
    )

    assert answer.stdout == "False\n"


def test_the_migration_is_written_out_and_imports_no_model() -> None:
    for script in (ROOT / "alembic" / "versions").glob("*.py"):
        assert "meltano_ch_state" not in script.read_text()


def test_a_replicated_table_that_another_process_just_altered_is_altered_once_more(
    engine: Engine, names: Names, statements: list[str]
) -> None:
    refusals = 3

    class OutrunError(Exception):
        code = 517

    def outrun(connection: object, cursor: object, statement: str, *rest: object) -> None:
        nonlocal refusals
        if statement.startswith("ALTER") and refusals:
            refusals -= 1
            raise DatabaseError(statement, {}, OutrunError("metadata on replica is not up to date"))

    event.listen(engine, "before_cursor_execute", outrun)
    try:
        upgrade(engine, names)
    finally:
        event.remove(engine, "before_cursor_execute", outrun)

    assert SchemaRepository(engine, names).revision() == HEAD
