"""`import` and `export`: states from and to elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click

from meltano_ch_state.cli.document import part_of, write_states
from meltano_ch_state.cli.output import (
    confirm,
    counted,
    counted_noun,
    destination,
    first_of,
    is_file,
    print_json,
    print_table,
    printable,
    progress,
)
from meltano_ch_state.cli.source import Imported, read, without_secrets
from meltano_ch_state.cli.target import Target, backend_options, opened, yes_option
from meltano_ch_state.errors import SchemaMissingError, StateLockedError
from meltano_ch_state.repositories.faults import UPGRADE_COMMAND

ACTIONS = ("new", "replaced", "unchanged", "locked")
"""What is done with a state. That it is locked shows only when it is to be written; it stays as it was."""


@click.command(name="import")
@backend_options
@click.argument("source")
@click.option("--dry-run", is_flag=True, help="Read and check everything, write nothing.")
@yes_option
def import_states(uri: str | None, as_json: bool, source: str, dry_run: bool, yes: bool) -> None:
    """Copy states from elsewhere.

    SOURCE is the URI of any state backend of Meltano (file://, s3://, systemdb, ...), or a JSON file as `export` and
    `meltano state export` write it; - is standard input.

    Everything is read and checked first. States that are there already are replaced, after a question that names the
    first of them; those that are the same stay untouched, and so do those that others keep locked.
    """
    with opened(uri, makes=True) as target:
        with progress("Reading") as bar:
            given = {state.state_id: state for state in counted(read(source, target.settings), bar)}
        plan, locked = _plan(target, given), None
        due = [given[state_id] for state_id, action in plan.items() if action != "unchanged"]
        replaced = [state_id for state_id, action in plan.items() if action == "replaced"]
        if not dry_run:
            if replaced:
                there = "that is" if len(replaced) == 1 else "that are"
                question = f"Replace {counted_noun(len(replaced), 'state')} {there} there already?"
                confirm(question, yes, first_of(replaced, lambda state_id: f"replaced  {printable(state_id)}"))
            locked = _write(target, due)
            plan |= dict.fromkeys(locked.state_ids if locked else (), "locked")
        if as_json:
            states = [{"state_id": state_id, "action": action} for state_id, action in plan.items()]
            print_json({"source": without_secrets(source, source), "dry_run": dry_run, "states": states})
        else:
            _print(plan, dry_run)
        if locked:
            raise locked


def _write(target: Target, states: list[Imported]) -> StateLockedError | None:
    """Write the states but those that stay locked, which the error names."""
    try:
        with progress("Writing", len(states)) as bar:
            target.store.set_all(counted(states, bar))
    except StateLockedError as error:
        return error
    return None


def _print(plan: dict[str, str], dry_run: bool) -> None:
    if dry_run and plan:
        print_table(("STATE", "ACTION"), list(plan.items()))
    counts = Counter(plan.values())
    done = counted_noun(counts["new"] + counts["replaced"], "state")
    shown = ", ".join(f"{counts[action]} {action}" for action in ACTIONS if counts[action] or action != "locked")
    click.echo(f"{'Would import' if dry_run else 'Imported'} {done} ({shown}).")


def _plan(target: Target, given: dict[str, Imported]) -> dict[str, str]:
    """What is to be done with each state: new, replaced or unchanged."""
    plan = dict.fromkeys(sorted(given), "new")
    if target.schema.readable():
        for row in target.states.stream():
            if row.state_id in plan:
                state = given[row.state_id]
                stored = part_of(row, row.partial_state), part_of(row, row.completed_state)
                # as text: to Python 1, 1.0 and true are equal
                same = json.dumps(stored) == json.dumps((state.partial_state, state.completed_state))
                plan[row.state_id] = "unchanged" if same else "replaced"
    return plan


@click.command()
@backend_options
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
def export(uri: str | None, as_json: bool, file: Path | None) -> None:
    """Write all states as a JSON document.

    To FILE, or to standard output, as `import` and `meltano state import` read it. FILE is replaced only when all of it
    is written. With FILE, --json tells how many states there are.
    """
    with opened(uri) as target:
        if not target.schema.readable():
            raise SchemaMissingError(
                f"There is nothing to export: no tables in schema {target.settings.schema}", f"Run: {UPGRADE_COMMAND}"
            )
        with destination(file) as stream:
            count = write_states(target.states.stream(), stream)
    if is_file(file) and as_json:
        print_json({"file": str(file), "states": count})
    elif is_file(file):
        click.echo(f"Exported {counted_noun(count, 'state')} to {file}.")
