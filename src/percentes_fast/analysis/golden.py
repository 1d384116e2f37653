"""Reads a published campaign file and rebuilds each run's timeline from its raw clock readings.

Never: a figure taken from a field it is meant to check, a default for a key that is not
there, or an error that does not say where in the file it is.
Plan: `load` gives a `Node`, a cursor that knows its JSON path and hands out checked types.
`timeline` turns the kill's remote clock readings, the offset samples, the container state and
the time stamps inside the matched log lines into integer nanoseconds on the client's clock
(SPEC section 6, Compat; section 7 for the stages). `log_figures` parses the numbers a server
printed, from the text of the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn, TypeVar

from percentes_fast.errors import DataError

SCHEMA_VERSION = 1
NS_PER_S = 1_000_000_000
LATE = "late"  # gate that does not apply to a run whose kill came after its plan
CHAIN = "chain"  # gate that does not apply to a run before which something outside the file lies
MARKS = (
    "kill",
    "container_start",
    "banner",
    "engine_init",
    "model_loaded",
    "torch_compile",
    "graph_capture",
    "server_start",
    "replica_ready",
)
_N = TypeVar("_N", int, float)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")
_NUMBER = r"(\d+(?:\.\d+)?)"
# Wording of the release the published campaign ran (vLLM 0.29.0), as its own log lines show it.
_FIGURES: Mapping[str, tuple[re.Pattern[str], tuple[str, ...]]] = MappingProxyType(
    {
        "engine_ready": (
            re.compile(rf"took {_NUMBER} s \(compilation: {_NUMBER} s\)"),
            ("init_engine_s", "init_engine_compilation_s"),
        ),
        "graph_capture": (
            re.compile(rf"finished in {_NUMBER} secs, took {_NUMBER} GiB"),
            ("graph_capture_s", "graph_capture_gib"),
        ),
        "model_loaded": (
            re.compile(rf"took {_NUMBER} GiB memory and {_NUMBER} seconds"),
            ("model_loaded_gib", "model_loaded_s"),
        ),
        "torch_compile": (re.compile(rf"took {_NUMBER} s in total"), ("torch_compile_s",)),
        "weights_loaded": (re.compile(rf"took {_NUMBER} seconds"), ("weights_loaded_s",)),
    }
)


@dataclass(frozen=True)
class Node:
    """One value of a published file together with its JSON path.

    `label` is the path with array elements called by their own name where they have one.
    Every accessor raises `DataError` naming the file, the path and the remedy when the key is
    missing or the value has another type than the published schema gives it.
    """

    value: object
    path: str
    source: str
    label: str = ""

    def fail(self, problem: str) -> NoReturn:
        """Raise the one-line `DataError` for this place in the file."""
        where = self.path or "top level"
        raise DataError(f"{self.source}: {where}: {problem}; fetch the published file again")

    def at(self, *keys: str) -> Node:
        """Follow object keys; a missing one is an error that names it."""
        node = self
        for key in keys:
            members = node._members()
            if key not in members:
                node.fail(f"missing key {key!r}")
            node = node._member(key, members[key])
        return node

    def has(self, key: str) -> bool:
        """Say whether this object holds `key`."""
        return key in self._members()

    def fields(self) -> dict[str, Node]:
        """Give the members of an object, in file order."""
        return {key: self._member(key, value) for key, value in self._members().items()}

    def items(self) -> list[Node]:
        """Give the elements of an array."""
        if not isinstance(self.value, list):
            self.fail(f"expected an array, found {_kind(self.value)}")
        return [self._child(v, f"[{i}]", f"[{_name(v, i)}]") for i, v in enumerate(self.value)]

    def absent(self, index: int) -> Node:
        """Give the place of an array element that is not there, as null."""
        return self._child(None, f"[{index}]", f"[{index}]")

    def _members(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            self.fail(f"expected an object, found {_kind(self.value)}")
        return self.value

    def _member(self, key: str, value: object) -> Node:
        step = f".{key}" if self.path else key
        return self._child(value, step, step)

    def _child(self, value: object, step: str, name: str) -> Node:
        return Node(value, self.path + step, self.source, self.label + name)

    def integer(self) -> int:
        """Give a whole number that fits 64 bits."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            self.fail(f"expected a whole number, found {_kind(self.value)}")
        return self._bounded(self.value)

    def number(self) -> int | float:
        """Give a finite number."""
        if not isinstance(self.value, float):
            return self.integer()
        return self._bounded(self.value)

    def _bounded(self, value: _N) -> _N:
        # NaN fails the comparison too.
        if not abs(value) < 2**63:
            self.fail("the number is not finite or does not fit 64 bits")
        return value

    def flag(self) -> bool:
        """Give a boolean."""
        if not isinstance(self.value, bool):
            self.fail(f"expected true or false, found {_kind(self.value)}")
        return self.value

    def text(self) -> str:
        """Give a string."""
        if not isinstance(self.value, str):
            self.fail(f"expected a string, found {_kind(self.value)}")
        return self.value

    def time_ns(self) -> int:
        """Give an RFC 3339 UTC time as ns since the Unix epoch, without rounding."""
        found = rfc3339_ns(self.text(), whole=True)
        if found is None:
            self.fail(f"{self.text()[:40]!r} is not an RFC 3339 time in UTC")
        return found


