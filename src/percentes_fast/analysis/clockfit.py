"""Offset bounds between this client and the server's host; a foreign time -> where it lies here.

Never: assumes that the two directions of a path take equally long (only `compat` does, because
published results do), or that a clock ran evenly where the samples cannot tell.
Plan: `shortest` and `compat` are the published rule in whole ns. `Clock` holds every sample as what
it proves, an offset between two bounds; `Clock.bounds` widens and intersects them around a moment,
narrows by linear programs, and finds a step. An offset is the host's wall clock minus run time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linprog

from percentes_fast.analysis.windows import SECOND

RATE_PPM = 500  # no clock's rate is off by more: the kernel slews by no more (adjtime, ntp)
LINEAR_NS = 30 * SECOND
MIN_LINEAR = 3  # samples on one side of a moment, below which a line says nothing
Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Offset:
    """Offset (host minus run time) and its bound in ns, from the shortest round trip of a set."""

    offset_ns: int
    bound_ns: int
    samples: int
    at_ns: int  # run time of that sample


@dataclass(frozen=True, slots=True)
class Compat:
    """The published rule: fire on the client's clock, its uncertainty, and the zone around it."""

    fire_ns: int
    half_interval_ns: int
    drift_ns: int
    bound_ns: int
    arm: Offset
    after: Offset

    @property
    def uncertainty_ns(self) -> int:
        """Half the readings' interval + drift of the offset + the larger bound."""
        return self.half_interval_ns + self.drift_ns + self.bound_ns

    @property
    def zone_ns(self) -> int:
        """Around the fire, where an end is on neither side."""
        return self.uncertainty_ns + self.bound_ns


