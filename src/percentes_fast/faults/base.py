"""A fault's life: armed -> fired in [lo, hi] -> undone.

Never: fires at something whose identity was not checked twice.
Plan: plain records of what was armed, when the signal went, and what shows that it landed. Times
are CLOCK_MONOTONIC ns here; run.py moves them to the run's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a process this one and no other: pid, start time, command line; and its group."""

    pid: int
    start_ticks: int  # since boot, /proc/PID/stat field 22
    command: str
    group: int


@dataclass(frozen=True, slots=True)
class Fired:
    """The signal's system call lies between the two clock reads; errno 0: the kernel took it."""

    before_ns: int
    after_ns: int
    errno: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What shows that the fault landed.

    gone_ns: when the process was seen to be gone, None if it was not within the time allowed;
    survivors: members of its group still alive a second later.
    """

    gone_ns: int | None
    survivors: tuple[Identity, ...]


class Armed(Protocol):
    """An armed fault."""

    @property
    def identity(self) -> Identity:
        """The victim, as checked at arming."""

    def check(self) -> None:
        """Checks the victim's identity again. Raises FaultError."""

    def fire(self, at_ns: int) -> Fired:
        """Waits for CLOCK_MONOTONIC `at_ns` and does it."""

    def evidence(self) -> Evidence:
        """Looks whether it landed."""

    def undo(self) -> None:
        """Lets go of everything; safe to call at any time."""
