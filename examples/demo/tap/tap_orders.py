#!/usr/bin/env python3
"""A small incremental Singer tap: it sends the orders of a CSV file whose number is above the bookmark."""

import argparse
import csv
import json
from pathlib import Path

STREAM = "orders"
KEY = "id"
SCHEMA = {"properties": {KEY: {"type": "integer"}, "item": {"type": "string"}}}


def main() -> None:
    """Send the schema, the new orders and the new bookmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=read_json, required=True)
    parser.add_argument("--state", type=read_json, default={})
    arguments = parser.parse_args()

    bookmark = arguments.state.get("bookmarks", {}).get(STREAM, {}).get("replication_key_value", 0)
    send("SCHEMA", stream=STREAM, schema=SCHEMA, key_properties=[KEY], bookmark_properties=[KEY])
    for order in read_orders(Path(arguments.config["file"])):
        if order[KEY] > bookmark:
            send("RECORD", stream=STREAM, record=order)
            bookmark = order[KEY]
    send("STATE", value={"bookmarks": {STREAM: {"replication_key": KEY, "replication_key_value": bookmark}}})


def read_json(path: str) -> dict:
    """Read a file that Meltano names on the command line."""
    return json.loads(Path(path).read_text())


def read_orders(path: Path) -> list[dict]:
    """Read the orders, sorted by their number."""
    with path.open(newline="") as file:
        orders = [{**row, KEY: int(row[KEY])} for row in csv.DictReader(file)]
    return sorted(orders, key=lambda order: order[KEY])


def send(kind: str, **message: object) -> None:
    """Write a Singer message: one line of JSON."""
    print(json.dumps({"type": kind, **message}), flush=True)


if __name__ == "__main__":
    main()
