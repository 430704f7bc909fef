"""The resolved configuration: from a URI, from settings, from environment variables. Standard library only.

The same names count everywhere: as an option of the URI (`?schema=ops`), as a Meltano setting
(`state_backend.clickhouse.schema`), as a variable (`MELTANO_STATE_BACKEND_CLICKHOUSE_SCHEMA`, or `CLICKHOUSE_SCHEMA`
outside Meltano), and as a keyword argument of the manager. A setting wins over the URI.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from meltano_ch_state.errors import ConfigurationError, MissingSettingError

SCHEMES = ("clickhouse", "chdb")
DEFAULT_SCHEMA = "meltano"
DEFAULT_TABLE = "state"
HTTP_PORT = 8123
HTTPS_PORT = 8443
LOCK_SETTLE_SECONDS = 1.0
"""How long a contender waits before it decides, in seconds, where the store is not linearizable."""
STALE_LOCK_SECONDS = 300.0
"""The lease: a lock whose row is older than this by the server's clock may be taken over, in seconds."""
LOCK_TIMEOUT_SECONDS = 30.0
"""How long `acquire` waits for somebody else's lock, in seconds."""
LOCK_RETRY_SECONDS = 1.0
"""The longest pause between two looks at somebody else's lock, in seconds."""
MAX_LEASE_SECONDS = 86_399.0
"""A lease stays under a day: lock rows are swept after seven days, and a sweep must never end a lease."""
MAX_PORT = 65_535
HISTORY_DAYS = 90
"""How long old versions of states are kept, in days."""
MAX_HISTORY_DAYS = 10_000
"""ClickHouse adds them to a DateTime, which ends in 2106: a sum beyond that is long ago."""

INSERT, KEEPER, AUTO = LOCK_MODES = ("insert", "keeper", "auto")
"""Where locks are kept: in an ordinary table, in a KeeperMap table, or in the latter where there can be one."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}|\{[A-Za-z0-9_]{1,98}\}")
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the tables; every instance may have its own.

    Attributes:
        schema: The ClickHouse database that holds the tables.
        table: The state table; the lock table and the version table are named after it.
    """

    schema: str = DEFAULT_SCHEMA
    table: str = DEFAULT_TABLE

    def __post_init__(self) -> None:
        """Refuse names that would need care in SQL, on disk or in a shell.

        Raises:
            ConfigurationError: If a name has other characters than letters, digits, `_` and `-`, or over 100.
        """
        _name("schema", self.schema)
        _name("table", self.table)

    @property
    def lock_table(self) -> str:
        """The lock table's name."""
        return f"{self.table}_lock"

    @property
    def history_table(self) -> str:
        """The name of the table that keeps every version of every state."""
        return f"{self.table}_history"

    @property
    def history_view(self) -> str:
        """The name of the materialized view that copies each new version there."""
        return f"{self.table}_history_view"

    @property
    def keeper_table(self) -> str:
        """The name of the lock table in Keeper, which there is with `lock_mode` `keeper` only."""
        return f"{self.table}_keeper_lock"

    @property
    def version_table(self) -> str:
        """The name of the table in which Alembic keeps the schema's revision."""
        return f"{self.table}_alembic"


