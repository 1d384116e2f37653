"""Run directories made from tables, with answers that can be worked out by hand.

Never: sends a request, reads a clock, or asserts anything.
Plan: `row` makes one record; `story` is a whole run: 2 s of warm-up, a kill at 10 s, a server that
is back at 14 s, the end at 32 s. A test changes rows or facts, then `write` makes the directory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from percentes_fast import rundir, schema
from percentes_fast.config import Config
from percentes_fast.schema import SCHEMA_VERSION

US, MS, S = 1_000, 1_000_000, 1_000_000_000
PLANNED = 10 * S
BEFORE, AFTER = 10 * S, 10 * S + 11  # the clock reads around the signal
FIRE = 10 * S + 5  # middle 5.5 ns, rounded down
BACK = 14 * S
END = 32 * S
EPOCH, EPOCH_WALL = 5000 * S, 1000 * S  # of the run on both clocks of the client
DIAL = 200 * US
Row = dict[str, Any]

LOST = ("tokens_lost", "seconds_lost", "messages_lost", "names_lost", "stamps_refused")
NULLABLE = {"content_events": 0, "bytes_received": 0, "worker": 0, "target": "server"}


def row(kind: str, intended_ns: int, cause: str, **facts: Any) -> Row:
    """One raw record; what is not given never happened."""
    made: Row = {name: NULLABLE.get(name) for name, _, _ in schema.REQUEST_FIELDS}
    made |= {"kind": kind, "intended_ns": intended_ns, "cause": cause, "outcome": "not read"}
    if kind == "canary":
        made["target"] = "canary"
    unknown = set(facts) - set(made)
    assert not unknown, unknown
    return made | facts


def served(kind: str, at: int, ttft: int, e2e: int, tokens: int = 4, **facts: Any) -> Row:
    """A stream that ended as it should: `tokens` events, the usage event, [DONE]."""
    found = {
        "dispatch_ns": at + US,
        "sent_ns": at + 3 * US,
        "sent_kernel_ns": at + 5 * US,
        "acked_kernel_ns": at + 20 * US,
        "headers_ns": at + ttft,
        "first_token_ns": at + ttft,
        "first_token_kernel_ns": at + ttft - 10 * US,
        "first_token_shared_read": False,
        "ended_ns": at + e2e,
        "conn_reused": True,
        "content_events": tokens,
        "completion_tokens": tokens,
        "finish_reason": "length",
        "http_status": 200,
    }
    cause = facts.pop("cause", "stream_end")
    return row(kind, at, cause, **(found | facts))


def healthy(at: int, **facts: Any) -> Row:
    """A GET of the health path that was answered after 1 ms."""
    found = {"dispatch_ns": at + US, "ended_ns": at + MS, "http_status": 200, "conn_reused": True}
    return row("health", at, "plain_end", **(found | facts))


def refused(kind: str, at: int, **facts: Any) -> Row:
    """A connection refused 10 us after it was asked for."""
    found = {"dispatch_ns": at + US, "ended_ns": at + 11 * US, "conn_reused": False, "errno": 111}
    return row(kind, at, "connect", **(found | facts))


def stopped(found: Row, at: int) -> Row:
    """The same row in a run that was stopped at `at`."""
    if found["intended_ns"] > at:
        return row(found["kind"], found["intended_ns"], "not_due", target=found["target"])
    if found["ended_ns"] is None or found["ended_ns"] <= at:
        return found
    kept = {
        name: value
        for name, value in found.items()
        if not name.endswith("_ns") or value is None or value <= at
    }
    del kept["kind"], kept["intended_ns"], kept["cause"], kept["completion_tokens"]
    kept |= {"ended_ns": at, "finish_reason": None}
    return row(found["kind"], found["intended_ns"], "stopped", **kept)


def frame(rows: list[Row]) -> pd.DataFrame:
    """Raw records as `open_run` gives them: nullable integers, categories of text."""
    nullable = {
        alias: kind()
        for alias, kind in (
            (schema.arrow_type("int64"), pd.Int64Dtype),
            (schema.arrow_type("int32"), pd.Int32Dtype),
            (schema.arrow_type("int16"), pd.Int16Dtype),
            (schema.arrow_type("bool"), pd.BooleanDtype),
        )
    }
    made: pd.DataFrame = _table("requests", numbered(rows)).to_pandas(types_mapper=nullable.get)
    return made


def numbered(rows: list[Row]) -> list[Row]:
    """The rows in the order of their times, with their indices."""
    ordered = sorted(rows, key=lambda each: each["intended_ns"])
    return [each | {"index": number} for number, each in enumerate(ordered)]


def _table(name: str, rows: list[Row]) -> Any:
    names = [field_name for field_name, _, _ in rundir.TABLES[name]]
    return rundir.table_of(name, {each: [one[each] for one in rows] for each in names})


def worker_facts(**changed: Any) -> dict[str, Any]:
    """How a worker ended, as the manifest has it."""
    facts = {"worker": 0, "exit_status": 0, "ended": True, "stopped_ns": None, "in_flight_max": 3}
    facts |= {"heartbeat_ns": END + S, "stamps_unmatched": 0} | dict.fromkeys(LOST, 0)
    return facts | changed


def configuration(**sections: dict[str, Any]) -> dict[str, Any]:
    """A whole configuration with short phases; sections are laid over it."""
    config = Config().public()
    config["phases"] |= {"warmup_s": 2, "kill_at_s": 10, "recovery_s": 20, "cooldown_s": 2}
    config["load"] |= {"timeout_s": 3, "rate": 2}
    config["detector"] |= {"window_s": 2, "hold_s": 4}
    config["canary"] |= {"every_s": 1, "tokens": 4}
    config["metrics"] |= {"urls": []}
    for name, values in sections.items():
        config[name] |= values
    return config


def the_fault(**changed: Any) -> dict[str, Any]:
    """fault.json of the story's kill."""
    fire = {"before_ns": BEFORE, "after_ns": AFTER, "errno": 0}
    found = {"kind": "kill", "signal": 9, "planned_ns": PLANNED, "armed": {}, "same_clock": True}
    found |= {
        "fire": fire,
        "error": None,
        "evidence": {"gone_ns": 10 * S + 3 * MS, "survivors": []},
    }
    return found | changed


