"""Starts a server command, restarts it in place on any exit, stamps its log lines.

Never: interprets the server's output, waits for the end of its output (children of a dead server
keep the pipe open), or leaves a process behind when its own parent goes.
Plan: `Supervised` is the parent's handle; `main` is the supervisor process. The server runs in a
session, and so in a process group, of its own. The job comes as one line on stdin; the end of stdin
(also by the parent's SIGKILL) ends the server. Events go to stdout and into the log.

Log lines: `<CLOCK_MONOTONIC ns> o <output>` and `<CLOCK_MONOTONIC ns> s <event as JSON>`.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from percentes_fast import priority
from percentes_fast.errors import ClientError, ConfigError, TargetError
from percentes_fast.rundir import LineFile, read_log

PR_SET_CHILD_SUBREAPER = 36
STOP_GRACE_S = 5.0
QUICK_EXIT_S = 2.0  # a server that lived shorter is restarted after a pause
PAUSE_S = 0.5


class Supervised:
    """A server command under supervision."""

    def __init__(self, command: Sequence[str], log: Path, cores: Sequence[int] | None) -> None:
        """cores: those the server may use, None for all that this process may.

        Raises ConfigError where the command is not there.
        """
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "percentes_fast.servers.supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        job = {"command": list(command), "log": str(log), "cores": cores and list(cores)}
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone already: no event will come
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        self._pumping = threading.Thread(target=self._pump, daemon=True)
        self._pumping.start()
        first = self._next_event(10.0)
        if first.get("event") != "started":
            self.stop()
            if not first:
                raise ClientError("the server's supervisor did not start; look at its output above")
            raise ConfigError(
                f"serve.command (--serve): {command[0]!r}: {first.get('reason', 'not started')};"
                " name a program that is there"
            )
        self.pid: int = first["pid"]

    def _pump(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._events.put(json.loads(line))
        self._events.put(None)

    def _next_event(self, timeout_s: float) -> dict[str, Any]:
        try:
            return self._events.get(timeout=timeout_s) or {}
        except queue.Empty:
            return {}

    def check_alive(self, log: Path) -> None:
        """Raises TargetError where the server has exited since its start (before the run)."""
        while not self._events.empty():
            event = self._next_event(0.0)
            if event.get("event") == "exited":
                raise TargetError(
                    f"the server exited with status {event['status']} before it was ready;"
                    f" its last line: {_last_line(log)}"
                )

    def stop(self) -> None:
        """Ends the server, all its descendants and the supervisor."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(STOP_GRACE_S * 3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pumping.join()


def split_command(text: str) -> list[str]:
    """Words of a command line, quoted as in a shell. Raises ConfigError."""
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise ConfigError(f"serve.command (--serve): {exc}; mend its quotes") from exc
    if not words:
        raise ConfigError("serve.command (--serve): is empty; give the server's command line")
    return words


def _last_line(log: Path) -> str:
    lines = [text for _, mark, text in read_log(log) if mark == "o"]
    return lines[-1].strip()[:200] if lines else "(it printed none)"


class _Supervisor:
    """The supervisor process's state: the server under way, and whether the end was asked for."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._log = LineFile(Path(job["log"]))
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._servers: list[subprocess.Popen[bytes]] = []  # kept: one let go of would be reaped
        self._pid = 0
        self._started_at = 0.0

    def run(self) -> int:
        """Until stdin ends; 0, or 1 where the command could not be started at all."""
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        priority.this_thread(priority.OBSERVER)  # the server does not inherit it
        if self._job["cores"]:
            os.sched_setaffinity(0, self._job["cores"])  # the server inherits it
        if not self._start():
            return 1
        threading.Thread(target=self._watch_parent, daemon=True).start()
        while not self._stopping.is_set():
            self._reap_one()
        self._end_all()
        return 0

    def _watch_parent(self) -> None:
        priority.this_thread(priority.OBSERVER)
        sys.stdin.buffer.read()
        self._stopping.set()
        self._signal_group(signal.SIGTERM)
        time.sleep(STOP_GRACE_S)  # a server that ignores it, or is stopped, still holds os.wait
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, number)

    def _start(self) -> bool:
        try:
            server = subprocess.Popen(
                self._job["command"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            self._event("failed", reason=exc.strerror)
            return False
        self._servers.append(server)
        self._pid, self._started_at = server.pid, time.monotonic()
        self._event("started", pid=server.pid, group=server.pid)
        assert server.stdout is not None
        threading.Thread(target=self._stamp, args=(server.stdout.fileno(),), daemon=True).start()
        return True

    def _event(self, event: str, **facts: Any) -> None:
        fact = {"event": event, **facts}
        self._write(b"s", [json.dumps(fact).encode()])
        with suppress(OSError):
            print(json.dumps(fact), flush=True)

    def _write(self, kind: bytes, lines: list[bytes]) -> None:
        """Stamps under the lock: two threads' lines stand in the order of their times."""
        with self._lock, suppress(OSError):  # a full disk costs log lines, not the server
            start = b"%d %s " % (time.monotonic_ns(), kind)
            self._log.write(b"".join(start + line + b"\n" for line in lines))

    def _stamp(self, fd: int) -> None:
        """Each line gets the time of the read that brought its end."""
        priority.this_thread(priority.OBSERVER)  # the busier the server, the later else the stamps
        pending = b""
        while data := os.read(fd, 65_536):
            *lines, pending = (pending + data).split(b"\n")
            self._write(b"o", lines)
        if pending:
            self._write(b"o", [pending])

    def _reap_one(self) -> None:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            time.sleep(0.05)
            return
        code = os.waitstatus_to_exitcode(status)
        if pid != self._pid:
            self._event("orphan exited", pid=pid, status=code)
            return
        self._event("exited", pid=pid, status=code)
        if time.monotonic() - self._started_at < QUICK_EXIT_S:
            self._stopping.wait(PAUSE_S)
        while not self._stopping.is_set() and not self._start():
            self._stopping.wait(PAUSE_S)

    def _end_all(self) -> None:
        """SIGTERM went to the group; what is still there after the grace is killed."""
        deadline = time.monotonic() + STOP_GRACE_S
        while time.monotonic() < deadline and self._reap():
            self._signal_group(signal.SIGTERM)
            time.sleep(0.02)
        while (children := self._reap()) and time.monotonic() < deadline + STOP_GRACE_S:
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def _reap(self) -> list[int]:
        """Reaps what has ended; pids of the children that are left (orphans re-parent to us)."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        task = Path(f"/proc/self/task/{threading.get_native_id()}/children")
        return [int(pid) for pid in task.read_text().split()]


def main() -> int:
    """The supervisor process: one job line on stdin, then its end."""
    job = json.loads(sys.stdin.buffer.readline())
    return _Supervisor(job).run()


if __name__ == "__main__":
    sys.exit(main())
