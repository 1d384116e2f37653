"""Where the outage went: container, log lines and probes -> stages that sum to it exactly.

Never: invents a boundary. One that was not printed, or was printed out of order, is null with the
reason, and the stage of its neighbours spans it and says so. Only lines after the fire count, and
of several restarts only those of the one that served.
Plan: `_stamped` puts every log line on the run's clock; `restarts` finds the start that served;
the family's patterns find the boundaries in its lines; `_stages` lays the known marks end to end;
`_segments` are the published spans between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from percentes_fast.analysis import logpatterns, restarts
from percentes_fast.analysis.golden import MARKS, rfc3339_ns
from percentes_fast.analysis.kill import HostClock
from percentes_fast.analysis.windows import Seconds
from percentes_fast.rundir import TORN, StoredRun

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
    boundaries: tuple[restarts.Boundary, ...]
    log_figures: dict[str, float]
    die_to_start_s: Seconds | None


def decompose(run: StoredRun, moments: restarts.Moments, host: HostClock | None) -> Decomposition:
    """The restart of a stored run whose fault was done."""
    lines = list(_stamped(run, host))
    after = [line for line in lines if line.at_ns >= moments.fire_ns]
    family = _family(run, lines)
    restart = restarts.restart(run, after, moments, host)
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
        die_to_start_s=Seconds.maybe(restarts.die_to_start(run.fault)),
    )


# ---------------------------------------------------------------- the log


def _stamped(run: StoredRun, host: HostClock | None) -> Iterator[restarts.Line]:
    epoch = int(run.manifest["epoch_monotonic_ns"])
    for number, (stamp, mark, text) in enumerate(run.log, 1):
        if mark == TORN:
            continue
        if mark != "d":
            yield restarts.Line(number, stamp - epoch, stamp, mark, text)
        elif host is not None:
            yield restarts.Line(number, stamp - host.arm.offset_ns, stamp, mark, text)


def _family(run: StoredRun, lines: list[restarts.Line]) -> logpatterns.Family | None:
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
    torn = sum(
        mark == TORN or (mark == "s" and not restarts.event(text)) for _, mark, text in run.log
    )
    if torn:
        yield f"lines of server.log that were cut, as a full disk does, and do not count: {torn}"


def _matches(
    family: logpatterns.Family | None, after: list[restarts.Line], restart: restarts.Restart
) -> tuple[dict[str, logpatterns.Match], dict[str, restarts.Boundary]]:
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
        beside[key] = restarts.absent(key, "log", why)
    return logpatterns.match(family, own), beside


def _log_boundaries(
    matches: Mapping[str, logpatterns.Match],
    after: list[restarts.Line],
    moments: restarts.Moments,
    host: HostClock | None,
) -> dict[str, restarts.Boundary]:
    by_number = {line.number: line for line in after}
    return {
        key: _of_line(by_number[match.line], match, moments.fire_ns, host)
        for key, match in matches.items()
    }


def _of_line(
    line: restarts.Line, match: logpatterns.Match, fire_ns: int, host: HostClock | None
) -> restarts.Boundary:
    sure = (line.at_ns, line.at_ns) if line.mark != "d" else restarts.bounds(line.stamp_ns, host)
    return restarts.boundary(
        match.key, line.at_ns, sure, fire_ns, "log", line=line, figures=match.figures
    )


# ---------------------------------------------------------------- container, supervisor, probes


def _known(moments: restarts.Moments, restarted: restarts.Boundary) -> dict[str, restarts.Boundary]:
    """Boundaries that no log line gives."""
    found = {restarts.START: restarted}
    for key, source, at, why in (
        ("kill", "fire", moments.fire_ns, ""),
        ("replica_ready", "probe", moments.ready_ns, "no probe failed and then succeeded"),
        ("traffic_restored", "probe", moments.traffic_ns, "one replica addressed directly"),
        ("goodput_restored", "client", moments.restored_ns, "goodput was not restored"),
    ):
        if at is None:
            found[key] = restarts.absent(key, source, why)
        else:
            found[key] = restarts.boundary(key, at, (at, at), moments.fire_ns, source)
    return found


# ---------------------------------------------------------------- end to end


def _ordered(found: dict[str, restarts.Boundary]) -> tuple[list[str], dict[str, restarts.Boundary]]:
    """Marks that are known and in order; all boundaries, those out of order with the reason."""
    boundaries = dict(found)
    ready = found["replica_ready"].at_ns
    marks: list[str] = []
    latest: int | None = None
    for key in MARKS:
        one = boundaries.setdefault(key, restarts.absent(key, "log", "no such line after the fire"))
        if one.at_ns is None:
            continue
        late = ready is not None and one.at_ns > ready
        if late or (latest is not None and one.at_ns < latest):
            where = "after replica_ready" if late else f"before {marks[-1]}"
            why = f"lies {where}: out of order"
            boundaries[key] = restarts.Boundary(
                *(key, None, None, None, one.source, one.line, one.text, one.figures),
                *(why, None, one.stamp_ns),
            )
            continue
        marks.append(key)
        latest = one.at_ns
    return marks, boundaries


def _stages(
    marks: Sequence[str], boundaries: Mapping[str, restarts.Boundary], restart: restarts.Restart
) -> Iterator[Stage]:
    for start, end in pairwise(marks):
        first, last = boundaries[start].at_ns, boundaries[end].at_ns
        assert first is not None and last is not None
        spans = MARKS[MARKS.index(start) + 1 : MARKS.index(end)]
        notes = [f"{key} is not known: {boundaries[key].reason}" for key in spans]
        notes += restart.notes if end == restarts.START else ()
        yield Stage(f"{start}..{end}", Seconds.of(last - first), spans, "; ".join(notes) or None)


def _segments(boundaries: Mapping[str, restarts.Boundary]) -> Iterator[Segment]:
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
