"""What every repository shares: statements over an engine, with what the tables' engine needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

from clickhouse_sqlalchemy.sql.selectable import Select
from sqlalchemy import Engine, Executable, Row, Table, insert, text

from meltano_ch_state.consistency import Consistency, consistency_of
from meltano_ch_state.repositories.faults import server_errors
from meltano_ch_state.retry import retried
from meltano_ch_state.settings import Names

_ONE_ROW_SETTINGS = {"input_format_parallel_parsing": 0, "max_threads": 1}
"""Threads cost one row more than they save: 3.2 ms with them, 2.7 ms without, on two cores."""


class FinalSelect(Select):  # type: ignore[misc]
    """A SELECT that always has FINAL. (A `Select` of clickhouse-sqlalchemy is not cached: it may have it or not.)."""

    inherit_cache = True
    _final_clause = True


def select_final(*columns: Any) -> Any:
    """SELECT ... FROM ... FINAL over Core columns; with ORM entities FINAL would be dropped silently."""
    return FinalSelect(*columns)


class Repository:
    """Statements over one engine. The engine may be any of `clickhouse+connect`, `+http`, `+native`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def select(
        self,
        statement: Executable,
        parameters: Mapping[str, object] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Sequence[Row[Any]]:
        """Run a query and fetch all of its rows; a user with readonly=1 may send no settings.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        return retried(self.engine, lambda: self._fetch(statement, parameters or {}, self._options(settings)))

    def insert(
        self, table: Table, rows: Iterable[Mapping[str, object]], settings: Mapping[str, object] | None = None
    ) -> None:
        """Insert rows as data, all in one statement that is done when this returns.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        values = list(rows)
        few = _ONE_ROW_SETTINGS if len(values) == 1 else {}
        options = self._options({**_write_settings(), **few, **(settings or {})})
        retried(self.engine, lambda: self._send(insert(table), values, options))

    def execute(
        self, statement: Executable, parameters: Mapping[str, object], settings: Mapping[str, object] | None = None
    ) -> None:
        """Run a statement that gives no rows.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        retried(self.engine, lambda: self._send(statement, parameters, self._options(settings)))

    def _fetch(self, statement: Executable, parameters: Mapping[str, object], options: Any) -> Sequence[Row[Any]]:
        with server_errors(self.engine), self.engine.connect() as connection:
            return connection.execute(statement, parameters, execution_options=options).all()

    def _send(
        self, statement: Executable, rows: Sequence[Mapping[str, object]] | Mapping[str, object], options: Any
    ) -> None:
        with server_errors(self.engine), self.engine.connect() as connection:
            connection.execute(statement, rows, execution_options=options)

    def _options(self, settings: Mapping[str, object] | None) -> dict[str, Any]:
        return {"settings": settings} if settings and sends_settings(self.engine) else {}


class TableRepository(Repository, ABC):
    """One of our tables, written and read with what its engine needs to be consistent."""

    def __init__(self, engine: Engine, names: Names) -> None:
        super().__init__(engine)
        self._names = names

    @property
    @abstractmethod
    def _table(self) -> Table:
        """The table; its model is built when it is first used."""

    @property
    def consistency(self) -> Consistency:
        """What the tables' engine needs. The server is asked once there is a table, and then never again."""
        known = _consistencies.setdefault(self.engine, {})
        if self._names not in known:
            found = self.select(_ENGINE, {"schema": self._names.schema, "table": self._names.table})
            if not found:
                return consistency_of("")
            remember_engine_of_tables(self.engine, self._names, *found[0])
        return known[self._names]

    def point_read(
        self,
        statement: Executable,
        parameters: Mapping[str, object] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> Sequence[Row[Any]]:
        """Read locks, or one state: what was written before is seen.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        return self.select(statement, parameters, {**self.consistency.reads, **(settings or {})})

    def write(self, rows: Iterable[Mapping[str, object]], settings: Mapping[str, object] | None = None) -> None:
        """Insert rows that every later point read sees.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        self.insert(self._table, rows, {**self.consistency.writes, **(settings or {})})

    def copy(self, statement: Executable, settings: Mapping[str, object] | None = None) -> None:
        """Run an INSERT ... SELECT that sees what was written before, and that every later point read sees.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        needed = {**self.consistency.reads, **self.consistency.writes}
        self.execute(statement, {}, {**_write_settings(), **needed, **(settings or {})})


_consistencies: WeakKeyDictionary[Engine, dict[Names, Consistency]] = WeakKeyDictionary()
"""Both tables of a set of names have one kind of engine: migrations make them together."""
_ENGINE = text("SELECT engine, getSetting('readonly') FROM system.tables WHERE database = :schema AND name = :table")


def remember_engine_of_tables(engine: Engine, names: Names, table_engine: str, readonly: int) -> None:
    """Derive what the tables need from the name of their engine, and from the user's setting `readonly`."""
    consistency = consistency_of(table_engine, may_set=int(readonly) != 1 and sends_settings(engine))
    _consistencies.setdefault(engine, {})[names] = consistency


def sends_settings(engine: Engine) -> bool:
    """Whether the driver can: `http` of clickhouse-sqlalchemy puts settings behind VALUES (Code 27)."""
    return engine.driver != "http"


def forget_engines_of_tables(engine: Engine) -> None:
    """Ask anew what the tables need: they may have been made anew."""
    _consistencies.pop(engine, None)


def _write_settings() -> dict[str, object]:
    """What every insert sends along.

    A buffered insert is not there yet when its answer comes; the buffer is on by default since ClickHouse 26.3. And
    Replicated tables swallow a block identical to an earlier one unless it has a token of its own; `insert_deduplicate`
    is overruled by the default of `deduplicate_insert` since 26, which earlier versions do not know.

    clickhouse-connect has times read by `best_effort`, which on ClickHouse 24.8 refuses a decimal with microseconds;
    what `models.Timestamp` gives is read by `basic` on every version that was tried.
    """
    return {"async_insert": 0, "insert_deduplication_token": uuid4().hex, "date_time_input_format": "basic"}
