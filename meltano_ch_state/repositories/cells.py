"""All SQL about the lock table in Keeper: one row per state ID, changed by compare-and-set.

In its strict mode an INSERT fails where a row is there, and an UPDATE fails where a row that it read was changed
meanwhile. An UPDATE that fails so is sent again: then its condition decides.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from sqlalchemy import Engine, Table, TextClause, bindparam, func, select, text
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random

from meltano_ch_state.errors import KeeperConflictError
from meltano_ch_state.keeper import Cell
from meltano_ch_state.models import MICROSECONDS, build
from meltano_ch_state.process import Identity
from meltano_ch_state.protocol import TOKEN_STEP, LiveLock, LockRow
from meltano_ch_state.repositories.base import Repository
from meltano_ch_state.repositories.faults import NOT_HELD
from meltano_ch_state.repositories.parts import parts
from meltano_ch_state.settings import Names

KEEPER_BYTES = 700_000
"""Keeper takes a request of up to a megabyte: a statement changes rows of about this many bytes, all or none."""
KEEPER_WEIGHT = (300, 11)
"""About what a row weighs there, and each byte of its ID, which stands in the row's path, and up to twice in the
statement's text, in quotes, escaped: of that, 256 KiB are allowed."""
TEXT_BYTES = 60_000
TEXT_WEIGHT = (4, 1)
"""A query's text may have 256 KiB, in which a state ID stands up to three times, in quotes, escaped."""
LOCK_ID_BYTES = 40
ATTEMPTS = 20
"""So often an UPDATE is sent again because somebody else was faster."""
LONGEST_PAUSE_SECONDS = 0.02
_STRICT = {"keeper_map_strict_mode": 1, "max_threads": 1}
_CREATE = {**_STRICT, "insert_keeper_max_retries": 8}
"""A server that does not reach its Keeper says so after 23 s, as it does for other statements after 26 s. With its
default of 20 it would go on for longer than a client waits for an answer."""
_POINT_READ = {"max_threads": 1}
_NOW = f"now64({MICROSECONDS})"
LIVE_CELL, FREE_CELL = 2, 3
"""What `over` is for rows of Keeper among those of the ordinary lock table, where it is 0 or 1."""


