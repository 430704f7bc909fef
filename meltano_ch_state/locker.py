"""Takes locks: competes, queues up, takes over what dead holders left, holds and releases.

Uncontended, taking a lock is one insert and one read, and releasing it is one insert; nobody sleeps. Who finds somebody
else withdraws, takes a place in the queue, and watches only the one before it, so turns come in order.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from meltano_ch_state.errors import ConfigurationError, NestedLockError
from meltano_ch_state.lock import Lock, LockStore, describe, locked
from meltano_ch_state.process import identify, is_dead
from meltano_ch_state.protocol import TOKEN_STEP, LiveLock, LockRow, Verdict, View, decide, tombstone_of
from meltano_ch_state.renewal import RENEWALS_PER_LEASE, Renewal
from meltano_ch_state.settings import LOCK_RETRY_SECONDS, LOCK_TIMEOUT_SECONDS, STALE_LOCK_SECONDS, Settings
from meltano_ch_state.waiting import Clock, Wait

PLACE_LEASE_SECONDS = 10.0
"""A place in the queue counts for so long, in seconds, after its owner was last heard of."""
FULL_LOOK_SECONDS = 2.0
"""A waiter asks only for the lock_ids before it, which is cheap; it looks at all rows again after so many seconds."""
SHORTEST_LEASE = 3.0
"""A lease is at least so many times the pause before a decision, or what was written before it is over when it ends."""
CONTENDED_SECONDS = 1.0
"""For so long after a contended release, in seconds, this process queues up first: others may wait."""

logger = logging.getLogger(__name__)


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

    @classmethod
    def of(cls, settings: Settings) -> LockOptions:
        """The options that the settings ask for."""
        return cls(
            settle_seconds=settings.lock_settle_seconds,
            lease_seconds=settings.stale_lock_seconds,
            timeout_seconds=settings.lock_acquire_timeout_seconds,
            retry_seconds=settings.lock_retry_seconds,
        )


def tell_of_take_over(lock: LiveLock, now: int) -> None:
    """Log whose lock is taken over."""
    logger.warning("Taking over the lock of state %r from %s", lock.state_id, describe(lock, now))


class BaseLocker(ABC):
    """What every way to lock has in common: which thread holds what, renewal while that lasts, and what it cost."""

    def __init__(self, store: LockStore, options: LockOptions | None = None, clock: Clock | None = None) -> None:
        """Bind a store; nothing is sent yet."""
        self._store = store
        self.options = options or LockOptions()
        self._clock = clock or Clock()
        self._local = threading.local()
        self._contended: dict[str, float] = {}  # when this process last released what others waited for
        self._orphans: set[str] = set()  # lock_ids of this process that nobody holds, and whose release is not done

    def held(self, state_id: str) -> Lock | None:
        """The lock that this thread holds on a state ID."""
        lock = self._holdings().get(state_id)
        return lock if lock and lock.covers(state_id) else None  # an interrupt may leave here what was released

    @contextmanager
    def hold(self, state_id: str, operation: str = "lock", **limits: float | None) -> Iterator[Lock]:
        """Hold the lock of one state ID for the length of a `with` block, and renew it as long as that takes.

        Args:
            state_id: What to lock.
            operation: What others are told that the holder does.
            limits: `timeout_seconds` and `retry_seconds`, in place of the options'.

        Raises:
            ConfigurationError: If the lease is too short for the pause before a decision.
            NestedLockError: If this thread holds it already.
            StateLockedError: If another holder kept it until the timeout.
            StateLockLostError: At the end of the block, if what was written in it `counts_when_released`, and this
                holder was deposed.
        """
        with closing(self.hold_each([state_id], operation, **limits)) as locks:
            yield next(locks)
            next(locks, None)

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
            Locks that together cover each state ID once. Use each one before asking for the next; what was written
            under one that `counts_when_released` counts when the next, or the end, was asked for.

        Raises:
            ConfigurationError: If the lease is too short for the pause before a decision.
            NestedLockError: If this thread holds one of them already.
            StateLockedError: If another holder kept some until the timeout; the error names them, the others are done.
            StateLockLostError: If this holder was deposed, and its writes count when it releases.
        """
        self._refuse_short_lease()
        self._refuse_nested(state_ids)
        wait = self._new_wait(timeout_seconds, retry_seconds)
        try:
            yield from self._hold_parts(state_ids, operation, wait)
        finally:
            if wait.contended:
                self._contended.update(dict.fromkeys(state_ids, self._clock.monotonic()))

    @abstractmethod
    def _hold_parts(self, state_ids: Collection[str], operation: str, wait: Wait) -> Iterator[Lock]:
        """Compete for some state IDs until each has been held once; no row stays behind, however it ends."""

    def _new_wait(self, timeout_seconds: float | None, retry_seconds: float | None) -> Wait:
        timeout = self.options.timeout_seconds if timeout_seconds is None else timeout_seconds
        retry = self.options.retry_seconds if retry_seconds is None else retry_seconds
        return Wait(self._clock, timeout, retry)

    def _wanted_lately(self, state_ids: Iterable[str]) -> bool:
        """Whether others waited for one of them when this process released it a moment ago."""
        released = max((self._contended.get(state_id, float("-inf")) for state_id in state_ids), default=float("-inf"))
        return self._clock.monotonic() - released <= CONTENDED_SECONDS

    def _those_over(self, locks: Iterable[LiveLock], views: Mapping[str, View], wait: Wait) -> list[LiveLock]:
        """Those of some locks that may be taken for given up."""
        asked = list(locks)
        dead = {process for process in {lock.identity.process for lock in asked} if is_dead(process)}
        return [lock for lock in asked if self._is_over(lock, views[lock.state_id].now, dead, wait)]

    def _take_over(self, abandoned: Collection[LiveLock], views: Mapping[str, View]) -> None:
        """Revoke locks by a tombstone each. Whether that was in time, the next read tells."""
        for lock in abandoned:
            tell_of_take_over(lock, views[lock.state_id].now)
        by = identify("take over")
        self._store.insert([tombstone_of(lock, by) for lock in abandoned])

    def _is_over(self, lock: LiveLock, now: int, dead: Collection[str], wait: Wait) -> bool:
        """Whether a lock or a place may be taken for given up.

        Its owner was silent for a lease, by the server's clock or by this waiter's own; or it is a dead process of this
        host; or this process itself failed to release it.
        """
        return (
            lock.lease_seconds_left(now) < 0
            or lock.identity.process in dead
            or lock.lock_id in self._orphans
            or wait.sees_silence(lock)
        )

    @contextmanager
    def _holding(self, lock: Lock, wait: Wait) -> Iterator[None]:
        """Have this thread hold a lock, and renew it. An interrupt, whenever it comes, leaves nothing held."""
        waited, since = wait.seconds, self._clock.monotonic()
        holdings, state_ids = self._holdings(), lock.state_ids
        renewal = Renewal(lock)
        try:
            holdings.update(dict.fromkeys(state_ids, lock))
            renewal.start()
            yield
        finally:
            try:
                renewal.stop()
            finally:
                for state_id in state_ids:
                    holdings.pop(state_id, None)
            if state_ids:
                self._observe(Metrics(state_ids, wait.attempts, waited, self._clock.monotonic() - since))

    def _observe(self, metrics: Metrics) -> None:
        if self.options.observe is None:
            return
        try:
            self.options.observe(metrics)
        except Exception as error:  # it must not mask what happened in the body, nor undo what was done there
            logger.warning("What observes the locks failed: %s", error)

    def _settle(self) -> None:
        if seconds := self._settle_seconds():
            self._clock.sleep(seconds)

    def _settle_seconds(self) -> float:
        asked = self.options.settle_seconds
        return self._store.settle_seconds() if asked is None else asked

    def _refuse_short_lease(self) -> None:
        lease, settle = self.options.lease_seconds, self._settle_seconds()
        if lease < settle * SHORTEST_LEASE:
            raise ConfigurationError(
                f"stale_lock_seconds is {lease:g}, too short for locks that settle for {settle:g} s",
                f"Set stale_lock_seconds to at least {settle * SHORTEST_LEASE:g}, or lock_settle_seconds to less",
            )

    @contextmanager
    def _ending(self, lock: Lock) -> Iterator[None]:
        """Release a lock in a `with` block.

        When that fails, the lock ends with its lease, and at once for this process. After an interrupt it may be done
        once more.
        """
        self._orphans.add(lock.lock_id)
        try:
            yield
        except Exception as error:  # it must not mask what happened in the body
            logger.warning("The lock of %s could not be released: %s", ", ".join(map(repr, lock.state_ids)), error)
        else:
            self._orphans.discard(lock.lock_id)
        lock.forget(lock.state_ids)

    def _holdings(self) -> dict[str, Lock]:
        return self._local.__dict__.setdefault("holdings", {})  # type: ignore[no-any-return]

    def _refuse_nested(self, state_ids: Iterable[str]) -> None:
        for state_id in state_ids:
            if self.held(state_id):
                raise NestedLockError(
                    f"This thread holds the lock of state {state_id!r} already", "Use the lock it holds, or release it"
                )


