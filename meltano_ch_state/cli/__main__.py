"""`python -m meltano_ch_state.cli` is `meltano-ch-state`."""

from meltano_ch_state.cli.app import main

if __name__ == "__main__":
    main(prog_name="meltano-ch-state")
