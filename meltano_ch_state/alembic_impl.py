"""ClickHouse for Alembic: a version table without mutations, and engines in `alembic check`.

The `alembic` module of clickhouse-sqlalchemy does not import on Alembic 1.15 and later. Importing this one registers an
implementation for the dialect `clickhouse`; `alembic/env.py` does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alembic.ddl.impl import DefaultImpl
from clickhouse_sqlalchemy import engines, types
from sqlalchemy import BinaryExpression, Column, Connection, MetaData, Table, text
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable, ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler
from sqlalchemy.sql.elements import ColumnClause, TextClause
from sqlalchemy.types import NullType, UserDefinedType
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random

from meltano_ch_state.errors import SchemaError
from meltano_ch_state.models import MICROSECONDS, build
from meltano_ch_state.repositories.adoption import adopt_locks, adopt_states, adoptable
from meltano_ch_state.repositories.faults import code_of
from meltano_ch_state.repositories.schema import create_database, database_ddl, foreign_tables, replica_of
from meltano_ch_state.settings import Names, Topology

_CANNOT_ASSIGN_ALTER = 517
_ALREADY_EXISTS = {57, 82}  # TABLE_ALREADY_EXISTS, DATABASE_ALREADY_EXISTS


class ClickHouseImpl(DefaultImpl):
    """What Alembic does differently on ClickHouse."""

    __dialect__ = "clickhouse"
    transactional_ddl = False

    def version_table_impl(self, *, version_table: str, version_table_schema: str | None, **options: Any) -> Table:
        """The table that holds the schema's revision; in another project's environment, Alembic's own."""
        if "names" not in self.context_opts:
            return super().version_table_impl(
                version_table=version_table, version_table_schema=version_table_schema, **options
            )
        names: Names = self.context_opts["names"]
        topology: Topology = self.context_opts.get("topology", Topology())
        replacing: dict[str, Any] = {"version": "position", "order_by": ("singleton",)}
        return VersionTable(
            version_table,
            MetaData(),
            Column("singleton", types.UInt8, nullable=False),
            Column("version_num", types.String, nullable=False),
            Column("position", types.UInt32, nullable=False),
            Column("applied_at", types.DateTime64(MICROSECONDS), nullable=False),
            engines.ReplicatedReplacingMergeTree(*replica_of(names, version_table), **replacing)
            if topology.is_replicated
            else engines.ReplacingMergeTree(**replacing),
            schema=version_table_schema,
            info={"names": names, "topology": topology},
            clickhouse_cluster=topology.cluster or None,
        )

    def compare_type(self, inspector_column: Column[Any], metadata_column: Column[Any]) -> bool:
        """Whether two columns differ in type: ClickHouse's types are the same only when they read the same."""
        compiler = self.dialect.type_compiler_instance
        stored, wanted = (compiler.process(column.type) for column in (inspector_column, metadata_column))
        return stored != wanted

    def autogen_column_reflect(self, inspector: Inspector, table: Table, column_info: Any) -> None:
        """Have a type that clickhouse-sqlalchemy does not know compared, too; Alembic passes over a NullType."""
        if isinstance(column_info["type"], NullType):
            column_info["type"] = UnknownType()

    def _exec(self, construct: Any, *args: Any, **options: Any) -> Any:
        """Every statement of a migration, and every write of the version, comes through here."""
        result = None
        for statement in construct.statements() if isinstance(construct, SetRevision) else [construct]:
            with lost_races_forgiven():
                result = _again(super()._exec, statement, *args, **options)
        return result


def _is_outrun(error: BaseException) -> bool:
    """Whether another process just changed the same Replicated table, and this server has not caught up with that."""
    return isinstance(error, DBAPIError) and code_of(error) == _CANNOT_ASSIGN_ALTER


_again = Retrying(
    retry=retry_if_exception(_is_outrun), stop=stop_after_attempt(20), wait=wait_random(0.05, 0.5), reraise=True
)


class UnknownType(UserDefinedType[Any]):
    """A type of a later ClickHouse."""

    def get_col_spec(self, **options: Any) -> str:
        """Unlike any type in the models."""
        return "unknown"


