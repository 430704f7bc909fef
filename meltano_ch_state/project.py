"""The configuration outside Meltano's own commands: for Alembic and the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, TypeVar

from meltano_ch_state.errors import ConfigurationError, MissingSettingError
from meltano_ch_state.settings import SCHEMES, SETTING_NAMES, Settings, from_environment

if TYPE_CHECKING:
    from meltano.core.project_settings_service import ProjectSettingsService

_T = TypeVar("_T")


def find_settings(given: Mapping[str, str | None]) -> Settings:
    """Resolve what is given, then the environment, then the Meltano project in the current folder.

    Args:
        given: `uri` and settings by their names in `Settings`, for instance from a command line; None: not given.

    Raises:
        ConfigurationError: If none of the three names a ClickHouse, or a setting is wrong.
    """
    options: dict[str, str | None] = {name: value for name, value in given.items() if value is not None}
    if not (options.get("uri") or options.get("host") or _environment_names_one()):
        options = {**_project_settings(), **options}
        if not options.get("uri"):
            raise MissingSettingError(
                "No ClickHouse is configured",
                "Give --uri clickhouse://user@host:8123 (to Alembic: -x uri=...), or set MELTANO_STATE_BACKEND_URI,"
                " or run this in a Meltano project whose state_backend.uri begins with clickhouse:// or chdb://",
            )
    return from_environment(os.environ, **options)


def unknown_settings(scheme: str) -> list[str]:
    """What looks like a setting of ours and is none: Meltano passes over it without a word. Sorted by name.

    Args:
        scheme: `clickhouse` or `chdb`: whose settings.
    """
    section = f"state_backend.{scheme}."
    prefix = section.upper().replace(".", "_")
    known = {f"MELTANO_{prefix}{name.upper()}" for name in SETTING_NAMES[scheme]}
    variables = {name for name in os.environ if name.startswith(f"MELTANO_{prefix}")} - known
    in_file = {name for name in _flat(_project_file()) if name.startswith(section)}
    return sorted(variables | (in_file - {section + name for name in SETTING_NAMES[scheme]}))


def _flat(settings: object, parent: str = "") -> Iterator[str]:
    """The dotted names of nested settings."""
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            yield from _flat(value, f"{parent}.{name}" if parent else str(name))
    else:
        yield parent


def _environment_names_one() -> bool:
    try:
        from_environment(os.environ)
    except MissingSettingError:
        return False
    return True


def _project_settings() -> dict[str, str | None]:
    """The state backend's settings as Meltano sees them; empty when there is no project, or it has another backend."""
    return _of_project(_backend_settings) or {}


def _project_file() -> Mapping[str, object]:
    """What `meltano.yml` sets of Meltano's own settings; nothing where there is no Meltano."""
    return {} if find_spec("meltano") is None else _of_project(lambda settings: settings.meltano_yml_config) or {}


def _of_project(wanted: Callable[[ProjectSettingsService], _T]) -> _T | None:
    """Something of the settings of the Meltano project in the current folder; None when there is none.

    Meltano's own settings are the same in all environments of a project, so none has to be active.
    """
    from meltano.core.error import MeltanoError, ProjectNotFound  # noqa: PLC0415 - dear, and seldom needed
    from meltano.core.project import Project  # noqa: PLC0415
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415 - comes with Meltano

    try:
        with redirect_stdout(StringIO()):  # Meltano's log would be among the statements that `--sql` writes
            return wanted(Project.find(activate=False).settings)
    except ProjectNotFound:
        return None
    except (MeltanoError, YAMLError) as error:
        raise ConfigurationError(f"The Meltano project cannot be used: {str(error).rstrip('.')}") from error
    except (AttributeError, TypeError) as error:  # what Meltano runs into when the file is YAML of another shape
        raise ConfigurationError("The Meltano project cannot be used: its meltano.yml is no mapping") from error


def _backend_settings(settings: ProjectSettingsService) -> dict[str, str | None]:
    uri = settings.get("state_backend.uri")
    scheme = str(uri).partition("://")[0]
    if scheme not in SCHEMES:
        return {}
    defined = {definition.name for definition in settings.setting_definitions}
    names = {name: f"state_backend.{scheme}.{name}" for name in SETTING_NAMES[scheme]}
    return {"uri": uri} | {name: settings.get(full) for name, full in names.items() if full in defined}
