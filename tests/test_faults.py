"""A process of this machine identified, held and signalled: real children, each in its own session.

Does: identities from /proc, roles, groups, the kinds of fault that this program does itself, and a
      pid that really passed to another process.
Never: signals a process that this test did not start; what could reach others runs in a pid
       namespace of its own.
Plan: identity; below a process; firing; groups that are refused; another process in its place.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from percentes_fast import _native
from percentes_fast.errors import FaultError
from percentes_fast.faults import kinds, process
from percentes_fast.faults.base import Armed, Identity
from percentes_fast.faults.host import LocalHost
from percentes_fast.faults.process import LocalProcess, survivors
from percentes_fast.site import Fault
from real_hosts import program

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
PARENT = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(child.pid, flush=True)\n"
    "time.sleep(600)\n"
)
HERE = LocalHost()


def identify(pid: int) -> Identity:
    return process.identify(HERE, pid)


def arm(kind: str, pid: int, **more: object) -> Armed:
    fault = Fault.model_validate({"kind": kind, **more})
    return kinds.ARM[kind](kinds.Victim(HERE, pid), fault)


@contextlib.contextmanager
def child(code: str = SLEEP, *, session: bool = True) -> Iterator[tuple[int, str]]:
    """(pid, the first line it printed) of a process; its group is ended at the end."""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=session
    ) as started:
        assert started.stdout is not None
        try:
            yield started.pid, started.stdout.readline().strip()
        finally:
            started.kill()
            if session:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(started.pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SURVIVOR_WAIT_S", 0.2)


def alive(pid: int) -> bool:
    with contextlib.suppress(FaultError):
        return bool(identify(pid))
    return False


def asleep(pid: int) -> Identity:
    """Its identity once it sleeps: while it begins to be a program it has no command line."""
    deadline = time.monotonic() + 20
    while process.table(HERE)[pid].state != "S":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return identify(pid)


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
    with subprocess.Popen([odd, "600"], start_new_session=True) as started:
        try:
            identity = asleep(started.pid)
        finally:
            started.kill()
    assert identity.command == f"{odd} 600"
    assert identity.group == started.pid


def test_a_command_line_is_kept_whatever_is_in_it() -> None:
    words = [
        "-c",
        "import time; time.sleep(600)",
        r"a\nb\c",
        "two\nlines",
        "\x85\x1c",
        "%s $HOME `x`",
    ]
    with subprocess.Popen([sys.executable, *words], start_new_session=True) as started:
        try:
            identity = asleep(started.pid)
            found = process.table(HERE)[started.pid]
        finally:
            started.kill()
    said = " ".join([sys.executable, *words]).replace("\n", " ")
    assert identity.command == said
    assert (found.parent, found.start_ticks) == (os.getpid(), identity.start_ticks)


def test_a_process_name_with_a_line_end_is_in_the_table(tmp_path: Path) -> None:
    odd = tmp_path / "x) S 1\n\n2 y"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "600"], start_new_session=True) as started:
        try:
            identity = asleep(started.pid)
            found = process.table(HERE)[started.pid]
            assert (found.parent, found.group) == (os.getpid(), started.pid)
            assert identity.start_ticks == found.start_ticks
        finally:
            started.kill()


def test_no_such_process_and_one_that_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(FaultError, match="has ended already; give"):
            identify(ended.pid)
        with pytest.raises(FaultError, match="has ended already; give"):
            LocalProcess(ended.pid, signal.SIGKILL, group=False)
    with pytest.raises(FaultError, match="there is no such process; give"):
        identify(ended.pid)


# ---------------------------------------------------------------- below a process

FAMILY = """
import subprocess, sys, time
for name in sys.argv[1:]:
    command = [name, "-c", "sleep 600 & echo; wait"]
    child = subprocess.Popen(command, executable="/bin/sh", stdout=subprocess.PIPE)
    child.stdout.readline()
print("up", flush=True)
time.sleep(600)
"""


@contextlib.contextmanager
def family(*names: str) -> Iterator[int]:
    """A process with children of these names, each with a `sleep 600` of its own."""
    command = [sys.executable, "-c", FAMILY, *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as started:
        assert started.stdout is not None
        try:
            started.stdout.readline()
            deadline = time.monotonic() + 30
            while commands_below(started.pid).count("sleep") != len(names):
                assert time.monotonic() < deadline  # each is its parent's copy until its exec
            yield started.pid
        finally:
            os.killpg(started.pid, signal.SIGKILL)


def commands_below(pid: int) -> list[str]:
    """The first word of each descendant's command line, in the order of their start."""
    below = process.descendants(process.table(HERE), pid)
    return [each.command.split()[0] for each in process.identities(HERE, below)]