def _name(value: object, index: int) -> str:
    """Call an array element by its `name` or `id`, else by its index."""
    named = value if isinstance(value, dict) else {}
    # A gate's `name` is a sentence, its `id` is what people call it.
    return str(named.get("id") or named.get("name") or index)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def rfc3339_ns(text: str, *, whole: bool) -> int | None:
    """Read the time `text` starts with (or, if `whole`, consists of); ns, or None."""
    match = _RFC3339.fullmatch(text) if whole else _RFC3339.match(text)
    if match is None:
        return None
    try:
        seconds = (datetime.fromisoformat(match[1]).replace(tzinfo=UTC) - _EPOCH).total_seconds()
    except ValueError:
        return None
    return int(seconds) * NS_PER_S + int((match[2] or "").ljust(9, "0"))


def load(path: Path) -> Node:
    """Read a published campaign file; `DataError` if it is not one of schema version 1."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as err:
        raise DataError(f"{path}: cannot be read ({err.strerror}); check the path") from err
    except (ValueError, RecursionError) as err:
        raise DataError(f"{path}: not JSON ({err}); fetch the published file again") from err
    root = Node(value, "", str(path))
    version = root.at("schema_version").integer()
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path}: schema_version: {version} is not {SCHEMA_VERSION}; "
            "give a campaign file of the published schema"
        )
    return root


@dataclass(frozen=True)
class RunTimeline:
    """One run's moments in ns since the Unix epoch on the client's clock, and what follows.

    `marks_ns` holds every name of `MARKS`, None where the server printed no such line;
    `log_ns` every matched log line. `stages_ns` are back to back, keyed `from..to` over the
    marks that are known, so their sum is the outage exactly.
    """

    run: int
    fire_ns: int
    kill_half_interval_ns: int
    offset_drift_ns: int
    offset_bound_max_ns: int
    fire_uncertainty_ns: int
    indeterminate_zone_ns: int
    marks_ns: Mapping[str, int | None]
    log_ns: Mapping[str, int]
    stages_ns: Mapping[str, int]
    die_to_start_ns: int | None

    @property
    def outage_ns(self) -> int | None:
        """Replica-ready minus fire, ns; None where no probe was answered."""
        ready = self.marks_ns["replica_ready"]
        return None if ready is None else ready - self.fire_ns

    @property
    def container_start_ns(self) -> int | None:
        """Container start minus fire, ns; None where the container did not restart."""
        return self.stages_ns.get("kill..container_start")

    def moment_ns(self, name: str) -> int | None:
        """Look a mark or a matched log line up by name; None where it did not happen."""
        return self.marks_ns.get(name, self.log_ns.get(name))


def timeline(run: Node | dict[str, object]) -> RunTimeline:
    """Derive one run's timeline from its raw readings (SPEC section 6, Compat; section 7).

    `run` is an element of `campaign.per_run`. Raises `DataError` where a reading is missing.
    """
    node = run if isinstance(run, Node) else Node(run, "run", "published run")
    kill = node.at("container", "kill")
    before = kill.at("remote_before_ns").integer()
    after = kill.at("remote_after_ns").integer()
    offset, offset_after, bound = _offsets(node)
    fire = (before + after) // 2 - offset
    half, drift = (after - before) // 2, abs(offset_after - offset)
    uncertainty = half + drift + bound
    log = _log_times(node, offset)
    marks = _marks(node, fire, offset, log)
    return RunTimeline(
        run=node.at("run").integer(),
        fire_ns=fire,
        kill_half_interval_ns=half,
        offset_drift_ns=drift,
        offset_bound_max_ns=bound,
        fire_uncertainty_ns=uncertainty,
        indeterminate_zone_ns=uncertainty + bound,
        marks_ns=MappingProxyType(marks),
        log_ns=MappingProxyType(log),
        stages_ns=MappingProxyType(_stages(marks)),
        die_to_start_ns=_die_to_start(node),
    )


def _offsets(run: Node) -> tuple[int, int, int]:
    """Offset at arm, offset after, the larger bound; ns, remote minus client."""
    arm, after = run.at("container", "offset_at_arm"), run.at("container", "offset_after")
    bound = max(arm.at("bound_ns").integer(), after.at("bound_ns").integer())
    return arm.at("offset_ns").integer(), after.at("offset_ns").integer(), bound


def line_stamp_ns(match: Node) -> int | None:
    """Read the reader's own time stamp at the head of a matched log line; ns, or None."""
    return rfc3339_ns(match.at("text").text(), whole=False)


