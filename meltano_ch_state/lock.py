"""The lock at work: candidates, waiting, writing under a token, renewal, release. Its decisions are in `protocol`.

Nothing here knows SQL: a `LockStore` inserts and reads. On a single server an uncontended lock costs one insert and one
read to take, one read to confirm a write, and one insert to release.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from meltano_ch_state.errors import NestedLockError, StateLockedError, StateLockLostError
from meltano_ch_state.process import Identity, identify, is_dead
from meltano_ch_state.protocol import (
    TOKEN_STEP,
    LiveLock,
    LockRow,
    Verdict,
    View,
    decide,
    next_row,
    tombstone_of,
)
from meltano_ch_state.settings import (
    LOCK_RETRY_SECONDS,
    LOCK_TIMEOUT_SECONDS,
    STALE_LOCK_SECONDS,
)

SHORTEST_PAUSE_SECONDS = 0.005
"""Between two looks at a rival's lock, in seconds; also when `retry_seconds` is 0."""
PAUSE_PER_AGE = 0.5
"""A waiter pauses for this part of the time for which the rival holds the lock already: short locks are asked often."""
RENEWALS_PER_LEASE = 3
NAMED_IN_ERRORS = 10
"""An error names so many state IDs; its attribute has all."""
PATIENCE_SECONDS = 0.4
"""After so long a wait, in seconds, one log line says for whom."""

logger = logging.getLogger(__name__)


