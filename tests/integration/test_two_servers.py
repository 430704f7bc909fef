"""Locks in Keeper over two ClickHouse servers at one ZooKeeper: holders on both, and one of them killed.

The servers share what is in ZooKeeper and nothing else: each has plain tables of its own. So what the lock guards here
is a file that all clients share. (Why the tables are not Replicated ones: tests/support/replicated.py.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state import connection, retry
from meltano_ch_state.errors import ServerBusyError, StateLockedError, StateLockLostError
from meltano_ch_state.manager import ClickhouseStateStoreManager
from tests.rig.server import ClickHouseServer
from tests.rig.users import SCHEMA_PREFIX
from tests.rig.zookeeper import ZooKeeper
from tests.support.processes import Worker, start
from tests.support.soaking import assert_nothing_was_lost
from tests.support.worker import STATE_ID, count

Manager = ClickhouseStateStoreManager
LEASE_SECONDS = 2.0


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper() as own:
        yield own


@pytest.fixture
def servers(zookeeper: ZooKeeper) -> Iterator[tuple[ClickHouseServer, ClickHouseServer]]:
    with (
        ClickHouseServer(zookeeper=zookeeper, replica="r1") as first,
        ClickHouseServer(zookeeper=zookeeper, replica="r2") as second,
    ):
        yield first, second


@pytest.fixture
def schema() -> str:
    return f"{SCHEMA_PREFIX}{uuid4().hex[:12]}"


@pytest.fixture
def open_manager(schema: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Manager]]:
    """Open managers that lock in Keeper."""
    monkeypatch.setattr(connection, "_engines", {})
    opened: list[Manager] = []

    def open_one(server: ClickHouseServer, user: str = "admin", **settings: object) -> Manager:
        given = {"schema": schema, "lock_mode": "keeper", "stale_lock_seconds": LEASE_SECONDS, **settings}
        opened.append(Manager(server.url(user), **given))
        return opened[-1]

    yield open_one
    for manager in opened:
        manager.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """What the locks guard: a number a line, each one more than the one before."""
    path = tmp_path / "numbers"
    path.touch()
    return path


@pytest.fixture
def start_on(schema: str, file: Path) -> Callable[..., Worker]:
    """Start a worker that counts in the file, with its locks on a server."""

    def start_one(server: ClickHouseServer, steps: int, *arguments: object) -> Worker:
        locks = ("--lock-mode", "keeper", "--lease", LEASE_SECONDS)
        return start(server.url(), schema, steps, *locks, "--file", file, *arguments)

    return start_one


def go(workers: list[Worker]) -> None:
    for worker in workers:
        worker.go()


def write(manager: Manager, value: int) -> None:
    manager.set(MeltanoState(STATE_ID, {}, {"n": value}))


def numbers_in(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


def newest_version(server: ClickHouseServer, schema: str) -> int:
    newest = f"SELECT max(toUnixTimestamp64Micro(updated_at)) FROM {schema}.state"
    return int(server.execute(newest))


@pytest.mark.timeout(180)
def test_processes_that_lock_on_both_servers_count_without_a_loss(
    servers: tuple[ClickHouseServer, ClickHouseServer], start_on: Callable[..., Worker], file: Path
) -> None:
    workers = [start_on(server, 8) for server in servers * 2]
    go(workers)
    assert [worker.result() for worker in workers] == [{"done": 8, "lost": 0}] * 4
    assert numbers_in(file) == list(range(1, 33))


def test_tokens_rise_over_both_servers(
    servers: tuple[ClickHouseServer, ClickHouseServer], open_manager: Callable[..., Manager], schema: str
) -> None:
    managers = [open_manager(server) for server in servers]
    versions = []
    for value in range(6):
        write(managers[value % 2], value)
        versions.append(newest_version(servers[value % 2], schema))
    assert versions == sorted(set(versions))


def test_who_locks_on_one_server_waits_for_the_holder_on_the_other(
    servers: tuple[ClickHouseServer, ClickHouseServer], open_manager: Callable[..., Manager], schema: str
) -> None:
    first, second = open_manager(servers[0]), open_manager(servers[1], lock_acquire_timeout_seconds=0.3)
    with first.acquire_lock(STATE_ID):
        with pytest.raises(StateLockedError) as caught:
            write(second, 2)
        lock_id = servers[0].execute(f"SELECT lock_id FROM {schema}.state_keeper_lock")
        assert caught.value.lock_id == lock_id
        write(first, 1)
    write(second, 2)
    assert (count(first), count(second)) == (1, 2)


def test_when_a_server_is_killed_those_on_the_other_go_on(
    servers: tuple[ClickHouseServer, ClickHouseServer], start_on: Callable[..., Worker], file: Path
) -> None:
    doomed = [start_on(servers[0], 1_000, "--no-retries") for _ in range(2)]
    others = [start_on(servers[1], 10) for _ in range(2)]
    go(doomed)
    while not numbers_in(file):
        assert all(worker.process.poll() is None for worker in doomed)
        time.sleep(0.01)
    go(others)
    servers[0].kill()
    assert [worker.result() for worker in others] == [{"done": 10, "lost": 0}] * 2
    assert [worker.process.wait() for worker in doomed] == [1, 1]
    for worker in doomed:
        worker.process.communicate()
    assert numbers_in(file) == list(range(1, len(numbers_in(file)) + 1))


def test_the_lock_of_a_holder_whose_server_died_is_taken_over_and_the_holder_is_told(
    servers: tuple[ClickHouseServer, ClickHouseServer], open_manager: Callable[..., Manager]
) -> None:
    holder = open_manager(servers[0])
    with holder.acquire_lock(STATE_ID):
        write(holder, 1)
        servers[0].kill()
        write(open_manager(servers[1]), 2)
        servers[0].start()
        with pytest.raises(StateLockLostError):
            write(holder, 3)
    write(holder, 4)
    assert count(holder) == 4


def test_a_server_that_comes_back_finds_the_locks_of_the_others(
    servers: tuple[ClickHouseServer, ClickHouseServer], open_manager: Callable[..., Manager]
) -> None:
    first, second = open_manager(servers[0], lock_acquire_timeout_seconds=0.3), open_manager(servers[1])
    write(first, 1)
    servers[0].kill()
    with second.acquire_lock(STATE_ID):
        servers[0].start()
        with pytest.raises(StateLockedError):
            write(first, 2)
    write(first, 2)
    assert count(first) == 2


def test_a_zookeeper_that_is_started_anew_is_waited_for_and_has_lost_nothing(
    zookeeper: ZooKeeper, servers: tuple[ClickHouseServer, ClickHouseServer], open_manager: Callable[..., Manager]
) -> None:
    holder, other = (open_manager(server, stale_lock_seconds=60) for server in servers)
    with holder.acquire_lock(STATE_ID):
        zookeeper.kill()
        starter = threading.Timer(1, zookeeper.start)
        starter.start()
        write(holder, 1)
        starter.join()
    write(other, 2)
    assert (count(holder), count(other)) == (1, 2)


def test_without_its_zookeeper_a_lock_is_a_clear_error(
    zookeeper: ZooKeeper,
    servers: tuple[ClickHouseServer, ClickHouseServer],
    open_manager: Callable[..., Manager],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = open_manager(servers[0], "impatient")
    write(manager, 1)
    zookeeper.stop()
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.5)
    with pytest.raises(ServerBusyError, match=r"with code 999: .*connecting to ZooKeeper") as caught:
        write(manager, 2)
    assert "\n" not in str(caught.value)
    assert count(manager) == 1


@pytest.mark.timeout(240)
def test_some_seconds_of_faults_with_locks_in_a_zookeeper_lose_nothing() -> None:
    assert_nothing_was_lost("15", "4", "--keeper")