class CellRepository(Repository):
    """The lock table in Keeper of one set of names."""

    def __init__(self, engine: Engine, names: Names) -> None:
        """Bind the table; nothing is sent yet."""
        super().__init__(engine)
        self._names = names
        self._update = f"ALTER TABLE `{names.schema}`.`{names.keeper_table}` UPDATE "

    @property
    def _table(self) -> Table:
        return build(self._names).keeper_lock

    def probe(self) -> None:
        """Send an UPDATE that hits nothing: whether the table is there, its Keeper answers, and the user may.

        Raises:
            SchemaMissingError: If there is no such table.
            NoKeeperError: If its Keeper has lost it.
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        self._change("released = 1", "lock_id = ''", [""], {})

    def create(self, rows: Collection[LockRow]) -> None:
        """Make rows where there are none."""
        for part in cell_parts(rows):
            self._create(part)

    def _create(self, rows: Sequence[LockRow]) -> None:
        missing = list(rows)
        for _ in range(ATTEMPTS):
            try:
                self.insert(self._table, map(values_of, missing), _CREATE)
            except KeeperConflictError:
                there = self.existing([row.state_id for row in missing])
                missing = [row for row in missing if row.state_id not in there]
            else:
                return
            if len(rows) == 1 or not missing:  # whatever is read: there is one, maybe one's own
                return

    def existing(self, state_ids: Collection[str]) -> set[str]:
        """Those state IDs that have a row."""
        column = self._table.c.state_id
        return {row[0] for row in self.select(select(column).where(column.in_(list(state_ids))), None, _POINT_READ)}

    def take(self, rows: Collection[LockRow], seen: Mapping[str, str]) -> None:
        """Give rows to another lock_id, if they have the one that was seen, and are released."""
        for part in cell_parts(rows):
            self._change(_TAKEN + _DETAILS, _FREE, part, {**values_of(part[0]), "seen": _pairs(part, seen)})

    def retake(self, rows: Collection[LockRow], seen: Mapping[str, str]) -> None:
        """The same for rows that this holder had last: what they say of it is true, and each column costs time."""
        for part in cell_parts(rows):
            self._change(_TAKEN, _FREE, part, {"lock_id": part[0].lock_id, "seen": _pairs(part, seen)})

    def take_over(self, rows: Collection[LockRow], silent: Collection[Cell]) -> None:
        """Give rows to another lock_id, if they were not renewed since they were seen so."""
        for part in cell_parts(rows):
            parameters = {**values_of(part[0]), "silent": _marks(part, silent)}
            self._change(_TAKEN + _DETAILS + _TAKEN_OVER, _SILENT, part, parameters)

    def touch(self, lock_id: str, state_ids: Collection[str], sequence: int, token: int = 0) -> None:
        """Renew what a lock_id holds, with at least this sequence and token."""
        what = f"{_TOUCHED}, {_RAISED}" if token else _TOUCHED
        for part in cell_parts(state_ids):
            self._change(what, _OWN, part, {"lock_id": lock_id, "sequence": sequence, "token": token})

    def release(self, lock_id: str, state_ids: Collection[str]) -> None:
        """Release what a lock_id holds."""
        for part in cell_parts(state_ids):
            self._change("released = 1", _OWN, part, {"lock_id": lock_id})

    def release_own(self, lock_id: str, state_id: str) -> bool:
        """Release what a lock_id holds; False when it does not, or somebody else was faster.

        True also where there is no row at all: none is ever deleted, unless somebody drops the table.
        """
        try:
            self._send_change(_RELEASED_OWN, "", [state_id], {"lock_id": lock_id})
        except KeeperConflictError:
            return False
        return True

    def depose(self, lock_id: str, state_id: str) -> None:
        """Release what somebody else holds."""
        self._change("released = 1, depositions = depositions + 1", _OWN, [state_id], {"lock_id": lock_id})

    def cancel(
        self, lock_id: str, state_ids: Collection[str], seen: Mapping[str, str], silent: Collection[Cell], burnt: str
    ) -> None:
        """Release what a lock_id took, or what it would take now: as `burnt`."""
        for part in cell_parts(state_ids):
            pairs, marks = _pairs(part, seen) or [""], _marks(part, silent) or [""]
            parameters = {"lock_id": lock_id, "seen": pairs, "silent": marks, "burnt": burnt}
            self._change(_CANCELLED, _OWN_OR_FREE, part, parameters)

    def cells(self, state_ids: Collection[str] | None = None) -> dict[str, Cell]:
        """The rows of some state IDs, or of all."""
        statement = cell_rows(self._table.c)
        if state_ids is not None:
            statement = statement.where(self._table.c.state_id.in_(list(state_ids)))
        return {row[0]: make_cell(*row) for row in self.select(statement, None, _POINT_READ)}

    def _change(self, what: str, where: str, items: Sequence[str | LockRow], parameters: Mapping[str, object]) -> None:
        _again(partial(self._send_change, what, f" AND {where}", items, parameters))

    def _send_change(
        self, what: str, where: str, items: Sequence[str | LockRow], parameters: Mapping[str, object]
    ) -> None:
        ids = [_id_of(item) for item in items]
        chosen = {"id": ids[0]} if len(ids) == 1 else {"ids": ids}
        statement, names = _statement(self._update, what, where, one=len(ids) == 1)
        given = {**parameters, **chosen}
        self.execute(statement, {name: given[name] for name in names}, _STRICT)


@cache
def _statement(update: str, what: str, where: str, *, one: bool) -> tuple[TextClause, tuple[str, ...]]:
    """A statement, and the names of its parameters; equality costs the server less than a list of one."""
    clause = f"{what} WHERE state_id {'= :id' if one else 'IN :ids'}{where}"
    names = tuple(_PARAMETER.findall(clause))
    lists: list[Any] = [bindparam(name, expanding=True) for name in names if name in _LISTS]
    return text(update + clause).bindparams(*lists), names


_again = Retrying(
    retry=retry_if_exception_type(KeeperConflictError),
    stop=stop_after_attempt(ATTEMPTS),
    wait=wait_random(0, LONGEST_PAUSE_SECONDS),
    reraise=True,
)
_LISTS = {"ids", "seen", "silent"}
_PARAMETER = re.compile(r"(?<!:):(\w+)")
_TAKEN = (
    f"lock_id = :lock_id, released = 0, token = greatest({_NOW}, token + toIntervalMicrosecond({TOKEN_STEP})),"
    f" locked_at = {_NOW}"
)
"""The token is computed from the row that is changed: one that was read earlier may be old (tests/model)."""
_TAKEN_OVER = ", depositions = depositions + if(released = 1, 0, 1)"
_DETAILS = (
    ", lease_seconds = :lease_seconds, holder = :holder, process = :process, operation = :operation, version = :version"
)
_FREE = "concat(lock_id, state_id) IN :seen AND released = 1"
"""With the state ID, as a lock_id may have been seen at one row, and still hold another that is changed with it: when
that is released, a late repetition would hit it."""
_SILENT = "concat(lock_id, '/', toString(sequence), '/', state_id) IN :silent"
"""Whether it is released or not: what misses a row once may not hit it later. With the state ID, as one holder's rows
may have other sequences: one that was renewed is not hit by what was seen of another."""
_OWN = "lock_id = :lock_id AND released = 0"
_OWN_OR_FREE = f"(lock_id = :lock_id OR ({_FREE}) OR {_SILENT})"
_CANCELLED = "released = 1, lock_id = :burnt, depositions = depositions + if(released = 1 OR lock_id = :lock_id, 0, 1)"
_RELEASED_OWN = f"released = 1 + throwIf(lock_id != :lock_id OR released = 1, '{NOT_HELD}')"
"""An UPDATE does not tell whether its condition met a row; an expression that fails does."""
_TOUCHED = f"locked_at = {_NOW}, sequence = greatest(sequence, toUInt32(:sequence))"
_RAISED = "token = greatest(token, fromUnixTimestamp64Micro(toInt64(:token)))"
"""Late repetitions of an earlier change take nothing back."""


def _pairs(items: Iterable[str | LockRow], seen: Mapping[str, str]) -> list[str]:
    return [seen[state_id] + state_id for state_id in map(_id_of, items) if state_id in seen]


def _marks(items: Iterable[str | LockRow], silent: Iterable[Cell]) -> list[str]:
    chosen = set(map(_id_of, items))
    seen = [(cell.lock, cell.sequence) for cell in silent if cell.lock.state_id in chosen]
    return [f"{lock.lock_id}/{sequence}/{lock.state_id}" for lock, sequence in seen]


def _id_of(item: str | LockRow) -> str:
    return item if isinstance(item, str) else item.state_id


def cell_rows(cell: Any) -> Any:
    """The rows in the shape of ordinary lock rows.

    `waiting` is the sequence, `over` one of two other numbers, and before the version there is how many were deposed.
    """
    return select(
        cell.state_id,
        cell.lock_id,
        (cell.released + LIVE_CELL).label("over"),
        *(func.toUnixTimestamp64Micro(cell[name]).label(label) for label, name in _TIMES.items()),
        cell.sequence.label("any_waiting"),
        *(cell[name].label(f"any_{name}") for name in ("lease_seconds", "holder", "process", "operation")),
        func.concat(func.toString(cell.depositions), "/", cell.version).label("any_version"),
        func.toUnixTimestamp64Micro(func.now64(MICROSECONDS)).label("now"),
    )


_TIMES = {"token_us": "token", "born_us": "token", "locked_us": "locked_at"}
"""A token is drawn when the row is taken: as good as a time of birth, and one column less to change."""


def make_cell(  # noqa: PLR0917 - the columns of a row, in their order
    state_id: str,
    lock_id: str,
    over: int,
    token: int,
    born: int,
    locked_at: int,
    sequence: int,
    lease: float,
    *details: Any,
) -> Cell:
    """A row of `cell_rows`."""
    holder, process, operation, told, _now = details
    depositions, _, version = told.partition("/")
    identity = Identity(holder, process, operation, version)
    lock = LiveLock(state_id, lock_id, token, born, locked_at, lease, identity)
    return Cell(lock, over != LIVE_CELL, sequence, int(depositions))


def values_of(row: LockRow) -> dict[str, object]:
    """The columns that a lock row has in Keeper and among the ordinary ones alike."""
    return {
        "state_id": row.state_id,
        "lock_id": row.lock_id,
        "released": int(row.released),
        "lease_seconds": row.lease_seconds,
        "sequence": row.sequence,
        "holder": row.identity.holder,
        "process": row.identity.process,
        "operation": row.identity.operation,
        "version": row.identity.version,
    }


def cell_parts(items: Collection[Any]) -> Iterator[list[Any]]:
    """State IDs, or rows, in parts that fit into one request to Keeper."""
    each, byte = KEEPER_WEIGHT
    return parts(items, KEEPER_BYTES, lambda item: each + byte * len(_id_of(item).encode()))


def text_parts(state_ids: Collection[str], lock_ids: int = 0) -> Iterator[list[str]]:
    """State IDs in parts that fit into a query's text, beside so many lock_ids in all."""
    each, byte = TEXT_WEIGHT
    beside = LOCK_ID_BYTES if lock_ids > 1 else 0
    return parts(state_ids, TEXT_BYTES, lambda state_id: each + beside + byte * len(state_id.encode()))
