"""The Python that the README shows runs as it stands, on the test server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.rig.endpoint import Endpoint

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_there_is_python_to_run() -> None:
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_python_runs(block: str, server: Endpoint, schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = server.url(scheme="clickhouse+connect")
    own = block.replace("clickhouse+connect://user:password@host:8123", url).replace('"ops"', f'"{schema}"')
    assert own.count(schema) == block.count('"ops"') > 0
    names: dict[str, object] = {}
    exec(compile(own, str(README), "exec"), names)
    assert capsys.readouterr().out == "None\n"
    engine = names["engine"]
    assert isinstance(engine, Engine)
    engine.dispose()
