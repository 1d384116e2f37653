"""A fault's life: armed -> fired in [lo, hi] -> undone.

Never: fires at something whose identity was not checked twice.
Plan: plain records of what was armed, when the signal went, and what shows that it landed. Times
are CLOCK_MONOTONIC ns of this machine here; injection.py moves them to the run's clock. Readings of
the victim's host are its wall clock, `_remote_wall_ns`.
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
class Remote:
    """Clock readings of the killer on the victim's host, right before and right after the signal.

    monotonic_before_ns, monotonic_after_ns: that host's CLOCK_MONOTONIC, which says more only where
    it is this machine; None from a shell.
    """

    before_remote_wall_ns: int
    after_remote_wall_ns: int
    monotonic_before_ns: int | None
    monotonic_after_ns: int | None
    resolution_ns: int


@dataclass(frozen=True, slots=True)
class Fired:
    """The signal's system call lies between the two clock reads; errno 0: the kernel took it.

    With a killer on another host: read before the order was written, and after its answer came.
    """

    before_ns: int
    after_ns: int
    errno: int
    remote: Remote | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What shows that the fault landed.

    gone_ns: when the process was seen to be gone (on this machine's clock), None if it was not
    within the time allowed, or need not go; stopped: after SIGSTOP the kernel said so; survivors:
    of its group and its children, still alive a second later; continued_ns: when SIGCONT was sent.
    """

    gone_ns: int | None
    survivors: tuple[Identity, ...]
    stopped: bool | None = None
    continued_ns: int | None = None


class Armed(Protocol):
    """An armed fault."""

    @property
    def identity(self) -> Identity:
        """The victim, as checked at arming."""

    @property
    def how(self) -> dict[str, object]:
        """How it is done, for fault.json: held by a pidfd, by sudo, what was said at arming."""

    def check(self) -> None:
        """Checks the victim's identity again. Raises FaultError."""

    def fire(self, at_ns: int) -> Fired:
        """Waits for CLOCK_MONOTONIC `at_ns` and does it. Raises FaultError if it was not done."""

    def evidence(self) -> Evidence:
        """Looks whether it landed."""

    def hasten(self) -> None:
        """Ends what it is still doing (a stop) now; its evidence says so. Safe at any time."""

    def undo(self) -> None:
        """Lets go of everything, a stopped process runs again; safe to call at any time."""
