"""Cause -> state, on raw codes: the only place that says "completed".

Never: reads a file, or needs more than numpy (the measuring parent labels its records with this and
must stay small).
Plan: a table of causes; the end of a stream is looked at more closely (SPEC section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from percentes_fast.schema import ERROR_CLASSES, OUTCOMES, Cause, Kind

COMPLETED, ERRORED, CENSORED, CLIENT_FAULT, CUT = range(len(OUTCOMES))
GOOD_FINISH = ("stop", "length", "tool_calls", "function_call", "content_filter")
CLASS = {name: code for code, name in enumerate(ERROR_CLASSES)}
NO_CLASS = -1

# cause -> (outcome, class); the end of a stream is looked at more closely below
STATE_OF: dict[Cause, tuple[int, int]] = {
    Cause.NEVER_SENT: (CLIENT_FAULT, NO_CLASS),
    Cause.OPEN: (CLIENT_FAULT, NO_CLASS),  # its worker died: a living one ends every row
    Cause.STREAM_END: (COMPLETED, NO_CLASS),
    Cause.PLAIN_END: (COMPLETED, NO_CLASS),
    Cause.CONNECT: (ERRORED, CLASS["connect"]),
    Cause.RESET: (ERRORED, CLASS["reset"]),
    Cause.NO_RESPONSE: (ERRORED, CLASS["reset"]),
    Cause.BODY_CUT: (ERRORED, CLASS["malformed_stream"]),
    Cause.BAD_HTTP: (ERRORED, CLASS["malformed_stream"]),
    Cause.BAD_EVENT: (ERRORED, CLASS["malformed_stream"]),
    Cause.NO_END: (ERRORED, CLASS["malformed_stream"]),
    Cause.HTTP_STATUS: (ERRORED, CLASS["http_status"]),
    Cause.ERROR_EVENT: (ERRORED, CLASS["error_event"]),
    Cause.TLS: (ERRORED, CLASS["tls"]),
    Cause.DEADLINE: (CENSORED, NO_CLASS),
    Cause.STOPPED: (CENSORED, NO_CLASS),
    Cause.NOT_DUE: (CUT, NO_CLASS),
    Cause.NO_DESCRIPTOR: (CLIENT_FAULT, NO_CLASS),
    Cause.NO_PORT: (CLIENT_FAULT, NO_CLASS),
    Cause.NO_MEMORY: (CLIENT_FAULT, NO_CLASS),
    Cause.REFUSED_HERE: (CLIENT_FAULT, NO_CLASS),
}
_OUTCOME = np.array([STATE_OF[cause][0] for cause in Cause], np.int8)
_CLASS = np.array([STATE_OF[cause][1] for cause in Cause], np.int8)


def label(
    facts: Mapping[str, NDArray[Any]], *, usage: bool
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Outcome and error class codes (-1: none) of raw rows, shape (rows,) each.

    facts: cause, kind (codes), content_events, completion_tokens (negative: none), finish_reason
    (text, "" for none). usage: was the usage event asked for?
    """
    cause = facts["cause"]
    outcome, error_class = _OUTCOME[cause].copy(), _CLASS[cause].copy()
    tokens = facts["completion_tokens"]
    finish = facts["finish_reason"]
    stream = cause == Cause.STREAM_END
    asked = (facts["kind"] == Kind.CANARY) | usage
    broken = (asked & (tokens < 0)) | (finish == "")
    broken |= (facts["content_events"] == 0) & (tokens <= 0)
    aborted = ~broken & ~np.isin(finish, GOOD_FINISH)
    for rows, name in ((stream & broken, "malformed_stream"), (stream & aborted, "aborted")):
        outcome[rows], error_class[rows] = ERRORED, CLASS[name]
    return outcome, error_class
