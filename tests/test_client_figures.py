"""The client's own figures: skew, busy share, canary deviation, wall-clock steps, by hand.

Never: judges a run; tests/test_gates.py does that with these figures.
Plan: spreads -> busiest 5 s -> wall clock -> canary -> receive path -> the whole client.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percentes_fast.analysis.client import busiest, figures, receive_path, spread, wall_steps
from percentes_fast.analysis.outcomes import judged
from percentes_fast.analysis.windows import Window
from run_builder import MS, US, Row, S, frame, healthy, refused, row, served, worker_facts

CANARY = {"ttft_ms": 20.0, "itl_ms": 10.0, "tokens": 3}
WINDOW = Window("w", 0, 10 * S)


def seconds(*rows: tuple[int, int, int], worker: int = 0) -> pd.DataFrame:
    """Rows of client.parquet from (end, CPU, empty polls)."""
    names = ["end_ns", "cpu_ns", "idle_poll_ns"]
    return pd.DataFrame(list(rows), columns=names, dtype="Int64").assign(worker=worker)


def clocks(*rows: tuple[int, int, int]) -> pd.DataFrame:
    names = ["before_ns", "realtime_wall_ns", "after_ns"]
    return pd.DataFrame(list(rows), columns=names, dtype="Int64")


def events(*rows: tuple[int, int, int]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=["index", "event", "time_ns"], dtype="Int64")


def whole(rows: list[Row], **manifest: Any) -> Any:
    facts = {"workers": [worker_facts()]} | manifest
    pairs = clocks((0, 0, 0))
    return figures(facts, judged(frame(rows), usage=True), seconds((S, 0, 0)), pairs)


def test_a_spread_by_hand() -> None:
    found = spread(np.arange(100, 0, -1) * S)
    assert found is not None
    assert (found.n, found.p50, found.p99, found.max) == (100, 50, 99, 100)
    assert spread(np.array([], np.int64)) is None


def test_busy_is_cpu_less_empty_polls_over_the_worst_5_s() -> None:
    # a second in two: busy 0.9 s in seconds 5..9, 0.1 s in the others; empty polls add to both
    rows = [(k * S, S, S - (900 if 5 <= k <= 9 else 100) * MS) for k in range(1, 16)]
    assert busiest(seconds(*rows)) == pytest.approx(0.9)
    # 4 busy seconds are (4 x 0.9 + 0.1) / 5 = 0.74 over any 5 s
    rows = [(k * S, S, S - (900 if 5 <= k <= 8 else 100) * MS) for k in range(1, 16)]
    assert busiest(seconds(*rows)) == pytest.approx(0.74)


def test_a_run_under_5_s_is_one_span() -> None:
    assert busiest(seconds((S, 500 * MS, 0), (2 * S, 100 * MS, 0))) == pytest.approx(0.3)


def test_a_worker_that_wrote_no_second_is_unknown() -> None:
    assert busiest(seconds()) is None


def test_more_polls_than_cpu_is_not_negative() -> None:
    assert busiest(seconds((S, 10 * MS, 20 * MS))) == 0.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=5, max_size=30))
def test_busiest_against_every_span(milli: list[int]) -> None:
    found = busiest(seconds(*((k * S + S, cpu * MS, 0) for k, cpu in enumerate(milli))))
    spans = [sum(milli[k : k + 5]) / 5000 for k in range(len(milli) - 4)]
    assert found == pytest.approx(max(spans))


def test_wall_steps_over_1_ms_with_their_size() -> None:
    # readings 10 ns apart; the wall jumps by 1.5 ms before 2 s, by -1 ms (not over it) before 3 s
    step = 1500 * US
    pairs = clocks(
        (0, 100 * S + 5, 10),
        (S, 101 * S + 5, S + 10),
        (2 * S, 102 * S + 5 + step, 2 * S + 10),
        (3 * S, 103 * S + 5 + step - MS, 3 * S + 10),
    )
    (found,) = wall_steps(pairs)
    assert (found.at_s, found.size_s) == (2.000000005, 0.0015)
    assert wall_steps(clocks((0, 0, 0))) == wall_steps(clocks()) == ()


def test_the_canary_by_hand() -> None:
    # intended 1 s: known times 1.020, 1.030, 1.040; seen 100, 300 and 200 us late
    rows = [served("canary", S, 20 * MS, 50 * MS), refused("canary", 2 * S)]
    rows.append(row("canary", 3 * S, "not_due"))
    times = [S + 20 * MS + 100 * US, S + 30 * MS + 300 * US, S + 40 * MS + 200 * US]
    found = receive_path(
        WINDOW,
        judged(frame([each | {"index": n} for n, each in enumerate(rows)]), usage=True),
        events(*((0, n, time) for n, time in enumerate(times))),
        CANARY,
    ).canary
    assert found is not None
    assert (found.streams, found.completed) == (2, 1)  # what was cut was no stream
    assert (found.ttft_dev_p50_us, found.ttft_dev_max_us) == (100, 100)
    # gaps 10.2 and 9.9 ms: deviations 200 and 100 us; p50 of two is the first
    assert (found.itl_dev_p50_us, found.itl_dev_p99_us, found.itl_dev_max_us) == (100, 200, 200)
    assert (found.event_lag_p99_us, found.event_lag_max_us) == (300, 300)


def test_a_canary_that_never_completed_is_unknown() -> None:
    rows = judged(frame([refused("canary", S) | {"index": 0}]), usage=True)
    found = receive_path(WINDOW, rows, events(), CANARY).canary
    assert found is not None
    assert (found.streams, found.completed, found.event_lag_max_us) == (1, 0, None)
    assert receive_path(WINDOW, judged(frame([]), usage=True), events(), CANARY).canary is None


def test_the_receive_path_of_a_window() -> None:
    rows = [
        served("load", S, 100 * MS, S, first_token_kernel_ns=S + 100 * MS - 30 * US),
        served("load", 2 * S, 300 * MS, S, first_token_shared_read=True),
        served("load", 3 * S, 500 * MS, S, cause="reset"),
        served("load", 10 * S, 900 * MS, S),  # of the next window
    ]
    found = receive_path(WINDOW, judged(frame(rows), usage=True), events(), CANARY)
    # completed ones alone: (100 + 300) / 2 ms
    assert (found.client_ttft_mean_ms, found.client_ttft_count) == (200.0, 2)
    assert found.receive_lag_s is not None
    # 30 us, and 10 us of the reset one; the shared read's stamp is the newest segment's
    assert (found.receive_lag_s.n, found.receive_lag_s.max) == (2, 30e-6)


def test_the_whole_client() -> None:
    rows = [
        served("load", S, MS, 2 * MS, dispatch_ns=S + 40 * US, sent_kernel_ns=S + 3 * US),
        served("load", 2 * S, MS, 2 * MS, conn_reused=False, sent_kernel_ns=2 * S + 500 * US),
        healthy(3 * S),
        row("load", 4 * S, "no_port", dispatch_ns=4 * S + US, ended_ns=4 * S + US),
        row("load", 5 * S, "never_sent"),
        row("load", 6 * S, "not_due"),
    ]
    found = whole(rows, canary_server={"late_max_ns": 7})
    assert (found.undispatched, found.client_fault) == (1, 2)  # a cut row was not due
    assert (found.send_skew_s.n, found.send_skew_s.max) == (4, 40e-6)
    assert (found.send_skew_kernel_s.n, found.send_skew_kernel_s.max) == (1, 3e-6)  # no fresh dial
    # |3 - 3| us and |500 - 3| us
    assert (found.stamp_disagreement_s.n, found.stamp_disagreement_s.max) == (2, 497e-6)
    assert found.canary_server_late_max_s == 7e-9
    (worker,) = found.workers
    assert (worker.sent, worker.ended, worker.busy_worst) == (4, True, 0.0)


def test_a_client_that_saw_nothing_is_unknown_not_zero() -> None:
    found = whole([row("load", S, "not_due")], canary_server=None)
    assert found.send_skew_s is None
    assert found.stamp_disagreement_s is found.receive_lag_s is None
    assert found.canary_server_late_max_s is None
    assert found.undispatched == 0


def test_counters_of_what_was_lost_reach_the_figures() -> None:
    found = whole([], workers=[worker_facts(messages_lost=3, stamps_unmatched=2)])
    lost = {name: number for name, number in found.workers[0].lost.items() if number}
    assert lost == {"messages_lost": 3, "stamps_unmatched": 2}
