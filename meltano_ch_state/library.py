"""For other programs, with an engine of their own: the tables, and states under locks. Nothing here is Meltano's.

Example:
    >>> engine = create_engine("clickhouse+connect://user:password@host:8123")
    >>> upgrade(engine, schema="ops")
    >>> store = open_store(engine, schema="ops")
    >>> with store.lock("report:nightly", "report"):
    ...     state = store.get("report:nightly")
"""

from __future__ import annotations

from sqlalchemy import Engine

from meltano_ch_state import migrate
from meltano_ch_state.locker import LockOptions
from meltano_ch_state.repositories.locks import LockRepository
from meltano_ch_state.repositories.states import StateRepository
from meltano_ch_state.settings import DEFAULT_SCHEMA, DEFAULT_TABLE, Names
from meltano_ch_state.store import StateStore


def upgrade(engine: Engine, schema: str = DEFAULT_SCHEMA, table: str = DEFAULT_TABLE) -> None:
    """Create or upgrade the tables, from a deployment's step or from another project's own Alembic environment.

    Any number of processes may do so at once, and again after a crash.

    Args:
        engine: An SQLAlchemy engine for ClickHouse.
        schema: The ClickHouse database of the tables; it is created where it is missing.
        table: The state table; the others are named after it.

    Raises:
        SchemaError: If a later version of this package, or another program, made the tables.
        PermissionDeniedError: If the user lacks a GRANT; the message names it.
        ServerError: In another of its kinds, when the server does not answer or refuses.
    """
    migrate.upgrade(engine, Names(schema, table))


def open_store(
    engine: Engine, schema: str = DEFAULT_SCHEMA, table: str = DEFAULT_TABLE, options: LockOptions | None = None
) -> StateStore:
    """States under locks. Nothing is sent yet; missing tables are an error at the first use.

    Args:
        engine: An SQLAlchemy engine for ClickHouse.
        schema: The ClickHouse database of the tables.
        table: The state table.
        options: The lock's durations, in seconds.
    """
    locks = LockRepository(engine, schema, table, options=options)
    states = StateRepository(engine, schema, table)
    return StateStore(states, locks.locker, migrate.Schema(engine, Names(schema, table), auto_upgrade=False))
