"""Table: kind of fault -> how it is armed.

Never: holds state. Plan: one entry a kind; a kind that is not here does not exist.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from percentes_fast.faults.base import Armed
from percentes_fast.faults.host import LocalProcess


def _kill(pid: int) -> Armed:
    return LocalProcess(pid, signal.SIGKILL, group=False)


def _kill_group(pid: int) -> Armed:
    return LocalProcess(pid, signal.SIGKILL, group=True)


ARM: dict[str, Callable[[int], Armed]] = {"kill": _kill, "kill_group": _kill_group}
