"""A campaign, or one run, in the schema of the published campaign (`report --format percentes`).

Never: a figure that the run's own report does not hold, or a time that the published file's audit
could not derive again: times are on the client's wall clock, epoch_wall_ns + run time.
Plan: `document` sorts out the runs that have a place in the schema and names the others; `_run` is
one element of per_run, its container block, its segments; `_gates` its gates, and what else lies
between it and the run before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from percentes_fast.analysis import campaign
from percentes_fast.analysis.campaign import Dropped, RunRow
from percentes_fast.analysis.client import CanaryFigures
from percentes_fast.analysis.gates import Gate
from percentes_fast.analysis.golden import CHAIN, LATE
from percentes_fast.analysis.inflight import Kill
from percentes_fast.analysis.injected import container_faults, why_not
from percentes_fast.analysis.kill import HostClock, find, host_clock
from percentes_fast.analysis.outcomes import judged
from percentes_fast.analysis.restarts import Boundary
from percentes_fast.analysis.stages import Decomposition
from percentes_fast.analysis.stats import RunStats
from percentes_fast.analysis.summary import analyze
from percentes_fast.analysis.tree import Summary
from percentes_fast.errors import DataError
from percentes_fast.rundir import is_campaign, open_run, run_path

SCHEMA_VERSION = 1
LATE_S = 0.1  # then requests between plan and kill count in windows, and may have completed
VARIANT = "process_kill"
WINDOWS = ("baseline", "fault", "fault_degraded", "fault_recovered", "guard", "outage")
NO_SCHEDULER = "no scheduler: the container runtime restarts in place"
NO_SERVICE = "one replica addressed directly: no Service"
KINDS = ("kill", "kill_group", "kill_container")  # of a first process
ELSEWHERE = "`report --format json` has everything"
ONLY = f"the published schema describes a kill of a container's first process; {ELSEWHERE}"


def document(path: Path) -> dict[str, Any]:
    """The published document of a campaign's directory, or of one run's.

    Raises DataError where the fault is not the kill of a container's first process, or no run can
    be published.
    """
    found = _read(path)
    published, left_out = _sorted(found.runs)
    if not published:
        why = left_out[0].reason if found.is_one_run else _listed(left_out)
        raise DataError(f"{path.name}: has no run that can be published: {why}; {ELSEWHERE}")
    return _document(found, published, left_out)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a directory holds; dropped: as the campaign's report has it, invalid runs included."""

    name: str
    caveat: str
    runs: tuple[tuple[Path, RunRow, Summary], ...]
    dropped: tuple[Dropped, ...] = ()
    is_one_run: bool = False


def _read(path: Path) -> _Found:
    if not is_campaign(path):
        summary = analyze(path).summary
        one = (path, campaign.row(1, 0, summary), summary)
        return _Found("one run", "", (one,), is_one_run=True)
    found = campaign.analyze(path)
    runs = tuple((run_path(path, row.run), row, summary) for row, summary in found.runs)
    told = found.summary
    return _Found(told.name, told.caveat, runs, told.dropped)


def _sorted(
    runs: Sequence[tuple[Path, RunRow, Summary]],
) -> tuple[list[_Facts], list[Dropped]]:
    """Runs that have a place in the schema, and those that have none, with the reason."""
    published, left_out = [], []
    for path, row, summary in runs:
        facts = _facts(path, row, summary)
        if isinstance(facts, str):
            left_out.append(Dropped(row.run, facts, row.directory))
        else:
            published.append(facts)
    return published, left_out


