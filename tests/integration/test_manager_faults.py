"""The manager on a real server that is away, refuses, or holds what it should not."""

from __future__ import annotations

import base64
import logging
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer
from urllib.parse import quote, quote_plus

import pytest
from meltano.core.error import MeltanoError
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state import retry
from meltano_ch_state.errors import (
    AuthenticationError,
    InvalidStateError,
    PermissionDeniedError,
    ServerUnreachableError,
    StateBackendError,
)
from meltano_ch_state.manager import ClickhouseStateStoreManager
from tests.rig.endpoint import Endpoint
from tests.rig.ports import HOST, free_ports
from tests.rig.server import ClickHouseServer
from tests.support import proxy

Manager = ClickhouseStateStoreManager
SECRET = "sésame p@ss/w%rd:#?&+"
STATE = MeltanoState("a", {}, {"value": 1})


@pytest.fixture(autouse=True)
def few_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """These faults stay: what is told in the end is told soon."""
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.2)


CALLS: dict[str, Callable[[Manager], object]] = {
    "get": lambda manager: manager.get("a"),
    "get_state_ids": lambda manager: manager.get_state_ids(),
    "get_all": lambda manager: list(manager.get_all()),
    "set": lambda manager: manager.set(STATE),
    "update": lambda manager: manager.update(STATE),
    "clear": lambda manager: manager.clear("a"),
    "set_all": lambda manager: manager.set_all([STATE]),
    "clear_all": lambda manager: manager.clear_all(),
    "migrate": lambda manager: manager.migrate(),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
every_read = pytest.mark.parametrize("call", list(CALLS.values())[:3], ids=list(CALLS)[:3])


@pytest.fixture
def dead_port() -> int:
    """A port where nobody listens."""
    return free_ports(1)[0]


@pytest.fixture
def hanging_up() -> Iterator[int]:
    """The port of a server that takes a request and closes the connection without an answer."""
    with answering(b"") as port:
        yield port


@contextmanager
def serving(listener: ThreadingTCPServer | ThreadingHTTPServer) -> Iterator[int]:
    """Serve in a thread; gives the port."""
    with listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield listener.server_address[1]
        listener.shutdown()
        thread.join()


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Take one request of each connection, answer it with these bytes, and close it; gives the port."""

    class Answer(StreamRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    with serving(ThreadingTCPServer((HOST, 0), Answer)) as port:
        yield port


@pytest.fixture
def without_tls() -> Iterator[int]:
    """A port that speaks HTTP only. Not ClickHouse's: the library that serves here aborts, one time in thousands, on a
    client that says hello in TLS and resets the line."""
    with answering(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") as port:
        yield port


@pytest.fixture
def refusing() -> Iterator[tuple[int, list[str]]]:
    """A server that refuses every login, and the requests that it got."""
    requests: list[str] = []

    class Refuse(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b"Code: 516. DB::Exception: default: Authentication failed. (AUTHENTICATION_FAILED)"
            self.send_response(403)
            self.send_header("X-ClickHouse-Exception-Code", "516")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815 - named by the base class

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    with serving(ThreadingHTTPServer((HOST, 0), Refuse)) as port:
        yield port, requests


@pytest.fixture
def migrated(server: Endpoint, schema: str) -> Manager:
    """An administrator's manager, its tables made and one state set."""
    manager = Manager(server.url(), schema=schema)
    manager.set(STATE)
    return manager


def error_of(call: Callable[[], object]) -> StateBackendError:
    """The error of a call; it comes at once, as one line for Meltano."""
    started = time.monotonic()
    with pytest.raises(StateBackendError) as caught:
        call()
    assert time.monotonic() - started < 5
    assert isinstance(caught.value, MeltanoError)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_port_where_another_protocol_is_spoken_is_told_as_such(server: Endpoint) -> None:
    elsewhere = Manager("clickhouse://admin@127.0.0.1", port=server.tcp_port, password=SECRET)
    error = error_of(lambda: elsewhere.get("a"))
    assert str(error) == (
        f"What answers at 127.0.0.1:{server.tcp_port} is not ClickHouse's HTTP interface: HTTP status 400."
        " Check state_backend.clickhouse.host and port: 8123 is HTTP, 8443 is HTTPS, 9000 is another protocol."
    )


def test_another_web_server_is_told_as_such() -> None:
    with serving(ThreadingHTTPServer((HOST, 0), BaseHTTPRequestHandler)) as port:
        error = error_of(lambda: Manager(f"clickhouse://{HOST}:{port}").get("a"))
    assert str(error).startswith(f"What answers at {HOST}:{port} is not ClickHouse's HTTP interface: HTTP status 501.")


@pytest.mark.parametrize(
    ("lost", "call"),
    [
        ("run_id", lambda manager: manager.set(STATE)),
        ("completed_state", lambda manager: manager.set(STATE)),
        ("completed_state", lambda manager: manager.get("a")),
    ],
)
def test_a_table_that_lost_a_column_has_as_its_remedy_the_command_that_names_it(
    server: Endpoint, migrated: Manager, schema: str, lost: str, call: Callable[[Manager], object]
) -> None:
    server.execute(f"DROP VIEW {schema}.state_history_view")
    server.execute(f"ALTER TABLE {schema}.state DROP COLUMN {lost}")

    error = error_of(lambda: call(migrated))

    assert lost in str(error)
    assert error.remedy.startswith(
        "See what the tables lack: python -m meltano_ch_state.migrate check. If nothing: upgrade ClickHouse: "
    )


def databases(server: Endpoint) -> str:
    return server.execute("SELECT name FROM system.databases ORDER BY name")


def test_making_a_manager_connects_to_nothing(dead_port: int) -> None:
    manager = Manager(f"clickhouse://u:p@{HOST}:{dead_port}")
    assert manager.label == "ClickHouse"
    assert manager.store is manager.store
    manager.close()


@every_call
def test_a_server_that_is_down_is_one_line_at_once(dead_port: int, call: Callable[[Manager], object]) -> None:
    manager = Manager(f"clickhouse://u:{quote(SECRET, '')}@{HOST}:{dead_port}")
    error = error_of(lambda: call(manager))
    assert isinstance(error, ServerUnreachableError)
    assert str(error) == (
        f"No answer from ClickHouse at {HOST}:{dead_port}: Connection refused."
        " Check state_backend.clickhouse.host, port and secure, and that the server runs."
    )


def test_a_lock_on_a_server_that_is_down_never_runs_its_body(dead_port: int) -> None:
    manager = Manager(f"clickhouse://{HOST}:{dead_port}")
    with pytest.raises(ServerUnreachableError), manager.acquire_lock("a"):
        pytest.fail("no lock was had")


def test_an_error_that_is_handled_meanwhile_is_not_taken_for_the_cause(dead_port: int) -> None:
    try:
        raise KeyError("the caller's own: trouble")
    except KeyError:
        error = error_of(lambda: Manager(f"clickhouse://{HOST}:{dead_port}").get("a"))
    assert str(error).startswith(f"No answer from ClickHouse at {HOST}:{dead_port}: Connection refused. ")


def test_a_server_that_hangs_up_is_one_line(hanging_up: int) -> None:
    error = error_of(lambda: Manager(f"clickhouse://{HOST}:{hanging_up}").get("a"))
    assert isinstance(error, ServerUnreachableError)
    assert str(error) == (
        f"No answer from ClickHouse at {HOST}:{hanging_up}: Remote end closed connection without response."
        " Check state_backend.clickhouse.host, port and secure, and that the server runs."
    )


def test_a_host_that_does_not_exist_is_one_line() -> None:
    error = error_of(lambda: Manager("clickhouse://u:p@nowhere.invalid").get("a"))
    assert isinstance(error, ServerUnreachableError)
    assert str(error).startswith("No answer from ClickHouse at nowhere.invalid:8123: ")


def test_a_server_without_tls_is_one_line(without_tls: int) -> None:
    error = error_of(lambda: Manager(f"clickhouse://u:p@{HOST}:{without_tls}", secure=True).get("a"))
    assert isinstance(error, ServerUnreachableError)
    assert str(error).startswith(f"No answer from ClickHouse at {HOST}:{without_tls}: ")
    assert "SSL" in str(error)


@every_call
def test_a_wrong_password_is_one_line(server: Endpoint, call: Callable[[Manager], object]) -> None:
    manager = Manager(server.url(), password=SECRET)
    error = error_of(lambda: call(manager))
    assert isinstance(error, AuthenticationError)
    assert str(error) == (
        f"ClickHouse at {server.host}:{server.http_port} refused the user or the password."
        " Check state_backend.clickhouse.user, and the password in MELTANO_STATE_BACKEND_CLICKHOUSE_PASSWORD."
    )


def test_a_user_that_does_not_exist_is_told_like_a_wrong_password(server: Endpoint) -> None:
    assert isinstance(error_of(lambda: Manager(server.url(), user="stranger").get("a")), AuthenticationError)


def test_a_wrong_password_is_tried_once(refusing: tuple[int, list[str]]) -> None:
    port, requests = refusing
    error = error_of(lambda: Manager(f"clickhouse://u:p@{HOST}:{port}").set(STATE))
    assert isinstance(error, AuthenticationError)
    assert len(requests) == 1


def test_a_database_that_does_not_exist_does_not_stop_a_first_run(server: Endpoint, schema: str) -> None:
    manager = Manager(f"{server.url()}/{schema}_absent", schema=schema)
    assert manager.get("a") is None
    manager.update(STATE)
    assert manager.get("a") == STATE
    assert f"{schema}_absent" not in databases(server)


@every_read
@pytest.mark.parametrize("user", ["admin", "runner", "reader", "hasty"])
def test_reading_a_schema_that_is_missing_gives_nothing_and_makes_nothing(
    server: Endpoint, schema: str, user: str, call: Callable[[Manager], object]
) -> None:
    assert call(Manager(server.url(user), schema=schema)) in (None, [])
    assert schema not in databases(server)


def test_a_user_with_select_and_insert_can_run_once_the_tables_are_there(
    server: Endpoint, schema: str, migrated: Manager
) -> None:
    runner = Manager(server.url("runner"), schema=schema)
    runner.update(MeltanoState("b", {"p": 1}))
    runner.update(MeltanoState("b", {"q": 2}))
    assert runner.get("b") == MeltanoState("b", {"p": 1, "q": 2}, {})
    runner.clear("b")
    assert runner.set_all([STATE, MeltanoState("c", {}, {})]) == 2
    assert runner.get_state_ids() == ["a", "c"]
    assert runner.clear_all() == 2
    assert list(migrated.get_all()) == []


def test_a_user_who_may_not_make_the_tables_is_told_the_grant(server: Endpoint, schema: str) -> None:
    error = error_of(lambda: Manager(server.url("runner"), schema=schema).set(STATE))
    assert isinstance(error, PermissionDeniedError)
    assert str(error).endswith(f"Have an administrator run: GRANT CREATE DATABASE ON {schema}.* TO runner.")
    assert str(error).startswith(f"ClickHouse at {server.host}:{server.http_port} denied access: ")


def test_a_user_who_may_only_read_lists_and_gets(server: Endpoint, schema: str, migrated: Manager) -> None:
    reader = Manager(server.url("reader"), schema=schema)
    assert reader.get("a") == STATE
    assert reader.get("b") is None
    assert reader.get_state_ids("a*") == ["a"]
    assert list(reader.get_all()) == [STATE]


@pytest.mark.parametrize("name", ["set", "update", "clear", "set_all", "clear_all"])
def test_a_user_who_may_only_read_is_told_so_when_writing(
    server: Endpoint, schema: str, migrated: Manager, name: str
) -> None:
    reader = Manager(server.url("reader"), schema=schema)
    error = error_of(lambda: CALLS[name](reader))
    assert isinstance(error, PermissionDeniedError)
    assert str(error).startswith(f"ClickHouse at {server.host}:{server.http_port} denied access: ")
    assert migrated.get("a") == STATE


@every_read
def test_a_user_without_rights_is_told_the_grant(
    server: Endpoint, schema: str, migrated: Manager, call: Callable[[Manager], object]
) -> None:
    error = error_of(lambda: call(Manager(server.url("nobody"), schema=schema)))
    assert isinstance(error, PermissionDeniedError)
    assert str(error).startswith(f"ClickHouse at {server.host}:{server.http_port} denied access: ")
    assert f"Have an administrator run: GRANT SELECT ON {schema}." in str(error)


def test_a_user_whose_inserts_are_buffered_loses_nothing(server: Endpoint, schema: str, migrated: Manager) -> None:
    hasty = Manager(server.url("hasty"), schema=schema)
    for number in range(5):
        state = MeltanoState("a", {}, {"value": number})
        hasty.set(state)
        assert migrated.get("a") == state
    hasty.set_all([MeltanoState("a", {}, {}), MeltanoState("b", {}, {})])
    assert migrated.get_state_ids() == ["a", "b"]
    assert hasty.clear_all() == 2
    assert migrated.get_state_ids() == []


@pytest.mark.parametrize(
    "stored",
    [
        "'not JSON'",
        "''",
        "'[1, 2]'",
        "'1'",
        "'null'",
        "'{\"a\": 1'",
        "unhex('ff00')",
        "concat('{\"a\": \"', unhex('ff'), '\"}')",
    ],
)
def test_a_stored_state_that_is_not_json_is_named_and_left_alone(
    server: Endpoint, schema: str, migrated: Manager, stored: str
) -> None:
    columns = "(state_id, partial_state, completed_state, updated_at, is_deleted)"
    server.execute(f"INSERT INTO {schema}.state {columns} SELECT 'it''s', NULL, {stored}, now64(6), 0")
    for call in (
        lambda: migrated.get("it's"),
        lambda: list(migrated.get_all()),
        lambda: migrated.update(MeltanoState("it's", {"p": 1})),
    ):
        error = error_of(call)
        assert isinstance(error, InvalidStateError)
        assert repr("it's") in str(error)
    assert (
        server.execute(f"SELECT completed_state = {stored} FROM {schema}.state FINAL WHERE state_id = 'it''s'") == "1"
    )
    assert migrated.get_state_ids() == ["a", "it's"]
    assert migrated.get("a") == STATE


def test_a_stored_state_that_is_not_json_may_be_replaced_or_cleared(
    server: Endpoint, schema: str, migrated: Manager
) -> None:
    columns = "(state_id, completed_state, updated_at, is_deleted)"
    server.execute(f"INSERT INTO {schema}.state {columns} VALUES ('x', '{{', now64(6), 0), ('y', '{{', now64(6), 0)")
    migrated.set(MeltanoState("x", {}, {"value": 2}))
    migrated.clear("y")
    assert list(migrated.get_all()) == [STATE, MeltanoState("x", {}, {"value": 2})]


def test_a_manager_goes_on_after_the_server_was_killed_and_restarted(private_server: ClickHouseServer) -> None:
    manager = Manager(private_server.url())
    manager.set(STATE)
    private_server.kill()
    for call in (manager.get, manager.clear):
        assert isinstance(error_of(lambda call=call: call("a")), ServerUnreachableError)  # type: ignore[misc]
    private_server.start()
    assert manager.get("a") == STATE
    private_server.kill()
    private_server.start()
    manager.update(MeltanoState("a", {}, {"value": 2}))
    assert list(manager.get_all()) == [MeltanoState("a", {}, {"value": 2})]


def test_an_error_in_a_lock_is_not_masked_when_the_server_goes_away(private_server: ClickHouseServer) -> None:
    manager = Manager(private_server.url())
    manager.set(STATE)

    def fail_without_a_server() -> None:
        with manager.acquire_lock("a"):
            private_server.kill()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail_without_a_server()
    private_server.start()
    with manager.acquire_lock("a"):
        assert manager.get("a") == STATE


def test_a_write_whose_server_goes_away_fails(private_server: ClickHouseServer) -> None:
    manager = Manager(private_server.url())
    manager.set(STATE)
    with manager.acquire_lock("a"):
        private_server.kill()
        with pytest.raises(ServerUnreachableError):
            manager.set(MeltanoState("a", {}, {"value": 2}))
    private_server.start()
    assert manager.get("a") == STATE


def secret_forms(user: str, password: str) -> set[str]:
    """What would tell the password: as it is, escaped, encoded for a URI, or as HTTP's Authorization has it."""
    forms = {password, repr(password)[1:-1], quote(password, ""), quote(password), quote_plus(password)}
    return forms | {base64.b64encode(f"{user}:{password}".encode()).decode()}


def texts_of(error: BaseException | None) -> Iterator[str]:
    """Every text of an error and of those behind it, also of those that a traceback leaves out."""
    while error is not None:
        yield from (str(error), repr(error), repr(vars(error)), *traceback.format_exception(error))
        error = error.__cause__ or error.__context__


def test_no_request_has_the_password_but_in_its_authorization(server: Endpoint, schema: str) -> None:
    admin = server.users["admin"]
    with proxy.serving(server) as (line, address):
        manager = Manager(address.url(), schema=schema)
        manager.update(MeltanoState("a", {"p": 1}))
        manager.clear("a")
        manager.close()
    assert len(line.requests) > 15
    sent = [re.sub(rb"(?im)^authorization: .*$", b"", request) for request in line.requests]
    assert not [form for form in secret_forms(admin.name, admin.password) for r in sent if form.encode() in r]


@pytest.fixture(params=["server down", "no such host", "no TLS", "wrong password", "no rights", "all well"])
def case(
    request: pytest.FixtureRequest, server: Endpoint, dead_port: int, without_tls: int
) -> tuple[str, str, str, bool]:
    """A user, a password, an address, and whether by TLS."""
    address, admin, nobody = f"{server.host}:{server.http_port}", server.users["admin"], server.users["nobody"]
    return {
        "server down": (admin.name, SECRET, f"{HOST}:{dead_port}", False),
        "no such host": (admin.name, SECRET, "nowhere.invalid", False),
        "no TLS": (admin.name, SECRET, f"{HOST}:{without_tls}", True),
        "wrong password": (admin.name, SECRET, address, False),
        "no rights": (nobody.name, nobody.password, address, False),
        "all well": (admin.name, admin.password, address, False),
    }[request.param]


@pytest.mark.parametrize("as_setting", [False, True], ids=["in the URI", "as a setting"])
def test_no_text_shows_the_password(
    schema: str, caplog: pytest.LogCaptureFixture, case: tuple[str, str, str, bool], as_setting: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    user, password, address, secure = case
    userinfo = user if as_setting else f"{user}:{quote(password, '')}"
    given = {"password": password} if as_setting else {}
    manager = Manager(f"clickhouse://{userinfo}@{address}", schema=schema, secure=secure, **given)

    texts = [
        repr(manager),
        str(manager.settings),
        repr(manager.settings),
        repr(vars(manager)),
        repr(vars(manager.store)),
    ]
    try:
        manager.set(STATE)
    except StateBackendError as error:
        texts.extend(texts_of(error))
    texts += [record.getMessage() for record in caplog.records] + [caplog.text]

    shown = "\n".join(texts)
    assert not [form for form in secret_forms(user, password) if form in shown]
