"""The supervisor with real commands: restarts, log stamps, sessions, and nothing left behind.

Never: ends a process that this test did not start.
Plan: a server here is a few lines of Python that print their pid and wait. Every wait is for
something that must come; the bound is generous.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from percentes_fast.errors import ConfigError, FaultError, TargetError
from percentes_fast.faults.host import LocalHost
from percentes_fast.faults.process import identify
from percentes_fast.rundir import read_log
from percentes_fast.servers.supervisor import Supervised, split_command

WAIT_S = 30.0
SERVER = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVER}"
ORPHAN = (
    "import os, subprocess, sys, time\n"
    "held = [sys.executable, '-c', 'import time; print(\"held\", flush=True); time.sleep(600)']\n"
    "orphan = subprocess.Popen(held, start_new_session=True)\n"
    "print('orphan', orphan.pid, flush=True)\n"
    "print('pid', os.getpid(), flush=True)\n"
    "time.sleep(600)\n"
)


def alive(pid: int) -> bool:
    with contextlib.suppress(FaultError):
        return bool(identify(LocalHost(), pid))
    return False


def until(told: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := told()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)
    return found


class Log:
    """The log of a supervised server."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[tuple[int, str, str]]:
        """(stamp, o or s, text) of every whole line."""
        text = self.path.read_text() if self.path.exists() else ""
        parts = [line.split(" ", 2) for line in text.splitlines(keepends=True) if line[-1] == "\n"]
        return [(int(stamp), kind, rest.rstrip("\n")) for stamp, kind, rest in parts]

    def events(self, name: str) -> list[dict[str, Any]]:
        told = [json.loads(text) for _, kind, text in self.lines() if kind == "s"]
        return [event for event in told if event["event"] == name]

    def printed(self, word: str) -> list[int]:
        """Numbers printed after a word."""
        found = [text.split() for _, kind, text in self.lines() if kind == "o"]
        return [int(parts[1]) for parts in found if parts[:1] == [word]]


@contextlib.contextmanager
def supervised(path: Path, code: str) -> Iterator[tuple[Supervised, Log]]:
    log = path / "server.log"
    server = Supervised([sys.executable, "-c", code], log, None)
    try:
        yield server, Log(log)
    finally:
        server.stop()


# ---------------------------------------------------------------- restarts


def test_the_supervisor_is_real_time_and_no_server_of_its_is(tmp_path: Path) -> None:
    """Not the first one, and not one that it restarted."""
    code = f"import os; print('policy', os.sched_getscheduler(0)); {SERVER}"
    with supervised(tmp_path, code) as (_, log):
        first = until(lambda: log.printed("pid"))[0]
        parent = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(first, signal.SIGKILL)
        until(lambda: len(log.printed("pid")) == 2)
        tasks = [int(task.name) for task in Path(f"/proc/{parent}/task").iterdir()]
        seen = {os.sched_getscheduler(each) & ~os.SCHED_RESET_ON_FORK for each in tasks}
    assert log.printed("policy") == [os.SCHED_OTHER] * 2
    assert seen == {os.SCHED_FIFO}


def test_restart_in_place_after_a_kill(tmp_path: Path) -> None:
    with supervised(tmp_path, SERVER) as (server, log):
        (first,) = until(lambda: log.printed("pid"))
        assert first == server.pid
        os.kill(first, signal.SIGKILL)
        second = until(lambda: log.printed("pid")[1:])[0]
        assert identify(LocalHost(), second).command == f"{sys.executable} -c {SERVER}"
        assert log.events("exited") == [
            {"event": "exited", "pid": first, "status": -signal.SIGKILL}
        ]
        assert [event["pid"] for event in log.events("started")] == [first, second]
    assert not alive(second)


@pytest.mark.parametrize("status", [0, 3])
def test_restart_on_any_exit(tmp_path: Path, status: int) -> None:
    code = f"import os, sys; print('pid', os.getpid(), flush=True); sys.exit({status})"
    with supervised(tmp_path, code) as (_, log):
        until(lambda: len(log.events("started")) >= 3)
        assert {event["status"] for event in log.events("exited")} == {status}


