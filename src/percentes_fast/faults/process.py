"""Processes of a host from its /proc: who they are, whose children, of which group.

Never: finds a process by a pattern among strangers (a role is looked for among one server's own
children, and must fit exactly one), or signals a pid without a pidfd opened at arming.
Plan: one shell command reads all of /proc/*/stat, so that the same code looks here and over SSH;
`LocalProcess` is the fault on this machine: a pidfd, and native code between two clock reads.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

from percentes_fast import _native
from percentes_fast.errors import FaultError
from percentes_fast.faults.base import Evidence, Fired, Identity
from percentes_fast.faults.host import Host, LocalHost
from percentes_fast.target import blotted

SURVIVOR_WAIT_S = 1.0
DEAD = "ZX"
MARK = "#percentes-fast"  # with its two line ends more than a process name can hold
LINE = re.compile(r"\n(?=\d+ \()")  # the name in brackets may hold a line's end


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/*/stat."""

    pid: int
    state: str
    parent: int
    group: int
    start_ticks: int


def parse(stat: str) -> Process | None:
    """One /proc/PID/stat line; None where it is none (the second field may hold anything)."""
    pid, _, rest = stat.partition(" ")
    fields = rest.rpartition(")")[2].split()
    if not pid.isdigit() or len(fields) < 20:
        return None
    return Process(int(pid), fields[0], int(fields[1]), int(fields[2]), int(fields[19]))


def table(host: Host) -> dict[int, Process]:
    """All living processes of a host by pid; a zombie is dead."""
    said = host.run("cat /proc/[0-9]*/stat 2>/dev/null; true", again=True).out
    found = filter(None, map(parse, LINE.split(said)))
    return {process.pid: process for process in found if process.state not in DEAD}


def _commands(pids: Iterable[int]) -> str:
    """A shell command that prints `PID COMMAND LINE` of each."""
    listed = " ".join(map(str, pids))
    return (
        f"for p in {listed}; do c=$(tr '\\0\\n' '  ' 2>/dev/null </proc/$p/cmdline) || continue;"
        " printf '%s %s\\n' $p \"$c\"; done"
    )


def _named(said: str, processes: dict[int, Process]) -> tuple[Identity, ...]:
    found = []
    for line in said.split("\n"):
        pid, _, command = line.partition(" ")
        if pid.isdigit() and int(pid) in processes:
            one = processes[int(pid)]
            shown = blotted(command.strip())  # it is stored and told: no --api-key
            found.append(Identity(one.pid, one.start_ticks, shown, one.group))
    return tuple(found)


def identities(host: Host, processes: Iterable[Process]) -> tuple[Identity, ...]:
    """Processes with their command lines; one that has ended meanwhile is left out."""
    wanted = {process.pid: process for process in processes}
    return _named(host.run(_commands(wanted), again=True).out, wanted) if wanted else ()


def identify(host: Host, pid: int) -> Identity:
    """Identity of a living process. Raises FaultError where there is none (a zombie is dead)."""
    script = f"cat /proc/{pid}/stat; echo '{MARK}'; {_commands([pid])}"
    stat, _, command = host.run(script, again=True).out.partition(f"\n{MARK}\n")
    process = parse(stat)
    where = "" if host.is_here else f" on {host.name}"
    if process is None:
        raise FaultError(f"pid {pid}: there is no such process{where}; give the server's pid")
    found = () if process.state in DEAD else _named(command, {pid: process})
    if not found:
        raise FaultError(f"pid {pid}: has ended already{where}; give the pid of a running server")
    return found[0]


def descendants(processes: dict[int, Process], pid: int) -> tuple[Process, ...]:
    """Children of a process, their children and so on, in the order of their start."""
    family, new = {pid}, {pid}
    while new:
        new = {p.pid for p in processes.values() if p.parent in new} - family
        family |= new
    found = (processes[one] for one in family - {pid})
    return tuple(sorted(found, key=lambda p: (p.start_ticks, p.pid)))


