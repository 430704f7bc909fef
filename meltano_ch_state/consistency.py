"""What is sent along with statements so that every read sees what was written before, by the engine of the tables.

One server needs nothing. Replicas need a quorum for each insert, one insert after the other, and reads that refuse to
answer without the newest of them. ClickHouse Cloud (Shared engines) commits an insert for all, so reads suffice.
See docs/decisions/0005 and, for what happens without each of them, tests/model/replicas.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meltano_ch_state.settings import LOCK_SETTLE_SECONDS

PLAIN_ENGINE = "ReplacingMergeTree"
"""The engine of tables on one server."""
STALL_SECONDS = 30
"""How long, in seconds, a quorum or a sequential read may take before the server gives up on it."""


@dataclass(frozen=True, slots=True)
class Consistency:
    """What the statements about locks and single states need.

    Attributes:
        writes: Settings of inserts.
        reads: Settings of the reads of locks, and of one state.
        settle_seconds: The pause before a lock is decided, in seconds: 0 where the settings make it needless.
    """

    writes: Mapping[str, object] = field(default_factory=dict)
    reads: Mapping[str, object] = field(default_factory=dict)
    settle_seconds: float = 0.0


_QUORUM = {"insert_quorum": "auto", "insert_quorum_parallel": 0, "insert_quorum_timeout": STALL_SECONDS * 1_000}
_SEQUENTIAL = {"select_sequential_consistency": 1, "max_execution_time": STALL_SECONDS}

PLAIN = Consistency()
REPLICATED = Consistency(_QUORUM, _SEQUENTIAL)
SHARED = Consistency(reads=_SEQUENTIAL)
UNKNOWN = Consistency(settle_seconds=LOCK_SETTLE_SECONDS)
"""An engine of another kind, or settings cannot be sent: time is all that helps."""


def consistency_of(engine: str, may_set: bool = True) -> Consistency:
    """What the tables' engine asks for.

    Args:
        engine: As `system.tables` names it; empty when there is no table.
        may_set: Whether the user, and the driver, may send settings. Whoever may not can only read.
    """
    if engine == PLAIN_ENGINE:
        return PLAIN
    if engine == f"Replicated{PLAIN_ENGINE}" and may_set:
        return REPLICATED
    if engine == f"Shared{PLAIN_ENGINE}" and may_set:
        return SHARED
    return UNKNOWN
