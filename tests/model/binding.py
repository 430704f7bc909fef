"""The product's own `StateStore` and `Locker` under a scheduler: the model's promises, asked of the code itself.

Each client is a `StateStore` over a `Locker`, imported and unchanged, and runs in a greenlet. It stops before each call
to its store, and the scheduler picks who goes on, and what befalls the call. Only the store, the time, the names of
lock_ids, the identity of processes, and the renewal thread are the scheduler's own.

`explore` tries every schedule, depth first: each run starts anew and follows a prefix of choices. A client's next step
depends only on the answers that it got until then, so two prefixes that lead to the same tables and the same answers
lead to the same future, and only one of them is followed. `sample` tries schedules at random.
"""

from __future__ import annotations

import json
import logging
import random
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Protocol
from unittest.mock import patch

from greenlet import greenlet  # type: ignore[import-untyped]

from meltano_ch_state import keeper as keeper_module
from meltano_ch_state import lock as lock_module
from meltano_ch_state import locker as locker_module
from meltano_ch_state.errors import LockError, ServerUnreachableError, StateLockedError, StateLockLostError
from meltano_ch_state.keeper import Cell, KeeperLocker
from meltano_ch_state.lock import Lock
from meltano_ch_state.locker import Locker, LockOptions
from meltano_ch_state.process import Identity
from meltano_ch_state.protocol import LockRow, StateRow, View
from meltano_ch_state.store import State, StateStore
from meltano_ch_state.testing import MemoryDatabase, MemoryLocks, MemorySchema, MemoryStates
from meltano_ch_state.waiting import Clock
from tests.model.keeper_memory import SENT_AGAIN, SteppedKeeper

START = 1_700_000_000_000_000
LEASE_SECONDS = 12.0
OPTIONS = LockOptions(lease_seconds=LEASE_SECONDS, timeout_seconds=300.0, retry_seconds=0.1)
IDLE_SECONDS = 3.0
"""So much time passes when nobody has anything to do but wait: more than a waiter's patience without a full look."""
BACK_SECONDS = 0.005
"""So far the server's clock steps back: the width of five tokens."""
MOST_STEPS = 600

FAULTS_OF_WRITES = ("crash", "crash after", "fails", "lost", "late", "twice", "back")
FAULTS_OF_READS = ("crash", "fails")
REPEATED = "again"
"""The answer is lost, and the call made again, where its answer tells something."""
STALE = "an old answer"
"""A look sees the rows in Keeper as they were before the last change."""
JUMP = "the lease is over"
HALF_JUMP = "half the lease is over"
JUMPS = {JUMP: LEASE_SECONDS + 1, HALF_JUMP: LEASE_SECONDS * 0.55}
"""How much time passes at once, in seconds: a holder may be over while a guard that is younger is not."""

Operation = tuple[str, tuple[str, ...]]
"""What to do (`update`, `checked_update`, `renewed_update`, `set`, ...), and with which state IDs."""

UPDATE: Operation = ("update", ("1",))
CHECKED_UPDATE: Operation = ("checked_update", ("1",))
"""Its write counts before its lock is released."""
RENEWED_UPDATE: Operation = ("renewed_update", ("1",))
"""Its lock is renewed after the write."""
SET: Operation = ("set", ("1",))
CLEAR: Operation = ("clear", ("1",))
SET_ALL: Operation = ("set_all", ("1", "2"))
SET_ALL_BACKWARDS: Operation = ("set_all", ("2", "1"))


