"""One process of the soak: it adds labels to states under their locks, and notes which of them count.

Half of them it adds by itself in a block, half by Meltano's own update of a partial state.

Its notes are files in a folder: `tried` has each label before its write, `done` each that was acknowledged, `inside` a
file for each state that is locked as a file as long as the state's lock is held.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from meltano.core.state_store.base import MeltanoState

from meltano_ch_state import connection
from meltano_ch_state.errors import StateBackendError
from meltano_ch_state.manager import ClickhouseStateStoreManager

ANSWER_TIMEOUT_SECONDS = 3
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SHARE_OF_MERGES = 0.5
WARM_UPDATES = 15
"""After so many updates nothing more is loaded; memory is compared from there on."""


class Notes:
    """What one worker writes down, so that it is there when the worker is killed."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def write(self, kind: str, label: str) -> None:
        """Append a line to one of the worker's own files."""
        with (self._folder / f"{kind}-{self._name}").open("a") as file:
            file.write(f"{label}\n")


def resident_bytes() -> int:
    """The memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@contextmanager
def watched(path: Path) -> Iterator[bool]:
    """Whether nobody else is in here."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
        except BlockingIOError:
            yield False


def append(manager: ClickhouseStateStoreManager, notes: Notes, state_id: str, label: str) -> None:
    """Append a label to a state's list."""
    state = manager.get(state_id) or MeltanoState(state_id)
    labels = (state.completed_state or {}).get("by", [])
    notes.write("tried", label)
    manager.set(MeltanoState(state_id, state.partial_state, {"by": [*labels, label]}))
    notes.write("done", label)


def merge(manager: ClickhouseStateStoreManager, notes: Notes, state_id: str, label: str) -> None:
    """Have Meltano merge a label into a state."""
    notes.write("tried", label)
    manager.update(MeltanoState(state_id, {label: 1}))
    notes.write("done", label)


def labels_of(state: MeltanoState) -> list[str]:
    """The labels in a state."""
    return [*(state.completed_state or {}).get("by", []), *(state.partial_state or {})]


def main() -> None:
    """Work until the time is over, then tell what happened."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("until", type=float)
    parser.add_argument("url")
    parser.add_argument("states", type=int)
    parser.add_argument("--no-lock", action="store_true")
    parser.add_argument("--lock-mode", default="insert")
    args = parser.parse_args()
    connection.ANSWER_TIMEOUT_SECONDS = ANSWER_TIMEOUT_SECONDS
    chance, notes, seen = random.Random(args.name), Notes(args.folder, args.name), Counter[str]()
    manager = ClickhouseStateStoreManager(args.url, lock_mode=args.lock_mode)
    warm = 0
    while time.time() < args.until:
        seen["operations"] += 1
        state_id, label = f"s{chance.randrange(args.states)}", f"{args.name}.{seen['operations']}"
        lock: AbstractContextManager[None] = nullcontext() if args.no_lock else manager.acquire_lock(state_id)
        try:
            if not args.no_lock and chance.random() < SHARE_OF_MERGES:
                merge(manager, notes, state_id, label)
                continue
            with lock, watched(args.folder / f"inside-{state_id}") as alone:
                seen["overlaps"] += not alone
                append(manager, notes, state_id, label)
        except StateBackendError as error:
            seen[type(error).__name__] += 1
        if seen["operations"] == WARM_UPDATES:
            warm = resident_bytes()
    manager.close()
    notes.write("told", json.dumps({**seen, "grown_bytes": resident_bytes() - warm if warm else 0}))


if __name__ == "__main__":
    main()
