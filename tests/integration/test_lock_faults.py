"""The lock on a real server when requests are late, lost or repeated, the server dies, or a process is stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state import connection, locker, retry
from meltano_ch_state.errors import ServerUnreachableError, StateLockLostError
from meltano_ch_state.manager import ClickhouseStateStoreManager
from tests.rig.endpoint import Endpoint
from tests.rig.server import ClickHouseServer
from tests.support.processes import Worker, start
from tests.support.proxy import Fault, Proxy, delayed, doubled, held, late, lost, passed, refused, serving, unanswered
from tests.support.worker import STATE_ID, count

Manager = ClickhouseStateStoreManager

ANSWER_TIMEOUT_SECONDS = 2
"""clickhouse-connect takes whole seconds only."""
AT_ONCE_SECONDS = 5
"""Far less than a lease of 300 seconds, and enough on a busy machine."""
CANDIDATE, STATE, TOMBSTONE = range(3)
"""The INSERTs of one `set`, in their order."""
DELAYS = [0.3, 0.0, 0.6, 3.0, 0.0, 0.3, 0.3, 0.3, 0.0, 1.0, 0.3, 0.0]
"""Seconds; for the INSERTs of a client as they come."""

each_insert = pytest.mark.parametrize("nth", [CANDIDATE, STATE, TOMBSTONE], ids=["candidate", "state", "tombstone"])


@dataclass(frozen=True)
class Bench:
    """A counter at 0, a client that no fault befalls, and a `victim` whose INSERTs the proxy does harm to."""

    server: Endpoint
    schema: str
    proxy: Proxy
    address: Endpoint
    manager: Manager
    victim: Manager

    def live_locks(self) -> int:
        return live_locks(self.server, self.schema)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, server: Endpoint, schema: str) -> Iterator[Manager]:
    """A manager that no fault befalls; the counter stands at 0."""
    monkeypatch.setattr(connection, "_engines", {})  # one for an earlier proxy may be of the same port
    manager = Manager(server.url(), schema=schema)
    write(manager, 0)
    yield manager
    manager.close()


@pytest.fixture
def bench(server: Endpoint, schema: str, manager: Manager) -> Iterator[Bench]:
    """A proxy before the server, and a client on either way."""
    with serving(server) as (proxy, address):
        victim = Manager(address.url(), schema=schema, lock_acquire_timeout_seconds=30)
        assert count(victim) == 0
        yield Bench(server, schema, proxy, address, manager, victim)
        victim.close()


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What befalls a statement, befalls the lock; tests/integration/test_retries.py is about the retries."""
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients made from now on give up an answer soon."""
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT_SECONDS", ANSWER_TIMEOUT_SECONDS)


def write(manager: Manager, value: int) -> None:
    manager.set(MeltanoState(STATE_ID, {}, {"n": value}))


def add_one(manager: Manager) -> None:
    with manager.acquire_lock(STATE_ID):
        write(manager, count(manager) + 1)


def live_locks(server: Endpoint, schema: str, which: str = "true") -> int:
    """How many candidates, holders and places in the queue have no tombstone."""
    query = f"SELECT max(released) AS over FROM {schema}.state_lock WHERE {which} GROUP BY state_id, lock_id"
    return int(server.execute(f"SELECT count() FROM ({query}) WHERE over = 0"))


def repeat(times: int, call: Callable[[], None]) -> None:
    for _ in range(times):
        call()


def error_of(call: Callable[[], object], server: Endpoint) -> str:
    """The text of the error of a call whose server could not be reached: one line without the password."""
    with pytest.raises(ServerUnreachableError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for form in (server.users["admin"].password, quote(server.users["admin"].password, "")):
        assert not form or (form not in text and form not in repr(caught.value))
    return text


@contextmanager
def at_once() -> Iterator[None]:
    """What nothing blocks is done soon."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < AT_ONCE_SECONDS


