"""Alembic's command line: where it finds the database, and what it prints."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from meltano_ch_state.migrate import HEAD, upgrade
from meltano_ch_state.project import find_settings
from meltano_ch_state.repositories.schema import SchemaRepository
from meltano_ch_state.settings import Names
from tests.migrations.helpers import ROOT, Run, tables
from tests.rig.endpoint import Endpoint

ALEMBIC = (str(Path(sys.executable).with_name("alembic")),)


def test_every_command_works_with_options_of_the_command_line(
    alembic: Run, server: Endpoint, engine: Engine, names: Names
) -> None:
    admin = server.users["admin"]
    options = {
        "host": server.host,
        "port": server.http_port,
        "user": admin.name,
        "password": admin.password,
        "schema": names.schema,
        "database": names.schema,
    }
    given = [argument for name, value in options.items() for argument in ("-x", f"{name}={value}")]

    up = alembic(*given, "upgrade", "head")
    assert up.returncode == 0, up.stderr
    assert "Running upgrade 0001 -> 0002" in up.stderr
    assert alembic(*given, "current").stdout == f"{HEAD} (head)\n"
    assert alembic(*given, "check").stdout == "No new upgrade operations detected.\n"
    assert alembic(*given, "downgrade", "base").returncode == 0
    assert alembic(*given, "current").stdout == ""
    assert SchemaRepository(engine, names).revision() is None


def test_the_environment_names_the_database(alembic: Run, server: Endpoint, engine: Engine, names: Names) -> None:
    answer = alembic(
        "upgrade", "head", MELTANO_STATE_BACKEND_URI=server.url(), MELTANO_STATE_BACKEND_CLICKHOUSE_SCHEMA=names.schema
    )

    assert answer.returncode == 0, answer.stderr
    assert SchemaRepository(engine, names).revision() == HEAD


def test_the_source_checkout_has_an_alembic_ini(alembic: Run, names: Names) -> None:
    answer = alembic("history", command=ALEMBIC, cwd=ROOT)

    assert answer.stdout.splitlines() == [
        "0001 -> 0002 (head), Every version of every state, with its writer.",
        "<base> -> 0001, State and lock tables.",
    ]


def test_the_meltano_project_in_the_folder_names_the_database(
    alembic: Run, server: Endpoint, engine: Engine, names: Names, tmp_path: Path
) -> None:
    write_project(tmp_path, server.url())
    (tmp_path / ".env").write_text(f"MELTANO_STATE_BACKEND_CLICKHOUSE_SCHEMA={names.schema}\n")

    answer = alembic("upgrade", "head", cwd=tmp_path)

    assert answer.returncode == 0, answer.stderr
    assert SchemaRepository(engine, names).revision() == HEAD


def test_in_a_project_too_standard_output_is_sql_only(alembic: Run, tmp_path: Path) -> None:
    write_project(tmp_path, "clickhouse://unused?schema=of_the_project")

    answer = alembic("upgrade", "head", "--sql", cwd=tmp_path)

    assert answer.stdout.startswith("CREATE DATABASE IF NOT EXISTS `of_the_project`;\n"), answer.stderr


def test_the_command_line_wins_over_the_project(alembic: Run, tmp_path: Path) -> None:
    write_project(tmp_path, "clickhouse://unused?schema=of_the_project")

    answer = alembic("-x", "schema=given", "upgrade", "head", "--sql", cwd=tmp_path)

    assert "`given`" in answer.stdout
    assert "of_the_project" not in answer.stdout


def write_project(folder: Path, uri: str) -> None:
    """Write a `meltano.yml` with a state backend."""
    (folder / "meltano.yml").write_text(f"project_id: test\nstate_backend:\n  uri: {uri}\n")


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ([], {}, "No ClickHouse is configured. Give --uri .*MELTANO_STATE_BACKEND_URI.*Meltano project"),
        (["-x", "colour=red", "-x", "host=h"], {}, "Unknown setting state_backend.clickhouse.colour"),
        ([], {"MELTANO_STATE_BACKEND_URI": "s3://bucket"}, "another scheme"),
        (["-x", "uri=clickhouse://user:pass-word@127.0.0.1:1"], {}, "No answer from ClickHouse at 127.0.0.1:1"),
    ],
)
def test_an_error_is_one_line_without_secrets(
    alembic: Run, arguments: list[str], environment: dict[str, str], said: str
) -> None:
    answer = alembic(*arguments, "current", **environment)

    assert answer.returncode != 0
    assert "pass-word" not in answer.stdout + answer.stderr
    assert answer.stderr == ""
    assert re.fullmatch(f"FAILED: .*{said}.*\n?", answer.stdout)


def test_what_is_given_is_laid_over_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(tmp_path, "clickhouse://host-of-the-project?schema=one")
    monkeypatch.chdir(tmp_path)

    settings = find_settings({"schema": None, "table": "ops"})

    assert (settings.host, settings.schema, settings.table) == ("host-of-the-project", "one", "ops")


@pytest.mark.parametrize(
    "content",
    ["", "state_backend: {uri: systemdb}", "version: 1\n  bad: [", "[1, 2]", "just text"],
    ids=["empty", "another backend", "no YAML", "a list", "a text"],
)
def test_a_project_without_a_clickhouse_is_one_line(alembic: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "meltano.yml").write_text(content)

    answer = alembic("current", cwd=tmp_path)

    assert answer.returncode != 0
    assert answer.stdout.startswith("FAILED: ")
    assert "Traceback" not in answer.stderr
    assert ".. " not in answer.stdout.replace("uri=...", "")


def test_a_newer_schema_is_refused_with_both_revisions(
    alembic: Run, server: Endpoint, engine: Engine, names: Names
) -> None:
    upgrade(engine, names)
    server.execute(f"INSERT INTO {names.schema}.state_alembic SELECT 1, '0009', 9, now64(6)")

    answer = alembic("-x", f"uri={server.url()}", "-x", f"schema={names.schema}", "upgrade", "head")

    assert answer.returncode != 0
    assert re.search(f"FAILED: .*revision 0009, but .* up to {HEAD}. Upgrade meltano-ch-state.", answer.stdout)


def test_check_ends_with_an_error_and_names_the_change(
    alembic: Run, server: Endpoint, engine: Engine, names: Names
) -> None:
    upgrade(engine, names)
    server.execute(f"ALTER TABLE {names.schema}.state ADD COLUMN surplus String")

    answer = alembic("-x", f"uri={server.url()}", "-x", f"schema={names.schema}", "check")

    assert answer.returncode != 0
    assert "surplus" in answer.stdout


def test_the_sql_runs_as_it_is(alembic: Run, server: Endpoint, engine: Engine, names: Names) -> None:
    given = ("-x", f"schema={names.schema}")

    run_script(server, alembic(*given, "upgrade", "head", "--sql").stdout)
    assert SchemaRepository(engine, names).revision() == HEAD
    assert "state_lock" in tables(server, names.schema)
    upgrade(engine, names)

    run_script(server, alembic(*given, "downgrade", "head:base", "--sql").stdout)
    assert SchemaRepository(engine, names).revision() is None
    assert "state" not in tables(server, names.schema)


def run_script(server: Endpoint, script: str) -> None:
    """Run a script's statements one by one, as a client does."""
    statements = [statement for statement in script.split(";\n") if statement.strip()]
    assert len(statements) >= 3
    for statement in statements:
        server.execute(statement)


