"""A stored frame judged: its rows' states, and latencies from the intended time.

Never: reads a file, or counts a row in two states.
Plan: `judged` adds states and latencies, from the cause alone (a stored outcome is not trusted);
`count` checks scheduled = completed + errored + censored + client_fault (+ cut).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from percentes_fast.analysis.causes import label
from percentes_fast.errors import DataError
from percentes_fast.schema import CAUSE_NAMES, ERROR_CLASSES, KIND_NAMES, OUTCOMES


def judged(requests: pd.DataFrame, *, usage: bool) -> pd.DataFrame:
    """The frame with outcome, error_class (text) and ttft_ns, e2e_ns, open_ns added.

    ttft_ns: first content event minus intended, where there is one; e2e_ns: end of a completed
    request minus intended; open_ns: end of any ended request minus intended. All Int64, null where
    unknown. Raises DataError for a cause or kind of another version, or a broken conservation.
    """
    frame = requests.copy()
    facts = {
        "cause": _codes(frame["cause"], CAUSE_NAMES),
        "kind": _codes(frame["kind"], KIND_NAMES),
        "content_events": frame["content_events"].to_numpy(np.int32),
        "completion_tokens": frame["completion_tokens"].fillna(-1).to_numpy(np.int32),
        "finish_reason": frame["finish_reason"].astype(object).fillna("").to_numpy(),
    }
    outcome, error_class = label(facts, usage=usage)
    frame["kind"] = frame["kind"].astype(object)
    frame["outcome"] = np.array(OUTCOMES, object)[outcome]
    frame["error_class"] = np.array([*ERROR_CLASSES, None], object)[error_class]
    frame["ttft_ns"] = frame["first_token_ns"] - frame["intended_ns"]
    frame["open_ns"] = frame["ended_ns"] - frame["intended_ns"]
    frame["e2e_ns"] = frame["open_ns"].where(frame["outcome"] == "completed")
    return frame


def _codes(names: pd.Series[Any], known: tuple[str, ...]) -> NDArray[np.int16]:
    codes = {name: code for code, name in enumerate(known)}
    try:
        return np.array([codes[name] for name in names], np.int16)
    except KeyError as exc:
        raise DataError(f"requests.parquet: {exc} is not a name of this schema version") from exc


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows by state; `scheduled` leaves out what an interruption cut before it was due."""

    scheduled: int
    completed: int
    errored: int
    censored: int
    client_fault: int
    cut: int
    errored_by_class: dict[str, int]


def count(frame: pd.DataFrame) -> Counts:
    """Counts of a judged frame. Raises DataError where the states do not add up."""
    by = frame["outcome"].value_counts()
    states = {name: int(by.get(name, 0)) for name in OUTCOMES}
    classes = frame["error_class"].value_counts()
    by_class = {name: int(classes[name]) for name in ERROR_CLASSES if name in classes.index}
    scheduled = len(frame) - states["cut"]
    counts = Counts(scheduled=scheduled, errored_by_class=by_class, **states)
    parts = counts.completed + counts.errored + counts.censored + counts.client_fault
    if parts != scheduled or sum(by_class.values()) != counts.errored:
        raise DataError(f"requests: {scheduled} scheduled, but {parts} judged; report this")
    return counts


def good(frame: pd.DataFrame, ttft_ns: int | None, e2e_ns: int | None) -> NDArray[np.bool_]:
    """Completed within the limits (None: no such limit); no TTFT limit is met without a token."""
    passed = (frame["outcome"] == "completed").to_numpy(bool)
    for column, limit_ns in (("ttft_ns", ttft_ns), ("e2e_ns", e2e_ns)):
        if limit_ns is not None:
            passed = passed & (frame[column] <= limit_ns).fillna(False).to_numpy(bool)
    return np.asarray(passed, dtype=np.bool_)
