"""`doctor`: what is well, what is not, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.text import Text

from meltano_ch_state.cli.checks import Checks
from meltano_ch_state.cli.findings import FAIL, OK, WARN, Finding
from meltano_ch_state.cli.output import print_json, print_table, printable
from meltano_ch_state.cli.target import backend_options, opened

_COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}


@click.command()
@backend_options
def doctor(uri: str | None, as_json: bool) -> None:
    """Look for what is not well. Connection, rights, tables, clock, speed, locks: each ok, warn or fail, with a remedy.

    Exits with 1 only if a line is fail. Changes nothing, but takes and releases the lock of a state ID of its own.
    """
    with opened(uri) as target:
        findings = list(Checks(target).findings())
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(("STATUS", "CHECK", "FOUND"), [_row(finding) for finding in findings])
    if failed := [finding.check for finding in findings if finding.status == FAIL]:
        raise click.ClickException(f"Failed: {', '.join(failed)}.")


def _row(finding: Finding) -> tuple[Text, str, Text]:
    found = printable(finding.message) + (f"\n-> {printable(finding.remedy)}" if finding.remedy else "")
    return Text(finding.status, style=_COLOURS[finding.status]), finding.check, Text(found)
