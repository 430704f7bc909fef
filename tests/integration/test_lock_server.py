"""The lock on a real server, with real processes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
from meltano.core.state_store.base import MeltanoState
from sqlalchemy import event

from meltano_ch_state.connection import engine_for
from meltano_ch_state.errors import StateLockedError
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.repositories.locks import STATE_CHARACTERS
from tests.rig.endpoint import Endpoint
from tests.support.processes import start, start_all
from tests.support.worker import STATE_ID, count


@pytest.fixture
def manager(server: Endpoint, schema: str) -> Iterator[ClickhouseStateStoreManager]:
    manager = ClickhouseStateStoreManager(server.url(), schema=schema)
    manager.set(MeltanoState(STATE_ID, {}, {"n": 0}))
    yield manager
    manager.close()


def live_rows(server: Endpoint, schema: str) -> int:
    query = (
        "SELECT count() FROM (SELECT lock_id, max(released) AS dead"
        f" FROM {schema}.state_lock GROUP BY lock_id, state_id) WHERE dead = 0"
    )
    return int(server.execute(query))


def kinds_of_statements(manager: ClickhouseStateStoreManager) -> list[str]:
    """The first words of what is sent from now on, as it is sent."""
    sent: list[str] = []
    engine = engine_for(manager.settings)
    event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2].lstrip("(").split()[0]))
    return sent


@pytest.mark.timeout(180)
def test_eight_processes_counting_lose_nothing_though_the_table_is_merged_all_the_time(
    manager: ClickhouseStateStoreManager, server: Endpoint, schema: str
) -> None:
    stop = threading.Event()

    def merge() -> None:
        while not stop.wait(0.05):
            server.execute(f"OPTIMIZE TABLE {schema}.state_lock FINAL")
            server.execute(f"OPTIMIZE TABLE {schema}.state FINAL")

    merging = threading.Thread(target=merge)
    workers = start_all(8, server.url(), schema, 20)
    merging.start()
    results = [worker.result() for worker in workers]
    stop.set()
    merging.join()
    assert sum(result["done"] for result in results) == 160
    assert count(manager) == 160
    assert live_rows(server, schema) == 0


@pytest.mark.timeout(180)
def test_without_the_lock_the_same_counting_loses_counts(
    manager: ClickhouseStateStoreManager, server: Endpoint, schema: str
) -> None:
    results = [worker.result() for worker in start_all(4, server.url(), schema, 20, "--no-lock")]
    assert sum(result["done"] for result in results) == 80
    assert count(manager) < 80


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_a_signal_ends_blocks_nobody_of_its_host(
    manager: ClickhouseStateStoreManager, server: Endpoint, schema: str, number: signal.Signals
) -> None:
    holder = start(server.url(), schema, 1, "--pause-inside", 60)
    holder.go()
    holder.expect("held")
    holder.process.send_signal(number)
    assert holder.process.wait() == -number
    manager.update(MeltanoState(STATE_ID, {}, {"n": 41}))
    assert count(manager) == 41
    holder.process.communicate()


def test_a_holder_that_exits_on_sigterm_leaves_no_row(
    manager: ClickhouseStateStoreManager, server: Endpoint, schema: str
) -> None:
    holder = start(server.url(), schema, 1, "--pause-inside", 60, "--exit-on-sigterm")
    holder.go()
    holder.expect("held")
    assert live_rows(server, schema) == 1
    holder.process.terminate()
    assert holder.process.wait() == 3
    assert live_rows(server, schema) == 0
    holder.process.communicate()


def test_a_holder_paused_beyond_its_lease_is_deposed_and_its_write_stays_hidden(
    manager: ClickhouseStateStoreManager, server: Endpoint, schema: str
) -> None:
    holder = start(server.url(), schema, 1, "--pause-inside", 0.2, "--lease", 1)
    holder.go()
    holder.expect("held")
    holder.process.send_signal(signal.SIGSTOP)
    manager.update(MeltanoState(STATE_ID, {}, {"n": 41}))
    holder.process.send_signal(signal.SIGCONT)
    assert holder.result() == {"done": 0, "lost": 1}
    assert count(manager) == 41


def test_a_live_holder_keeps_its_lock_far_beyond_its_lease(
    manager: ClickhouseStateStoreManager, server: Endpoint, schema: str
) -> None:
    holder = start(server.url(), schema, 1, "--pause-inside", 4, "--lease", 1)
    holder.go()
    holder.expect("held")
    impatient = ClickhouseStateStoreManager(server.url(), schema=schema, lock_acquire_timeout_seconds=2.5)
    with pytest.raises(StateLockedError) as caught:
        impatient.set(MeltanoState(STATE_ID, {}, {"n": 41}))
    assert f":{holder.process.pid}" in caught.value.holder
    assert holder.result() == {"done": 1, "lost": 0}
    assert count(manager) == 1


def test_a_waiter_gets_in_when_the_holder_releases(
    manager: ClickhouseStateStoreManager, server: Endpoint, schema: str
) -> None:
    holder = start(server.url(), schema, 1, "--pause-inside", 0.5)
    holder.go()
    holder.expect("held")
    manager.update(MeltanoState(STATE_ID, {}, {"n": 41}))
    assert holder.result() == {"done": 1, "lost": 0}
    assert count(manager) == 41


def test_the_lock_path_sends_nothing_but_insert_and_select(manager: ClickhouseStateStoreManager) -> None:
    sent = kinds_of_statements(manager)
    manager.update(MeltanoState(STATE_ID, {}, {"n": 1}))
    assert sent == ["INSERT", "SELECT", "INSERT", "SELECT", "INSERT"]
    sent.clear()
    manager.update(MeltanoState(STATE_ID, {"p": 1}))
    assert sent == ["INSERT", "SELECT", "INSERT", "SELECT", "INSERT"]
    manager.clear(STATE_ID)
    assert set(sent) == {"INSERT", "SELECT"}


@pytest.mark.parametrize("bookmark", ["small", "x" * STATE_CHARACTERS])
def test_a_partial_update_is_merged_into_what_the_read_for_the_lock_brought_along_or_left_out(
    manager: ClickhouseStateStoreManager, bookmark: str
) -> None:
    manager.set(MeltanoState(STATE_ID, {"a": bookmark}, {"n": "'\\\n\u2028 \U0001f600"}))
    manager.update(MeltanoState(STATE_ID, {"b": 2}))
    assert manager.get(STATE_ID) == MeltanoState(STATE_ID, {"a": bookmark, "b": 2}, {"n": "'\\\n\u2028 \U0001f600"})


def test_a_partial_update_of_a_cleared_state_starts_anew(manager: ClickhouseStateStoreManager) -> None:
    manager.clear(STATE_ID)
    manager.update(MeltanoState(STATE_ID, {"b": 2}))
    assert manager.get(STATE_ID) == MeltanoState(STATE_ID, {"b": 2}, {})


def test_reads_and_writes_under_one_lock_see_each_other(manager: ClickhouseStateStoreManager) -> None:
    for turn in range(2):
        with manager.acquire_lock(STATE_ID):
            for n in range(3):
                manager.set(MeltanoState(STATE_ID, {}, {"n": 10 * turn + n}))
                assert count(manager) == 10 * turn + n
    with manager.acquire_lock(STATE_ID):
        assert count(manager) == 12
        assert count(manager) == 12


def test_a_thousand_states_cost_a_handful_of_statements_and_have_one_birth(
    manager: ClickhouseStateStoreManager, server: Endpoint, schema: str
) -> None:
    sent = kinds_of_statements(manager)
    assert manager.set_all(MeltanoState(f"id-{i}", {}, {"n": i}) for i in range(1_000)) == 1_000
    assert len(sent) <= 6
    assert len(manager.get_state_ids("id-*")) == 1_000
    births = server.execute(
        f"SELECT uniq(born), min(born) > '2020-01-01' FROM {schema}.state_lock WHERE state_id LIKE 'id-%'"
    )
    assert births.split() == ["1", "1"]


def test_a_thousand_states_are_listed_and_got_by_a_handful_of_statements(manager: ClickhouseStateStoreManager) -> None:
    manager.set_all(MeltanoState(f"id-{i}", {}, {"n": i}) for i in range(1_000))
    sent = kinds_of_statements(manager)
    got = {state_id: manager.get(state_id) for state_id in manager.get_state_ids("id-*")}
    assert got == {f"id-{i}": MeltanoState(f"id-{i}", {}, {"n": i}) for i in range(1_000)}
    assert len(sent) <= 5
    sent.clear()
    assert len(list(manager.get_all("id-*"))) == 1_000
    assert len(sent) <= 3


def test_a_late_duplicate_of_a_candidate_row_changes_nothing(
    manager: ClickhouseStateStoreManager, server: Endpoint, schema: str
) -> None:
    manager.set(MeltanoState(STATE_ID, {}, {"n": 1}))
    columns = "state_id, lock_id, released, waiting, lease_seconds, sequence, holder, process, operation, version"
    server.execute(
        f"INSERT INTO {schema}.state_lock ({columns}) SELECT {columns} FROM {schema}.state_lock WHERE released = 0"
    )
    began = time.monotonic()
    manager.set(MeltanoState(STATE_ID, {}, {"n": 2}))
    assert time.monotonic() - began < 10
    assert count(manager) == 2
    assert live_rows(server, schema) == 0
