"""`states` and `prune`."""

from __future__ import annotations

import json
import re
import time

import pytest
from meltano.core.state_store.base import MeltanoState

from meltano_ch_state.protocol import StateRow
from meltano_ch_state.pruning import Pruner
from tests.support.cli import Backend, failed

DAY_MICROSECONDS = 86_400 * 1_000_000


def days_ago(days: float) -> int:
    return time.time_ns() // 1_000 - int(days * DAY_MICROSECONDS)


def write(backend: Backend, state_id: str, days: float, *, cleared: bool = False) -> None:
    """Have a state be of some days ago: its version is a time."""
    contents = None if cleared else '{"n": 1}'
    backend.target.states.insert_versions([StateRow(state_id, None, contents, days_ago(days), is_deleted=cleared)])


def pruner(backend: Backend) -> Pruner:
    target = backend.target
    return Pruner(target.states, target.locks, target.maintenance)


def rows(backend: Backend, table: str = "state") -> dict[str, int]:
    """The number of rows of each state ID, with those that are hidden."""
    return dict(map(tuple, backend.sql(f"SELECT state_id, count() FROM {{schema}}.{table} GROUP BY state_id")))


def test_states_lists_id_time_and_size(backend: Backend) -> None:
    assert backend.output("states") == "There is no state.\n"
    manager = backend.manager()
    for state_id in ("dev:b", "dev:a", "prod:a"):
        manager.set(MeltanoState(state_id, {"é": 1}, {"n": 1}))
    manager.delete("dev:b")
    found = backend.json("states", "dev:*")
    assert [(state["state_id"], state["size_bytes"]) for state in found] == [("dev:a", 21)]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", found[0]["updated_at"])
    lines = backend.output("states").splitlines()
    assert [line.split()[0] for line in lines] == ["STATE", "dev:a", "prod:a"]
    assert backend.output("states", "*:z") == "No state matches.\n"


def test_a_state_id_does_not_steer_the_terminal(on_tables: Backend) -> None:
    on_tables.manager().set(MeltanoState("\x1b[31mred\n", {}, {}))
    assert r"\x1b[31mred\n" in on_tables.output("states")
    assert on_tables.json("states")[0]["state_id"] == "\x1b[31mred\n"


def test_old_states_are_cleared_and_no_others(backend: Backend) -> None:
    write(backend, "old", 91)
    write(backend, "young", 89)
    would = backend.json("prune", "--older-than", "90d", "--dry-run")
    assert would == {"dry_run": True, "states": ["old"], "tombstones": [], "lock_rows": 0, "versions": 0, "locked": []}
    assert backend.output("prune", "--older-than", "90d", "--tombstones", "--locks", "--dry-run").splitlines()[-1] == (
        "Would prune 1 state, 0 tombstones of states, 0 rows of the lock table, 0 old versions."
    )
    assert [state["state_id"] for state in backend.json("states")] == ["old", "young"]
    assert backend.json("prune", "--older-than", "90d", "--yes") == would | {"dry_run": False}
    assert [state["state_id"] for state in backend.json("states")] == ["young"]
    assert backend.json("prune", "--older-than", "90d") == would | {"dry_run": False, "states": []}


def test_an_old_state_that_is_cleared_can_be_had_back_though_its_version_was_forgotten(on_tables: Backend) -> None:
    write(on_tables, "old", 31)
    on_tables.sql("TRUNCATE TABLE {schema}.state_history")

    on_tables.output("prune", "--older-than", "30d", "--yes")

    kept = on_tables.json("history", "old")
    assert [version["cleared"] for version in kept] == [True, False]
    on_tables.output("restore", "old", "--version", str(kept[-1]["version"]), "--yes")
    assert on_tables.output("history", "old").count("restore") == 1


def test_a_state_that_was_updated_since_it_was_listed_stays(backend: Backend) -> None:
    write(backend, "old", 91)
    write(backend, "updated", 91)
    listed = pruner(backend).old_states(90 * 86_400)
    backend.manager().set(MeltanoState("updated", {}, {"n": 2}))
    assert pruner(backend).clear(listed, 90 * 86_400) == (["old"], None)
    assert backend.manager().get("updated") == MeltanoState("updated", {}, {"n": 2})


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_what_is_locked_is_named_and_stays_and_what_went_is_told(on_tables: Backend, as_json: bool) -> None:
    for state_id in ("held", "old"):
        write(on_tables, state_id, 91)
    for state_id in ("held tombstone", "old tombstone"):
        write(on_tables, state_id, 31, cleared=True)
    manager = on_tables.manager()
    with manager.acquire_lock("held"), manager.acquire_lock("held tombstone"):
        options = ["--json"] if as_json else []
        result = on_tables.run("prune", "--older-than", "90d", "--tombstones", "--yes", *options)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: State 'held', 'held tombstone' is locked")
    if as_json:
        assert json.loads(result.stdout) == {
            "dry_run": False,
            "states": ["old"],
            "tombstones": ["old tombstone"],
            "lock_rows": 0,
            "versions": 0,
            "locked": ["held", "held tombstone"],
        }
    else:
        assert result.stdout.splitlines() == [
            "state  old",
            "tombstone  old tombstone",
            "Pruned 1 state, 1 tombstone of states, 0 rows of the lock table, 0 old versions.",
        ]
    assert [state["state_id"] for state in on_tables.json("states")] == ["held"]
    assert "old tombstone" not in rows(on_tables)


