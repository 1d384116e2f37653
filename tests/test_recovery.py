"""The recovery detector on scripted seconds, against a plain second writing, on a re-enactment.

Never: a script whose expected figure is not derived in a comment.
Plan: counting -> scripts -> plateau, deficit, sensitivity -> brute force -> re-enactment.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percentes_fast.analysis.recovery import (
    Buckets,
    Detection,
    DetectorParams,
    buckets,
    detect,
    goodput_deficit,
    plateau,
    sensitivity,
)
from percentes_fast.errors import ConfigError, DataError

S = 1_000_000_000
Pairs = list[tuple[int, int]]


def script(*parts: tuple[int, int, int]) -> Buckets:
    """Join parts of (seconds, scheduled a second, good a second)."""
    scheduled = np.concatenate([np.full(n, s, np.int64) for n, s, _ in parts])
    good = np.concatenate([np.full(n, g, np.int64) for n, _, g in parts])
    return Buckets(scheduled, good)


# --- counting ----------------------------------------------------------------------------


def test_only_whole_buckets_inside_the_span_are_counted() -> None:
    # anchor 5 s, end 7.9 s: buckets [5, 6) and [6, 7); 4.999.. is before, 7.5 in a cut bucket
    intended = np.array([5 * S - 1, 5 * S, 6 * S - 1, 6 * S, 7 * S, 7 * S + S // 2])
    good = np.array([True, True, False, True, True, True])
    got = buckets(intended, good, 5 * S, 7 * S + 9 * S // 10)
    assert got.scheduled.tolist() == [2, 1]
    assert got.good.tolist() == [1, 1]


def test_an_anchor_between_seconds_starts_its_own_seconds() -> None:
    anchor = 5 * S + 300
    got = buckets(np.array([anchor - 1, anchor, anchor + S]), np.ones(3, bool), anchor, anchor + S)
    assert got.scheduled.tolist() == [1]


def test_no_whole_bucket() -> None:
    none = np.array([], np.int64)
    assert len(buckets(none, none.astype(bool), 0, S - 1)) == 0
    assert len(buckets(none, none.astype(bool), 5 * S, 0)) == 0


def test_longer_buckets_keep_seconds_right() -> None:
    # 5 dead buckets of 2 s each; R = 1, H = 2: recovery at bucket 5 = 10 s, deficit 10
    params = DetectorParams(window=1, hold=2)
    dead = Buckets(np.full(9, 3), np.array([0] * 5 + [3] * 4), 2 * S)
    got = detect(dead, 1.0, params)
    assert (got.ttr_k, got.ttr_s) == (5, 10)
    assert goodput_deficit(dead, 1.0, 5).goodput_s == 10.0


def test_damaged_input_is_refused() -> None:
    with pytest.raises(DataError):
        buckets(np.array([1, 2]), np.array([True]), 0, S)
    with pytest.raises(DataError):
        Buckets(np.array([1]), np.array([2]))
    with pytest.raises(DataError):
        Buckets(np.array([1]), np.array([1, 1]))
    with pytest.raises(ConfigError):
        buckets(np.array([1]), np.array([True]), 0, S, bucket_ns=0)
    with pytest.raises(ConfigError):
        buckets(np.array([1]), np.array([True]), 0, 3 * S, bucket_ns=3 * S // 2)
    with pytest.raises(ConfigError):
        DetectorParams(entry=0.8, exit=0.85)
    with pytest.raises(ConfigError):
        DetectorParams(window=0)


# --- scripts -----------------------------------------------------------------------------


def test_clean_outage() -> None:
    # 41 dead seconds, then all good. Window k holds k+10-41 good seconds of 10 for k <= 41:
    # 9 of 10 (exactly 90 %) at k = 40, so recovery is at 40 s.
    got = detect(script((41, 3, 0), (100, 3, 3)), 1.0)
    assert (got.ttr_s, got.reason, got.cancelled_entries, got.redegradations) == (40, None, 0, 0)


def test_never_degraded_recovers_at_once() -> None:
    seen = script((40, 3, 3))
    assert detect(seen, 1.0).ttr_s == 0
    assert goodput_deficit(seen, 1.0, 0).goodput_s == 0.0


def test_flap_inside_the_hold_cancels_the_entry() -> None:
    # 20 dead, 10 good, 5 dead, good. Entry at 19 (1 dead of 10). Window 22 holds 2 of the later
    # dead seconds (30, 31): 80 % < 85 %, cancelled. Next at 90 %: 34, which holds second 34 alone.
    got = detect(script((20, 2, 0), (10, 2, 2), (5, 2, 0), (60, 2, 2)), 1.0)
    assert (got.ttr_s, got.cancelled_entries, got.redegradations) == (34, 1, 0)


def test_a_dip_between_exit_and_entry_does_not_cancel() -> None:
    # window of 10 x 2: 3 bad of 20 = 85 % exactly, at exit and not below it
    dip = script((20, 2, 0), (20, 2, 2), (3, 2, 1), (60, 2, 2))
    got = detect(dip, 1.0)
    assert (got.ttr_s, got.cancelled_entries) == (19, 0)


def test_flaps_after_recovery_count_once_each() -> None:
    # entry at 19, hold to 49; later two dips of 5 dead seconds, far enough apart to re-enter
    flaps = script((20, 2, 0), (60, 2, 2), (5, 2, 0), (30, 2, 2), (5, 2, 0), (30, 2, 2))
    got = detect(flaps, 1.0)
    assert (got.ttr_s, got.cancelled_entries, got.redegradations) == (19, 0, 2)


def test_a_dip_that_does_not_re_enter_counts_once() -> None:
    # dead 80..84, then 87.5 % (7 of 8): above exit, below entry; dead 120..124 again. The
    # windows between never re-enter, so the second dip is the same re-degradation.
    lame = script((20, 8, 0), (60, 8, 8), (5, 8, 0), (35, 8, 7), (5, 8, 0), (20, 8, 7))
    got = detect(lame, 1.0)
    assert (got.ttr_s, got.redegradations) == (19, 1)


def test_an_empty_window_neither_enters_nor_holds() -> None:
    # 10 good, 12 with nothing scheduled, good. Entry at 0; windows 10..12 are empty, the hold
    # of 0 fails at 10. Search from 11: the first window with anything in it is 13.
    quiet = script((10, 3, 3), (12, 0, 0), (60, 3, 3))
    got = detect(quiet, 1.0)
    assert (got.ttr_s, got.cancelled_entries) == (13, 1)
    assert detect(script((60, 0, 0)), 1.0).reason == "nothing scheduled after the anchor"


def test_an_end_one_second_early_leaves_the_entry_pending() -> None:
    # entry at 40 needs 40 + 10 + 30 = 80 observed seconds
    whole = detect(script((41, 3, 0), (39, 3, 3)), 1.0)
    assert (whole.ttr_s, whole.pending) == (40, False)
    short = detect(script((41, 3, 0), (38, 3, 3)), 1.0)
    assert (short.ttr_s, short.pending_k, short.redegradations) == (None, 40, None)
    assert short.reason == "hold not observed to its end: entered at 40 s, observed 79 s"


def test_observed_too_short() -> None:
    # R + H = 40 s at the least
    assert detect(script((40, 3, 3)), 1.0).ttr_s == 0
    got = detect(script((39, 3, 3)), 1.0)
    assert got.ttr_s is None
    assert got.reason is not None
    assert got.reason.startswith("observed too short: 39 s of the 40 s")
    assert detect(script((3, 3, 3)), 1.0).pending is False  # not even one window


def test_never_recovered() -> None:
    got = detect(script((600, 3, 1)), 1.0)
    assert (got.ttr_s, got.reason, got.pending) == (None, "not recovered within 600 s", False)


@pytest.mark.parametrize(
    ("good", "baseline", "enters"),
    [
        (9, 1.0, True),  # 0.9 x 1
        (8, 1.0, False),
        (9, 0.999, True),
        (7, 7 / 9, True),  # 0.9 x 7/9 = 0.7, which rounds to above 7/10
        (6, 2 / 3, True),  # 0.9 x 2/3 = 0.6
        (5, 2 / 3, False),
    ],
)
def test_exactly_at_the_entry_threshold(good: int, baseline: float, enters: bool) -> None:
    got = detect(script((40, 10, good)), baseline)
    assert got.ttr_s == (0 if enters else None)


def test_a_baseline_below_one_lowers_both_thresholds() -> None:
    # baseline 0.5: entry 45 %, exit 42.5 %. Seconds 20.. at 3 of 6 = 50 %: window k holds
    # (k - 10) of 10 good seconds, 0.05 (k - 10) >= 0.45 from k = 19.
    assert detect(script((20, 6, 0), (60, 6, 3)), 0.5).ttr_s == 19
    assert detect(script((20, 6, 0), (60, 6, 3)), 1.0).ttr_s is None


def test_without_a_usable_baseline() -> None:
    seen = script((60, 3, 3))
    assert detect(seen, None).reason == "no baseline"
    assert detect(seen, 0.0).reason == "no goodput in the baseline"
    assert goodput_deficit(seen, None, 3).reason == "no baseline"
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(DataError):
            detect(seen, wrong)


# --- plateau, deficit, sensitivity -------------------------------------------------------


def test_plateau() -> None:
    # buckets 10..40: 31 s at 1 of 4
    half = script((10, 4, 0), (31, 4, 1), (60, 4, 4))
    assert plateau(half, 41).goodput == 0.25
    # not recovered: to the end, (31 x 1 + 60 x 4) / (91 x 4)
    assert plateau(half, None).goodput == pytest.approx(271 / 364)


def test_plateau_not_estimable() -> None:
    dead = script((60, 4, 0), (60, 4, 4))
    assert plateau(dead, 60).reason == "no goodput during the degraded plateau"
    assert plateau(dead, 20).reason == "no goodput during the degraded plateau"  # exactly R
    assert plateau(dead, 19).reason == "plateau of 9 s is shorter than 10 s"
    assert plateau(dead, 0).reason == "plateau of 0 s is shorter than 10 s"
    assert plateau(script((5, 4, 4)), None).goodput is None
    assert (
        plateau(script((30, 0, 0)), None).reason == "nothing scheduled during the degraded plateau"
    )


def test_deficit() -> None:
    # 3 dead, 2 empty, 4 at 1 of 2, 1 above the baseline: 3 x 0.9 + 4 x 0.4 + 0
    got = goodput_deficit(script((3, 2, 0), (2, 0, 0), (4, 2, 1), (1, 2, 2), (9, 2, 0)), 0.9, 10)
    assert got.goodput_s == pytest.approx(4.3)
    assert got.empty_buckets == 2


def test_deficit_of_an_outage_without_end_is_unknown() -> None:
    got = goodput_deficit(script((60, 3, 0)), 1.0, None)
    assert (got.goodput_s, got.empty_buckets, got.reason) == (None, None, "not recovered")


def test_sensitivity_covers_the_grid_once() -> None:
    seen = script((41, 3, 0), (200, 3, 3))
    rows = sensitivity(seen, 1.0)
    settings_seen = [(r.params.entry, r.params.window, r.params.hold) for r in rows]
    assert len(set(settings_seen)) == len(rows) == 27
    assert settings_seen[:2] == [(0.85, 5, 15), (0.85, 5, 30)]
    assert rows[settings_seen.index((0.90, 10, 30))] == detect(seen, 1.0)
    # R = 20 may hold 3, 2, 1 dead seconds at entry 85, 90, 95: starts 38, 39, 40
    assert [r.ttr_s for r in rows if (r.params.window, r.params.hold) == (20, 60)] == [38, 39, 40]
    # R = 5 may hold none at any of them
    assert {r.ttr_s for r in rows if r.params.window == 5} == {41}


def test_sensitivity_lowers_an_exit_above_the_entry() -> None:
    strict = DetectorParams(entry=0.95, exit=0.92)
    rows = sensitivity(script((90, 3, 3)), 1.0, strict)
    assert [r.params.exit for r in rows[::9]] == [0.85, 0.90, 0.92]


# --- a plain second writing --------------------------------------------------------------


def brute(
    pairs: Pairs, baseline: float, p: DetectorParams
) -> tuple[int | None, int | None, int, int]:
    """Return recovery, pending entry, cancelled entries and re-degradations, window by window."""

    def passes(k: int, share: float) -> bool:
        total = sum(s for s, _ in pairs[k : k + p.window])
        good = sum(g for _, g in pairs[k : k + p.window])
        return total > 0 and good / total >= share * baseline - 1e-12

    state, entry_k, cancelled, lost = "down", -1, 0, 0
    for k in range(len(pairs) - p.window + 1):
        if state == "down" and passes(k, p.entry):
            state, entry_k = "holding", k
        elif state == "holding":
            if not passes(k, p.exit):
                state, cancelled = "down", cancelled + 1
            elif k == entry_k + p.hold:
                state = "recovered"
        elif state == "recovered" and not passes(k, p.exit):
            state, lost = "lost", lost + 1
        elif state == "lost" and passes(k, p.entry):
            state = "recovered"
    recovered = state in {"recovered", "lost"}
    pending = entry_k if state == "holding" else None
    return (entry_k if recovered else None), pending, cancelled, lost


@st.composite
def seconds(draw: st.DrawFn) -> Pairs:
    parts = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4), st.integers(0, 4))))
    return [(s, min(s, g)) for n, s, g in parts for _ in range(n)]


@settings(max_examples=400)
@given(
    seconds(),
    st.sampled_from([1.0, 0.97, 2 / 3, 0.5]),
    st.builds(
        DetectorParams,
        window=st.integers(1, 5),
        hold=st.integers(1, 8),
        entry=st.sampled_from([0.85, 0.9, 1.0]),
        exit=st.sampled_from([0.5, 0.8, 0.85]),
    ),
)
def test_equals_the_plain_writing(pairs: Pairs, baseline: float, p: DetectorParams) -> None:
    counts = Buckets(
        np.array([s for s, _ in pairs], np.int64), np.array([g for _, g in pairs], np.int64)
    )
    got = detect(counts, baseline, p)
    ttr, pending, cancelled, lost = brute(pairs, baseline, p)
    assert (got.ttr_k, got.pending_k, got.cancelled_entries) == (ttr, pending, cancelled)
    assert got.redegradations == (None if ttr is None else lost)
    assert (got.ttr_s is None) == (got.reason is not None)


@given(seconds())
def test_recovery_is_never_extrapolated(pairs: Pairs) -> None:
    counts = Buckets(
        np.array([s for s, _ in pairs], np.int64), np.array([g for _, g in pairs], np.int64)
    )
    for row in sensitivity(counts, 1.0):
        if row.ttr_k is not None:
            assert row.ttr_k + row.params.window + row.params.hold <= len(pairs)


# --- the published study -----------------------------------------------------------------


def enact(seed: int) -> tuple[Buckets, Detection]:
    """Poisson 3.12 /s for 600 s; what is intended in the first 41.685 s of it fails."""
    rng = np.random.default_rng(seed)
    sends = np.cumsum(rng.exponential(1 / 3.12, 3000) * S).astype(np.int64)
    counts = buckets(sends, sends >= int(41.685 * S), 0, 600 * S)
    return counts, detect(counts, 1.0)


def test_re_enactment_of_the_published_outage() -> None:
    # Window 40 holds 1.685 dead seconds of 10 (83 % good on average), window 41 0.685 (93 %): 41 s.
    # Each dead second is worth 1 unless nothing was due in it; here that is two of them, as in
    # the published run with 41 s and a deficit of 39.
    counts, got = enact(seed=6)
    assert (got.ttr_s, got.cancelled_entries, got.redegradations) == (41, 0, 0)
    assert int((counts.scheduled[:41] == 0).sum()) == 2
    deficit = goodput_deficit(counts, 1.0, got.ttr_k)
    assert (deficit.goodput_s, deficit.empty_buckets) == (39.0, 2)
    assert plateau(counts, got.ttr_k).reason == "no goodput during the degraded plateau"


def test_re_enactments_scatter_as_the_published_runs_did() -> None:
    # published: 41, 41, 43, 41, 42 s, with deficits 39..41; every second is empty with
    # probability exp(-3.12) = 0.044, so 41 of them leave about 1.8 out
    runs = [enact(seed) for seed in range(100)]
    times = [got.ttr_s for _, got in runs if got.ttr_s is not None]
    assert len(times) == 100
    assert max(set(times), key=times.count) == 41
    assert 37 <= min(times) <= max(times) <= 44
    empty = [int((counts.scheduled[:41] == 0).sum()) for counts, _ in runs]
    assert np.mean(empty) == pytest.approx(1.8, abs=0.4)
    for counts, got in runs:
        if got.ttr_k is not None and got.ttr_k <= 41:
            deficit = goodput_deficit(counts, 1.0, got.ttr_k)
            assert deficit.empty_buckets is not None
            assert deficit.goodput_s == got.ttr_k - deficit.empty_buckets


def test_params_are_kept_with_the_result() -> None:
    wide = replace(DetectorParams(), window=20)
    assert detect(script((90, 3, 3)), 1.0, wide).params == wide
