"""The models of one set of names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from meltano_ch_state.models import Models, build
from meltano_ch_state.settings import Names

THREADS = 8


def test_a_reader_of_states_builds_their_table_alone() -> None:
    assert list(build(Names("lazy")).state.metadata.tables) == ["lazy.state"]


@pytest.mark.parametrize("name", ["State", "StateLock", "StateHistory"])
def test_the_metadata_of_a_model_has_all_tables(name: str) -> None:
    models = Models(Names("whole"), history_days=1)
    first = models.state_lock.metadata

    assert getattr(models, name).metadata is models.metadata is first
    assert set(models.metadata.tables) == {"whole.state", "whole.state_lock", "whole.state_history"}


def test_threads_that_are_the_first_to_ask_for_a_model_get_the_same_one() -> None:
    models, start = Models(Names("threads"), history_days=1), Barrier(THREADS)

    def ask(_: int) -> type[object]:
        start.wait()
        return models.State

    with ThreadPoolExecutor(THREADS) as threads:
        assert set(threads.map(ask, range(THREADS))) == {models.State}
