"""Validity gates at their limits: what passes, what fails and with which words.

Never: lets a gate pass that was not observed.
Plan: a clean client -> each fault of G2 by itself -> G6 -> what does not apply.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from percentes_fast.analysis.client import ClientFigures, Spread, WorkerFigures
from percentes_fast.analysis.gates import Gate, g2, g6, gates
from percentes_fast.analysis.outcomes import judged
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
)


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
    found = {gate.id: gate for gate in gates(CLEAN, baseline(1, 0), configuration())}
    assert list(found) == ["G1", "G2", "G3", "G4", "G5", "G6", "G7"]
    for name in ("G1", "G3", "G4", "G5", "G7"):
        gate = found[name]
        assert (gate.applicable, gate.observed, gate.passed) == (False, False, False)
        assert gate.holds
        assert gate.detail


def test_the_stamps_switch_comes_from_the_configuration() -> None:
    bare = replace(CLEAN, stamp_disagreement_s=None)
    off = configuration(engine={"kernel_stamps": False})
    assert gates(bare, None, off)[1].passed
    assert not gates(bare, None, configuration())[1].passed


def test_an_applicable_gate_that_was_not_observed_never_holds() -> None:
    assert not Gate("G", "name", applicable=True, observed=False, passed=False, detail="").holds
