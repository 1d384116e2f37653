"""The kill of stored runs under each rule, and the clock of its host.

Does: places a killer's readings, orders and answers by hand in the story of a run, here and on
      another host, and reads the kill back from the directory.
Never: takes a time from the module under test where it can be written out.
Plan: the host's clock -> no kill -> a kill here -> compat and tight of a remote kill -> bracket:
      L, U, where it does not apply.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from percentes_fast.analysis import clockfit
from percentes_fast.analysis.inflight import HERE_BRACKET, Interval, Kill
from percentes_fast.analysis.kill import BRACKET, COMPAT, HostClock, find, host_clock
from percentes_fast.analysis.outcomes import judged
from percentes_fast.rundir import StoredRun, open_run
from run_builder import (
    AFTER,
    BEFORE,
    DIAL,
    EPOCH_WALL,
    MS,
    PLANNED,
    US,
    Row,
    Run,
    S,
    refused,
    row,
    served,
    story,
)

OFFSET = EPOCH_WALL + 8 * MS  # the host's wall clock minus run time
SENT, ANSWERED = PLANNED + 10 * US, PLANNED + 5 * MS
SIGNAL = PLANNED + 3 * MS
TRIP = 2 * MS
HOW_L = BRACKET.format(R=" + R")


def sample(phase: str, at: int, offset: int = OFFSET) -> Row:
    """2 ms there and back, the reading in the very middle."""
    return {
        "phase": phase,
        "before_ns": at,
        "remote_wall_ns": at + MS + offset,
        "after_ns": at + 2 * MS,
        "resolution_ns": 1000,
        "round_trip_ns": None,
    }


def dial(at: int, trip: int) -> Row:
    """A fresh connection to the victim's host."""
    made = dict.fromkeys(sample("dial", 0)) | {"phase": "dial", "before_ns": at}
    return made | {"after_ns": at + trip + US, "round_trip_ns": trip}


