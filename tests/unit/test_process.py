"""Who this process is, and whether another one on this host is dead."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meltano_ch_state.process import identify, is_dead

SAY_WHO = "import sys; from meltano_ch_state.process import identify; print(identify('x').process, flush=True)"
UNTIL_STDIN_ENDS = "; sys.stdin.read()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that says who it is, and lives until its input ends."""
    command = [sys.executable, "-c", SAY_WHO + UNTIL_STDIN_ENDS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        yield child


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.fixture
def gone() -> str:
    """The identity of a process that is over."""
    return subprocess.run([sys.executable, "-c", SAY_WHO], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def changed(process: str, part: int, value: str) -> str:
    """An identity with one of its parts (boot id, PID namespace, pid, start time) replaced."""
    parts = process.split("/")
    parts[part] = value
    return "/".join(parts)


def refuse(*_: object) -> str:
    raise PermissionError("hidden")


def test_a_process_tells_its_pid_its_operation_and_the_package_version() -> None:
    identity = identify("clear")
    assert identity.operation == "clear"
    assert identity.holder.endswith(f":{os.getpid()}")
    assert "@" in identity.holder
    assert identity.process.split("/")[2] == str(os.getpid())
    assert identity.version
    assert identify("set").process == identity.process


def test_this_process_is_not_dead() -> None:
    assert not is_dead(identify("set").process)


def test_a_running_process_is_not_dead_a_zombie_is_and_so_it_stays(child: subprocess.Popen[str]) -> None:
    process = said(child)
    assert process.split("/")[2] == str(child.pid)
    assert not is_dead(process)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, but nobody took notice yet
    assert is_dead(process)
    child.wait()
    assert is_dead(process)


def test_a_process_that_ended_is_dead(gone: str) -> None:
    assert is_dead(gone)


def test_a_forked_child_is_another_process_than_its_parent() -> None:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, identify("set").process.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading) as pipe:
        process = pipe.read()
    assert process.split("/")[2] == str(pid)
    assert is_dead(process)
    assert not is_dead(identify("set").process)


def test_a_pid_that_was_given_to_a_later_process_does_not_keep_the_earlier_alive() -> None:
    process = identify("set").process
    started = int(process.split("/")[3])
    assert is_dead(changed(process, 3, str(started - 1)))


@pytest.mark.parametrize(
    ("part", "value"),
    [(0, "00000000-0000-0000-0000-000000000000"), (1, "pid:[1]")],
    ids=["another boot", "another PID namespace"],
)
def test_a_process_that_ran_elsewhere_is_never_taken_for_dead(gone: str, part: int, value: str) -> None:
    assert not is_dead(changed(gone, part, value))


@pytest.mark.parametrize(
    "text", ["", "/", "//", "///", "x", "1", "a/b", "a/b/c/d", "///1/1", "user@host:1", "\0", "é/1/1"]
)
def test_text_that_is_no_identity_is_never_taken_for_dead(text: str) -> None:
    assert not is_dead(text)


@pytest.mark.parametrize("pid", ["", "x", "-1", "1.5", " 1", "0x1", "²", "9" * 30])
def test_an_identity_with_something_else_than_a_pid_is_never_taken_for_dead(gone: str, pid: str) -> None:
    assert not is_dead(changed(gone, 2, pid))


def test_where_proc_is_hidden_a_process_is_dead_when_its_pid_is_gone(
    monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[str], gone: str
) -> None:
    running = said(child)
    own = identify("set").process
    monkeypatch.setattr(Path, "read_text", refuse)
    assert not is_dead(own)
    assert not is_dead(running)
    assert is_dead(gone)


def test_where_a_process_of_another_user_may_not_be_asked_it_is_alive(
    monkeypatch: pytest.MonkeyPatch, child: subprocess.Popen[str]
) -> None:
    running = said(child)
    assert not is_dead(running)
    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(os, "kill", refuse)
    assert not is_dead(running)
