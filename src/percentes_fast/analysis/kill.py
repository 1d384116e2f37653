"""The kill of a stored run, as each rule sees it; the clock of the server's host.

Never: reads anything but the run directory's facts.
Plan: `host_clock` makes the samples (of offsets.parquet, or this machine's own clock pairs) into a
Clock; `find` puts the kill's readings on the run's clock under compat, tight and bracket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from percentes_fast.analysis import clockfit
from percentes_fast.analysis.inflight import Interval, Kill, first_consequence
from percentes_fast.rundir import StoredRun

LAST = 20  # samples, as many as a burst
COMPAT = "the published rule: the offset at arm, its drift and the larger bound of two bursts"
BRACKET = (
    "judged where answers arrive: L is when the order was written{R}, U the first sign of the kill;"
    " a cut inside [L, U] is assumed to be the kill's"
)


@dataclass(frozen=True, slots=True)
class HostClock:
    """The host's clock against the run's: its samples, and the offset at arm that compat uses.

    after: None where this machine is the host, or nothing was sampled after the fire; burst_lost:
    it is of other samples than the burst after the load.
    """

    clock: clockfit.Clock
    arm: clockfit.Offset
    after: clockfit.Offset | None
    burst_lost: bool = False


def host_clock(run: StoredRun) -> HostClock | None:
    """The clock that container, log and killer times of a run are on; None without a sample."""
    if run.fault is None or run.fault.get("same_clock", True):
        return _own_clock(run)
    samples = run.offsets[run.offsets["phase"] != "dial"]
    arm = clockfit.shortest(samples[samples["phase"] == "arm"])
    if arm is None:
        return None
    after = clockfit.shortest(samples[samples["phase"] == "after"])
    if after is None:  # the burst was lost: what was sampled last stands for it
        late = samples[(samples["phase"] != "arm") & (samples["before_ns"] > _order_ns(run.fault))]
        after = clockfit.shortest(late.nlargest(LAST, "before_ns"))
        return HostClock(clockfit.Clock(samples), arm, after, burst_lost=True)
    return HostClock(clockfit.Clock(samples), arm, after)


def _order_ns(fault: Mapping[str, Any]) -> int:
    fire = fault["fire"]
    return int(fault["planned_ns"] if fire is None else fire["before_ns"])


def _own_clock(run: StoredRun) -> HostClock | None:
    """This machine's wall clock: the pair nearest to the fault stands for the offset at arm."""
    pairs = run.clocks.rename(columns={"realtime_wall_ns": "remote_wall_ns"})
    pairs = pairs.assign(resolution_ns=1)
    if len(pairs) == 0:
        return None
    planned = int(run.fault["planned_ns"]) if run.fault else 0
    nearest = (pairs["before_ns"] - planned).abs().idxmin()
    one = clockfit.shortest(pairs.loc[[nearest]])
    assert one is not None
    return HostClock(clockfit.Clock(pairs), one, None)


def find(run: StoredRun, rows: pd.DataFrame, host: HostClock | None) -> Kill | None:
    """The kill, None where none was done. rows: judged rows of all kinds."""
    fire = run.fault["fire"] if run.fault else None
    if fire is None or fire["errno"] != 0:
        return None
    assert run.fault is not None
    victim = rows[rows["target"] == run.manifest.get("victim", "server")]
    remote = fire.get("remote")
    if remote is None:
        dials = victim["connect_ns"].dropna()
        trip = int(dials.min()) if len(dials) else None
        return _without_bracket_behind_a_proxy(
            Kill.here(int(fire["before_ns"]), int(fire["after_ns"]), trip), run.fault
        )
    return _remote(run, victim, host, remote)


def _without_bracket_behind_a_proxy(kill: Kill, fault: Mapping[str, Any]) -> Kill:
    why = _no_bracket(fault.get("path"))
    return kill if why is None else replace(kill, bracket=None, bracket_note=why)


