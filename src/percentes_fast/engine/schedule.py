"""All intended times of a run, once, as a pure function of configuration and seed.

Never: looks at the clock, the server or the number of workers; draws anything later.
Plan: one independent random stream a kind (seed, kind), so that switching probes off moves no load
row; kinds are merged in the order of their times; row i goes to worker i mod W whatever W is.
Rows beside the load start at fixed offsets inside their period, so that two periodic kinds are not
due at the same instant by construction.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from percentes_fast.config import Config, replicas, seconds_ns, targets
from percentes_fast.errors import ConfigError
from percentes_fast.schema import Kind

SERVER, CANARY = 0, 1
NEXT_REPLICA_S = 0.011
FIRST_OF_KIND_S = {Kind.PROBE: 0.05, Kind.CANARY: 0.15, Kind.HEALTH: 0.30}
PROBE_PROMPT_TOKENS = 1
PROBE_MAX_TOKENS = 1
MAX_TOKENS = 1_000_000  # of one request, as in the configuration


@dataclass(frozen=True, slots=True)
class Template:
    """What one group of rows asks for, and of which target; sizes in tokens (words `tok`)."""

    kind: Kind
    prompt_tokens: int = 0
    max_tokens: int = 0
    target: int = SERVER


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rows of a run in the order of their times; arrays of shape (rows,).

    intended_ns: int64, since the epoch; kind, target, template: codes.
    """

    intended_ns: NDArray[np.int64]
    kind: NDArray[np.int16]
    target: NDArray[np.int16]
    template: NDArray[np.int32]
    templates: tuple[Template, ...]

    def __len__(self) -> int:
        return len(self.intended_ns)

    def of_worker(self, worker: int, workers: int) -> NDArray[np.int64]:
        """Indices of a worker's rows: row i goes to worker i mod W."""
        return np.arange(worker, len(self), workers, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Part:
    kind: Kind
    target: int
    intended_ns: NDArray[np.int64]
    template: NDArray[np.int32]
    templates: tuple[Template, ...]


def build(config: Config) -> Schedule:
    """The schedule of a configuration. Raises ConfigError for an unusable trace file."""
    duration_ns = seconds_ns(config.duration_s)
    parts = [_load(config, duration_ns), *_beside(config, duration_ns)]
    templates: list[Template] = []
    shifted = []
    for part in parts:
        shifted.append(part.template + len(templates))
        templates.extend(part.templates)
    intended = np.concatenate([part.intended_ns for part in parts])
    order = np.argsort(intended, kind="stable")
    return Schedule(
        intended_ns=intended[order],
        kind=_codes(parts, [part.kind for part in parts])[order],
        target=_codes(parts, [part.target for part in parts])[order],
        template=np.concatenate(shifted).astype(np.int32)[order],
        templates=tuple(templates),
    )


def _codes(parts: list[_Part], values: list[Any]) -> NDArray[np.int16]:
    counts = [len(part.intended_ns) for part in parts]
    return np.repeat(np.array(values, dtype=np.int16), counts)


def _random(config: Config, kind: Kind) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence([config.seed, int(kind)]))


def _load(config: Config, duration_ns: int) -> _Part:
    if config.load.arrival == "trace":
        return _trace(config, duration_ns)
    times = arrivals(config, duration_ns)
    if len(times) == 0:
        raise ConfigError(
            f"load.rate (--rate {config.load.rate:g}): no request falls into the"
            f" {config.duration_s:g} s of load; raise the rate or lengthen the run"
        )
    template = Template(Kind.LOAD, config.load.prompt_tokens, config.load.max_tokens)
    return _Part(Kind.LOAD, SERVER, times, np.zeros(len(times), np.int32), (template,))


def arrivals(config: Config, duration_ns: int) -> NDArray[np.int64]:
    """Intended times (ns, ascending, below duration) of generated arrivals.

    poisson: exponential gaps; gamma: gaps of shape `burstiness` and the same mean (burstiness 1 is
    poisson, below 1 burstier, above 1 more regular); constant: k / rate. The first gap counts from
    the epoch. Nothing is re-scaled to hit a count.
    """
    rate, duration = config.load.rate, duration_ns / 1e9
    if config.load.arrival == "constant":
        count = int(np.ceil(duration * rate)) + 1
        times = np.arange(count) / rate
    else:
        times = np.cumsum(_gaps(config, duration * rate))
    nanos = np.rint(times[times <= duration] * 1e9).astype(np.int64)  # what is beyond may not fit
    return nanos[nanos < duration_ns]


def _gaps(config: Config, expected: float) -> NDArray[np.float64]:
    shape = config.load.burstiness if config.load.arrival == "gamma" else 1.0
    random = _random(config, Kind.LOAD)
    drawn: list[NDArray[np.float64]] = []
    total = 0.0
    while total < expected:  # in units of the mean gap; blocks until the run is covered
        block = random.gamma(shape, 1.0 / shape, size=max(64, int(expected * 0.25)))
        drawn.append(block)
        total += float(block.sum())
    return np.concatenate(drawn) / config.load.rate


