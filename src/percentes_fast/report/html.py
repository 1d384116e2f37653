"""A run's Summary, or a campaign's, as one self-contained page with its figures.

Never: computes a figure, or loads anything from elsewhere. Plan: templates beside this file; both
kinds of page extend the same one.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import jinja2

from percentes_fast.analysis.campaign import CampaignSummary
from percentes_fast.analysis.tree import Points, Summary
from percentes_fast.report import campaign, text, words
from percentes_fast.report.plots import Bar, incidence_png, stages_png, timeline_png

COLOURS = {"VALID": "#00664f", "INVALID": "#a03000", "PARTIAL": "#7a5a00"}
Facts = list[tuple[str, Any]]


def _page(template: str, verdict: str, facts: Facts, **values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    state, _, headline = verdict.partition(": ")
    return environment.get_template(template).render(
        state=state,
        headline=headline,
        colour=COLOURS[state],
        facts=[{"name": name, "value": value} for name, value in facts],
        **values,
    )


def render(summary: Summary, points: Points) -> str:
    """The page of a run."""
    parts = summary.decomposition
    bars = [Bar("this run", {s.name: s.s for s in parts.stages})] if parts else []
    bars += _cold(summary)
    return _page(
        "report.html.j2",
        text.verdict(summary),
        _facts(summary),
        title=summary.run_id,
        sentence=None,
        reasons=summary.invalid_reasons,
        notes=summary.notes,
        figure=_embedded(timeline_png(summary, points)),
        curves=_embedded(incidence_png(summary)),
        stages=_embedded(stages_png(bars)),
        predictions=summary.predictions,
        text=text.render(summary),
    )


def render_campaign(summary: CampaignSummary) -> str:
    """The page of a campaign."""
    bars = [Bar(row.directory, dict(row.stages)) for row in summary.runs]
    bars += _cold(summary)
    return _page(
        "page.html.j2",
        campaign.verdict(summary),
        [
            (campaign.spread(each), campaign.middle(each))
            for each in summary.endpoints
            if each.summary.n
        ],
        title=summary.name,
        sentence=summary.headline.text if summary.headline else None,
        reasons=summary.reasons,
        notes=[summary.caveat] if summary.caveat else [],
        stages=_embedded(stages_png(bars)),
        predictions=summary.predictions,
        text=campaign.render(summary),
    )


def _cold(summary: Summary | CampaignSummary) -> list[Bar]:
    return [Bar("cold start", dict(summary.cold_start))] if summary.cold_start else []


def _embedded(png: bytes | None) -> str | None:
    return None if png is None else base64.b64encode(png).decode("ascii")


def _facts(summary: Summary) -> Facts:
    skew = summary.client.send_skew_s
    facts: Facts = [
        ("load requests scheduled", summary.counts.scheduled),
        ("completed", summary.counts.completed),
        (f"errored: {words.classes(summary.counts.errored_by_class)}", summary.counts.errored),
        ("censored at the deadline", summary.counts.censored),
        ("send skew p99", words.micros(skew.p99 if skew else None)),
    ]
    if summary.fault is not None:
        facts += [
            ("outage", text.outage(summary)),
            _loss(summary),
            (
                "recovered to the pre-fault baseline after",
                words.seconds(summary.ttr_pre_fault_s, 0),
            ),
            ("kill known to within (+-)", words.micros(summary.fire_uncertainty_s)),
        ]
    return facts


def _loss(summary: Summary) -> tuple[str, str]:
    name = "in flight at the kill, lost (compat rule)"
    if not summary.in_flight:
        return name, words.UNKNOWN
    table = summary.in_flight[0]
    lost = sum(table.errored_by_class.values())
    unsure = table.indeterminate.scheduled
    return f"{name}; {unsure} indeterminate", f"{lost} of {table.total}"
