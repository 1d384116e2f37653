"""The figures: every request as a point over the run's time; completion incidence by window.

Never: computes a figure of its own, or leaves a request out without saying how many.
Plan: the timeline has two axes: scheduled send by latency, coloured by outcome, with the kill,
replica-ready and the windows; goodput per second. The curves are drawn where section 5 of the
contract wants them beside percentiles. PNG bytes, drawn without a display.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from percentes_fast.analysis.tree import Points, Summary

COLOURS = {  # Okabe-Ito: told apart by colour-blind readers too
    "completed": "#0072B2",
    "errored": "#D55E00",
    "censored": "#E69F00",
    "client_fault": "#CC79A7",
}
STAGE_COLOURS = (  # Paul Tol's muted set, told apart by colour-blind readers too
    *("#332288", "#88CCEE", "#44AA99", "#117733", "#999933"),
    *("#DDCC77", "#CC6677", "#882255", "#AA4499", "#777777"),
)
MARKS = {"completed": ".", "errored": "x", "censored": "^", "client_fault": "s"}
SHADES = {"warmup": "#eeeeee", "guard": "#f7f1dd", "outage": "#fbe3dc", "cooldown": "#eeeeee"}


def timeline_png(summary: Summary, points: Points) -> bytes:
    """The figure as PNG bytes."""
    figure = Figure(figsize=(11, 6.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    _points(top, points)
    _goodput(bottom, summary)
    for axes in (top, bottom):
        _marks(axes, summary)
    top.set_title("Every request: scheduled send by time to its end", loc="left", fontsize=11)
    handles, labels = top.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return _png(figure)


def incidence_png(summary: Summary) -> bytes | None:
    """Incidence curves of the windows that need them; None where none does."""
    needed = {n: c for n, c in summary.incidence.items() if c.needed_beside_percentiles}
    if not needed:
        return None
    figure = Figure(figsize=(11, 3.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    for name, curve in needed.items():
        cif, lower, upper = (
            np.array(values, float) for values in (curve.cif, curve.lower, curve.upper)
        )
        (line,) = axes.step(curve.time_s, cif, where="post", label=f"{name} (n = {curve.n})")
        axes.fill_between(
            curve.time_s, lower, upper, step="post", alpha=0.15, color=line.get_color()
        )
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("seconds since the scheduled send")
    axes.set_ylabel("completed, of all scheduled")
    axes.grid(True, alpha=0.25)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9, frameon=False)
    return _png(figure)


@dataclass(frozen=True, slots=True)
class Bar:
    """One restart: its name and its stages (name -> seconds) from first to last."""

    name: str
    stages: Mapping[str, float]


def stages_png(bars: Sequence[Bar]) -> bytes | None:
    """Stages as stacked horizontal bars, one a restart; None where none has stages.

    A stage that spans others of another bar gets the colour of its last boundary.
    """
    shown = [bar for bar in bars if bar.stages]
    if not shown:
        return None
    figure = Figure(figsize=(11, 1.5 + 0.5 * len(shown)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    ends = list(dict.fromkeys(name.partition("..")[2] for bar in shown for name in bar.stages))
    labelled: set[str] = set()
    for row, bar in enumerate(shown):
        left = 0.0
        for name, length in bar.stages.items():
            end = name.partition("..")[2]
            label = None if end in labelled else f"to {end.replace('_', ' ')}"
            labelled.add(end)
            colour = STAGE_COLOURS[ends.index(end) % len(STAGE_COLOURS)]
            axes.barh(row, length, left=left, color=colour, label=label, edgecolor="white")
            left += length
        axes.text(left, row, f" {left:.1f} s", va="center", fontsize=9)
    axes.set_yticks(range(len(shown)), [bar.name for bar in shown])
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_xlabel("seconds after the kill (a cold start: after its first line)")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _points(axes: Any, points: Points) -> None:
    for outcome, colour in COLOURS.items():
        rows = (points.outcome == outcome) & ~np.isnan(points.latency_s)
        if rows.any():
            axes.scatter(
                points.intended_s[rows],
                np.maximum(points.latency_s[rows], 1e-5),
                s=14 if outcome == "completed" else 24,
                c=colour,
                marker=MARKS[outcome],
                linewidths=0.9,
                label=f"{outcome} ({int(rows.sum())})",
            )
    undrawn = int((np.isnan(points.latency_s) & (points.outcome != "cut")).sum())
    if undrawn:
        axes.plot([], [], " ", label=f"never sent, not drawn ({undrawn})")
    axes.set_yscale("log")
    axes.set_ylabel("seconds from scheduled send to end")
    axes.grid(True, alpha=0.25)


def _goodput(axes: Any, summary: Summary) -> None:
    series = summary.goodput_by_second
    scheduled = np.array(series.scheduled, float)
    share = np.divide(
        np.array(series.good, float),
        scheduled,
        out=np.full(len(scheduled), np.nan),
        where=scheduled > 0,
    )
    axes.step(np.arange(len(share)), share, where="post", color="#009E73", linewidth=1)
    axes.set_ylim(-0.05, 1.08)
    axes.set_ylabel("goodput per second")
    axes.set_xlabel("seconds since the first second of load")
    axes.grid(True, alpha=0.25)


def _marks(axes: Any, summary: Summary) -> None:
    for window in summary.windows:
        if window.name in SHADES:
            label = f"{window.name} window" if axes.get_subplotspec().is_first_row() else None
            axes.axvspan(
                window.start_s, window.end_s, color=SHADES[window.name], zorder=0, label=label
            )
    fault, gone = summary.fault, summary.outage
    if fault is not None and fault.fire_s is not None:
        axes.axvline(fault.fire_s, color="black", linewidth=1.2, label="kill")
        if gone is not None and gone.outage_s is not None:
            ready = fault.fire_s + gone.outage_s
            axes.axvline(
                ready, color="#009E73", linewidth=1.2, linestyle="--", label="replica ready"
            )
