"""Windows, quantiles, rates and goodput against arithmetic by hand and brute force.

Never: takes a quantile or a binomial probability from numpy or scipy.
Plan: cutting the run -> nearest rank -> order-statistic intervals -> gaps -> one window -> modes.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percentes_fast.analysis.outcomes import judged
from percentes_fast.analysis.windows import (
    PhasePlan,
    Window,
    WindowReport,
    distribution,
    gaps,
    goodput,
    goodput_series,
    modes,
    nearest_rank,
    report_window,
    windows_of,
)
from run_builder import MS, Row, S, frame, refused, row, served, stopped

PLAN = PhasePlan(60 * S, 30 * S, 960 * S, 1020 * S)  # the published phases


def cuts(
    plan: PhasePlan, anchor: int | None, recovered: int | None = None, ready: int | None = None
) -> dict[str, tuple[float, float]]:
    found = windows_of(plan, anchor, recovered, ready)
    return {cut.name: (cut.start_ns / S, cut.end_ns / S) for cut in found}


def load(rows: list[Row], *, usage: bool = True) -> pd.DataFrame:
    return judged(frame(rows), usage=usage)


def token_times(*rows: tuple[int, int, int, bool]) -> pd.DataFrame:
    names = ["index", "event", "time_ns", "same_read"]
    return pd.DataFrame(list(rows), columns=names).astype(
        {"index": "int64", "event": "int64", "time_ns": "int64", "same_read": "boolean"}
    )


# --- cutting the run ---------------------------------------------------------------------


def test_the_published_phases() -> None:
    assert cuts(PLAN, 360 * S, 401 * S, 400 * S) == {
        "warmup": (0, 60),
        "baseline": (60, 330),  # to one timeout before the anchor
        "guard": (330, 360),
        "fault": (360, 960),
        "fault_degraded": (360, 401),
        "fault_recovered": (401, 960),
        "outage": (360, 400),
        "cooldown": (960, 1020),
    }


def test_what_was_not_found_is_left_out() -> None:
    assert set(cuts(PLAN, 360 * S)) == {"warmup", "baseline", "guard", "fault", "cooldown"}
    assert cuts(PLAN, None) == {"warmup": (0, 60), "baseline": (60, 960), "cooldown": (960, 1020)}
    never_degraded = cuts(PLAN, 360 * S, 360 * S)  # recovered at once: nothing was degraded
    assert "fault_degraded" not in never_degraded
    assert never_degraded["fault_recovered"] == (360, 960)


def test_a_warm_up_that_reaches_into_the_guard_leaves_no_baseline() -> None:
    late = PhasePlan(350 * S, 30 * S, 960 * S, 960 * S)
    assert cuts(late, 360 * S) == {"warmup": (0, 350), "guard": (350, 360), "fault": (360, 960)}


def test_nothing_reaches_past_an_interruption() -> None:
    def at(second: int) -> PhasePlan:
        return PhasePlan(60 * S, 30 * S, 960 * S, 1020 * S, stopped_ns=second * S)

    assert cuts(at(40), 360 * S) == {"warmup": (0, 40)}
    # what was open at the stop is censored, so the guard lies before the stop
    assert cuts(at(200), 360 * S) == {"warmup": (0, 60), "baseline": (60, 170), "guard": (170, 200)}
    assert cuts(at(200), None) == {"warmup": (0, 60), "baseline": (60, 170), "guard": (170, 200)}
    assert cuts(at(500), 360 * S, None, 400 * S) == {
        "warmup": (0, 60),
        "baseline": (60, 330),
        "guard": (330, 360),
        "fault": (360, 500),
        "outage": (360, 400),
    }
    assert cuts(at(5000), None) == cuts(PLAN, None)  # stopped while the last requests ended


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 50), st.integers(1, 40), st.integers(1, 99), st.none() | st.integers(1, 150))
def test_phases_cover_what_was_observed_once(
    warmup: int, timeout: int, anchor: int, stop: int | None
) -> None:
    anchor = max(anchor, warmup)
    plan = PhasePlan(warmup, timeout, 100, 120, stop)
    names = ("warmup", "baseline", "guard", "fault", "cooldown")
    phases = [cut for cut in windows_of(plan, anchor, None, None) if cut.name in names]
    edges = [(cut.start_ns, cut.end_ns) for cut in phases]
    assert [start for start, _ in edges] == [0, *(end for _, end in edges[:-1])]
    assert edges[-1][1] == min(120, stop or 120)


def test_a_request_belongs_where_it_was_intended() -> None:
    inside = Window("w", 10, 20).rows(np.array([9, 10, 19, 20]))
    assert inside.tolist() == [False, True, True, False]


# --- quantiles ---------------------------------------------------------------------------


def test_nearest_rank_by_hand() -> None:
    ten = np.arange(1, 11)
    # rank = ceil(10 q): 5, 10 (9.5), 10 (9.9), 10 (9.99)
    assert [nearest_rank(ten, q) for q in (0.5, 0.95, 0.99, 0.999)] == [5, 10, 10, 10]
    hundred = np.arange(1, 101)
    assert [nearest_rank(hundred, q) for q in (0.5, 0.95, 0.99, 0.999)] == [50, 95, 99, 100]
    assert nearest_rank(np.array([7]), 0.5) == 7
    # 0.95 x 20 is 19.000000000000004 or 18.99..: rounding must not move the rank
    assert all(nearest_rank(np.arange(1, n + 1), 0.95) == 19 * n // 20 for n in range(20, 2000, 20))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 1000))
def test_nearest_rank_is_the_smallest_value_that_covers_q(values: list[int], mille: int) -> None:
    found = nearest_rank(np.sort(np.array(values)), mille / 1000)
    covered = [v for v in values if sum(x <= v for x in values) * 1000 >= mille * len(values)]
    assert found == min(covered)


def ranks(n: int, q: Fraction) -> tuple[int, int]:
    """Smallest l with P(Y <= l) >= 2.5 %, and one more than the smallest u with 97.5 %, exactly."""
    total, low, number = Fraction(0), None, 0
    for number in range(n + 1):
        total += math.comb(n, number) * q**number * (1 - q) ** (n - number)
        if low is None and total >= Fraction(25, 1000):
            low = number
        if total >= Fraction(975, 1000):
            break
    assert low is not None
    return low, number + 1


@pytest.mark.parametrize("n", [1, 20, 58, 59, 60, 72, 73, 100, 145, 200])
def test_order_statistic_intervals_against_exact_binomials(n: int) -> None:
    found = distribution(np.arange(1, n + 1) * S)  # the value at rank r is r seconds
    assert found is not None
    for q, interval in (
        (Fraction(95, 100), found.p95_interval),
        (Fraction(99, 100), found.p99_interval),
    ):
        low, high = ranks(n, q)
        if low < 1 or high > n:
            assert interval is None
        else:
            assert interval is not None
            assert (interval.lo, interval.hi) == (low, high)
            covered = sum(math.comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(low, high))
            assert covered >= Fraction(95, 100)


def test_p95_has_an_interval_from_72_values_on() -> None:
    # the upper rank lies in the sample where the largest value covers 97.5 %: 0.95^n <= 2.5 %,
    # n >= ln 0.025 / ln 0.95 = 71.9
    assert distribution(np.arange(71)).p95_interval is None
    assert distribution(np.arange(72)).p95_interval is not None


def test_a_distribution_by_hand() -> None:
    found = distribution(np.array([4, 1, 3, 2]) * S)
    assert found is not None
    assert (found.n, found.mean, found.p50, found.p95, found.max) == (4, 2.5, 2.0, 4.0, 4.0)
    assert distribution(np.array([], np.int64)) is None


# --- gaps --------------------------------------------------------------------------------


def test_gaps_pool_completed_requests_and_leave_same_reads_out() -> None:
    rows = load(
        [served("load", S, MS, 9 * MS), refused("load", 2 * S), served("load", 3 * S, 1, 9)]
    )
    tokens = token_times(
        (0, 0, 100, False),
        (0, 1, 130, False),  # 30
        (0, 2, 131, True),  # same read: counted, no gap
        (0, 3, 171, False),  # 40, from the event before it
        (1, 0, 500, False),  # of an errored request
        (1, 1, 900, False),
        (2, 0, 1000, True),  # the first event of a request has no gap, whatever the read held
        (2, 1, 1050, False),  # 50
    )
    found = gaps(rows, tokens)
    assert found.same_read_excluded == 1
    assert found.distribution is not None
    # 30, 40, 50: p50 is the second
    assert (found.distribution.n, found.distribution.p50, found.distribution.max) == (
        3,
        40e-9,
        50e-9,
    )
    assert found.called == "inter-token"


def test_a_lost_event_leaves_no_gap_of_two() -> None:
    rows = load([served("load", S, MS, 9 * MS)])
    tokens = token_times((0, 0, 0, False), (0, 1, 10, False), (0, 3, 30, False))
    found = gaps(rows, tokens).distribution
    assert found is not None
    assert (found.n, found.max) == (1, 10e-9)


@pytest.mark.parametrize(
    ("tokens", "usage", "called"),
    [(4, True, "inter-token"), (5, True, "inter-chunk"), (None, False, "inter-chunk")],
)
def test_gaps_are_between_tokens_only_where_that_is_known(
    tokens: int | None, usage: bool, called: str
) -> None:
    rows = load([served("load", S, 1, 9, completion_tokens=tokens)], usage=usage)
    assert gaps(rows, token_times()).called == called


# --- one window --------------------------------------------------------------------------


def report(rows: list[Row], *, usage: bool = True) -> WindowReport:
    return report_window(Window("w", 0, 10 * S), load(rows, usage=usage), token_times(), S, 14 * S)


def test_one_window_by_hand() -> None:
    rows = [
        served("load", 1 * S, 100 * MS, 2 * S, tokens=10),
        served("load", 2 * S, 300 * MS, 4 * S, tokens=20),
        served("load", 3 * S, 1100 * MS, 4 * S, tokens=30),  # completed, TTFT too long
        refused("load", 4 * S),
        served("load", 5 * S, MS, 30 * S, cause="deadline"),
        served("load", 6 * S, MS, 2 * S, cause="no_memory"),
        served("load", 10 * S, MS, S),  # the next window's
    ]
    found = report(rows)
    counts = found.counts
    assert (counts.scheduled, counts.completed, counts.errored) == (6, 3, 1)
    assert (counts.censored, counts.client_fault, counts.cut) == (1, 1, 0)
    # 6, 3 and 60 tokens in 10 s; the client fault is in no denominator of the server's figures
    assert (found.scheduled_per_s, found.completed_per_s, found.tokens_per_s) == (0.6, 0.3, 6.0)
    assert found.rates == {
        "completed": 3 / 5,
        "errored": 1 / 5,
        "censored": 1 / 5,
        "client_fault": 1 / 6,
    }
    assert found.error_rates == {"connect": 1 / 5}
    assert (found.goodput, found.goodput_per_s) == (2 / 5, 0.2)
    assert found.ttft_s is not None
    assert (found.ttft_s.n, found.ttft_s.p50, found.ttft_s.max) == (3, 0.3, 1.1)


def test_the_grid_by_hand() -> None:
    # TTFT 0.9 s passes from 1 s on; E2E 13 s passes from 14 s on
    found = report([served("load", S, 900 * MS, 13 * S)])
    grid = {(cell.ttft_ms, cell.e2e_ms): cell.goodput for cell in found.goodput_grid}
    assert grid == {
        (ttft, e2e): float(ttft >= 1000 and e2e >= 14000)
        for ttft in (800, 1000, 1500)
        for e2e in (12000, 14000, 18000)
    }


def test_a_window_without_load_says_unknown() -> None:
    found = report([])
    assert found.counts.scheduled == 0
    assert set(found.rates.values()) == {None}
    assert (found.goodput, found.ttft_s, found.e2e_s, found.gaps_s.distribution) == (None,) * 4
    assert found.tokens_per_s == 0  # nothing completed: that is known


def test_cut_rows_are_in_no_figure() -> None:
    found = report([served("load", S, MS, S), row("load", 2 * S, "not_due")])
    assert (found.counts.scheduled, found.counts.cut, found.goodput) == (1, 1, 1.0)


def test_tokens_that_nobody_counted_are_unknown() -> None:
    found = report([served("load", S, MS, S, completion_tokens=None)], usage=False)
    assert found.counts.completed == 1
    assert found.tokens_per_s is None


MIXED = st.lists(
    st.builds(
        lambda ttft, extra, cause: served("load", S, ttft * MS, (ttft + extra) * MS, cause=cause),
        st.integers(0, 2000),
        st.integers(0, 20_000),
        st.sampled_from(["stream_end", "reset", "deadline", "no_port", "not_due"]),
    ),
    max_size=10,
)


@settings(max_examples=50, deadline=None)
@given(MIXED, st.integers(0, 2000), st.integers(0, 20_000))
def test_goodput_is_a_fraction_and_grows_with_the_limits(
    rows: list[Row], ttft: int, e2e: int
) -> None:
    found = load(rows)
    strict, lax = (goodput(found, ttft * k * MS, e2e * k * MS) for k in (1, 2))
    if strict is None or lax is None:
        assert strict is lax is None
        assert not found["outcome"].isin(["completed", "errored", "censored"]).any()
    else:
        assert 0 <= strict <= lax <= 1


# --- modes, series -----------------------------------------------------------------------


def test_modes_by_hand() -> None:
    before = load([served("load", S, ttft * MS, S) for ttft in (100, 200, 300)])  # SD 100 ms
    fault = load(
        [
            served("load", S, 505 * MS, 2 * S),
            served("load", 2 * S, 509 * MS, 2 * S),
            served("load", 3 * S, 900 * MS, 3 * S),
            refused("load", 4 * S),
        ]
    )
    found = {(mode.quantity, mode.limit_s): mode for mode in modes(fault, before, S, 14 * S)}
    assert set(found) == {("ttft", t) for t in (0.8, 1, 1.5)} | {("e2e", e) for e in (12, 14, 18)}
    # bin 50 of 10 ms holds two: its middle is 505 ms; (1000 - 505) / 100 = 4.95 SD
    assert found["ttft", 1.0].mode_s == pytest.approx(0.505)
    assert found["ttft", 1.0].distance_sd == pytest.approx(4.95)
    assert found["ttft", 0.8].distance_sd == pytest.approx(2.95)
    assert found["e2e", 14.0].mode_s == pytest.approx(2.05)
    assert found["e2e", 14.0].distance_sd is None  # the baseline's E2E do not vary
    own = modes(fault, before, 2 * S, 14 * S)
    assert [mode.limit_s for mode in own if mode.quantity == "ttft"] == [0.8, 1, 1.5, 2]


def test_modes_of_nothing_are_unknown() -> None:
    for mode in modes(load([]), load([]), S, 14 * S):
        assert (mode.mode_s, mode.baseline_sd_s, mode.distance_sd) == (None, None, None)


def test_goodput_by_second() -> None:
    rows: list[dict[str, Any]] = [
        served("load", 0, MS, S),
        refused("load", S - 1),
        served("load", S, MS, S),
        served("load", S + 1, MS, S, cause="no_port"),
        stopped(served("load", 2 * S, MS, S), 2 * S - 1),
    ]
    found = goodput_series(load(rows), 3 * S + S // 2, S, 14 * S)
    assert found.scheduled == (2, 1, 0, 0)
    assert found.good == (1, 1, 0, 0)