def _document(
    found: _Found, published: Sequence[_Facts], left_out: Sequence[Dropped]
) -> dict[str, Any]:
    first, rows = published[0].summary, [facts.row for facts in published]
    valid = [row for row in rows if row.valid]
    caveat = _caveat(found, left_out)
    judged_runs = {row.directory for _, row, _ in found.runs}
    aside = [each for each in found.dropped if each.directory not in judged_runs]
    return {
        "schema_version": SCHEMA_VERSION,
        "instrument_commit": first.instrument_commit,
        "config_sha256": first.config_sha256,
        "overrides": list(first.overrides),
        "caveat": caveat,
        "campaign": {
            "variant": VARIANT,
            "config_name": found.name,
            "repetitions": len(rows),
            "per_run": [_run(place, facts) for place, facts in enumerate(published, 1)],
            "endpoints": [_endpoint(each, len(rows)) for each in campaign.endpoints(valid, 1)],
            "valid_runs": len(valid),
            "invalid_runs": len(rows) - len(valid),
            "caveat": caveat,
        },
        "validity_gates": [
            _gates(facts.summary, chain)
            for facts, chain in zip(published, _chains(rows, [*aside, *left_out]), strict=True)
        ],
    }


def _caveat(found: _Found, left_out: Sequence[Dropped]) -> str:
    absent = {each.directory for each in left_out}
    dropped = [each for each in found.dropped if each.directory not in absent]
    parts = [found.caveat]
    if dropped:
        parts.append(f"Dropped: {_listed(dropped)}.")
    if left_out:
        parts.append(f"Left out of this file: {_listed(left_out)}.")
    return " ".join(filter(None, parts))


def _listed(dropped: Sequence[Dropped]) -> str:
    return "; ".join(f"run {each.run}: {each.reason}" for each in dropped)


@dataclass(frozen=True, slots=True)
class _Facts:
    """One run with its clocks; wall(t) is run time on the client's wall clock."""

    path: Path
    fault: Mapping[str, Any]  # fault.json
    canary: Mapping[str, Any]  # its settings
    row: RunRow
    summary: Summary
    parts: Decomposition
    kill: Kill
    host: HostClock
    epoch_wall_ns: int

    def wall(self, run_ns: int) -> str:
        """Run time as the client's wall clock says it."""
        return rfc3339(run_ns + self.epoch_wall_ns)


def rfc3339(wall_ns: int) -> str:
    """Ns since the Unix epoch as RFC 3339 in UTC, without rounding; trailing zeros left out."""
    seconds, nanos = divmod(wall_ns, 1_000_000_000)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{nanos:09d}".rstrip("0")
    return f"{whole}.{fraction}Z" if fraction else f"{whole}Z"


def _facts(path: Path, row: RunRow, summary: Summary) -> _Facts | str:
    """The run with its clocks, or why it has no place in the schema.

    Raises DataError where that is so for every run of its campaign: another kind of fault.
    """
    run = open_run(path)
    fault = run.fault or {}
    if fault.get("kind") not in KINDS or not fault.get("container"):
        raise DataError(f"{path.name}: {ONLY}")
    host, config = host_clock(run), run.manifest["config"]
    kill = find(run, judged(run.requests, usage=bool(config["target"]["usage"])), host)
    parts = summary.decomposition
    if kill is None or parts is None or summary.fault is None:
        why = why_not(run, summary.fault) if summary.fault else "there was none"
        return f"the fault did not land: {why}"
    if not fault["container"]["after"]:
        return next(container_faults(run))
    if host is None:
        return "nothing compares the clock of the container's host with the client's"
    if not fault["same_clock"] and (host.after is None or host.burst_lost):
        return _without_burst(fault)
    epoch_wall_ns = int(run.manifest["epoch_wall_ns"])
    return _Facts(path, fault, config["canary"], row, summary, parts, kill, host, epoch_wall_ns)


def _without_burst(fault: Mapping[str, Any]) -> str:
    why = (fault.get("clock") or {}).get("lost") or fault.get("after_error")
    told = "the burst of clock samples after the load is missing"
    return f"{told}: {why}" if why else told


