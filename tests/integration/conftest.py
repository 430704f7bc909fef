"""State backends for the tests of the command line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import zookeeper
from tests.rig.endpoint import Endpoint
from tests.support.cli import Backend

collect_ignore = [] if zookeeper.is_installed() or os.environ.get("CI") else ["test_two_servers.py"]
"""In CI, and when named, they fail without ZooKeeper; else the run's last lines say that they were left out."""


@pytest.fixture
def on_server(server: Endpoint, schema: str) -> Iterator[Backend]:
    """A schema on the server that does not exist yet."""
    backend = Backend(f"{server.url()}?schema={schema}")
    yield backend
    backend.close()


@pytest.fixture
def on_embedded(tmp_path: Path) -> Iterator[Backend]:
    """A store of the embedded engine in which our tables are not yet."""
    backend = Backend(f"chdb://{tmp_path / 'state'}")
    backend.sql("CREATE DATABASE of_somebody_else")
    yield backend
    backend.close()


@pytest.fixture(params=["server", "embedded"])
def fresh(request: pytest.FixtureRequest) -> Backend:
    """Each kind of backend in turn, where nothing is yet."""
    backend: Backend = request.getfixturevalue(f"on_{request.param}")
    return backend


@pytest.fixture
def backend(fresh: Backend) -> Backend:
    """Each kind of backend in turn, with its tables."""
    fresh.output("upgrade")
    return fresh


@pytest.fixture
def on_tables(on_server: Backend) -> Backend:
    """A schema on the server, with its tables."""
    on_server.output("upgrade")
    return on_server
