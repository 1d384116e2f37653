"""Statistics over the N runs of a campaign: location, spread and a t-interval of the mean.

Never: 0 or NaN for what is undefined (it is None), a bootstrap (N is about five), or a value
list that was rounded, sorted or thinned.
Plan: `summarise` computes everything once, in plain floats, and returns a frozen `RunStats`;
`headline` words it, median and range first where the scalar is heavy-tailed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats as distributions

from percentes_fast.errors import DataError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class RunStats:
    """Statistics of one scalar over runs, in the scalar's own unit.

    With no value all but `values` and `n` is None. With one value the spread (`sample_sd`,
    `sem`, `coefficient_of_variation`), `df` and the interval are None. The coefficient of
    variation is None where the mean is 0.
    """

    values: tuple[float, ...]
    n: int
    median: float | None
    mean: float | None
    min: float | None
    max: float | None
    sample_sd: float | None
    sem: float | None
    df: int | None
    t_multiplier: float | None
    t_interval_lo: float | None
    t_interval_hi: float | None
    coefficient_of_variation: float | None


def t_multiplier(df: int, confidence: float = CONFIDENCE) -> float:
    """Give the two-sided Student t quantile, `confidence` of the mass inside +/- the result.

    Raises `DataError` unless df >= 1 and 0 < confidence < 1.
    """
    if df < 1 or not 0 < confidence < 1:
        raise DataError(
            f"no t quantile for df={df}, confidence={confidence}; "
            "give two runs or more and a confidence between 0 and 1"
        )
    return float(distributions.t.ppf((1 + confidence) / 2, df))


def summarise(
    values: Sequence[float], *, confidence: float = CONFIDENCE, multiplier: float | None = None
) -> RunStats:
    """Summarise one scalar over N runs; `values` keep their order and are stored verbatim.

    SD has the divisor n - 1 (Bessel), SEM = SD / sqrt(n), the interval is
    mean +/- t(df = n - 1) * SEM (Student 1908), the coefficient of variation SD / |mean|.
    `multiplier` replaces the t quantile, for a file that printed a rounded one. Raises
    `DataError` on a value that is not finite: a run without the value is left out by the caller.
    """
    kept = tuple(float(v) for v in values)
    bad = [i for i, v in enumerate(kept) if not math.isfinite(v)]
    if bad:
        raise DataError(f"value {bad[0]} of {len(kept)} is not finite; leave that run out by name")
    n = len(kept)
    mean = math.fsum(kept) / n if n else None
    spread = _spread(kept, mean, confidence, multiplier)
    return RunStats(
        values=kept,
        n=n,
        median=statistics.median(kept) if n else None,
        mean=mean,
        min=min(kept, default=None),
        max=max(kept, default=None),
        sample_sd=spread.sd,
        sem=spread.sem,
        df=n - 1 if n > 1 else None,
        t_multiplier=spread.multiplier,
        t_interval_lo=spread.lo,
        t_interval_hi=spread.hi,
        coefficient_of_variation=spread.cv,
    )


@dataclass(frozen=True)
class _Spread:
    sd: float | None = None
    sem: float | None = None
    multiplier: float | None = None
    lo: float | None = None
    hi: float | None = None
    cv: float | None = None


def _spread(
    values: tuple[float, ...], mean: float | None, confidence: float, multiplier: float | None
) -> _Spread:
    n = len(values)
    if mean is None or n < 2:
        return _Spread()
    # The distance is scaled inside: squares of large values cannot overflow.
    sd = math.dist(values, (mean,) * n) / math.sqrt(n - 1)
    sem = sd / math.sqrt(n)
    t = t_multiplier(n - 1, confidence) if multiplier is None else multiplier
    cv = sd / abs(mean) if mean else None
    return _Spread(sd, sem, t, mean - t * sem, mean + t * sem, cv)


def headline(stats: RunStats, *, heavy_tailed: bool) -> str:
    """Word the summary in one line with three decimals, in the published form.

    Heavy-tailed scalars lead with median and range, others with the mean and its interval.
    Empty with no run; one run is its value without an interval.
    """
    if stats.n < 2:
        return f"{stats.median:.3f} (N=1), no interval" if stats.n else ""
    interval = f"[{stats.t_interval_lo:.3f}, {stats.t_interval_hi:.3f}]"
    if heavy_tailed:
        return (
            f"median {stats.median:.3f} (range {stats.min:.3f}–{stats.max:.3f}, N={stats.n}); "
            f"t-interval {interval} reported with normality caveat"
        )
    return (
        f"mean {stats.mean:.3f} (95% t-interval {interval}, "
        f"t={stats.t_multiplier:.3f} df={stats.df}), median {stats.median:.3f}"
    )
