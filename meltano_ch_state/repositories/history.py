"""All SQL about the old versions of states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, Row, Table, func, text

from meltano_ch_state.models import build
from meltano_ch_state.protocol import StateRow
from meltano_ch_state.repositories.base import TableRepository, select_final
from meltano_ch_state.repositories.states import PAGE_ROWS, next_limit
from meltano_ch_state.settings import Names


class HistoryRepository(TableRepository):
    """The history of one set of names: every version, for as long as it is kept. A materialized view writes it."""

    def __init__(self, engine: Engine, names: Names) -> None:
        """Bind the table; nothing is sent yet."""
        super().__init__(engine, names)
        columns = self._table.c
        self._updated = func.toUnixTimestamp64Micro(columns.updated_at)
        self._rows = select_final(
            columns.state_id,
            columns.partial_state,
            columns.completed_state,
            self._updated,
            columns.is_deleted,
            columns.holder,
            columns.operation,
            columns.run_id,
        )
        self._name = f"`{names.schema}`.`{names.history_table}`"
        newest = f"SELECT state_id, max(updated_at) FROM {self._name} GROUP BY state_id"  # noqa: S608
        self._older = f"toUnixTimestamp64Micro(written_at) < :cutoff AND (state_id, updated_at) NOT IN ({newest})"

    @property
    def _table(self) -> Table:
        return build(self._names).state_history

    def versions(self, state_id: str, before: int | None = None) -> Iterator[StateRow]:
        """The versions of a state, the newest first, page by page in bounded memory.

        Args:
            state_id: Which state.
            before: Only the versions that are older than this one, in microseconds.
        """
        statement = self._rows.where(self._table.c.state_id == state_id).order_by(self._updated.desc())
        limit, oldest = PAGE_ROWS, before
        while True:
            older = statement if oldest is None else statement.where(self._updated < oldest)
            page = [_version(row) for row in self.point_read(older.limit(limit))]
            yield from page
            if len(page) < limit:
                return
            limit, oldest = next_limit(page), page[-1].updated_at

    def version(self, state_id: str, version: int) -> StateRow | None:
        """One version of a state, if it is kept."""
        wanted = (self._table.c.state_id == state_id, self._updated == version)
        found = self.point_read(self._rows.where(*wanted))
        return _version(found[0]) if found else None

    def count_older(self, cutoff: int) -> int:
        """How many versions were written before, in microseconds since 1970, UTC; without the newest of each state."""
        statement = f"SELECT count() FROM {self._name} FINAL WHERE {self._older}"  # noqa: S608
        return int(self.select(text(statement), {"cutoff": cutoff})[0][0])

    def erase_older(self, cutoff: int) -> None:
        """Delete the versions that were written before, in one mutation. The newest of each state stays.

        Raises:
            PermissionDeniedError: If the user has no ALTER DELETE.
        """
        statement = f"DELETE FROM {self._name} WHERE {self._older}"  # noqa: S608
        self.execute(text(statement), {"cutoff": cutoff}, _EACH_REPLICA_LOOKS_ITSELF)


_EACH_REPLICA_LOOKS_ITSELF = {"allow_nondeterministic_mutations": 1}
"""Replicated tables refuse a mutation with a subquery else. One that lags behind only sees fewer versions as replaced,
and then takes the others' part."""


def _version(row: Row[Any]) -> StateRow:
    state_id, partial, completed, updated_at, is_deleted, *writer = row
    return StateRow(state_id, partial, completed, updated_at, bool(is_deleted), *writer)
