"""The repositories over an engine that the caller made: each driver, its data, its locks and its errors."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import URL, Engine, create_engine

from meltano_ch_state import LockRepository, StateRepository, upgrade
from meltano_ch_state.errors import (
    AuthenticationError,
    ConfigurationError,
    PermissionDeniedError,
    SchemaMissingError,
    ServerUnreachableError,
    StateBackendError,
    StateLockLostError,
)
from meltano_ch_state.migrate import Schema
from meltano_ch_state.protocol import StateRow
from meltano_ch_state.repositories.keeper import KeeperRepository
from meltano_ch_state.settings import Names
from meltano_ch_state.store import State, StateStore
from tests.rig.endpoint import Endpoint
from tests.rig.server import ClickHouseServer

DRIVERS = ("connect", "http", "native")
NO_PORT = 1

Connect = Callable[..., Engine]


@pytest.fixture(params=DRIVERS)
def connect(request: pytest.FixtureRequest, server: Endpoint) -> Iterator[Connect]:
    """Makes an engine for a user of the test server, as a project of its own would."""
    engines = []
    ports = {"native": server.tcp_port}

    def make(user: str = "admin", password: str | None = None, port: int | None = None) -> Engine:
        login = server.users[user]
        url = URL.create(
            f"clickhouse+{request.param}",
            login.name,
            password or login.password,
            server.host,
            port or ports.get(request.param, server.http_port),
            "default",
        )
        engines.append(create_engine(url, hide_parameters=True))
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


@pytest.fixture
def tables(server: Endpoint, schema: str) -> str:
    """A schema with the tables."""
    url = URL.create("clickhouse+connect", "admin", server.users["admin"].password, server.host, server.http_port)
    engine = create_engine(url)
    upgrade(engine, schema)
    engine.dispose()
    return schema


@pytest.mark.parametrize("connect", ["connect", "native"], indirect=True)
def test_locks_in_keeper_know_their_holder_by_each_driver_that_sends_settings(
    connect: Connect, tables: str, server: Endpoint
) -> None:
    engine = connect()
    schema = Schema(engine, Names(tables), auto_upgrade=False)
    schema.make_keeper_table()
    store = StateStore(StateRepository(engine, tables), KeeperRepository(engine, tables).locker, schema)
    for number in range(3):
        store.set(State("a", {}, {"n": number}))

    def work_and_be_deposed() -> None:
        with store.lock("a", "work", counts_when_released=True) as lock:
            store.set(State("a", {}, {"n": 9}))
            LockRepository(engine, tables).revoke("a", lock.lock_id, lock.identity)

    with pytest.raises(StateLockLostError):
        work_and_be_deposed()
    store.set(State("a", {}, {"n": 4}))
    assert store.get("a") == State("a", {}, {"n": 4})


@pytest.mark.parametrize("connect", ["http"], indirect=True)
def test_locks_in_keeper_are_refused_by_a_driver_that_sends_no_settings(connect: Connect) -> None:
    with pytest.raises(ConfigurationError, match=r"which clickhouse\+http does not. Use clickhouse\+connect or"):
        KeeperRepository(connect())


def error_of(call: Callable[[], object], server: Endpoint) -> StateBackendError:
    """The error of a call: one line, and no password of the server's in it or in what caused it."""
    with pytest.raises(StateBackendError) as caught:
        call()
    error: BaseException | None = caught.value
    assert "\n" not in str(error)
    while error:
        assert not any(user.password in str(error) for user in server.users.values() if user.password)
        error = error.__cause__
    return caught.value


@pytest.mark.parametrize("state_id", ["plain", "it's", 'a"b\\', "%(x)s", ":name {k:String}", "a\nb", "é"])
def test_what_the_history_forgot_comes_back_before_it_is_replaced(
    connect: Connect, server: Endpoint, tables: str, state_id: str
) -> None:
    states = StateRepository(connect(), tables)
    states.insert_versions([StateRow(state_id, None, '{"n": 1}', 1_000_000, False, "me@host:1", "set", "")])
    server.execute(f"TRUNCATE TABLE {tables}.state_history")

    states.keep([state_id])

    copied = server.execute(f"SELECT state_id, completed_state, holder FROM {tables}.state_history FORMAT JSONEachRow")
    assert json.loads(copied) == {"state_id": state_id, "completed_state": '{"n": 1}', "holder": "me@host:1"}
    assert states.get(state_id) == StateRow(state_id, None, '{"n": 1}', 1_000_000)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(state_id=st.text(), parts=st.tuples(st.none() | st.text(), st.none() | st.text()))
def test_any_row_comes_back_as_it_was(
    connect: Connect, tables: str, state_id: str, parts: tuple[str | None, str | None]
) -> None:
    states = StateRepository(connect(), tables)
    version = 1_800_000_000_123_456 + abs(hash((state_id, parts))) % 1_000_000
    row = StateRow(state_id, *parts, version)
    states.insert_versions([StateRow(state_id, None, None, 1), row])
    newest = states.get(state_id)
    assert newest is not None
    assert newest.updated_at >= version
    if newest.updated_at == version:
        assert newest == row


def test_a_missing_state_is_none(connect: Connect, tables: str) -> None:
    assert StateRepository(connect(), tables).get("nobody:set:it") is None


def test_a_lock_excludes_threads_and_hands_over(connect: Connect, tables: str) -> None:
    locks = LockRepository(connect(), tables)
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with locks.acquire("job:nightly"):
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(6)))
    assert most == [1] * 6
    assert locks.live() == []


def test_a_server_that_is_not_there_is_named(
    connect: Connect, server: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    error = error_of(lambda: StateRepository(connect(port=NO_PORT)).get("a"), server)
    assert isinstance(error, ServerUnreachableError)
    assert str(error).startswith(f"No answer from ClickHouse at {server.host}:{NO_PORT}: Connection refused")


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_wrong_password_is_told_and_not_shown(driver: str, private_server: ClickHouseServer) -> None:
    port = private_server.tcp_port if driver == "native" else private_server.http_port
    engine = create_engine(URL.create(f"clickhouse+{driver}", "admin", "wr0ng-secret", "127.0.0.1", port, "default"))
    # a server of its own: the library that it is dies of a wrong password by the native protocol
    error = error_of(lambda: StateRepository(engine).get("a"), private_server)
    assert isinstance(error, AuthenticationError)
    assert "wr0ng-secret" not in str(error)
    engine.dispose()


def test_missing_tables_are_told_with_the_command_that_makes_them(
    connect: Connect, server: Endpoint, schema: str
) -> None:
    error = error_of(lambda: StateRepository(connect(), schema).get("a"), server)
    assert isinstance(error, SchemaMissingError)
    assert "meltano-ch-state upgrade" in error.remedy


def test_a_missing_right_is_told_with_its_grant(connect: Connect, server: Endpoint, tables: str) -> None:
    states = StateRepository(connect("nobody"), tables)
    error = error_of(lambda: states.get("a"), server)
    assert isinstance(error, PermissionDeniedError)
    assert "GRANT SELECT" in error.remedy
