"""The schema's revision, and how to change it.

`python -m meltano_ch_state.migrate` is `alembic` with this package's configuration, wherever it is installed:

    python -m meltano_ch_state.migrate upgrade head
    python -m meltano_ch_state.migrate -x uri=clickhouse://user@host:8123 upgrade head --sql

Alembic is imported only when it has something to do.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from meltano_ch_state.errors import SchemaError, SchemaMissingError, SchemaTooNewError
from meltano_ch_state.repositories.base import forget_engines_of_tables
from meltano_ch_state.repositories.faults import UPGRADE_COMMAND
from meltano_ch_state.repositories.schema import SchemaRepository
from meltano_ch_state.settings import HISTORY_DAYS, Names, Settings, Topology

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Engine

HEAD = "0002"
"""The newest revision that this package knows. Revisions are numbers of four digits, one after the other."""
HISTORY_REVISION = "0002"
"""Since this revision old versions are kept."""

_DEFAULT_NAMES = Names()
_DEFAULT_TOPOLOGY = Topology()
_one_at_a_time = threading.Lock()


class Schema:
    """The schema in the database, against the one that this package needs."""

    def __init__(
        self,
        engine: Engine,
        names: Names = _DEFAULT_NAMES,
        auto_upgrade: bool = True,
        topology: Topology = _DEFAULT_TOPOLOGY,
        history_days: int = HISTORY_DAYS,
    ) -> None:
        """Bind a schema; nothing is sent yet.

        Args:
            engine: An SQLAlchemy engine for ClickHouse.
            names: The tables' names.
            auto_upgrade: Whether `make_writable` may create and change tables.
            topology: On which servers the tables are made.
            history_days: For how many days the history keeps a version.
        """
        self._engine = engine
        self._names = names
        self._auto_upgrade = auto_upgrade
        self._topology = topology
        self._history_days = history_days
        self._repository = SchemaRepository(engine, names)

    @classmethod
    def of(cls, engine: Engine, settings: Settings) -> Schema:
        """The schema that settings describe; nothing is sent yet."""
        return cls(engine, settings.names, settings.auto_upgrade, settings.topology, settings.history_days)

    def readable(self) -> bool:
        """Return whether there is anything to read. One statement, which needs no right but SELECT.

        Raises:
            SchemaMissingError: If `auto_upgrade` is off and it needs one: a run would load all and keep no bookmark.
            SchemaTooNewError: If a later version of this package made the schema.
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        revision = self._revision()
        if not self._auto_upgrade:
            self._require_head(revision)
        return revision is not None

    def make_writable(self) -> None:
        """Create or upgrade the tables if they need it. Two statements when they do not.

        Raises:
            SchemaMissingError: If they need it and `auto_upgrade` is off.
            SchemaTooNewError: If a later version of this package made the schema.
            SchemaError: If another program's tables are in the way, or the tables are plain ones in a cluster.
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        revision = self._revision()
        if revision != HEAD and self._auto_upgrade:
            self.upgrade()
        else:
            self._require_head(revision)
            if self._topology.replicated is not False and self._repository.has_plain_tables():
                self._refuse_a_cluster()

    def upgrade(self, revision: str = "head") -> None:
        """Create or upgrade the tables, up to a revision; see the function `upgrade`."""
        upgrade(self._engine, self._names, revision, self._topology, self._history_days)

    def has_history(self) -> bool:
        """Whether old versions are kept. One statement.

        Raises:
            SchemaTooNewError: If a later version of this package made the schema.
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        return (self._revision() or "") >= HISTORY_REVISION

    def kept_days(self) -> int | None:
        """For how many days the history keeps a version; None where there is none, or the user may not know."""
        return self._repository.history_days()

    def keep_history(self) -> None:
        """Have the history keep its versions for `history_days`, if it keeps them for another time now.

        An operator's command does so, never a write: it needs ALTER TTL, and goes over all of the table.

        Raises:
            PermissionDeniedError: If the user lacks that GRANT; the message names it.
            ServerError: In another of its kinds, when the server does not answer or refuses.
        """
        if self.kept_days() not in {None, self._history_days}:
            self._repository.keep_history(self._history_days, self.fitting_topology())

    def make_keeper_table(self) -> None:
        """Create the lock table in Keeper unless it is there. No revision does: a server may get a Keeper at any time.

        Raises:
            NoKeeperError: If the server has no Keeper for tables.
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        self._repository.make_keeper_table(self.fitting_topology())

    def fitting_topology(self) -> Topology:
        """On which servers to make the tables, when this server has its say: ClickHouse Cloud sees to that by itself.

        Raises:
            SchemaError: If they would be plain ones on one server of a cluster.
            ServerError: In one of its kinds, when the server does not answer or refuses.
        """
        if self._repository.is_cloud():
            return Topology()
        if not self._topology.is_replicated and self._topology.replicated is None:
            self._refuse_a_cluster()
        return self._topology

    def _refuse_a_cluster(self) -> None:
        """Refuse plain tables where a client may reach another server next: it would not see their rows."""
        if clusters := self._repository.clusters():
            raise SchemaError(
                f"This server is one of cluster {clusters[0]}, whose other servers would not see the rows of the plain"
                f" tables in schema {self._names.schema}",
                f"Set state_backend.clickhouse.cluster to {clusters[0]} and use a new schema; or, if the host always is"
                " this one server, set state_backend.clickhouse.replicated to false",
            )

    def _require_head(self, revision: str | None) -> None:
        if revision != HEAD:
            found = f"at revision {revision}, older than {HEAD}" if revision else "missing"
            raise SchemaMissingError(
                f"The tables in schema {self._names.schema} are {found}", f"Run: {UPGRADE_COMMAND}"
            )

    def _revision(self) -> str | None:
        revision = self._repository.revision()
        if revision is not None and revision > HEAD:
            raise SchemaTooNewError(
                f"Schema {self._names.schema} is at revision {revision}, but this version of meltano-ch-state knows"
                f" revisions up to {HEAD}",
                "Upgrade meltano-ch-state",
            )
        return revision


def upgrade(
    engine: Engine,
    names: Names = _DEFAULT_NAMES,
    revision: str = "head",
    topology: Topology = _DEFAULT_TOPOLOGY,
    history_days: int = HISTORY_DAYS,
) -> None:
    """Create or upgrade the tables. Any number of processes may do so at once, and again after a crash.

    Args:
        engine: An SQLAlchemy engine for ClickHouse.
        names: The tables' names.
        revision: Where to stop: `head`, or a revision such as `0001`.
        topology: On which servers the tables are made.
        history_days: For how many days the history keeps a version; one that is there stays as it is.

    Raises:
        SchemaTooNewError: If a later version of this package made the schema.
        SchemaError: If another program's tables are in the way, or the tables would be plain ones in a cluster.
        PermissionDeniedError: If the user lacks a GRANT; the message names it.
        ServerError: In another of its kinds, when the server does not answer or refuses.
    """
    _run("upgrade", alembic_config(engine, names, topology, history_days), revision)
    forget_engines_of_tables(engine)


def downgrade(
    engine: Engine,
    names: Names = _DEFAULT_NAMES,
    revision: str = "base",
    topology: Topology = _DEFAULT_TOPOLOGY,
) -> None:
    """Take the schema back, with the data; `base` drops the tables. For maintenance, when nobody else is at work.

    Args:
        engine: An SQLAlchemy engine for ClickHouse.
        names: The tables' names.
        revision: Where to stop: `base`, or a revision such as `0001`.
        topology: On which servers the tables are.

    Raises:
        SchemaTooNewError: If a later version of this package made the schema.
        PermissionDeniedError: If the user lacks a GRANT; the message names it.
        ServerError: In another of its kinds, when the server does not answer or refuses.
    """
    _run("downgrade", alembic_config(engine, names, topology), revision)
    forget_engines_of_tables(engine)


def config_file() -> Path:
    """The `alembic.ini` beside the migrations: within the package, or at the root of a source checkout."""
    package = Path(__file__).parent
    folder = package if (package / "alembic").is_dir() else package.parent
    return folder / "alembic.ini"


def alembic_config(
    engine: Engine,
    names: Names = _DEFAULT_NAMES,
    topology: Topology = _DEFAULT_TOPOLOGY,
    history_days: int = HISTORY_DAYS,
) -> Config:
    """Alembic's configuration for an engine, for other commands: `alembic.command.check(alembic_config(engine))`."""
    from alembic.config import Config  # noqa: PLC0415 - dear, and seldom needed

    config = Config(attributes={"engine": engine, "names": names, "topology": topology, "history_days": history_days})
    folder = str(config_file().with_name("alembic"))
    config.set_main_option("script_location", folder.replace("%", "%%"))
    return config


def _run(command: str, config: Config, revision: str) -> None:
    from alembic import command as commands  # noqa: PLC0415 - dear, and seldom needed

    with _one_at_a_time, _outer_environment_kept():  # `alembic.op` and `alembic.context` are one per process
        getattr(commands, command)(config, revision)


@contextmanager
def _outer_environment_kept() -> Iterator[None]:
    """Let another project's own Alembic environment call this: ours would leave it without its `alembic.context`."""
    from alembic import context  # noqa: PLC0415

    outer = getattr(context, "_proxy", None)
    try:
        yield
    finally:
        if outer is not None:
            outer.__enter__()


def main() -> None:
    """Run Alembic's command line with this package's configuration."""
    from alembic.config import main as alembic_main  # noqa: PLC0415

    alembic_main(["-c", str(config_file()), *sys.argv[1:]], prog="python -m meltano_ch_state.migrate")


if __name__ == "__main__":
    main()
