"""Probes straight at each replica, and at the service in front: schedule, bytes, a run, the outage.

Never: looks at a target's position where its name says it.
Plan: the schedule of a service with replicas -> the Host header and path of each -> a real run
against three servers, the victim killed and back -> moments of the victim and of the service.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from percentes_fast.config import Config, load
from percentes_fast.engine import schedule
from percentes_fast.engine.payload import render
from percentes_fast.schema import Kind
from percentes_fast.servers.supervisor import Supervised
from whole_run import call, free_port, mock_command, only_timing_faults, report, requests

SERVICE = "http://service:80/v"


def configured(*direct: str) -> Config:
    found = load(
        None,
        {
            "target.url": SERVICE,
            "fault.kind": "none",
            "phases.duration_s": 10,
            "phases.warmup_s": 1,
            "phases.cooldown_s": 1,
            "probe.direct": list(direct),
        },
    )
    return found.config


def times(made: schedule.Schedule, kind: Kind, target: int) -> list[int]:
    rows = (made.kind == kind) & (made.target == target)
    return [int(time) for time in made.intended_ns[rows]]


def test_every_replica_and_the_service_is_probed() -> None:
    config = configured("http://a:1", "http://b:2/p")
    made = schedule.build(config)
    assert schedule.probed(config) == (2, 3, 0)
    assert [len(times(made, Kind.PROBE, target)) for target in (0, 2, 3)] == [20, 20, 20]
    firsts = [times(made, Kind.PROBE, target)[0] for target in (2, 3, 0)]
    assert firsts == [50_000_000, 61_000_000, 72_000_000]  # never at the same instant
    for kind in (Kind.LOAD, Kind.HEALTH):
        assert set(made.target[made.kind == kind]) == {0}


def test_the_load_is_the_same_with_and_without_replicas() -> None:
    alone = schedule.build(configured())
    several = schedule.build(configured("http://a:1", "http://b:2"))
    assert times(alone, Kind.LOAD, 0) == times(several, Kind.LOAD, 0)
    assert times(alone, Kind.PROBE, 0) == times(schedule.build(configured(SERVICE)), Kind.PROBE, 0)


def test_each_is_asked_by_its_own_name_and_path() -> None:
    config = configured("http://a:1", "http://b:2/p")
    made = schedule.build(config)
    rows = np.arange(len(made))
    hosts = ("service:80", "127.0.0.1:9", "a:1", "b:2")
    arena = render(config, made, rows, "run", hosts)
    told = {}
    for row in rows:
        start = arena.offset[row]
        head = arena.heads[start : start + arena.length[row]].split(b"\r\n")
        if made.kind[row] == Kind.PROBE:
            told[int(made.target[row])] = (head[0], head[1])
    assert told == {
        0: (b"POST /v/v1/chat/completions HTTP/1.1", b"Host: service:80"),
        2: (b"POST /v1/chat/completions HTTP/1.1", b"Host: a:1"),
        3: (b"POST /p/v1/chat/completions HTTP/1.1", b"Host: b:2"),
    }


# ---------------------------------------------------------------- a run


@pytest.fixture
def three(tmp_path: Path) -> Iterator[tuple[list[int], Supervised]]:
    """Ports of a service and two replicas, each a server of its own; the first replica's, which
    comes back when it dies.
    """
    ports = [free_port() for _ in range(3)]
    others = [
        subprocess.Popen(shlex.split(mock_command(port, 0.1)), stdout=subprocess.DEVNULL)
        for port in (ports[0], ports[2])
    ]
    victim = Supervised(shlex.split(mock_command(ports[1], 1.5)), tmp_path / "victim.log", [0, 1])
    try:
        yield ports, victim
    finally:
        victim.stop()
        for other in others:
            other.terminate()
            other.wait()


CONFIG = """
load: {rate: 20, prompt_tokens: 8, max_tokens: 20, timeout_s: 2}
phases: {warmup_s: 0.5, kill_at_s: 4, recovery_s: 7, cooldown_s: 0.5}
detector: {window_s: 1, hold_s: 2}
"""


@pytest.mark.slow
def test_the_victims_probes_tell_when_it_is_back(
    three: tuple[list[int], Supervised], tmp_path: Path
) -> None:
    (service, first, second), victim = three
    (tmp_path / "c.yaml").write_text(CONFIG)
    urls = [f"http://127.0.0.1:{port}" for port in (service, first, second)]
    done = call(
        "run", "--config", "c.yaml", "--target", urls[0], "--probe-direct", urls[1],
        "--probe-direct", urls[2], "--pid", str(victim.pid), "--out", "run", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr  # G1: which replica answered is not known
    found, rows = report(tmp_path / "run"), requests(tmp_path / "run")
    gates = {gate["id"]: gate for gate in found["gates"]}
    assert "target.replica_header" in gates["G1"]["detail"]
    found["invalid_reasons"] = [r for r in found["invalid_reasons"] if not r.startswith("G1")]
    assert only_timing_faults(found), found["invalid_reasons"]
    probes = rows[rows["kind"] == "probe"]
    failed = probes[probes["outcome"] == "errored"]
    assert set(failed["target"]) == {"replica-1"}
    assert 1.0 < found["outage_s"] < 6.0
    moments = found["outage"]
    assert moments["first_served_token"]["at_s"] == found["outage_s"]
    assert moments["traffic_restored"]["reason"].startswith("no probe failed")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert [each["name"] for each in manifest["targets"]] == [
        *("server", "canary", "replica-1", "replica-2")
    ]
    assert manifest["victim"] == "replica-1"
    replicas = {row["replica"] for row in found["server_metrics"]}
    assert replicas == {"replica-1", "replica-2"}