def _log_times(run: Node, offset_ns: int) -> dict[str, int]:
    matches = run.at("container", "boundaries", "matches").fields()
    times: dict[str, int] = {}
    for key, match in matches.items():
        stamp = line_stamp_ns(match)
        times[key] = (match.at("at").time_ns() if stamp is None else stamp) - offset_ns
    return times


def _marks(run: Node, fire: int, offset: int, log: Mapping[str, int]) -> dict[str, int | None]:
    started = run.at("container", "after", "started_at").time_ns() - offset
    ready = segment(run, "replica_ready")
    marks: dict[str, int | None] = {name: log.get(name) for name in MARKS}
    marks["kill"] = fire
    # A container that was already up at the fire did not restart: no such boundary.
    marks["container_start"] = started if started >= fire else None
    measured = ready is not None and ready.at("measured").flag()
    marks["replica_ready"] = ready.at("end_at").time_ns() if ready and measured else None
    return marks


def _stages(marks: Mapping[str, int | None]) -> dict[str, int]:
    known = [(name, ns) for name in MARKS if (ns := marks[name]) is not None]
    return {f"{a}..{b}": b_ns - a_ns for (a, a_ns), (b, b_ns) in pairwise(known)}


def _die_to_start(run: Node) -> int | None:
    """First container start event after the first die event, ns; None if either is absent."""
    died: int | None = None
    for event in run.at("container", "events").items():
        action, at_ns = event.at("action").text(), event.at("at").time_ns()
        if action == "die" and died is None:
            died = at_ns
        elif action == "start" and died is not None:
            return at_ns - died
    return None


def segment(run: Node, name: str) -> Node | None:
    """Find a published decomposition segment by name; None where the run has none."""
    for node in run.at("decomposition", "segments").items():
        if node.at("name").text() == name:
            return node
    return None


def is_chained(gates: Node) -> bool:
    """Say whether nothing lies between a run and the one before it, as far as its gates say.

    `gates` is the run's element of `validity_gates`.
    """
    return not _does_not_apply(gates, CHAIN)


def is_on_time(gates: Node) -> bool:
    """Say whether a run's kill came at its plan, as far as its gates say."""
    return not _does_not_apply(gates, LATE)


def _does_not_apply(gates: Node, name: str) -> bool:
    return any(
        gate.at("id").text() == name and not gate.at("applicable").flag()
        for gate in gates.at("gates").items()
    )


def log_figures(key: str, text: str) -> dict[str, float]:
    """Parse what a matched log line prints: figure name to value in s or GiB.

    `key` names the boundary the line was matched for. Empty where the line carries no figure
    this file knows, or is worded otherwise.
    """
    if key not in _FIGURES:
        return {}
    pattern, names = _FIGURES[key]
    found = pattern.search(text)
    return dict(zip(names, map(float, found.groups()), strict=True)) if found else {}
