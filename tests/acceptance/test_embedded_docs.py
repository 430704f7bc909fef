"""The configurations of docs/embedded.md: that of a project, and that of a runner which forgets all but its cache."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.acceptance.project import PIPELINE, Project, succeeded

PAGE = Path(__file__).parents[2] / "docs/embedded.md"
CONFIGURATION, WORKFLOW = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


class Runner:
    """What a runner of GitHub does with the workflow's one job, as far as it matters here."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._saved = 0
        self._job: dict[str, Any] = YAML(typ="safe").load(WORKFLOW)["jobs"]["load"]

    def run(self, checkout: Path, *orders: int) -> list[int]:
        """Run the job in a new checkout; what it loaded."""
        settings = {name: value.replace("${{ github.workspace }}", str(checkout)) for name, value in self._env()}
        project = Project(checkout, settings)
        project.sell(*orders)
        for step in self._job["steps"]:
            self._do(project, step)
        return project.loaded()

    def _env(self) -> list[tuple[str, str]]:
        return list(self._job["env"].items())

    def _do(self, project: Project, step: dict[str, Any]) -> None:
        used, command = step.get("uses", ""), shlex.split(step.get("run", ""))
        if "/cache/save@" in used:
            self._saved += 1
            copy(project.root / step["with"]["path"], self._cache / str(self._saved))
        elif "/cache/restore@" in used and self._saved:
            copy(self._cache / str(self._saved), project.root / step["with"]["path"])
        elif command[:2] == ["meltano", "run"]:
            assert command[2:] == ["tap-something", "target-something"]
            succeeded(project.meltano("run", *PIPELINE))


def copy(source: Path, place: Path) -> None:
    """Copy a folder as tar does, which the cache uses."""
    shutil.copytree(source, place, symlinks=True)


def test_a_job_on_a_runner_that_forgets_all_but_its_cache_loads_only_what_is_new(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "cache")

    assert runner.run(tmp_path / "first", 1, 2) == [1, 2]
    assert runner.run(tmp_path / "second", 1, 2, 3) == [3]


def test_the_configuration_keeps_the_state_in_the_project(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", {})
    with (project.root / "meltano.yml").open("a") as file:
        file.write(CONFIGURATION)
    project.sell(1)

    succeeded(project.pipeline())

    assert (project.root / "state").is_dir()
