"""Run directory -> the one Summary tree = report.json.

Never: reads anything but the run directory, or the clock; so the same directory gives the same
bytes on any machine.
Plan: judge the rows, find the kill, the recovery and the outage, cut the windows, decide the gates,
say valid or why not. The tree's types and its printing are in tree.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from percentes_fast.analysis import client as clients
from percentes_fast.analysis import gates as gating
from percentes_fast.analysis import (
    inflight,
    injected,
    outage,
    predictions,
    recovery,
    restarts,
    servermetrics,
    stages,
    windows,
)
from percentes_fast.analysis import kill as killing
from percentes_fast.analysis.incidence import Incidence, completion_incidence
from percentes_fast.analysis.outcomes import Counts, count, good, judged
from percentes_fast.analysis.tree import (
    Analysis,
    DetectorReport,
    IncidenceReport,
    KillReport,
    Points,
    RecoveryReport,
    SensitivityRow,
    Summary,
    exact,
    plain,
)
from percentes_fast.analysis.windows import SECOND, Seconds, Window
from percentes_fast.errors import DataError
from percentes_fast.rundir import StoredRun, open_run
from percentes_fast.schema import SCHEMA_VERSION

INCIDENCE_POINTS = 60
NO_PAGE = ("HTTP 404", "HTTP 405", "HTTP 501")
CURVE_BESIDE = 0.05  # errored + censored share from which the curve stands beside any percentile


@dataclass(frozen=True, slots=True)
class _Facts:
    """A stored run, judged, with what every part below needs."""

    run: StoredRun
    config: Mapping[str, Any]
    rows: pd.DataFrame
    load: pd.DataFrame
    tokens: pd.DataFrame
    ttft_ns: int
    e2e_ns: int
    plan: windows.PhasePlan
    params: recovery.DetectorParams
    kill: inflight.Kill | None
    host: killing.HostClock | None
    anchor_ns: int | None


def analyze(path: Path) -> Analysis:
    """Judges a run directory. Raises DataError where it is not a whole run."""
    run = open_run(path)
    try:
        facts = _facts(run)
    except (KeyError, TypeError) as exc:
        raise DataError(
            f"{path}: config or fire lacks {exc}; the run directory is damaged"
        ) from exc
    found = _recovery(facts)
    recovered_ns = None
    if found is not None and found.pre_fault.ttr_s is not None and facts.anchor_ns is not None:
        recovered_ns = facts.anchor_ns + found.pre_fault.ttr_s * SECOND
    gone = _outage(facts, found, recovered_ns)
    ready_ns = gone.first_served_token.at_ns if gone else None
    cuts = windows.windows_of(facts.plan, facts.anchor_ns, recovered_ns, ready_ns)
    summary = _claimed(_summary(facts, found, gone, cuts), facts.config)
    return Analysis(summary, _points(facts.load))


def _claimed(summary: Summary, config: Mapping[str, Any]) -> Summary:
    """With the verdicts on what was claimed before the run; the headline is the campaign's."""
    claims = config.get("predictions") or ()
    if not claims:
        return summary
    return replace(summary, predictions=exact(predictions.single(claims, plain(summary))))


def _ns(seconds: float) -> int:
    return round(seconds * SECOND)


def _facts(run: StoredRun) -> _Facts:
    config = run.manifest["config"]
    rows = judged(run.requests, usage=bool(config["target"]["usage"]))
    load = rows[rows["kind"] == "load"]
    host = killing.host_clock(run)
    kill = killing.find(run, rows, host)
    if run.fault is None and config["fault"]["kind"] != "none":
        raise DataError("fault.json: is missing, but the configuration has a fault; it was lost")
    planned = int(run.fault["planned_ns"]) if run.fault else None
    anchor = planned if kill is None or planned is None else min(planned, kill.fire_ns)
    tokens = run.token_times.astype({"index": "int64", "event": "int64", "time_ns": "int64"})
    mine = tokens[tokens["index"].isin(load["index"])]
    return _Facts(
        run=run,
        config=config,
        rows=rows,
        load=load,
        tokens=mine,
        ttft_ns=_ns(config["slo"]["ttft_s"]),
        e2e_ns=_ns(config["slo"]["e2e_s"]),
        plan=_plan(run),
        params=_params(config),
        kill=kill,
        host=host,
        anchor_ns=anchor,
    )


