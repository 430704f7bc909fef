"""Many processes, and faults at random: `python -m tests.soak [SECONDS] [SEED]`. Exits with 1 if a promise broke.

Eight workers add labels to states, each under its lock, over a line that loses, doubles, delays and refuses
requests. Workers are killed and paused, the server is killed and started anew, tables are merged. At the end each
acknowledged label is there exactly once, nobody was inside a lock beside somebody else, no live row is left.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.settings import INSERT, KEEPER
from tests.rig.endpoint import Endpoint, RefusedError
from tests.rig.server import ClickHouseServer
from tests.rig.zookeeper import ZooKeeper
from tests.soak.worker import labels_of
from tests.support.proxy import Proxy, delayed, doubled, late, lost, refused, serving, unanswered

PROCESSES = 8
STATES = 40
FAULTS = (delayed(0.5), doubled, late(1.0), lost, refused, unanswered)
GROWTH = "memory grown at most, bytes"
MOST_GROWTH_BYTES = 64_000_000
SHOWN_LOSSES = 5
CLOSED_SECONDS = 15.0
AROUND = """
WITH concat(ifNull(completed_state, ''), ifNull(partial_state, '')) AS labels,
    (SELECT min(updated_at) FROM meltano.state_history WHERE position(labels, '"{label}"') > 0) AS written,
    (SELECT any(state_id) FROM meltano.state_history WHERE position(labels, '"{label}"') > 0) AS of
