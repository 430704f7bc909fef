"""All SQL about locks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnClause,
    Engine,
    Row,
    Table,
    bindparam,
    func,
    literal_column,
    select,
    text,
    union_all,
)

from meltano_ch_state.errors import NoKeeperError, NoSuchLockError, PermissionDeniedError, SchemaMissingError
from meltano_ch_state.keeper import Cell, KeeperView
from meltano_ch_state.lock import Lock
from meltano_ch_state.locker import BaseLocker, Locker, LockOptions
from meltano_ch_state.models import MICROSECONDS, build
from meltano_ch_state.process import Identity
from meltano_ch_state.protocol import LiveLock, LockRow, StateRow, View, make_view, tombstone_of
from meltano_ch_state.repositories.base import TableRepository, select_final
from meltano_ch_state.repositories.cells import LIVE_CELL, CellRepository, cell_rows, make_cell, text_parts, values_of
from meltano_ch_state.repositories.parts import id_parts
from meltano_ch_state.settings import DEFAULT_SCHEMA, DEFAULT_TABLE, Names
from meltano_ch_state.waiting import Clock

STATE_CHARACTERS = 65_536
"""A state whose parts have up to so many characters each comes along with the read that gives its lock: a partial
update needs it, and to bring it costs less than another request."""
_POINT_READ = {"max_threads": 1}
"""Threads cost a point read more than they save: 8.9 ms with them, 6.9 ms without, on two cores."""


class LockRepository(TableRepository):
    """The lock table of one set of names, and the locks that it gives out.

    Example:
        >>> with LockRepository(engine).acquire("job:nightly"):
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
        """Bind a lock table; nothing is sent yet.

        Args:
            engine: An SQLAlchemy engine for ClickHouse.
            schema: The ClickHouse database of the tables.
            table: The state table; the lock table is named after it.
            options: The lock's durations.
            clock: Time and chance, for tests.
        """
        names = Names(schema, table)
        super().__init__(engine, names)
        self.cells = CellRepository(engine, names)
        self.locker: BaseLocker = Locker(Rows(self), options, clock)

    @property
    def _table(self) -> Table:
        return build(self._names).state_lock

    def acquire(self, state_id: str, operation: str = "lock", **limits: float | None) -> AbstractContextManager[Lock]:
        """Hold a lock for the length of a `with` block; see `Locker.hold`.

        Raises:
            NestedLockError: If this thread holds it already.
            StateLockedError: If another holder kept it until the timeout.
        """
        return self.locker.hold(state_id, operation, **limits)

    def insert_rows(self, rows: Collection[LockRow]) -> None:
        """Insert lock rows. What is None (token, born) the server draws; `locked_at` always."""
        drawn = [row for row in rows if row.born is None]
        known = [row for row in rows if row.born is not None]
        for part in (drawn, known):
            if part:
                self.write([_values(row) for row in part])

    def read_views(self, state_ids: Collection[str]) -> dict[str, View]:
        """The live locks and the greatest token of each state ID; of a single one also its state."""
        return _make_views(state_ids, self._view_rows(list(id_parts(state_ids))))

    def look(self, state_ids: Collection[str]) -> dict[str, KeeperView]:
        """The same, and the rows in Keeper."""
        rows = self._view_rows(list(text_parts(state_ids)), in_keeper=True)
        cells = {row[0]: make_cell(*row) for row in rows if row[2] >= LIVE_CELL}
        views = _make_views(state_ids, rows)
        return {state_id: KeeperView(cells.get(state_id), view) for state_id, view in views.items()}

    def _view_rows(self, parts: Sequence[list[str]], in_keeper: bool = False) -> list[Row[Any]]:
        one = len(parts) == len(parts[0]) == 1
        statement = _views_statement(self._names, one, in_keeper)
        return [row for part in parts for row in self.point_read(statement, _ids(part, one), _POINT_READ)]

    def sequences(self, lock_id: str, guards: Mapping[str, str]) -> dict[str, int]:
        """The sequence in Keeper of each state ID that a lock_id holds and whose guard is alive.

        Args:
            lock_id: Who may hold them.
            guards: The lock_id of the guard of each state ID.
        """
        found: dict[str, int] = {}
        for part in text_parts(guards, len(set(guards.values()))):
            parameters = {"ids": part, "lock_ids": sorted({guards[i] for i in part}), "holder": lock_id}
            rows = self.point_read(_held_statement(self._names), parameters, _POINT_READ)
            ended = {(row[0], row[1]) for row in rows if row[2] == 1}
            alive = {row[0] for row in rows if row[2] == 0 and row[1] == guards[row[0]]}
            found |= {
                row[0]: row[3]
                for row in rows
                if row[2] == LIVE_CELL and row[0] in alive and (row[0], guards[row[0]]) not in ended
            }
        return found

    def read_alive(self, state_ids: Collection[str], lock_ids: Collection[str]) -> set[tuple[str, str]]:
        """Those (state_id, lock_id) that have a row and no tombstone."""
        found: dict[tuple[str, str], bool] = {}
        for part in id_parts(state_ids):
            one = len(part) == 1
            parameters = {**_ids(part, one), "lock_ids": list(lock_ids)}
            for *key, released in self.point_read(_own_statement(self._names, one), parameters, _POINT_READ):
                found[key[0], key[1]] = found.get((key[0], key[1]), True) and not released
        return {key for key, alive in found.items() if alive}

    def live(self) -> list[LiveLock]:
        """The locks of contenders and holders of all state IDs, without the places in queues, and without guards."""
        rows = [_live_lock(*row) for row in self.select(_live_statement(self._names))]
        held = [cell.lock for cell in self._cells_there().values() if not cell.released]
        return sorted((lock for lock in (*rows, *held) if not lock.is_guard), key=lambda lock: lock.state_id)

    def find(self, state_id: str, lock_id: str) -> LiveLock:
        """Somebody's lock.

        Raises:
            NoSuchLockError: If there is no live lock with that lock_id.
        """
        return self._find(state_id, lock_id)[0]

    def revoke(self, state_id: str, lock_id: str, by: Identity) -> LiveLock:
        """End somebody's lock; its holder is told at its next write.

        Raises:
            NoSuchLockError: If there is no live lock with that lock_id.
        """
        lock, in_keeper = self._find(state_id, lock_id)
        if in_keeper:
            self.cells.depose(lock_id, state_id)
        else:
            self.insert_rows([tombstone_of(lock, by)])
        return lock

    def _find(self, state_id: str, lock_id: str) -> tuple[LiveLock, bool]:
        """A lock, and whether it is one in Keeper."""
        lock = self.read_views([state_id])[state_id].own(lock_id)
        if lock and not lock.is_guard:
            return lock, False
        cell = self._cells_there([state_id]).get(state_id)
        if cell and cell.lock.lock_id == lock_id and not cell.released:
            return cell.lock, True
        raise NoSuchLockError(
            f"State {state_id!r} has no live lock with lock_id {lock_id!r}", "See: meltano-ch-state locks"
        )

    def _cells_there(self, state_ids: Collection[str] | None = None) -> dict[str, Cell]:
        """The rows in Keeper; none where there is no such table, or the user may not know."""
        try:
            return self.cells.cells(state_ids)
        except (SchemaMissingError, PermissionDeniedError, NoKeeperError):
            return {}

    def now(self) -> int:
        """The server's time, in microseconds."""
        return int(self.select(select(_NOW))[0][0])

    def settle_seconds(self) -> float:
        """0 where an answered insert is seen by every later read, else `LOCK_SETTLE_SECONDS`."""
        return self.consistency.settle_seconds


