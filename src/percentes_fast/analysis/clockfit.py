"""Offset bounds between this client and the server's host; a foreign time -> where it lies here.

Never: assumes that the two directions of a path take equally long (only `compat` does, because
published results do), or that a clock ran evenly where the samples cannot tell.
Plan: `shortest` and `compat` are the published rule in whole ns. `Clock` holds every sample as what
it proves, an offset between two bounds; `Clock.bounds` widens and intersects them around a moment,
and narrows by linear programs; `Clock.step` says where no even clock explains them all. An offset
is the host's wall clock minus run time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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
    """Where no even clock explains the samples: between two run times, by a size between bounds,
    500 ppm of drift between the two samples allowed for.
    """

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
        self.resolution_ns = int(resolution.max()) if len(resolution) else 0

    def __len__(self) -> int:
        return len(self.before)

    def bounds(self, earliest_ns: int, latest_ns: int) -> Fit | None:
        """Offset at any moment of [earliest, latest] of run time; None: a step, or no sample.

        Each sample is widened by 500 ppm of its distance and all are intersected. Within 30 s lines
        may narrow that: sound where the rate changed no more than twice in that minute, or only
        grew, or only fell (an offset that decays as a kernel's time constant has it).
        """
        if len(self) == 0 or self.step() is not None:
            return None
        far = np.maximum(latest_ns - self.before, self.after - earliest_ns)
        wide = far * RATE_PPM // 1_000_000 + 1
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
        """What lines allow: the hull of those through the earlier samples, those through the later
        ones, and the chords between the two.

        A side on which the rate did not change holds the truth. Where it changed on both, once
        upwards (or downwards) and once back, the truth lies between what the two sides say; where
        twice upwards, above both, but below every chord.
        """
        middle = (earliest_ns + latest_ns) // 2
        near = (self.before >= middle - LINEAR_NS) & (self.after <= middle + LINEAR_NS)
        sides = []
        for rows in (near & (self.after <= earliest_ns), near & (self.before >= latest_ns)):
            if rows.sum() < MIN_LINEAR:
                return None  # one side cannot vouch for itself
            sides.append(self._bars(rows, middle))
        base = sides[0].lo.min()
        found = [line for side in sides if (line := _line(side.above(base))) is not None]
        if len(found) < 2:
            return None
        found.append(_chord(*(side.above(base) for side in sides)))
        spread = (latest_ns - earliest_ns) * RATE_PPM // 2_000_000 + 2  # 1 of it for floats
        lo, hi = min(lo for lo, _ in found), max(hi for _, hi in found)
        return int(base) + math.floor(lo) - spread, int(base) + math.ceil(hi) + spread

    def _bars(self, rows: NDArray[np.bool_], at_ns: int) -> _Bars:
        """Offsets at the middle of each sample: the reading lies anywhere in it, so that half its
        length at 500 ppm is added.
        """
        middle = (self.before[rows] + self.after[rows]) // 2
        own = (self.after[rows] - self.before[rows]) * RATE_PPM // 2_000_000 + 1
        return _Bars(np.abs(middle - at_ns), self.lo[rows] - own, self.hi[rows] + own)

    def step(self) -> Step | None:
        """The first sample that contradicts an earlier one, and the nearest that it contradicts;
        None where one even clock explains them all.
        """
        return self._first_step

    @cached_property
    def _first_step(self) -> Step | None:
        if len(self) == 0:
            return None
        # lo of one > hi of the other + 500 ppm of the distance, with each side's terms together;
        # floats, as a clock may step by years: their error is far below the 1 ns of leeway
        begun = self.before * (RATE_PPM / 1e6)
        ended = np.maximum.accumulate(self.after) * (RATE_PPM / 1e6)  # samples may overlap
        lo, hi = (self.lo - self.lo[0]).astype(float), (self.hi - self.lo[0]).astype(float)
        least = np.minimum.accumulate(hi - begun)[:-1]
        most = np.maximum.accumulate(lo + begun)[:-1]
        found = np.flatnonzero((lo[1:] - ended[1:] > least + 1) | (hi[1:] + ended[1:] < most - 1))
        if len(found) == 0:
            return None
        last = int(found[0]) + 1
        up = lo[last] - ended[last] > (hi - begun)[:last] + 1
        down = hi[last] + ended[last] < (lo + begun)[:last] - 1
        return self._step(int(np.flatnonzero(up | down)[-1]), last)

    def _step(self, one: int, other: int) -> Step:
        after, before = int(self.before[one]), int(max(self.after[one], self.after[other]))
        drift = (before - after) * RATE_PPM // 1_000_000 + 1
        return Step(
            after_ns=after,
            before_ns=before,
            size_lo_ns=int(self.lo[other] - self.hi[one]) - drift,
            size_hi_ns=int(self.hi[other] - self.lo[one]) + drift,
        )


class _Bars(NamedTuple):
    """Samples on one side of a moment: how far away each is, and the bounds of its offset."""

    away: NDArray[Any]
    lo: NDArray[Any]
    hi: NDArray[Any]

    def above(self, base: int) -> _Bars:
        """As floats above an offset: small enough to be whole ns."""
        return _Bars(self.away.astype(float), *((x - base).astype(float) for x in self[1:]))


def _line(bars: _Bars) -> tuple[float, float] | None:
    """Least and greatest offset at the moment of the lines a + b * away, b within 500 ppm, that
    pass through all bars: two linear programs in two unknowns. None: no line does.

    Solved without a solver's tolerance: with b eliminated, a has the limits that each pair of bars
    (near, far) sets, and those of a bar and b's own limit; where they cross, no line passes.
    """
    rate = RATE_PPM / 1e6
    near, far = np.nonzero(bars.away[:, None] < bars.away[None, :])
    gap = bars.away[far] - bars.away[near]
    up, down = (bars.hi[far] - bars.lo[near]) / gap, (bars.lo[far] - bars.hi[near]) / gap
    at = bars.away[near]
    lo = max((bars.lo - rate * bars.away).max(), (bars.lo[near] - up * at).max(initial=-np.inf))
    hi = min((bars.hi + rate * bars.away).min(), (bars.hi[near] - down * at).min(initial=np.inf))
    return None if lo > hi else (float(lo), float(hi))


def _chord(one: _Bars, other: _Bars) -> tuple[float, float]:
    """At the moment: greatest lower and least upper chord from one side's bars to the other's."""
    left, right = one.away[:, None], other.away[None, :]
    part = left / np.maximum(left + right, 1.0)
    lo = one.lo[:, None] * (1 - part) + other.lo[None, :] * part
    hi = one.hi[:, None] * (1 - part) + other.hi[None, :] * part
    return float(lo.max()), float(hi.min())


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

    resolution_ns: of the readings. order: run time before the order was written and after its
    answer came, which cuts it in any case. otherwise: compat, used where the clock stepped.
    """
    fit = clock.bounds(*order)
    step = None
    if fit is not None:
        lo, hi = readings[0] - fit.hi_ns, readings[1] + resolution_ns - fit.lo_ns
        note = f"{fit.samples} samples intersected" + (
            ", narrowed by lines" if fit.narrowed else ""
        )
    elif len(clock) == 0:
        lo, hi, note = *order, "no clock sample: between the order and its answer"
    else:
        step = clock.step()
        where = "" if step is None else _told(step)
        note = f"the clocks contradict each other: one stepped{where}; "
        if otherwise is None:
            lo, hi, note = *order, note + "the time between the order and its answer is used"
        else:
            # its halves round down, and it takes a reading that was cut for the time itself
            lo = otherwise.fire_ns - otherwise.uncertainty_ns - clock.resolution_ns
            hi = otherwise.fire_ns + otherwise.uncertainty_ns + resolution_ns + 1
            note += "compat's interval is used"
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

    guess: an offset that tells roughly when it was; the samples near it count most.
    """
    about = remote_wall_ns - guess.offset_ns
    known = guess.bound_ns + clock.resolution_ns
    # by how much the clock may have gone wrong since the guess; twice, as about is itself a guess
    wide = known + (known + abs(about - guess.at_ns)) * 2 * RATE_PPM // 1_000_000 + 1
    found = about - wide, about + wide
    for _ in range(2):  # again from what the first showed: nearer
        fit = clock.bounds(*found)
        if fit is None:
            return None
        found = remote_wall_ns - fit.hi_ns, remote_wall_ns - fit.lo_ns
    return found