def remote(**changed: Any) -> Run:
    """The story, killed by a killer on another host; R is 2 ms."""
    run = story()
    assert run.fault is not None
    reading = SIGNAL + OFFSET
    run.fault |= {
        "host": "ssh me@host",
        "same_clock": False,
        "path": path(),
        "fire": {
            "before_ns": SENT,
            "after_ns": ANSWERED,
            "errno": 0,
            "remote": {
                "before_remote_wall_ns": reading - 6 * US,
                "after_remote_wall_ns": reading + 7 * US,
                "monotonic_before_ns": None,
                "monotonic_after_ns": None,
                "resolution_ns": 239,
            },
        },
    }
    run.fault |= changed
    for each in run.rows:  # nothing on this path is faster than R
        if each["acked_kernel_ns"] is not None:
            each["acked_kernel_ns"] = each["sent_kernel_ns"] + TRIP + US
        if each["connect_ns"] is not None:
            each["connect_ns"] = TRIP + US
    run.offsets = [
        sample("arm", -S, OFFSET - 5 * US),
        sample("run", 9 * S + S // 2),
        sample("after", 34 * S, OFFSET + 15 * US),
        *(dial(k * S, TRIP + k * US) for k in range(3)),
    ]
    return run


def path(**changed: Any) -> dict[str, Any]:
    """fault.json of an order that shares the path with the answers."""
    found = {"server_ip": "10.0.0.5", "ssh_ip": "10.0.0.5", "jump": False, "same_path": True}
    return found | {"proxied": False, "proxied_because": None} | changed


ANOTHER = path(ssh_ip="10.0.0.9", same_path=False)


def stored(run: Run, tmp_path: Path) -> StoredRun:
    return open_run(run.write(tmp_path / "run"))


def the_kill(run: Run, tmp_path: Path) -> Kill:
    found = maybe_kill(stored(run, tmp_path))
    assert found is not None
    return found


def maybe_kill(run: StoredRun) -> Kill | None:
    return find(run, judged(run.requests, usage=True), host_clock(run))


def quiet(run: Run) -> Run:
    """Nothing failed: every row was served."""
    run.rows = [each for each in run.rows if each["cause"] in ("stream_end", "plain_end")]
    return run


def cut(at: int, ended: int, **facts: Any) -> Row:
    return served("load", at, 100 * MS, S) | {"cause": "body_cut", "ended_ns": ended} | facts


# ---------------------------------------------------------------- the host's clock


def test_this_machines_clock_is_the_pair_nearest_to_the_fault(tmp_path: Path) -> None:
    run = stored(story(), tmp_path)
    found = host_clock(run)
    assert found is not None
    # the pair of 10 s: read 20 ns into 40 ns
    assert found.arm == clockfit.Offset(EPOCH_WALL, 20, 1, 10 * S + 20)
    assert found.after is None
    assert len(found.clock) == 36
    # without a fault: the one nearest to the epoch
    found = host_clock(replace(run, fault=None))
    assert found is not None
    assert found.arm == clockfit.Offset(EPOCH_WALL, 20, 1, 20)


def test_a_run_without_clock_pairs_has_no_clock(tmp_path: Path) -> None:
    run = stored(story(), tmp_path)
    assert host_clock(replace(run, clocks=run.clocks.iloc[:0])) is None


def test_another_hosts_clock_is_its_samples(tmp_path: Path) -> None:
    found = host_clock(stored(remote(), tmp_path))
    assert found is not None
    assert found.arm == clockfit.Offset(OFFSET - 5 * US, MS, 1, -S + MS)
    assert found.after == clockfit.Offset(OFFSET + 15 * US, MS, 1, 34 * S + MS)
    assert len(found.clock) == 3  # a dial is no sample


def test_the_shortest_of_each_burst_counts(tmp_path: Path) -> None:
    run = remote()
    short = sample("arm", -2 * S, OFFSET) | {"after_ns": -2 * S + 2 * MS - 10}
    late = sample("after", 35 * S, OFFSET) | {"after_ns": 35 * S + 3 * MS}
    run.offsets += [short, late]
    found = host_clock(stored(run, tmp_path))
    assert found is not None
    assert found.after is not None
    assert (found.arm.samples, found.arm.bound_ns, found.arm.offset_ns) == (2, MS - 5, OFFSET + 5)
    assert (found.after.samples, found.after.offset_ns) == (2, OFFSET + 15 * US)


@pytest.mark.parametrize("phases", [(), ("run", "after", "dial")])
def test_without_samples_at_arm_there_is_no_clock(phases: tuple[str, ...], tmp_path: Path) -> None:
    run = remote()
    run.offsets = [each for each in run.offsets if each["phase"] in phases]
    assert host_clock(stored(run, tmp_path)) is None


def test_without_a_burst_after_the_drift_is_not_known(tmp_path: Path) -> None:
    run = remote()
    run.offsets = [each for each in run.offsets if each["phase"] != "after"]
    found = host_clock(stored(run, tmp_path))
    assert found is not None
    assert found.after is None


# ---------------------------------------------------------------- no kill


def test_without_a_fault_there_is_no_kill(tmp_path: Path) -> None:
    run = stored(story(), tmp_path)
    assert maybe_kill(run) is not None
    assert maybe_kill(replace(run, fault=None)) is None


@pytest.mark.parametrize("made", [story, remote])
def test_a_fault_that_was_not_fired_is_no_kill(made: Any, tmp_path: Path) -> None:
    run = stored(made(), tmp_path)
    assert run.fault is not None
    assert maybe_kill(replace(run, fault=run.fault | {"fire": None})) is None
    denied = run.fault["fire"] | {"errno": 1}
    assert maybe_kill(replace(run, fault=run.fault | {"fire": denied})) is None


# ---------------------------------------------------------------- a kill here


def test_a_kill_here_is_between_its_clock_reads(tmp_path: Path) -> None:
    found = the_kill(story(), tmp_path)
    assert found == Kill.here(BEFORE, AFTER, DIAL)
    assert (found.fire_ns, found.uncertainty_ns, found.zone_ns) == (10 * S + 5, 5, 5)


def test_r_of_a_kill_here_is_the_fastest_dial_to_the_victim(tmp_path: Path) -> None:
    run = story()
    run.rows += [
        served("probe", 20 * S + k, 90 * MS, 100 * MS, connect_ns=trip, target=target)
        for k, (trip, target) in enumerate([(DIAL - 1, "server"), (7, "other"), (DIAL, "server")])
    ]
    assert the_kill(run, tmp_path) == Kill.here(BEFORE, AFTER, DIAL - 1)


def test_a_kill_here_without_a_dial_has_no_r(tmp_path: Path) -> None:
    run = story()
    run.rows = [each | {"connect_ns": None} for each in run.rows]
    assert the_kill(run, tmp_path).round_trip_ns is None


def test_the_victim_is_the_one_of_the_manifest(tmp_path: Path) -> None:
    run = story()
    run.manifest["victim"] = "other"
    assert the_kill(run, tmp_path).round_trip_ns is None


def test_a_kill_here_behind_a_proxy_has_no_bracket(tmp_path: Path) -> None:
    run = story()
    assert run.fault is not None
    run.fault["path"] = path(
        ssh_ip=None, same_path=False, proxied=True, proxied_because="target.proxied"
    )
    plain = Kill.here(BEFORE, AFTER, DIAL)
    why = "not applicable behind a proxy: target.proxied"
    assert the_kill(run, tmp_path) == replace(plain, bracket=None, bracket_note=why)
    run.fault["path"] = path(ssh_ip=None, same_path=False)
    assert the_kill(run, tmp_path / "direct") == plain
    assert plain.bracket == Interval(BEFORE, AFTER, HERE_BRACKET)


# ---------------------------------------------------------------- a remote kill: compat and tight


def test_compat_of_a_remote_kill(tmp_path: Path) -> None:
    found = the_kill(remote(), tmp_path)
    # readings SIGNAL - 6 us and + 7 us: their middle + 0.5 us; offset at arm 5 us less; half the
    # interval 6.5 us; drift 20 us; bounds 1 ms
    assert found.fire_ns == SIGNAL + 500 + 5 * US
    assert found.uncertainty_ns == 6500 + 20 * US + MS
    assert found.zone_ns == found.uncertainty_ns + MS
    assert found.compat_note == COMPAT
    assert found.round_trip_ns == TRIP


def test_compat_without_a_burst_after(tmp_path: Path) -> None:
    run = remote()
    run.offsets = [each for each in run.offsets if each["phase"] != "after"]
    found = the_kill(run, tmp_path)
    # from the arm sample's middle at -0.999 s to the answer at 10.005 s: 500 ppm of 11.004 s
    assert found.uncertainty_ns == 6500 + 5_502_000 + 1 + MS
    why = "; nothing was sampled after the fire: a drift of 500 ppm since arming is taken"
    assert found.compat_note == COMPAT + why


def test_the_last_samples_stand_for_a_burst_that_was_lost(tmp_path: Path) -> None:
    run = remote()
    run.offsets = [each for each in run.offsets if each["phase"] != "after"]
    run.offsets += [sample("run", 20 * S, OFFSET + 7 * US)]
    found = the_kill(run, tmp_path)
    assert found.uncertainty_ns == 6500 + (5 + 7) * US + MS
    assert found.compat_note.endswith("the last samples stand for it")


def test_tight_of_a_remote_kill(tmp_path: Path) -> None:
    # The sample of 9.5 s: [OFFSET - 1 ms, OFFSET + 1 ms + 1 us]; the answer of 10.005 s is 505 ms
    # from it, 252_500 + 1. The bursts, 11 and 24 s away, say less. The host's readings lie 6 us
    # before the signal and 7 us (and 239 ns) after it.
    reach = MS + 252_501
    expected = SIGNAL - 6 * US - reach - US, SIGNAL + 7 * US + 239 + reach
    found = the_kill(remote(), tmp_path)
    assert (found.tight.lo_ns, found.tight.hi_ns) == expected
    assert found.tight.note == "3 samples intersected"
    assert SENT < expected[0] < SIGNAL < expected[1] < ANSWERED


def test_the_order_and_its_answer_cut_the_tight_interval(tmp_path: Path) -> None:
    run = remote()
    assert run.fault is not None
    run.fault["fire"] |= {"before_ns": SIGNAL - 10 * US, "after_ns": SIGNAL + 10 * US}
    found = the_kill(run, tmp_path)
    assert (found.tight.lo_ns, found.tight.hi_ns) == (SIGNAL - 10 * US, SIGNAL + 10 * US)


def test_a_stepped_clock_is_told_and_compat_used(tmp_path: Path) -> None:
    run = remote()
    run.offsets[1] = sample("run", 9 * S + S // 2, OFFSET + 50 * MS)
    run.offsets[2] = sample("after", 34 * S, OFFSET + 50 * MS)
    assert run.fault is not None
    run.fault["fire"] |= {"before_ns": PLANNED - 60 * MS, "after_ns": PLANNED + 60 * MS}
    found = the_kill(run, tmp_path)
    # drift 50 ms + 5 us, bound 1 ms, half 6.5 us; the offset may be 1 us more than it was read
    known = 6500 + 50 * MS + 5 * US + MS
    assert found.uncertainty_ns == known
    assert found.tight.lo_ns == found.fire_ns - known - US
    assert found.tight.hi_ns == found.fire_ns + known + 239 + 1
    assert "one stepped by" in found.tight.note
    assert "between -1.000 and 9.502 s" in found.tight.note
    assert "compat's interval is used" in found.tight.note


@pytest.mark.parametrize("phases", [("dial",), ("run", "after", "dial")])
def test_without_a_clock_the_kill_is_between_order_and_answer(
    phases: tuple[str, ...], tmp_path: Path
) -> None:
    run = remote()
    run.offsets = [each for each in run.offsets if each["phase"] in phases]
    found = the_kill(run, tmp_path)
    # 10 us to 5 ms: the middle 2.505 ms, half 2.495 ms
    assert (found.fire_ns, found.uncertainty_ns) == (PLANNED + 2505 * US, 2495 * US)
    assert found.zone_ns == found.uncertainty_ns
    assert found.compat_note == "no clock sample: the middle between the order and its answer"
    assert (found.tight.lo_ns, found.tight.hi_ns) == (SENT, ANSWERED)
    assert found.tight.note == "no clock sample: between the order and its answer"
    assert found.round_trip_ns == TRIP
    assert found.bracket == Interval(SENT + TRIP, ANSWERED, HOW_L)


def test_r_of_a_remote_kill_is_of_the_dials_alone(tmp_path: Path) -> None:
    run = remote()
    run.offsets = [each for each in run.offsets if each["phase"] != "dial"]
    found = the_kill(run, tmp_path)  # though probes dialled in 200 us
    assert found.round_trip_ns is None


# ---------------------------------------------------------------- a remote kill: bracket

L = SENT + TRIP  # 10.00201 s; the story's rows are cut 8 ns and 1 ms after 10 s: before


def bracket(run: Run, tmp_path: Path) -> Interval:
    found = the_kill(run, tmp_path)
    assert found.bracket is not None, found.bracket_note
    assert found.bracket_note == found.bracket.note
    return found.bracket


def test_on_a_shared_path_the_answer_bounds_the_kill(tmp_path: Path) -> None:
    assert bracket(remote(), tmp_path) == Interval(L, ANSWERED, HOW_L)
    assert bracket(quiet(remote()), tmp_path / "quiet") == Interval(L, ANSWERED, HOW_L)


@pytest.mark.parametrize(
    ("found", "until"),
    [
        (cut(9 * S, L + MS), L + MS),
        (cut(9 * S, L), L),  # at L: after it
        (cut(9 * S, L - 1), ANSWERED),  # before: not the kill's
        (cut(9 * S, ANSWERED + 1), ANSWERED),
        (cut(9 * S, L + MS, target="other"), ANSWERED),
        (refused("probe", L - MS, ended_ns=L + 7), L + 7),
        (refused("probe", L - MS, ended_ns=L + 7, errno=113), ANSWERED),  # no route to the host
        (row("health", L - MS, "reset", dispatch_ns=L - MS, ended_ns=L + 9), L + 9),
        (served("load", 9 * S, 100 * MS, S, ended_ns=L + 5), ANSWERED),  # a whole answer
    ],
)
def test_on_a_shared_path_a_consequence_may_come_first(
    found: Row, until: int, tmp_path: Path
) -> None:
    run = remote()
    run.rows.append(found | {"acked_kernel_ns": None})
    assert bracket(run, tmp_path) == Interval(L, until, HOW_L)


def test_on_another_path_only_consequences_tell(tmp_path: Path) -> None:
    # L is when the order was written, 10 us after 10 s; the cut 8 ns after 10 s is before it; the
    # next is the one 1 ms after 10 s, and the answer says nothing
    found = bracket(remote(path=ANOTHER), tmp_path)
    note = BRACKET.format(R=" (R is not added: another path)")
    assert found == Interval(SENT, PLANNED + MS, note)
    # without that cut: the refusal of the first probe, 50 ms after 10 s, takes 11 us
    run = remote(path=ANOTHER)
    run.rows = [each for each in run.rows if each["cause"] != "body_cut"]
    late = Interval(SENT, PLANNED + 50 * MS + 11 * US, note)
    assert bracket(run, tmp_path / "late") == late


def test_without_r_nothing_is_added(tmp_path: Path) -> None:
    run = remote()
    run.offsets = [each for each in run.offsets if each["phase"] != "dial"]
    found = bracket(run, tmp_path)
    assert found == Interval(SENT, PLANNED + MS, BRACKET.format(R=" (R is not known)"))


def test_an_answer_sooner_than_r_is_itself_the_shortest_round_trip(tmp_path: Path) -> None:
    run = remote()
    assert run.fault is not None
    run.fault["fire"]["after_ns"] = L - MS
    assert bracket(run, tmp_path) == Interval(L - MS, L - MS, HOW_L)


def test_a_kill_that_no_client_saw_has_no_bracket(tmp_path: Path) -> None:
    found = the_kill(quiet(remote(path=ANOTHER)), tmp_path)
    assert found.bracket is None
    assert found.bracket_note == "not applicable: the kill had no consequence that a client saw"


@pytest.mark.parametrize(
    ("hidden", "why"),
    [
        (
            path(jump=True, same_path=False),
            "not applicable: the order went through a jump host",
        ),
        (
            path(proxied=True, proxied_because="the container's network is 'bridge'"),
            "not applicable behind a proxy: the container's network is 'bridge'",
        ),
        (
            path(jump=True, same_path=False, proxied=True, proxied_because="both"),
            "not applicable: the order went through a jump host",
        ),
    ],
)
def test_what_hides_the_kill_is_named(hidden: dict[str, Any], why: str, tmp_path: Path) -> None:
    found = the_kill(remote(path=hidden), tmp_path)
    assert (found.bracket, found.bracket_note) == (None, why)
    assert found.fire_ns == SIGNAL + 500 + 5 * US  # the other rules stand


def test_a_run_without_a_path_shares_none(tmp_path: Path) -> None:
    found = bracket(remote(path=None), tmp_path)
    assert (found.lo_ns, found.hi_ns) == (SENT, PLANNED + MS)


def test_a_host_clock_may_be_given_by_hand(tmp_path: Path) -> None:
    """The drift between the two offsets given, not those of the stored samples."""
    run = stored(remote(), tmp_path)
    one, two = clockfit.Offset(OFFSET, 10, 1, 0), clockfit.Offset(OFFSET + 7, 20, 1, 0)
    host = HostClock(clockfit.Clock(run.offsets.iloc[:0]), one, two)
    found = find(run, judged(run.requests, usage=True), host)
    assert found is not None
    assert (found.fire_ns, found.uncertainty_ns) == (SIGNAL + 500, 6500 + 7 + 20)
    assert found.zone_ns == 6500 + 7 + 20 + 20


@pytest.mark.parametrize("faster", ["connect_ns", "acked_kernel_ns", "sample"])
def test_l_is_as_early_as_the_shortest_round_trip_that_anything_showed(
    faster: str, tmp_path: Path
) -> None:
    """A few dials of a jittering path have not seen the shortest; the tight rule's R is theirs."""
    run, trip = remote(), TRIP - 300 * US
    served_row = next(each for each in run.rows if each["sent_kernel_ns"] is not None)
    if faster == "sample":
        run.offsets.append(sample("run", 8 * S) | {"after_ns": 8 * S + trip})
    elif faster == "connect_ns":
        served_row["connect_ns"] = trip
    else:
        served_row["acked_kernel_ns"] = served_row["sent_kernel_ns"] + trip
    found = the_kill(run, tmp_path)
    assert found.round_trip_ns == TRIP
    assert found.bracket is not None
    assert found.bracket.lo_ns == SENT + trip
