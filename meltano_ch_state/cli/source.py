"""What `import` reads: a JSON file, or any state backend that Meltano can open. All is read before any is written."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import replace
from importlib.metadata import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlsplit

import click

from meltano_ch_state.cli.document import part_of
from meltano_ch_state.cli.target import require_store, target_of
from meltano_ch_state.errors import AuthenticationError, StateBackendError
from meltano_ch_state.settings import SCHEMES, Settings, resolve

if TYPE_CHECKING:
    from meltano.core.state_store.base import StateStoreManager

SYSTEMDB = "systemdb"
_SECRET = re.compile(r"pass|secret|token|key|sig|connection", re.IGNORECASE)
_LOGIN_REMEDY = (
    "Write the password into the URI of the source, percent-encoded; or export its states to a file, and import that"
)
_EXTRAS = {"gs": "gcs"}
"""Meltano's extras for schemes that are not called the same."""
GENERIC_SETTINGS = {"lock_timeout_seconds": 10, "lock_retry_seconds": 1}
"""Meltano's defaults, for a backend that is opened without a project. Nothing is locked for reading."""


class Imported:
    """A state to write.

    Attributes:
        state_id: Which state it is.
        partial_state: What an incomplete run left, or None.
        completed_state: What the last complete run left, or None.
    """

    def __init__(self, state_id: object, partial_state: object, completed_state: object) -> None:
        """Check what came from outside.

        Raises:
            ValueError: If it is no state; the message names it.
        """
        if not isinstance(state_id, str) or any("\ud800" <= char <= "\udfff" for char in state_id):
            raise ValueError(f"{state_id!r} is no state ID")
        for name, part in (("partial", partial_state), ("completed", completed_state)):
            if part is not None and not isinstance(part, dict):
                raise ValueError(f"The {name} part of state {state_id!r} is no JSON object")
        self.state_id = state_id
        self.partial_state = cast("dict[str, Any] | None", partial_state)
        self.completed_state = cast("dict[str, Any] | None", completed_state)


def read(source: str, target: Settings) -> Iterator[Imported]:
    """The states of a source.

    Args:
        source: A URI, `systemdb`, a file, or `-` for standard input.
        target: Where the states are to go; see `source_settings`.

    Raises:
        click.ClickException: If it cannot be read, or holds something that is no state; one line, without any secret.
    """
    shown = without_secrets(source, source)
    try:
        if "://" in source or source == SYSTEMDB:
            yield from _backend(source, target)
        else:
            yield from _file(source)
    except Exception as error:  # a backend is somebody else's code, and may raise anything
        reason = without_secrets(source, " ".join(str(error).split()) or type(error).__name__)
        stop = "" if reason.endswith((".", "?")) else "."
        raise click.ClickException(f"Cannot import from {shown}: {reason}{stop}") from error


def without_secrets(source: str, text: str) -> str:
    """The text, with the login and the secret options of a source's URI hidden."""
    scheme, _, rest = source.partition("://")
    if not rest or scheme == "file":
        return text
    login = rest.rpartition("@")[0]  # all of it, though a password that is not percent-encoded may have a '/'
    options = [pair.partition("=") for pair in rest.partition("?")[2].split("&")]
    secrets = {login, login.partition(":")[2], *(value for name, _, value in options if _SECRET.search(name))}
    for secret in sorted(secrets | {unquote(each) for each in secrets}, key=len, reverse=True):
        text = text.replace(secret, "***") if secret else text
    return text


def _file(name: str) -> Iterator[Imported]:
    try:
        data = json.loads(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
    except json.JSONDecodeError as error:
        raise ValueError(f"It is no JSON: line {error.lineno}, column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise ValueError("It is no JSON") from error
    except OSError as error:
        raise ValueError(error.strerror) from error
    if not isinstance(data, dict):
        raise ValueError("It is no JSON object of states")
    for state_id, parts in data.items():
        if not isinstance(parts, dict) or not set(parts) <= {"partial", "completed"}:
            raise ValueError(f'State {state_id!r} is not of the form {{"completed": ..., "partial": ...}}')
        yield Imported(state_id, parts.get("partial"), parts.get("completed"))


def _backend(uri: str, target: Settings) -> Iterator[Imported]:
    if urlsplit(uri).scheme in SCHEMES:  # as its URI says, whatever the settings of the target are
        yield from _own(uri, target)
        return
    with _warnings_only(), redirect_stdout(sys.stderr), _meltanos(uri) as manager:
        states: Iterable[Any] = manager.get_all()
        for state in states:
            yield Imported(state.state_id, state.partial_state, state.completed_state)


def source_settings(uri: str, target: Settings) -> Settings:
    """The settings of a source of this package's own: what its URI says.

    A password that it lacks is the target's, when that would be sent to the same host in the same way.

    Raises:
        ConfigurationError: As `resolve`.
    """
    source = resolve(uri)
    same = all(getattr(source, name) == getattr(target, name) for name in ("host", "port", "user", "secure", "verify"))
    return replace(source, password=target.password) if same and not source.password else source


def _own(uri: str, target: Settings) -> Iterator[Imported]:
    settings = source_settings(uri, target)
    require_store(settings)
    source = target_of(settings)
    try:
        if not source.schema.readable():
            raise StateBackendError(f"There are no tables in schema {settings.schema}")
    except AuthenticationError as error:
        raise AuthenticationError(error.reason, _LOGIN_REMEDY) from error
    for row in source.states.stream():
        yield Imported(row.state_id, part_of(row, row.partial_state), part_of(row, row.completed_state))


@contextmanager
def _warnings_only() -> Iterator[None]:
    """Meltano sets its log up in its own commands; else it has every line of debugging on standard output."""
    import structlog  # noqa: PLC0415 - Meltano brings it

    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def _meltanos(uri: str) -> Iterator[StateStoreManager]:
    """The backend of a URI, with the settings of the Meltano project in the current folder if there is one."""
    if (parts := urlsplit(uri)).scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise FileNotFoundError("There is no such folder")  # Meltano would make it
    from meltano.core.error import ProjectNotFound  # noqa: PLC0415 - dear, and seldom needed
    from meltano.core.project import Project  # noqa: PLC0415
    from meltano.core.project_settings_service import ProjectSettingsService  # noqa: PLC0415
    from meltano.core.state_store import StateBackend, state_store_manager_from_project_settings  # noqa: PLC0415

    try:
        project = Project.find(activate=False)
    except ProjectNotFound:
        if uri == SYSTEMDB:
            raise
        with _extras_named(parts.scheme):
            kind = StateBackend.get_manager_factory(scheme=parts.scheme)
        manager = kind(uri=uri, **GENERIC_SETTINGS)
    else:
        settings = ProjectSettingsService(project, config_override={"state_backend.uri": uri})
        with _extras_named(parts.scheme):
            manager = state_store_manager_from_project_settings(settings)
    with closing(manager):
        yield manager


@contextmanager
def _extras_named(scheme: str) -> Iterator[None]:
    """Say which extra of Meltano has the package that a backend lacks."""
    try:
        yield
    except ImportError as error:
        extra = _EXTRAS.get(scheme, scheme)
        if extra not in (metadata("meltano").get_all("Provides-Extra") or ()):
            raise
        raise StateBackendError(
            str(error), f"Install what Meltano needs for it: pip install 'meltano[{extra}]'"
        ) from error
