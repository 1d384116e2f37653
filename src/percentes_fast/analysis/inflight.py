"""Who was in flight at the kill: surely, surely not, indeterminate, under each named rule.

Never: puts a request whose end is too near the kill on either side, or a request whose connection
TCP had to mend meanwhile on a side that its times alone would show.
Plan: SPEC section 6. `Kill` is the kill as each rule sees it; a rule gives two masks; `_table`
counts the outcomes. A kill on this machine is on the client's own clock: offset 0, bound 0.
"""

from __future__ import annotations

import errno
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

HERE_COMPAT = "the published rule; one clock here: offset and bounds are 0"
HERE_TIGHT = "one clock here: the offset is exactly 0; R is the fastest fresh connection"
HERE_BRACKET = (
    "a kill on this machine: L and U are the clock reads around the signal; a cut inside"
    " [L, U] is assumed to be the kill's; not applicable where a proxy stands before it"
)
NO_TRIP = "; no fresh connection was measured: R is not known, no end is surely after the kill"


@dataclass(frozen=True, slots=True)
class Interval:
    """Where one rule puts the kill, in ns of run time, and how it knows."""

    lo_ns: int
    hi_ns: int
    note: str


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill under the three rules.

    fire_ns, uncertainty_ns, zone_ns: compat's. bracket: None where it does not apply, for the
    reason in bracket_note. round_trip_ns: R, the smallest time of a fresh connection to the
    victim's host, None where none was made.
    """

    fire_ns: int
    uncertainty_ns: int
    zone_ns: int
    compat_note: str
    tight: Interval
    bracket: Interval | None
    bracket_note: str
    round_trip_ns: int | None

    @classmethod
    def here(cls, before_ns: int, after_ns: int, round_trip_ns: int | None) -> Kill:
        """A kill on this machine: the signal's system call lies in [before, after]."""
        half = (after_ns - before_ns) // 2
        return cls(
            fire_ns=before_ns + half,
            uncertainty_ns=half,
            zone_ns=half,
            compat_note=HERE_COMPAT,
            tight=Interval(before_ns, after_ns, HERE_TIGHT),
            bracket=Interval(before_ns, after_ns, HERE_BRACKET),
            bracket_note=HERE_BRACKET,
            round_trip_ns=round_trip_ns,
        )


@dataclass(frozen=True, slots=True)
class InFlight:
    """In-flight table under one rule: loss_fraction is errored over all caught, as published.

    Where the rule does not apply the times and counts are None or 0, and the note says why.
    """

    rule: str
    applicable: bool
    lo_s: Seconds | None
    hi_s: Seconds | None
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


def first_consequence(rows: pd.DataFrame, after_ns: int) -> int | None:
    """The first thing seen at or after a time that a kill brings about, in any row to the victim.

    An unfinished response cut, a reset before any byte, a refusal (no other failure of a dial), an
    error event; the close of an idle or finished connection ends no row. None where nothing of the
    kind was seen.
    """
    refused = (rows["cause"] == "connect") & (rows["errno"] == errno.ECONNREFUSED).fillna(False)
    ended = rows.loc[rows["cause"].isin(CUT_CAUSES) | refused, "ended_ns"].dropna()
    later = ended[ended >= after_ns]
    return int(later.min()) if len(later) else None


def _compat(load: pd.DataFrame, kill: Kill) -> Sides:
    fire, zone = kill.fire_ns, kill.zone_ns
    ended = load["ended_ns"].fillna(-(2**62)).to_numpy(np.int64)
    dispatched = load["dispatch_ns"].fillna(2**62).to_numpy(np.int64)
    caught = (dispatched < fire) & (ended > fire - zone)
    near = np.abs(ended - fire) <= zone
    # |end - fire| <= zone includes end == fire - zone, which is not "after fire - zone"
    near &= dispatched < fire
    return np.asarray(caught & ~near), np.asarray(near), zone


def _tight(load: pd.DataFrame, kill: Kill) -> Sides:
    trip, lo, hi = kill.round_trip_ns, kill.tight.lo_ns, kill.tight.hi_ns
    ended, dispatched = _times(load, "ended_ns"), _times(load, "dispatch_ns")
    surely = np.zeros(len(load), bool)  # without R nothing shows that an end came after the kill
    if trip is not None:
        surely = (dispatched < lo) & (ended >= hi + trip)
    surely_not = (ended <= lo) | (dispatched >= hi) | np.isnan(dispatched)
    return np.asarray(surely), np.asarray(~surely & ~surely_not), trip


def _bracket(load: pd.DataFrame, kill: Kill) -> Sides:
    assert kill.bracket is not None
    lo, hi = kill.bracket.lo_ns, kill.bracket.hi_ns
    ended, dispatched = _times(load, "ended_ns"), _times(load, "dispatch_ns")
    seen = np.fmin(_times(load, "headers_ns"), _times(load, "acked_kernel_ns")) < lo
    cut = load["cause"].isin(CUT_CAUSES).to_numpy(bool)
    surely = seen & ((ended >= hi) | (cut & (ended >= lo)))
    surely_not = (ended < lo) | (dispatched >= hi) | np.isnan(dispatched)
    # TCP mended something while it was open: its times may be of a later copy
    mended = _times(load, "tcp_anomalies") > 0
    surely &= ~mended
    return np.asarray(surely), np.asarray(~surely & ~surely_not), 0


RULES: tuple[tuple[str, Callable[[pd.DataFrame, Kill], Sides]], ...] = (
    ("compat", _compat),
    ("tight", _tight),
    ("bracket", _bracket),
)


def tables(load: pd.DataFrame, kill: Kill) -> tuple[InFlight, ...]:
    """The in-flight table under compat, tight and bracket. load: judged rows of kind load."""
    rows = load[load["outcome"] != "client_fault"]
    return tuple(_table(rows, kill, name, rule) for name, rule in RULES)


def _interval(name: str, kill: Kill) -> Interval | None:
    if name == "compat":
        known = kill.uncertainty_ns
        return Interval(kill.fire_ns - known, kill.fire_ns + known, kill.compat_note)
    return kill.tight if name == "tight" else kill.bracket


def _table(
    rows: pd.DataFrame, kill: Kill, name: str, rule: Callable[[pd.DataFrame, Kill], Sides]
) -> InFlight:
    interval = _interval(name, kill)
    nobody = np.zeros(len(rows), bool)
    surely, near, zone = (nobody, nobody, None) if interval is None else rule(rows, kill)
    note = kill.bracket_note if interval is None else interval.note
    note += NO_TRIP if interval is not None and zone is None else ""
    determinate, indeterminate = count(rows[surely]), count(rows[near])
    both = count(rows[surely | near])
    return InFlight(
        rule=name,
        applicable=interval is not None,
        lo_s=None if interval is None else Seconds.of(interval.lo_ns),
        hi_s=None if interval is None else Seconds.of(interval.hi_ns),
        zone_s=Seconds.maybe(zone),
        total=both.scheduled,
        determinate=determinate,
        indeterminate=indeterminate,
        errored_by_class=both.errored_by_class,
        loss_fraction=share(both.errored, both.scheduled),
        note=note,
    )