class LockStore(Protocol):
    """Where lock rows live."""

    def insert(self, rows: Collection[LockRow]) -> None:
        """Insert rows, all in one statement; when it returns, every later `read` sees them."""

    def read(self, state_ids: Collection[str]) -> Mapping[str, View]:
        """What there is about each of the state IDs now, and the state's own token."""

    def alive(self, lock_id: str, state_ids: Collection[str]) -> Collection[str]:
        """Those of the state IDs for which this lock_id has a row and no tombstone."""

    def settle_seconds(self) -> float:
        """How long after an insert a read may not yet see what others inserted before, in seconds."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and chance, so that tests may replace them."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random


@dataclass(frozen=True, slots=True)
class Metrics:
    """What one acquisition cost: handed to `observe` when the lock is released. Times in seconds."""

    state_ids: tuple[str, ...]
    attempts: int
    wait_seconds: float
    hold_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """How one locker behaves. Times in seconds.

    Attributes:
        settle_seconds: The pause before a decision; None: as the store asks for.
        lease_seconds: How long a holder may be silent before it may be deposed.
        timeout_seconds: How long to wait for somebody else's lock.
        retry_seconds: The longest pause between two looks.
        observe: Called with the `Metrics` of each released lock.
    """

    settle_seconds: float | None = None
    lease_seconds: float = STALE_LOCK_SECONDS
    timeout_seconds: float = LOCK_TIMEOUT_SECONDS
    retry_seconds: float = LOCK_RETRY_SECONDS
    observe: Callable[[Metrics], None] | None = None


class Lock:
    """The lock of one or several state IDs, held by one lock_id. `Locker` makes it."""

    def __init__(
        self,
        store: LockStore,
        state_ids: Iterable[str],
        lease_seconds: float,
        identity: Identity,
        born: int | None = None,
    ) -> None:
        self.lock_id = str(uuid.uuid4())
        self.lease_seconds = lease_seconds
        self._store = store
        self._pid = os.getpid()
        self._mutex = threading.Lock()  # the renewal thread writes rows, too
        self._writes: dict[str, int] = {}
        self._lost = False
        self._rows = {
            state_id: LockRow(state_id, self.lock_id, False, born, born, lease_seconds, 1, identity)
            for state_id in state_ids
        }

    @property
    def state_ids(self) -> tuple[str, ...]:
        """The state IDs that it covers."""
        return tuple(self._rows)

    def publish(self) -> None:
        """Insert the candidates."""
        self._store.insert(self._rows.values())

    def learn(self, own: LiveLock) -> None:
        """Take over the token and the birth that the server drew for a candidate."""
        self._rows[own.state_id] = replace(self._rows[own.state_id], token=own.token, born=own.born)

    def raise_tokens(self, tokens: Mapping[str, int]) -> None:
        """Publish greater tokens; the birth stays."""
        self._reinsert({state_id: {"token": token} for state_id, token in tokens.items()})

    def version(self, state_id: str) -> int:
        """The version, in microseconds, for the next write of a state: greater than that of every write before.

        Raises:
            StateLockLostError: If this holder was deposed.
        """
        self._refuse_if_lost(state_id)
        written = self._writes.get(state_id, 0)
        if written >= TOKEN_STEP:  # the next holder's versions begin there
            self._republish(state_id)
            written = 0
        self._writes[state_id] = written + 1
        token = self._rows[state_id].token
        assert token is not None, "held, so the token was read"  # noqa: S101
        return token + written

    def confirm(self, state_ids: Collection[str] | None = None) -> None:
        """Make sure that nobody deposed this holder until now; without that, no write counts as done.

        Raises:
            StateLockLostError: If it was deposed, or its row is gone.
        """
        asked = self.state_ids if state_ids is None else state_ids
        alive = self._store.alive(self.lock_id, asked)
        for state_id in asked:
            if state_id not in alive:
                self._lost = True
                raise _lost(state_id)

    def renew(self) -> None:
        """Say that the holder lives, then see whether it was deposed.

        Raises:
            StateLockLostError: If it was deposed.
        """
        self._reinsert({state_id: {} for state_id in self.state_ids})
        self.confirm()

    def release(self, state_ids: Collection[str] | None = None) -> None:
        """Insert tombstones for the own rows; they end this lock_id whatever lands later. No-op in a forked child."""
        if os.getpid() != self._pid:
            return
        dropped = self.state_ids if state_ids is None else tuple(state_ids)
        if dropped:
            self._reinsert({state_id: {"released": True} for state_id in dropped})
        for state_id in dropped:
            del self._rows[state_id]

    def _republish(self, state_id: str) -> None:
        view = self._store.read([state_id])[state_id]
        published = max([view.floor, *(lock.token for lock in view.live)])
        self.raise_tokens({state_id: published + TOKEN_STEP})
        self.confirm([state_id])

    def _reinsert(self, changes: Mapping[str, Mapping[str, object]]) -> None:
        with self._mutex:
            rows = {state_id: next_row(self._rows[state_id], **change) for state_id, change in changes.items()}
            self._store.insert(rows.values())
            self._rows.update(rows)

    def _refuse_if_lost(self, state_id: str) -> None:
        if self._lost or os.getpid() != self._pid:
            raise _lost(state_id)


@dataclass(slots=True)
class _Wait:
    """One caller's wait for locks of others: its end, its pauses, what it saw."""

    clock: Clock
    timeout_seconds: float
    retry_seconds: float
    attempts: int = 0
    started: float = field(init=False)
    told: bool = False
    last_try: bool = False
    seen: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.started = self.clock.monotonic()

    @property
    def seconds(self) -> float:
        return self.clock.monotonic() - self.started

    @property
    def over(self) -> bool:
        return self.seconds >= self.timeout_seconds

    def pause(self, views: Mapping[str, View]) -> None:
        """Sleep until the next look: not long behind a fresh lock, up to `retry_seconds` behind an old one."""
        age = min(view.live[0].age_seconds(view.now) for view in views.values() if view.live)
        longest = min(self.retry_seconds, self.timeout_seconds - self.seconds)
        seconds = min(age * PAUSE_PER_AGE, longest) * (0.5 + self.clock.jitter())
        self.clock.sleep(max(min(seconds, longest), SHORTEST_PAUSE_SECONDS))

    def silent(self, lock: LiveLock) -> bool:
        """Whether this waiter itself saw the lock unchanged for a whole lease: the server's clock may stand still."""
        key, now = (lock.state_id, lock.lock_id), self.clock.monotonic()
        at, since = self.seen.setdefault(key, (lock.locked_at, now))
        if at != lock.locked_at:
            self.seen[key] = lock.locked_at, now
            return False
        return now - since > lock.lease_seconds

    def tell(self, rivals: Collection[LiveLock], views: Mapping[str, View]) -> None:
        """Log once, after some patience, whom the caller waits for."""
        if not self.told and self.seconds >= PATIENCE_SECONDS:
            self.told = True
            first = next(iter(rivals))
            logger.info("Waiting for the lock of state %r, held by %s", first.state_id, _describe(first, views))