def shortest(samples: pd.DataFrame) -> Offset | None:
    """Offset of the sample with the shortest round trip; None of an empty set."""
    if len(samples) == 0:
        return None
    before = samples["before_ns"].to_numpy(np.int64)
    after = samples["after_ns"].to_numpy(np.int64)
    best = int(np.argmin(after - before))
    trip = int(after[best] - before[best])
    middle = int(before[best]) + trip // 2
    remote = int(samples["remote_wall_ns"].iloc[best])
    return Offset(remote - middle, (trip + 1) // 2, len(samples), middle)


def compat(before_remote_ns: int, after_remote_ns: int, arm: Offset, after: Offset) -> Compat:
    """SPEC section 6, Compat, to the nanosecond: integer halves round down."""
    return Compat(
        fire_ns=(before_remote_ns + after_remote_ns) // 2 - arm.offset_ns,
        half_interval_ns=(after_remote_ns - before_remote_ns) // 2,
        drift_ns=abs(after.offset_ns - arm.offset_ns),
        bound_ns=max(arm.bound_ns, after.bound_ns),
        arm=arm,
        after=after,
    )


@dataclass(frozen=True, slots=True)
class Step:
    """Where no even clock explains the samples: between two run times, by a size between bounds."""

    after_ns: int
    before_ns: int
    size_lo_ns: int
    size_hi_ns: int


@dataclass(frozen=True, slots=True)
class Fit:
    """What the samples prove of the offset at a moment; None where they contradict each other."""

    lo_ns: int
    hi_ns: int
    samples: int
    narrowed: bool  # by linear programs


class Clock:
    """Every clock sample of a run, as an offset between two bounds."""

    def __init__(self, samples: pd.DataFrame) -> None:
        """samples: before_ns, remote_wall_ns, after_ns, resolution_ns, in any order."""
        ordered = samples.sort_values("before_ns", kind="stable")
        self.before = ordered["before_ns"].to_numpy(np.int64)
        self.after = ordered["after_ns"].to_numpy(np.int64)
        remote = ordered["remote_wall_ns"].to_numpy(np.int64)
        resolution = ordered["resolution_ns"].to_numpy(np.int64)
        # the reading r was taken in [before, after] and stands for [r, r + resolution]
        self.lo = remote - self.after
        self.hi = remote + resolution - self.before

    def __len__(self) -> int:
        return len(self.before)

    def bounds(self, earliest_ns: int, latest_ns: int) -> Fit | None:
        """Offset at any moment of [earliest, latest] of run time; None: a step, or no sample.

        Each sample is widened by 500 ppm of its distance and all are intersected. Within 30 s lines
        through the samples of either side alone may narrow that: so one change of rate, before or
        after the moment, leaves a side on which the line is true.
        """
        if len(self) == 0:
            return None
        far = np.maximum(latest_ns - self.before, self.after - earliest_ns)
        wide = np.maximum(far, 0) * RATE_PPM // 1_000_000 + 1
        lo, hi = int((self.lo - wide).max()), int((self.hi + wide).min())
        if lo > hi:
            return None
        line = self._lines(earliest_ns, latest_ns)
        if line is None:
            return Fit(lo, hi, len(self), narrowed=False)
        best = max(lo, line[0]), min(hi, line[1])
        if best[0] > best[1] or best == (lo, hi):
            return Fit(lo, hi, len(self), narrowed=False)
        return Fit(*best, len(self), narrowed=True)

    def _lines(self, earliest_ns: int, latest_ns: int) -> Bounds | None:
        """Hull of what a line through the earlier, and one through the later samples allows."""
        middle = (earliest_ns + latest_ns) // 2
        near = (self.before >= middle - LINEAR_NS) & (self.after <= middle + LINEAR_NS)
        sides = (near & (self.after <= earliest_ns), near & (self.before >= latest_ns))
        found = [
            line
            for side in sides
            if side.sum() >= MIN_LINEAR and (line := self._line(side, middle)) is not None
        ]
        spread = (latest_ns - earliest_ns) * RATE_PPM // 2_000_000 + 1
        if len(found) < 2:
            return None  # one side cannot vouch for itself
        return min(lo for lo, _ in found) - spread, max(hi for _, hi in found) + spread

    def _line(self, rows: NDArray[np.bool_], at_ns: int) -> Bounds | None:
        """Least and greatest a + b * t at `at_ns` that pass through all bounds; None: none does.

        In us and s, relative to the moment, so that floats carry ns; half a sample's own length at
        500 ppm is added, as the reading lies anywhere in it.
        """
        middle = (self.before[rows] + self.after[rows]) // 2
        own = (self.after[rows] - self.before[rows]) * RATE_PPM // 2_000_000 + 1
        base = int(self.lo[rows][0])
        seconds = (middle - at_ns) / SECOND
        low = (self.lo[rows] - own - base) / 1e3
        high = (self.hi[rows] + own - base) / 1e3
        line = np.column_stack([np.ones(len(seconds)), seconds])
        limits = [(None, None), (-float(RATE_PPM), float(RATE_PPM))]
        found = []
        for sign in (1.0, -1.0):
            solved = linprog(
                [sign, 0.0],
                A_ub=np.vstack([line, -line]),
                b_ub=np.concatenate([high, -low]),
                bounds=limits,
            )
            if solved.status != 0 or solved.fun is None:
                return None
            found.append(sign * float(solved.fun))
        return base + int(np.floor(found[0] * 1e3)), base + int(np.ceil(found[1] * 1e3))

    def step(self) -> Step | None:
        """The first place where neighbours contradict each other, or else where the sum of the
        samples does; None where an even clock explains them all.
        """
        gap = (self.after[1:] - self.before[:-1]) * RATE_PPM // 1_000_000 + 1
        up = self.lo[1:] - self.hi[:-1] > gap
        down = self.lo[:-1] - self.hi[1:] > gap
        found = np.flatnonzero(up | down)
        if len(found):
            return self._step(int(found[0]), int(found[0]) + 1)
        for last in range(1, len(self)):
            if Clock._contradict(self, last):
                return self._step(last - 1, last)
        return None

    def _contradict(self, last: int) -> bool:
        """Does sample `last` contradict any before it?"""
        far = (self.after[last] - self.before[:last]) * RATE_PPM // 1_000_000 + 1
        up, down = self.lo[last] - self.hi[:last], self.lo[:last] - self.hi[last]
        return bool(((up > far) | (down > far)).any())

    def _step(self, one: int, other: int) -> Step:
        return Step(
            after_ns=int(self.before[one]),
            before_ns=int(self.after[other]),
            size_lo_ns=int(self.lo[other] - self.hi[one]),
            size_hi_ns=int(self.hi[other] - self.lo[one]),
        )


@dataclass(frozen=True, slots=True)
class Tight:
    """Where the fire lies on the run's clock, from all samples; why, where they say less."""

    lo_ns: int
    hi_ns: int
    note: str
    fit: Fit | None
    step: Step | None


def tight(
    clock: Clock, readings: Bounds, resolution_ns: int, order: Bounds, otherwise: Compat | None
) -> Tight:
    """The fire's interval: readings of the host around the signal, moved by the offset's bounds.

    order: run time before the order was written and after its answer came, which cuts it in any
    case. otherwise: compat, used where the clock stepped.
    """
    fit = clock.bounds(*order)
    step = None
    if fit is not None:
        lo, hi = readings[0] - fit.hi_ns, readings[1] + resolution_ns - fit.lo_ns
        note = f"{fit.samples} samples intersected" + (
            ", narrowed by lines" if fit.narrowed else ""
        )
    elif otherwise is not None and len(clock):
        step = clock.step()
        where = "" if step is None else _told(step)
        lo = otherwise.fire_ns - otherwise.uncertainty_ns
        hi = otherwise.fire_ns + otherwise.uncertainty_ns
        note = f"the clocks contradict each other: one stepped{where}; compat's interval is used"
    else:
        lo, hi, note = *order, "no clock sample: between the order and its answer"
    cut = max(lo, order[0]), min(hi, order[1])
    if cut[0] > cut[1]:
        return Tight(
            *order, f"{note}; it misses the order's own interval, which is used", fit, step
        )
    return Tight(*cut, note, fit, step)


def _told(step: Step) -> str:
    low, high = sorted((step.size_lo_ns, step.size_hi_ns))
    return (
        f" by {low / 1e6:.3f} to {high / 1e6:.3f} ms between {step.after_ns / SECOND:.3f} and"
        f" {step.before_ns / SECOND:.3f} s"
    )


def foreign(clock: Clock, remote_wall_ns: int, guess: Offset) -> Bounds | None:
    """A time of the host's wall clock as an interval of run time; None where the clock stepped.

    guess: the offset that tells roughly when it was; the samples near it count most.
    """
    about, wide = remote_wall_ns - guess.offset_ns, guess.bound_ns + SECOND // 10
    fit = clock.bounds(about - wide, about + wide)
    return None if fit is None else (remote_wall_ns - fit.hi_ns, remote_wall_ns - fit.lo_ns)
