"""Takes away what nobody needs any more, without breaking a promise of the lock (docs/locking.md).

- A state that was not updated for long is cleared as `meltano state clear` does it: under its lock, by a tombstone with
  the next version. Whether it is old is asked again once its lock is held.
- A tombstone of a state hides what a late writer may still send. So it stays for `TOMBSTONE_DAYS`, far longer than a
  process may be paused (`LOCK_ROWS_KEPT_DAYS`). Then all versions of the state go, under its lock: whoever may write
  from now on has a greater token than ours, which stays visible in the lock table.
- Tombstones of locks are never deleted here: a row of the same lock_id that lands later would be alive. Their time to
  live ends them; merging the table only makes that happen now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from meltano_ch_state.errors import StateLockedError
from meltano_ch_state.lock import Lock, merged
from meltano_ch_state.repositories.locks import LockRepository
from meltano_ch_state.repositories.maintenance import MaintenanceRepository
from meltano_ch_state.repositories.parts import id_parts
from meltano_ch_state.repositories.states import StateRepository
from meltano_ch_state.store import tombstone, write_versions

TOMBSTONE_DAYS = 30
"""A tombstone of a state stays for so many days."""
DAY_SECONDS = 86_400.0

Outcome = tuple[list[str], StateLockedError | None]
"""What was done, and the error of what stayed locked."""


@dataclass(frozen=True)
class Pruner:
    """Prunes the tables of one set of names."""

    states: StateRepository
    locks: LockRepository
    maintenance: MaintenanceRepository

    def old_states(self, older_than_seconds: float) -> list[str]:
        """The IDs of states that were not updated for so long, sorted."""
        return self.maintenance.older(self._cutoff(older_than_seconds), cleared=False)

    def old_tombstones(self) -> list[str]:
        """The IDs of states that were cleared so long ago that nothing of them can come back, sorted."""
        return self.maintenance.older(self._cutoff(TOMBSTONE_DAYS * DAY_SECONDS), cleared=True)

    def clear(self, state_ids: Sequence[str], older_than_seconds: float) -> Outcome:
        """Clear those of the states that are still old when their lock is held.

        Returns:
            The IDs that were cleared, and the error that names those that are locked now, if there are any.
        """
        cutoff = self._cutoff(older_than_seconds)

        def clear(lock: Lock) -> list[str]:
            old = self.maintenance.older_among(lock.state_ids, cutoff, cleared=False)
            if old:
                write_versions(self.states, lock, list(map(tombstone, old)))
            return old

        return self._under_locks(state_ids, clear)

    def erase(self, state_ids: Sequence[str]) -> Outcome:
        """Delete those of the states whose newest version is still an old tombstone when their lock is held.

        Returns:
            The IDs of which nothing is left, and the error that names those that are locked now, if there are any.

        Raises:
            PermissionDeniedError: If the user has no ALTER DELETE.
        """
        cutoff = self._cutoff(TOMBSTONE_DAYS * DAY_SECONDS)

        def erase(lock: Lock) -> list[str]:
            old = self.maintenance.older_among(lock.state_ids, cutoff, cleared=True)
            if old:
                lock.confirm(old)
                self.maintenance.erase(old, cutoff)
            return old

        return self._under_locks(state_ids, erase)

    def _cutoff(self, seconds: float) -> int:
        return self.locks.now() - int(seconds * 1e6)

    def _under_locks(self, state_ids: Sequence[str], act: Callable[[Lock], list[str]]) -> Outcome:
        """Act under each lock that is free now: who holds one is just using the state."""
        done: list[str] = []
        failures: list[StateLockedError] = []
        for part in id_parts(state_ids):
            locks = self.locks.locker.hold_each(part, "prune", timeout_seconds=0)
            try:
                with closing(locks):
                    for lock in locks:
                        done.extend(act(lock))
            except StateLockedError as error:
                failures.append(error)
        return done, merged(failures) if failures else None
