"""The lock table in Keeper in memory, and as a client of the scheduler sees it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meltano_ch_state.keeper import Cell, KeeperView
from meltano_ch_state.protocol import TOKEN_STEP, LiveLock, LockRow
from meltano_ch_state.testing import MemoryDatabase, MemoryLocks

if TYPE_CHECKING:
    from tests.model.binding import Client, World


SENT_AGAIN = "sent again"
"""In place of an answer: it was lost, so the same call is made once more."""


class MemoryKeeper(MemoryLocks):
    """Both lock tables. The methods are those of `repositories.cells`."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.cells: dict[str, Cell] = {}

    def look(self, state_ids: Collection[str]) -> Mapping[str, KeeperView]:
        return {i: KeeperView(self.cells.get(i), view) for i, view in self.read(state_ids).items()}

    def create(self, rows: Collection[LockRow]) -> None:
        for row in rows:
            self.cells.setdefault(row.state_id, Cell(self._lock(row, self.now()), row.released, row.sequence))

    def take(self, rows: Collection[LockRow], seen: Mapping[str, str]) -> None:
        self._give(rows, lambda cell: self.is_free(cell, seen))

    def retake(self, rows: Collection[LockRow], seen: Mapping[str, str]) -> None:
        self.take(rows, seen)

    def take_over(self, rows: Collection[LockRow], silent: Collection[Cell]) -> None:
        self._give(rows, lambda cell: self.is_silent(cell, silent))

    def _give(self, rows: Collection[LockRow], may_be_taken: Callable[[Cell], bool]) -> None:
        for row in rows:
            cell = self.cells.get(row.state_id)
            if cell and may_be_taken(cell):
                token = max(self.now(), cell.lock.token + TOKEN_STEP)
                depositions = cell.depositions + (not cell.released)
                self.cells[row.state_id] = Cell(self._lock(row, token), False, cell.sequence, depositions)

    def is_free(self, cell: Cell, seen: Mapping[str, str]) -> bool:
        """Whether a row may be taken by who has seen that."""
        return cell.released and cell.lock.lock_id == seen.get(cell.lock.state_id)

    def is_silent(self, cell: Cell, silent: Collection[Cell]) -> bool:
        """Whether a row may be taken from its holder by who has seen that."""
        return _mark(cell) in map(_mark, silent)

    def touch(self, lock_id: str, state_ids: Collection[str], sequence: int, token: int = 0) -> None:
        for cell in self._own(lock_id, state_ids):
            lock = replace(cell.lock, token=max(cell.lock.token, token), locked_at=self.now())
            self.cells[lock.state_id] = replace(cell, lock=lock, sequence=max(cell.sequence, sequence))

    def release(self, lock_id: str, state_ids: Collection[str]) -> None:
        for cell in self._own(lock_id, state_ids):
            self.cells[cell.lock.state_id] = replace(cell, released=True)

    def release_own(self, lock_id: str, state_id: str) -> bool:
        held = state_id not in self.cells or bool(self._own(lock_id, [state_id]))
        self.release(lock_id, [state_id])
        return held

    def cancel(
        self, lock_id: str, state_ids: Collection[str], seen: Mapping[str, str], silent: Collection[Cell], burnt: str
    ) -> None:
        for state_id in state_ids:
            cell = self.cells.get(state_id)
            if cell and (cell.lock.lock_id == lock_id or self.is_free(cell, seen) or self.is_silent(cell, silent)):
                depositions = cell.depositions + (not cell.released and cell.lock.lock_id != lock_id)
                lock = replace(cell.lock, lock_id=burnt)
                self.cells[state_id] = Cell(lock, True, cell.sequence, depositions)

    def sequences(self, lock_id: str, guards: Mapping[str, str]) -> Mapping[str, int]:
        own = self._own(lock_id, guards)
        alive = self.alive(guards, set(guards.values()))
        return {c.lock.state_id: c.sequence for c in own if (c.lock.state_id, guards[c.lock.state_id]) in alive}

    def _own(self, lock_id: str, state_ids: Collection[str]) -> list[Cell]:
        found = [self.cells[state_id] for state_id in state_ids if state_id in self.cells]
        return [cell for cell in found if cell.lock.lock_id == lock_id and not cell.released]

    def _lock(self, row: LockRow, token: int) -> LiveLock:
        now = self.now()
        return LiveLock(row.state_id, row.lock_id, token, now, now, row.lease_seconds, row.identity)


def _mark(cell: Cell) -> tuple[str, str, int]:
    return cell.lock.state_id, cell.lock.lock_id, cell.sequence