@dataclass(frozen=True)
class Setup:
    """What is explored.

    Attributes:
        scripts: The operations of each client, one after the other.
        faults: What may befall calls: of `FAULTS_OF_WRITES`, `REPEATED`, `STALE`, and of `JUMPS`, by which leases are
            over at any time.
        most_faults: How many of them there are in one run at most.
        tick: How far the server's clock moves with each insert, in microseconds; 0: all ties.
        same_host: Whether others see at once that a process is dead.
        locks: The lock table.
        keeper: The clients, by their numbers, that lock in Keeper; then `locks` is a `MemoryKeeper`.
        torn: Whether a read sees the states at an earlier time than the locks; state 1 is there from the start.
    """

    scripts: Sequence[Sequence[Operation]]
    faults: Collection[str] = ()
    most_faults: int = 1
    tick: int = 1
    same_host: bool = False
    locks: type[MemoryLocks] = MemoryLocks
    torn: bool = False
    keeper: Collection[int] = ()


class CrashedError(BaseException):
    """This client is no more; not even `except Exception` sees that."""


class ViolationError(Exception):
    """A promise does not hold."""


@dataclass(frozen=True)
class Outcome:
    """What an exploration found.

    Attributes:
        runs: How many schedules were followed to their end, or to where another had been.
        complete: How many of them came to their end.
        states: How many distinct situations there were before a step.
        broken: The promise that does not hold; None when all is well.
        schedule: The steps that lead there.
    """

    runs: int
    complete: int
    states: int
    broken: str | None = None
    schedule: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = f"{self.runs} runs, {self.complete} of them complete, {self.states} states"
        if self.broken is None:
            return f"{told}, all is well"
        return "\n".join([f"{told}, BROKEN: {self.broken}", *(f"  {step}" for step in self.schedule)])


@dataclass(eq=False)
class Call:
    """One operation of one client, and what became of it."""

    label: str
    kind: str
    state_ids: tuple[str, ...]
    acknowledged: bool = False


@dataclass(frozen=True)
class Write:
    """A version that landed; `order` tells which hold it was written in."""

    state_id: str
    version: int
    label: str
    order: int
    call: Call

    @property
    def blind(self) -> bool:
        """Whether it replaces what is there without a read."""
        return not self.call.kind.endswith("update")


@dataclass(frozen=True)
class Action:
    """What the scheduler may do next: let a client make its call, let an insert land, or let time pass."""

    what: str
    client: Client | None = None
    late: int = 0

    def __str__(self) -> str:
        if self.client:
            return f"{self.client.name} {self.client.doing}" + (f": {self.what}" if self.what else "")
        return self.what


