"""The server's own metrics by replica and window: queue, batch, cache, and its own TTFT mean.

Never: takes a metric that is absent for 0, or a difference over a counter that began anew.
Plan: rows of metrics.parquet -> totals a scrape (summed over label sets) -> figures of a window;
the mean waiting queue of the baseline for gate G7.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from percentes_fast.analysis.windows import SECOND, Window

OFFSET_NS = SECOND // 4  # ticks lie at k * every + a quarter second

# SGLang (0.5.23, srt/observability/metrics_collector.py; no such page was seen): with priority
# scheduling the gauges hold the total under priority="" and its parts under priority="N"; the
# schedulers of one data-parallel rank, told apart by the other ranks, tell the same queue.
SGLANG = "sglang:"
PART = re.compile(r'(?:^|,)priority="[^"]')
SAME_QUEUE = re.compile(r'(?:^|,)(?:tp_rank|pp_rank|moe_ep_rank)="(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class ReplicaWindow:
    """One replica in one window.

    expected: ticks of the grid in it; scrapes: those made; failed: those of them without a page.
    waiting and running: requests, summed over the label sets of a scrape; cache_use_max: largest
    share of any label set. ttft_mean_s, ttft_count: the server's own histogram, from the first to
    the last scrape that has it. reason: why each figure that is None is None.
    """

    replica: str
    window: str
    expected: int
    scrapes: int
    failed: int
    waiting_mean: float | None
    waiting_max: float | None
    running_mean: float | None
    cache_use_max: float | None
    ttft_mean_s: float | None
    ttft_count: int | None
    reason: str | None


class Waiting(NamedTuple):
    """Mean waiting queue of a replica (None: no scrape has the gauge), scrapes made and failed."""

    mean: float | None
    scrapes: int
    failed: int


class _Ttft(NamedTuple):
    mean_s: float | None
    first_tokens: int | None
    reason: str | None


def report(frame: pd.DataFrame, cuts: Sequence[Window], every_ns: int) -> tuple[ReplicaWindow, ...]:
    """Every replica of the frame in every window, replica by replica.

    frame: metrics.parquet; every_ns: between two scrapes of a replica.
    """
    return tuple(
        _replica_window(str(name), rows[cut.rows(_asked(rows))], cut, every_ns)
        for name, rows in frame.groupby("replica")
        for cut in cuts
    )


def baseline_waiting(frame: pd.DataFrame, baseline: Window) -> dict[str, Waiting]:
    """Mean waiting queue of each replica of the frame over the baseline (gate G7).

    Without a mean: fewer failed than made says that the server has no such gauge, as many that it
    was not observed. A gauge without a number is a failed scrape here.
    """
    found = {}
    for name, rows in frame.groupby("replica"):
        inside = rows[baseline.rows(_asked(rows))]
        broken = inside[(inside["quantity"] == "waiting") & inside["value"].isna()]
        failed = inside["error"].notna() | inside["asked_ns"].isin(broken["asked_ns"])
        mean = _mean(_totals(inside, "waiting"))
        found[str(name)] = Waiting(mean, _scrapes(inside), _scrapes(inside[failed]))
    return found


def notes(told: Mapping[str, Any] | None) -> Iterator[str]:
    """What the scraper said of itself that a reader must know. told: `metrics` of the manifest."""
    if told is None:
        return
    if told.get("error"):
        yield f"server metrics: {told['error']}"
    if told.get("missed"):
        yield f"server metrics: {told['missed']} scrapes were not made in their time"
    if told.get("lost"):
        yield f"server metrics: {told['lost']} scrapes were lost: the disk was full"


def expected_scrapes(window: Window, every_ns: int) -> int:
    """Ticks of the grid in a window; the first is at 0.25 s."""
    first, end = (
        max(0, -((OFFSET_NS - at_ns) // every_ns)) for at_ns in (window.start_ns, window.end_ns)
    )
    return end - first


def _asked(rows: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return rows["asked_ns"].to_numpy(np.int64)


def _scrapes(rows: pd.DataFrame) -> int:
    return int(rows["asked_ns"].nunique())


def _replica_window(name: str, rows: pd.DataFrame, cut: Window, every_ns: int) -> ReplicaWindow:
    waiting, running = _totals(rows, "waiting"), _totals(rows, "running")
    cache = rows.loc[rows["quantity"] == "cache_use", "value"].dropna()
    scrapes, failed = _scrapes(rows), _scrapes(rows[rows["error"].notna()])
    ttft = _ttft(rows)
    absent = [
        f"no {what} gauge"
        for what, found in (("waiting", waiting), ("running", running), ("cache_use", cache))
        if len(found) == 0
    ]
    return ReplicaWindow(
        replica=name,
        window=cut.name,
        expected=expected_scrapes(cut, every_ns),
        scrapes=scrapes,
        failed=failed,
        waiting_mean=_mean(waiting),
        waiting_max=_max(waiting),
        running_mean=_mean(running),
        cache_use_max=_max(cache),
        ttft_mean_s=ttft.mean_s,
        ttft_count=ttft.first_tokens,
        reason=_reason(scrapes, failed, [*absent, *([ttft.reason] if ttft.reason else [])]),
    )


def _reason(scrapes: int, failed: int, absent: list[str]) -> str | None:
    if scrapes == 0:
        return "no scrape"
    if scrapes == failed:
        return "no scrape was answered"
    return "; ".join(absent) or None


def _mean(values: pd.Series[float]) -> float | None:
    return float(values.mean()) if len(values) else None


def _max(values: pd.Series[float]) -> float | None:
    return float(values.max()) if len(values) else None


def _known(rows: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Rows of a quantity, without the scrapes where any of them is no number."""
    found = rows[rows["quantity"] == quantity]
    broken = found.loc[found["value"].isna(), "asked_ns"]
    return found[~found["asked_ns"].isin(broken)]


