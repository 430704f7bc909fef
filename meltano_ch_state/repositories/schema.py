"""All SQL about the schema itself: its revision, its database, and tables that are not ours."""

from __future__ import annotations

import re

from sqlalchemy import Connection, Engine, TextClause, text

from meltano_ch_state.consistency import PLAIN_ENGINE
from meltano_ch_state.errors import PermissionDeniedError, SchemaMissingError
from meltano_ch_state.repositories.base import Repository, remember_engine_of_tables
from meltano_ch_state.settings import Names, Topology


class SchemaRepository(Repository):
    """The version table, in which Alembic keeps the schema's revision."""

    def __init__(self, engine: Engine, names: Names) -> None:
        """Bind the version table of a set of names; nothing is sent yet."""
        super().__init__(engine)
        self._names = names
        self._table_engine = ""
        self._revision = text(_REVISION.format(names=names)).bindparams(schema=names.schema, table=names.table)

    def revision(self) -> str | None:
        """The revision of the database's schema, such as `0001`; None when there is no schema. One statement.

        It brings the engine of the tables along, which their first read or write would ask for.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        try:
            found = self.select(self._revision)
        except SchemaMissingError:
            return None
        if not found:
            return None
        revision, readonly, self._table_engine = found[0]
        if self._table_engine:
            remember_engine_of_tables(self.engine, self._names, self._table_engine, readonly)
        return str(revision)

    def is_cloud(self) -> bool:
        """Whether this is ClickHouse Cloud, which replicates every table by itself and knows no clusters."""
        return [row[0] for row in self.select(_CLOUD_MODE)] in (["1"], ["true"])

    def has_plain_tables(self) -> bool:
        """Whether the last `revision` saw the state table, and its rows stay on the server that got them."""
        return self._table_engine == PLAIN_ENGINE

    def make_keeper_table(self, topology: Topology) -> None:
        """Create the lock table in Keeper unless it is there.

        Raises:
            NoKeeperError: If the server has no Keeper for tables.
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        self.execute(keeper_ddl(self._names, topology), {})

    def history_days(self) -> int | None:
        """For how many days the history keeps a version; None where there is none, or the user may not know."""
        found = self.select(_ENGINE_FULL, {"schema": self._names.schema, "table": self._names.history_table})
        days = _TTL_DAYS.search(str(found[0][0])) if found else None
        return int(days[1]) if days else None

    def keep_history(self, days: int, topology: Topology) -> None:
        """Have the history keep a version for so many days.

        Raises:
            PermissionDeniedError: If the user has no ALTER TTL.
            ServerError: In another of its kinds, when the server does not answer or refuses.
        """
        table = f"`{self._names.schema}`.`{self._names.history_table}`{on_cluster(topology)}"
        ttl = f"toDateTime(written_at) + toIntervalDay({days})"
        self.execute(text(f"ALTER TABLE {table} MODIFY TTL {ttl}"), {})

    def clusters(self) -> list[str]:
        """The clusters in which the server has neighbours, sorted; none where the user may not know."""
        try:
            return [str(row[0]) for row in self.select(CLUSTERS)]
        except PermissionDeniedError:
            return []


def create_database(connection: Connection, schema: str, topology: Topology) -> None:
    """Create the tables' database unless it is there: `IF NOT EXISTS` alone demands CREATE DATABASE even then.

    Whether it is on all servers of a cluster one of them does not know.
    """
    if topology.cluster or not connection.execute(DATABASE, {"schema": schema}).scalar():
        connection.execute(database_ddl(schema, topology))


def database_ddl(schema: str, topology: Topology) -> TextClause:
    """The statement that creates the tables' database."""
    return text(f"CREATE DATABASE IF NOT EXISTS `{schema}`{on_cluster(topology)}")


def keeper_ddl(names: Names, topology: Topology) -> TextClause:
    """The statement that creates the lock table in Keeper, one for all servers that have the same Keeper."""
    return text(
        f"""CREATE TABLE IF NOT EXISTS `{names.schema}`.`{names.keeper_table}`{on_cluster(topology)} (
    state_id String,
    lock_id String,
    released UInt8,
    token DateTime64(6) DEFAULT now64(6),
    locked_at DateTime64(6) DEFAULT now64(6),
    lease_seconds Float64,
    sequence UInt32,
    depositions UInt32,
    holder String,
    process String,
    operation String,
    version String
) ENGINE = KeeperMap('/meltano_ch_state/{names.schema}/{names.table}')
PRIMARY KEY state_id"""
    )


def on_cluster(topology: Topology) -> str:
    """The clause of a DDL statement that has all servers of the cluster run it; empty without one."""
    return f" ON CLUSTER `{topology.cluster}`" if topology.cluster else ""


def replacing_engine(topology: Topology, names: Names, table: str, version: str) -> str:
    """The ENGINE of a table: of two rows with the same key the one with the greater version stays."""
    if topology.is_replicated:
        path, replica = (f"'{argument}'" for argument in replica_of(names, table))
        return f"ReplicatedReplacingMergeTree({path}, {replica}, {version})"
    return f"{PLAIN_ENGINE}({version})"


def replica_of(names: Names, table: str) -> tuple[str, str]:
    """A Replicated table's path in Keeper and its replica's name there.

    The path is without `{shard}`, so that all servers of a cluster, whatever their shard, share one set of rows. It is
    without `{uuid}`, so that a server that joins later finds the others.
    """
    return f"/clickhouse/tables/meltano_ch_state/{names.schema}/{table}", "{shard}-{replica}"


def foreign_tables(connection: Connection, names: Names) -> list[str]:
    """The names of tables of ours that stand there with other columns: another program made them."""
    tables = {"state": names.table, "lock": names.lock_table, "history": names.history_table}
    return [str(row[0]) for row in connection.execute(_FOREIGN, {"schema": names.schema, **tables})]


# One statement, and as text: it is the first of every process, which would compile it for this one use.
_REVISION = """SELECT version_num, getSetting('readonly'),
    (SELECT any(engine) FROM system.tables WHERE database = :schema AND name = :table)
FROM `{names.schema}`.`{names.version_table}` FINAL"""
DATABASE = text("SELECT count() FROM system.databases WHERE name = :schema")
_CLOUD_MODE = text("SELECT value FROM system.settings WHERE name = 'cloud_mode'")
# The examples of clusters that ClickHouse was installed with consist of loopback addresses only.
CLUSTERS = text(
    "SELECT cluster FROM system.clusters GROUP BY cluster HAVING max(is_local) AND countIf(NOT is_local"
    " AND NOT startsWith(host_address, '127.') AND host_address != '::1') > 0 ORDER BY cluster"
)
# No revision drops these columns, and no other known state backend has them.
_FOREIGN = text(
    "SELECT table FROM system.columns WHERE database = :schema AND table IN (:state, :lock, :history) GROUP BY table"
    " HAVING countIf(name = multiIf(table = :state, 'is_deleted', table = :lock, 'token', 'written_at')) = 0"
    " ORDER BY table"
)
_ENGINE_FULL = text("SELECT engine_full FROM system.tables WHERE database = :schema AND name = :table")
_TTL_DAYS = re.compile(r"toIntervalDay\((\d+)\)")
