"""Runs of the command line in tests: real processes, real signals, real files.

Never: asserts anything by itself. Shortened phases keep a whole experiment under half a minute; the
detector's window and hold are shortened with them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

WITHOUT_CORE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "percentes_fast._native":
            raise ImportError("blocked")

sys.meta_path.insert(0, Refuse())
"""
SHORT = """
load: {rate: 20, prompt_tokens: 8, max_tokens: 40, timeout_s: 2}
phases: {warmup_s: 0.5, kill_at_s: 5, recovery_s: 9, cooldown_s: 0.5}
mock: {startup_s: 1.5}
detector: {window_s: 2, hold_s: 3}
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "percentes_fast.cli", *words]


def call(
    *words: str, cwd: Path, timeout: float = 120.0, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command line to its end."""
    return subprocess.run(
        command(*words),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **(env or {})},
    )


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    """Starts the command line in a session of its own."""
    return subprocess.Popen(
        command(*words),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def short_config(tmp_path: Path, more: str = "") -> str:
    """Path of the shortened configuration; `more` is YAML added to it."""
    path = tmp_path / "short.yaml"
    path.write_text(SHORT + more)
    return str(path)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def mock_command(port: int, startup_s: float) -> str:
    return f"{sys.executable} -m percentes_fast.servers.mock --port {port} --startup-s {startup_s}"


def report(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


def manifest(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "manifest.json").read_text())
    return found


def requests(out: Path) -> pd.DataFrame:
    return pd.read_parquet(out / "requests.parquet")


def wait_for(true: Callable[[], bool], timeout: float = 60.0) -> None:
    """Polls until `true()`; fails after the timeout."""
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def is_running(out: Path) -> bool:
    """Has the run in `out` reached its epoch?"""
    try:
        return bool(manifest(out)["state"] == "running")
    except (OSError, ValueError):
        return False


def run_seconds(out: Path) -> float:
    """Seconds since the epoch of the run in `out`."""
    return (time.monotonic_ns() - int(manifest(out)["epoch_monotonic_ns"])) / 1e9


def only_timing_faults(found: dict[str, Any]) -> bool:
    """A shared machine may be late (gate G2, or the load then misses its limits); nothing else."""
    return all(reason.startswith(("G2", "G6")) for reason in found["invalid_reasons"])