class AsksForNoGuard(MemoryKeeper):
    """Who asks for a guard is told that it is alive: among those who lock in Keeper, the rows there have to do."""

    def alive(self, state_ids: Collection[str], lock_ids: Collection[str]) -> Collection[tuple[str, str]]:
        return {(state_id, lock_id) for state_id in state_ids for lock_id in lock_ids}


class TakesWhatIsHeld(MemoryKeeper):
    """Mistake: a row is taken whoever has it."""

    def is_free(self, cell: Cell, seen: Mapping[str, str]) -> bool:
        return True


class ChecksNothing(MemoryKeeper):
    """Mistake: the check after a write finds all well."""

    def sequences(self, lock_id: str, guards: Mapping[str, str]) -> Mapping[str, int]:
        return dict.fromkeys(guards, 1_000_000)


class ReleasesWhatOthersHold(AsksForNoGuard):
    """Mistake: a release does not tell whose row it met."""

    def release_own(self, lock_id: str, state_id: str) -> bool:
        self.release(lock_id, [state_id])
        return True


class CountsNoDepositions(AsksForNoGuard):
    """Mistake: a row does not tell that a holder of it was deposed."""

    def take_over(self, rows: Collection[LockRow], silent: Collection[Cell]) -> None:
        super().take_over(rows, silent)
        self.cells = {state_id: replace(cell, depositions=0) for state_id, cell in self.cells.items()}


class LateTakes(MemoryKeeper):
    """Mistake: what was sent and given up is not cancelled."""

    def cancel(
        self, lock_id: str, state_ids: Collection[str], seen: Mapping[str, str], silent: Collection[Cell], burnt: str
    ) -> None:
        self.release(lock_id, state_ids)


class SteppedKeeper:
    """A client's store: it stops before each call."""

    def __init__(self, world: World, client: Client, rows: Any) -> None:
        """Bind a client; `rows` are the ordinary lock rows as it sees them."""
        self._world, self._client = world, client
        self.insert, self.read, self.alive = rows.insert, rows.read, rows.alive
        self.now, self.settle_seconds = rows.now, rows.settle_seconds

    def look(self, state_ids: Collection[str]) -> Mapping[str, KeeperView]:
        asked = tuple(state_ids)

        def look_back() -> Mapping[str, KeeperView]:
            earlier = self._world.earlier
            return {i: replace(view, cell=earlier.get(i)) for i, view in self._world.locks.look(asked).items()}  # type: ignore[attr-defined]

        return self._client.stop("looks", self._call("look", asked), stale=look_back)  # type: ignore[no-any-return]

    def sequences(self, lock_id: str, guards: Mapping[str, str]) -> Mapping[str, int]:
        return self._read(f"asks whether {lock_id} is alive", "sequences", lock_id, dict(guards))  # type: ignore[no-any-return]

    def create(self, rows: Collection[LockRow]) -> None:
        self._write("creates", "create", tuple(rows))

    def take(self, rows: Collection[LockRow], seen: Mapping[str, str]) -> None:
        self._write("takes", "take", tuple(rows), dict(seen))

    def retake(self, rows: Collection[LockRow], seen: Mapping[str, str]) -> None:
        self._write("takes", "retake", tuple(rows), dict(seen))

    def take_over(self, rows: Collection[LockRow], silent: Collection[Cell]) -> None:
        self._write("takes over", "take_over", tuple(rows), tuple(silent))

    def touch(self, lock_id: str, state_ids: Collection[str], sequence: int, token: int = 0) -> None:
        self._write(f"touches {lock_id}", "touch", lock_id, tuple(state_ids), sequence, token)

    def release(self, lock_id: str, state_ids: Collection[str]) -> None:
        self._write(f"releases {lock_id}", "release", lock_id, tuple(state_ids), ending=True)

    def release_own(self, lock_id: str, state_id: str) -> bool:
        told, call = f"releases {lock_id} and checks", self._call("release_own", lock_id, state_id)
        while True:
            answer = self._client.stop(told, call, writing=True, ending=True, repeating=True)
            if answer is not SENT_AGAIN:
                return bool(answer)

    def cancel(
        self, lock_id: str, state_ids: Collection[str], seen: Mapping[str, str], silent: Collection[Cell], burnt: str
    ) -> None:
        told = (lock_id, tuple(state_ids), dict(seen), tuple(silent), burnt)
        self._write(f"cancels {lock_id}", "cancel", *told, ending=True)

    def _call(self, name: str, *arguments: Any) -> Callable[[], Any]:
        return lambda: getattr(self._world.locks, name)(*arguments)

    def _read(self, told: str, name: str, *arguments: Any) -> Any:
        return self._client.stop(told, self._call(name, *arguments))

    def _write(self, told: str, name: str, *arguments: Any, ending: bool = False) -> None:
        self._client.stop(told, self._call(name, *arguments), writing=True, ending=ending)