class Rows:
    """A `LockRepository` as the `LockStore` of its locker."""

    def __init__(self, repository: LockRepository) -> None:
        self._repository = repository

    def insert(self, rows: Collection[LockRow]) -> None:
        """As in `LockStore`."""
        self._repository.insert_rows(rows)

    def read(self, state_ids: Collection[str]) -> Mapping[str, View]:
        """As in `LockStore`."""
        return self._repository.read_views(state_ids)

    def alive(self, state_ids: Collection[str], lock_ids: Collection[str]) -> Collection[tuple[str, str]]:
        """As in `LockStore`."""
        return self._repository.read_alive(state_ids, lock_ids)

    def now(self) -> int:
        """As in `LockStore`."""
        return self._repository.now()

    def settle_seconds(self) -> float:
        """As in `LockStore`."""
        return self._repository.settle_seconds()


_NOW = func.toUnixTimestamp64Micro(func.now64(MICROSECONDS))


def _micros(column: Any) -> Any:
    return func.toUnixTimestamp64Micro(column)


def _lock_ids(lock: Any) -> Any:
    """Each lock_id as a row. One with a single tombstone is over, whatever rows it has beside it."""
    return select_final(
        lock.state_id,
        lock.lock_id,
        func.max(lock.released).label("over"),
        func.max(_micros(lock.token)).label("token_us"),
        func.min(_micros(lock.born)).label("born_us"),
        func.max(_micros(lock.locked_at)).label("locked_us"),
        *(func.any(lock[name]).label(f"any_{name}") for name in _DETAILS),
        _NOW.label("now"),
    ).group_by(lock.state_id, lock.lock_id)


@cache
def _live_statement(names: Names) -> Any:
    lock = build(names).state_lock.c
    ours = func.max(lock.released) == 0
    return _lock_ids(lock).having(ours, func.any(lock.waiting) == 0).order_by(lock.state_id)


@cache
def _views_statement(names: Names, one: bool, in_keeper: bool = False) -> Any:
    """Each live lock as a row, and of those that are over the one with the greatest token, for each state ID.

    What is over keeps its tokens visible. The state's own version counts, too: it is the floor for tokens once old lock
    rows are swept. Its row comes second, so that it is not older than those of the locks.
    """
    models = build(names)
    lock = models.state_lock.c
    locks = (
        _lock_ids(lock)
        .where(_chosen(lock, one))
        .order_by(text("token_us DESC"))
        .limit_by([lock.state_id, func.if_(literal_column("over"), _EMPTY, lock.lock_id)], 1)
    )
    states = _state_rows(models.state.c, one).where(_chosen(models.state.c, one))
    cell = models.keeper_lock.c
    cells = [cell_rows(cell).where(_chosen(cell, one))] if in_keeper else []
    return union_all(locks, states, *cells)


