"""Meltano's view of the settings. Meltano loads this module at every command, so it imports nothing heavy."""

from __future__ import annotations

from typing import Any

from meltano.core.setting_definition import SettingDefinition, SettingKind

from meltano_ch_state.settings import SETTING_NAMES

_DESCRIPTIONS = {
    "host": "Host name or address of the ClickHouse server",
    "port": "Port of its HTTP interface: 8123, or 8443 with TLS",
    "database": "Database of the connection; it need not exist",
    "user": "User name",
    "password": "Password",
    "secure": "Whether to use TLS",
    "verify": "Whether to check the server's certificate",
    "ca_cert": "PEM file with the authority that signed the server's certificate",
    "schema": "ClickHouse database that holds the state tables",
    "table": "State table",
    "lock_mode": "Where locks are kept: insert (an ordinary table), keeper (a KeeperMap table), or auto",
    "lock_settle_seconds": "Pause before a lock is decided, in seconds",
    "stale_lock_seconds": "Silence after which a lock may be taken over, in seconds",
    "lock_acquire_timeout_seconds": "Longest wait for another holder's lock, in seconds",
    "auto_upgrade": "Whether the first write creates or upgrades the tables",
    "history_days": "How long old versions of states are kept, in days",
    "cluster": "Cluster on which the tables are made, replicated",
    "replicated": "Whether the tables are made with Replicated engines",
}
# lock_retry_seconds is Meltano's own, generic setting
NAMES = {
    scheme: tuple(name for name in names if name != "lock_retry_seconds") for scheme, names in SETTING_NAMES.items()
}


def _define(scheme: str, name: str) -> SettingDefinition:
    # no kind but for the password: Meltano would read "maybe" as a false boolean, where this package refuses it
    options: dict[str, Any] = {"kind": SettingKind.PASSWORD, "sensitive": True} if name == "password" else {}
    return SettingDefinition(
        name=f"state_backend.{scheme}.{name}",
        label=f"ClickHouse {name.replace('_', ' ')}",
        description=_DESCRIPTIONS[name],
        env_specific=True,
        **options,
    )


def __getattr__(attribute: str) -> SettingDefinition:
    """The definition that an entry point names, such as `clickhouse_host`."""
    scheme, _, name = attribute.partition("_")
    if name not in NAMES.get(scheme, ()):
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
    return _define(scheme, name)
