"""A ZooKeeper of our own, for ClickHouse servers that share what they keep there: Debian's package `zookeeper`."""

import shutil
import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from tests.rig.ports import HOST, free_ports
from tests.rig.program import Program

JAR = Path("/usr/share/java/zookeeper.jar")
"""Where Debian and Ubuntu put it; its manifest names the other archives that it needs."""
MISSING = "ZooKeeper is not installed; as root, `make zookeeper` installs Debian's package"
CONFIG = """\
dataDir={folder}/data
clientPort={port}
clientPortAddress={host}
admin.enableServer=false
"""
ANSWER_TIMEOUT_SECONDS = 0.5
"""While it starts it accepts connections that it never answers."""


def is_installed() -> bool:
    """Return whether this machine can run one."""
    return JAR.exists() and shutil.which("java") is not None


class ZooKeeper(Program):
    """A ZooKeeper of one server.

    Attributes:
        port: of its clients.

    Raises:
        RuntimeError: it is not installed.
    """

    name = "ZooKeeper"

    def __init__(self) -> None:
        if not is_installed():
            raise RuntimeError(MISSING)
        super().__init__()
        (self.port,) = free_ports(1)
        self._config = self.folder / "zoo.cfg"
        self._config.write_text(CONFIG.format(folder=self.folder, host=HOST, port=self.port))

    def command(self) -> Sequence[str]:
        """Return Java with the main class for one server, which leaves it to the system when to write to the disk."""
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return ["java", "-Xmx128m", "-Dzookeeper.forceSync=no", "-cp", str(JAR), main, str(self._config)]

    def answers(self) -> bool:
        """Return whether it serves clients."""
        return "Mode: standalone" in self._status()

    def version(self) -> str:
        """Return its version, such as 3.8.0."""
        return self._status().partition("version: ")[2].partition("-")[0]

    def _status(self) -> str:
        try:
            with closing(socket.create_connection((HOST, self.port), ANSWER_TIMEOUT_SECONDS)) as connection:
                connection.sendall(b"srvr")
                with connection.makefile() as answer:
                    return answer.read()
        except OSError:
            return ""
