"""The state backend that a command works on, and what all commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
from sqlalchemy import Engine

from meltano_ch_state.connection import engine_for
from meltano_ch_state.errors import ConfigurationError, StateBackendError
from meltano_ch_state.locker import LockOptions
from meltano_ch_state.migrate import Schema
from meltano_ch_state.modes import locker_for
from meltano_ch_state.project import find_settings
from meltano_ch_state.repositories.faults import UPGRADE_COMMAND
from meltano_ch_state.repositories.history import HistoryRepository
from meltano_ch_state.repositories.locks import LockRepository
from meltano_ch_state.repositories.maintenance import MaintenanceRepository
from meltano_ch_state.repositories.states import StateRepository
from meltano_ch_state.settings import Settings
from meltano_ch_state.store import StateStore

METADATA = "metadata"
"""The engine's own folder, which it makes in its store with the first database."""


@dataclass(frozen=True)
class Target:
    """A state backend: its settings, its engine, and the repositories over it."""

    settings: Settings
    engine: Engine

    @property
    def schema(self) -> Schema:
        """The schema's revision, against the one that this package needs."""
        return Schema.of(self.engine, self.settings)

    @property
    def locks(self) -> LockRepository:
        """The lock table."""
        settings = self.settings
        return LockRepository(self.engine, settings.schema, settings.table, options=LockOptions.of(settings))

    @property
    def states(self) -> StateRepository:
        """The state table."""
        return StateRepository(self.engine, self.settings.schema, self.settings.table)

    @property
    def history(self) -> HistoryRepository:
        """The old versions of states."""
        return HistoryRepository(self.engine, self.settings.names)

    @property
    def maintenance(self) -> MaintenanceRepository:
        """Both tables, for their upkeep."""
        return MaintenanceRepository(self.engine, self.settings.names)

    @property
    def store(self) -> StateStore:
        """States under locks."""
        locker = locker_for(self.settings, self.engine, self.schema.make_keeper_table)
        return StateStore(self.states, locker, self.schema)


@contextmanager
def opened(uri: str | None, *, makes: bool = False) -> Iterator[Target]:
    """The state backend that the URI or the surroundings name; errors end the command with one line and exit code 1.

    Args:
        uri: As it was given to the command.
        makes: Whether the command makes what is not there; else it makes nothing for the embedded engine, either.
    """
    with one_line_errors():
        target = target_of(find_settings({"uri": uri}))
        if not makes:
            require_store(target.settings, makeable=True)
        try:
            yield target
        finally:
            target.engine.dispose()


def target_of(settings: Settings) -> Target:
    """The state backend of some settings; nothing is sent yet."""
    return Target(settings, engine_for(settings))


def require_store(settings: Settings, *, makeable: bool = False) -> None:
    """See that the embedded engine has a store in its folder: else it would make files in one that is mistyped.

    Args:
        settings: Where the folder is; those of a server are fine.
        makeable: Whether the error tells how to make what is not there.

    Raises:
        ConfigurationError: If it has none.
    """
    if not settings.path or os.path.isdir(os.path.join(settings.path, METADATA)):
        return
    there = os.path.exists(settings.path)
    make = f"; or make {'one there' if there else 'it'}: {UPGRADE_COMMAND}" if makeable else ""
    what = "state store in folder" if there else "folder"
    raise ConfigurationError(f"There is no {what} {settings.path}", f"Name another{make}")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the command with one line and exit code 1 when this package raises an error."""
    try:
        yield
    except StateBackendError as error:
        raise click.ClickException(str(error)) from error


def backend_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every command: `--uri` and `--json`."""
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)
    return click.option("--uri", help="The state backend; else the environment or the Meltano project names it.")(
        command
    )


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


class StateID(click.ParamType):  # type: ignore[type-arg] # of click 8.5 only
    """A state ID: any text that can be stored."""

    name = "state_id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse bytes that are no text in this terminal's encoding."""
        try:
            str(value).encode()
        except UnicodeEncodeError:
            self.fail(f"{value!r} is not valid Unicode.", param, ctx)
        return str(value)
