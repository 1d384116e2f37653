"""A campaign's report as text: headline, verdicts, endpoints, every run's row, what was dropped.

Never: computes a figure. Plan: one generator of lines a section.
"""

from __future__ import annotations

from collections.abc import Iterator

from percentes_fast.analysis.campaign import CampaignSummary, Endpoint, RunRow
from percentes_fast.report import restart
from percentes_fast.report.words import (
    UNKNOWN,
    Section,
    instrument,
    laid_out,
    micros,
    percent,
    seconds,
    sent,
)


def verdict(summary: CampaignSummary) -> str:
    """VALID or INVALID, with the outage in one line."""
    state = "VALID" if summary.valid else "INVALID"
    runs = f"{summary.valid_runs} of {summary.planned_runs} runs valid"
    if not summary.endpoints[0].summary.n:
        return f"{state}: {runs}; no outage in any"
    return f"{state}: {runs}; {middle(summary.endpoints[0])} {spread(summary.endpoints[0])}"


def middle(endpoint: Endpoint) -> str:
    """The value that leads: the median where the scalar is heavy-tailed, else the mean."""
    found = endpoint.summary.median if endpoint.heavy_tailed else endpoint.summary.mean
    unit = " s" if endpoint.name.endswith("_s") else ""
    return UNKNOWN if found is None else f"{found:.3f}{unit}"


def spread(endpoint: Endpoint) -> str:
    """What stands beside it: `outage (median of 5, 41.685 to 43.695)`."""
    found, kind = endpoint.summary, "median" if endpoint.heavy_tailed else "mean"
    name = endpoint.name.removesuffix("_s").replace("_", " ")
    return f"{name} ({kind} of {found.n}, {found.min:.3f} to {found.max:.3f})"


def render(summary: CampaignSummary) -> str:
    """The whole report as text, ending in a newline."""
    lines = [verdict(summary), *(f"  ! {reason}" for reason in summary.reasons)]
    if summary.caveat:
        lines.append(f"  * {summary.caveat}")
    if summary.headline is not None:
        lines += ["", summary.headline.text]
        lines += [f"  n/a: {missing}" for missing in summary.headline.missing]
    sections: tuple[Section, ...] = (
        ("Endpoints over the valid runs", _endpoints(summary)),
        ("Every run", _runs(summary)),
        ("In flight at the kill", _in_flight(summary)),
        ("Where the outages went (seconds, one column a run)", _stages(summary)),
        ("Predictions registered before the runs", restart.predictions(summary.predictions)),
        ("Dropped", _dropped(summary)),
    )
    return laid_out(lines, sections, _origin(summary))


def _origin(summary: CampaignSummary) -> str:
    by = instrument(summary.instrument_version, summary.instrument_commit)
    return (
        f"{summary.name}, {by}, config SHA-256 {summary.config_sha256},"
        f" claims SHA-256 {summary.claims_sha256}"
    )


def _endpoints(summary: CampaignSummary) -> Iterator[str]:
    for each in summary.endpoints:
        if each.endpoint == "not_applicable":
            continue
        yield f"{each.name:27} {each.endpoint:11} {each.headline or UNKNOWN}"
        for run, why in each.missing.items():
            yield f"    without {run}: {why}"


def _runs(summary: CampaignSummary) -> Iterator[str]:
    yield (
        f"{'run':>3} {'verdict':8} {'outage':>10} {'restart':>9} {'ttr':>5} {'deficit':>8}"
        f" {'kill +-':>10} {'tight':>10} {'goodput':>8}  sent in the outage"
    )
    for row in summary.runs:
        yield _run(row)


def _run(row: RunRow) -> str:
    ttr = UNKNOWN if row.ttr_pre_fault_s is None else str(row.ttr_pre_fault_s)
    lost = row.integrated_goodput_deficit
    deficit = UNKNOWN if lost is None else f"{lost:.1f}"
    told = sent(row.outage_outcomes) if row.outage_outcomes else UNKNOWN
    return (
        f"{row.run:3} {'valid' if row.valid else 'INVALID':8} {seconds(row.outage_s):>10}"
        f" {seconds(row.container_start_s):>9} {ttr:>5} {deficit:>8}"
        f" {micros(row.fire_uncertainty_s):>10} {micros(row.tight_width_s):>10}"
        f" {percent(row.baseline_goodput):>8}  {told}"
    )


def _in_flight(summary: CampaignSummary) -> Iterator[str]:
    caught = summary.totals["in_flight"]
    if not caught:
        return
    yield f"{'rule':8} {'caught':>7} {'sure':>6} {'unsure':>7} {'errored':>8}  (of the valid runs)"
    for rule, counts in caught.items():
        yield (
            f"{rule:8} {counts['total']:7} {counts['determinate']:6} {counts['indeterminate']:7}"
            f" {counts['errored']:8}"
        )


def _stages(summary: CampaignSummary) -> Iterator[str]:
    rows = [row for row in summary.runs if row.stages]
    if not rows:
        return
    yield f"{'stage':32} " + " ".join(f"{row.directory:>9}" for row in rows)
    for name in dict.fromkeys(name for row in rows for name in row.stages):
        shown = (row.stages.get(name) for row in rows)
        yield f"{name:32} " + " ".join(
            f"{UNKNOWN if value is None else f'{value:.3f}':>9}" for value in shown
        )
    sums = (sum(row.stages.values()) for row in rows)
    yield f"{'sum':32} " + " ".join(f"{value:9.3f}" for value in sums)
    yield from restart.cold_start(summary.cold_start)


def _dropped(summary: CampaignSummary) -> Iterator[str]:
    for each in summary.dropped:
        where = f" ({each.directory})" if each.directory else ""
        yield f"run {each.run}{where}: {each.reason}"
