"""`states` and `prune`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any

import click

from meltano_ch_state.cli.output import as_time, confirm, counted_noun, first_of, print_json, print_table, printable
from meltano_ch_state.cli.target import StateID, Target, backend_options, opened, yes_option
from meltano_ch_state.errors import StateLockedError
from meltano_ch_state.lock import merged
from meltano_ch_state.models import LOCK_ROWS_KEPT_DAYS
from meltano_ch_state.pruning import TOMBSTONE_DAYS, Pruner


@click.command()
@backend_options
@click.argument("pattern", type=StateID(), required=False)
def states(uri: str | None, as_json: bool, pattern: str | None) -> None:
    """List the states. Those that match a glob PATTERN, with the time of the last update and the size in bytes."""
    with opened(uri) as target:
        found = target.maintenance.overview(pattern) if target.schema.readable() else []
    if as_json:
        print_json([asdict(state) | {"updated_at": as_time(state.updated_at)} for state in found])
    elif not found:
        click.echo("No state matches." if pattern else "There is no state.")
    else:
        rows = [(state.state_id, as_time(state.updated_at), str(state.size_bytes)) for state in found]
        print_table(("STATE", "UPDATED", "BYTES"), rows)


class Age(click.ParamType):  # type: ignore[type-arg] # of click 8.5 only
    """A duration such as `90d`, in seconds."""

    name = "age"
    _units = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}  # noqa: RUF012 - never changed

    def __init__(self, least_seconds: float = 0) -> None:
        self._least_seconds = least_seconds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a whole number and its unit."""
        found = re.fullmatch(r"([0-9]{1,9})([smhdw])", str(value))
        if not found:
            self.fail(f"{value!r} is no age. Write it like 90d, 12h, 30m or 2w.", param, ctx)
        seconds = float(found[1]) * self._units[found[2]]
        if seconds < self._least_seconds:
            self.fail(f"{value!r} is too short: give at least {self._least_seconds:g}s.", param, ctx)
        return seconds


@click.command(
    epilog="Rows of released locks are never deleted one by one: until their time to live is over, something of a lock"
    " may still arrive late, and only its tombstone keeps that from counting."
)
@backend_options
@click.option(
    "--older-than", type=Age(), help="Clear the states that were not updated for so long, such as 90d. Their runs start"
    " from scratch."
)  # fmt: skip
@click.option(
    "--tombstones",
    is_flag=True,
    help=f"Delete what is left of states that were cleared over {TOMBSTONE_DAYS} days ago: until then something of them"
    " may still arrive late. Needs ALTER DELETE.",
)
@click.option(
    "--locks",
    is_flag=True,
    help=f"Merge the lock table now, which drops the rows over {LOCK_ROWS_KEPT_DAYS} days old. Needs OPTIMIZE.",
)
@click.option(
    "--history-older-than",
    type=Age(least_seconds=1),
    help="Delete the old versions of states that were written, or replaced, so long ago; they cannot be restored then."
    " The newest of each state stays. Needs ALTER DELETE.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@yes_option
def prune(  # noqa: PLR0917 - one parameter an option
    uri: str | None,
    as_json: bool,
    older_than: float | None,
    tombstones: bool,
    locks: bool,
    history_older_than: float | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Take away what nobody needs any more. Each kind is chosen by its option. States that are locked stay."""
    if older_than is None and not tombstones and not locks and history_older_than is None:
        raise click.UsageError("Choose what to prune: --older-than, --tombstones, --locks, --history-older-than.")
    with opened(uri) as target:
        cutoff = None if history_older_than is None else target.locks.now() - int(history_older_than * 1e6)
        found, locked = _found(target, older_than, tombstones, locks, cutoff), None
        if not dry_run and any(found.values()):
            about = (first_of(lines, str) for lines in _lines(found))
            confirm(f"Prune {_summary(found)}?", yes, chain.from_iterable(about))
            found, locked = _pruned(target, found, older_than, cutoff)
        if as_json:
            print_json({"dry_run": dry_run, **found, "locked": list(locked.state_ids) if locked else []})
        else:
            _print(found, dry_run)
        if locked:
            raise locked


def _pruner(target: Target) -> Pruner:
    return Pruner(target.states, target.locks, target.maintenance)


def _found(
    target: Target, older_than: float | None, tombstones: bool, locks: bool, cutoff: int | None
) -> dict[str, Any]:
    pruner = _pruner(target)
    there = target.schema.readable()
    return {
        "states": pruner.old_states(older_than) if there and older_than is not None else [],
        "tombstones": pruner.old_tombstones() if there and tombstones else [],
        "lock_rows": target.maintenance.expired_lock_rows() if there and locks else 0,
        "versions": target.history.count_older(cutoff) if cutoff and target.schema.has_history() else 0,
    }


def _pruned(
    target: Target, found: dict[str, Any], older_than: float | None, cutoff: int | None
) -> tuple[dict[str, Any], StateLockedError | None]:
    """What is gone, and the error of what stayed locked."""
    pruner = _pruner(target)
    cleared, held = pruner.clear(found["states"], older_than or 0)
    erased, held_too = pruner.erase(found["tombstones"])
    if found["lock_rows"]:
        target.maintenance.merge_locks()
    if found["versions"]:
        target.history.erase_older(cutoff or 0)
    left = target.maintenance.expired_lock_rows() if found["lock_rows"] else 0
    gone = max(0, found["lock_rows"] - left)
    failures = [error for error in (held, held_too) if error]
    pruned = {"states": cleared, "tombstones": erased, "lock_rows": gone, "versions": found["versions"]}
    return pruned, merged(failures) if failures else None


def _summary(found: dict[str, Any]) -> str:
    states, tombstones = (counted_noun(len(found[kind]), kind.removesuffix("s")) for kind in ("states", "tombstones"))
    rows, versions = counted_noun(found["lock_rows"], "row"), counted_noun(found["versions"], "old version")
    return f"{states}, {tombstones} of states, {rows} of the lock table, {versions}"


def _lines(found: dict[str, Any]) -> Iterator[list[str]]:
    """A line for each state ID, kind by kind."""
    for kind in ("states", "tombstones"):
        yield [f"{kind.removesuffix('s')}  {printable(state_id)}" for state_id in found[kind]]


def _print(found: dict[str, Any], dry_run: bool) -> None:
    for line in chain.from_iterable(_lines(found)):
        click.echo(line)
    click.echo(f"{'Would prune' if dry_run else 'Pruned'} {_summary(found)}.")
