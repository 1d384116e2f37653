"""Who was in flight at the kill: each rule at its edges to the nanosecond, then any mixture.

Never: takes a side from the module under test where it can be written out from the contract.
Plan: compat -> tight -> bracket -> properties over random rows.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percentes_fast.analysis import inflight
from percentes_fast.analysis.inflight import InFlight, Kill, tables
from percentes_fast.analysis.outcomes import judged
from run_builder import Row, frame, row

# clock reads at 1000 and 1011: fire 1005 (5.5 rounded down), zone 5, R = 30
KILL = Kill(1000, 1011, 30)


def request(dispatch: int | None, ended: int | None, cause: str = "body_cut", **facts: Any) -> Row:
    seen = {"headers_ns": None if dispatch is None else dispatch + 1}
    return row("load", 0, cause, dispatch_ns=dispatch, ended_ns=ended, **(seen | facts))


def side(rule: str, found: Row, kill: Kill = KILL) -> str:
    """sure, unsure or not, of one request."""
    table = one(rule, [found], kill)
    sure, unsure = table.determinate.scheduled, table.indeterminate.scheduled
    assert table.total == sure + unsure <= 1
    return "sure" if sure else "unsure" if unsure else "not"


def one(rule: str, rows: list[Row], kill: Kill = KILL) -> InFlight:
    found = {t.rule: t for t in tables(judged(frame(rows), usage=True), kill)}
    assert list(found) == ["compat", "tight", "bracket"]
    return found[rule]


def test_the_fire_is_the_middle_of_the_readings_rounded_down() -> None:
    assert (KILL.fire_ns, KILL.uncertainty_ns) == (1005, 5)
    assert (Kill(7, 7, None).fire_ns, Kill(7, 7, None).uncertainty_ns) == (7, 0)


@pytest.mark.parametrize(
    ("dispatch", "ended", "expected"),
    [
        (0, 999, "not"),  # ended before fire - zone = 1000
        (0, 1000, "unsure"),  # |1000 - 1005| = 5 <= zone
        (0, 1005, "unsure"),
        (0, 1010, "unsure"),  # |1010 - 1005| = 5 <= zone
        (0, 1011, "sure"),  # one past the zone
        (1004, 1011, "sure"),  # dispatched just before the fire
        (1005, 2000, "not"),  # dispatched at the fire: not before it
        (1005, 1006, "not"),  # near the fire, but never in flight at it
        (0, 10**12, "sure"),
        (None, None, "not"),
    ],
)
def test_compat_to_the_letter(dispatch: int | None, ended: int | None, expected: str) -> None:
    assert side("compat", request(dispatch, ended)) == expected


def test_compat_without_any_uncertainty_keeps_the_end_at_the_fire_apart() -> None:
    exact = Kill(1000, 1000, None)
    sides = [side("compat", request(0, ended), exact) for ended in (999, 1000, 1001)]
    assert sides == ["not", "unsure", "sure"]


@pytest.mark.parametrize(
    ("dispatch", "ended", "expected"),
    [
        (0, 1000, "not"),  # ended at the lower read: before the kill
        (0, 1001, "unsure"),
        (0, 1040, "unsure"),  # upper + R = 1041
        (0, 1041, "sure"),
        (999, 1041, "sure"),
        (1000, 1041, "unsure"),  # dispatched between the reads
        (1010, 5000, "unsure"),
        (1011, 5000, "not"),  # dispatched after the kill
        (None, None, "not"),
    ],
)
def test_tight(dispatch: int | None, ended: int | None, expected: str) -> None:
    assert side("tight", request(dispatch, ended)) == expected


def test_tight_without_a_fresh_connection_is_sure_of_nobody() -> None:
    table = one("tight", [request(0, 5000), request(0, 1000)], Kill(1000, 1011, None))
    assert (table.determinate.scheduled, table.indeterminate.scheduled) == (0, 1)
    assert table.zone_s is None
    assert "R is not known" in table.note


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (request(0, 999), "not"),
        (request(0, 1000), "sure"),  # cut at L: taken as the kill's
        (request(0, 1000, "stream_end", finish_reason="stop"), "unsure"),  # ended, but not cut
        (request(0, 1011, "stream_end", finish_reason="stop"), "sure"),  # open until U
        (request(0, 1005, "reset"), "sure"),
        (request(0, 1005, "no_response", headers_ns=None, acked_kernel_ns=900), "sure"),
        (request(0, 1005, "no_response", headers_ns=None), "unsure"),  # no sign that it arrived
        (request(0, 1005, "http_status"), "unsure"),
        (request(0, 5000, headers_ns=1000), "unsure"),  # first byte not before L
        (request(1005, 5000, headers_ns=4000), "unsure"),
        (request(1011, 5000, headers_ns=4000), "not"),
        (request(None, None), "not"),
    ],
)
def test_bracket(found: Row, expected: str) -> None:
    assert side("bracket", found) == expected


def test_client_faults_and_cut_rows_are_on_no_side() -> None:
    rows = [
        request(0, 5000, "no_memory"),
        request(0, None, "open"),
        request(None, None, "not_due"),
        request(None, None, "never_sent"),
    ]
    assert [one(name, rows).total for name in ("compat", "tight", "bracket")] == [0, 0, 0]
    assert one("compat", rows).loss_fraction is None


def test_the_loss_counts_both_sides_of_the_zone_as_published() -> None:
    # three sure (2 errored, 1 censored), one unsure errored: 3 of 4 lost
    rows = [request(0, 2000), request(0, 2000), request(0, 3000, "deadline"), request(0, 1006)]
    table = one("compat", rows)
    assert (table.total, table.loss_fraction) == (4, 0.75)
    assert table.errored_by_class == {"malformed_stream": 3}
    assert (table.determinate.errored, table.determinate.censored) == (2, 1)
    assert table.indeterminate.errored == 1
    assert (table.lo_s, table.hi_s, table.zone_s) == (1000e-9, 1011e-9, 5e-9)


ROWS = st.lists(
    st.builds(
        lambda dispatch, headers, rest, cause: request(
            dispatch, dispatch + headers + rest, cause, headers_ns=dispatch + headers
        ),
        st.integers(900, 1100),
        st.integers(0, 60),
        st.integers(0, 120),
        st.sampled_from(["body_cut", "reset", "deadline", "http_status", "error_event"]),
    ),
    max_size=6,
)
# a system call lies between the two readings: they are never equal
KILLS = st.builds(Kill, st.just(1000), st.integers(1001, 1050), st.none() | st.integers(1, 40))


@settings(max_examples=80, deadline=None)
@given(ROWS, KILLS)
def test_no_request_is_on_two_sides_and_no_rule_contradicts_another(
    rows: list[Row], kill: Kill
) -> None:
    """Ends at the very nanosecond of the first reading are left out: by the letter, tight puts them
    before the kill ("end <= lower") and bracket after it ("cut at or after L").
    """
    rows = [row for row in rows if row["ended_ns"] != kill.before_ns]
    load = judged(frame(rows), usage=True)
    sides = {name: rule(load, kill)[:2] for name, rule, _ in inflight.RULES}
    for sure, unsure in sides.values():
        assert not (sure & unsure).any()
    for sure, _ in sides.values():
        for other, near in sides.values():
            surely_not = ~(other | near)
            assert not (sure & surely_not).any()


@settings(max_examples=40, deadline=None)
@given(ROWS, KILLS)
def test_the_table_adds_up(rows: list[Row], kill: Kill) -> None:
    for table in tables(judged(frame(rows), usage=True), kill):
        sure, unsure = table.determinate, table.indeterminate
        assert table.total == sure.scheduled + unsure.scheduled
        assert sum(table.errored_by_class.values()) == sure.errored + unsure.errored
        if table.loss_fraction is not None:
            assert 0 <= table.loss_fraction <= 1
