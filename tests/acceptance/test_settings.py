"""A wrong setting is one line that names it, in `meltano`'s own words; and no command ever shows a password."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.project import Project, complaints, said, succeeded
from tests.rig.endpoint import Endpoint
from tests.rig.ports import free_ports

SECRET = "open-sesame"
PREFIX = "MELTANO_STATE_BACKEND_"
PASSWORD = {"MELTANO_STATE_BACKEND_CLICKHOUSE_PASSWORD": SECRET}
WITHOUT_AUTO_UPGRADE = {f"{PREFIX}{scheme}_AUTO_UPGRADE": "false" for scheme in ("CLICKHOUSE", "CHDB")}


@pytest.fixture
def project_at(tmp_path: Path) -> Any:
    """Make a project with a URI and other settings, and a password that must not be shown."""

    def make(uri: str, **settings: str) -> Project:
        return Project(tmp_path / "project", {f"{PREFIX}URI": uri} | PASSWORD | settings)

    return make


WRONG = {
    "port": ("//h:99999", {}, "The port in state_backend.uri is not one. Use a whole number from 1 to 65535."),
    "no host": ("//", {}, "Setting state_backend.clickhouse.host is missing. Set it, or write the host into"),
    "option": ("//h?colour=red", {}, "Unknown option 'colour' in state_backend.uri. Known options are host,"),
    "boolean": ("//h", {"SECURE": "maybe"}, "Setting state_backend.clickhouse.secure is 'maybe'. Use true or"),
    "name": ("//h", {"TABLE": "a`b"}, "Setting state_backend.clickhouse.table is 'a`b'. Use up to 100 letters"),
}


@pytest.mark.parametrize(("uri", "settings", "line"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_is_one_line(project_at: Any, uri: str, settings: dict[str, str], line: str) -> None:
    variables = {f"{PREFIX}CLICKHOUSE_{name}": value for name, value in settings.items()}
    done = project_at(f"clickhouse:{uri}", **variables).meltano("state", "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert [complaint[: len(line)] for complaint in complaints(done)] == [line]


def test_a_wrong_password_is_one_line_and_loads_nothing(project_at: Any, server: Endpoint) -> None:
    address = f"{server.host}:{server.http_port}"
    project = project_at(f"clickhouse://admin@{address}")
    refused = (
        f"ClickHouse at {address} refused the user or the password."
        " Check state_backend.clickhouse.user, and the password in MELTANO_STATE_BACKEND_CLICKHOUSE_PASSWORD."
    )
    done = project.meltano("state", "list")
    assert (done.returncode, complaints(done)) == (1, [refused])
    project.sell(1)
    done = project.pipeline()
    assert (done.returncode, project.loaded()) == (1, [])
    assert complaints(done)[0] == refused
    assert "Traceback" not in said(done)


def test_a_server_that_is_down_is_one_line(project_at: Any) -> None:
    (port,) = free_ports(1)
    done = project_at(f"clickhouse://admin@127.0.0.1:{port}").meltano("state", "list")
    assert done.returncode == 1
    assert complaints(done) == [
        f"No answer from ClickHouse at 127.0.0.1:{port}: Connection refused."
        " Check state_backend.clickhouse.host, port and secure, and that the server runs."
    ]


def test_not_even_the_traceback_of_a_failed_write_shows_the_password(project_at: Any, server: Endpoint) -> None:
    project = project_at(f"clickhouse://admin@{server.host}:{server.http_port}")
    done = project.meltano("--log-level=debug", "state", "set", "--force", "a", '{"singer_state": {}}')
    assert done.returncode == 1
    assert "refused the user or the password" in " ".join(said(done).split())
    assert SECRET not in said(done)


def test_config_list_shows_that_there_is_a_password_but_not_which(project_at: Any) -> None:
    shown = project_at("clickhouse://h").output("config", "list", "meltano")
    assert "state_backend.clickhouse.password" in shown
    assert SECRET not in shown


def test_without_auto_upgrade_a_run_fails_before_it_loads_and_names_the_command_that_helps(project: Project) -> None:
    project.settings |= WITHOUT_AUTO_UPGRADE
    project.sell(1, 2)
    done = project.pipeline()
    assert (done.returncode, project.loaded()) == (1, [])
    assert "Traceback" not in said(done)
    command = re.fullmatch(r"The tables in schema \w+ are missing\. Run: (.+)\.", complaints(done)[0])
    assert command, said(done)
    succeeded(project.run(*shlex.split(command[1])))
    succeeded(project.pipeline())
    assert project.loaded() == [1, 2]


def test_meltano_upgrade_makes_the_tables(project: Project) -> None:
    project.settings |= WITHOUT_AUTO_UPGRADE
    project.output("upgrade", "--skip-package")
    project.sell(1, 2)
    succeeded(project.pipeline())
    assert project.loaded() == [1, 2]
