"""`current`, `upgrade` and `sql`."""

from __future__ import annotations

import pytest

from meltano_ch_state.migrate import HEAD
from tests.support.cli import Backend, failed


def test_upgrade_makes_the_tables_once(fresh: Backend) -> None:
    schema = fresh.target.settings.schema
    assert fresh.json("current") == {"schema": schema, "revision": None, "head": HEAD, "status": "missing"}
    assert fresh.json("upgrade") == {"schema": schema, "before": None, "after": HEAD}
    assert fresh.json("upgrade", "0001") == {"schema": schema, "before": HEAD, "after": HEAD}
    assert fresh.output("current") == f"{HEAD} (current; this package needs {HEAD})\n"
    assert fresh.output("upgrade") == f"Schema {schema} is at revision {HEAD} already.\n"
    assert fresh.output("upgrade", "0001") == f"Schema {schema} is at revision {HEAD} already, which includes 0001.\n"


def test_the_statements_of_sql_make_the_tables(on_server: Backend) -> None:
    document = on_server.json("sql")
    assert document["sql"] == on_server.output("sql")
    assert on_server.json("current")["status"] == "missing"
    for statement in document["sql"].split(";\n"):
        if statement.strip():
            on_server.sql(statement)
    assert on_server.json("current")["status"] == "current"


def test_sql_needs_no_server_and_no_configuration(tmp_path_factory: pytest.TempPathFactory) -> None:
    done = Backend("", {"CLICKHOUSE_SCHEMA": "ops"}).process("sql", cwd=tmp_path_factory.mktemp("empty"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("CREATE DATABASE IF NOT EXISTS `ops`;\n")


def test_a_revision_in_the_table_that_nobody_knows_is_one_line(on_tables: Backend) -> None:
    on_tables.sql("INSERT INTO {schema}.state_alembic SELECT 1, '0000', 9, now64(6)")
    assert failed(on_tables.run("upgrade")) == "Error: Can't locate revision identified by '0000'."


@pytest.mark.parametrize("revision", ["", "base", "1", "0000", "0099", "head; DROP", "-1"])
@pytest.mark.parametrize("command", ["upgrade", "sql"])
def test_what_is_no_revision_is_wrong_usage_and_the_known_ones_are_named(
    on_server: Backend, command: str, revision: str
) -> None:
    result = on_server.run(command, "--", revision)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith(f"{revision!r} is no revision. Write head, or a number from 0001 to {HEAD}.\n")
    assert on_server.json("current")["revision"] is None


def test_a_schema_that_is_too_new_is_shown_and_refused(on_tables: Backend) -> None:
    on_tables.sql("INSERT INTO {schema}.state_alembic SELECT 1, '0009', 9, now64(6)")
    assert on_tables.json("current")["status"] == "newer"
    for command in (["upgrade"], ["states"], ["locks"], ["export"], ["prune", "--locks"]):
        assert "is at revision 0009" in failed(on_tables.run(*command))


def test_a_user_who_may_not_upgrade_is_told_the_grant(on_server: Backend) -> None:
    runner = Backend(on_server.uri.replace("admin:p%40ss%3Aw%2Frd%2521", "runner:runner-password"))
    assert "GRANT CREATE DATABASE ON" in failed(runner.run("upgrade"))
