"""Who this process is, as lock rows tell it, and whether another one on this host is still alive."""

from __future__ import annotations

import getpass
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """Who wrote a row.

    Attributes:
        holder: `user@host:pid`, for people.
        process: `boot id/PID namespace/pid/start time`, for `is_dead`; empty where the system does not tell.
        operation: What it does under the lock: `set`, `clear`, `update`, ...
        version: The version of this package.
    """

    holder: str = ""
    process: str = ""
    operation: str = ""
    version: str = ""


def identify(operation: str) -> Identity:
    """This process, doing `operation`."""
    holder, process, release = _self(os.getpid())
    return Identity(holder, process, operation, release)


def is_dead(process: str) -> bool:
    """Whether `process` ran here and runs no more; False where that cannot be told for sure.

    It is "here" only with the same boot id and the same PID namespace: containers may share a host name. A pid that was
    given to a later process has another start time.
    """
    parts = process.rsplit("/", 2)
    if parts[0] == "" or parts[0] != _here() or not re.fullmatch("[0-9]{1,9}", parts[1]):
        return False
    started = _start_time(int(parts[1]))
    return not _exists(int(parts[1])) if started is None else started != parts[2]


@cache
def _self(pid: int) -> tuple[str, str, str]:
    user = "unknown"
    with suppress(OSError, KeyError, ImportError):  # a container may run as a user without a name
        user = getpass.getuser()
    started, here = _start_time(pid), _here()
    process = f"{here}/{pid}/{started}" if here and started else ""
    return f"{user}@{socket.gethostname()}:{pid}", process, _version()


def _version() -> str:
    try:
        return version("meltano-ch-state")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


@cache
def _here() -> str:
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    return ""


def _start_time(pid: int) -> str | None:
    """Field 22 of /proc/PID/stat: the second field, the command, may hold spaces and brackets. None: not to be read."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "zombie" if fields[0] in "ZX" else fields[19]
    return None


def _exists(pid: int) -> bool:
    """Whether there is such a process, also where /proc hides the processes of others."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
