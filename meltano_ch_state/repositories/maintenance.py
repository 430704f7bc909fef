"""All SQL for the upkeep of the tables: what there is, what is old, and how it goes away."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Engine, Table, bindparam, func, text

from meltano_ch_state.globs import literal_prefix, matcher
from meltano_ch_state.models import LOCK_ROWS_KEPT_DAYS, build
from meltano_ch_state.repositories.base import TableRepository, select_final
from meltano_ch_state.settings import Names


@dataclass(frozen=True, slots=True)
class StateInfo:
    """One state without its contents.

    Attributes:
        updated_at: Its version: microseconds since 1970, UTC.
        size_bytes: The length of both its parts.
    """

    state_id: str
    updated_at: int
    size_bytes: int


class MaintenanceRepository(TableRepository):
    """The tables of one set of names, for an operator."""

    def __init__(self, engine: Engine, names: Names) -> None:
        """Bind the tables; nothing is sent yet."""
        super().__init__(engine, names)
        self._state = self._table.c
        self._lock_table = f"`{names.schema}`.`{names.lock_table}`"
        self._state_table = f"`{names.schema}`.`{names.table}`"
        self._updated = func.toUnixTimestamp64Micro(self._state.updated_at)

    @property
    def _table(self) -> Table:
        return build(self._names).state

    def overview(self, pattern: str | None = None) -> list[StateInfo]:
        """The states that match a glob pattern, sorted by ID."""
        parts = (self._state.partial_state, self._state.completed_state)
        size = sum((func.ifNull(func.length(part), 0) for part in parts[1:]), func.ifNull(func.length(parts[0]), 0))
        statement = select_final(self._state.state_id, self._updated, size).where(self._state.is_deleted == 0)
        if prefix := literal_prefix(pattern):
            statement = statement.where(func.startsWith(self._state.state_id, prefix))
        matches = matcher(pattern)
        rows = self.select(statement.order_by(self._state.state_id))
        return [StateInfo(*row) for row in rows if matches(row[0])]

    def older(self, cutoff: int, *, cleared: bool) -> list[str]:
        """The IDs of states whose newest version is older, sorted.

        Args:
            cutoff: Microseconds since 1970, UTC.
            cleared: Whether to list those that were cleared, instead of those that are there.
        """
        return [row[0] for row in self.select(self._older(cleared), {"cutoff": cutoff})]

    def older_among(self, state_ids: Collection[str], cutoff: int, *, cleared: bool) -> list[str]:
        """Which of these are still so. Their locks must be held, and they must fit into a query's text."""
        statement = self._older(cleared).where(self._state.state_id.in_(_IDS))
        parameters = {"cutoff": cutoff, "ids": list(state_ids)}
        return [row[0] for row in self.point_read(statement, parameters)]

    def erase(self, state_ids: Collection[str], cutoff: int) -> None:
        """Delete all versions of these states that are older than the cutoff, in one mutation.

        Raises:
            PermissionDeniedError: If the user has no ALTER DELETE.
        """
        statement = text(
            f"DELETE FROM {self._state_table} WHERE state_id IN :ids AND toUnixTimestamp64Micro(updated_at) < :cutoff"  # noqa: S608
        )
        self.execute(statement.bindparams(_IDS), {"ids": list(state_ids), "cutoff": cutoff})

    def expired_lock_rows(self) -> int:
        """How many lock rows are there yet though their time to live is over, by the server's clock."""
        statement = text(
            f"SELECT count() FROM {self._lock_table} WHERE locked_at < now64(6) - toIntervalDay({LOCK_ROWS_KEPT_DAYS})"  # noqa: S608
        )
        return int(self.select(statement)[0][0])

    def merge_locks(self) -> None:
        """Merge the lock table now: that takes away what any merge may take, and nothing else.

        Raises:
            PermissionDeniedError: If the user has no OPTIMIZE.
        """
        self.execute(text(f"OPTIMIZE TABLE {self._lock_table} FINAL"), {})

    def _older(self, cleared: bool) -> Any:
        wanted = (self._state.is_deleted == int(cleared), self._updated < bindparam("cutoff"))
        return select_final(self._state.state_id).where(*wanted).order_by(self._state.state_id)


_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
