"""Lets tests run on chdb 3, as `-p tests.support.old_chdb`: for engines that no other package brings.

The product itself asks for chdb 4.1. Connections of chdb 3 take no query parameters, so those are SET first; a NUL ends
their statements, so it is escaped. JSON goes into the statement, as it does over HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chdb.state import sqlitelike

_INFILE = re.compile(r"FROM INFILE '([^']+)'(.*) FORMAT JSONEachRow$", re.DOTALL)


def _with_parameters(send: Callable[..., Any]) -> Callable[..., Any]:
    def sent(
        connection: Any, query: str | bytes, format: str = "CSV", params: Mapping[str, object] | None = None
    ) -> Any:
        for name, value in (params or {}).items():
            quoted = str(value).replace("\\", "\\\\").replace("'", "\\'")
            connection._conn.query(_without_nul(f"SET param_{name} = '{quoted}'"), "Null")
        return send(connection, _inline(query), format)

    return sent


def _inline(query: str | bytes) -> str | bytes:
    if isinstance(query, bytes):
        return query
    found = _INFILE.search(query)
    inline = f"{query[: found.start()]}{found[2]} FORMAT JSONEachRow\n{Path(found[1]).read_text()}" if found else query
    return _without_nul(inline)


def _without_nul(text: str) -> str:
    return text.replace("\0", "\\0")


for name in ("query", "send_query"):
    if hasattr(sqlitelike.Connection, name):
        setattr(sqlitelike.Connection, name, _with_parameters(getattr(sqlitelike.Connection, name)))