class Locker:
    """Takes locks on one store. Locks are per thread and state ID; one locker serves all threads."""

    def __init__(self, store: LockStore, options: LockOptions | None = None, clock: Clock | None = None) -> None:
        self.options = options or LockOptions()
        self._store = store
        self._clock = clock or Clock()
        self._local = threading.local()
        self._orphans: set[str] = set()  # lock_ids of this process whose release failed: nobody holds them

    def held(self, state_id: str) -> Lock | None:
        """The lock that this thread holds on a state ID."""
        return self._holdings().get(state_id)

    @contextmanager
    def hold(
        self,
        state_id: str,
        operation: str = "lock",
        *,
        timeout_seconds: float | None = None,
        retry_seconds: float | None = None,
    ) -> Iterator[Lock]:
        """Hold the lock of one state ID for the length of a `with` block, and renew it as long as that takes.

        Args:
            state_id: What to lock.
            operation: What others are told that the holder does.
            timeout_seconds: How long to wait for another holder.
            retry_seconds: The longest pause between two looks at another holder's lock.

        Raises:
            NestedLockError: If this thread holds it already.
            StateLockedError: If another holder kept it until the timeout.
        """
        locks = self.hold_each([state_id], operation, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds)
        with closing(locks):
            yield next(locks)

    def hold_each(
        self,
        state_ids: Collection[str],
        operation: str = "lock",
        *,
        timeout_seconds: float | None = None,
        retry_seconds: float | None = None,
    ) -> Generator[Lock, None, None]:
        """Hold the locks of many state IDs, part by part: a part is released before the next is waited for.

        Yields:
            Locks that together cover each state ID once. Use each one before asking for the next.

        Raises:
            NestedLockError: If this thread holds one of them already.
            StateLockedError: If another holder kept some until the timeout; the error names them, the others are done.
        """
        options = self.options
        wait = _Wait(
            self._clock,
            options.timeout_seconds if timeout_seconds is None else timeout_seconds,
            options.retry_seconds if retry_seconds is None else retry_seconds,
        )
        rest = dict.fromkeys(state_ids)
        self._refuse_nested(rest)
        free, born = self._first_look(tuple(rest), wait)
        while rest:
            lock = Lock(self._store, free, options.lease_seconds, identify(operation), born)
            with self._candidacy(lock, wait):
                for state_id in lock.state_ids:
                    del rest[state_id]
                if lock.state_ids:
                    yield lock
            if rest:
                free, born = self._until_free(tuple(rest), wait)

    def _first_look(self, state_ids: Collection[str], wait: _Wait) -> tuple[Collection[str], int | None]:
        """One state ID is inserted at once; many need one birth, which the server draws for them at a read."""
        return self._until_free(state_ids, wait) if len(state_ids) > 1 else (state_ids, None)

    @contextmanager
    def _candidacy(self, lock: Lock, wait: _Wait) -> Iterator[None]:
        """Compete once for each state ID of a lock, and hold what was won. Whatever happens, no row stays behind."""
        wait.attempts += 1
        try:
            lock.publish()
            self._decide(lock, wait)
            with self._holding(lock, wait):
                yield
        finally:
            self._abandon(lock)

    def _decide(self, lock: Lock, wait: _Wait) -> None:
        pending: Collection[str] = lock.state_ids
        while pending:
            self._settle()
            views = self._read_without_the_dead(pending, lock.lock_id, wait)
            for view in views.values():
                if own := view.own(lock.lock_id):
                    lock.learn(own)
            verdicts = {state_id: decide(view, lock.lock_id) for state_id, view in views.items()}
            logger.debug("lock %s: %s", lock.lock_id, {i: verdict.name for i, verdict in verdicts.items()})
            bumped, staying, leaving = _sorted_out(verdicts)
            if staying and (wait.over or bumped or len(staying) + len(leaving) < len(lock.state_ids)):
                leaving, staying = [*leaving, *staying], []  # whoever holds, or will hold, something never waits
            lock.release(leaving)
            if bumped:
                lock.raise_tokens({i: views[i].greatest(lock.lock_id) + TOKEN_STEP for i in bumped})
            if staying:
                self._pause(lock.lock_id, views, wait)
            pending = [*bumped, *staying]

    def _until_free(self, state_ids: Collection[str], wait: _Wait) -> tuple[Collection[str], int]:
        """Look, and only look, until some of the state IDs have no lock; and tell the server's time."""
        while True:
            views = self._read_without_the_dead(state_ids, "", wait)
            free = [state_id for state_id in state_ids if not views[state_id].live]
            if free and not wait.last_try:
                wait.last_try = wait.over
                return free, views[free[0]].now
            if wait.over:
                raise locked(views)
            self._pause("", views, wait)

    def _read_without_the_dead(self, state_ids: Collection[str], lock_id: str, wait: _Wait) -> Mapping[str, View]:
        """Read; revoke the rivals that are over, and read again until there are none."""
        while True:
            views = self._store.read(state_ids)
            dead = [
                rival for view in views.values() for rival in view.rivals(lock_id) if self._is_over(rival, view, wait)
            ]
            if not dead:
                return views
            for rival in dead:
                logger.warning("Taking over the lock of state %r from %s", rival.state_id, _describe(rival, views))
            self._store.insert([tombstone_of(rival, identify("take over")) for rival in dead])

    def _is_over(self, rival: LiveLock, view: View, wait: _Wait) -> bool:
        return (
            rival.lock_id in self._orphans
            or rival.lease_seconds_left(view.now) < 0
            or wait.silent(rival)
            or is_dead(rival.identity.process)
        )

    @contextmanager
    def _holding(self, lock: Lock, wait: _Wait) -> Iterator[None]:
        waited, since = wait.seconds, self._clock.monotonic()
        holdings, state_ids = self._holdings(), lock.state_ids
        holdings.update(dict.fromkeys(state_ids, lock))
        renewal = _Renewal(lock)
        renewal.start()
        try:
            yield
        finally:
            renewal.stop()
            for state_id in state_ids:
                holdings.pop(state_id, None)
            if self.options.observe and state_ids:
                held = self._clock.monotonic() - since
                self.options.observe(Metrics(state_ids, wait.attempts, waited, held))

    def _abandon(self, lock: Lock) -> None:
        """Release; when that fails, the lock ends with its lease, and at once for this process."""
        self._orphans.add(lock.lock_id)
        try:
            lock.release()
        except Exception as error:  # whatever it is, it must not mask what happened in the body
            logger.warning("The lock of %s could not be released: %s", ", ".join(map(repr, lock.state_ids)), error)
        else:
            self._orphans.discard(lock.lock_id)

    def _holdings(self) -> dict[str, Lock]:
        return self._local.__dict__.setdefault("holdings", {})  # type: ignore[no-any-return]

    def _refuse_nested(self, state_ids: Iterable[str]) -> None:
        for state_id in state_ids:
            if self.held(state_id):
                raise NestedLockError(
                    f"This thread holds the lock of state {state_id!r} already", "Use the lock it holds, or release it"
                )

    def _settle(self) -> None:
        asked = self.options.settle_seconds
        seconds = self._store.settle_seconds() if asked is None else asked
        if seconds:
            self._clock.sleep(seconds)

    def _pause(self, lock_id: str, views: Mapping[str, View], wait: _Wait) -> None:
        wait.tell([rival for view in views.values() for rival in view.rivals(lock_id)], views)
        wait.pause(views)


