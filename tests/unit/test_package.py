"""The package itself: it loads nothing before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import meltano_ch_state


def test_importing_the_package_loads_none_of_its_modules() -> None:
    script = (
        "import sys, meltano_ch_state\n"
        "loaded = [name for name in sys.modules if name.startswith('meltano_ch_state.')]\n"
        "heavy = {'meltano', 'sqlalchemy', 'clickhouse_connect', 'alembic'} & set(sys.modules)\n"
        "sys.exit(str((loaded, heavy)) if loaded or heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("name", meltano_ch_state.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(meltano_ch_state, name) is not None
    assert name in dir(meltano_ch_state)


def test_a_star_import_gives_the_public_names() -> None:
    namespace: dict[str, object] = {}
    exec("from meltano_ch_state import *", namespace)
    assert set(meltano_ch_state.__all__) <= set(namespace)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'meltano_ch_state' has no attribute 'nope'"):
        meltano_ch_state.nope  # noqa: B018 - the access is the test


def test_public_names_are_sorted() -> None:
    assert sorted(meltano_ch_state.__all__) == meltano_ch_state.__all__
