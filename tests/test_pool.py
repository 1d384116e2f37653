"""Workers as real processes: cores, a whole small schedule, and what is left when one is killed.

Never: ends a process that this test did not start, or listens elsewhere than on 127.0.0.1.
Plan: the choice of cores; runs against a scripted server; a killed worker, a killed parent; what a
worker is made of; slabs as Arrow columns.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from percentes_fast import _native, schema
from percentes_fast import config as configuration
from percentes_fast.analysis import causes
from percentes_fast.config import Config
from percentes_fast.engine import buffers, cpu, pool, schedule, slabs
from percentes_fast.engine.pool import Address, CorePlan, Plan, Pool, plan_cores
from percentes_fast.errors import ClientError, ConfigError
from percentes_fast.schema import NULL64, Cause
from raw_server import (
    CHUNKED,
    DONE,
    GOOD,
    LAST_CHUNK,
    Peer,
    chunk,
    closed_port,
    keep_answering,
    raw_server,
    token,
    usage,
)

SECRET = "s3cr3t"
HEAVY = ("numpy", "pandas", "pyarrow", "scipy", "uvloop")
WAIT_S = 30.0
LABEL = partial(causes.label, usage=True)
TARGETS = ("server", "canary")


def configured(seconds: float = 2.0, **sections: Any) -> Config:
    given: dict[str, Any] = {"fault.kind": "none", "target.url": "http://127.0.0.1:1"}
    given |= {"phases.duration_s": seconds, "phases.warmup_s": 0, "phases.cooldown_s": 0}
    given |= {"load.arrival": "constant", "load.rate": 30, "canary.every_s": 0}
    given |= {"target.headers": {"Authorization": SECRET}, "load.prompt_tokens": 3}
    given |= {name.replace("__", "."): value for name, value in sections.items()}
    return configuration.load(None, given).config


def planned(path: Path, port: int, workers: int = 2, config: Config | None = None) -> Plan:
    used = config or configured()
    address = Address("127.0.0.1", port, f"127.0.0.1:{port}")
    return Plan(
        config=used,
        schedule=schedule.build(used),
        addresses=(address, address),
        cores=CorePlan((None,) * workers, ()),
        run_id=f"{os.getpid():x}{time.monotonic_ns():x}",
        directory=path,
    )


def until(told: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not told():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


@contextlib.contextmanager
def started(plan: Plan) -> Iterator[Pool]:
    workers = pool.start(plan)
    try:
        yield workers
    finally:
        workers.kill()
        workers.remove_slabs()
        assert not any(slab.path.exists() for slab in workers.slabs)


def begin(workers: Pool) -> None:
    workers.begin(_native.clock_now() + 20_000_000)


def causes_of(slab: slabs.Slab) -> list[Cause]:
    return [Cause(code) for code in slab.column("cause")]


# ---------------------------------------------------------------- cores


def cores_of(available: list[int], **engine: Any) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
    sections = {f"engine__{name}": value for name, value in engine.items() if name != "rate"}
    config = configured(load__rate=engine.get("rate", 30), **sections)
    plan = plan_cores(config, available, schedule.build(config))
    return plan.workers, plan.rest


def test_one_core_is_left_to_the_rest() -> None:
    assert cores_of([0, 1]) == ((1,), (0,))
    assert cores_of([0, 1], rate=100_000) == ((1,), (0,))
    assert cores_of([3, 1, 2, 7], rate=100_000) == ((7, 3, 2), (1,))
    assert cores_of([5]) == ((5,), (5,))


def test_workers_follow_the_rate() -> None:
    many = list(range(16))
    assert [len(cores_of(many, rate=rate)[0]) for rate in (1, 180, 210, 410)] == [1, 1, 2, 3]


def test_workers_follow_a_trace_whatever_the_rate_says(tmp_path: Path) -> None:
    trace = tmp_path / "busy.csv"
    trace.write_text("time_s\n" + "\n".join(str(i / 5000) for i in range(20_000)))
    sections = {"load__arrival": "trace", "load__trace": str(trace), "load__rate": 1}
    sections |= {"fault__kind": "none", "phases__duration_s": 4.5, "phases__cooldown_s": 0.1}
    config = configured(**sections, phases__warmup_s=0.1, phases__kill_at_s=4)
    assert len(plan_cores(config, range(8), schedule.build(config)).workers) > 1


def test_isolated_cores_come_first_and_are_left_to_nobody_else() -> None:
    config = configured(load__rate=100_000)
    plan = plan_cores(config, range(4), schedule.build(config), frozenset({0, 2}))
    assert plan == CorePlan((2, 0, 3), (1,))
    config = configured()
    plan = plan_cores(config, range(4), schedule.build(config), frozenset({0, 2}))
    assert plan == CorePlan((2,), (1, 3))
    plan = plan_cores(config, [5], schedule.build(config), frozenset({5}))
    assert plan == CorePlan((5,), (5,))


@pytest.mark.parametrize(
    ("rows_s", "tokens_s", "spin_s", "share"),
    [
        (0, 0, 5e-4, 0),
        (1000, 0, 5e-4, 1 - math.exp(-0.5) + 0.04),
        (1000, 30_000, 0, 0.04 + 0.3),
        (2500, 2500, 5e-4, 1 - math.exp(-1.25) + 0.1 + 0.025),
    ],
)
def test_busy_share_of_a_core(rows_s: float, tokens_s: float, spin_s: float, share: float) -> None:
    assert pool.busy_share(rows_s, tokens_s, spin_s) == pytest.approx(share)


def test_cores_and_workers_asked_for() -> None:
    assert cores_of([0, 1, 2, 3], cores=[1, 2], workers=2) == ((1, 2), (0, 3))
    assert cores_of([0, 1, 2, 3], cores=[1, 2]) == ((1,), (0, 2, 3))
    assert cores_of([0, 1], workers=2) == ((1, 0), (0, 1))


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"cores": [1, 9]}, r"--cores\): 9; this process may use 0, 1"),
        ({"cores": [1, 1]}, "one twice"),
        ({"workers": 3}, r"--workers 3\): one core each, but there are 2"),
        ({"cores": [1], "workers": 2}, "one core each"),
    ],
)
def test_cores_that_cannot_be(engine: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        cores_of([0, 1], **engine)


# ---------------------------------------------------------------- whole runs


@pytest.mark.parametrize("workers", [1, 2])
def test_small_schedule(tmp_path: Path, workers: int) -> None:
    with raw_server(keep_answering(GOOD)) as server:
        plan = planned(tmp_path, server.port, workers)
        with started(plan) as running:
            begin(running)
            until(lambda: not running.running())
            table = buffers.requests_table(running.slabs, TARGETS, [], LABEL)
            tokens = buffers.tokens_table(running.slabs, [])
            client = buffers.client_table(running.slabs)
            assert [worker.process.returncode for worker in running.workers] == [0] * workers
            assert all(slab.word("state") == slabs.STATE_ENDED for slab in running.slabs)
    heads = [request for peer in server.peers for request in peer.requests]
    assert len(heads) == len(plan.schedule) == table.num_rows
    assert table["index"].to_pylist() == list(range(table.num_rows))
    assert table["worker"].to_pylist() == [i % workers for i in range(table.num_rows)]
    assert table["intended_ns"].to_pylist() == plan.schedule.intended_ns.tolist()
    load = table.filter(pa.compute.equal(table["kind"].cast(pa.string()), "load"))
    assert set(load["outcome"].to_pylist()) == {"completed"}
    assert load["done_ns"].to_pylist() == load["ended_ns"].to_pylist()
    assert tokens.num_rows == sum(table["content_events"].to_pylist())
    assert sum(client["sent"].to_pylist()) == table.num_rows
    asked = [head for head in heads if SECRET.encode() in head]
    assert len(asked) == len(heads)


def test_stop_ends_the_schedule(tmp_path: Path) -> None:
    plan = planned(tmp_path, closed_port(), config=configured(600))
    with started(plan) as running:
        begin(running)
        until(lambda: all(slab.word("next_row") > 3 for slab in running.slabs))
        running.stop()
        until(lambda: not running.running())
        for slab in running.slabs:
            sent = slab.word("next_row")
            assert set(causes_of(slab)[sent:]) <= {Cause.NOT_DUE, Cause.NEVER_SENT}
            assert causes_of(slab)[-1] == Cause.NOT_DUE
            assert slab.word("stopped_ns") > 0
        assert [worker.process.returncode for worker in running.workers] == [0, 0]


def slow(peer: Peer) -> None:
    """Streams that are open for a while, so that a kill finds some in flight."""
    while True:
        peer.request()
        peer.send(CHUNKED + chunk(token()))
        time.sleep(0.3)
        peer.send(chunk(token(finish="length")) + chunk(usage(2)) + chunk(DONE) + LAST_CHUNK)


def test_killed_worker(tmp_path: Path) -> None:
    with raw_server(slow) as server, started(planned(tmp_path, server.port)) as running:
        kept, lost = running.workers
        begin(running)
        until(lambda: lost.slab.word("next_row") > 10 and lost.slab.word("in_flight") > 0)
        lost.process.send_signal(signal.SIGKILL)
        until(lambda: not running.running())
        assert (kept.process.returncode, lost.process.returncode) == (0, -signal.SIGKILL)
        assert lost.slab.word("state") == slabs.STATE_RUNNING
        found = causes_of(lost.slab)
        sent = lost.slab.word("next_row")
        assert set(found) <= {Cause.STREAM_END, Cause.PLAIN_END, Cause.OPEN, Cause.NEVER_SENT}
        assert Cause.OPEN in found[: sent + 1]
        assert set(found[sent + 1 :]) == {Cause.NEVER_SENT}
        assert not {Cause.OPEN, Cause.NEVER_SENT} & set(causes_of(kept.slab))
        table = buffers.requests_table(running.slabs, TARGETS, [], LABEL)
        by_cause = zip(table["cause"].to_pylist(), table["outcome"].to_pylist(), strict=True)
        faults = {outcome for cause, outcome in by_cause if cause in ("open", "never_sent")}
        assert faults == {"client_fault"}
        ended = table["ended_ns"].to_pylist()
        for cause, end in zip(table["cause"].to_pylist(), ended, strict=True):
            assert (end is None) == (cause == "never_sent") or cause == "open"


PARENT = """
import pathlib, sys, time
sys.path.insert(0, {tests!r})
import test_pool
from percentes_fast.engine import pool
plan = test_pool.planned(pathlib.Path({path!r}), {port}, config=test_pool.configured(600))
running = pool.start(plan)
test_pool.begin(running)
print(*[worker.process.pid for worker in running.workers], flush=True)
print(*[worker.slab.path for worker in running.workers], flush=True)
time.sleep(600)
"""


def test_killed_parent(tmp_path: Path) -> None:
    """The workers end by themselves, and their records stay."""
    code = PARENT.format(tests=str(Path(__file__).parent), path=str(tmp_path), port=closed_port())
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        try:
            parent.stdout.readline()
            kept = [slabs.Slab(Path(name)) for name in parent.stdout.readline().split()]
            until(lambda: all(slab.word("next_row") > 3 for slab in kept))
        finally:
            parent.kill()
    assert len(kept) == 2
    until(lambda: all(slab.word("state") == slabs.STATE_ENDED for slab in kept))
    for slab in kept:
        slab.path.unlink()
        assert set(causes_of(slab)[:3]) == {Cause.CONNECT}
        assert causes_of(slab)[-1] == Cause.NOT_DUE


# ---------------------------------------------------------------- a worker


def test_worker_is_small_and_tells_no_secret(tmp_path: Path) -> None:
    with started(planned(tmp_path, closed_port())) as running:
        for worker in running.workers:
            proc = Path("/proc") / str(worker.process.pid)
            maps = (proc / "maps").read_text()
            assert [name for name in HEAVY if name in maps] == []
            for shown in ("cmdline", "environ"):
                assert SECRET.encode() not in (proc / shown).read_bytes()
            assert SECRET.encode() not in worker.slab.path.read_bytes()
            assert worker.slab.path.stat().st_mode & 0o077 == 0
        assert all(SECRET not in path.read_text() for path in tmp_path.iterdir())


def test_worker_imports_nothing_heavy() -> None:
    code = "import sys, percentes_fast.engine.worker; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(found.stdout.split())


def test_worker_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    plan = planned(tmp_path, 1)
    named = Address("no-address", 1, "x")
    plan = Plan(plan.config, plan.schedule, (named, named), plan.cores, plan.run_id, tmp_path)
    with pytest.raises(ClientError, match=r"worker 0: did not start: .* resolve names first"):
        pool.start(plan)
    assert not list(slabs.SHARED_MEMORY.glob(f"{slabs.PREFIX}{plan.run_id}*"))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- slabs


def small_slab(path: Path, rows: int = 5) -> slabs.Slab:
    return slabs.create(path / "x.slab", slabs.SlabSize(rows, 4, 3, 2), 0)


def test_columns_share_memory_with_the_slab(tmp_path: Path) -> None:
    slab = small_slab(tmp_path)
    base = np.frombuffer(slab.memory, np.uint8).ctypes.data
    offsets = _native.slab_offsets(slab.memory)
    for name, kind in schema.NATIVE_COLUMNS:
        nullable = name not in schema.ZERO_COLUMNS
        array = buffers.column(slab, name, kind, nullable=nullable, count=5)
        assert array.buffers()[1].address == base + offsets[name]
        assert array.null_count == (5 if nullable else 0)
        slab.column(name)[3] = 7
        array = buffers.column(slab, name, kind, nullable=nullable, count=5)
        assert array.to_pylist() == [*[None if nullable else 0] * 3, 7, None if nullable else 0]


def test_slab_that_is_there_or_has_no_room(tmp_path: Path, monkeypatch: Any) -> None:
    small_slab(tmp_path)
    with pytest.raises(ClientError, match="File exists; choose another"):
        small_slab(tmp_path)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "x.slab").unlink()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ClientError, match="No space left on device; 1 MiB are needed"):
        small_slab(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"x" * 8192, None])
def test_damaged_slab(tmp_path: Path, damage: bytes | None) -> None:
    whole = small_slab(tmp_path).path.read_bytes()
    (tmp_path / "y.slab").write_bytes(whole[:-1] if damage is None else damage)
    with pytest.raises(ClientError, match="slab"):
        slabs.Slab(tmp_path / "y.slab")


def test_kernel_stamps_move_to_the_run_s_clock() -> None:
    pairs = [(0, 10**18, 0), (10**9, 10**18 + 10**9, 10**9)]
    wall = np.array([NULL64, 10**18 + 5 * 10**8, 10**18 + 10**9], np.int64)
    assert buffers.to_run_clock(wall, pairs, 10**8).to_pylist() == [None, 4 * 10**8, 9 * 10**8]
    stepped = [pairs[0], (10**9, 10**18 + 2 * 10**9, 10**9)]
    assert buffers.to_run_clock(wall, stepped, 0).to_pylist() == [None, None, None]
    assert buffers.to_run_clock(wall, [], 0).to_pylist() == [None, None, None]


def test_a_slab_let_go_is_still_there(tmp_path: Path) -> None:
    slab = small_slab(tmp_path)
    slab.column("index")[4] = 9
    slab.let_go()
    assert slab.column("index")[4] == 9
    assert slabs.Slab(slab.path).column("index")[4] == 9


def test_the_governor_of_a_dead_worker_is_put_back(monkeypatch: Any) -> None:
    told: list[tuple[int, str]] = []
    monkeypatch.setattr(cpu, "set_governor", lambda core, name: told.append((core, name)))
    changed, left, unpinned = (
        pool.Worker(0, None, None, settings)  # type: ignore[arg-type]
        for settings in (
            {"core": 1, "governor_before": "schedutil"},
            {"core": 0, "governor_before": None},
            {},
        )
    )
    Pool([changed, left, unpinned]).restore_cores()
    assert told == [(1, "schedutil")]


# ---------------------------------------------------------------- polling


@pytest.mark.parametrize(
    ("poll", "plan", "busy"),
    [
        ("busy", CorePlan((1,), (0,)), True),
        ("hybrid", CorePlan((3,), (0, 1, 2)), False),
        ("auto", CorePlan((3,), (0, 1, 2)), True),
        ("auto", CorePlan((1,), (0,)), False),  # one core is all that the rest has
        ("auto", CorePlan((0,), (0,)), False),  # shared
    ],
)
def test_who_polls_busily(poll: str, plan: CorePlan, busy: bool) -> None:
    assert pool.polls_busily(configured(engine__poll=poll), plan, 0) is busy


@pytest.mark.parametrize(("poll", "scheduler"), [("busy", "other"), ("hybrid", None)])
def test_a_busy_worker_is_never_real_time(poll: str, scheduler: str | None, tmp_path: Path) -> None:
    """A busy poll would meet the kernel's throttle of real-time tasks."""
    config = configured(engine__poll=poll)
    with (
        raw_server(keep_answering(GOOD)) as server,
        started(planned(tmp_path, server.port, 1, config)) as workers,
    ):
        settings = workers.workers[0].settings
        assert settings["poll"] == poll
        assert scheduler is None or settings["scheduler"] == scheduler
        begin(workers)
        until(lambda: not workers.running())
        causes_seen = set(causes_of(workers.slabs[0]))
        assert Cause.STREAM_END in causes_seen
        assert Cause.NEVER_SENT not in causes_seen
        if poll == "busy":
            idle = sum(workers.slabs[0].column("second_idle_poll_ns"))
            assert idle > 0
