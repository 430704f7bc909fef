"""States read ahead for one who lists IDs and then gets each of them, as `meltano state list` does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from meltano_ch_state.protocol import StateRow

FRESH_SECONDS = 1.0
"""A state read ahead is at most so old when it is given out, in seconds."""


class ReadAhead:
    """What comes next if the IDs that were listed are got in their order; any other order makes it forget them."""

    def __init__(
        self,
        stream: Callable[[str | None, str | None], Iterator[StateRow]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Expect nothing yet.

        Args:
            stream: The states that match a pattern and come after an ID, sorted by ID.
            clock: Seconds, for tests.
        """
        self._stream = stream
        self._clock = clock
        self._mutex = threading.Lock()
        self._since = 0.0
        self._row: StateRow | None = None
        self.forget()

    def expect(self, pattern: str | None, state_ids: Sequence[str]) -> None:
        """These IDs were listed for that pattern."""
        with self._mutex:
            self._pattern, self._state_ids, self._next = pattern, state_ids, 0
            self._rows: Iterator[StateRow] | None = None

    def forget(self) -> None:
        """Something was written: expect nothing."""
        self.expect(None, ())

    def take(self, state_id: str) -> StateRow | None:
        """The state, if it was read ahead: a tombstone where there is none any more. None: read it by itself."""
        with self._mutex:
            if self._next >= len(self._state_ids) or self._state_ids[self._next] != state_id:
                self._state_ids = ()
                return None
            self._next += 1
            return self._read(state_id) if self._next > 1 else None  # one alone is no list

    def _read(self, state_id: str) -> StateRow:
        now = self._clock()
        if self._rows is None or now - self._since > FRESH_SECONDS:
            self._since = now
            self._rows = self._stream(self._pattern, self._state_ids[self._next - 2])
            self._row = next(self._rows, None)
        while self._row and self._row.state_id < state_id:
            self._row = next(self._rows, None)
        if self._row and self._row.state_id == state_id:
            return self._row
        return StateRow(state_id, None, None, 0, is_deleted=True)
