"""Completion incidence against hand arithmetic, the direct formula, and lifelines.

Never: a tolerance wide enough to hide a tie handled the wrong way round.
Plan: hand-computed oracles -> quantile reasons -> properties -> other implementations.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from percentes_fast.analysis.incidence import Incidence, completion_incidence
from percentes_fast.errors import ConfigError, DataError

HORIZON = 100
LIFELINES = json.loads((Path(__file__).parent / "data" / "lifelines_aj.json").read_text())
Rows = list[tuple[int, int]]


def estimate(rows: Rows, horizon: int = HORIZON) -> Incidence:
    duration = np.array([t for t, _ in rows], np.int64)
    state = np.array([s for _, s in rows], np.int8)
    return completion_incidence(duration, state, horizon)


def direct_variance(curve: Incidence, rows: Rows) -> list[float]:
    """Sum the published formula term by term, O(m^2)."""
    out = []
    for i, f in enumerate(curve.cif):
        total = 0.0
        for j in range(i + 1):
            t, n = int(curve.time_ns[j]), int(curve.at_risk[j])
            d = sum(1 for u, s in rows if u == t and s)
            dk = sum(1 for u, s in rows if u == t and s == 1)
            before = float(curve.survivor[j - 1]) if j else 1.0
            gap = float(f - curve.cif[j])
            total += gap**2 * d / (n * (n - d)) if n > d else 0.0
            total += before**2 * dk * (n - dk) / n**3 - 2 * gap * before * dk / n**2
        out.append(total)
    return out


# --- by hand -----------------------------------------------------------------------------


def test_ties_put_events_before_censorings() -> None:
    # t=10: 5 at risk, 1 completed and 1 censored   S = 4/5,        F = 1/5
    # t=20: 3 at risk, 1 completed and 1 errored    S = 4/5*1/3,    F = 1/5 + 4/5*1/3 = 7/15
    # t=30: 1 at risk, 1 completed                  S = 0,          F = 7/15 + 4/15 = 11/15
    # (a censoring before the event at t=10 would give S = 3/4 there)
    curve = estimate([(10, 0), (20, 2), (10, 1), (30, 1), (20, 1)])
    assert curve.time_ns.tolist() == [10, 20, 30]
    assert curve.at_risk.tolist() == [5, 3, 1]
    assert curve.survivor == pytest.approx([4 / 5, 4 / 15, 0])
    assert curve.cif == pytest.approx([1 / 5, 7 / 15, 11 / 15])
    assert curve.cif_errored == pytest.approx([0, 4 / 15, 4 / 15])
    assert (curve.n, curve.completed, curve.errored, curve.censored) == (5, 3, 1, 1)


def test_variance_by_hand() -> None:
    # The sample above, G = F(t) - F(t_j); weights d/(n(n-d)): 1/20, 2/3, (n = d: 0)
    # own terms S(t-)^2 dk (n-dk)/n^3: 1*1*4/125 = 4/125; (4/5)^2*1*2/27 = 32/675; 0 (n = dk)
    # cross weights S(t-) dk/n^2: 1/25, (4/5)/9 = 4/45
    # t=10: 4/125 = 0.032
    # t=20: G1 = 4/15: 16/225/20 + 4/125 + 32/675 - 2*4/15/25
    # t=30: G1 = 8/15, G2 = 4/15:
    #       64/225/20 + 16/225*2/3 + 4/125 + 32/675 - 2*(8/15/25 + 4/15*4/45)
    curve = estimate([(10, 0), (20, 2), (10, 1), (30, 1), (20, 1)])
    at_20 = 16 / 4500 + 4 / 125 + 32 / 675 - 8 / 375
    at_30 = 64 / 4500 + 32 / 675 + 4 / 125 + 32 / 675 - 2 * (8 / 375 + 16 / 675)
    assert curve.variance == pytest.approx([4 / 125, at_20, at_30])


def test_bands_by_hand() -> None:
    # 4 requests, 2 complete at t=1, 2 at t=2: F(1) = 1/2, variance 1/2*1/2/4 = 1/16, se = 1/4
    # width = z * 0.25 / (0.5 * ln 2), band = 0.5 ** exp(+-width); F(2) = 1 has no log(-log)
    curve = estimate([(1, 1), (1, 1), (2, 1), (2, 1)])
    width = 1.959963984540054 * 0.25 / (0.5 * math.log(2))
    assert curve.variance[0] == pytest.approx(1 / 16)
    assert curve.lower[0] == pytest.approx(0.5 ** math.exp(width))
    assert curve.upper[0] == pytest.approx(0.5 ** math.exp(-width))
    assert curve.lower[1] is None
    assert curve.upper[1] is None


def test_all_censored() -> None:
    curve = estimate([(30, 0), (30, 0), (40, 0)], horizon=30)
    assert curve.time_ns.size == 0
    assert curve.quantile(0.5).reason == "no completion"
    grid = curve.at(np.array([0, 30, 31]))
    assert grid.survivor == (1.0, 1.0, None)
    assert grid.cif == (0.0, 0.0, None)
    assert grid.at_risk == (3, 3, None)
    assert grid.lower == (None, None, None)


def test_none_completed() -> None:
    # errors at 5 and 6 of 2: F stays 0, S = 1/2 then 0; there is no band on 0
    curve = estimate([(5, 2), (6, 2)])
    assert curve.cif.tolist() == [0, 0]
    assert curve.survivor.tolist() == [0.5, 0]
    assert curve.lower == (None, None)
    got = curve.quantile(0.5)
    assert (got.value_ns, got.reason) == (None, "no completion")


def test_single_request() -> None:
    curve = estimate([(7, 1)])
    assert curve.cif.tolist() == [1.0]
    assert curve.survivor.tolist() == [0.0]
    assert curve.variance.tolist() == [0.0]
    assert curve.quantile(1.0).value_ns == 7
    grid = curve.at(np.array([6, 7, 8, HORIZON, HORIZON + 1]))
    assert grid.cif == (0.0, 1.0, 1.0, 1.0, None)
    assert grid.at_risk == (1, 1, 0, 0, None)


def test_no_requests() -> None:
    curve = estimate([])
    assert curve.quantile(0.5).reason == "no completion"
    assert curve.at(np.array([0])).survivor == (None,)


def test_errors_compete_rather_than_censor() -> None:
    # error at 1 of 2, completion at 2: F = 1/2 (one minus Kaplan-Meier would say 1)
    curve = estimate([(1, 2), (2, 1)])
    assert curve.cif.tolist() == [0.0, 0.5]
    assert curve.survivor.tolist() == [0.5, 0.0]


def test_unknown_after_the_last_observation_while_requests_are_open() -> None:
    # 1 of 2 completes at 10, the other is cut at 20: S = F = 1/2 is known to 20, not to 100
    curve = estimate([(10, 1), (20, 0)])
    grid = curve.at(np.array([20, 21]))
    assert grid.cif == (0.5, None)
    assert grid.variance[0] == pytest.approx(1 / 8)
    assert grid.variance[1] is None


def test_ends_past_the_horizon_are_open_at_it() -> None:
    curve = estimate([(10, 1), (31, 1), (32, 2), (30, 1)], horizon=30)
    assert curve.time_ns.tolist() == [10, 30]
    assert curve.cif.tolist() == [0.25, 0.5]
    assert (curve.completed, curve.errored, curve.censored) == (2, 0, 2)
    assert curve.at(np.array([30])).at_risk == (3,)


# --- quantiles ---------------------------------------------------------------------------


def test_quantile_reasons() -> None:
    # 10 requests: 5 complete at 1..5, 2 error at 6, 3 open at the horizon: F = 0.5, S = 0.3
    curve = estimate([(k, 1) for k in range(1, 6)] + [(6, 2)] * 2 + [(HORIZON, 0)] * 3)
    assert curve.quantile(0.5).value_ns == 5
    assert curve.quantile(0.41).value_ns == 5
    assert curve.quantile(0.4).value_ns == 4
    assert curve.quantile(0.51).reason == "beyond the horizon"
    assert curve.quantile(0.8).reason == "beyond the horizon"
    assert curve.quantile(0.81).reason == "unattainable"
    assert curve.quantile(0.8 + 5e-10).reason == "beyond the horizon"
    assert curve.quantile(0.5 + 5e-10).value_ns == 5


def test_tiny_quantile_is_not_met_by_an_error() -> None:
    assert estimate([(1, 2), (2, 1)]).quantile(1e-12).value_ns == 2


@pytest.mark.parametrize("q", [0.0, -0.1, 1.1, math.nan])
def test_quantile_outside_its_range_is_refused(q: float) -> None:
    with pytest.raises(ConfigError):
        estimate([(1, 1)]).quantile(q)


def test_damaged_input_is_refused() -> None:
    with pytest.raises(DataError, match="one length"):
        completion_incidence(np.array([1, 2]), np.array([1], np.int8), HORIZON)
    with pytest.raises(DataError, match="state"):
        estimate([(1, 3)])
    with pytest.raises(DataError, match="negative"):
        estimate([(-1, 1)])
    with pytest.raises(DataError, match="horizon"):
        estimate([(1, 1)], horizon=0)


# --- properties --------------------------------------------------------------------------

rows = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), max_size=40)
uncensored = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 2)), min_size=1, max_size=40)


@given(rows, st.integers(1, 15))
def test_the_three_curves_sum_to_one_and_move_one_way(sample: Rows, horizon: int) -> None:
    curve = estimate(sample, horizon)
    assert curve.cif + curve.cif_errored + curve.survivor == pytest.approx(1.0)
    assert (np.diff(curve.cif) >= 0).all()
    assert (np.diff(curve.survivor) <= 0).all()
    assert curve.n == curve.completed + curve.errored + curve.censored


@given(uncensored)
def test_without_censoring_it_is_the_empirical_fraction(sample: Rows) -> None:
    curve, n = estimate(sample), len(sample)
    share = np.array([sum(1 for u, s in sample if s == 1 and u <= t) / n for t in curve.time_ns])
    assert curve.cif == pytest.approx(share, abs=1e-12)
    # and the delta-method variance is the binomial one
    assert curve.variance == pytest.approx(share * (1 - share) / n, abs=1e-12)


@given(rows)
def test_running_sums_equal_the_direct_formula(sample: Rows) -> None:
    curve = estimate(sample)
    assert curve.variance == pytest.approx(direct_variance(curve, sample), abs=1e-13)


@given(rows, st.randoms(use_true_random=False))
def test_order_of_rows_does_not_matter(sample: Rows, random: object) -> None:
    shuffled = sample[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    a, b, grid = estimate(sample), estimate(shuffled), np.arange(20)
    assert a.at(grid) == b.at(grid)


@given(rows, st.integers(1, 15))
def test_never_nan_and_bands_hold_the_curve(sample: Rows, horizon: int) -> None:
    curve = estimate(sample, horizon)
    grid = curve.at(np.arange(-1, horizon + 2))
    for column in (grid.survivor, grid.cif, grid.cif_errored, grid.variance, grid.lower):
        assert all(v is None or (math.isfinite(v) and v >= 0) for v in column)
    for f, low, high in zip(grid.cif, grid.lower, grid.upper, strict=True):
        assert (low is None) == (high is None)
        if f is not None and low is not None and high is not None:
            assert 0 <= low <= f <= high <= 1
    assert grid.cif[-1] is None


@given(rows, st.integers(1, 15), st.floats(0.01, 1))
def test_quantile_agrees_with_the_curve(sample: Rows, horizon: int, q: float) -> None:
    curve = estimate(sample, horizon)
    got = curve.quantile(q)
    if got.value_ns is None:
        assert got.reason in {"no completion", "beyond the horizon", "unattainable"}
        assert (curve.cif < q).all()
        return
    here, before = curve.at(np.array([got.value_ns, got.value_ns - 1])).cif
    assert here is not None
    assert before is not None
    assert before < q - 1e-9 <= here


# --- other implementations, size ---------------------------------------------------------


@pytest.mark.parametrize("case", LIFELINES["cases"], ids=lambda case: case["name"])
def test_equals_lifelines_on_untied_times(case: dict[str, list[float]]) -> None:
    curve = estimate(list(zip(case["duration_ms"], case["state"], strict=True)), 30_001)  # type: ignore[arg-type]
    assert curve.time_ns.tolist() == case["time_ms"]
    assert curve.cif == pytest.approx(np.array(case["cif"]), abs=1e-12)
    for ours, theirs in zip(curve.variance, case["variance"], strict=True):
        assert theirs is None or ours == pytest.approx(theirs, abs=1e-13)


def large(n: int) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
    rng = np.random.default_rng(7)
    duration = rng.integers(1, 30_000_000_000, n)
    return duration, rng.choice(3, n, p=(0.2, 0.7, 0.1)).astype(np.int8)


def test_many_requests_take_less_than_a_second() -> None:
    duration, state = large(100_000)
    start = time.perf_counter()
    curve = completion_incidence(duration, state, 30_000_000_000)
    assert curve.quantile(0.5).value_ns is not None
    assert time.perf_counter() - start < 1.0


def test_running_sums_keep_their_digits_over_many_times() -> None:
    # the direct formula at a few of 20 000 times, vectorised over j for each
    duration, state = large(20_000)
    curve = completion_incidence(duration, state, 30_000_000_000)
    events = duration[state > 0]
    assert len(np.unique(events)) == len(events) == len(curve.time_ns)
    done = (state[state > 0][np.argsort(events)] == 1).astype(float)
    n, before = curve.at_risk.astype(float), np.concatenate(([1.0], curve.survivor[:-1]))
    for i in (0, 10, 1_000, len(n) - 2):
        j = slice(0, i + 1)
        gap = curve.cif[i] - curve.cif[j]
        want = (gap**2 / (n[j] * (n[j] - 1))).sum()
        want += (before[j] ** 2 * done[j] * (n[j] - 1) / n[j] ** 3).sum()
        want -= 2 * (gap * before[j] * done[j] / n[j] ** 2).sum()
        assert curve.variance[i] == pytest.approx(want, rel=1e-9)
