"""The embedded engine (chdb): processes take turns on a folder, and folders take turns in a process.

Only one process can have a folder open, and a process can have only one folder open. A process that tries to open a
folder in vain keeps its owner from opening it again, so waiting is done by file locks of ours in the folder, with the
folder closed. The unit is one statement: like a connection by HTTP, a connection here has no state of its own. The
folder is opened for a statement and stays open for the next ones, until nobody has used it for `LINGER_SECONDS`, or
until another process waits and `SLICE_SECONDS` are over.

The engine does not survive a fork: a child that uses it, or that exits while its copy is open, hangs in the engine's
code (chdb 4.4.0). So the folder is closed before a fork, and the child is refused.
"""

from __future__ import annotations

import atexit
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clickhouse_connect.dbapi import Error
from clickhouse_connect.dbapi.cursor import Cursor
from fasteners import InterProcessLock

from meltano_ch_state.errors import ConfigurationError, ServerUnreachableError

TURN_TIMEOUT_SECONDS = 30.0
"""How long a statement waits for another process to give the folder up, in seconds."""
LINGER_SECONDS = 0.2
"""How long a folder stays open after the last statement, in seconds; opening it again costs some 50 ms."""
SLICE_SECONDS = 0.1
"""How long a process may go on while another waits, in seconds: some updates, for the price of one opening."""
WATCH_SECONDS = 0.05
"""How often an open folder is looked at, in seconds."""
POLL_SECONDS = 0.01
"""The pause between two looks at a file lock, in seconds; one that grew would be unfair to those who came first."""
TURN_FILE = "meltano_ch_state.turn"
QUEUE_FILE = "meltano_ch_state.queue"
_TOO_OLD = re.compile("unexpected keyword argument 'params'|has no attribute 'connect'")
"""What Python says of chdb 3, which has no parameters of queries, and of chdb 2, which has no connections."""


@dataclass(frozen=True)
class Folder:
    """A folder that the engine can open."""

    path: Path
    """Where it is; it need not exist."""
    connect: Callable[[], Any] = field(compare=False)
    """Opens it and gives a connection of clickhouse-connect's DBAPI."""
    wait_seconds: float = field(default=TURN_TIMEOUT_SECONDS, compare=False)
    """How long a statement waits for its turn, in seconds."""

    def __post_init__(self) -> None:
        """Refuse a path that the engine misreads: it takes what follows a '?' for options, and opens another folder.

        Raises:
            ConfigurationError: If the path has a '?'.
        """
        if "?" in str(self.path):
            raise ConfigurationError(f"The folder {self.path} has a '?' in its path", "Name another folder")


def connect(folder: Folder) -> _Connection:
    """A DBAPI connection. It opens nothing yet and keeps nothing open, so it need not be closed."""
    return _Connection(folder)


def close(folder: Folder) -> None:
    """Close the folder now, instead of after `LINGER_SECONDS`, unless a thread is using it."""
    _owner.close(folder)