def _no_bracket(path: Mapping[str, Any] | None) -> str | None:
    """Why the bracket does not apply: what answers TCP by itself hides the kill's arrival."""
    if path is None:
        return None
    if path["jump"]:
        return "not applicable: the order went through a jump host"
    if path["proxied"]:
        return f"not applicable behind a proxy: {path['proxied_because']}"
    return None


def _remote(
    run: StoredRun, victim: pd.DataFrame, host: HostClock | None, remote: Mapping[str, Any]
) -> Kill:
    """A kill by a killer on another host."""
    assert run.fault is not None
    fire = run.fault["fire"]
    order = int(fire["before_ns"]), int(fire["after_ns"])
    readings = int(remote["before_remote_wall_ns"]), int(remote["after_remote_wall_ns"])
    published = None
    if host is not None:
        published = clockfit.compat(*readings, host.arm, host.after or _drifted(host.arm, order))
    found = clockfit.tight(
        host.clock if host else clockfit.Clock(run.offsets.iloc[:0]),
        readings,
        int(remote["resolution_ns"]),
        order,
        published,
    )
    trips = run.offsets["round_trip_ns"].dropna()
    trip = int(trips.min()) if len(trips) else None
    shortest = _shortest(run.offsets, victim, trip, order[1] - order[0])
    bracket, why = _bracket(run.fault, victim, order, shortest)
    if published is None:
        middle, known = sum(order) // 2, (order[1] - order[0]) // 2
        note = "no clock sample: the middle between the order and its answer"
    else:
        middle, known = published.fire_ns, published.uncertainty_ns
        note = COMPAT
        if host is not None and host.after is None:
            note += "; nothing was sampled after the fire: a drift of 500 ppm since arming is taken"
        elif host is not None and host.burst_lost:
            note += "; the burst after the load was lost: the last samples stand for it"
    return Kill(
        fire_ns=middle,
        uncertainty_ns=known,
        zone_ns=known if published is None else published.zone_ns,
        compat_note=note,
        tight=Interval(found.lo_ns, found.hi_ns, found.note),
        bracket=bracket,
        bracket_note=why,
        round_trip_ns=trip,
    )


def _shortest(
    offsets: pd.DataFrame, victim: pd.DataFrame, trip: int | None, order_trip: int
) -> int | None:
    """The shortest round trip that anything showed: L must not be later than the first sign could
    come, and of a jittering path a few dials alone have not seen the shortest.

    None without a fresh connection.
    """
    if trip is None:
        return None
    clock = offsets[offsets["phase"] != "dial"]
    seen = (
        clock["after_ns"] - clock["before_ns"],
        victim["connect_ns"],
        victim["acked_kernel_ns"] - victim["sent_kernel_ns"],
    )
    known = [int(trips.min()) for each in seen if len(trips := each[each > 0].dropna())]
    return min([trip, order_trip, *known])


def _drifted(arm: clockfit.Offset, order: clockfit.Bounds) -> clockfit.Offset:
    """What the offset may have become by the answer, where nothing was sampled since arming."""
    drift = (order[1] - arm.at_ns) * clockfit.RATE_PPM // 1_000_000 + 1
    return clockfit.Offset(arm.offset_ns + drift, arm.bound_ns, 0, order[1])


def _bracket(
    fault: Mapping[str, Any], victim: pd.DataFrame, order: clockfit.Bounds, trip: int | None
) -> tuple[Interval | None, str]:
    path = fault.get("path") or {"jump": False, "proxied": False, "same_path": False}
    why = _no_bracket(path)
    if why is not None:
        return None, why
    shared = bool(path["same_path"]) and trip is not None
    lower = order[0] + (trip or 0) * shared
    seen = first_consequence(victim, lower)
    if path["same_path"]:
        seen = order[1] if seen is None else min(seen, order[1])
    if seen is None:
        return None, "not applicable: the kill had no consequence that a client saw"
    apart = "R is not known" if path["same_path"] else "R is not added: another path"
    note = BRACKET.format(R=" + R" if shared else f" ({apart})")
    return Interval(lower, max(seen, lower), note), note
