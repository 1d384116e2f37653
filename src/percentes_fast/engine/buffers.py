"""Slabs -> Arrow without copying through Python objects; sentinel -> validity bitmap.

Never: judges. Outcome and class come from the function it is given; kernel stamps are only moved
from the wall clock to the run's clock.
Plan: each worker's column becomes an Arrow array over the mapped bytes themselves; workers are
concatenated and put in the order of the index by Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from percentes_fast import schema
from percentes_fast.engine.slabs import Slab
from percentes_fast.errors import DataError
from percentes_fast.schema import NULL64, NULL_OF, WALL_STEP_NS

ClockPairs = Sequence[tuple[int, int, int]]
Label = Callable[[Mapping[str, NDArray[Any]]], tuple[NDArray[np.int8], NDArray[np.int8]]]
ARROW_OF = {"i8": "int64", "i4": "int32", "i2": "int16", "i1": "int8"}


def column(slab: Slab, name: str, kind: str, *, nullable: bool, count: int) -> pa.Array:
    """An Arrow array over a slab's column itself; sentinels are null in its validity bitmap."""
    view = slab.column(name)[:count]
    values = np.frombuffer(view, dtype=np.dtype(kind))
    valid = None
    if nullable:
        present = values != NULL_OF[kind]
        if not present.all():
            valid = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    data = pa.py_buffer(view)
    return pa.Array.from_buffers(pa.type_for_alias(ARROW_OF[kind]), count, [valid, data])


def to_run_clock(wall_ns: NDArray[np.int64], pairs: ClockPairs, epoch_ns: int) -> pa.Array:
    """Kernel stamps (CLOCK_REALTIME) on the run's clock, by the clock pairs around each.

    Null where there is no stamp, or where the wall clock stepped by more than 1 ms between the two
    pairs around it: the stamp cannot be placed then.
    """
    table = np.array(pairs, dtype=np.int64).reshape(-1, 3)
    missing = (wall_ns == NULL64) | (len(table) == 0)
    if len(table) == 0:
        return pa.array(np.zeros(len(wall_ns), np.int64), mask=missing)
    mono = table[:, 0] + (table[:, 2] - table[:, 0]) // 2
    offset = table[:, 1] - mono  # wall minus monotonic
    after = np.searchsorted(table[:, 1], wall_ns).clip(0, len(table) - 1)
    before = (after - 1).clip(0)
    stepped = np.abs(offset[after] - offset[before]) > WALL_STEP_NS
    span = np.maximum(table[after, 1] - table[before, 1], 1)
    part = np.where(missing, 0, wall_ns - table[before, 1]).clip(0) / span
    drift = np.rint((offset[after] - offset[before]) * part.clip(0, 1)).astype(np.int64)
    times = np.where(missing, 0, wall_ns - offset[before] - drift - epoch_ns)
    return pa.array(times, mask=missing | stepped)


def named(codes: NDArray[Any], names: Sequence[str]) -> pa.Array:
    """A dictionary array of names from codes, shape (rows,); negative codes are null."""
    indices = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(names), pa.string()))


def _messages(slab: Slab, count: int) -> pa.Array:
    slots = np.frombuffer(slab.column("message_slot")[:count], np.int32)
    texts = pa.array(slab.messages(), pa.string())
    return texts.take(pa.array(slots, mask=slots < 0))


def _values(slab: Slab, name: str, kind: str) -> NDArray[Any]:
    return np.frombuffer(slab.column(name), dtype=np.dtype(kind))


def _facts(slab: Slab) -> dict[str, NDArray[Any]]:
    """What a label is given: raw codes and counts, and the finish reasons as text."""
    names = np.array([*slab.names("finish_names"), ""], dtype=object)
    finish = _values(slab, "finish_reason", "i2")
    return {
        "cause": _values(slab, "cause", "i2"),
        "kind": _values(slab, "kind", "i2"),
        "content_events": _values(slab, "content_events", "i4"),
        "completion_tokens": _values(slab, "completion_tokens", "i4"),
        "finish_reason": names[np.where(finish < 0, -1, finish)],
    }


