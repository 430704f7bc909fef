"""What the lock costs: `python -m benchmarks.lock [ROUNDS]`. Prints tables in Markdown.

1. An uncontended update against the same statements sent bare over one kept-alive HTTP connection: 3 inserts and 2
   FINAL reads. Both in turn, so that the ratio holds when the machine's speed drifts.
2. Eight processes that want one lock all the time: acquisitions a second, and how long each waited.

The server is the one that CLICKHOUSE_TEST_URL names, else one of this script's own.
"""

from __future__ import annotations

import base64
import http.client
import json
import multiprocessing
import statistics
import sys
import time
from typing import Any
from uuid import uuid4

from meltano.core.state_store.base import MeltanoState

from meltano_ch_state.manager import ClickhouseStateStoreManager
from tests.rig.endpoint import Endpoint
from tests.rig.server import shared_server
from tests.rig.users import SCHEMA_PREFIX

UPDATES = 150
PROCESSES = 8
CONTENTION_SECONDS = 8.0
STATE = {"singer_state": {"bookmarks": {"orders": {"replication_key_value": "2026-11-30T00:00:00Z"}}}}


class Bare:
    """The statements of an update and nothing else, on one connection."""

    def __init__(self, server: Endpoint, schema: str) -> None:
        """Connect."""
        admin = server.users["admin"]
        login = base64.b64encode(f"{admin.name}:{admin.password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}"}
        self._connection = http.client.HTTPConnection(server.host, server.http_port)
        self._schema = schema

    def send(self, sql: str) -> None:
        """Run one statement and read its answer."""
        self._connection.request("POST", "/?async_insert=0", body=sql.encode(), headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(body.decode())

    def update(self) -> None:
        """Lock, look, write, look again, release."""
        row = {"state_id": "bare", "lock_id": str(uuid4()), "lease_seconds": 300, "sequence": 1, "holder": "me@here:1"}
        where = f"FROM {self._schema}.state_lock FINAL WHERE state_id = 'bare'"
        version = f"{time.time():.6f}"
        self._insert("state_lock", row | {"released": 0})
        self.send(f"SELECT lock_id, max(released), max(token) {where} GROUP BY lock_id LIMIT 10")
        self._insert("state", {"state_id": "bare", "completed_state": json.dumps(STATE), "updated_at": version})
        self.send(f"SELECT released {where} AND lock_id = '{row['lock_id']}'")
        self._insert("state_lock", row | {"released": 1})

    def _insert(self, table: str, row: dict[str, object]) -> None:
        columns = ", ".join(row)
        self.send(f"INSERT INTO {self._schema}.{table} ({columns}) FORMAT JSONEachRow\n{json.dumps(row)}")


def main(rounds: int = 3) -> None:
    """Measure, and print the tables."""
    with shared_server() as server:
        schema = f"{SCHEMA_PREFIX}{uuid4().hex[:12]}"
        manager = ClickhouseStateStoreManager(server.url(), schema=schema)
        manager.migrate()
        print("| update | product, ms | bare, ms | ratio |\n| --- | ---: | ---: | ---: |")
        for _ in range(rounds):
            for name, state in (
                ("complete", MeltanoState("complete", {}, STATE)),
                ("partial", MeltanoState("partial", STATE)),
            ):
                uncontended(manager, Bare(server, schema), name, state)
        print(f"\n| {PROCESSES} processes | acquisitions/s | wait: median, ms | longest, ms | longest/mean |")
        print("| --- | ---: | ---: | ---: | ---: |")
        for turn in range(rounds):
            contended(server.url(), schema, f"run {turn + 1}")
        server.execute(f"DROP DATABASE {schema} SYNC")


def uncontended(manager: ClickhouseStateStoreManager, bare: Bare, name: str, state: MeltanoState) -> None:
    """Time updates of the product and bare ones in turn."""
    ours, theirs = [], []
    for _ in range(UPDATES):
        ours.append(timed(lambda: manager.update(state)))
        theirs.append(timed(bare.update))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    print(f"| {name} | {statistics.median(ours) * 1e3:.1f} | {statistics.median(theirs) * 1e3:.1f} | {ratio:.2f} |")


def timed(call: Any) -> float:
    """How long a call takes, in seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def contended(url: str, schema: str, name: str) -> None:
    """Let processes take one lock in turn, and print how it went."""
    context = multiprocessing.get_context("spawn")
    waits, start, ready = context.Queue(), context.Event(), context.Semaphore(0)
    arguments = (url, schema, waits, start, ready)
    processes = [context.Process(target=compete, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    start.set()
    seen = [wait for _ in processes for wait in waits.get()]
    for process in processes:
        process.join()
    mean, longest = statistics.mean(seen), max(seen)
    figures = [
        f"{len(seen) / CONTENTION_SECONDS:.1f}",
        f"{statistics.median(seen) * 1e3:.0f}",
        f"{longest * 1e3:.0f}",
        f"{longest / mean:.1f}",
    ]
    print(f"| {name} | {' | '.join(figures)} |")


def compete(url: str, schema: str, waits: Any, start: Any, ready: Any) -> None:
    """Take the lock again and again, write under it, and note how long each time it took to get it."""
    manager = ClickhouseStateStoreManager(url, schema=schema)
    manager.set(MeltanoState(f"warm-up-{uuid4()}", {}, STATE))
    ready.release()
    start.wait()
    seen = []
    until = time.monotonic() + CONTENTION_SECONDS
    while time.monotonic() < until:
        began = time.perf_counter()
        with manager.acquire_lock("contended", retry_seconds=1):
            seen.append(time.perf_counter() - began)
            manager.set(MeltanoState("contended", {}, STATE))
    waits.put(seen)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
