"""The statements that the product's calls come down to, and nothing else: one kept-alive HTTP connection."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

IDLE_SECONDS = 3
"""After so long without a statement the connection is opened anew: the server closes an idle one after 10."""


class Bare:
    """Sends statements, and reads their answers whole; nothing is decoded.

    A write is the lock as the product was designed: a candidate, a look, the state, another look, a tombstone. That is
    three inserts and two reads. A partial update counts no read of its own for the state that it merges with.
    """

    def __init__(self, url: str, schema: str) -> None:
        """Connect.

        Args:
            url: `clickhouse://user:password@host:port`.
            schema: Where the product's tables are, for this object alone.
        """
        parts = urlsplit(url)
        login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        self._headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        self._last_use = time.monotonic()
        self._state, self._lock = f"{schema}.state", f"{schema}.state_lock"

    def send(self, sql: str) -> bytes:
        """Run one statement and read its answer."""
        if time.monotonic() - self._last_use > IDLE_SECONDS:
            self._connection.close()
        self._connection.request("POST", "/?async_insert=0", body=sql.encode(), headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        self._last_use = time.monotonic()
        if response.status != http.client.OK:
            raise RuntimeError(body.decode())
        return body

    def update(self, state: Any) -> None:
        """Write one state under a lock."""
        self.set_all([state])

    def clear(self, state_id: str) -> None:
        """Write a tombstone under a lock."""
        self._write([{"state_id": state_id, "is_deleted": 1}])

    def get(self, state_id: str) -> bytes:
        """Read one state."""
        columns = "state_id, partial_state, completed_state, updated_at"
        return self.send(f"SELECT {columns} FROM {self._state} FINAL WHERE state_id = '{state_id}' AND is_deleted = 0")

    def set_all(self, states: Iterable[Any]) -> int:
        """Write many states under one lock_id."""
        rows = [
            {
                "state_id": state.state_id,
                "partial_state": json.dumps(state.partial_state),
                "completed_state": json.dumps(state.completed_state),
            }
            for state in states
        ]
        self._write(rows)
        return len(rows)

    def clear_all(self) -> int:
        """Write a tombstone for every state."""
        rows = [{"state_id": state_id, "is_deleted": 1} for state_id in self.get_state_ids()]
        self._write(rows)
        return len(rows)

    def get_all(self) -> list[bytes]:
        """Read all states."""
        columns = "state_id, partial_state, completed_state, updated_at"
        sql = f"SELECT {columns} FROM {self._state} FINAL WHERE is_deleted = 0 ORDER BY state_id"
        return self.send(sql).splitlines()

    def get_state_ids(self, pattern: str = "*") -> list[str]:
        """Read the IDs that match a glob pattern, which has no wildcard but `*`."""
        where = f"is_deleted = 0 AND state_id LIKE '{pattern.replace('*', '%')}'"
        return self.send(f"SELECT state_id FROM {self._state} FINAL WHERE {where}").decode().split()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        lock_id, version = str(uuid4()), f"{time.time():.6f}"
        where = f"FROM {self._lock} FINAL WHERE state_id IN ({_listed(rows)})"
        self._insert(self._lock, _lock_rows(rows, lock_id, released=0))
        self.send(f"SELECT state_id, lock_id, max(released), max(token) {where} GROUP BY state_id, lock_id LIMIT 10")
        self._insert(self._state, ({**row, "updated_at": version} for row in rows))
        self.send(f"SELECT max(released) {where} AND lock_id = '{lock_id}'")
        self._insert(self._lock, _lock_rows(rows, lock_id, released=1))

    def _insert(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        lines = [json.dumps(row) for row in rows]
        columns = ", ".join(json.loads(lines[0]))
        self.send(f"INSERT INTO {table} ({columns}) FORMAT JSONEachRow\n" + "\n".join(lines))


def _lock_rows(rows: Iterable[dict[str, Any]], lock_id: str, released: int) -> Iterator[dict[str, Any]]:
    common = {"lock_id": lock_id, "lease_seconds": 300, "sequence": released, "holder": "me@here:1"}
    return ({"state_id": row["state_id"], "released": released, **common} for row in rows)


def _listed(rows: Sequence[dict[str, Any]]) -> str:
    """State IDs for a query's text, whose length is limited: of very many a share."""
    return ", ".join(f"'{row['state_id']}'" for row in rows[:2_000])
