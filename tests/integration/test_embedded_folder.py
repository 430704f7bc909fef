"""Processes, threads and folders take turns on the embedded engine: real folders, real processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import pytest
from clickhouse_sqlalchemy.types import String, UInt32
from fasteners import InterProcessLock
from sqlalchemy import Column, Engine, MetaData, Table, text

from meltano_ch_state import embedded
from meltano_ch_state.connection import engine_for
from meltano_ch_state.errors import ConfigurationError, ServerUnreachableError
from meltano_ch_state.settings import resolve

GENEROUS_SECONDS = 60
SPAWN = get_context("spawn")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "state")
    run(path, "CREATE DATABASE s")
    run(path, "CREATE TABLE s.t (writer String, n UInt32) ENGINE MergeTree ORDER BY n")
    engine_at(path).dispose()
    yield path
    engine_at(path).dispose()


def engine_at(path: str) -> Engine:
    return engine_for(resolve(f"chdb://{quote(path)}"))


def run(path: str, sql: str) -> Any:
    with engine_at(path).connect() as connection:
        result = connection.execute(text(sql))
        return result.scalar() if result.returns_rows else None


def insert(path: str, writer: str, n: int) -> None:
    run(path, f"INSERT INTO s.t VALUES ('{writer}', {n})")


def count(path: str) -> int:
    return int(run(path, "SELECT count() FROM s.t"))


def folder_at(path: str, wait_seconds: float = GENEROUS_SECONDS) -> embedded.Folder:
    connect = partial(engine_at(path).dialect.connect, interface="chdb", path=path)
    return embedded.Folder(Path(path), connect, wait_seconds)


def impatient(path: str, wait_seconds: float) -> Any:
    """A cursor on the folder that waits no longer than that."""
    return embedded.connect(folder_at(path, wait_seconds)).cursor()


def is_free(path: str, file: str = embedded.TURN_FILE) -> bool:
    """Whether no other process holds the file's lock."""
    lock = InterProcessLock(Path(path) / file)
    taken = lock.acquire(blocking=False)
    if taken:
        lock.release()
    else:
        lock.lockfile.close()
    return bool(taken)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + GENEROUS_SECONDS
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.01)


class Other:
    """Another process that runs a job. The job gets a pipe, on which it and the test talk."""

    def __init__(self, job: Callable[..., None], *args: object) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=job, args=(theirs, *args))
        self.process.start()
        self.pid = self.process.pid or 0
        theirs.close()

    def __enter__(self) -> "Other":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind:
            self.process.kill()
        self.process.join(GENEROUS_SECONDS)
        self.process.kill()
        self.pipe.close()
        assert kind or self.process.exitcode in {0, -signal.SIGKILL}

    def hear(self) -> Any:
        assert self.pipe.poll(GENEROUS_SECONDS), "the other process says nothing"
        return self.pipe.recv()


def insert_some(pipe: Connection, path: str, writer: str, rows: int) -> None:
    for n in range(rows):
        insert(path, writer, n)


def insert_until_told(pipe: Connection, path: str) -> None:
    """Insert without a pause; answer each message with the number of rows so far, stop at None."""
    rows = 0
    pipe.send("ready")
    while True:
        insert(path, "busy", rows)
        rows += 1
        if pipe.poll():
            if pipe.recv() is None:
                return
            pipe.send(rows)


def insert_then_idle(pipe: Connection, path: str) -> None:
    """Insert a row at each message, stop at None."""
    while (n := pipe.recv()) is not None:
        insert(path, "idle", n)
        pipe.send("done")


def idle_within_a_connection(pipe: Connection, path: str) -> None:
    with engine_at(path).connect() as connection:
        connection.execute(text("INSERT INTO s.t VALUES ('open', 1)"))
        pipe.send("idle")
        pipe.recv()
        connection.execute(text("INSERT INTO s.t VALUES ('open', 2)"))


def keep_the_turn(pipe: Connection, path: str) -> None:
    """Be amid a statement until told otherwise."""
    with embedded._owner.turn(folder_at(path)) as client:
        pipe.send("amid")
        pipe.recv()
        client.query("INSERT INTO s.t VALUES ('keeper', 1)")


