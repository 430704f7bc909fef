"""All SQL about the schema itself: its revision, its database, and tables that are not ours."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, String, TextClause, column, table, text

from meltano_ch_state.errors import SchemaMissingError
from meltano_ch_state.repositories.base import Repository, select_final
from meltano_ch_state.settings import Names


class SchemaRepository(Repository):
    """The version table, in which Alembic keeps the schema's revision."""

    def __init__(self, engine: Engine, names: Names) -> None:
        """Bind the version table of a set of names; nothing is sent yet."""
        super().__init__(engine)
        version_num = column("version_num", String)
        self._revision = select_final(version_num).select_from(
            table(names.version_table, version_num, schema=names.schema)
        )

    def revision(self) -> str | None:
        """The revision of the database's schema, such as `0001`; None when there is no schema. One statement.

        Raises:
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        try:
            found = self.select(self._revision)
        except SchemaMissingError:
            return None
        return str(found[0][0]) if found else None


def create_database(connection: Connection, schema: str) -> None:
    """Create the tables' database unless it is there: `IF NOT EXISTS` alone demands CREATE DATABASE even then."""
    if not connection.execute(_DATABASE, {"schema": schema}).scalar():
        connection.execute(database_ddl(schema))


def database_ddl(schema: str) -> TextClause:
    """The statement that creates the tables' database."""
    return text(f"CREATE DATABASE IF NOT EXISTS `{schema}`")


def foreign_tables(connection: Connection, names: Names) -> list[str]:
    """The names of tables of ours that stand there with other columns: another program made them."""
    found = connection.execute(_FOREIGN, {"schema": names.schema, "state": names.table, "lock": names.lock_table})
    return [str(row[0]) for row in found]


_DATABASE = text("SELECT count() FROM system.databases WHERE name = :schema")
# No revision drops these two columns, and no other known state backend has them.
_FOREIGN = text(
    "SELECT table FROM system.columns WHERE database = :schema AND table IN (:state, :lock) GROUP BY table"
    " HAVING countIf(name = if(table = :state, 'is_deleted', 'token')) = 0 ORDER BY table"
)
