"""The lock protocol of one state_id as a model: what clients do, one statement a step.

Everything that a client cannot rely on is left to chance: the order of steps, the server's clock, whether a lease has
run out, crashes, answers that never come, inserts that land late or twice. Tokens count in steps of the smallest
distance the protocol keeps (1 ms there, `Bounds.step` here), so that no time has to be modelled.

A client's life: insert a candidate, read, perhaps insert again above the greatest token, and, once alone and above
everything else: get, set, check, and release. `variants` breaks single rules of it by overriding single methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.model.checker import Invariant, Step
from tests.model.protocol_tables import (
    BUMP,
    CHECK,
    DEAD,
    DONE,
    DRAWN,
    ENDED,
    GAVE_UP,
    GET,
    HOLDING,
    INSERT,
    LOOK,
    LOST,
    PUBLISH,
    READ,
    RELEASE,
    RENEWING,
    REVOKE,
    SET,
    WITHDRAW,
    Bounds,
    Client,
    LockRow,
    State,
    StateRow,
    Tables,
)


class LockProtocol(Tables):
    """The protocol as designed, a `checker.Model`."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self._acts = {
            INSERT: self.insert, READ: self.read, BUMP: self.bump, REVOKE: self.revoke, WITHDRAW: self.withdraw,
            GET: self.get, SET: self.set, CHECK: self.check, PUBLISH: self.publish, LOOK: self.look,
            RELEASE: self.release,
        }  # fmt: skip

    def start(self) -> State:
        bounds = self.bounds
        clients = (Client(),) * bounds.clients
        return State(clients, frozenset(), frozenset({StateRow(0, 0)}), (), bounds.late, bounds.copies)

    def finished(self, state: State) -> bool:
        return all(client.at in ENDED for client in state.clients)

    def steps(self, state: State) -> Iterator[Step[State]]:
        for i, client in enumerate(state.clients):
            if client.at not in ENDED:
                yield from self.act(state, i, client)
                yield from self._mishaps(state, i, client)
        yield from self.landings(state)
        if self.bounds.prunes:
            yield from self.prunings(state)

    def act(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        """The next statement of a client."""
        yield from self._acts[client.at](state, i, client)

    # Contending

    def insert(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        candidate = LockRow(self.lock_id(i, client), False, DRAWN, DRAWN)
        yield from self.send(state, i, "INSERT candidate:", candidate, client._replace(at=READ))

    def read(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        """Decide by one snapshot: revoked, not alone, alone and above all others, or alone below some other."""
        me = self.lock_id(i, client)
        if me not in self.alive(state.locks):
            yield (
                f"P{i} SELECT: revoked, starts over",
                self.with_client(state, i, self.start_over(client)),
                True,
            )
            return
        rivals = self.alive(state.locks) - {me}
        client = client._replace(token=self.own_token(state.locks, me), born=self.born(state.locks, me))
        if rivals:
            yield from self.give_way(state, i, client, rivals)
        else:
            yield from self.enter(state, i, client, self.greatest(state, me))

    def enter(self, state: State, i: int, client: Client, greatest: int) -> Iterator[Step[State]]:
        if self.is_above(client.token, greatest):
            yield from self.hold(state, i, client)
        else:
            bumped = client._replace(at=BUMP, token=greatest + self.bounds.step)
            yield (
                f"P{i} SELECT: alone, {client.token} not above {greatest}",
                self.with_client(state, i, bumped),
                True,
            )

    def hold(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        label = f"P{i} SELECT: alone, holds with {client.token}"
        if i not in self.bounds.blind:
            yield label, self.with_client(state, i, client._replace(at=GET)), True
            return
        for row in self.newest(state.states):
            yield label, self.with_client(state, i, client._replace(at=SET, seen=row.holds)), True

    def bump(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        row = LockRow(self.lock_id(i, client), False, client.token, client.born)
        yield from self.send(state, i, "INSERT greater token:", row, client._replace(at=READ))

    def give_way(self, state: State, i: int, client: Client, rivals: frozenset[int]) -> Iterator[Step[State]]:
        """Not alone: revoke a rival that is over, stay when the earliest (that is: read again), else withdraw."""
        yield from self.revokes(state, i, client, rivals)
        if not self.stays(state, self.lock_id(i, client), rivals):
            yield f"P{i} SELECT: not alone", self.with_client(state, i, client._replace(at=WITHDRAW)), True

    def revokes(self, state: State, i: int, client: Client, rivals: frozenset[int]) -> Iterator[Step[State]]:
        """Take over in two steps: see here that a rival is over, insert its tombstone later."""
        for rival in filter(lambda rival: self.may_revoke(state, rival), rivals):
            tombstone = LockRow(rival, True, self.own_token(state.locks, rival))
            revoking = self.with_client(state, i, client._replace(at=REVOKE, tombstone=tombstone))
            yield f"P{i} SELECT: {rival} is over", revoking, not self.owned(state, rival)

    def stays(self, state: State, me: int, rivals: frozenset[int]) -> bool:
        return min((self.born(state.locks, lock_id), lock_id) for lock_id in rivals | {me})[1] == me

    def revoke(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        assert client.tombstone is not None
        after = client._replace(at=READ, tombstone=None)
        yield from self.send(state, i, "INSERT revoke:", client.tombstone, after)

    def withdraw(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        yield from self.bury(state, i, client, "withdraw", self.start_over(client))

    def bury(self, state: State, i: int, client: Client, why: str, after: Client) -> Iterator[Step[State]]:
        """End the own lock_id by a tombstone."""
        row = LockRow(self.lock_id(i, client), True, client.token)
        yield from self.send(state, i, f"INSERT {why}:", row, after, unsure=after)

    # Holding

    def get(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        for row in self.newest(state.states):
            yield f"P{i} GET {row}", self.with_client(state, i, client._replace(at=SET, seen=row.holds)), True

    def set(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        holds = client.seen | self.update(i, client)
        unsure = self.next_set(client._replace(sets=client.sets + 1))
        written = client._replace(at=CHECK, sets=client.sets + 1, seen=holds)
        for version in self.versions(client):
            yield from self.send(state, i, "SET", StateRow(version, holds), written, unsure=unsure)

    def versions(self, client: Client) -> Iterable[int]:
        """The token plus n for the n-th set under it: one possible version."""
        return (client.token + client.sets % self.bounds.sets_per_token,)

    def check(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        """Look at the own rows after the set: only now is the user told that all is well."""
        if self.lock_id(i, client) not in self.alive(state.locks):
            yield f"P{i} CHECK: lost", self.with_client(state, i, self.ended(client, LOST)), True
        else:
            acked = self.next_set(self.acknowledged(i, client))
            yield f"P{i} CHECK: fine, acknowledged", self.with_client(state, i, acked), True

    def update(self, i: int, client: Client) -> int:
        """The bit of the update a client is about to set."""
        return 1 << (i * self.bounds.sets + client.sets)

    def acknowledged(self, i: int, client: Client) -> Client:
        """The client after its user was told that the last set is safe."""
        return client._replace(acked=client.acked | self.update(i, client) >> 1)

    def next_set(self, client: Client) -> Client:
        """Where to go after a set: the next one, a new token for it first, or out."""
        if client.sets == self.bounds.sets:
            return client._replace(at=RELEASE, seen=0)
        if client.sets % self.bounds.sets_per_token:
            return client._replace(at=SET)
        return client._replace(at=PUBLISH, token=client.token + self.bounds.step)

    def publish(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        """A new token for further sets: it has to be in the table before it is used, and the lock still be held."""
        row = LockRow(self.lock_id(i, client), False, client.token, client.born)
        unsure = client._replace(at=RELEASE, seen=0)
        yield from self.send(state, i, "INSERT next token:", row, client._replace(at=LOOK), unsure=unsure)

    def look(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        if self.lock_id(i, client) not in self.alive(state.locks):
            yield f"P{i} SELECT: lost", self.with_client(state, i, self.ended(client, LOST)), True
        else:
            yield (
                f"P{i} SELECT: not revoked, goes on",
                self.with_client(state, i, client._replace(at=SET)),
                True,
            )

    def release(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        yield from self.bury(state, i, client, "release", self.ended(client, DONE))

    # What may befall a client

    def _mishaps(self, state: State, i: int, client: Client) -> Iterator[Step[State]]:
        if self.bounds.renews and client.at in RENEWING:
            row = LockRow(self.lock_id(i, client), False, client.token, client.born)
            yield from self.send(state, i, "RENEWS", row, client, unsure=client)
            if row.lock_id not in self.alive(state.locks):
                yield (
                    f"P{i} renewal finds the lock lost",
                    self.with_client(state, i, self.ended(client, LOST)),
                    False,
                )
        if self.bounds.crashes and client.at != INSERT:
            yield f"P{i} CRASHES", self.with_client(state, i, self.ended(client, DEAD)), False

    def may_revoke(self, state: State, lock_id: int) -> bool:
        if self.bounds.take_over == "dead":
            return not self.owned(state, lock_id)
        return self.bounds.take_over == "any"

    def start_over(self, client: Client) -> Client:
        if client.attempt + 1 < self.bounds.attempts:
            return Client(attempt=client.attempt + 1)
        return self.ended(client, GAVE_UP)

    # What has to be true

    def no_update_is_lost(self, state: State) -> bool:
        """Every acknowledged update is in the visible value, or was read by the one who replaced it.

        This is also what keeps a deposed holder's write from hiding an acknowledged one of its successor.
        """
        acked = 0
        for client in state.clients:
            acked |= client.acked
        return all(row.holds & acked == acked for row in self.newest(state.states))

    def no_version_twice(self, state: State) -> bool:
        return len({row.version for row in state.states}) == len(state.states)

    def one_holder(self, state: State) -> bool:
        return sum(client.at in HOLDING for client in state.clients) <= 1

    def an_end_is_final(self, state: State) -> bool:
        """A lock_id its owner ended (the tombstone landed, or a revoke was seen) never blocks anybody again."""
        pending = {row.lock_id for row in state.under_way if isinstance(row, LockRow) and row.released}
        return all(self.owned(state, lock_id) or self._died(state, lock_id) or lock_id in pending
                   for lock_id in self.alive(state.locks))  # fmt: skip

    def _died(self, state: State, lock_id: int) -> bool:
        attempt, i = divmod(lock_id, self.bounds.clients)
        return state.clients[i].at == DEAD and state.clients[i].attempt == attempt

    def somebody_got_in(self, state: State) -> bool:
        """Where nothing fails, not all give way to each other."""
        return not self.finished(state) or any(client.acked for client in state.clients)

    def invariants(self, *more: Invariant[State]) -> dict[str, Invariant[State]]:
        """The promises that hold whatever happens, and others that hold in gentler circumstances."""
        holds = (self.no_update_is_lost, self.no_version_twice, *more)
        return {promise.__name__.replace("_", " "): promise for promise in holds}
