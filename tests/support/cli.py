"""Run `meltano-ch-state` against a state backend of a test's own."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from click.testing import CliRunner, Result
from sqlalchemy import text

from meltano_ch_state.cli import main
from meltano_ch_state.cli.target import Target, target_of
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.settings import resolve
from tests.migrations.helpers import bare_environment

COMMAND = (sys.executable, "-m", "meltano_ch_state.cli")
COMMAND_TIMEOUT_SECONDS = 60


class Question:
    """A command that asks.

    Attributes:
        text: What it says on standard error, up to the question's end.
    """

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        """Wait for the question."""
        self._process, self._master = process, master
        assert process.stderr
        said = b""
        while not said.endswith(b"[y/N]: ") and (more := process.stderr.read(1)):
            said += more
        self.text = said.decode()

    def answered(self, answer: str) -> tuple[int, str, str]:
        """Answer it; gives the exit code, and what is said on standard output and then on standard error."""
        os.write(self._master, f"{answer}\n".encode())
        out, error = self._process.communicate(timeout=COMMAND_TIMEOUT_SECONDS)
        return self._process.returncode, out.decode(), error.decode()


@dataclass
class Backend:
    """A state backend.

    Attributes:
        uri: Where it is, and all its settings.
        environment: What `process` adds to an environment without any settings.
    """

    uri: str
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, stdin: str = "") -> Result:
        """Run a command in this process."""
        return CliRunner().invoke(main, [arguments[0], "--uri", self.uri, *arguments[1:]], input=stdin)

    def output(self, *arguments: str, stdin: str = "") -> str:
        """What a command that succeeds prints on standard output."""
        result = self.run(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *arguments: str, stdin: str = "") -> Any:
        """The one document that a command prints with `--json`."""
        return json.loads(self.output(*arguments, "--json", stdin=stdin))

    def process(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command as a process; `--uri` comes from the environment."""
        return subprocess.run(
            [*COMMAND, *arguments],
            env=bare_environment() | {"MELTANO_STATE_BACKEND_URI": self.uri} | self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_SECONDS,
            check=False,
            **options,
        )

    @contextmanager
    def asking(self, *arguments: str) -> Iterator[Question]:
        """Run a command as a process on a terminal, until it asks."""
        master, terminal = pty.openpty()
        try:
            with subprocess.Popen(
                [*COMMAND, *arguments],
                env=bare_environment() | {"MELTANO_STATE_BACKEND_URI": self.uri} | self.environment,
                stdin=terminal,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ) as process:
                yield Question(process, master)
        finally:
            os.close(master)
            os.close(terminal)

    @property
    def target(self) -> Target:
        """The repositories."""
        return target_of(resolve(self.uri))

    def manager(self, **settings: object) -> ClickhouseStateStoreManager:
        """Meltano's view of it."""
        return ClickhouseStateStoreManager(self.uri, **settings)

    def sql(self, statement: str) -> list[Any]:
        """Run a statement; `{schema}` in it is the schema of the tables."""
        target = self.target
        with target.engine.connect() as connection:
            result = connection.execute(text(statement.replace("{schema}", target.settings.schema)))
            return list(result.all()) if result.returns_rows else []

    def close(self) -> None:
        """Let go of the connection."""
        self.target.engine.dispose()


def failed(result: Result, code: int = 1) -> str:
    """The one line of a command that fails, prints nothing else, and has no traceback."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line
