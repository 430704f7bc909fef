"""Everything that can go wrong, as one small tree.

    StateBackendError
    ├── ConfigurationError            a setting, or a part of the URI, is wrong
    │   └── MissingSettingError       a setting that has no default is not there
    ├── ServerError                   the server refused a statement for a reason of its own
    │   ├── KeeperConflictError       another client changed the same row in Keeper first
    │   ├── ServerUnreachableError    no answer: refused, reset, timed out, TLS failed, folder busy
    │   ├── ServerBusyError           it cannot do it now: overloaded, starting, without its Keeper or a quorum
    │   ├── AuthenticationError       wrong user or password
    │   └── PermissionDeniedError     the user lacks a GRANT
    ├── SchemaError                   the tables are not as this version needs them
    │   ├── SchemaMissingError        not there, or too old, and `auto_upgrade` is off
    │   ├── SchemaTooNewError         made by a later version of this package
    │   └── NoKeeperError             `lock_mode` is `keeper`, but the server keeps no such table, or lost it
    ├── NoSuchVersionError            the history keeps no such version of a state
    ├── StateChangedError             another wrote a state after it was looked at; nothing was written
    ├── InvalidStateError             a stored state is not JSON, or a given one cannot be stored
    └── LockError
        ├── StateLockedError          somebody else held the lock until the wait was over
        ├── StateLockLostError        this holder was deposed; its write does not count
        ├── NoSuchLockError           there is no live lock with that lock_id
        └── NestedLockError           this thread holds the lock of that state ID already

Each message is one line that says what is wrong and what to do; it is the first argument, and never holds a password.
The Meltano facade raises the same errors as `MeltanoError`s (see `meltano_errors`).
"""

from __future__ import annotations


class StateBackendError(Exception):
    """The state backend could not do what was asked.

    Attributes:
        reason: What is wrong, a sentence without its full stop.
        remedy: What to do about it, likewise; empty when there is nothing to add.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        """Build the one-line message.

        Args:
            reason: What is wrong, a sentence without its full stop.
            remedy: What to do about it, likewise.
        """
        self.reason = reason
        self.instruction = self.remedy = remedy
        line = f"{reason}. {remedy}." if remedy else f"{reason}."
        Exception.__init__(self, " ".join(part.strip() for part in line.splitlines()))

    def __str__(self) -> str:
        return str(self.args[0])


class ConfigurationError(StateBackendError, ValueError):
    """A setting, or a part of the URI, is wrong."""


class MissingSettingError(ConfigurationError):
    """A setting that has no default is not there."""


class ServerError(StateBackendError):
    """The server refused a statement for a reason of its own."""


class ServerUnreachableError(ServerError):
    """The server gave no answer: refused, reset, timed out, or TLS failed; or the embedded folder stayed busy."""


class ServerBusyError(ServerError):
    """The server cannot do it now, but may soon: it is overloaded, starts, stops, or misses its Keeper or a quorum."""


class KeeperConflictError(ServerError):
    """Another client created or changed the same row in Keeper first; nothing was done."""


class AuthenticationError(ServerError):
    """The user or the password is wrong."""


class PermissionDeniedError(ServerError):
    """The user lacks a GRANT."""


class SchemaError(StateBackendError):
    """The tables are not as this version of the package needs them."""


class SchemaMissingError(SchemaError):
    """The tables are missing or too old, and `auto_upgrade` is off."""


class SchemaTooNewError(SchemaError):
    """The tables were made by a later version of this package."""


class NoKeeperError(SchemaError):
    """The server has no Keeper for the lock table, or its Keeper has lost it."""


class NoSuchVersionError(StateBackendError):
    """The history keeps no such version of a state, or none at all."""


class StateChangedError(StateBackendError):
    """Another wrote a state after it was looked at; nothing was written."""


class InvalidStateError(StateBackendError):
    """A stored state is not JSON, or a given one cannot be stored."""


class LockError(StateBackendError):
    """The lock of a state ID could not be taken or kept."""


class StateLockedError(LockError):
    """Somebody else held the lock until the wait was over.

    Attributes:
        state_ids: What stayed locked.
        holder: Who holds the first of them: `user@host:pid`.
        operation: What that holder does.
        lock_id: That holder's lock_id.
        age_seconds: For how long that lock exists, by the server's clock.
        lease_seconds_left: After so much more silence it may be taken over.
        unlock_command: The shell command that ends that lock by hand.
    """

    state_ids: tuple[str, ...] = ()
    holder: str = ""
    operation: str = ""
    lock_id: str = ""
    age_seconds: float = 0.0
    lease_seconds_left: float = 0.0
    unlock_command: str = ""


class StateLockLostError(LockError):
    """This holder was deposed while it worked; its write does not count."""


class NoSuchLockError(LockError):
    """There is no live lock with that lock_id."""


class NestedLockError(LockError):
    """This thread holds the lock of that state ID already."""