def test_an_installed_package_brings_its_own_migrations(
    alembic: Run, server: Endpoint, engine: Engine, names: Names, tmp_path: Path
) -> None:
    """In the wheel, `alembic.ini` and `alembic/` lie inside the package."""
    package = tmp_path / "site-packages" / "meltano_ch_state"
    shutil.copytree(ROOT / "meltano_ch_state", package)
    shutil.copytree(ROOT / "alembic", package / "alembic")
    shutil.copy(ROOT / "alembic.ini", package)

    given = ("-x", f"uri={server.url()}", "-x", f"schema={names.schema}")
    answer = alembic(*given, "--raiseerr", "upgrade", "head", PYTHONPATH=str(package.parent))

    assert answer.returncode == 0, answer.stderr
    assert SchemaRepository(engine, names).revision() == HEAD


def test_the_embedded_engine_takes_the_same_commands(alembic: Run, tmp_path: Path) -> None:
    given = ("-x", f"uri=chdb://{tmp_path}/states", "-x", "schema=default", "-x", "table=ops")

    assert alembic(*given, "upgrade", "head").returncode == 0
    assert alembic(*given, "current").stdout == f"{HEAD} (head)\n"
    assert alembic(*given, "check").stdout == "No new upgrade operations detected.\n"
    assert alembic(*given, "downgrade", "base").returncode == 0
    assert alembic(*given, "current").stdout == ""