@dataclass
class Run:
    """A run directory to be: rows and facts that a test may change before `write`."""

    rows: list[Row]
    tokens: dict[tuple[str, int], list[int]]  # (kind, intended) -> times of its content events
    config: dict[str, Any] = field(default_factory=configuration)
    fault: dict[str, Any] | None = field(default_factory=the_fault)
    manifest: dict[str, Any] = field(default_factory=dict)
    workers: list[dict[str, Any]] = field(default_factory=lambda: [worker_facts()])
    offsets: list[Row] = field(default_factory=list)
    metrics: list[Row] = field(default_factory=list)
    log: str = ""  # server.log: lines `<ns> <mark> <text>`

    def without(self, *kinds: str) -> Run:
        """Switches kinds of rows off."""
        self.rows = [each for each in self.rows if each["kind"] not in kinds]
        for kind in set(kinds) & {"probe", "health", "canary"}:
            self.config[kind]["every_s"] = 0
        return self

    def interrupt(self, at: int) -> Run:
        """Stops the run at `at`."""
        self.rows = [stopped(each, at) for each in self.rows]
        self.tokens = {key: [t for t in times if t <= at] for key, times in self.tokens.items()}
        self.workers = [each | {"stopped_ns": at} for each in self.workers]
        self.manifest |= {"state": "partial", "interrupted": "by the user"}
        if self.fault and at < BEFORE:
            why = "the run was interrupted before the fault was due"
            self.fault |= {"fire": None, "evidence": None, "error": why}
        return self

    def write(self, path: Path) -> Path:
        """Makes the directory."""
        directory = rundir.RunDir.create(path, 0)
        rows = numbered(self.rows)
        template = [each | {"template": 0} for each in rows]
        directory.write_table("schedule", _table("schedule", template))
        directory.write_table("requests", _table("requests", rows))
        directory.write_table("token_times", _table("token_times", list(self._events(rows))))
        directory.write_table("clocks", _table("clocks", _clocks()))
        directory.write_table("client", _table("client", _seconds()))
        directory.write_table("offsets", _table("offsets", self.offsets))
        directory.write_table("metrics", _table("metrics", self.metrics))
        directory.write_bytes(rundir.SERVER_LOG, self.log.encode())
        directory.write_json(rundir.MANIFEST, self._manifest())
        if self.fault is not None:
            directory.write_json(rundir.FAULT, self.fault)
        return path

    def _events(self, rows: list[Row]) -> Any:
        for each in rows:
            for event, time in enumerate(self.tokens.get((each["kind"], each["intended_ns"]), ())):
                yield {
                    "index": each["index"],
                    "event": event,
                    "time_ns": time,
                    "kernel_ns": None,
                    "same_read": False,
                }

    def _manifest(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "state": "complete",
            "instrument_version": "0.1.0",
            "instrument_commit": None,
            "run_id": "0123456789",
            "config_sha256": hashlib.sha256(b"").hexdigest(),
            "overrides": [],
            "config": self.config,
            "workers": self.workers,
            "interrupted": None,
            "canary_server": {"late_max_ns": 250 * US},
            "epoch_monotonic_ns": EPOCH,
            "epoch_wall_ns": EPOCH_WALL,
            "metrics": None,
            "victim": "server",
        } | self.manifest


