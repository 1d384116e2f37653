"""What /proc says: read by this program here and by a shell elsewhere, and both say the same.

Does: compares the two ways on real processes with odd names and command lines, on zombies and on
      kernel threads; asks beside what keeps usual processes from the core.
Never: signals a process that this test did not start.
Plan: the two ways; no process is started to ask here; what cannot be read is told.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from percentes_fast import priority
from percentes_fast.errors import FaultError
from percentes_fast.faults import process
from percentes_fast.faults.base import Identity
from percentes_fast.faults.host import Host, LocalHost
from percentes_fast.faults.process import LocalProcess
from real_hosts import poll, read_process

WAIT_S = 20.0
HERE = LocalHost()


class Asked(LocalHost):
    """This machine, asked as any other is: by a shell command."""

    is_here = False


ASKED = Asked()
NAMES = (  # a name has at most 15 bytes
    b"plain",
    b"a ) b (1) Z",
    b"x) S 1\n\n2 y",
    b"x\n1 (y",
    b"\n1 (y) S 1 1 1",
    b") R 1 1 1 1 1 1",
    b"((()))",
    b"\xff\xfe\x80",
    b"Server\xc3\xa4\xe2\x82",
)
COMMANDS = (
    b"sleep",
    b"two\nlines\n",
    b"  blanks  ",
    b"\r\t\x0b\x1c\x85",
    b"\xff\xfe\x80",
    b"\xc3\xa4\xe2\x82\xac\xe2\x80\xa8",
    rb"a\nb\c %s $HOME `x` '" + b'"',
    b"serve --api-key sk-1234 --port 1",
    b"",
)


@contextlib.contextmanager
def odd(directory: Path) -> Iterator[list[int]]:
    """Pids of processes of these names and command lines, all asleep."""
    with contextlib.ExitStack() as stack:
        pids = []
        for name, command in zip(NAMES, COMMANDS, strict=True):
            path = os.fsencode(directory) + b"/" + name
            os.symlink(b"/bin/sleep", path)  # noqa: PTH211  (names of bytes)
            words = [command, b"600"]
            one = stack.enter_context(
                subprocess.Popen(words, executable=path, start_new_session=True)
            )
            stack.callback(one.kill)
            pids.append(one.pid)
        poll("sleep", lambda: all(stat(pid)[0] == b"S" for pid in pids), WAIT_S)
        yield pids


@contextlib.contextmanager
def sleeper() -> Iterator[int]:
    """Pid of a process asleep: while it begins to be a program it has no command line."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as one:
        try:
            poll("sleep", lambda: stat(one.pid)[0] == b"S", WAIT_S)
            yield one.pid
        finally:
            one.kill()


@contextlib.contextmanager
def zombie() -> Iterator[int]:
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        yield ended.pid


def stat(pid: int) -> list[bytes]:
    """Fields after the name, read by this test itself."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def kernel_threads() -> list[int]:
    """Of this machine, the first few; none in a container."""
    found = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())
    with contextlib.suppress(OSError):
        return [pid for pid in found if pid == 2 or stat(pid)[1] == b"2"][:8]
    return []


def identity(host: Host, pid: int) -> Identity | str:
    """Or why there is none."""
    try:
        return process.identify(host, pid)
    except FaultError as exc:
        return str(exc).replace(" on this machine", "")


# ---------------------------------------------------------------- the two ways


def test_both_ways_name_a_process_alike(tmp_path: Path) -> None:
    with odd(tmp_path) as pids, zombie() as ended:
        reaped = subprocess.Popen(["true"])
        reaped.wait()
        others = [os.getpid(), os.getppid(), 1, ended, reaped.pid, *kernel_threads()]
        for pid in [*pids, *others]:
            assert identity(HERE, pid) == identity(ASKED, pid)
        said = {pid: identity(HERE, pid) for pid in pids}
        for pid, command in zip(pids, COMMANDS, strict=True):
            found = said[pid]
            assert isinstance(found, Identity)
            assert (found.pid, found.group, found.start_ticks) == (pid, pid, int(stat(pid)[19]))
            words = f"{command.decode(errors='replace')} 600".replace("\n", " ").strip()
            assert found.command == words.replace("sk-1234", "<redacted>")
        assert "has ended already" in str(identity(HERE, ended))
        assert "there is no such process" in str(identity(HERE, reaped.pid))


def test_both_ways_have_the_same_table(tmp_path: Path) -> None:
    with odd(tmp_path) as pids, zombie() as ended:
        before, asked, after = (process.table(host) for host in (HERE, ASKED, HERE))
        for pid in [*pids, 1, *kernel_threads()]:
            fields = stat(pid)
            found = asked[pid]
            assert (found.parent, found.group) == (int(fields[1]), int(fields[2]))
            assert found.start_ticks == int(fields[19])
        assert all(before[pid] == asked[pid] == after[pid] for pid in pids)
        assert all(asked[pid].parent == os.getpid() for pid in pids)
        for pid in before.keys() & after.keys():
            now = {replace(each[pid], state="") for each in (before, asked, after)}
            assert len(now) == 1
        assert ended not in before.keys() | asked.keys() | after.keys()
        assert list(before) == sorted(before)
        assert list(asked) == sorted(asked)


def test_both_ways_have_the_same_command_lines_and_leave_out_who_has_ended(tmp_path: Path) -> None:
    with odd(tmp_path) as pids:
        table = process.table(HERE)
        gone = subprocess.Popen(["true"])
        gone.wait()
        ended = process.Process(gone.pid, "S", os.getpid(), gone.pid, 1)
        wanted = [*(table[pid] for pid in reversed(pids)), ended]
        wanted += [table[pid] for pid in kernel_threads()]
        here, asked = (process.identities(host, wanted) for host in (HERE, ASKED))
        assert here == asked
        assert [each.pid for each in here] == [each.pid for each in wanted if each != ended]


def test_the_family_is_the_same_both_ways() -> None:
    with subprocess.Popen(
        ["sh", "-c", "(sleep 600; :) & sleep 600; :"], start_new_session=True
    ) as one:
        try:
            poll("its children", lambda: len(below(HERE, one.pid)) == 3, WAIT_S)
            assert below(HERE, one.pid) == below(ASKED, one.pid)
        finally:
            os.killpg(one.pid, signal.SIGKILL)


def below(host: Host, pid: int) -> list[int]:
    return [each.pid for each in process.descendants(process.table(host), pid)]


# ---------------------------------------------------------------- no process is started


def test_nothing_is_started_to_look_at_a_process_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "SURVIVOR_WAIT_S", 0.0)
    with sleeper() as pid:
        monkeypatch.setattr(LocalHost, "run", None)
        armed = LocalProcess(pid, signal.SIGKILL, group=True)
        armed.check()
        assert armed.fire(0).errno == 0
        assert armed.evidence().gone_ns is not None
        armed.undo()
        with pytest.raises(FaultError, match="has ended already"):
            armed.check()
        with pytest.raises(FaultError, match=r"fault.role 'no such': no process below pid"):
            process.child_of_role(HERE, os.getpid(), "no such")


HOG = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
print("up", flush=True)
until = time.monotonic() + 0.6
while time.monotonic() < until:
    pass
"""


def check_time(armed: LocalProcess, core: int, begin: threading.Event, took: list[float]) -> None:
    """The body of a thread like the fault's: real-time, on that core."""
    os.sched_setaffinity(0, {core})
    if priority.this_thread(priority.KILL) is not None:
        return
    begin.wait()
    began = time.monotonic()
    armed.check()
    took.append(time.monotonic() - began)


@pytest.mark.alone
def test_a_real_time_check_waits_for_nothing_that_is_not() -> None:
    """A shell would wait for the end of what is real-time on its core: 0.6 s here."""
    core, begin, took = min(os.sched_getaffinity(0)), threading.Event(), list[float]()
    with sleeper() as pid:
        armed = LocalProcess(pid, signal.SIGKILL, group=False)
        thread = threading.Thread(target=check_time, args=(armed, core, begin, took))
        thread.start()
        words = [sys.executable, "-c", HOG, str(core)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as hog:
            assert hog.stdout is not None
            up = hog.stdout.readline()
            begin.set()
            thread.join()
        armed.undo()
    if not took or not up:
        pytest.skip("real-time scheduling is not allowed here")
    assert took[0] < 0.2


# ---------------------------------------------------------------- what cannot be read


def test_a_lack_of_descriptors_is_not_taken_for_an_end() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        said = identity(HERE, os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert said == f"/proc/{os.getpid()}/stat: Too many open files; look what this program lacks"
    assert read_process(os.getpid())
