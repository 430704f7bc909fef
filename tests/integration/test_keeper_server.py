"""Locks in Keeper on a real server: with real processes, a bad line, and clients that lock by inserts beside them."""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from meltano.core.state_store.base import MeltanoState
from sqlalchemy import event

from meltano_ch_state import connection, retry
from meltano_ch_state.cli import main
from meltano_ch_state.errors import (
    NoKeeperError,
    SchemaMissingError,
    ServerUnreachableError,
    StateLockedError,
    StateLockLostError,
)
from meltano_ch_state.lock import Lock
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.modes import ModeLocker
from tests.rig.endpoint import Endpoint
from tests.rig.server import ClickHouseServer
from tests.support.processes import start, start_all
from tests.support.proxy import Fault, Proxy, delayed, doubled, late, lost, passed, refused, serving
from tests.support.worker import STATE_ID, count

Manager = ClickhouseStateStoreManager
AT_ONCE_SECONDS = 10
"""Far less than a lease of 300 seconds, and enough on a busy machine."""


@pytest.fixture
def open_manager(server: Endpoint, schema: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Manager]]:
    """Open managers on the test's own schema, that lock in Keeper unless told otherwise."""
    monkeypatch.setattr(connection, "_engines", {})  # one for an earlier proxy may be of the same port
    opened: list[Manager] = []

    def open_one(endpoint: Endpoint = server, **settings: object) -> Manager:
        opened.append(Manager(endpoint.url(), **{"schema": schema, "lock_mode": "keeper", **settings}))
        return opened[-1]

    yield open_one
    for manager in opened:
        manager.close()


@pytest.fixture
def manager(open_manager: Callable[..., Manager]) -> Manager:
    """A manager that locks in Keeper; the counter stands at 0."""
    manager = open_manager()
    write(manager, 0)
    return manager


def write(manager: Manager, value: int) -> None:
    manager.set(MeltanoState(STATE_ID, {}, {"n": value}))


def add_one(manager: Manager) -> None:
    with manager.acquire_lock(STATE_ID):
        write(manager, count(manager) + 1)


def repeat(times: int, call: Callable[[], None]) -> None:
    for _ in range(times):
        call()


def held_cells(server: Endpoint, schema: str) -> int:
    return int(server.execute(f"SELECT count() FROM {schema}.state_keeper_lock WHERE released = 0"))


def end_guard(server: Endpoint, schema: str) -> None:
    """Put a tombstone over the guard, as no client does."""
    columns = "state_id, lock_id, token, born, lease_seconds, sequence, holder, process, operation, version"
    server.execute(
        f"INSERT INTO {schema}.state_lock (released, {columns}) SELECT 1, {columns} FROM {schema}.state_lock"
    )


def mode_of(manager: Manager) -> str:
    locker = manager.store.locker
    assert isinstance(locker, ModeLocker)
    return locker.mode_in_use()


def statements(manager: Manager) -> list[str]:
    """The first word of each statement that a manager sends from now on."""
    sent: list[str] = []
    engine = manager.store._states.engine  # type: ignore[attr-defined]
    event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2].lstrip("(").split()[0]))
    return sent


def test_an_update_is_one_insert_two_changes_and_one_read(manager: Manager) -> None:
    sent = statements(manager)
    for state in (MeltanoState(STATE_ID, {}, {"n": 1}), MeltanoState(STATE_ID, {"p": 1})):
        sent.clear()
        manager.update(state)
        assert sent == ["ALTER", "SELECT", "INSERT", "ALTER"]
    assert manager.get(STATE_ID) == MeltanoState(STATE_ID, {"p": 1}, {"n": 1})


def test_the_first_update_after_a_lease_of_idleness_is_one_insert_and_one_read_more(
    open_manager: Callable[..., Manager],
) -> None:
    lease_seconds = 3
    manager = open_manager(stale_lock_seconds=lease_seconds)
    write(manager, 0)
    time.sleep(lease_seconds + 0.1)
    sent = statements(manager)
    write(manager, 1)
    assert sent == ["ALTER", "SELECT", "INSERT", "SELECT", "INSERT", "ALTER"]


