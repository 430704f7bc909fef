"""The tables as SQLAlchemy models, with ReplacingMergeTree engines.

`State` and `StateLock` have the default names; `build` gives models with other names, each set on a registry and a
metadata of its own, so that several may live in one process.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

from clickhouse_sqlalchemy import engines, types
from sqlalchemy import Column, Dialect, MetaData, Table, TypeDecorator, func, text
from sqlalchemy.orm import DeclarativeBase, Mapped, declared_attr, mapped_column

from meltano_ch_state.settings import HISTORY_DAYS, Names

MICROSECONDS = 6
"""The precision of every time: DateTime64(6)."""
INDEX_GRANULARITY = 256
"""Rows that a point read reads at least. Among 200,000 states of 1 KB it takes 5 ms; with ClickHouse's 8192, 16 ms."""
LOCK_ROWS_KEPT_DAYS = 7
"""Lock rows older than this many days are swept by merges; it is never what ends a lock."""


class Timestamp(TypeDecorator[int]):
    """A DateTime64(6) that is given as an integer: microseconds since 1970, UTC.

    Drivers cut datetimes to milliseconds or seconds. Native data takes the integer. In text and JSON some versions read
    it as seconds (chdb 26.9), some as it is (26.7); a decimal of ten digits and six means the same to all.
    """

    impl = types.DateTime64(MICROSECONDS)
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:
        """The value as the driver passes it on unharmed."""
        if value is None or dialect.driver == "native":
            return value
        return "{:010d}.{:06d}".format(*divmod(value, 1_000_000))


def _timestamp(**options: Any) -> Mapped[int]:
    return mapped_column(Timestamp, nullable=False, **options)


def _server_time() -> Mapped[int]:
    return _timestamp(server_default=func.now64(MICROSECONDS))


def _string(**options: Any) -> Mapped[str]:
    return mapped_column(types.String, nullable=False, **options)


class StateColumns:
    """One version of one state; the newest `updated_at` of a state_id counts.

    `updated_at` is the token of the lock under which the row was written, plus a microsecond for each earlier write
    under it: it reads as a time but never steps back and never ties (docs/decisions/0002).
    """

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:  # noqa: N805 - SQLAlchemy's convention
        """The engine."""
        return (
            engines.ReplacingMergeTree(
                version="updated_at", order_by=("state_id",), index_granularity=INDEX_GRANULARITY
            ),
        )

    state_id: Mapped[str] = _string(primary_key=True)
    partial_state: Mapped[str | None] = mapped_column(types.Nullable(types.String), nullable=True)
    completed_state: Mapped[str | None] = mapped_column(types.Nullable(types.String), nullable=True)
    updated_at: Mapped[int] = _server_time()
    is_deleted: Mapped[int] = mapped_column(types.UInt8, nullable=False, server_default=text("0"))
    holder: Mapped[str] = _string()
    operation: Mapped[str] = _string()
    run_id: Mapped[str] = _string()


class StateHistoryColumns:
    """One version of one state, for so many days; a materialized view puts it here (docs/decisions/0007).

    A version that lands twice is the same row, and stays once.
    """

    history_days = HISTORY_DAYS

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:  # noqa: N805 - SQLAlchemy's convention
        """The engine."""
        return (
            engines.ReplacingMergeTree(
                version="written_at",
                order_by=("state_id", "updated_at"),
                ttl=text(f"toDateTime(written_at) + toIntervalDay({cls.history_days})"),
                index_granularity=INDEX_GRANULARITY,
            ),
        )

    state_id: Mapped[str] = _string(primary_key=True)
    partial_state: Mapped[str | None] = mapped_column(types.Nullable(types.String), nullable=True)
    completed_state: Mapped[str | None] = mapped_column(types.Nullable(types.String), nullable=True)
    updated_at: Mapped[int] = _timestamp(primary_key=True)
    is_deleted: Mapped[int] = mapped_column(types.UInt8, nullable=False)
    holder: Mapped[str] = _string()
    operation: Mapped[str] = _string()
    run_id: Mapped[str] = _string()
    written_at: Mapped[int] = _server_time()


