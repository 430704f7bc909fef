"""A page about one state's history: plots of its bookmarks and their lag, and its versions. It loads nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape

from meltano_ch_state.cli.output import counted_noun, printable, short
from meltano_ch_state.history import ABSENT, Change, Point, Series, changes, series
from meltano_ch_state.protocol import StateRow

WIDTH, HEIGHT = 460, 170
LEFT, RIGHT, TOP, BOTTOM = 74, 14, 12, 26
"""A plot in pixels, and what its axes take of it."""
TICKS = 4
MOST_DOTS = 120
"""A line of more points gets no dots: they would hide it."""
LONG_SECONDS = 4 * 86_400
"""An axis over more than this shows days, else hours."""
SHOWN_CHARACTERS = 200
_SECONDS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))
_FACTORS = ((1e12, "T"), (1e9, "G"), (1e6, "M"))

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #667085; --line: #d9dde5; --card: #fff; --page: #f5f6f8;
  --bookmark: #1766d6; --lag: #b54708; --gone: #c4320a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #344054; --card: #1b212c;
  --page: #12161d; --bookmark: #6ea8fe; --lag: #f5a15b; --gone: #ff8a65; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1040px; padding: 28px 20px; background: var(--page); color: var(--ink);
  font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 21px; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 15px; margin: 0 0 8px; overflow-wrap: anywhere; }
p { color: var(--soft); margin: 0 0 18px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px;
  margin: 0 0 14px; overflow-x: auto; }
.plots { display: flex; flex-wrap: wrap; gap: 8px 24px; }
figure { margin: 0; flex: 1 1 400px; min-width: 300px; max-width: 470px; }
figcaption { color: var(--soft); font-size: 12px; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--line); stroke-width: 1; }
.bookmark { stroke: var(--bookmark); fill: none; stroke-width: 2; }
.lag { stroke: var(--lag); fill: none; stroke-width: 2; }
circle.bookmark { fill: var(--bookmark); stroke: none; }
circle.lag { fill: var(--lag); stroke: none; }
.gone { stroke: var(--gone); stroke-width: 1.5; stroke-dasharray: 4 3; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; color: var(--soft); font-weight: 600; font-size: 12px; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { overflow-wrap: anywhere; }
td:nth-child(-n+3) { white-space: nowrap; font-variant-numeric: tabular-nums; }
ins { text-decoration: none; color: var(--bookmark); } del { text-decoration: none; color: var(--gone); }
small { color: var(--soft); }
"""


def page(state_id: str, versions: Sequence[StateRow]) -> str:
    """The page as HTML; whatever stands in a state is escaped.

    Args:
        state_id: Which state.
        versions: The oldest first; at least one.
    """
    lines = series(versions)
    first, last = (_moment(row.updated_at / 1e6) for row in (versions[0], versions[-1]))
    plots = "".join(map(_plots, lines)) or "<section>No bookmark is a number or a time: nothing to plot.</section>"
    title = _text(f"History of {state_id}")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{_text(state_id)}</h1>
<p>{counted_noun(len(versions), "version")}, from {first} to {last} UTC.
A dashed line: the bookmark was dropped there.</p>
{plots}
<section>
<h2>Versions</h2>
<table>
<thead><tr><th>Time (UTC)</th><th>Version</th><th>Operation</th><th>Writer</th><th>What changed</th></tr></thead>
<tbody>
{"".join(_rows(versions))}</tbody>
</table>
</section>
</body>
</html>
"""


def _rows(versions: Sequence[StateRow]) -> Iterator[str]:
    for number in range(len(versions) - 1, -1, -1):
        row = versions[number]
        run = f"<br><small>run {_text(row.run_id)}</small>" if row.run_id else ""
        said = "the oldest here" if number == 0 else _said(changes(versions[number - 1], row))
        said = f"cleared<br>{said}" if row.is_deleted else said
        cells = (_moment(row.updated_at / 1e6), str(row.updated_at), _text(row.operation), _text(row.holder) + run)
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in (*cells, said)) + "</tr>\n"


def _said(found: Sequence[Change]) -> str:
    return "<br>".join(f"{_text(change.name)}: {_values(change)}" for change in found) or "nothing"


def _values(change: Change) -> str:
    old = "" if change.before is ABSENT else f"<del>{escape(short(change.before, SHOWN_CHARACTERS))}</del>"
    new = "" if change.after is ABSENT else f"<ins>{escape(short(change.after, SHOWN_CHARACTERS))}</ins>"
    return f"{old} &rarr; {new}" if old and new else f"{new} added" if new else f"{old} dropped"


def _text(text: str) -> str:
    """Any text as HTML; what is no character, or a control one, is spelt out."""
    return escape(printable(text))


def _plots(line: Series) -> str:
    figures = _figure("Bookmark", line, "bookmark", *_extent(line), _moment if line.is_time else _number)
    if line.is_time:
        lag = line.lag()
        low, high = _extent(lag)
        figures += _figure("Lag: how far it was behind when it was written", lag, "lag", min(0, low), high, _duration)
    return f'<section><h2>{_text(line.name)}</h2><div class="plots">{figures}</div></section>\n'


@dataclass(frozen=True)
class _Scale:
    """From values to pixels, along one axis."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Values at equal distances, or the only one there is; whole numbers where both ends are."""
        step = (self.high - self.low) / (TICKS - 1)
        found = [self.low + step * number for number in range(TICKS)] if step > 0 else [self.low]
        whole = self.low == int(self.low) and self.high == int(self.high)
        return [float(number) for number in dict.fromkeys(map(round, found))] if whole else found