@contextmanager
def merging(server: Endpoint, schema: str) -> Iterator[None]:
    """Merge both tables all the time."""
    stop = threading.Event()

    def merge() -> None:
        while not stop.wait(0.02):
            for table in ("state_lock", "state"):
                server.execute(f"OPTIMIZE TABLE {schema}.{table} FINAL")

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(merge)
        try:
            yield
        finally:
            stop.set()
        done.result()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def interrupt(worker: Worker) -> None:
    """Send what Ctrl-C sends, and wait until it has ended by that."""
    worker.process.send_signal(signal.SIGINT)
    worker.process.communicate(timeout=20)
    assert worker.process.returncode not in (0, -signal.SIGKILL)


# --- late ---


def test_inserts_that_arrive_late_make_no_two_holders_and_lose_no_count(bench: Bench) -> None:
    inside: list[str] = []
    overlaps: list[list[str]] = []

    def add_one_watched(own: Manager, name: str) -> None:
        with own.acquire_lock(STATE_ID):
            inside.append(name)
            value = count(own) + 1
            write(own, value)
            if inside != [name]:
                overlaps.append(list(inside))
            inside.remove(name)

    bench.proxy.plan(*map(delayed, DELAYS))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(repeat, 4, lambda: add_one_watched(bench.victim, "slow"))
        quick = 0
        while not slow.done():
            add_one_watched(bench.manager, "quick")
            quick += 1
        slow.result()
    bench.proxy.finish()
    assert overlaps == []
    assert quick > 0
    assert count(bench.manager) == 4 + quick
    assert bench.live_locks() == 0


@each_insert
@pytest.mark.parametrize("faults", [[late(0.5), refused], [held(0.3)]], ids=["reset twice", "timed out"])
def test_an_insert_that_lands_after_its_client_gave_up_blocks_nobody_and_hides_nothing(
    impatient: None, bench: Bench, nth: int, faults: list[Fault]
) -> None:
    bench.proxy.plan(*[passed] * nth, *faults)
    if nth == TOMBSTONE:
        write(bench.victim, 1)
        bench.proxy.finish()
    else:
        error_of(lambda: write(bench.victim, 1), bench.server)
    with at_once():
        write(bench.manager, 2)
    bench.proxy.finish()
    assert count(bench.manager) == 2
    assert bench.live_locks() == 0
    with at_once():
        add_one(bench.manager)
        add_one(bench.victim)
    assert count(bench.manager) == 4


@each_insert
def test_a_request_that_lands_once_more_after_its_repetition_changes_nothing(bench: Bench, nth: int) -> None:
    bench.proxy.plan(*[passed] * nth, late(0.8))
    write(bench.victim, 1)
    assert bench.proxy.inserts == 4
    with at_once():
        write(bench.manager, 2)
    bench.proxy.finish()
    assert count(bench.manager) == 2
    assert bench.live_locks() == 0
    with at_once():
        add_one(bench.manager)
    assert count(bench.manager) == 3


# --- lost and repeated ---


@each_insert
@pytest.mark.parametrize("fault", [lost, refused], ids=["answer lost", "never seen"])
def test_one_reset_is_made_good_by_the_client(bench: Bench, nth: int, fault: Fault) -> None:
    bench.proxy.plan(*[passed] * nth, fault)
    write(bench.victim, 1)
    assert bench.proxy.inserts == 4
    assert count(bench.manager) == 1
    assert bench.live_locks() == 0
    with at_once():
        add_one(bench.manager)
    assert count(bench.manager) == 2


@pytest.mark.parametrize("nth", [CANDIDATE, STATE], ids=["candidate", "state"])
@pytest.mark.parametrize("fault", [lost, refused], ids=["answer lost", "never seen"])
def test_two_resets_in_a_row_are_an_error_and_leave_no_lock(bench: Bench, nth: int, fault: Fault) -> None:
    bench.proxy.plan(*[passed] * nth, fault, fault)
    text = error_of(lambda: write(bench.victim, 1), bench.server)
    assert text.startswith(f"No answer from ClickHouse at {bench.victim.settings.host}:{bench.victim.settings.port}: ")
    assert bench.live_locks() == 0
    assert count(bench.manager) == (1 if (nth, fault) == (STATE, lost) else 0)
    with at_once():
        write(bench.manager, 2)
    assert count(bench.victim) == 2


