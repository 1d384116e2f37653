"""Real-time scheduling of what measures: a server on the same cores must not keep it from running.

Never: reaches a child process (a server that is started meanwhile keeps the usual scheduler), stays
when the load is over, or raises: what the machine refuses is a text for the record.
Plan: ranks, the highest first; `this_thread` for a process that is there for one thing, `Threads`
for a process that is real-time for a while. Why not niceness: Linux 6.18 was seen to leave a
runnable process without its core for 160 s beside a busy container.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

WORKER, CANARY, KILL, OBSERVER = 50, 40, 10, 5
TASKS = Path("/proc/self/task")
FIFO = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK  # children, and threads begun later, do not get it


def this_thread(rank: int) -> str | None:
    """SCHED_FIFO at `rank` for the calling thread; why it was refused, or None."""
    try:
        os.sched_setscheduler(0, FIFO, os.sched_param(rank))
    except OSError as exc:
        return exc.strerror
    return None


@contextlib.contextmanager
def raised(rank: int) -> Iterator[None]:
    """The calling thread at `rank`, where allowed, and then as it was."""
    policy, usual = os.sched_getscheduler(0), os.sched_getparam(0)
    refused = this_thread(rank)
    try:
        yield
    finally:
        if refused is None:
            _restore(0, policy, usual)


def _restore(thread: int, policy: int, usual: os.sched_param) -> None:
    for each in (policy, policy | os.SCHED_RESET_ON_FORK):
        with contextlib.suppress(OSError):  # without CAP_SYS_NICE the flag has to stay
            os.sched_setscheduler(thread, each, usual)
            return


def scheduler() -> str:
    """Of the calling thread: fifo or other."""
    return "fifo" if _policy(0) == os.SCHED_FIFO else "other"


class Threads:
    """Every thread of this process at one rank, from `take` to `give_back`."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.refused: str | None = None

    def take(self) -> None:
        """Takes in the threads that are not real-time yet; called again, those begun since.

        All of them, or one that holds the interpreter's lock keeps the others from running.
        """
        for thread in _threads(os.SCHED_OTHER):
            try:
                os.sched_setscheduler(thread, FIFO, os.sched_param(self._rank))
            except ProcessLookupError:
                continue  # ended meanwhile
            except OSError as exc:
                self.refused = exc.strerror
                return

    def give_back(self) -> None:
        """The usual scheduler again, for every thread."""
        for thread in _threads(os.SCHED_FIFO):
            _restore(thread, os.SCHED_OTHER, os.sched_param(0))


def _threads(policy: int) -> Iterator[int]:
    """Threads of this process under a policy."""
    for entry in TASKS.iterdir():
        thread = int(entry.name)
        with contextlib.suppress(OSError):
            if _policy(thread) == policy:
                yield thread


def _policy(thread: int) -> int:
    return os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK
