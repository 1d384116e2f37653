"""The killer beside the victim: here, over SSH with python3, and with every shell there is.

Does: arms, checks and fires each kind of fault at real processes; takes pids over, drops
      connections, kills the killer and its parent, and looks whether the victim runs again.
Never: signals a process that this test did not start, or writes to the machine's own sudoers.
Plan: hosts; the readings; evidence; another process in its place; stop and what undoes it; lost
      orders; permission and sudo; old Pythons.
"""

from __future__ import annotations

import ast
import concurrent.futures
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from percentes_fast.errors import FaultError
from percentes_fast.faults import killer, kinds, process
from percentes_fast.faults.base import Armed, Identity
from percentes_fast.faults.host import Host, LocalHost
from percentes_fast.faults.killer import Killer, Order
from percentes_fast.site import Fault
from real_hosts import Process, Sshd, below, poll, program, read_process, running, send
from test_faults import PARENT, family
from test_faults import child as python_child
from test_host import reachable, reached

WAIT_S = 20.0
HERE = LocalHost()
SHELLS = ("bash", "dash", "busybox")
SOURCE = resources.files("percentes_fast.faults").joinpath("remote_killer.py").read_text()
NOBODY = ("--reuid", "65534", "--regid", "65534", "--clear-groups")


def links(directory: Path, name: str) -> str:
    """A PATH with what a host needs, and either python3 or no shell but this one."""
    directory.mkdir()
    for tool in ("cat", "tr", "sleep", "date"):
        (directory / tool).symlink_to(program("busybox" if name == "busybox" else tool))
    if name != "busybox":  # Debian's has none
        (directory / "chrt").symlink_to(program("chrt"))
    if name == "python":
        (directory / "python3").symlink_to(sys.executable)
    if name == "bash":
        (directory / "bash").symlink_to(program("bash"))
    (directory / "sh").symlink_to(program("busybox" if name == "busybox" else "dash"))
    return str(directory)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process, "SURVIVOR_WAIT_S", 0.1)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture(scope="module")
def sshds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Sshd]]:
    root = tmp_path_factory.mktemp("path")
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(Sshd(environment={"PATH": links(root / name, name)}))
            for name in ("python", *SHELLS)
        }


@pytest.fixture(scope="module")
def hosts(sshds: dict[str, Sshd]) -> Iterator[dict[str, Host]]:
    """A connection each; arming begins with a question, which connects again where it was lost."""
    with contextlib.ExitStack() as stack:
        there = {name: stack.enter_context(reached(sshd)) for name, sshd in sshds.items()}
        yield {"here": HERE, **there}


def on(*names: str) -> pytest.MarkDecorator:
    """Runs a test on these hosts."""
    return pytest.mark.parametrize("host", names, indirect=True)


@pytest.fixture(params=["here", "python", "dash"])
def host(request: pytest.FixtureRequest, hosts: dict[str, Host]) -> Host:
    return hosts[request.param]


@pytest.fixture(params=["python", "dash"])
def far(
    request: pytest.FixtureRequest, sshds: dict[str, Sshd], hosts: dict[str, Host]
) -> tuple[Sshd, Host]:
    return sshds[request.param], hosts[request.param]


def child(code: str = "", **more: bool) -> AbstractContextManager[tuple[int, str]]:
    """A victim; one that only sleeps is up sooner without Python."""
    return python_child(code, **more) if code else sleeper(**more)


@contextlib.contextmanager
def sleeper(*, session: bool = True) -> Iterator[tuple[int, str]]:
    with subprocess.Popen(["sleep", "600"], start_new_session=session) as started:
        try:
            poll("sleep", lambda: state(started.pid) == "S", WAIT_S)
            yield started.pid, ""
        finally:
            started.kill()


def is_python(host: Host) -> bool:
    return host.is_here or host.run("command -v python3", again=True).status == 0