def _one_worker(
    slab: Slab, worker: int, targets: Sequence[str], pairs: ClockPairs, label: Label
) -> pa.Table:
    count, epoch = slab.word("rows"), slab.word("epoch_ns")
    columns: dict[str, Any] = {
        name: column(slab, name, kind, nullable=name not in schema.ZERO_COLUMNS, count=count)
        for name, kind in schema.NATIVE_COLUMNS
    }
    outcome, error_class = label(_facts(slab))
    done = _values(slab, "ended_ns", "i8")
    errno = _values(slab, "errno_code", "i4")
    columns |= {
        "kind": named(_values(slab, "kind", "i2"), schema.KIND_NAMES),
        "worker": pa.array(np.full(count, worker, np.int16)),
        "target": named(_values(slab, "target", "i2"), targets),
        "done_ns": pa.array(done, mask=(outcome != 0) | (done == NULL64)),
        "cause": named(_values(slab, "cause", "i2"), schema.CAUSE_NAMES),
        "outcome": named(outcome, schema.OUTCOMES),
        "error_class": named(error_class, schema.ERROR_CLASSES),
        "errno": pa.array(errno, mask=errno == 0),
        "finish_reason": named(_values(slab, "finish_reason", "i2"), slab.names("finish_names")),
        "replica": named(_values(slab, "replica", "i2"), slab.names("replica_names")),
        "message": _messages(slab, count),
    }
    for name in ("sent_kernel", "acked_kernel", "first_token_kernel"):
        wall = _values(slab, f"{name}_wall_ns", "i8")
        columns[f"{name}_ns"] = to_run_clock(wall, pairs, epoch)
    for name in ("conn_reused", "first_token_shared_read"):
        columns[name] = columns[name].cast(pa.bool_())
    shape = schema.arrow_schema(schema.REQUEST_FIELDS)
    return pa.table({field.name: columns[field.name] for field in shape}, schema=shape)


def requests_table(
    slabs: Sequence[Slab], targets: Sequence[str], pairs: ClockPairs, label: Label
) -> pa.Table:
    """requests.parquet: every scheduled row once, in the order of the index.

    Raises DataError where a row is missing or there twice.
    """
    parts = [_one_worker(slab, i, targets, pairs, label) for i, slab in enumerate(slabs)]
    whole = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
    whole = whole.take(pa.compute.sort_indices(whole["index"]))
    index = whole["index"].to_numpy()
    if not np.array_equal(index, np.arange(len(index))):
        raise DataError("slabs: rows are missing or there twice; the records are damaged")
    return whole.cast(schema.arrow_schema(schema.REQUEST_FIELDS))


def tokens_table(slabs: Sequence[Slab], pairs: ClockPairs) -> pa.Table:
    """token_times.parquet: one line a content event, by index, then event."""
    parts = []
    for slab in slabs:
        used, epoch = slab.word("tokens_used"), slab.word("epoch_ns")
        rows = _values(slab, "token_row", "i4")[:used]
        wall = _values(slab, "token_kernel_wall_ns", "i8")[:used]
        columns = {
            "index": pa.array(_values(slab, "index", "i8")[rows]),
            "event": column(slab, "token_event", "i4", nullable=False, count=used),
            "time_ns": column(slab, "token_time_ns", "i8", nullable=False, count=used),
            "kernel_ns": to_run_clock(wall, pairs, epoch),
            "same_read": pa.array(_values(slab, "token_same_read", "i1")[:used] != 0),
        }
        parts.append(pa.table(columns, schema=schema.arrow_schema(schema.TOKEN_FIELDS)))
    whole = pa.concat_tables(parts).combine_chunks()
    order = pa.compute.sort_indices(
        whole, sort_keys=[("index", "ascending"), ("event", "ascending")]
    )
    return whole.take(order)


def client_table(slabs: Sequence[Slab]) -> pa.Table:
    """client.parquet: each worker's own figures, one line a second."""
    parts = []
    for worker, slab in enumerate(slabs):
        used = slab.word("seconds_used")
        columns: dict[str, Any] = {
            field: column(slab, f"second_{field}", "i8", nullable=nullable, count=used)
            for field, _, nullable in schema.CLIENT_FIELDS
            if field != "worker"
        }
        columns["worker"] = pa.array(np.full(used, worker, np.int16))
        shape = schema.arrow_schema(schema.CLIENT_FIELDS)
        parts.append(pa.table({f.name: columns[f.name] for f in shape}, schema=shape))
    return pa.concat_tables(parts)


def clocks_table(pairs: ClockPairs, epoch_ns: int) -> pa.Table:
    """clocks.parquet: clock pairs, the monotonic readings on the run's clock."""
    table = np.array(pairs, dtype=np.int64).reshape(-1, 3)
    columns = {
        "before_ns": table[:, 0] - epoch_ns,
        "realtime_wall_ns": table[:, 1],
        "after_ns": table[:, 2] - epoch_ns,
    }
    return pa.table(columns, schema=schema.arrow_schema(schema.CLOCK_FIELDS))