def test_descendants_are_found_at_any_depth_in_the_order_of_their_start() -> None:
    with family("api", "VLLM::EngineCore") as pid:
        below = process.descendants(process.table(HERE), pid)
        commands = commands_below(pid)
    assert sorted(commands) == ["VLLM::EngineCore", "api", "sleep", "sleep"]
    assert commands.index("api") < commands.index("VLLM::EngineCore")
    assert [each.start_ticks for each in below] == sorted(each.start_ticks for each in below)


def test_kill_child_takes_the_one_that_fits_the_role_in_any_case() -> None:
    with family("api", "VLLM::EngineCore") as pid:
        armed = arm("kill_child", pid, role="enginecore")
        assert armed.identity.command.startswith("VLLM::EngineCore -c")
        below = process.descendants(process.table(HERE), armed.identity.pid)
        armed.check()
        assert armed.fire(0).errno == 0
        found = armed.evidence()
        armed.undo()
        assert found.gone_ns is not None
        left = {each.pid for each in found.survivors}
        assert {each.pid for each in below} < left
        assert armed.identity.pid not in left
        assert alive(pid)


def test_kill_child_refuses_none_and_two_that_fit() -> None:
    with family("api", "worker_0", "worker_1") as pid:
        with pytest.raises(FaultError) as none:
            arm("kill_child", pid)
        with pytest.raises(FaultError) as two:
            arm("kill_child", pid, role="worker")
    said = str(none.value)
    assert f"fault.role 'EngineCore': no process below pid {pid} have it" in said
    assert "'api -c sleep 600 & echo; wait'" in said and "'worker_1 -c" in said
    said = str(two.value)
    assert f"fault.role 'worker': 2 processes below pid {pid} have it" in said
    assert "'worker_0 -c" in said and "'api" not in said
    assert said.endswith("name one of them with fault.role")
    with child() as (pid, _), pytest.raises(FaultError, match=r"command line \(none\)"):
        arm("kill_child", pid)


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
        armed = arm("kill", pid)
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
        armed = arm("kill_group", pid)
        armed.check()
        assert {left.pid for left in survivors(HERE, armed.identity, ())} == {int(grandchild)}
        fired = armed.fire(0)
        assert fired.errno == 0
        until_gone(int(grandchild))
        evidence = armed.evidence()
        armed.undo()
        assert evidence.survivors == ()
        assert evidence.gone_ns is not None


def test_a_time_that_has_passed_is_fired_at_once() -> None:
    with child() as (pid, _):
        armed = arm("kill", pid)
        before = time.monotonic_ns()
        fired = armed.fire(1)
        armed.undo()
        assert before <= fired.before_ns <= fired.after_ns


def test_own_group_is_refused() -> None:
    with child(session=False) as (pid, _):
        with pytest.raises(FaultError, match="own process group; start the server in a session"):
            arm("kill_group", pid)
        armed = arm("kill", pid)  # a single process of it may be killed
        armed.undo()


def test_what_outlived_its_parent_is_among_the_survivors_and_what_left_the_group_too() -> None:
    code = PARENT.replace("'import time", "'import os, time; os.setsid()")
    with child(code) as (pid, grandchild):
        try:
            while identify(int(grandchild)).group == pid:
                time.sleep(0.01)
            armed = arm("kill_group", pid)
            assert armed.fire(0).errno == 0
            found = armed.evidence()
            armed.undo()
            assert [each.pid for each in found.survivors] == [int(grandchild)]
            assert process.table(HERE)[int(grandchild)].parent != pid
        finally:
            os.kill(int(grandchild), signal.SIGKILL)


def test_term_ends_a_process_that_obeys() -> None:
    with child() as (pid, _):
        armed = arm("term", pid)
        assert armed.fire(0).errno == 0
        assert armed.evidence().gone_ns is not None
        armed.undo()


