"""The soak for some seconds, as a command: its exit code and its counts."""

from __future__ import annotations

import subprocess
import sys

MUST_BE_NOTHING = (
    "LOST UPDATES",
    "UPDATES THAT ARE THERE TWICE",
    "UPDATES FROM NOWHERE",
    "OVERLAPS",
    "LEFTOVER LIVE ROWS",
    "LEFTOVER CONNECTIONS",
)


def soak(*arguments: str) -> tuple[int, dict[str, int]]:
    """Its exit code and its counts."""
    command = [sys.executable, "-m", "tests.soak", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    lines = [line.rpartition(": ") for line in done.stdout.splitlines()]
    return done.returncode, {name: int(number.replace(",", "")) for name, _, number in lines}


def assert_nothing_was_lost(*arguments: str) -> None:
    """Run it; fail unless it did something, met faults, and broke no promise."""
    code, counts = soak(*arguments)
    assert {name: counts[name] for name in MUST_BE_NOTHING} == dict.fromkeys(MUST_BE_NOTHING, 0)
    assert counts["updates acknowledged"] >= 10
    assert sum(number for name, number in counts.items() if name.startswith("faults: ")) >= 4
    assert code == 0
