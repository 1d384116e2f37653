"""What was done to the server and whether it landed: fault.json as part of the report.

Does: says what each kind of fault must have shown, what the container engine must have, and how the
      clocks were compared, from fault records written by hand.
Never: takes a record's default for a fact.
Plan: the fault -> landed or not, and why -> the container -> the clocks -> notes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from percentes_fast.analysis import clockfit
from percentes_fast.analysis.inflight import Kill
from percentes_fast.analysis.injected import (
    clock_report,
    container_faults,
    fault_report,
    notes,
    why_not,
)
from percentes_fast.analysis.kill import HostClock
from percentes_fast.analysis.tree import ClockReport, KillReport
from percentes_fast.faults.kinds import SIGNALS
from run_builder import AFTER, BEFORE, EPOCH_WALL, FIRE, MS, PLANNED, S, the_fault

KILL = Kill.here(BEFORE, AFTER, 2 * MS)
KILLS = [kind for kind in SIGNALS if kind != "stop"]
GONE = {"gone_ns": FIRE + 3 * MS, "stopped": None, "continued_ns": None, "survivors": []}
STOPPED = {"gone_ns": None, "stopped": True, "continued_ns": FIRE + 5 * S, "survivors": []}


def run(**changed: Any) -> Any:
    """What is read of a stored run whose fault was done."""
    return SimpleNamespace(
        fault=the_fault(**changed),
        manifest={"epoch_wall_ns": EPOCH_WALL},
        offsets=pd.DataFrame({"phase": ["arm", "dial", "run", "dial", "after"]}),
    )


def report(kill: Kill | None = KILL, **changed: Any) -> KillReport:
    found = fault_report(run(**changed), kill)
    assert found is not None
    return found


def without_a_fault() -> Any:
    return SimpleNamespace(fault=None, manifest={}, offsets=None)


# ---------------------------------------------------------------- the fault


def test_the_fault_as_it_was_done() -> None:
    evidence = GONE | {
        "survivors": [{"pid": 7}, {"pid": 8}],
        "port": 8000,
        "listens": False,
        "shm": ["psm_a", "psm_b"],
        "gpu_memory": [["4451", "20112 MiB"]],
    }
    found = report(
        kind="kill_container",
        how={"by": "a killer on ssh me@host", "race": None},
        before={"shm": ["psm_a", "sem_x"]},
        evidence=evidence,
        after_error="the container engine did not answer",
    )
    assert found == KillReport(
        kind="kill_container",
        planned_s=10.0,
        fire_s=10.000000005,
        fire_lo_s=10.0,
        fire_hi_s=10.000000011,
        gone_after_s=0.003,
        survivors=2,
        landed=True,
        error=None,
        by="a killer on ssh me@host",
        stopped_s=None,
        shm_left=("psm_a",),
        port_closed=True,
        gpu_memory_after=(("4451", "20112 MiB"),),
        after_error="the container engine did not answer",
    )


def test_what_was_not_looked_at_is_unknown() -> None:
    found = report(evidence={"gone_ns": FIRE + MS})
    assert (found.survivors, found.by, found.stopped_s) == (None, None, None)
    assert (found.shm_left, found.port_closed, found.gpu_memory_after) == (None, None, None)
    assert found.after_error is None


def test_a_fault_that_was_not_done_has_no_time() -> None:
    found = report(None, fire=None, evidence=None, error="the run was interrupted")
    assert (found.fire_s, found.fire_lo_s, found.fire_hi_s) == (None, None, None)
    assert (found.gone_after_s, found.survivors, found.landed) == (None, None, False)
    assert found.planned_s == 10.0


def test_a_port_that_still_listens_is_not_closed() -> None:
    assert report(evidence=GONE | {"listens": True}).port_closed is False
    assert report(evidence=GONE | {"listens": None}).port_closed is None


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (["a", "b"], ["b", "c"], ("b",)),  # c is new: the server that came back made it
        (["a"], [], ()),
        ([], ["a"], ()),
        (["a", "percentes-fast-17"], ["a", "percentes-fast-17"], ("a",)),  # ours, on this machine
        (None, ["a"], None),
        (["a"], None, None),
    ],
)
def test_shared_memory_left_is_what_was_there_before(
    before: list[str] | None, after: list[str] | None, left: tuple[str, ...] | None
) -> None:
    found = report(before={"shm": before}, evidence=GONE | {"shm": after})
    assert found.shm_left == left


def test_shared_memory_is_unknown_where_no_look_was_taken_before() -> None:
    assert report(before=None, evidence=GONE | {"shm": ["a"]}).shm_left is None


# ---------------------------------------------------------------- landed or not


@pytest.mark.parametrize("kind", KILLS)
def test_a_kill_landed_when_the_process_was_seen_to_go(kind: str) -> None:
    assert report(kind=kind, evidence=GONE).landed
    unseen = report(kind=kind, evidence=GONE | {"gone_ns": None})
    assert not unseen.landed
    assert why_not(run(kind=kind), unseen) == "the process was not seen to go"
    # what shows a stop shows no kill
    assert not report(kind=kind, evidence=STOPPED).landed


@pytest.mark.parametrize(
    ("evidence", "landed"),
    [
        (STOPPED, True),
        (STOPPED | {"stopped": False}, False),
        (STOPPED | {"stopped": None}, False),
        (STOPPED | {"continued_ns": None}, False),
        (GONE, False),  # it died of something else
    ],
)
def test_a_stop_landed_when_it_was_seen_stopped_and_continued(
    evidence: dict[str, Any], landed: bool
) -> None:
    found = report(kind="stop", evidence=evidence)
    assert found.landed is landed
    if not landed:
        why = why_not(run(kind="stop"), found)
        assert why == "the process was not seen stopped and continued"


def test_how_long_it_was_stopped() -> None:
    assert report(kind="stop", evidence=STOPPED).stopped_s == 5.0
    assert report(kind="stop", evidence=STOPPED | {"continued_ns": None}).stopped_s is None
    assert report(None, kind="stop", evidence=STOPPED).stopped_s is None


@pytest.mark.parametrize("kind", [*KILLS, "stop"])
def test_without_evidence_or_a_kill_nothing_landed(kind: str) -> None:
    evidence = STOPPED if kind == "stop" else GONE
    assert report(kind=kind, evidence=evidence).landed
    assert not report(None, kind=kind, evidence=evidence).landed
    assert not report(kind=kind, evidence=None).landed


FIRED = {"before_ns": BEFORE, "after_ns": AFTER, "errno": 0}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"error": "host: lost", "fire": None, "after_error": "more"}, "host: lost"),
        ({"fire": None}, "it was not fired"),
        ({"fire": FIRED | {"errno": 3}}, "the kernel refused the signal (errno 3)"),
        ({"fire": FIRED, "after_error": "the channel was lost"}, "the channel was lost"),
        ({"fire": FIRED}, "the process was not seen to go"),
    ],
)
def test_why_it_did_not_land(changed: dict[str, Any], why: str) -> None:
    told = changed | {"evidence": None}
    assert why_not(run(**told), report(None, **told)) == why


def test_a_run_without_a_fault_reports_none() -> None:
    empty = without_a_fault()
    assert fault_report(empty, None) is None
    assert clock_report(empty, None, None) is None
    assert list(container_faults(empty)) == []
    assert list(notes(empty, None)) == []


# ---------------------------------------------------------------- the container


def container(after: dict[str, Any] | None, policy: str = "on-failure") -> dict[str, Any]:
    before = {"id": "8fa0" * 16, "restart_count": 1, "restart_policy": policy}
    return {"before": before, "after": None if after is None else before | after}


def told(found: dict[str, Any], **changed: Any) -> list[str]:
    return list(container_faults(run(container=found, **changed)))


def test_a_container_that_its_policy_restarted_is_fine() -> None:
    assert told(container({"restart_count": 2}), kind="kill_container") == []
    assert told(container({"restart_count": 5}), kind="kill_container") == []


@pytest.mark.parametrize(("policy", "said"), [("no", "no"), ("", "no"), ("always", "always")])
def test_a_container_that_was_only_killed_makes_the_run_invalid(policy: str, said: str) -> None:
    why = f"the container was not restarted by its policy ({said}), only killed"
    assert told(container({}, policy), kind="kill_container") == [why]


@pytest.mark.parametrize("kind", [kind for kind in SIGNALS if kind != "kill_container"])
def test_other_faults_need_no_restart(kind: str) -> None:
    assert told(container({}), kind=kind) == []


@pytest.mark.parametrize("kind", ["kill", "kill_container"])
def test_another_container_makes_the_run_invalid(kind: str) -> None:
    found = container({"id": "0123456789abcdef", "restart_count": 2})
    why = "the container is another one after the load (0123456789ab)"
    assert told(found, kind=kind) == [why]


def test_a_container_that_was_not_looked_at_again_makes_the_run_invalid() -> None:
    why = "the container was not looked at after the load: the engine is gone"
    assert told(container(None), after_error="the engine is gone") == [why]


def test_a_container_says_nothing_of_a_fault_that_was_not_fired() -> None:
    assert told(container(None), fire=None) == []
    assert list(container_faults(run())) == []
    assert list(container_faults(run(container=None))) == []


# ---------------------------------------------------------------- the clocks

OFFSET = EPOCH_WALL + 8 * MS


def clock(*offsets: int, after: int | None = None) -> HostClock:
    """Samples of 2 ms, 9 s before the fire and every 2 s from then on."""
    samples = pd.DataFrame(
        {
            "before_ns": [S + k * 2 * S for k in range(len(offsets))],
            "remote_wall_ns": [S + k * 2 * S + MS + x for k, x in enumerate(offsets)],
            "after_ns": [S + k * 2 * S + 2 * MS for k in range(len(offsets))],
            "resolution_ns": 0,
        }
    )
    arm = clockfit.Offset(offsets[0], MS, 1, S + MS)
    late = None if after is None else clockfit.Offset(after, 3 * MS, 1, 40 * S)
    return HostClock(clockfit.Clock(samples), arm, late)


READER = {"reader": "bash with EPOCHREALTIME", "resolution_ns": 1000, "lost": None}


def test_how_the_clocks_were_compared() -> None:
    found = clock_report(
        run(host="ssh me@host", clock=READER), KILL, clock(OFFSET, after=OFFSET - 40_000)
    )
    # one sample of 1 s, -+ 1 ms; the fire's second read is 9 s + 11 ns from its beginning:
    # 8 ms -+ (1 ms + 4_500_000 + 1)
    assert found == ClockReport(
        host="ssh me@host",
        reader="bash with EPOCHREALTIME",
        samples=1,
        dials=2,
        round_trip_s=0.002,
        compat_offset_s=0.008,
        compat_drift_s=0.00004,
        compat_bound_s=0.003,
        offset_s=(0.002499999, 0.013500001),
        lost=None,
        burst_lost=False,
        step=None,
    )


def test_without_a_burst_after_drift_and_bound_are_unknown() -> None:
    found = clock_report(run(host="h", clock=READER), KILL, clock(OFFSET))
    assert found is not None
    assert (found.compat_drift_s, found.compat_bound_s) == (None, None)
    assert found.compat_offset_s == 0.008


def test_without_a_clock_only_the_dials_are_known() -> None:
    found = clock_report(run(), None, None)
    assert found == ClockReport(
        host="this machine",
        reader=None,
        samples=0,
        dials=2,
        round_trip_s=None,
        compat_offset_s=None,
        compat_drift_s=None,
        compat_bound_s=None,
        offset_s=None,
        lost=None,
        burst_lost=False,
        step=None,
    )


def test_a_fault_that_was_not_fired_has_no_offset_at_the_fire() -> None:
    found = clock_report(run(host="h", clock=READER, fire=None), None, clock(OFFSET))
    assert found is not None
    assert (found.offset_s, found.step) == (None, None)
    assert (found.samples, found.compat_offset_s) == (1, 0.008)


def test_a_step_is_told_instead_of_an_offset() -> None:
    made = run(host="h", clock=READER)
    found = clock_report(made, KILL, clock(OFFSET, OFFSET, OFFSET + S, OFFSET + S))
    assert found is not None
    assert found.offset_s is None
    assert found.step == "between 3.000 and 5.002 s"
    assert list(notes(made, found)) == [
        "the clock of h (or this one's) stepped between 3.000 and 5.002 s"
    ]


# ---------------------------------------------------------------- notes


def test_what_a_reader_must_know() -> None:
    made = run(
        host="h",
        how={"by": "a killer on h", "race": "no pidfd: the pid could pass"},
        clock=READER | {"lost": "h: the channel was lost"},
        log_lost="h: the log reader: has ended",
        after_error="the fingerprint was not read",
    )
    assert list(notes(made, clock_report(made, KILL, clock(OFFSET)))) == [
        "the fault: no pidfd: the pid could pass",
        "clock samples ended early: h: the channel was lost",
        "the server's log was read to its end no more: h: the log reader: has ended",
        "after the fault: the fingerprint was not read",
    ]


def test_a_late_fault_is_told() -> None:
    made = run(planned_ns=BEFORE - 2_320 * MS)
    found = list(notes(made, None))
    assert found == ["the fault came 2.320 s after its plan, from which windows count"]


def test_nothing_special_needs_no_note() -> None:
    made = run(how={"by": "pidfd", "race": None}, after_error=None)
    assert list(notes(made, clock_report(made, KILL, clock(OFFSET)))) == []
    assert list(notes(run(), None)) == []


def test_an_error_after_a_fault_that_was_not_fired_is_no_note() -> None:
    made = run(fire=None, after_error="the container engine did not answer")
    assert list(notes(made, None)) == []


def test_the_story_needs_no_more_than_its_fault() -> None:
    """A record of a kill on this machine, without the parts that a host over SSH adds."""
    found = report()
    assert (found.landed, found.planned_s, found.survivors) == (True, PLANNED / S, 0)
