"""The stores that the suite runs over. One more store is one more name in STORES and one more fixture `on_...`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from meltano_ch_state.locker import LockOptions
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.store import StateStore
from meltano_ch_state.testing import MemoryDatabase, memory_store
from tests.rig.endpoint import Endpoint

Manager = ClickhouseStateStoreManager
Opener = Callable[..., Manager]
"""Opens a manager with some settings on the test's own database; two of them are to each other as two processes."""

STORES = ("memory", "embedded", "server", "keeper")


class MemoryManager(Manager):
    """A manager over the in-memory double."""

    def __init__(self, database: MemoryDatabase, **given: Any) -> None:
        super().__init__("clickhouse://memory", **given)
        self._database = database

    def _open(self) -> StateStore:
        return memory_store(self._database, LockOptions.of(self.settings))

    def migrate(self) -> None:
        """Nothing to do: the double's tables are always there."""


@pytest.fixture
def on_memory() -> Opener:
    return partial(MemoryManager, MemoryDatabase())


@pytest.fixture
def on_embedded(tmp_path: Path) -> Opener:
    return partial(Manager, f"chdb://{tmp_path / 'state'}")


@pytest.fixture
def on_server(server: Endpoint, schema: str) -> Opener:
    return partial(Manager, server.url(), schema=schema)


@pytest.fixture
def on_keeper(server: Endpoint, schema: str) -> Opener:
    return partial(Manager, server.url(), schema=schema, lock_mode="keeper")


@pytest.fixture(params=STORES)
def open_manager(request: pytest.FixtureRequest) -> Iterator[Opener]:
    opened: list[Manager] = []
    opener: Opener = request.getfixturevalue(f"on_{request.param}")

    def open_one(**settings: object) -> Manager:
        opened.append(opener(**settings))
        return opened[-1]

    yield open_one
    for manager in opened:
        manager.close()


@pytest.fixture
def manager(open_manager: Opener) -> Manager:
    """A manager over each store in turn, on a database of its own where nothing is yet."""
    return open_manager()


@pytest.fixture
def other(open_manager: Opener, manager: Manager) -> Manager:
    """Another process's manager over the same database, which waits for no lock."""
    return open_manager(lock_acquire_timeout_seconds=0)
