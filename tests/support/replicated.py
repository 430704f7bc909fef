"""Replicated tables on the tests' server, made by the migration's own statements.

They can be read, and are asked as real ones are. Written they cannot be where the library is the server: a replica
announces itself in Keeper by its address for other servers, and `clickhouse local` takes `interserver_http_port` from
no configuration ("required for replication is not specified", says its log). Nor does it run the queue of ON CLUSTER.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.rig.endpoint import Endpoint

SCRIPT = Path(__file__).parents[1] / "migrations" / "expected" / "replicated.sql"

ALTER = re.compile(r"ALTER TABLE .*\n(?P<columns>( +ADD COLUMN .*\n?)+?)(?=;)")


def create_replicated_tables(server: Endpoint, schema: str) -> None:
    """Run what `-x replicated=true upgrade head --sql` writes, as far as that needs no writer."""
    script = SCRIPT.read_text()
    for name in ("`meltano`", " meltano.", "/meltano/"):
        script = script.replace(name, name.replace("meltano", schema))
    added = ALTER.search(script)
    assert added, "the ALTER reads otherwise now"
    columns = added["columns"].replace("ADD COLUMN IF NOT EXISTS ", "")
    script = script.replace("is_deleted UInt8 DEFAULT 0\n", f"is_deleted UInt8 DEFAULT 0,\n{columns}\n", 1)
    for statement in script.split(";\n"):
        if "CREATE" in statement and "VIEW" not in statement:
            server.execute(statement)
