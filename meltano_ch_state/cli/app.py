"""The commands, put together."""

from __future__ import annotations

import click

from meltano_ch_state.cli.doctor import doctor
from meltano_ch_state.cli.history import diff, history, restore
from meltano_ch_state.cli.locks import locks, unlock
from meltano_ch_state.cli.output import PrintingGroup
from meltano_ch_state.cli.schema import current, sql, upgrade
from meltano_ch_state.cli.states import prune, states
from meltano_ch_state.cli.transfer import export, import_states
from meltano_ch_state.logs import quiet_drivers


@click.group(
    cls=PrintingGroup,
    epilog="Exit codes: 0 done; 1 failed, and one line on standard error says why; 2 wrong usage. The state backend is"
    " that of --uri, else of MELTANO_STATE_BACKEND_* and CLICKHOUSE_* variables, else of the Meltano project in the"
    " current folder.",
)
@click.version_option(package_name="meltano-ch-state")
def main() -> None:
    """Look after Meltano's state in ClickHouse."""
    quiet_drivers()


for command in (
    *(doctor, current, upgrade, sql, states, prune, locks, unlock, export, import_states),
    *(history, diff, restore),
):
    main.add_command(command)
