"""A ClickHouse server of our own: `python -m tests.rig.server` starts one and keeps it until Ctrl-C."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from tests.rig import process
from tests.rig.binary import find_program
from tests.rig.config import Clusters, write_config
from tests.rig.endpoint import Endpoint
from tests.rig.ports import HOST, free_ports
from tests.rig.program import Program
from tests.rig.zookeeper import ZooKeeper

# `clickhouse local` ends with its query, so it listens while it sleeps (for some thirty years). HTTP comes last: once
# it answers, both ports do.
LISTEN = """\
SYSTEM START LISTEN TCP;
SYSTEM START LISTEN HTTP;
SELECT sleepEachRow(1) FROM numbers(1000000000)
SETTINGS max_block_size = 1, function_sleep_max_microseconds_per_block = 0 FORMAT Null"""


class ClickHouseServer(Endpoint, Program):
    """A server with ports, a folder and a process of its own; as a context manager it runs from enter to exit.

    Raises:
        RuntimeError: nothing on this machine can run a server.
    """

    name = "ClickHouse"

    def __init__(
        self, clusters: Clusters | None = None, zookeeper: ZooKeeper | None = None, replica: str = "r1"
    ) -> None:
        """Give it a place.

        Args:
            clusters: the hosts of each cluster that it knows, by the cluster's name.
            zookeeper: what it keeps its Keeper's data in; None means its own memory.
            replica: its name, as a macro.
        """
        self._program = find_program()
        Program.__init__(self)
        http_port, tcp_port = free_ports(2)
        Endpoint.__init__(self, HOST, http_port, tcp_port)
        self._config = write_config(
            self.folder,
            self.host,
            self.http_port,
            self.tcp_port,
            clusters,
            zookeeper_port=zookeeper.port if zookeeper else None,
            replica=replica,
        )

    def command(self) -> Sequence[str]:
        """Return the program that was found, with its configuration."""
        config = f"--config-file={self._config}"
        if self._program.suffix in process.LIBRARY_SUFFIXES:
            return [str(self._program), config, "--log-level=information", f"--query={LISTEN}"]
        return [str(self._program), "server", config]


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


def version_or_end(server: Endpoint) -> str:
    """Return the server's version; of one that died, the end of its log, where there is one."""
    if server.answers():
        return server.version()
    log = f" The end of its log:\n{server.log_tail()}" if isinstance(server, Program) else ""
    return f"answers no more.{log}"


def main() -> None:
    """Start a server, print how to reach it, and keep it until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ClickHouseServer() as server:
        sys.stdout.write(f"{server.http_url}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