class Client:
    """One process: it runs its script on the product's classes, and stops before each call to the store."""

    def __init__(self, world: World, name: str, script: Sequence[Operation]) -> None:
        self.name = name
        self.doing = "starts"
        self.writing = self.ending = self.repeating = self.crashed = False
        self.stale: Callable[[], Any] | None = None
        self.past: Hashable = name
        self.call: Call
        self.order: dict[str, int] = {}
        self.lock_ids = 0
        self.seconds = 0.0
        self.seen: int | None = None
        self._world = world
        self._script = script
        clock = Clock(lambda: self.seconds, self._sleep, lambda: 0.5, lambda: self.seconds)
        rows = SteppedLocks(world, self)
        locker = (
            KeeperLocker(SteppedKeeper(world, self, rows), OPTIONS, clock)
            if len(world.clients) in world.setup.keeper
            else Locker(rows, OPTIONS, clock)
        )
        self._store = StateStore(SteppedStates(world, self), locker, MemorySchema())
        self._fiber = greenlet(self._run)
        self._fiber.switch()

    @property
    def finished(self) -> bool:
        """Whether it has nothing more to do."""
        return bool(self._fiber.dead)

    @property
    def ready(self) -> bool:
        """Whether it has something to do: a waiter goes on only when something has happened since its last look."""
        return not self.finished and self.seen != self._world.changes

    def step(self, fault: str) -> None:
        """Go on until the next call."""
        self._fiber.switch(fault)

    def kill(self) -> None:
        """Unwind without another call to the store."""
        self.crashed = True
        if not self.finished:
            self._fiber.throw(CrashedError)

    def stop(
        self,
        doing: str,
        act: Callable[[], Any],
        *,
        writing: bool = False,
        ending: bool = False,
        repeating: bool = False,
        stale: Callable[[], Any] | None = None,
    ) -> Any:
        """Let the scheduler decide when, and what befalls the call."""
        if self.crashed and writing:  # on its way out it releases what it held: that is never sent
            return None
        if self.crashed:
            raise CrashedError
        self.doing, self.writing, self.ending, self.repeating = doing, writing, ending, repeating
        self.stale = stale
        fault = self._fiber.parent.switch()
        self.seen = None
        self._world.current = self
        try:
            answer = self._world.perform(self, fault, act)
        except ServerUnreachableError:
            self.past = hash((self.past, fault))
            raise
        self.past = hash((self.past, _frozen(answer), self._world.dead))
        return answer

    def _sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.seen = self._world.changes

    def _run(self) -> None:
        for number, (kind, state_ids) in enumerate(self._script):
            self.call = Call(f"{self.name}{number}", kind, state_ids)
            self._world.calls.append(self.call)
            try:
                getattr(self, f"_{kind}")(self.call.label, *state_ids)
                self.call.acknowledged = True
            except StateLockedError:
                self._world.broken = "nobody waits in vain"
            except (LockError, ServerUnreachableError) as error:
                self._world.failed.append(f"{self.call.label}: {error}")
            except CrashedError:
                return

    def _update(self, label: str, state_id: str, *, counts_when_released: bool = True, renewed: bool = False) -> None:
        with self._store.lock(state_id, "update", counts_when_released=counts_when_released) as lock:
            state = self._store.get(state_id)
            labels = state.completed_state["by"] if state else []
            self._store.set(_state(state_id, *labels, label))
            if renewed:
                with suppress(StateLockLostError, ServerUnreachableError):  # as the renewal thread
                    lock.renew()

    def _checked_update(self, label: str, state_id: str) -> None:
        self._update(label, state_id, counts_when_released=False)

    def _renewed_update(self, label: str, state_id: str) -> None:
        self._update(label, state_id, renewed=True)

    def _set(self, label: str, state_id: str) -> None:
        self._store.set(_state(state_id, label))

    def _clear(self, _label: str, state_id: str) -> None:
        self._store.clear(state_id)

    def _set_all(self, label: str, *state_ids: str) -> None:
        self._store.set_all([_state(state_id, label) for state_id in state_ids])


class SteppedLocks:
    """A client's lock store."""

    def __init__(self, world: World, client: Client) -> None:
        self._world, self._client = world, client

    def insert(self, rows: Collection[LockRow]) -> None:
        sent = tuple(rows)  # a duplicate that lands later is what was sent, whatever became of the client since
        told = "inserts " + ", ".join(
            f"{'tombstone' if row.released else 'place' if row.waiting else 'row'} {row.lock_id}/{row.state_id}"
            + (f" token +{row.token - START}" if row.token else "")
            for row in sent
        )
        ending = any(row.released for row in sent)
        self._client.stop(told, lambda: self._world.locks.insert(sent), writing=True, ending=ending)

    def read(self, state_ids: Collection[str]) -> Mapping[str, View]:
        asked = tuple(state_ids)
        if not self._world.setup.torn:
            return self._client.stop("reads", lambda: self._world.locks.read(asked))  # type: ignore[no-any-return]
        states = self._client.stop("reads states", self._world.database.states.copy)

        def read() -> Mapping[str, View]:
            return {i: replace(view, state=states.get(i)) for i, view in self._world.locks.read(asked).items()}

        return self._client.stop("reads locks", read)  # type: ignore[no-any-return]

    def alive(self, state_ids: Collection[str], lock_ids: Collection[str]) -> Collection[tuple[str, str]]:
        asked = tuple(state_ids), tuple(lock_ids)
        told = f"asks whether {', '.join(asked[1])} is alive"
        return self._client.stop(told, lambda: self._world.locks.alive(*asked))  # type: ignore[no-any-return]

    def now(self) -> int:
        return self._client.stop("asks for the time", lambda: self._world.clock)  # type: ignore[no-any-return]

    def settle_seconds(self) -> float:
        return 0.0


