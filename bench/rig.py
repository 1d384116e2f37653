"""The benches' rig: a known-timing server on one core, the native engine on another, both logged.

Never: leaves a process behind, or asserts a figure: machines differ, ratios within one run do not.
Plan: `measure` fills a slab a worker with a schedule, runs each worker's engine in a forked child
on a core of its own (one: the last), the responder in another on the first, and joins what both saw
by the request's number. A load may send some of its rows to a port where nobody listens.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import signal
import socket
import subprocess
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from percentes_fast import _native
from percentes_fast.engine import slabs
from percentes_fast.engine.pool import busy_share
from percentes_fast.engine.worker import REAL_TIME_SHARE
from percentes_fast.schema import NULL64, Cause, Kind

ROOT = Path(__file__).resolve().parent.parent
BODY = b"x" * 2600  # with its head about as large as a request of 512 words
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Load:
    """A schedule of equal streams: rate a second (None: all at once), length, timing."""

    count: int
    rate: float | None
    tokens: int = 32
    ttft_us: int = 20_000
    gap_us: int = 10_000
    poll: str = "hybrid"
    stamps: bool = True
    rehearse: bool = True
    seed: int = 1
    constant: bool = False  # a grid instead of a Poisson process
    per_send: int = 1  # events in one send of the server
    dead_rate: float = 0.0  # requests a second to a closed port, beside the others
    engine_cores: tuple[int, ...] = ()  # one a worker; () is one worker on the last core


@dataclass(frozen=True)
class Seen:
    """What both ends saw, joined by request; times in ns on the monotonic clock since the epoch."""

    intended: np.ndarray[Any, Any]
    dispatch: np.ndarray[Any, Any]
    sent: np.ndarray[Any, Any]
    sent_kernel: np.ndarray[Any, Any]
    reused: np.ndarray[Any, Any]  # the request found an open connection
    arrival_kernel: np.ndarray[Any, Any]
    arrival_user: np.ndarray[Any, Any]
    completed: int
    refused: int
    event_late: np.ndarray[Any, Any]  # client's time of an event minus the server's send of it
    first_late: np.ndarray[Any, Any]  # the same, first events alone
    receive_lag: np.ndarray[Any, Any]  # client's time minus the kernel's receive stamp, own stamps
    ttft_error: np.ndarray[Any, Any]  # TTFT from the intended time minus the known one
    gap_error: np.ndarray[Any, Any]  # client's gap minus the server's own gap
    gaps: np.ndarray[Any, Any]
    server_gaps: np.ndarray[Any, Any]
    cpu_s: float
    idle_s: float
    wall_s: float
    first_event: int  # client's times of the first and the last event of all
    last_event: int


def cores() -> tuple[int, int]:
    """(engine's core, server's core)."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1], usable[0]


@contextmanager
def compiled(name: str) -> Iterator[Path]:
    """The binary of bench/`name`.c, while the block lasts."""
    with tempfile.TemporaryDirectory() as place:
        binary = Path(place) / name
        source = ROOT / "bench" / f"{name}.c"
        command = ["cc", "-O2", "-D_GNU_SOURCE", f"-I{ROOT / 'csrc'}", str(source)]
        subprocess.run([*command, "-o", str(binary)], check=True)
        yield binary


def limits() -> dict[str, list[float]]:
    """The machine's limits: name -> [p50, p99, max] in ns, measured now."""
    with compiled("limits") as binary:
        mine, other = cores()
        told = subprocess.run(
            [str(binary), str(mine), str(other)], check=True, capture_output=True, text=True
        )
    found: dict[str, list[float]] = json.loads(told.stdout)
    return found


def shared(rows: int) -> np.ndarray[Any, Any]:
    """A log that the responder's process fills: lines of three int64."""
    memory = mmap.mmap(-1, max(1, rows) * 24)
    return np.frombuffer(memory, np.int64).reshape(-1, 3)


def _favour(core: int, *, real_time: bool) -> None:
    os.sched_setaffinity(0, {core})
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    if real_time:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))


@contextmanager
def responder(requests: Any = None, events: Any = None, spin_ns: int = 2_000_000) -> Iterator[int]:
    """The port of a responder that lives while the block lasts."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    server = serve(listener, requests, events, spin_ns)
    try:
        yield listener.getsockname()[1]
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        listener.close()


def serve(listener: socket.socket, requests: Any, events: Any, spin_ns: int) -> int:
    """Forks the responder; its pid. It ends when its parent does, or by signal."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _favour(cores()[1], real_time=False)
        _native.respond(listener.fileno(), parent, spin_ns, array("i", [0]), requests, events)
        os._exit(0)
    return pid


