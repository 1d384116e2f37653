"""The benches' rig: a known-timing server on one core, the native engine on another, both logged.

Never: leaves a process behind, or asserts a figure: machines differ, ratios within one run do not.
Plan: `measure` fills a slab with a schedule, runs the engine in a forked child on the last core,
the responder in another on the first, and joins what both saw by the request's number.
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
from contextlib import suppress
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


@dataclass(frozen=True)
class Seen:
    """What both ends saw, joined by request; times in ns on the monotonic clock since the epoch."""

    intended: np.ndarray[Any, Any]
    dispatch: np.ndarray[Any, Any]
    sent: np.ndarray[Any, Any]
    sent_kernel: np.ndarray[Any, Any]
    arrival_kernel: np.ndarray[Any, Any]
    arrival_user: np.ndarray[Any, Any]
    completed: int
    event_late: np.ndarray[Any, Any]  # client's time of an event minus the server's send of it
    first_late: np.ndarray[Any, Any]  # the same, first events alone
    ttft_error: np.ndarray[Any, Any]  # TTFT from the intended time minus the known one
    gap_error: np.ndarray[Any, Any]  # client's gap minus the server's own gap
    gaps: np.ndarray[Any, Any]
    cpu_s: float
    idle_s: float
    wall_s: float
    first_event: int  # client's times of the first and the last event of all
    last_event: int


def cores() -> tuple[int, int]:
    """(engine's core, server's core)."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1], usable[0]


def limits() -> dict[str, list[float]]:
    """The machine's limits: name -> [p50, p99, max] in ns, measured now."""
    with tempfile.TemporaryDirectory() as place:
        binary = Path(place) / "limits"
        source = ROOT / "bench" / "limits.c"
        subprocess.run(
            ["cc", "-O2", "-D_GNU_SOURCE", f"-I{ROOT / 'csrc'}", str(source), "-o", str(binary)],
            check=True,
        )
        mine, other = cores()
        told = subprocess.run(
            [str(binary), str(mine), str(other)], check=True, capture_output=True, text=True
        )
    found: dict[str, list[float]] = json.loads(told.stdout)
    return found


def _shared(rows: int) -> np.ndarray[Any, Any]:
    memory = mmap.mmap(-1, max(1, rows) * 24)
    return np.frombuffer(memory, np.int64).reshape(-1, 3)


def _favour(core: int, *, real_time: bool) -> None:
    os.sched_setaffinity(0, {core})
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    if real_time:
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))


