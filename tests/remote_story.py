"""The story of run_builder as a kill in a container on another host, and campaigns of it.

Never: asserts anything.
Plan: the host's clock is the client's wall clock + 8 ms; the order is written at the planned time
and the killer's readings lie 3 ms later; the container is restarted 0.5 s after the kill.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from percentes_fast import rundir
from percentes_fast.schema import SCHEMA_VERSION
from run_builder import EPOCH_WALL, MS, PLANNED, US, Row, Run, S, story

OFFSET = EPOCH_WALL + 8 * MS  # host's wall clock minus run time, at arming
DRIFT = 40 * US  # what it had become after the load
TRIP = 2 * MS
SIGNAL = PLANNED + 3 * MS  # run time of the kill
SENT, ANSWERED = PLANNED + 10 * US, PLANNED + 5 * MS
LINES = (
    (
        1 * S,
        "(APIServer pid=1) INFO 10-02 16:15:43 [api_utils.py:347] ▄▄ ▄█ █ █ █ ▀▄▀ █ version 0.29.0",
    ),
    (
        2 * S,
        "(EngineCore pid=7) INFO 10-02 16:15:54 [core.py:123] Initializing a V1 LLM engine"
        " (v0.29.0) with config: model='x'",
    ),
    (
        3 * S,
        "(EngineCore pid=7) INFO 10-02 16:16:02 [model_runner.py:404] Model loading took 14.29 GiB"
        " memory and 0.82 seconds",
    ),
    (
        3 * S + S // 2,
        "(APIServer pid=1) INFO 10-02 16:16:12 [entry.py:139] Starting vLLM server on http://h:1",
    ),
    (3 * S + 3 * S // 4, "INFO:     Application startup complete."),
)


def remote(restarts: int = 0) -> Run:
    """A run of the story over SSH; the container has been restarted that often before."""
    run = story()
    run.fault = fault(restarts)
    run.config["container"]["name"] = "vllm"
    run.offsets = [
        *(sample("arm", -S + k * TRIP, OFFSET) for k in range(3)),
        *(sample("run", k * S + S // 2, OFFSET + DRIFT // 2) for k in range(1, 32)),
        *(sample("after", 34 * S + k * TRIP, OFFSET + DRIFT) for k in range(3)),
        *(dial(k * S + S // 2) for k in range(1, 10)),
    ]
    run.log = "".join(f"{SIGNAL + OFFSET + at} d {text}\n" for at, text in LINES)
    return run


def sample(phase: str, at: int, offset: int) -> Row:
    """One sample whose two directions take equally long."""
    return {
        "phase": phase,
        "before_ns": at,
        "remote_wall_ns": at + TRIP // 2 + offset,
        "after_ns": at + TRIP,
        "resolution_ns": 1000,
        "round_trip_ns": None,
    }


def dial(at: int) -> Row:
    """One fresh connection."""
    return {
        "phase": "dial",
        "before_ns": at,
        "remote_wall_ns": None,
        "after_ns": at + 2 * MS,
        "resolution_ns": None,
        "round_trip_ns": 2 * MS - 10 * US,
    }


def fault(restarts: int) -> dict[str, Any]:
    """fault.json of a killer on another host."""
    reading = SIGNAL + OFFSET
    return {
        "kind": "kill_container",
        "signal": 9,
        "planned_ns": PLANNED,
        "host": "ssh me@host",
        "same_clock": False,
        "armed": {"pid": 4000 + restarts, "start_ticks": 7, "command": "vllm serve", "group": 1},
        "how": {"by": "a killer on ssh me@host", "pidfd": True, "sudo": False, "race": None},
        "path": {
            "server_ip": "10.0.0.5",
            "ssh_ip": "10.0.0.5",
            "jump": False,
            "same_path": True,
            "proxied": False,
            "proxied_because": None,
        },
        "before": {"port": 8000, "listens": True, "shm": ["psm_a"], "gpu_memory": None},
        "fingerprints": {"before": fingerprint(), "after": fingerprint()},
        "clock": {"reader": "bash with EPOCHREALTIME", "resolution_ns": 1000, "lost": None},
        "container": {
            "engine_version": "28.2.2",
            "sudo": False,
            "before": state(restarts),
            "after": state(restarts + 1),
            "events": [
                {"action": "die", "at_remote_wall_ns": reading + 300 * MS},
                {"action": "start", "at_remote_wall_ns": reading + 500 * MS},
            ],
            "log_lines": len(LINES),
        },
        "fire": {
            "before_ns": SENT,
            "after_ns": ANSWERED,
            "errno": 0,
            "remote": {
                "before_remote_wall_ns": reading - 6 * US,
                "after_remote_wall_ns": reading + 6 * US,
                "monotonic_before_ns": None,
                "monotonic_after_ns": None,
                "resolution_ns": 1,
            },
        },
        "evidence": {
            "gone_ns": PLANNED + 20 * MS,
            "stopped": None,
            "continued_ns": None,
            "survivors": [],
            "port": 8000,
            "listens": False,
            "shm": ["psm_a", "psm_b"],
            "gpu_memory": None,
        },
        "error": None,
        "after_error": None,
    }


def fingerprint() -> dict[str, Any]:
    """A host without GPUs."""
    return {"command": "vllm serve", "kernel": "Linux", "cpus": "8", "gpus": None}


def state(restarts: int) -> dict[str, Any]:
    """The container after so many restarts."""
    from percentes_fast.analysis.published import rfc3339

    started = SIGNAL + OFFSET + 500 * MS
    return {
        "running": True,
        "pid": 4000 + restarts,
        "id": "8fa0" * 16,
        "started_at": rfc3339(started),
        "finished_at": rfc3339(started - 200 * MS),
        "restart_count": restarts,
        "restart_policy": "on-failure",
        "image": "vllm/vllm-openai:v0.29.0",
        "image_digest": "sha256:0",
        "network_mode": "host",
        "health": None,
    }


def campaign(path: Path, runs: list[Run], **config: Any) -> Path:
    """A campaign's directory of written runs."""
    directory = rundir.RunDir.create(path, 0)
    told = runs[0].config | config
    told["campaign"] = told["campaign"] | {"runs": max(len(runs), config.get("planned", 0))}
    directory.write_json(
        rundir.CAMPAIGN,
        {
            "schema_version": SCHEMA_VERSION,
            "instrument_version": "0.1.0",
            "instrument_commit": None,
            "config_sha256": "0" * 64,
            "claims_sha256": rundir.claims_sha256(told),
            "overrides": [],
            "config": told,
            "dropped": [],
        },
    )
    for number, run in enumerate(runs, 1):
        run.config = told
        run.write(rundir.run_path(path, number))
    return path
