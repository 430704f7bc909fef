"""The facade for Meltano: a `StateStoreManager` found by the URI schemes `clickhouse` and `chdb`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from meltano.core.state_store.base import MeltanoState, StateStoreManager

from meltano_ch_state.connection import engine_for
from meltano_ch_state.logs import quiet_drivers
from meltano_ch_state.meltano_errors import meltano_errors
from meltano_ch_state.migrate import Schema
from meltano_ch_state.modes import locker_for
from meltano_ch_state.repositories.states import StateRepository
from meltano_ch_state.settings import KEEPER, SETTING_NAMES, Settings, resolve
from meltano_ch_state.store import State, StateStore

logger = logging.getLogger(__name__)

quiet_drivers()


class ClickhouseStateStoreManager(StateStoreManager):
    """Keeps Meltano's state in ClickHouse: on a server (`clickhouse://`) or embedded (`chdb://`).

    Every method raises the errors of `meltano_ch_state.errors`, each of them a `MeltanoError` here. Making a manager
    connects to nothing; the first call that needs the database does.
    """

    label = "ClickHouse"

    def __init__(self, uri: str | None = None, **given: Any) -> None:
        """Resolve the settings.

        Args:
            uri: `state_backend.uri`.
            given: Settings by their names in `meltano_ch_state.settings.Settings`; None where one is not set. Meltano's
                generic `lock_timeout_seconds` is ignored: it cannot be told from its default, and is neither the wait
                for a lock nor its lease.

        Raises:
            ConfigurationError: If the URI or a setting is wrong.
            MissingSettingError: If no host is named.
        """
        super().__init__()
        self._opening = threading.Lock()
        self._store: StateStore | None = None
        self._updating = threading.local()
        known = {name for names in SETTING_NAMES.values() for name in names}
        for name in sorted(set(given) - known - {"lock_timeout_seconds"}):
            logger.warning("The setting %s means nothing to the ClickHouse state backend", name)
        with meltano_errors():
            self.settings: Settings = resolve(uri, **{name: given[name] for name in given if name in known})

    @property
    def store(self) -> StateStore:
        """The states and their locks: the same for all threads, since a lock is known to the store that took it."""
        with self._opening:
            self._store = self._store or self._open()
            return self._store

    def _open(self) -> StateStore:
        settings = self.settings
        engine = engine_for(settings)
        states = StateRepository(engine, settings.schema, settings.table)
        locker = locker_for(settings, engine, self._schema.make_keeper_table)
        return StateStore(states, locker, self._schema, _run_id)

    @property
    def _schema(self) -> Schema:
        return Schema.of(engine_for(self.settings), self.settings)

    def set(self, state: MeltanoState) -> None:
        """Replace a state, under its lock."""
        with meltano_errors():
            self.store.set(state)

    def get(self, state_id: str) -> MeltanoState | None:
        """The current state, its parts always dicts; None when there is none."""
        with meltano_errors():
            state = self.store.get(state_id)
        return None if state is None else _meltano_state(state)

    def update(self, state: MeltanoState) -> None:  # type: ignore[misc] # final: it is Meltano's own that does the work
        """Replace a state, or merge a partial one into it, under its lock, as Meltano does.

        Nobody is told of the write before the lock is released, so the release may tell whether it counts.
        """
        self._updating.now = True
        try:
            super().update(state)
        finally:
            self._updating.now = False

    def delete(self, state_id: str) -> None:
        """Clear a state, under its lock; one that is not there stays so."""
        with meltano_errors():
            self.store.clear(state_id)

    def get_all(self, pattern: str | None = None) -> Iterator[MeltanoState]:
        """The states that match a glob pattern, sorted by ID, in bounded memory."""
        with meltano_errors():
            yield from map(_meltano_state, self.store.stream(pattern))

    def set_all(self, states: Iterable[MeltanoState]) -> int:
        """Replace many states, each under its lock, and count them."""
        with meltano_errors():
            return self.store.set_all(states)

    def clear_all(self) -> int:
        """Clear all states, each under its lock, and count them."""
        with meltano_errors():
            return self.store.clear_all()

    def get_state_ids(self, pattern: str | None = None) -> list[str]:
        """The IDs that match a glob pattern (`*`, `?`, `[seq]`, `[!seq]`, case-sensitive), sorted."""
        with meltano_errors():
            return self.store.ids(pattern)

    def migrate(self) -> None:
        """Create or upgrade the tables; `meltano upgrade` calls it."""
        with meltano_errors():
            self._schema.upgrade()
            self._schema.keep_history()
            if self.settings.lock_mode == KEEPER:
                self._schema.make_keeper_table()

    def close(self) -> None:
        """Let go of the connection; the next call would connect again. Locks that are held stay so."""
        if self._store:
            engine_for(self.settings).dispose()

    @contextmanager
    def acquire_lock(self, state_id: str, *, retry_seconds: float = 1) -> Generator[None]:
        """Hold the lock of a state for the length of a `with` block; `set` and `delete` in it use this lock.

        Args:
            state_id: What to lock.
            retry_seconds: The longest pause between two looks at another holder's lock; the setting
                `lock_retry_seconds` is another upper limit.

        Raises:
            NestedLockError: If this thread holds it already.
            StateLockedError: If another holder kept it for `lock_acquire_timeout_seconds`.
        """
        longest = min(retry_seconds, self.settings.lock_retry_seconds)
        whole = getattr(self._updating, "now", False)
        self._updating.now = False  # it is for the lock of the update, and for none that is taken in it
        with (
            meltano_errors(),
            self.store.lock(state_id, "update", counts_when_released=whole, retry_seconds=longest),
        ):
            yield


def _run_id() -> str:
    """The run's ID, which `meltano run` and `meltano el` give to all that they log."""
    return str(structlog.contextvars.get_contextvars().get("run_id", ""))


def _meltano_state(state: State) -> MeltanoState:
    return MeltanoState(state.state_id, state.partial_state, state.completed_state)