def armed(host: Host, kind: str, pid: int, **more: object) -> Armed:
    """Armed by a killer, also here where this program would do without."""
    fault = Fault.model_validate({"kind": kind, "gone_timeout_s": 5.0, **more})
    if kind == "kill_child" or not host.is_here:
        return kinds.ARM[kind](kinds.Victim(host, pid), fault)
    order = Order(kinds.SIGNALS[kind], kind == "kill_group", fault.stop_s, fault.gone_timeout_s)
    return Killer(host, pid, order)


@contextlib.contextmanager
def undone(fault: Armed) -> Iterator[Armed]:
    try:
        yield fault
    finally:
        fault.undo()


def state(pid: int) -> str:
    """Of a process: S sleeping, T stopped, Z ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(pid: int, wanted: str, timeout: float = WAIT_S) -> None:
    poll(f"state {wanted} of {pid}", lambda: state(pid) in wanted, timeout)


# ---------------------------------------------------------------- the readings


@on("here", "python", *SHELLS)
def test_the_signal_lies_between_the_readings(host: Host) -> None:
    code = (
        "import os, signal, sys, time\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "print('up', flush=True)\n"
        "signal.sigwait([signal.SIGTERM])\n"
        "print(time.monotonic_ns(), flush=True)\n"
    )
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as one:
        assert one.stdout is not None
        one.stdout.readline()
        with undone(armed(host, "term", one.pid)) as fault:
            fault.check()
            at, wall = time.monotonic_ns() + 30_000_000, time.time_ns()
            fired = fault.fire(at)
            answered, wall_after = time.monotonic_ns(), time.time_ns()
            arrived = int(one.stdout.readline())
            evidence = fault.evidence()
    assert fired.errno == 0
    assert at <= fired.before_ns <= arrived
    assert fired.before_ns <= fired.after_ns <= answered
    assert evidence.gone_ns is not None and arrived <= evidence.gone_ns
    assert fault.how["pidfd"] is is_python(host)
    assert (fault.how["race"] is None) is is_python(host)
    may = is_python(host) or host.run("command -v chrt", again=True).status == 0
    assert fault.how["real_time"] is may
    assert (fault.how["by"], fault.how["sudo"]) == (f"a killer on {host.name}", False)
    if host.is_here:
        assert fired.remote is None
        return
    remote = fired.remote
    assert remote is not None
    assert remote.resolution_ns == (
        1 if is_python(host) or "dash" in str(host.run("echo $PATH")) else 1000
    )
    first, last = remote.before_remote_wall_ns, remote.after_remote_wall_ns
    assert wall - remote.resolution_ns <= first <= last <= wall_after
    if is_python(host):
        assert remote.monotonic_before_ns is not None and remote.monotonic_after_ns is not None
        assert fired.before_ns <= remote.monotonic_before_ns <= remote.monotonic_after_ns
        assert remote.monotonic_before_ns <= arrived
        assert remote.monotonic_after_ns <= fired.after_ns
    else:
        assert remote.monotonic_before_ns is None is remote.monotonic_after_ns


@on("here", "dash")
def test_an_order_whose_time_has_passed_goes_at_once(host: Host) -> None:
    with child() as (pid, _), undone(armed(host, "kill", pid)) as fault:
        before = time.monotonic_ns()
        fired = fault.fire(1)
        assert fired.errno == 0
        assert before <= fired.before_ns <= fired.after_ns <= time.monotonic_ns()
        assert fired.after_ns - fired.before_ns < 1e9
        until(pid, "Z")


# ---------------------------------------------------------------- evidence


TWO = """
import os, subprocess, sys, time
print(*(subprocess.Popen(["sleep", "600"], start_new_session=apart).pid for apart in (False, True)))
sys.stdout.flush()
time.sleep(600)
"""


def test_kill_names_the_children_that_are_left(host: Host) -> None:
    with child(TWO) as (pid, printed):
        children = [int(word) for word in printed.split()]
        with undone(armed(host, "kill", pid)) as fault:
            fault.check()
            fired = fault.fire(0)
            found = fault.evidence()
        assert found.gone_ns is not None
        assert fired.before_ns <= found.gone_ns <= time.monotonic_ns()
        assert sorted(each.pid for each in found.survivors) == children
        assert {each.command for each in found.survivors} == {"sleep 600"}
        assert all(process.table(HERE)[each].parent != pid for each in children)
        os.kill(children[1], signal.SIGKILL)


@on("python")
def test_a_child_born_after_arming_is_seen_at_the_check(host: Host) -> None:
    code = (
        "import subprocess, sys, time\n"
        "print('up', flush=True); sys.stdin.readline()\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(child.pid, flush=True); time.sleep(600)\n"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        parent.stdout.readline()
        with undone(armed(host, "kill", parent.pid)) as fault:
            parent.stdin.write("\n")
            parent.stdin.flush()
            late = int(parent.stdout.readline())
            fault.check()
            fault.fire(0)
            found = fault.evidence()
        os.kill(late, signal.SIGKILL)
    assert [each.pid for each in found.survivors] == [late]


@on("here", "python", *SHELLS)
def test_kill_group_ends_all_of_it(host: Host) -> None:
    with child(PARENT) as (pid, grandchild), undone(armed(host, "kill_group", pid)) as fault:
        fault.check()
        assert fault.how["group"] is True
        assert fault.how["race"] == (
            "a group is signalled by its number, which could pass to another group between the"
            " check and the signal"
        )
        assert fault.fire(0).errno == 0
        poll("end", lambda: read_process(int(grandchild)) is None, WAIT_S)
        found = fault.evidence()
        assert (found.survivors, found.gone_ns is not None) == ((), True)


@on("python", "dash")
def test_kill_child_over_every_way(host: Host) -> None:
    with family("api", "VLLM::EngineCore") as pid:
        with undone(armed(host, "kill_child", pid)) as fault:
            assert fault.identity.command.startswith("VLLM::EngineCore -c")
            fault.check()
            assert fault.fire(0).errno == 0
            found = fault.evidence()
        assert found.gone_ns is not None
        assert {"api", "sleep"} <= {each.command.split()[0] for each in found.survivors}
        assert read_process(pid)
    with family("worker_0", "worker_1") as pid:
        with pytest.raises(FaultError, match=rf"'EngineCore': no process below pid {pid} have"):
            armed(host, "kill_child", pid)
        with pytest.raises(FaultError, match=rf"'worker': 2 processes below pid {pid} have"):
            armed(host, "kill_child", pid, role="worker")


@on("python", "dash")
def test_what_ignores_the_signal_is_not_gone(host: Host) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('up', flush=True); time.sleep(600)"
    )
    with child(code) as (pid, _), undone(armed(host, "term", pid, gone_timeout_s=0.2)) as fault:
        assert fault.fire(0).errno == 0
        found = fault.evidence()
        assert (found.gone_ns, found.survivors) == (None, ())
        assert read_process(pid)


def test_undo_ends_a_watch_that_would_go_on() -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('up', flush=True); time.sleep(600)"
    )
    with child(code) as (pid, _):
        fault = armed(HERE, "term", pid, gone_timeout_s=60.0)
        fault.fire(0)
        began = time.monotonic()
        fault.undo()
        fault.undo()
        assert time.monotonic() - began < 1.5
        no_killer(pid)


# ---------------------------------------------------------------- another process in its place


def test_a_victim_that_has_ended_is_neither_checked_nor_signalled(host: Host) -> None:
    with child() as (pid, _), undone(armed(host, "kill", pid)) as fault:
        os.kill(pid, signal.SIGKILL)
        until(pid, "Z")
        with pytest.raises(FaultError, match=r"not the process armed any more .* was not fired"):
            fault.check()
        with pytest.raises(FaultError, match=r"is another process by now; it was not fired"):
            fault.fire(0)


@pytest.mark.parametrize("reaped", [False, True])
def test_what_is_left_of_a_group_is_not_signalled_when_its_victim_has_ended(
    host: Host, reaped: bool
) -> None:
    with child(PARENT) as (pid, grandchild), undone(armed(host, "kill_group", pid)) as fault:
        os.kill(pid, signal.SIGKILL)
        until(pid, "Z")
        if reaped:
            os.waitpid(pid, 0)
        with pytest.raises(FaultError, match=r"is another process by now; it was not fired"):
            fault.fire(0)
        time.sleep(0.1)
        assert state(int(grandchild)) in "SR"


@on("python")
def test_exec_makes_it_another_process(host: Host) -> None:
    code = "import os; print('up', flush=True); input(); os.execlp('sleep', 's', '9')"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes) as one:
        assert one.stdin is not None and one.stdout is not None
        one.stdout.readline()
        with undone(armed(host, "kill", one.pid)) as fault:
            fault.check()
            one.stdin.write(b"\n")
            one.stdin.flush()
            poll("exec", lambda: process.identify(HERE, one.pid).command == "s 9", WAIT_S)
            with pytest.raises(FaultError, match=r"now 's 9'; the fault was not fired"):
                fault.check()
        one.kill()


def respawned(pid: int) -> subprocess.Popen[bytes]:
    """A stranger that has got this pid. Others start processes too, so it takes some attempts."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    for _ in range(500):
        try:
            last.write_text(str(pid - 1))
        except OSError as exc:
            pytest.skip(f"pids cannot be chosen here: {exc}")
        stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if stranger.pid == pid:
            return stranger
        stranger.kill()
        stranger.wait()
    pytest.skip("others start too many processes here")


