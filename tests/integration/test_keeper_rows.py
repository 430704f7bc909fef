"""What statements about the rows in Keeper do on a real server when they land late, twice, or on rows of others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from sqlalchemy import Row

from meltano_ch_state.connection import engine_for
from meltano_ch_state.keeper import Cell, guard_row
from meltano_ch_state.migrate import Schema, upgrade
from meltano_ch_state.process import identify
from meltano_ch_state.protocol import LockRow, tombstone_of
from meltano_ch_state.repositories.base import select_final
from meltano_ch_state.repositories.cells import CellRepository
from meltano_ch_state.repositories.locks import LockRepository
from meltano_ch_state.settings import Names, resolve
from tests.rig.endpoint import Endpoint

LEASE_SECONDS = 300.0


@pytest.fixture
def locks(server: Endpoint, schema: str) -> LockRepository:
    """The lock tables, with a row for each of two state IDs, both released."""
    engine = engine_for(resolve(server.url(), schema=schema))
    upgrade(engine, Names(schema))
    Schema(engine, Names(schema), auto_upgrade=False).make_keeper_table()
    repository = LockRepository(engine, schema)
    repository.cells.create([row("1", "first", released=True), row("2", "first", released=True)])
    return repository


@pytest.fixture
def cells(locks: LockRepository) -> CellRepository:
    return locks.cells


def row(state_id: str, lock_id: str, *, released: bool = False) -> LockRow:
    return LockRow(state_id, lock_id, released, False, None, None, LEASE_SECONDS, 1, identify("test"))


def take(cells: CellRepository, lock_id: str, **seen: str) -> None:
    """Take rows by what was seen of them, named `of_` and their state ID."""
    had = {name.removeprefix("of_"): last for name, last in seen.items()}
    cells.take([row(state_id, lock_id) for state_id in had], had)


def holder(cells: CellRepository, state_id: str) -> tuple[str, bool]:
    """Who has, or had, a row, and whether it is held."""
    cell = cells.cells([state_id])[state_id]
    return cell.lock.lock_id, not cell.released


@pytest.fixture
def silent(cells: CellRepository) -> Cell:
    """The row of state 1 as its holder left it."""
    take(cells, "silent", of_1="first")
    return cells.cells(["1"])["1"]


def test_a_take_that_lands_again_after_its_row_was_released_takes_nothing(cells: CellRepository) -> None:
    take(cells, "one", of_1="first")
    cells.release("one", ["1"])
    take(cells, "one", of_1="first")
    assert holder(cells, "1") == ("one", False)


def test_what_was_seen_of_one_row_does_not_take_another_of_the_same_holder(cells: CellRepository) -> None:
    take(cells, "both", of_1="first", of_2="first")
    cells.release("both", ["1"])
    take(cells, "late", of_1="both", of_2="first")
    cells.release("both", ["2"])
    take(cells, "late", of_1="both", of_2="first")
    assert holder(cells, "1") == ("late", True)
    assert holder(cells, "2") == ("both", False)


def test_a_take_over_takes_a_silent_row_and_counts_that_its_holder_was_deposed(
    cells: CellRepository, silent: Cell
) -> None:
    cells.take_over([row("1", "next")], [silent])
    taken = cells.cells(["1"])["1"]
    assert (taken.lock.lock_id, taken.released, taken.depositions) == ("next", False, silent.depositions + 1)
    assert taken.lock.token > silent.lock.token


def test_a_take_over_of_a_row_that_was_released_meanwhile_counts_no_deposition(
    cells: CellRepository, silent: Cell
) -> None:
    cells.release("silent", ["1"])
    cells.take_over([row("1", "next")], [silent])
    taken = cells.cells(["1"])["1"]
    assert (taken.lock.lock_id, taken.released, taken.depositions) == ("next", False, silent.depositions)


def test_a_take_over_misses_a_row_that_was_renewed_and_does_not_hit_it_later(
    cells: CellRepository, silent: Cell
) -> None:
    cells.touch("silent", ["1"], silent.sequence + 1)
    cells.take_over([row("1", "next")], [silent])
    assert holder(cells, "1") == ("silent", True)
    cells.release("silent", ["1"])
    cells.take_over([row("1", "next")], [silent])
    assert holder(cells, "1") == ("silent", False)


def test_what_was_seen_of_one_silent_row_does_not_take_another_that_was_renewed_since(cells: CellRepository) -> None:
    take(cells, "both", of_1="first", of_2="first")
    cells.touch("both", ["2"], 5)
    seen = cells.cells(["1", "2"])
    cells.touch("both", ["1"], 5)
    cells.take_over([row("1", "next"), row("2", "next")], seen.values())
    assert holder(cells, "1") == ("both", True)
    assert holder(cells, "2") == ("next", True)


@pytest.mark.parametrize("released", [True, False])
def test_what_was_cancelled_takes_nothing_when_it_lands_after_that(
    cells: CellRepository, silent: Cell, released: bool
) -> None:
    if released:
        cells.release("silent", ["1"])
    cells.cancel("next", ["1", "2"], {"2": "first"}, [silent], "burnt")
    cells.take_over([row("1", "next")], [silent])
    take(cells, "next", of_2="first")
    assert holder(cells, "1") == holder(cells, "2") == ("burnt", False)


def test_the_tombstone_of_a_guard_has_a_token_from_when_it_was_over(locks: LockRepository) -> None:
    made = locks.now()
    locks.insert_rows([guard_row("1", "guard", LEASE_SECONDS, made)])
    (guard,) = locks.read_views(["1"])["1"].guards()
    assert guard.token == made
    locks.insert_rows([tombstone_of(guard, identify("take over"))])
    locks.insert_rows([guard_row("1", "guard", LEASE_SECONDS, made)])
    view = locks.read_views(["1"])["1"]
    assert view.live == ()
    assert view.floor == guard.locked_at + LEASE_SECONDS * 1e6


def test_a_guard_that_several_revoke_and_the_next_one_are_one_statement_and_the_former_one_tombstone(
    locks: LockRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks.insert_rows([guard_row("1", "guard", LEASE_SECONDS, locks.now())])
    (guard,) = locks.read_views(["1"])["1"].guards()
    sent, write = list[Any](), locks.write

    def observed(rows: Iterable[dict[str, object]]) -> None:
        sent.append(rows)
        write(rows)

    monkeypatch.setattr(locks, "write", observed)
    for lock_id in ("next", "other"):
        locks.insert_rows([guard_row("1", lock_id, LEASE_SECONDS, locks.now()), tombstone_of(guard, identify(lock_id))])
    assert len(sent) == 2
    tombstones = select_final(locks._table.c.lock_id).where(locks._table.c.released == 1)
    assert [tuple(row) for row in locks.select(tombstones)] == [("guard",)]


def test_a_renewed_guard_is_as_old_as_when_it_was_made(locks: LockRepository) -> None:
    made = locks.now() - 60_000_000
    for _ in range(2):
        locks.insert_rows([guard_row("1", "guard", LEASE_SECONDS, made)])
    view = locks.read_views(["1"])["1"]
    (guard,) = view.guards()
    assert guard.age_seconds(view.now) >= 60
    assert guard.lease_seconds_left(view.now) > LEASE_SECONDS - 60


def test_each_of_many_ids_is_judged_by_the_time_of_the_query_that_read_it(
    locks: LockRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_seconds, read = 0.5, locks.point_read

    def read_after_a_pause(*asked: Any) -> Sequence[Row[Any]]:
        time.sleep(pause_seconds)
        return read(*asked)

    monkeypatch.setattr(locks, "point_read", read_after_a_pause)
    state_ids = [f"{number:050}" for number in range(2_000)]
    first, last = state_ids[0], state_ids[-1]
    locks.insert_rows([row(state_id, "holder") for state_id in (first, last)])
    locks.cells.create([row(state_id, "holder") for state_id in ("1", "2")])
    rows = locks.read_views(state_ids)
    seen = locks.look(["1", *state_ids, "2"])
    assert rows[last].now - rows[first].now >= pause_seconds * 1e6
    assert seen["2"].rows.now - seen["1"].rows.now >= pause_seconds * 1e6
    assert seen["1"].rows.now > rows[last].now


def test_ids_that_fill_the_text_of_a_statement_are_taken_and_cancelled_by_several(cells: CellRepository) -> None:
    state_ids = [f"{number:04}" + "'\\" * 50 for number in range(1500)]
    seen = dict.fromkeys(state_ids, "first")
    cells.create([row(state_id, "first", released=True) for state_id in state_ids])
    cells.take([row(state_id, "second") for state_id in state_ids], seen)
    cells.cancel("second", state_ids, seen, [], "burnt")
    assert {cell.lock.lock_id for cell in cells.cells(state_ids[:100]).values()} == {"burnt"}
    assert sum(cell.lock.lock_id == "burnt" for cell in cells.cells().values()) == len(state_ids)
