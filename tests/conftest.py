"""One ClickHouse server for a test run, shared by the workers of pytest-xdist; the fixtures that all tests use."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import hypothesis
import pytest

from tests.rig import zookeeper
from tests.rig.endpoint import Endpoint
from tests.rig.server import ClickHouseServer, shared_server, version_or_end
from tests.rig.users import SCHEMA_PREFIX

WITHOUT_SERVER = [Path(__file__).parent / folder for folder in ("unit", "model")]
"""A run of tests in these folders only starts no server."""

NO_SERVER_EXIT_CODE = 3

SERVER = pytest.StashKey[Endpoint]()

# how fast a machine draws examples says nothing about the code
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Start the server, but not in a worker; a run that has none fails here as a whole."""
    if hasattr(config, "workerinput"):
        if url := config.workerinput["clickhouse_url"]:
            config.stash[SERVER] = Endpoint.from_url(url)
    elif needs_server(config):
        stack = ExitStack()
        config.add_cleanup(stack.close)
        try:
            config.stash[SERVER] = stack.enter_context(shared_server())
        except (RuntimeError, OSError) as error:
            pytest.exit(str(error), NO_SERVER_EXIT_CODE)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist where the server is."""
    server = node.config.stash.get(SERVER, None)
    node.workerinput["clickhouse_url"] = server.http_url if server else ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which stores the tests ran on, by their own `SELECT version()`."""
    if server := config.stash.get(SERVER, None):
        terminalreporter.section("stores")
        terminalreporter.line(f"ClickHouse server: {version_or_end(server)}")
        terminalreporter.line(f"embedded chdb: {chdb_version()}")
        if not zookeeper.is_installed():
            terminalreporter.line(f"left out: the tests of two servers. {zookeeper.MISSING}")


def needs_server(config: pytest.Config) -> bool:
    """Return whether any selected test is outside the folders that need no server."""
    start = config.invocation_params.dir
    selected = [(start / arg.split("::")[0]).resolve() for arg in config.args]
    return not all(any(path.is_relative_to(folder) for folder in WITHOUT_SERVER) for path in selected)


def chdb_version() -> str:
    """Ask chdb in a process of its own: its threads would harm the forks of this one."""
    if not importlib.util.find_spec("chdb"):
        return "not installed"
    script = "import chdb; print(chdb.query('SELECT version()', 'TabSeparated'), end='')"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    return (answer.stdout or answer.stderr).strip()


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Endpoint:
    """The run's shared server. It is never stopped by a test: see private_server."""
    if SERVER not in pytestconfig.stash:
        pytest.fail("this run started no server: tests in tests/unit and tests/model do without")
    return pytestconfig.stash[SERVER]


@pytest.fixture
def schema(server: Endpoint) -> Iterator[str]:
    """The name of a database of the test's own on the shared server: not there before, dropped afterwards."""
    name = f"{SCHEMA_PREFIX}{uuid4().hex[:12]}"
    yield name
    server.execute(f"DROP DATABASE IF EXISTS {name} SYNC")


@pytest.fixture
def private_server() -> Iterator[ClickHouseServer]:
    """A running server of the test's own, which it may kill and restart."""
    with ClickHouseServer() as own:
        yield own


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the developer's own home and settings out of the tests."""
    for name in os.environ:
        if name.startswith(("CLICKHOUSE_", "MELTANO_STATE_BACKEND_")) and not name.startswith("CLICKHOUSE_TEST_"):
            monkeypatch.delenv(name)
    home = tmp_path_factory.getbasetemp() / "home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
