"""A server that runs as a process of its own, with a folder of its own, for as long as its context lasts."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from tests.rig import process

START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 10
POLL_SECONDS = 0.02

Self = TypeVar("Self", bound="Program")


class Program(ABC):
    """A program that serves; as a context manager it runs from enter to exit.

    Attributes:
        name: what it is, for messages.
        folder: holds its configuration, logs and data; removed when it is closed.
    """

    name: str

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix=f"{self.name.lower()}-")
        self.folder = Path(self._temporary.name)
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the program and its arguments."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether it serves."""

    def __enter__(self: Self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start it on its ports and folder, and return when it answers.

        Raises:
            RuntimeError: it ended, or did not answer within START_TIMEOUT_SECONDS; with the end of its log.
        """
        with self._console.open("ab") as console:
            self._process = subprocess.Popen(
                [sys.executable, process.__file__, *self.command()],
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        self._wait_until_it_answers(self._process)

    def stop(self) -> None:
        """End it as a service manager does: SIGTERM, then SIGKILL if it does not end in time."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same ports and data."""
        self.stop()
        self.start()

    def signal(self, number: int) -> None:
        """Send a signal such as SIGSTOP or SIGCONT to it when it runs."""
        if self._process:
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Stop it and remove its folder."""
        self.stop()
        self._temporary.cleanup()

    def log_tail(self, lines: int = 60) -> str:
        """Return the last lines of the log and of what the process printed."""
        files = (self.folder / "server.log", self._console)
        texts = (file.read_text(errors="replace") for file in files if file.exists())
        return "\n".join(line for text in texts for line in text.splitlines()[-lines:])

    @property
    def _console(self) -> Path:
        return self.folder / "console.log"

    def _wait_until_it_answers(self, running: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self.answers():
            if running.poll() is not None:
                raise self._failed("ended while starting")
            if time.monotonic() > deadline:
                raise self._failed(f"does not answer after {START_TIMEOUT_SECONDS} seconds")
            time.sleep(POLL_SECONDS)

    def _failed(self, how: str) -> RuntimeError:
        self.kill()
        return RuntimeError(f"The {self.name} server {how}. The end of its log:\n{self.log_tail()}")

    def _end(self, number: int) -> None:
        if not self._process:
            return
        with self._process as running:
            if running.poll() is None:
                self.signal(number)
            try:
                running.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
        self._process = None
