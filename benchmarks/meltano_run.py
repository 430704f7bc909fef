"""How much longer a `meltano run` takes when its states are in ClickHouse: `python -m benchmarks.meltano_run [ROUNDS]`.

The tap sends 30 STATE messages and the target hands each back at once, so Meltano updates its state 30 times, one after
the other; that each update reached the store is checked. The stores take turns in every round, so that a busy moment
of the machine strikes them alike. Prints a table in Markdown. Exits with 1 when the server's difference is over the
limit.

The server is the one that CLICKHOUSE_TEST_URL names, else one of this script's own.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

from sqlalchemy import text

from meltano_ch_state.connection import engine_for
from meltano_ch_state.settings import from_environment
from tests.acceptance.project import Project, succeeded
from tests.rig.server import shared_server
from tests.rig.users import SCHEMA_PREFIX

STATES = 30
LIMIT_SECONDS = 2.5
"""What a run on the server may take longer than on Meltano's system database."""
SYSTEM, SERVER, EMBEDDED = "system database (SQLite)", "server", "embedded"
UPDATED = "Incremental state has been updated"


def main(rounds: int = 3) -> int:
    """Measure, and print the table; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder, stores(Path(folder)) as settings:
        projects = {store: Project(Path(folder) / store, variables) for store, variables in settings.items()}
        seconds: dict[str, list[float]] = {store: [] for store in projects}
        for turn in range(rounds + 1):
            for store, project in projects.items():
                seconds[store].append(timed_run(project, turn))
        for store in (SERVER, EMBEDDED):
            check(store, locks_taken(settings[store]), STATES * (rounds + 1))
    report(seconds)
    return int(difference(seconds, SERVER) > LIMIT_SECONDS)


@contextmanager
def stores(folder: Path) -> Iterator[dict[str, dict[str, str]]]:
    """The settings of each store, as environment variables."""
    schema = f"{SCHEMA_PREFIX}{uuid4().hex[:12]}"
    with shared_server() as server:
        admin = server.users["admin"]
        yield {
            SYSTEM: {},
            SERVER: {
                "MELTANO_STATE_BACKEND_URI": f"clickhouse://{quote(admin.name, '')}@{server.host}:{server.http_port}",
                "MELTANO_STATE_BACKEND_CLICKHOUSE_PASSWORD": admin.password,
                "MELTANO_STATE_BACKEND_CLICKHOUSE_SCHEMA": schema,
            },
            EMBEDDED: {"MELTANO_STATE_BACKEND_URI": f"chdb://{folder / 'states'}"},
        }
        server.execute(f"DROP DATABASE IF EXISTS {schema} SYNC")


def timed_run(project: Project, turn: int) -> float:
    """Run the pipeline over as many new orders as there shall be STATE messages; returns the seconds it took."""
    project.sell(*range(turn * STATES + 1, (turn + 1) * STATES + 1))
    started = time.perf_counter()
    done = succeeded(project.pipeline())
    took = time.perf_counter() - started
    check(project.root.name, done.stderr.count(UPDATED), STATES)
    return took


def locks_taken(variables: dict[str, str]) -> int:
    """How many locks a store has seen: each update takes one, and its rows stay for days."""
    settings = from_environment(variables)
    engine = engine_for(settings)
    with engine.connect() as connection:
        count = connection.execute(
            text(f"SELECT uniqExact(lock_id) FROM {settings.schema}.{settings.names.lock_table}")
        ).scalar_one()
    engine.dispose()
    return int(count)


def check(store: str, updates: int, expected: int) -> None:
    """End the benchmark if it does not measure what it says."""
    if updates != expected:
        sys.exit(f"{store}: {updates} updates reached the store, not {expected}")


def report(seconds: dict[str, list[float]]) -> None:
    """Print the table."""
    rounds = len(seconds[SYSTEM]) - 1
    print(f"`meltano run` with {STATES} STATE messages, seconds, median of {rounds}; the first run makes the tables\n")
    print("| states in | first run | later runs | more than in the system database |")
    print("|---|---:|---:|---:|")
    for store, (first, *later) in seconds.items():
        print(f"| {store} | {first:.2f} | {statistics.median(later):.2f} | {difference(seconds, store):+.2f} |")


def difference(seconds: dict[str, list[float]], store: str) -> float:
    """By how much a later run takes longer than on the system database, in seconds; of each round, the median."""
    rounds = zip(seconds[SYSTEM][1:], seconds[store][1:], strict=True)
    return statistics.median(taken - base for base, taken in rounds)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