def _totals(rows: pd.DataFrame, gauge: str) -> pd.Series[float]:
    """A gauge's total over the label sets of each scrape, by asked_ns."""
    found = _known(rows, gauge)
    queues = [_queue(*each) for each in zip(found["metric"], found["labels"], strict=True)]
    found = found.assign(queue=pd.Series(queues, index=found.index, dtype=object))
    found = found[found["queue"].notna()]
    one: pd.Series[float] = found.groupby(["asked_ns", "queue"])["value"].max()
    return one.groupby("asked_ns").sum()


def _queue(metric: str, labels: str) -> str | None:
    """Which queue a label set tells of: the same text, the same queue; None: a part of another."""
    if not metric.startswith(SGLANG):
        return labels
    return None if PART.search(labels) else SAME_QUEUE.sub("", labels)


def _ttft(rows: pd.DataFrame) -> _Ttft:
    """Mean and count of the histogram between the first and the last scrape that has it."""
    sums, counts = (_by_scrape(_known(rows, name)) for name in ("ttft_sum", "ttft_count"))
    both = sums.index.intersection(counts.index)
    if len(both) == 0:
        return _Ttft(None, None, "no TTFT histogram")
    if len(both) == 1:
        return _Ttft(None, None, "fewer than 2 scrapes with a TTFT histogram")
    sums, counts = sums.loc[both], counts.loc[both]
    if _began_anew(sums) or _began_anew(counts):
        return _Ttft(None, None, "the TTFT histogram began anew")
    count = round(_gained(counts))
    if count == 0:
        return _Ttft(None, 0, "no first token between the scrapes")
    return _Ttft(_gained(sums) / count, count, None)


def _by_scrape(found: pd.DataFrame) -> pd.DataFrame:
    """One row a scrape in the order of time, one column a label set; NaN where it is absent."""
    return found.pivot_table(index="asked_ns", columns="labels", values="value", aggfunc="max")


def _began_anew(counter: pd.DataFrame) -> bool:
    """Did any label set fall, or vanish, from one scrape to the next?"""
    values = counter.to_numpy(np.float64)
    before, after = values[:-1], values[1:]
    return bool(((after < before) | (np.isnan(after) & ~np.isnan(before))).any())


def _gained(counter: pd.DataFrame) -> float:
    """Last total less first; a label set that came later began at 0."""
    totals = np.nansum(counter.to_numpy(np.float64), axis=1)
    return float(totals[-1] - totals[0])
