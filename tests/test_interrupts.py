"""SIGINT and SIGTERM around what must be whole, by real signals; a terminal that goes away."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from percentes_fast.config import Config
from percentes_fast.interrupts import Interrupts
from percentes_fast.live import LiveLine
from whole_run import call, is_running, manifest, report, run_seconds, start, wait_for

SHORT = """
load: {rate: 20, prompt_tokens: 8, max_tokens: 8, timeout_s: 1}
phases: {warmup_s: 0.3, kill_at_s: 2, recovery_s: 2, cooldown_s: 0.3}
mock: {startup_s: 0.3}
"""
HANGS = """#!/bin/sh
if [ -e "$HANG" ]; then sleep 60; fi
exit 9
"""


def told(number: int) -> None:
    os.kill(os.getpid(), number)
    signal.sigtimedwait([signal.SIGUSR2], 0)  # a system call: the handler has run by now


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_at_once_and_one_that_waits(number: int) -> None:
    before = signal.getsignal(number)
    with Interrupts() as signals:
        with pytest.raises(KeyboardInterrupt):
            told(number)
        signals.hold()
        told(number)
        with pytest.raises(KeyboardInterrupt):
            told(number)  # the second of those that wait does not
        with pytest.raises(KeyboardInterrupt):
            signals.let_go()
        signals.let_go()  # it was told of once
        with pytest.raises(KeyboardInterrupt):
            told(number)
    assert signal.getsignal(number) == before


def test_what_the_caller_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            told(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_has_no_handlers() -> None:
    def enter() -> None:
        with Interrupts() as signals:
            signals.hold()
            signals.let_go()

    thread = threading.Thread(target=enter)
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_terminal_that_goes_away_ends_the_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    terminal = os.fdopen(slave, "w")
    monkeypatch.setattr(sys, "stderr", terminal)
    line = LiveLine(Config())
    line.say("still there")
    assert os.read(master, 100) == b"still there\r\n"
    os.close(master)
    line.say("gone")  # EIO
    line.close()
    monkeypatch.undo()
    with contextlib.suppress(OSError):
        terminal.close()


def interrupted(running: subprocess.Popen[str], out: Path) -> dict[str, Any]:
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    found = report(out)
    assert found["partial"]
    assert (out / "requests.parquet").exists() and not list(out.glob("*.journal"))
    return found


@pytest.mark.slow
def test_an_interruption_after_the_load_keeps_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host hangs when it is looked at: the user need not wait, and loses nothing."""
    hang = tmp_path / "hang"
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(HANGS)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HANG", str(hang))
    (tmp_path / "short.yaml").write_text(SHORT)
    out = tmp_path / "run"
    running = start("run", "--config", "short.yaml", "--out", "run", cwd=tmp_path)
    wait_for(lambda: is_running(out))
    wait_for(lambda: run_seconds(out) > 4)  # its fault and what showed it are over
    hang.touch()
    wait_for(lambda: _calls(str(program)))
    running.send_signal(signal.SIGINT)
    found = interrupted(running, out)
    counts = found["counts"]
    assert counts["completed"] + counts["errored"] == counts["scheduled"] > 50
    assert found["fault"]["landed"]
    assert "interrupted while the server's host was looked at" in " ".join(found["notes"])


def _calls(program: str) -> bool:
    """Does the program run?"""
    return any(
        program.encode() in path.read_bytes().split(b"\0")
        for path in Path("/proc").glob("[0-9]*/cmdline")
    )


@pytest.mark.slow
def test_an_interruption_at_the_very_start_is_told_as_partial(tmp_path: Path) -> None:
    (tmp_path / "short.yaml").write_text(SHORT)
    out = tmp_path / "run"
    running = start("run", "--config", "short.yaml", "--out", "run", cwd=tmp_path)
    wait_for(lambda: is_running(out))
    running.send_signal(signal.SIGTERM)
    interrupted(running, out)


@pytest.mark.slow
def test_an_interruption_while_the_records_are_written_loses_none(tmp_path: Path) -> None:
    """They are written to the end, or were already; the report can be made afterwards."""
    (tmp_path / "short.yaml").write_text(SHORT)
    out = tmp_path / "run"
    running = start("run", "--config", "short.yaml", "--out", "run", cwd=tmp_path)
    wait_for((out / "requests.parquet").exists)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    # CPython ends by the signal where the interrupt met code under exec; a shell says 130 as well
    assert running.returncode in (130, -signal.SIGINT), stderr
    assert manifest(out)["state"] == "complete"
    assert not list(out.glob("*.journal"))
    assert call("analyze", str(out), cwd=tmp_path).returncode in (0, 2)
    assert not report(out)["partial"]
