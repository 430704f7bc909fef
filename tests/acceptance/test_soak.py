"""The soak, for some seconds: what it counts, and that its counts tell."""

from __future__ import annotations

import subprocess
import sys

import pytest

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


@pytest.mark.timeout(240)
def test_some_seconds_of_faults_lose_nothing() -> None:
    code, counts = soak("15", "3")
    assert {name: counts[name] for name in MUST_BE_NOTHING} == dict.fromkeys(MUST_BE_NOTHING, 0)
    assert counts["updates acknowledged"] >= 10
    assert sum(number for name, number in counts.items() if name.startswith("faults: ")) >= 4
    assert code == 0


@pytest.mark.timeout(240)
def test_without_the_lock_the_counts_tell() -> None:
    code, counts = soak("10", "3", "--no-lock")
    assert counts["OVERLAPS"] > 0
    assert code == 1
