"""`locks` and `unlock`."""

from __future__ import annotations

from typing import Any

import click

from meltano_ch_state.cli.output import confirm, print_json, print_table, printable
from meltano_ch_state.cli.target import StateID, backend_options, opened, yes_option
from meltano_ch_state.process import identify
from meltano_ch_state.protocol import LiveLock


@click.command()
@backend_options
def locks(uri: str | None, as_json: bool) -> None:
    """List the locks that are held now. Each with its holder, its age, and the lease that is left."""
    with opened(uri) as target:
        found, now = ([], 0)
        if target.schema.readable():
            now = target.locks.now()
            found = [_row(lock, now) for lock in target.locks.live()]
    if as_json:
        print_json(found)
    elif not found:
        click.echo("No state is locked.")
    else:
        headings = ("STATE", "HOLDER", "OPERATION", "AGE", "LEASE LEFT", "LOCK ID")
        print_table(headings, [_cells(row) for row in found])


def _row(lock: LiveLock, now: int) -> dict[str, Any]:
    return {
        "state_id": lock.state_id,
        "lock_id": lock.lock_id,
        "holder": lock.identity.holder,
        "operation": lock.identity.operation,
        "age_seconds": lock.age_seconds(now),
        "lease_seconds_left": lock.lease_seconds_left(now),
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    ages = (f"{row['age_seconds']:.1f} s", f"{row['lease_seconds_left']:.1f} s")
    return (row["state_id"], row["holder"], row["operation"], *ages, row["lock_id"])


@click.command()
@backend_options
@click.argument("state_id", type=StateID())
@click.option("--lock-id", type=StateID(), required=True, help="Which lock: as the error and `locks` show it.")
@yes_option
def unlock(uri: str | None, as_json: bool, state_id: str, lock_id: str, yes: bool) -> None:
    """End a lock by hand. Its holder, if it lives, is told at its next write, which does not count."""
    with opened(uri) as target:
        if not yes:
            holder = target.locks.find(state_id, lock_id).identity.holder
            confirm(f"End the lock of state {printable(state_id)!r}, which {printable(holder)} holds?", yes)
        ended = target.locks.revoke(state_id, lock_id, identify("unlock"))
    if as_json:
        print_json({"state_id": state_id, "lock_id": lock_id, "holder": ended.identity.holder})
    else:
        holder = printable(ended.identity.holder)
        click.echo(f"Ended the lock of state {state_id!r}, which {holder} held.")
