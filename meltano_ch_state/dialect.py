"""The SQLAlchemy dialect `clickhouse+connect`: clickhouse-sqlalchemy's compilers over clickhouse-connect.

It speaks to a server over HTTP or HTTPS, and to the embedded engine when the URL's query names its folder:

    clickhouse+connect://user:password@host:8123/database?secure=true&verify=true&ca_cert=/path.pem
    clickhouse+connect:///?chdb=/absolute/folder

clickhouse-sqlalchemy's own drivers lose settings and fractions of a second, and raise errors that are not DBAPI errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from clickhouse_connect import dbapi
from clickhouse_connect.driver import create_client
from clickhouse_sqlalchemy.drivers.base import ClickHouseDialect
from sqlalchemy import text
from sqlalchemy.engine import URL, Connection
from sqlalchemy.engine.interfaces import ReflectedPrimaryKeyConstraint
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.sql.elements import ClauseElement

_NAMED = ("host", "port", "username", "password", "database", "interface", "secure")
"""Options that `create_client` takes by name; it converts the others from the text that a URL has."""


class _Connection(dbapi.Connection):  # type: ignore[misc]
    """As the DBAPI's, which would look up what version of SQLAlchemy is installed, to tell the server: 4 ms."""

    def __init__(self, **options: Any) -> None:
        named = {name: options.pop(name) for name in _NAMED if name in options}
        self.client = create_client(**named, generic_args=options)
        self.timezone = self.client.server_tz


class ConnectDialect(ClickHouseDialect):  # type: ignore[misc]
    """`clickhouse+connect`. Statements take per-query settings as the execution option `settings` (a dict)."""

    driver = "connect"
    supports_statement_cache = True
    # ClickHouseInspector forgets the table that it reflected: KeyError 'schema.table' when a schema is given.
    inspector = Inspector

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """The DBAPI module: `clickhouse_connect.dbapi`."""
        return dbapi  # type: ignore[no-any-return]

    def create_connect_args(self, url: URL) -> tuple[list[object], dict[str, Any]]:
        """Translate a URL into the arguments of `clickhouse_connect.dbapi.connect`."""
        options: dict[str, Any] = dict(url.query)
        if folder := options.pop("chdb", None):
            return [], {"interface": "chdb", "path": folder, **options}
        options["secure"] = str(options.get("secure", "false")).lower() in {"1", "true", "yes", "on"}
        # A session would refuse the second of two statements at once; nothing here needs one.
        options.setdefault("autogenerate_session_id", False)
        named = {"host": url.host, "port": url.port, "database": url.database}
        login = {"username": url.username or "default", "password": url.password or ""}
        return [], {**{name: value for name, value in named.items() if value}, **login, **options}

    def connect(self, *_: object, **options: Any) -> dbapi.Connection:
        """Connect, which asks the server for its version and settings."""
        return _Connection(**options)

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        """Run one statement; its parameters are bound by clickhouse-connect."""
        if not self._insert_data(cursor, statement, [parameters], context):
            cursor.execute(statement, parameters, settings=_settings(context))

    def do_executemany(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        """Run one statement for many rows; a plain INSERT is one request."""
        if not self._insert_data(cursor, statement, parameters, context):
            cursor.executemany(statement, parameters, settings=_settings(context))

    def _insert_data(self, cursor: Any, statement: str, rows: Sequence[Mapping[str, object]], context: Any) -> bool:
        """Send the rows of a plain INSERT as data: nothing in them is ever read as SQL, and no size limit applies."""
        if not _is_plain_insert(statement, rows[0], context):
            return False
        cursor.client.raw_insert(
            self.identifier_preparer.format_table(context.compiled.statement.table),
            list(rows[0]),
            # not the client's own `insert`: it imports pandas first where that is installed, 0.7 s
            "\n".join(json.dumps(row, default=str) for row in rows).encode(),
            settings=_settings(context),
            fmt="JSONEachRow",
        )
        return True

    def do_commit(self, dbapi_connection: object) -> None:
        """ClickHouse has no transactions to commit."""

    def is_disconnect(self, e: BaseException, connection: object, cursor: object) -> bool:
        """Whether the connection is of no more use: a transport error, which carries no server error code."""
        return isinstance(e, self.loaded_dbapi.OperationalError) and getattr(e, "code", None) is None

    def _get_server_version_info(self, connection: Connection) -> tuple[int | str, ...]:
        self.forced_server_version_string = _known(connection, "server_version")
        return super()._get_server_version_info(connection)  # type: ignore[no-any-return]

    def _get_default_schema_name(self, connection: Connection) -> str:
        return _known(connection, "database") or super()._get_default_schema_name(connection)

    def get_pk_constraint(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: object
    ) -> ReflectedPrimaryKeyConstraint:
        """Reflect the primary key; the inherited one has no "name", which autogenerate of Alembic requires."""
        query = text(
            "SELECT primary_key FROM system.tables WHERE name = :table"
            " AND database = if(:schema = '', currentDatabase(), :schema)"
        )
        key = connection.execute(query, {"table": table_name, "schema": schema or ""}).scalar() or ""
        return {"constrained_columns": [part for part in key.split(", ") if part], "name": None}

    def _execute(self, connection: Connection, sql: str | ClauseElement, scalar: bool = False, **kwargs: object) -> Any:
        if isinstance(sql, str):
            result = connection.exec_driver_sql(sql.replace("%", "%%"))
        else:
            result = connection.execute(sql, kwargs)  # type: ignore[call-overload]
        return result.scalar() if scalar else result


def _known(connection: Connection, name: str) -> str | None:
    """What the client learnt when it connected; the embedded engine's has to be asked."""
    return getattr(getattr(connection.connection.driver_connection, "client", None), name, None)


def _is_plain_insert(statement: str, row: Mapping[str, object], context: Any) -> bool:
    """Whether a statement inserts bound values only, and JSON can carry them."""
    if context is None or not context.isinsert or not row or any(isinstance(value, bytes) for value in row.values()):
        return False
    return statement.endswith("VALUES ({})".format(", ".join(f"%({name})s" for name in row)))


def _settings(context: Any) -> dict[str, Any] | None:
    return context.execution_options.get("settings") if context is not None else None
