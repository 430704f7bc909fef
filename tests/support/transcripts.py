"""Terminal transcripts in pages: what commands print goes there by itself, with what differs each time made the same.

A transcript is a block of a page that begins with ```console. Lines that begin with `$ ` are the commands.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from click.testing import CliRunner

from meltano_ch_state.cli import main

_BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_PROGRAM = "meltano-ch-state"
_SAME = (
    (r"ClickHouse \d+(\.\d+)+", "ClickHouse 26.7.2.1"),
    (r"127\.0\.0\.1:\d+", "localhost:8123"),
    (r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", "2026-11-30T09:00:00Z"),
    (r"\d+\.\d ms", "2.5 ms"),
    (r"(?:2\d\d|300)\.\d s", "298.5 s"),
    (r"(?<!differ by )\b\d{1,2}\.\d s", "1.5 s"),
    (r"differ by \d+\.\d s", "differ by 0.0 s"),
    (r'"age_seconds": [\d.]+', '"age_seconds": 1.5'),
    (r'"lease_seconds_left": [\d.]+', '"lease_seconds_left": 298.5'),
    (r"Active parts: .*", "Active parts: state 1, state_lock 3"),
    (r"\badmin\b", "meltano"),
)


def commands_of(page: str) -> list[list[str]]:
    """The arguments of each command in a page's transcripts."""
    lines = [line for block in _BLOCK.findall(page) for line in block.splitlines()]
    return [shlex.split(line)[2:] for line in lines if line.startswith(f"$ {_PROGRAM} ")]


def replayed(page: str, schema: str, before: Callable[[str], None]) -> str:
    """The page with each transcript as the commands print it now.

    Args:
        page: Its text.
        schema: The schema that stands for `meltano`.
        before: Called with each command's name before it runs.
    """
    session = _Session(schema, before)
    return _BLOCK.sub(lambda block: session.block(block[0]), page)


class _Session:
    def __init__(self, schema: str, before: Callable[[str], None]) -> None:
        self._schema = schema
        self._before = before
        self._exit_code = 0

    def block(self, text: str) -> str:
        commands = [line for line in text.splitlines() if line.startswith("$ ")]
        return "".join(f"{command}\n{self._printed(command[2:])}" for command in commands)

    def _printed(self, command: str) -> str:
        if command == "echo $?":
            return f"{self._exit_code}\n"
        program, *arguments = shlex.split(command)
        assert program == _PROGRAM, command
        self._before(arguments[0])
        result = CliRunner().invoke(main, arguments, prog_name=_PROGRAM)
        self._exit_code = result.exit_code
        return self._made_the_same(result.output)

    def _made_the_same(self, output: str) -> str:
        output = output.replace(self._schema, "meltano")
        for pattern, replacement in _SAME:
            output = re.sub(pattern, replacement, output)
        return output
