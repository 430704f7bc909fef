"""A process of its own that works on one counter state, told by its arguments what to do.

    python -m tests.support.worker URI SCHEMA STEPS [--lease S] [--lock-mode MODE] [--no-lock] [--pause-inside S]
        [--file PATH]

It prints `ready`, waits for a line on standard input, then counts STEPS times: reads the counter and writes one more. A
line `held` is printed inside the first lock with --pause-inside. With --file the counter is the last line of that file,
which workers on servers that share no rows share; the state says where it stood last. The last line is a JSON object
with what it saw.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from meltano.core.state_store.base import MeltanoState

from meltano_ch_state import retry
from meltano_ch_state.errors import StateLockLostError
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.protocol import StateRow

STATE_ID = "counter"


def count(manager: ClickhouseStateStoreManager) -> int:
    """The counter's value now."""
    state = manager.get(STATE_ID)
    return 0 if state is None or not state.completed_state else int(state.completed_state["n"])


def count_in(file: Path) -> int:
    """The last number in a file with one a line; 0 when there is none."""
    numbers = file.read_text().split()
    return int(numbers[-1]) if numbers else 0


def _append(file: Path, value: int) -> None:
    with file.open("a") as lines:
        lines.write(f"{value}\n")


def _write_unlocked(manager: ClickhouseStateStoreManager, value: int) -> None:
    row = StateRow(STATE_ID, None, json.dumps({"n": value}), time.time_ns() // 1_000)
    manager.store._states.insert_versions([row])


def main() -> None:
    """Count, and tell what was seen."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
    parser = argparse.ArgumentParser()
    parser.add_argument("uri")
    parser.add_argument("schema")
    parser.add_argument("steps", type=int)
    parser.add_argument("--lease", type=float, default=300.0)
    parser.add_argument("--lock-mode", default="insert")
    parser.add_argument("--no-lock", action="store_true")
    parser.add_argument("--pause-inside", type=float, default=0.0)
    parser.add_argument("--exit-on-sigterm", action="store_true")
    parser.add_argument("--no-retries", action="store_true")
    parser.add_argument("--file", type=Path)
    args = parser.parse_args()
    if args.no_retries:
        retry.RETRY_SECONDS = 0.0
    if args.exit_on_sigterm:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    manager = ClickhouseStateStoreManager(
        args.uri,
        schema=args.schema,
        lock_mode=args.lock_mode,
        stale_lock_seconds=args.lease,
        lock_acquire_timeout_seconds=90,
    )
    count(manager)
    print("ready", flush=True)
    sys.stdin.readline()
    done = lost = 0
    for step in range(args.steps):
        lock: AbstractContextManager[None] = nullcontext() if args.no_lock else manager.acquire_lock(STATE_ID)
        try:
            with lock:
                value = (count_in(args.file) if args.file else count(manager)) + 1
                if args.pause_inside and step == 0:
                    print("held", flush=True)
                    time.sleep(args.pause_inside)
                if args.file:
                    _append(args.file, value)
                if args.no_lock:
                    _write_unlocked(manager, value)
                else:
                    manager.set(MeltanoState(STATE_ID, {}, {"n": value}))
            done += 1
        except StateLockLostError:
            lost += 1
    print(json.dumps({"done": done, "lost": lost}), flush=True)
    manager.close()


if __name__ == "__main__":
    main()
