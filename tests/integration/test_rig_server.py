"""What the tests may rely on in the rig's server: its rights, its Keeper, its data after a crash, its end."""

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rig import process
from tests.rig.binary import find_program
from tests.rig.config import write_config
from tests.rig.endpoint import Endpoint, RefusedError
from tests.rig.ports import is_free
from tests.rig.server import LISTEN, ClickHouseServer, shared_server, version_or_end
from tests.rig.users import USERS

ACCESS_DENIED = 497
READONLY = 164
AUTHENTICATION_FAILED = 516
KEEPER_EXCEPTION = 999

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def table(server: Endpoint, schema: str) -> str:
    server.execute(f"CREATE DATABASE {schema}")
    server.execute(f"CREATE TABLE {schema}.t (x String) ENGINE = MergeTree ORDER BY x")
    return f"{schema}.t"


def refusal(server: Endpoint, sql: str, user: str, **settings: int) -> int:
    with pytest.raises(RefusedError) as caught:
        server.execute(sql, user, **settings)
    return caught.value.code


def eventually(condition: Callable[[], bool], timeout_seconds: float = 10) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_the_server_names_its_version(server: Endpoint) -> None:
    assert tuple(map(int, server.version().split(".")[:2])) >= (24, 10)


def test_of_a_server_that_died_one_is_told_the_end_of_its_log(private_server: ClickHouseServer) -> None:
    assert version_or_end(private_server) == private_server.version()
    private_server.kill()
    assert version_or_end(private_server).startswith("answers no more. The end of its log:\n")
    assert "<Information>" in version_or_end(private_server)


@pytest.mark.parametrize("user", ["admin", "runner", "reader", "nobody", "hasty"])
def test_every_user_can_log_in(server: Endpoint, user: str) -> None:
    assert server.execute("SELECT currentUser()", user) == server.users[user].name


def test_a_wrong_password_is_refused(server: Endpoint) -> None:
    stranger = Endpoint.from_url(f"http://runner:wrong@{server.host}:{server.http_port}")
    assert refusal(stranger, "SELECT 1", "admin") == AUTHENTICATION_FAILED


def test_a_runner_selects_and_inserts_in_the_test_schemas_only(server: Endpoint, table: str) -> None:
    server.execute(f"INSERT INTO {table} VALUES ('a')", "runner")
    assert server.execute(f"SELECT x FROM {table}", "runner") == "a"
    assert refusal(server, "SELECT * FROM system.clusters", "runner") == ACCESS_DENIED
    assert refusal(server, "SELECT * FROM system.replicas", "runner") == ACCESS_DENIED


def test_a_runner_sees_its_tables_in_the_system_tables(server: Endpoint, table: str) -> None:
    schema = table.removesuffix(".t")
    assert server.execute(f"SELECT name FROM system.tables WHERE database = '{schema}'", "runner") == "t"


@pytest.mark.parametrize(
    "sql", ["CREATE TABLE {}2 (x String) ENGINE = Memory", "DROP TABLE {}", "ALTER TABLE {} DELETE WHERE 1"]
)
def test_a_runner_can_neither_create_nor_drop_nor_mutate(server: Endpoint, table: str, sql: str) -> None:
    assert refusal(server, sql.format(table), "runner") == ACCESS_DENIED


def test_a_runner_cannot_create_a_database(server: Endpoint, schema: str) -> None:
    assert refusal(server, f"CREATE DATABASE {schema}", "runner") == ACCESS_DENIED


def test_a_reader_reads_but_neither_inserts_nor_sends_a_setting(server: Endpoint, table: str) -> None:
    server.execute(f"INSERT INTO {table} VALUES ('a')")
    assert server.execute(f"SELECT x FROM {table}", "reader") == "a"
    assert refusal(server, f"INSERT INTO {table} VALUES ('b')", "reader") in {READONLY, ACCESS_DENIED}
    assert refusal(server, "SELECT 1", "reader", async_insert=0) == READONLY


def test_nobody_cannot_select(server: Endpoint, table: str) -> None:
    assert refusal(server, f"SELECT x FROM {table}", "nobody") == ACCESS_DENIED


def test_a_hasty_user_inserts_asynchronously_by_its_profile(server: Endpoint) -> None:
    settings = "getSetting('async_insert'), getSetting('wait_for_async_insert')"
    assert server.execute(f"SELECT {settings}", "hasty") in {"1\t0", "true\tfalse"}


