"""What Meltano finds of this package by its entry points."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, distribution

import pytest
from meltano.core.setting_definition import SettingDefinition

from meltano_ch_state import addon
from meltano_ch_state.dialect import ConnectDialect
from meltano_ch_state.manager import ClickhouseStateStoreManager
from meltano_ch_state.settings import SETTING_NAMES

REGISTERED = [
    (scheme, name) for scheme, names in SETTING_NAMES.items() for name in names if name != "lock_retry_seconds"
]
HEAVY = ["sqlalchemy", "clickhouse_sqlalchemy", "clickhouse_connect", "clickhouse_driver", "alembic", "chdb"]


def entry_points(group: str) -> dict[str, EntryPoint]:
    points = distribution("meltano-ch-state").entry_points
    return {point.name: point for point in points if point.group == group}


def definition(scheme: str, name: str) -> SettingDefinition:
    found = entry_points("meltano.settings")[f"{scheme}_{name}"].load()
    assert isinstance(found, SettingDefinition)
    return found


def test_every_setting_is_registered_for_every_scheme_but_meltanos_own() -> None:
    assert set(entry_points("meltano.settings")) == {f"{scheme}_{name}" for scheme, name in REGISTERED}


@pytest.mark.parametrize(("scheme", "name"), REGISTERED)
def test_a_setting_has_the_name_that_meltano_passes_to_the_manager(scheme: str, name: str) -> None:
    found = definition(scheme, name)
    assert found.name == f"state_backend.{scheme}.{name}"
    assert found.label
    assert found.description
    assert found.env_specific


def test_the_password_is_the_only_secret() -> None:
    secrets = [(scheme, name) for scheme, name in REGISTERED if definition(scheme, name).is_redacted]
    assert secrets == [("clickhouse", "password")]
    assert definition("clickhouse", "password").sensitive


@pytest.mark.parametrize(("scheme", "name"), REGISTERED)
def test_meltano_hands_a_value_over_as_it_was_written(scheme: str, name: str) -> None:
    assert definition(scheme, name).cast_value("maybe") == "maybe"


@pytest.mark.parametrize("scheme", ["clickhouse", "chdb"])
def test_meltano_finds_the_manager_by_the_scheme(scheme: str) -> None:
    assert entry_points("meltano.state_backends")[scheme].load() is ClickhouseStateStoreManager


def test_sqlalchemy_finds_the_dialect() -> None:
    assert entry_points("sqlalchemy.dialects")["clickhouse.connect"].load() is ConnectDialect


@pytest.mark.parametrize(
    "attribute", ["clickhouse_nope", "chdb_host", "clickhouse", "s3_host", "chdb_lock_retry_seconds"]
)
def test_there_is_no_definition_of_what_is_no_setting(attribute: str) -> None:
    with pytest.raises(AttributeError, match=f"'meltano_ch_state.addon' has no attribute '{attribute}'"):
        getattr(addon, attribute)


def test_loading_the_settings_loads_nothing_heavy() -> None:
    script = (
        "import sys, meltano.core.setting_definition; before = set(sys.modules)\n"
        "import meltano_ch_state.addon; meltano_ch_state.addon.clickhouse_host\n"
        f"loaded = (set(sys.modules) - before) & set({HEAVY}); sys.exit(str(loaded) if loaded else 0)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
