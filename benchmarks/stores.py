"""The stores that are compared, each opened by its name; a child process can open them, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

PRODUCT = "this product"
BARE = "bare statements"
SYSTEM = "Meltano's SQLite"
FILES = "Meltano's files"
EXISTING = "existing backend"
EMBEDDED = "this product, embedded"
KEEPER = "this product, locks in Keeper"
OUR_DISTRIBUTION = "meltano-ch-state"

Store = Any
"""A `StateStoreManager`, or `Bare`, which has the methods that are measured."""


@dataclass(frozen=True)
class Place:
    """Where the stores of one benchmark keep their states.

    Attributes:
        url: The server, with the login.
        schema: Its database for the product's tables; those of other stores get an ending to it.
        folder: For what is kept in files.
    """

    url: str
    schema: str
    folder: str

    def dumps(self) -> str:
        """The place as text for a child's standard input: it has the password."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Place:
        """The place from such a text."""
        return cls(**json.loads(text))

    @property
    def schemas(self) -> dict[str, str]:
        """The database of each store on the server."""
        own = {BARE: "bare", EXISTING: "existing", KEEPER: "keeper"}
        return {PRODUCT: self.schema} | {name: f"{self.schema}_{ending}" for name, ending in own.items()}


def names() -> list[str]:
    """The stores that can be compared here."""
    return [PRODUCT, BARE, SYSTEM, FILES, *([EXISTING] if existing() else [])]


def existing() -> EntryPoint | None:
    """Another package's state backend for ClickHouse, if one is installed."""
    found = entry_points(group="meltano.state_backends", name="clickhouse")
    return next((entry for entry in found if entry.dist and entry.dist.name != OUR_DISTRIBUTION), None)


def opener(name: str) -> Callable[[Place], Store]:
    """Import what a store needs, and return what opens it."""
    return _OPENERS[name]()


def open_all(place: Place, chosen: list[str] | None = None) -> dict[str, Store]:
    """Open stores whose tables are there."""
    return {name: opener(name)(place) for name in chosen or names()}


def make(place: Place, chosen: list[str] | None = None) -> dict[str, Store]:
    """Open stores, after making tables for them. The bare statements have the product's tables, but their own ones."""
    product = opener(PRODUCT)
    for name in (PRODUCT, BARE):
        manager = product(Place(place.url, place.schemas[name], place.folder))
        manager.migrate()
        manager.close()
    return open_all(place, chosen)


def _product() -> Callable[[Place], Store]:
    from meltano_ch_state.manager import ClickhouseStateStoreManager

    return lambda place: ClickhouseStateStoreManager(place.url, schema=place.schema)


def _bare() -> Callable[[Place], Store]:
    from benchmarks.bare import Bare

    return lambda place: Bare(place.url, place.schemas[BARE])


def _system() -> Callable[[Place], Store]:
    from meltano.core import job_state  # noqa: F401 - the table's model
    from meltano.core.db import init_hook
    from meltano.core.models import SystemModel
    from meltano.core.state_store.db import DBStateStoreManager
    from sqlalchemy import NullPool, create_engine
    from sqlalchemy.orm import sessionmaker

    def open_it(place: Place) -> Store:
        database = Path(place.folder, "meltano.db")
        fresh = not database.exists()
        engine = create_engine(f"sqlite:///{database}", poolclass=NullPool)
        init_hook(engine)
        if fresh:
            SystemModel.metadata.create_all(engine)
        return DBStateStoreManager(session=sessionmaker(bind=engine)())

    return open_it


def _files() -> Callable[[Place], Store]:
    import logging

    import structlog
    from meltano.core.state_store.filesystem import LocalFilesystemStateStoreManager

    # it logs each write
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return lambda place: LocalFilesystemStateStoreManager(uri=f"file://{place.folder}/states", lock_timeout_seconds=10)


def _existing() -> Callable[[Place], Store]:
    entry = existing()
    assert entry, "it is installed"
    manager = entry.load()
    return lambda place: manager(uri=f"{place.url}/default", schema=place.schemas[EXISTING])


def _keeper() -> Callable[[Place], Store]:
    from meltano_ch_state.manager import ClickhouseStateStoreManager

    return lambda place: ClickhouseStateStoreManager(place.url, schema=place.schemas[KEEPER], lock_mode="keeper")


_OPENERS = {PRODUCT: _product, KEEPER: _keeper, BARE: _bare, SYSTEM: _system, FILES: _files, EXISTING: _existing}
