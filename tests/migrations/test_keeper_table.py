"""The lock table in Keeper: made by an upgrade when it is asked for, dropped by every downgrade."""

from __future__ import annotations

import pytest

from meltano_ch_state.connection import engine_for
from meltano_ch_state.migrate import downgrade, upgrade
from meltano_ch_state.settings import Names, resolve
from tests.migrations.helpers import Run, tables
from tests.rig.endpoint import Endpoint

KEEPER = ("-x", "lock_mode=keeper")


def test_it_is_made_when_asked_for_also_later_and_dropped_by_a_downgrade(
    alembic: Run, server: Endpoint, names: Names
) -> None:
    given = ("-x", f"uri={server.url()}", "-x", f"schema={names.schema}")
    for options, expected in (((), False), (KEEPER, True), (KEEPER, True)):
        done = alembic(*given, *options, "upgrade", "head")
        assert done.returncode == 0, done.stdout
        assert ("state_keeper_lock" in tables(server, names.schema)) is expected
    assert alembic(*given, *KEEPER, "check").stdout == "No new upgrade operations detected.\n"
    assert alembic(*given, "downgrade", "base").returncode == 0
    assert tables(server, names.schema) == ["state_alembic"]


@pytest.mark.parametrize("command", ["current", "check", "history"])
def test_no_other_command_makes_it(alembic: Run, server: Endpoint, names: Names, command: str) -> None:
    upgrade(engine_for(resolve(server.url())), names)
    done = alembic("-x", f"uri={server.url()}", "-x", f"schema={names.schema}", *KEEPER, command)
    assert done.returncode == 0, done.stdout
    assert "state_keeper_lock" not in tables(server, names.schema)


def test_the_sql_has_it_when_asked_for_and_runs_as_it_is(alembic: Run, server: Endpoint, names: Names) -> None:
    given = ("-x", f"schema={names.schema}", "upgrade", "head", "--sql")
    assert "KeeperMap" not in alembic(*given).stdout
    assert "KeeperMap" not in alembic("-x", "lock_mode=auto", *given).stdout
    for statement in alembic(*KEEPER, *given).stdout.split(";\n"):
        if statement.strip():
            server.execute(statement)
    assert "state_keeper_lock" in tables(server, names.schema)
    engine = engine_for(resolve(server.url()))
    downgrade(engine, names)


def test_a_server_without_a_keeper_gives_one_clear_line(alembic: Run) -> None:
    uri = ("-x", "uri=chdb://state")
    done = alembic(*uri, *KEEPER, "upgrade", "head")
    assert done.returncode != 0
    assert (
        "has no Keeper for the lock table. Set lock_mode to insert, or configure keeper_map_path_prefix" in done.stdout
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert alembic(*uri, "-x", "lock_mode=auto", "upgrade", "head").returncode == 0