class SteppedStates(MemoryStates):
    """A client's state store."""

    def __init__(self, world: World, client: Client) -> None:
        super().__init__(world.database)
        self._world, self._client = world, client

    def get(self, state_id: str) -> StateRow | None:
        get = super().get
        return self._client.stop("gets the state", lambda: get(state_id))  # type: ignore[no-any-return]

    def insert_versions(self, rows: Iterable[StateRow]) -> None:
        sent, client, insert = tuple(rows), self._client, super().insert_versions
        writes = {
            Write(r.state_id, r.updated_at, client.call.label, client.order[r.state_id], client.call) for r in sent
        }

        def land() -> None:
            insert(sent)
            self._world.writes |= writes

        told = "writes " + ", ".join(f"{row.state_id} version +{row.updated_at - START}" for row in sent)
        client.stop(told, land, writing=True)


class World:
    """One run: the tables, the clients, and what may happen next."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.clock = START
        self.database = MemoryDatabase(now=lambda: self.clock)
        if setup.torn:
            self.database.states["1"] = StateRow("1", None, '{"by": []}', START - 1_000_000)
        self.locks = setup.locks(self.database)
        self.changes = 0
        self.earlier: dict[str, Cell] = {}
        self.faults = setup.most_faults
        self.jumped = False
        self.idle = 0
        self.late: list[tuple[str, Callable[[], None]]] = []
        self.inside: dict[str, list[tuple[Client, Lock]]] = {}
        self.holds: list[tuple[str, str]] = []
        self.calls: list[Call] = []
        self.writes: set[Write] = set()
        self.leaves_rows: set[Client] = set()
        self.failed: list[str] = []
        self.broken: str | None = None
        self.current: Client
        self.clients: list[Client] = []

    def begin(self) -> None:
        """Start the clients; each stops before its first call."""
        for number, script in enumerate(self.setup.scripts):
            self.current = client = Client.__new__(Client)
            client.__init__(self, "ABCDEF"[number], script)  # type: ignore[misc]
            self.clients.append(client)

    @property
    def cells(self) -> dict[str, Cell]:
        """The rows in Keeper."""
        return getattr(self.locks, "cells", {})

    @property
    def dead(self) -> tuple[str, ...]:
        """The clients that crashed, as far as others may see that."""
        return tuple(client.name for client in self.clients if client.crashed and self.setup.same_host)

    def actions(self) -> tuple[list[Action], list[Action]]:
        """What may happen next, and the faults that may; nothing once all came to their end."""
        ready = [client for client in self.clients if client.ready]
        usual = [Action("", client) for client in ready]
        usual += [Action(f"{name} lands", late=number) for number, (name, _) in enumerate(self.late, 1)]
        if not ready and not all(client.finished for client in self.clients):
            usual.append(Action("time passes"))
        if not self.faults:
            return usual, []
        faults = [Action(fault, client) for client in ready for fault in self._faults_of(client)]
        if any(self.inside.values()):
            faults += [Action(jump) for jump in JUMPS if jump in self.setup.faults]
        return usual, faults

    def _faults_of(self, client: Client) -> Iterator[str]:
        possible = FAULTS_OF_WRITES if client.writing else FAULTS_OF_READS
        also = (*[REPEATED] * client.repeating, *[STALE] * bool(client.stale))
        return (fault for fault in (*possible, *also) if fault in self.setup.faults)

    def act(self, action: Action) -> None:
        """Let it happen."""
        if action.client:
            self.faults -= bool(action.what)
            action.client.step(action.what)
        elif action.late:
            self._land(self.late.pop(action.late - 1)[1])
        elif action.what in JUMPS:
            self.faults -= 1
            self.jumped = True
            self._pass(JUMPS[action.what], self.clients)
        else:
            self.idle += 1
            self._pass(IDLE_SECONDS, self.clients)
        if self.broken:
            raise ViolationError(self.broken)

    def _pass(self, seconds: float, clients: Iterable[Client]) -> None:
        self.clock += int(seconds * 1e6)
        self.changes += 1
        for client in clients:
            client.seconds += seconds
            client.past = hash((client.past, seconds))

    def _land(self, act: Callable[[], Any]) -> Any:
        self.changes += 1
        self.clock += self.setup.tick
        before = dict(self.cells)
        answer = act()
        if before != self.cells:
            self.earlier = before
        return answer

    def perform(self, client: Client, fault: str, act: Callable[[], Any]) -> Any:
        """Make a client's call, with what befalls it."""
        if fault == "back":
            self.clock -= int(BACK_SECONDS * 1e6)
        if fault in {"late", "twice"}:
            self.late.append((f"what {client.name} sent ({client.doing})", act))
        if fault == "fails" and client.ending:
            self.leaves_rows.add(client)
        if fault in {"crash", "fails", "late"}:
            return self._break_off(client, fault)
        if fault == STALE and client.stale:
            return client.stale()
        answer = self._land(act) if client.writing else act()
        if fault == REPEATED:
            return SENT_AGAIN
        return self._break_off(client, fault) if fault in {"crash after", "lost"} else answer

    def _break_off(self, client: Client, fault: str) -> None:
        if not fault.startswith("crash"):
            raise ServerUnreachableError("The server did not answer")
        self.leaves_rows.add(client)
        client.crashed = True
        self.changes += 1
        for holders in self.inside.values():
            holders[:] = [holder for holder in holders if holder[0] is not client]
        raise CrashedError

    def enter(self, lock: Lock) -> None:
        """A client holds a lock."""
        for state_id in lock.state_ids:
            self.holds.append((self.current.name, state_id))
            self.current.order[state_id] = len(self.holds)
            holders = self.inside.setdefault(state_id, [])
            holders.append((self.current, lock))
            if len(holders) > 1 and not self.jumped:
                self.broken = "one holder at once"

    def leave(self, lock: Lock) -> None:
        """A client does not hold it any more."""
        for holders in self.inside.values():
            holders[:] = [holder for holder in holders if holder[1] is not lock]

    def key(self) -> int:
        """What the future depends on, and what is asked at the end."""
        return hash((
            self.clock,
            self.faults,
            self.jumped,
            frozenset(self.database.locks.items()),
            frozenset(self.cells.items()),
            frozenset(self.earlier.items()) if STALE in self.setup.faults else None,
            frozenset(self.database.states.items()),
            frozenset((write.state_id, write.version, write.label) for write in self.writes),
            tuple(self.holds),
            tuple(name for name, _ in self.late),
            tuple((client.past, client.ready, client.crashed) for client in self.clients),
        ))  # fmt: skip

    def check(self) -> None:
        """Ask what has to be true at the end of a run."""
        for promise in (
            self._no_update_is_lost,
            self._no_version_twice,
            self._versions_rise_in_the_order_of_holders,
            self._nothing_returns_that_was_replaced,
            self._no_row_is_left,
            self._all_is_done,
            self._nobody_is_told_of_a_loss_for_nothing,
        ):
            if not promise():
                raise ViolationError(promise.__name__.strip("_").replace("_", " "))

    def _no_update_is_lost(self) -> bool:
        """What was acknowledged is in the final state, unless a later write replaced it unread."""
        done = [write for write in self.writes if write.call.acknowledged and write.call.kind != "clear"]
        return all(write.label in self._final(write.state_id) or self._replaced(write) for write in done)

    def _final(self, state_id: str) -> list[str]:
        row = self.database.states.get(state_id)
        return json.loads(row.completed_state)["by"] if row and row.completed_state else []

    def _replaced(self, write: Write) -> bool:
        return any(w.blind and w.state_id == write.state_id and w.version > write.version for w in self.writes)

    def _no_version_twice(self) -> bool:
        return len({(write.state_id, write.version) for write in self.writes}) == len(self.writes)

    def _versions_rise_in_the_order_of_holders(self) -> bool:
        """No write of an earlier holder is above an acknowledged one of a later holder."""
        return not any(
            earlier.state_id == later.state_id and earlier.order < later.order and earlier.version > later.version
            for later in self.writes
            if later.call.acknowledged
            for earlier in self.writes
        )

    def _nothing_returns_that_was_replaced(self) -> bool:
        """What an acknowledged set or clear replaced is not in the final state."""
        return not any(
            old.state_id == new.state_id and old.version < new.version and old.label in self._final(old.state_id)
            for new in self.writes
            if new.blind and new.call.acknowledged
            for old in self.writes
        )

    def _no_row_is_left(self) -> bool:
        """Only who crashed, or could not send the tombstone, leaves a row that is alive."""
        views = self.locks.read({key[0] for key in self.database.locks})
        owners = {lock.identity.holder for view in views.values() for lock in (*view.unguarded(), *view.queue)}
        owners |= {cell.lock.identity.holder for cell in self.cells.values() if not cell.released}
        return owners <= {client.name for client in self.leaves_rows}

    def _nobody_is_told_of_a_loss_for_nothing(self) -> bool:
        """A lock is lost only where a lease was over."""
        return self.jumped or not any("was lost" in told for told in self.failed)

    def _all_is_done(self) -> bool:
        """Where nothing fails, every call is acknowledged."""
        return self.faults < self.setup.most_faults or all(call.acknowledged for call in self.calls)

    def end(self) -> None:
        """Unwind those who still run."""
        for client in self.clients:
            client.kill()


