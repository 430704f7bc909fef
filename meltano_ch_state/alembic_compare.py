"""What `alembic check` needs beyond columns: the engine, its version column, the keys and the TTL.

Alembic compares the columns itself. Importing this module registers the comparison; `alembic/env.py` does that.
"""

from __future__ import annotations

import re
from typing import Any

from alembic.autogenerate import comparators, renderers
from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import MigrateOperation, ModifyTableOps
from sqlalchemy import Table

_CLAUSE = re.compile(r" (PARTITION BY|PRIMARY KEY|ORDER BY|SAMPLE BY|TTL|SETTINGS) ")
_ENGINE = re.compile(r"(?:Replicated|Shared)?(\w*)(?:\((.*)\))?")
_KEEPER_ARGUMENT = re.compile(r"'(?:[^'\\]|\\.)*'(?:, ?)?")
_KEY_IN_BRACKETS = re.compile(r"\(([^()]*)\)")


class EngineChange(MigrateOperation):
    """A part of a table's engine differs between the database and the models."""

    def __init__(self, table: Table, part: str, stored: str, wanted: str) -> None:
        self.table = table
        self.part = part
        self.stored = stored
        self.wanted = wanted

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """How `alembic check` names the change."""
        return (f"modify_{self.part}", self.table.schema, self.table.name, self.stored, self.wanted)

    def reverse(self) -> EngineChange:
        """The same change, the other way round."""
        return EngineChange(self.table, self.part, self.wanted, self.stored)


@renderers.dispatch_for(EngineChange)
def render(context: AutogenContext, change: EngineChange) -> str:
    """What `alembic revision --autogenerate` writes: most of these changes cannot be made in place."""
    todo = f"{change.table.fullname}: change {change.part} from {change.stored!r} to {change.wanted!r}"
    return f"raise NotImplementedError({todo!r})"


@comparators.dispatch_for("table")
def compare(  # noqa: PLR0917 - Alembic's signature
    context: AutogenContext,
    changes: ModifyTableOps,
    schema: str | None,
    name: str,
    stored: Table | None,
    wanted: Table | None,
) -> None:
    """Compare the engine of one table with its model's."""
    if stored is None or wanted is None or not hasattr(wanted, "engine"):
        return
    dialect: Any = context.dialect
    found = dialect.get_engine(context.connection, wanted.name, wanted.schema)
    before, after = parts(found["engine_full"]), parts(dialect.ddl_compiler(dialect, None).process(wanted.engine))
    changes.ops.extend(
        EngineChange(wanted, part, before[part], after[part]) for part in after if before[part] != after[part]
    )


def parts(engine: str) -> dict[str, str]:
    """Take an ENGINE clause apart, so that clauses of the same meaning are equal.

    Replicated and Shared engines count as the plain ones: a server may put them in their place.

    Args:
        engine: Such as `ReplacingMergeTree(updated_at) ORDER BY state_id SETTINGS index_granularity = 8192`.
    """
    head, *rest = _CLAUSE.split(" ".join(engine.replace("`", "").split()))
    clauses = {
        clause: _KEY_IN_BRACKETS.sub(r"\1", text) if _KEY_IN_BRACKETS.fullmatch(text) else text
        for clause, text in zip(rest[::2], rest[1::2], strict=True)
    }
    named = _ENGINE.fullmatch(head)
    name, arguments = named.groups() if named else (head, "")
    sorting_key = clauses.get("ORDER BY", "")
    return {
        "engine": name,
        "version_column": _KEEPER_ARGUMENT.sub("", arguments or ""),
        "sorting_key": sorting_key,
        "primary_key": clauses.get("PRIMARY KEY", sorting_key),
        "partition_key": clauses.get("PARTITION BY", ""),
        "ttl": clauses.get("TTL", ""),
    }
