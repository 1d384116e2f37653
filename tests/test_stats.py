"""The N-run statistics against values worked out by hand.

Never: an oracle that calls the code under test, or one taken from another library's output
where the arithmetic fits on paper.
Plan: five small integers with an exact SD, the undefined cases, the t table, the wording, and
properties over arbitrary values.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from percentes_fast.analysis.stats import headline, summarise, t_multiplier
from percentes_fast.errors import DataError

# Two-sided 95 % Student t, as printed in tables to three decimals.
T_TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045}


def test_five_values_by_hand():
    # mean 6; squared deviations 16 + 4 + 0 + 4 + 16 = 40; SD = sqrt(40 / 4) = sqrt(10);
    # SEM = sqrt(10 / 5) = sqrt(2); CV = sqrt(10) / 6.
    stats = summarise([10, 2, 6, 8, 4], multiplier=2.776)
    assert stats.values == (10, 2, 6, 8, 4)
    assert (stats.n, stats.df) == (5, 4)
    assert (stats.median, stats.mean, stats.min, stats.max) == (6, 6, 2, 10)
    assert stats.sample_sd == pytest.approx(3.1622776601683795, rel=1e-15)
    assert stats.sem == pytest.approx(1.4142135623730951, rel=1e-15)
    assert stats.t_interval_lo == pytest.approx(6 - 2.776 * 1.4142135623730951, rel=1e-15)
    assert stats.t_interval_hi == pytest.approx(6 + 2.776 * 1.4142135623730951, rel=1e-15)
    assert stats.coefficient_of_variation == pytest.approx(0.5270462766947299, rel=1e-15)


def test_an_even_number_of_values_takes_the_middle_of_the_two_inner_ones():
    assert summarise([1, 2, 4, 100]).median == 3


def test_two_values_use_one_degree_of_freedom():
    # mean 2; SD = sqrt(2); SEM = 1; t(1) = tan(0.475 pi), the Cauchy quantile in closed form.
    stats = summarise([1, 3])
    half = math.tan(0.475 * math.pi)
    assert stats.df == 1
    assert stats.t_interval_lo == pytest.approx(2 - half, rel=1e-9)
    assert stats.t_interval_hi == pytest.approx(2 + half, rel=1e-9)


def test_no_value_is_null_throughout():
    stats = dataclasses.asdict(summarise([]))
    assert (stats.pop("values"), stats.pop("n")) == ((), 0)
    assert set(stats.values()) == {None}


def test_one_value_has_a_location_and_no_spread():
    stats = summarise([7.5])
    assert (stats.median, stats.mean, stats.min, stats.max) == (7.5, 7.5, 7.5, 7.5)
    spread = (stats.sample_sd, stats.sem, stats.df, stats.t_multiplier)
    assert spread == (None, None, None, None)
    assert (stats.t_interval_lo, stats.t_interval_hi) == (None, None)
    assert stats.coefficient_of_variation is None


def test_equal_values_have_a_spread_of_exactly_zero():
    stats = summarise([1, 1, 1, 1, 1])
    assert (stats.sample_sd, stats.sem, stats.coefficient_of_variation) == (0, 0, 0)
    assert (stats.t_interval_lo, stats.t_interval_hi) == (1, 1)


def test_variation_is_relative_to_the_size_of_the_mean_and_undefined_at_zero():
    assert summarise([-1, 1]).coefficient_of_variation is None
    negative, positive = summarise([-2, -4]), summarise([2, 4])
    assert negative.coefficient_of_variation == positive.coefficient_of_variation


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused_with_its_place(bad):
    with pytest.raises(DataError, match="value 1 of 2 is not finite"):
        summarise([1.0, bad])


@pytest.mark.parametrize(("df", "expected"), T_TABLE.items())
def test_multiplier_is_the_tabulated_one(df, expected):
    assert t_multiplier(df) == pytest.approx(expected, abs=5e-4)


def test_multiplier_follows_the_confidence():
    assert t_multiplier(4, 0.99) == pytest.approx(4.604, abs=5e-4)


@pytest.mark.parametrize(("df", "confidence"), [(0, 0.95), (4, 0.0), (4, 1.0)])
def test_an_undefined_multiplier_is_refused(df, confidence):
    with pytest.raises(DataError, match="no t quantile"):
        t_multiplier(df, confidence)


def test_headline_leads_with_the_median_where_tails_are_heavy():
    line = headline(summarise([2, 4, 6, 8, 10], multiplier=2.776), heavy_tailed=True)
    assert line == (
        "median 6.000 (range 2.000–10.000, N=5); "
        "t-interval [2.074, 9.926] reported with normality caveat"
    )


def test_headline_leads_with_the_mean_elsewhere():
    line = headline(summarise([2, 4, 6, 8, 10], multiplier=2.776), heavy_tailed=False)
    assert line == "mean 6.000 (95% t-interval [2.074, 9.926], t=2.776 df=4), median 6.000"


def test_headline_of_one_run_promises_no_interval():
    assert headline(summarise([3]), heavy_tailed=True) == "3.000 (N=1), no interval"
    assert headline(summarise([]), heavy_tailed=True) == ""


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=30))
def test_location_lies_inside_the_range_and_the_interval_around_the_mean(values):
    stats = summarise(values)
    slack = 1e-9 * max(1.0, *map(abs, values))
    assert stats.values == tuple(values)
    assert min(values) <= stats.median <= max(values)
    assert min(values) - slack <= stats.mean <= max(values) + slack
    assert stats.t_interval_lo <= stats.mean <= stats.t_interval_hi
    assert stats.sample_sd >= 0


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=30), st.integers(-1000, 1000))
def test_a_shift_moves_the_location_and_leaves_the_spread(values, shift):
    before, after = summarise(values), summarise([v + shift for v in values])
    assert after.mean == pytest.approx(before.mean + shift, abs=1e-9)
    assert after.sample_sd == pytest.approx(before.sample_sd, abs=1e-9)
