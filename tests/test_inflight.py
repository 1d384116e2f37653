"""Who was in flight at the kill: each rule at its edges to the nanosecond, then any mixture.

Never: takes a side from the module under test where it can be written out from the contract.
Plan: a kill here: compat -> tight -> bracket; a kill on another host under the three; what TCP had
to mend; a rule that does not apply; the first consequence; properties over random rows.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percentes_fast.analysis import inflight
from percentes_fast.analysis.inflight import (
    InFlight,
    Interval,
    Kill,
    first_consequence,
    tables,
)
from percentes_fast.analysis.outcomes import judged
from run_builder import Row, frame, row

# clock reads at 1000 and 1011: fire 1005 (5.5 rounded down), zone 5, R = 30
KILL = Kill.here(1000, 1011, 30)
# compat: fire 5000 -+ 40, zone 60; the killer's host says [4900, 5100]; seen from here [4930, 5200]
REMOTE = Kill(
    fire_ns=5000,
    uncertainty_ns=40,
    zone_ns=60,
    compat_note="as published",
    tight=Interval(4900, 5100, "from 7 samples"),
    bracket=Interval(4930, 5200, "L and U"),
    bracket_note="L and U",
    round_trip_ns=30,
)


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
    assert (Kill.here(7, 7, None).fire_ns, Kill.here(7, 7, None).uncertainty_ns) == (7, 0)


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
    exact = Kill.here(1000, 1000, None)
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
    table = one("tight", [request(0, 5000), request(0, 1000)], Kill.here(1000, 1011, None))
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


# ---------------------------------------------------------------- a kill on another host


@pytest.mark.parametrize(
    ("dispatch", "ended", "expected"),
    [
        (0, 4939, "not"),  # fire - zone = 4940
        (0, 4940, "unsure"),  # |4940 - 5000| = 60 <= zone
        (0, 4960, "unsure"),  # the uncertainty alone, 40, is not the zone
        (0, 5060, "unsure"),
        (0, 5061, "sure"),
        (4999, 5061, "sure"),
        (5000, 5061, "not"),  # dispatched at the fire
        (5000, 5010, "not"),
    ],
)
def test_compat_of_a_remote_kill(dispatch: int, ended: int, expected: str) -> None:
    assert side("compat", request(dispatch, ended), REMOTE) == expected


@pytest.mark.parametrize(
    ("dispatch", "ended", "expected"),
    [
        (0, 4900, "not"),
        (0, 4901, "unsure"),
        (0, 5129, "unsure"),  # upper + R = 5130
        (0, 5130, "sure"),
        (4899, 5130, "sure"),
        (4900, 5130, "unsure"),
        (5099, 9000, "unsure"),
        (5100, 9000, "not"),
    ],
)
def test_tight_of_a_remote_kill(dispatch: int, ended: int, expected: str) -> None:
    assert side("tight", request(dispatch, ended), REMOTE) == expected


DONE = {"finish_reason": "stop"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (request(0, 4929), "not"),
        (request(0, 4930), "sure"),
        (request(0, 4930, "stream_end", **DONE), "unsure"),
        (request(0, 5199, "stream_end", **DONE), "unsure"),
        (request(0, 5200, "stream_end", **DONE), "sure"),
        (request(0, 9000, headers_ns=4929), "sure"),
        (request(0, 9000, headers_ns=4930), "unsure"),
        (request(0, 9000, headers_ns=4930, acked_kernel_ns=4929), "sure"),
        (request(0, 9000, headers_ns=None, acked_kernel_ns=4930), "unsure"),
        (request(5199, 9000, headers_ns=6000), "unsure"),
        (request(5200, 9000, headers_ns=6000), "not"),
    ],
)
def test_bracket_of_a_remote_kill(found: Row, expected: str) -> None:
    assert side("bracket", found, REMOTE) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (request(0, 4929, tcp_anomalies=2), "not"),  # its end was here before L
        (request(0, 4930, tcp_anomalies=1), "unsure"),
        (request(0, 5199, tcp_anomalies=1), "unsure"),
        (request(0, 9000, tcp_anomalies=1), "unsure"),
        (request(0, 9000, "stream_end", tcp_anomalies=1, **DONE), "unsure"),
        (request(5199, 9000, headers_ns=6000, tcp_anomalies=1), "unsure"),
        (request(5200, 9000, headers_ns=6000, tcp_anomalies=1), "not"),  # sent after U
        (request(0, 9000, tcp_anomalies=0), "sure"),
        (request(0, 9000, tcp_anomalies=None), "sure"),
    ],
)
def test_what_tcp_had_to_mend_around_the_kill_is_indeterminate(found: Row, expected: str) -> None:
    assert side("bracket", found, REMOTE) == expected


@pytest.mark.parametrize("rule", ["compat", "tight"])
def test_the_other_rules_do_not_ask_tcp(rule: str) -> None:
    assert side(rule, request(0, 9000, tcp_anomalies=5), REMOTE) == "sure"


def test_each_rule_says_where_it_puts_the_kill_and_how_it_knows() -> None:
    found = {table.rule: table for table in tables(judged(frame([]), usage=True), REMOTE)}
    assert [(t.applicable, t.lo_s, t.hi_s, t.zone_s, t.note) for t in found.values()] == [
        (True, 4960e-9, 5040e-9, 60e-9, "as published"),
        (True, 4900e-9, 5100e-9, 30e-9, "from 7 samples"),
        (True, 4930e-9, 5200e-9, 0, "L and U"),
    ]


def test_a_rule_that_does_not_apply_counts_nobody_and_says_why() -> None:
    hidden = replace(REMOTE, bracket=None, bracket_note="not applicable behind a proxy")
    rows = [request(0, 4930), request(0, 9000), request(0, 5060)]
    table = one("bracket", rows, hidden)
    assert not table.applicable
    assert (table.lo_s, table.hi_s, table.zone_s, table.loss_fraction) == (None,) * 4
    assert table.total == table.determinate.scheduled == table.indeterminate.scheduled == 0
    assert table.errored_by_class == {}
    assert table.note == "not applicable behind a proxy"
    assert one("compat", rows, hidden).total == 2


# ---------------------------------------------------------------- the first consequence


@pytest.mark.parametrize(
    ("found", "seen"),
    [
        (request(0, 5000), True),
        (request(0, 5000, "reset", headers_ns=None), True),
        (request(0, 5000, "no_response", headers_ns=None), True),
        (request(0, 5000, "error_event"), True),
        (request(0, 5000, "connect", headers_ns=None, errno=errno.ECONNREFUSED), True),
        # a path that does not answer says nothing of the process
        (request(0, 5000, "connect", headers_ns=None, errno=errno.EHOSTUNREACH), False),
        (request(0, 5000, "connect", headers_ns=None, errno=errno.ETIMEDOUT), False),
        (request(0, 5000, "connect", headers_ns=None), False),
        (request(0, 5000, "stream_end", **DONE), False),  # its connection may close then
        (request(0, 5000, "plain_end"), False),
        (request(0, 5000, "http_status"), False),
        (request(0, 5000, "deadline"), False),
        (request(0, 5000, "stopped"), False),
        (request(0, 5000, "no_port"), False),
        (request(0, None, "body_cut"), False),
    ],
)
def test_what_a_kill_brings_about(found: Row, seen: bool) -> None:
    rows = judged(frame([found]), usage=True)
    assert first_consequence(rows, 5000) == (5000 if seen else None)
    assert first_consequence(rows, 5001) is None


def test_the_first_consequence_is_the_earliest_from_then_on() -> None:
    rows = judged(frame([request(0, 900), request(1, 1200), request(2, 1100)]), usage=True)
    assert [first_consequence(rows, at) for at in (0, 900, 901, 1101, 1201)] == [
        *(900, 900, 1100, 1200, None)
    ]
    assert first_consequence(judged(frame([]), usage=True), 0) is None


# ---------------------------------------------------------------- the table


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
    # fire 1005 -+ 5, not the readings themselves
    assert (table.lo_s, table.hi_s, table.zone_s) == (1000e-9, 1010e-9, 5e-9)
    exact = one("tight", rows)
    assert (exact.lo_s, exact.hi_s, exact.zone_s) == (1000e-9, 1011e-9, 30e-9)


ROWS = st.lists(
    st.builds(
        lambda dispatch, headers, rest, cause, mended: request(
            dispatch,
            dispatch + headers + rest,
            cause,
            headers_ns=dispatch + headers,
            tcp_anomalies=mended,
        ),
        st.integers(900, 1100),
        st.integers(0, 60),
        st.integers(0, 120),
        st.sampled_from(["body_cut", "reset", "deadline", "http_status", "error_event"]),
        st.sampled_from([None, 0, 0, 1]),
    ),
    max_size=6,
)
# a system call lies between the two readings: they are never equal
KILLS = st.builds(Kill.here, st.just(1000), st.integers(1001, 1050), st.none() | st.integers(1, 40))
INTERVALS = st.builds(
    lambda lo, wide: Interval(lo, lo + wide, ""), st.integers(950, 1020), st.integers(0, 80)
)
REMOTES = st.builds(
    Kill,
    fire_ns=st.integers(950, 1050),
    uncertainty_ns=st.integers(0, 40),
    zone_ns=st.integers(0, 60),
    compat_note=st.just(""),
    tight=INTERVALS,
    bracket=st.none() | INTERVALS,
    bracket_note=st.just(""),
    round_trip_ns=st.none() | st.integers(1, 40),
)


@settings(max_examples=80, deadline=None)
@given(ROWS, KILLS)
def test_no_request_is_on_two_sides_and_no_rule_contradicts_another(
    rows: list[Row], kill: Kill
) -> None:
    """Ends at the very nanosecond of the first reading are left out: by the letter, tight puts them
    before the kill ("end <= lower") and bracket after it ("cut at or after L").
    """
    rows = [row for row in rows if row["ended_ns"] != kill.tight.lo_ns]
    load = judged(frame(rows), usage=True)
    sides = {name: rule(load, kill)[:2] for name, rule in inflight.RULES}
    for sure, unsure in sides.values():
        assert not (sure & unsure).any()
    for sure, _ in sides.values():
        for other, near in sides.values():
            surely_not = ~(other | near)
            assert not (sure & surely_not).any()


@settings(max_examples=40, deadline=None)
@given(ROWS, KILLS | REMOTES)
def test_the_table_adds_up(rows: list[Row], kill: Kill) -> None:
    load = judged(frame(rows), usage=True)
    for name, rule in inflight.RULES:
        if name != "bracket" or kill.bracket is not None:
            surely, near, _ = rule(load, kill)
            assert not (surely & near).any()
    for table in tables(load, kill):
        sure, unsure = table.determinate, table.indeterminate
        assert table.applicable or not table.total
        assert table.total == sure.scheduled + unsure.scheduled
        assert sum(table.errored_by_class.values()) == sure.errored + unsure.errored
        if table.loss_fraction is not None:
            assert 0 <= table.loss_fraction <= 1
