"""The Summary as text for a terminal and report.txt.

Never: computes a figure, or shows a latency without saying it is conditional on completion.
Plan: a verdict, what the clients saw, the outage and its moments, windows, recovery, gates, client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from percentes_fast.analysis.client import ClientFigures, Spread
from percentes_fast.analysis.tree import IncidenceReport, Summary
from percentes_fast.analysis.windows import WindowReport
from percentes_fast.report import restart
from percentes_fast.report.words import (
    UNKNOWN,
    Section,
    classes,
    instrument,
    laid_out,
    micros,
    percent,
    seconds,
    sent,
)

DEEDS = {
    "kill": "the kill",
    "kill_group": "the kill of its process group",
    "kill_child": "the kill of its child",
    "term": "the SIGTERM",
    "stop": "the stop",
    "kill_container": "the kill of its container",
}


def verdict(summary: Summary) -> str:
    """VALID, INVALID or PARTIAL, with the outage in one line."""
    state = "PARTIAL" if summary.partial else "VALID" if summary.valid else "INVALID"
    if summary.fault is None:
        return f"{state}: load only, no fault"
    deed = DEEDS.get(summary.fault.kind, f"the {summary.fault.kind}")
    if summary.outage is not None and summary.outage_s is not None:
        return (
            f"{state}: served again {summary.outage_s:.3f} s after {deed}"
            f"{resolution(summary.outage.resolution_s)}"
        )
    return f"{state}: {_no_outage(summary)}"


def _no_outage(summary: Summary) -> str:
    if summary.outage is None:
        return "no outage: the fault was not done"
    known = resolution(summary.outage.resolution_s)
    return f"outage {outage(summary)}{known}: {summary.outage.reason}"


def outage(summary: Summary) -> str:
    """The outage: a point, an interval, or n/a."""
    gone = summary.outage
    return UNKNOWN if gone is None else moment(gone.outage_s, gone.interval_s)


def resolution(value: float | None) -> str:
    """How finely a moment is known, or nothing."""
    return "" if value is None else f" (resolution {seconds(value)})"


def moment(at_s: float | None, interval_s: tuple[float, float | None] | None) -> str:
    """A moment: a point, what bounds it, or n/a."""
    if at_s is not None or interval_s is None:
        return seconds(at_s)
    lo, hi = interval_s
    return f"at least {seconds(lo)}" if hi is None else f"from {seconds(lo)} to {seconds(hi)}"


def render(summary: Summary) -> str:
    """The whole report as text, ending in a newline."""
    lines: list[str] = [verdict(summary)]
    lines += [f"  ! {reason}" for reason in summary.invalid_reasons]
    lines += [f"  * {note}" for note in summary.notes]
    sections: tuple[Section, ...] = (
        ("What the clients saw", _clients(summary)),
        ("Outage", _outage(summary)),
        (
            "Where the outage went",
            (*restart.stages(summary.decomposition), *restart.cold_start(summary.cold_start)),
        ),
        ("In flight at the kill", _in_flight(summary)),
        ("Predictions registered before the run", restart.predictions(summary.predictions)),
        ("Clocks", restart.clocks(summary)),
        ("Container", restart.container(summary)),
        (
            "Windows (latencies conditional on completion; counted from the scheduled send)",
            _windows(summary),
        ),
        ("Completion incidence (Aalen-Johansen, errors compete)", _incidence(summary)),
        ("Recovery", _recovery(summary)),
        ("The server's own metrics", restart.metrics(summary)),
        (
            "Receive path: canary streams of known timing, deviation in us; TTFT means",
            restart.receive_path(summary),
        ),
        ("Validity gates", _gates(summary)),
        ("The client itself", _client(summary)),
    )
    return laid_out(lines, sections, _origin(summary))


def _origin(summary: Summary) -> str:
    by = instrument(summary.instrument_version, summary.instrument_commit)
    return f"run {summary.run_id}, {by}, config SHA-256 {summary.config_sha256}"


def _clients(summary: Summary) -> Iterator[str]:
    yield (
        f"{'kind':8} {'scheduled':>9} {'completed':>9} {'errored':>8} {'censored':>8}"
        f" {'client fault':>12}  by class"
    )
    for kind, counts in sorted(summary.counts_by_kind.items()):
        yield (
            f"{kind:8} {counts.scheduled:9} {counts.completed:9} {counts.errored:8}"
            f" {counts.censored:8} {counts.client_fault:12}  {classes(counts.errored_by_class)}"
        )
    cut = summary.counts.cut
    if cut:
        yield f"{cut} load requests were not yet due when the run was interrupted"
    outcomes = summary.outage_outcomes
    if outcomes:
        yield f"sent during the outage: {sent(outcomes)}"


def _outage(summary: Summary) -> Iterator[str]:
    fault, gone = summary.fault, summary.outage
    if fault is None:
        return
    if fault.fire_s is None:
        yield f"{fault.kind} planned at {seconds(fault.planned_s)}, not done"
    else:
        landed = "landed: the process was seen stopped"
        if fault.gone_after_s is not None:
            landed = f"landed: the process was gone {micros(fault.gone_after_s)} later"
        yield (
            f"{fault.kind} planned at {seconds(fault.planned_s)}, fired at"
            f" {seconds(fault.fire_s, 6)} (+- {micros(summary.fire_uncertainty_s)}),"
            f" {landed if fault.landed else 'did NOT land'}"
        )
    yield from restart.evidence(fault)
    if gone is None:
        return
    for each in (
        gone.port_answers,
        gone.health_200,
        gone.first_served_token,
        gone.goodput_restored,
        *([gone.traffic_restored] if gone.traffic_restored else []),
    ):
        shown = moment(each.at_s, each.interval_s) + resolution(each.resolution_s)
        reason = f": {each.reason}" if each.reason else ""
        yield f"{each.name.replace('_', ' '):20} {shown}{reason}"


def _in_flight(summary: Summary) -> Iterator[str]:
    if not summary.in_flight:
        return
    yield (
        f"{'rule':8} {'caught':>6} {'sure':>6} {'errored':>8} {'completed':>9} {'censored':>8}"
        f" {'unsure':>6}  {'zone':>10}  by class (of the caught)"
    )
    for table in summary.in_flight:
        sure = table.determinate
        if not table.applicable:
            continue
        yield (
            f"{table.rule:8} {table.total:6} {sure.scheduled:6} {sure.errored:8}"
            f" {sure.completed:9} {sure.censored:8} {table.indeterminate.scheduled:6}"
            f"  {micros(table.zone_s):>10}  {classes(table.errored_by_class)}"
        )
    for table in summary.in_flight:
        yield f"  {table.rule}: {table.note}"


def _windows(summary: Summary) -> Iterator[str]:
    yield (
        f"{'window':16} {'from':>8} {'to':>8} {'sched':>6} {'compl':>6} {'good':>8}"
        f" {'TTFT p50':>9} {'p99':>8} {'E2E p50':>9} {'p99':>8}"
    )
    for window in summary.windows:
        mark = "  *" if summary.incidence[window.name].needed_beside_percentiles else ""
        yield _window(window) + mark
    if any(curve.needed_beside_percentiles for curve in summary.incidence.values()):
        yield "* over 5 % errored or censored: read its completion incidence beside the percentiles"


def _window(window: WindowReport) -> str:
    def pair(found: Any) -> str:
        if found is None:
            return f" {UNKNOWN:>9} {UNKNOWN:>8}"
        return f" {found.p50:9.3f} {found.p99:8.3f}"

    return (
        f"{window.name:16} {window.start_s:8.2f} {window.end_s:8.2f} {window.counts.scheduled:6}"
        f" {window.counts.completed:6} {percent(window.goodput):>8}"
        f"{pair(window.ttft_s)}{pair(window.e2e_s)}"
    )


def _incidence(summary: Summary) -> Iterator[str]:
    shown = {
        name: curve
        for name, curve in summary.incidence.items()
        if curve.needed_beside_percentiles or name == "fault"
    }
    if shown:
        by = f"by {next(iter(shown.values())).time_s[-1]:g} s (95 % band)"
        yield f"{'window':15} {'n':>6} {'p50':>18} {'p95':>18} {'p99':>18}  {by:>23}"
    for name, curve in shown.items():
        yield f"{name:15} {curve.n:6} {_curve(curve)}"


def _curve(curve: IncidenceReport) -> str:
    quantiles = []
    for q in ("p50", "p95", "p99"):
        value = curve.quantiles_s[q]
        quantiles.append(seconds(value) if value is not None else curve.quantile_reasons[q])
    lower, upper = curve.lower[-1], curve.upper[-1]
    band = "" if lower is None or upper is None else f", {lower:.1%} to {upper:.1%}"
    reached = percent(curve.cif[-1]) + band
    return " ".join(f"{text:>18}" for text in quantiles) + f"  {reached:>23}"


def _recovery(summary: Summary) -> Iterator[str]:
    found = summary.recovery
    if found is None:
        return
    rows = [("pre-fault baseline", found.pre_fault), ("degraded plateau", found.degraded_plateau)]
    rows += [(f"component {name}", report) for name, report in found.components.items()]
    for name, report in rows:
        ttr = report.reason if report.ttr_s is None else f"recovered after {report.ttr_s} s"
        yield f"{name:20} baseline {percent(report.baseline):>8}   {ttr}"
    lost = found.deficit_goodput_s
    shown = UNKNOWN if lost is None else f"{lost:.2f}"
    yield f"goodput lost until recovery: {shown} goodput-seconds"
    known = [row.ttr_s for row in found.sensitivity if row.ttr_s is not None]
    settings = len(found.sensitivity)
    span = f"{min(known)} to {max(known)} s" if known else "none recovers"
    rest = f", {settings - len(known)} do not recover" if 0 < len(known) < settings else ""
    yield f"over {settings} settings of the detector: {span}{rest}"


def _gates(summary: Summary) -> Iterator[str]:
    for gate in summary.gates:
        state = "not applicable" if not gate.applicable else "pass" if gate.passed else "FAIL"
        yield f"{gate.id} {state:14} {gate.name}: {gate.detail}"


def _timings(summary: Summary) -> Iterator[tuple[str, Spread | None]]:
    """Of the whole client, then by window and, where there are several, by worker."""
    own = summary.client
    yield "send skew (user)", own.send_skew_s
    yield "send skew (kernel)", own.send_skew_kernel_s
    yield "receive lag", own.receive_lag_s
    for name, path in summary.receive_path.items():
        yield f"receive lag, {name}", path.receive_lag_s
    for worker in own.workers if len(own.workers) > 1 else ():
        yield f"send skew (user), worker {worker.worker}", worker.send_skew_s
        yield f"receive lag, worker {worker.worker}", worker.receive_lag_s


def _parent(own: ClientFigures) -> Iterator[str]:
    """Did the process that fires, scrapes and samples run when it was due?"""
    gap = own.parent_gap_max_s
    if gap is None:
        return
    yield (
        f"{'parent':28} {'real-time' if own.parent_scheduler == 'fifo' else 'usual scheduler'},"
        f" longest gap of its clock pairs {seconds(gap)} (one a second)"
    )
    if own.parent_note is not None:
        yield own.parent_note


def _client(summary: Summary) -> Iterator[str]:
    own = summary.client
    for name, found in _timings(summary):
        if found is not None:
            yield (
                f"{name:28} p50 {micros(found.p50)}, p99 {micros(found.p99)},"
                f" max {micros(found.max)} (n = {found.n})"
            )
    yield from _parent(own)
    for worker in own.workers:
        lost = ", ".join(f"{name} {number}" for name, number in worker.lost.items() if number)
        if lost:
            yield f"worker {worker.worker}: {lost}"
    for step in own.wall_steps:
        yield f"the wall clock stepped by {seconds(step.size_s, 6)} at {seconds(step.at_s)}"
