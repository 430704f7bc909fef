"""How one caller waits for others' locks: until when, how long between two looks, and what it tells."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from meltano_ch_state.protocol import LiveLock

SHORTEST_PAUSE_SECONDS = 0.005
"""Between two looks at another's lock, in seconds; also when `retry_seconds` is 0."""
PAUSE_PER_IDLE = 0.25
"""The pause is this part of the time in which nothing has changed: short locks are asked for often."""
TURN_SECONDS = 0.05
"""So long a turn is taken to last, in seconds, until one was seen: an update on a slow server."""
LONGEST_TURN_SECONDS = 0.2
"""Longer turns tell nothing about the next one, in seconds."""
TURN_GROWTH = 1.1
"""What is seen of a turn has the pauses of who was next in it: taken for the next turn as it is, pauses would make
turns, and these again pauses, longer and longer. So the shortest that was seen counts, growing slowly."""
PAUSE_PER_TURN = 0.9
"""The pause is this part of a turn for each that is between us and the first."""
PAUSE_OF_THE_NEXT = 0.3
"""Who is next pauses at least for this part of a turn."""
PATIENCE_SECONDS = 0.4
"""After so long a wait, in seconds, one log line says for whom."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and chance, so that tests may replace them. In seconds; `jitter` from 0 to 1."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random
    wall: Callable[[], float] = time.time


class Since:
    """A moment, and how long ago it was."""

    def __init__(self, clock: Clock) -> None:
        """Take the time."""
        self._clock = clock
        self._monotonic, self._wall = clock.monotonic(), clock.wall()

    @property
    def seconds(self) -> float:
        """The longer of what two clocks say: the one that no step of the time changes may stand still in suspend."""
        return max(self._clock.monotonic() - self._monotonic, self._clock.wall() - self._wall)


@dataclass(slots=True)
class Wait:
    """One caller's wait. Times in seconds.

    Attributes:
        attempts: How often it competed.
        contended: Whether it met anybody.
        last_try: Whether its time was over when its turn came.
        turn_seconds: How long a turn of others takes, as far as it was seen.
    """

    clock: Clock
    timeout_seconds: float
    retry_seconds: float
    attempts: int = 0
    contended: bool = False
    last_try: bool = False
    turn_seconds: float = TURN_SECONDS
    _started: float = field(init=False)
    _told: bool = False
    _asked: float = field(init=False)
    _seen: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._started = self._asked = self.clock.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return self.clock.monotonic() - self._started

    @property
    def over(self) -> bool:
        """Whether the timeout has passed."""
        return self.seconds >= self.timeout_seconds

    def pause(self, idle_seconds: float, places: int = 0) -> None:
        """Sleep until the next look.

        Args:
            idle_seconds: For how long nothing has changed: the longer, the less often one looks, but never less often
                than each `retry_seconds`.
            places: How many are before us.
        """
        chance = self.clock.jitter()
        least = PAUSE_OF_THE_NEXT * self.turn_seconds if places else 0.0
        before_next = PAUSE_PER_TURN * self.turn_seconds * max(places - 1, 0) * (0.9 + 0.2 * chance)
        seconds = max(max(idle_seconds * PAUSE_PER_IDLE, least) * (0.5 + chance), before_next)
        longest = min(self.retry_seconds, self.timeout_seconds - self.seconds)
        self.clock.sleep(max(min(seconds, longest), SHORTEST_PAUSE_SECONDS))

    def sees_turns(self, turns: int, seconds: float) -> None:
        """Remember how long a turn takes, when some ended within so many seconds."""
        if turns:
            self.turn_seconds = min(seconds / turns, self.turn_seconds * TURN_GROWTH, LONGEST_TURN_SECONDS)

    def asks(self) -> None:
        """Remember when a look began: what it shows is no older, however long its answer takes."""
        self._asked = self.clock.monotonic()

    def sees_silence(self, lock: LiveLock) -> bool:
        """Whether this waiter itself saw a lock unchanged for a whole lease: the server's clock may stand still.

        The lease lasts from the end of the look that saw it first to the beginning of the one that sees it now.
        """
        key, now = (lock.state_id, lock.lock_id), self.clock.monotonic()
        at, since = self._seen.setdefault(key, (lock.locked_at, now))
        if at != lock.locked_at:
            self._seen[key] = lock.locked_at, now
            return False
        return self._asked - since > lock.lease_seconds

    def meets(self, rival: LiveLock, description: str) -> None:
        """Remember that there is somebody; after some patience log once who."""
        self.contended = True
        if not self._told and self.seconds >= PATIENCE_SECONDS:
            self._told = True
            logger.info("Waiting for the lock of state %r, held by %s", rival.state_id, description)
