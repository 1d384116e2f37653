"""The order of one run: server, preflight, arm, workers, epoch, fault, join, files.

Never: computes a figure, judges a record, or leaves a process or a half-made directory behind when
the run could not start.
Plan: `measure` does everything up to the stored facts. What names an outcome (`label`) is handed
in, so that this leg knows none.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import percentes_fast
from percentes_fast import _native, launch, priority, rundir
from percentes_fast.config import Config, LoadedConfig, replicas, seconds_ns, targets
from percentes_fast.engine import cpu, pool, preflight
from percentes_fast.engine import schedule as scheduling
from percentes_fast.engine.canary import Canary
from percentes_fast.errors import ClientError, InterruptedRunError
from percentes_fast.injection import Injection
from percentes_fast.interrupts import Interrupts
from percentes_fast.observation import Observation
from percentes_fast.schema import KIND_NAMES, SCHEMA_VERSION
from percentes_fast.servers.supervisor import Supervised

if TYPE_CHECKING:
    from percentes_fast.engine import buffers

PREPARING = "preparing"  # nothing was sent yet
LEAD_S = 0.5  # between "all workers ready" and the epoch
TICK_S = 0.1
SPARE_BYTES = 16 * 2**20
LATE, LATE_BYTES = ("canary_server", "metrics"), 64 * 1024
CLOCKS_BYTES = 512 * 1024  # taken before the load: two hours of clock pairs


class Watcher(Protocol):
    """Who is told how a run goes: the live line, or nobody."""

    def say(self, text: str) -> None:
        """A step of the preparation."""

    def tick(self, workers: pool.Pool, run_ns: int) -> None:
        """About ten times a second during the load."""

    def close(self) -> None:
        """The load is over."""


class Silent:
    """A watcher that says nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def tick(self, workers: pool.Pool, run_ns: int) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


@dataclass(slots=True)
class _Run:
    """What one run holds while it is under way."""

    loaded: LoadedConfig
    config: Config
    directory: rundir.RunDir
    schedule: scheduling.Schedule
    cores: pool.CorePlan
    run_id: str
    watcher: Watcher
    addresses: list[pool.Address] = field(default_factory=list)
    server: Supervised | None = None
    canary: Canary | None = None
    injection: Injection | None = None
    observation: Observation | None = None
    workers: pool.Pool | None = None
    manifest: dict[str, Any] = field(default_factory=dict)
    late: rundir.Journal | None = None
    clocks: list[Any] = field(default_factory=list)
    threads: priority.Threads = field(default_factory=lambda: priority.Threads(priority.OBSERVER))
    signals: Interrupts = field(default_factory=Interrupts)
    interrupted: bool = False


def measure(
    loaded: LoadedConfig, out: Path, label: buffers.Label, watcher: Watcher | None = None
) -> rundir.RunDir:
    """Runs the experiment and stores its facts in `out`; the run directory.

    Raises ConfigError, ClientError, TargetError or FaultError before the first request is sent, and
    leaves nothing then. An interruption (SIGINT, SIGTERM) ends the schedule, or what is asked of
    the host afterwards, and stores the rest; the next one ends the program (`recover` has the
    records then).
    """
    config = loaded.config
    allowed = os.sched_getaffinity(0)
    available = cpu.usable()
    schedule = scheduling.build(config)
    cores = pool.plan_cores(config, available, schedule, cpu.isolated())
    existed = out.exists()
    directory = rundir.RunDir.create(out, _needed_bytes(config, schedule, cores))
    run = _Run(
        loaded, config, directory, schedule, cores, secrets.token_hex(5), watcher or Silent()
    )
    try:
        with run.signals:
            _measure(run, sorted(allowed))
            run.signals.hold()
            _store(run, label)
            run.signals.let_go()
    except BaseException as exc:
        if run.manifest.get("state", PREPARING) == PREPARING:
            shutil.rmtree(out) if not existed else _empty(out)
        elif isinstance(exc, KeyboardInterrupt):
            raise InterruptedRunError(_what_is_left(run)) from exc
        raise
    return directory


def _what_is_left(run: _Run) -> str:
    """After an interruption that ended the program, in one line."""
    out = run.directory.path
    if run.manifest["state"] == "running":
        return f"interrupted; `percentes-fast recover {out}` stores what was measured"
    return f"interrupted; all is stored: `percentes-fast analyze {out}` writes the report"


def _measure(run: _Run, allowed: Sequence[int]) -> None:
    try:
        _prepare(run, allowed)
        _load(run)
    finally:
        _release(run)
        os.sched_setaffinity(0, allowed)


def _empty(out: Path) -> None:
    for entry in out.iterdir():
        entry.unlink()


def _needed_bytes(config: Config, schedule: scheduling.Schedule, cores: pool.CorePlan) -> int:
    workers = len(cores.workers)
    rows = [schedule.of_worker(number, workers) for number in range(workers)]
    return SPARE_BYTES + sum(pool.slab_size(config, schedule, part).bytes for part in rows)


# ---------------------------------------------------------------- before the epoch


