"""Processes of a host from its /proc: who they are, whose children, of which group.

Never: finds a process by a pattern among strangers (a role is looked for among one server's own
children, and must fit exactly one), or signals a pid without a pidfd opened at arming.
Plan: a fact is a text of /proc, read by this process where the host is this machine, by one shell
command elsewhere, and parsed by the same code. Here no process is started for it: right before a
fault a real-time thread asks, which must not wait for one that is not. `LocalProcess` is the fault
on this machine: a pidfd, and native code between two clock reads.
"""

from __future__ import annotations

import io
import os
import re
import select
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from percentes_fast import _native
from percentes_fast.errors import FaultError
from percentes_fast.faults.base import Evidence, Fired, Identity
from percentes_fast.faults.host import Host, LocalHost, text_of
from percentes_fast.target import blotted

SURVIVOR_WAIT_S = 1.0
DEAD = "ZX"
MARK = "#percentes-fast"  # with its two line ends more than a process name can hold
# A line of /proc/PID/stat: pid, name, state, numbers. The name may hold anything, even what looks
# like the next line, but it has 15 bytes, too few for 19 numbers (a kernel thread's, up to 63).
STAT = re.compile(r"(\d+) \(.{0,63}?\) (\S) ((?:-?\d+ ){18,}-?\d+)(?:\n|\Z)", re.DOTALL)
ONE_LINE = str.maketrans("\0\n", "  ")
RACE_OF_GROUPS = (
    "a group is signalled by its number, which could pass to another group between the check and"
    " the signal"
)


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/*/stat."""

    pid: int
    state: str
    parent: int
    group: int
    start_ticks: int


def parse(stats: str) -> Iterator[Process]:
    """Lines of /proc/*/stat, one after the other."""
    for found in STAT.finditer(stats):
        numbers = found[3].split()
        yield Process(int(found[1]), found[2], int(numbers[0]), int(numbers[1]), int(numbers[18]))


# ---------------------------------------------------------------- texts of /proc


def _read(pid: int | str, name: str) -> bytes | None:
    """A file of /proc/PID of this machine, None where the process has ended, or is hidden."""
    try:
        with io.FileIO(f"/proc/{pid}/{name}") as file:
            return file.readall()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    except OSError as exc:  # such as no descriptor left: that says nothing about the process
        raise FaultError(
            f"/proc/{pid}/{name}: {exc.strerror}; look what this program lacks"
        ) from exc


def _all_stats(host: Host) -> str:
    if host.is_here:
        with os.scandir("/proc") as entries:
            pids = [entry.name for entry in entries if entry.name.isdigit()]
        return text_of(b"".join(_read(pid, "stat") or b"" for pid in pids))
    return host.run("cat /proc/[0-9]*/stat 2>/dev/null; true", again=True).out


def _all_commands(host: Host, pids: Iterable[int]) -> str:
    """Lines `PID COMMAND LINE` of those that are there."""
    if not host.is_here:
        return host.run(_ask_commands(pids), again=True).out
    found = ((pid, _read(pid, "cmdline")) for pid in pids)
    return "".join(
        f"{pid} {text_of(command).translate(ONE_LINE)}\n"
        for pid, command in found
        if command is not None
    )


def _ask_commands(pids: Iterable[int]) -> str:
    listed = " ".join(map(str, pids))
    return (
        f"for p in {listed}; do c=$(tr '\\0\\n' '  ' 2>/dev/null </proc/$p/cmdline) || continue;"
        " printf '%s %s\\n' $p \"$c\"; done"
    )


def _stat_and_command(host: Host, pid: int) -> tuple[str, str]:
    """Of one process, in one question."""
    if host.is_here:
        return text_of(_read(pid, "stat") or b""), _all_commands(host, [pid])
    script = f"cat /proc/{pid}/stat; echo '{MARK}'; {_ask_commands([pid])}"
    stat, _, command = host.run(script, again=True).out.partition(f"\n{MARK}\n")
    return stat, command


# ---------------------------------------------------------------- what they say


def table(host: Host) -> dict[int, Process]:
    """All living processes of a host by pid; a zombie is dead."""
    found = sorted(parse(_all_stats(host)), key=lambda one: one.pid)
    return {one.pid: one for one in found if one.state not in DEAD}


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
    return _named(_all_commands(host, wanted), wanted) if wanted else ()


def identify(host: Host, pid: int) -> Identity:
    """Identity of a living process. Raises FaultError where there is none (a zombie is dead)."""
    stat, command = _stat_and_command(host, pid)
    process = next(parse(stat), None)
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
        self.how: dict[str, object] = {
            "by": "pidfd of this machine",
            "group": group,
            "race": RACE_OF_GROUPS if group else None,
        }
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
        try:
            return Fired(*_native.fire(self._pidfd, group, self._signal, at_ns))
        except ProcessLookupError as exc:
            pid = self.identity.pid
            raise FaultError(f"pid {pid}: has ended by now; it was not fired") from exc

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
