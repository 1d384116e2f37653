"""Workers as processes: cores, start, watch, join.

Never: touches a record, or waits for a worker that is gone.
Plan: choose cores (one is left to the rest of the machine where there are two), write each worker's
slab and job, start all, give them the epoch, look after them until the last has ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from percentes_fast.config import Config, seconds_ns
from percentes_fast.engine import cpu, slabs
from percentes_fast.engine.payload import Arena, render
from percentes_fast.engine.schedule import Schedule
from percentes_fast.errors import ClientError, ConfigError
from percentes_fast.schema import Kind

ROWS_A_WORKER_S = 2000  # requests a second that one worker is given before another is added
EVENTS_A_WORKER_S = 50_000
ROW_COST_S, TOKEN_COST_S = 40e-6, 10e-6  # CPU a request and an event (docs/PERFORMANCE.md)
READY_TIMEOUT_S = 30.0
SPARE_TOKENS = 1024
MESSAGE_SLOTS = 16_384


@dataclass(frozen=True, slots=True)
class CorePlan:
    """Which core each worker has (None: not pinned) and which are left to the rest."""

    workers: tuple[int | None, ...]
    rest: tuple[int, ...]


def plan_cores(
    config: Config,
    available: Sequence[int],
    schedule: Schedule,
    isolated: frozenset[int] = frozenset(),
) -> CorePlan:
    """Cores of the workers: isolated ones first, then from the highest number down (core 0 serves
    most interrupts).

    The schedule says how many are needed: mean rows and tokens a second, all kinds.

    Raises ConfigError where a core asked for is not there or workers outnumber the cores.
    """
    cores = sorted(available)
    asked = config.engine.cores
    if asked is not None:
        missing = sorted(set(asked) - set(cores))
        if missing or len(set(asked)) != len(asked):
            shown = ", ".join(map(str, missing)) or "one twice"
            raise ConfigError(
                f"engine.cores (--cores): {shown}; this process may use {_shown_cores(cores)}"
            )
    most = len(asked) if asked else max(1, len(cores) - 1)
    count = _worker_count(config, schedule, most)
    best = sorted(cores, key=lambda core: (core not in isolated, -core))
    chosen = tuple(asked or best)[:count]
    if len(chosen) < count:
        raise ConfigError(
            f"engine.workers (--workers {count}): one core each, but there are {len(cores)}"
        )
    rest = tuple(core for core in cores if core not in chosen)
    shared = tuple(core for core in rest if core not in isolated)
    return CorePlan(chosen, shared or rest or tuple(cores))


def polls_busily(config: Config, cores: CorePlan, number: int) -> bool:
    """Does this worker never sleep? auto: where its core is its own and two are left beside it."""
    if config.engine.poll != "auto":
        return config.engine.poll == "busy"
    return cores.workers[number] not in cores.rest and len(cores.rest) >= 2


def _shown_cores(cores: Sequence[int]) -> str:
    return f"{cores[0]}-{cores[-1]}" if len(cores) > 4 else ", ".join(map(str, cores))


def _worker_count(config: Config, schedule: Schedule, most: int) -> int:
    if config.engine.workers != "auto":
        return int(config.engine.workers)
    rows, tokens = len(schedule), _tokens(schedule, np.arange(len(schedule)))
    need = max(rows / ROWS_A_WORKER_S, tokens / EVENTS_A_WORKER_S) / config.duration_s
    return max(1, min(most, math.ceil(need)))


def busy_share(rows_s: float, tokens_s: float, spin_s: float) -> float:
    """Share of its core that a worker keeps busy: spins (which may overlap), sends and reads.

    Poisson sends: some spin is under way for 1 - exp(-rate * spin) of the time.
    """
    return 1 - math.exp(-rows_s * spin_s) + rows_s * ROW_COST_S + tokens_s * TOKEN_COST_S


def _tokens(schedule: Schedule, rows: np.ndarray[Any, Any]) -> int:
    """Tokens asked for by the given rows."""
    of_template = np.array([template.max_tokens for template in schedule.templates], np.int64)
    return int(of_template[schedule.template[rows]].sum())


@dataclass(slots=True)
class Worker:
    """One worker process and its slab."""

    number: int
    process: subprocess.Popen[str]
    slab: slabs.Slab
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Address:
    """A target as the engine dials it, and the Host header it is told."""

    ip: str
    port: int
    host: str
    tls_name: str | None = None  # the certificate's; None: plain http


class Pool:
    """All workers of a run."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers

    @property
    def slabs(self) -> list[slabs.Slab]:
        """The workers' slabs, in the order of their numbers."""
        return [worker.slab for worker in self.workers]

    def begin(self, epoch_ns: int) -> None:
        """Gives every worker the epoch (CLOCK_MONOTONIC ns)."""
        for worker in self.workers:
            worker.slab.set_word("epoch_ns", epoch_ns)

    def stop(self) -> None:
        """Asks every worker to end its schedule now; open rows end as stopped."""
        for worker in self.workers:
            worker.slab.set_word("stop", 1)

    def running(self) -> bool:
        """Is any worker process alive?"""
        return any(worker.process.poll() is None for worker in self.workers)

    def kill(self) -> None:
        """Ends every worker process, for a run that did not come to its start."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()
            _close_output(worker)

    def restore_cores(self) -> None:
        """Puts back the governor of a worker that died before it could."""
        for worker in self.workers:
            before = worker.settings.get("governor_before")
            if before is not None:
                with contextlib.suppress(OSError):
                    cpu.set_governor(int(worker.settings["core"]), before)

    def remove_slabs(self) -> None:
        """Deletes the slab files: their records are in the run directory now."""
        for worker in self.workers:
            worker.slab.path.unlink(missing_ok=True)


def slab_size(config: Config, schedule: Schedule, rows: np.ndarray[Any, Any]) -> slabs.SlabSize:
    """Size of the slab for the given rows: a token time for every token asked for, and spares."""
    tokens = _tokens(schedule, rows) + 4 * len(rows) + SPARE_TOKENS
    sections = (config.load, config.probe, config.canary, config.health)
    longest = max(section.timeout_s for section in sections)
    seconds = math.ceil(config.duration_s + longest) + 60
    return slabs.SlabSize(len(rows), tokens, seconds, min(len(rows), MESSAGE_SLOTS))


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the workers of a run are made from; directory: where slabs go without /dev/shm."""

    config: Config
    schedule: Schedule
    addresses: tuple[Address, ...]
    cores: CorePlan
    run_id: str
    directory: Path


