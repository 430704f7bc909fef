"""What the tests of migrations share: engines on schemas of their own, and Alembic's command line in a process."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.config import Config
from sqlalchemy import Engine, event

from meltano_ch_state.connection import engine_for
from meltano_ch_state.settings import Names, resolve
from tests.migrations.helpers import COMMAND_TIMEOUT_SECONDS, ROOT, Run, bare_environment, quiet_config
from tests.rig.endpoint import Endpoint


@pytest.fixture
def names(schema: str) -> Names:
    """Tables with the usual names in a schema that does not exist yet."""
    return Names(schema)


@pytest.fixture
def engine(server: Endpoint) -> Engine:
    """An engine of the administrator."""
    return engine_for(resolve(server.url()))


@pytest.fixture
def statements(engine: Engine) -> Iterator[list[str]]:
    """Every statement that the administrator's engine sends, on one line."""
    sent: list[str] = []

    def record(connection: object, cursor: object, statement: str, *rest: object) -> None:
        sent.append(" ".join(statement.split()))

    event.listen(engine, "before_cursor_execute", record)
    yield sent
    event.remove(engine, "before_cursor_execute", record)


@pytest.fixture
def own_scripts(engine: Engine, names: Names, tmp_path: Path) -> Config:
    """A configuration with a copy of the migrations, to which a test may add some."""
    folder = shutil.copytree(ROOT / "alembic", tmp_path / "alembic", ignore=shutil.ignore_patterns("__pycache__"))
    config = quiet_config(engine, names)
    config.set_main_option("script_location", str(folder))
    return config


@pytest.fixture
def alembic(tmp_path: Path) -> Run:
    """Run `python -m meltano_ch_state.migrate` in an empty folder, with no settings but the given ones."""

    def run(
        *arguments: str, cwd: Path = tmp_path, command: tuple[str, ...] = (), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*(command or (sys.executable, "-m", "meltano_ch_state.migrate")), *arguments],
            cwd=cwd,
            env=bare_environment() | environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_SECONDS,
            check=False,
        )

    return run
