"""The tables of `meltano-state-backend-clickhouse` become ours, with every state and every lock that is held."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from meltano.core.state_store.base import MeltanoState
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from meltano_ch_state.errors import StateBackendError, StateLockedError
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.migrate import upgrade
from meltano_ch_state.settings import Names
from tests.migrations.helpers import quiet_config
from tests.rig.endpoint import Endpoint

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
STATE = (
    "state_id String, partial_state Nullable(String), completed_state Nullable(String),"
    " updated_at DateTime64(3) DEFAULT now64(3)) ENGINE = ReplacingMergeTree(updated_at) ORDER BY state_id"
)
LOCK = (
    "state_id String, lock_id String, locked_at DateTime DEFAULT now())"
    " ENGINE = ReplacingMergeTree(locked_at) ORDER BY state_id TTL locked_at + INTERVAL 300 SECOND"
)
THEIR_READ = "SELECT partial_state, completed_state FROM {schema}.state FINAL WHERE state_id = 'a' LIMIT 1"
STATEMENTS = 8
"""What the adoption sends beyond looking: two for the states, six for the locks."""


@pytest.fixture
def theirs(server: Endpoint, names: Names) -> Names:
    """Their tables: two versions of a state, one that was cleared, one partial, one lock held and one forgotten."""
    server.execute(f"CREATE DATABASE {names.schema}")
    server.execute(f"CREATE TABLE {names.schema}.state ({STATE}")
    server.execute(f"CREATE TABLE {names.schema}.state_lock ({LOCK}")
    for values in (
        "'a', NULL, '{\"n\": 1}'",
        "'a', '{\"p\": 1}', '{\"n\": 2}'",
        "'gone', NULL, '{}'",
        "'b', '{\"p\": 2}', NULL",
    ):
        server.execute(f"INSERT INTO {names.schema}.state (state_id, partial_state, completed_state) VALUES ({values})")
    server.execute(f"DELETE FROM {names.schema}.state WHERE state_id = 'gone'")
    server.execute(f"INSERT INTO {names.schema}.state_lock (state_id, lock_id) VALUES ('held', 'their-lock')")
    server.execute(f"INSERT INTO {names.schema}.state_lock VALUES ('forgotten', 'old', now() - 301)")
    return names


def manager(server: Endpoint, names: Names) -> ClickhouseStateStoreManager:
    return ClickhouseStateStoreManager(server.url(), schema=names.schema, lock_acquire_timeout_seconds=0)


def assert_adopted(server: Endpoint, engine: Engine, names: Names) -> None:
    ours = manager(server, names)
    assert list(ours.get_all()) == [MeltanoState("a", {"p": 1}, {"n": 2}), MeltanoState("b", {"p": 2}, {})]
    with pytest.raises(StateLockedError, match=r"held by|locked by meltano-state-backend-clickhouse \(since before"):
        ours.set(MeltanoState("held", {}, {}))
    ours.set(MeltanoState("forgotten", {}, {"n": 3}))
    for n in range(2):
        ours.update(MeltanoState("a", {"q": n}))
    assert ours.get("a") == MeltanoState("a", {"p": 1, "q": 1}, {"n": 2})
    command.check(quiet_config(engine, names))


def test_every_state_and_every_held_lock_is_kept(server: Endpoint, engine: Engine, theirs: Names) -> None:
    upgrade(engine, theirs)
    assert_adopted(server, engine, theirs)
    kept = server.execute(f"SELECT name FROM system.tables WHERE database = '{theirs.schema}' ORDER BY name").split()
    assert kept == [
        "state",
        "state_alembic",
        "state_history",
        "state_history_view",
        "state_lock",
        "state_lock_old",
    ]


def test_a_lock_that_its_old_holder_releases_is_free(server: Endpoint, engine: Engine, theirs: Names) -> None:
    upgrade(engine, theirs)
    server.execute(f"DELETE FROM {theirs.schema}.state_lock WHERE state_id = 'held' AND lock_id = 'their-lock'")
    manager(server, theirs).set(MeltanoState("held", {}, {"n": 4}))


def test_a_write_of_a_straggler_is_not_lost(server: Endpoint, engine: Engine, theirs: Names) -> None:
    upgrade(engine, theirs)
    ours = manager(server, theirs)
    ours.set(MeltanoState("a", {}, {"n": 5}))
    server.execute(f"INSERT INTO {theirs.schema}.state (state_id, completed_state) VALUES ('a', '{{\"n\": 6}}')")
    assert ours.get("a") == MeltanoState("a", {}, {"n": 6})
    ours.set(MeltanoState("a", {}, {"n": 7}))
    assert ours.get("a") == MeltanoState("a", {}, {"n": 7})


@pytest.mark.parametrize("nth", range(STATEMENTS))
def test_a_crash_before_any_statement_is_made_good_by_the_next_upgrade_and_readers_go_on(
    server: Endpoint, engine: Engine, theirs: Names, nth: int
) -> None:
    seen = [0]

    def crash(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if (
            statement.split(maxsplit=1)[0] in {"ALTER", "CREATE", "INSERT", "RENAME", "DROP"}
            and "DATABASE" not in statement
        ):
            seen[0] += 1
            if seen[0] > nth:
                raise OperationalError(statement, {}, ConnectionError("crash"))

    event.listen(engine, "before_cursor_execute", crash)
    with pytest.raises((OperationalError, StateBackendError)):
        upgrade(engine, theirs)
    event.remove(engine, "before_cursor_execute", crash)
    assert server.execute(THEIR_READ.format(schema=theirs.schema)) == '{"p": 1}\t{"n": 2}'
    upgrade(engine, theirs)
    assert_adopted(server, engine, theirs)


def test_several_processes_may_adopt_at_once(server: Endpoint, engine: Engine, theirs: Names) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: manager(server, theirs).migrate(), range(4)))
    assert_adopted(server, engine, theirs)


def test_the_way_back_that_the_docs_show_leads_back(server: Endpoint, engine: Engine, theirs: Names) -> None:
    upgrade(engine, theirs)
    server.execute(f"SYSTEM STOP MERGES {theirs.schema}.state")
    ours = manager(server, theirs)
    ours.set(MeltanoState("a", {}, {"n": 8}))
    ours.clear("b")
    server.execute(f"SYSTEM START MERGES {theirs.schema}.state")
    way_back = PAGE.read_text().split("```sql\n")[1].split("```")[0]
    for statement in way_back.strip().rstrip(";").split(";\n"):
        server.execute(statement.replace("meltano.", f"{theirs.schema}."))
    assert server.execute(THEIR_READ.format(schema=theirs.schema)) == '{}\t{"n": 8}'
    assert server.execute(f"SELECT state_id FROM {theirs.schema}.state FINAL") == "a"
    assert server.execute(
        f"SELECT engine_full FROM system.tables WHERE database = '{theirs.schema}' AND name = 'state'"
    )
    columns = f"SELECT name, type FROM system.columns WHERE database = '{theirs.schema}' AND table = 'state'"
    assert server.execute(columns).splitlines()[-1] == "updated_at\tDateTime64(3)"
