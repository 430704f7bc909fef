"""`meltano run`: what it loads, and what it remembers."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.acceptance.project import STATE_ID, Project, succeeded


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