def child_of_role(host: Host, pid: int, role: str) -> Identity:
    """The one process below `pid` whose command line names the role. Raises FaultError."""
    children = identities(host, descendants(table(host), pid))
    fitting = [child for child in children if role.lower() in child.command.lower()]
    if len(fitting) == 1:
        return fitting[0]
    shown = ", ".join(f"{c.pid} {c.command[:30]!r}" for c in (fitting or children)) or "none"
    many = "no process" if not fitting else f"{len(fitting)} processes"
    raise FaultError(
        f"fault.role {role!r}: {many} below pid {pid} have it in the command line ({shown});"
        " name one of them with fault.role"
    )


def survivors(host: Host, victim: Identity, family: Iterable[int]) -> tuple[Identity, ...]:
    """Who still lives of the victim's group, and of what were its children (they have another
    parent by now, so their pids are given).
    """
    known = set(family)
    left = [
        process
        for process in table(host).values()
        if process.pid != victim.pid and (process.group == victim.group or process.pid in known)
    ]
    return identities(host, left)


def refuse_group(host: Host, victim: Identity) -> None:
    """Raises FaultError where a signal to the victim's group would reach others than the server.

    To the kernel group 1 is all processes there are, and group 0 the sender's own.
    """
    if victim.group <= 1:
        whose = f"is in process group {victim.group}, that of the whole container or host"
    elif host.is_here and victim.group == os.getpgrp():
        whose = "is in this program's own process group"
    else:
        return
    raise FaultError(
        f"pid {victim.pid}: {whose}; start the server in a session of its own (setsid), or use"
        " --fault kill"
    )


def refuse_another(armed: Identity, now: Identity) -> None:
    """Raises FaultError where they are not the same process."""
    if now != armed:
        raise FaultError(
            f"pid {armed.pid}: is not the process armed any more: it was {armed.command!r}, now"
            f" {now.command!r}; the fault was not fired"
        )


class LocalProcess:
    """A process of this machine, identified and held by a pidfd."""

    def __init__(self, pid: int, number: int, *, group: bool, gone_timeout_s: float = 10.0) -> None:
        """Arms signal `number` for the process, or for its whole group. Raises FaultError."""
        self._host = LocalHost()
        self.identity = identify(self._host, pid)
        self.how: dict[str, object] = {"by": "pidfd of this machine", "group": group}
        self._signal, self._group, self._gone_timeout_s = number, group, gone_timeout_s
        if group:
            refuse_group(self._host, self.identity)
        try:
            self._pidfd = _native.pidfd_open(pid)
        except OSError as exc:
            raise FaultError(f"pid {pid}: {exc.strerror}; it cannot be held by a pidfd") from exc
        try:
            self._check_permission()
            self._family = self._children()
        except FaultError:
            self.undo()
            raise

    def _children(self) -> tuple[int, ...]:
        return tuple(p.pid for p in descendants(table(self._host), self.identity.pid))

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
        refuse_another(self.identity, identify(self._host, self.identity.pid))
        self._family = self._children()

    def fire(self, at_ns: int) -> Fired:
        """Signals at `at_ns`; the clock is read right before and right after."""
        group = self.identity.group if self._group else 0
        return Fired(*_native.fire(self._pidfd, group, self._signal, at_ns))

    def evidence(self) -> Evidence:
        """Waits for the process to be gone, then looks for survivors."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        gone = bool(poller.poll(self._gone_timeout_s * 1000))
        gone_ns = time.monotonic_ns() if gone else None
        time.sleep(SURVIVOR_WAIT_S)
        return Evidence(gone_ns, survivors(self._host, self.identity, self._family))

    def hasten(self) -> None:
        """A signal is over at once: nothing to hasten."""

    def undo(self) -> None:
        """Closes the pidfd; a kill has nothing else to undo."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
