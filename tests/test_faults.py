"""A process identified, held and signalled: real children, each in a session of its own.

Never: signals a process that this test did not start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from percentes_fast import _native
from percentes_fast.errors import FaultError
from percentes_fast.faults import host
from percentes_fast.faults.host import LocalProcess, group_members, identify
from percentes_fast.faults.kinds import ARM

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
PARENT = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(600)\n"
)


@contextlib.contextmanager
def child(code: str = SLEEP, *, session: bool = True) -> Iterator[tuple[int, str]]:
    """(pid, the first line it printed) of a process; its group is ended at the end."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=session
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.kill()
            if session:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SURVIVOR_WAIT_S", 0.2)


def alive(pid: int) -> bool:
    with contextlib.suppress(FaultError):
        return bool(identify(pid))
    return False


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---------------------------------------------------------------- identity


def test_identity() -> None:
    with child() as (pid, _):
        identity = identify(pid)
        assert (identity.pid, identity.group) == (pid, pid)
        assert identity.command == f"{sys.executable} -c {SLEEP}"
        assert identity == identify(pid)
        assert identity.start_ticks >= identify(os.getpid()).start_ticks


def test_a_command_name_with_spaces_and_brackets(tmp_path: Path) -> None:
    odd = tmp_path / "a ) b (1) Z"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "600"], start_new_session=True) as process:
        try:
            identity = identify(process.pid)
        finally:
            process.kill()
    assert identity.command == f"{odd} 600"
    assert identity.group == process.pid


def test_no_such_process_and_one_that_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(FaultError, match="has ended already; give"):
            identify(process.pid)
        with pytest.raises(FaultError, match="has ended already; give"):
            LocalProcess(process.pid, signal.SIGKILL, group=False)
    with pytest.raises(FaultError, match="there is no such process; give"):
        identify(process.pid)


def test_pidfd_of_no_process() -> None:
    with pytest.raises(OSError, match="pidfd_open"):
        _native.pidfd_open(2**22 + 1)


def test_permission_is_checked_at_arming(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    before = len(list(Path("/proc/self/fd").iterdir()))
    with child() as (pid, _):
        monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
        with pytest.raises(FaultError, match="may not be signalled by this user; use"):
            LocalProcess(pid, signal.SIGKILL, group=False)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# ---------------------------------------------------------------- firing


def test_kill_ends_one_process_between_two_clock_reads() -> None:
    with child(PARENT) as (pid, grandchild):
        armed = ARM["kill"](pid)
        armed.check()
        at = time.monotonic_ns() + 50_000_000
        fired = armed.fire(at)
        assert fired.errno == 0
        assert at <= fired.before_ns <= fired.after_ns <= time.monotonic_ns()
        evidence = armed.evidence()
        armed.undo()
        armed.undo()
        assert evidence.gone_ns is not None
        assert evidence.gone_ns >= fired.before_ns
        assert [survivor.pid for survivor in evidence.survivors] == [int(grandchild)]
        assert alive(int(grandchild))


def test_kill_group_ends_all_of_it() -> None:
    with child(PARENT) as (pid, grandchild):
        armed = ARM["kill_group"](pid)
        armed.check()
        assert {member.pid for member in group_members(pid)} == {pid, int(grandchild)}
        fired = armed.fire(0)
        assert fired.errno == 0
        until_gone(int(grandchild))
        evidence = armed.evidence()
        armed.undo()
        assert evidence.survivors == ()
        assert evidence.gone_ns is not None


def test_a_time_that_has_passed_is_fired_at_once() -> None:
    with child() as (pid, _):
        armed = ARM["kill"](pid)
        before = time.monotonic_ns()
        fired = armed.fire(1)
        armed.undo()
        assert before <= fired.before_ns <= fired.after_ns


def test_own_group_is_refused() -> None:
    with child(session=False) as (pid, _):
        with pytest.raises(FaultError, match="own process group; start the server in a session"):
            ARM["kill_group"](pid)
        armed = ARM["kill"](pid)  # a single process of it may be killed
        armed.undo()


# ---------------------------------------------------------------- another process in its place


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"command": "other"}, {"group": 1}])
def test_another_identity_is_refused(change: dict[str, int | str]) -> None:
    with child() as (pid, _):
        armed = LocalProcess(pid, signal.SIGKILL, group=False)
        armed.identity = replace(armed.identity, **change)
        with pytest.raises(FaultError, match=r"not the process armed any more: .* not fired"):
            armed.check()
        armed.undo()
        assert alive(pid)


def test_exec_makes_it_another_process() -> None:
    wait = "import os, sys; print('up', flush=True); sys.stdin.readline(); "
    code = wait + "os.execlp('sleep', 's', '600')"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()
            armed = LocalProcess(process.pid, signal.SIGKILL, group=False)
            process.stdin.write(b"\n")
            process.stdin.flush()
            while identify(process.pid) == armed.identity:
                time.sleep(0.01)
            with pytest.raises(FaultError, match="now 's 600'; the fault was not fired"):
                armed.check()
            armed.undo()
        finally:
            process.kill()


def test_a_victim_that_ended_is_not_signalled_whoever_has_its_pid() -> None:
    with child() as (pid, _):
        armed = ARM["kill"](pid)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(FaultError, match="has ended already"):
            armed.check()
    fired = armed.fire(0)  # reaped: the pidfd names nobody
    assert fired.errno == 3
    assert fired.before_ns <= fired.after_ns
    armed.undo()


def test_a_victim_that_does_not_go_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "GONE_TIMEOUT_S", 0.2)
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
    with child(code) as (pid, _):
        armed = LocalProcess(pid, signal.SIGTERM, group=False)
        assert armed.fire(0).errno == 0
        evidence = armed.evidence()
        armed.undo()
        assert evidence.gone_ns is None
        assert alive(pid)