@dataclass(frozen=True)
class Rows:
    """The schedule: times in ns from the epoch, the target of each row (1: nobody listens)."""

    times: np.ndarray[Any, Any]
    target: np.ndarray[Any, Any]


def _rows(load: Load) -> Rows:
    """Live rows are numbered first: their number is the index that the server logs."""
    live = _times(load, load.rate, load.count, load.seed)
    dead = np.zeros(0, np.int64)
    if load.dead_rate:
        count = int(load.dead_rate * live[-1] / SECOND)
        dead = _times(load, load.dead_rate, count, load.seed + 1)
    return Rows(np.concatenate([live, dead]), np.repeat([0, 1], [len(live), len(dead)]))


def _times(load: Load, rate: float | None, count: int, seed: int) -> np.ndarray[Any, Any]:
    if rate is None:
        return np.zeros(count, np.int64)
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return np.rint(np.cumsum(np.full(count, 1 / rate) if load.constant else gaps) * SECOND).astype(
        np.int64
    )


def _slab(
    load: Load, rows: Rows, mine: np.ndarray[Any, Any], path: Path
) -> tuple[slabs.Slab, bytes]:
    """A worker's slab and the heads of its rows (`mine`: their numbers, in the order of time)."""
    query = (
        f"ttft_us={load.ttft_us}&gap_us={load.gap_us}&tokens={load.tokens}&per_send={load.per_send}"
    )
    heads = [
        f"POST /bench?{query} HTTP/1.1\r\nHost: bench\r\nX-Request-Id: b-{i}\r\n"
        f"Content-Length: {len(BODY)}\r\n\r\n".encode()
        for i in mine
    ]
    lengths = np.array([len(head) for head in heads], np.int32)
    size = slabs.SlabSize(len(mine), len(mine) * (load.tokens + 2) + 1024, 3600, 16)
    slab = slabs.create(path, size, 0)
    values = {
        "index": mine,
        "intended_ns": rows.times[mine],
        "head_offset": np.concatenate([[0], np.cumsum(lengths)[:-1]]),
        "head_length": lengths,
        "tail": 0,
        "kind": int(Kind.LOAD),
        "target": rows.target[mine],
    }
    for name, value in values.items():
        np.asarray(slab.column(name))[:] = value
    return slab, b"".join(heads)


def _share(load: Load) -> float:
    """Of its core that the engine keeps busy, as the pool reckons it."""
    rate = load.rate or math.inf
    streams_s = load.ttft_us / 1e6 + load.tokens * load.gap_us / 1e6
    tokens_s = min(rate * load.tokens, load.count * load.tokens / streams_s)
    return busy_share(rate + load.dead_rate, tokens_s, 0.0005) / max(1, len(load.engine_cores))


def _drive(load: Load, slab: slabs.Slab, heads: bytes, core: int, ports: tuple[int, int]) -> int:
    """Forks one worker, which waits for the epoch; its pid."""
    pid = os.fork()
    if pid == 0:
        _favour(core, real_time=load.poll == "hybrid" and _share(load) < REAL_TIME_SHARE)
        engine = _native.Engine(
            slab.memory, heads, [BODY], [("127.0.0.1", port) for port in ports], [60 * SECOND] * 4,
            [False] * 4, max_connections=slab.word("rows"), busy=load.poll == "busy",
            stamps=load.stamps, rehearse=load.rehearse,
        )  # fmt: skip
        slab.set_word("state", slabs.STATE_READY)
        while slab.word("epoch_ns") == 0:
            time.sleep(0.001)
        engine.run()
        os._exit(0)
    return pid


def _run(load: Load, work: list[tuple[slabs.Slab, bytes]], ports: tuple[int, int]) -> None:
    places = load.engine_cores or (cores()[0],)
    pids = [
        _drive(load, slab, heads, core, ports)
        for (slab, heads), core in zip(work, places, strict=True)
    ]
    while any(slab.word("state") != slabs.STATE_READY for slab, _ in work):
        time.sleep(0.001)
    epoch = time.monotonic_ns() + 50_000_000
    for slab, _ in work:
        slab.set_word("epoch_ns", epoch)
    for pid in pids:
        os.waitpid(pid, 0)


