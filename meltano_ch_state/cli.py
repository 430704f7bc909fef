"""The command line for operators: `meltano-ch-state`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from meltano_ch_state.connection import engine_for
from meltano_ch_state.errors import StateBackendError
from meltano_ch_state.process import identify
from meltano_ch_state.project import find_settings
from meltano_ch_state.protocol import LiveLock
from meltano_ch_state.repositories.locks import LockRepository


@contextmanager
def _locks(uri: str | None) -> Iterator[LockRepository]:
    """The lock table that the settings name; errors end the command with one line and exit code 1."""
    try:
        settings = find_settings({"uri": uri})
        engine = engine_for(settings)
        try:
            yield LockRepository(engine, settings.schema, settings.table)
        finally:
            engine.dispose()
    except StateBackendError as error:
        raise click.ClickException(str(error)) from error


def _with_uri(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--uri", help="The state backend; else the environment or the Meltano project names it.")(
        command
    )


@click.group()
@click.version_option(package_name="meltano-ch-state")
def main() -> None:
    """Look after Meltano's state in ClickHouse."""


@main.command()
@_with_uri
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def locks(uri: str | None, as_json: bool) -> None:
    """List the locks that are held now."""
    with _locks(uri) as repository:
        now = repository.now()
        rows = [_row(lock, now) for lock in repository.live()]
    if as_json:
        click.echo(json.dumps(rows))
    elif not rows:
        click.echo("No state is locked.")
    else:
        for row in rows:
            click.echo(
                "{state_id}  {holder} ({operation})  age {age_seconds:.1f} s"
                "  lease left {lease_seconds_left:.1f} s  lock_id {lock_id}".format(**row)
            )


def _row(lock: LiveLock, now: int) -> dict[str, Any]:
    return {
        "state_id": lock.state_id,
        "lock_id": lock.lock_id,
        "holder": lock.identity.holder,
        "operation": lock.identity.operation,
        "age_seconds": lock.age_seconds(now),
        "lease_seconds_left": lock.lease_seconds_left(now),
    }


@main.command()
@_with_uri
@click.argument("state_id")
@click.option("--lock-id", required=True, help="Which lock: as the error and `locks` show it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def unlock(uri: str | None, state_id: str, lock_id: str, yes: bool) -> None:
    """End a lock by hand. Its holder, if it lives, is told at its next write, which does not count."""
    if not yes:
        click.confirm(f"End the lock {lock_id} of state {state_id!r}?", abort=True)
    with _locks(uri) as repository:
        ended = repository.revoke(state_id, lock_id, identify("unlock"))
    click.echo(f"Ended the lock of state {state_id!r}, which {ended.identity.holder} held.")