@dataclass(frozen=True, slots=True)
class Topology:
    """On which servers the tables are made.

    Attributes:
        cluster: The cluster whose servers all get them; empty for the one that is asked.
        replicated: Whether these servers share their rows; None: as there is a cluster. False is also somebody's word
            that one fixed server of a cluster is meant.
    """

    cluster: str = ""
    replicated: bool | None = None

    @property
    def is_replicated(self) -> bool:
        """Whether the tables get Replicated engines."""
        return bool(self.cluster) if self.replicated is None else self.replicated


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One resolved configuration. `resolve` and `from_environment` make it; equal ones share an engine."""

    scheme: str = "clickhouse"
    """`clickhouse` for a server, `chdb` for the embedded engine."""
    path: str = ""
    """The embedded engine's folder, absolute. Only with `chdb`."""
    host: str = ""
    """The server's host name or address. Only with `clickhouse`."""
    port: int = HTTP_PORT
    """The port of the server's HTTP interface: 8123, or 8443 with TLS."""
    database: str = "default"
    """The connection's database. No table is looked for there, and it need not exist."""
    user: str = "default"
    """The user name."""
    password: str = field(default="", repr=False)
    """The password. Never shown."""
    secure: bool = False
    """Whether to use TLS."""
    verify: bool = True
    """Whether to check the server's certificate."""
    ca_cert: str = ""
    """A PEM file with the authority that signed the server's certificate; empty for the usual ones."""
    schema: str = DEFAULT_SCHEMA
    """The ClickHouse database that holds the tables; the migration creates it."""
    table: str = DEFAULT_TABLE
    """The state table."""
    lock_mode: str = INSERT
    """Where locks are kept: one of `LOCK_MODES`. All clients of the tables should have the same."""
    lock_settle_seconds: float | None = None
    """The pause before a lock is decided, in seconds; None: 0 on a linearizable store, else `LOCK_SETTLE_SECONDS`."""
    stale_lock_seconds: float = STALE_LOCK_SECONDS
    """The lease, in seconds: a holder silent for so long may be deposed."""
    lock_acquire_timeout_seconds: float = LOCK_TIMEOUT_SECONDS
    """How long to wait for somebody else's lock, in seconds."""
    lock_retry_seconds: float = LOCK_RETRY_SECONDS
    """The longest pause between two looks at somebody else's lock, in seconds."""
    auto_upgrade: bool = True
    """Whether the first write creates or upgrades the tables."""
    history_days: int = HISTORY_DAYS
    """How long versions of states are kept, in whole days. `meltano-ch-state upgrade` applies another value."""
    cluster: str = ""
    """The cluster on which the migration makes the tables; empty for one server. Only with `clickhouse`."""
    replicated: bool | None = None
    """Whether the migration makes Replicated tables; None: with `cluster`. Only with `clickhouse`."""

    @property
    def names(self) -> Names:
        """The tables' names."""
        return Names(self.schema, self.table)

    @property
    def topology(self) -> Topology:
        """On which servers the tables are made."""
        return Topology(self.cluster, self.replicated)

    @property
    def address(self) -> str:
        """Where the state lies, for messages: `host:port`, or the folder."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path if self.scheme == "chdb" else f"{host}:{self.port}"


def resolve(uri: str | None = None, **given: object) -> Settings:
    """Resolve a URI and settings; a setting wins over the URI, and None means that it is not set.

    Args:
        uri: `clickhouse://user:pass@host:port/database?option=value`, `chdb:///absolute/folder` or
            `chdb://relative/folder`; None when the settings say it all (then it is a server).
        given: Settings by their names in `Settings`, typed or as text.

    Raises:
        ConfigurationError: If a part of the URI or a setting is wrong; the message names it.
        MissingSettingError: If there is no host, or no folder.
    """
    scheme, raw = _split(uri) if uri else ("clickhouse", {})
    raw |= {name: value for name, value in given.items() if value is not None}
    _refuse_unknown(scheme, raw)
    parsed = {name: _PARSERS[name](_label(scheme, name), value) for name, value in raw.items()}
    if scheme == "clickhouse" and not parsed.get("host"):
        raise MissingSettingError(
            f"Setting {_label(scheme, 'host')} is missing",
            "Set it, or write the host into state_backend.uri: clickhouse://user@host:8123",
        )
    if parsed.get("cluster") and parsed.get("replicated") is False:
        raise ConfigurationError(
            f"Setting {_label(scheme, 'replicated')} is false, but there is a cluster: its servers would share no rows",
            f"Leave it out, or leave out {_label(scheme, 'cluster')}",
        )
    if parsed.get("secure"):
        parsed.setdefault("port", HTTPS_PORT)
    return Settings(scheme=scheme, **cast("dict[str, Any]", parsed))


def from_environment(environ: Mapping[str, str], uri: str | None = None, **given: object) -> Settings:
    """Resolve what the environment's variables say: outside Meltano, in Alembic and in programs.

    `MELTANO_STATE_BACKEND_URI` and `MELTANO_STATE_BACKEND_CLICKHOUSE_*` (or `..._CHDB_*`) count as in Meltano, then the
    plain `CLICKHOUSE_*`.

    Args:
        environ: The variables, such as `os.environ`.
        uri: A URI that replaces the environment's; what it says wins over variables, too.
        given: Settings that win over the environment's.

    Raises:
        ConfigurationError: As `resolve`.
        MissingSettingError: As `resolve`.
    """
    in_uri = set(_split(uri)[1]) if uri else set()
    uri = uri or environ.get("MELTANO_STATE_BACKEND_URI") or None
    scheme = _scheme(uri) if uri else "clickhouse"
    prefixes = [f"MELTANO_STATE_BACKEND_{scheme.upper()}_"]
    prefixes += ["CLICKHOUSE_"] if scheme == "clickhouse" else []
    for name in SETTING_NAMES[scheme]:
        found = [value for prefix in prefixes if (value := environ.get(prefix + name.upper())) is not None]
        if found and given.get(name) is None and name not in in_uri:
            given[name] = found[0]
    return resolve(uri, **given)


def _split(uri: str) -> tuple[str, dict[str, object]]:
    scheme = _scheme(uri)
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise ConfigurationError("The host in state_backend.uri is malformed", "Put an IPv6 one in brackets") from None
    if scheme == "clickhouse" and "@" in parts.path + parts.query + parts.fragment:
        raise ConfigurationError(
            "The user or the password in state_backend.uri is not percent-encoded",
            "Write '/' as %2F, '?' as %3F, '#' as %23 and '@' as %40",
        )
    raw: dict[str, object] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in SETTING_NAMES[scheme]:
            raise ConfigurationError(
                f"Unknown option {name!r} in state_backend.uri", f"Known options are {', '.join(SETTING_NAMES[scheme])}"
            )
        raw[name] = value
    if parts.fragment:
        raise ConfigurationError("state_backend.uri has a part after '#'", "Write '#' as %23")
    raw |= {"path": _folder(parts)} if scheme == "chdb" else _server(parts)
    return scheme, raw


def _scheme(uri: str) -> str:
    scheme = uri.partition("://")[0].lower()
    if scheme not in SCHEMES or "://" not in uri:
        raise ConfigurationError("state_backend.uri has another scheme", "Begin it with clickhouse:// or chdb://")
    return scheme


def _server(parts: SplitResult) -> dict[str, object]:
    try:
        port = parts.port
    except ValueError:
        raise ConfigurationError("The port in state_backend.uri is not one", _PORT_REMEDY) from None
    found = {
        "host": unquote(parts.hostname or ""),
        "port": port,
        "user": unquote(parts.username or ""),
        "password": None if parts.password is None else unquote(parts.password),
        "database": unquote(parts.path.strip("/")),
    }
    return {name: value for name, value in found.items() if value is not None and value != ""}


def _folder(parts: SplitResult) -> str:
    folder = unquote(parts.netloc + parts.path)
    if not folder.strip("/"):
        raise MissingSettingError("state_backend.uri names no folder", "Write chdb:///absolute/folder or chdb://folder")
    return str(Path(folder).absolute())


def _refuse_unknown(scheme: str, raw: Mapping[str, object]) -> None:
    known = {*SETTING_NAMES[scheme], *(("path",) if scheme == "chdb" else ())}
    if unknown := sorted(set(raw) - known):
        raise ConfigurationError(
            f"Unknown setting {_label(scheme, unknown[0])}", f"Known settings are {', '.join(SETTING_NAMES[scheme])}"
        )


def _label(scheme: str, name: str) -> str:
    return f"state_backend.{scheme}.{name}"


def _invalid(label: str, value: object, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"Setting {label} is {str(value)!r}", remedy)


def _name(label: str, value: object) -> str:
    text = str(value)
    if not _SAFE_NAME.fullmatch(text):
        raise _invalid(label, text, "Use up to 100 letters, digits, '_' and '-'")
    return text


_PORT_REMEDY = f"Use a whole number from 1 to {MAX_PORT}"


def _whole(most: int, remedy: str) -> Callable[[str, object], int]:
    def parse(label: str, value: object) -> int:
        text = str(value).strip()
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
            raise _invalid(label, value, remedy)
        return int(text)

    return parse


def _text(label: str, value: object) -> str:
    text = str(value)
    if any(ord(char) < ord(" ") for char in text):
        raise _invalid(label, text, "Leave out control characters")
    return text


def _cluster(label: str, value: object) -> str:
    text = str(value)
    if text and not _CLUSTER_NAME.fullmatch(text):
        raise _invalid(label, text, "Use up to 100 letters, digits, '_', '-' and '.', or a macro such as {cluster}")
    return text


def _lock_mode(label: str, value: object) -> str:
    text = str(value).strip().lower()
    if text not in LOCK_MODES:
        raise _invalid(label, value, f"Use {', '.join(LOCK_MODES[:-1])} or {LOCK_MODES[-1]}")
    return text


def _secret(label: str, value: object) -> str:
    return str(value)


def _file(label: str, value: object) -> str:
    text = _text(label, value)
    if text and not Path(text).is_file():
        raise _invalid(label, text, "Name a PEM file that can be read")
    return text


def _boolean(label: str, value: object) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE | _FALSE:
        raise _invalid(label, value, "Use true or false")
    return text in _TRUE


def _seconds(low: float, high: float = float("inf")) -> Callable[[str, object], float]:
    def parse(label: str, value: object) -> float:
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = float("nan")
        if not low <= seconds <= high or seconds == float("inf"):
            limits = f"of at least {low:g}" if high == float("inf") else f"from {low:g} to {high:g}"
            raise _invalid(label, value, f"Use a number of seconds {limits}")
        return seconds

    return parse


_PARSERS: dict[str, Callable[[str, object], object]] = {
    "path": _text,
    "host": _text,
    "port": _whole(MAX_PORT, _PORT_REMEDY),
    "database": _text,
    "user": _text,
    "password": _secret,
    "secure": _boolean,
    "verify": _boolean,
    "ca_cert": _file,
    "schema": _name,
    "table": _name,
    "lock_mode": _lock_mode,
    "lock_settle_seconds": _seconds(0),
    "stale_lock_seconds": _seconds(0.1, MAX_LEASE_SECONDS),
    "lock_acquire_timeout_seconds": _seconds(0),
    "lock_retry_seconds": _seconds(0),
    "auto_upgrade": _boolean,
    "history_days": _whole(MAX_HISTORY_DAYS, f"Use a whole number of days from 1 to {MAX_HISTORY_DAYS}"),
    "cluster": _cluster,
    "replicated": _boolean,
}

_ONLY_SERVER = {"host", "port", "database", "user", "password", "secure", "verify", "ca_cert", "cluster", "replicated"}
SETTING_NAMES: dict[str, tuple[str, ...]] = {
    "clickhouse": tuple(f.name for f in fields(Settings) if f.name not in {"scheme", "path"}),
    "chdb": tuple(f.name for f in fields(Settings) if f.name not in {"scheme", "path", *_ONLY_SERVER}),
}
"""The settings of each scheme, by their names in `Settings`."""
