"""`meltano run`: what it loads, and what it remembers."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.acceptance.project import STATE_ID, Project, succeeded
from tests.support.cli import COMMAND

RUN_ID = "2f1d3a4e-1111-4222-8333-444455556666"


def bookmark(order: int) -> dict[str, object]:
    return {"singer_state": {"bookmarks": {"orders": order}}}


def test_a_first_run_makes_the_tables_by_itself_and_a_second_loads_only_what_is_new(project: Project) -> None:
    project.sell(1, 2, 3)
    succeeded(project.pipeline())
    assert project.loaded() == [1, 2, 3]
    project.sell(1, 2, 3, 4, 5)
    succeeded(project.pipeline())
    assert project.loaded() == [1, 2, 3, 4, 5]
    assert project.states() == {STATE_ID: {"completed": bookmark(5), "partial": {}}}


def test_a_tap_that_dies_halfway_keeps_its_bookmark_and_the_next_run_resumes_there(project: Project) -> None:
    project.sell(1, 2, "broken", 3)
    assert project.pipeline().returncode == 1
    assert project.states() == {STATE_ID: {"completed": bookmark(2), "partial": {}}}
    project.sell(1, 2, 3)
    succeeded(project.pipeline())
    assert project.loaded() == [1, 2, 3]


def test_a_run_that_merges_states_and_dies_keeps_a_partial_state_and_the_next_run_resumes_there(
    project: Project,
) -> None:
    project.sell(1, 2, "broken")
    assert project.pipeline("--state-strategy=merge").returncode == 1
    assert project.states() == {STATE_ID: {"completed": {}, "partial": bookmark(2)}}
    project.sell(1, 2, 3)
    succeeded(project.pipeline())
    assert project.loaded() == [1, 2, 3]


def test_two_first_runs_at_once_both_keep_their_bookmarks(project: Project, tmp_path: Path) -> None:
    # Two projects over one store, as Meltano's own database does not survive two first runs at once.
    suffixes = {"here": project, "there": Project(tmp_path / "there", project.settings)}
    for runner in suffixes.values():
        runner.sell(*range(1, 10))
    with ThreadPoolExecutor() as threads:
        runs = [threads.submit(runner.pipeline, "--state-id-suffix", suffix) for suffix, runner in suffixes.items()]
    for run in runs:
        succeeded(run.result())
    states = project.states()
    assert states == {f"{STATE_ID}:{suffix}": {"completed": bookmark(9), "partial": {}} for suffix in suffixes}


def test_the_history_names_the_operations_as_its_page_does(project: Project) -> None:
    project.output("state", "import", stdin=json.dumps({"a": {"completed": bookmark(1), "partial": {}}}))
    project.output("state", "set", "--force", "a", json.dumps(bookmark(2)))
    project.output("state", "move", "--force", "a", "b")
    project.output("state", "clear", "--force", "b")

    def operations(state_id: str) -> list[str]:
        versions = json.loads(succeeded(project.run(*COMMAND, "history", state_id, "--json")).stdout)
        return [version["operation"] for version in reversed(versions)]

    assert operations("a")[0] == "set_all"
    assert set(operations("a")[1:-1]) == {"update"}
    assert operations("a")[-1] == "clear"
    assert operations("b")[-1] == "clear"
    assert set(operations("b")[:-1]) == {"update"}


def test_a_bad_state_set_is_undone_and_the_history_names_the_run(project: Project) -> None:
    project.sell(1, 2, 3)
    succeeded(project.pipeline("--run-id", RUN_ID))
    project.output("state", "set", "--force", STATE_ID, json.dumps({"singer_state": {}}))
    assert project.states() == {STATE_ID: {"completed": {"singer_state": {}}, "partial": {}}}

    bad, *good = json.loads(succeeded(project.run(*COMMAND, "history", STATE_ID, "--json")).stdout)
    assert bad["run_id"] == ""
    assert {version["run_id"] for version in good} == {RUN_ID}
    assert bad["changes"][0]["stream"] == "orders"
    succeeded(project.run(*COMMAND, "restore", STATE_ID, "--version", str(good[0]["version"]), "--yes"))

    assert project.states() == {STATE_ID: {"completed": bookmark(3), "partial": {}}}
    project.sell(1, 2, 3, 4)
    succeeded(project.pipeline())
    assert project.loaded() == [1, 2, 3, 4]
