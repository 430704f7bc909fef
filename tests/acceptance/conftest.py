"""The stores that a Meltano project keeps its state in."""

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.acceptance.project import Project
from tests.rig.endpoint import Endpoint

STORES = ("server", "embedded")


@pytest.fixture
def on_server(server: Endpoint, schema: str) -> dict[str, str]:
    admin = server.users["admin"]
    address = f"{quote(admin.name, '')}@{server.host}:{server.http_port}"
    return {
        "MELTANO_STATE_BACKEND_URI": f"clickhouse://{address}?schema={schema}",
        "MELTANO_STATE_BACKEND_CLICKHOUSE_PASSWORD": admin.password,
    }


@pytest.fixture
def on_embedded(tmp_path: Path) -> dict[str, str]:
    return {"MELTANO_STATE_BACKEND_URI": f"chdb://{tmp_path / 'states'}"}


@pytest.fixture
def on_systemdb() -> dict[str, str]:
    """Meltano's own default, which the others are measured by."""
    return {}


@pytest.fixture(params=STORES)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """A project over each store in turn, where nothing has run yet."""
    return Project(tmp_path / "project", request.getfixturevalue(f"on_{request.param}"))
