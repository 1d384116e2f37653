"""How long it was gone: outage and the four moments of recovery.

Never: extrapolates past the last probe, or turns "no probe failed" into no outage.
Plan: SPEC section 6. A moment is the first success dispatched after a failure that ended after the
fire; where nothing failed the moment lies in an interval given by the times of what succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from percentes_fast.analysis.windows import Seconds

FAILED = ("errored", "censored")
SERVER = "server"  # the target's name


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of recovery, in seconds after the fire.

    at_s: the point, None with a reason; interval_s: where the point is not known, what bounds it;
    resolution_s: from the dispatch of the last failure sent before the success that is the point.
    """

    name: str
    at_s: Seconds | None
    interval_s: tuple[Seconds, Seconds | None] | None
    resolution_s: Seconds | None
    reason: str | None
    at_ns: int | None  # on the run's clock


def _absent(name: str, reason: str) -> Moment:
    return Moment(name, None, None, None, reason, None)


def _first_after_failure(
    name: str, failed: pd.DataFrame, succeeded: pd.DataFrame, fire_ns: int, what: str
) -> Moment:
    """failed, succeeded: frames with start_ns and end_ns of each attempt."""
    failed = failed[failed["end_ns"] > fire_ns]
    if len(failed) == 0:
        return _unseen(name, succeeded, fire_ns, what)
    after = succeeded[succeeded["start_ns"] > failed["end_ns"].min()]
    if len(after) == 0:
        last = int(failed["end_ns"].max()) - fire_ns
        bound = (Seconds.of(last), None)
        return Moment(name, None, bound, None, f"no {what} succeeded again by the end", None)
    first = after.loc[after["end_ns"].idxmin()]
    at = int(first["end_ns"])
    since = at - int(failed.loc[failed["start_ns"] < int(first["start_ns"]), "start_ns"].max())
    return Moment(name, Seconds.of(at - fire_ns), None, Seconds.of(since), None, at)


def _unseen(name: str, succeeded: pd.DataFrame, fire_ns: int, what: str) -> Moment:
    after = succeeded[succeeded["start_ns"] >= fire_ns]
    if len(after) == 0:
        return _absent(name, f"no {what} sent after the fire had ended")
    hi = Seconds.of(int(after["end_ns"].min()) - fire_ns)
    reason = f"no {what} failed: it was back before the next one was sent"
    return Moment(name, None, (Seconds(0.0), hi), hi, reason, None)


def _attempts(frame: pd.DataFrame) -> pd.DataFrame:
    known = frame[frame["dispatch_ns"].notna() & frame["ended_ns"].notna()]
    return pd.DataFrame(
        {
            "start_ns": known["dispatch_ns"].to_numpy(np.int64),
            "end_ns": known["ended_ns"].to_numpy(np.int64),
            "outcome": known["outcome"].to_numpy(object),
        }
    )


def served_again(
    frame: pd.DataFrame, kind: str, name: str, fire_ns: int, target: str = SERVER
) -> Moment:
    """First success of a kind of row (probe, health) after one of it failed.

    What was still open when the run was stopped neither failed nor succeeded.
    """
    asked = frame[(frame["kind"] == kind) & (frame["target"] == target)]
    rows = _attempts(asked[asked["cause"] != "stopped"])
    if len(rows) == 0:
        return _absent(name, f"no {kind} row ended")
    failed = rows[rows["outcome"].isin(FAILED)]
    succeeded = rows[rows["outcome"] == "completed"]
    what = "health check" if kind == "health" else kind
    return _first_after_failure(name, failed, succeeded, fire_ns, what)


def port_answers(frame: pd.DataFrame, fire_ns: int, target: str = SERVER) -> Moment:
    """First connection made after one failed, by any row that dials the victim."""
    rows = frame[(frame["target"] == target) & frame["dispatch_ns"].notna()]
    refused = _attempts(rows[rows["error_class"] == "connect"])
    dialed = rows[rows["connect_ns"].notna()]
    start = dialed["dispatch_ns"].to_numpy(np.int64)
    made = pd.DataFrame(
        {"start_ns": start, "end_ns": start + dialed["connect_ns"].to_numpy(np.int64)}
    )
    return _first_after_failure("port_answers", refused, made, fire_ns, "connection")


@dataclass(frozen=True, slots=True)
class Outage:
    """From the fire to replica-ready, and the other moments; seconds after the fire.

    traffic_restored: of the service in front, by its own probes; None where there is none.
    """

    outage_s: Seconds | None
    interval_s: tuple[Seconds, Seconds | None] | None
    resolution_s: Seconds | None
    reason: str | None
    port_answers: Moment
    health_200: Moment
    first_served_token: Moment
    goodput_restored: Moment
    traffic_restored: Moment | None


def outage(
    frame: pd.DataFrame,
    fire_ns: int,
    restored_ns: int | None,
    why_not: str | None,
    victim: str = SERVER,
) -> Outage:
    """Outage and the four moments. frame: judged rows of all kinds; victim: its target's name.

    restored_ns: the detector's recovery on the run's clock, or why there is none.
    """
    ready = served_again(frame, "probe", "first_served_token", fire_ns, victim)
    restored = (
        _absent("goodput_restored", why_not or "not recovered")
        if restored_ns is None
        else Moment(
            "goodput_restored",
            Seconds.of(max(0, restored_ns - fire_ns)),  # the anchor may lie just before the fire
            None,
            Seconds(1.0),  # the detector's buckets
            None,
            restored_ns,
        )
    )
    return Outage(
        outage_s=ready.at_s,
        interval_s=ready.interval_s,
        resolution_s=ready.resolution_s,
        reason=ready.reason,
        port_answers=port_answers(frame, fire_ns, victim),
        health_200=served_again(frame, "health", "health_200", fire_ns),
        first_served_token=ready,
        goodput_restored=restored,
        traffic_restored=None
        if victim == SERVER
        else served_again(frame, "probe", "traffic_restored", fire_ns),
    )