def wait_and_be_interrupted(pipe: Connection, path: str) -> None:
    """Wait for the folder; when interrupted say so, then try again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    try:
        insert(path, "interrupted", 1)
    except KeyboardInterrupt:
        pipe.send("interrupted")
    pipe.recv()
    insert(path, "interrupted", 2)


def open_without_a_turn(pipe: Connection, path: str) -> None:
    """Do as another program does that knows nothing of turns."""
    import chdb

    connection = chdb.connect(path)
    pipe.send("open")
    pipe.recv()
    connection.close()


def fork_after_use(pipe: Connection, path: str) -> None:
    """Tell what a forked child is told, how it exits, and whether the parent can go on."""
    insert(path, "parent", 1)
    if not (child := os.fork()):
        try:
            insert(path, "child", 1)
        except ServerUnreachableError as error:
            pipe.send(str(error))
        return  # by the usual way out, exit handlers and all
    pipe.send(os.waitpid(child, 0)[1])
    insert(path, "parent", 2)


def fork_before_use(pipe: Connection, path: str) -> None:
    engine_at(path)
    child = os.fork()
    for n in range(3):
        insert(path, "parent" if child else "child", n)
    if child:
        pipe.send(os.waitpid(child, 0)[1])


def test_two_processes_write_all_their_rows(folder: str) -> None:
    with Other(insert_some, folder, "one", 20), Other(insert_some, folder, "two", 20):
        pass
    assert count(folder) == 40


def test_a_second_process_waits_until_the_statement_of_the_first_is_over(folder: str) -> None:
    with Other(keep_the_turn, folder) as first:
        assert first.hear() == "amid"
        with Other(insert_some, folder, "second", 1) as second:
            until(lambda: not is_free(folder, embedded.QUEUE_FILE))
            assert second.process.is_alive()
            first.pipe.send("finish")
    assert count(folder) == 2


def test_neither_a_busy_process_nor_one_that_waits_is_starved(folder: str) -> None:
    with Other(insert_until_told, folder) as busy:
        assert busy.hear() == "ready"
        progress = []
        for n in range(5):
            insert(folder, "waiter", n)
            engine_at(folder).dispose()
            busy.pipe.send("how many?")
            progress.append(busy.hear())
        busy.pipe.send(None)
    assert progress == sorted(set(progress)), "the busy one goes on between the turns of the other"
    assert run(folder, "SELECT count() FROM s.t WHERE writer = 'waiter'") == 5


def test_a_process_that_does_nothing_lets_others_in(folder: str) -> None:
    with Other(insert_then_idle, folder) as idle:
        idle.pipe.send(1)
        assert idle.hear() == "done"
        insert(folder, "other", 1)
        assert idle.process.is_alive()
        idle.pipe.send(2)
        assert idle.hear() == "done"
        idle.pipe.send(None)
    assert count(folder) == 3


def test_a_connection_that_is_held_without_a_statement_lets_others_in(folder: str) -> None:
    with Other(idle_within_a_connection, folder) as holder:
        assert holder.hear() == "idle"
        insert(folder, "other", 1)
        holder.pipe.send("go on")
    assert count(folder) == 3


def test_a_killed_process_frees_the_folder(folder: str) -> None:
    with Other(keep_the_turn, folder) as killed:
        assert killed.hear() == "amid"
        killed.process.kill()
        insert(folder, "heir", 1)
    assert count(folder) == 1


def test_a_wait_that_is_over_names_the_folder_and_the_process_that_has_it(folder: str) -> None:
    with Other(keep_the_turn, folder) as owner:
        assert owner.hear() == "amid"
        with pytest.raises(ServerUnreachableError) as caught:
            impatient(folder, wait_seconds=0.1).execute("SELECT 1")
        owner.pipe.send("finish")
    assert folder in str(caught.value)
    assert f"process {owner.pid} on" in str(caught.value)
    assert count(folder) == 1


def test_an_interrupted_wait_leaves_nothing_behind(folder: str) -> None:
    with Other(keep_the_turn, folder) as owner:
        assert owner.hear() == "amid"
        with Other(wait_and_be_interrupted, folder) as waiter:
            until(lambda: not is_free(folder, embedded.QUEUE_FILE))
            os.kill(waiter.pid, signal.SIGINT)
            assert waiter.hear() == "interrupted"
            assert is_free(folder, embedded.QUEUE_FILE)
            owner.pipe.send("finish")
            insert(folder, "other", 1)
            waiter.pipe.send("try again")
    assert count(folder) == 3


def test_a_program_that_takes_no_turns_is_a_clear_error(folder: str) -> None:
    with Other(open_without_a_turn, folder) as stranger:
        assert stranger.hear() == "open"
        with pytest.raises(ServerUnreachableError, match=r"another program has it open") as caught:
            insert(folder, "refused", 1)
        assert folder in str(caught.value)
        assert is_free(folder)
        stranger.pipe.send("close")
    insert(folder, "accepted", 1)
    assert count(folder) == 1


def test_a_forked_child_is_refused_and_exits_while_its_parent_goes_on(folder: str) -> None:
    with Other(fork_after_use, folder) as parent:
        assert "forked process" in parent.hear()
        assert parent.hear() == 0
    assert count(folder) == 2


def test_a_child_that_was_forked_before_the_first_use_takes_turns_with_its_parent(folder: str) -> None:
    with Other(fork_before_use, folder) as parent:
        assert parent.hear() == 0
    assert count(folder) == 6


def test_disposing_of_the_engine_closes_the_folder_at_once(folder: str) -> None:
    insert(folder, "x", 1)
    assert embedded._owner._opening
    engine_at(folder).dispose()
    assert not embedded._owner._opening


def test_a_folder_closes_by_itself_and_its_thread_ends(folder: str) -> None:
    threads = threading.active_count()
    insert(folder, "x", 1)
    until(lambda: not embedded._owner._opening)
    until(lambda: threading.active_count() <= threads)


def test_rows_are_read_before_the_folder_closes(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LINGER_SECONDS", 0.0)
    with engine_at(folder).connect() as connection:
        rows = connection.execute(text("SELECT number FROM numbers(200000)"))  # several blocks
        assert not embedded._owner._opening
        assert rows.scalars().all() == list(range(200_000))


def test_rows_that_are_inserted_as_data_take_a_turn_too(folder: str) -> None:
    table = Table("t", MetaData(schema="s"), Column("writer", String), Column("n", UInt32))
    with engine_at(folder).connect() as connection:
        connection.execute(table.insert(), [{"writer": "%(x)s'", "n": n} for n in range(3)])
    assert run(folder, "SELECT count() FROM s.t WHERE writer = '%(x)s\\''") == 3


def test_two_folders_are_used_in_turn_by_one_process(folder: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    run(other, "CREATE DATABASE s")
    run(other, "CREATE TABLE s.t (writer String, n UInt32) ENGINE MergeTree ORDER BY n")
    for n in range(3):
        insert(folder, "x", n)
        insert(other, "x", n)
    insert(other, "x", 3)
    assert (count(folder), count(other)) == (3, 4)


def test_threads_share_the_folder(folder: str) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: insert(folder, "x", n), range(40)))
    assert count(folder) == 40


def test_a_thread_that_waits_in_vain_for_another_says_so(folder: str) -> None:
    with (
        ThreadPoolExecutor(1) as threads,
        embedded._owner.turn(folder_at(folder)),
        pytest.raises(ServerUnreachableError, match="another thread has it open"),
    ):
        threads.submit(impatient(folder, wait_seconds=0.1).execute, "SELECT 1").result()


def test_an_error_of_the_engine_leaves_the_folder_usable(folder: str) -> None:
    with pytest.raises(Exception, match="UNKNOWN_TABLE"):
        run(folder, "SELECT * FROM s.missing")
    insert(folder, "x", 1)
    assert count(folder) == 1


def test_a_folder_that_was_deleted_is_not_made_again_by_looking_for_waiters(folder: str) -> None:
    turn = embedded._Turn(Path(folder) / "deleted")
    assert not turn.is_wanted()
    assert not (Path(folder) / "deleted").exists()


@pytest.mark.parametrize("name", ["with space", "100%", "%41", "ha#sh", "a&b=c", "ünï-中", "quo'te", "deep/er/folder"])
def test_rows_are_kept_in_a_folder_with_an_odd_name(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name)
    run(path, "CREATE TABLE t ENGINE MergeTree ORDER BY n AS SELECT 7 AS n")
    engine_at(path).dispose()
    assert run(path, "SELECT n FROM t") == 7
    assert [child.name for child in tmp_path.iterdir()] == [Path(name).parts[0]]
    engine_at(path).dispose()


def test_a_relative_folder_is_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = engine_for(resolve("chdb://below/state"))
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    engine.dispose()
    assert (tmp_path / "below" / "state" / embedded.TURN_FILE).exists()


@pytest.mark.parametrize("below", ["", "/below"])
def test_a_file_is_no_folder(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match=f"{tmp_path}/file{below} cannot be used: "):
        run(f"{tmp_path}/file{below}", "SELECT 1")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")  # tests may run as root, whom no folder refuses

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ConfigurationError, match=f"{tmp_path}/state cannot be used: Permission denied"):
        run(f"{tmp_path}/state", "SELECT 1")


def test_a_missing_chdb_names_the_extra_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chdb", None)
    with pytest.raises(ConfigurationError, match=r'pip install "meltano-ch-state\[embedded\]"'):
        run(f"{tmp_path}/state", "SELECT 1")
    assert list(tmp_path.iterdir()) == []


def test_a_chdb_that_is_too_old_is_told_apart_from_a_busy_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As chdb 3 does: the first statement of clickhouse-connect has parameters."""
    from chdb.state.sqlitelike import Connection

    send = Connection.query
    monkeypatch.setattr(Connection, "query", lambda connection, query, format="CSV": send(connection, query, format))
    with pytest.raises(ConfigurationError, match=r"engine is too old: .*'params'\. Upgrade it: pip install --upgrade"):
        run(str(tmp_path / "state"), "SELECT 1")


def test_a_process_exits_quietly_with_the_folder_open(folder: str) -> None:
    program = "import sys; from test_embedded_folder import insert; insert(sys.argv[1], 'x', 1)"
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", program, folder]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    exited = subprocess.run(
        command, capture_output=True, text=True, timeout=GENEROUS_SECONDS, env=environment, check=False
    )
    assert (exited.returncode, exited.stderr) == (0, "")
    assert count(folder) == 1