def serve(listener: socket.socket, requests: Any, events: Any, spin_ns: int) -> int:
    """Forks the responder; its pid. It ends when its parent does, or by signal."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _favour(cores()[1], real_time=False)
        _native.respond(listener.fileno(), parent, spin_ns, array("i", [0]), requests, events)
        os._exit(0)
    return pid


def _slab(load: Load, times: np.ndarray[Any, Any], place: Path) -> tuple[slabs.Slab, bytes]:
    query = f"ttft_us={load.ttft_us}&gap_us={load.gap_us}&tokens={load.tokens}"
    heads = [
        f"POST /bench?{query} HTTP/1.1\r\nHost: bench\r\nX-Request-Id: b-{i}\r\n"
        f"Content-Length: {len(BODY)}\r\n\r\n".encode()
        for i in range(load.count)
    ]
    lengths = np.array([len(head) for head in heads], np.int32)
    size = slabs.SlabSize(load.count, load.count * (load.tokens + 2) + 1024, 3600, 16)
    slab = slabs.create(place / "bench.slab", size, 0)
    values = {
        "index": np.arange(load.count),
        "intended_ns": times,
        "head_offset": np.concatenate([[0], np.cumsum(lengths)[:-1]]),
        "head_length": lengths,
        "tail": 0,
        "kind": int(Kind.LOAD),
        "target": 0,
    }
    for name, value in values.items():
        np.asarray(slab.column(name))[:] = value
    return slab, b"".join(heads)


def _times(load: Load) -> np.ndarray[Any, Any]:
    if load.rate is None:
        return np.zeros(load.count, np.int64)
    gaps = np.random.default_rng(load.seed).exponential(1 / load.rate, load.count)
    return np.rint(np.cumsum(gaps) * SECOND).astype(np.int64)


def _share(load: Load) -> float:
    """Of its core that the engine keeps busy, as the pool reckons it."""
    rate = load.rate or math.inf
    streams_s = load.ttft_us / 1e6 + load.tokens * load.gap_us / 1e6
    tokens_s = min(rate * load.tokens, load.count * load.tokens / streams_s)
    return busy_share(rate, tokens_s, 0.0005)


def _drive(load: Load, slab: slabs.Slab, heads: bytes, port: int) -> None:
    pid = os.fork()
    if pid == 0:
        _favour(cores()[0], real_time=load.poll == "hybrid" and _share(load) < REAL_TIME_SHARE)
        engine = _native.Engine(
            slab.memory, heads, [BODY], [("127.0.0.1", port)], [60 * SECOND] * 4, [False] * 4,
            max_connections=load.count, busy=load.poll == "busy", stamps=load.stamps,
            rehearse=load.rehearse,
        )  # fmt: skip
        slab.set_word("epoch_ns", time.monotonic_ns() + 50_000_000)
        engine.run()
        os._exit(0)
    os.waitpid(pid, 0)


def measure(load: Load, server_spin_us: int = 2000) -> Seen:
    """Runs a load once and joins both ends' records."""
    requests = _shared(load.count + 8)
    events = _shared(load.count * load.tokens + 64)
    times = _times(load)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        slab, heads = _slab(load, times, Path(place))
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        listener.setblocking(False)
        server = serve(listener, requests, events, server_spin_us * 1000)
        pair = _native.clock_pair()
        try:
            _drive(load, slab, heads, listener.getsockname()[1])
        finally:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
            listener.close()
        return _join(load, slab, requests, events, pair)


def _column(slab: slabs.Slab, name: str) -> np.ndarray[Any, Any]:
    return np.array(slab.column(name), np.int64)


def _join(load: Load, slab: slabs.Slab, requests: Any, events: Any, pair: Any) -> Seen:
    epoch = slab.word("epoch_ns")
    to_run = pair[1] - (pair[0] + pair[2]) // 2 + epoch  # wall clock -> the run's clock
    intended, dispatch, sent = (_column(slab, f"{n}_ns") for n in ("intended", "dispatch", "sent"))
    order = np.full(load.count, -1)
    known = requests[(requests[:, 2] != 0) & (requests[:, 0] < load.count)]
    order[known[:, 0]] = np.arange(len(known))
    seen = order >= 0
    arrival = known[order[seen]]
    kernel = _column(slab, "sent_kernel_wall_ns")[seen]
    kernel = np.where(kernel == NULL64, NULL64, kernel - to_run)
    used = slab.word("tokens_used")
    row = _column(slab, "token_row")[:used]
    event = _column(slab, "token_event")[:used]
    time_ns = _column(slab, "token_time_ns")[:used]
    server = np.full((load.count, load.tokens), NULL64)
    told = events[events[:, 2] != 0]
    server[told[:, 0], told[:, 1]] = told[:, 2] - epoch
    late = time_ns - server[row, event]
    client = np.full((load.count, load.tokens), NULL64)
    client[row, event] = time_ns
    whole = (client != NULL64).all(1) & (server != NULL64).all(1)
    gaps, own = np.diff(client[whole], axis=1), np.diff(server[whole], axis=1)
    first = client[whole][:, 0] - intended[whole] - load.ttft_us * 1000
    seconds = slab.word("seconds_used")
    return Seen(
        intended[seen], dispatch[seen], sent[seen], kernel, arrival[:, 1] - to_run,
        arrival[:, 2] - epoch, int((_column(slab, "cause") == Cause.STREAM_END).sum()), late,
        late[event == 0], first, (gaps - own).ravel(), gaps.ravel(),
        _column(slab, "second_cpu_ns")[:seconds].sum() / 1e9,
        _column(slab, "second_idle_poll_ns")[:seconds].sum() / 1e9,
        slab.word("heartbeat_ns") / 1e9,
        int(time_ns.min()), int(time_ns.max()),
    )  # fmt: skip


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
