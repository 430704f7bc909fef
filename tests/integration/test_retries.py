"""Faults that pass cost time, and nothing else; faults that stay are told at once or after one deadline."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pytest
from meltano.core.state_store.base import MeltanoState
from sqlalchemy.exc import DatabaseError

from meltano_ch_state import connection, retry
from meltano_ch_state.errors import KeeperConflictError, ServerBusyError, ServerError, ServerUnreachableError
from meltano_ch_state.manager import ClickhouseStateStoreManager as Manager
from meltano_ch_state.repositories.faults import BUSY_CODES, translate
from tests.rig.endpoint import Endpoint
from tests.rig.server import ClickHouseServer
from tests.support.proxy import Fault, Proxy, lost, passed, refused, refusing, serving, unavailable
from tests.support.worker import STATE_ID, count

CANDIDATE, STATE, TOMBSTONE = range(3)
"""The inserts of an update, in their order."""


@pytest.fixture
def proxy(server: Endpoint, schema: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, Manager]]:
    """A proxy before the server, and a manager that has had an answer through it."""
    monkeypatch.setattr(connection, "_engines", {})
    with serving(server) as (proxy, address):
        manager = Manager(address.url(), schema=schema)
        write(manager, 0)
        yield proxy, manager
        manager.close()


def write(manager: Manager, value: int) -> None:
    manager.set(MeltanoState(STATE_ID, {}, {"n": value}))


def add_one(manager: Manager) -> None:
    with manager.acquire_lock(STATE_ID):
        write(manager, count(manager) + 1)


@pytest.mark.timeout(180)
def test_a_server_that_is_killed_and_comes_back_within_five_seconds_costs_no_update_and_no_failure(
    private_server: ClickHouseServer,
) -> None:
    manager = Manager(private_server.url())
    write(manager, 0)

    def kill_and_start() -> None:
        private_server.kill()
        time.sleep(1)
        private_server.start()

    killing = threading.Timer(0.3, kill_and_start)
    killing.start()
    for _ in range(40):
        add_one(manager)
    killing.join()
    assert count(manager) == 40
    manager.close()


@pytest.mark.parametrize("fault", [lost, refused], ids=["answer lost", "never seen"])
@pytest.mark.parametrize("nth", [CANDIDATE, STATE, TOMBSTONE], ids=["candidate", "state", "tombstone"])
def test_five_resets_in_a_row_are_made_good(
    proxy: tuple[Proxy, Manager], server: Endpoint, schema: str, nth: int, fault: Fault
) -> None:
    line, manager = proxy
    line.plan(*[passed] * nth, *[fault] * 5)
    add_one(manager)
    assert count(manager) == 1
    live = f"SELECT max(released) AS over FROM {schema}.state_lock GROUP BY state_id, lock_id HAVING over = 0"
    assert server.execute(f"SELECT count() FROM ({live})").strip() == "0"


@pytest.mark.parametrize("nth", [CANDIDATE, STATE, TOMBSTONE], ids=["candidate", "state", "tombstone"])
def test_a_load_balancer_without_a_server_behind_it_is_asked_again(proxy: tuple[Proxy, Manager], nth: int) -> None:
    line, manager = proxy
    line.plan(*[passed] * nth, *[unavailable] * 3)
    add_one(manager)
    assert count(manager) == 1


def test_a_load_balancer_that_stays_without_a_server_is_told_as_such(
    proxy: tuple[Proxy, Manager], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, manager = proxy
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)
    line.plan(*[unavailable] * 5)
    with pytest.raises(ServerUnreachableError, match=r"No answer from ClickHouse at .+: no healthy upstream"):
        write(manager, 1)


def test_a_full_disk_is_told_and_the_state_stays_as_it_was(proxy: tuple[Proxy, Manager]) -> None:
    line, manager = proxy
    line.plan(passed, refusing(243))
    with pytest.raises(ServerError, match=r"code 243: not now\. Free space on the server's disk\."):
        write(manager, 1)
    assert count(manager) == 0
    add_one(manager)
    assert count(manager) == 1


def test_a_fault_that_stays_is_told_after_one_deadline_and_the_release_does_not_wait_for_another(
    proxy: tuple[Proxy, Manager], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, manager = proxy
    monkeypatch.setattr(retry, "RETRY_SECONDS", 1.0)
    line.plan(passed, *[refused] * 200)
    before = line.inserts
    with pytest.raises(ServerUnreachableError, match="No answer from ClickHouse at "):
        write(manager, 1)
    attempts = line.inserts - before
    line.plan(*[passed] * 200)
    assert 4 <= attempts <= 60


def test_who_never_had_an_answer_does_not_wait_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", pauses.append)
    with pytest.raises(ServerUnreachableError, match=r"No answer from ClickHouse at 127\.0\.0\.1:1: "):
        Manager("clickhouse://127.0.0.1:1").get(STATE_ID)
    assert pauses == []


def test_a_server_that_is_too_old_for_codes_in_its_answers_is_told_apart() -> None:
    """As Debian's ClickHouse 18.16 answers, which has no place for the code but the text."""
    said = "Unknown identifier: readonly, e.what() = DB::Exception (for url http://host:8123)"
    error = translate(DatabaseError("SELECT 1", {}, Exception(said)), "host:8123")
    assert re.fullmatch(
        r"ClickHouse at host:8123 is too old for this package: Unknown identifier: readonly\."
        r" Upgrade ClickHouse: this package is tested with [\d.]+ to [\d.]+\.",
        str(error),
    )


