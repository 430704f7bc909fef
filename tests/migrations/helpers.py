"""What the tests of migrations share beside fixtures."""

import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from alembic.config import Config
from sqlalchemy import Engine

from meltano_ch_state.migrate import alembic_config
from meltano_ch_state.settings import Names
from tests.rig.endpoint import Endpoint

ROOT = Path(__file__).parents[2]
COMMAND_TIMEOUT_SECONDS = 60

Run = Callable[..., subprocess.CompletedProcess[str]]
"""The type of the fixture `alembic`."""


def bare_environment() -> dict[str, str]:
    """The environment without the settings of a developer, and with warnings as errors."""
    ours = ("CLICKHOUSE_", "MELTANO_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PYTHONWARNINGS": "error"}


def tables(server: Endpoint, schema: str) -> list[str]:
    """The tables of a schema, sorted; none when there is no schema."""
    return server.execute(f"SELECT name FROM system.tables WHERE database = '{schema}' ORDER BY name").split()


def quiet_config(engine: Engine, names: Names) -> Config:
    """Alembic's configuration, with a `stdout` that can be read."""
    config = alembic_config(engine, names)
    config.stdout = io.StringIO()
    return config
