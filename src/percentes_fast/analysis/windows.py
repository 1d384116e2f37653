"""Phases of a run, and per phase: rates, quantiles, goodput.

Never: puts a failed request into a latency distribution, or gives 0 for what is unknown.
Plan: `windows_of` cuts the run (SPEC section 5); `report_window` says everything of one cut.
Quantiles are nearest rank over completed requests ("conditional on completion"); their 95 %
intervals are order statistics (Conover, Practical Nonparametric Statistics, 3rd ed., 3.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from percentes_fast.analysis.outcomes import Counts, count, good

SECOND = 1_000_000_000
MS = 1_000_000
GRID_TTFT_MS = (800, 1000, 1500)
GRID_E2E_MS = (12_000, 14_000, 18_000)
MODE_BIN_MS = {"ttft": 10, "e2e": 100}
QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
Ints = NDArray[np.int64]


class Seconds(float):
    """A duration that comes exactly from integer nanoseconds: printed in full."""

    @classmethod
    def of(cls, ns: int) -> Seconds:
        """Seconds of whole nanoseconds."""
        return cls(int(ns) / SECOND)

    @classmethod
    def maybe(cls, ns: int | None) -> Seconds | None:
        """Seconds of whole nanoseconds, None of None."""
        return None if ns is None else cls.of(ns)


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open interval of intended times on the run's clock, in ns."""

    name: str
    start_ns: int
    end_ns: int

    def rows(self, intended_ns: Ints) -> NDArray[np.bool_]:
        """Which intended times lie in it."""
        return np.asarray((intended_ns >= self.start_ns) & (intended_ns < self.end_ns), np.bool_)


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """The configured phases in ns: everything `windows_of` needs beside what was found.

    stopped_ns: when an interrupted run was stopped, None where it ran to its end.
    """

    warmup_ns: int
    timeout_ns: int
    recovery_end_ns: int
    end_ns: int
    stopped_ns: int | None = None

    @property
    def observed_ns(self) -> int:
        """End of what was observed."""
        return self.end_ns if self.stopped_ns is None else min(self.end_ns, self.stopped_ns)

    def baseline_end_ns(self, anchor_ns: int | None) -> int:
        """One timeout before the anchor, or before the interruption, whichever is earlier."""
        end = self.recovery_end_ns if anchor_ns is None else anchor_ns - self.timeout_ns
        if self.stopped_ns is not None:
            end = min(end, self.stopped_ns - self.timeout_ns)
        return max(self.warmup_ns, end)


