"""Keeps a lock alive while its holder works."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from meltano_ch_state.errors import StateLockLostError

RENEWALS_PER_LEASE = 3

logger = logging.getLogger(__name__)


class Renewable(Protocol):
    """What is renewed; `Lock` is one."""

    lock_id: str
    lease_seconds: float

    @property
    def state_ids(self) -> tuple[str, ...]:
        """What it covers; nothing once it is given up."""

    def renew(self) -> None:
        """Say that the holder lives."""


class Renewal:
    """Renews a lock from a thread of its own, from a third of the lease on, until it is stopped or given up."""

    def __init__(self, lock: Renewable) -> None:
        self._lock = lock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"renew {lock.lock_id}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a renewal under way, so that no row of it follows the tombstone (it would not count).

        A thread that could not be started, or only now is, does nothing.
        """
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        interval = self._lock.lease_seconds / RENEWALS_PER_LEASE
        while not self._stopped.wait(interval) and self._lock.state_ids and self._renewed():
            pass

    def _renewed(self) -> bool:
        try:
            self._lock.renew()
        except StateLockLostError as error:
            logger.warning("%s", error)
            return False
        except Exception as error:  # tried again; the lease tells others what to think
            logger.warning("The lock %s could not be renewed: %s", self._lock.lock_id, error)
        return True
