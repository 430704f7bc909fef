"""The plot: what an update costs, against the number of IDs, the state's size, and the number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import lock, scale, size
from benchmarks.report import Results
from benchmarks.stores import BARE, EXISTING, FILES, PRODUCT, SYSTEM

PANELS = {
    scale.PANEL: "state IDs in the table",
    size.PANEL: "size of the state, bytes",
    lock.PANEL: "processes that want one lock",
}
COLOURS = {PRODUCT: "#d62728", BARE: "#7f7f7f", SYSTEM: "#1f77b4", FILES: "#2ca02c", EXISTING: "#9467bd"}
INCHES, DOTS_PER_INCH = (11, 3.6), 90


def draw(results: Results, file: Path) -> None:
    """Draw the curves of some results into a PNG file, each kind into a panel of its own."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels = [panel for panel in PANELS if any(curve.panel == panel for curve in results.curves)]
    figure, [axes] = pyplot.subplots(1, len(panels), figsize=INCHES, layout="constrained", squeeze=False)
    for axis, panel in zip(axes, panels, strict=True):
        _panel(axis, results, panel)
        axis.set_xlabel(PANELS[panel])
    axes[0].set_ylabel("one update, ms")
    names, lines = {}, {}
    for axis in axes:
        for line, name in zip(*axis.get_legend_handles_labels(), strict=True):
            names[name], lines[name] = name, line
    figure.legend(lines.values(), names.values(), loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(file, dpi=DOTS_PER_INCH)
    pyplot.close(figure)


def _panel(axis: Any, results: Results, panel: str) -> None:
    axis.set_xscale("log", base=2 if panel == lock.PANEL else 10)
    for curve in (curve for curve in results.curves if curve.panel == panel):
        medians = [point.median for point in curve.y]
        below = [point.median - point.low for point in curve.y]
        above = [point.high - point.median for point in curve.y]
        colour = COLOURS[curve.store]
        axis.errorbar(
            curve.x, medians, [below, above], label=curve.store, color=colour, marker="o", markersize=4, capsize=2
        )
    if panel == size.PANEL:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(_short)
    else:
        axis.set_ylim(bottom=0)
    axis.xaxis.set_major_formatter(_short)
    axis.grid(visible=True, alpha=0.3)


def _short(value: float, _position: int) -> str:
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g}"
