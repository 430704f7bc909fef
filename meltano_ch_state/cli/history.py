"""`history`, `diff` and `restore`: the versions of a state."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click

from meltano_ch_state.cli.document import write_states
from meltano_ch_state.cli.output import (
    as_time,
    confirm,
    counted_noun,
    destination,
    first_of,
    is_file,
    print_json,
    print_table,
    printable,
    short,
)
from meltano_ch_state.cli.page import page
from meltano_ch_state.cli.target import StateID, Target, backend_options, opened, yes_option
from meltano_ch_state.errors import NoSuchVersionError, SchemaMissingError
from meltano_ch_state.history import ABSENT, Change, changes, same
from meltano_ch_state.protocol import StateRow
from meltano_ch_state.repositories.faults import UPGRADE_COMMAND

SHOWN_CHANGES = 3
"""So many changes of a version stand in the table; `diff` shows all."""
SHOWN_CHARACTERS = 60


class Version(click.IntRange):
    """The number of a version, as `history` shows it: microseconds since 1970."""

    name = "version"

    def __init__(self) -> None:
        super().__init__(0, 2**63 - 1)


@click.command()
@backend_options
@click.argument("state_id", type=StateID())
@click.option("--last", type=click.IntRange(1), help="Only so many versions, the newest.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="Write a page to this file instead, - is standard output: every bookmark and its lag over time, as plots.",
)
@click.option("--version", type=Version(), help="Print this version instead, all of it, as `export` does.")
def history(  # noqa: PLR0917 - one parameter an option
    uri: str | None, as_json: bool, state_id: str, last: int | None, html: Path | None, version: int | None
) -> None:
    """List the versions of a state. The newest first, each with its time, its writer, and what changed in it."""
    if version is not None and (last or html):
        raise click.UsageError("--version prints one version: it goes with neither --last nor --html.")
    if html and not is_file(html) and as_json:
        raise click.UsageError(
            "--html - and --json both print on standard output: give --html a file, or leave --json out."
        )
    with opened(uri) as target:
        _require_history(target)
        if version is not None:
            row = _version(target, state_id, version)
            write_states([] if row.is_deleted else [row], sys.stdout)
            return
        versions = target.history.versions(state_id)
        first = next(versions, None)
        if first is None:
            raise _nothing_kept(target, state_id)
        versions = chain([first], versions)
        if html:
            _write_page(html, state_id, list(islice(versions, last))[::-1], as_json)
            return
        steps = islice(_steps(versions), last)
        if as_json:
            print_json([_document(*step) for step in steps])
        else:
            print_table(("VERSION", "UPDATED", "OPERATION", "WRITER", "CHANGED"), [_cells(*step) for step in steps])


@click.command()
@backend_options
@click.argument("state_id", type=StateID())
@click.option("--from", "earlier", type=Version(), help="The earlier version; else the one before the later.")
@click.option("--to", "later", type=Version(), help="The later version; else the newest.")
def diff(uri: str | None, as_json: bool, state_id: str, earlier: int | None, later: int | None) -> None:
    """Show what changed from one version of a state to another."""
    with opened(uri) as target:
        _require_history(target)
        to = _version(target, state_id, later)
        before = target.history.versions(state_id, to.updated_at)
        start = next(before, None) if earlier is None else _version(target, state_id, earlier)
    found = changes(start, to)
    if as_json:
        ends = {"from": start.updated_at if start else None, "to": to.updated_at}
        print_json({"state_id": state_id, **ends, "changes": _documents(found)})
        return
    click.echo(f"from  {_headline(start)}")
    click.echo(f"to    {_headline(to)}")
    for change in found:
        click.echo(_line(change))
    if not found:
        click.echo("Nothing changed.")


@click.command()
@backend_options
@click.argument("state_id", type=StateID())
@click.option("--version", type=Version(), required=True, help="Which version: as `history` shows it.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@yes_option
def restore(  # noqa: PLR0917 - one parameter an option
    uri: str | None, as_json: bool, state_id: str, version: int, dry_run: bool, yes: bool
) -> None:
    """Make a state what it was in an old version. That becomes a new version, so it can be undone, too.

    What would change is shown before the question. When another writes the state before the answer, nothing is written.
    """
    with opened(uri) as target:
        _require_history(target)
        old = _version(target, state_id, version)
        present = target.states.get(state_id)
        needed, name = not same(present, old), repr(printable(state_id))
        found = changes(present, old)
        restored = needed and not dry_run
        if restored:
            confirm(f"Restore state {name} as of version {version}?", yes, map(_line, found))
            target.store.restore(old, present)
    if as_json:
        outcome = {"dry_run": dry_run, "restored": restored, "changes": _documents(found)}
        print_json({"state_id": state_id, "version": version, **outcome})
        return
    if yes or dry_run:  # else the question showed them
        for change in found:
            click.echo(_line(change))
    if needed:
        click.echo(f"{'Restored' if restored else 'Would restore'} state {name} as of version {version}.")
    else:
        click.echo(f"State {name} is as in version {version} already. Nothing was written.")


def _require_history(target: Target) -> None:
    """Say so where the tables have no history yet: a missing table would read as one that was dropped."""
    if not target.schema.has_history():
        schema = target.settings.schema
        raise SchemaMissingError(f"Schema {schema} has no history yet", f"Run: {UPGRADE_COMMAND}")


def _version(target: Target, state_id: str, version: int | None) -> StateRow:
    """One version of a state, or the newest."""
    found = None if version is None else target.history.version(state_id, version)
    if found is not None:
        return found
    newest = next(target.history.versions(state_id), None)
    if newest is None:
        raise _nothing_kept(target, state_id)
    if version is None:
        return newest
    raise NoSuchVersionError(
        f"State {state_id!r} has no version {version} that is kept",
        f"See: meltano-ch-state history {shlex.quote(printable(state_id))}",
    )


def _nothing_kept(target: Target, state_id: str) -> NoSuchVersionError:
    days = target.schema.kept_days()
    kept = f"; versions are kept for {counted_noun(days, 'day')}" if days else ""
    return NoSuchVersionError(f"State {state_id!r} has no history{kept}", "See: meltano-ch-state states")


def _steps(newest_first: Iterator[StateRow]) -> Iterator[tuple[StateRow, list[Change] | None]]:
    """Each version with what changed in it; None for the oldest that is kept. Two of them are in memory at a time."""
    row = next(newest_first, None)
    while row is not None:
        before = next(newest_first, None)
        yield row, None if before is None else changes(before, row)
        row = before


def _write_page(file: Path, state_id: str, versions: list[StateRow], as_json: bool) -> None:
    with destination(file) as stream:
        stream.write(page(state_id, versions))
    if is_file(file) and as_json:
        print_json({"file": str(file), "versions": len(versions)})
    elif is_file(file):
        click.echo(f"Wrote {counted_noun(len(versions), 'version')} to {file}.")


def _document(row: StateRow, found: list[Change] | None) -> dict[str, Any]:
    return {
        "version": row.updated_at,
        "updated_at": as_time(row.updated_at),
        "writer": row.holder,
        "operation": row.operation,
        "run_id": row.run_id,
        "cleared": row.is_deleted,
        "changes": None if found is None else _documents(found),
    }


def _documents(found: list[Change]) -> list[dict[str, Any]]:
    return [_change_document(change) for change in found]


def _change_document(change: Change) -> dict[str, Any]:
    values = {"before": change.before, "after": change.after}
    there = {name: value for name, value in values.items() if value is not ABSENT}
    return {"part": change.part, "stream": change.stream, "path": list(change.path), **there}


def _cells(row: StateRow, found: list[Change] | None) -> tuple[str, ...]:
    return (str(row.updated_at), as_time(row.updated_at), row.operation, row.holder, _summary(row, found))


def _summary(row: StateRow, found: list[Change] | None) -> str:
    if found is None:
        return "cleared" if row.is_deleted else "(the oldest that is kept)"
    lines = ["cleared"] if row.is_deleted else []
    lines += first_of(found, _line, SHOWN_CHANGES)
    return ", ".join(lines) or "nothing"


def _line(change: Change) -> str:
    name = printable(change.name)
    if change.before is ABSENT:
        return f"+ {name} {short(change.after, SHOWN_CHARACTERS)}"
    if change.after is ABSENT:
        return f"- {name} {short(change.before, SHOWN_CHARACTERS)}"
    return f"{name} {short(change.before, SHOWN_CHARACTERS)} -> {short(change.after, SHOWN_CHARACTERS)}"


def _headline(row: StateRow | None) -> str:
    if row is None:
        return "nothing: no earlier version is kept"
    writer = f"{row.operation} by {row.holder}" if row.holder else "writer unknown"
    cleared = ", cleared" if row.is_deleted else ""
    return f"{row.updated_at}  {as_time(row.updated_at)}  {printable(writer)}{cleared}"
