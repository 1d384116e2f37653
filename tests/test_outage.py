"""The outage and its four moments from probes, health checks and dials placed by hand.

Never: a script whose answer is not derived in a comment.
Plan: replica-ready -> what makes it an interval or unknown -> the other moments -> any mixture.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percentes_fast.analysis.outage import Moment, Outage, outage
from percentes_fast.analysis.outcomes import judged
from run_builder import MS, US, Row, S, frame, healthy, refused, row, served, stopped

FIRE = 10 * S


def probe(at: int, answer: int = 100 * MS, **facts: object) -> Row:
    return served("probe", at, answer, answer, tokens=1, dispatch_ns=at, **facts)


def found(rows: list[Row], restored: int | None = None) -> Outage:
    return outage(judged(frame(rows), usage=True), FIRE, restored, "not recovered")


def ready(rows: list[Row]) -> Moment:
    return found(rows).first_served_token


def test_ready_is_the_end_of_the_first_success_sent_after_a_failure() -> None:
    # refused at 10.2 and 10.7 (sent 1 us later), served at 11.2 in 100 ms: ready at 11.3
    rows = [probe(9 * S), refused("probe", FIRE + 200 * MS), refused("probe", FIRE + 700 * MS)]
    rows += [probe(FIRE + 1200 * MS), probe(FIRE + 1700 * MS)]
    gone = found(rows)
    assert (gone.outage_s, gone.interval_s, gone.reason) == (1.3, None, None)
    assert gone.resolution_s == pytest.approx(1.3 - 0.700001, abs=1e-12)
    assert gone.first_served_token.at_ns == FIRE + 1300 * MS


def test_a_failure_that_ended_before_the_fire_says_nothing() -> None:
    rows = [refused("probe", 8 * S), probe(9 * S), probe(FIRE + 200 * MS)]
    gone = ready(rows)
    assert gone.at_s is None
    assert gone.interval_s == (0, 0.3)


def test_a_probe_in_flight_at_the_kill_counts_as_the_first_failure() -> None:
    # sent before the fire, cut after it; the next one, sent later, is served
    cut = probe(FIRE - 50 * MS, cause="body_cut", ended_ns=FIRE + MS)
    assert ready([cut, probe(FIRE + 450 * MS)]).at_s == 0.55


def test_a_success_already_under_way_when_the_failure_ended_does_not_count() -> None:
    # 10.3 is sent before the failure of 10.2 ends at 10.4, 10.5 after it
    hung = probe(FIRE + 200 * MS, cause="reset", ended_ns=FIRE + 400 * MS)
    rows = [hung, probe(FIRE + 300 * MS, 150 * MS), probe(FIRE + 500 * MS)]
    assert ready(rows).at_s == 0.6


def test_flapping_does_not_move_the_first_recovery() -> None:
    # failed .2, served .7, failed 1.2, served 1.7: ready at 0.8, known to within .8 - .2
    rows = [refused("probe", FIRE + 200 * MS), probe(FIRE + 700 * MS)]
    rows += [refused("probe", FIRE + 1200 * MS), probe(FIRE + 1700 * MS)]
    gone = ready(rows)
    assert gone.at_s == 0.8
    assert gone.resolution_s == pytest.approx(0.6 - 1e-6, abs=1e-12)


def test_a_failure_sent_while_the_success_was_under_way_does_not_sharpen_it() -> None:
    # sent .2 fails; sent .7 answers at 1.5; sent 1.2 fails: known to within 1.5 - .2, not 1.5 - 1.2
    rows = [refused("probe", FIRE + 200 * MS), probe(FIRE + 700 * MS, 800 * MS)]
    rows += [refused("probe", FIRE + 1200 * MS)]
    gone = ready(rows)
    assert gone.at_s == 1.5
    assert gone.resolution_s == pytest.approx(1.3 - 1e-6, abs=1e-12)


@pytest.mark.parametrize("cause", ["http_status", "deadline", "no_end", "error_event"])
def test_any_failed_or_censored_answer_is_a_failure(cause: str) -> None:
    rows = [probe(FIRE + 200 * MS, 50 * MS, cause=cause), probe(FIRE + 700 * MS)]
    assert ready(rows).at_s == 0.8


def test_the_clients_own_faults_are_no_failures() -> None:
    rows = [probe(FIRE + 200 * MS, cause="no_port"), probe(FIRE + 700 * MS)]
    gone = ready(rows)
    assert (gone.at_s, gone.interval_s) == (None, (0, 0.8))


def test_no_failure_gives_an_interval_with_its_resolution() -> None:
    # back in 40 ms: served at 10.3 for 100 ms, so it was gone for at most 0.4 s
    gone = found([probe(9 * S), probe(FIRE + 300 * MS), probe(FIRE + 800 * MS)])
    assert gone.outage_s is None
    assert gone.interval_s == (0, 0.4)
    assert gone.resolution_s == 0.4
    assert "no probe failed" in str(gone.reason)


def test_never_ready_gives_a_lower_bound() -> None:
    rows = [probe(9 * S), refused("probe", FIRE + 200 * MS), refused("probe", FIRE + 700 * MS)]
    gone = found(rows)
    assert gone.outage_s is None
    assert gone.interval_s is not None
    assert gone.interval_s[0] == pytest.approx(0.700011)  # the last refusal's end
    assert gone.interval_s[1] is None
    assert "by the end" in str(gone.reason)


def test_what_an_interruption_left_open_did_not_fail() -> None:
    # served again at 10.8; the probe of 11.2 was open when the run was stopped at 11.25
    rows = [probe(9 * S), probe(FIRE + 300 * MS)]
    rows.append(stopped(probe(FIRE + 1200 * MS), FIRE + 1250 * MS))
    rows.append(stopped(probe(FIRE + 1700 * MS), FIRE + 1250 * MS))
    gone = ready(rows)
    assert gone.interval_s == (0, 0.4)


@pytest.mark.parametrize("rows", [[], [healthy(FIRE + S)], [row("probe", FIRE + S, "not_due")]])
def test_no_probes_is_unknown_with_a_reason(rows: list[Row]) -> None:
    gone = found(rows)
    assert (gone.outage_s, gone.interval_s, gone.resolution_s) == (None, None, None)
    assert gone.reason == "no probe row ended"


def test_no_probe_after_the_fire_is_unknown_with_a_reason() -> None:
    assert ready([probe(9 * S)]).reason == "no probe sent after the fire had ended"


def test_the_port_answers_at_the_end_of_the_first_dial_after_a_refusal() -> None:
    # load refused at 10.3, a health check dials at 10.5 in 200 us; canaries dial another server
    rows = [
        probe(9 * S, connect_ns=200 * US),
        refused("load", FIRE + 300 * MS),
        served("canary", FIRE + 400 * MS, MS, 2 * MS, connect_ns=US),
        healthy(FIRE + 500 * MS, dispatch_ns=FIRE + 500 * MS, connect_ns=200 * US),
    ]
    port = found(rows).port_answers
    assert port.at_s == 0.5002
    assert port.resolution_s == pytest.approx(0.2002 - 1e-6, abs=1e-12)


def test_a_dial_whose_request_failed_later_still_shows_an_open_port() -> None:
    rows = [refused("load", FIRE + 300 * MS)]
    loading = {"connect_ns": 200 * US, "dispatch_ns": FIRE + 500 * MS}
    rows.append(probe(FIRE + 500 * MS, cause="http_status") | loading)
    gone = found(rows)
    assert gone.port_answers.at_s == 0.5002
    assert gone.outage_s is None  # a port that answers does not serve


def test_health_is_its_own_moment() -> None:
    rows = [refused("health", FIRE + 300 * MS), healthy(FIRE + 800 * MS)]
    moment = found(rows).health_200
    assert moment.at_s == 0.801
    assert found([]).health_200.reason == "no health row ended"


def test_goodput_restored_comes_from_the_detector() -> None:
    restored = found([], FIRE + 41 * S - 5).goodput_restored  # the anchor was 5 ns before the fire
    assert (restored.at_s, restored.resolution_s) == (40.999999995, 1.0)
    assert found([], FIRE - 5).goodput_restored.at_s == 0  # never degraded: not before the fire
    assert found([]).goodput_restored.reason == "not recovered"


ATTEMPTS = st.lists(
    st.builds(
        lambda at, answer, cause: probe(FIRE + at * MS, answer * MS, cause=cause),
        st.integers(-500, 3000),
        st.integers(1, 900),
        st.sampled_from(["stream_end", "reset", "deadline", "no_port", "stopped"]),
    ),
    max_size=8,
)


@settings(max_examples=80, deadline=None)
@given(ATTEMPTS)
def test_ready_against_the_definition(rows: list[Row]) -> None:
    ends = [r["ended_ns"] for r in rows if r["cause"] in ("reset", "deadline")]
    ends = [end for end in ends if end > FIRE]
    served_after = [
        r["ended_ns"]
        for r in rows
        if r["cause"] == "stream_end" and any(r["dispatch_ns"] > end for end in ends)
    ]
    gone = ready(rows)
    assert gone.at_ns == (min(served_after) if served_after else None)
    if gone.at_s is not None:
        assert gone.resolution_s is not None
        assert gone.resolution_s > 0
    else:
        assert gone.reason