def test_restart_once_the_program_is_there_again(tmp_path: Path) -> None:
    """A start that fails in mid-run is tried again."""
    program = tmp_path / "server"
    program.write_text(f"#!{sys.executable}\n{SERVER}\n")
    program.chmod(0o700)
    log = Log(tmp_path / "server.log")
    server = Supervised([str(program)], log.path, None)
    try:
        until(lambda: log.printed("pid"))
        program.rename(tmp_path / "away")
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: len(log.events("failed")) >= 2)
        (tmp_path / "away").rename(program)
        until(lambda: len(log.printed("pid")) == 2)
    finally:
        server.stop()


def test_orphans_that_hold_the_pipe_do_not_block_the_restart(tmp_path: Path) -> None:
    with supervised(tmp_path, ORPHAN) as (server, log):
        orphan = until(lambda: log.printed("orphan"))[0]
        until(lambda: log.printed("pid"))
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: len(log.printed("pid")) == 2)
        assert alive(orphan)
        pids = log.printed("orphan") + log.printed("pid")
    assert not any(map(alive, pids))


# ---------------------------------------------------------------- session and log


def test_a_session_and_group_of_its_own(tmp_path: Path) -> None:
    with supervised(tmp_path, SERVER) as (server, log):
        until(lambda: log.printed("pid"))
        assert os.getsid(server.pid) == os.getpgid(server.pid) == server.pid
        assert os.getsid(0) != server.pid


def test_signals_are_as_a_shell_would_give_them(tmp_path: Path) -> None:
    code = "import signal; print('int', int(signal.getsignal(2) != 1), flush=True); " + SERVER
    with supervised(tmp_path, code) as (_, log):
        assert until(lambda: log.printed("int")) == [1]


def test_log_stamps_rise_and_lines_are_whole(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "for i in range(300):\n"
        "    sys.stdout.write(f'line {i} '); sys.stdout.flush()\n"
        "    sys.stderr.write(f'end {i}\\n'); sys.stderr.flush()\n"
        "sys.stdout.write('cut'); sys.stdout.flush()\n"
    )
    begun = time.monotonic_ns()
    with supervised(tmp_path, code) as (_, log):
        until(lambda: len(log.events("exited")) >= 2)
        lines = log.lines()
    stamps = [stamp for stamp, _, _ in lines]
    assert stamps == sorted(stamps)
    assert begun <= stamps[0]
    assert stamps[-1] <= time.monotonic_ns()
    printed = [text for _, kind, text in lines if kind == "o"]
    assert printed[:300] == [f"line {i} end {i}" for i in range(300)]
    assert printed[300] == "cut"


def test_bytes_that_are_no_text_do_not_end_the_log(tmp_path: Path) -> None:
    code = (
        "import os, time; os.write(1, b'\\xff\\x00\\r\\n' * 3); os.write(1, b'pid 1\\n'); " + SERVER
    )
    with supervised(tmp_path, code):
        log = tmp_path / "server.log"
        until(lambda: b" o pid 1\n" in log.read_bytes())
        assert log.read_bytes().count(b" o \xff\x00\r\n") == 3


FILL = """
import os, signal, sys, time
from pathlib import Path
from percentes_fast.servers.supervisor import Supervised

log, pids, filler = Path("disk/server.log"), Path("pids"), Path("disk/filler")
CODE = '''
import os, sys, time
log, pids = sys.argv[1:]
if not os.path.exists(pids):  # the first one fills the log's page but for 20 bytes
    while not os.path.getsize(log):
        time.sleep(0.01)
    stamp = len(str(time.monotonic_ns()))
    print("x" * (4096 - 20 - os.path.getsize(log) - stamp - len(" o " + chr(10))), flush=True)
with open(pids, "a") as file:
    print(os.getpid(), file=file)
time.sleep(600)
'''

def number(count):
    deadline = time.monotonic() + 30
    while len(found := pids.read_text().split() if pids.exists() else []) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(found[count - 1])

server = Supervised([sys.executable, "-c", CODE, str(log), str(pids)], log, None)
try:
    first = number(1)
    while log.stat().st_size != 4096 - 20:
        time.sleep(0.01)
    try:
        with filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
    except OSError:
        pass
    os.kill(first, signal.SIGKILL)
    second = number(2)
    filler.unlink()
    os.kill(second, signal.SIGKILL)
    number(3)
finally:
    server.stop()
Path("kept.log").write_bytes(log.read_bytes())
"""


