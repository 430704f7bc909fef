"""A real Meltano project, worked with as a person does: every command is a process."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SKELETON = Path(__file__).parent / "skeleton"
MELTANO = ("-I", "-c", "from meltano.cli import main; main()")
"""`meltano` for any interpreter: it also works where Meltano's own script is not beside the interpreter."""
PIPELINE = ("tap-orders", "target-log")
STATE_ID = "dev:tap-orders-to-target-log"
COMMAND_TIMEOUT_SECONDS = 100

_LOG = re.compile(r"\S+ \[(?P<level>\w+) *\] \S+ +(?P<event>.*)")

Done = subprocess.CompletedProcess[str]


class Project:
    """A Meltano project in a folder of its own.

    Attributes:
        root: Its folder.
        settings: Environment variables that every command gets. One whose name ends in PASSWORD is a secret: no
            command may print it.
        python: The interpreter that has Meltano.
    """

    def __init__(self, root: Path, settings: dict[str, str], python: str = sys.executable) -> None:
        self.root = root
        self.settings = settings
        self.python = python
        shutil.copytree(SKELETON, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))

    def sell(self, *orders: object) -> None:
        """Replace what the tap finds in its source: numbers; it dies of anything else."""
        (self.root / "orders.txt").write_text("\n".join(map(str, orders)))

    def loaded(self) -> list[int]:
        """The numbers that the target got in all runs so far, in their order."""
        log = self.root / "loaded.txt"
        return [int(line) for line in log.read_text().split()] if log.exists() else []

    def states(self) -> dict[str, Any]:
        """Everything that `meltano state export` knows."""
        exported: dict[str, Any] = json.loads(self.output("state", "export"))
        return exported

    def pipeline(self, *options: str) -> Done:
        """Run tap and target."""
        return self.meltano("run", *options, *PIPELINE)

    def output(self, *arguments: str, stdin: str = "", **settings: str) -> str:
        """What a `meltano` command that succeeds prints."""
        return succeeded(self.meltano(*arguments, stdin=stdin, **settings)).stdout

    def meltano(self, *arguments: str, stdin: str = "", **settings: str) -> Done:
        """Run `meltano`, whether it succeeds or not."""
        return self.run(self.python, *MELTANO, *arguments, stdin=stdin, **settings)

    def run(self, *command: str, stdin: str = "", **settings: str) -> Done:
        """Run a command in the project's folder, with more settings for this once."""
        environment = self._environment() | settings
        done = subprocess.run(
            command,
            cwd=self.root,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_SECONDS,
            check=False,
        )
        shown = [name for name, value in environment.items() if name.endswith("PASSWORD") and value in said(done)]
        assert not shown, said(done)
        return done

    def _environment(self) -> dict[str, str]:
        ours = ("MELTANO_", "CLICKHOUSE_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = os.pathsep.join([str(Path(self.python).parent), inherited.get("PATH", os.defpath)])
        return inherited | {"PATH": path, "MELTANO_CLI_DISABLE_VERSION_CHECK": "1"} | self.settings


def said(done: Done) -> str:
    """All that a command printed."""
    return done.stdout + done.stderr


def succeeded(done: Done) -> Done:
    """The command, if it succeeded: Meltano 4.4 also exits with 0 when it could not keep the last bookmarks."""
    assert done.returncode == 0, said(done)
    assert "Traceback" not in said(done), said(done)
    return done


def complaints(done: Done) -> list[str]:
    """The lines on standard error, but for Meltano's information, and without the time and the level."""
    lines = [(_LOG.fullmatch(line), line) for line in done.stderr.splitlines() if line]
    return [log["event"] if log else line for log, line in lines if not (log and log["level"] == "info")]
