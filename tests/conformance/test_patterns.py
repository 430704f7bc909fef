"""Patterns are shell globs: `*`, `?`, `[seq]`, `[!seq]`, case-sensitive; everything else is literal."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from meltano.core.state_store.base import MeltanoState

from tests.conformance.conftest import Manager

STATE_IDS = sorted(
    [
        "",
        "*",
        "?",
        "[",
        "[ab]",
        "a",
        "A",
        "ab",
        "a%b",
        "a*b",
        "a_b",
        "a.b",
        "a\\b",
        "a\nb",
        "a\x00b",
        "a]b",
        "a-b",
        "a!b",
        "a^b",
        "aéb",
        "axb",
        "b",
        "dev:tap-to-target",
        "dev:tap-to-target:1",
        "Dev:tap-to-target",
        "prod:tap-to-target",
        "%",
        "_",
        "'",
        "é",
        "É",
    ]
)
PATTERNS = st.text(st.sampled_from("*?[]!-^abxA%_.\\'\n\x00éd:"), max_size=7)


def matches(pattern: str, state_id: str) -> bool:
    """The oracle: the meaning of a glob, character by character."""
    if not pattern:
        return not state_id
    if pattern[0] == "*":
        return any(matches(pattern[1:], state_id[start:]) for start in range(len(state_id) + 1))
    end = pattern.find("]", 3 if pattern[1:2] == "!" else 2) if pattern[0] == "[" else -1
    if end != -1:
        return bool(state_id) and in_set(pattern[1:end], state_id[0]) and matches(pattern[end + 1 :], state_id[1:])
    return bool(state_id) and pattern[0] in {"?", state_id[0]} and matches(pattern[1:], state_id[1:])


def in_set(members: str, character: str) -> bool:
    """Whether a character is in the set that stands between brackets."""
    negated = members[0] == "!"
    found, index = False, int(negated)
    while index < len(members):
        if members[index + 1 : index + 2] == "-" and index + 2 < len(members):
            found |= members[index] <= character <= members[index + 2]
            index += 3
        else:
            found |= members[index] == character
            index += 1
    return found != negated


@pytest.fixture
def filled(manager: Manager) -> Manager:
    manager.set_all(MeltanoState(state_id, {}, {"of": state_id}) for state_id in STATE_IDS)
    return manager


@pytest.mark.parametrize("pattern", [None, "*"])
def test_no_pattern_and_a_star_mean_all(filled: Manager, pattern: str | None) -> None:
    assert filled.get_state_ids(pattern) == STATE_IDS
    assert [state.state_id for state in filled.get_all(pattern)] == STATE_IDS


def test_a_pattern_is_a_shell_glob(filled: Manager) -> None:
    assert {pattern: filled.get_state_ids(pattern) for pattern in ("dev:*", "?", "[ab]", "[!a-z]", "a[%_]b")} == {
        "dev:*": ["dev:tap-to-target", "dev:tap-to-target:1"],
        "?": ["%", "'", "*", "?", "A", "[", "_", "a", "b", "É", "é"],
        "[ab]": ["a", "b"],
        "[!a-z]": ["%", "'", "*", "?", "A", "[", "_", "É", "é"],
        "a[%_]b": ["a%b", "a_b"],
    }


def test_what_means_something_to_sql_or_to_a_regular_expression_is_literal(filled: Manager) -> None:
    literal = ["%", "_", "a%b", "a_b", "a.b", "a\\b", "'", "a^b"]
    assert [filled.get_state_ids(pattern) for pattern in literal] == [[pattern] for pattern in literal]


def test_a_bracket_makes_a_wildcard_literal(filled: Manager) -> None:
    assert filled.get_state_ids("[*]") == ["*"]
    assert filled.get_state_ids("[?]") == ["?"]
    assert filled.get_state_ids("[[]") == ["["]
    assert filled.get_state_ids("[[]ab]") == ["[ab]"]


def test_a_pattern_that_nothing_matches_finds_nothing(filled: Manager) -> None:
    assert filled.get_state_ids("nothing*") == []
    assert list(filled.get_all("nothing*")) == []


@given(PATTERNS.filter(bool))
@example("[!!a]*")
@example("[]a]")
@example("[a-")
@example("a*b")
# The examples only read, so they may share one database.
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_pattern_means_the_same_everywhere(filled: Manager, pattern: str) -> None:
    expected = [state_id for state_id in STATE_IDS if matches(pattern, state_id)]
    assert filled.get_state_ids(pattern) == expected
    assert list(filled.get_all(pattern)) == [MeltanoState(name, {}, {"of": name}) for name in expected]