SELECT updated_at, written_at, holder, length(completed_state), length(partial_state), position(labels, '"{label}"') > 0
FROM meltano.state_history FINAL WHERE state_id = of AND abs(dateDiff('second', updated_at, written)) < 60
ORDER BY updated_at"""
LIVE = """
SELECT count() FROM (SELECT lock_id FROM meltano.state_lock GROUP BY lock_id, state_id
HAVING max(released) = 0 AND max(waiting) = 0 AND any(operation) != 'keeper')"""
HELD = "SELECT count() FROM meltano.state_keeper_lock WHERE released = 0"


class Soak:
    """The workers, what harms them, and what came of it."""

    def __init__(self, server: ClickHouseServer, proxy: Proxy, folder: Path, chance: random.Random) -> None:
        self._server, self._proxy, self._folder, self._chance = server, proxy, folder, chance
        self._workers: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.faults = Counter[str]()

    def run(self, seconds: float, *arguments: str) -> None:
        """Harm the workers until the time is over; then let them end."""
        until = time.time() + seconds
        while time.time() < until:
            while len(self._workers) < PROCESSES:
                self._start_worker(until, *arguments)
            harm = self._chance.choice([self._harm_the_line] * 4 + [self._kill, self._pause, self._merge, self._crash])
            harm()
            time.sleep(self._chance.uniform(0.2, 1.5))
        for worker in self._workers:
            worker.wait()

    def _start_worker(self, until: float, *arguments: str) -> None:
        self._started += 1
        command = [sys.executable, "-m", "tests.soak.worker", str(self._folder), f"w{self._started}"]
        self._workers.append(subprocess.Popen([*command, str(until), *arguments]))

    def _harm_the_line(self) -> None:
        fault = self._chance.choice(FAULTS)
        self._proxy.plan(fault)
        self.faults["of the line"] += 1

    def _kill(self) -> None:
        worker = self._workers.pop(self._chance.randrange(PROCESSES))
        worker.kill()
        worker.wait()
        self.faults["killed workers"] += 1

    def _pause(self) -> None:
        worker = self._chance.choice(self._workers)
        worker.send_signal(signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.1, 2.0))
        worker.send_signal(signal.SIGCONT)
        self.faults["paused workers"] += 1

    def _merge(self) -> None:
        with suppress(OSError, RefusedError):
            for table in ("state", "state_lock"):
                self._server.execute(f"OPTIMIZE TABLE meltano.{table} FINAL")
            self.faults["merges"] += 1

    def _crash(self) -> None:
        self._server.kill()
        time.sleep(self._chance.uniform(0.0, 1.0))
        self._server.start()
        self.faults["server crashes"] += 1

    def noted(self, kind: str) -> Iterator[str]:
        """The lines that workers wrote down."""
        for path in sorted(self._folder.glob(f"{kind}-*")):
            yield from path.read_text().splitlines()


def report(soak: Soak, server: ClickHouseServer, lock_mode: str) -> dict[str, int]:
    """Count what happened, and what must be 0."""
    manager = ClickhouseStateStoreManager(server.url(), lock_mode=lock_mode)
    for number in range(STATES):  # who was killed inside is taken over now
        with manager.acquire_lock(f"s{number}"):
            pass
    labels = [label for state in manager.get_all() for label in labels_of(state)]
    manager.close()
    tried, done = set(soak.noted("tried")), set(soak.noted("done"))
    tell_of_lost(server, done - set(labels))
    told = [json.loads(line) for line in soak.noted("told")]
    seen = Counter[str]()
    for each in told:
        seen.update({name: number for name, number in each.items() if name != "grown_bytes"})
    return {
        "updates acknowledged": len(done),
        "updates that failed or were cut off": len(tried - done),
        **{f"errors: {name}": number for name, number in sorted(seen.items()) if name.endswith("Error")},
        **{f"faults: {name}": number for name, number in sorted(soak.faults.items())},
        GROWTH: max((each["grown_bytes"] for each in told), default=0),
        "LOST UPDATES": len(done - set(labels)),
        "UPDATES THAT ARE THERE TWICE": len(labels) - len(set(labels)),
        "UPDATES FROM NOWHERE": len(set(labels) - tried),
        "OVERLAPS": seen["overlaps"],
        "LEFTOVER LIVE ROWS": sum(int(server.execute(query)) for query in (LIVE, *[HELD] * (lock_mode == KEEPER))),
        "LEFTOVER CONNECTIONS": leftover_connections(server),
    }


def leftover_connections(server: Endpoint) -> int:
    """How many connections stay beside the one that asks; the server takes a while to see that others are closed."""
    until = time.monotonic() + CLOSED_SECONDS
    while True:
        count = int(server.execute("SELECT value FROM system.metrics WHERE metric = 'HTTPConnection'")) - 1
        if count <= 0 or time.monotonic() > until:
            return max(0, count)
        time.sleep(0.5)


def tell_of_lost(server: Endpoint, lost: set[str]) -> None:
    """Tell of the versions around the first lost updates: which of them replaced what it had not read."""
    for label in sorted(lost)[:SHOWN_LOSSES]:
        sys.stderr.write(f"lost: {label}\n{server.execute(AROUND.format(label=label))}")


def main() -> int:
    """Run, tell the counts, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--no-lock", action="store_true", help="to see that the counts tell")
    parser.add_argument("--keeper", action="store_true", help="locks in Keeper, which is a ZooKeeper that stays up")
    args = parser.parse_args()
    lock_mode = KEEPER if args.keeper else INSERT
    worker = ["3", "--no-lock"] if args.no_lock else [str(STATES), "--lock-mode", lock_mode]
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper()) if args.keeper else None
        server = stack.enter_context(ClickHouseServer(zookeeper=zookeeper))
        proxy, address = stack.enter_context(serving(server))
        proxy.harmed = (b"INSERT INTO", b"ALTER TABLE")
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ClickhouseStateStoreManager(server.url(), lock_mode=lock_mode).migrate()
        soak = Soak(server, proxy, Path(folder), random.Random(args.seed))
        soak.run(args.seconds, address.url(), *worker)
        counts = {"seed": args.seed, "seconds": round(args.seconds), **report(soak, server, lock_mode)}
    sys.stdout.write("\n".join(f"{name}: {number:,}" for name, number in counts.items()) + "\n")
    return int(counts[GROWTH] > MOST_GROWTH_BYTES or any(number for name, number in counts.items() if name.isupper()))


if __name__ == "__main__":
    sys.exit(main())
