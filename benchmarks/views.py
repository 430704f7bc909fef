"""Views of this environment, in which Meltano finds the add-ons that the view shows, whatever is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from benchmarks.stores import OUR_DISTRIBUTION, existing
from tests.acceptance.project import Done, Project

ROOT = Path(__file__).parents[1]
PACKAGE = "meltano_ch_state"


def make_view(folder: Path, *, ours: bool = False, theirs: bool = False) -> Path:
    """Fill a new folder with links to all installed packages; of the add-ons for ClickHouse only to those wanted.

    Args:
        folder: Where the view is to be.
        ours: Whether it shows the package of this checkout.
        theirs: Whether it shows the other package with a backend for ClickHouse.

    Returns:
        The folder.
    """
    folder.mkdir()
    other = existing()
    their_metadata = _metadata(other.dist.name) if other and other.dist else None
    hidden = {PACKAGE, _metadata(OUR_DISTRIBUTION), their_metadata}
    for packages in (Path(path) for path in sys.path if path.endswith("-packages")):
        _link(folder, (path for path in packages.iterdir() if path.name not in hidden and path not in hidden))
    if ours:
        package = folder / PACKAGE
        package.mkdir()
        _link(folder, [_metadata(OUR_DISTRIBUTION)])
        _link(package, [*(ROOT / PACKAGE).iterdir(), ROOT / "alembic", ROOT / "alembic.ini"])
    if theirs and other and their_metadata:
        _link(folder, [their_metadata, *_code(other.module)])
    return folder


def command(view: Path, *arguments: str) -> list[str]:
    """A `meltano` command that sees a view, and no other site packages."""
    code = f"import sys; sys.path.append({str(view)!r}); from meltano.cli import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


class ViewedProject(Project):
    """A Meltano project whose commands see a view."""

    def __init__(self, root: Path, settings: dict[str, str], view: Path) -> None:
        """Make it."""
        super().__init__(root, settings)
        self.view = view

    def meltano(self, *arguments: str, stdin: str = "", **settings: str) -> Done:
        """Run `meltano`, whether it succeeds or not."""
        return self.run(*command(self.view, *arguments), stdin=stdin, **settings)


def _metadata(name: str) -> Path:
    """The folder with an installed package's entry points."""
    packages = Path(str(distribution(name).locate_file("")))
    return next(packages.glob(f"{name.replace('-', '_')}-*.dist-info"))


def _code(module: str) -> Iterable[Path]:
    """The package that a module is in: a view reads no path files, such as those of editable installations."""
    spec = find_spec(module.partition(".")[0])
    return map(Path, (spec and spec.submodule_search_locations) or ())


def _link(folder: Path, paths: Iterable[Path]) -> None:
    for path in paths:
        link = folder / path.name
        if not link.exists():
            link.symlink_to(path)
