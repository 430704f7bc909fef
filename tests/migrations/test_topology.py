"""Where the tables are made: on one server, replicated, on a cluster, on ClickHouse Cloud.

A cluster cannot run here, so its statements are compared with those that were read and found right. After a change:
`python -m meltano_ch_state.migrate -x cluster=prod upgrade head --sql > tests/migrations/expected/cluster.sql`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from meltano_ch_state.connection import ANSWER_TIMEOUT_SECONDS, engine_for
from meltano_ch_state.errors import SchemaError, ServerError
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.migrate import HEAD, Schema, downgrade, upgrade
from meltano_ch_state.repositories.schema import SchemaRepository
from meltano_ch_state.settings import Names, Topology, resolve
from tests.migrations.helpers import Run, tables
from tests.rig.endpoint import Endpoint
from tests.rig.server import ClickHouseServer

EXPECTED = Path(__file__).parent / "expected"
TOPOLOGIES = {
    "plain": (),
    "replicated": ("-x", "replicated=true"),
    "cluster": ("-x", "cluster=prod"),
    "cluster_macro": ("-x", "cluster={cluster}", "-x", "schema=ops-1", "-x", "table=bookmarks"),
}
ELSEWHERE = "192.0.2.7"
"""An address for documentation (RFC 5737): nobody has it."""


@pytest.fixture
def clustered_server() -> Iterator[ClickHouseServer]:
    """A server that knows of a neighbour."""
    with ClickHouseServer({"alone": ["127.0.0.1"], "prod": ["127.0.0.1", ELSEWHERE]}) as own:
        yield own


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_statements_are_the_expected_ones(alembic: Run, name: str) -> None:
    answer = alembic(*TOPOLOGIES[name], "upgrade", "head", "--sql")

    assert answer.stdout == (EXPECTED / f"{name}.sql").read_text()


def test_the_statements_that_drop_the_tables_of_a_cluster_are_the_expected_ones(alembic: Run) -> None:
    answer = alembic(*TOPOLOGIES["cluster"], "downgrade", "head:base", "--sql")

    assert answer.stdout == (EXPECTED / "cluster_downgrade.sql").read_text()


def test_every_create_alter_and_drop_goes_to_all_servers_of_the_cluster_and_every_table_is_replicated() -> None:
    for name in ("cluster", "cluster_macro", "cluster_downgrade"):
        script = (EXPECTED / f"{name}.sql").read_text()
        statements = [line for line in script.splitlines() if line.startswith(("CREATE", "DROP", "ALTER"))]
        assert statements
        assert all(" ON CLUSTER " in statement for statement in statements)
        assert " ReplacingMergeTree" not in script


def test_a_server_takes_the_replicated_tables_and_gives_them_their_place_in_keeper(
    alembic: Run, server: Endpoint, schema: str
) -> None:
    script = alembic("-x", "replicated=true", "-x", f"schema={schema}", "upgrade", "head", "--sql").stdout
    for statement in script.split(";\n"):
        # this server takes no inserts: see tests/support/replicated.py
        if "CREATE" in statement and "VIEW" not in statement:
            server.execute(statement)

    found = server.execute(
        f"SELECT table, zookeeper_path, replica_name FROM system.replicas WHERE database = '{schema}' ORDER BY table"
    )
    assert found.splitlines() == [
        f"{table}\t/clickhouse/tables/meltano_ch_state/{schema}/{table}\ts1-r1"
        for table in ("state", "state_alembic", "state_history", "state_lock")
    ]


def test_on_clickhouse_cloud_neither_cluster_nor_replicated_engines_are_used(
    server: Endpoint, names: Names, statements: list[str]
) -> None:
    cloud = engine_for(resolve(server.url("cloudy")))
    topology = Topology("prod")

    upgrade(cloud, names, topology=topology)

    assert SchemaRepository(cloud, names).revision() == HEAD
    engines = f"SELECT DISTINCT engine FROM system.tables WHERE database = '{names.schema}' ORDER BY engine"
    assert server.execute(engines).split() == ["MaterializedView", "ReplacingMergeTree"]
    downgrade(cloud, names, topology=topology)
    assert tables(server, names.schema) == ["state_alembic"]


def test_a_cluster_is_waited_for_until_just_before_the_client_gives_up(
    clustered_server: ClickHouseServer, names: Names
) -> None:
    """No ON CLUSTER runs here: this server has no queue for it."""
    engine = engine_for(resolve(clustered_server.url()))
    sent: list[tuple[str, object]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def record(
        connection: object, cursor: object, statement: str, parameters: object, context: Any, *_: object
    ) -> None:
        sent.append((statement, context.execution_options.get("settings")))

    with pytest.raises(ServerError, match="Replicated DDL queries are disabled"):
        upgrade(engine, names, topology=Topology("prod"))

    assert sent[-1] == (
        f"CREATE DATABASE IF NOT EXISTS `{names.schema}` ON CLUSTER `prod`",
        {"distributed_ddl_task_timeout": ANSWER_TIMEOUT_SECONDS - 10},
    )


def test_plain_tables_are_not_made_on_one_server_of_a_cluster(clustered_server: ClickHouseServer, names: Names) -> None:
    engine = engine_for(resolve(clustered_server.url()))

    with pytest.raises(SchemaError) as caught:
        upgrade(engine, names)

    assert str(caught.value) == (
        "This server is one of cluster prod, whose other servers would not see the rows of the plain tables in schema"
        f" {names.schema}. Set state_backend.clickhouse.cluster to prod and use a new schema; or, if the host always is"
        " this one server, set state_backend.clickhouse.replicated to false."
    )
    assert tables(clustered_server, names.schema) == []


def test_plain_tables_that_stand_on_one_server_of_a_cluster_are_not_written(
    clustered_server: ClickHouseServer, names: Names
) -> None:
    engine = engine_for(resolve(clustered_server.url()))
    upgrade(engine, names, topology=Topology(replicated=False))

    with pytest.raises(SchemaError, match="one of cluster prod"):
        Schema(engine, names).make_writable()
    with pytest.raises(SchemaError, match="one of cluster prod"):
        ClickhouseStateStoreManager(clustered_server.url(), schema=names.schema).clear("a")


def test_whoever_says_that_one_server_of_a_cluster_is_meant_is_believed(
    clustered_server: ClickHouseServer, names: Names
) -> None:
    manager = ClickhouseStateStoreManager(clustered_server.url(), schema=names.schema, replicated=False)
    manager.clear("a")

    assert tables(clustered_server, names.schema) == [
        "state",
        "state_alembic",
        "state_history",
        "state_history_view",
        "state_lock",
    ]


def test_a_user_who_may_not_see_the_clusters_is_not_stopped(clustered_server: ClickHouseServer, names: Names) -> None:
    names = Names(names.schema)
    upgrade(engine_for(resolve(clustered_server.url())), names, topology=Topology(replicated=False))

    Schema(engine_for(resolve(clustered_server.url("runner"))), names).make_writable()


def test_loopback_addresses_are_no_neighbours(names: Names) -> None:
    """ClickHouse comes with examples of clusters such as this one."""
    with ClickHouseServer({"example": ["127.0.0.1", "127.0.0.2", "127.0.0.3"]}) as server:
        engine: Engine = engine_for(resolve(server.url()))
        upgrade(engine, names)
        assert SchemaRepository(engine, names).clusters() == []
