"""What changed between two versions, bookmarks over time, and the page that shows them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meltano_ch_state.cli.page import HEIGHT, page
from meltano_ch_state.history import ABSENT, Change, changes, same, series
from meltano_ch_state.protocol import StateRow

HOUR = 3_600 * 1_000_000
NASTY = "</script><script>alert(1)</script><b onclick='x'>\"&"


def row(completed: Any = None, partial: Any = None, version: int = 1, **more: Any) -> StateRow:
    partial_text, completed_text = (None if part is None else json.dumps(part) for part in (partial, completed))
    return StateRow("a", partial_text, completed_text, version, **more)


def singer(**bookmarks: Any) -> dict[str, Any]:
    return {"singer_state": {"bookmarks": bookmarks}}


def found(before: StateRow | None, after: StateRow | None) -> list[tuple[str, Any, Any]]:
    return [(change.name, change.before, change.after) for change in changes(before, after)]


def test_a_change_is_named_by_its_stream_and_key() -> None:
    before = row(singer(orders={"id": 1, "at": "x"}, customers={"id": 5}))
    after = row(singer(orders={"id": 2, "at": "x"}, customers={"id": 5}))

    (change,) = changes(before, after)

    assert (change.stream, change.name) == ("orders", "orders.id")
    assert change == Change("completed", ("singer_state", "bookmarks", "orders", "id"), 1, 2)


def test_a_dropped_stream_and_a_new_one_are_told_apart() -> None:
    before, after = row(singer(orders={"id": 1})), row(singer(customers={"id": 2}))

    assert found(before, after) == [("orders.id", 1, ABSENT), ("customers.id", ABSENT, 2)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": True}, [("a", 1, True)]),
        ({"a": 1}, {"a": 1.0}, [("a", 1, 1.0)]),
        ({"a": None}, {}, [("a", None, ABSENT)]),
        ({}, {"a": {}}, [("a", ABSENT, {})]),
        ({"a": {"b": 1}}, {"a": {}}, [("a.b", 1, ABSENT)]),
        ({"a": {"b": 1}}, {"a": 5}, [("a", {"b": 1}, 5)]),
        ({"a": [1, 2]}, {"a": [1, 3]}, [("a", [1, 2], [1, 3])]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"singer_state": {}}, {"singer_state": {"bookmarks": {}}}, [("singer_state.bookmarks", ABSENT, {})]),
        ({"singer_state": {"bookmarks": {"orders": 5}}}, {"singer_state": {"bookmarks": {"orders": 6}}},
         [("orders", 5, 6)]),
    ],
)  # fmt: skip
def test_values_differ_as_json_does(old: Any, new: Any, expected: list[tuple[str, Any, Any]]) -> None:
    assert found(row(old), row(new)) == expected


def test_parts_are_told_apart_and_one_that_was_never_set_is_empty() -> None:
    assert found(row(partial={"a": 1}), row({"a": 1}, {})) == [("a", ABSENT, 1), ("partial a", 1, ABSENT)]
    assert found(row(None, None), row({}, {})) == []


def test_clearing_takes_everything_and_is_not_the_same_as_an_empty_state() -> None:
    cleared, empty = StateRow("a", None, None, 2, is_deleted=True), row({})

    assert found(row({"a": 1}), cleared) == [("a", 1, ABSENT)]
    assert same(cleared, None)
    assert same(row({}, None), row(None, {}))
    assert not same(cleared, empty)
    assert not same(row({"a": 1}), row({"a": 2}))


def test_what_is_no_json_is_compared_as_it_is() -> None:
    broken = StateRow("a", None, "not JSON", 1)

    assert found(broken, row({"a": 1})) == [("everything", "not JSON", {"a": 1})]
    assert found(broken, broken) == []
    assert page("a", [broken])


def test_a_state_that_is_nested_deeply_is_compared() -> None:
    deep: Any = {"value": 1}
    for _ in range(300):
        deep = {"a": deep}
    assert len(changes(row({}), row(deep))) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=1), inner, max_size=3),
)
OBJECTS = st.dictionaries(st.text("abc", max_size=1), JSON, max_size=3)


def patched(document: dict[str, Any], found: list[Change]) -> dict[str, Any]:
    """The document with the changes made."""
    document = json.loads(json.dumps(document))
    for change in found:
        place: Any = document
        for key in change.path[:-1]:
            place = place.setdefault(key, {})
        if change.after is ABSENT:
            del place[change.path[-1]]
        else:
            place[change.path[-1]] = change.after
    return document


def without_empty_leftovers(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: without_empty_leftovers(each) for key, each in value.items()}
    return {key: each for key, each in inner.items() if each != {}}


@given(OBJECTS, OBJECTS)
def test_the_changes_lead_from_one_version_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    result = patched(old, changes(row(old), row(new)))

    assert json.dumps(without_empty_leftovers(result), sort_keys=True) == json.dumps(
        without_empty_leftovers(new), sort_keys=True
    )


@given(OBJECTS, OBJECTS)
def test_the_way_back_is_the_way_there_reversed(old: dict[str, Any], new: dict[str, Any]) -> None:
    there, back = changes(row(old), row(new)), changes(row(new), row(old))

    def as_text(path: tuple[str, ...], before: Any, after: Any) -> str:
        return json.dumps([path, *("absent" if value is ABSENT else [value] for value in (before, after))])

    assert sorted(as_text(change.path, change.before, change.after) for change in there) == sorted(
        as_text(change.path, change.after, change.before) for change in back
    )


def test_a_bookmark_that_is_a_time_has_a_lag() -> None:
    lines = series([row(singer(orders={"at": "1970-01-01T00:00:00Z"}), version=2 * HOUR)])

    (line,) = lines
    assert (line.name, line.is_time) == ("orders.at", True)
    assert [point.value for point in line.lag().points] == [7_200.0]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1970-01-02", 86_400),
        ("1970-01-01 00:00:01", 1),
        ("1970-01-01T00:01", 60),
        ("1970-01-01T00:00:00.5", 0.5),
        ("1970-01-01T00:00:00.123456789Z", 0.123456),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1970-01-01T02:00:00+0200", 0),
    ],
)
def test_times_are_read_in_the_forms_that_taps_write(value: str, seconds: float) -> None:
    (line,) = series([row({"at": value})])
    assert line.is_time
    assert line.points[0].value == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["x", "2024-02-30", "12:00", True, None, [1], 10**400, "١٢", "2024-13-01T00:00"])
def test_what_is_neither_number_nor_time_is_not_plotted(value: Any) -> None:
    assert series([row({"at": value})]) == []


def test_not_even_an_infinite_number_is_plotted() -> None:
    assert series([StateRow("a", None, '{"a": Infinity, "b": NaN, "c": -1.7e308}', 1)]) == []


def test_a_series_has_a_gap_where_the_bookmark_is_not_there() -> None:
    versions = [row({"b": 1}), row({"a": "7"}, version=2), row({}, version=3), row({"a": 9}, version=4)]
    (a, b) = series(versions)
    assert [point.value for point in a.points] == [None, 7, None, 9]
    assert [point.value for point in b.points] == [1, None, None, None]


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def parsed(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    return tags


def test_a_page_escapes_whatever_stands_in_a_state() -> None:
    writer: dict[str, Any] = {"holder": NASTY, "operation": NASTY, "run_id": NASTY}
    versions = [
        StateRow(NASTY, None, json.dumps({"x": 0, NASTY: 5}), 1, **writer),
        StateRow(NASTY, None, json.dumps({NASTY: NASTY, "x": 1}), 2, **writer),
    ]

    text = page(NASTY, versions)

    assert NASTY not in text
    found = parsed(text)
    assert not {"script", "b", "img", "iframe"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on")]


def test_a_page_can_be_written_whatever_characters_a_state_has() -> None:
    odd = "\ud800\x00\x1b\u2028é"

    text = page(odd, [row({}), row({odd: odd}, version=2)])

    assert text.encode()
    assert "\\ud800\\x00\\x1b\\u2028é" in text


def test_a_page_loads_nothing_from_elsewhere() -> None:
    text = page("a", [row(singer(orders={"id": n, "at": "2024-01-01"}), version=n * HOUR) for n in range(1, 5)])

    assert not [name for name, _ in parsed(text).attributes if name in {"src", "href", "xlink:href", "action"}]
    assert not re.search(r"https?://|url\(|@import", text)
    assert "default-src 'none'" in text


def test_a_page_has_a_plot_for_each_bookmark_and_one_more_for_the_lag_of_times() -> None:
    text = page("a", [row(singer(orders={"id": n, "at": f"2024-01-0{n}"}), version=n * HOUR) for n in range(1, 5)])

    assert parsed(text).tags.count("svg") == 3
    assert text.count("<tr>") == 1 + 4


def labels(text: str) -> list[tuple[list[str], list[str]]]:
    """The labels of each plot: those of its values, the least first, and those of its times."""
    return [
        (
            re.findall(r'<text x="68" [^>]*>([^<]*)', plot)[::-1],
            re.findall(rf'<text x="[^"]*" y="{HEIGHT - 6}"[^>]*>([^<]*)', plot)[::-1],
        )
        for plot in re.findall(r"<svg.*?</svg>", text)
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2), ["1", "2"]),
        ((1, 3), ["1", "2", "3"]),
        ((10, 40), ["10", "20", "30", "40"]),
        ((1, 9), ["1", "4", "6", "9"]),
        ((0.5, 2), ["0.5", "1", "1.5", "2"]),
        ((5, 5), ["5"]),
        ((100_000_000_000_001, 100_000_000_000_004), ["100 T"]),
    ],
)
def test_an_axis_has_no_label_twice_and_of_whole_numbers_no_fraction(
    values: tuple[float, float], expected: list[str]
) -> None:
    text = page("a", [row({"a": value}, version=HOUR * number) for number, value in enumerate(values)])
    ((shown, times),) = labels(text)
    assert sorted(shown, key=lambda label: float(label.split()[0])) == expected
    assert times == ["01-01 00:00", "01-01 00:20", "01-01 00:40", "01-01 01:00"]


def test_versions_within_a_minute_have_one_label() -> None:
    ((_, times),) = labels(page("a", [row({"a": 1}, version=number * 1_000_000) for number in range(5)]))
    assert times == ["01-01 00:00"]


@pytest.mark.parametrize("versions", [[row({"a": 1})], [row({})], [StateRow("a", None, None, 1, is_deleted=True)]])
def test_a_page_of_a_single_version_is_one_too(versions: list[StateRow]) -> None:
    assert "nan" not in page("a", versions)


@given(st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False) | st.none(), st.integers(0, 10**16))))
def test_a_page_draws_any_numbers_inside_its_plots(points: list[tuple[float | None, int]]) -> None:
    values = [{} if value is None else {"a": value} for value, _ in points]
    times = sorted(version for _, version in points)
    versions = [row(value, version=version) for value, version in zip(values, times, strict=True)]
    if versions:
        text = page("a", versions)
        drawn = [float(y) for y in re.findall(r'c[xy]="([^"]+)"', text)]
        assert all(0 <= place <= 460 for place in drawn)
