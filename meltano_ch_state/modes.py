"""Which way to lock: by inserts or in Keeper, decided before the first lock and told in one log line."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager

from sqlalchemy import Engine

from meltano_ch_state.errors import SchemaError, SchemaMissingError, ServerError, ServerUnreachableError
from meltano_ch_state.lock import Lock
from meltano_ch_state.locker import BaseLocker, LockOptions
from meltano_ch_state.repositories.faults import KEEPER_COMMAND
from meltano_ch_state.repositories.keeper import KeeperRepository
from meltano_ch_state.repositories.locks import LockRepository
from meltano_ch_state.settings import AUTO, INSERT, KEEPER, Settings

logger = logging.getLogger(__name__)


def locker_for(settings: Settings, engine: Engine, make: Callable[[], None]) -> ModeLocker:
    """What takes locks as the settings say; nothing is sent yet.

    Args:
        settings: Their `lock_mode` and durations.
        engine: An SQLAlchemy engine for ClickHouse.
        make: Makes the lock table in Keeper, where `auto_upgrade` allows that.
    """
    options = LockOptions.of(settings)
    insert = LockRepository(engine, settings.schema, settings.table, options=options)
    keeper = KeeperRepository(engine, settings.schema, settings.table, options=options)
    allowed = make if settings.auto_upgrade else None
    return ModeLocker(settings.lock_mode, insert.locker, keeper.locker, keeper.cells.probe, allowed)


class ModeLocker:
    """Locks in Keeper if that is asked for; with `auto` by inserts where Keeper cannot be used."""

    def __init__(
        self,
        lock_mode: str,
        insert: BaseLocker,
        keeper: BaseLocker,
        probe: Callable[[], None],
        make: Callable[[], None] | None,
    ) -> None:
        """Bind both ways; nothing is sent yet.

        Args:
            lock_mode: One of `settings.LOCK_MODES`.
            insert: Locks by inserts.
            keeper: Locks in Keeper.
            probe: Raises unless the lock table in Keeper can be used.
            make: Makes that table; None when it may not be made.
        """
        self.lock_mode = lock_mode
        self._lockers = {INSERT: insert, KEEPER: keeper}
        self._probe = probe
        self._make = make
        self._mutex = threading.Lock()
        self._used: str | None = INSERT if lock_mode == INSERT else None

    def mode_in_use(self) -> str:
        """`insert` or `keeper`; asks the server when that was not decided yet.

        Raises:
            SchemaMissingError: If it is `keeper`, but the table is missing and may not be made.
            NoKeeperError: If it is `keeper`, but the server has no Keeper, or that has lost the table.
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        with self._mutex:
            if self._used is None:
                self._used = self._decide()
            return self._used

    def held(self, state_id: str) -> Lock | None:
        """The lock that this thread holds on a state ID."""
        return self._lockers[self._used].held(state_id) if self._used else None

    def hold(self, state_id: str, operation: str = "lock", **limits: float | None) -> AbstractContextManager[Lock]:
        """Hold the lock of one state ID for the length of a `with` block; see `BaseLocker.hold`."""
        return self._lockers[self.mode_in_use()].hold(state_id, operation, **limits)

    def hold_each(self, state_ids: Collection[str], operation: str = "lock") -> Generator[Lock, None, None]:
        """Hold the locks of many state IDs, part by part; see `BaseLocker.hold_each`."""
        return self._lockers[self.mode_in_use()].hold_each(state_ids, operation)

    def _decide(self) -> str:
        try:
            self._prepare()
        except (SchemaError, ServerError) as error:
            if self.lock_mode != AUTO or isinstance(error, ServerUnreachableError):
                raise
            logger.info("Locks are kept by inserts (lock_mode auto): %s", error)
            return INSERT
        logger.info("Locks are kept in Keeper (lock_mode %s)", self.lock_mode)
        return KEEPER

    def _prepare(self) -> None:
        try:
            self._probe()
        except SchemaMissingError:
            if self._make is None:
                raise SchemaMissingError("The lock table in Keeper is missing", f"Run: {KEEPER_COMMAND}") from None
            self._make()
            self._probe()
