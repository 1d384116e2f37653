"""Table: kind of fault -> how it is armed.

Never: holds state. Plan: one entry a kind; a kind that is not here does not exist. On this machine
a process that may be signalled is held by a pidfd of this program; over SSH, with sudo, or where
something is to be undone even if this program dies, a killer of its own stands beside the victim.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from percentes_fast.faults.base import Armed
from percentes_fast.faults.host import Host
from percentes_fast.faults.killer import Killer, Order, may_signal_here
from percentes_fast.faults.process import LocalProcess, child_of_role
from percentes_fast.site import Fault


@dataclass(frozen=True, slots=True)
class Victim:
    """The server's first process on its host."""

    host: Host
    pid: int


def _arm(victim: Victim, fault: Fault, number: int, *, group: bool = False) -> Armed:
    here = victim.host.is_here and may_signal_here(victim.pid)
    if here and number != signal.SIGSTOP:
        return LocalProcess(victim.pid, number, group=group, gone_timeout_s=fault.gone_timeout_s)
    order = Order(number, group, fault.stop_s, fault.gone_timeout_s)
    return Killer(victim.host, victim.pid, order)


def _kill(victim: Victim, fault: Fault) -> Armed:
    return _arm(victim, fault, signal.SIGKILL)


def _kill_group(victim: Victim, fault: Fault) -> Armed:
    return _arm(victim, fault, signal.SIGKILL, group=True)


def _kill_child(victim: Victim, fault: Fault) -> Armed:
    child = child_of_role(victim.host, victim.pid, fault.role)
    return _arm(Victim(victim.host, child.pid), fault, signal.SIGKILL)


def _term(victim: Victim, fault: Fault) -> Armed:
    return _arm(victim, fault, signal.SIGTERM)


def _stop(victim: Victim, fault: Fault) -> Armed:
    return _arm(victim, fault, signal.SIGSTOP)


ARM: dict[str, Callable[[Victim, Fault], Armed]] = {
    "kill": _kill,
    "kill_group": _kill_group,
    "kill_child": _kill_child,
    "term": _term,
    "stop": _stop,
    "kill_container": _kill,  # of its first process, from the host: the restart policy acts
}
SIGNALS = {
    "kill": signal.SIGKILL,
    "kill_group": signal.SIGKILL,
    "kill_child": signal.SIGKILL,
    "term": signal.SIGTERM,
    "stop": signal.SIGSTOP,
    "kill_container": signal.SIGKILL,
}
