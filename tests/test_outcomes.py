"""Cause -> state against the contract's list, row by row; conservation over any mixture.

Never: takes an expected state from the module under test.
Plan: the table of causes -> what a stream's end must hold -> latencies -> goodness -> conservation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percentes_fast.analysis.causes import label
from percentes_fast.analysis.outcomes import count, good, judged
from percentes_fast.errors import DataError
from percentes_fast.schema import CAUSE_NAMES, ERROR_CLASSES, KIND_NAMES, OUTCOMES, Cause, Kind
from run_builder import MS, S, frame, healthy, refused, row, served

# section 3 of the contract, written out again
STATES = {
    "never_sent": "client_fault",
    "open": "client_fault",
    "stream_end": "completed",
    "plain_end": "completed",
    "connect": "errored connect",
    "reset": "errored reset",
    "no_response": "errored reset",
    "body_cut": "errored malformed_stream",
    "bad_http": "errored malformed_stream",
    "bad_event": "errored malformed_stream",
    "no_end": "errored malformed_stream",
    "http_status": "errored http_status",
    "error_event": "errored error_event",
    "deadline": "censored",
    "stopped": "censored",
    "not_due": "cut",
    "no_descriptor": "client_fault",
    "no_port": "client_fault",
    "no_memory": "client_fault",
    "refused_here": "client_fault",
    "tls": "errored tls",
}


def state(rows: list[dict[str, Any]], *, usage: bool = True) -> list[str]:
    found = judged(frame(rows), usage=usage)
    return [
        outcome if pd.isna(error) else f"{outcome} {error}"
        for outcome, error in zip(found["outcome"], found["error_class"], strict=True)
    ]


@pytest.mark.parametrize("cause", CAUSE_NAMES)
def test_every_cause_has_the_state_of_the_contract(cause: str) -> None:
    assert set(STATES) == set(CAUSE_NAMES)
    assert state([served("load", S, MS, 2 * MS, cause=cause)]) == [STATES[cause]]


@pytest.mark.parametrize(
    "finish", ["stop", "length", "tool_calls", "function_call", "content_filter"]
)
def test_good_finish_reasons(finish: str) -> None:
    assert state([served("load", S, MS, 2 * MS, finish_reason=finish)]) == ["completed"]


@pytest.mark.parametrize(
    ("changed", "usage", "expected"),
    [
        ({"finish_reason": "abort"}, True, "errored aborted"),
        ({"finish_reason": "error"}, False, "errored aborted"),
        ({"finish_reason": None}, True, "errored malformed_stream"),
        ({"completion_tokens": None}, True, "errored malformed_stream"),  # no usage event
        ({"completion_tokens": None}, False, "completed"),  # it was not asked for
        ({"content_events": 0, "completion_tokens": 0}, True, "errored malformed_stream"),
        ({"content_events": 0, "completion_tokens": None}, False, "errored malformed_stream"),
        ({"content_events": 0, "completion_tokens": 3, "first_token_ns": None}, True, "completed"),
        ({"content_events": 0, "finish_reason": "abort"}, True, "errored aborted"),
    ],
)
def test_what_the_end_of_a_stream_must_hold(
    changed: dict[str, Any], usage: bool, expected: str
) -> None:
    assert state([served("load", S, MS, 2 * MS, **changed)], usage=usage) == [expected]


def test_a_canary_always_owes_its_usage_event_and_health_owes_nothing() -> None:
    rows = [served("canary", S, MS, 2 * MS, completion_tokens=None), healthy(2 * S)]
    assert state(rows, usage=False) == ["errored malformed_stream", "completed"]


def test_codes_of_raw_rows_are_those_of_stored_ones() -> None:
    facts = {
        "cause": np.array([Cause.STREAM_END, Cause.RESET, Cause.NOT_DUE], np.int16),
        "kind": np.array([Kind.LOAD] * 3, np.int16),
        "content_events": np.array([1, 0, 0], np.int32),
        "completion_tokens": np.array([1, -(2**31), -(2**31)], np.int32),  # the slab's sentinel
        "finish_reason": np.array(["stop", "", ""], object),
    }
    outcome, error = label(facts, usage=True)
    assert [OUTCOMES[code] for code in outcome] == ["completed", "errored", "cut"]
    assert error.tolist() == [-1, ERROR_CLASSES.index("reset"), -1]


def test_latencies_count_from_the_intended_time() -> None:
    rows = [
        served("load", S, 100 * MS, 900 * MS, dispatch_ns=S + 700 * MS),  # sent 0.7 s late
        served("load", 2 * S, 50 * MS, 400 * MS, cause="body_cut"),
        refused("load", 3 * S),
        row("load", 4 * S, "not_due"),
    ]
    found = judged(frame(rows), usage=True)
    assert found["ttft_ns"].tolist() == [100 * MS, 50 * MS, pd.NA, pd.NA]
    assert found["open_ns"].tolist() == [900 * MS, 400 * MS, 11_000, pd.NA]
    assert found["e2e_ns"].tolist() == [900 * MS, pd.NA, pd.NA, pd.NA]  # of completed ones alone
    assert {str(found[name].dtype) for name in ("ttft_ns", "open_ns", "e2e_ns")} == {"Int64"}


def test_times_stay_exact_far_beyond_53_bits() -> None:
    at = 2**62 + 1
    found = judged(frame([served("load", at, 3, 7)]), usage=True)
    assert (found["ttft_ns"][0], found["e2e_ns"][0]) == (3, 7)


def test_a_stored_outcome_is_not_trusted() -> None:
    assert state([refused("load", S, outcome="completed")]) == ["errored connect"]


def test_names_of_another_version_are_refused_in_one_line() -> None:
    for changed in ({"cause": "exploded"}, {"kind": "chaos"}):
        with pytest.raises(DataError) as caught:
            judged(frame([served("load", S, MS, MS) | changed]), usage=True)
        assert "\n" not in str(caught.value)


def test_no_rows() -> None:
    found = judged(frame([]), usage=True)
    assert count(found).scheduled == 0
    assert len(good(found, S, S)) == 0


def test_good_within_both_limits_at_the_limit_and_past_it() -> None:
    rows = [
        served("load", 1 * S, S, 14 * S),  # both at their limit
        served("load", 2 * S, S + 1, 14 * S),
        served("load", 3 * S, S, 14 * S + 1),
        served("load", 4 * S, S, 2 * S, first_token_ns=None, content_events=0),
        served("load", 5 * S, S, 2 * S, cause="reset"),
    ]
    found = judged(frame(rows), usage=True)
    assert good(found, S, 14 * S).tolist() == [True, False, False, False, False]
    assert good(found, S, None).tolist() == [True, False, True, False, False]
    # a completed request without a first token can meet an E2E limit, and no TTFT limit
    assert good(found, None, 14 * S).tolist() == [True, True, False, True, False]


RECORDS = st.lists(
    st.builds(
        lambda cause, kind, events, tokens, finish: served(
            kind,
            S,
            MS,
            2 * MS,
            cause=cause,
            content_events=events,
            completion_tokens=tokens,
            finish_reason=finish,
        ),
        st.sampled_from(CAUSE_NAMES),
        st.sampled_from(KIND_NAMES),
        st.integers(0, 3),
        st.none() | st.integers(0, 3),
        st.none() | st.sampled_from(["stop", "length", "abort"]),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.booleans())
def test_every_row_is_in_exactly_one_state(rows: list[dict[str, Any]], usage: bool) -> None:
    found = judged(frame(rows), usage=usage)
    counts = count(found)
    states = counts.completed + counts.errored + counts.censored + counts.client_fault
    assert states == counts.scheduled == len(rows) - counts.cut
    assert sum(counts.errored_by_class.values()) == counts.errored
    assert (found["error_class"].notna() == (found["outcome"] == "errored")).all()
    assert not good(found, S, S)[(found["outcome"] != "completed").to_numpy(bool)].any()