def test_a_keeper_map_accepts_a_key_once(server: Endpoint, schema: str) -> None:
    server.execute(f"CREATE DATABASE {schema}")
    server.execute(f"CREATE TABLE {schema}.k (x String) ENGINE = KeeperMap('/{schema}') PRIMARY KEY x")
    insert = f"INSERT INTO {schema}.k SETTINGS keeper_map_strict_mode = 1 VALUES ('a')"
    server.execute(insert)
    assert refusal(server, insert, "runner") == KEEPER_EXCEPTION


def test_the_native_port_answers(server: Endpoint) -> None:
    client = importlib.import_module("clickhouse_driver").Client  # it has no types
    user = server.users["admin"]
    with client(server.host, server.tcp_port, user=user.name, password=user.password) as connection:
        assert connection.execute("SELECT version()") == [(server.version(),)]


@pytest.mark.parametrize("end", [ClickHouseServer.kill, ClickHouseServer.stop])
def test_data_and_ports_stay_over_an_end_and_a_start(
    private_server: ClickHouseServer, end: Callable[[ClickHouseServer], None]
) -> None:
    private_server.execute("CREATE TABLE default.t (x String) ENGINE = MergeTree ORDER BY x")
    private_server.execute("INSERT INTO default.t VALUES ('a')")
    end(private_server)
    assert not private_server.answers()
    private_server.start()
    assert private_server.execute("SELECT x FROM default.t") == "a"


def test_a_restart_serves_again(private_server: ClickHouseServer) -> None:
    private_server.restart()
    assert private_server.answers()


def test_a_stopped_process_goes_on_after_sigcont(private_server: ClickHouseServer) -> None:
    private_server.signal(signal.SIGSTOP)
    private_server.signal(signal.SIGCONT)
    assert private_server.answers()


def test_two_servers_run_side_by_side(server: Endpoint, private_server: ClickHouseServer, schema: str) -> None:
    private_server.execute(f"CREATE DATABASE {schema}")
    assert server.execute(f"EXISTS DATABASE {schema}") == "0"


def test_a_server_that_cannot_start_says_why(private_server: ClickHouseServer) -> None:
    rival = ClickHouseServer()
    write_config(rival.folder, rival.host, rival.http_port, private_server.tcp_port)
    with pytest.raises(RuntimeError, match=r"(?s)ended while starting.*Address already in use"), rival:
        pass
    assert private_server.answers()


def test_a_server_with_a_broken_configuration_says_why() -> None:
    server = ClickHouseServer()
    (server.folder / "config.xml").write_text("not XML")
    with pytest.raises(RuntimeError, match=r"(?s)ended while starting.*config\.xml"), server:
        pass


def test_a_named_server_is_used_as_it_is(private_server: ClickHouseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLICKHOUSE_TEST_URL", private_server.http_url)
    with shared_server() as shared:
        assert shared.url("runner") == private_server.url("runner")
        assert not isinstance(shared, ClickHouseServer)
    assert private_server.answers()


def test_a_binary_on_the_path_serves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = find_program()
    serve = f'{sys.executable} {process.__file__} {program} "$2" --query="{LISTEN}"'
    if program.suffix not in process.LIBRARY_SUFFIXES:
        serve = f'{program} "$@"'
    binary = tmp_path / "clickhouse"
    binary.write_text(f'#!/bin/sh\n[ "$1" = local ] && echo 99.1 && exit\nexec {serve}\n')
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with ClickHouseServer() as server:
        assert server.execute("SELECT 1") == "1"
    assert is_free(server.http_port)


def test_users_that_a_named_server_lacks_are_created(server: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []

    def only_the_admin_is_known(sql: str, user: str = "admin") -> str:
        if user != "admin":
            raise RefusedError(AUTHENTICATION_FAILED, "no such user")
        statements.append(sql)
        return "1"

    empty = Endpoint("localhost", 8123, 9000)
    monkeypatch.setattr(empty, "execute", only_the_admin_is_known)
    empty.create_missing_users()
    assert [sql.split()[2] for sql in statements if sql.startswith("CREATE")] == [
        name for name in USERS if name != "admin"
    ]
    assert "GRANT SELECT ON test_*.* TO reader" in statements
    for sql in statements:
        server.execute(f"SELECT formatQuery($${sql}$$)")  # the server's own check of the syntax


def test_a_server_ends_with_its_starter_even_if_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.rig.server"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout
        orphan = Endpoint.from_url(starter.stdout.readline().strip())
        assert orphan.answers()
        starter.kill()
    assert eventually(lambda: is_free(orphan.http_port))


def test_a_run_without_a_server_fails_and_skips_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "CLICKHOUSE_TEST_URL": "http://127.0.0.1:1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--basetemp",
        str(tmp_path / "inner"),
        "-p",
        "no:cacheprovider",
        __file__,
    ]
    run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 3
    assert "nothing answers at 127.0.0.1:1" in run.stdout + run.stderr
