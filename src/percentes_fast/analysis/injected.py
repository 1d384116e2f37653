"""What was done to the server, and whether it landed: fault.json as part of the Summary.

Never: takes a fault for landed whose evidence was not seen.
Plan: one function a part of the report: the fault, the clocks, the container, what to know of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from percentes_fast.analysis.clockfit import compat
from percentes_fast.analysis.inflight import Kill
from percentes_fast.analysis.kill import HostClock
from percentes_fast.analysis.tree import ClockReport, KillReport
from percentes_fast.analysis.windows import SECOND, Seconds
from percentes_fast.rundir import StoredRun

OUTLIVED_NS = SECOND // 4
LATE_NS = SECOND // 2


def fault_report(run: StoredRun, kill: Kill | None) -> KillReport | None:
    """The fault as it was done; None where the run has none."""
    fault = run.fault
    if fault is None:
        return None
    evidence: Mapping[str, Any] = fault["evidence"] or {}
    survivors, gone = evidence.get("survivors"), evidence.get("gone_ns")
    interval = None if kill is None else kill.tight
    memory = evidence.get("gpu_memory")
    return KillReport(
        kind=fault["kind"],
        planned_s=Seconds.of(fault["planned_ns"]),
        fire_s=Seconds.of(kill.fire_ns) if kill else None,
        fire_lo_s=Seconds.of(interval.lo_ns) if interval else None,
        fire_hi_s=Seconds.of(interval.hi_ns) if interval else None,
        gone_after_s=Seconds.of(gone - kill.fire_ns) if kill and gone is not None else None,
        survivors=None if survivors is None else len(survivors),
        landed=kill is not None and _landed(fault, evidence),
        error=fault["error"],
        by=(fault.get("how") or {}).get("by"),
        stopped_s=_stopped(kill, evidence),
        shm_left=_shm_left(fault, evidence),
        port_closed=None if evidence.get("listens") is None else not evidence["listens"],
        gpu_memory_after=None if memory is None else tuple(tuple(row) for row in memory),
        after_error=fault.get("after_error"),
    )


def _landed(fault: Mapping[str, Any], evidence: Mapping[str, Any]) -> bool:
    if fault["kind"] == "stop":
        return bool(evidence.get("stopped")) and evidence.get("continued_ns") is not None
    return evidence.get("gone_ns") is not None


def _stopped(kill: Kill | None, evidence: Mapping[str, Any]) -> Seconds | None:
    at = evidence.get("continued_ns")
    return None if kill is None or at is None else Seconds.of(at - kill.fire_ns)


def _shm_left(fault: Mapping[str, Any], evidence: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Names in /dev/shm that were there before the fault and still are a second after."""
    before, after = (fault.get("before") or {}).get("shm"), evidence.get("shm")
    if before is None or after is None:
        return None
    return tuple(name for name in after if name in before and not name.startswith("percentes-fast"))


def why_not(run: StoredRun, fault: KillReport) -> str:
    """Why a fault did not land."""
    fire = run.fault["fire"] if run.fault else None
    if fault.error is not None:
        return fault.error
    if fire is None:
        return "it was not fired"
    if fire["errno"] != 0:
        return f"the kernel refused the signal (errno {fire['errno']})"
    if fault.after_error is not None:
        return fault.after_error
    return (
        "the process was not seen stopped and continued"
        if fault.kind == "stop"
        else "the process was not seen to go"
    )


def container_faults(run: StoredRun) -> Iterator[str]:
    """Why what the container engine said makes the run invalid."""
    fault = run.fault
    found = (fault or {}).get("container")
    if fault is None or not found or fault["fire"] is None:
        return
    before, after = found["before"], found["after"]
    if after is None:
        why = fault.get("after_error")
        yield "the container was not looked at after the load" + (f": {why}" if why else "")
    elif after["id"] != before["id"]:
        yield f"the container is another one after the load ({after['id'][:12]})"
    elif fault["kind"] == "kill_container" and after["restart_count"] <= before["restart_count"]:
        policy = before["restart_policy"] or "no"
        yield f"the container was not restarted by its policy ({policy}), only killed"


