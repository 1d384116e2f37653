"""Who was in flight at the kill: surely, surely not, indeterminate, under each named rule.

Never: puts a request whose end is too near the kill on either side.
Plan: SPEC section 6. A rule gives the kill's interval and two masks; `table` counts the outcomes.
Here the kill is on the client's own clock (offset 0, bound 0): compat's zone is half the interval
of the two clock reads around the signal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from percentes_fast.analysis.outcomes import Counts, count
from percentes_fast.analysis.windows import Seconds, share

CUT_CAUSES = ("body_cut", "reset", "no_response", "error_event")
Mask = NDArray[np.bool_]
Sides = tuple[Mask, Mask, int | None]  # surely in flight, indeterminate, zone in ns (None: unknown)


@dataclass(frozen=True, slots=True)
class Kill:
    """The signal's system call lies in [before, after], both read on the client's clock, in ns.

    round_trip_ns: the smallest time of a fresh connection to the victim, None where none was made.
    """

    before_ns: int
    after_ns: int
    round_trip_ns: int | None

    @property
    def fire_ns(self) -> int:
        """Compat: the middle of the readings, integer halves round down."""
        return self.before_ns + (self.after_ns - self.before_ns) // 2

    @property
    def uncertainty_ns(self) -> int:
        """Compat: half the interval of the readings; offsets and bounds are 0 on one clock."""
        return (self.after_ns - self.before_ns) // 2


@dataclass(frozen=True, slots=True)
class InFlight:
    """In-flight table under one rule: loss_fraction is errored over all caught, as published."""

    rule: str
    lo_s: Seconds
    hi_s: Seconds
    zone_s: Seconds | None
    total: int
    determinate: Counts
    indeterminate: Counts
    errored_by_class: dict[str, int]
    loss_fraction: float | None
    note: str


def _times(load: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """Times as floats with NaN for null: a comparison with an unknown is false."""
    return np.asarray(load[column].astype("Float64").to_numpy(np.float64, na_value=np.nan))


def _compat(load: pd.DataFrame, kill: Kill) -> Sides:
    fire, zone = kill.fire_ns, kill.uncertainty_ns
    ended = load["ended_ns"].fillna(-(2**62)).to_numpy(np.int64)
    dispatched = load["dispatch_ns"].fillna(2**62).to_numpy(np.int64)
    caught = (dispatched < fire) & (ended > fire - zone)
    near = np.abs(ended - fire) <= zone
    # |end - fire| <= zone includes end == fire - zone, which is not "after fire - zone"
    near &= dispatched < fire
    return np.asarray(caught & ~near), np.asarray(near), zone


def _tight(load: pd.DataFrame, kill: Kill) -> Sides:
    trip = kill.round_trip_ns
    ended, dispatched = _times(load, "ended_ns"), _times(load, "dispatch_ns")
    surely = np.zeros(len(load), bool)  # without R nothing shows that an end came after the kill
    if trip is not None:
        surely = (dispatched < kill.before_ns) & (ended >= kill.after_ns + trip)
    surely_not = (ended <= kill.before_ns) | (dispatched >= kill.after_ns) | np.isnan(dispatched)
    return np.asarray(surely), np.asarray(~surely & ~surely_not), trip


def _bracket(load: pd.DataFrame, kill: Kill) -> Sides:
    ended, dispatched = _times(load, "ended_ns"), _times(load, "dispatch_ns")
    seen = np.fmin(_times(load, "headers_ns"), _times(load, "acked_kernel_ns")) < kill.before_ns
    cut = load["cause"].isin(CUT_CAUSES).to_numpy(bool)
    surely = seen & ((ended >= kill.after_ns) | (cut & (ended >= kill.before_ns)))
    surely_not = (ended < kill.before_ns) | (dispatched >= kill.after_ns) | np.isnan(dispatched)
    return np.asarray(surely), np.asarray(~surely & ~surely_not), 0


NO_TRIP = "; no fresh connection was measured: R is not known, no end is surely after the kill"
RULES: tuple[tuple[str, Callable[[pd.DataFrame, Kill], Sides], str], ...] = (
    ("compat", _compat, "the published rule; one clock here: offset and bounds are 0"),
    ("tight", _tight, "one clock here: the offset is exactly 0; R is the fastest fresh connection"),
    (
        "bracket",
        _bracket,
        "a kill on this machine: L and U are the clock reads around the signal; a cut inside"
        " [L, U] is assumed to be the kill's; not applicable where a proxy stands before it",
    ),
)


def tables(load: pd.DataFrame, kill: Kill) -> tuple[InFlight, ...]:
    """The in-flight table under compat, tight and bracket. load: judged rows of kind load."""
    rows = load[load["outcome"] != "client_fault"]
    return tuple(_table(rows, kill, name, rule, note) for name, rule, note in RULES)


def _table(
    rows: pd.DataFrame,
    kill: Kill,
    name: str,
    rule: Callable[[pd.DataFrame, Kill], Sides],
    note: str,
) -> InFlight:
    surely, near, zone = rule(rows, kill)
    note += NO_TRIP if zone is None else ""
    determinate, indeterminate = count(rows[surely]), count(rows[near])
    both = count(rows[surely | near])
    return InFlight(
        rule=name,
        lo_s=Seconds.of(kill.before_ns),
        hi_s=Seconds.of(kill.after_ns),
        zone_s=Seconds.maybe(zone),
        total=both.scheduled,
        determinate=determinate,
        indeterminate=indeterminate,
        errored_by_class=both.errored_by_class,
        loss_fraction=share(both.errored, both.scheduled),
        note=note,
    )
