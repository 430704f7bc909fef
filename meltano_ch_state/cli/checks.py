"""What `doctor` looks at. Each check is one question to the server or the surroundings, and gives one finding."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from importlib.metadata import entry_points
from ipaddress import ip_address

from meltano_ch_state.cli.findings import FAIL, OK, WARN, Finding
from meltano_ch_state.cli.output import as_time, counted_noun
from meltano_ch_state.cli.target import Target
from meltano_ch_state.cli.timing import TimedLocks, timed
from meltano_ch_state.consistency import PLAIN_ENGINE
from meltano_ch_state.errors import (
    PermissionDeniedError,
    SchemaMissingError,
    ServerError,
    StateBackendError,
    StateLockedError,
)
from meltano_ch_state.lock import describe
from meltano_ch_state.locker import LockOptions
from meltano_ch_state.migrate import HEAD, HISTORY_REVISION
from meltano_ch_state.project import unknown_settings
from meltano_ch_state.repositories.faults import NEWEST_TESTED, OLDEST_TESTED
from meltano_ch_state.repositories.schema import SchemaRepository
from meltano_ch_state.repositories.server import ServerRepository
from meltano_ch_state.settings import SETTING_NAMES

DOCTORS_STATE_ID = "meltano-ch-state doctor"
"""Its lock is taken and released to see what that costs; no state of that name is ever written."""
DOCTOR_TIMEOUT_SECONDS = 5.0
DOCTOR_LEASE_SECONDS = 10.0
MAX_SKEW_SECONDS = 5.0
"""Clocks that are kept by NTP differ by less than one second; the rest is for slow answers."""
MAX_AHEAD_SECONDS = 1.0
"""Tokens run ahead of the clock by a millisecond for each lock that follows at once; a second is no such thing."""
SLOW_MILLISECONDS = 500.0
"""An update is five statements, and a run makes one for each STATE message: above this they hold a pipeline up."""
MAX_PARTS = 300
"""Merges keep a table under some dozens. ClickHouse slows inserts down at 1,000 parts (`parts_to_delay_insert`; before
23.6 at 150) and refuses them at 3,000; every FINAL read opens each part."""
STUCK_SECONDS = 600
"""A mutation of tables as small as these takes seconds."""


class Checks:
    """The checks of one state backend."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._settings = target.settings
        self._names = target.settings.names
        self._server = ServerRepository(target.engine, self._names)
        self._embedded = target.settings.scheme == "chdb"

    def findings(self) -> Iterator[Finding]:
        """Check one thing after the other; without a connection only what needs none."""
        connection = self._finding("connection", self.connection)
        yield connection
        yield self._finding("tls", self.tls)
        if connection.status != FAIL:
            for name in _ON_THE_SERVER:
                yield self._finding(name, getattr(self, name))
        yield self._finding("meltano", self.meltano)
        yield self._finding("settings", self.settings)

    def _finding(self, name: str, check: Callable[[], tuple[str, ...]]) -> Finding:
        try:
            return Finding(name, *check())
        except PermissionDeniedError as error:
            seen = _SYSTEM_TABLES.get(name)
            if seen is None:
                return Finding(name, WARN, error.reason, error.remedy)
            return Finding(name, WARN, f"{self._user} may not read {seen}", self._grant(f"SELECT ON {seen}"))
        except StateBackendError as error:
            return Finding(name, FAIL, error.reason, error.remedy or "See the server's log")

    @cached_property
    def _user(self) -> str:
        return self._server.user()[0]

    @cached_property
    def _missing(self) -> list[tuple[str, str]]:
        """The privileges on tables that the user lacks, and that every run needs."""
        names = self._names
        wanted = [("SELECT", table) for table in (names.table, names.lock_table, names.version_table)]
        wanted += [("INSERT", table) for table in (names.table, names.lock_table)]
        readonly = self._server.user()[1]
        return [
            (privilege, table)
            for privilege, table in wanted
            if (readonly and privilege == "INSERT") or not self._server.may(privilege, table)
        ]

    @cached_property
    def _lacking(self) -> list[str]:
        """What the user lacks of the grants that docs/rights.md has for migrating: `PRIVILEGE ON ...` each."""
        names, server = self._names, self._server
        wanted = [("CREATE TABLE", "*"), ("SELECT", names.table), ("ALTER ADD COLUMN", names.table)]
        wanted += [(privilege, table) for table in (names.version_table, names.history_table) for privilege in _BOTH]
        if not server.has_database():
            wanted.insert(0, ("CREATE DATABASE", "*"))
        replicated = self._settings.topology.is_replicated
        engine = f"Replicated{PLAIN_ENGINE}" if replicated else PLAIN_ENGINE
        lacking = [
            f"{privilege} ON `{names.schema}`.{table}"
            for privilege, table in wanted
            if not server.may(privilege, table)
        ]
        return lacking + ([] if server.may_make(engine) else [f"TABLE ENGINE ON {engine}"])

    @cached_property
    def _revision(self) -> str | None:
        return SchemaRepository(self._target.engine, self._names).revision()

    @property
    def _all_tables(self) -> str:
        return f"`{self._names.schema}`.*"

    def _grant(self, *what: str) -> str:
        return "Have an administrator run: " + "; ".join(f"GRANT {each} TO {self._user}" for each in what)

    def connection(self) -> tuple[str, ...]:
        """Whether the server answers, or the folder opens."""
        milliseconds, _ = timed(self._server.version)
        if self._embedded:
            return OK, f"Opened the folder {self._settings.path} in {milliseconds:.1f} ms"
        return OK, f"{self._settings.address} answered {self._user} in {milliseconds:.1f} ms"

    def tls(self) -> tuple[str, ...]:
        """Whether what is sent can be read on the way."""
        if self._embedded:
            return OK, "The embedded engine sends nothing over a network"
        if not self._settings.secure:
            if _is_here(self._settings.host):
                return OK, "Off; the server is on this host"
            return WARN, "Off: the password and the states can be read on the way", "Set secure=true"
        if not self._settings.verify:
            return WARN, "On, but the server's certificate is not checked", "Set verify=true, and ca_cert if need be"
        return OK, "On; the server's certificate is checked"

    def version(self) -> tuple[str, ...]:
        """Whether the server is one that this package was tried with. What an older one cannot do it says by itself."""
        version = self._server.version()
        if _numbers(version) < _numbers(OLDEST_TESTED):
            return WARN, f"ClickHouse {version} is older than what this package is tested with", "Upgrade ClickHouse"
        return OK, f"ClickHouse {version} (this package is tested with {OLDEST_TESTED} to {NEWEST_TESTED})"

    def rights(self) -> tuple[str, ...]:
        """Whether the user may do what every run does."""
        try:
            missing = self._missing
        except PermissionDeniedError:
            raise
        except ServerError as error:
            return WARN, f"This server cannot tell: {error.reason}", "Compare SHOW GRANTS with docs/rights.md"
        if not missing:
            return OK, f"{self._user} may SELECT and INSERT"
        lacking = ", ".join(f"{privilege} on {table}" for privilege, table in missing)
        readable = not {("SELECT", self._names.table), ("SELECT", self._names.version_table)} & set(missing)
        privileges = ", ".join(dict.fromkeys(privilege for privilege, _ in missing))
        remedy = self._grant(f"{privileges} ON {self._all_tables}")
        if self._server.user()[1] and privileges == "INSERT":
            remedy = "Its profile has readonly set: use another user to write"
        return WARN if readable else FAIL, f"{self._user} lacks {lacking}", remedy

    def migrating(self) -> tuple[str, ...]:
        """Whether the user may change the tables: somebody else may do that."""
        try:
            lacking = self._lacking
        except ServerError as error:
            return OK, f"This server cannot tell: {error.reason}"
        if lacking:
            needed = "Not needed for runs. " if self._revision == HEAD else ""
            return OK, f"{self._user} may not create or change the tables", f"{needed}{self._grant(*lacking)}"
        return OK, f"{self._user} may create and change the tables, too"

    def _may_upgrade(self) -> bool:
        try:
            return not self._lacking
        except ServerError:  # it cannot tell
            return True

    def schema(self) -> tuple[str, ...]:
        """Whether the tables are as this package needs them."""
        revision = self._revision
        if revision == HEAD:
            return OK, f"Schema {self._names.schema} is at revision {revision}"
        if revision is not None and revision > HEAD:
            message = f"Schema {self._names.schema} is at revision {revision}; this package knows up to {HEAD}"
            return FAIL, message, "Upgrade meltano-ch-state"
        found = f"at revision {revision}, older than {HEAD}" if revision else "missing"
        message = f"Schema {self._names.schema} is {found}"
        if self._settings.auto_upgrade and not self._may_upgrade():
            remedy = "Have a user run meltano-ch-state upgrade who has the grants for migrating of docs/rights.md"
            return FAIL, f"{message}, and {self._user} may not make it good: runs fail", remedy
        if self._settings.auto_upgrade:
            return WARN, f"{message}; the first write makes that good", "Run: meltano-ch-state upgrade"
        return FAIL, f"{message}, and auto_upgrade is off", "Run: meltano-ch-state upgrade"

    def history(self) -> tuple[str, ...]:
        """Whether old versions are kept."""
        if (self._revision or "") < HISTORY_REVISION:
            return OK, "There is none yet"
        try:
            unkept = self._server.unkept()
        except SchemaMissingError:
            return WARN, f"The table {self._names.history_table} is missing: no version is kept", _HISTORY_REMEDY
        if unkept:
            message = f"Versions are not kept, such as that of state {unkept[0]!r} of {as_time(unkept[1])}"
            return WARN, message, _HISTORY_REMEDY
        days = self._target.schema.kept_days()
        if days and days != self._settings.history_days:
            message = f"The newest versions are kept for {counted_noun(days, 'day')}, not history_days"
            return (
                WARN,
                f"{message}={self._settings.history_days}",
                "Run: meltano-ch-state upgrade, or set history_days",
            )
        return OK, "The newest versions are kept" + (f", for {counted_noun(days, 'day')}" if days else "")

    def consistency(self) -> tuple[str, ...]:
        """What the engines of the tables promise to those who read after a write."""
        engines = set(self._server.engines().values())
        if not engines:
            return OK, "Not known: there are no tables to be seen"
        engine = ", ".join(sorted(engines))
        if any(not each.endswith("ReplacingMergeTree") for each in engines):
            return FAIL, f"The tables are {engine}: states would get lost", "Set schema or table to another name"
        asked = self._settings.lock_settle_seconds
        settle = self._target.locks.settle_seconds() if asked is None else asked
        kind = "The embedded engine" if self._embedded else "One server"
        if engines != {PLAIN_ENGINE}:
            kind = "ClickHouse Cloud" if engine.startswith("Shared") else "Replicas"
        return OK, f"{kind} ({engine}): a lock settles for {settle:g} s"

    def nodes(self) -> tuple[str, ...]:
        """Whether other servers may answer in this one's place though they have not its rows."""
        clusters = ", ".join(self._server.clusters())
        if not clusters:
            return OK, "This server is in no cluster with others"
        if PLAIN_ENGINE not in self._server.engines().values():
            return OK, f"This server is in a cluster: {clusters}"
        if self._settings.replicated is False:
            return OK, f"This server is in a cluster: {clusters}; replicated=false says that it alone is meant"
        message = f"This server is in a cluster ({clusters}), but the tables are not replicated: writes are refused"
        return FAIL, message, "Set cluster and a new schema; or, if it alone is meant, replicated=false"

    def clock(self) -> tuple[str, ...]:
        """Whether the server's clock agrees with this host's, and with the newest token."""
        before = time.time()
        now = self._target.locks.now() / 1e6
        skew = now - (before + time.time()) / 2
        ahead = (self._server.newest_version() / 1e6 if self._revision else 0.0) - now
        if ahead > MAX_AHEAD_SECONDS:
            message = (
                f"The newest token is {ahead:.1f} s in the future: the server's clock stepped back, or ran ahead once"
            )
            return (
                WARN,
                message,
                "Have NTP keep it. No update is lost; until then leases last longer, and times are off",
            )
        if abs(skew) > MAX_SKEW_SECONDS:
            message = f"The server's clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this host's"
            return WARN, message, "Have NTP keep both. The lock goes by the server's alone"
        return OK, f"The server's and this host's differ by {abs(skew):.1f} s; no token is in the future"

    def latency(self) -> tuple[str, ...]:
        """How long each statement of an update takes."""
        times = {"select 1": timed(self._server.version)[0]}
        if self._revision == HEAD:
            times["read"] = timed(lambda: self._target.states.get(DOCTORS_STATE_ID))[0]
            if self._may_insert():
                try:
                    times |= self._lock_times()
                except StateLockedError as error:
                    return WARN, error.reason, "Run it again when the other doctor is done"
        message = ", ".join(f"{kind} {milliseconds:.1f} ms" for kind, milliseconds in times.items())
        if max(times.values()) > SLOW_MILLISECONDS:
            return WARN, message, "Look for what keeps the server busy, or use a nearer one"
        return OK, message

    def _may_insert(self) -> bool:
        try:
            return not self._missing
        except ServerError:  # it cannot tell
            return False

    def _lock_times(self) -> Mapping[str, float]:
        options = replace(LockOptions.of(self._settings), lease_seconds=DOCTOR_LEASE_SECONDS)
        locks = TimedLocks(self._target.engine, self._names.schema, self._names.table, options=options)
        with locks.acquire(DOCTORS_STATE_ID, "doctor", timeout_seconds=DOCTOR_TIMEOUT_SECONDS) as lock:
            lock.confirm()
        return locks.milliseconds

    def locks(self) -> tuple[str, ...]:
        """Whether somebody holds a lock though its lease is over."""
        if not self._revision:
            return OK, "No state is locked"
        now = self._target.locks.now()
        live = self._target.locks.live()
        over = [lock for lock in live if lock.lease_seconds_left(now) < 0]
        if over:
            held = f"{over[0].state_id!r} by {describe(over[0], now)}"
            message = f"{len(over)} of {len(live)} held beyond the lease, such as {held}"
            unlock = f"meltano-ch-state unlock {shlex.quote(over[0].state_id)} --lock-id {over[0].lock_id}"
            return WARN, message, f"The next to want it takes it over; at once: {unlock}"
        return OK, f"{len(live)} held, none beyond its lease"

    def mutations(self) -> tuple[str, ...]:
        """Whether a mutation does not come to its end."""
        unfinished = self._server.unfinished_mutations()
        stuck = [each for each in unfinished if each.failure or each.age_seconds > STUCK_SECONDS]
        if stuck:
            first = stuck[0]
            why = f": {' '.join(first.failure.split())}" if first.failure else ""
            message = f"{first.mutation_id} on {first.table} is stuck for {first.age_seconds} s{why}"
            kill = f"KILL MUTATION WHERE database = '{self._names.schema}' AND mutation_id = '{first.mutation_id}'"
            return WARN, message, f"Mend its cause, or run: {kill}"
        return OK, f"{len(unfinished)} at work, none stuck"

    def parts(self) -> tuple[str, ...]:
        """Whether merges keep up with the inserts."""
        parts = self._server.active_parts()
        message = ", ".join(f"{table} {count}" for table, count in sorted(parts.items())) or "none"
        if max(parts.values(), default=0) > MAX_PARTS:
            return (
                WARN,
                f"Active parts: {message}",
                "See why merges do not keep up: system.merges, disk, SYSTEM STOP MERGES",
            )
        return OK, f"Active parts: {message}"

    def meltano(self) -> tuple[str, ...]:
        """Which installed package serves the scheme in Meltano: it takes the first that it finds."""
        scheme = self._settings.scheme
        found = entry_points(group="meltano.state_backends").select(name=scheme)
        serving = [(point.dist.name if point.dist else "unknown", point.value.partition(":")[0]) for point in found]
        if not serving:
            return (
                WARN,
                f"No installed package serves {scheme}:// in Meltano",
                "Install meltano-ch-state beside Meltano",
            )
        ours = serving[0][1].startswith("meltano_ch_state.")
        others = ", ".join(name for name, module in serving if not module.startswith("meltano_ch_state."))
        if others:
            message = f"{len(serving)} packages serve {scheme}:// in Meltano; {serving[0][0]} wins"
            return WARN, message, f"Uninstall {others}" + ("" if ours else ": this package is not used now")
        return OK, f"{serving[0][0]} serves {scheme}://"

    def settings(self) -> tuple[str, ...]:
        """Whether something that looks like a setting is none: Meltano says nothing of it."""
        if unknown := unknown_settings(self._settings.scheme):
            known = ", ".join(SETTING_NAMES[self._settings.scheme])
            return WARN, f"No settings, so without effect: {', '.join(unknown)}", f"Known settings are {known}"
        return OK, "None is misspelt"


_ON_THE_SERVER = (
    "version",
    "rights",
    "migrating",
    "schema",
    "history",
    "consistency",
    "nodes",
    "clock",
    "latency",
    "locks",
    "mutations",
    "parts",
)
_BOTH = ("SELECT", "INSERT")
_HISTORY_REMEDY = (
    "See the server's log; what is missing, the last statements that meltano-ch-state sql prints make anew"
)
_SYSTEM_TABLES = {"nodes": "system.clusters", "mutations": "system.mutations", "parts": "system.parts"}


def _numbers(version: str) -> tuple[int, ...]:
    """Year and number of a version such as 26.7.2.1."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
