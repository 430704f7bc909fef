"""The users a test server has, each for one kind of right. Their passwords are no secrets."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class User:
    """A user of a test server.

    Attributes:
        name: what it logs in as.
        password: in clear.
        grants: GRANT statements without their `TO`; None means every right.
        settings: the settings its profile sets.
    """

    name: str
    password: str = ""
    grants: tuple[str, ...] | None = None
    settings: dict[str, int] = field(default_factory=dict)


SCHEMA_PREFIX = "test_"
"""Databases whose name starts so are the ones that the restricted users have rights on."""

READ_AND_INSERT = (f"GRANT SELECT, INSERT ON {SCHEMA_PREFIX}*.*",)

DEFAULT = User("default")
"""Every fresh ClickHouse has it, without a password; `clickhouse local` logs in as it to run its first query."""

ADMIN = User("admin", "p@ss:w/rd%21")
"""Has every right, and a password that must be percent-encoded in a URL."""

RUNNER = User("runner", "runner-password", READ_AND_INSERT)
"""May SELECT and INSERT in the test schemas, and nothing else: no DDL, no mutation, no system.clusters."""

READER = User("reader", "reader-password", (f"GRANT SELECT ON {SCHEMA_PREFIX}*.*",), {"readonly": 1})
"""May only read, and may send no setting."""

NOBODY = User("nobody", "nobody-password", ())
"""May log in."""

HASTY = User("hasty", "hasty-password", READ_AND_INSERT, {"async_insert": 1, "wait_for_async_insert": 0})
"""A runner whose profile has inserts acknowledged before they are written."""

MIGRATE = (f"GRANT CREATE, ALTER, DROP, TRUNCATE, SELECT, INSERT ON {SCHEMA_PREFIX}*.*", "GRANT TABLE ENGINE ON *")

CLOUDY = User("cloudy", "cloudy-password", MIGRATE, {"cloud_mode": 1})
"""May make tables in the test schemas of what looks like ClickHouse Cloud."""

IMPATIENT = User("impatient", "impatient-password", None, {"keeper_max_retries": 1})
"""Has every right on a server of our own, which tells it at once when its Keeper is away, and not after 26 seconds."""

DOCUMENTED_USERS = (
    "meltano_migrate",
    "meltano_downgrade",
    "meltano_run",
    "meltano_restore",
    "meltano_read",
    "meltano_prune",
    "meltano_keeper",
    "meltano_migrate_keeper",
)
RIGHTS = Path(__file__).parents[2] / "docs" / "rights.md"
_GRANT = re.compile(r"^(GRANT .+?) TO (\w+);$", re.MULTILINE)
_PRIVILEGES = re.compile(r"GRANT (?P<privileges>.+) ON (?P<target>.+)")


def documented_users(page: str) -> Iterator[User]:
    """The users of docs/rights.md, and for each single privilege of theirs a user who lacks that one."""
    for name in DOCUMENTED_USERS:
        grants = [single for grant, user in _GRANT.findall(page) if user == name for single in _singly(grant)]
        settings = {"readonly": 1} if name == "meltano_read" else {}
        yield User(name, f"{name}-password", tuple(grants), settings)
        for number in range(len(grants)):
            rest = (*grants[:number], *grants[number + 1 :])
            yield User(f"{name}_without_{number}", f"{name}-password", rest, settings)


def _singly(grant: str) -> list[str]:
    found = _PRIVILEGES.fullmatch(grant)
    assert found, f"{RIGHTS} has a GRANT that this cannot read: {grant}"
    return [f"GRANT {privilege} ON {found['target']}" for privilege in found["privileges"].split(", ")]


DOCUMENTED = tuple(documented_users(RIGHTS.read_text()))

USERS = {user.name: user for user in (ADMIN, RUNNER, READER, NOBODY, HASTY, CLOUDY, IMPATIENT, *DOCUMENTED)}