@pytest.mark.parametrize("code", [46, 50, 62, 115])
def test_what_a_server_does_not_know_has_an_upgrade_as_its_remedy(code: int) -> None:
    error = translate(DatabaseError("SELECT 1", {}, RefusedError(code)), "host:8123")
    assert error.remedy.startswith("Upgrade ClickHouse: ")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Transaction failed (Node exists): Op #1", KeeperConflictError),
        ("Coordination error: Node exists, path /clickhouse/sessions/zookeeper/8e0c", ServerBusyError),
    ],
)
def test_a_race_of_servers_for_their_sessions_in_keeper_is_no_conflict(said: str, kind: type[Exception]) -> None:
    """Two servers that use one Keeper for the first time at once: one of them answers so."""
    assert type(translate(DatabaseError("SELECT 1", {}, RefusedError(999, said)), "host:8123")) is kind


class RefusedError(Exception):
    def __init__(self, code: int, said: str = "it says why") -> None:
        super().__init__(f"Code: {code}. DB::Exception: {said}. (NAME) (version 26.7.2.1)")
        self.code = code


@pytest.mark.parametrize("code", sorted(BUSY_CODES))
def test_what_may_pass_is_busy_and_sent_again(code: int, proxy: tuple[Proxy, Manager]) -> None:
    error = translate(DatabaseError("SELECT 1", {}, RefusedError(code)), "host:8123")
    assert isinstance(error, ServerBusyError)
    assert error.reason == f"ClickHouse at host:8123 refused a statement with code {code}: it says why"
    errors: list[Exception] = [error, error]

    def send() -> str:
        if errors:
            raise errors.pop()
        return "answered"

    assert retry.retried(connection.engine_for(proxy[1].settings), send) == "answered"


@pytest.mark.parametrize("code", [36, 62, 47, 60, 81, 164, 192, 193, 194, 497, 516])
def test_settings_syntax_missing_tables_rights_and_logins_are_not_tried_again(
    code: int, proxy: tuple[Proxy, Manager]
) -> None:
    error = translate(DatabaseError("SELECT 1", {}, RefusedError(code)), "host:8123")
    assert not isinstance(error, ServerBusyError | ServerUnreachableError)
    attempts: list[int] = []

    def send() -> None:
        attempts.append(code)
        raise error

    with pytest.raises(type(error)):
        retry.retried(connection.engine_for(proxy[1].settings), send)
    assert attempts == [code]