@pytest.mark.parametrize(
    ("host", "kind"),
    [("here", "kill_group"), ("python", "kill"), ("dash", "kill"), ("dash", "stop")],
    indirect=["host"],
)
def test_who_has_taken_over_the_pid_is_never_signalled(host: Host, kind: str) -> None:
    with child() as (pid, _):
        fault = armed(host, kind, pid)
    time.sleep(0.03)  # start times are told in steps of 10 ms
    stranger = respawned(pid)
    try:
        with undone(fault):
            with pytest.raises(FaultError, match="not the process armed any more"):
                fault.check()
            with pytest.raises(FaultError, match="is another process by now; it was not fired"):
                fault.fire(0)
        time.sleep(0.1)
        assert state(pid) in "SR"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@on("python", "dash")
def test_a_start_time_that_does_not_fit_is_refused_at_arming(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = process.identify

    def earlier(where: Host, pid: int) -> Identity:
        found = true(where, pid)
        return replace(found, start_ticks=found.start_ticks - 1)

    monkeypatch.setattr(process, "identify", earlier)
    with child() as (pid, _):
        with pytest.raises(
            FaultError, match=rf"^pid {pid}: .*: is another process.*; give the pid"
        ):
            armed(host, "kill", pid)
        assert read_process(pid)
        no_killer(pid)


@on("python")
def test_no_process_to_arm(host: Host) -> None:
    with child() as (pid, _):
        pass
    with pytest.raises(FaultError, match=rf"^pid {pid}: there is no such process.*; give"):
        armed(host, "kill", pid)


def test_the_own_group_is_refused() -> None:
    with child(session=False) as (pid, _), pytest.raises(FaultError, match="own process group"):
        Killer(HERE, pid, Order(signal.SIGKILL, True, 1.0, 1.0))


# ---------------------------------------------------------------- stop, and what undoes it


def words(one: Process) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")[:-1]
    return []


def killers(victim: int) -> list[Process]:
    """Processes of killers of that victim, and their second ones; not what started them."""
    found = []
    for each in running().values():
        said = words(each)
        python = said[-1:] and said[-1].startswith(f'{{"pid": {victim}, '.encode())
        if python or said[3:5] == [b"killer", b"%d" % victim]:
            found.append(each)
    return found


def no_killer(victim: int) -> None:
    poll("the end of its killers", lambda: not killers(victim), WAIT_S)


@on("here", "python", *SHELLS)
def test_stop_ends_by_itself(host: Host) -> None:
    with child() as (pid, _), undone(armed(host, "stop", pid, stop_s=0.25)) as fault:
        fault.check()
        began = time.monotonic_ns()
        fired = fault.fire(0)
        assert fired.errno == 0
        until(pid, "T")
        found = fault.evidence()
        assert found.stopped is True
        assert (found.gone_ns, found.survivors) == (None, ())
        assert found.continued_ns is not None
        assert 0.2e9 < found.continued_ns - fired.before_ns < found.continued_ns - began < 2e9
        assert state(pid) in "SR"


@on("here", "dash")
def test_stop_of_what_dies_meanwhile_signals_nobody(host: Host) -> None:
    with child() as (pid, _), undone(armed(host, "stop", pid, stop_s=0.3)) as fault:
        fault.fire(0)
        until(pid, "T")
        os.kill(pid, signal.SIGKILL)
        until(pid, "Z")
        assert fault.evidence().continued_ns is not None


def test_undo_ends_a_stop_early_while_another_thread_waits_for_its_end(host: Host) -> None:
    with child() as (pid, _), concurrent.futures.ThreadPoolExecutor(1) as pool:
        fault = armed(host, "stop", pid, stop_s=60.0)
        fault.fire(0)
        waiting = pool.submit(fault.evidence)
        until(pid, "T")
        began = time.monotonic()
        fault.undo()
        until(pid, "SR", 5.0)
        assert time.monotonic() - began < 2.5
        failed = waiting.exception(WAIT_S)
        assert failed is None or isinstance(failed, FaultError)
        fault.undo()
        no_killer(pid)


@on("here", "dash")
def test_undo_right_after_the_order(host: Host) -> None:
    """The killer may read both at once."""
    with child() as (pid, _):
        fault = armed(host, "stop", pid, stop_s=60.0)
        assert isinstance(fault, Killer)
        fault._channel.send("fire\nundo")
        until(pid, "SR", 5.0)
        no_killer(pid)
        assert state(pid) in "SR"
        fault.undo()


def test_a_dropped_connection_ends_a_stop(far: tuple[Sshd, Host]) -> None:
    sshd, host = far
    with child() as (pid, _), undone(armed(host, "stop", pid, stop_s=60.0)) as fault:
        fault.fire(0)
        until(pid, "T")
        sshd.drop_sessions()
        until(pid, "SR", 5.0)
        with pytest.raises(FaultError, match="what became of the victim was not seen"):
            for _ in range(2):  # that it was stopped may have been told
                fault.evidence()


def watched(victim: int) -> Process:
    """The killer that has a second process to watch over it: the same words, and its parent."""
    found = {each.pid: each for each in killers(victim)}
    pairs = [each for each in found.values() if each.parent in found]
    assert len(pairs) == 1, found
    return found[pairs[0].parent]


def test_a_killed_killer_leaves_nobody_stopped(host: Host) -> None:
    stop_s = 60.0 if is_python(host) else 0.5  # a shell's second process only knows the time
    with child() as (pid, _):
        fault = armed(host, "stop", pid, stop_s=stop_s)
        fault.fire(0)
        until(pid, "T")
        one = watched(pid)
        send(signal.SIGKILL, [one])
        until(pid, "SR", 5.0)
        fault.undo()
        no_killer(pid)


def test_a_terminated_killer_leaves_nobody_stopped() -> None:
    with child() as (pid, _):
        fault = armed(HERE, "stop", pid, stop_s=60.0)
        fault.fire(0)
        until(pid, "T")
        one = watched(pid)
        send(signal.SIGHUP, [one])
        send(signal.SIGINT, [one])
        time.sleep(0.1)
        assert state(pid) == "T"
        send(signal.SIGTERM, [one])
        until(pid, "SR", 5.0)
        fault.undo()


STOPPING = """
import sys, time
from percentes_fast.faults import kinds, ssh
from percentes_fast.site import Fault, Ssh
where = ssh.reach(Ssh.model_validate_json(sys.argv[1]))
fault = kinds.ARM["stop"](kinds.Victim(where, int(sys.argv[2])), Fault(kind="stop", stop_s=60.0))
fault.fire(0)
print("fired", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("where", ["here", "python", "dash"])
def test_the_death_of_this_program_ends_a_stop(sshds: dict[str, Sshd], where: str) -> None:
    ssh = "{}" if where == "here" else reachable(sshds[where]).model_dump_json()
    with child() as (pid, _):
        words = [sys.executable, "-c", STOPPING, ssh, str(pid)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as program_:
            assert program_.stdout is not None
            assert program_.stdout.readline() == b"fired\n"
            until(pid, "T")
            program_.kill()
        until(pid, "SR", 5.0)
        no_killer(pid)


# ---------------------------------------------------------------- lost orders


def test_an_order_over_a_lost_connection_is_not_repeated(far: tuple[Sshd, Host]) -> None:
    sshd, host = far
    with child() as (pid, _), undone(armed(host, "kill", pid)) as fault:
        sshd.drop_sessions()
        for _ in range(2):
            with pytest.raises(FaultError) as caught:
                fault.fire(0)
        said = str(caught.value)
        assert said.startswith(
            f"the order to fire: {host.name}: the killer: the connection was lost"
        )
        assert said.endswith("; whether the fault was done is not known; it is not repeated")
        with pytest.raises(FaultError, match="the killer: the connection was lost"):
            fault.check()
        no_killer(pid)
        assert state(pid) in "SR"


def test_an_order_without_an_answer_may_have_been_done(
    sshds: dict[str, Sshd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(killer, "ANSWER_S", 0.3)
    sshd = sshds["python"]
    with reached(sshd) as host, child() as (pid, _), undone(armed(host, "kill", pid)) as fault:
        assert sshd.process is not None
        sessions = [each for each in below(sshd.process.pid) if b"sshd" in words(each)[0]]
        send(signal.SIGSTOP, sessions)
        with pytest.raises(FaultError, match=r"no answer within 0.3 s; .*it is not repeated"):
            fault.fire(0)
        assert state(pid) in "SR"
        send(signal.SIGCONT, sessions)
        until(pid, "Z", 5.0)


@on("here", "dash")
def test_a_killer_that_died_before_the_order(host: Host) -> None:
    with child() as (pid, _), undone(armed(host, "kill", pid)) as fault:
        send(signal.SIGKILL, killers(pid))
        with pytest.raises(FaultError, match=r"the order to fire: .*it is not repeated"):
            fault.fire(0)
        assert state(pid) in "SR"


# ---------------------------------------------------------------- permission


REFUSED = """
import sys
from percentes_fast.errors import FaultError
from percentes_fast.faults import host, kinds
from percentes_fast.site import Fault
fault = Fault(kind=sys.argv[2], stop_s=60.0)
try:
    armed = kinds.ARM[fault.kind](kinds.Victim(host.LocalHost(), int(sys.argv[1])), fault)
    print(armed.how, flush=True)
    armed.check()
    print(armed.fire(0), flush=True)
    sys.stdin.readline()
    armed.undo()
    print("undone")
except FaultError as exc:
    print(exc)
"""


def open_python() -> str:
    """Shell lines after which every user reaches this Python, in their mount namespace alone."""
    package = Path(str(resources.files("percentes_fast"))).parent
    closed: dict[Path, list[Path]] = {}
    for path in (Path(sys.base_prefix), Path(sys.prefix), package):
        tops = [each for each in path.parents if not each.stat().st_mode & 0o001]
        if tops:
            closed.setdefault(tops[-1], []).append(path)
    lines = ["mount -t tmpfs none /mnt"]
    for top, paths in closed.items():
        hold = f"/mnt/{len(lines)}"
        lines += [f"mkdir {hold}", f"mount --rbind {top} {hold}"]
        lines += [f"mount -t tmpfs -o mode=755 none {top}"]
        for path in paths:
            lines += [f"mkdir -p {path}", f"mount --bind {hold}/{path.relative_to(top)} {path}"]
    return "\n".join(lines)


def apart(*, sudo: bool) -> list[str]:
    """Runs words in a mount namespace where nobody reaches this Python, and may use sudo or not."""
    sudoers = "nobody ALL=(root) NOPASSWD: ALL" if sudo else ""
    script = f"""set -e
{open_python()}
if [ -d /etc/sudoers.d ]; then
  mount -t tmpfs -o mode=755 none /etc/sudoers.d
  echo '{sudoers}' >/etc/sudoers.d/one; chmod 440 /etc/sudoers.d/one
fi
exec "$@"
"""
    return [program("unshare"), "--mount", "/bin/sh", "-c", script, "apart"]


def as_nobody(pid: int, kind: str, *, sudo: bool, path: str = os.defpath) -> subprocess.Popen[str]:
    words = [program("setpriv"), *NOBODY, program("env"), f"PATH={path}"]
    words += [sys.executable, "-B", "-c", REFUSED, str(pid), kind]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([*apart(sudo=sudo), *words], text=True, cwd="/", **pipes)


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that every user may look into."""
    with tempfile.TemporaryDirectory(prefix="pfk") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_without_permission_and_sudo_one_line_says_so(root: Path) -> None:
    path = links(root / "bin", "dash")
    with child() as (pid, _):
        with as_nobody(pid, "kill", sudo=False, path=path) as done:
            out, _ = done.communicate("\n", timeout=60)
        assert read_process(pid)
    assert out.count("\n") == 1
    assert out.startswith(
        f"pid {pid}: this machine: may not be signalled by this user, and sudo -n refused (this"
    )
    assert "sudo: not found" in out
    assert out.endswith("); allow it, or use the owner\n")


def test_where_sudo_asks_for_a_password_one_line_says_so() -> None:
    with child() as (pid, _):
        with as_nobody(pid, "kill", sudo=False) as done:
            out, _ = done.communicate("\n", timeout=60)
        assert read_process(pid)
    assert out.count("\n") == 1
    assert "and sudo -n refused (this machine: the killer: sudo: a password is required" in out


@pytest.mark.parametrize("kind", ["kill", "stop"])
def test_sudo_is_used_where_it_is_allowed(kind: str) -> None:
    with child() as (pid, _), as_nobody(pid, kind, sudo=True) as done:
        assert done.stdout is not None
        how = ast.literal_eval(done.stdout.readline())
        assert (how["sudo"], how["pidfd"], how["by"]) == (True, True, "a killer on this machine")
        assert done.stdout.readline().startswith("Fired(before_ns=")
        until(pid, "T" if kind == "stop" else "Z", 5.0)
        out, _ = done.communicate("\n", timeout=60)
        assert out == "undone\n"
        if kind == "stop":
            until(pid, "SR", 5.0)
        no_killer(pid)


def nobodys(name: str, root: Path, *, sudo: bool) -> Sshd:
    """An sshd whose sessions are nobody's; in a namespace where sudo is allowed, or without it."""
    path = links(root / name, name)
    if sudo:
        (root / name / "sudo").symlink_to(program("sudo"))
    words = [program("setpriv"), *NOBODY, "/bin/sh", "-c"]
    command = f'{shlex.join(words)} "$SSH_ORIGINAL_COMMAND"'
    return Sshd(
        environment={"PATH": path},
        options=[f"ForceCommand {command}"],
        popen=lambda words: subprocess.Popen([*apart(sudo=sudo), *words]),
    )


@pytest.mark.parametrize("name", ["python", "dash"])
def test_sudo_over_ssh(root: Path, name: str) -> None:
    with nobodys(name, root, sudo=True) as sshd, reached(sshd) as host:
        assert "Uid:\t65534\t65534" in host.run("cat /proc/self/status").out
        with child() as (pid, _):
            with undone(armed(host, "stop", pid, stop_s=60.0)) as fault:
                assert (fault.how["sudo"], fault.how["pidfd"]) == (True, name == "python")
                fault.check()
                assert fault.fire(0).errno == 0
                until(pid, "T")
            until(pid, "SR", 5.0)
            with undone(armed(host, "kill", pid)) as fault:
                assert fault.fire(0).errno == 0
                assert fault.evidence().gone_ns is not None


def test_without_sudo_over_ssh_one_line_says_so(root: Path) -> None:
    with nobodys("dash", root, sudo=False) as sshd, reached(sshd) as host, child() as (pid, _):
        with pytest.raises(FaultError) as caught:
            armed(host, "kill", pid)
        assert read_process(pid)
    said = str(caught.value)
    assert said.startswith(
        f"pid {pid}: {host.name}: may not be signalled by this user, and sudo -n"
    )
    assert "sudo: not found" in said


# ---------------------------------------------------------------- old Pythons


def test_the_killer_is_text_of_python_3_6_and_needs_nothing() -> None:
    tree = ast.parse(SOURCE, feature_version=(3, 6))
    found = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert found <= sys.stdlib_module_names


OLD = {
    "3.8: no pidfd": "import os; del os.pidfd_open",
    "3.6: no clocks in ns": "import os, time; del os.pidfd_open, time.clock_gettime_ns",
    "a kernel without": "import os\ndef no(pid): raise OSError(38, 'no')\nos.pidfd_open = no",
    "a filter against": "import os\ndef no(pid): raise OSError(1, 'no')\nos.pidfd_open = no",
}


def told(words: Sequence[str], orders: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """What a killer of these words answers: at arming, then that many lines an order."""
    channel = HERE.open(shlex.join(words))
    said = [json.loads(channel.receive(WAIT_S))]
    for order, count in orders:
        channel.send(order)
        said += [json.loads(channel.receive(WAIT_S)) for _ in range(count)]
    channel.close()
    return said


@pytest.mark.parametrize("old", OLD)
def test_without_a_pidfd_the_start_time_is_what_holds(old: str) -> None:
    with child() as (pid, _):
        identity = process.identify(HERE, pid)
        job = {"pid": pid, "ticks": identity.start_ticks, "group": 0, "stop_s": 0.1}
        job |= {"gone_timeout_s": 5.0, "signal": int(signal.SIGSTOP)}
        start = [sys.executable, "-c", f"{OLD[old]}\n{SOURCE}"]
        before = time.time_ns()
        said = told([*start, json.dumps(job)], [("check", 1), ("fire", 3)])
        assert said[0]["armed"] is True and said[0]["pidfd"] is False
        assert said[0]["resolution"] == (239 if "3.6" in old else 1)
        assert said[1] == {"same": True}
        assert said[2]["fired"] is True and said[2]["errno"] == 0
        assert before - 239 <= said[2]["before"] <= said[2]["after"] <= time.time_ns()
        assert said[3]["stopped"] is True
        assert said[4]["continued"] - said[2]["before"] > 0.09e9
        job["signal"] = int(signal.SIGKILL)
        said = told([*start, json.dumps(job)], [("fire", 2), ("check", 1), ("fire", 1)])
        assert said[1]["errno"] == 0
        assert said[2]["gone"] >= said[1]["before"] - 239
        assert said[3:] == [{"same": False}, {"fired": False, "error": "is another process by now"}]
        job["ticks"] -= 1
        assert told([*start, json.dumps(job)], [])[0]["armed"] is False


def test_a_signal_that_the_kernel_refuses_is_told_with_its_errno() -> None:
    with child() as (pid, _):
        ticks = process.identify(HERE, pid).start_ticks
        job = {"pid": pid, "ticks": ticks, "group": 0, "stop_s": 60.0, "gone_timeout_s": 0.1}
        start = [sys.executable, "-c", SOURCE]
        said = told([*start, json.dumps({**job, "signal": 200})], [("fire", 2)])
        assert (said[1]["fired"], said[1]["errno"], said[2]) == (True, 22, {"gone": None})
        assert state(pid) in "SR"