def _run(place: int, facts: _Facts) -> dict[str, Any]:
    summary = facts.summary
    outcomes = dict(summary.outage_outcomes or _nothing())
    outcomes.pop("client_fault", None)
    return {
        "run": place,
        "valid": summary.valid,
        "ttr_pre_fault_s": summary.ttr_pre_fault_s,
        "in_flight_loss_fraction": summary.in_flight_loss_fraction,
        "fault_window_e2e_p95_ms": summary.fault_window_e2e_p95_ms,
        "survivor_cohort_absent": True,
        "integrated_goodput_deficit": summary.integrated_goodput_deficit,
        "receive_path": _receive_path(facts),
        "outage_s": summary.outage_s,
        "container_start_s": summary.container_start_s,
        "fire_uncertainty_s": summary.fire_uncertainty_s,
        "equilibrium_note": summary.equilibrium_note,
        "in_flight_errored_by_class": summary.in_flight_errored_by_class,
        "in_flight_indeterminate": summary.in_flight_indeterminate,
        "in_flight_determinate": summary.in_flight_determinate,
        "outage_outcomes": outcomes,
        "decomposition": {
            "segments": _segments(facts),
            "log_figures": dict(sorted(facts.parts.log_figures.items())),
        },
        "container": _container(facts),
    }


def _nothing() -> dict[str, Any]:
    return {"total": 0, "completed": 0, "errored": 0, "censored": 0, "errored_by_class": {}}


# ---------------------------------------------------------------- clocks and container


def _container(facts: _Facts) -> dict[str, Any]:
    found, kill = facts.fault["container"], facts.kill
    die = facts.parts.die_to_start_s
    log = facts.path / "server.log"
    name = f"{facts.path.name}/"
    return {
        "before": _state(found["before"]),
        "after": _state(found["after"]),
        "offset_at_arm": _offset(facts, after=False),
        "offset_after": _offset(facts, after=True),
        "kill": _kill(facts),
        "fire_uncertainty_ns": kill.uncertainty_ns,
        "indeterminate_zone_ns": kill.zone_ns,
        "events": [
            {"action": event["action"], "at": rfc3339(int(event["at_remote_wall_ns"]))}
            for event in found["events"] or []
            if event["action"] in ("die", "start")
        ],
        "die_to_start_s": die,
        "boundaries": {
            "matches": {b.key: _match(b) for b in facts.parts.boundaries if b.line is not None},
            "lines": found["log_lines"],
        },
        "log_path": name + "server.log",
        "log_bytes": log.stat().st_size if log.exists() else 0,
        "fingerprint_before_path": name + "fault.json",
        "fingerprint_after_path": name + "fault.json",
    }