class Locker(BaseLocker):
    """Takes locks on one store. Locks are per thread and state ID; one locker serves all threads."""

    def _hold_parts(self, state_ids: Collection[str], operation: str, wait: Wait) -> Iterator[Lock]:
        turn = _Turn(dict.fromkeys(state_ids), operation, wait)
        try:
            yield from self._hold_rest(turn)
        finally:
            self._bury(turn.lock, turn.place)  # unless it is done: an interrupt may have come before
            self._bury(turn.place)

    def _hold_rest(self, turn: _Turn) -> Iterator[Lock]:
        free = self._first_look(turn)
        while turn.rest:
            lock = self._new_lock(free, turn)
            with self._candidacy(lock, turn):
                for state_id in lock.state_ids:
                    del turn.rest[state_id]
                if lock.state_ids:
                    yield lock
            if turn.rest:
                free = self._until_turn(turn)

    def _first_look(self, turn: _Turn) -> Collection[str]:
        """Compete at once, for one state ID unless others wanted it lately; many get one birth, the server's time."""
        state_ids = tuple(turn.rest)
        if len(state_ids) > 1:
            turn.born = self._store.now()
            return state_ids
        return self._until_turn(turn) if self._wanted_lately(state_ids) else state_ids

    def _new_lock(self, state_ids: Collection[str], turn: _Turn, *, waiting: bool = False) -> Lock:
        born = turn.place.born if turn.place else turn.born
        lease = PLACE_LEASE_SECONDS if waiting else self.options.lease_seconds
        return Lock(self._store, state_ids, lease, identify(turn.operation), born=born, waiting=waiting)

    @contextmanager
    def _candidacy(self, lock: Lock, turn: _Turn) -> Iterator[None]:
        """Compete once for each state ID of a lock, and hold what was won. Whatever happens, no row stays behind."""
        turn.wait.attempts += 1
        turn.lock = lock
        try:
            self._store.insert(lock.rows)
            self._decide(lock, turn)
            with self._holding(lock, turn.wait):
                yield
        finally:
            self._bury(lock, turn.place)

    def _decide(self, lock: Lock, turn: _Turn) -> None:
        """Settle, read and decide, until each state ID is held or withdrawn."""
        since = touched = self._clock.monotonic()
        pending: Collection[str] = lock.state_ids
        while pending:
            self._settle()
            views = self._look(pending, lock.lock_id, turn.wait)
            for view in views.values():
                if own := view.own(lock.lock_id):
                    lock.learn(own, view)
            verdicts = {state_id: decide(view, lock.lock_id) for state_id, view in views.items()}
            logger.debug("lock %s: %s", lock.lock_id, {i: verdict.name for i, verdict in verdicts.items()})
            bumped, staying, leaving = _sorted_out(verdicts)
            if staying and (turn.wait.over or bumped or len(staying) + len(leaving) < len(lock.state_ids)):
                leaving, staying = [*leaving, *staying], []  # whoever holds, or will hold, something never waits
            if leaving:
                self._withdraw(lock, leaving, turn)
            if bumped:
                lock.raise_tokens({i: views[i].greatest(lock.lock_id) + TOKEN_STEP for i in bumped})
            if staying:
                rival, now = _first_rival(views, lock.lock_id)
                turn.wait.meets(rival, describe(rival, now))
                turn.wait.pause(self._clock.monotonic() - since)
                if self._clock.monotonic() - touched > lock.lease_seconds / RENEWALS_PER_LEASE:
                    touched = self._clock.monotonic()
                    lock.touch()  # or others take it for dead just when it gets the lock
            pending = [*bumped, *staying]

    def _withdraw(self, lock: Lock, state_ids: Collection[str], turn: _Turn) -> None:
        """End a candidacy, and keep its seniority as a place in the queue."""
        rows: list[LockRow] = []
        if turn.place is None and lock.born is not None:
            turn.born = lock.born
            turn.place = self._new_lock(turn.rest, turn, waiting=True)
            rows.extend(turn.place.rows)
        turn.wait.contended = True
        self._store.insert([*rows, *lock.end(state_ids)])
        lock.forget(state_ids)

    def _until_turn(self, turn: _Turn) -> Collection[str]:
        """Wait in the queue, and only look, until nobody is before us for some of the state IDs."""
        if turn.place is None:
            turn.place = self._new_lock(turn.rest, turn, waiting=True)
            self._store.insert(turn.place.rows)
        while True:
            views = self._look(tuple(turn.rest), "", turn.wait)
            before = {state_id: self._before(view, turn.place) for state_id, view in views.items()}
            now = max(view.now for view in views.values())
            free = [state_id for state_id, others in before.items() if not others]
            if free and not turn.wait.last_try:
                turn.wait.last_try = turn.wait.over
                return free
            if turn.wait.over:
                raise locked(before, now)
            if self._outlast(next(filter(None, before.values())), now, turn) and len(turn.rest) == 1:
                return tuple(turn.rest)

    def _before(self, view: View, place: Lock) -> tuple[LiveLock, ...]:
        """Who is before us: holders and contenders, then the places in the queue before ours; the nearest last."""
        own = next((other for other in view.queue if other.lock_id == place.lock_id), None)
        if own is None:  # ours is swept, or too old to count: the end of the queue
            return (*view.live, *view.queue)
        place.learn(own)
        return (*view.live, *view.waiting_before(own.order))

    def _outlast(self, others: Sequence[LiveLock], now: int, turn: _Turn) -> bool:
        """Sleep as long as the nearest of the others is there, but not long without a look at all rows.

        Returns:
            Whether it went.
        """
        turn.wait.meets(others[0], describe(others[0], now))
        began = changed = self._clock.monotonic()
        patience = min(FULL_LOOK_SECONDS, *(max(lock.lease_seconds_left(now), 0.0) for lock in others))
        births = {lock.lock_id: lock.born for lock in others}  # a holder that queued has two lock_ids of one birth
        while self._clock.monotonic() - began <= patience and not turn.wait.over:
            turn.wait.pause(self._clock.monotonic() - changed, len(set(births.values())))
            alive = {lock_id for _, lock_id in self._store.alive([others[-1].state_id], births)}
            if others[-1].lock_id not in alive:
                return True
            if len(alive) < len(births):
                left = {lock_id: births[lock_id] for lock_id in alive}
                ended = len(set(births.values())) - len(set(left.values()))
                turn.wait.sees_turns(ended, self._clock.monotonic() - changed)
                births, changed = left, self._clock.monotonic()
            if any(is_dead(lock.identity.process) for lock in others if lock.lock_id in births):
                break
        self._keep(turn)
        return False

    def _keep(self, turn: _Turn) -> None:
        """Say that we still wait, now and then."""
        if turn.place and turn.wait.seconds - turn.touched > PLACE_LEASE_SECONDS / RENEWALS_PER_LEASE:
            turn.touched = turn.wait.seconds
            turn.place.touch()

    def _look(self, state_ids: Collection[str], lock_id: str, wait: Wait) -> Mapping[str, View]:
        """Read; revoke the rivals that are over, and read again until there are none. Leave out places given up."""
        while True:
            wait.asks()
            views = self._store.read(state_ids)
            locks = [lock for view in views.values() for lock in (*view.rivals(lock_id), *view.queue)]
            over = self._those_over(locks, views, wait)
            abandoned = [lock for lock in over if not lock.waiting]
            if not abandoned:
                return {state_id: view.without(over) for state_id, view in views.items()} if over else views
            self._take_over(abandoned, views)

    def _bury(self, lock: Lock | None, place: Lock | None = None) -> None:
        """Release a lock, and the place in the queue for the same state IDs."""
        if lock is None or not lock.state_ids:
            return
        with self._ending(lock):
            ended = lock.state_ids
            if rows := [*lock.end(), *(place.end(ended) if place else ())]:
                self._store.insert(rows)
            if place:
                place.forget(ended)


@dataclass(slots=True)
class _Turn:
    """What one call still wants, its wait, the lock that it competes with, and its place in the queue."""

    rest: dict[str, None]
    operation: str
    wait: Wait
    born: int | None = None
    lock: Lock | None = None
    place: Lock | None = None
    touched: float = 0.0


def _first_rival(views: Mapping[str, View], lock_id: str) -> tuple[LiveLock, int]:
    """The first lock of somebody else, and the server's time."""
    return next((rival, view.now) for view in views.values() for rival in view.rivals(lock_id))


def _sorted_out(verdicts: Mapping[str, Verdict]) -> tuple[list[str], list[str], list[str]]:
    """The state IDs to bump, those to stay for, and those to leave."""
    bumped = [state_id for state_id, verdict in verdicts.items() if verdict is Verdict.BUMP]
    staying = [state_id for state_id, verdict in verdicts.items() if verdict is Verdict.STAY]
    leaving = [state_id for state_id, verdict in verdicts.items() if verdict in {Verdict.WITHDRAW, Verdict.LOST}]
    return bumped, staying, leaving