class Scheduler(Protocol):
    """Who picks."""

    def pick(self, usual: Sequence[Action], faults: Sequence[Action], key: Callable[[], int]) -> Action | None:
        """What happens next; None: nothing new can come of it."""


@dataclass
class DepthFirst:
    """Every schedule, one a run."""

    path: list[tuple[int, int]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    _at: int = 0

    def pick(self, usual: Sequence[Action], faults: Sequence[Action], key: Callable[[], int]) -> Action | None:
        """Follow the path; beyond its end take the first way, unless it was seen where that leads."""
        actions = [*usual, *faults]
        if self._at == len(self.path):
            now = key()
            if now in self.seen:
                return None
            self.seen.add(now)
            self.path.append((0, len(actions)))
        self._at += 1
        return actions[self.path[self._at - 1][0]]

    def turn(self) -> bool:
        """Go back to the last fork that has a way left, and take it."""
        self._at = 0
        while self.path:
            taken, ways = self.path.pop()
            if taken + 1 < ways:
                self.path.append((taken + 1, ways))
                return True
        return False


@dataclass
class AtRandom:
    """A schedule that a seed tells."""

    chance: random.Random
    likely: float = 0.05

    def pick(self, usual: Sequence[Action], faults: Sequence[Action], key: Callable[[], int]) -> Action | None:
        """Anything, and now and then a fault."""
        return self.chance.choice(faults if faults and self.chance.random() < self.likely else usual)


class _Held:
    """In place of the renewal thread, which is at work exactly as long as the lock is held."""

    world: World

    def __init__(self, lock: Lock) -> None:
        self._lock, self._world = lock, _Held.world

    def start(self) -> None:
        self._world.enter(self._lock)

    def stop(self) -> None:
        self._world.leave(self._lock)


def explore(setup: Setup, most_runs: int = 100_000) -> Outcome:
    """Try every schedule.

    Args:
        setup: What is explored.
        most_runs: Fail beyond so many runs: a part of them would prove nothing.
    """
    scheduler = DepthFirst()
    runs = complete = 0
    with _bound():
        while True:
            runs += 1
            steps, ended, broken = _follow(setup, scheduler)
            complete += ended
            if broken:
                return Outcome(runs, complete, len(scheduler.seen), broken, steps)
            if not scheduler.turn():
                return Outcome(runs, complete, len(scheduler.seen))
            assert runs < most_runs, f"more than {most_runs} runs"


def sample(setup: Setup, runs: int, seed: int) -> Outcome:
    """Try so many schedules at random; the seed tells which."""
    sys.stdout.write(f"seed {seed}: ")
    chance = random.Random(seed)
    schedules: set[int] = set()
    with _bound():
        for run in range(1, runs + 1):
            steps, _, broken = _follow(setup, AtRandom(chance))
            schedules.add(hash(steps))
            if broken:
                return Outcome(run, run, len(schedules), broken, steps)
    return Outcome(runs, runs, len(schedules))


def _follow(setup: Setup, scheduler: Scheduler) -> tuple[tuple[str, ...], bool, str | None]:
    """One run: its steps, whether it came to an end, and the promise that it broke."""
    _Held.world = world = World(setup)
    steps: list[str] = []
    try:
        world.begin()
        while True:
            usual, faults = world.actions()
            if not usual:
                world.check()
                return tuple(steps), True, None
            action = scheduler.pick(usual, faults, world.key)
            if action is None:
                return (), False, None
            steps.append(str(action))
            if len(steps) > MOST_STEPS:
                raise ViolationError("everybody comes to an end")
            world.act(action)
    except ViolationError as violation:
        return tuple(steps), True, str(violation)
    finally:
        world.end()


@contextmanager
def _bound() -> Iterator[None]:
    """Give the product's modules names, identities and holders that the scheduler knows."""

    def lock_id() -> str:
        client = _Held.world.current
        client.lock_ids += 1
        return f"{client.name}{client.lock_ids}"

    def identify(operation: str) -> Identity:
        return Identity(_Held.world.current.name, _Held.world.current.name, operation)

    with ExitStack() as stack:
        for module, name, double in (
            (lock_module, "uuid", SimpleNamespace(uuid4=lock_id)),
            (keeper_module, "uuid", SimpleNamespace(uuid4=lock_id)),
            (locker_module, "identify", identify),
            (keeper_module, "identify", identify),
            (locker_module, "is_dead", lambda process: process in _Held.world.dead),
            (locker_module, "Renewal", _Held),
        ):
            stack.enter_context(patch.object(module, name, double))
        stack.enter_context(patch.object(sys, "unraisablehook", _unraisable))
        for module in (locker_module, keeper_module):
            stack.enter_context(patch.object(logging.getLogger(module.__name__), "disabled", True))
        yield


def _unraisable(unraisable: Any) -> None:
    """A crash in a release that runs as its generator is thrown away: nobody can catch that, and nobody has to."""
    if unraisable.exc_type is not CrashedError:
        sys.__unraisablehook__(unraisable)


def _state(state_id: str, *labels: str) -> Any:  # the protocol's mutable attributes are wider than State's
    return State(state_id, {}, {"by": list(labels)})


def _frozen(answer: Any) -> Hashable:
    if isinstance(answer, Mapping):
        return tuple(answer.items())
    return frozenset(answer) if isinstance(answer, set) else answer


def assert_all_is_well(outcome: Outcome, *, complete: int, states: int) -> None:
    """Tell how much was tried, and fail with the schedule if anything breaks."""
    sys.stdout.write(f"{outcome}\n")
    assert outcome.broken is None, str(outcome)
    assert outcome.complete >= complete, f"only {outcome}"
    assert outcome.states >= states, f"only {outcome}"


def assert_caught(outcome: Outcome, *broken: str) -> None:
    """Show the schedule, and fail unless it breaks one of these promises."""
    sys.stdout.write(f"{outcome}\n")
    assert outcome.broken in broken, str(outcome)
