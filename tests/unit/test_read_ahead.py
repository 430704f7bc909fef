"""Who lists IDs and gets each of them pays for pages, not for IDs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meltano_ch_state.protocol import StateRow
from meltano_ch_state.read_ahead import FRESH_SECONDS, ReadAhead

IDS = [f"s{number}" for number in range(6)]


class Source:
    """States, a clock, and how often they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[tuple[str | None, str | None]] = []
        self.rows = {state_id: StateRow(state_id, None, "{}", 1) for state_id in IDS}
        self.ahead = ReadAhead(self.stream, lambda: self.now)

    def stream(self, pattern: str | None, after: str | None) -> Iterator[StateRow]:
        self.asked.append((pattern, after))
        return iter([row for state_id, row in sorted(self.rows.items()) if state_id > str(after)])


@pytest.fixture
def source() -> Source:
    source = Source()
    source.ahead.expect("s*", IDS)
    return source


def test_ids_that_are_got_in_their_order_are_read_at_once(source: Source) -> None:
    assert [source.ahead.take(state_id) for state_id in IDS] == [None, *(source.rows[i] for i in IDS[1:])]
    assert source.asked == [("s*", "s0")]
    assert source.ahead.take("s0") is None


def test_nothing_is_read_ahead_for_a_single_id(source: Source) -> None:
    assert source.ahead.take("s0") is None
    assert source.asked == []


@pytest.mark.parametrize("order", [["s1"], ["s0", "s2"], ["s0", "s1", "s1"], ["x"]])
def test_another_order_is_not_served(source: Source, order: list[str]) -> None:
    assert [source.ahead.take(state_id) for state_id in order][-1] is None
    assert [source.ahead.take(state_id) for state_id in IDS] == [None] * len(IDS)


def test_what_was_read_too_long_ago_is_read_anew(source: Source) -> None:
    source.ahead.take("s0")
    source.ahead.take("s1")
    source.rows["s2"] = StateRow("s2", None, '{"new": 1}', 2)
    source.now += FRESH_SECONDS + 0.1
    assert source.ahead.take("s2") == source.rows["s2"]
    assert source.asked == [("s*", "s0"), ("s*", "s1")]


def test_a_state_that_is_gone_meanwhile_is_a_tombstone_and_the_next_is_found(source: Source) -> None:
    del source.rows["s1"], source.rows["s5"]
    taken = [source.ahead.take(state_id) for state_id in IDS]
    assert [row.is_deleted for row in taken if row] == [True, False, False, False, True]


def test_after_a_write_each_is_read_by_itself(source: Source) -> None:
    source.ahead.take("s0")
    source.ahead.forget()
    assert source.ahead.take("s1") is None
