"""Do one thing on a host, bracketed by that host's clock. Here: this machine.

Never: finds a process by a pattern, or signals a pid without a pidfd opened at arming.
Plan: identify a process from /proc, open its pidfd, signal it (or its group) from native code
between two clock reads, and look for the evidence.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

from percentes_fast import _native
from percentes_fast.errors import FaultError
from percentes_fast.faults.base import Evidence, Fired, Identity

GONE_TIMEOUT_S = 10.0
SURVIVOR_WAIT_S = 1.0
PROC = Path("/proc")


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on (the second may hold spaces)."""
    return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def identify(pid: int) -> Identity:
    """Identity of a living process. Raises FaultError where there is none (a zombie is dead)."""
    try:
        fields = _stat(pid)
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError as exc:
        raise FaultError(f"pid {pid}: there is no such process; give the server's pid") from exc
    if fields[0] in "ZX":
        raise FaultError(f"pid {pid}: has ended already; give the pid of a running server")
    command = raw.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
    return Identity(pid, int(fields[19]), command, int(fields[2]))


def group_members(group: int) -> tuple[Identity, ...]:
    """Living processes of a process group."""
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(FaultError, OSError):
                if int(_stat(int(entry.name))[2]) == group:
                    found.append(identify(int(entry.name)))
    return tuple(found)


class LocalProcess:
    """A process of this machine, identified and held by a pidfd."""

    def __init__(self, pid: int, number: int, *, group: bool) -> None:
        """Arms signal `number` for the process, or for its whole group. Raises FaultError."""
        self.identity = identify(pid)
        self._signal, self._group = number, group
        if group and self.identity.group == os.getpgrp():
            raise FaultError(
                f"pid {pid}: is in this program's own process group; start the server in a session"
                " of its own (setsid), or use --fault kill"
            )
        try:
            self._pidfd = _native.pidfd_open(pid)
        except OSError as exc:
            raise FaultError(f"pid {pid}: {exc.strerror}; it cannot be held by a pidfd") from exc
        try:
            self._check_permission()
        except FaultError:
            self.undo()
            raise

    def _check_permission(self) -> None:
        pid = self.identity.pid
        try:
            signal.pidfd_send_signal(self._pidfd, 0)
        except PermissionError as exc:
            raise FaultError(
                f"pid {pid}: may not be signalled by this user; use its owner"
            ) from exc
        except OSError as exc:
            raise FaultError(f"pid {pid}: {exc.strerror}; give a running server's pid") from exc

    def check(self) -> None:
        """The same process still? Raises FaultError."""
        now = identify(self.identity.pid)
        if now != self.identity:
            raise FaultError(
                f"pid {self.identity.pid}: is not the process armed any more: it was"
                f" {self.identity.command!r}, now {now.command!r}; the fault was not fired"
            )

    def fire(self, at_ns: int) -> Fired:
        """Signals at `at_ns`; the clock is read right before and right after."""
        group = self.identity.group if self._group else 0
        return Fired(*_native.fire(self._pidfd, group, self._signal, at_ns))

    def evidence(self) -> Evidence:
        """Waits for the process to be gone, then looks for survivors of its group."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        gone = bool(poller.poll(GONE_TIMEOUT_S * 1000))
        gone_ns = time.monotonic_ns() if gone else None
        time.sleep(SURVIVOR_WAIT_S)
        members = group_members(self.identity.group)
        return Evidence(gone_ns, tuple(m for m in members if m.pid != self.identity.pid))

    def undo(self) -> None:
        """Closes the pidfd; a kill has nothing else to undo."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
