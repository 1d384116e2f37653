"""Where the outage went: container, log lines and probes -> stages that sum to it exactly.

Never: invents a boundary. One that was not printed, or was printed out of order, is null with the
reason, and the stage of its neighbours spans it and says so. Only lines after the fire count, and
of several restarts only those of the one that served.
Plan: `_stamped` puts every log line on the run's clock; `_restart` finds the start that served; the
family's patterns find the boundaries in its lines; `_stages` lays the known marks end to end;
`_segments` are the published spans between them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from percentes_fast.analysis import clockfit, logpatterns
from percentes_fast.analysis.golden import MARKS, rfc3339_ns
from percentes_fast.analysis.kill import HostClock
from percentes_fast.analysis.windows import Seconds
from percentes_fast.rundir import TORN, StoredRun

START = "container_start"  # of a supervised command too
UNSUPERVISED = "no container, and no supervisor that started the server again"
# published name: (source, from, to)
SEGMENTS: tuple[tuple[str, str, str, str], ...] = (
    ("container_start", "api", "kill", "container_start"),
    ("log_bringup", "log", "banner", "server_start"),
    ("engine_init", "log", "kill", "engine_init"),
    ("weight_download", "log", "model_load_start", "weight_download"),
    ("weight_load", "log", "model_load_start", "weights_loaded"),
    ("torch_compile", "log", "model_loaded", "torch_compile"),
    ("profile_kv_capture", "log", "torch_compile", "graph_capture"),
    ("engine_ready", "log", "kill", "engine_ready"),
    ("server_ready", "log", "kill", "startup_complete"),
    ("replica_ready", "probe", "kill", "replica_ready"),
    ("traffic_restored", "probe", "kill", "traffic_restored"),
    ("goodput_restored", "client", "kill", "goodput_restored"),
)


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
class Stage:
    """One stage between two neighbouring known boundaries; `spans` those that are not known."""

    name: str
    s: Seconds
    spans: tuple[str, ...]
    note: str | None


@dataclass(frozen=True, slots=True)
class Segment:
    """A published span between two boundaries, in seconds after the fire."""

    name: str
    source: str
    measured: bool
    start_s: Seconds | None
    end_s: Seconds | None
    s: Seconds | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Stages, boundaries and printed figures of one restart.

    stages: back to back from the kill to replica_ready, their sum is the outage to the ns; empty
    where the replica was not seen ready, for the reason given. unverified: boundaries whose pattern
    was read in a release, but confirmed by no real log. family_note: what a reader must know of the
    log and of the patterns that were used.
    """

    family: str | None
    family_note: str | None
    unverified: tuple[str, ...]
    stages: tuple[Stage, ...]
    reason: str | None
    segments: tuple[Segment, ...]
    boundaries: tuple[Boundary, ...]
    log_figures: dict[str, float]
    die_to_start_s: Seconds | None


@dataclass(frozen=True, slots=True)
class Moments:
    """What else is known of the restart, in ns of run time; None: it was not seen."""

    fire_ns: int
    ready_ns: int | None
    traffic_ns: int | None
    restored_ns: int | None


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    at_ns: int
    stamp_ns: int
    mark: str
    text: str


@dataclass(frozen=True, slots=True)
class _Restart:
    """The start that counts, or why there is none; its log lines lie in [begin, end)."""

    start: Boundary
    begin_ns: int
    end_ns: int | None  # the next start; None: there was none
    notes: tuple[str, ...] = ()


def decompose(run: StoredRun, moments: Moments, host: HostClock | None) -> Decomposition:
    """The restart of a stored run whose fault was done."""
    lines = list(_stamped(run, host))
    after = [line for line in lines if line.at_ns >= moments.fire_ns]
    family = _family(run, lines)
    restart = _restart(run, after, moments, host)
    matches, beside = _matches(family, after, restart)
    found = _known(moments, restart.start)
    found |= beside | _log_boundaries(matches, after, moments, host)
    unverified = [key for key, match in matches.items() if not match.verified]
    marks, boundaries = _ordered(found)
    figures = {name: value for b in boundaries.values() for name, value in b.figures.items()}
    ready = boundaries["replica_ready"].at_ns
    return Decomposition(
        family=family.name if family else None,
        family_note="; ".join(_family_notes(run, family)) or None,
        unverified=tuple(sorted(unverified)),
        stages=tuple(_stages(marks, boundaries, restart)) if ready is not None else (),
        reason=None if ready is not None else boundaries["replica_ready"].reason,
        segments=tuple(_segments(boundaries)),
        boundaries=tuple(boundaries.values()),
        log_figures=figures,
        die_to_start_s=Seconds.maybe(_die_to_start(run.fault)),
    )


# ---------------------------------------------------------------- the log


def _stamped(run: StoredRun, host: HostClock | None) -> Iterator[_Line]:
    epoch = int(run.manifest["epoch_monotonic_ns"])
    for number, (stamp, mark, text) in enumerate(run.log, 1):
        if mark == TORN:
            continue
        if mark != "d":
            yield _Line(number, stamp - epoch, stamp, mark, text)
        elif host is not None:
            yield _Line(number, stamp - host.arm.offset_ns, stamp, mark, text)


