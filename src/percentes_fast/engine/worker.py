"""Child process: pins itself, locks its memory, waits for the epoch, runs the engine.

Never: imports numpy, pandas or pyarrow, prints during the run, or decides anything.
Plan: the job comes as one JSON line on stdin (nothing of it shows in `ps`); what the machine
refused goes back as one JSON line on stdout before the worker is ready; then the C loop has it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from percentes_fast import _native, priority
from percentes_fast.engine import cpu, engines, slabs
from percentes_fast.errors import PercentesError

MCL_CURRENT, MCL_FUTURE = 1, 2
PR_SET_TIMERSLACK = 29
HELD_BACK = 64  # descriptors for the process's own files
NICENESS = -20
REAL_TIME_SHARE = 0.7  # of a core's time; the kernel throttles real-time tasks at 0.95 of a second


def main() -> int:
    """Runs one job; 0 when the schedule ran to its end or was stopped in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    job = json.loads(sys.stdin.readline())
    governed = cpu.Governed(-1 if job["core"] is None else job["core"])
    try:
        settings = _settle_in(job, governed)
        slab = slabs.Slab(Path(job["slab"]))
        engine = _engine(job, slab, settings["descriptors"])
        if job["rehearse"] and not engine.rehearses:
            settings["refused"].append("rehearsal: no connection to 127.0.0.1")
        _try(settings["refused"], "memory lock", _lock_memory)
        print(json.dumps(settings), flush=True)
        slab.set_word("pid", os.getpid())
        slab.set_word("state", slabs.STATE_READY)
        if _await_epoch(slab, job["parent"]):
            engine.run()
    except PercentesError as exc:
        print(json.dumps({"error": str(exc)}), flush=True)
        return exc.exit_code
    finally:
        with suppress(OSError):
            governed.restore()
    return 0


def _settle_in(job: dict[str, Any], governed: cpu.Governed) -> dict[str, Any]:
    """Applies what helps timing; returns what held and what was refused."""
    refused: list[str] = []
    if job["core"] is not None:
        _try(refused, "affinity", lambda: os.sched_setaffinity(0, {job["core"]}))
    _try(refused, "niceness", lambda: os.setpriority(os.PRIO_PROCESS, 0, NICENESS))
    if job["busy_share"] < REAL_TIME_SHARE:
        why = priority.this_thread(priority.WORKER)
        refused += [f"SCHED_FIFO: {why}"] if why else []
    _try(refused, "timer slack", lambda: _call(_libc().prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)))
    _try(refused, "wake-up latency", cpu.hold_awake)
    _try(refused, "governor", governed.favour)
    return {
        "core": job["core"],
        "isolated": job["core"] in cpu.isolated(),
        "governor": cpu.governor(governed.core),
        "governor_before": governed.before,
        "engine": job["engine"],
        "poll": "busy" if job["busy"] else "hybrid",
        "scheduler": priority.scheduler(),
        "descriptors": raise_descriptor_limit(),
        "refused": refused,
    }


def _try(refused: list[str], name: str, action: Any) -> None:
    try:
        action()
    except OSError as exc:
        refused.append(f"{name}: {exc.strerror}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _lock_memory() -> None:
    """Comes last: under a low limit it is refused, where a lock on memory to come would make the
    slab's mapping fail.
    """
    _call(_libc().mlockall(MCL_CURRENT | MCL_FUTURE))


def _call(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def raise_descriptor_limit() -> int:
    """Raises the soft limit of open files to the hard one; returns what is left for connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    limit = 2**20 if soft == resource.RLIM_INFINITY else soft
    return max(1, limit - HELD_BACK)


def _engine(job: dict[str, Any], slab: slabs.Slab, descriptors: int) -> engines.Engine:
    with open(job["heads_fd"], "rb", closefd=True) as heads:  # noqa: PTH123 (a descriptor)
        head_bytes = heads.read()
    tails = [tail.encode("latin-1") for tail in job["tails"]]
    return engines.make(slab, head_bytes, tails, job, min(descriptors, max(1, slab.word("rows"))))


def _await_epoch(slab: slabs.Slab, parent: int) -> bool:
    while slab.word("epoch_ns") == 0:
        if slab.word("stop") or os.getppid() != parent:
            return False
        time.sleep(0.001)
    while _native.clock_now() < slab.word("epoch_ns") - 20_000_000:
        time.sleep(0.01)
    return True


if __name__ == "__main__":
    sys.exit(main())