@pytest.mark.parametrize("nth", [CANDIDATE, STATE], ids=["candidate", "state"])
def test_an_answer_that_never_comes_is_an_error_and_leaves_no_lock(impatient: None, bench: Bench, nth: int) -> None:
    bench.proxy.plan(*[passed] * nth, unanswered)
    with at_once():
        error_of(lambda: write(bench.victim, 1), bench.server)
    assert bench.live_locks() == 0
    with at_once():
        add_one(bench.manager)
    assert count(bench.manager) == (2 if nth == STATE else 1)


@pytest.mark.parametrize(
    ("faults", "left"),
    [([lost, lost], 0), ([unanswered], 0), ([refused, refused], 1)],
    ids=["answer lost twice", "never answered", "never seen"],
)
def test_a_write_counts_though_the_release_fails_and_its_process_locks_again_at_once(
    impatient: None, bench: Bench, faults: list[Fault], left: int
) -> None:
    bench.proxy.plan(passed, passed, *faults)
    write(bench.victim, 1)
    assert count(bench.manager) == 1
    assert bench.live_locks() == left
    with at_once():
        add_one(bench.victim)
    assert count(bench.manager) == 2
    assert bench.live_locks() == 0


def test_a_lock_that_a_process_failed_to_release_ends_with_the_process(bench: Bench) -> None:
    bench.proxy.plan(passed, passed, refused, refused)
    worker = start(bench.address.url(), bench.schema, 1, "--no-retries")
    worker.go()
    assert worker.result() == {"done": 1, "lost": 0}
    assert bench.live_locks() == 1
    with at_once():
        add_one(bench.manager)
    assert count(bench.manager) == 2
    assert bench.live_locks() == 0


def test_duplicated_inserts_change_nothing(bench: Bench) -> None:
    bench.proxy.plan(*[doubled] * 30)
    for _ in range(10):
        add_one(bench.victim)
        add_one(bench.manager)
    assert bench.proxy.inserts == 30
    assert count(bench.manager) == 20
    assert bench.live_locks() == 0


@pytest.mark.parametrize("faults", [[refused, refused], [lost, lost]], ids=["never seen", "answer lost"])
def test_a_contender_whose_withdrawal_fails_leaves_no_lock(bench: Bench, faults: list[Fault]) -> None:
    with bench.manager.acquire_lock(STATE_ID):
        bench.proxy.plan(passed, *faults)
        error_of(lambda: write(bench.victim, 1), bench.server)
        assert bench.live_locks() == 1
        write(bench.manager, 2)
    with at_once():
        add_one(bench.manager)
        add_one(bench.victim)
    assert count(bench.manager) == 4
    assert bench.live_locks() == 0


def test_counts_are_exact_while_two_clients_compete_over_a_bad_line(bench: Bench) -> None:
    bench.proxy.plan(*[lost, passed, doubled, refused, delayed(0.1), late(0.3), passed] * 6)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(repeat, 10, lambda: add_one(bench.manager))
        for _ in range(10):
            add_one(bench.victim)
        other.result()
    while bench.proxy.inserts < 42:
        write(bench.victim, count(bench.victim))
    bench.proxy.finish()
    assert count(bench.manager) == 20
    with at_once():
        add_one(bench.manager)
    assert bench.live_locks() == 0


# --- servers and processes that stop ---


def count_until(url: str, schema: str, wanted: int) -> tuple[int, int]:
    """Count until so many were acknowledged; how many were, and how many failed."""
    retry.RETRY_SECONDS = 0.0
    locker.PLACE_LEASE_SECONDS = 2.0  # in a process of its own: a place that could not be given up stays for so long
    manager = Manager(url, schema=schema, stale_lock_seconds=2)
    done = tried = 0
    while done < wanted:
        tried += 1
        with suppress(ServerUnreachableError, StateLockLostError):
            add_one(manager)
            done += 1
    manager.close()
    return done, tried - done


