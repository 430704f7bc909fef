"""The locks in Keeper: its rows, with the ordinary lock rows and the state beside them."""

from __future__ import annotations

from sqlalchemy import Engine

from meltano_ch_state.errors import ConfigurationError
from meltano_ch_state.keeper import KeeperLocker
from meltano_ch_state.locker import LockOptions
from meltano_ch_state.repositories.base import sends_settings
from meltano_ch_state.repositories.locks import LockRepository, Rows
from meltano_ch_state.settings import DEFAULT_SCHEMA, DEFAULT_TABLE
from meltano_ch_state.waiting import Clock


class KeeperRepository(LockRepository):
    """Gives out locks that are kept in Keeper.

    Example:
        >>> with KeeperRepository(engine).acquire("job:nightly"):
        ...     work()
    """

    def __init__(
        self,
        engine: Engine,
        schema: str = DEFAULT_SCHEMA,
        table: str = DEFAULT_TABLE,
        *,
        options: LockOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Bind the lock tables; nothing is sent yet. See `LockRepository`.

        Raises:
            ConfigurationError: If the engine's driver sends no settings: without Keeper's strict mode a change would
                not be compare-and-set, and nobody would be kept out.
        """
        if not sends_settings(engine):
            raise ConfigurationError(
                "Locks in Keeper need a driver that sends settings, which clickhouse+http does not",
                "Use clickhouse+connect or clickhouse+native",
            )
        super().__init__(engine, schema, table, options=options, clock=clock)
        self.locker = KeeperLocker(_KeeperRows(self), options, clock)


class _KeeperRows(Rows):
    """A `KeeperRepository` as the `KeeperStore` of its locker."""

    def __init__(self, repository: KeeperRepository) -> None:
        super().__init__(repository)
        cells = repository.cells
        self.create, self.touch = cells.create, cells.touch
        self.take, self.retake, self.take_over = cells.take, cells.retake, cells.take_over
        self.release, self.release_own, self.cancel = cells.release, cells.release_own, cells.cancel
        self.look, self.sequences = repository.look, repository.sequences
