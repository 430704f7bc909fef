"""Meltano's pipeline state, kept in ClickHouse.

Names are loaded when they are first used: Meltano imports this package at every command, also at those that never touch
a state.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meltano_ch_state.library import open_store, upgrade
    from meltano_ch_state.models import State, StateLock, metadata
    from meltano_ch_state.repositories.locks import LockRepository
    from meltano_ch_state.repositories.states import StateRepository

_HOMES = {
    "LockRepository": "repositories.locks",
    "State": "models",
    "StateLock": "models",
    "StateRepository": "repositories.states",
    "metadata": "models",
    "open_store": "library",
    "upgrade": "library",
}

__all__ = ["LockRepository", "State", "StateLock", "StateRepository", "metadata", "open_store", "upgrade"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