def nothing_happened(run: StoredRun, kill: Kill | None, rows: pd.DataFrame) -> bool:
    """Did a SIGKILL land on a process without anything happening at the target?

    Where streams of the target were open at the kill, none of its rows failed afterwards, and one
    of those streams went on to its end, what was killed was not its server.
    """
    fault = run.fault
    if kill is None or fault is None or run.manifest["victim"] != "server":
        return False
    if fault["kind"] not in ("kill", "kill_group", "kill_container"):
        return False
    victim = rows[(rows["target"] == "server") & rows["ended_ns"].notna()]
    after = victim[victim["ended_ns"] > kill.fire_ns]
    if (after["outcome"] != "completed").any():
        return False
    late = kill.fire_ns + kill.zone_ns + OUTLIVED_NS
    return bool(((after["headers_ns"] < kill.fire_ns) & (after["ended_ns"] > late)).any())


def clock_report(run: StoredRun, kill: Kill | None, host: HostClock | None) -> ClockReport | None:
    """How the host's clock was compared; None where there was no fault."""
    fault = run.fault
    if fault is None:
        return None
    told = fault.get("clock") or {}
    fire = fault["fire"] or {}
    fit = step = drift = bound = None
    if host is not None and fire:
        fit = host.clock.bounds(int(fire["before_ns"]), int(fire["after_ns"]))
        step = host.clock.step() if fit is None else None
        if host.after is not None:
            found = compat(0, 0, host.arm, host.after)
            drift, bound = found.drift_ns, found.bound_ns
    epoch = int(run.manifest["epoch_wall_ns"])
    dials = int((run.offsets["phase"] == "dial").sum())
    return ClockReport(
        host=str(fault.get("host", "this machine")),
        reader=told.get("reader"),
        samples=len(host.clock) if host else 0,
        dials=dials,
        round_trip_s=Seconds.maybe(kill.round_trip_ns) if kill else None,
        compat_offset_s=Seconds.of(host.arm.offset_ns - epoch) if host else None,
        compat_drift_s=Seconds.maybe(drift),
        compat_bound_s=Seconds.maybe(bound),
        offset_s=(Seconds.of(fit.lo_ns - epoch), Seconds.of(fit.hi_ns - epoch)) if fit else None,
        lost=told.get("lost"),
        burst_lost=bool(host and host.burst_lost),
        step=None
        if step is None
        else f"between {step.after_ns / SECOND:.3f} and {step.before_ns / SECOND:.3f} s",
    )


def notes(run: StoredRun, clock: ClockReport | None) -> Iterator[str]:
    """What a reader must know about how the fault was done and seen."""
    fault = run.fault
    if fault is None:
        return
    race = (fault.get("how") or {}).get("race")
    if race:
        yield f"the fault: {race}"
    if fault["fire"] is not None:
        late_ns = int(fault["fire"]["before_ns"]) - int(fault["planned_ns"])
        if late_ns > LATE_NS:
            late = f"{late_ns / SECOND:.3f} s after its plan"
            yield f"the fault came {late}, from which windows count"
    path = fault.get("path") or {}
    if path.get("proxied"):
        yield (
            f"behind a proxy ({path['proxied_because']}): the port that answers, and that is open"
            " on the host, is the proxy's; it may hold what it accepts until the server is back"
        )
    if clock is not None and clock.reader is not None and clock.burst_lost:
        yield "the burst of clock samples after the load is missing: compat's drift is of others"
    if clock is not None and clock.lost:
        yield f"clock samples ended early: {clock.lost}"
    if clock is not None and clock.step:
        yield f"the clock of {clock.host} (or this one's) stepped {clock.step}"
    if fault.get("log_lost"):
        yield f"the server's log was read to its end no more: {fault['log_lost']}"
    yield from _changed(fault.get("fingerprints") or {})
    if fault.get("after_error") and fault["fire"] is not None:
        yield f"after the fault: {fault['after_error']}"


def _changed(prints: Mapping[str, Any]) -> Iterator[str]:
    """What of the server is not what it was before the fault; GPUs are gate G5's."""
    before, after = prints.get("before") or {}, prints.get("after") or {}
    for key in ("server_version", "command", "kernel", "container_engine"):
        one, other = before.get(key), after.get(key)
        if one is not None and other is not None and one != other:
            yield f"{key.replace('_', ' ')}: {one!r} before, {other!r} after"
