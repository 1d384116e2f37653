"""When the server was started again: by its container's engine, or by the supervisor.

Never: takes a start that did not serve for the one that did, or places a time that no clock can.
Plan: a boundary is one moment of the restart; every start after the fire is one; of several the
last one at or before replica-ready counts, and only the log lines from it to the next one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from percentes_fast.analysis import clockfit
from percentes_fast.analysis.golden import rfc3339_ns
from percentes_fast.analysis.kill import HostClock
from percentes_fast.analysis.windows import Seconds
from percentes_fast.rundir import StoredRun

START = "container_start"  # of a supervised command too
UNSUPERVISED = "no container, and no supervisor that started the server again"


@dataclass(frozen=True, slots=True)
class Boundary:
    """One moment of the restart, in seconds after the fire; where it comes from, or why it is not.

    lo_s, hi_s: what all clock samples prove of it; None where its clock is not known. line counts
    from 1 in server.log.
    """

    key: str
    at_s: Seconds | None
    lo_s: Seconds | None
    hi_s: Seconds | None
    source: str
    line: int | None
    text: str | None
    figures: dict[str, float]
    reason: str | None
    at_ns: int | None  # run time
    stamp_ns: int | None  # as its reader stamped it


@dataclass(frozen=True, slots=True)
class Moments:
    """What else is known of the restart, in ns of run time; None: it was not seen."""

    fire_ns: int
    ready_ns: int | None
    traffic_ns: int | None
    restored_ns: int | None


@dataclass(frozen=True, slots=True)
class Line:
    """A stamped line of server.log; at_ns: run time, stamp_ns: as its reader stamped it."""

    number: int
    at_ns: int
    stamp_ns: int
    mark: str
    text: str


@dataclass(frozen=True, slots=True)
class Restart:
    """The start that counts, or why there is none; its log lines lie in [begin, end)."""

    start: Boundary
    begin_ns: int
    end_ns: int | None  # the next start; None: there was none
    notes: tuple[str, ...] = ()


def bounds(stamp_ns: int, host: HostClock | None) -> clockfit.Bounds | None:
    """What all clock samples prove of a time of the host's, in run time."""
    return None if host is None else clockfit.foreign(host.clock, stamp_ns, host.arm)


def boundary(
    key: str,
    at_ns: int,
    sure: clockfit.Bounds | None,
    fire_ns: int,
    source: str,
    *,
    line: Line | None = None,
    figures: Mapping[str, float] | None = None,
    stamp_ns: int | None = None,
) -> Boundary:
    """A moment that is known; sure: what the clock samples prove of it."""
    return Boundary(
        key=key,
        at_s=Seconds.of(at_ns - fire_ns),
        lo_s=None if sure is None else Seconds.of(sure[0] - fire_ns),
        hi_s=None if sure is None else Seconds.of(sure[1] - fire_ns),
        source=source,
        line=line.number if line else None,
        text=line.text.rstrip("\r") if line else None,
        figures=dict(figures or {}),
        reason=None,
        at_ns=at_ns,
        stamp_ns=line.stamp_ns if line else stamp_ns,
    )


def absent(key: str, source: str, reason: str) -> Boundary:
    """A moment that is not known, and why."""
    return Boundary(key, None, None, None, source, None, None, {}, reason, None, None)


def restart(run: StoredRun, after: list[Line], moments: Moments, host: HostClock | None) -> Restart:
    """The start that served again: the last one that does not lie after replica-ready.

    Where none does, or nothing was seen ready: what the container, or the first start, says.
    """
    found = run.fault.get("container") if run.fault else None
    if found is None:
        starts = _supervised(after, moments.fire_ns)
        told = starts[0] if starts else absent(START, "api", UNSUPERVISED)
    else:
        starts = _container_starts(found, moments.fire_ns, host)
        told = _container_start(found["after"], moments.fire_ns, host)
    ready = moments.ready_ns
    if ready is None:
        return Restart(told, moments.fire_ns, None)
    served = [each for each in starts if _at(each) <= ready]
    later = [_at(each) for each in starts[len(served) :]]
    end = later[0] if later else None
    if not served:
        return Restart(told, moments.fire_ns, end)
    notes = []
    restarts = len(served) if found is None else _restarts(found, len(served))
    if restarts > 1:
        notes.append(f"{restarts} restarts before it served: the last of them counts")
    if found is not None and served[-1].stamp_ns != told.stamp_ns:
        notes.append("timed by its start event, which came after the start itself")
    return Restart(served[-1], _at(served[-1]), end, tuple(notes))


def _at(start: Boundary) -> int:
    assert start.at_ns is not None
    return start.at_ns


def _supervised(after: list[Line], fire_ns: int) -> list[Boundary]:
    """Every start after the fire, in the order of time."""
    events = ((line.at_ns, event(line.text)) for line in after if line.mark == "s")
    told = sorted(at for at, event in events if event.get("event") == "started")
    return [boundary(START, at, (at, at), fire_ns, "supervisor") for at in told]


def event(text: str) -> dict[str, Any]:
    """What the supervisor told; empty where a full disk cut the line."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(text), dict):
            return found
    return {}


def _container_start(
    state: Mapping[str, Any] | None, fire_ns: int, host: HostClock | None
) -> Boundary:
    """Its last start, by its state after the load."""
    if state is None:
        return absent(START, "api", "the container was not looked at after the load")
    stamp = rfc3339_ns(state["started_at"], whole=True)
    if stamp is None or host is None:
        return absent(START, "api", "its start has no time that the clocks can place")
    if stamp - host.arm.offset_ns < fire_ns:
        return absent(START, "api", "the container was not restarted")
    return _at_start(stamp, fire_ns, host)


def _at_start(stamp: int, fire_ns: int, host: HostClock) -> Boundary:
    at = stamp - host.arm.offset_ns
    return boundary(START, at, bounds(stamp, host), fire_ns, "api", stamp_ns=stamp)


def _container_starts(
    found: Mapping[str, Any], fire_ns: int, host: HostClock | None
) -> list[Boundary]:
    """Every start after the fire, by the stored events; the last has its own time.

    The engine tells of a start after it: 0.25 to 0.28 s in the published runs.
    """
    if host is None:
        return []
    events = found.get("events") or []
    told = {int(one["at_remote_wall_ns"]) for one in events if one["action"] == "start"}
    state = found["after"]
    last = rfc3339_ns(state["started_at"], whole=True) if state else None
    if last is not None:
        told -= set(sorted(at for at in told if at >= last)[:1])
        told.add(last)
    return [
        _at_start(stamp, fire_ns, host)
        for stamp in sorted(told)
        if stamp - host.arm.offset_ns >= fire_ns
    ]


def _restarts(found: Mapping[str, Any], seen: int) -> int:
    """How many there were; the engine's own count where its events are not known."""
    if found.get("events") is not None or found["after"] is None:
        return seen
    return int(found["after"]["restart_count"]) - int(found["before"]["restart_count"])


def die_to_start(fault: Mapping[str, Any] | None) -> int | None:
    """From the first die event to the next start event, by the container engine's own clock."""
    found = (fault or {}).get("container") or {}
    died: int | None = None
    for event in found.get("events") or []:
        if event["action"] == "die" and died is None:
            died = int(event["at_remote_wall_ns"])
        elif event["action"] == "start" and died is not None:
            return int(event["at_remote_wall_ns"]) - died
    return None