def _plan(run: StoredRun) -> windows.PhasePlan:
    phases = run.manifest["config"]["phases"]
    end = phases["duration_s"]
    if end is None:
        end = phases["kill_at_s"] + phases["recovery_s"] + phases["cooldown_s"]
    return windows.PhasePlan(
        warmup_ns=_ns(phases["warmup_s"]),
        timeout_ns=_ns(run.manifest["config"]["load"]["timeout_s"]),
        recovery_end_ns=_ns(end - phases["cooldown_s"]),
        end_ns=_ns(end),
        stopped_ns=_stopped(run),
    )


def _stopped(run: StoredRun) -> int | None:
    """An interrupted run was observed until its first worker was stopped, or last seen alive."""
    if run.manifest["interrupted"] is None:
        return None
    workers = run.manifest["workers"]
    stops = [w["stopped_ns"] for w in workers if w["stopped_ns"] is not None]
    return min(stops + [w["heartbeat_ns"] for w in workers if not w["ended"]], default=None)


# ---------------------------------------------------------------- recovery


def _params(config: Mapping[str, Any]) -> recovery.DetectorParams:
    chosen = config["detector"]
    return recovery.DetectorParams(
        chosen["window_s"], chosen["hold_s"], chosen["entry"], chosen["exit"]
    )


