"""Alembic's environment: which database, which names, and the models to compare with."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, event

import meltano_ch_state.alembic_compare
import meltano_ch_state.alembic_impl  # noqa: F401 - registers ClickHouse with Alembic
from meltano_ch_state.connection import engine_for
from meltano_ch_state.errors import MissingSettingError, NoKeeperError, StateBackendError
from meltano_ch_state.migrate import Schema
from meltano_ch_state.models import build
from meltano_ch_state.project import find_settings
from meltano_ch_state.repositories.faults import server_errors
from meltano_ch_state.repositories.schema import keeper_ddl, on_cluster, replacing_engine
from meltano_ch_state.settings import AUTO, INSERT, KEEPER, Names, Settings, Topology

# sooner than the client gives up, so that the error names the servers that are missing
CLUSTER_SETTINGS = {"distributed_ddl_task_timeout": 50}


def run_command() -> None:
    """Run a command of the command line: errors are one line, and the steps are logged."""
    logging.getLogger().addHandler(logging.NullHandler())  # what goes wrong is in the line that Alembic prints
    steps = logging.getLogger("alembic.runtime.migration")
    steps.addHandler(logging.StreamHandler())
    steps.setLevel(logging.INFO)
    settings = command_settings()
    if context.is_offline_mode():
        run_offline(settings.names, settings.topology, settings.history_days)
        if is_upgrade() and settings.lock_mode == KEEPER:
            context.execute(keeper_ddl(settings.names, settings.topology).text)
    else:
        engine = engine_for(settings)
        event.listen(engine, "engine_connect", forget_default_schema)
        run_online(engine, settings.names, settings.topology, settings.history_days)
        if is_upgrade():
            finish_upgrade(engine, settings)


def is_upgrade() -> bool:
    """Whether the command is `upgrade`: only that makes tables."""
    command = getattr(context.config.cmd_opts, "cmd", None)
    return bool(command) and command[0].__name__ == "upgrade"


def finish_upgrade(engine: Engine, settings: Settings) -> None:
    """Do what no revision does, because a setting says it."""
    Schema.of(engine, settings).keep_history()
    if settings.lock_mode != INSERT:
        make_keeper_table(engine, settings)


def make_keeper_table(engine: Engine, settings: Settings) -> None:
    """Make the lock table in Keeper. No revision does: a server may get its Keeper at any time."""
    try:
        Schema.of(engine, settings).make_keeper_table()
    except NoKeeperError as error:
        if settings.lock_mode != AUTO:
            raise
        logging.getLogger("alembic.runtime.migration").info("%s", error)


def command_settings() -> Settings:
    """What the command line, the environment or the Meltano project say. Names alone are enough to write SQL."""
    given = context.get_x_argument(as_dictionary=True)
    try:
        return find_settings(given)
    except MissingSettingError:
        if not context.is_offline_mode():
            raise
        return find_settings({**given, "host": "unused"})


def forget_default_schema(connection: Connection) -> None:
    """Have Alembic compare tables by their full names, also those in the connection's database."""
    connection.dialect.default_schema_name = None


def run_offline(names: Names, topology: Topology, history_days: int) -> None:
    """Write the statements to standard output."""
    context.configure(dialect_name="clickhouse+connect", **options(names, topology, history_days))
    context.run_migrations()


def run_online(engine: Engine, names: Names, topology: Topology, history_days: int) -> None:
    """Run the statements, unless the schema is newer than this package, or the server is no place for its tables."""
    schema = Schema(engine, names, topology=topology)
    schema.readable()  # refuses a newer one
    topology = schema.fitting_topology()
    with server_errors(engine), engine.connect() as connection:
        if topology.cluster:
            connection.execution_options(settings=CLUSTER_SETTINGS)
        context.configure(connection=connection, **options(names, topology, history_days))
        context.run_migrations()


def options(names: Names, topology: Topology, history_days: int) -> dict[str, Any]:
    """What Alembic compares, and where it keeps the revision."""

    def include_name(name: str | None, kind: str, parents: Mapping[str, str | None]) -> bool:
        tables = {names.table, names.lock_table, names.history_table}
        return {"schema": name == names.schema, "table": name in tables}.get(kind, True)

    return {
        "names": names,
        "topology": topology,
        "history_days": history_days,
        "on_cluster": on_cluster(topology),
        "replacing": partial(replacing_engine, topology, names),
        "version_table": names.version_table,
        "version_table_schema": names.schema,
        "target_metadata": build(names, history_days).metadata,
        "include_schemas": True,
        "include_name": include_name,
        "compare_type": True,
        "compare_server_default": True,
    }


given = context.config.attributes
if "engine" in given and context.is_offline_mode():
    run_offline(*(given[name] for name in ("names", "topology", "history_days")))
elif "engine" in given:
    run_online(*(given[name] for name in ("engine", "names", "topology", "history_days")))
else:
    try:
        run_command()
    except StateBackendError as error:
        raise CommandError(str(error)) from error
