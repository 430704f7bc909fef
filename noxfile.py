"""The versions that are supported: `nox` runs what is installed here, `nox -s lowest` the oldest of everything.

Each session makes an environment of its own. What follows `--` goes to pytest: `nox -s tests-3.12 -- tests/unit -x`.
"""

from pathlib import Path

import nox
from packaging.requirements import Requirement

PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
PACKAGES = ["meltano", "sqlalchemy", "alembic", "clickhouse-connect", "chdb"]
CORE = ["tests/unit", "tests/conformance"]
"""What says whether a combination works; the rest of the suite is about this package, not about what it stands on."""
PYTEST = ["python", "-m", "pytest", "-q", "-n", "logical", "--maxprocesses", "8"]

ENGINES = {
    "24.8": ("chdb==3.2.0",),
    "25.5": ("chdb==3.4.1",),
    "25.8": ("chdb==3.7.2",),
    "26.1": ("chdb==4.1.0", "chdb-core==26.1.0"),
    "26.3": ("chdb==4.1.0", "chdb-core==26.3.0"),
    "26.5": ("chdb==4.1.0", "chdb-core==26.5.0"),
    "26.7": ("chdb==4.1.0", "chdb-core==26.7.3"),
    "26.9": ("chdb==4.4.0", "chdb-core==26.9.0"),
}
"""Which packages bring which version of ClickHouse as the embedded engine: docs/versions.md."""
OLD_ENGINE = dict.fromkeys(("24.8", "25.5", "25.8"), ("-p", "tests.support.old_chdb"))
"""Options of pytest for those that chdb 3 brings."""

nox.options.sessions = ["tests", "lowest", "newest"]
nox.options.error_on_missing_interpreters = False


def install(session: nox.Session, *options: str) -> None:
    """The package, editable, with the embedded engine and what the tests need."""
    session.run("python", "-m", "pip", "install", "--quiet", "--upgrade", "pip>=25.1")  # which knows --group
    session.install("--no-compile", *options, "--editable", ".[embedded]", "--group", "test")


def floors(session: nox.Session, *without: str) -> str:
    """A file of constraints: each dependency that pyproject.toml names, at the oldest version that it allows."""
    project = nox.project.load_toml("pyproject.toml")
    named = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["embedded"]]
    named += nox.project.dependency_groups(project, "test")
    path = Path(session.create_tmp()) / "constraints.txt"
    path.write_text("".join(_floor(Requirement(each)) for each in named if Requirement(each).name not in without))
    return str(path)


def _floor(requirement: Requirement) -> str:
    oldest = next(bound.version for bound in requirement.specifier if bound.operator == ">=")
    return f"{requirement.name}=={oldest}\n"


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Every test, on each Python."""
    install(session)
    session.run(*PYTEST, *session.posargs)


@nox.session
def lowest(session: nox.Session) -> None:
    """The oldest version of each dependency that pyproject.toml names."""
    install(session, "--constraint", floors(session))
    session.run(*PYTEST, *(session.posargs or CORE))


@nox.session
@nox.parametrize("package", PACKAGES)
def newest(session: nox.Session, package: str) -> None:
    """One dependency at its newest, releases to come included, the others at their oldest."""
    install(session, "--pre", "--constraint", floors(session, package))
    session.run(*PYTEST, *(session.posargs or CORE))


@nox.session
@nox.parametrize("version", list(ENGINES))
def engines(session: nox.Session, version: str) -> None:
    """One version of ClickHouse, embedded; what the package index has of them."""
    install(session)
    session.install("--no-compile", "--no-deps", *ENGINES[version])
    session.run(*PYTEST, *OLD_ENGINE.get(version, ()), "tests/conformance", "-k", "embedded", *session.posargs)
