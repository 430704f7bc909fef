"""The wheel, in an environment that has its dependencies and nothing else of ours: no checkout, no editable install."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.acceptance.project import STATE_ID, Project, succeeded

ROOT = Path(__file__).parents[2]

WHERE = "from meltano_ch_state import migrate; print(migrate.__file__, migrate.config_file(), sep='\\n')"

pytestmark = pytest.mark.timeout(300)  # builds a wheel, for which pip fetches hatchling


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that finds our package in its own environment, and the dependencies in the one of this run.

    They are seen through a path file, as fetching them again would take minutes. A path file within that environment,
    such as the one that an editable installation of ours leaves, has no effect then.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    python = folder / "bin" / "python"
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    installed = next(folder.glob("lib/*/site-packages/meltano_ch_state"))
    dependencies = [path for path in sys.path if path.endswith("-packages")]
    installed.with_name("dependencies.pth").write_text("\n".join(dependencies))
    return str(python)


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def project(tmp_path: Path, python: str) -> Project:
    project = Project(tmp_path, {"MELTANO_STATE_BACKEND_URI": "chdb://states"}, python)
    project.sell(1, 2)
    return project


def test_the_wheel_alone_runs_a_pipeline_that_makes_its_tables(project: Project) -> None:
    succeeded(project.pipeline())
    assert list(project.states()) == [STATE_ID]


def test_the_wheel_alone_migrates_by_its_own_command_from_its_own_migrations(project: Project) -> None:
    installed = Path(project.python).parents[1]
    for path in map(Path, succeeded(project.run(project.python, "-c", WHERE)).stdout.splitlines()):
        assert path.is_relative_to(installed)
        assert path.exists()
    migrated = succeeded(project.run(project.python, "-m", "meltano_ch_state.migrate", "upgrade", "head"))
    assert "Running upgrade  -> 0001" in migrated.stderr
    project.settings["MELTANO_STATE_BACKEND_CHDB_AUTO_UPGRADE"] = "false"
    succeeded(project.pipeline())
    assert project.loaded() == [1, 2]