def windows_of(
    plan: PhasePlan, anchor_ns: int | None, recovered_ns: int | None, ready_ns: int | None
) -> tuple[Window, ...]:
    """The windows of a run.

    anchor_ns: the earlier of planned and actual fault, None without a fault (baseline then runs to
    the cool-down); recovered_ns: the detector's recovery; ready_ns: replica-ready. A window of no
    length, or whose end is not known, is left out; none reaches past an interruption.
    """
    guard_from = plan.baseline_end_ns(anchor_ns)
    cuts = [("warmup", 0, plan.warmup_ns), ("baseline", plan.warmup_ns, guard_from)]
    if anchor_ns is None:
        cuts.append(("guard", guard_from, plan.recovery_end_ns))  # only of an interrupted run
    else:
        cuts.append(("guard", guard_from, anchor_ns))
        cuts.append(("fault", anchor_ns, plan.recovery_end_ns))
        if recovered_ns is not None:
            cuts.append(("fault_degraded", anchor_ns, recovered_ns))
            cuts.append(("fault_recovered", recovered_ns, plan.recovery_end_ns))
        if ready_ns is not None:
            cuts.append(("outage", anchor_ns, ready_ns))
    cuts.append(("cooldown", plan.recovery_end_ns, plan.end_ns))
    seen = [Window(name, start, min(end, plan.observed_ns)) for name, start, end in cuts]
    return tuple(window for window in seen if window.start_ns < window.end_ns)


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % order-statistic interval of a quantile."""

    lo: Seconds
    hi: Seconds


@dataclass(frozen=True, slots=True)
class Distribution:
    """Nearest-rank quantiles of n values, in seconds; p95 and p99 with their intervals."""

    n: int
    mean: float
    p50: Seconds
    p95: Seconds
    p99: Seconds
    p999: Seconds
    max: Seconds
    p95_interval: Interval | None
    p99_interval: Interval | None


def nearest_rank(ordered: Ints, q: float) -> int:
    """The smallest value at or below which at least a share q of the ordered values lies."""
    rank = max(1, math.ceil(round(q * len(ordered), 9)))
    return int(ordered[rank - 1])


def _interval(ordered: Ints, q: float) -> Interval | None:
    """Ranks l < u with P(l <= successes < u) >= 95 %; None where one lies outside the sample."""
    n = len(ordered)
    lo = int(stats.binom.ppf(0.025, n, q))
    hi = int(stats.binom.ppf(0.975, n, q)) + 1
    if lo < 1 or hi > n:
        return None
    return Interval(Seconds.of(ordered[lo - 1]), Seconds.of(ordered[hi - 1]))


def distribution(values: Ints) -> Distribution | None:
    """Quantiles of latencies in ns; None of no values."""
    if len(values) == 0:
        return None
    ordered = np.sort(values)
    ranks = {name: Seconds.of(nearest_rank(ordered, q)) for name, q in QUANTILES}
    return Distribution(
        n=len(ordered),
        mean=float(ordered.mean()) / SECOND,
        max=Seconds.of(ordered[-1]),
        p95_interval=_interval(ordered, 0.95),
        p99_interval=_interval(ordered, 0.99),
        **ranks,
    )


@dataclass(frozen=True, slots=True)
class Gaps:
    """Pooled gaps between content events; called inter-token only where one event is one token."""

    called: str
    same_read_excluded: int
    distribution: Distribution | None


def gaps(frame: pd.DataFrame, tokens: pd.DataFrame) -> Gaps:
    """Gaps of the frame's completed requests. tokens: token_times in the order of index, event.

    Only between neighbouring events: where a full buffer lost one there is no gap to tell.
    """
    done = frame[frame["outcome"] == "completed"]
    mine = tokens[tokens["index"].isin(done["index"])]
    time = mine["time_ns"].to_numpy(np.int64)
    index = mine["index"].to_numpy(np.int64)
    same_read = mine["same_read"].to_numpy(bool)
    event = mine["event"].to_numpy(np.int64)
    follows = np.zeros(len(mine), bool)
    follows[1:] = (index[1:] == index[:-1]) & (event[1:] == event[:-1] + 1)
    step = np.diff(time, prepend=time[:1])
    merged = (done["completion_tokens"] != done["content_events"]).fillna(True)  # or not known
    return Gaps(
        called="inter-chunk" if bool(merged.any()) else "inter-token",
        same_read_excluded=int((follows & same_read).sum()),
        distribution=distribution(step[follows & ~same_read]),
    )


@dataclass(frozen=True, slots=True)
class GoodputCell:
    """Goodput under one pair of limits."""

    ttft_ms: int
    e2e_ms: int
    goodput: float | None


@dataclass(frozen=True, slots=True)
class WindowReport:
    """Everything section 5 asks of one window; latencies are conditional on completion.

    rates: of completed, errored, censored over what is judged of the server (client faults and cut
    rows left out), of client_fault over scheduled; error_rates: the same by error class.
    """

    name: str
    start_s: Seconds
    end_s: Seconds
    counts: Counts
    scheduled_per_s: float | None
    completed_per_s: float | None
    tokens_per_s: float | None
    rates: dict[str, float | None]
    error_rates: dict[str, float | None]
    ttft_s: Distribution | None
    e2e_s: Distribution | None
    gaps_s: Gaps
    goodput: float | None
    goodput_per_s: float | None
    goodput_grid: tuple[GoodputCell, ...]


def share(part: float, whole: float) -> float | None:
    """part / whole; None where whole is 0."""
    return part / whole if whole else None


def _judged(counts: Counts) -> int:
    """Scheduled, but for client faults and cut rows: what counts for or against the server."""
    return counts.completed + counts.errored + counts.censored


def goodput(frame: pd.DataFrame, ttft_ns: int, e2e_ns: int) -> float | None:
    """Good over scheduled (client faults and cut rows left out of both)."""
    return share(float(good(frame, ttft_ns, e2e_ns).sum()), _judged(count(frame)))


def _rates(counts: Counts) -> dict[str, float | None]:
    whole = _judged(counts)
    return {
        "completed": share(counts.completed, whole),
        "errored": share(counts.errored, whole),
        "censored": share(counts.censored, whole),
        "client_fault": share(counts.client_fault, counts.scheduled),
    }


def _tokens(done: pd.DataFrame) -> float | None:
    """Tokens of completed requests; None where the server did not say how many they were."""
    tokens = done["completion_tokens"]
    return None if bool(tokens.isna().any()) else float(tokens.sum())


def _grid(done: pd.DataFrame, judged: int) -> tuple[GoodputCell, ...]:
    """Of the completed rows of a window, over all that count in it."""
    return tuple(
        GoodputCell(ttft, e2e, share(float(good(done, ttft * MS, e2e * MS).sum()), judged))
        for ttft in GRID_TTFT_MS
        for e2e in GRID_E2E_MS
    )


def _latencies(frame: pd.DataFrame, column: str) -> Ints:
    done = frame.loc[frame["outcome"] == "completed", column]
    return done.dropna().to_numpy(np.int64)


def report_window(
    window: Window, load: pd.DataFrame, tokens: pd.DataFrame, ttft_ns: int, e2e_ns: int
) -> WindowReport:
    """Figures of one window. load: judged rows of kind load; tokens: their token times."""
    frame = load[window.rows(load["intended_ns"].to_numpy(np.int64))]
    counts = count(frame)
    length = (window.end_ns - window.start_ns) / SECOND
    done = frame[frame["outcome"] == "completed"]
    passed = int(good(done, ttft_ns, e2e_ns).sum())
    tokens_done = _tokens(done)
    by_class = counts.errored_by_class.items()
    return WindowReport(
        name=window.name,
        start_s=Seconds.of(window.start_ns),
        end_s=Seconds.of(window.end_ns),
        counts=counts,
        scheduled_per_s=share(counts.scheduled, length),
        completed_per_s=share(counts.completed, length),
        tokens_per_s=None if tokens_done is None else share(tokens_done, length),
        rates=_rates(counts),
        error_rates={name: share(number, _judged(counts)) for name, number in by_class},
        ttft_s=distribution(_latencies(frame, "ttft_ns")),
        e2e_s=distribution(_latencies(frame, "e2e_ns")),
        gaps_s=gaps(frame, tokens),
        goodput=share(passed, _judged(counts)),
        goodput_per_s=share(passed, length),
        goodput_grid=_grid(done, _judged(counts)),
    )


@dataclass(frozen=True, slots=True)
class Mode:
    """The densest bin of a latency in the fault window, and its distance from a limit.

    mode_s: middle of the bin; distance_sd: (limit - mode) in baseline standard deviations.
    """

    quantity: str
    bin_ms: int
    mode_s: float | None
    limit_s: float
    baseline_sd_s: float | None
    distance_sd: float | None


def _mode_s(values: Ints, bin_ms: int) -> float | None:
    if len(values) == 0:
        return None
    bins, counts = np.unique(values // (bin_ms * 1_000_000), return_counts=True)
    return float(bins[np.argmax(counts)] + 0.5) * bin_ms / 1000  # the lowest of equal bins


def modes(
    fault: pd.DataFrame, baseline: pd.DataFrame, ttft_ns: int, e2e_ns: int
) -> tuple[Mode, ...]:
    """Modal TTFT and E2E of the fault window against each limit of the grid and the run's own."""
    found = []
    for name, own_ns, grid in (("ttft", ttft_ns, GRID_TTFT_MS), ("e2e", e2e_ns, GRID_E2E_MS)):
        before = _latencies(baseline, f"{name}_ns")
        sd = float(np.std(before, ddof=1)) / SECOND if len(before) > 1 else None
        mode = _mode_s(_latencies(fault, f"{name}_ns"), MODE_BIN_MS[name])
        for limit_ns in sorted({own_ns, *(limit * MS for limit in grid)}):
            near = None if mode is None or not sd else (limit_ns / SECOND - mode) / sd
            found.append(Mode(name, MODE_BIN_MS[name], mode, Seconds.of(limit_ns), sd, near))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class GoodputSeries:
    """Requests by the second of their intended time, from the epoch: scheduled and good."""

    scheduled: tuple[int, ...]
    good: tuple[int, ...]


def goodput_series(load: pd.DataFrame, end_ns: int, ttft_ns: int, e2e_ns: int) -> GoodputSeries:
    """Goodput per second over the whole run."""
    seconds = math.ceil(end_ns / SECOND)
    at = load["intended_ns"].to_numpy(np.int64) // SECOND
    counted = load["outcome"].isin(["completed", "errored", "censored"]).to_numpy(bool)
    passed = good(load, ttft_ns, e2e_ns)
    return GoodputSeries(
        tuple(np.bincount(at[counted], minlength=seconds).tolist()),
        tuple(np.bincount(at[passed], minlength=seconds).tolist()),
    )