def test_a_server_that_is_killed_and_restarted_loses_no_acknowledged_count(private_server: ClickHouseServer) -> None:
    manager = Manager(private_server.url())
    write(manager, 0)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        counting = [pool.submit(count_until, private_server.url(), "meltano", 25) for _ in range(2)]
        wait_until(lambda: count(manager) >= 8)
        private_server.kill()
        time.sleep(0.3)
        private_server.start()
        results = [each.result(60) for each in counting]
    done, failed = (sum(numbers) for numbers in zip(*results, strict=True))
    assert done == 50
    assert failed >= 1
    assert done <= count(manager) <= done + failed
    before = count(manager)
    with at_once():
        add_one(manager)
    assert count(manager) == before + 1
    assert live_locks(private_server, "meltano", "NOT waiting") == 0
    manager.close()


def test_a_holder_that_was_stopped_beyond_its_lease_is_told_though_all_rows_were_merged_meanwhile(
    manager: Manager, server: Endpoint, schema: str
) -> None:
    with merging(server, schema):
        holder = start(server.url(), schema, 1, "--pause-inside", 0.2, "--lease", 1)
        holder.go()
        holder.expect("held")
        holder.process.send_signal(signal.SIGSTOP)
        write(manager, 41)
        holder.process.send_signal(signal.SIGCONT)
        assert holder.result() == {"done": 0, "lost": 1}
        assert count(manager) == 41
        add_one(manager)
    assert count(manager) == 42
    assert live_locks(server, schema) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 warns, as the renewal is a thread
def test_a_child_forked_while_its_parent_holds_the_lock_neither_writes_nor_releases(
    manager: Manager, server: Endpoint, schema: str, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    with ExitStack() as stack:
        stack.enter_context(manager.acquire_lock(STATE_ID))
        child = os.fork()
        if child == 0:
            _write_and_leave(manager, stack, told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert told.read_text() == "lost"
        assert live_locks(server, schema) == 1
        write(manager, 1)
    assert count(manager) == 1
    assert live_locks(server, schema) == 0


def _write_and_leave(manager: Manager, block: ExitStack, told: Path) -> None:
    """In the child: try to write under the parent's lock, and leave its `with` block as the parent would."""
    code = 1
    try:
        try:
            write(manager, 99)
        except StateLockLostError:
            told.write_text("lost")
        block.close()
        code = 0
    finally:
        os._exit(code)


def test_four_threads_of_one_process_that_count_lose_nothing(manager: Manager, server: Endpoint, schema: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        counting = [pool.submit(repeat, 5, lambda: add_one(manager)) for _ in range(4)]
    assert [each.exception() for each in counting] == [None] * 4
    assert count(manager) == 20
    assert live_locks(server, schema) == 0


def test_a_waiter_that_is_interrupted_leaves_nothing_and_the_holder_goes_on(
    manager: Manager, server: Endpoint, schema: str
) -> None:
    with manager.acquire_lock(STATE_ID):
        waiter = start(server.url(), schema, 1)
        waiter.go()
        wait_until(lambda: live_locks(server, schema) == 2)
        time.sleep(0.2)
        interrupt(waiter)
        assert live_locks(server, schema) == 1
        write(manager, 1)
    assert count(manager) == 1
    assert live_locks(server, schema) == 0


def test_a_holder_that_is_interrupted_releases(manager: Manager, server: Endpoint, schema: str) -> None:
    holder = start(server.url(), schema, 1, "--pause-inside", 60)
    holder.go()
    holder.expect("held")
    interrupt(holder)
    assert live_locks(server, schema) == 0
    with at_once():
        add_one(manager)
    assert count(manager) == 1