def test_a_full_disk_cuts_one_line_and_joins_none(tmp_path: Path) -> None:
    """On a file system of 64 KiB of our own: full at one restart, with room again at the next."""
    script = f'mkdir disk; mount -t tmpfs -o size=64k tmpfs disk; exec {sys.executable} -c "$0"'
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "bash", "-c", script, FILL],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    second = int((tmp_path / "pids").read_text().split()[1])
    raw = (tmp_path / "kept.log").read_bytes()
    assert raw[4096:4097] == b"\n"
    told = [text for _, mark, text in read_log(tmp_path / "kept.log") if mark == "s"]
    events = [json.loads(text) for text in (told[0], *told[2:])]
    assert '{"event": "exited"'.startswith(told[1])  # the first one's, as far as there was room
    assert events[0]["event"] == "started"
    assert {"event": "exited", "pid": second, "status": -signal.SIGKILL} in events


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("code", [SERVER, STUBBORN])
def test_stop_ends_it(tmp_path: Path, code: str) -> None:
    with supervised(tmp_path, code) as (server, log):
        until(lambda: log.printed("pid"))
    assert not alive(server.pid)
    server.stop()  # safe a second time


def test_stop_ends_one_that_is_stopped(tmp_path: Path) -> None:
    with supervised(tmp_path, SERVER) as (server, log):
        until(lambda: log.printed("pid"))
        os.kill(server.pid, signal.SIGSTOP)
    assert not alive(server.pid)


@pytest.mark.parametrize("code", [ORPHAN, STUBBORN])
def test_everything_ends_when_the_parent_is_killed(tmp_path: Path, code: str) -> None:
    log = Log(tmp_path / "server.log")
    parent = (
        "import pathlib, sys, time\n"
        "from percentes_fast.servers.supervisor import Supervised\n"
        f"command, log = [sys.executable, '-c', {code!r}], pathlib.Path({str(log.path)!r})\n"
        "server = Supervised(command, log, None)\n"
        "print(server._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            supervising = int(process.stdout.readline())
            until(lambda: log.printed("pid"))
        finally:
            process.kill()
    pids = [supervising, *log.printed("pid"), *log.printed("orphan")]
    until(lambda: not any(map(alive, pids)))


# ---------------------------------------------------------------- what cannot be started


@pytest.mark.parametrize("command", ["/nowhere/server", "no-such-program-here"])
def test_command_not_found_is_one_line(tmp_path: Path, command: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Supervised([command, "--port", "1"], tmp_path / "server.log", None)
    line = str(caught.value)
    assert line == (
        f"serve.command (--serve): {command!r}: No such file or directory; name a program that is"
        " there"
    )


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "server").write_text("x")
    with pytest.raises(ConfigError, match="Permission denied; name a program"):
        Supervised([str(tmp_path / "server")], tmp_path / "server.log", None)


def test_exit_before_it_is_ready_is_told_with_its_last_line(tmp_path: Path) -> None:
    code = "import sys; print('no GPU found'); sys.exit(7)"
    with supervised(tmp_path, code) as (server, log):
        until(lambda: log.events("exited") and log.lines()[1:])
        with pytest.raises(TargetError, match=r"exited with status 7 .*: no GPU found"):
            until(lambda: server.check_alive(log.path))


def test_split_command() -> None:
    assert split_command("a 'b c' --d=\"e f\"") == ["a", "b c", "--d=e f"]
    with pytest.raises(ConfigError, match="mend its quotes"):
        split_command("a 'b")
    with pytest.raises(ConfigError, match="is empty"):
        split_command("  ")
