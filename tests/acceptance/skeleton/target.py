#!/usr/bin/env python3
"""A Singer target: adds the numbers to loaded.txt, and hands each STATE back at once."""

import json
import sys
from pathlib import Path


def main() -> None:
    """Load until the tap is done."""
    with Path("loaded.txt").open("a", buffering=1) as loaded:
        for message in map(json.loads, sys.stdin):
            if message["type"] == "RECORD":
                loaded.write(f"{message['record']['id']}\n")
            if message["type"] == "STATE":
                sys.stdout.write(json.dumps(message["value"]) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