@contextmanager
def lost_races_forgiven() -> Iterator[None]:
    """Take "it exists already" for success where the statement says IF NOT EXISTS.

    One server never says so to it, but several nodes on one catalogue may (ClickHouse pull request 102610).
    """
    try:
        yield
    except DBAPIError as error:
        if "IF NOT EXISTS" not in (error.statement or "") or code_of(error) not in _ALREADY_EXISTS:
            raise


class VersionTable(Table):
    """One logical row: the newest by `position`, the revision's place in the linear history.

    A slow process that writes an older revision late changes nothing. Reads are FINAL, writes are inserts; going back,
    which is maintenance, empties the table first (docs/decisions/0003).
    """

    inherit_cache = True

    def create(self, bind: Any, checkfirst: Any = False) -> None:
        """Create the table and its database where they are missing. Alembic does this before the first migration.

        Raises:
            SchemaError: If the tables of another program have the names of ours.
        """
        names: Names = self.info["names"]
        topology: Topology = self.info["topology"]
        with lost_races_forgiven():
            if isinstance(bind, Connection):
                _adopt_or_refuse(bind, names, topology)
                create_database(bind, names.schema, topology)
            else:  # --sql
                bind.execute(database_ddl(names.schema, topology))
        with lost_races_forgiven():
            bind.execute(CreateTable(self, if_not_exists=True))

    def insert(self) -> SetRevision:  # type: ignore[override]
        """The statements that set the revision."""
        return SetRevision(self)

    def update(self) -> SetRevision:  # type: ignore[override]
        """The statements that replace the revision."""
        return SetRevision(self)

    def delete(self) -> Truncate:  # type: ignore[override]
        """The statement that forgets the revision."""
        return Truncate(self)


@compiles(VersionTable, "clickhouse")
def _version_table(table: VersionTable, compiler: SQLCompiler, asfrom: bool = False, **options: Any) -> str:
    name = compiler.visit_table(table, asfrom=asfrom, **options)  # type: ignore[no-untyped-call]
    return f"{name} FINAL" if asfrom else name


class SetRevision:
    """What Alembic fills in as it would an INSERT or an UPDATE; `statements` says what it becomes."""

    def __init__(self, table: VersionTable) -> None:
        self._table = table
        self._revision = ""
        self._previous = ""

    def values(self, version_num: ColumnClause[Any]) -> SetRevision:
        """Take the new revision."""
        self._revision = version_num.name.strip("'")
        return self

    def where(self, criterion: BinaryExpression[Any]) -> SetRevision:
        """Take the revision that it replaces."""
        self._previous = criterion.right.name.strip("'")
        return self

    def statements(self) -> Iterator[Truncate | TextClause]:
        """One insert; a smaller revision would be hidden by the greater one, so that goes first."""
        if self._revision < self._previous:
            yield Truncate(self._table)
        # SELECT, not VALUES: a profile with asynchronous inserts would show the revision later than the answer.
        # now64: Replicated tables drop a block that is identical to an earlier one.
        yield text(
            f"INSERT INTO `{self._table.schema}`.`{self._table.name}` (singleton, version_num, position, applied_at)"
            f" SELECT 1, '{self._revision}', {int(self._revision)}, now64({MICROSECONDS})"
        )


class Truncate(ExecutableDDLElement):
    """Empty the version table: Alembic's DELETE would be a mutation."""

    def __init__(self, table: VersionTable) -> None:
        self.table = table

    def where(self, criterion: object) -> Truncate:
        """The table has one logical row, so it is the one that is meant."""
        return self


@compiles(Truncate, "clickhouse")
def _truncate(element: Truncate, compiler: DDLCompiler, **options: Any) -> str:
    return f"TRUNCATE TABLE {compiler.preparer.format_table(element.table)}"


def _adopt_or_refuse(connection: Connection, names: Names, topology: Topology) -> None:
    """Make the tables of `meltano-state-backend-clickhouse` ours; leave those of anybody else alone."""
    foreign = foreign_tables(connection, names)
    if foreign and not topology.is_replicated and all(adoptable(connection, names, table) for table in foreign):
        if names.table in foreign:
            adopt_states(connection, names)
        if names.lock_table in foreign:
            adopt_locks(connection, names, build(names).state_lock)
    elif foreign:
        tables = " and ".join(f"{names.schema}.{table}" for table in foreign)
        raise SchemaError(
            f"Another program's tables are in the way: {tables}",
            "Set state_backend.clickhouse.schema or state_backend.clickhouse.table to another name",
        )