def probed(config: Config) -> tuple[int, ...]:
    """Targets of the probes: each replica, the victim's first, and the service in front if any."""
    names = [name for name, _ in targets(config)]
    found = [names.index(name) for name, _ in replicas(config)]
    return tuple(dict.fromkeys([*found, SERVER]))


def _beside(config: Config, duration_ns: int) -> Iterator[_Part]:
    plans = [
        (Template(Kind.PROBE, PROBE_PROMPT_TOKENS, PROBE_MAX_TOKENS, target), config.probe.every_s)
        for target in probed(config)
    ]
    plans += [
        (Template(Kind.CANARY, 1, config.canary.tokens, CANARY), config.canary.every_s),
        (Template(Kind.HEALTH), config.health.every_s),
    ]
    for place, (template, every_s) in enumerate(plans):
        if every_s > 0:
            first_s = FIRST_OF_KIND_S[template.kind]
            if template.kind == Kind.PROBE:
                first_s += place * NEXT_REPLICA_S  # replicas are not asked at the same instant
            step = seconds_ns(every_s)
            times = np.arange(seconds_ns(first_s), duration_ns, step, dtype=np.int64)
            shared = np.zeros(len(times), np.int32)
            yield _Part(template.kind, template.target, times, shared, (template,))


def _trace(config: Config, duration_ns: int) -> _Part:
    path = Path(str(config.load.trace))
    rows = sorted(_read_trace(path, config), key=lambda row: row[0])
    if not rows:
        raise ConfigError(f"trace {path}: holds no sends; write one a line")
    last_s = rows[-1][0] / 1e9
    if config.fault.kind != "none" and rows[-1][0] < seconds_ns(config.phases.kill_at_s):
        raise ConfigError(
            f"trace {path}: ends at {last_s:g} s, before the kill at"
            f" {config.phases.kill_at_s:g} s; kill earlier or use a longer trace"
        )
    if rows[-1][0] >= duration_ns:
        raise ConfigError(
            f"trace {path}: its last send at {last_s:g} s is after the end of the load at"
            f" {config.duration_s:g} s; lengthen --recovery, --cooldown or --duration"
        )
    sizes = sorted({(prompt, tokens) for _, prompt, tokens in rows})
    return _Part(
        Kind.LOAD,
        SERVER,
        np.array([time for time, _, _ in rows], dtype=np.int64),
        np.array([sizes.index((p, t)) for _, p, t in rows], dtype=np.int32),
        tuple(Template(Kind.LOAD, prompt, tokens) for prompt, tokens in sizes),
    )


def _read_trace(path: Path, config: Config) -> Iterator[tuple[int, int, int]]:
    """(intended_ns, prompt_tokens, max_tokens) a line of a .csv (with a header) or .jsonl file."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines: Any = file if path.suffix == ".jsonl" else csv.DictReader(file)
            for number, line in enumerate(lines, 1):
                if line != "\n":
                    yield _trace_row(path, number, line, config)
    except OSError as exc:
        raise ConfigError(f"trace {path}: {exc.strerror}; name a readable file") from exc
    except (ValueError, csv.Error) as exc:
        raise ConfigError(f"trace {path}: {exc}; use .csv with a header, or .jsonl") from exc


def _trace_row(path: Path, number: int, line: Any, config: Config) -> tuple[int, int, int]:
    where = f"trace {path} row {number}"
    try:
        fields = json.loads(line) if isinstance(line, str) else line
    except ValueError as exc:
        raise ConfigError(f"{where}: {exc}; write one JSON object a line") from exc
    if not isinstance(fields, dict) or "time_s" not in fields:
        raise ConfigError(f"{where}: no time_s; give every send a time_s in seconds")
    try:
        time_ns = seconds_ns(float(fields["time_s"]))
        prompt = _size(fields.get("prompt_tokens"), config.load.prompt_tokens)
        tokens = _size(fields.get("max_tokens"), config.load.max_tokens)
    except (TypeError, ValueError, ConfigError) as exc:
        raise ConfigError(f"{where}: {exc}; use numbers") from exc
    if time_ns < 0 or not (1 <= prompt <= MAX_TOKENS and 1 <= tokens <= MAX_TOKENS):
        raise ConfigError(
            f"{where}: a negative time, or a size outside 1 to {MAX_TOKENS}; mend the row"
        )
    return time_ns, prompt, tokens


def _size(given: Any, otherwise: int) -> int:
    """A whole number of tokens; left out (or an empty cell) it is the configuration's."""
    return otherwise if given is None or given == "" else int(str(given))
