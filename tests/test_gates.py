"""Validity gates at their limits: what passes, what fails and with which words.

Never: lets a gate pass that was not observed.
Plan: a clean client -> each fault of G2 by itself -> G6 -> what does not apply -> G1, G5, G7.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from percentes_fast.analysis.client import ClientFigures, Spread, WorkerFigures
from percentes_fast.analysis.gates import Gate, Observed, g2, g6, gates
from percentes_fast.analysis.outcomes import judged
from percentes_fast.analysis.servermetrics import Waiting
from percentes_fast.analysis.windows import Seconds, Window, WindowReport, report_window
from run_builder import MS, S, configuration, frame, refused, served
from test_windows import token_times


def spread(p99: float, most: float) -> Spread:
    return Spread(100, Seconds(0.0), Seconds(p99), Seconds(most))


WORKER = WorkerFigures(0, 100, spread(0.0, 0.0), 0.5, True, 0, 0, {}, 3)
CLEAN = ClientFigures(
    undispatched=0,
    client_fault=0,
    client_fault_errnos={},
    send_skew_s=spread(0.001, 0.002),
    send_skew_kernel_s=spread(0.001, 0.002),
    stamp_disagreement_s=spread(0.00001, 0.1),
    receive_lag_s=None,
    shared_reads_excluded=0,
    workers=(WORKER,),
    wall_steps=(),
    canary_server_late_max_s=None,
    parent_scheduler="fifo",
    parent_gap_max_s=None,
    parent_note=None,
)


NOTHING = Observed({}, None, {}, frozenset(), 0, False)


def worker(**changed: Any) -> ClientFigures:
    return replace(CLEAN, workers=(WORKER, replace(WORKER, worker=1, **changed)))


def baseline(good: int, bad: int) -> WindowReport:
    rows = [served("load", k, MS, S) for k in range(good)]
    rows += [refused("load", k) for k in range(bad)]
    frames = judged(frame(rows), usage=True)
    return report_window(Window("baseline", 0, S), frames, token_times(), S, 14 * S)


def test_a_clean_client_passes() -> None:
    gate = g2(CLEAN, stamps=True)
    assert (gate.applicable, gate.observed, gate.passed, gate.holds) == (True,) * 4
    assert "skew p99 1000.0 us" in gate.detail


def test_the_limits_themselves_pass() -> None:
    at = replace(CLEAN, send_skew_s=spread(0.005, 0.050), stamp_disagreement_s=spread(0.001, 9.0))
    assert g2(replace(at, workers=(replace(WORKER, busy_worst=0.70),)), stamps=True).passed


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (replace(CLEAN, send_skew_s=spread(0.00501, 0.05)), "skew p99 5.010 ms > 5 ms"),
        (replace(CLEAN, send_skew_s=spread(0.001, 0.0501)), "skew max 50.100 ms > 50 ms"),
        (replace(CLEAN, send_skew_s=None), "send skew not observed"),
        (replace(CLEAN, undispatched=2), "2 rows were not dispatched"),
        (replace(CLEAN, client_fault=1), "1 client faults"),
        (
            replace(CLEAN, client_fault=3, client_fault_errnos={"EMFILE": 2, "EADDRNOTAVAIL": 1}),
            "3 client faults (EMFILE 2: raise the limit of open files (ulimit -Hn 65536),"
            " EADDRNOTAVAIL 1: widen the port range (sysctl net.ipv4.ip_local_port_range="
            "'10240 65535'))",
        ),
        (replace(CLEAN, stamp_disagreement_s=spread(0.0011, 0.1)), "differ by 1.100 ms at p99"),
        (replace(CLEAN, stamp_disagreement_s=None), "kernel send stamps not observed"),
        (worker(busy_worst=0.71), "worker 1 busy 71% over 5 s"),
        (worker(busy_worst=None), "worker 1 busy not observed"),
        (worker(tokens_lost=4), "worker 1 lost 4 token times"),
        (worker(ended=False, exit_status=-9), "worker 1 died (exit status -9)"),
    ],
)
def test_each_fault_of_the_client_alone_fails_g2(client: ClientFigures, said: str) -> None:
    gate = g2(client, stamps=True)
    assert not gate.passed
    assert not gate.holds
    assert said in gate.detail
    blamed = gate.detail.replace(said, "").partition("; set engine")[0]
    assert ";" not in blamed  # nothing else is


def test_kernel_stamps_switched_off_are_not_asked_for() -> None:
    assert g2(replace(CLEAN, stamp_disagreement_s=None), stamps=False).passed


def test_several_faults_are_all_told() -> None:
    gate = g2(replace(worker(tokens_lost=4), undispatched=1), stamps=True)
    assert gate.detail == "worker 1 lost 4 token times; 1 rows were not dispatched"


def test_baseline_goodput_at_its_limit() -> None:
    assert g6(baseline(99, 1)).passed
    assert not g6(baseline(98, 2)).passed


@pytest.mark.parametrize("report", [None, baseline(0, 0)])
def test_no_baseline_does_not_pass(report: WindowReport | None) -> None:
    gate = g6(report)
    assert (gate.applicable, gate.observed, gate.passed) == (True, False, False)


def test_what_does_not_apply_says_why_and_leaves_the_run_valid() -> None:
    found = {gate.id: gate for gate in gates(CLEAN, baseline(1, 0), configuration(), NOTHING)}
    assert list(found) == ["G1", "G2", "G3", "G4", "G5", "G6", "G7"]
    for name in ("G1", "G3", "G4", "G5", "G7"):
        gate = found[name]
        assert (gate.applicable, gate.observed, gate.passed) == (False, False, False)
        assert gate.holds
        assert gate.detail


def test_the_stamps_switch_comes_from_the_configuration() -> None:
    bare = replace(CLEAN, stamp_disagreement_s=None)
    off = configuration(engine={"kernel_stamps": False})
    assert gates(bare, None, off, NOTHING)[1].passed
    assert not gates(bare, None, configuration(), NOTHING)[1].passed


def test_an_applicable_gate_that_was_not_observed_never_holds() -> None:
    assert not Gate("G", "name", applicable=True, observed=False, passed=False, detail="").holds


# ---------------------------------------------------------------- G1, G5, G7


def of(name: str, seen: Observed, **sections: dict[str, Any]) -> Gate:
    found = gates(CLEAN, baseline(1, 0), configuration(**sections), seen)
    return next(gate for gate in found if gate.id == name)


TWO = {"probe": {"direct": ["http://a:1", "http://b:1"]}, "target": {"replica_header": "x-replica"}}


@pytest.mark.parametrize(
    ("counts", "passed"),
    [
        ({"a": 50, "b": 50}, True),
        ({"a": 45, "b": 55}, True),
        ({"a": 55, "b": 45}, True),
        ({"a": 449, "b": 551}, False),
        ({"a": 100}, False),  # one of two never answered
        ({"a": 33, "b": 33, "c": 34}, False),
    ],
)
def test_each_of_two_replicas_has_half_of_the_baseline(
    counts: dict[str, int], passed: bool
) -> None:
    gate = of("G1", replace(NOTHING, by_replica=counts), **TWO)
    assert (gate.applicable, gate.observed, gate.passed) == (True, True, passed)


def test_an_unknown_share_is_not_an_even_one() -> None:
    without = TWO | {"target": {"replica_header": None}}
    for seen, sections in ((NOTHING, TWO), (replace(NOTHING, by_replica={"a": 1}), without)):
        gate = of("G1", seen, **sections)
        assert (gate.applicable, gate.observed, gate.passed) == (True, False, False)
    assert "set target.replica_header" in of("G1", NOTHING, **without).detail


GPU = {"index": "0", "driver_version": "550.1", "clocks.max.graphics": "2520 MHz"}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, None, (False, False, False)),
        ([GPU], [dict(GPU)], (True, True, True)),
        ([GPU], [GPU | {"driver_version": "560.2"}], (True, True, False)),
        ([GPU, GPU], [GPU], (True, True, False)),
        ([GPU], None, (True, True, False)),  # nvidia-smi is gone
    ],
)
def test_gpus_are_the_same_before_and_after(
    before: Any, after: Any, expected: tuple[bool, bool, bool]
) -> None:
    prints = {"before": {"gpus": before}, "after": {"gpus": after}}
    gate = of("G5", replace(NOTHING, fingerprints=prints))
    assert (gate.applicable, gate.observed, gate.passed) == expected


def test_gpus_that_were_not_looked_at_again_do_not_pass() -> None:
    prints = {"before": {"gpus": [GPU]}, "after": None}
    gate = of("G5", replace(NOTHING, fingerprints=prints))
    assert (gate.applicable, gate.observed, gate.passed) == (True, False, False)


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ({"server": Waiting(0.0, 270, 0)}, (True, True, True)),
        ({"server": Waiting(1.0, 270, 41)}, (True, True, True)),
        ({"server": Waiting(1.001, 270, 0)}, (True, True, False)),
        ({"server": Waiting(None, 270, 0)}, (False, False, False)),  # no such gauge
        ({"server": Waiting(None, 270, 270)}, (True, False, False)),  # never answered
        ({"a": Waiting(0.5, 9, 0), "b": Waiting(2.0, 9, 0)}, (True, True, False)),
        ({"a": Waiting(0.5, 9, 0), "b": Waiting(None, 9, 9)}, (True, True, False)),
    ],
)
def test_the_waiting_queue_of_each_replica(
    waiting: dict[str, Waiting], expected: tuple[bool, bool, bool]
) -> None:
    gate = of("G7", replace(NOTHING, waiting=waiting, metrics_asked=True))
    assert (gate.applicable, gate.observed, gate.passed) == expected


def test_metrics_that_were_asked_for_and_never_read_do_not_pass() -> None:
    asked = of("G7", replace(NOTHING, metrics_asked=True))
    assert (asked.applicable, asked.observed, asked.passed) == (True, False, False)
    page = replace(
        NOTHING,
        waiting={"server": Waiting(None, 9, 9)},
        without_page=frozenset({"server"}),
        metrics_asked=True,
    )
    assert not of("G7", page).applicable


def test_a_queue_that_was_hardly_seen_is_not_observed() -> None:
    seen = replace(NOTHING, metrics_asked=True, expected_scrapes=300)
    for failed, passed in ((299, False), (31, False), (30, True), (0, True)):
        gate = of("G7", replace(seen, waiting={"server": Waiting(0.0, 300, failed)}))
        assert gate.applicable
        assert gate.passed is passed, failed


def test_a_gpu_tool_that_fails_is_no_host_without_gpus() -> None:
    failed = {"gpus": None, "gpu_error": True}
    gate = of("G5", replace(NOTHING, fingerprints={"before": failed, "after": failed}))
    assert (gate.applicable, gate.observed, gate.passed) == (True, False, False)