def test_a_write_in_a_block_is_checked_before_the_block_ends(manager: Manager) -> None:
    with manager.acquire_lock(STATE_ID):
        sent = statements(manager)
        write(manager, 1)
        assert sent == ["INSERT", "ALTER", "SELECT"]
    assert sent == ["INSERT", "ALTER", "SELECT", "ALTER"]


def test_a_lock_taken_within_an_update_is_checked_by_itself(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    store = manager.store
    lock, get = store.lock, manager.get

    def observed(*args: Any, **options: Any) -> AbstractContextManager[Lock]:
        asked.append(options["counts_when_released"])
        return lock(*args, **options)

    def get_under_another_lock(state_id: str) -> MeltanoState | None:
        with manager.acquire_lock("another"):
            return get(state_id)

    monkeypatch.setattr(store, "lock", observed)
    monkeypatch.setattr(manager, "get", get_under_another_lock)
    manager.update(MeltanoState(STATE_ID, {"p": 1}))
    assert asked == [True, False]


def after_the_write(manager: Manager, act: Callable[[], None]) -> None:
    """Have something happen between the next write of a manager and its release."""
    armed = [act]

    def executed(*args: object) -> None:
        if str(args[2]).startswith("INSERT") and "_lock" not in str(args[2]) and armed:
            armed.pop()()

    event.listen(manager.store._states.engine, "after_cursor_execute", executed)  # type: ignore[attr-defined]


def holder_in_keeper(server: Endpoint, schema: str) -> str:
    return server.execute(f"SELECT lock_id FROM {schema}.state_keeper_lock WHERE released = 0")


@pytest.fixture
def unlocker(server: Endpoint, schema: str) -> Callable[[], None]:
    """End the lock of the counter by hand."""

    def unlock() -> None:
        uri = f"{server.url()}?schema={schema}"
        arguments = ["unlock", STATE_ID, "--lock-id", holder_in_keeper(server, schema), "--yes", "--uri", uri]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output

    return unlock


@pytest.mark.parametrize("state", [MeltanoState(STATE_ID, {}, {"n": 1}), MeltanoState(STATE_ID, {"p": 1})])
def test_who_is_deposed_after_its_write_is_told_by_its_update(
    manager: Manager, unlocker: Callable[[], None], state: MeltanoState
) -> None:
    after_the_write(manager, unlocker)
    with pytest.raises(StateLockLostError, match="so this write does not count"):
        manager.update(state)
    add_one(manager)


def test_who_is_deposed_and_followed_by_others_after_its_write_is_told(
    manager: Manager, open_manager: Callable[..., Manager], unlocker: Callable[[], None]
) -> None:
    other = open_manager(stale_lock_seconds=299)  # a manager of its own, with other settings

    def follow() -> None:
        unlocker()
        repeat(3, lambda: add_one(other))

    after_the_write(manager, follow)
    with pytest.raises(StateLockLostError):
        write(manager, 100)
    add_one(other)


def test_a_guard_cannot_be_unlocked_as_holders_rely_on_it(manager: Manager, server: Endpoint, schema: str) -> None:
    guard = server.execute(f"SELECT lock_id FROM {schema}.state_lock FINAL WHERE operation = 'keeper'")
    arguments = ["unlock", STATE_ID, "--lock-id", guard, "--yes", "--uri", f"{server.url()}?schema={schema}"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert "has no live lock with lock_id" in done.output


def test_who_is_slow_asks_whether_the_guard_was_there_all_the_time(
    open_manager: Callable[..., Manager], server: Endpoint, schema: str
) -> None:
    slow = open_manager(stale_lock_seconds=2)
    write(slow, 0)

    def end_guard_and_wait() -> None:
        end_guard(server, schema)
        time.sleep(0.6)

    after_the_write(slow, end_guard_and_wait)
    with pytest.raises(StateLockLostError):
        write(slow, 9)
    add_one(slow)


def test_there_is_one_row_for_each_state_and_one_guard(manager: Manager, server: Endpoint, schema: str) -> None:
    for _ in range(3):
        add_one(manager)
    assert server.execute(f"SELECT state_id, released FROM {schema}.state_keeper_lock") == f"{STATE_ID}\t1"
    assert server.execute(f"SELECT operation, released, process FROM {schema}.state_lock FINAL") == "keeper\t0\t"


@pytest.mark.timeout(180)
def test_six_processes_counting_lose_nothing(manager: Manager, server: Endpoint, schema: str) -> None:
    results = [worker.result() for worker in start_all(6, server.url(), schema, 10, "--lock-mode", "keeper")]
    assert results == [{"done": 10, "lost": 0}] * 6
    assert count(manager) == 60
    assert held_cells(server, schema) == 0


@pytest.mark.timeout(180)
def test_clients_of_both_modes_that_count_together_lose_nothing(
    open_manager: Callable[..., Manager], server: Endpoint, schema: str
) -> None:
    write(open_manager(lock_mode="insert"), 0)
    arguments = (server.url(), schema, 8, "--lease", 2, "--lock-mode")
    workers = [start(*arguments, mode) for mode in ("insert", "keeper", "insert", "keeper")]
    for worker in workers:
        worker.go()
    results = [worker.result() for worker in workers]
    done, told = (sum(result[what] for result in results) for what in ("done", "lost"))
    assert done + told == 32
    assert done <= count(open_manager(stale_lock_seconds=2)) <= done + told


def test_who_locks_by_inserts_waits_for_those_in_keeper_and_is_told_the_remedy(
    manager: Manager, open_manager: Callable[..., Manager]
) -> None:
    impatient = open_manager(lock_mode="insert", lock_acquire_timeout_seconds=0.3)
    with pytest.raises(StateLockedError, match=r"locked by .*\(keeper, for .*Set lock_mode to keeper here") as caught:
        write(impatient, 1)
    assert 0 <= caught.value.age_seconds < 60
    assert count(manager) == 0


def test_who_locks_in_keeper_waits_for_those_who_lock_by_inserts(
    open_manager: Callable[..., Manager], server: Endpoint, schema: str
) -> None:
    insert, keeper = open_manager(lock_mode="insert"), open_manager(lock_acquire_timeout_seconds=0.3)
    with insert.acquire_lock(STATE_ID):
        write(insert, 1)
        with pytest.raises(StateLockedError):
            write(keeper, 9)
        write(insert, 2)
    assert held_cells(server, schema) == 0
    add_one(keeper)
    assert count(keeper) == 3


def test_after_a_lease_without_clients_in_keeper_inserts_do_again(open_manager: Callable[..., Manager]) -> None:
    add_one(open_manager(stale_lock_seconds=1))
    add_one(open_manager(lock_mode="insert"))
    add_one(open_manager())
    assert count(open_manager()) == 3


def test_a_holder_whose_guard_is_gone_is_told(manager: Manager, server: Endpoint, schema: str) -> None:
    with manager.acquire_lock(STATE_ID):
        end_guard(server, schema)
        with pytest.raises(StateLockLostError):
            write(manager, 9)
    add_one(manager)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_a_signal_ends_blocks_nobody_of_its_host(
    manager: Manager, server: Endpoint, schema: str, number: signal.Signals
) -> None:
    holder = start(server.url(), schema, 1, "--pause-inside", 60, "--lock-mode", "keeper")
    holder.go()
    holder.expect("held")
    holder.process.send_signal(number)
    assert holder.process.wait() == -number
    write(manager, 41)
    assert count(manager) == 41
    holder.process.communicate()


def test_a_holder_stopped_beyond_its_lease_is_deposed_and_told(manager: Manager, server: Endpoint, schema: str) -> None:
    holder = start(server.url(), schema, 1, "--pause-inside", 0.2, "--lease", 1, "--lock-mode", "keeper")
    holder.go()
    holder.expect("held")
    holder.process.send_signal(signal.SIGSTOP)
    write(manager, 41)
    holder.process.send_signal(signal.SIGCONT)
    assert holder.result() == {"done": 0, "lost": 1}
    assert count(manager) == 41


def test_a_holder_that_renews_keeps_its_lock_and_the_guard_beyond_its_lease(
    manager: Manager, open_manager: Callable[..., Manager], server: Endpoint, schema: str
) -> None:
    holder = start(server.url(), schema, 1, "--pause-inside", 4, "--lease", 1, "--lock-mode", "keeper")
    holder.go()
    holder.expect("held")
    for mode in ("keeper", "insert"):
        with pytest.raises(StateLockedError) as caught:
            write(open_manager(lock_mode=mode, lock_acquire_timeout_seconds=1), 41)
        assert (f":{holder.process.pid}" in caught.value.holder) or mode == "insert"
    assert holder.result() == {"done": 1, "lost": 0}
    assert count(manager) == 1


def test_the_command_in_the_timeout_error_unlocks_and_the_holder_is_told(
    manager: Manager, open_manager: Callable[..., Manager], server: Endpoint, schema: str
) -> None:
    other = open_manager(lock_acquire_timeout_seconds=0)
    with manager.acquire_lock(STATE_ID):
        with pytest.raises(StateLockedError) as caught:
            write(other, 1)
        uri = ["--uri", f"{server.url()}?schema={schema}"]
        listed = CliRunner().invoke(main, ["locks", *uri]).output
        assert caught.value.lock_id in listed
        done = CliRunner().invoke(main, ["unlock", STATE_ID, "--lock-id", caught.value.lock_id, "--yes", *uri])
        assert done.exit_code == 0, done.output
        write(other, 2)
        with pytest.raises(StateLockLostError):
            write(manager, 3)
    assert count(manager) == 2


# --- a bad line ---


@pytest.fixture
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What befalls a statement, befalls the lock."""
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)


@pytest.fixture
def line(server: Endpoint) -> Iterator[tuple[Proxy, Endpoint]]:
    """A proxy that does harm to every INSERT and every change."""
    with serving(server) as (proxy, address):
        proxy.harmed = (b"INSERT INTO", b"ALTER TABLE")
        yield proxy, address


@pytest.fixture
def victim(line: tuple[Proxy, Endpoint], manager: Manager, schema: str) -> Iterator[Manager]:
    """A client behind the proxy, that knows the counter's row."""
    victim = Manager(line[1].url(), schema=schema, lock_mode="keeper")
    write(victim, 0)
    yield victim
    victim.close()


def write_in_a_block(manager: Manager, value: int) -> None:
    with manager.acquire_lock(STATE_ID):
        write(manager, value)


TAKE, STATE, CHECK, RELEASE = range(4)
"""The statements of a write in a block that change anything, in their order. A `set` releases where that checks."""
each_statement = pytest.mark.parametrize(
    ("write_it", "nth"),
    [
        pytest.param(write, TAKE, id="take"),
        pytest.param(write, STATE, id="state"),
        pytest.param(write, CHECK, id="release that checks"),
        pytest.param(write_in_a_block, CHECK, id="check"),
        pytest.param(write_in_a_block, RELEASE, id="release"),
    ],
)
Write = Callable[[Manager, int], None]


@each_statement
@pytest.mark.parametrize(
    "faults",
    [[lost], [refused], [doubled], [late(0.6)]],
    ids=["answer lost", "never seen", "doubled", "late, too"],
)
def test_one_fault_of_the_line_is_made_good(  # noqa: PLR0917 - fixtures and parameters
    manager: Manager, victim: Manager, line: tuple[Proxy, Endpoint], write_it: Write, nth: int, faults: list[Fault]
) -> None:
    proxy = line[0]
    proxy.plan(*[passed] * nth, *faults)
    write_it(victim, 1)
    began = time.monotonic()
    add_one(manager)
    proxy.finish()
    add_one(manager)
    add_one(victim)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert count(manager) == 4


@each_statement
def test_what_lands_after_its_client_gave_up_blocks_nobody(  # noqa: PLR0917 - fixtures and parameters
    no_retries: None,
    manager: Manager,
    victim: Manager,
    line: tuple[Proxy, Endpoint],
    write_it: Write,
    nth: int,
) -> None:
    proxy = line[0]
    again = [refused] if nth == STATE else []  # the driver itself sends an INSERT again, but no ALTER
    proxy.plan(*[passed] * nth, late(0.5), *again)
    if nth == RELEASE:
        write_it(victim, 1)
        proxy.finish()  # until then it is held
    else:
        with pytest.raises(ServerUnreachableError):
            write_it(victim, 1)
    began = time.monotonic()
    write(manager, 2)
    proxy.finish()
    add_one(manager)
    add_one(victim)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert count(manager) == 4


def test_a_row_whose_creation_lands_late_blocks_nobody(
    no_retries: None, manager: Manager, victim: Manager, line: tuple[Proxy, Endpoint]
) -> None:
    proxy = line[0]
    proxy.plan(passed, late(0.5), refused)  # the guard comes first
    fresh = MeltanoState("fresh", {}, {"n": 1})
    with pytest.raises(ServerUnreachableError):
        victim.set(fresh)
    proxy.finish()
    began = time.monotonic()
    manager.set(fresh)
    assert time.monotonic() - began < AT_ONCE_SECONDS
    assert manager.get("fresh") == fresh


def test_statements_that_arrive_late_lose_no_count(
    manager: Manager, victim: Manager, line: tuple[Proxy, Endpoint]
) -> None:
    proxy = line[0]
    proxy.plan(*[delayed(seconds) for seconds in (0.3, 0.0, 0.6, 1.0, 0.0, 0.3, 0.3, 0.0, 0.3, 0.6, 0.0, 0.3)])
    with ThreadPoolExecutor(1) as pool:
        counting = pool.submit(repeat, 4, lambda: add_one(victim))
        quick = 0
        while not counting.done():
            add_one(manager)
            quick += 1
        counting.result()
    proxy.finish()
    assert count(manager) == 4 + quick


# --- with and without a Keeper ---


def test_a_keeper_that_lost_its_data_is_a_clear_error_with_the_remedy(
    open_manager: Callable[..., Manager], private_server: ClickHouseServer, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = open_manager(private_server, schema="meltano")
    write(keeper, 1)
    private_server.restart()
    with pytest.raises(NoKeeperError, match=r"has lost the lock table.*DROP the table whose name ends in _keeper_lock"):
        write(keeper, 2)
    with caplog.at_level(logging.INFO, "meltano_ch_state.modes"):
        auto = open_manager(private_server, schema="meltano", lock_mode="auto", lock_acquire_timeout_seconds=0)
        assert mode_of(auto) == "insert"
    assert "Locks are kept by inserts (lock_mode auto): The Keeper of ClickHouse" in caplog.text
    private_server.execute("DROP TABLE meltano.state_keeper_lock SYNC")
    add_one(open_manager(private_server, schema="meltano"))
    assert count(keeper) == 2


def test_without_a_keeper_the_error_says_what_to_do_and_auto_locks_by_inserts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = f"chdb://{tmp_path / 'state'}"
    with pytest.raises(NoKeeperError, match=r"has no Keeper.*Set lock_mode to insert, or configure keeper_map_"):
        write(Manager(uri, lock_mode="keeper"), 1)
    with caplog.at_level(logging.INFO, "meltano_ch_state.modes"):
        auto = Manager(uri, lock_mode="auto")
        add_one(auto)
    assert mode_of(auto) == "insert"
    assert re.search(r"Locks are kept by inserts \(lock_mode auto\): .* has no Keeper", caplog.text)
    auto.close()


def test_auto_locks_in_keeper_where_it_can(
    open_manager: Callable[..., Manager], caplog: pytest.LogCaptureFixture, server: Endpoint, schema: str
) -> None:
    with caplog.at_level(logging.INFO, "meltano_ch_state.modes"):
        auto = open_manager(lock_mode="auto")
        add_one(auto)
    assert mode_of(auto) == "keeper"
    assert "Locks are kept in Keeper (lock_mode auto)" in caplog.text
    assert server.execute(f"SELECT count() FROM {schema}.state_keeper_lock") == "1"


def test_a_missing_table_is_not_made_without_auto_upgrade(open_manager: Callable[..., Manager]) -> None:
    write(open_manager(lock_mode="insert"), 0)
    with pytest.raises(SchemaMissingError, match=r"Run: python -m .*migrate -x lock_mode=keeper upgrade head"):
        write(open_manager(auto_upgrade=False), 1)
    auto = open_manager(lock_mode="auto", auto_upgrade=False)
    write(auto, 2)
    assert mode_of(auto) == "insert"
