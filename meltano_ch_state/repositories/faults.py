"""The errors of the drivers and of the server in terms of this package: one line each, without any secret."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from clickhouse_sqlalchemy.exceptions import DatabaseException
from requests import RequestException
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from meltano_ch_state.errors import (
    AuthenticationError,
    KeeperConflictError,
    NoKeeperError,
    PermissionDeniedError,
    SchemaMissingError,
    ServerBusyError,
    ServerError,
    ServerUnreachableError,
)

OLDEST_TESTED, NEWEST_TESTED = "24.8", "26.9"
"""Versions of ClickHouse between which this package is tested (docs/versions.md)."""
BAD_ARGUMENTS = 36
UNKNOWN_TABLE = 60
UNKNOWN_DATABASE = 81
READONLY = 164
ACCESS_DENIED = 497
THROWN = 395  # by throwIf
NOT_HELD = "the row in Keeper is not held"
"""What such a statement of this package throws."""
INVALID_STATE = 668
KEEPER_EXCEPTION = 999
BUSY_CODES = {
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
    KEEPER_EXCEPTION,
}
_CONFLICTS = re.compile(r"Node exists(?!, path /clickhouse/sessions)|Bad version")
"""What Keeper says when somebody else was faster: to try again would not help. Not so where ClickHouse itself, at its
first statement for Keeper, was slower than another server to note its session: to try again helps."""
_LOGIN_CODES = {192, 193, 194, 516}  # UNKNOWN_USER, WRONG_PASSWORD, REQUIRED_PASSWORD, AUTHENTICATION_FAILED
_GRANT = re.compile(r"necessary to have the grant (.+?)\.(?:\s|$)")
_MISSING = re.compile(r"Missing permissions: (.+?)\)\.")
"""Of several privileges that a statement needs, the server may tell which are missing."""
UPGRADE_COMMAND = "meltano-ch-state upgrade"
CHECK_COMMAND = "python -m meltano_ch_state.migrate check"
KEEPER_COMMAND = "python -m meltano_ch_state.migrate -x lock_mode=keeper upgrade head"
_SERVER_NOISE = re.compile(
    r"^.*?DB::Exception: |, e\.what\(\) = .*$|\. \(([A-Z_]+)\).*$|\(version .*\)|Stack trace:.*", re.DOTALL
)
_DRIVER_ERRORS = (DBAPIError, DatabaseException, RequestException, ConnectionError, EOFError)
"""What `clickhouse+connect` raises; what `+http` and `+native` raise, for their server and for their sockets."""
_WITHOUT_CODE = re.compile(r"e\.what\(\) = DB::Exception")
"""How ClickHouse ended its errors in 18 and 19, when no header had their code."""
_CODE = re.compile(r"Code: (\d+)\.? *")
_NATIVE_SOCKET_CODES = {209, 210}
"""The native driver's own codes for a socket that timed out or broke."""


@contextmanager
def server_errors(engine: Engine) -> Iterator[None]:
    """Raise the errors of the driver and the server as this package's, on one line, without any secret."""
    try:
        yield
    except _DRIVER_ERRORS as error:
        raise translate(error, address_of(engine), engine.url.username) from error


def address_of(engine: Engine) -> str:
    """Where an engine's data lies, for messages: `host:port`, or the folder."""
    url = engine.url
    folder = url.query.get("chdb")
    return str(folder) if folder else f"{url.host}:{url.port}" if url.port else f"{url.host}"


def code_of(error: Exception) -> int | None:
    """The server's error code; None when the server did not answer."""
    if isinstance(error, DatabaseException):
        found = _CODE.match(str(error.orig))  # its attribute `code` is HTTP's with `+http`
        return int(found[1]) if found and int(found[1]) not in _NATIVE_SOCKET_CODES else None
    code = getattr(getattr(error, "orig", None), "code", None)
    return code if isinstance(code, int) else None


def translate(
    error: Exception, address: str, user: str | None = None
) -> ServerError | SchemaMissingError | NoKeeperError:
    """The error of this package for one of a driver."""
    code = code_of(error)
    if code in {UNKNOWN_TABLE, UNKNOWN_DATABASE}:
        return SchemaMissingError(f"The tables are missing on {address}: {_said(error)}", f"Run: {UPGRADE_COMMAND}")
    if code in _LOGIN_CODES:
        return AuthenticationError(
            f"ClickHouse at {address} refused the user or the password",
            "Check state_backend.clickhouse.user, and the password in MELTANO_STATE_BACKEND_CLICKHOUSE_PASSWORD",
        )
    if code is None and _WITHOUT_CODE.search(str(_orig(error))):
        return ServerError(f"ClickHouse at {address} is too old for this package: {_said(error)}", _UPGRADE)
    refused = code is None and isinstance(error, DBAPIError) and not isinstance(error, OperationalError)
    status = _STATUS.search(str(_orig(error))) if refused else None
    if code in {ACCESS_DENIED, READONLY} or (refused and not status):
        return _denied(error, address, user)  # clickhouse-connect itself refuses settings to a readonly user
    if code is None:
        return _unreachable(error, address, status)
    kind = ServerBusyError if code in BUSY_CODES else ServerError
    reason = f"ClickHouse at {address} refused a statement with code {code}: {_said(error)}"
    return _of_keeper(code, str(_orig(error)), address) or kind(reason, _CODE_REMEDIES.get(code, ""))


