"""A campaign, or one run, in the schema of the published campaign (`report --format percentes`).

Never: a figure that the run's own report does not hold, or a time that the published file's audit
could not derive again: times are on the client's wall clock, epoch_wall_ns + run time.
Plan: `document` is the whole; `_run` one element of per_run, its container block, its segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from percentes_fast.analysis import campaign
from percentes_fast.analysis.client import CanaryFigures
from percentes_fast.analysis.gates import Gate
from percentes_fast.analysis.inflight import Kill
from percentes_fast.analysis.kill import HostClock, find, host_clock
from percentes_fast.analysis.outcomes import judged
from percentes_fast.analysis.stages import Boundary, Decomposition
from percentes_fast.analysis.stats import RunStats
from percentes_fast.analysis.summary import analyze
from percentes_fast.analysis.tree import Summary
from percentes_fast.errors import DataError
from percentes_fast.rundir import StoredRun, is_campaign, open_run, run_path

SCHEMA_VERSION = 1
VARIANT = "process_kill"
WINDOWS = ("baseline", "fault", "fault_degraded", "fault_recovered", "guard", "outage")
NO_SCHEDULER = "no scheduler: the container runtime restarts in place"
NO_SERVICE = "one replica addressed directly: no Service"
ONLY = (
    "the published schema describes a kill of a container's first process; `report --format json`"
    " has everything"
)


def document(path: Path) -> dict[str, Any]:
    """The published document of a campaign's directory, or of one run's.

    Raises DataError where a run is not the kill of a container's first process.
    """
    if is_campaign(path):
        found = campaign.analyze(path)
        pairs = [(run_path(path, row.run), summary) for row, summary in found.runs]
        rows = [row for row, _ in found.runs]
        name, caveat = found.summary.name, found.summary.caveat
        left_out = [f"run {each.run}: {each.reason}" for each in found.summary.dropped]
    else:
        summary = analyze(path).summary
        pairs, rows, left_out = [(path, summary)], [campaign.row(1, 0, summary)], []
        name, caveat = "one run", ""
    fired = [i for i, (_, each) in enumerate(pairs) if each.decomposition is not None]
    if fired:  # a run whose fault was not fired has no place in that schema
        pairs, rows = [pairs[i] for i in fired], [rows[i] for i in fired]
    if left_out:
        caveat = f"{caveat} Dropped: {'; '.join(left_out)}.".strip()
    first = pairs[0][1]
    runs = [_run(place, *pair) for place, pair in enumerate(pairs, 1)]
    valid = [row for row in rows if row.valid]
    endpoints = campaign.endpoints(valid, 1)
    return {
        "schema_version": SCHEMA_VERSION,
        "instrument_commit": first.instrument_commit,
        "config_sha256": first.config_sha256,
        "overrides": list(first.overrides),
        "caveat": caveat,
        "campaign": {
            "variant": VARIANT,
            "config_name": name,
            "repetitions": len(rows),
            "per_run": runs,
            "endpoints": [_endpoint(each, len(rows)) for each in endpoints],
            "valid_runs": len(valid),
            "invalid_runs": len(rows) - len(valid),
            "caveat": caveat,
        },
        "validity_gates": [_gates(summary) for _, summary in pairs],
    }


@dataclass(frozen=True, slots=True)
class _Facts:
    """One run with its clocks; wall(t) is run time on the client's wall clock."""

    path: Path
    run: StoredRun
    summary: Summary
    parts: Decomposition
    kill: Kill
    host: HostClock
    epoch_wall_ns: int

    @property
    def fault(self) -> Mapping[str, Any]:
        """fault.json."""
        return self.run.fault or {}

    def wall(self, run_ns: int) -> str:
        """Run time as the client's wall clock says it."""
        return rfc3339(run_ns + self.epoch_wall_ns)


def rfc3339(wall_ns: int) -> str:
    """Ns since the Unix epoch as RFC 3339 in UTC, without rounding; trailing zeros left out."""
    seconds, nanos = divmod(wall_ns, 1_000_000_000)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{nanos:09d}".rstrip("0")
    return f"{whole}.{fraction}Z" if fraction else f"{whole}Z"


def _facts(path: Path, summary: Summary) -> _Facts:
    run = open_run(path)
    fault = run.fault or {}
    usage = bool(run.manifest["config"]["target"]["usage"])
    host = host_clock(run)
    kill = find(run, judged(run.requests, usage=usage), host)
    parts = summary.decomposition
    first = fault.get("kind") in ("kill", "kill_group", "kill_container")
    container = fault.get("container") or {}
    if not first or kill is None or host is None or parts is None or not container.get("after"):
        raise DataError(f"{path.name}: {ONLY}")
    if not fault["same_clock"] and (host.after is None or host.burst_lost):
        raise DataError(f"{path.name}: has no burst of clock samples after the load; {ONLY}")
    return _Facts(path, run, summary, parts, kill, host, int(run.manifest["epoch_wall_ns"]))


def _run(place: int, path: Path, summary: Summary) -> dict[str, Any]:
    facts = _facts(path, summary)
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
    settings = facts.run.manifest["config"]["canary"]
    found = {}
    for name in WINDOWS:
        path = facts.summary.receive_path.get(name)
        found[name] = {
            "client_ttft_mean_ms": (path.client_ttft_mean_ms if path else None) or 0,
            "client_ttft_count": path.client_ttft_count if path else 0,
            "canary": _canary(path.canary if path else None, settings),
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


def _gates(summary: Summary) -> dict[str, Any]:
    gates = [_gate(gate, summary) for gate in summary.gates]
    failed = any(not gate.holds for gate in summary.gates)
    if not summary.valid and not failed:
        gates.append(_other_reason(summary.invalid_reasons))
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