def _prepare(run: _Run, available: Sequence[int]) -> None:
    os.sched_setaffinity(0, run.cores.rest)
    launched = launch.launch(
        run.config, run.run_id, run.directory.path, (run.cores.rest, available), run.watcher.say
    )
    run.config, run.server = launched.config, launched.server
    run.addresses.append(launched.address)
    run.canary = Canary() if run.config.canary.every_s > 0 else None
    run.addresses.append(_canary_address(run))
    run.addresses += _replica_addresses(run.config)
    run.watcher.say("preflight: one request")
    answer = preflight.ask(run.config, run.addresses, run.run_id, run.directory.path)
    preflight.expect(run.config, answer)
    run.observation = Observation(run.config, run.directory, run.addresses, run.cores.rest)
    _arm(run)
    run.manifest = _manifest(run, answer.facts())
    run.directory.write_bytes(rundir.CONFIG, run.loaded.text)
    run.directory.keep_cold_start(run.config.log.cold_start)
    if "pyarrow" in sys.modules:
        _write_schedule(run)
    else:
        _apart(partial(_write_schedule, run))
    run.workers = pool.start(
        pool.Plan(
            config=run.config,
            schedule=run.schedule,
            addresses=tuple(run.addresses),
            cores=run.cores,
            run_id=run.run_id,
            directory=run.directory.path,
        )
    )


def _canary_address(run: _Run) -> pool.Address:
    port = run.canary.port if run.canary else 9  # no row goes there without a canary
    return pool.Address("127.0.0.1", port, f"127.0.0.1:{port}")


def _replica_addresses(config: Config) -> list[pool.Address]:
    """Where the direct probes go that do not go to the server's own address."""
    return [launch.answering(launch.resolve(str(url))) for _, url in targets(config)[2:]]


def _arm(run: _Run) -> None:
    config = run.config
    if config.fault.kind == "none":
        return
    name = replicas(config)[0][0]
    address = run.addresses[[each for each, _ in targets(config)].index(name)]
    run.watcher.say(f"arming: {config.fault.kind}")
    pid = run.server.pid if run.server else None
    run.injection = Injection(config, run.directory, pid, (address.ip, address.port))


def _manifest(run: _Run, answer: dict[str, Any]) -> dict[str, Any]:
    try:
        clock = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        clock_source = clock.read_text().strip()
    except OSError:
        clock_source = None
    return {
        "schema_version": SCHEMA_VERSION,
        "state": PREPARING,
        "instrument_version": percentes_fast.__version__,
        "instrument_commit": percentes_fast.commit(),
        "run_id": run.run_id,
        "config_sha256": run.loaded.sha256,
        "overrides": list(run.loaded.overrides),
        "config": run.config.public(),
        "host": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "clock_source": clock_source,
        "parent_pid": os.getpid(),
        "parent_start_ticks": rundir.start_ticks(os.getpid()),
        "cores": {"workers": list(run.cores.workers), "rest": list(run.cores.rest)},
        "targets": [
            {"name": name, "address": address.ip, "port": address.port}
            for (name, _), address in zip(targets(run.config), run.addresses, strict=True)
        ],
        "victim": replicas(run.config)[0][0],
        "templates": [asdict(template) for template in run.schedule.templates],
        "preflight": answer,
        "server": _server_kind(run.loaded.config),
    }


def _server_kind(config: Config) -> str:
    """Of the configuration as it was given: embedded, served, pid or target."""
    if config.embedded:
        return "embedded"
    if config.serve.command is not None:
        return "served"
    return "pid" if config.fault.pid is not None else "target"


def _apart(work: Callable[[], None]) -> None:
    """Does `work` in a forked process, so that pyarrow, which it imports, is not in this one while
    the load runs (40 MB). Raises ClientError with the other's message.
    """
    reader, writer = os.pipe()
    with (
        warnings.catch_warnings()
    ):  # numpy's idle threads are no harm to a child that never calls them
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            pid = os.fork()
        except OSError as exc:
            raise ClientError(f"schedule: {exc.strerror}; free processes or memory") from exc
    if pid == 0:
        try:
            work()
        except BaseException as exc:
            os.write(writer, str(exc).encode() or b"failed")
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:  # noqa: PTH123 (a descriptor)
        message = told.read().decode()
    _, status = os.waitpid(pid, 0)
    if message or status:
        raise ClientError(message or f"schedule: its process ended with status {status}")


def _write_schedule(run: _Run) -> None:
    from percentes_fast.engine import buffers

    schedule = run.schedule
    columns = {
        "index": range(len(schedule)),
        "intended_ns": schedule.intended_ns,
        "kind": buffers.named(schedule.kind, KIND_NAMES),
        "target": buffers.named(schedule.target, [name for name, _ in targets(run.config)]),
        "template": schedule.template,
    }
    run.directory.write_table("schedule", rundir.table_of("schedule", columns))


# ---------------------------------------------------------------- the load


