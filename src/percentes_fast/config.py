"""The configuration of a run: strict load of one YAML file, defaults, pinned limits.

Never: guesses. An unknown key, a wrong type, a value out of range or a contradiction is one line
that says what, where and what to do; nothing is silently corrected.
Plan: one frozen model per section; `load` reads bytes, lays the overrides over them, validates,
and checks what only the whole can tell. Durations end in `_s` (seconds), `_ms` or `_us`.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from percentes_fast.claims import Headline, Prediction, check_unique
from percentes_fast.errors import ConfigError
from percentes_fast.site import Container, Fault, Log, Metrics, Ssh, check_site
from percentes_fast.target import Section, Target, Tls, looks_secret, speaks_tls, split_url

REDACTED = "<redacted>"
MAX_ROWS = 20_000_000  # a schedule beyond it needs more memory than a load client should take

Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class Load(Section):
    """The workload's arrivals and sizes."""

    arrival: Literal["poisson", "constant", "gamma", "trace"] = "poisson"
    rate: float = Field(default=3.12, gt=0, le=1_000_000, allow_inf_nan=False)
    burstiness: float = Field(default=1.0, ge=0.001, le=1000, allow_inf_nan=False)
    trace: str | None = None
    prompt_tokens: int = Field(default=512, ge=1, le=1_000_000)
    max_tokens: int = Field(default=256, ge=1, le=1_000_000)
    timeout_s: Positive = 30.0


class Phases(Section):
    """When what happens, in seconds from the first second of load."""

    warmup_s: Seconds = 60.0
    kill_at_s: Positive = 360.0
    recovery_s: Positive = 600.0
    cooldown_s: Seconds = 60.0
    duration_s: Positive | None = None  # of the whole load; then recovery is what it leaves


class Serve(Section):
    """A server command that this run starts, kills and restarts."""

    command: str | None = None
    ready_timeout_s: Positive = 600.0


class Mock(Section):
    """The embedded server, used where neither a target nor a command is given."""

    startup_s: Seconds = 42.0
    ttft_ms: float = Field(default=148.0, ge=0, le=3_600_000, allow_inf_nan=False)
    itl_ms: float = Field(default=25.0, ge=0, le=3_600_000, allow_inf_nan=False)
    ttft_dist: str = "lognormal:0.05"
    itl_dist: str = "normal:0.02"
    port: int = Field(default=0, ge=0, le=65_535)


