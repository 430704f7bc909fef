"""An interrupt at every single line of the code that locks, one a run."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest

from meltano_ch_state import keeper, lock, locker, renewal
from meltano_ch_state.keeper import KeeperLocker
from meltano_ch_state.lock import Lock
from meltano_ch_state.locker import BaseLocker, Locker, LockOptions
from meltano_ch_state.process import identify
from meltano_ch_state.testing import MemoryDatabase
from meltano_ch_state.waiting import Clock
from tests.model.keeper_memory import MemoryKeeper

LEASE_SECONDS = 0.03
"""By the clock of the renewals, which is a real one; that of the server stands still."""
STATE_IDS = ("1", "2", "3")


@dataclass
class Trial:
    """One run: two state IDs are locked, then one, while somebody else's lock may be there for the first few looks."""

    locker_class: type[Locker | KeeperLocker]
    contended: bool
    keeper: MemoryKeeper = field(init=False)
    one: BaseLocker = field(init=False)

    def __post_init__(self) -> None:
        """Make empty tables, and one client."""
        ticks = iter(range(1_700_000_000_000_000, 1_800_000_000_000_000, 10))
        self.seconds = 0.0
        self.keeper = MemoryKeeper(MemoryDatabase(now=lambda: next(ticks)))
        options = LockOptions(lease_seconds=LEASE_SECONDS, timeout_seconds=1e6, retry_seconds=0.1)
        clock = Clock(lambda: self.seconds, self._sleep, lambda: 0.5, lambda: self.seconds)
        self.one = self.locker_class(self.keeper, options, clock)
        self.rival = Lock(self.keeper, STATE_IDS[1:], 1e6, identify("rival"))
        if self.contended:
            self.keeper.insert(self.rival.rows)

    def _sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if self.seconds > 0.2 and self.rival.state_ids:
            self.keeper.insert(self.rival.end())
            self.rival.forget(self.rival.state_ids)

    def run(self) -> None:
        """Lock and release, twice."""
        for _ in self.one.hold_each(STATE_IDS[:2]):
            pass
        with self.one.hold(STATE_IDS[2]):
            pass

    def end_rival(self) -> None:
        """Have the rival release, unless it did."""
        self.seconds += 1.0
        self._sleep(0.0)

    def left(self) -> list[str]:
        """What is held, or waits, or renews, and what its thread takes for held."""
        views = self.keeper.read(STATE_IDS).values()
        rows = [row.lock_id for view in views for row in (*view.unguarded(), *view.queue)]
        cells = [cell.lock.lock_id for cell in self.keeper.cells.values() if not cell.released]
        held = [state_id for state_id in STATE_IDS if self.one.held(state_id)]
        return [*rows, *cells, *held]


@dataclass
class Interrupt:
    """Raises in the thread that it traces, at the line of that number; without one, it counts them."""

    at: int | None = None
    lines: int = 0
    where: str = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Interrupt | None:
        """Trace what is of the modules that lock."""
        if frame.f_code.co_filename not in _FILES:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and line not in _NEVER_INTERRUPTED:
            self.lines += 1
            if self.lines == self.at:
                self.where = f"{frame.f_code.co_name}, line {frame.f_lineno}: {line}"
                raise KeyboardInterrupt
        return self


_FILES = {module.__file__ for module in (keeper, lock, locker, renewal)}
_NEVER_INTERRUPTED = {"with self._mutex:"}
"""Between the last statement of such a block and its end, where its line is traced again, Python handles no signal."""


def traced(trial: Trial, interrupt: Interrupt) -> list[str]:
    """Run a trial in this thread, and see what it left."""
    sys.settrace(interrupt)
    try:
        trial.run()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    trial.end_rival()
    return trial.left()


def in_a_thread(act: Callable[[], list[str]]) -> list[str]:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


@pytest.mark.parametrize("contended", [False, True])
@pytest.mark.parametrize("locker_class", [Locker, KeeperLocker])
def test_an_interrupt_at_any_line_leaves_no_row_no_lock_and_no_thread(
    locker_class: type[Locker | KeeperLocker], contended: bool
) -> None:
    threads = set(threading.enumerate())
    counting = Interrupt()
    assert in_a_thread(lambda: traced(Trial(locker_class, contended), counting)) == []
    assert counting.lines > 200
    left: dict[str, list[str]] = {}
    for number in range(1, counting.lines + 1):
        interrupt = Interrupt(number)
        if found := in_a_thread(lambda: traced(Trial(locker_class, contended), interrupt)):  # noqa: B023 - runs at once
            left[f"{number} {interrupt.where}"] = found
    for thread in set(threading.enumerate()) - threads:
        thread.join(100 * LEASE_SECONDS)
    assert left == {}
    assert set(threading.enumerate()) <= threads