def _components(facts: _Facts, load: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
    return {
        "goodput": good(load, facts.ttft_ns, facts.e2e_ns),
        "ttft": good(load, facts.ttft_ns, None),
        "e2e": good(load, None, facts.e2e_ns),
        "errors": (load["outcome"] != "errored").to_numpy(bool),
    }


def _detector(baseline: float | None, found: recovery.Detection | None, why: str) -> DetectorReport:
    if found is None:
        return DetectorReport(baseline, None, why, None, None)
    return DetectorReport(
        baseline, found.ttr_s, found.reason, found.cancelled_entries, found.redegradations
    )


def _recovery(facts: _Facts) -> RecoveryReport | None:
    """The detector's findings from the anchor to the end of the recovery phase.

    Of an interrupted run it sees what was sent up to one E2E limit (or timeout, if shorter) before
    the stop: by then each of those was good, or could not become it any more.
    """
    if facts.anchor_ns is None:
        return None
    plan, end = facts.plan, facts.plan.recovery_end_ns
    if plan.stopped_ns is not None:
        end = min(end, plan.stopped_ns - min(facts.e2e_ns, plan.timeout_ns))
    load = facts.load[facts.load["outcome"].isin(["completed", "errored", "censored"])]
    intended = load["intended_ns"].to_numpy(np.int64)
    before = Window("baseline", plan.warmup_ns, plan.baseline_end_ns(facts.anchor_ns)).rows(
        intended
    )
    parts = {
        name: (
            windows.share(float(passed[before].sum()), float(before.sum())),
            recovery.buckets(intended, passed, facts.anchor_ns, max(end, facts.anchor_ns)),
        )
        for name, passed in _components(facts, load).items()
    }
    return _recovery_report(parts, facts.params)


def _recovery_report(
    parts: Mapping[str, tuple[float | None, recovery.Buckets]], params: recovery.DetectorParams
) -> RecoveryReport:
    baseline, buckets = parts["goodput"]
    found = recovery.detect(buckets, baseline, params)
    plateau = recovery.plateau(buckets, found.ttr_k, params)
    again = None
    if plateau.goodput is not None:
        again = recovery.detect(buckets, plateau.goodput, params)
    lost = recovery.goodput_deficit(buckets, baseline, found.ttr_k)
    components = {}
    for name, (level, counted) in parts.items():
        if name != "goodput":
            components[name] = _detector(level, recovery.detect(counted, level, params), "")
    rows = recovery.sensitivity(buckets, baseline, params)
    return RecoveryReport(
        pre_fault=_detector(baseline, found, ""),
        degraded_plateau=_detector(plateau.goodput, again, plateau.reason or ""),
        components=components,
        deficit_goodput_s=lost.goodput_s,
        deficit_empty_seconds=lost.empty_buckets,
        sensitivity=tuple(
            SensitivityRow(r.params.entry, r.params.window, r.params.hold, r.ttr_s, r.reason)
            for r in rows
        ),
    )


def _outage(
    facts: _Facts, found: RecoveryReport | None, recovered_ns: int | None
) -> outage.Outage | None:
    if facts.kill is None or found is None:
        return None
    return outage.outage(
        facts.rows,
        facts.kill.fire_ns,
        recovered_ns,
        found.pre_fault.reason,
        facts.run.manifest["victim"],
    )


# ---------------------------------------------------------------- the tree


def _incidence(load: pd.DataFrame, horizon_ns: int) -> IncidenceReport:
    rows = load[load["outcome"].isin(["completed", "errored", "censored"])]
    rows = rows[rows["open_ns"].notna()]
    codes = {"censored": 0, "completed": 1, "errored": 2}
    state = np.array([codes[outcome] for outcome in rows["outcome"]], np.int8)
    curve = completion_incidence(rows["open_ns"].to_numpy(np.int64), state, horizon_ns)
    grid = curve.at(np.linspace(0, horizon_ns, INCIDENCE_POINTS + 1).astype(np.int64))
    quantiles = {name: curve.quantile(q) for name, q in windows.QUANTILES}
    return IncidenceReport(
        n=curve.n,
        completed=curve.completed,
        errored=curve.errored,
        censored=curve.censored,
        needed_beside_percentiles=_needs_curve(curve),
        quantiles_s={name: Seconds.maybe(q.value_ns) for name, q in quantiles.items()},
        quantile_reasons={n: q.reason for n, q in quantiles.items() if q.reason is not None},
        time_s=tuple(Seconds.of(t) for t in grid.time_ns),
        at_risk=grid.at_risk,
        survivor=grid.survivor,
        cif=grid.cif,
        lower=grid.lower,
        upper=grid.upper,
    )


def _needs_curve(curve: Incidence) -> bool:
    return curve.n > 0 and (curve.errored + curve.censored) / curve.n > CURVE_BESIDE


def _reasons(facts: _Facts, fault: KillReport | None, found: tuple[gating.Gate, ...]) -> list[str]:
    reasons = [f"{gate.id}: {gate.detail}" for gate in found if not gate.holds]
    if fault is not None and not fault.landed:
        reasons.append(f"the fault did not land: {injected.why_not(facts.run, fault)}")
    reasons += injected.container_faults(facts.run)
    if injected.nothing_happened(facts.run, facts.kill, facts.rows):
        reasons.append(
            "the fault had no consequence at the target: streams that were open at the kill went on"
            " to their end; the process that was killed is not the target's server"
        )
    if facts.run.manifest["interrupted"]:
        reasons.append(f"partial: the run was interrupted {facts.run.manifest['interrupted']}")
    return reasons


def _outage_outcomes(facts: _Facts, gone: outage.Outage | None) -> dict[str, Any] | None:
    """Requests with intended time from the fire to replica-ready."""
    if gone is None or facts.kill is None or gone.first_served_token.at_ns is None:
        return None
    span = Window("outage", facts.kill.fire_ns, gone.first_served_token.at_ns)
    rows = facts.load[span.rows(facts.load["intended_ns"].to_numpy(np.int64))]
    counts = count(rows)
    return {
        **_published(counts),
        "client_fault": counts.client_fault,
        "errored_by_class": counts.errored_by_class,
    }


def _published(counts: Counts) -> dict[str, int]:
    """Counts under the published names."""
    return {
        "total": counts.scheduled,
        "completed": counts.completed,
        "errored": counts.errored,
        "censored": counts.censored,
    }


def _summary(
    facts: _Facts,
    found: RecoveryReport | None,
    gone: outage.Outage | None,
    cuts: tuple[Window, ...],
) -> Summary:
    manifest, load = facts.run.manifest, facts.load
    by_window = _by_window(load, cuts)
    reports = tuple(
        windows.report_window(cut, load, facts.tokens, facts.ttft_ns, facts.e2e_ns) for cut in cuts
    )
    by_name = {report.name: report for report in reports}
    own = clients.figures(manifest, facts.rows, facts.run.client, facts.run.clocks)
    gate_list = gating.gates(own, by_name.get("baseline"), facts.config, _observed(facts, cuts))
    fault = injected.fault_report(facts.run, facts.kill)
    clock = injected.clock_report(facts.run, facts.kill, facts.host)
    reasons = _reasons(facts, fault, gate_list)
    caught = inflight.tables(load, facts.kill) if facts.kill else ()
    parts = _decomposition(facts, gone)
    compat = caught[0] if caught else None
    fault_e2e = by_name["fault"].e2e_s if "fault" in by_name else None
    return Summary(
        schema_version=SCHEMA_VERSION,
        instrument_version=manifest["instrument_version"],
        instrument_commit=manifest["instrument_commit"],
        config_sha256=manifest["config_sha256"],
        overrides=tuple(manifest["overrides"]),
        run_id=manifest["run_id"],
        valid=not reasons,
        partial=manifest["state"] == "partial",
        invalid_reasons=tuple(reasons),
        notes=(
            *gating.notes(facts.config),
            *injected.notes(facts.run, clock),
            *servermetrics.notes(facts.run.manifest.get("metrics")),
        ),
        counts=count(load),
        counts_by_kind={str(kind): count(rows) for kind, rows in facts.rows.groupby("kind")},
        outage_s=gone.outage_s if gone else None,
        outage=gone,
        ttr_pre_fault_s=found.pre_fault.ttr_s if found else None,
        in_flight_loss_fraction=compat.loss_fraction if compat else None,
        in_flight_errored_by_class=compat.errored_by_class if compat else None,
        in_flight_indeterminate=compat.indeterminate.scheduled if compat else None,
        in_flight_determinate=_published(compat.determinate) if compat else None,
        in_flight=caught,
        outage_outcomes=_outage_outcomes(facts, gone),
        fire_uncertainty_s=Seconds.of(facts.kill.uncertainty_ns) if facts.kill else None,
        integrated_goodput_deficit=found.deficit_goodput_s if found else None,
        fault_window_e2e_p95_ms=fault_e2e.p95 * 1000 if fault_e2e else None,
        equilibrium_note=found.degraded_plateau.reason if found else None,
        fault=fault,
        clock=clock,
        container=facts.run.fault.get("container") if facts.run.fault else None,
        container_start_s=_span(parts, "container_start"),
        decomposition=parts,
        cold_start=stages.cold_start(facts.run.cold_start),
        recovery=found,
        gates=gate_list,
        client=own,
        windows=reports,
        modal_latencies=_modes(facts, by_window),
        incidence={n: _incidence(r, facts.plan.timeout_ns) for n, r in by_window.items()},
        receive_path=_receive_paths(facts, cuts),
        server_metrics=servermetrics.report(
            facts.run.metrics, cuts, _scrape_every_ns(facts.config)
        ),
        fingerprints=facts.run.fault.get("fingerprints") if facts.run.fault else None,
        predictions=(),
        goodput_by_second=windows.goodput_series(
            load, facts.plan.end_ns, facts.ttft_ns, facts.e2e_ns
        ),
    )


def _decomposition(facts: _Facts, gone: outage.Outage | None) -> stages.Decomposition | None:
    if facts.kill is None or gone is None:
        return None
    moments = restarts.Moments(
        fire_ns=facts.kill.fire_ns,
        ready_ns=gone.first_served_token.at_ns,
        traffic_ns=gone.traffic_restored.at_ns if gone.traffic_restored else None,
        restored_ns=gone.goodput_restored.at_ns,
    )
    return stages.decompose(facts.run, moments, facts.host)


def _span(parts: stages.Decomposition | None, name: str) -> Seconds | None:
    found = [part.s for part in parts.segments if part.name == name] if parts else []
    return found[0] if found else None


def _observed(facts: _Facts, cuts: tuple[Window, ...]) -> gating.Observed:
    """What the gates look at beside the client."""
    baseline = next((cut for cut in cuts if cut.name == "baseline"), None)
    waiting, counts = {}, {}
    if baseline is not None:
        waiting = servermetrics.baseline_waiting(facts.run.metrics, baseline)
        rows = facts.load[baseline.rows(facts.load["intended_ns"].to_numpy(np.int64))]
        counts = rows["replica"].dropna().value_counts().to_dict()
    return gating.Observed(
        by_replica={str(name): int(number) for name, number in counts.items() if number},
        fingerprints=facts.run.fault.get("fingerprints") if facts.run.fault else None,
        waiting=waiting,
        without_page=_without_page(facts.run.metrics),
        expected_scrapes=_expected_scrapes(baseline, facts.config),
        metrics_asked=_asked(facts.config),
    )


def _asked(config: Mapping[str, Any]) -> bool:
    """Did the configuration ask for metrics? A run that was cut off may know nothing else of it."""
    urls = config["metrics"]["urls"]
    return not config["target"]["hosted"] if urls is None else bool(urls)


def _expected_scrapes(baseline: Window | None, config: Mapping[str, Any]) -> int:
    if baseline is None:
        return 0
    return servermetrics.expected_scrapes(baseline, _scrape_every_ns(config))


def _scrape_every_ns(config: Mapping[str, Any]) -> int:
    every_ns: int = round(config["metrics"]["every_s"] * SECOND)
    return every_ns


def _without_page(metrics: pd.DataFrame) -> frozenset[str]:
    """Replicas that answered every scrape they answered with: there is no such page."""
    found = set()
    for name, rows in metrics.groupby("replica", observed=True):
        told = rows[rows["answered_ns"].notna()]["error"]
        if len(told) and told.isin(NO_PAGE).all():
            found.add(str(name))
    return frozenset(found)


def _by_window(load: pd.DataFrame, cuts: tuple[Window, ...]) -> dict[str, pd.DataFrame]:
    intended = load["intended_ns"].to_numpy(np.int64)
    return {cut.name: load[cut.rows(intended)] for cut in cuts}


def _receive_paths(facts: _Facts, cuts: tuple[Window, ...]) -> dict[str, clients.ReceivePath]:
    tokens, canary = facts.run.token_times, facts.config["canary"]
    return {cut.name: clients.receive_path(cut, facts.rows, tokens, canary) for cut in cuts}


def _modes(facts: _Facts, by_window: Mapping[str, pd.DataFrame]) -> tuple[windows.Mode, ...]:
    if "fault" not in by_window:
        return ()
    before = by_window.get("baseline", facts.load.iloc[:0])
    return windows.modes(by_window["fault"], before, facts.ttft_ns, facts.e2e_ns)


def _points(load: pd.DataFrame) -> Points:
    return Points(
        load["intended_ns"].to_numpy(np.int64) / SECOND,
        load["open_ns"].astype("Float64").to_numpy(np.float64, na_value=np.nan) / SECOND,
        load["outcome"].to_numpy(object),
    )
