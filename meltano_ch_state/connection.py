"""Engines: one per process and target, made when it is first asked for.

Making one connects to nothing. `engine.dispose()` closes what is idle: the sockets of a server, the folder of the
embedded engine at once. The engine stays usable, and who else uses it just connects again (15 to 50 ms), so a manager
may dispose of it without knowing of the others.
"""

from __future__ import annotations

import os
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Dialect, Engine, NullPool, create_engine, event
from sqlalchemy.dialects import registry
from urllib3 import Timeout

from meltano_ch_state import embedded
from meltano_ch_state.dialect import ConnectDialect
from meltano_ch_state.settings import Settings

DRIVER = "clickhouse+connect"
CONNECT_TIMEOUT_SECONDS = 10
"""How long to wait for TCP and TLS, in seconds. Nothing has been sent yet, so a wrong address shows soon."""
WAKE_UP_TIMEOUT_SECONDS = 180
"""How long to wait for the first answer, in seconds: an idle ClickHouse Cloud service takes 30 and more to wake up."""
ANSWER_TIMEOUT_SECONDS = 60
"""How long to wait for every later answer, in seconds."""
DEFAULT_DATABASE = "default"
UNKNOWN_DATABASE = 81
"""The server's error code for a database that does not exist."""

registry.register("clickhouse.connect", ConnectDialect.__module__, ConnectDialect.__name__)
# It is an entry point, too, but SQLAlchemy would look for that in all packages there are: 20 ms.

_engines: dict[URL, Engine] = {}


def engine_for(settings: Settings) -> Engine:
    """The engine for these settings: the same one for settings that name the same target and login.

    Raises:
        ConfigurationError: If the embedded engine cannot open such a path.
    """
    url = _url(settings)
    # Two threads may make one at once; only one of them is kept, and the other has connected to nothing.
    return _engines.get(url) or _engines.setdefault(url, _engine(url))


def _url(settings: Settings) -> URL:
    if settings.scheme == "chdb":
        return URL.create(DRIVER, query={"chdb": os.path.realpath(settings.path)})
    return URL.create(
        DRIVER,
        username=settings.user,
        password=settings.password or None,
        host=settings.host,
        port=settings.port,
        database=settings.database,
        query=_tls(settings) if settings.secure else {},
    )


def _tls(settings: Settings) -> dict[str, str]:
    options = {"secure": "true", "verify": str(settings.verify).lower()}
    return options | ({"ca_cert": settings.ca_cert} if settings.ca_cert else {})


def _engine(url: URL) -> Engine:
    return _embedded_engine(url) if "chdb" in url.query else _server_engine(url)


def _server_engine(url: URL) -> Engine:
    # SQLAlchemy's usual pool: a thread has a client of its own while it runs a statement. StaticPool would share one
    # among threads, but a reset connection in one thread closes it for all.
    engine = create_engine(
        url,
        hide_parameters=True,
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            # Sockets of its own, closed with the client. Else they are the whole process's, and stay open.
            "dedicated_pool": True,
            # The client repeats a request whose answer got lost; the server refuses an ID that still runs (code 216).
            "autogenerate_query_id": False,
        },
    )
    event.listen(engine, "do_connect", _Connector())
    if url.query.get("verify") == "false":  # whoever asked for it need not be warned of it
        warnings.filterwarnings(
            "ignore", f"Unverified HTTPS request is being made to host '{re.escape(url.host or '')}'"
        )
    return engine


class _Connector:
    """Connects to one server. It is patient until that has answered once: an idle service has to wake up."""

    def __init__(self) -> None:
        self._awake = False

    def __call__(self, dialect: Dialect, _record: object, args: list[Any], options: dict[str, Any]) -> Any:
        """Connect; connecting asks the server for its version and settings."""
        patience = ANSWER_TIMEOUT_SECONDS if self._awake else WAKE_UP_TIMEOUT_SECONDS
        connection = _connect(dialect, args, {**options, "send_receive_timeout": patience})
        connection.client.timeout = Timeout(connect=CONNECT_TIMEOUT_SECONDS, read=ANSWER_TIMEOUT_SECONDS)
        self._awake = True
        return connection


def _connect(dialect: Dialect, args: list[Any], options: dict[str, Any]) -> Any:
    """Connect to the default database when the named one is missing: only the migration creates databases."""
    try:
        return dialect.connect(*args, **options)
    except dialect.loaded_dbapi.DatabaseError as error:
        if getattr(error, "code", None) != UNKNOWN_DATABASE:
            raise
        return dialect.connect(*args, **{**options, "database": DEFAULT_DATABASE})


def _embedded_engine(url: URL) -> Engine:
    engine = create_engine(url, hide_parameters=True, poolclass=NullPool)
    options = engine.dialect.create_connect_args(url)[1]
    folder = embedded.Folder(Path(str(url.query["chdb"])), partial(engine.dialect.connect, **options))
    event.listen(engine, "do_connect", lambda *_: embedded.connect(folder))
    event.listen(engine, "engine_disposed", lambda _: embedded.close(folder))
    return engine


def _forget_connections() -> None:
    """A forked child leaves its parent's sockets alone, and makes its own."""
    for engine in _engines.values():
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_connections)