def _family(run: StoredRun, lines: list[_Line]) -> logpatterns.Family | None:
    name = run.manifest["config"].get("log", {}).get("family", "auto")
    if name != "auto":
        return logpatterns.by_name(name)
    return logpatterns.detect([line.text for line in lines if line.mark != "s"])


def _family_notes(run: StoredRun, family: logpatterns.Family | None) -> Iterator[str]:
    """What a reader must know of the log and of the patterns that were used."""
    if family is None:
        yield "no known server family in the log: no stage comes from it"
    elif family.assumed:
        told = "its version was not told" if family.version is None else f"it says {family.version}"
        yield f"{told}; the patterns of {family.family} {family.versions} are assumed"
    torn = sum(mark == TORN or (mark == "s" and not _event(text)) for _, mark, text in run.log)
    if torn:
        yield f"lines of server.log that were cut, as a full disk does, and do not count: {torn}"


def _matches(
    family: logpatterns.Family | None, after: list[_Line], restart: _Restart
) -> tuple[dict[str, logpatterns.Match], dict[str, Boundary]]:
    """In the lines of the start that counts; null boundaries of lines that other starts printed."""
    if family is None:
        return {}, {}
    begin, end = restart.begin_ns, restart.end_ns
    own: list[tuple[int, int, str]] = []
    others: list[tuple[int, int, str]] = []
    for line in after:
        if line.mark != "s":
            within = begin <= line.at_ns and (end is None or line.at_ns < end)
            (own if within else others).append((line.number, line.at_ns, line.text))
    beside = {}
    for key, match in logpatterns.match(family, others).items():
        where = "before container_start" if match.stamp_ns < begin else "after the next start"
        why = f"line {match.line} lies {where}: out of order"
        beside[key] = _absent(key, "log", why)
    return logpatterns.match(family, own), beside


def _log_boundaries(
    matches: Mapping[str, logpatterns.Match],
    after: list[_Line],
    moments: Moments,
    host: HostClock | None,
) -> dict[str, Boundary]:
    by_number = {line.number: line for line in after}
    return {
        key: _of_line(by_number[match.line], match, moments.fire_ns, host)
        for key, match in matches.items()
    }


def _of_line(
    line: _Line, match: logpatterns.Match, fire_ns: int, host: HostClock | None
) -> Boundary:
    sure = (line.at_ns, line.at_ns) if line.mark != "d" else _bounds(line.stamp_ns, host)
    return _boundary(match.key, line.at_ns, sure, fire_ns, "log", line=line, figures=match.figures)


def _bounds(stamp_ns: int, host: HostClock | None) -> clockfit.Bounds | None:
    return None if host is None else clockfit.foreign(host.clock, stamp_ns, host.arm)


def _boundary(
    key: str,
    at_ns: int,
    sure: clockfit.Bounds | None,
    fire_ns: int,
    source: str,
    *,
    line: _Line | None = None,
    figures: Mapping[str, float] | None = None,
    stamp_ns: int | None = None,
) -> Boundary:
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


def _absent(key: str, source: str, reason: str) -> Boundary:
    return Boundary(key, None, None, None, source, None, None, {}, reason, None, None)


# ---------------------------------------------------------------- container, supervisor, probes


def _restart(
    run: StoredRun, after: list[_Line], moments: Moments, host: HostClock | None
) -> _Restart:
    """The start that served again: the last one that does not lie after replica-ready.

    Where none does, or nothing was seen ready: what the container, or the first start, says.
    """
    found = run.fault.get("container") if run.fault else None
    if found is None:
        starts = _supervised(after, moments.fire_ns)
        told = starts[0] if starts else _absent(START, "api", UNSUPERVISED)
    else:
        starts = _container_starts(found, moments.fire_ns, host)
        told = _container_start(found["after"], moments.fire_ns, host)
    ready = moments.ready_ns
    if ready is None:
        return _Restart(told, moments.fire_ns, None)
    served = [each for each in starts if _at(each) <= ready]
    later = [_at(each) for each in starts[len(served) :]]
    end = later[0] if later else None
    if not served:
        return _Restart(told, moments.fire_ns, end)
    notes = []
    restarts = len(served) if found is None else _restarts(found, len(served))
    if restarts > 1:
        notes.append(f"{restarts} restarts before it served: the last of them counts")
    if found is not None and served[-1].stamp_ns != told.stamp_ns:
        notes.append("timed by its start event, which came after the start itself")
    return _Restart(served[-1], _at(served[-1]), end, tuple(notes))


def _at(start: Boundary) -> int:
    assert start.at_ns is not None
    return start.at_ns


def _supervised(after: list[_Line], fire_ns: int) -> list[Boundary]:
    """Every start after the fire, in the order of time."""
    events = ((line.at_ns, _event(line.text)) for line in after if line.mark == "s")
    told = sorted(at for at, event in events if event.get("event") == "started")
    return [_boundary(START, at, (at, at), fire_ns, "supervisor") for at in told]


