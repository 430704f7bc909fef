"""The lock protocol with one rule changed each.

The first three are rightful; all others are mistakes that somebody might make, kept so that the checker is seen to
catch them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.model.checker import Step
from tests.model.protocol import LockProtocol
from tests.model.protocol_tables import CHECK, DONE, ENDED, SET, Bounds, Client, LockRow, State, StateRow

BETWEEN = "in between"
"""Where a client is between two things that take time and belong together."""


class Newcomer(LockProtocol):
    """The last client comes when all others have ended and their leases too: it always has to get in.

    It meets no faults of its own, but late rows of the others may still land around it.
    """

    def finished(self, state: State) -> bool:
        return state.clients[-1].at == DONE

    def steps(self, state: State) -> Iterator[Step[State]]:
        if not self._quiet(state):
            yield from super().steps(state)
            return
        state = state._replace(late=0, copies=0)
        if state.clients[-1].at not in ENDED:
            yield from self.act(state, len(state.clients) - 1, state.clients[-1])
        yield from self.landings(state)

    def act(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        if i < len(state.clients) - 1 or self._quiet(state):
            yield from super().act(state, i, client)

    def give_way(self, state: State, i: int, client: Client, rivals: frozenset[int]) -> Iterator[Step[State]]:
        if i < len(state.clients) - 1:
            yield from super().give_way(state, i, client, rivals)
        else:
            yield from self.revokes(state, i, client, rivals)

    @staticmethod
    def _quiet(state: State) -> bool:
        return all(client.at in ENDED for client in state.clients[:-1])


class OneStatement(LockProtocol):
    """One statement reads the lock rows (a scalar subquery, read first) and then the state the update goes on from."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self._acts[BETWEEN] = self.read_second

    def greatest(self, state: State, me: int) -> int:
        return max((row.token for row in state.locks if row.lock_id != me), default=0)

    def hold(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        yield (
            f"P{i} SELECT, lock rows: alone",
            self.with_client(state, i, client._replace(at=BETWEEN)),
            True,
        )

    def read_second(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        for row in self.newest(state.states):
            if self.is_above(client.token, row.version):
                holding = client._replace(at=SET, seen=row.holds)
                yield f"P{i} ... and state: holds", self.with_client(state, i, holding), True
            else:
                yield from self.enter(state, i, client, row.version)


class PublishesAboveAll(LockProtocol):
    """The next token under a lock is read first: above all others, not only above the own one."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self._acts[BETWEEN] = super().publish

    def publish(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        me = self.lock_id(i, client)
        greatest = max(self.greatest(state, me), self.own_token(state.locks, me))
        decided = client._replace(at=BETWEEN, token=greatest + self.bounds.step)
        yield f"P{i} SELECT: {greatest} is the greatest token", self.with_client(state, i, decided), True


class StateFirst(LockProtocol):
    """Mistake: the one statement reads the state first, and the lock rows after it."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self._acts[BETWEEN] = super().read

    def read(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        for row in self.newest(state.states):
            reading = client._replace(at=BETWEEN, seen=row.holds)
            yield f"P{i} SELECT, state: version {row.version}", self.with_client(state, i, reading), True

    def hold(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        yield (
            f"P{i} ... and lock rows: alone, holds",
            self.with_client(state, i, client._replace(at=SET)),
            True,
        )


class UnpublishedToken(LockProtocol):
    """Mistake: a token above all others is used at once instead of being inserted and looked at again."""

    def enter(self, state: State, i: int, client: Client, greatest: int) -> Iterator[Step[State]]:
        yield from self.hold(state, i, client._replace(token=max(client.token, greatest + self.bounds.step)))


class AnyToken(LockProtocol):
    """Mistake: who is alone holds, whatever its token."""

    def is_above(self, token: int, greatest: int) -> bool:
        return True


class LessThanAStep(LockProtocol):
    """Mistake: a greater token is enough, even when the n-th set under a smaller one reaches it."""

    def is_above(self, token: int, greatest: int) -> bool:
        return token > greatest


class NoCheck(LockProtocol):
    """Mistake: the user is told that all is well without a look at the lock after the set."""

    def check(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        acked = self.next_set(self.acknowledged(i, client))
        yield f"P{i} acknowledged without a check", self.with_client(state, i, acked), True


class ClockAsVersion(LockProtocol):
    """Mistake: the server's clock at the time of writing is the version."""

    def versions(self, client: Client) -> Iterable[int]:
        return self.bounds.clock


class OnlyAnsweredSetsCount(LockProtocol):
    """Mistake: a set whose answer never came leaves its n to the next one."""

    def versions(self, client: Client) -> Iterable[int]:
        return (client.token + client.acked.bit_count(),)


class WithdrawByDelete(LockProtocol):
    """Mistake: who gives way deletes its rows."""

    def withdraw(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        yield from self.delete(state, i, client, self.start_over(client))

    def delete(self, state: State, i: int, client: Client, after: Client) -> Iterator[Step[State]]:
        others = frozenset(row for row in state.locks if row.lock_id != self.lock_id(i, client))
        yield f"P{i} DELETE own lock rows", self.with_client(state._replace(locks=others), i, after), True


class ReleaseByDelete(WithdrawByDelete):
    """Mistake: the holder releases by deleting its rows, and with them its token."""

    def withdraw(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        yield from LockProtocol.withdraw(self, state, i, client)

    def release(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        yield from self.delete(state, i, client, self.ended(client, DONE))


class ClearByDelete(LockProtocol):
    """Mistake: a clear deletes the state's rows. The version that is left is that of no row, 0."""

    def set(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        if i not in self.bounds.blind:
            yield from super().set(state, i, client)
            return
        holds = client.seen | self.update(i, client)
        cleared = state._replace(states=frozenset({StateRow(0, holds)}))
        after = client._replace(at=CHECK, sets=client.sets + 1, seen=holds)
        yield f"P{i} DELETE state", self.with_client(cleared, i, after), True


class NewestRowWins(LockProtocol):
    """A clock that behaves: of rows with one key always the last one stays. Used to show a poor key's own fault."""

    def merged(self, locks: frozenset[LockRow], row: LockRow) -> Iterator[frozenset[LockRow]]:
        yield next(super().merged(locks, row))


class KeyWithoutLockId(NewestRowWins):
    """Mistake: rows of rivals replace each other."""

    def key(self, row: LockRow) -> tuple[object, ...]:
        return (row.released, row.token)


class KeyWithoutToken(NewestRowWins):
    """Mistake: a row with another token replaces the older one of its lock_id."""

    def key(self, row: LockRow) -> tuple[object, ...]:
        return (row.lock_id, row.released)


class KeyWithoutReleased(NewestRowWins):
    """Mistake: a live row and a tombstone replace each other, so a tombstone can be outbid."""

    def key(self, row: LockRow) -> tuple[object, ...]:
        return (row.lock_id, row.token)


class TombstoneAlone(LockProtocol):
    """Mistake: of a dead lock_id only the tombstone's token counts, which is the one its writer had read."""

    def greatest(self, state: State, me: int) -> int:
        alive = self.alive(state.locks)
        count = frozenset(row for row in state.locks if row.released or row.lock_id in alive)
        return super().greatest(state._replace(locks=count), me)


class NobodyStays(LockProtocol):
    """Mistake: whoever sees a rival withdraws, the earliest too."""

    def stays(self, state: State, me: int, rivals: frozenset[int]) -> bool:
        return False


class TtlAsTimeout(LockProtocol):
    """Mistake: the TTL is so short that it takes rows of clients that are still alive."""

    def prunings(self, state: State) -> Iterator[Step[State]]:
        for row in state.locks:
            yield f"TTL drops {row}", state._replace(locks=state.locks - {row}), False


class EverybodyStays(LockProtocol):
    """Mistake: whoever sees a rival stays and reads again, the latest too."""

    def stays(self, state: State, me: int, rivals: frozenset[int]) -> bool:
        return True
