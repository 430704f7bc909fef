"""Every code block in the README and the docs runs as it stands, but for the names of servers, or has a test elsewhere.

Where one is new, this says so until it is in one of the tables below.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
import trustme
from sqlalchemy import Engine

from tests.acceptance.project import STATE_ID, Project, said, succeeded
from tests.rig.endpoint import Endpoint
from tests.rig.ports import HOST
from tests.support.cli import COMMAND, Backend
from tests.support.proxy import serving
from tests.support.tls import speaking_tls

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
LANGUAGES = {"bash", "yaml", "python", "sql", ""}
"""A block without a language is a drawing, or what something prints."""
ELSEWHERE = {
    ("docs/cli.md", "console"): "tests/integration/test_cli_docs.py",
    ("docs/embedded.md", "yaml"): "tests/acceptance/test_embedded_docs.py",
    ("docs/rights.md", "sql"): "tests/integration/test_rights.py",
    ("docs/migrating.md", "sql"): "tests/migrations/test_adoption.py",
    ("examples/nightly_report/README.md", "bash"): "tests/acceptance/test_example_project.py",
}
"""Blocks that another test reads from the page, or carries out."""
LINES_ELSEWHERE = {
    "meltano run tap-something target-something": "tests/acceptance/test_run.py",
    "cd .demo": "tests/acceptance/test_demo.py",
    "../.venv/bin/meltano state list": "tests/acceptance/test_demo.py",
    "../.venv/bin/meltano-ch-state states": "tests/integration/test_cli_states.py",
    "../.venv/bin/meltano-ch-state doctor": "tests/integration/test_cli_doctor.py",
    ".venv/bin/python -m benchmarks --quick": "tests/acceptance/test_benchmarks.py",
    ".venv/bin/python -m benchmarks.lock": "tests/acceptance/test_benchmarks.py",
    "python -m pip install pip-audit && pip-audit": ".github/workflows/ci.yml",
}
SHOP = "prod:tap-shop-to-target-warehouse"
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0]}"


def blocks() -> list[Block]:
    found = ((page, fence) for page in sorted(PAGES) for fence in FENCE.finditer(page.read_text()))
    return [Block(str(page.relative_to(ROOT)), fence[2], dedent(fence[3])) for page, fence in found]


BLOCKS = [block for block in blocks() if (block.page, block.language) not in ELSEWHERE]


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def commands() -> list[str]:
    """The commands of all blocks, without comments and repetitions."""
    lines = (line for block in of("bash") for line in block.text.splitlines())
    found = (re.sub(r"\s+#.*", "", line).strip() for line in lines)
    return sorted({line for line in found if line and not line.startswith("#")} - set(LINES_ELSEWHERE))


def test_every_block_has_a_language_that_is_run_here() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES
    assert not of("sql"), "SQL has its tests elsewhere"


@pytest.mark.parametrize("file", sorted({*ELSEWHERE.values(), *LINES_ELSEWHERE.values()}))
def test_what_has_its_test_elsewhere_has_one(file: str) -> None:
    assert (ROOT / file).is_file()


def printed(block: Block) -> str:
    """What a block prints: the comment behind its `print`, or None."""
    told = re.search(r"^print\(.*\)  # (.*)$", block.text, re.MULTILINE)
    return f"{told[1] if told else None}\n"


@pytest.mark.parametrize("block", [block for block in of("python") if "engine" not in block.text], ids=str)
def test_python_that_needs_no_server_runs(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block.text, block.page, "exec"), {})
    assert capsys.readouterr().out == printed(block)


@pytest.mark.parametrize("block", [block for block in of("python") if "engine" in block.text], ids=str)
def test_python_runs(block: Block, server: Endpoint, schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = server.url(scheme="clickhouse+connect")
    own = block.text.replace("clickhouse+connect://user:password@host:8123", url).replace('"ops"', f'"{schema}"')
    assert own.count(schema) == block.text.count('"ops"') > 0
    names: dict[str, object] = {}
    exec(compile(own, block.page, "exec"), names)
    assert capsys.readouterr().out == printed(block)
    engine = names["engine"]
    assert isinstance(engine, Engine)
    engine.dispose()


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_a_configuration_of_meltano_carries_a_pipeline(
    block: Block, server: Endpoint, schema: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    certificate = tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(str(certificate))
    with serving(server, speaking_tls(authority, HOST)) as (_, secure):
        configuration = on_test_server(block.text, server, secure, schema, certificate)
        admin = server.users["admin"]
        project = Project(tmp_path / "project", {"MELTANO_STATE_BACKEND_CLICKHOUSE_PASSWORD": admin.password})
        with (project.root / "meltano.yml").open("a") as file:
            file.write(configuration)
        if "cluster=" in configuration:  # no server here is in one: it can only be asked
            assert project.output("state", "list") == ""
            return
        project.sell(1)
        succeeded(project.pipeline())
        assert STATE_ID in project.output("state", "list")


def on_test_server(text: str, server: Endpoint, secure: Endpoint, schema: str, certificate: Path) -> str:
    """A configuration that names the test server, by TLS where it asks for that, and is else as it was."""

    def named(uri: re.Match[str]) -> str:
        port = secure.http_port if "secure=true" in uri[2] else server.http_port
        options = re.sub(r"&ca_cert=[^&]*", "", uri[2]) or "?"
        trust = f"&ca_cert={certificate}" if "secure=true" in uri[2] else ""
        return f"clickhouse://admin@{HOST}:{port}{options}&schema={schema}{trust}"

    return re.sub(r"clickhouse://(\w+@[\w.-]+(?::\d+)?)(\S*)", named, text)


def state_with_a_history(backend: Backend) -> str:
    """Write the state of which the docs speak twice; the first version."""
    for number in (1, 2):
        backend.output("import", "-", "--yes", stdin=json.dumps({SHOP: {"completed": {"n": number}}}))
    return str(backend.json("history", SHOP)[-1]["version"])


@pytest.mark.parametrize("command", commands())
def test_a_command_runs(command: str, server: Endpoint, schema: str, tmp_path: Path) -> None:
    first, *rest = shlex.split(command)
    if first == "export":
        name, _, value = rest[0].partition("=")
        assert (name, value) == ("MELTANO_STATE_BACKEND_CLICKHOUSE_PASSWORD", "...")  # the configurations use it
    elif first == "make":
        subprocess.run(["make", "--dry-run", *rest], cwd=ROOT, check=True, capture_output=True)
    elif (first, rest[0]) == ("pip", "install"):
        assert re.fullmatch(r"meltano-ch-state(\[embedded\])?", rest[1])  # tests/acceptance/test_wheel.py installs it
    elif first == "meltano-ch-state":
        project = Project(tmp_path / "project", {})
        project.sell(1)
        succeeded(project.pipeline())  # so that there is a state to import, in Meltano's own database
        backend = Backend(f"{server.url()}?schema={schema}")
        version = state_with_a_history(backend)
        rest = [{"ID": SHOP, "1750086400000000": version}.get(argument, argument) for argument in rest]
        rest += ["--yes"] if "restore" in rest else []
        done = project.run(*COMMAND, *rest, MELTANO_STATE_BACKEND_URI=backend.uri)
        backend.close()
        assert done.returncode == 0, said(done)
    else:
        pytest.fail(f"Nothing here knows how to run: {command}")