def _unreachable(error: Exception, address: str, status: re.Match[str] | None) -> ServerUnreachableError:
    if status:
        return ServerUnreachableError(
            f"What answers at {address} is not ClickHouse's HTTP interface: {status[0]}", _PORTS
        )
    return ServerUnreachableError(
        f"No answer from ClickHouse at {address}: {(cause := _root_cause(error))}",
        next((remedy for sign, remedy in _REMEDIES.items() if sign in cause), _USUAL_REMEDY),
    )


def _of_keeper(code: int, said: str, address: str) -> KeeperConflictError | NoKeeperError | None:
    """What a statement on a KeeperMap table failed with, unless it is nothing special."""
    if code == BAD_ARGUMENTS and "keeper_map_path_prefix" in said:
        return NoKeeperError(
            f"ClickHouse at {address} has no Keeper for the lock table",
            "Set lock_mode to insert, or configure keeper_map_path_prefix and a Keeper on the server",
        )
    if code == INVALID_STATE and "Keeper" in said:
        return NoKeeperError(
            f"The Keeper of ClickHouse at {address} has lost the lock table, as one in memory does at a restart",
            "While no client is at work, DROP the table whose name ends in _keeper_lock: it is made anew by the next "
            f"run, or by {KEEPER_COMMAND}; or set lock_mode to insert",
        )
    if (code == THROWN and NOT_HELD in said) or (code == KEEPER_EXCEPTION and _CONFLICTS.search(said)):
        return KeeperConflictError(f"Another client of ClickHouse at {address} was faster")
    return None


_TESTED = f"this package is tested with {OLDEST_TESTED} to {NEWEST_TESTED}"
_UPGRADE = f"Upgrade ClickHouse: {_TESTED}"
_COMPARE = f"See what the tables lack: {CHECK_COMMAND}. If nothing: upgrade ClickHouse: {_TESTED}"
_CODE_REMEDIES = {
    16: _COMPARE,  # NO_SUCH_COLUMN_IN_TABLE
    46: _UPGRADE,  # UNKNOWN_FUNCTION
    47: _COMPARE,  # UNKNOWN_IDENTIFIER
    50: _UPGRADE,  # UNKNOWN_TYPE
    62: _UPGRADE,  # SYNTAX_ERROR
    115: _UPGRADE,  # UNKNOWN_SETTING
    202: "Run fewer queries at once, or raise max_concurrent_queries on the server",
    225: "See why the server cannot reach its Keeper",
    241: "Raise the server's or the user's memory limit",
    242: "See why the server cannot reach its Keeper",
    243: "Free space on the server's disk",
    252: "Wait for merges, or insert into other tables less often",
}
_STATUS = re.compile(r"HTTP status \d+")
"""What clickhouse-connect says of an answer without a code: any web server's, or that of ClickHouse's native port."""
_PORTS = "Check state_backend.clickhouse.host and port: 8123 is HTTP, 8443 is HTTPS, 9000 is another protocol"
_USUAL_REMEDY = "Check state_backend.clickhouse.host, port and secure, and that the server runs"
_UNKNOWN_CA = "Set state_backend.clickhouse.ca_cert to a PEM file with the authority that signed its certificate"
_REMEDIES = {
    "issuer certificate": _UNKNOWN_CA,
    "self-signed certificate": _UNKNOWN_CA,
    "NO_CERTIFICATE_OR_CRL_FOUND": _UNKNOWN_CA,
    "certificate is not valid for": "Set state_backend.clickhouse.host to a name that its certificate is for",
}
"""What to do about a certificate, by what OpenSSL says of it."""


def _denied(error: Exception, address: str, user: str | None) -> PermissionDeniedError:
    found = _MISSING.search(str(_orig(error))) or _GRANT.search(str(_orig(error)))
    name = "the user" if user is None else user if user.isidentifier() else f"`{user}`"
    remedy = f"Have an administrator run: GRANT {found[1]} TO {name}" if found else "Use a user who may write"
    return PermissionDeniedError(f"ClickHouse at {address} denied access: {_said(error)}", remedy)


def _said(error: Exception) -> str:
    return _SERVER_NOISE.sub("", str(_orig(error))).strip(" .")


def _orig(error: Exception) -> object:
    return getattr(error, "orig", None) or error


def _root_cause(error: BaseException) -> str:
    """The innermost reason, such as `Connection refused`: the outer ones repeat the whole request.

    An exception's context is left alone: it may be the caller's own.
    """
    while inner := _inner(error):
        error = inner
    text = _CODE.sub("", str(error)).partition(" (")[0] if _CODE.match(str(error)) else str(error).rpartition(": ")[2]
    return getattr(error, "strerror", None) or text or type(error).__name__


def _inner(error: BaseException) -> BaseException | None:
    candidates = (getattr(error, "reason", None), getattr(error, "orig", None), error.__cause__, *error.args)
    return next((each for each in candidates if isinstance(each, BaseException)), None)
