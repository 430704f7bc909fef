"""A Meltano pipeline that keeps its bookmark in ClickHouse, run twice: what it loads, and what it remembers.

The Meltano project is made in the folder `.demo` of the current folder, which is wiped first. There is no server: the
ClickHouse engine runs embedded. Every step is checked, and the first that does not do as promised ends the demo with
exit code 1.
"""

import csv
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from sqlalchemy import text

from meltano_ch_state.connection import engine_for
from meltano_ch_state.settings import Settings

SOURCE = Path(__file__).parent
PROJECT = Path.cwd() / ".demo"
BIN = Path(sys.executable).parent
STATE_ID = "dev:tap-orders-to-target-csv"
ITEMS = ["anvil", "bell", "candle", "drum", "easel", "fiddle", "globe", "harp"]

TABLES = (
    "SELECT name, engine, total_rows FROM system.tables"
    " WHERE database = 'meltano' AND total_rows IS NOT NULL ORDER BY name"  # a view keeps none
)
STATES = "SELECT state_id, completed_state, updated_at FROM meltano.state FINAL"


def main() -> None:
    """Run the demo."""
    heading("A Meltano project: a small tap, a target from PyPI, and state_backend.uri: chdb://...")
    make_project()
    add_orders(1, 2, 3, 4, 5)
    shell("meltano install")

    heading("Alembic makes the tables in the embedded engine")
    shell("python -m meltano_ch_state.migrate upgrade head", show_log=True)

    heading("Run 1: everything")
    run_pipeline(expected=[1, 2, 3, 4, 5])

    heading("Three more orders")
    add_orders(6, 7, 8)

    heading("Run 2: only the new ones")
    run_pipeline(expected=[6, 7, 8])

    heading("Which pipelines have a state")
    check("meltano state list", shell("meltano state list").split(), [STATE_ID])

    heading(f"Where it lies: folder {PROJECT.name}/state")
    show_tables()
    print(f"\nAll as promised. Look around: cd {PROJECT.name} && {os.path.relpath(BIN, PROJECT)}/meltano state list")


def make_project() -> None:
    """Make the project's folder anew."""
    shutil.rmtree(PROJECT, ignore_errors=True)
    shutil.copytree(SOURCE, PROJECT, ignore=shutil.ignore_patterns("demo.py", "__pycache__"))
    (PROJECT / "orders.csv").write_text("id,item\n")


def add_orders(*numbers: int) -> None:
    """Add orders to the file that the tap reads."""
    with (PROJECT / "orders.csv").open("a") as file:
        file.writelines(f"{number},{ITEMS[number - 1]}\n" for number in numbers)
    print(f"orders.csv: {len(numbers)} new rows, {numbers[0]} to {numbers[-1]}")


def run_pipeline(expected: list[int]) -> None:
    """Run the pipeline, and check what it loads and which bookmark it leaves."""
    shell("meltano run tap-orders target-csv")
    loaded = newest_output()
    check("the orders that the target wrote", loaded, expected)
    print(f"loaded {len(loaded)} rows: orders {loaded[0]} to {loaded[-1]}\n")

    state = json.loads(shell(f"meltano state get {STATE_ID}"))
    bookmark = state["singer_state"]["bookmarks"]["orders"]["replication_key_value"]
    check("the bookmark", bookmark, expected[-1])
    print(f"the bookmark: order {bookmark}")


def newest_output() -> list[int]:
    """The orders in the target's newest file: it writes one in each run."""
    newest = max((PROJECT / "output").glob("orders-*.csv"))
    with newest.open(newline="") as file:
        return [int(row["id"]) for row in csv.DictReader(file)]


def show_tables() -> None:
    """Ask the embedded engine what it keeps. A table counts each version of a row until it merges them."""
    with engine_for(Settings(scheme="chdb", path=str(PROJECT / "state"))).connect() as connection:
        for name, engine, rows in connection.execute(text(TABLES)):
            print(f"meltano.{name:14} {engine}, {rows} row versions")
        print(f"\n{STATES}")
        states = connection.execute(text(STATES)).all()
    for state in states:
        print(*state, sep="  ")
    check("the states in ClickHouse", [state.state_id for state in states], [STATE_ID])


def shell(command: str, show_log: bool = False) -> str:
    """Run a command in the project's folder, show it and what it prints, and return that.

    Args:
        command: What a person would type there.
        show_log: Whether to show the log too, and not only when the command fails.
    """
    print(f"$ {command}", flush=True)
    done = subprocess.run(
        shlex.split(command),
        cwd=PROJECT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if show_log else subprocess.PIPE,
        text=True,
        check=False,
    )
    print(done.stdout, end="")
    if done.returncode:
        fail(f"{command}: exit code {done.returncode}\n{done.stderr or ''}")
    return done.stdout


def environment() -> dict[str, str]:
    """The commands' environment: this interpreter's commands first, and no settings but the project's own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MELTANO_", "CLICKHOUSE_"))}
    return inherited | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "MELTANO_CLI_DISABLE_VERSION_CHECK": "1",
    }


def check(what: str, found: object, expected: object) -> None:
    """End the demo unless it found what it promised."""
    if found != expected:
        fail(f"{what}: found {found}, expected {expected}")


def fail(message: str) -> None:
    """End the demo."""
    sys.exit(f"\nThe demo FAILED: {message}")


def heading(title: str) -> None:
    """Begin a step."""
    print(f"\n== {title}", flush=True)


if __name__ == "__main__":
    main()