def _state_rows(state: Any, with_contents: bool) -> Any:
    """The states as rows in the shape of lock rows: further columns would cost 1 ms.

    Their details are: is_deleted, whether the contents come along, the beginnings of partial_state, completed_state.
    """
    parts = (func.substringUTF8(part, 1, STATE_CHARACTERS + 1) for part in (state.partial_state, state.completed_state))
    values = (state.is_deleted, literal_column(str(int(with_contents))), *(parts if with_contents else _NO_PARTS))
    return select_final(
        state.state_id,
        _EMPTY.label("lock_id"),
        literal_column("1").label("over"),
        _micros(state.updated_at).label("token_us"),
        literal_column("0").label("born_us"),
        literal_column("0").label("locked_us"),
        *(value.label(name) for name, value in zip(_DETAILS, (*values, _EMPTY, _EMPTY), strict=True)),
        _NOW.label("now"),
    )


def _chosen(columns: Any, one: bool) -> Any:
    """The condition that chooses one state ID, or many: equality costs the server less."""
    return columns.state_id == bindparam("id") if one else columns.state_id.in_(_IDS)


def _ids(state_ids: list[str], one: bool) -> dict[str, object]:
    """The parameter of that condition."""
    return {"id": state_ids[0]} if one else {"ids": state_ids}


@cache
def _own_statement(names: Names, one: bool) -> Any:
    lock = build(names).state_lock.c
    lock_ids: BindParameter[Any] = bindparam("lock_ids", expanding=True)
    return select_final(lock.state_id, lock.lock_id, lock.released).where(
        _chosen(lock, one), lock.lock_id.in_(lock_ids)
    )


@cache
def _held_statement(names: Names) -> Any:
    """The rows of guards, and what a lock_id holds in Keeper."""
    lock, cell = build(names).state_lock.c, build(names).keeper_lock.c
    lock_ids: BindParameter[Any] = bindparam("lock_ids", expanding=True)
    guards = select_final(lock.state_id, lock.lock_id, lock.released, literal_column("0").label("sequence")).where(
        lock.state_id.in_(_IDS), lock.lock_id.in_(lock_ids)
    )
    held = select(
        cell.state_id, cell.lock_id, literal_column(str(LIVE_CELL)).label("released"), cell.sequence.label("sequence")
    ).where(cell.state_id.in_(_IDS), cell.lock_id == bindparam("holder"), cell.released == 0)
    return union_all(guards, held)


_EMPTY: ColumnClause[Any] = literal_column("''")
_NO_PARTS = (_EMPTY, _EMPTY)
_IDS: BindParameter[Any] = bindparam("ids", expanding=True)
_DETAILS = ("waiting", "lease_seconds", "holder", "process", "operation", "version")


def _make_views(state_ids: Collection[str], rows: Sequence[Row[Any]]) -> dict[str, View]:
    """The views that some rows make; those in Keeper tell the time only.

    Each state ID has the time of the query that read it: between two there may be a pause, and who was alive at the
    first must not be taken for silent since.
    """
    live: dict[str, list[LiveLock]] = {state_id: [] for state_id in state_ids}
    states: dict[str, StateRow] = {}
    floors, versions, times = (dict.fromkeys(state_ids, 0) for _ in range(3))
    for row in rows:
        state_id, over, token = row[0], row[2], row[3]
        times[state_id] = max(times[state_id], row[-1])
        if over >= LIVE_CELL:
            continue
        if not over:
            live[state_id].append(_live_lock(*row))
            continue
        floors[state_id] = max(floors[state_id], token)
        if row[1]:  # of a lock; a state's row has no lock_id
            continue
        versions[state_id] = token
        is_deleted, came_along, partial, completed = row[6:10]
        whole = max(len(partial or ""), len(completed or "")) <= STATE_CHARACTERS
        if came_along and whole:
            states[state_id] = StateRow(state_id, partial, completed, token, bool(is_deleted))
    return {i: make_view(live[i], floors[i], times[i], states.get(i), versions[i]) for i in state_ids}


def _live_lock(  # noqa: PLR0917 - the columns of a row, in their order
    state_id: str,
    lock_id: str,
    _over: int,
    token: int,
    born: int,
    locked_at: int,
    waiting: int,
    lease: float,
    *details: Any,
) -> LiveLock:
    return LiveLock(state_id, lock_id, token, born, locked_at, lease, Identity(*details[:-1]), bool(waiting))


def _values(row: LockRow) -> dict[str, object]:
    drawn = {"token": row.token, "born": row.born} if row.born is not None else {}
    return drawn | values_of(row) | {"waiting": int(row.waiting)}