class StateLockColumns:
    """One row about one lock_id: live (`released` 0) or a tombstone (1), which ends that lock_id for ever.

    A live row is a contender's or holder's, or (`waiting` 1) the place of somebody in the queue, which locks nothing.

    The token is part of the key, so that no later row, and no late duplicate of an earlier one, hides the greatest
    token that a lock_id published (docs/decisions/0001).
    """

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:  # noqa: N805 - SQLAlchemy's convention
        """The engine."""
        return (
            engines.ReplacingMergeTree(
                version="locked_at",
                order_by=("state_id", "lock_id", "released", "token"),
                ttl=text(f"toDateTime(locked_at) + toIntervalDay({LOCK_ROWS_KEPT_DAYS})"),
                index_granularity=INDEX_GRANULARITY,
            ),
        )

    state_id: Mapped[str] = _string(primary_key=True)
    lock_id: Mapped[str] = _string(primary_key=True)
    released: Mapped[int] = mapped_column(types.UInt8, nullable=False, primary_key=True)
    token: Mapped[int] = _timestamp(primary_key=True, server_default=func.now64(MICROSECONDS))
    born: Mapped[int] = _server_time()
    locked_at: Mapped[int] = _server_time()
    waiting: Mapped[int] = mapped_column(types.UInt8, nullable=False, server_default=text("0"))
    lease_seconds: Mapped[float] = mapped_column(types.Float64, nullable=False)
    sequence: Mapped[int] = mapped_column(types.UInt32, nullable=False)
    holder: Mapped[str] = _string()
    process: Mapped[str] = _string()
    operation: Mapped[str] = _string()
    version: Mapped[str] = _string()


class Models:
    """The models of one set of names. A table is built when it is first asked for: a reader needs one of three.

    Whoever asks for a model or for the metadata gets them with all three.

    Attributes:
        names: The tables' names.
    """

    def __init__(self, names: Names, history_days: int) -> None:
        """Name the tables; see `build`."""
        self.names = names
        self._history_days = history_days
        self._metadata = MetaData(schema=names.schema)
        self._base = type("Base", (DeclarativeBase,), {"metadata": self._metadata})
        self._built: dict[str, type[Any]] = {}
        self._building = threading.Lock()

    @property
    def State(self) -> type[Any]:  # noqa: N802 - a class
        """The model of the state table."""
        return self._all()[0]

    @property
    def StateLock(self) -> type[Any]:  # noqa: N802
        """The model of the lock table."""
        return self._all()[1]

    @property
    def StateHistory(self) -> type[Any]:  # noqa: N802
        """The model of the table of old versions."""
        return self._all()[2]

    @property
    def metadata(self) -> MetaData:
        """What Alembic compares and `create_all` makes: all three tables."""
        self._all()
        return self._metadata

    @property
    def state(self) -> Table:
        """The state table, for Core statements."""
        return self._state().__table__  # type: ignore[no-any-return]

    @property
    def state_lock(self) -> Table:
        """The lock table, for Core statements."""
        return self._lock().__table__  # type: ignore[no-any-return]

    @property
    def state_history(self) -> Table:
        """The table of old versions, for Core statements."""
        return self._history().__table__  # type: ignore[no-any-return]

    @property
    def keeper_lock(self) -> Table:
        """The lock table in Keeper, for Core statements. It is no part of the metadata: most servers have none."""
        return _keeper_lock(self.names)

    def _all(self) -> tuple[type[Any], type[Any], type[Any]]:
        return self._state(), self._lock(), self._history()

    def _state(self) -> type[Any]:
        return self._model("State", StateColumns, __tablename__=self.names.table)

    def _lock(self) -> type[Any]:
        return self._model("StateLock", StateLockColumns, __tablename__=self.names.lock_table)

    def _history(self) -> type[Any]:
        kept = {"__tablename__": self.names.history_table, "history_days": self._history_days}
        return self._model("StateHistory", StateHistoryColumns, **kept)

    def _model(self, name: str, columns: type[Any], **attributes: object) -> type[Any]:
        with self._building:
            if name not in self._built:
                self._built[name] = type(name, (columns, self._base), attributes)
            return self._built[name]


@cache
def build(names: Names, history_days: int = HISTORY_DAYS) -> Models:
    """The models whose tables have these names; the same names give the same models.

    Args:
        names: The tables' names.
        history_days: How long the history keeps a version; it matters to DDL and its comparison only.
    """
    return Models(names, history_days)


@cache
def _keeper_lock(names: Names) -> Table:
    """One row per state ID, with the columns of the lock table but for the queue, which it has not, and the birth.

    `depositions` counts the holders that were deposed.
    """
    columns = (column for column in build(names).state_lock.columns if column.name not in {"waiting", "born"})
    return Table(
        names.keeper_table,
        MetaData(schema=names.schema),
        *(Column(column.name, column.type, nullable=False) for column in columns),
        Column("depositions", types.UInt32, nullable=False),
    )


DEFAULT = build(Names())
State = DEFAULT.State
StateLock = DEFAULT.StateLock
StateHistory = DEFAULT.StateHistory
metadata = DEFAULT.metadata
