"""Engines on a real server: what they connect to, with how many clients, in threads and across a fork."""

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError

from meltano_ch_state.connection import engine_for
from meltano_ch_state.settings import resolve
from tests.rig.endpoint import Endpoint


@pytest.fixture
def engine(server: Endpoint) -> Iterator[Engine]:
    engine = engine_for(resolve(server.url()))
    engine.dispose()
    yield engine
    engine.dispose()


def ask(engine: Engine, question: str) -> str:
    with engine.connect() as connection:
        return str(connection.execute(text("SELECT :question"), {"question": question}).scalar())


def test_a_statement_runs(engine: Engine) -> None:
    assert ask(engine, "who?") == "who?"


def test_one_client_serves_many_statements(engine: Engine) -> None:
    clients: list[object] = []
    listener = lambda client, _: clients.append(client)  # noqa: E731
    event.listen(engine, "connect", listener)
    for _ in range(5):
        ask(engine, "again")
    event.remove(engine, "connect", listener)
    assert len(clients) == 1


def test_the_named_database_is_the_connections(server: Endpoint, schema: str) -> None:
    server.execute(f"CREATE DATABASE {schema}")
    assert database_of(server, schema) == schema


def test_a_database_that_is_missing_is_replaced_by_the_default_one(server: Endpoint, schema: str) -> None:
    assert database_of(server, schema) == "default"


def database_of(server: Endpoint, name: str) -> str:
    engine = engine_for(resolve(f"{server.url()}/{name}"))
    try:
        with engine.connect() as connection:
            return str(connection.execute(text("SELECT currentDatabase()")).scalar())
    finally:
        engine.dispose()


def test_a_wrong_password_is_an_error_that_does_not_show_it(server: Endpoint) -> None:
    uri = f"clickhouse://runner:not-the-password@{server.host}:{server.http_port}/missing"
    with pytest.raises(DBAPIError) as caught:
        ask(engine_for(resolve(uri)), "in?")
    assert "not-the-password" not in "".join(traceback.format_exception(caught.value))


def test_an_engine_works_again_after_it_was_disposed_of(engine: Engine) -> None:
    ask(engine, "before")
    engine.dispose()
    assert ask(engine, "after") == "after"


def test_threads_get_their_own_answers(engine: Engine) -> None:
    questions = [str(number) for number in range(200)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda question: ask(engine, question), questions)) == questions


def test_a_process_exits_quietly_without_disposing(server: Endpoint) -> None:
    program = """if True:
        import sys
        from sqlalchemy import text
        from meltano_ch_state.connection import engine_for
        from meltano_ch_state.settings import resolve
        with engine_for(resolve(sys.argv[1])).connect() as connection:
            connection.execute(text("SELECT 1"))
    """
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", program, server.url()]
    exited = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (exited.returncode, exited.stderr) == (0, "")


def test_parent_and_child_get_their_own_answers_after_a_fork(server: Endpoint) -> None:
    process = get_context("spawn").Process(target=fork_and_ask, args=(server.url(),))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def fork_and_ask(uri: str) -> None:
    engine = engine_for(resolve(uri))
    parents = driver_connection(engine)
    child = os.fork()
    me = "parent" if child else "child"
    for number in range(100):
        assert ask(engine, f"{me} {number}") == f"{me} {number}"
    if not child:
        assert driver_connection(engine) is not parents
        os._exit(0)
    assert driver_connection(engine) is parents
    assert os.waitpid(child, 0)[1] == 0


def driver_connection(engine: Engine) -> object:
    with engine.connect() as connection:
        return connection.connection.driver_connection
