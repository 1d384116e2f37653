"""When goodput came back: the hysteresis detector, its plateau baseline, its sensitivity.

Never: call a recovery whose hold was not wholly observed, extrapolate past the end,
let an empty window pass, let rounding decide a window that lies exactly on a threshold.
Plan: count requests a second from the fire anchor -> goodput over leading windows ->
walk the window starts once -> plateau, deficit and sensitivity from the same counts.
One detector serves every component (goodput, TTFT, E2E, errors): only `good` differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from percentes_fast.errors import ConfigError, DataError

SECOND_NS = 1_000_000_000
TOLERANCE = 1e-12
"""Windows hold small whole numbers, so two goodputs that differ do so by far more."""

SENSITIVITY_ENTRY = (0.85, 0.90, 0.95)
SENSITIVITY_WINDOW = (5, 10, 20)
SENSITIVITY_HOLD = (15, 30, 60)

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class DetectorParams:
    """R = `window` and H = `hold` in buckets; `entry` and `exit` as shares of the baseline.

    Raises ConfigError for R or H below 1, or unless 0 < exit <= entry.
    """

    window: int = 10
    hold: int = 30
    entry: float = 0.90
    exit: float = 0.85

    def __post_init__(self) -> None:
        if self.window < 1 or self.hold < 1:
            raise ConfigError("the recovery window and its hold must be at least 1 s: raise them")
        if not 0 < self.exit <= self.entry:
            raise ConfigError(
                f"recovery exit {self.exit} must be above 0 and at most entry {self.entry}"
            )


DEFAULT_PARAMS = DetectorParams()


@dataclass(frozen=True, eq=False)
class Buckets:
    """Requests scheduled, and good ones among them, in whole buckets from the anchor.

    Both arrays are int64 of shape (n,); `bucket_ns` is a whole number of seconds.
    """

    scheduled: Ints
    good: Ints
    bucket_ns: int = SECOND_NS

    def __post_init__(self) -> None:
        if self.scheduled.ndim != 1 or self.scheduled.shape != self.good.shape:
            raise DataError("scheduled and good must be two columns of one length: count again")
        if (self.good < 0).any() or (self.good > self.scheduled).any():
            raise DataError("a bucket has more good requests than scheduled ones: count again")
        if self.bucket_ns < SECOND_NS or self.bucket_ns % SECOND_NS:
            raise ConfigError(f"a bucket of {self.bucket_ns} ns is not whole seconds: round it")

    def __len__(self) -> int:
        return len(self.scheduled)

    def seconds(self, count: int) -> int:
        """Length of `count` buckets in seconds."""
        return count * (self.bucket_ns // SECOND_NS)


@dataclass(frozen=True)
class Detection:
    """What the detector saw. Exactly one of `ttr_s` and `reason` is None.

    `ttr_k` is the bucket of recovery and `ttr_s` the same in seconds after the anchor.
    `pending_k` is the entry whose hold had not failed when observation ended.
    `redegradations` is None where there was no recovery to lose.
    """

    params: DetectorParams
    ttr_k: int | None
    ttr_s: int | None
    reason: str | None
    pending_k: int | None
    cancelled_entries: int
    redegradations: int | None

    @property
    def pending(self) -> bool:
        """Whether observation ended inside a hold that had not failed."""
        return self.pending_k is not None


@dataclass(frozen=True)
class Plateau:
    """Goodput (fraction) of the degraded plateau, or None with the reason."""

    goodput: float | None
    reason: str | None


@dataclass(frozen=True)
class Deficit:
    """Goodput lost from the anchor to recovery, in goodput-seconds, or None with the reason.

    `empty_buckets` had nothing scheduled: they say nothing and add nothing.
    """

    goodput_s: float | None
    empty_buckets: int | None
    reason: str | None


def buckets(
    intended_ns: Ints, good: Bools, anchor_ns: int, end_ns: int, bucket_ns: int = SECOND_NS
) -> Buckets:
    """Count requests by intended time in the whole buckets inside [anchor, end).

    `intended_ns`, shape (n,): load requests without client faults, in any order.
    `good`, shape (n,): whether each met the objective. Raises DataError for shapes that
    differ, ConfigError for a bucket that is not whole seconds.
    """
    intended, ok = np.asarray(intended_ns, dtype=np.int64), np.asarray(good, dtype=np.bool_)
    if intended.ndim != 1 or intended.shape != ok.shape:
        raise DataError("intended times and good flags must be two columns of one length")
    if bucket_ns < SECOND_NS:
        raise ConfigError(f"a bucket of {bucket_ns} ns is shorter than 1 s: lengthen it")
    count = max(0, (int(end_ns) - int(anchor_ns)) // bucket_ns)
    inside = (intended >= anchor_ns) & (intended < anchor_ns + count * bucket_ns)
    k = (intended[inside] - anchor_ns) // bucket_ns
    scheduled = np.bincount(k, minlength=count).astype(np.int64)
    served = np.bincount(k[ok[inside]], minlength=count).astype(np.int64)
    return Buckets(scheduled, served, bucket_ns)


def detect(
    buckets: Buckets, baseline: float | None, params: DetectorParams = DEFAULT_PARAMS
) -> Detection:
    """Time to recovery: start of the first entry that survives its hold, minus the anchor.

    An entry is a window start k whose goodput over buckets k .. k+R-1 is at least entry x
    baseline. It survives when the starts k+1 .. k+H all stay at exit x baseline or
    above, which takes R + H observed buckets from k on. `baseline` is a goodput
    fraction in [0, 1], or None where there is none. Raises DataError for any other value.
    """
    unusable = _unusable(baseline)
    if baseline is None or unusable is not None:
        return Detection(params, None, None, unusable, None, 0, None)
    above_entry = _reaches(buckets, params.window, params.entry * baseline)
    above_exit = _reaches(buckets, params.window, params.exit * baseline)
    entry_k, cancelled, held = _search(above_entry, above_exit, params.hold)
    if entry_k is not None and held:
        lost = _redegradations(above_entry, above_exit, entry_k + params.hold + 1)
        return Detection(params, entry_k, buckets.seconds(entry_k), None, None, cancelled, lost)
    reason = _not_recovered(buckets, params, entry_k)
    return Detection(params, None, None, reason, entry_k, cancelled, None)


def plateau(
    buckets: Buckets, ttr_k: int | None, params: DetectorParams = DEFAULT_PARAMS
) -> Plateau:
    """Goodput over buckets [R, ttr_k), or to the end of observation when not recovered.

    Not estimable when shorter than R, or when nothing in it was good.
    """
    end = len(buckets) if ttr_k is None else ttr_k
    span = slice(params.window, max(end, params.window))
    length = span.stop - span.start
    if length < params.window:
        return Plateau(
            None,
            f"plateau of {buckets.seconds(length)} s is shorter than"
            f" {buckets.seconds(params.window)} s",
        )
    scheduled, good = int(buckets.scheduled[span].sum()), int(buckets.good[span].sum())
    if scheduled == 0:
        return Plateau(None, "nothing scheduled during the degraded plateau")
    if good == 0:
        return Plateau(None, "no goodput during the degraded plateau")
    return Plateau(good / scheduled, None)


def goodput_deficit(buckets: Buckets, baseline: float | None, ttr_k: int | None) -> Deficit:
    """Sum of max(0, baseline - g_k) over the non-empty buckets before recovery.

    In goodput-seconds: 1 is one second of nothing where the baseline is 1.0. Null without
    a baseline or a recovery, since the loss has no end then.
    """
    unusable = _unusable(baseline)
    if baseline is None or unusable is not None:
        return Deficit(None, None, unusable)
    if ttr_k is None:
        return Deficit(None, None, "not recovered")
    scheduled, good = buckets.scheduled[:ttr_k], buckets.good[:ttr_k]
    full = scheduled > 0
    missing = np.maximum(0.0, baseline - good[full] / scheduled[full])
    total = math.fsum(missing.tolist()) * buckets.seconds(1)
    return Deficit(total, int((~full).sum()), None)


def sensitivity(
    buckets: Buckets, baseline: float | None, params: DetectorParams = DEFAULT_PARAMS
) -> tuple[Detection, ...]:
    """Run the detector on the 27 settings of entry x R x H, in that order, last fastest.

    The exit threshold stays that of `params`, lowered to the entry where it lies above.
    """
    grid = product(SENSITIVITY_ENTRY, SENSITIVITY_WINDOW, SENSITIVITY_HOLD)
    return tuple(
        detect(
            buckets,
            baseline,
            replace(params, entry=entry, window=r, hold=h, exit=min(params.exit, entry)),
        )
        for entry, r, h in grid
    )


def _unusable(baseline: float | None) -> str | None:
    if baseline is None:
        return "no baseline"
    if not 0 <= baseline <= 1:
        raise DataError(f"baseline goodput {baseline} is not a fraction: divide by the scheduled")
    return "no goodput in the baseline" if baseline == 0 else None


def _reaches(buckets: Buckets, window: int, threshold: float) -> Bools:
    """Return, for window starts 0 .. n-R, whether the goodput is at least the threshold."""
    scheduled, good = _window_sums(buckets.scheduled, window), _window_sums(buckets.good, window)
    return (scheduled > 0) & (good >= (threshold - TOLERANCE) * scheduled)


def _window_sums(counts: Ints, window: int) -> Ints:
    running = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    return running[window:] - running[:-window]


def _search(above_entry: Bools, above_exit: Bools, hold: int) -> tuple[int | None, int, bool]:
    """Return the entry left standing (if any), the cancelled ones, and whether it held."""
    cancelled, start = 0, 0
    while True:
        entries = np.flatnonzero(above_entry[start:])
        if not len(entries):
            return None, cancelled, False
        entry_k = start + int(entries[0])
        held = above_exit[entry_k + 1 : entry_k + hold + 1]
        if held.all():
            return entry_k, cancelled, len(held) == hold
        cancelled += 1
        start = entry_k + 2 + int(np.argmin(held))


def _redegradations(above_entry: Bools, above_exit: Bools, start: int) -> int:
    """Count drops below exit from `start` on, each once until a window is back at entry."""
    count, down = 0, False
    for enters, stays in zip(above_entry[start:], above_exit[start:], strict=True):
        if down:
            down = not enters
        elif not stays:
            count, down = count + 1, True
    return count


def _not_recovered(buckets: Buckets, params: DetectorParams, pending_k: int | None) -> str:
    observed, needed = len(buckets), params.window + params.hold
    if observed < needed:
        return (
            f"observed too short: {buckets.seconds(observed)} s of the"
            f" {buckets.seconds(needed)} s that a recovery takes to show"
        )
    if pending_k is not None:
        return (
            f"hold not observed to its end: entered at {buckets.seconds(pending_k)} s,"
            f" observed {buckets.seconds(observed)} s"
        )
    if not buckets.scheduled.any():
        return "nothing scheduled after the anchor"
    return f"not recovered within {buckets.seconds(observed)} s"