def _clocks() -> list[Row]:
    """Wall time = run time + 1000 s, read in 40 ns, once a second."""
    return [
        {"before_ns": k * S, "realtime_wall_ns": k * S + EPOCH_WALL + 20, "after_ns": k * S + 40}
        for k in range(36)
    ]


def _seconds() -> list[Row]:
    """Each second: 100 ms of CPU, 60 of them in empty polls."""
    known = {"worker": 0, "cpu_ns": 100 * MS, "idle_poll_ns": 60 * MS, "sent": 6}
    known |= {"skew_max_ns": US, "reads": 9, "polls": 99}
    return [known | {"end_ns": (k + 1) * S} for k in range(35)]


def story(ttft: int = 100 * MS, e2e: int = S) -> Run:
    """The whole run: two load requests a second at .25 and .75; probe, health and canary beside.

    Load sent at 9.25 and 9.75 is cut, 1 ms after the fire and 3 ns after it; from 10 to 14 s every
    connection is refused; from 14 s on everything is served as before.
    """
    rows, tokens = [], {}
    for k in range(64):
        at = k * S // 2 + S // 4
        rows.append(_story_load(at, ttft, e2e))
        if rows[-1]["cause"] == "stream_end":
            step = (e2e - ttft) // 4
            tokens["load", at] = [at + ttft + i * step for i in range(4)]
        rows.append(_story_probe(k * S // 2 + 50 * MS))
        at = k * S // 2 + 300 * MS
        rows.append(refused("health", at) if PLANNED <= at < BACK else healthy(at))
    for k in range(32):
        at = k * S + 150 * MS
        rows.append(served("canary", at, 20 * MS + 100 * US, 60 * MS))
        tokens["canary", at] = [at + 20 * MS + i * 10 * MS + 100 * US for i in range(4)]
    return Run(rows, tokens)


def _story_load(at: int, ttft: int, e2e: int) -> Row:
    if PLANNED <= at < BACK:
        return refused("load", at)
    if at + e2e > PLANNED > at:
        ended = 10 * S + MS if at == 9 * S + S // 4 else FIRE + 3
        cut = {"ended_ns": ended, "finish_reason": None, "completion_tokens": None}
        return served("load", at, ttft, e2e) | {"cause": "body_cut", **cut}
    return served("load", at, ttft, e2e)


def _story_probe(at: int) -> Row:
    if PLANNED <= at < BACK:
        return refused("probe", at)
    dials = BACK <= at < BACK + S // 2
    fresh = {"connect_ns": DIAL, "conn_reused": False} if dials else {}
    return served("probe", at, 90 * MS, 100 * MS, tokens=1, **fresh)
