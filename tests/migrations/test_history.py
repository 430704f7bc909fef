"""Revision 0002: the history is there for schemas of before, too, and whoever reads goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from meltano.core.state_store.base import MeltanoState
from sqlalchemy import Engine

from meltano_ch_state.errors import PermissionDeniedError, SchemaError
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.migrate import Schema, downgrade, upgrade
from meltano_ch_state.repositories.history import HistoryRepository
from meltano_ch_state.repositories.schema import SchemaRepository
from meltano_ch_state.settings import Names
from tests.migrations.helpers import tables
from tests.rig.endpoint import Endpoint

COLUMNS = "(state_id, completed_state, updated_at, is_deleted)"
VERSION = 1_700_000_000_000_000


@pytest.fixture
def before(server: Endpoint, engine: Engine, names: Names) -> Names:
    """A schema of the revision before: a state of two versions, and one that was cleared."""
    upgrade(engine, names, "0001")
    for state_id, contents, number, cleared in (("a", "1", 1, 0), ("a", "2", 2, 0), ("b", "3", 3, 1)):
        values = f"'{state_id}', '{{\"value\": {contents}}}', toDateTime64({VERSION // 10**6 + number}, 6), {cleared}"
        server.execute(f"INSERT INTO {names.schema}.state {COLUMNS} VALUES ({values})")
    return names


def kept(engine: Engine, names: Names, state_id: str) -> list[tuple[str | None, bool]]:
    rows = HistoryRepository(engine, names).versions(state_id)
    return [(row.completed_state, row.is_deleted) for row in rows]


def manager(server: Endpoint, names: Names, user: str = "admin") -> ClickhouseStateStoreManager:
    return ClickhouseStateStoreManager(server.url(user), schema=names.schema)


def test_the_states_of_before_are_kept_and_begin_the_history(server: Endpoint, engine: Engine, before: Names) -> None:
    manager(server, before).set(MeltanoState("a", {}, {"value": 3}))

    assert kept(engine, before, "a") == [('{"value": 3}', False), ('{"value": 2}', False)]
    assert kept(engine, before, "b") == [('{"value": 3}', True)]
    assert manager(server, before).get("a") == MeltanoState("a", {}, {"value": 3})


def test_a_second_copy_of_the_states_is_none(engine: Engine, before: Names) -> None:
    upgrade(engine, before)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"TRUNCATE TABLE {before.schema}.state_alembic")

    upgrade(engine, before)

    assert kept(engine, before, "a") == [('{"value": 2}', False)]


def test_many_first_writers_of_the_new_version_upgrade_at_once_and_lose_nothing(
    server: Endpoint, engine: Engine, before: Names
) -> None:
    writers = [manager(server, before) for _ in range(6)]

    with ThreadPoolExecutor(6) as threads:
        states = [MeltanoState(f"s{number}", {}, {"value": number}) for number in range(6)]
        list(threads.map(lambda pair: pair[0].set(pair[1]), zip(writers, states, strict=True)))

    assert [kept(engine, before, f"s{number}") for number in range(6)] == [
        [(f'{{"value": {number}}}', False)] for number in range(6)
    ]


@pytest.mark.parametrize("user", ["runner", "reader"])
def test_a_user_who_may_not_upgrade_reads_on(server: Endpoint, before: Names, user: str) -> None:
    old = manager(server, before, user)

    assert old.get("a") == MeltanoState("a", {}, {"value": 2})
    assert old.get_state_ids() == ["a"]
    with pytest.raises(PermissionDeniedError, match="ALTER ADD COLUMN"):
        old.set(MeltanoState("a", {}, {}))


def test_a_writer_of_the_old_version_that_is_at_work_goes_on_and_its_versions_are_kept(
    server: Endpoint, engine: Engine, before: Names
) -> None:
    upgrade(engine, before)
    server.execute(f"INSERT INTO {before.schema}.state {COLUMNS} SELECT 'a', '{{}}', now64(6), 0")

    assert [row.holder for row in HistoryRepository(engine, before).versions("a")] == ["", ""]
    assert kept(engine, before, "a") == [("{}", False), ('{"value": 2}', False)]


def test_the_way_back_keeps_the_states_and_leaves_the_tables_of_before(
    server: Endpoint, engine: Engine, before: Names
) -> None:
    definition = f"SHOW CREATE TABLE {before.schema}.state"
    was = server.execute(definition)
    upgrade(engine, before)

    downgrade(engine, before, "0001")

    assert tables(server, before.schema) == ["state", "state_alembic", "state_lock"]
    assert server.execute(definition) == was
    assert server.execute(f"SELECT completed_state FROM {before.schema}.state FINAL WHERE state_id = 'a'") == (
        '{"value": 2}'
    )


def test_a_table_of_another_program_by_that_name_is_refused(server: Endpoint, engine: Engine, names: Names) -> None:
    server.execute(f"CREATE DATABASE {names.schema}")
    server.execute(f"CREATE TABLE {names.schema}.state_history (id UInt8) ENGINE = MergeTree ORDER BY id")

    with pytest.raises(SchemaError, match=rf"in the way: {names.schema}\.state_history"):
        upgrade(engine, names)


def test_the_setting_says_for_how_long_versions_are_kept(engine: Engine, names: Names) -> None:
    Schema(engine, names, history_days=7).make_writable()
    assert SchemaRepository(engine, names).history_days() == 7


def test_only_a_command_changes_for_how_long_versions_are_kept(
    engine: Engine, names: Names, statements: list[str]
) -> None:
    schema = partial(Schema, engine, names)
    schema().make_writable()
    schema(history_days=7).make_writable()
    assert SchemaRepository(engine, names).history_days() == 90

    schema(history_days=7).keep_history()
    assert SchemaRepository(engine, names).history_days() == 7

    statements.clear()
    schema(history_days=7).keep_history()
    assert [statement.split()[0] for statement in statements] == ["SELECT"]


def test_what_is_older_than_the_time_goes(server: Endpoint, engine: Engine, names: Names) -> None:
    upgrade(engine, names, history_days=1)
    manager(server, names).set(MeltanoState("a", {}, {}))
    server.execute(
        f"INSERT INTO {names.schema}.state_history (state_id, updated_at, is_deleted, written_at)"
        " SELECT 'a', now64(6) - toIntervalDay(3), 0, now64(6) - toIntervalDay(2)"
    )

    server.execute(f"OPTIMIZE TABLE {names.schema}.state_history FINAL")

    assert kept(engine, names, "a") == [("{}", False)]


@pytest.mark.parametrize("missing", ["state_history", "state_history_view"])
def test_a_history_that_is_gone_keeps_no_state_from_being_written(server: Endpoint, names: Names, missing: str) -> None:
    ours = manager(server, names)
    ours.set(MeltanoState("a", {}, {"value": 1}))
    server.execute(f"DROP TABLE {names.schema}.{missing} SYNC")

    ours.set(MeltanoState("a", {}, {"value": 2}))

    assert ours.get("a") == MeltanoState("a", {}, {"value": 2})
