"""The client's own figures: was the instrument on time, and what did its own path add?

Never: judges the server. Plan: send skew (user and kernel), receive lag, busy share over any 5 s,
canary deviation, steps of the wall clock; each a small frozen record, null where nothing was seen.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from percentes_fast.analysis.windows import SECOND, Seconds, Window, nearest_rank
from percentes_fast.schema import WALL_STEP_NS

BUSY_SPAN_NS = 5 * SECOND
PARENT_GAP_NS = 2 * SECOND
KEPT = "the machine kept the parent from running: what it does itself came late"
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spread:
    """Nearest-rank p50, p99 and the largest of n values, in seconds."""

    n: int
    p50: Seconds
    p99: Seconds
    max: Seconds


def spread(values: Ints) -> Spread | None:
    """Spread of durations in ns; None of none."""
    if len(values) == 0:
        return None
    ordered = np.sort(values)
    p50, p99 = (Seconds.of(nearest_rank(ordered, q)) for q in (0.5, 0.99))
    return Spread(len(ordered), p50, p99, Seconds.of(ordered[-1]))


def _difference(frame: pd.DataFrame, later: str, earlier: str) -> Ints:
    return (frame[later] - frame[earlier]).dropna().to_numpy(np.int64)


LOST = ("seconds_lost", "messages_lost", "names_lost", "stamps_refused", "stamps_unmatched")


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One worker: skew of its sends, its busiest 5 s, what it lost (counters by name)."""

    worker: int
    sent: int
    send_skew_s: Spread | None
    busy_worst: float | None
    ended: bool
    exit_status: int | None
    tokens_lost: int
    lost: dict[str, int]
    in_flight_max: int
    receive_lag_s: Spread | None = None


@dataclass(frozen=True, slots=True)
class WallStep:
    """A step of the wall clock against the monotonic one."""

    at_s: Seconds
    size_s: Seconds


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """The whole client over all kinds of rows.

    send_skew_s: dispatch minus intended; send_skew_kernel_s: kernel's send stamp minus intended, on
    connections that were open; stamp_disagreement_s: |kernel stamp - return of the last send|;
    receive_lag_s: first token's user stamp minus its kernel stamp, shared reads left out.
    parent_gap_max_s: longest time between two clock pairs, which the parent takes once a second;
    parent_note: what it means where that is longer than PARENT_GAP_NS.
    client_fault_errnos: client faults by the name of their errno; others have none.
    """

    undispatched: int
    client_fault: int
    client_fault_errnos: dict[str, int]
    send_skew_s: Spread | None
    send_skew_kernel_s: Spread | None
    stamp_disagreement_s: Spread | None
    receive_lag_s: Spread | None
    shared_reads_excluded: int
    workers: tuple[WorkerFigures, ...]
    wall_steps: tuple[WallStep, ...]
    canary_server_late_max_s: Seconds | None
    parent_scheduler: str | None
    parent_gap_max_s: Seconds | None
    parent_note: str | None


def wall_steps(clocks: pd.DataFrame) -> tuple[WallStep, ...]:
    """Steps beyond 1 ms between neighbouring clock pairs."""
    before = clocks["before_ns"].to_numpy(np.int64)
    middle = before + (clocks["after_ns"].to_numpy(np.int64) - before) // 2
    steps = np.diff(clocks["realtime_wall_ns"].to_numpy(np.int64) - middle)
    return tuple(
        WallStep(Seconds.of(middle[i + 1]), Seconds.of(steps[i]))
        for i in np.flatnonzero(np.abs(steps) > WALL_STEP_NS)
    )


def parent_gap_ns(clocks: pd.DataFrame) -> int | None:
    """Longest time between neighbouring clock pairs; None of fewer than two."""
    gaps = np.diff(clocks["before_ns"].to_numpy(np.int64))
    return int(gaps.max()) if len(gaps) else None


def busiest(seconds: pd.DataFrame) -> float | None:
    """Largest (CPU - time in empty polls) / wall over any span of 5 s of one worker's rows.

    Spans begin and end where the worker wrote its seconds; a shorter run is one span.
    """
    end = np.concatenate([[0], seconds["end_ns"].to_numpy(np.int64)])
    busy = (seconds["cpu_ns"] - seconds["idle_poll_ns"]).to_numpy(np.int64)
    total = np.concatenate([[0], np.cumsum(busy)])
    if len(end) < 2 or end[-1] <= 0:
        return None
    starts = np.arange(len(end) - 1)
    stops = np.minimum(np.searchsorted(end, end[:-1] + BUSY_SPAN_NS), len(end) - 1)
    whole = (end[stops] - end[starts] >= BUSY_SPAN_NS) | (starts == 0)
    shares = (total[stops] - total[starts])[whole] / (end[stops] - end[starts])[whole]
    return max(0.0, float(shares.max()))


def _worker(
    facts: Mapping[str, Any], requests: pd.DataFrame, client: pd.DataFrame
) -> WorkerFigures:
    number = int(facts["worker"])
    mine = requests[requests["worker"] == number]
    return WorkerFigures(
        worker=number,
        sent=int(mine["dispatch_ns"].notna().sum()),
        send_skew_s=spread(_difference(mine, "dispatch_ns", "intended_ns")),
        busy_worst=busiest(client[client["worker"] == number]),
        ended=bool(facts["ended"]),
        exit_status=facts["exit_status"],
        tokens_lost=int(facts["tokens_lost"]),
        lost={name: int(facts[name]) for name in LOST},
        in_flight_max=int(facts["in_flight_max"]),
        receive_lag_s=spread(receive_lag(mine)),
    )


