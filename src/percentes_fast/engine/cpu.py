"""What the kernel offers a timing thread: isolated cores, frequency governor, wake-up latency.

Never: imports numpy or pyarrow (workers import it), or leaves a governor changed: whoever sets one
puts it back, and the parent does where a worker died before it could.
Plan: every path is below a root that is /sys here and a directory of real files in tests; what the
machine does not offer is None, what it refuses is an OSError.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CPU = Path("/sys/devices/system/cpu")
WAKE_LATENCY = Path("/dev/cpu_dma_latency")
PERFORMANCE = "performance"


def read_line(path: Path) -> str | None:
    """A one-line file's text, or None where it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


def isolated(root: Path = CPU) -> frozenset[int]:
    """Cores that the scheduler gives to nobody by itself (isolcpus)."""
    return frozenset(_cores(read_line(root / "isolated") or ""))


def _cores(text: str) -> Iterable[int]:
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


def usable() -> list[int]:
    """Cores this process may run on, isolated ones too where it may move to them.

    An isolated core is in nobody's affinity until it is asked for; asking is undone here.
    """
    allowed = os.sched_getaffinity(0)
    found = set(allowed)
    for core in isolated() - allowed:
        try:
            os.sched_setaffinity(0, {core})
        except OSError:  # outside this container's cpuset
            continue
        found.add(core)
    os.sched_setaffinity(0, allowed)
    return sorted(found)


def governor(core: int, root: Path = CPU) -> str | None:
    """The core's frequency governor, or None where there is none to see."""
    return read_line(_governor_file(core, root))


def set_governor(core: int, name: str, root: Path = CPU) -> None:
    """Raises OSError where it may not be set."""
    _governor_file(core, root).write_text(name)


def _governor_file(core: int, root: Path) -> Path:
    return root / f"cpu{core}" / "cpufreq" / "scaling_governor"


@dataclass(slots=True)
class Governed:
    """A core's governor, set to performance until `restore`; `before` is None where none was."""

    core: int
    before: str | None = None
    root: Path = CPU

    def favour(self) -> None:
        """Sets it where there is one that is another. Raises OSError where that is refused."""
        found = governor(self.core, self.root)
        if found is not None and found != PERFORMANCE:
            set_governor(self.core, PERFORMANCE, self.root)
            self.before = found

    def restore(self) -> None:
        """Puts back what `favour` changed. Raises OSError where that is refused."""
        if self.before is not None:
            set_governor(self.core, self.before, self.root)
            self.before = None


def hold_awake(path: Path = WAKE_LATENCY) -> int:
    """Keeps every core out of idle states that are slow to leave, while the descriptor is open.

    The kernel ends it when the process ends, however it ends. Raises OSError where it may not.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.write(fd, struct.pack("i", 0))  # microseconds
    return fd
