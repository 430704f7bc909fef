"""`meltano state ...` over this package's stores, and over Meltano's own database, by which they are measured."""

import json
from pathlib import Path

import pytest

from tests.acceptance.conftest import STORES
from tests.acceptance.project import STATE_ID, Project, succeeded

pytestmark = [
    pytest.mark.parametrize("project", ["systemdb", *STORES], indirect=True),
    pytest.mark.timeout(300),  # up to eight processes, on a machine that may be busy
]


def state(**bookmarks: int) -> dict[str, object]:
    return {"singer_state": {"bookmarks": bookmarks}} if bookmarks else {}


STATES = {
    STATE_ID: {"completed": state(orders=1), "partial": state(orders=2)},
    "dev:tap-other-to-target-log": {"completed": state(other=1), "partial": {}},
    "prod:tap-orders-to-target-log": {"completed": {}, "partial": state(orders=3)},
    "100%_done": {"completed": state(orders=4), "partial": {}},
}


def listed(project: Project, *options: str) -> list[str]:
    return sorted(project.output("state", "list", *options).splitlines())


def test_what_was_imported_is_listed_by_glob_patterns_and_exported_again(project: Project) -> None:
    project.output("state", "import", stdin=json.dumps(STATES))
    tap_orders = [STATE_ID, "prod:tap-orders-to-target-log"]
    assert listed(project, "--pattern", "*:tap-orders-*") == tap_orders
    assert project.states() == STATES


def test_a_state_is_set_merged_edited_copied_and_moved(project: Project, tmp_path: Path) -> None:
    (tmp_path / "merge.json").write_text(json.dumps(state(customers=2)))
    project.output("state", "set", "--force", "a", json.dumps(state(orders=1)))
    project.output("state", "merge", "a", "--input-file", str(tmp_path / "merge.json"))
    assert json.loads(project.output("state", "get", "a")) == state(orders=1, customers=2)
    project.output("state", "copy", "--force", "a", "b")
    editor = {"EDITOR": "sed -i.before s/2/7/", "TMPDIR": str(tmp_path)}
    project.output("state", "edit", "--force", "b", **editor)
    project.output("state", "move", "--force", "b", STATE_ID)
    assert project.states() == {
        "a": {"completed": state(orders=1), "partial": state(customers=2)},
        STATE_ID: {"completed": state(orders=1, customers=7), "partial": {}},
    }


def test_clear_takes_one_state_and_clear_all_the_rest(project: Project) -> None:
    project.output("state", "import", stdin=json.dumps(STATES))
    project.output("state", "clear", "--force", STATE_ID)
    assert listed(project) == sorted(set(STATES) - {STATE_ID})
    cleared = succeeded(project.meltano("state", "clear", "--force", "--all"))
    assert "3 state(s) were successfully cleared" in cleared.stderr
    assert project.states() == {}
