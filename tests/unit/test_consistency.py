"""What each engine's statements are sent with."""

from __future__ import annotations

import pytest

from meltano_ch_state.consistency import Consistency, consistency_of

QUORUM = {"insert_quorum": "auto", "insert_quorum_parallel": 0, "insert_quorum_timeout": 30_000}
SEQUENTIAL = {"select_sequential_consistency": 1, "max_execution_time": 30}
ENGINES = ["ReplacingMergeTree", "ReplicatedReplacingMergeTree", "SharedReplacingMergeTree", "Memory", ""]


def test_one_server_needs_nothing() -> None:
    assert consistency_of("ReplacingMergeTree") == Consistency({}, {}, 0.0)


def test_replicas_need_a_quorum_one_insert_at_a_time_and_sequential_reads_but_no_pause() -> None:
    assert consistency_of("ReplicatedReplacingMergeTree") == Consistency(QUORUM, SEQUENTIAL, 0.0)


def test_clickhouse_cloud_needs_sequential_reads_alone() -> None:
    assert consistency_of("SharedReplacingMergeTree") == Consistency({}, SEQUENTIAL, 0.0)


@pytest.mark.parametrize("engine", ["", "MergeTree", "Memory", "Distributed"])
def test_any_other_engine_is_given_time(engine: str) -> None:
    assert consistency_of(engine) == Consistency({}, {}, 1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_whoever_may_send_no_settings_sends_none(engine: str) -> None:
    found = consistency_of(engine, may_set=False)
    assert (found.writes, found.reads) == ({}, {})
    assert found.settle_seconds == (0.0 if engine == "ReplacingMergeTree" else 1.0)
