"""`current`, `upgrade` and `sql`: the schema's revision."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from meltano_ch_state import migrate
from meltano_ch_state.cli.output import print_json
from meltano_ch_state.cli.target import Target, backend_options, one_line_errors, opened, target_of
from meltano_ch_state.errors import MissingSettingError
from meltano_ch_state.project import find_settings
from meltano_ch_state.repositories.schema import SchemaRepository
from meltano_ch_state.settings import Settings

FIRST = "0001"


@click.command()
@backend_options
def current(uri: str | None, as_json: bool) -> None:
    """Show the schema's revision. Beside it the one that this package needs."""
    with opened(uri) as target:
        revision = _revision(target)
    status = _status(revision)
    if as_json:
        schema = target.settings.schema
        print_json({"schema": schema, "revision": revision, "head": migrate.HEAD, "status": status})
    else:
        click.echo(f"{revision or 'none'} ({status}; this package needs {migrate.HEAD})")


def _revision(target: Target) -> str | None:
    return SchemaRepository(target.engine, target.settings.names).revision()


def _status(revision: str | None) -> str:
    if revision is None:
        return "missing"
    return "current" if revision == migrate.HEAD else "older" if revision < migrate.HEAD else "newer"


class Revision(click.ParamType):  # type: ignore[type-arg] # of click 8.5 only
    """Where to stop: `head`, or the number of a revision."""

    name = "revision"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what nobody knows, and what Alembic takes, too, but which is no upgrade (`base`)."""
        known = re.fullmatch("[0-9]{4}", str(value)) and FIRST <= str(value) <= migrate.HEAD
        if value != "head" and not known:
            self.fail(f"{value!r} is no revision. Write head, or a number from {FIRST} to {migrate.HEAD}.", param, ctx)
        return str(value)


@click.command()
@backend_options
@click.argument("revision", type=Revision(), default="head")
def upgrade(uri: str | None, as_json: bool, revision: str) -> None:
    """Create or upgrade the tables. Up to REVISION, which is head unless given."""
    with opened(uri, makes=True) as target, _alembic_errors():
        before = _revision(target)
        target.schema.upgrade(revision)
        target.schema.keep_history()
        after = _revision(target)
    schema = target.settings.schema
    if as_json:
        print_json({"schema": schema, "before": before, "after": after})
    elif before == after:
        included = "" if revision in {"head", after} else f", which includes {revision}"
        click.echo(f"Schema {schema} is at revision {after} already{included}.")
    else:
        click.echo(f"Upgraded schema {schema} from {before or 'nothing'} to revision {after}.")


@click.command()
@backend_options
@click.argument("revision", type=Revision(), default="head")
def sql(uri: str | None, as_json: bool, revision: str) -> None:
    """Print the statements of upgrade. For somebody who may run them: no server is asked, only the names count."""
    from alembic import command  # noqa: PLC0415 - dear, and seldom needed

    written = io.StringIO()
    with one_line_errors(), _alembic_errors():
        target = target_of(_names_at_least(uri))
        settings = target.settings
        config = migrate.alembic_config(target.engine, settings.names, settings.topology, settings.history_days)
        config.output_buffer = written
        command.upgrade(config, revision, sql=True)
    if as_json:
        print_json({"schema": target.settings.schema, "revision": revision, "sql": written.getvalue()})
    else:
        click.echo(written.getvalue(), nl=False)


def _names_at_least(uri: str | None) -> Settings:
    try:
        return find_settings({"uri": uri})
    except MissingSettingError:
        return find_settings({"uri": uri, "host": "unused"})


@contextmanager
def _alembic_errors() -> Iterator[None]:
    """Alembic's own complaint, such as that of an unknown revision in the version table, as one line."""
    from alembic.util import CommandError  # noqa: PLC0415 - dear, and seldom needed

    try:
        yield
    except CommandError as error:
        raise click.ClickException(f"{str(error).rstrip('.')}.") from error