def _state(state: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("running", "pid", "id", "started_at", "finished_at", "restart_count", "restart_policy")
    return {key: state[key] for key in keys}


def _offset(facts: _Facts, *, after: bool) -> dict[str, Any]:
    """An offset as published: host minus the client's wall clock. On one clock it is exact."""
    here = bool(facts.fault["same_clock"])
    found = facts.host.arm
    if after and not here and facts.host.after is not None:
        found = facts.host.after
    return {
        "offset_ns": found.offset_ns - facts.epoch_wall_ns,
        "bound_ns": 0 if here else found.bound_ns,
        "samples": found.samples,
        "at": facts.wall(found.at_ns),
    }


def _kill(facts: _Facts) -> dict[str, Any]:
    fire, remote = facts.fault["fire"], facts.fault["fire"]["remote"]
    if remote is None:  # one clock: the readings of this machine on the host's axis
        readings = [fire[key] + facts.host.arm.offset_ns for key in ("before_ns", "after_ns")]
    else:
        readings = [remote["before_remote_wall_ns"], remote["after_remote_wall_ns"]]
    return {
        "pid": facts.fault["armed"]["pid"],
        "signal": facts.fault["signal"],
        "sent_at": facts.wall(fire["before_ns"]),
        "returned_at": facts.wall(fire["after_ns"]),
        "remote_before_ns": readings[0],
        "remote_after_ns": readings[1],
    }


def _match(boundary: Boundary) -> dict[str, Any]:
    assert boundary.stamp_ns is not None
    stamp = rfc3339(boundary.stamp_ns)
    found = {
        "key": boundary.key,
        "line": boundary.line,
        "at": stamp,
        "stamp": "docker",
        "resolution_ns": 1,
        "text": f"{stamp} {boundary.text}",
    }
    return found | ({"figures": boundary.figures} if boundary.figures else {})


# ---------------------------------------------------------------- segments, receive path


def _segments(facts: _Facts) -> list[dict[str, Any]]:
    moments = {b.key: b.at_ns for b in facts.parts.boundaries}
    found = [_absent("reschedule", "api", NO_SCHEDULER)]
    for segment in facts.parts.segments:
        if segment.name == "goodput_restored":
            found.append(_absent("routing_propagation", "probe", NO_SERVICE))
        if not segment.measured:
            found.append(_absent(segment.name, segment.source, segment.note or NO_SERVICE))
            continue
        start, end = (moments[key] for key in campaign.SEGMENT_ENDS[segment.name])
        assert start is not None and end is not None
        found.append(
            {
                "name": segment.name,
                "source": segment.source,
                "measured": True,
                "start_at": facts.wall(start),
                "end_at": facts.wall(end),
            }
        )
    return found


def _absent(name: str, source: str, note: str) -> dict[str, Any]:
    return {"name": name, "source": source, "measured": False, "note": note}


def _receive_path(facts: _Facts) -> dict[str, Any]:
    ours, found = dict(facts.summary.receive_path), {}
    if "fault" in ours and not ours.keys() & {"fault_degraded", "fault_recovered"}:
        ours["fault_degraded"] = ours["fault"]  # it did not recover: all of the window is degraded
    for name in WINDOWS:
        path = ours.get(name)
        found[name] = {
            "client_ttft_mean_ms": (path.client_ttft_mean_ms if path else None) or 0,
            "client_ttft_count": path.client_ttft_count if path else 0,
            "canary": _canary(path.canary if path else None, facts.canary),
        }
    return found


def _canary(found: CanaryFigures | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    figures = {
        name: getattr(found, name, None) or 0
        for name in (
            *("streams", "completed", "ttft_dev_p50_us", "ttft_dev_max_us", "itl_dev_p50_us"),
            *("itl_dev_p99_us", "itl_dev_max_us", "event_lag_p99_us", "event_lag_max_us"),
        )
    }
    return {key: settings[key] for key in ("ttft_ms", "itl_ms", "tokens")} | figures


# ---------------------------------------------------------------- endpoints, gates


def _endpoint(found: campaign.Endpoint, planned: int) -> dict[str, Any]:
    applies = found.endpoint != "not_applicable"
    told = {
        "name": found.name,
        "endpoint": found.endpoint,
        "summary": _statistics(found, found.summary, planned),
        "contributing_n": found.summary.n,
        "dropped_runs": len(found.missing) if applies else 0,
    }
    if not applies:
        told["dropped_reason"] = campaign.ONE_REPLICA
    elif found.missing:
        told["dropped_reason"] = "; ".join(f"{run}: {why}" for run, why in found.missing.items())
    return told


def _statistics(found: campaign.Endpoint, summary: RunStats, planned: int) -> dict[str, Any]:
    df = summary.df or 0
    figures = {
        name: getattr(summary, name) or 0
        for name in (
            *("median", "mean", "min", "max", "sample_sd", "sem", "t_interval_lo"),
            *("t_interval_hi", "t_multiplier"),
        )
    }
    return {
        "values": list(summary.values) or None,
        "n": summary.n,
        **figures,
        "df": df,
        "at_pinned_df": df > 0 and df == planned - 1,
        "coefficient_of_variation": summary.coefficient_of_variation or 0,
        "cov_defined": summary.coefficient_of_variation is not None,
        "heavy_tailed": found.heavy_tailed,
        "headline": found.headline,
    }


def _gates(summary: Summary, chain: dict[str, Any] | None) -> dict[str, Any]:
    gates = [_gate(gate, summary) for gate in summary.gates]
    failed = any(not gate.holds for gate in summary.gates)
    if not summary.valid and not failed:
        gates.append(_other_reason(summary.invalid_reasons))
    gates += [each for each in (_late(summary), chain) if each is not None]
    return {
        "gates": gates,
        "all_pass": summary.valid,
        "variant": VARIANT,
        "node_loss_representative": False,
    }


def _gate(gate: Gate, summary: Summary) -> dict[str, Any]:
    return {
        "id": gate.id,
        "name": gate.name,
        "applicable": gate.applicable,
        "observed": gate.observed,
        "pass": gate.passed,
        "label_determining": gate.id in ("G3", "G4"),
        "detail": _detail(gate, summary) if gate.passed else gate.detail,
    }


def _other_reason(reasons: Sequence[str]) -> dict[str, Any]:
    """What made a run invalid though its gates hold, such as a fault that did not land."""
    return {
        "id": "fault",
        "name": "the fault was done, and the run not interrupted",
        "applicable": True,
        "observed": True,
        "pass": False,
        "label_determining": False,
        "detail": "; ".join(reasons),
    }


def _chains(rows: Sequence[RunRow], others: Sequence[Dropped]) -> Iterator[dict[str, Any] | None]:
    """A gate for each run that something outside this file lies before: an attempt that was put
    aside or could not start, a run that was left out. Each may have restarted the container.
    """
    yield None  # nothing is said of what was before the first run
    for before, row in pairwise(rows):
        # an attempt that was put aside has the number of the run that was done again after it
        between = [each for each in others if before.run < each.run <= row.run]
        between.sort(key=lambda each: each.run)
        yield _not_a_chain(before, between) if between else None


def _late(summary: Summary) -> dict[str, Any] | None:
    """A gate for a run whose kill came after its plan: the file does not show from when windows and
    recovery were counted.
    """
    fault = summary.fault
    if fault is None or fault.fire_s is None or fault.fire_s - fault.planned_s < LATE_S:
        return None
    late_s = fault.fire_s - fault.planned_s
    told = f"fired {late_s:.3f} s after its plan, from which windows and recovery count"
    return _not_applicable(LATE, "the kill came within 0.1 s of its plan", told)


def _not_a_chain(before: RunRow, between: Sequence[Dropped]) -> dict[str, Any]:
    told = "; ".join(f"{each.directory or f'run {each.run}'}: {each.reason}" for each in between)
    name = "the container is as the run before this one in this file left it"
    return _not_applicable(CHAIN, name, f"since {before.directory}: {told}")


def _not_applicable(name: str, holds: str, detail: str) -> dict[str, Any]:
    """A gate that says what this file cannot show of a run."""
    return {
        "id": name,
        "name": holds,
        "applicable": False,
        "observed": False,
        "pass": False,
        "label_determining": False,
        "detail": detail,
    }


def _detail(gate: Gate, summary: Summary) -> str:
    """The measurement of a gate that passed, worded as published."""
    own = summary.client
    if gate.id == "G2" and own.send_skew_s is not None:
        worst = max((worker.busy_worst or 0.0 for worker in own.workers), default=0.0)
        p99, longest = own.send_skew_s.p99 * 1e6, own.send_skew_s.max * 1e6
        return (
            f"skew p99={p99:.0f}us/max={longest:.0f}us; undispatched={own.undispatched};"
            f" cpu_measured=true worst={worst * 100:.1f}%"
        )
    if gate.id == "G6":
        return gate.detail.replace("baseline ", "baseline goodput ", 1)
    if gate.id == "G7":
        rows = [row for row in summary.server_metrics if row.window == "baseline"]
        means = ", ".join(
            f"r{i}={row.waiting_mean or 0:.3f}/n{row.scrapes}" for i, row in enumerate(rows)
        )
        return f"baseline means {means}"
    return gate.detail
