"""Slabs -> the run directory's tables: at the end of a run, and for one whose parent was killed.

Never: removes a slab before every table stands under its final name; judges a record.
Plan: `write_tables` writes all tables, the manifest last; `recover` opens the slabs of a manifest,
waits for workers that are still ending, and does the same.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from percentes_fast import rundir, schema
from percentes_fast.engine import buffers, slabs
from percentes_fast.errors import ClientError, DataError
from percentes_fast.observe import scrape
from percentes_fast.schema import CAUSE_NAMES

JOURNALS = ("clocks", "offsets", "metrics", "fault")
LATE = "manifest"  # journal of what a run knew of itself after it had written its manifest
WORDS = (
    "heartbeat_ns",
    "tokens_lost",
    "seconds_lost",
    "messages_lost",
    "names_lost",
    "dials",
    "reuses",
    "closed_while_idle",
    "stamps_refused",
    "stamps_unmatched",
    "rehearsals",
    "in_flight_max",
)


class RecordsLostError(ClientError):
    """The slabs of a run without a parent cannot be read, as after a restart of the machine."""


def worker_facts(slab: slabs.Slab, exit_status: int | None) -> dict[str, Any]:
    """How a worker ended, for the manifest; exit_status None where nobody waited for it."""
    stopped = slab.word("stopped_ns")
    return {
        "worker": slab.word("worker"),
        "exit_status": exit_status,
        "ended": slab.word("state") == slabs.STATE_ENDED,
        "stopped_ns": None if stopped < 0 else stopped,
        **{word: slab.word(word) for word in WORDS},
    }


@dataclass(frozen=True, slots=True)
class Beside:
    """What was sampled beside the requests: raw clock pairs, clock samples, metrics lines."""

    clocks: buffers.ClockPairs
    offsets: Sequence[Mapping[str, Any]]
    metrics: Sequence[Any]


def write_tables(
    directory: rundir.RunDir,
    manifest: dict[str, Any],
    workers: Sequence[slabs.Slab],
    beside: Beside,
    label: buffers.Label,
) -> None:
    """Writes every table and the finished manifest. Raises ClientError where there is no room."""
    pairs = beside.clocks
    targets = [target["name"] for target in manifest["targets"]]
    directory.write_table("requests", buffers.requests_table(workers, targets, pairs, label))
    directory.write_table("token_times", buffers.tokens_table(workers, pairs))
    directory.write_table("client", buffers.client_table(workers))
    epoch = manifest["epoch_monotonic_ns"]
    directory.write_table("clocks", buffers.clocks_table(pairs, epoch))
    directory.write_table("offsets", _offsets(beside.offsets, epoch))
    directory.write_table("metrics", rundir.table_of("metrics", scrape.rows(beside.metrics)))
    manifest["state"] = "partial" if manifest["interrupted"] else "complete"
    manifest["slabs"] = []
    directory.write_json(rundir.MANIFEST, manifest)
    for name in (*JOURNALS, LATE):
        directory.drop_journal(name)


def _offsets(samples: Sequence[Mapping[str, Any]], epoch_ns: int) -> Any:
    """offsets.parquet: the client's readings moved to the run's clock."""
    columns = {name: [sample[name] for sample in samples] for name, _, _ in schema.OFFSET_FIELDS}
    for name in ("before_ns", "after_ns"):
        columns[name] = [at - epoch_ns for at in columns[name]]
    return rundir.table_of("offsets", columns)


def recover(path: Path, label: buffers.Label) -> rundir.RunDir:
    """Finishes the run directory of a run whose parent was killed, or could not store its records.

    Raises DataError where it is not such a run, or is still under way; RecordsLostError.
    """
    manifest = rundir.read_manifest(path)
    if manifest["state"] != "running":
        raise DataError(f"{path}: is {manifest['state']}, there is nothing to recover")
    if _lives(manifest["parent_pid"], manifest.get("parent_start_ticks")):
        raise DataError(f"{path}: its run is still under way; wait for it or end it")
    opened = [_settled(slab) for slab in _opened(path, manifest["slabs"])]
    directory = rundir.RunDir(path)
    for late in directory.read_journal(LATE):
        manifest |= {name: fact for name, fact in late.items() if fact is not None}
    manifest["workers"] = [worker_facts(slab, None) for slab in opened]
    whole = all(facts["ended"] and facts["stopped_ns"] is None for facts in manifest["workers"])
    manifest["interrupted"] = None if whole else "by the end of its parent process"
    clocks, offsets, metrics, fault = (directory.read_journal(name) for name in JOURNALS)
    if fault:  # fault.json may be older: the disk was full
        directory.write_json(rundir.FAULT, fault[-1])
    names = list(manifest["slabs"])
    beside = Beside([tuple(pair) for pair in clocks], offsets, metrics)
    write_tables(directory, manifest, opened, beside, label)
    for name in names:
        Path(name).unlink(missing_ok=True)
    return directory


def _opened(path: Path, names: Sequence[str]) -> list[slabs.Slab]:
    try:
        return [slabs.Slab(Path(name)) for name in names]
    except ClientError as exc:
        raise RecordsLostError(f"{path}: its records are lost ({exc}); measure it again") from exc


def _lives(parent_pid: int, ticks: int | None) -> bool:
    """Is that the process of the run still? ticks None: an older directory, which names only a pid,
    so that the command line must do.
    """
    if parent_pid == os.getpid():  # this one has another task now, or its pid is an older one's
        return False
    if ticks is not None:
        return rundir.start_ticks(parent_pid) == ticks
    return _is_ours(parent_pid)


def _is_ours(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"percentes" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _is_worked_on(slab: slabs.Slab) -> bool:
    """Does the worker of a slab still live? Only then its process has the slab mapped."""
    pid = slab.word("pid")
    if pid == os.getpid():  # it has it mapped as well
        return False
    try:
        return slab.path.name.encode() in Path(f"/proc/{pid}/maps").read_bytes()
    except PermissionError:
        return _is_ours(pid)
    except OSError:
        return False


def _settled(slab: slabs.Slab) -> slabs.Slab:
    """Waits for a worker that is still ending; rows a killed worker never reached are cut."""
    deadline = time.monotonic() + 5.0
    while slab.word("state") == slabs.STATE_RUNNING and _is_worked_on(slab):
        if time.monotonic() > deadline:
            raise DataError(f"worker {slab.word('worker')}: is still running; end it first")
        time.sleep(0.05)
    if slab.word("state") != slabs.STATE_ENDED:
        causes, intended = slab.column("cause"), slab.column("intended_ns")
        for row in range(slab.word("next_row"), slab.word("rows")):
            if intended[row] > slab.word("heartbeat_ns"):
                causes[row] = CAUSE_NAMES.index("not_due")
    return slab
