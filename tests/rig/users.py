"""The users a test server has, each for one kind of right. Their passwords are no secrets."""

from dataclasses import dataclass, field


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

USERS = {user.name: user for user in (ADMIN, RUNNER, READER, NOBODY, HASTY)}
