"""The tables of the state backend `meltano-state-backend-clickhouse`, made into ours with all their states.

Its state table is widened in place: a column more, and a finer version. Its lock table cannot be: the sorting key would
change. So a new one takes its name, in a RENAME that fails for whoever comes second, and the old one stays as
`..._old`. Locks that are held are copied, and end with their own lease of 300 seconds. Each step may run again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Table, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable

from meltano_ch_state.repositories.faults import code_of
from meltano_ch_state.settings import Names

LEASE_SECONDS = 300
"""After so many seconds that backend takes a lock for stale."""
HOLDER = "meltano-state-backend-clickhouse"
_STATE = [
    ("state_id", "String"),
    ("partial_state", "Nullable(String)"),
    ("completed_state", "Nullable(String)"),
    ("updated_at", "DateTime64(3)"),
]
_WIDENED_STATE = [*_STATE[:-1], ("updated_at", "DateTime64(6)")]
_LOCK = [("state_id", "String"), ("lock_id", "String"), ("locked_at", "DateTime")]
_COLUMNS = text(
    "SELECT name, type FROM system.columns WHERE database = :schema AND table = :table"
    " AND (SELECT any(engine) FROM system.tables WHERE database = :schema AND name = :table) = 'ReplacingMergeTree'"
    " ORDER BY position"
)
_TABLE_ALREADY_EXISTS = 57
_UNKNOWN_TABLE = 60


def adoptable(connection: Connection, names: Names, table: str) -> bool:
    """Whether a table is that backend's, column by column; or half ours, after a crash."""
    found = [tuple(row) for row in connection.execute(_COLUMNS, {"schema": names.schema, "table": table})]
    return found in ([_LOCK] if table == names.lock_table else [_STATE, _WIDENED_STATE])


def adopt_states(connection: Connection, names: Names) -> None:
    """Widen the state table in place; whoever reads goes on, and whoever still writes the old way is not lost."""
    table = f"`{names.schema}`.`{names.table}`"
    widened = "MODIFY COLUMN updated_at DateTime64(6) DEFAULT now64(6)"  # first: what has is_deleted is ours
    for change in (widened, "ADD COLUMN IF NOT EXISTS is_deleted UInt8 DEFAULT 0"):
        connection.execute(text(f"ALTER TABLE {table} {change}"))


def adopt_locks(connection: Connection, names: Names, table: Table) -> None:
    """Put a lock table of ours in the place of theirs, with the locks that are held.

    Args:
        connection: To the server.
        names: The tables' names.
        table: Our lock table.
    """
    ours, new, old = (f"`{names.schema}`.`{names.lock_table}{suffix}`" for suffix in ("", "_new", "_old"))
    definition = str(CreateTable(table, if_not_exists=True).compile(dialect=connection.dialect))
    created = definition.replace(connection.dialect.identifier_preparer.format_table(table), new, 1)
    with _lost_races_forgiven():
        for statement in (created, _copy(ours, new), f"RENAME TABLE {ours} TO {old}, {new} TO {ours}"):
            connection.execute(text(statement))
    connection.execute(text(_copy(old, ours)))  # what was locked in between
    connection.execute(text(f"DROP TABLE IF EXISTS {new}"))


@contextmanager
def _lost_races_forgiven() -> Iterator[None]:
    """Whoever comes second finds the new table taken, or the old name in use: the exchange is done."""
    try:
        yield
    except DBAPIError as error:
        if code_of(error) not in {_TABLE_ALREADY_EXISTS, _UNKNOWN_TABLE}:
            raise


def _copy(source: str, target: str) -> str:
    return (  # names of schemas and tables are checked when they are set
        f"INSERT INTO {target} (state_id, lock_id, released, token, born, locked_at, lease_seconds, sequence, holder,"  # noqa: S608
        " process, operation, version) SELECT state_id, lock_id, 0, toDateTime64(locked_at, 6),"
        f" toDateTime64(locked_at, 6), toDateTime64(locked_at, 6), {LEASE_SECONDS}, 1, '{HOLDER}', '',"
        f" 'since before the upgrade', '' FROM {source} FINAL WHERE locked_at > now() - {LEASE_SECONDS}"
    )
