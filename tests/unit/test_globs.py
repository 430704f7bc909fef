"""Patterns over state IDs are shell globs, and nothing else in them has a meaning."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meltano_ch_state.globs import literal_prefix, matcher

TEXTS = st.text(st.sampled_from("abAB-!]^[*?.\\%_\n\x00é☃"), max_size=8)


@pytest.mark.parametrize("pattern", [None, "", "*", "**"])
@pytest.mark.parametrize("state_id", ["", "a", "dev:tap-to-target", "a\nb", "*", "\x00"])
def test_everything_matches_when_nothing_is_asked_for(pattern: str | None, state_id: str) -> None:
    assert matcher(pattern)(state_id)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("dev:*", ["dev:", "dev:tap-to-target"], ["Dev:tap", "adev:tap", "dev"]),
        ("*-target", ["-target", "a-target"], ["a-target ", "a-targets"]),
        ("?", ["a", "%", "\n", "☃"], ["", "ab"]),
        ("a?c", ["abc", "a.c", "a\nc"], ["ac", "abbc"]),
        ("[abc]x", ["ax", "cx"], ["dx", "Ax", "x", "[abc]x"]),
        ("[a-c]x", ["ax", "bx"], ["dx", "-x"]),
        ("[!a-c]x", ["dx", "-x", "!x"], ["ax", "x"]),
        ("[^a]x", ["^x", "ax"], ["bx"]),
        ("[]]", ["]"], ["[", "[]]"]),
        ("[!]]", ["["], ["]"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[c-a]", [], ["a", "b", "c", "-"]),
        ("[*]", ["*"], ["a", "[*]"]),
        ("[?]", ["?"], ["a"]),
        ("[[]x]", ["[x]"], ["[[]x]", "x"]),
        ("[", ["["], ["a", ""]),
        ("a[b", ["a[b"], ["ab"]),
        ("a%", ["a%"], ["ab", "a"]),
        ("a_c", ["a_c"], ["abc"]),
        ("a.c", ["a.c"], ["abc"]),
        ("a+", ["a+"], ["aa"]),
        ("(a|b)", ["(a|b)"], ["a"]),
        ("{a,b}", ["{a,b}"], ["a"]),
        ("a\\*", ["a\\", "a\\b"], ["a*"]),
        ("a$", ["a$"], ["a"]),
        ("^a", ["^a"], ["a"]),
        ("a", ["a"], ["a\n", "A", ""]),
        ("é", ["é"], ["É", "e\u0301"]),
    ],
)
def test_a_pattern_matches_these_and_not_those(pattern: str, matching: list[str], others: list[str]) -> None:
    matches = matcher(pattern)
    assert [state_id for state_id in matching + others if matches(state_id)] == matching


@given(TEXTS, TEXTS)
@example("[--/]", ".")
def test_a_pattern_means_what_it_means_to_python(pattern: str, state_id: str) -> None:
    assert matcher(pattern)(state_id) == (pattern == "" or fnmatchcase(state_id, pattern))


@given(TEXTS, TEXTS)
def test_every_match_begins_with_the_literal_prefix(pattern: str, state_id: str) -> None:
    assert not matcher(pattern)(state_id) or state_id.startswith(literal_prefix(pattern))


@given(st.text(st.characters(exclude_characters="*?["), min_size=1))
def test_a_pattern_without_wildcards_matches_itself_only(pattern: str) -> None:
    assert literal_prefix(pattern) == pattern
    assert matcher(pattern)(pattern)
    assert not matcher(pattern)(pattern + "x")
    assert not matcher(pattern)("x" + pattern)


@pytest.mark.parametrize(
    ("pattern", "prefix"), [(None, ""), ("*", ""), ("dev:*", "dev:"), ("a[bc]", "a"), ("a?*", "a"), ("a%_", "a%_")]
)
def test_the_literal_prefix_ends_where_a_wildcard_may_begin(pattern: str | None, prefix: str) -> None:
    assert literal_prefix(pattern) == prefix


def test_a_nasty_pattern_takes_no_time() -> None:
    start = time.perf_counter()
    assert not matcher("*a" * 20 + "b")("a" * 4_000)
    assert time.perf_counter() - start < 2