FIRST = """
import os, subprocess, sys
if sys.argv[1] == "1":
    os.setsid()
victim = subprocess.Popen(["sleep", "600"])
command = [sys.executable, "-c", sys.argv[2], str(victim.pid)]
done = subprocess.run(command, start_new_session=True)
print(done.returncode, victim.poll())
"""
ARMING = """
import sys
from percentes_fast.errors import FaultError
from percentes_fast.faults import host, kinds, killer
from percentes_fast.site import Fault
here, pid = host.LocalHost(), int(sys.argv[1])
for arm in (
    lambda: kinds.ARM["kill_group"](kinds.Victim(here, pid), Fault(kind="kill_group")),
    lambda: killer.Killer(here, pid, killer.Order(9, True, 1.0, 1.0)),
):
    try:
        arm()
    except FaultError as exc:
        print(exc, flush=True)
"""


@pytest.mark.parametrize("leader", [False, True])
def test_a_group_that_is_the_whole_container_is_refused(leader: bool) -> None:
    """A signal to group 1 would be one to all processes, one to group 0 to the sender's own."""
    words = [program("unshare"), "--pid", "--fork", "--mount-proc", "--kill-child"]
    done = subprocess.run(
        [*words, sys.executable, "-c", FIRST, str(int(leader)), ARMING],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    first, second, last = done.stdout.splitlines()
    assert first == second
    assert f"is in process group {int(leader)}, that of the whole container" in first
    assert "start the server in a session of its own (setsid), or use --fault kill" in first
    assert (last, done.stderr) == ("0 None", "")


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
    ) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        try:
            started.stdout.readline()
            armed = LocalProcess(started.pid, signal.SIGKILL, group=False)
            started.stdin.write(b"\n")
            started.stdin.flush()
            while identify(started.pid).command != "s 600":  # it has none for a moment
                time.sleep(0.01)
            with pytest.raises(FaultError, match="now 's 600'; the fault was not fired"):
                armed.check()
            armed.undo()
        finally:
            started.kill()


@pytest.mark.parametrize("kind", ["kill", "kill_group", "term"])
@pytest.mark.parametrize("reaped", [False, True])
def test_who_has_ended_is_not_signalled_nor_what_is_left_of_its_group(
    kind: str, reaped: bool
) -> None:
    """The kernel would take the signal: for a zombie, and for a group while a member lives."""
    with child(PARENT) as (pid, grandchild):
        armed = arm(kind, pid)
        armed.check()
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(FaultError, match="has ended already"):
            armed.check()
        if reaped:
            os.waitpid(pid, 0)
        with pytest.raises(FaultError, match=rf"^pid {pid}: has ended by now; it was not fired$"):
            armed.fire(0)
        armed.undo()
        time.sleep(0.1)
        assert alive(int(grandchild))


@pytest.mark.parametrize("kind", ["kill", "kill_group"])
def test_who_ends_while_the_fault_waits_for_its_time_is_not_signalled(kind: str) -> None:
    with child(PARENT) as (pid, grandchild):
        armed = arm(kind, pid)
        at = time.monotonic_ns() + 300_000_000
        died = threading.Timer(0.05, os.kill, (pid, signal.SIGKILL))
        died.start()
        with pytest.raises(FaultError, match=rf"^pid {pid}: has ended by now; it was not fired$"):
            armed.fire(at)
        assert time.monotonic_ns() >= at
        died.join()
        armed.undo()
        time.sleep(0.1)
        assert alive(int(grandchild))


def test_the_end_of_another_of_the_group_is_none_of_the_victim() -> None:
    with child(PARENT) as (pid, grandchild):
        armed = arm("kill_group", pid)
        os.kill(int(grandchild), signal.SIGKILL)
        assert armed.fire(0).errno == 0
        assert armed.evidence().gone_ns is not None
        armed.undo()


def test_the_race_of_a_group_is_told_and_a_pidfd_has_none() -> None:
    said = (
        "a group is signalled by its number, which could pass to another group between the check"
        " and the signal"
    )
    with child() as (pid, _):
        for kind, race in (("kill", None), ("term", None), ("kill_group", said)):
            armed = arm(kind, pid)
            armed.undo()
            assert armed.how["race"] == race
            assert armed.how["by"] == "pidfd of this machine"


def test_a_victim_that_does_not_go_is_told() -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
    with child(code) as (pid, _):
        armed = LocalProcess(pid, signal.SIGTERM, group=False, gone_timeout_s=0.2)
        assert armed.fire(0).errno == 0
        evidence = armed.evidence()
        armed.undo()
        assert evidence.gone_ns is None
        assert alive(pid)
