"""Finds a program that can run a ClickHouse server on this machine.

First found wins: a `clickhouse` binary on the PATH, else the library of the npm package `@chdb/lib-...`, fetched once
into a cache folder. (A server that runs already, named by CLICKHOUSE_TEST_URL, needs no program: see `server.py`.)
"""

import base64
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

OLDEST_VERSION = (24, 10)
"""The first ClickHouse with wildcard grants (`test_*.*`), which the rig's users need."""

FETCH_TIMEOUT_SECONDS = 900

REMEDIES = """No ClickHouse server can be had for the tests. Any one of these helps:
  - name a running server for tests: CLICKHOUSE_TEST_URL=http://user:password@host:8123/?tcp_port=9000
  - put a `clickhouse` binary, {oldest} or newer, on the PATH
  - install npm, so that the package @chdb/lib-... can be fetched (once, 178 MB)
What was tried last: {reason}"""


@dataclass(frozen=True)
class Package:
    """One npm package that holds a `libchdb.so`, pinned by the sha512 of its tarball."""

    name: str
    version: str
    integrity: str


PACKAGES = {
    ("linux", "x86_64"): Package(
        "@chdb/lib-linux-x64-gnu",
        "26.7.3-stable.1",
        "sha512-XP97mMqnc5tZpKQywR8N7cLTsHNiTmHr30pC5mzo3jWmukjKn2IBa60c2B/gWUNcuFjOMjWoorQICCqBVj5wpw==",
    ),
}
"""By system and processor. The siblings lib-linux-arm64-gnu, lib-darwin-arm64 and lib-darwin-x64 can be added with the
hash that `npm view NAME@VERSION dist.integrity` gives; a package without a pinned hash is never loaded."""


def find_program() -> Path:
    """Return the program that `process.py` runs as a server: a `clickhouse` binary or a `libchdb.so`.

    Raises:
        RuntimeError: nothing was found; the message names the remedies.
    """
    return binary_on_path() or cached_library(cache_folder())


def binary_on_path() -> Path | None:
    """Return the `clickhouse` on the PATH; one that is too old or does not run (Debian's is 18.16) does not count."""
    found = shutil.which("clickhouse")
    return Path(found) if found and binary_version(found) >= OLDEST_VERSION else None


def binary_version(binary: str) -> tuple[int, ...]:
    """Return the version such as (26, 7, 2, 1) of a `clickhouse` binary, or () if it cannot tell."""
    command = [binary, "local", "--query", "SELECT version()"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    return tuple(int(part) for part in answer.split(".") if part.isdecimal())


def cache_folder() -> Path:
    """Return the folder that keeps fetched libraries: CLICKHOUSE_TEST_CACHE, else `.clickhouse` in the repository."""
    default = Path(__file__).parents[2] / ".clickhouse"
    return Path(os.environ.get("CLICKHOUSE_TEST_CACHE", default)).absolute()


def cached_library(cache: Path) -> Path:
    """Return the library of this platform's package, fetched before if the cache has none.

    Raises:
        RuntimeError: no package is pinned for this platform, or it could not be fetched or is not the pinned one.
    """
    package = PACKAGES.get(this_system())
    if not package:
        raise nothing_found(f"no npm package is pinned for {' '.join(this_system())}")
    library = cache / package.name.replace("/", "-") / package.version / "libchdb.so"
    if not library.exists():
        fetch(package, library)
    return library


def this_system() -> tuple[str, str]:
    """Return a key for PACKAGES such as ("linux", "x86_64")."""
    return sys.platform, platform.machine()


def fetch(package: Package, library: Path) -> None:
    """Fetch and verify a package and put its library in place. Several processes may do so at once: the last wins."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        tarball = pack(package, Path(folder))
        verify(tarball, package.integrity)
        os.replace(unpack(tarball), library)


def pack(package: Package, folder: Path) -> Path:
    """Let npm put the package's tarball into the folder, and return the tarball."""
    command = ["npm", "pack", f"{package.name}@{package.version}", "--ignore-scripts"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=FETCH_TIMEOUT_SECONDS)
    except subprocess.CalledProcessError as error:
        raise nothing_found(f"{' '.join(command)}: {error.stderr.strip()}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise nothing_found(f"{' '.join(command)}: {error}") from error
    return next(folder.glob("*.tgz"))


def verify(tarball: Path, integrity: str) -> None:
    """Compare a tarball with its pinned hash, written as npm does: `sha512-` and base64.

    Raises:
        RuntimeError: they differ.
    """
    digest = base64.b64encode(hashlib.sha512(tarball.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != integrity:
        raise nothing_found(f"{tarball.name} has the hash sha512-{digest}, but {integrity} is pinned: refused")


def unpack(tarball: Path) -> Path:
    """Extract the library beside the tarball, and return it."""
    library = tarball.with_name("libchdb.so")
    with tarfile.open(tarball) as archive, library.open("wb") as target:
        source = archive.extractfile("package/libchdb.so")
        assert source, "the package's libchdb.so is a regular file"
        shutil.copyfileobj(source, target)
    return library


def nothing_found(reason: str) -> RuntimeError:
    """Return the error that names the remedies and the reason."""
    return RuntimeError(REMEDIES.format(oldest=".".join(map(str, OLDEST_VERSION)), reason=reason))