def _event(text: str) -> dict[str, Any]:
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
        return _absent(START, "api", "the container was not looked at after the load")
    stamp = rfc3339_ns(state["started_at"], whole=True)
    if stamp is None or host is None:
        return _absent(START, "api", "its start has no time that the clocks can place")
    if stamp - host.arm.offset_ns < fire_ns:
        return _absent(START, "api", "the container was not restarted")
    return _at_start(stamp, fire_ns, host)


def _at_start(stamp: int, fire_ns: int, host: HostClock) -> Boundary:
    at = stamp - host.arm.offset_ns
    return _boundary(START, at, _bounds(stamp, host), fire_ns, "api", stamp_ns=stamp)


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


def _known(moments: Moments, restarted: Boundary) -> dict[str, Boundary]:
    """Boundaries that no log line gives."""
    found = {START: restarted}
    for key, source, at, why in (
        ("kill", "fire", moments.fire_ns, ""),
        ("replica_ready", "probe", moments.ready_ns, "no probe failed and then succeeded"),
        ("traffic_restored", "probe", moments.traffic_ns, "one replica addressed directly"),
        ("goodput_restored", "client", moments.restored_ns, "goodput was not restored"),
    ):
        if at is None:
            found[key] = _absent(key, source, why)
        else:
            found[key] = _boundary(key, at, (at, at), moments.fire_ns, source)
    return found


def _die_to_start(fault: Mapping[str, Any] | None) -> int | None:
    """From the first die event to the next start event, by the container engine's own clock."""
    found = (fault or {}).get("container") or {}
    died: int | None = None
    for event in found.get("events") or []:
        if event["action"] == "die" and died is None:
            died = int(event["at_remote_wall_ns"])
        elif event["action"] == "start" and died is not None:
            return int(event["at_remote_wall_ns"]) - died
    return None


# ---------------------------------------------------------------- end to end


def _ordered(found: dict[str, Boundary]) -> tuple[list[str], dict[str, Boundary]]:
    """Marks that are known and in order; all boundaries, those out of order with the reason."""
    boundaries = dict(found)
    ready = found["replica_ready"].at_ns
    marks: list[str] = []
    latest: int | None = None
    for key in MARKS:
        one = boundaries.setdefault(key, _absent(key, "log", "no such line after the fire"))
        if one.at_ns is None:
            continue
        late = ready is not None and one.at_ns > ready
        if late or (latest is not None and one.at_ns < latest):
            where = "after replica_ready" if late else f"before {marks[-1]}"
            why = f"lies {where}: out of order"
            boundaries[key] = Boundary(
                *(key, None, None, None, one.source, one.line, one.text, one.figures),
                *(why, None, one.stamp_ns),
            )
            continue
        marks.append(key)
        latest = one.at_ns
    return marks, boundaries


def _stages(
    marks: Sequence[str], boundaries: Mapping[str, Boundary], restart: _Restart
) -> Iterator[Stage]:
    for start, end in pairwise(marks):
        first, last = boundaries[start].at_ns, boundaries[end].at_ns
        assert first is not None and last is not None
        spans = MARKS[MARKS.index(start) + 1 : MARKS.index(end)]
        notes = [f"{key} is not known: {boundaries[key].reason}" for key in spans]
        notes += restart.notes if end == START else ()
        yield Stage(f"{start}..{end}", Seconds.of(last - first), spans, "; ".join(notes) or None)


def _segments(boundaries: Mapping[str, Boundary]) -> Iterator[Segment]:
    for name, source, start, end in SEGMENTS:
        first, last = boundaries.get(start), boundaries.get(end)
        if first is None or last is None or first.at_ns is None or last.at_ns is None:
            key, one = (end, last) if first and first.at_ns is not None else (start, first)
            why = f"{key}: {one.reason if one else 'no such line after the fire'}"
            yield Segment(name, source, False, None, None, None, why)
        else:
            span = Seconds.of(last.at_ns - first.at_ns)
            yield Segment(name, source, True, first.at_s, last.at_s, span, None)


# ---------------------------------------------------------------- a cold start


def cold_start(text: str) -> tuple[tuple[str, Seconds], ...]:
    """Stages of a cold start's log: (name, seconds) from its first stamped line on.

    Lines begin with an RFC 3339 time (a container engine's) or with ns since the Unix epoch. Empty
    where no boundary is recognised.
    """
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        stamp, _, rest = line.partition(" ")
        at = int(stamp) if stamp.isascii() and stamp.isdigit() else rfc3339_ns(stamp, whole=True)
        if at is not None:
            lines.append((number, at, rest))
    family = logpatterns.detect([rest for _, _, rest in lines])
    if family is None or not lines:
        return ()
    found = {key: match.stamp_ns for key, match in logpatterns.match(family, lines).items()}
    marks = [("start", lines[0][1])]
    for key in (*MARKS, "startup_complete"):
        if key in found and found[key] >= marks[-1][1]:
            marks.append((key, found[key]))
    return tuple(
        (f"{one}..{other}", Seconds.of(end - start))
        for (one, start), (other, end) in pairwise(marks)
    )
