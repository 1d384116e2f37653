"""Completion incidence: the exact Aalen-Johansen estimate over all scheduled requests.

Never: jitter tied times, drop an errored request, treat an error as a censoring,
extrapolate past the horizon or past the last observation, give 0 or NaN for unknown.
Plan: count events at the distinct event times -> survivor and incidence by products
and sums -> variance by running sums -> log(-log) bands -> step functions and quantiles.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from percentes_fast.errors import ConfigError, DataError

CENSORED, COMPLETED, ERRORED = 0, 1, 2
TOLERANCE = 1e-9
"""How far below q a curve may stay and still count as having reached it."""

BEYOND_HORIZON = "beyond the horizon"
UNATTAINABLE = "unattainable"
NO_COMPLETION = "no completion"

_Z = NormalDist().inv_cdf(0.975)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
MaybeFloats = tuple[float | None, ...]


@dataclass(frozen=True)
class Quantile:
    """The time by which a share `q` of all scheduled requests had completed.

    Exactly one of `value_ns` (int nanoseconds) and `reason` is None.
    """

    q: float
    value_ns: int | None
    reason: str | None


@dataclass(frozen=True)
class IncidenceGrid:
    """The step functions read off at given times, all tuples of one length.

    An entry is None where the curve is unknown: after the horizon, and after the last
    observation while requests were still open. The bands are also None where the
    incidence is 0 or 1, since log(-log) has no value there.
    """

    time_ns: tuple[int, ...]
    at_risk: tuple[int | None, ...]
    survivor: MaybeFloats
    cif: MaybeFloats
    cif_errored: MaybeFloats
    variance: MaybeFloats
    lower: MaybeFloats
    upper: MaybeFloats


@dataclass(frozen=True, eq=False)
class Incidence:
    """Right-continuous step functions at the m distinct event times up to the horizon.

    Arrays have shape (m,). `at_risk[j]` counts requests still open just before
    `time_ns[j]`; every other value holds from that time on. `censored` includes
    requests whose end lies past the horizon, so n = completed + errored + censored.
    """

    horizon_ns: int
    n: int
    completed: int
    errored: int
    censored: int
    time_ns: Ints
    at_risk: Ints
    survivor: Floats
    cif: Floats
    cif_errored: Floats
    variance: Floats
    lower: MaybeFloats
    upper: MaybeFloats
    observed_ns: Ints = field(repr=False)
    """Shape (n,): every duration, sorted."""

    @property
    def known_until_ns(self) -> int | None:
        """Last time at which the curve is known; None without requests.

        With no request left open it is the horizon, else the last observation.
        """
        if self.n == 0:
            return None
        if self.completed + self.errored == self.n:
            return self.horizon_ns
        return min(self.horizon_ns, int(self.observed_ns[-1]))

    def at(self, times_ns: Ints) -> IncidenceGrid:
        """Evaluate every step function at `times_ns`, shape (g,), in any order."""
        times = np.asarray(times_ns, dtype=np.int64)
        until = self.known_until_ns
        known = np.zeros(times.shape, np.bool_) if until is None else times <= until
        step = np.searchsorted(self.time_ns, times, side="right")
        at_risk = self.n - np.searchsorted(self.observed_ns, times, side="left")

        def read(initial: float | None, values: list[float] | MaybeFloats) -> MaybeFloats:
            steps = (initial, *values)
            return tuple(steps[j] if ok else None for j, ok in zip(step, known, strict=True))

        return IncidenceGrid(
            time_ns=tuple(times.tolist()),
            at_risk=tuple(int(r) if ok else None for r, ok in zip(at_risk, known, strict=True)),
            survivor=read(1.0, self.survivor.tolist()),
            cif=read(0.0, self.cif.tolist()),
            cif_errored=read(0.0, self.cif_errored.tolist()),
            variance=read(0.0, self.variance.tolist()),
            lower=read(None, self.lower),
            upper=read(None, self.upper),
        )

    def quantile(self, q: float) -> Quantile:
        """First time at which the incidence reaches `q`, within `TOLERANCE`.

        Raises ConfigError unless 0 < q <= 1. Where the curve never gets there the
        reason says whether the requests still open at the horizon could have taken
        it there ("beyond the horizon") or not ("unattainable").
        """
        if not 0 < q <= 1:
            raise ConfigError(f"a quantile must lie in (0, 1], not {q}: give it as a fraction")
        if self.completed == 0:
            return Quantile(q, None, NO_COMPLETION)
        step = int(np.searchsorted(self.cif, max(q - TOLERANCE, sys.float_info.min)))
        if step < len(self.cif):
            return Quantile(q, int(self.time_ns[step]), None)
        reachable = float(self.cif[-1] + self.survivor[-1]) >= q - TOLERANCE
        return Quantile(q, None, BEYOND_HORIZON if reachable else UNATTAINABLE)


def completion_incidence(duration_ns: Ints, state: NDArray[np.int8], horizon_ns: int) -> Incidence:
    """Aalen-Johansen incidence of completion, with errors as the competing event.

    `duration_ns`, shape (n,): nanoseconds from the intended time to the end of the
    request or of its observation. `state`, shape (n,): 0 censored, 1 completed,
    2 errored. At equal times events come before censorings; whatever ends after
    `horizon_ns` counts as open at the horizon. Cost O(n log n).

    With d_j events of either kind, d_kj completions and n_j at risk at t_j:
    S(t) = prod (1 - d_j / n_j), F(t) = sum S(t_{j-1}) d_kj / n_j (Aalen & Johansen
    1978, Scand. J. Statist. 5, 141-150). Bands are pointwise 95 % on log(-log F).

    Raises DataError for shapes that differ, an unknown state, a negative duration or
    a horizon that is not positive.
    """
    duration = np.asarray(duration_ns, dtype=np.int64)
    kind = np.asarray(state)
    _check(duration, kind, horizon_ns)
    observed = np.sort(duration)
    inside = duration <= horizon_ns
    done = duration[inside & (kind == COMPLETED)]
    failed = duration[inside & (kind == ERRORED)]
    time = np.unique(np.concatenate((done, failed)))
    at_risk = len(duration) - np.searchsorted(observed, time, side="left")
    done_at, failed_at = _count(time, done), _count(time, failed)
    survivor, before = _survivor(at_risk, done_at + failed_at)
    cif = np.cumsum(before * done_at / at_risk)
    variance = _variance(at_risk, done_at, failed_at, before)
    lower, upper = _bands(cif, variance)
    return Incidence(
        horizon_ns=int(horizon_ns),
        n=len(duration),
        completed=len(done),
        errored=len(failed),
        censored=len(duration) - len(done) - len(failed),
        time_ns=time,
        at_risk=at_risk,
        survivor=survivor,
        cif=cif,
        cif_errored=np.cumsum(before * failed_at / at_risk),
        variance=variance,
        lower=lower,
        upper=upper,
        observed_ns=observed,
    )


def _check(duration: Ints, kind: NDArray[np.int8], horizon_ns: int) -> None:
    if duration.ndim != 1 or duration.shape != kind.shape:
        raise DataError(
            f"durations {duration.shape} and states {kind.shape} must be two columns of one"
            " length: take both from the same records"
        )
    if not np.isin(kind, (CENSORED, COMPLETED, ERRORED)).all():
        raise DataError("a state is not 0, 1 or 2: leave client faults out before estimating")
    if (duration < 0).any():
        raise DataError("a duration is negative: check that ends are on the clock of the intents")
    if horizon_ns <= 0:
        raise DataError(f"the horizon is {horizon_ns} ns: give a positive one")


def _count(time: Ints, events: Ints) -> Ints:
    return np.bincount(np.searchsorted(time, events), minlength=len(time)).astype(np.int64)


def _survivor(at_risk: Ints, events: Ints) -> tuple[Floats, Floats]:
    """Return S at each event time, and S just before it."""
    survivor: Floats = np.cumprod((at_risk - events) / at_risk, dtype=np.float64)
    return survivor, _before(survivor, first=1.0)


def _before(steps: Floats, first: float = 0.0) -> Floats:
    """Left limits of a step function that starts at `first`."""
    return np.concatenate(([first], steps[:-1])) if len(steps) else steps


def _variance(at_risk: Ints, done: Ints, failed: Ints, before: Floats) -> Floats:
    """Return the delta-method variance of F, shape (m,) (Marubini & Valsecchi 1995).

    The source is Analysing Survival Data from Clinical Trials and Observational Studies:

    Var F(t) = sum (F(t) - F(t_j))^2 d_j / (n_j (n_j - d_j))
             + sum S(t_{j-1})^2 d_kj (n_j - d_kj) / n_j^3
             - 2 sum (F(t) - F(t_j)) S(t_{j-1}) d_kj / n_j^2, over t_j <= t.

    The double sums run in O(m): as F grows by f, a sum of (F - F_j) w_j grows by f sum w_j
    and a sum of squares by 2 f sum (F - F_j) w_j + f^2 sum w_j. Every increment
    is positive, so nothing cancels, which expanding the square would not give.
    Where n_j = d_j nobody is left and F stays put: that weight multiplies 0, so it is 0.
    """
    n, d = at_risk.astype(np.float64), (done + failed).astype(np.float64)
    growth = before * done / n
    left = n * (n - d)
    weight = np.divide(d, left, out=np.zeros_like(d), where=left > 0)
    total = _before(np.cumsum(weight))
    linear = _before(np.cumsum(growth * total))
    square = np.cumsum(2 * growth * linear + growth**2 * total)
    own = np.cumsum(before**2 * done * (n - done) / n**3)
    cross = np.cumsum(growth * _before(np.cumsum(growth / n)))
    variance: Floats = np.maximum(square + own - 2 * cross, 0.0)
    return variance


def _bands(cif: Floats, variance: Floats) -> tuple[MaybeFloats, MaybeFloats]:
    """Return F ** exp(+-z se / (F log F)): symmetric bands on log(-log F), always in (0, 1)."""
    defined = (cif > 0) & (cif < 1 - TOLERANCE) & (variance > 0)
    curve = np.where(defined, cif, 0.5)
    width = _Z * np.sqrt(variance) / (curve * -np.log(curve))
    lower, upper = curve ** np.exp(width), curve ** np.exp(-width)
    return _nullable(lower, defined), _nullable(upper, defined)


def _nullable(values: Floats, defined: NDArray[np.bool_]) -> MaybeFloats:
    pairs = zip(values.tolist(), defined.tolist(), strict=True)
    return tuple(value if ok else None for value, ok in pairs)