class _Connection:
    def __init__(self, folder: Folder) -> None:
        self._client = _Client(folder)

    def cursor(self) -> Cursor:
        return Cursor(self._client)

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class _Client:
    """What a cursor needs of clickhouse-connect's client. A statement takes its turn, and its answer comes whole."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def query(self, *args: Any, **options: Any) -> Any:
        with _owner.turn(self._folder) as client:
            return client.query(*args, **options)

    def raw_insert(self, *args: Any, **options: Any) -> Any:
        with _owner.turn(self._folder) as client:
            return client.raw_insert(*args, **options)


class _Turn:
    """The right to have a folder open, passed on between processes.

    Who waits holds the queue's file until it has the turn's. So the owner sees that it should make room, and queues
    up like all others when it wants the turn again. Both are POSIX locks: the kernel frees them when their process
    dies, and a forked child has none.
    """

    def __init__(self, path: Path) -> None:
        self._queue_file = path / QUEUE_FILE
        self._queue = InterProcessLock(self._queue_file)
        self._turn = InterProcessLock(path / TURN_FILE)

    def take(self, deadline: float) -> bool:
        """Wait for the turn until the monotonic clock shows `deadline`; returns whether it was got."""
        try:
            taken = _acquire(self._queue, deadline) and _acquire(self._turn, deadline)
        finally:
            _release(self._queue)
        if taken:
            self._turn.lockfile.truncate(0)
            print(f"process {os.getpid()} on {socket.gethostname()}", end="", file=self._turn.lockfile, flush=True)
        return taken

    def is_wanted(self) -> bool:
        """Whether another process waits."""
        if not self._queue_file.exists():
            return False  # the folder was deleted: do not make it again
        free = _acquire(self._queue, deadline=0)
        _release(self._queue)
        return not free

    def give_up(self) -> None:
        """Let others have the turn, if it was taken."""
        _release(self._turn)


def _acquire(lock: InterProcessLock, deadline: float) -> bool:
    seconds = max(0.0, deadline - time.monotonic())
    try:
        return bool(lock.acquire(delay=POLL_SECONDS, max_delay=POLL_SECONDS, timeout=seconds))
    finally:
        if not lock.acquired and lock.lockfile:
            lock.lockfile.close()  # fasteners leaves it open after a failure or an interrupt


def _release(lock: InterProcessLock) -> None:
    if lock.acquired:
        lock.release()


class _Opening:
    """A folder while this process has it open."""

    def __init__(self, folder: Folder, deadline: float) -> None:
        self.folder = folder
        self.closed = threading.Event()
        self._turn = _Turn(folder.path)
        try:
            self._take_turn(deadline)
            self.connection = self._connect()
        except BaseException:
            self._turn.give_up()
            raise
        self._opened = self.used = time.monotonic()

    def _take_turn(self, deadline: float) -> None:
        try:
            self.folder.path.mkdir(parents=True, exist_ok=True)
            taken = self._turn.take(deadline)
        except (OSError, threading.ThreadError) as error:
            reason = f"The folder {self.folder.path} cannot be used: {getattr(error, 'strerror', error)}"
            raise ConfigurationError(reason, "Name a folder that this user can create and write") from error
        if not taken:
            raise _busy(self.folder, _owner_of(self.folder) or "another process")

    def _connect(self) -> Any:
        try:
            return self.folder.connect()
        except (Error, AttributeError) as error:
            said = str(error).splitlines()[0]
            if _TOO_OLD.search(said):
                remedy = 'Upgrade it: pip install --upgrade "meltano-ch-state[embedded]"'
                raise ConfigurationError(f"The embedded engine is too old: {said}", remedy) from error
            reason = f"The folder {self.folder.path} cannot be opened: {said}"
            raise ServerUnreachableError(reason, "See whether another program has it open") from error

    def is_over(self) -> bool:
        """Whether it is time to close: nobody uses it, or another process has waited for long enough."""
        now = time.monotonic()
        return now - self.used >= LINGER_SECONDS or (now - self._opened >= SLICE_SECONDS and self._turn.is_wanted())

    def close(self) -> None:
        """Close the folder, then let others have it."""
        self.closed.set()
        try:
            self.connection.close()
        finally:
            self._turn.give_up()


class _Owner:
    """What this process has open: one folder or none. One statement runs at a time, whatever its thread."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._opening: _Opening | None = None
        self._paused = self._lost = False

    @contextmanager
    def turn(self, folder: Folder) -> Iterator[Any]:
        """Have the folder open for one statement; gives clickhouse-connect's client.

        Raises:
            ConfigurationError: If chdb is not installed, or the path is no folder that this user can write.
            ServerUnreachableError: If the folder stayed busy, or the engine refuses it or the process.
        """
        self._load()
        deadline = time.monotonic() + folder.wait_seconds
        if not self._mutex.acquire(timeout=folder.wait_seconds):
            raise _busy(folder, "another thread")
        try:
            opening = self._open(folder, deadline)
            try:
                yield opening.connection.client
            finally:
                opening.used = time.monotonic()
                self._close_if_over()
        finally:
            self._mutex.release()

    def _load(self) -> None:
        if self._lost:
            raise ServerUnreachableError(
                "The embedded engine does not work in a forked process whose parent had loaded it",
                "Start the process by multiprocessing's 'spawn' method, or fork before the first use",
            )
        try:
            import chdb  # noqa: F401, PLC0415 - takes up to half a second: here, before the turn is taken
        except ImportError as error:
            remedy = 'Install it: pip install "meltano-ch-state[embedded]"'
            raise ConfigurationError(f"The embedded engine cannot be loaded: {error}", remedy) from error

    def close(self, folder: Folder | None = None) -> None:
        """Close the folder, or whichever is open. A thread that uses it longer than the linger closes it itself."""
        if self._mutex.acquire(timeout=LINGER_SECONDS):
            try:
                if self._opening and folder in {None, self._opening.folder}:
                    self._close()
            finally:
                self._mutex.release()

    def pause(self) -> None:
        """Close what is open, and open nothing until `resume`."""
        # With a limit: a signal handler that forks amid a statement would wait for itself.
        self._paused = self._mutex.acquire(timeout=TURN_TIMEOUT_SECONDS)
        if self._paused:
            self._close()

    def resume(self) -> None:
        """Go on after a pause."""
        if self._paused:
            self._paused = False
            self._mutex.release()

    def start_anew(self) -> None:
        """Forget in a forked child what the parent was at; a thread that the child has not may hold the mutex."""
        self.__init__()  # type: ignore[misc]
        self._lost = "chdb" in sys.modules

    def _open(self, folder: Folder, deadline: float) -> _Opening:
        if self._opening and self._opening.folder != folder:
            self._close()
        if not self._opening:
            self._opening = _Opening(folder, deadline)
            with suppress(RuntimeError):  # Python 3.12 starts no thread while it exits; then the exit closes the folder
                threading.Thread(target=self._watch, args=(self._opening.closed,), daemon=True).start()
        return self._opening

    def _watch(self, closed: threading.Event) -> None:
        while not closed.wait(WATCH_SECONDS):
            with self._mutex:
                if not closed.is_set():
                    self._close_if_over()

    def _close_if_over(self) -> None:
        if self._opening and self._opening.is_over():
            self._close()

    def _close(self) -> None:
        opening, self._opening = self._opening, None
        if opening:
            opening.close()


def _owner_of(folder: Folder) -> str:
    with suppress(OSError):
        return (folder.path / TURN_FILE).read_text()
    return ""


def _busy(folder: Folder, who: str) -> ServerUnreachableError:
    reason = f"The folder {folder.path} stayed busy for {folder.wait_seconds:g} s: {who} has it open"
    return ServerUnreachableError(reason, "Wait until that one is done, or stop it, then try again")


_owner = _Owner()
os.register_at_fork(before=_owner.pause, after_in_parent=_owner.resume, after_in_child=_owner.start_anew)
atexit.register(_owner.close)