def receive_lag(rows: pd.DataFrame) -> Ints:
    """First token's user stamp minus its kernel stamp, shared reads left out, in ns."""
    apart = rows[~rows["first_token_shared_read"].fillna(False).to_numpy(bool)]
    return _difference(apart, "first_token_ns", "first_token_kernel_ns")


def _errnos(faults: pd.DataFrame) -> dict[str, int]:
    known = faults["errno"].dropna().astype(int)
    counted = known[known > 0].value_counts().sort_index()
    pairs = zip(counted.index.tolist(), counted.tolist(), strict=True)
    return {errno.errorcode.get(code, str(code)): count for code, count in pairs}


def figures(
    manifest: Mapping[str, Any],
    requests: pd.DataFrame,
    client: pd.DataFrame,
    clocks: pd.DataFrame,
) -> ClientFigures:
    """All figures of a run. requests: judged rows of all kinds."""
    due = requests[requests["outcome"] != "cut"]
    reused = requests[requests["conn_reused"].fillna(False).to_numpy(bool)]
    shared = requests["first_token_shared_read"].fillna(False).to_numpy(bool)
    apart = np.abs(_difference(requests, "sent_kernel_ns", "sent_ns"))
    canary = manifest.get("canary_server") or {}
    gap_ns = parent_gap_ns(clocks)
    return ClientFigures(
        undispatched=int(due["dispatch_ns"].isna().sum()),
        client_fault=int((requests["outcome"] == "client_fault").sum()),
        client_fault_errnos=_errnos(requests[requests["outcome"] == "client_fault"]),
        send_skew_s=spread(_difference(requests, "dispatch_ns", "intended_ns")),
        send_skew_kernel_s=spread(_difference(reused, "sent_kernel_ns", "intended_ns")),
        stamp_disagreement_s=spread(apart),
        receive_lag_s=spread(receive_lag(requests)),
        shared_reads_excluded=int(shared.sum()),
        workers=tuple(_worker(facts, requests, client) for facts in manifest["workers"]),
        wall_steps=wall_steps(clocks),
        canary_server_late_max_s=Seconds.maybe(canary.get("late_max_ns")),
        parent_scheduler=(manifest.get("scheduler") or {}).get("parent"),
        parent_gap_max_s=Seconds.maybe(gap_ns),
        parent_note=KEPT if gap_ns is not None and gap_ns > PARENT_GAP_NS else None,
    )


@dataclass(frozen=True, slots=True)
class CanaryFigures:
    """Deviation of streams of known timing in one window, in us (published names).

    ttft_dev: first event minus (intended + known TTFT); itl_dev: |gap - known gap|; event_lag: each
    event minus its known time.
    """

    ttft_ms: float
    itl_ms: float
    tokens: int
    streams: int
    completed: int
    ttft_dev_p50_us: float | None
    ttft_dev_max_us: float | None
    itl_dev_p50_us: float | None
    itl_dev_p99_us: float | None
    itl_dev_max_us: float | None
    event_lag_p99_us: float | None
    event_lag_max_us: float | None


@dataclass(frozen=True, slots=True)
class ReceivePath:
    """One window's receive path: the load's own TTFT mean beside the canary's deviation."""

    client_ttft_mean_ms: float | None
    client_ttft_count: int
    receive_lag_s: Spread | None
    canary: CanaryFigures | None


def _us(values: Ints, q: float) -> float | None:
    return nearest_rank(np.sort(values), q) / 1000 if len(values) else None


def _canary(streams: pd.DataFrame, tokens: pd.DataFrame, known: Mapping[str, Any]) -> CanaryFigures:
    ttft_ns, itl_ns = round(known["ttft_ms"] * 1e6), round(known["itl_ms"] * 1e6)
    done = streams[streams["outcome"] == "completed"]
    events = tokens.merge(done[["index", "intended_ns"]], on="index")
    event = events["event"].to_numpy(np.int64)
    time = events["time_ns"].to_numpy(np.int64)
    lag = time - events["intended_ns"].to_numpy(np.int64) - ttft_ns - event * itl_ns
    follows = event[1:] == event[:-1] + 1
    itl = np.abs(np.diff(time)[follows] - itl_ns)
    first = lag[event == 0]
    return CanaryFigures(
        ttft_ms=known["ttft_ms"],
        itl_ms=known["itl_ms"],
        tokens=known["tokens"],
        streams=len(streams),
        completed=len(done),
        ttft_dev_p50_us=_us(first, 0.5),
        ttft_dev_max_us=_us(first, 1.0),
        itl_dev_p50_us=_us(itl, 0.5),
        itl_dev_p99_us=_us(itl, 0.99),
        itl_dev_max_us=_us(itl, 1.0),
        event_lag_p99_us=_us(lag, 0.99),
        event_lag_max_us=_us(lag, 1.0),
    )


PATH = [
    *("index", "kind", "outcome", "intended_ns", "ttft_ns"),
    *("first_token_ns", "first_token_kernel_ns", "first_token_shared_read"),
]


def receive_path(
    window: Window, requests: pd.DataFrame, tokens: pd.DataFrame, canary: Mapping[str, Any]
) -> ReceivePath:
    """Receive path of one window. requests: judged rows of all kinds; canary: its configuration."""
    inside = requests.loc[:, PATH][window.rows(requests["intended_ns"].to_numpy(np.int64))]
    load = inside[(inside["kind"] == "load") & (inside["outcome"] == "completed")]
    ttft = load["ttft_ns"].dropna().to_numpy(np.int64)
    streams = inside[(inside["kind"] == "canary") & (inside["outcome"] != "cut")]
    return ReceivePath(
        client_ttft_mean_ms=float(ttft.mean()) / 1e6 if len(ttft) else None,
        client_ttft_count=len(ttft),
        receive_lag_s=spread(receive_lag(inside)),
        canary=_canary(streams, tokens, canary) if len(streams) else None,
    )