def measure(load: Load, server_spin_us: int = 2000) -> Seen:
    """Runs a load once and joins both ends' records."""
    requests = shared(load.count + 8)
    events = shared(load.count * load.tokens + 64)
    rows = _rows(load)
    order = np.argsort(rows.times, kind="stable")
    workers = max(1, len(load.engine_cores))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place, socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # bound and not listening: refused, and given to nobody else
        work = [
            _slab(load, rows, order[number::workers], Path(place) / f"{number}.slab")
            for number in range(workers)
        ]
        pair = _native.clock_pair()
        with responder(requests, events, server_spin_us * 1000) as port:
            _run(load, work, (port, dead.getsockname()[1]))
        return _join(load, [slab for slab, _ in work], requests, events, pair)


def _column(made: list[slabs.Slab], name: str) -> np.ndarray[Any, Any]:
    return np.concatenate([np.array(slab.column(name), np.int64) for slab in made])


def _by_index(made: list[slabs.Slab], name: str, count: int) -> np.ndarray[Any, Any]:
    """A column of the live rows, in the order of their numbers."""
    index = _column(made, "index")
    found = np.empty(len(index), np.int64)
    found[index] = _column(made, name)
    return found[:count]


def _events(made: list[slabs.Slab]) -> tuple[np.ndarray[Any, Any], ...]:
    """(number of the request, event, time, kernel's stamp on the wall clock) of every event."""
    parts = []
    for slab in made:
        used = slab.word("tokens_used")
        part = [
            np.array(slab.column(f"token_{name}"), np.int64)[:used]
            for name in ("row", "event", "time_ns", "kernel_wall_ns")
        ]
        part[0] = np.array(slab.column("index"), np.int64)[part[0]]
        parts.append(part)
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _join(load: Load, made: list[slabs.Slab], requests: Any, events: Any, pair: Any) -> Seen:
    count, epoch = load.count, made[0].word("epoch_ns")
    to_run = pair[1] - (pair[0] + pair[2]) // 2 + epoch  # wall clock -> the run's clock
    order = np.full(count, -1)
    known = requests[(requests[:, 2] != 0) & (requests[:, 0] < count)]
    order[known[:, 0]] = np.arange(len(known))
    seen = order >= 0
    arrival = known[order[seen]]
    kernel = _by_index(made, "sent_kernel_wall_ns", count)
    kernel = np.where(kernel == NULL64, NULL64, kernel - to_run)
    row, event, time_ns, stamp = _events(made)
    server = np.full((count, load.tokens), NULL64)
    told = events[events[:, 2] != 0]
    server[told[:, 0], told[:, 1]] = told[:, 2] - epoch
    late = time_ns - server[row, event]
    client = np.full((count, load.tokens), NULL64)
    client[row, event] = time_ns
    whole = (client != NULL64).all(1) & (server != NULL64).all(1)
    gaps, own = np.diff(client[whole], axis=1), np.diff(server[whole], axis=1)
    intended = _by_index(made, "intended_ns", count)
    first = client[whole][:, 0] - intended[whole] - load.ttft_us * 1000
    cause = _column(made, "cause")
    return Seen(
        intended=intended[seen],
        dispatch=_by_index(made, "dispatch_ns", count)[seen],
        sent=_by_index(made, "sent_ns", count)[seen],
        sent_kernel=kernel[seen],
        reused=_by_index(made, "conn_reused", count)[seen] == 1,
        arrival_kernel=arrival[:, 1] - to_run,
        arrival_user=arrival[:, 2] - epoch,
        completed=int((cause == Cause.STREAM_END).sum()),
        refused=int((cause == Cause.CONNECT).sum()),
        event_late=late,
        first_late=late[event == 0],
        receive_lag=(time_ns - (stamp - to_run))[stamp != NULL64],
        ttft_error=first,
        gap_error=(gaps - own).ravel(),
        gaps=gaps.ravel(),
        server_gaps=own.ravel(),
        cpu_s=_seconds(made, "cpu_ns"),
        idle_s=_seconds(made, "idle_poll_ns"),
        wall_s=max(slab.word("heartbeat_ns") for slab in made) / 1e9,
        first_event=int(time_ns.min()),
        last_event=int(time_ns.max()),
    )


def _seconds(made: list[slabs.Slab], name: str) -> float:
    return sum(
        float(np.array(slab.column(f"second_{name}"))[: slab.word("seconds_used")].sum()) / 1e9
        for slab in made
    )


def us(values: np.ndarray[Any, Any], q: float) -> float:
    """A quantile in microseconds."""
    return float(np.percentile(values, q)) / 1000 if len(values) else float("nan")


def machine() -> str:
    """The machine in one line."""
    name = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), os.uname().machine,
    )  # fmt: skip
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"{day}, {os.cpu_count()} cores ({name}), Linux {os.uname().release}"
