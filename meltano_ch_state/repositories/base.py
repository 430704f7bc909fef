"""What every repository shares: statements over an engine, and the server's errors in terms of this package."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from clickhouse_sqlalchemy.sql.selectable import Select
from sqlalchemy import Engine, Executable, Row, Table, insert, text
from sqlalchemy.exc import DBAPIError, OperationalError

from meltano_ch_state.consistency import Consistency, consistency_of
from meltano_ch_state.errors import (
    AuthenticationError,
    PermissionDeniedError,
    SchemaMissingError,
    ServerBusyError,
    ServerError,
    ServerUnreachableError,
)
from meltano_ch_state.retry import retried
from meltano_ch_state.settings import Names

UNKNOWN_TABLE = 60
UNKNOWN_DATABASE = 81
READONLY = 164
ACCESS_DENIED = 497
_BUSY_CODES = {
    159,  # TIMEOUT_EXCEEDED
    202,  # TOO_MANY_SIMULTANEOUS_QUERIES
    209,  # SOCKET_TIMEOUT
    210,  # NETWORK_ERROR
    216,  # QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING
    225,  # NO_ZOOKEEPER
    236,  # ABORTED
    241,  # MEMORY_LIMIT_EXCEEDED
    242,  # TABLE_IS_READ_ONLY: it has lost its Keeper
    252,  # TOO_MANY_PARTS
    285,  # TOO_FEW_LIVE_REPLICAS
    286,  # UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE
    289,  # REPLICA_IS_NOT_IN_QUORUM
    319,  # UNKNOWN_STATUS_OF_INSERT
    394,  # QUERY_WAS_CANCELLED
    439,  # CANNOT_SCHEDULE_TASK
    473,  # DEADLOCK_AVOIDED
    735,  # QUERY_WAS_CANCELLED_BY_CLIENT
    745,  # SERVER_OVERLOADED
    999,  # KEEPER_EXCEPTION
}
_LOGIN_CODES = {192, 193, 194, 516}  # UNKNOWN_USER, WRONG_PASSWORD, REQUIRED_PASSWORD, AUTHENTICATION_FAILED
_ONE_ROW_SETTINGS = {"input_format_parallel_parsing": 0, "max_threads": 1}
"""Threads cost one row more than they save: 3.2 ms with them, 2.7 ms without, on two cores."""
_GRANT = re.compile(r"necessary to have the grant (.+?)\.(?: \(|$)")
UPGRADE_COMMAND = "python -m meltano_ch_state.migrate upgrade head"
_SERVER_NOISE = re.compile(r"^.*?DB::Exception: |\. \(([A-Z_]+)\).*$|\(version .*\)|Stack trace:.*", re.DOTALL)


class FinalSelect(Select):  # type: ignore[misc]
    """A SELECT that always has FINAL. (A `Select` of clickhouse-sqlalchemy is not cached: it may have it or not.)."""

    inherit_cache = True
    _final_clause = True


def select_final(*columns: Any) -> Any:
    """SELECT ... FROM ... FINAL over Core columns; with ORM entities FINAL would be dropped silently."""
    return FinalSelect(*columns)


class Repository:
    """Statements over one engine. The engine may be any of `clickhouse+connect`, `+http`, `+native`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def select(
        self,
        statement: Executable,
        parameters: Mapping[str, object] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Sequence[Row[Any]]:
        """Run a query and fetch all of its rows; a user with readonly=1 may send no settings.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        return retried(self.engine, lambda: self._fetch(statement, parameters or {}, self._options(settings)))

    def insert(
        self, table: Table, rows: Iterable[Mapping[str, object]], settings: Mapping[str, object] | None = None
    ) -> None:
        """Insert rows as data, all in one statement that is done when this returns.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        values = list(rows)
        few = _ONE_ROW_SETTINGS if len(values) == 1 else {}
        options = self._options({**_write_settings(), **few, **(settings or {})})
        retried(self.engine, lambda: self._send(insert(table), values, options))

    def _fetch(self, statement: Executable, parameters: Mapping[str, object], options: Any) -> Sequence[Row[Any]]:
        with server_errors(self.engine), self.engine.connect() as connection:
            return connection.execute(statement, parameters, execution_options=options).all()

    def _send(self, statement: Executable, rows: Sequence[Mapping[str, object]], options: Any) -> None:
        with server_errors(self.engine), self.engine.connect() as connection:
            connection.execute(statement, rows, execution_options=options)

    def _options(self, settings: Mapping[str, object] | None) -> dict[str, Any]:
        # the driver `http` of clickhouse-sqlalchemy puts settings behind VALUES: Code 27
        return {"settings": settings} if settings and self.engine.driver != "http" else {}


class TableRepository(Repository):
    """One of our tables, written and read with what its engine needs to be consistent."""

    def __init__(self, engine: Engine, table: Table, names: Names) -> None:
        super().__init__(engine)
        self._table = table
        self._names = names

    @property
    def consistency(self) -> Consistency:
        """What the tables' engine needs. The server is asked once there is a table, and then never again."""
        known = _consistencies.setdefault(self.engine, {})
        if self._names not in known:
            found = self.select(_ENGINE, {"schema": self._names.schema, "table": self._names.table})
            name, readonly = found[0] if found else ("", 0)
            consistency = consistency_of(name, may_set=int(readonly) != 1 and self.engine.driver != "http")
            if not found:
                return consistency
            known[self._names] = consistency
        return known[self._names]

    def point_read(
        self,
        statement: Executable,
        parameters: Mapping[str, object] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Sequence[Row[Any]]:
        """Read locks, or one state: what was written before is seen.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        return self.select(statement, parameters, {**self.consistency.reads, **(settings or {})})

    def write(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Insert rows that every later point read sees.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        self.insert(self._table, rows, self.consistency.writes)


_consistencies: WeakKeyDictionary[Engine, dict[Names, Consistency]] = WeakKeyDictionary()
"""Both tables of a set of names have one kind of engine: migrations make them together."""
_ENGINE = text("SELECT engine, getSetting('readonly') FROM system.tables WHERE database = :schema AND name = :table")


def forget_engines_of_tables(engine: Engine) -> None:
    """Ask anew what the tables need: they may have been made anew."""
    _consistencies.pop(engine, None)


def _write_settings() -> dict[str, object]:
    """What every insert sends along.

    A buffered insert is not there yet when its answer comes; the buffer is on by default since ClickHouse 26.3. And
    Replicated tables swallow a block identical to an earlier one unless it has a token of its own; `insert_deduplicate`
    is overruled by the default of `deduplicate_insert` since 26, which earlier versions do not know.
    """
    return {"async_insert": 0, "insert_deduplication_token": uuid4().hex}


@contextmanager
def server_errors(engine: Engine) -> Iterator[None]:
    """Raise the errors of the driver and the server as this package's, on one line, without any secret."""
    try:
        yield
    except DBAPIError as error:
        raise translate(error, address_of(engine)) from error


def address_of(engine: Engine) -> str:
    """Where an engine's data lies, for messages: `host:port`, or the folder."""
    url = engine.url
    folder = url.query.get("chdb")
    return str(folder) if folder else f"{url.host}:{url.port}" if url.port else f"{url.host}"


def code_of(error: DBAPIError) -> int | None:
    """The server's error code; None when the server did not answer."""
    code = getattr(error.orig, "code", None)
    return code if isinstance(code, int) else None


def translate(error: DBAPIError, address: str) -> ServerError | SchemaMissingError:
    """The error of this package for one of a driver."""
    code = code_of(error)
    if code in {UNKNOWN_TABLE, UNKNOWN_DATABASE}:
        return SchemaMissingError(f"The tables are missing on {address}: {_said(error)}", f"Run: {UPGRADE_COMMAND}")
    if code in _LOGIN_CODES:
        return AuthenticationError(
            f"ClickHouse at {address} refused the user or the password",
            "Check state_backend.clickhouse.user and state_backend.clickhouse.password",
        )
    if code in {ACCESS_DENIED, READONLY} or (code is None and not isinstance(error, OperationalError)):
        return _denied(error, address)  # without a code: clickhouse-connect itself refuses settings to a readonly user
    if code is None:
        return ServerUnreachableError(
            f"No answer from ClickHouse at {address}: {(cause := _root_cause(error))}",
            next((remedy for sign, remedy in _REMEDIES.items() if sign in cause), _USUAL_REMEDY),
        )
    kind = ServerBusyError if code in _BUSY_CODES else ServerError
    return kind(f"ClickHouse at {address} refused a statement with code {code}: {_said(error)}")


_USUAL_REMEDY = "Check state_backend.clickhouse.host, port and secure, and that the server runs"
_UNKNOWN_CA = "Set state_backend.clickhouse.ca_cert to a PEM file with the authority that signed its certificate"
_REMEDIES = {
    "issuer certificate": _UNKNOWN_CA,
    "self-signed certificate": _UNKNOWN_CA,
    "NO_CERTIFICATE_OR_CRL_FOUND": _UNKNOWN_CA,
    "certificate is not valid for": "Set state_backend.clickhouse.host to a name that its certificate is for",
}
"""What to do about a certificate, by what OpenSSL says of it."""


def _denied(error: DBAPIError, address: str) -> PermissionDeniedError:
    grant = _GRANT.search(str(error.orig))
    remedy = f"Have an administrator run: GRANT {grant[1]} TO the user" if grant else "Use a user who may write"
    return PermissionDeniedError(f"ClickHouse at {address} denied access: {_said(error)}", remedy)


def _said(error: DBAPIError) -> str:
    return _SERVER_NOISE.sub("", str(error.orig)).strip(" .")


def _root_cause(error: BaseException) -> str:
    """The innermost reason, such as `Connection refused`: the outer ones repeat the whole request.

    An exception's context is left alone: it may be the caller's own.
    """
    while inner := _inner(error):
        error = inner
    return getattr(error, "strerror", None) or str(error).rpartition(": ")[2] or type(error).__name__


def _inner(error: BaseException) -> BaseException | None:
    candidates = (getattr(error, "reason", None), getattr(error, "orig", None), error.__cause__, *error.args)
    return next((each for each in candidates if isinstance(each, BaseException)), None)