def test_old_tombstones_go_with_all_that_they_hide(backend: Backend) -> None:
    write(backend, "cleared long ago", 40)
    write(backend, "cleared long ago", 31, cleared=True)
    write(backend, "cleared lately", 29, cleared=True)
    write(backend, "there", 40)
    pruned = backend.json("prune", "--tombstones", "--yes")
    assert (pruned["tombstones"], pruned["states"]) == (["cleared long ago"], [])
    assert set(rows(backend)) == {"cleared lately", "there"}
    assert [state["state_id"] for state in backend.json("states")] == ["there"]


def test_a_state_that_was_set_again_since_its_tombstone_was_listed_stays(backend: Backend) -> None:
    write(backend, "a", 31, cleared=True)
    listed = pruner(backend).old_tombstones()
    backend.manager().set(MeltanoState("a", {}, {"n": 2}))
    assert (listed, pruner(backend).erase(listed)) == (["a"], ([], None))
    assert backend.manager().get("a") == MeltanoState("a", {}, {"n": 2})


def test_an_erasure_that_comes_late_spares_what_was_written_since(backend: Backend) -> None:
    write(backend, "a", 31, cleared=True)
    backend.manager().set(MeltanoState("a", {}, {"n": 2}))
    backend.target.maintenance.erase(["a"], days_ago(30))
    assert rows(backend) == {"a": 1}
    assert backend.manager().get("a") == MeltanoState("a", {}, {"n": 2})


def test_what_is_set_after_an_erasure_has_a_greater_version_though_the_servers_clock_is_behind(
    on_tables: Backend,
) -> None:
    """The pruner's lock keeps a token visible that is above every version that it erased."""
    write(on_tables, "a", 31, cleared=True)
    assert pruner(on_tables).erase(["a"]) == (["a"], None)
    view = on_tables.target.locks.read_views(["a"])["a"]
    assert view.floor > days_ago(1)
    assert view.live == ()


def test_lock_rows_go_when_their_time_to_live_is_over_and_not_before(backend: Backend) -> None:
    backend.sql("SYSTEM STOP MERGES {schema}.state_lock")
    backend.manager().set(MeltanoState("young", {}, {}))
    backend.sql(
        "INSERT INTO {schema}.state_lock (state_id, lock_id, released, locked_at, lease_seconds, sequence)"
        " SELECT 'old', toString(number), 1, now64(6) - toIntervalDay(8), 1, 0 FROM numbers(5)"
    )
    assert backend.json("prune", "--locks", "--dry-run")["lock_rows"] == 5
    backend.sql("SYSTEM START MERGES {schema}.state_lock")
    assert backend.json("prune", "--locks", "--yes")["lock_rows"] <= 5  # a merge may have come first
    assert rows(backend, "state_lock") == {"young": 2}


def test_a_user_without_the_right_is_told_the_grant_and_nothing_goes(on_tables: Backend) -> None:
    write(on_tables, "a", 31, cleared=True)
    runner = Backend(on_tables.uri.replace("admin:p%40ss%3Aw%2Frd%2521", "runner:runner-password"))
    assert "GRANT ALTER DELETE" in failed(runner.run("prune", "--tombstones", "--yes"))
    assert rows(on_tables) == {"a": 1}
    assert on_tables.json("locks") == []


@pytest.mark.parametrize("age", ["90", "d", "-1d", "1y", "1.5d", ""])
def test_an_age_that_is_none_is_wrong_usage(on_server: Backend, age: str) -> None:
    result = on_server.run("prune", "--older-than", age, "--dry-run")
    assert result.exit_code == 2
    assert "is no age. Write it like 90d" in result.stderr


def test_prune_does_nothing_unless_it_is_told_what(on_server: Backend) -> None:
    result = on_server.run("prune", "--yes")
    assert result.exit_code == 2
    assert "Choose what to prune: --older-than, --tombstones, --locks, --history-older-than." in result.stderr


def test_what_would_go_is_named_before_the_question(on_tables: Backend) -> None:
    ids = ["\x1b[31mred", *(f"id {number:02d}" for number in range(13))]
    old = [StateRow(state_id, None, "{}", days_ago(91)) for state_id in ids]
    cleared = StateRow("cleared", None, None, days_ago(31), is_deleted=True)
    on_tables.target.states.insert_versions([*old, cleared])

    with on_tables.asking("prune", "--older-than", "90d", "--tombstones", "--locks") as question:
        code, out, error = question.answered("n")

    assert question.text.splitlines() == [
        r"state  \x1b[31mred",
        *(f"state  id {number:02d}" for number in range(9)),
        "and 4 more",
        "tombstone  cleared",
        "Prune 14 states, 1 tombstone of states, 0 rows of the lock table, 0 old versions? [y/N]: ",
    ]
    assert (code, out, error) == (1, "", "Nothing was done.\n")
    assert len(on_tables.json("states")) == 14


def test_many_states_are_pruned_part_by_part(on_tables: Backend) -> None:
    long_ids = [f"{number:04d}-{'x' * 500}" for number in range(250)]
    target = on_tables.target
    target.states.insert_versions([StateRow(i, None, None, days_ago(31), is_deleted=True) for i in long_ids])
    assert len(on_tables.json("prune", "--tombstones", "--yes")["tombstones"]) == 250
    assert rows(on_tables) == {}