def _load(run: _Run) -> None:
    assert run.workers is not None
    clocks = run.directory.journal("clocks", CLOCKS_BYTES)
    run.late = run.directory.journal("manifest", LATE_BYTES)
    epoch = time.monotonic_ns() + seconds_ns(LEAD_S)
    before, wall, after = _native.clock_pair()
    firing, cancelled = _begin_fault(run, epoch)
    under_way = run.manifest | {
        "state": "running",
        "epoch_monotonic_ns": epoch,
        "epoch_wall_ns": wall + epoch - (before + after) // 2,
        "slabs": [str(slab.path) for slab in run.workers.slabs],
        "scheduler": _scheduler(run),
    }
    run.signals.hold()  # until `_watch` knows what to do about it
    run.directory.write_json(rundir.MANIFEST, under_way)
    run.manifest = under_way
    try:
        run.workers.begin(epoch)
        assert run.observation is not None
        run.observation.begin(epoch)
        if firing is not None:
            firing.start()
        _watch(run, clocks, epoch)
    finally:
        cancelled.set()
        _end_fault(run, firing)
        run.threads.give_back()
        clocks.append(_native.clock_pair())
        clocks.close()
        run.clocks = clocks.lines  # the file may lack lines: a full disk


def _begin_fault(run: _Run, epoch: int) -> tuple[threading.Thread | None, threading.Event]:
    cancelled = threading.Event()
    if run.injection is None:
        return None, cancelled
    run.injection.begin(epoch)
    run.injection.write()
    return threading.Thread(target=run.injection.fire, args=(cancelled,)), cancelled


def _end_fault(run: _Run, firing: threading.Thread | None) -> None:
    """The fault's thread has ended, and the clock is sampled once more, still real-time."""
    if run.injection is None:
        return
    if run.interrupted:
        run.injection.hasten()
    try:
        if firing is not None and firing.is_alive():
            firing.join()
        run.injection.sample_after()
    except KeyboardInterrupt:
        if run.interrupted:
            raise
        run.interrupted = True
        _end_fault(run, firing)


def _watch(run: _Run, clocks: rundir.Journal, epoch: int) -> None:
    """Until the last worker has ended; the first interruption ends the schedule."""
    assert run.workers is not None
    next_pair = time.monotonic()
    while True:
        try:
            run.signals.let_go()
            while run.workers.running():
                if time.monotonic() >= next_pair:
                    run.threads.take()
                    clocks.append(_native.clock_pair())
                    next_pair += 1.0
                run.watcher.tick(run.workers, time.monotonic_ns() - epoch)
                time.sleep(TICK_S)
            return
        except KeyboardInterrupt:
            if run.interrupted:
                raise
            run.interrupted = True
            run.workers.stop()
        finally:
            run.watcher.close()


def _scheduler(run: _Run) -> dict[str, str | None]:
    run.threads.take()
    return {"parent": priority.scheduler(), "refused": run.threads.refused}


def _release(run: _Run) -> None:
    """Ends everything this run started, also when it is itself interrupted; the records stay."""
    with contextlib.ExitStack() as last:  # called from the last one to the first
        last.callback(run.threads.give_back)
        if run.workers is not None and run.manifest.get("state") != "running":
            last.callback(run.workers.remove_slabs)
        if run.server is not None:
            last.callback(run.server.stop)
        if run.injection is not None:
            last.callback(run.injection.release)
        if run.workers is not None and run.workers.running():
            run.workers.stop()
            run.workers.kill()
        if run.workers is not None:
            run.workers.restore_cores()
        if run.canary is not None:
            run.manifest["canary_server"] = run.canary.stop()
        if run.observation is not None:
            run.manifest["metrics"] = run.observation.stop()
        if run.manifest.get("state") == "running":
            if run.injection is not None:
                _conclude(run, run.injection)
            _keep_late(run)


def _keep_late(run: _Run) -> None:
    """What is known since the manifest was written, for `recover`, should the disk be full."""
    if run.late is not None:
        run.late.append({name: run.manifest.get(name) for name in LATE})
        run.late.close()


def _conclude(run: _Run, injection: Injection) -> None:
    run.watcher.say("looking at the server's host")
    try:
        injection.conclude()
    except KeyboardInterrupt:
        run.interrupted = True
        injection.cut_short()


# ---------------------------------------------------------------- after the load


def _store(run: _Run, label: buffers.Label) -> None:
    from percentes_fast import store

    assert run.workers is not None
    run.watcher.say("writing the records")
    run.manifest["workers"] = [
        {**store.worker_facts(worker.slab, worker.process.poll()), **worker.settings}
        for worker in run.workers.workers
    ]
    run.manifest["interrupted"] = "by the user" if run.interrupted else None
    if run.injection is not None:
        run.directory.write_json(rundir.FAULT, run.injection.facts)
    beside = store.Beside(
        clocks=run.clocks,
        offsets=[asdict(sample) for sample in run.injection.samples()] if run.injection else [],
        metrics=run.observation.lines() if run.observation else [],
    )
    store.write_tables(run.directory, run.manifest, run.workers.slabs, beside, label)
    run.workers.remove_slabs()