class _Renewal:
    """Renews a lock from a thread of its own, from a third of the lease on, until it is stopped."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"renew {lock.lock_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for a renewal under way: no row may follow the tombstone. (It would not count.)."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._lock.lease_seconds / RENEWALS_PER_LEASE) and self._renewed():
            pass

    def _renewed(self) -> bool:
        try:
            self._lock.renew()
        except StateLockLostError as error:
            logger.warning("%s", error)
            return False
        except Exception as error:  # tried again; the lease tells others what to think
            logger.warning("The lock of %r could not be renewed: %s", self._lock.state_ids, error)
        return True


def _sorted_out(verdicts: Mapping[str, Verdict]) -> tuple[list[str], list[str], list[str]]:
    """The state IDs to bump, those to stay for, and those to leave."""
    bumped = [state_id for state_id, verdict in verdicts.items() if verdict is Verdict.BUMP]
    staying = [state_id for state_id, verdict in verdicts.items() if verdict is Verdict.STAY]
    leaving = [state_id for state_id, verdict in verdicts.items() if verdict in {Verdict.WITHDRAW, Verdict.LOST}]
    return bumped, staying, leaving


def locked(views: Mapping[str, View]) -> StateLockedError:
    """The error that tells who holds what one waited for in vain."""
    live = [view.live[0] for view in views.values() if view.live]
    if not live:
        return _named_error(tuple(views), "wanted by others all the time")
    error = _named_error(tuple(lock.state_id for lock in live), f"locked by {_describe(live[0], views)}")
    now = views[live[0].state_id].now
    error.holder, error.operation = live[0].identity.holder, live[0].identity.operation
    error.lock_id, error.age_seconds = live[0].lock_id, live[0].age_seconds(now)
    error.lease_seconds_left = live[0].lease_seconds_left(now)
    return error


def merged(errors: Sequence[StateLockedError]) -> StateLockedError:
    """One error for several: the first, with the state IDs of all."""
    if len(errors) == 1:
        return errors[0]
    state_ids = tuple(state_id for error in errors for state_id in error.state_ids)
    return _named_error(state_ids, f"locked, the first by {errors[0].holder}")


def _named_error(state_ids: tuple[str, ...], complaint: str) -> StateLockedError:
    names = ", ".join(map(repr, state_ids[:NAMED_IN_ERRORS]))
    more = f" and {len(state_ids) - NAMED_IN_ERRORS} more" if len(state_ids) > NAMED_IN_ERRORS else ""
    error = StateLockedError(
        f"State {names}{more} is {complaint}",
        "Wait for it, or raise lock_acquire_timeout_seconds; a dead holder's lock ends by itself with its lease",
    )
    error.state_ids = state_ids
    return error


def _lost(state_id: str) -> StateLockLostError:
    return StateLockLostError(
        f"The lock of state {state_id!r} was lost to another holder, so this write does not count",
        "Run it again; if it was paused for long, raise stale_lock_seconds",
    )


def _describe(lock: LiveLock, views: Mapping[str, View]) -> str:
    now = views[lock.state_id].now
    return (
        f"{lock.identity.holder} ({lock.identity.operation}, for {lock.age_seconds(now):.1f} s,"
        f" lease left {lock.lease_seconds_left(now):.1f} s, lock_id {lock.lock_id})"
    )
