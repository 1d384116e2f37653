"""Can this machine measure? Cores, governor, clocks, overshoot, limits, and what to change.

Never: changes a setting. Plan: one finding a line: what was read, whether it will do, the remedy.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from percentes_fast import _native
from percentes_fast.engine.cpu import CPU, usable
from percentes_fast.engine.cpu import read_line as _read

OVERSHOOT_S = 2.0
PERIOD_NS = 2_000_000
SPIN_NS = 500_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; `remedy` is empty where it will do."""

    what: str
    found: str
    remedy: str = ""


def examine() -> tuple[Finding, ...]:
    """Everything that decides whether this machine can measure; takes about 2 s."""
    return tuple(_findings())


def _findings() -> Iterator[Finding]:
    yield _cores()
    yield _governor()
    yield _clock_source()
    yield _clock_cost()
    yield _overshoot()
    yield _descriptors()
    yield _ports()
    yield _memory_lock()
    yield _real_time()
    yield _shared_memory()


def _cores() -> Finding:
    cores = usable()
    remedy = "" if len(cores) > 1 else "give it two cores: one is for the load alone"
    isolated = _read(CPU / "isolated") or "none"
    return Finding(
        "cores", f"{len(cores)} usable of {os.cpu_count()}, isolated: {isolated}", remedy
    )


def _governor() -> Finding:
    found = {_read(path) for path in CPU.glob("cpu[0-9]*/cpufreq/scaling_governor")} - {None}
    if not found:
        return Finding("governor", "not visible here (a virtual machine, or no cpufreq)")
    remedy = "" if found == {"performance"} else "cpupower frequency-set -g performance"
    return Finding("governor", ", ".join(sorted(str(name) for name in found)), remedy)


def _clock_source() -> Finding:
    name = _read(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource"))
    fast = name in ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")
    return Finding(
        "clock source", name or "unknown", "" if fast else "use tsc: others are slow to read"
    )


def _clock_cost() -> Finding:
    cost = min(_native.clock_cost(100_000) for _ in range(5))
    return Finding("clock read", f"{cost:.0f} ns", "" if cost < 200 else "see clock source")


def _overshoot() -> Finding:
    late = sorted(_native.wait_overshoot(int(OVERSHOOT_S * 1e9 / PERIOD_NS), PERIOD_NS, SPIN_NS))
    p50, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
    remedy = "" if p99 < 1_000_000 else "stop other work on this machine, or isolate a core"
    shown = f"p50 {p50 / 1e3:.2f} us, p99 {p99 / 1e3:.2f} us, max {late[-1] / 1e3:.1f} us over 2 s"
    return Finding("busy-wait overshoot", shown, remedy)


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    remedy = "" if hard >= 4096 else "ulimit -Hn 65536 (each open stream takes one)"
    return Finding("open files", f"soft {soft}, hard {hard} (raised to hard for a run)", remedy)


def _ports() -> Finding:
    text = _read(Path("/proc/sys/net/ipv4/ip_local_port_range"))
    if text is None:
        return Finding("port range", "not readable")
    low, high = map(int, text.split())
    remedy = "" if high - low >= 16_000 else "sysctl net.ipv4.ip_local_port_range='10240 65535'"
    return Finding(
        "port range", f"{low}-{high}: {high - low + 1} connections to one target", remedy
    )


def _memory_lock() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if os.geteuid() == 0:
        return Finding("memory lock", "allowed (root)")
    unlimited = hard == resource.RLIM_INFINITY
    remedy = "" if unlimited else "ulimit -l unlimited: else a page fault can delay a send"
    return Finding("memory lock", "unlimited" if unlimited else f"{soft >> 10} KiB", remedy)


def _real_time() -> Finding:
    try:
        before = os.sched_getscheduler(0)
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, before, os.sched_param(0))
    except OSError as exc:
        remedy = "ulimit -r 50, or run as root: else other work delays sends and the kill"
        return Finding("real-time scheduling", exc.strerror or "refused", remedy)
    return Finding("real-time scheduling", "allowed")


def _shared_memory() -> Finding:
    try:
        free = os.statvfs("/dev/shm")
    except OSError as exc:
        return Finding("/dev/shm", exc.strerror or "absent", "mount it: records go to disk instead")
    size = free.f_bavail * free.f_frsize >> 20
    return Finding(
        "/dev/shm", f"{size} MiB free", "" if size >= 128 else "docker run --shm-size=1g"
    )


def render(findings: tuple[Finding, ...]) -> str:
    """A table: `ok` or `change` a line, remedies behind an arrow."""
    lines = [
        f"{'change' if f.remedy else 'ok':6} {f.what:22} {f.found}"
        + (f"\n{'':30}-> {f.remedy}" if f.remedy else "")
        for f in findings
    ]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return "\n".join(
        [*lines, f"{'':6} python {python}, connection state {_native.CONNECTION_BYTES} B"]
    )
