"""The results: rows and curves, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from benchmarks.timing import Spread


@dataclass(frozen=True)
class Target:
    """What a row was to reach.

    Attributes:
        what: What the figure is.
        figure: What was measured.
        limit: Its limit.
        unit: Of both; empty for ratios.
        at_least: Whether the figure is to be above its limit, not below.
    """

    what: str
    figure: float
    limit: float
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is on the right side of its limit."""
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        unit = self.unit and f" {self.unit}"
        verdict = "met" if self.met else "**missed**"
        return f"{self.what} {number(self.figure)}{unit} | {sign} {number(self.limit)}{unit} | {verdict}"


@dataclass(frozen=True)
class Row:
    """One thing that was measured, for each store by its name."""

    name: str
    unit: str
    figures: dict[str, Spread]
    target: Target | None = None
    note: str = ""
    """What else the row says, where it has no target."""


@dataclass(frozen=True)
class Curve:
    """A line of the plot: how a cost of one store grows."""

    panel: str
    store: str
    x: list[float]
    y: list[Spread]


@dataclass
class Results:
    """What a run of the benchmarks found.

    Attributes:
        machine: What it ran on, as names and values.
        quick: Whether the sizes were small ones: targets mean nothing then.
        notes: What a reader has to know, a line each.
    """

    machine: dict[str, str]
    quick: bool
    rows: list[Row] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self, name: str, unit: str, figures: dict[str, Spread], target: Target | None = None, note: str = ""
    ) -> None:
        """Add a row."""
        self.rows.append(Row(name, unit, figures, target, note))

    def json(self) -> str:
        """All of it, for programs."""
        found = asdict(self)
        for row, told in zip(self.rows, found["rows"], strict=True):
            if row.target:
                told["target"]["met"] = row.target.met
        return json.dumps(found, indent=1)

    def markdown(self) -> str:
        """The table, for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield "; ".join(f"{name} {value}" for name, value in self.machine.items())
        yield ""
        yield "Medians; in brackets the 10th and 90th percentile, of less than ten runs the least and the greatest."
        if self.quick:
            yield "Quick: the sizes are small ones, for which the targets are not meant."
        yield ""
        stores = list(dict.fromkeys(store for row in self.rows for store in row.figures))
        yield f"| | unit | {' | '.join(stores)} | figure | target | |"
        yield f"|---|---|{'---:|' * len(stores)}---|---|---|"
        for row in self.rows:
            cells = [cell(row.figures.get(store)) for store in stores]
            yield f"| {row.name} | {row.unit} | {' | '.join(cells)} | {row.target or f'{row.note} | | '} |"
        yield ""
        yield from (f"- {note}" for note in self.notes)


def cell(spread: Spread | None) -> str:
    """A spread in few characters."""
    if spread is None:
        return "-"
    if spread.runs == 1:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.low)}-{number(spread.high)})"


def number(value: float) -> str:
    """A number with three digits or all before its point."""
    if value == int(value):
        return f"{value:,.0f}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 4
    return f"{value:,.{digits}f}"
