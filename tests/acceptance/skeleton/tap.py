#!/usr/bin/env python3
"""A Singer tap: sends the numbers in orders.txt that are above its bookmark, and a STATE after each; dies of a word."""

import argparse
import json
import sys
from pathlib import Path


def main() -> None:
    """Send what is new."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--state", type=read_bookmark, default=0)
    bookmark = parser.parse_args().state
    send("SCHEMA", stream="orders", schema={"properties": {"id": {"type": "integer"}}}, key_properties=["id"])
    for order in map(int, Path("orders.txt").read_text().split()):
        if order > bookmark:
            send("RECORD", stream="orders", record={"id": order})
            send("STATE", value={"bookmarks": {"orders": order}})


def read_bookmark(path: str) -> int:
    """Read the greatest number of the runs before."""
    return int(json.loads(Path(path).read_text())["bookmarks"]["orders"])


def send(kind: str, **message: object) -> None:
    """Write a Singer message: one line of JSON."""
    sys.stdout.write(json.dumps({"type": kind, **message}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
