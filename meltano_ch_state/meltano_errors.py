"""The package's errors as Meltano's: each is a `MeltanoError`, which Meltano prints as one line, and the same error.

The library path never imports Meltano, so these are classes of their own; `except StateLockLostError` catches both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from meltano.core.error import MeltanoError
from meltano.core.state_store.base import MissingStateBackendSettingsError, StateIDLockedError

from meltano_ch_state import errors


class MeltanoStateBackendError(errors.StateBackendError, MeltanoError):  # type: ignore[misc] # narrower attributes
    """An error of this package as Meltano expects it."""


def _twin(kind: type[errors.StateBackendError], *also: type[Exception]) -> type[MeltanoStateBackendError]:
    name = f"Meltano{kind.__name__}"
    return type(name, (MeltanoStateBackendError, kind, *also), {"__doc__": kind.__doc__, "__module__": __name__})


_ALSO: dict[type[errors.StateBackendError], tuple[type[Exception], ...]] = {
    errors.MissingSettingError: (MissingStateBackendSettingsError,),
    errors.StateLockedError: (StateIDLockedError,),
}
_TWINS = {
    kind: _twin(kind, *_ALSO.get(kind, ()))
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.StateBackendError)
}


def as_meltano(error: errors.StateBackendError) -> MeltanoStateBackendError:
    """The Meltano error for one of this package; its attributes and its cause come along."""
    if isinstance(error, MeltanoStateBackendError):
        return error
    kind = next(kind for kind in type(error).__mro__ if kind in _TWINS)
    twin = _TWINS[kind](error.reason, error.remedy)
    vars(twin).update(vars(error))
    twin.__cause__ = error.__cause__
    return twin.with_traceback(error.__traceback__)


@contextmanager
def meltano_errors() -> Iterator[None]:
    """Raise this package's errors as Meltano's."""
    try:
        yield
    except errors.StateBackendError as error:
        raise as_meltano(error) from error.__cause__