def start(plan: Plan) -> Pool:
    """Starts the workers, ready and waiting for the epoch. Raises ClientError; nothing is left."""
    pool = Pool([])
    try:
        for number in range(len(plan.cores.workers)):
            pool.workers.append(_start_one(plan, number))
        for worker in pool.workers:
            _await_ready(worker)
    except BaseException:
        pool.stop()  # those that are ready put their cores back themselves
        for worker in pool.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(1.0)
        pool.kill()
        pool.restore_cores()
        pool.remove_slabs()
        raise
    return pool


def _start_one(plan: Plan, number: int) -> Worker:
    rows = plan.schedule.of_worker(number, len(plan.cores.workers))
    hosts = tuple(address.host for address in plan.addresses)
    arena = render(plan.config, plan.schedule, rows, plan.run_id, hosts)
    size = slab_size(plan.config, plan.schedule, rows)
    slab = slabs.create(slabs.place(plan.run_id, number, size, plan.directory), size, number)
    try:
        fill(slab, plan.schedule, rows, arena)
        heads = _memory_file(arena.heads)
        process = _spawn(_job(plan, number, slab, heads, arena), heads)
        slab.let_go()
    except BaseException:
        slab.path.unlink(missing_ok=True)
        raise
    return Worker(number, process, slab)


