"""Start workers, let them go at once, and collect what they saw."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import IO

SECONDS = 100
"""How long a test waits for a worker, in seconds."""


@dataclass
class Worker:
    """A running `tests.support.worker`."""

    process: subprocess.Popen[str]

    @property
    def _output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def expect(self, line: str) -> None:
        """Wait for a line."""
        assert self._output.readline().strip() == line

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, int]:
        """Wait for its end; what it saw."""
        output, _ = self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == 0, output
        seen: dict[str, int] = json.loads(output.strip().splitlines()[-1])
        return seen


def start(*arguments: object) -> Worker:
    """Start a worker and wait until it is connected."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.worker", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    worker = Worker(process)
    worker.expect("ready")
    return worker


def start_all(count: int, *arguments: object) -> list[Worker]:
    """Start several workers, and let them begin together."""
    workers = [start(*arguments) for _ in range(count)]
    for worker in workers:
        worker.go()
    return workers
