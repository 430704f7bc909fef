"""The table in which Alembic keeps the revision: one logical row, read with FINAL, never a stale head."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine

import meltano_ch_state.alembic_impl  # noqa: F401 - registers ClickHouse with Alembic
from meltano_ch_state import migrate
from meltano_ch_state.migrate import upgrade
from meltano_ch_state.repositories.schema import SchemaRepository
from meltano_ch_state.settings import Names
from tests.rig.endpoint import Endpoint

NEXT = '''"""A revision of the test."""
revision = "0003"
down_revision = "0002"
def upgrade(): pass
def downgrade(): pass
'''


def heads(engine: Engine, names: Names) -> tuple[str, ...]:
    """The heads by Alembic's own reading."""
    options = {"version_table": names.version_table, "version_table_schema": names.schema, "names": names}
    with engine.connect() as connection:
        return MigrationContext.configure(connection, opts=options).get_current_heads()


@pytest.fixture
def without_merges(server: Endpoint, engine: Engine, names: Names) -> Iterator[None]:
    """The version table's rows stay as they were inserted: only FINAL finds the newest."""
    upgrade(engine, names)
    server.execute(f"SYSTEM STOP MERGES {names.schema}.{names.version_table}")
    yield
    server.execute(f"SYSTEM START MERGES {names.schema}.{names.version_table}")


@pytest.fixture
def a_further_revision(own_scripts: Config, monkeypatch: pytest.MonkeyPatch, without_merges: None) -> Config:
    """The migrations and one more, known to the package."""
    folder = Path(own_scripts.get_main_option("script_location", ""))
    (folder / "versions" / "0003_next.py").write_text(NEXT)
    monkeypatch.setattr(migrate, "HEAD", "0003")
    return own_scripts


@pytest.mark.usefixtures("without_merges")
def test_a_late_insert_of_an_older_revision_brings_no_old_head_back(
    server: Endpoint, engine: Engine, names: Names
) -> None:
    for revision in ("0003", "0002"):
        server.execute(f"INSERT INTO {names.schema}.state_alembic SELECT 1, '{revision}', {revision}, now64(6)")

    assert heads(engine, names) == ("0003",)
    assert SchemaRepository(engine, names).revision() == "0003"


def test_many_ways_up_and_down_always_show_one_head(
    a_further_revision: Config, engine: Engine, names: Names, statements: list[str]
) -> None:
    for _ in range(5):
        command.upgrade(a_further_revision, "head")
        assert heads(engine, names) == ("0003",)
        command.downgrade(a_further_revision, "0002")
        assert heads(engine, names) == ("0002",)
        command.downgrade(a_further_revision, "base")
        assert heads(engine, names) == ()

    ours = [statement for statement in statements if names.version_table in statement]
    assert ours
    assert not [statement for statement in ours if statement.startswith(("ALTER", "DELETE", "UPDATE"))]


def test_an_upgrade_step_empties_nothing(a_further_revision: Config, statements: list[str]) -> None:
    command.upgrade(a_further_revision, "0003")

    assert not [statement for statement in statements if statement.startswith("TRUNCATE")]


@pytest.mark.parametrize("purge", [False, True])
def test_stamps_move_the_head_both_ways(a_further_revision: Config, engine: Engine, names: Names, purge: bool) -> None:
    for revision, expected in (("0003", ("0003",)), ("0002", ("0002",)), ("base", ())):
        command.stamp(a_further_revision, revision, purge=purge)
        assert heads(engine, names) == expected


def test_the_table_has_a_real_sorting_key(server: Endpoint, engine: Engine, names: Names) -> None:
    upgrade(engine, names)

    found = server.execute(
        f"SELECT engine_full, sorting_key FROM system.tables WHERE database = '{names.schema}'"
        f" AND name = '{names.version_table}'"
    )

    assert found.startswith("ReplacingMergeTree(position) ORDER BY singleton")
    assert found.endswith("\tsingleton")


def test_the_row_says_when_the_revision_was_applied(server: Endpoint, engine: Engine, names: Names) -> None:
    upgrade(engine, names)

    assert server.execute(f"SELECT age('minute', applied_at, now64(6)) FROM {names.schema}.state_alembic FINAL") == "0"
