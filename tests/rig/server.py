"""A ClickHouse server of our own: `python -m tests.rig.server` starts one and keeps it until Ctrl-C."""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType

from tests.rig import process
from tests.rig.binary import find_program
from tests.rig.config import Clusters, write_config
from tests.rig.endpoint import Endpoint

HOST = "127.0.0.1"
PORTS = range(20000, 32000)
START_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 10
POLL_SECONDS = 0.02

# `clickhouse local` ends with its query, so it listens while it sleeps (for some thirty years). HTTP comes last: once
# it answers, both ports do.
LISTEN = """\
SYSTEM START LISTEN TCP;
SYSTEM START LISTEN HTTP;
SELECT sleepEachRow(1) FROM numbers(1000000000)
SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0 FORMAT Null"""


class ClickHouseServer(Endpoint):
    """A server with ports, a folder and a process of its own; as a context manager it runs from enter to exit.

    Attributes:
        folder: holds its configuration, logs and data; removed when it is closed.

    Raises:
        RuntimeError: nothing on this machine can run a server.
    """

    def __init__(self, clusters: Clusters | None = None) -> None:
        http_port, tcp_port = free_ports(2)
        super().__init__(HOST, http_port, tcp_port)
        self._program = find_program()
        self._temporary = tempfile.TemporaryDirectory(prefix="clickhouse-")
        self.folder = Path(self._temporary.name)
        self._config = write_config(self.folder, self.host, self.http_port, self.tcp_port, clusters)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ClickHouseServer":
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
        """Start the server on its ports and folder, and return when it answers.

        Raises:
            RuntimeError: it ended, or did not answer within START_TIMEOUT_SECONDS; with the end of its log.
        """
        with self._console.open("ab") as console:
            self._process = subprocess.Popen(
                [sys.executable, process.__file__, str(self._program), *self._arguments()],
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        self._wait_until_it_answers(self._process)

    def stop(self) -> None:
        """End the server as a service manager does: SIGTERM, then SIGKILL if it does not end in time."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same ports and data."""
        self.stop()
        self.start()

    def signal(self, number: int) -> None:
        """Send a signal such as SIGSTOP or SIGCONT to the running server."""
        if self._process:
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Stop the server and remove its folder."""
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

    def _arguments(self) -> list[str]:
        config = f"--config-file={self._config}"
        if self._program.suffix in process.LIBRARY_SUFFIXES:
            return [config, "--log-level=information", f"--query={LISTEN}"]
        return ["server", config]

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
        return RuntimeError(f"The ClickHouse server {how}. The end of its log:\n{self.log_tail()}")

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


def free_ports(count: int) -> list[int]:
    """Return ports that are free now and that stay so while a server restarts.

    They lie below 32768, where Linux starts to take ports for outgoing connections: one of those could get the port
    of a server that is down for a moment. The system's randomness, as tests and workers may seed the other.
    """
    candidates = random.SystemRandom().sample(PORTS, len(PORTS))
    return list(islice(filter(is_free, candidates), count))


def is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


@contextmanager
def shared_server() -> Iterator[Endpoint]:
    """Give the server that CLICKHOUSE_TEST_URL names, with the rig's users created there, else one of our own.

    Raises:
        RuntimeError: there is no server to be had.
    """
    url = os.environ.get("CLICKHOUSE_TEST_URL")
    if not url:
        with ClickHouseServer() as server:
            yield server
        return
    endpoint = Endpoint.from_url(url)
    if not endpoint.answers():
        raise RuntimeError(f"CLICKHOUSE_TEST_URL: nothing answers at {endpoint.host}:{endpoint.http_port}")
    endpoint.create_missing_users()
    yield endpoint


def main() -> None:
    """Start a server, print how to reach it, and keep it until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ClickHouseServer() as server:
        sys.stdout.write(f"{server.http_url}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
