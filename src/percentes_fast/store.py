"""Slabs -> the run directory's tables: at the end of a run, and for one whose parent was killed.

Never: removes a slab before every table stands under its final name; judges a record.
Plan: `write_tables` writes all tables, the manifest last; `recover` opens the slabs of a manifest,
waits for workers that are still ending, and does the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from percentes_fast import rundir, schema
from percentes_fast.engine import buffers, slabs
from percentes_fast.errors import DataError
from percentes_fast.observe import scrape
from percentes_fast.schema import CAUSE_NAMES

JOURNALS = ("clocks", "offsets", "metrics", "fault")
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
    for name in JOURNALS:
        directory.drop_journal(name)


def _offsets(samples: Sequence[Mapping[str, Any]], epoch_ns: int) -> Any:
    """offsets.parquet: the client's readings moved to the run's clock."""
    columns = {name: [sample[name] for sample in samples] for name, _, _ in schema.OFFSET_FIELDS}
    for name in ("before_ns", "after_ns"):
        columns[name] = [at - epoch_ns for at in columns[name]]
    return rundir.table_of("offsets", columns)


def recover(path: Path, label: buffers.Label) -> rundir.RunDir:
    """Finishes the run directory of a run whose parent was killed, or could not store its records.

    Raises DataError where it is not such a run, or is still under way.
    """
    manifest = rundir.read_manifest(path)
    if manifest["state"] != "running":
        raise DataError(f"{path}: is {manifest['state']}, there is nothing to recover")
    if _is_run(manifest["parent_pid"]):
        raise DataError(f"{path}: its run is still under way; wait for it or end it")
    opened = [_settled(slabs.Slab(Path(name))) for name in manifest["slabs"]]
    directory = rundir.RunDir(path)
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


def _is_run(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"percentes" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _settled(slab: slabs.Slab) -> slabs.Slab:
    """Waits for a worker that is still ending; rows a killed worker never reached are cut."""
    deadline = time.monotonic() + 5.0
    while slab.word("state") == slabs.STATE_RUNNING and _is_run(slab.word("pid")):
        if time.monotonic() > deadline:
            raise DataError(f"worker {slab.word('worker')}: is still running; end it first")
        time.sleep(0.05)
    if slab.word("state") != slabs.STATE_ENDED:
        causes, intended = slab.column("cause"), slab.column("intended_ns")
        for row in range(slab.word("next_row"), slab.word("rows")):
            if intended[row] > slab.word("heartbeat_ns"):
                causes[row] = CAUSE_NAMES.index("not_due")
    return slab
