"""What is sent along with statements, as a proxy before a real server records it, and what that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state import retry
from meltano_ch_state.connection import engine_for
from meltano_ch_state.consistency import PLAIN, REPLICATED, SHARED, Consistency
from meltano_ch_state.errors import ServerError
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.migrate import upgrade
from meltano_ch_state.protocol import StateRow
from meltano_ch_state.repositories import base
from meltano_ch_state.repositories.locks import LockRepository
from meltano_ch_state.repositories.states import StateRepository
from meltano_ch_state.settings import Names, resolve
from tests.rig.endpoint import Endpoint
from tests.support.proxy import Proxy, refusing, serving
from tests.support.replicated import create_replicated_tables

Manager = ClickhouseStateStoreManager
STATEMENTS_OF_AN_UPDATE = 5
"""A candidate, the decision with the state, its next version, the check, the tombstone."""


class Sent(NamedTuple):
    """One request: its statement, and all that came with it."""

    statement: str
    settings: dict[str, str]

    @property
    def consistency(self) -> dict[str, str]:
        """The settings that some engines need."""
        names = {*REPLICATED.writes, *REPLICATED.reads}
        return {name: value for name, value in self.settings.items() if name in names}


def as_sent(settings: object) -> dict[str, str]:
    assert isinstance(settings, dict)
    return {name: str(value) for name, value in settings.items()}


def recorded(proxy: Proxy) -> list[Sent]:
    """What the proxy passed on since it was last asked."""
    requests, proxy.requests = proxy.requests, []
    return [sent_in(request) for request in requests]


def sent_in(request: bytes) -> Sent:
    head, _, body = request.partition(b"\r\n\r\n")
    options = {name: values[0] for name, values in parse_qs(urlsplit(head.split()[1].decode()).query).items()}
    return Sent(" ".join((options.pop("query", "") or body.decode(errors="replace")).split()), options)


def inserts(sent: list[Sent]) -> list[Sent]:
    return [each for each in sent if each.statement.startswith("INSERT")]


def reads(sent: list[Sent], *tables: str) -> list[Sent]:
    """The queries of tables whose names begin so, with bound values or without."""
    return [each for each in sent if "SELECT" in each.statement and any(t in each.statement for t in tables)]


@pytest.fixture
def tables(server: Endpoint, schema: str) -> Names:
    names = Names(schema)
    upgrade(engine_for(resolve(server.url())), names)
    return names


@pytest.fixture
def between(server: Endpoint) -> Iterator[tuple[Proxy, Endpoint]]:
    with serving(server) as pair:
        yield pair


@pytest.fixture
def open_manager(between: tuple[Proxy, Endpoint], schema: str) -> Iterator[Callable[..., Manager]]:
    """A manager whose requests the proxy records; those that set it up are forgotten."""
    opened: list[Manager] = []

    def open_one(user: str = "runner") -> Manager:
        opened.append(Manager(between[1].url(user), schema=schema))
        opened[-1].update(MeltanoState("a", {}, {"n": 0}))
        recorded(between[0])
        return opened[-1]

    yield open_one
    for manager in opened:
        manager.close()


@pytest.mark.parametrize("consistency", [PLAIN, REPLICATED, SHARED], ids=["plain", "replicated", "shared"])
def test_every_insert_and_every_point_read_carries_what_the_engine_needs(
    between: tuple[Proxy, Endpoint],
    tables: Names,
    open_manager: Callable[..., Manager],
    monkeypatch: pytest.MonkeyPatch,
    consistency: Consistency,
) -> None:
    """The server takes the settings of a replica for plain tables, too, so all of it runs."""
    monkeypatch.setattr(base, "consistency_of", lambda engine, may_set: consistency)
    manager = open_manager()

    manager.update(MeltanoState("a", {}, {"n": 1}))
    manager.clear("a")
    sent = recorded(between[0])

    assert len(inserts(sent)) == 6
    assert all(insert.consistency == as_sent(consistency.writes) for insert in inserts(sent))
    point_reads = reads(sent, f"{tables.schema}.state_lock", f"{tables.schema}.state")
    assert len(point_reads) + len(inserts(sent)) == len(sent)
    assert all(read.consistency == as_sent(consistency.reads) for read in point_reads)


def test_listings_do_without_since_sequential_reads_may_stall(
    between: tuple[Proxy, Endpoint],
    tables: Names,
    open_manager: Callable[..., Manager],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "consistency_of", lambda engine, may_set: SHARED)
    manager = open_manager()

    assert manager.get_state_ids() == ["a"]
    assert [state.state_id for state in manager.get_all()] == ["a"]

    sent = reads(recorded(between[0]), tables.schema)
    assert sent
    assert all(read.consistency == {} for read in sent)


@pytest.mark.parametrize("user", ["runner", "hasty"])
def test_no_insert_is_buffered_and_each_has_a_token_whatever_the_users_profile_says(
    between: tuple[Proxy, Endpoint], tables: Names, open_manager: Callable[..., Manager], user: str
) -> None:
    manager = open_manager(user)

    for number in range(5):
        manager.update(MeltanoState("a", {}, {"n": number}))
        assert manager.get("a") == MeltanoState("a", {}, {"n": number})

    sent = inserts(recorded(between[0]))
    assert {insert.settings["async_insert"] for insert in sent} == {"0"}
    assert {insert.settings["date_time_input_format"] for insert in sent} == {"basic"}  # ClickHouse 24.8 needs it
    assert len({insert.settings["insert_deduplication_token"] for insert in sent}) == len(sent) == 15


def test_one_state_message_costs_the_same_few_statements_every_time(
    between: tuple[Proxy, Endpoint], tables: Names, open_manager: Callable[..., Manager]
) -> None:
    manager = open_manager()
    manager.update(MeltanoState("a", {"n": 0}, {}))  # there is no state yet to come along with the lock
    recorded(between[0])

    for number in range(10):
        manager.update(MeltanoState("a", {"n": number}, {}))
        assert len(recorded(between[0])) == STATEMENTS_OF_AN_UPDATE


def test_identical_inserts_are_never_swallowed(server: Endpoint, tables: Names) -> None:
    """A plain table can be told to deduplicate as Replicated ones do by themselves."""
    server.execute(f"ALTER TABLE {tables.schema}.state MODIFY SETTING non_replicated_deduplication_window = 100")
    states = StateRepository(engine_for(resolve(server.url("runner"))), tables.schema)

    for _ in range(2):
        server.execute(f"INSERT INTO {tables.schema}.state (state_id) VALUES ('by hand')", insert_deduplicate=0)
        states.insert_versions([StateRow("ours", None, "{}", 1)])

    found = f"SELECT count() FROM {tables.schema}.state WHERE state_id ="
    assert server.execute(f"{found} 'by hand'") == "1", "the server does not deduplicate: this test shows nothing"
    assert server.execute(f"{found} 'ours'") == "2"


def test_a_replicated_table_is_known_by_its_engine(
    between: tuple[Proxy, Endpoint], server: Endpoint, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.0)
    create_replicated_tables(server, schema)
    engine = engine_for(resolve(between[1].url("runner")))
    states, locks = StateRepository(engine, schema), LockRepository(engine, schema)

    assert states.get("a") is None  # where there is no row, the driver asks once more, for the columns
    assert locks.settle_seconds() == 0.0
    assert locks.read_views(["a"])["a"].live == ()
    with pytest.raises(ServerError, match="is_active"):  # why it takes none: see tests/support/replicated.py
        states.insert_versions([StateRow("a", None, "{}", 1)])
    engine.dispose()

    sent = recorded(between[0])
    assert [read.consistency for read in reads(sent, f"{schema}.state")] == [as_sent(REPLICATED.reads)] * 3
    assert [insert.consistency for insert in inserts(sent)] == [as_sent(REPLICATED.writes)]


def test_a_user_who_may_send_no_setting_reads_a_replicated_table(
    between: tuple[Proxy, Endpoint], server: Endpoint, schema: str
) -> None:
    create_replicated_tables(server, schema)
    engine = engine_for(resolve(between[1].url("reader")))
    reader = StateRepository(engine, schema)

    assert reader.get("a") is None
    assert reader.ids() == []
    engine.dispose()
    assert all(read.consistency == {} for read in recorded(between[0]))


def test_a_replica_that_cannot_do_it_yet_is_asked_again(
    between: tuple[Proxy, Endpoint], tables: Names, open_manager: Callable[..., Manager]
) -> None:
    manager = open_manager()
    between[0].plan(refusing(286), refusing(286))

    manager.set(MeltanoState("a", {}, {"n": 1}))

    assert manager.get("a") == MeltanoState("a", {}, {"n": 1})
    assert len(inserts(recorded(between[0]))) == 5


def test_a_replica_that_never_can_is_told_of_after_some_tries(
    between: tuple[Proxy, Endpoint],
    tables: Names,
    open_manager: Callable[..., Manager],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = open_manager()
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.3)
    between[0].plan(*[refusing(286)] * 100)

    with pytest.raises(ServerError, match="refused a statement with code 286: not now"):
        manager.set(MeltanoState("a", {}, {"n": 1}))
