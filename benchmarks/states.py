"""States and state IDs that look like real ones."""

from __future__ import annotations

from hashlib import sha256

from meltano.core.state_store.base import MeltanoState

_ID = "prod:tap-{tap}-to-target-warehouse:tenant-{number:07d}"
_TAPS = ("shop", "billing", "support", "tracking")


def state_id(number: int) -> str:
    """The ID of one of many pipelines."""
    return _ID.format(tap=_TAPS[number % len(_TAPS)], number=number)


STATE_ID_SQL = (
    "concat('prod:tap-', ['shop', 'billing', 'support', 'tracking'][number % 4 + 1],"
    " '-to-target-warehouse:tenant-', leftPad(toString(number), 7, '0'))"
)
"""The same as an expression over the column `number`."""


def state_of(size: int, salt: object = "") -> dict[str, object]:
    """A Singer state whose JSON has about so many bytes."""
    streams = max(1, round(size / 150))
    return {"singer_state": {"bookmarks": dict(_bookmark(f"{salt}{number}") for number in range(streams))}}


def complete(name: str, size: int, salt: object = "") -> MeltanoState:
    """A state as a run that ended well leaves it."""
    return MeltanoState(name, {}, state_of(size, salt))


def partial(name: str, size: int, salt: object = "") -> MeltanoState:
    """A state as a run leaves it that has not ended yet."""
    return MeltanoState(name, state_of(size, salt), {})


def _bookmark(name: str) -> tuple[str, dict[str, str]]:
    digest = sha256(name.encode()).hexdigest()
    return f"stream-{digest[:12]}", {
        "replication_key": "updated_at",
        "replication_key_value": f"2026-11-30 {digest[12:64]}",
    }