class Probe(Section):
    """One-token requests straight at each replica; every_s 0 switches them off.

    direct: URLs of the replicas, that of the victim first; none: the target is the only one.
    """

    every_s: Seconds = 0.5
    timeout_s: Positive = 5.0
    direct: tuple[str, ...] = ()

    @field_validator("direct")
    @classmethod
    def _check_direct(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if len({split_url(url)[:2] for url in urls}) < len(urls):
            raise ValueError("direct (--probe-direct): a replica is given twice; keep one")
        if len({speaks_tls(url) for url in urls}) > 1:
            raise ValueError("direct (--probe-direct): http and https are mixed; use one of them")
        return urls


class Health(Section):
    """GET requests of the health path; every_s 0 switches them off."""

    every_s: Seconds = 0.5
    timeout_s: Positive = 2.0
    path: str = Field(default="/health", pattern=r"^/[!-~]*$")


class Canary(Section):
    """Streams of known timing from the client's own machine; every_s 0 switches them off."""

    every_s: Seconds = 0.45
    timeout_s: Positive = 5.0
    ttft_ms: float = Field(default=20.0, gt=0, le=10_000, allow_inf_nan=False)
    itl_ms: float = Field(default=10.0, gt=0, le=10_000, allow_inf_nan=False)
    tokens: int = Field(default=32, ge=1, le=10_000)


class Slo(Section):
    """What counts as good: both limits, from the scheduled send."""

    ttft_s: Positive = 1.0
    e2e_s: Positive = 14.0


class Detector(Section):
    """The recovery detector: leading windows of `window_s`, held for `hold_s` starts."""

    window_s: int = Field(default=10, ge=1, le=3600)
    hold_s: int = Field(default=30, ge=1, le=3600)
    entry: float = Field(default=0.90, gt=0, le=1)
    exit: float = Field(default=0.85, gt=0, le=1)


class Engine(Section):
    """The client's own processes and how they wait."""

    workers: int | Literal["auto"] = "auto"
    cores: tuple[int, ...] | None = None
    poll: Literal["auto", "hybrid", "busy"] = "auto"
    spin_us: float = Field(default=500.0, ge=0, le=100_000, allow_inf_nan=False)
    idle_reuse_s: Seconds = 4.0
    kernel_stamps: bool = True
    rehearse: bool = True
    kind: Literal["auto", "native", "asyncio"] = "auto"

    @field_validator("workers")
    @classmethod
    def _check_workers(cls, workers: int | str) -> int | str:
        if isinstance(workers, int) and not 1 <= workers <= 256:
            raise ValueError("use 'auto' or a number from 1 to 256")
        return workers


class Campaign(Section):
    """N runs of one configuration; run k uses seed + k."""

    runs: int = Field(default=5, ge=1, le=1000)
    name: str = "process-kill"
    caveat: str = ""  # what the figures do not show, printed with them


class Config(Section):
    """Everything a run is a function of, but for the clock and the server."""

    seed: int = Field(default=1, ge=0, le=2**63 - 1)
    target: Target = Target()
    load: Load = Load()
    phases: Phases = Phases()
    fault: Fault = Fault()
    serve: Serve = Serve()
    mock: Mock = Mock()
    probe: Probe = Probe()
    health: Health = Health()
    canary: Canary = Canary()
    slo: Slo = Slo()
    detector: Detector = Detector()
    engine: Engine = Engine()
    ssh: Ssh = Ssh()
    container: Container = Container()
    metrics: Metrics = Metrics()
    log: Log = Log()
    campaign: Campaign = Campaign()
    predictions: tuple[Prediction, ...] = ()
    headline: Headline | None = None

    @property
    def embedded(self) -> bool:
        """Is the embedded server the target?"""
        return self.target.url is None and self.serve.command is None

    @property
    def duration_s(self) -> float:
        """Length of the load: every row is intended before it."""
        phases = self.phases
        if phases.duration_s is not None:
            return phases.duration_s
        return phases.kill_at_s + phases.recovery_s + phases.cooldown_s

    @property
    def engine_kind(self) -> Literal["native", "asyncio"]:
        """Which engine sends."""
        return engine_for(self.engine.kind, self.target.url)

    @property
    def recovery_s(self) -> float:
        """Length of the recovery phase, from the kill on."""
        return self.duration_s - self.phases.cooldown_s - self.phases.kill_at_s

    @model_validator(mode="after")
    def _check_whole(self) -> Config:
        _check_target(self)
        check_site(self.target, self.ssh, self.container, self.log, self.fault, self.serve.command)
        check_unique(self.predictions)
        _check_phases(self)
        _check_load(self)
        return self

    def public(self) -> dict[str, Any]:
        """The configuration as plain data, header values left out."""
        data = self.model_dump(mode="json")
        data["target"]["headers"] = dict.fromkeys(data["target"]["headers"], REDACTED)
        return data


def targets(config: Config) -> tuple[tuple[str, str | None], ...]:
    """(name, URL) of everything that rows go to: the server, the canary, then the replicas that
    are probed at another address than the server's.
    """
    found: list[tuple[str, str | None]] = [("server", config.target.url), ("canary", None)]
    for number, url in enumerate(config.probe.direct, 1):
        if split_url(url)[:2] != split_url(str(config.target.url))[:2]:
            found.append((f"replica-{number}", url))
    return tuple(found)


def replicas(config: Config) -> tuple[tuple[str, str | None], ...]:
    """(target name, URL) of the replicas, that of the victim first."""
    named = {url: name for name, url in targets(config)}
    direct = [(named.get(url, "server"), url) for url in config.probe.direct]
    return tuple(direct) or (("server", config.target.url),)


def engine_for(kind: str, url: str | None) -> Literal["native", "asyncio"]:
    """The engine that a kind (auto, native, asyncio) stands for with a target."""
    if kind == "auto":
        return "asyncio" if speaks_tls(url) else "native"
    return "native" if kind == "native" else "asyncio"


def _check_target(config: Config) -> None:
    target = config.target
    if target.https and config.engine.kind == "native":
        raise ValueError("engine.kind (--engine native): speaks no TLS; use auto or asyncio")
    if target.tls != Tls() and not target.https:
        raise ValueError(
            "target.tls (--ca, --cert, --key, --insecure): only for an https:// target"
        )
    if config.probe.direct and target.url is None:
        raise ValueError("probe.direct (--probe-direct): of which service? give --target")
    if config.probe.direct and speaks_tls(config.probe.direct[0]) != target.https:
        raise ValueError(
            "probe.direct (--probe-direct): http and https are mixed; use the target's"
        )
    if target.hosted and target.url is None:
        raise ValueError("target.hosted (--hosted): say which server, with --target")
    names = [*target.headers, *target.header_env]
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("target.headers: a header is given twice, here or in header_env; keep one")
    if target.api_key_env is not None and "authorization" in [name.lower() for name in names]:
        raise ValueError(
            "target.api_key_env (--api-key-env): Authorization is given as a header too; keep one"
        )


def _check_phases(config: Config) -> None:
    phases = config.phases
    if phases.duration_s is not None and "recovery_s" in phases.model_fields_set:
        raise ValueError(
            "phases: duration_s (--duration) and recovery_s (--recovery) are both given; keep one"
        )
    if config.fault.kind == "none":
        if phases.warmup_s >= config.duration_s - phases.cooldown_s:
            raise ValueError(
                "phases.warmup_s (--warmup): leaves no time before the cool-down; shorten it, or"
                " lengthen --duration"
            )
        return
    if phases.kill_at_s >= config.duration_s:
        raise ValueError(
            f"phases.kill_at_s (--kill-at {phases.kill_at_s:g}): is after the end of the load at"
            f" {config.duration_s:g} s; kill earlier or lengthen --duration"
        )
    if config.recovery_s <= 0:
        raise ValueError(
            f"phases.cooldown_s (--cooldown {phases.cooldown_s:g}): leaves no recovery after the"
            f" kill at {phases.kill_at_s:g} s; lengthen --duration or shorten --cooldown"
        )
    first_judged = phases.kill_at_s - config.load.timeout_s
    if phases.warmup_s >= first_judged:
        raise ValueError(
            f"phases.kill_at_s (--kill-at {phases.kill_at_s:g}): the baseline runs from the end of"
            f" warm-up ({phases.warmup_s:g} s) to one timeout ({config.load.timeout_s:g} s) before"
            " the kill and is empty; kill later, or shorten --warmup or --timeout"
        )


def _check_load(config: Config) -> None:
    load = config.load
    if load.arrival == "trace" and load.trace is None:
        raise ValueError("load.trace (--arrival trace:FILE): is missing; name the file")
    if load.arrival != "trace" and load.trace is not None:
        raise ValueError(f"load.trace: a file, but arrival is {load.arrival}; use arrival: trace")
    if load.rate * config.duration_s > MAX_ROWS:
        raise ValueError(
            f"load.rate (--rate {load.rate:g}): {load.rate * config.duration_s:.0f} requests are"
            f" more than {MAX_ROWS}; lower the rate or shorten the run"
        )
    for name in ("probe", "canary", "health"):
        every_s = getattr(config, name).every_s
        if every_s > 0 and config.duration_s / every_s > MAX_ROWS:
            raise ValueError(
                f"{name}.every_s: one every {every_s:g} s is more than {MAX_ROWS} rows; send fewer,"
                " or none with 0"
            )
    if config.detector.exit > config.detector.entry:
        raise ValueError("detector.exit: is above detector.entry; recovery would cancel itself")


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A validated configuration and where it came from.

    text: the exact bytes that config.yaml keeps; sha256: of those bytes; overrides: `key=value`
    lines laid over the file, header values redacted.
    """

    config: Config
    text: bytes
    sha256: str
    overrides: tuple[str, ...]


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if not isinstance(key, Hashable):
            raise ConfigError(f"config line {line}: a key is no plain word; write `key: value`")
        if key in seen:
            raise ConfigError(f"config line {line}: {key!r} is given twice; keep one")
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load(path: Path | None, overrides: Mapping[str, Any] | None = None) -> LoadedConfig:
    """Reads a YAML file (None: all defaults), lays overrides (`section.key` -> value) over it.

    Raises ConfigError, one line, for anything that is not exactly right.
    """
    text = b"{}\n" if path is None else _read(path)
    where = "defaults" if path is None else str(path)
    data = _parse(text, where)
    _check_secrets(data, where)
    for dotted, value in (overrides or {}).items():
        _override(data, dotted, value)
    return LoadedConfig(
        config=_validate(data, where),
        text=text,
        sha256=hashlib.sha256(text).hexdigest(),
        overrides=tuple(_shown(key, value) for key, value in sorted((overrides or {}).items())),
    )


def _check_secrets(data: Mapping[str, Any], where: str) -> None:
    """The file is copied into every run directory, so it may hold no secret."""
    target = data.get("target")
    headers = target.get("headers") if isinstance(target, dict) else None
    for name in headers if isinstance(headers, dict) else ():
        if looks_secret(str(name)):
            raise ConfigError(
                f"{where}: target.headers: {name}: a secret would be copied into every run; put it"
                " into an environment variable and name that in target.header_env"
            )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"config {path}: {exc.strerror}; name a readable YAML file") from exc


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(exc, "problem", None) or "not YAML"
        raise ConfigError(f"{where}{line}: {problem}; mend the YAML") from exc
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: holds a {type(data).__name__}; write `section:` mappings")
    return data


def _override(data: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, key = dotted.split(".")
    for section in sections:
        inner = data.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{section}: holds {inner!r}; write it as a mapping")
        data = inner
    data[key] = value


def _shown(dotted: str, value: Any) -> str:
    if dotted == "target.headers":
        value = dict.fromkeys(value, REDACTED)
    return f"{dotted}={value}"


def _validate(data: Mapping[str, Any], where: str) -> Config:
    try:
        return Config.model_validate(data)
    except ValidationError as exc:
        raise ConfigError(f"{where}: {_one_line(exc)}") from exc


def _one_line(exc: ValidationError) -> str:
    errors = exc.errors(include_url=False, include_input=False)
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"])
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        text = "is not a key here" + _suggestion(first["loc"])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{place + ': ' if place else ''}{text}{more}"


def _suggestion(loc: Sequence[int | str]) -> str:
    model: Any = Config
    for part in loc[:-1]:
        is_place = isinstance(part, int)  # in a tuple of sections
        model = get_args(model)[0] if is_place else model.model_fields[part].annotation
    close = difflib.get_close_matches(str(loc[-1]), list(model.model_fields), n=1)
    known = ", ".join(model.model_fields)
    return f"; did you mean {close[0]!r}?" if close else f"; known keys: {known}"


def seconds_ns(seconds: float) -> int:
    """Seconds to whole nanoseconds, nearest; ConfigError where it is not finite."""
    if not math.isfinite(seconds):
        raise ConfigError(f"{seconds}: not a duration")
    return round(seconds * 1_000_000_000)
