"""All SQL about the server itself, for a diagnosis. What the user may not see is a `PermissionDeniedError`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BindParameter, Engine, bindparam, text

from meltano_ch_state.repositories.base import Repository
from meltano_ch_state.repositories.schema import CLUSTERS, DATABASE
from meltano_ch_state.settings import Names


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mutation that is not done.

    Attributes:
        table: Whose it is.
        mutation_id: Its name, for KILL MUTATION.
        age_seconds: How long ago it was given.
        failure: Why it failed last; empty when it did not.
    """

    table: str
    mutation_id: str
    age_seconds: int
    failure: str


class ServerRepository(Repository):
    """What a server says about itself and about the tables of one set of names."""

    def __init__(self, engine: Engine, names: Names) -> None:
        """Bind an engine; nothing is sent yet."""
        super().__init__(engine)
        self._names = names
        self._tables = {"schema": names.schema, "tables": [names.table, names.lock_table, names.history_table]}

    def version(self) -> str:
        """The server's version, such as 26.7.2.1."""
        return str(self.select(text("SELECT version()"))[0][0])

    def user(self) -> tuple[str, bool]:
        """The user's name, and whether its profile lets it only read."""
        name, readonly = self.select(text("SELECT currentUser(), getSetting('readonly')"))[0]
        return str(name), int(readonly) != 0

    def may(self, privilege: str, table: str = "*") -> bool:
        """Whether the user has a privilege, such as INSERT, on a table of the schema or (`*`) on all of them.

        Raises:
            ServerError: If the server is too old to tell.
        """
        on = table if table == "*" else f"`{table}`"
        return bool(self.select(text(f"CHECK GRANT {privilege} ON `{self._names.schema}`.{on}"))[0][0])

    def may_make(self, table_engine: str) -> bool:
        """Whether the user may make tables with an engine.

        Raises:
            ServerError: If the server is too old to tell, and then it may not ask for that right.
        """
        return bool(self.select(text(f"CHECK GRANT TABLE ENGINE ON {table_engine}"))[0][0])

    def has_database(self) -> bool:
        """Whether the database of the tables is there, as far as the user may know of it."""
        return bool(self.select(DATABASE, {"schema": self._names.schema})[0][0])

    def engines(self) -> dict[str, str]:
        """The engines of the state table and the lock table, as far as they are there and the user may know of them."""
        return {row[0]: row[1] for row in self.select(_ENGINES, self._tables)}

    def clusters(self) -> list[str]:
        """The clusters in which the server has neighbours, sorted."""
        return [str(row[0]) for row in self.select(CLUSTERS)]

    def newest_version(self) -> int:
        """The greatest token or version in the tables, in microseconds; 0 when there is none."""
        schema, state, lock = self._names.schema, self._names.table, self._names.lock_table
        greatest = [
            f"SELECT max(toUnixTimestamp64Micro(`{column}`)) AS newest FROM `{schema}`.`{table}`"  # noqa: S608
            for table, column in ((state, "updated_at"), (lock, "token"))
        ]
        newest = self.select(text(f"SELECT max(newest) FROM ({' UNION ALL '.join(greatest)})"))  # noqa: S608
        return max(0, int(newest[0][0] or 0))

    def unkept(self) -> tuple[str, int] | None:
        """A version of the last day that is in force and not in the history: its state ID, and its microseconds.

        Those that were replaced may have been pruned.
        """
        state, history = (f"`{self._names.schema}`.`{name}`" for name in (self._names.table, self._names.history_table))
        statement = (
            f"SELECT state_id, toUnixTimestamp64Micro(updated_at) FROM {state} FINAL WHERE {_LATELY}"  # noqa: S608
            " AND updated_at < now64(6) - toIntervalMinute(1)"  # what is just being written need not be in both
            f" AND (state_id, updated_at) NOT IN (SELECT state_id, updated_at FROM {history} WHERE {_LATELY})"
            " ORDER BY updated_at DESC LIMIT 1"
        )
        found = self.select(text(statement))
        return (str(found[0][0]), int(found[0][1])) if found else None

    def unfinished_mutations(self) -> list[Mutation]:
        """The mutations on the tables that are not done, the oldest first."""
        return [Mutation(*row) for row in self.select(_MUTATIONS, self._tables)]

    def active_parts(self) -> dict[str, int]:
        """The number of active parts of each table that has some."""
        return {row[0]: int(row[1]) for row in self.select(_PARTS, self._tables)}


_LATELY = "updated_at > now64(6) - toIntervalDay(1)"
_TABLES: BindParameter[Any] = bindparam("tables", expanding=True)
_ENGINES = text("SELECT name, engine FROM system.tables WHERE database = :schema AND name IN :tables").bindparams(
    _TABLES
)
_MUTATIONS = text(
    "SELECT table, mutation_id, dateDiff('second', create_time, now()), latest_fail_reason FROM system.mutations"
    " WHERE database = :schema AND table IN :tables AND NOT is_done ORDER BY create_time"
).bindparams(_TABLES)
_PARTS = text(
    "SELECT table, count() FROM system.parts WHERE database = :schema AND table IN :tables AND active GROUP BY table"
).bindparams(_TABLES)
