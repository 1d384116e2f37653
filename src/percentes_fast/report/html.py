"""The Summary as one self-contained page with its figures.

Never: computes a figure, or loads anything from elsewhere. Plan: a template beside this file.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import jinja2

from percentes_fast.analysis.tree import Points, Summary
from percentes_fast.report import text
from percentes_fast.report.plots import incidence_png, timeline_png

COLOURS = {"VALID": "#00664f", "INVALID": "#a03000", "PARTIAL": "#7a5a00"}


def render(summary: Summary, points: Points) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    state, _, headline = text.verdict(summary).partition(": ")
    return environment.get_template("report.html.j2").render(
        summary=summary,
        state=state,
        headline=headline,
        colour=COLOURS[state],
        facts=_facts(summary),
        figure=_embedded(timeline_png(summary, points)),
        curves=_embedded(incidence_png(summary)),
        text=text.render(summary),
    )


def _embedded(png: bytes | None) -> str | None:
    return None if png is None else base64.b64encode(png).decode("ascii")


def _facts(summary: Summary) -> list[dict[str, Any]]:
    facts: list[tuple[str, Any]]
    skew = summary.client.send_skew_s
    facts = [
        ("load requests scheduled", summary.counts.scheduled),
        ("completed", summary.counts.completed),
        (f"errored: {text.classes(summary.counts.errored_by_class)}", summary.counts.errored),
        ("censored at the deadline", summary.counts.censored),
        ("send skew p99", text.micros(skew.p99 if skew else None)),
    ]
    if summary.fault is not None:
        facts += [
            ("outage", text.outage(summary)),
            _loss(summary),
            ("recovered to the pre-fault baseline after", text.seconds(summary.ttr_pre_fault_s, 0)),
            ("kill known to within (+-)", text.micros(summary.fire_uncertainty_s)),
        ]
    return [{"name": name, "value": value} for name, value in facts]


def _loss(summary: Summary) -> tuple[str, str]:
    name = "in flight at the kill, lost (compat rule)"
    if not summary.in_flight:
        return name, text.UNKNOWN
    table = summary.in_flight[0]
    lost = sum(table.errored_by_class.values())
    unsure = table.indeterminate.scheduled
    return f"{name}; {unsure} indeterminate", f"{lost} of {table.total}"
