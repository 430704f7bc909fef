"""The command line for operators: `meltano-ch-state`. One noun a module; `app` puts them together."""

from meltano_ch_state.cli.app import main

__all__ = ["main"]