def fill(slab: slabs.Slab, schedule: Schedule, rows: np.ndarray[Any, Any], arena: Arena) -> None:
    """Writes the columns that are known before the run."""
    known = {
        "index": rows,
        "intended_ns": schedule.intended_ns[rows],
        "kind": schedule.kind[rows],
        "target": schedule.target[rows],
        "head_offset": arena.offset,
        "head_length": arena.length,
        "tail": arena.tail,
    }
    for name, values in known.items():
        np.asarray(slab.column(name))[:] = values


def _memory_file(data: bytes) -> int:
    """The heads in a file without a name: headers may hold secrets, so they touch no directory."""
    fd = os.memfd_create("percentes-fast-heads")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def engine_options(config: Config, arena: Arena, addresses: Sequence[Address]) -> dict[str, Any]:
    """What the native engine is told, as plain data (the keys of worker.py's job)."""
    timeouts = {
        Kind.LOAD: config.load.timeout_s,
        Kind.PROBE: config.probe.timeout_s,
        Kind.CANARY: config.canary.timeout_s,
        Kind.HEALTH: config.health.timeout_s,
    }
    return {
        "tails": [tail.decode("latin-1") for tail in arena.tails],
        "targets": [(address.ip, address.port) for address in addresses],
        "timeouts_ns": [seconds_ns(timeouts[kind]) for kind in Kind],
        "plain": [kind == Kind.HEALTH for kind in Kind],
        "spin_ns": round(config.engine.spin_us * 1000),
        "idle_reuse_ns": seconds_ns(config.engine.idle_reuse_s),
        "end_by_finish": config.target.end_marker == "finish_reason",
        "stamps": config.engine.kernel_stamps,
        "rehearse": config.engine.rehearse and config.engine_kind == "native",
        "engine": config.engine_kind,
        "tls": [_tls(config, address) for address in addresses],
        "replica_header": config.target.replica_header or "",
        "secrets": config.target.secrets(),
    }


def _tls(config: Config, address: Address) -> dict[str, Any] | None:
    if address.tls_name is None:
        return None
    return {"name": address.tls_name, **config.target.tls.model_dump()}


def _job(plan: Plan, number: int, slab: slabs.Slab, heads_fd: int, arena: Arena) -> dict[str, Any]:
    config = plan.config
    native = config.engine_kind == "native"
    busy = native and polls_busily(config, plan.cores, number)
    rows_s, tokens_s = (slab.word(w) / config.duration_s for w in ("rows", "tokens_capacity"))
    return {
        "slab": str(slab.path),
        "heads_fd": heads_fd,
        "core": plan.cores.workers[number],
        "parent": os.getpid(),
        "busy": busy,
        # real-time scheduling must stay below the kernel's throttle
        "busy_share": busy_share(rows_s, tokens_s, config.engine.spin_us / 1e6)
        if native and not busy
        else 1.0,
        **engine_options(config, arena, plan.addresses),
    }


def _spawn(job: dict[str, Any], heads_fd: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "percentes_fast.engine.worker"]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(heads_fd,),
        )
    except OSError as exc:
        raise ClientError(f"worker: cannot be started: {exc}") from exc
    finally:
        os.close(heads_fd)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.close()
    return process


def _close_output(worker: Worker) -> None:
    if worker.process.stdout is not None:
        worker.process.stdout.close()


def _await_ready(worker: Worker) -> None:
    assert worker.process.stdout is not None
    line = worker.process.stdout.readline()
    _close_output(worker)  # it says nothing after this line
    said = json.loads(line) if line else {"error": f"exit status {worker.process.wait()}"}
    if "error" in said:
        raise ClientError(f"worker {worker.number}: did not start: {said['error']}")
    worker.settings = said
    deadline = time.monotonic() + READY_TIMEOUT_S
    while worker.slab.word("state") != slabs.STATE_READY:
        if worker.process.poll() is not None or time.monotonic() > deadline:
            raise ClientError(f"worker {worker.number}: did not get ready")
        time.sleep(0.001)
