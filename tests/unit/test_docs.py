"""What the documentation refers to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_tests_that_a_page_names_are_there(page: Path) -> None:
    assert set(re.findall(r"`(test_\w+)`", page.read_text())) <= TESTS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`((?:docs|tests|examples|benchmarks|meltano_ch_state|alembic)/[\w./-]*)`", text)
    linked = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [name for name in linked if not (page.parent / name).exists()]
    assert missing == []


def test_the_lock_page_names_a_test_for_each_promise() -> None:
    rows = [line for line in (ROOT / "docs/locking.md").read_text().splitlines() if line.startswith("| ")]
    promises = [row for row in rows if "`test" in row]
    assert len(promises) >= 20


def test_the_site_leads_to_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    assert set(re.findall(r": ([\w/-]+\.md)$", nav, re.MULTILINE)) == {
        page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]
    }
