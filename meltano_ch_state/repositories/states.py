"""All SQL about states."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any

from sqlalchemy import Engine, Row, Table, func, insert

from meltano_ch_state.globs import literal_prefix, matcher
from meltano_ch_state.models import build
from meltano_ch_state.protocol import StateRow
from meltano_ch_state.repositories.base import TableRepository, select_final
from meltano_ch_state.repositories.parts import id_parts
from meltano_ch_state.settings import DEFAULT_SCHEMA, DEFAULT_TABLE, Names

PAGE_ROWS = 100
"""A stream fetches its first page with so many rows; what they weigh decides about the next."""
PAGE_GROWTH = 10
"""A page has at most so many times the rows of the one before: what comes next may be heavier."""
PAGE_BYTES = 16_000_000
"""A stream holds about this many bytes of states at a time."""
_COLUMNS = tuple(field.name for field in fields(StateRow))
_values = attrgetter(*_COLUMNS)
_WHATEVER_BECOMES_OF_THE_HISTORY = {"materialized_views_ignore_errors": 1}
"""A history that cannot be written keeps no state from being written; `doctor` tells of it."""


class StateRepository(TableRepository):
    """The state table of one set of names. Writing needs a version from the state's lock; `StateStore` has both."""

    def __init__(self, engine: Engine, schema: str = DEFAULT_SCHEMA, table: str = DEFAULT_TABLE) -> None:
        """Bind a state table; nothing is sent yet.

        Args:
            engine: An SQLAlchemy engine for ClickHouse.
            schema: The ClickHouse database of the tables.
            table: The state table.
        """
        super().__init__(engine, Names(schema, table))
        columns = self._table.c
        self._rows = select_final(
            columns.state_id,
            columns.partial_state,
            columns.completed_state,
            func.toUnixTimestamp64Micro(columns.updated_at),
        ).where(columns.is_deleted == 0)

    @property
    def _table(self) -> Table:
        return build(self._names).state

    def get(self, state_id: str) -> StateRow | None:
        """The state's newest version; None when there is none, or it was cleared."""
        found = self.point_read(self._rows.where(self._table.c.state_id == state_id))
        return _row(found[0]) if found else None

    def ids(self, pattern: str | None = None) -> list[str]:
        """The IDs of all states that match a glob pattern, sorted."""
        column = self._table.c.state_id
        statement = select_final(column).where(self._table.c.is_deleted == 0).order_by(column)
        matches = matcher(pattern)
        return [row[0] for row in self.select(self._narrowed(statement, pattern)) if matches(row[0])]

    def stream(self, pattern: str | None = None, after: str | None = None) -> Iterator[StateRow]:
        """The states that match a glob pattern and come after an ID, sorted by ID, page by page in bounded memory.

        A page is a statement of its own: the caller may take any time between two states, and write meanwhile.
        """
        column, matches = self._table.c.state_id, matcher(pattern)
        statement = self._narrowed(self._rows, pattern).order_by(column)
        limit = PAGE_ROWS
        page = self._page(statement if after is None else statement.where(column > after), limit)
        while page:
            yield from (row for row in page if matches(row.state_id))
            if len(page) < limit:
                return
            limit = next_limit(page)
            page = self._page(statement.where(column > page[-1].state_id), limit)

    def keep(self, state_ids: Collection[str]) -> None:
        """Insert the newest versions of states once more, as they are: the history keeps them from now on.

        In the state table that changes nothing, whatever else is written meanwhile: they are the same versions.
        """
        columns = self._table.c
        for part in id_parts(state_ids):
            newest = select_final(*columns).where(columns.state_id.in_(part))
            self.copy(insert(self._table).from_select(columns.keys(), newest), _WHATEVER_BECOMES_OF_THE_HISTORY)

    def insert_versions(self, rows: Iterable[StateRow]) -> None:
        """Insert versions, all in one statement."""
        # not by `asdict`, which copies each value deeply: 0.1 s for 10,000
        versions = [
            dict(zip(_COLUMNS, _values(row), strict=True)) | {"is_deleted": int(row.is_deleted)} for row in rows
        ]
        self.write(versions, _WHATEVER_BECOMES_OF_THE_HISTORY)

    def _page(self, statement: Any, limit: int) -> list[StateRow]:
        return [_row(row) for row in self.select(statement.limit(limit))]

    def _narrowed(self, statement: Any, pattern: str | None) -> Any:
        """With the pattern's literal beginning as a condition that the primary key answers."""
        prefix = literal_prefix(pattern)
        return statement.where(func.startsWith(self._table.c.state_id, prefix)) if prefix else statement


def _row(row: Row[Any]) -> StateRow:
    return StateRow(row[0], row[1], row[2], row[3])


def next_limit(page: Collection[StateRow]) -> int:
    """How many rows the next page may have, after what this one weighs."""
    weight = sum(len(row.partial_state or "") + len(row.completed_state or "") + 1 for row in page)
    return max(1, min(PAGE_BYTES * len(page) // weight, PAGE_GROWTH * len(page)))