def _extent(line: Series) -> tuple[float, float]:
    """The least and the greatest value."""
    values = [point.value for point in line.points if point.value is not None]
    return min(values), max(values)


def _figure(  # noqa: PLR0917 - what stands in a plot
    caption: str, line: Series, kind: str, low: float, high: float, label: Callable[[float], str]
) -> str:
    times = [point.version / 1e6 for point in line.points]
    across = _Scale(min(times), max(times), LEFT, WIDTH - RIGHT)
    up = _Scale(low, high, HEIGHT - BOTTOM, TOP)
    return (
        f'<figure><figcaption>{_text(caption)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{_text(f"{caption} of {line.name}")}">'
        f"{_axes(across, up, label)}{_path(line.points, across, up, kind)}{_dots(line.points, across, up, kind, label)}"
        "</svg></figure>"
    )


def _axes(across: _Scale, up: _Scale, label: Callable[[float], str]) -> str:
    if label is _moment:
        label = _short_moment(up)
    grid = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(tick)}" y2="{up(tick)}"/>'
        f'<text x="{LEFT - 6}" y="{up(tick) + 4}" text-anchor="end">{_text(said)}</text>'
        for said, tick in _labelled(up, label)
    ]
    grid += [
        f'<text x="{across(tick)}" y="{HEIGHT - 6}" text-anchor="{_anchor(tick, across)}">{said}</text>'
        for said, tick in _labelled(across, _short_moment(across))
    ]
    return "".join(grid)


def _labelled(axis: _Scale, label: Callable[[float], str]) -> Iterable[tuple[str, float]]:
    """The ticks that have a label of their own: of those that read the same, the first."""
    return {label(tick): tick for tick in reversed(axis.ticks())}.items()


def _anchor(tick: float, axis: _Scale) -> str:
    """Where a label stands at its tick, so that it stays within the plot."""
    if axis.low == axis.high:
        return "middle"
    return "start" if tick <= axis.low else "end" if tick >= axis.high else "middle"


def _path(points: Sequence[Point], across: _Scale, up: _Scale, kind: str) -> str:
    """A line of steps: a bookmark stays what it was until it is written again. It breaks where there is none."""
    path, gone, drawing = "", "", False
    for point in points:
        x = across(point.version / 1e6)
        if point.value is not None:
            path += f"H{x}V{up(point.value)}" if drawing else f"M{x} {up(point.value)}"
        elif drawing:
            path += f"H{x}"
            gone += f'<line class="gone" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        drawing = point.value is not None
    return f'<path class="{kind}" d="{path}"/>{gone}'


def _dots(points: Sequence[Point], across: _Scale, up: _Scale, kind: str, label: Callable[[float], str]) -> str:
    if len(points) > MOST_DOTS:
        return ""
    return "".join(
        f'<circle class="{kind}" cx="{across(point.version / 1e6)}" cy="{up(point.value)}" r="3">'
        f"<title>{_text(label(point.value))} at {_moment(point.version / 1e6)}</title></circle>"
        for point in points
        if point.value is not None
    )


def _short_moment(axis: _Scale) -> Callable[[float], str]:
    """How to write a time along an axis: as a day, or within some days as an hour."""
    part = slice(0, 10) if axis.high - axis.low > LONG_SECONDS else slice(5, 16)
    return lambda seconds: _moment(seconds)[part]


def _moment(seconds: float) -> str:
    """A time, to the second; one beyond the calendar as a number."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return _number(seconds)


def _number(value: float) -> str:
    for factor, unit in _FACTORS:
        if factor <= abs(value) < _FACTORS[0][0] * 1e3:
            return f"{value / factor:.4g} {unit}"
    return f"{value:,.6g}" if abs(value) < _FACTORS[-1][0] and value == int(value) else f"{value:.4g}"


def _duration(seconds: float) -> str:
    factor, unit = next((each for each in _SECONDS if abs(seconds) >= each[0]), _SECONDS[-1])
    return f"{seconds / factor:.3g} {unit}"
