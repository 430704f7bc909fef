"""The errors: one line each, the same for Meltano, and no Meltano for who does without."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
import traceback

import pytest
from meltano.core.error import MeltanoError
from meltano.core.state_store.base import MissingStateBackendSettingsError, StateIDLockedError

import meltano_ch_state
from meltano_ch_state import errors
from meltano_ch_state.errors import MissingSettingError, NestedLockError, StateBackendError, StateLockedError
from meltano_ch_state.meltano_errors import MeltanoStateBackendError, as_meltano, meltano_errors

TREE = sorted(
    (kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, StateBackendError)),
    key=lambda kind: kind.__name__,
)
FOR_MELTANO = {"manager", "addon", "meltano_errors"}
"""The modules that import Meltano; whoever uses the models, the repositories or the lock alone needs none of them."""

every_error = pytest.mark.parametrize("kind", TREE)


def raised(error: Exception, cause: Exception | None = None) -> StateBackendError:
    """An error as it comes out of the manager's methods."""
    with pytest.raises(StateBackendError) as caught, meltano_errors():
        raise error from cause
    return caught.value


@every_error
def test_an_error_is_one_line_with_what_is_wrong_and_what_to_do(kind: type[StateBackendError]) -> None:
    error = kind("The cat is out", "Call it")
    assert str(error) == "The cat is out. Call it."
    assert error.args == ("The cat is out. Call it.",)
    assert (error.reason, error.remedy) == ("The cat is out", "Call it")


@every_error
def test_an_error_without_a_remedy_says_only_what_is_wrong(kind: type[StateBackendError]) -> None:
    assert str(kind("The cat is out")) == "The cat is out."


@every_error
def test_the_lines_of_an_answer_are_folded_into_one(kind: type[StateBackendError]) -> None:
    error = kind("The server said:\n  no,\r\n\tnever", "Call\nit")
    assert str(error) == "The server said: no, never. Call it."
    assert error.args == (str(error),)


@every_error
def test_an_error_tells_in_a_docstring_what_it_means(kind: type[StateBackendError]) -> None:
    assert inspect.getdoc(kind)
    assert kind.__name__ in str(errors.__doc__)


def test_one_except_catches_everything() -> None:
    assert all(issubclass(kind, StateBackendError) for kind in TREE)
    assert len(TREE) == 21


def test_a_wrong_setting_is_a_value_error_too() -> None:
    assert issubclass(MissingSettingError, ValueError)


@every_error
def test_meltano_gets_the_same_error_as_one_of_its_own(kind: type[StateBackendError]) -> None:
    error = raised(kind("The cat\nis out", "Call it"))
    assert isinstance(error, kind)
    assert isinstance(error, MeltanoError)
    assert isinstance(error, MeltanoStateBackendError)
    assert str(error) == "The cat is out. Call it."
    assert error.args == (str(error),)
    assert error.instruction == "Call it"


@every_error
def test_an_error_for_meltano_is_named_after_its_twin(kind: type[StateBackendError]) -> None:
    error = as_meltano(kind("The cat is out"))
    assert type(error).__name__ == f"Meltano{kind.__name__}"
    assert inspect.getdoc(type(error)) == inspect.getdoc(kind)


def test_meltano_knows_a_missing_setting_as_its_own_error() -> None:
    assert isinstance(raised(MissingSettingError("No host")), MissingStateBackendSettingsError)


def test_meltano_knows_a_locked_state_as_its_own_error() -> None:
    assert isinstance(raised(StateLockedError("Locked")), StateIDLockedError)


@every_error
def test_no_other_error_passes_for_one_that_meltano_handles_apart(kind: type[StateBackendError]) -> None:
    error = as_meltano(kind("The cat is out"))
    assert isinstance(error, MissingStateBackendSettingsError) == issubclass(kind, MissingSettingError)
    assert isinstance(error, StateIDLockedError) == issubclass(kind, StateLockedError)


def test_attributes_survive_the_way_to_meltano() -> None:
    error = StateLockedError("Locked", "Wait")
    error.state_ids, error.holder, error.operation = ("a", "b"), "user@host:1", "set"
    error.lock_id, error.age_seconds, error.lease_seconds_left = "l", 1.5, 2.5
    twin = raised(error)
    assert isinstance(twin, StateLockedError)
    assert (twin.state_ids, twin.holder, twin.operation) == (("a", "b"), "user@host:1", "set")
    assert (twin.lock_id, twin.age_seconds, twin.lease_seconds_left) == ("l", 1.5, 2.5)


def test_the_cause_and_the_place_survive_the_way_to_meltano() -> None:
    cause = OSError("refused")
    error = raised(errors.ServerUnreachableError("No answer"), cause)
    assert error.__cause__ is cause
    assert "raise error from cause" in "".join(traceback.format_exception(error))


def test_an_error_is_shown_once_in_a_traceback() -> None:
    shown = "".join(traceback.format_exception(raised(errors.ServerError("No answer"))))
    assert shown.count("ServerError: No answer.") == 1


def test_an_error_for_meltano_is_not_wrapped_again() -> None:
    error = as_meltano(NestedLockError("Held"))
    assert as_meltano(error) is error
    assert raised(error) is error


def test_errors_of_others_pass_as_they_are() -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught, meltano_errors():
        raise error
    assert caught.value is error


def test_who_uses_the_library_alone_never_loads_meltano() -> None:
    modules = [name for _, name, _ in pkgutil.walk_packages(meltano_ch_state.__path__, "meltano_ch_state.")]
    library = [name for name in modules if name.split(".")[1] not in FOR_MELTANO]
    assert {"meltano_ch_state.store", "meltano_ch_state.repositories.locks"} <= set(library)
    script = f"import sys; [__import__(name) for name in {library}]; print('meltano' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("False\n", "")
