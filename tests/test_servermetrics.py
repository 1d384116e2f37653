"""The server's own metrics by window: queue, batch, cache and TTFT mean, by hand.

Never: starts a server; tests/test_scrape.py does.
Plan: scrapes as journal lines -> the frame as a run directory gives it -> figures, what is absent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from percentes_fast.analysis import servermetrics
from percentes_fast.analysis.servermetrics import (
    ReplicaWindow,
    Waiting,
    baseline_waiting,
    expected_scrapes,
    report,
)
from percentes_fast.analysis.windows import Window
from percentes_fast.observe import scrape
from percentes_fast.observe.scrape import rows, samples
from run_builder import MS, S

PAGES = Path(__file__).parent / "data" / "metrics"
TYPES = {
    "asked_ns": pa.int64(),
    "answered_ns": pa.int64(),
    "le": pa.float64(),
    "value": pa.float64(),
}
TEN = Window("w", 0, 10 * S)
Line = list[Any]


def at(second: int) -> int:
    """Run time of a scrape: its tick and 2 ms."""
    return second * S + 252 * MS


def line(second: int, *found: tuple[Any, ...], name: str = "r") -> Line:
    return [name, at(second), at(second) + 5 * MS, None, [list(each) for each in found]]


def failed(second: int, name: str = "r", error: str = "Connection refused") -> Line:
    return [name, at(second), None, error, []]


def gauge(quantity: str, value: float | None, labels: str = "") -> tuple[Any, ...]:
    return quantity, f"vllm:{quantity}", labels, None, value


def ttft(total_s: float | None, count: float | None, labels: str = "") -> list[tuple[Any, ...]]:
    return [
        ("ttft_sum", "vllm:t_sum", labels, None, total_s),
        ("ttft_count", "vllm:t_count", labels, None, count),
        ("ttft_bucket", "vllm:t_bucket", labels, "+Inf", count),
    ]


def frame(*lines: Line) -> pd.DataFrame:
    """As read from metrics.parquet."""
    columns = rows(lines)
    table = pa.table({k: pa.array(v, TYPES.get(k, pa.string())) for k, v in columns.items()})
    found: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return found


def one(*lines: Line, cut: Window = TEN) -> ReplicaWindow:
    (found,) = report(frame(*lines), [cut], S)
    return found


def test_a_window_by_hand() -> None:
    found = one(
        line(0, gauge("waiting", 1), gauge("running", 4), gauge("cache_use", 0.25), *ttft(1.0, 4)),
        failed(1),
        line(2, gauge("waiting", 4), gauge("running", 8), gauge("cache_use", 0.75), *ttft(2.5, 7)),
        line(3, gauge("waiting", 1), gauge("running", 6), gauge("cache_use", 0.5), *ttft(7.0, 10)),
    )
    assert found == ReplicaWindow(
        replica="r",
        window="w",
        expected=10,
        scrapes=4,
        failed=1,
        waiting_mean=2.0,  # (1 + 4 + 1) / 3
        waiting_max=4.0,
        running_mean=6.0,
        cache_use_max=0.75,
        ttft_mean_s=1.0,  # (7.0 - 1.0) / (10 - 4)
        ttft_count=6,
        reason=None,
    )


def test_every_replica_in_every_window() -> None:
    cuts = [Window("first", 0, 2 * S), Window("rest", 2 * S, 4 * S)]
    lines = [line(k, gauge("waiting", k), name=name) for k in range(4) for name in ("b", "a")]
    found = report(frame(*lines), cuts, S)
    named = [(each.replica, each.window, each.waiting_mean) for each in found]
    assert named == [
        ("a", "first", 0.5),
        ("a", "rest", 2.5),
        ("b", "first", 0.5),
        ("b", "rest", 2.5),
    ]
    assert [(each.expected, each.scrapes) for each in found] == [(2, 2)] * 4


def test_gauges_are_summed_over_the_label_sets_of_a_scrape() -> None:
    pair = [gauge("waiting", 2, 'engine="0"'), gauge("waiting", 3, 'engine="1"')]
    use = [gauge("cache_use", 0.5, 'engine="0"'), gauge("cache_use", 0.25, 'engine="1"')]
    found = one(line(0, *pair, *use), line(1, gauge("waiting", 1, 'engine="0"')))
    assert (found.waiting_mean, found.waiting_max) == (3.0, 5.0)  # (5 + 1) / 2
    assert found.cache_use_max == 0.5


def test_a_total_beside_its_parts_is_counted_once() -> None:
    def queue(value: float, **labels: str) -> tuple[Any, ...]:
        return "waiting", "sglang:num_queue_reqs", scrape.labels_text(labels), None, value

    found = one(
        line(
            0,
            queue(5, priority="", dp_rank="0", tp_rank="0"),
            queue(5, priority="", dp_rank="0", tp_rank="1"),  # the same scheduler's queue
            queue(2, priority="1", dp_rank="0", tp_rank="0"),
            queue(3, priority="-7", dp_rank="0", tp_rank="0"),
            queue(4, priority="", dp_rank="1", tp_rank="2"),
        )
    )
    assert found.waiting_mean == 9.0
    # a value that only looks like such a label
    odd = queue(7, model_name='x,priority="1",tp_rank="0"')
    assert one(line(0, odd, queue(1, model_name="x,"))).waiting_mean == 8.0


def test_a_gauge_without_a_number_is_unknown_not_smaller() -> None:
    broken = [gauge("waiting", 2, 'engine="0"'), gauge("waiting", None, 'engine="1"')]
    lines = [line(0, *broken), line(1, gauge("waiting", 6, 'engine="0"'))]
    assert one(*lines).waiting_mean == 6.0
    assert baseline_waiting(frame(*lines), TEN) == {"r": Waiting(6.0, 2, 1)}


@pytest.mark.parametrize(
    ("lines", "ttft_of", "reason"),
    [
        ([line(0, *ttft(1.0, 4))], (None, None), "fewer than 2 scrapes with a TTFT histogram"),
        ([line(0), line(1)], (None, None), "no TTFT histogram"),
        (
            [line(0, *ttft(1.0, 4)), line(1, *ttft(None, 5))],
            (None, None),
            "fewer than 2 scrapes with a TTFT histogram",
        ),
        (
            [line(0, *ttft(1.0, 4)), line(1, *ttft(0.1, 1)), line(2, *ttft(9.0, 9))],
            (None, None),
            "the TTFT histogram began anew",
        ),
        (  # the count went on, the sum fell
            [line(0, *ttft(1.0, 4)), line(1, *ttft(0.1, 5))],
            (None, None),
            "the TTFT histogram began anew",
        ),
        (  # one of two engines began anew, though the totals rose
            [
                line(0, *ttft(1.0, 1, 'engine="0"'), *ttft(1.0, 1, 'engine="1"')),
                line(1, *ttft(9.0, 9, 'engine="0"'), *ttft(0.0, 0, 'engine="1"')),
            ],
            (None, None),
            "the TTFT histogram began anew",
        ),
        (
            [line(0, *ttft(1.0, 1, "a")), line(1, *ttft(1.0, 1, "b"))],
            (None, None),
            "the TTFT histogram began anew",
        ),
        (
            [line(0, *ttft(1.0, 4)), line(1, *ttft(1.0, 4))],
            (None, 0),
            "no first token between the scrapes",
        ),
        (  # a label set that appears began at 0: (2 - 1 + 3) / (1 + 3)
            [
                line(0, *ttft(1.0, 1, 'is_streaming="true"')),
                line(
                    1,
                    *ttft(2.0, 2, 'is_streaming="true"'),
                    *ttft(3.0, 3, 'is_streaming="false"'),
                ),
            ],
            (1.0, 4),
            None,
        ),
        (  # a scrape that failed between them is no end
            [line(0, *ttft(1.0, 4)), failed(1), line(2, *ttft(2.0, 6)), failed(3)],
            (0.5, 2),
            None,
        ),
    ],
)
def test_the_servers_ttft(
    lines: list[Line], ttft_of: tuple[float | None, int | None], reason: str | None
) -> None:
    found = one(*lines)
    assert (found.ttft_mean_s, found.ttft_count) == ttft_of
    absent = ["no waiting gauge", "no running gauge", "no cache_use gauge"]
    assert found.reason == "; ".join([*absent, *([reason] if reason else [])])


def test_nothing_asked_and_nothing_answered() -> None:
    empty = one(line(20, gauge("waiting", 1)))
    assert (empty.scrapes, empty.failed, empty.waiting_mean) == (0, 0, None)
    assert empty.reason == "no scrape"
    refused = one(failed(0), failed(1))
    assert (refused.scrapes, refused.failed, refused.waiting_max) == (2, 2, None)
    assert refused.reason == "no scrape was answered"
    assert report(frame(), [TEN], S) == ()
    assert baseline_waiting(frame(), TEN) == {}


def test_the_baselines_queue_for_the_gate() -> None:
    lines = [
        *(line(k, gauge("waiting", k), name="queue") for k in range(4)),
        failed(4, name="queue"),
        line(0, gauge("running", 1), name="no_gauge"),
        failed(1, name="no_gauge"),
        failed(0, name="dead"),
        failed(1, name="dead", error="HTTP 500"),
        line(0, gauge("waiting", None), name="broken"),
        line(12, gauge("waiting", 9), name="later"),
    ]
    assert baseline_waiting(frame(*lines), TEN) == {
        "queue": (1.5, 5, 1),
        "no_gauge": (None, 2, 1),  # answered, without the gauge: does not apply
        "dead": (None, 2, 2),  # not observed
        "broken": (None, 1, 1),
        "later": (None, 0, 0),
    }


def test_an_answer_that_was_an_error_is_a_failed_scrape() -> None:
    told = ["r", at(0), at(0) + MS, "HTTP 503", []]
    assert (one(told).scrapes, one(told).failed) == (1, 1)


def test_the_recorded_pages() -> None:
    for page, cache in (("vllm-0.32.0", 0.0), ("llama.cpp-11434", None)):
        found = samples((PAGES / f"{page}.txt").read_bytes())
        seen = one(line(0, *found), line(1, *found))
        assert (seen.waiting_mean, seen.running_mean, seen.cache_use_max) == (0.0, 0.0, cache)
        assert seen.reason is not None
        assert ("no TTFT histogram" in seen.reason) == (cache is None)


def test_the_grid_is_the_scrapers() -> None:
    assert servermetrics.OFFSET_NS == scrape.OFFSET_NS
    every_ns = 3 * S // 2
    assert scrape.first_tick(4 * S, every_ns) == expected_scrapes(Window("w", 0, 4 * S), every_ns)


@given(st.integers(-3 * S, 20 * S), st.integers(0, 20 * S), st.sampled_from([S // 2, S, 7 * S]))
def test_expected_against_every_tick(start: int, length: int, every_ns: int) -> None:
    cut = Window("w", start, start + length)
    ticks = np.arange(120) * every_ns + 250 * MS
    assert expected_scrapes(cut, every_ns) == int(cut.rows(ticks).sum())


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 5)), min_size=2, max_size=12))
def test_the_mean_against_the_requests_themselves(steps: list[tuple[int, float]]) -> None:
    """Each second some first tokens of one length: all but the first second's are in the mean."""
    count, total_s, lines = 0, 0.0, []
    for second, (many, each_s) in enumerate(steps):
        count, total_s = count + many, total_s + many * each_s
        lines.append(line(second, *ttft(total_s, count)))
    found = one(*lines, cut=Window("w", 0, 60 * S))
    later = steps[1:]
    seen = sum(many for many, _ in later)
    assert found.ttft_count == seen
    if seen:
        mean = sum(many * each_s for many, each_s in later) / seen
        assert found.ttft_mean_s == pytest.approx(mean, abs=1e-9)


def test_what_the_scraper_says_of_itself() -> None:
    said = {"scrapes": 9, "missed": 2, "cut": 0, "lost": 1, "scheduler": "fifo"}
    assert list(servermetrics.notes(said)) == [
        "server metrics: 2 scrapes were not made in their time",
        "server metrics: 1 scrapes were lost: the disk was full",
    ]
    assert list(servermetrics.notes({"error": "the scraper died (exit status -9)"})) == [
        "server metrics: the scraper died (exit status -9)"
    ]
    assert list(servermetrics.notes(None)) == list(servermetrics.notes({"missed": 0})) == []
