"""The command line against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state.cli import main
from meltano_ch_state.errors import StateLockedError, StateLockLostError
from meltano_ch_state.manager import ClickhouseStateStoreManager
from tests.rig.endpoint import Endpoint

ID = "dev:tap it's-to-target"


@pytest.fixture
def manager(server: Endpoint, schema: str) -> Iterator[ClickhouseStateStoreManager]:
    manager = ClickhouseStateStoreManager(server.url(), schema=schema)
    manager.migrate()
    yield manager
    manager.close()


def run(manager: ClickhouseStateStoreManager, server: Endpoint, *arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(
        main, [*arguments, "--uri", f"{server.url()}?schema={manager.settings.schema}"], input=answer
    )


def test_locks_lists_who_holds_what(manager: ClickhouseStateStoreManager, server: Endpoint) -> None:
    assert run(manager, server, "locks").output == "No state is locked.\n"
    with manager.acquire_lock(ID):
        text = run(manager, server, "locks").output
        (row,) = json.loads(run(manager, server, "locks", "--json").output)
    assert text.startswith(f"{ID}  ")
    assert set(row) == {"state_id", "lock_id", "holder", "operation", "age_seconds", "lease_seconds_left"}
    assert (row["state_id"], row["operation"]) == (ID, "update")
    assert 0 <= row["age_seconds"] < 60
    assert 200 < row["lease_seconds_left"] <= 300


def test_the_command_in_the_timeout_error_unlocks_and_the_holder_is_told(
    manager: ClickhouseStateStoreManager, server: Endpoint, schema: str
) -> None:
    import shlex

    other = ClickhouseStateStoreManager(server.url(), schema=schema, lock_acquire_timeout_seconds=0.2)
    with manager.acquire_lock(ID):
        with pytest.raises(StateLockedError) as caught:
            other.set(MeltanoState(ID, {}, {"n": 1}))
        command = shlex.split(caught.value.unlock_command)
        assert command[0] == "meltano-ch-state"
        assert run(manager, server, *command[1:], "--yes").exit_code == 0
        other.set(MeltanoState(ID, {}, {"n": 2}))
        with pytest.raises(StateLockLostError):
            manager.set(MeltanoState(ID, {}, {"n": 3}))
    state = manager.get(ID)
    assert state is not None
    assert state.completed_state == {"n": 2}


def test_unlock_asks_first(manager: ClickhouseStateStoreManager, server: Endpoint) -> None:
    with manager.acquire_lock(ID):
        (row,) = json.loads(run(manager, server, "locks", "--json").output)
        declined = run(manager, server, "unlock", ID, "--lock-id", row["lock_id"], answer="n\n")
        assert declined.exit_code == 1
        manager.set(MeltanoState(ID, {}, {"n": 1}))


def test_a_wrong_lock_id_is_one_line_and_writes_nothing(
    manager: ClickhouseStateStoreManager, server: Endpoint, schema: str
) -> None:
    answer = run(manager, server, "unlock", ID, "--lock-id", "nonsense", "--yes")
    assert answer.exit_code == 1
    assert (
        answer.output
        == f"Error: State \"{ID}\" has no live lock with lock_id 'nonsense'. See: meltano-ch-state locks.\n"
    )
    assert server.execute(f"SELECT count() FROM {schema}.state_lock").strip() == "0"


def test_without_any_configuration_the_command_says_how_to_give_one(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    answer = CliRunner().invoke(main, ["locks"])
    assert answer.exit_code == 1
    assert "No ClickHouse is configured" in answer.output
