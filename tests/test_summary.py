"""A whole run directory with known answers -> report.json; damaged and unfinished directories.

Never: compares a figure with one that the package computed, but for bytes with bytes.
Plan: the story of run_builder by hand -> the same bytes anywhere -> runs that went otherwise ->
directories that are not whole.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from percentes_fast.analysis.summary import analyze
from percentes_fast.analysis.tree import to_json
from percentes_fast.errors import DataError
from run_builder import (
    AFTER,
    BACK,
    BEFORE,
    FIRE,
    MS,
    PLANNED,
    Run,
    S,
    healthy,
    row,
    served,
    story,
    the_fault,
    worker_facts,
)
from whole_run import WITHOUT_CORE

BLOCKED = f"""{WITHOUT_CORE}
from pathlib import Path
from percentes_fast.report import files
files.write(Path(sys.argv[1]), as_json=True)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story().write(tmp_path_factory.mktemp("story") / "run")


@pytest.fixture(scope="module")
def report(told: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_json(analyze(told).summary))
    return found


def judge(run: Run, tmp_path: Path) -> dict[str, Any]:
    data = to_json(analyze(run.write(tmp_path / "run")).summary)
    found: dict[str, Any] = json.loads(data, parse_constant=pytest.fail)
    return found


def leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def window(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(found for found in report["windows"] if found["name"] == name)


# --- the story ---------------------------------------------------------------------------


def test_the_story_is_valid(report: dict[str, Any]) -> None:
    assert (report["valid"], report["partial"], report["invalid_reasons"]) == (True, False, [])


def test_the_kill(report: dict[str, Any]) -> None:
    # reads 10.000000000 and 10.000000011: middle 5.5 ns rounded down, half 5.5 rounded down
    fault = report["fault"]
    assert (fault["fire_s"], report["fire_uncertainty_s"]) == (10.000000005, 5e-9)
    assert (fault["fire_lo_s"], fault["fire_hi_s"]) == (10.0, 10.000000011)
    assert (fault["planned_s"], fault["landed"], fault["survivors"]) == (10.0, True, 0)
    assert fault["gone_after_s"] == 0.002999995


def test_outage_and_the_four_moments(report: dict[str, Any]) -> None:
    # probes at .05 and .55: the first success is sent at 14.05 and ends at 14.15; the last failure
    # was sent at 13.55 + 1 us
    assert report["outage_s"] == 4.149999995
    assert report["outage"]["resolution_s"] == 0.599999
    moments = {
        name: (found["at_s"], found["resolution_s"])
        for name, found in report["outage"].items()
        if isinstance(found, dict)
    }
    assert moments == {
        # that probe dialled: sent at 14.050001, up 200 us later; last refusal: health sent at 13.8
        "port_answers": (4.050200995, 0.2502),
        "health_200": (4.300999995, 0.500999),  # asked at 14.3, answered in 1 ms
        "first_served_token": (4.149999995, 0.599999),
        "goodput_restored": (3.999999995, 1.0),  # second 4 from the anchor
    }


def test_recovery(report: dict[str, Any]) -> None:
    # seconds 0..3 have no good request, the others only good ones: the first window of 2 with
    # 90 % is that of second 4, and it holds 4 starts
    assert report["ttr_pre_fault_s"] == 4
    assert report["integrated_goodput_deficit"] == 4.0  # 4 s of nothing where the baseline is 1
    recovery = report["recovery"]
    assert recovery["pre_fault"]["baseline"] == 1.0
    assert recovery["pre_fault"]["cancelled_entries"] == 0
    assert {name: found["ttr_s"] for name, found in recovery["components"].items()} == {
        "ttft": 4,
        "e2e": 4,
        "errors": 4,
    }
    assert recovery["degraded_plateau"]["ttr_s"] is None
    assert report["equilibrium_note"] == "no goodput during the degraded plateau"
    assert len(recovery["sensitivity"]) == 27


def test_in_flight(report: dict[str, Any]) -> None:
    # 9.25 is cut 1 ms after the fire, 9.75 3 ns after it: inside compat's zone of 5 ns. Tight's R
    # is the one dial, 200 us. Bracket: both are cut after the lower read.
    sides = {
        table["rule"]: (table["determinate"]["scheduled"], table["indeterminate"]["scheduled"])
        for table in report["in_flight"]
    }
    assert sides == {"compat": (1, 1), "tight": (1, 1), "bracket": (2, 0)}
    assert [table["zone_s"] for table in report["in_flight"]] == [5e-9, 0.0002, 0.0]
    assert report["in_flight_loss_fraction"] == 1.0
    assert report["in_flight_indeterminate"] == 1
    assert report["in_flight_errored_by_class"] == {"malformed_stream": 2}
    sure = {"total": 1, "completed": 0, "errored": 1, "censored": 0}
    assert report["in_flight_determinate"] == sure


def test_windows(report: dict[str, Any]) -> None:
    # two a second; the guard's last two are cut; 10.25 to 13.75 (8) are refused
    found = {
        cut["name"]: (cut["start_s"], cut["end_s"], cut["counts"]["scheduled"], cut["goodput"])
        for cut in report["windows"]
    }
    assert found == {
        "warmup": (0, 2, 4, 1),
        "baseline": (2, 7, 10, 1),
        "guard": (7, 10, 6, pytest.approx(4 / 6, abs=1e-9)),
        "fault": (10, 30, 40, 0.8),
        "fault_degraded": (10, 14, 8, 0),
        "fault_recovered": (14, 30, 32, 1),
        "outage": (10, 14.15, 8, 0),
        "cooldown": (30, 32, 4, 1),
    }
    assert window(report, "baseline")["ttft_s"]["p99"] == 0.1
    assert window(report, "baseline")["tokens_per_s"] == 8.0  # 10 x 4 in 5 s
    assert window(report, "baseline")["gaps_s"]["distribution"]["p50"] == 0.225  # (1 - 0.1) / 4
    assert window(report, "outage")["e2e_s"] is None
    assert report["fault_window_e2e_p95_ms"] == 1000.0
    outcomes = {"total": 8, "completed": 0, "errored": 8, "censored": 0, "client_fault": 0}
    assert report["outage_outcomes"] == outcomes | {"errored_by_class": {"connect": 8}}


def test_incidence_stands_beside_every_window_that_needs_it(report: dict[str, Any]) -> None:
    needed = {n for n, c in report["incidence"].items() if c["needed_beside_percentiles"]}
    assert needed == {"guard", "fault", "fault_degraded", "outage"}
    assert set(report["incidence"]) == {cut["name"] for cut in report["windows"]}
    fault = report["incidence"]["fault"]
    # 8 of 40 error at once, the others complete at 1 s: the curve steps to 0.8 there and stays
    assert (fault["n"], fault["completed"], fault["errored"], fault["censored"]) == (40, 32, 8, 0)
    at = dict(zip(fault["time_s"], fault["cif"], strict=True))
    assert (at[0.95], at[1.0], at[3.0]) == (0, 0.8, 0.8)
    assert fault["quantiles_s"] == {"p50": 1.0, "p95": None, "p99": None, "p999": None}
    assert set(fault["quantile_reasons"].values()) == {"unattainable"}
    assert set(report["incidence"]["outage"]["quantile_reasons"].values()) == {"no completion"}


def test_conservation_over_all_kinds(report: dict[str, Any]) -> None:
    counts = report["counts_by_kind"]
    assert {kind: found["scheduled"] for kind, found in counts.items()} == {
        "canary": 32,
        "health": 64,
        "load": 64,
        "probe": 64,
    }
    for found in counts.values():
        states = ("completed", "errored", "censored", "client_fault")
        assert found["scheduled"] == sum(found[name] for name in states)
    assert (report["counts"]["completed"], report["counts"]["errored"]) == (54, 10)
    series = report["goodput_by_second"]
    assert series["scheduled"] == [2] * 32
    assert series["good"] == [2] * 9 + [0] + [0] * 4 + [2] * 18


def test_the_receive_path(report: dict[str, Any]) -> None:
    canary = report["receive_path"]["baseline"]["canary"]
    assert (canary["streams"], canary["completed"]) == (5, 5)
    assert (canary["ttft_dev_p50_us"], canary["itl_dev_max_us"]) == (100, 0)
    assert report["receive_path"]["baseline"]["client_ttft_mean_ms"] == 100.0


# --- the same bytes ----------------------------------------------------------------------


def test_no_nan_and_seconds_exact(told: Path) -> None:
    data = to_json(analyze(told).summary)
    tree = json.loads(data, parse_constant=pytest.fail)
    numbers = [leaf for leaf in leaves(tree) if isinstance(leaf, float)]
    assert numbers
    assert all(math.isfinite(number) for number in numbers)
    assert b'"outage_s": 4.149999995,' in data  # 14.15 s - 10.000000005 s, every digit
    assert b'"fire_uncertainty_s": 5e-09,' in data


def test_the_same_bytes_again_and_in_another_place(told: Path, tmp_path: Path) -> None:
    first = to_json(analyze(told).summary)
    place = tmp_path / "rate=3"  # a path that looks like a partition adds no column
    shutil.copytree(told, place)
    assert to_json(analyze(place).summary) == first == to_json(analyze(told).summary)


def test_without_the_compiled_core_the_same_bytes(told: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(told, place)
    command = [sys.executable, "-c", BLOCKED, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (place / "report.json").read_bytes() == to_json(analyze(told).summary)
    assert (place / "report.html").exists()


# --- runs that went otherwise ------------------------------------------------------------


def test_a_fault_that_fired_late_is_anchored_at_its_plan(tmp_path: Path) -> None:
    run = story()
    fire = {"before_ns": BEFORE + 300 * MS, "after_ns": AFTER + 300 * MS, "errno": 0}
    run.fault = the_fault(fire=fire)
    found = judge(run, tmp_path)
    assert window(found, "fault")["start_s"] == 10.0
    assert found["fault"]["fire_s"] == 10.300000005
    # 10.25 was sent before the fire: it is no outcome of the outage, though in its window
    assert found["outage_outcomes"]["total"] == 7
    assert window(found, "outage")["counts"]["scheduled"] == 8


def test_a_fault_that_fired_early_is_anchored_there(tmp_path: Path) -> None:
    run = story()
    fire = {"before_ns": BEFORE - 300 * MS, "after_ns": AFTER - 300 * MS, "errno": 0}
    run.fault = the_fault(fire=fire)
    found = judge(run, tmp_path)
    assert window(found, "fault")["start_s"] == 9.700000005
    assert window(found, "baseline")["end_s"] == 6.700000005


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            {"fire": None, "evidence": None, "error": "pid 7: is not the process armed any more"},
            "the fault did not land: pid 7: is not the process armed any more",
        ),
        (
            {"fire": {"before_ns": BEFORE, "after_ns": AFTER, "errno": 3}, "evidence": None},
            "the fault did not land: the kernel refused the signal (errno 3)",
        ),
        (
            {"evidence": {"gone_ns": None, "survivors": []}},
            "the fault did not land: the process was not seen to go",
        ),
        ({"evidence": None}, "the fault did not land: the process was not seen to go"),
        ({"fire": None, "evidence": None}, "the fault did not land: it was not fired"),
    ],
)
def test_a_fault_that_did_not_land_makes_the_run_invalid(
    tmp_path: Path, fault: dict[str, Any], said: str
) -> None:
    run = story()
    run.fault = the_fault(**fault)
    found = judge(run, tmp_path)
    assert (found["valid"], found["fault"]["landed"]) == (False, False)
    assert found["invalid_reasons"] == [said]
    fired = run.fault["fire"] is not None and run.fault["fire"]["errno"] == 0
    assert (found["outage"] is not None) == fired
    assert bool(found["in_flight"]) == fired


def test_no_fault(tmp_path: Path) -> None:
    run = story()
    run.fault = None
    run.config["fault"]["kind"] = "none"
    run.rows = [
        served("load", each["intended_ns"], 100 * MS, S) if each["kind"] == "load" else each
        for each in run.rows
    ]
    found = judge(run, tmp_path)
    assert found["valid"]
    names = ("fault", "outage", "outage_s", "recovery", "ttr_pre_fault_s", "fire_uncertainty_s")
    assert [found[name] for name in names] == [None] * 6
    assert [cut["name"] for cut in found["windows"]] == ["warmup", "baseline", "cooldown"]


def test_a_lost_fault_record_is_not_a_run_without_fault(tmp_path: Path) -> None:
    run = story()
    run.fault = None
    with pytest.raises(DataError, match=r"fault\.json"):
        judge(run, tmp_path)


def test_probes_health_and_canary_switched_off(tmp_path: Path) -> None:
    found = judge(story().without("probe", "health", "canary"), tmp_path)
    assert found["outage_s"] is None
    assert found["outage"]["reason"] == "no probe row ended"
    assert found["outage"]["health_200"]["reason"] == "no health row ended"
    assert found["outage_outcomes"] is None
    assert found["ttr_pre_fault_s"] == 4
    assert found["receive_path"]["baseline"]["canary"] is None
    # no dial was seen either: tight is sure of nobody
    assert found["in_flight"][1]["zone_s"] is None
    assert found["in_flight"][1]["determinate"]["scheduled"] == 0


def test_a_server_that_was_back_before_any_probe(tmp_path: Path) -> None:
    run = story()
    run.rows = [
        served("probe", each["intended_ns"], 90 * MS, 100 * MS, tokens=1)
        if each["kind"] == "probe"
        else each
        for each in run.rows
    ]
    found = judge(run, tmp_path)
    assert found["outage_s"] is None
    # the probe of 10.05 ended at 10.15
    assert found["outage"]["interval_s"] == [0.0, 0.149999995]
    assert found["outage"]["resolution_s"] == 0.149999995


def test_a_server_that_never_came_back(tmp_path: Path) -> None:
    run = story()
    run.rows = [
        each
        if each["intended_ns"] < BACK or each["kind"] == "canary"
        else row(
            each["kind"],
            each["intended_ns"],
            "connect",
            dispatch_ns=each["intended_ns"],
            ended_ns=each["intended_ns"] + MS,
        )
        for each in run.rows
    ]
    found = judge(run, tmp_path)
    assert found["valid"]  # it measured what happened
    assert (found["outage_s"], found["ttr_pre_fault_s"]) == (None, None)
    low, high = found["outage"]["interval_s"]
    assert (low, high) == (21.550999995, None)  # the probe of 31.55 failed until 31.551
    assert found["recovery"]["pre_fault"]["reason"] == "not recovered within 20 s"
    assert found["integrated_goodput_deficit"] is None
    # nothing completes in the cool-down: its percentiles are absent and its curve is there
    assert found["incidence"]["cooldown"]["needed_beside_percentiles"]


def test_not_one_completion(tmp_path: Path) -> None:
    run = story()
    run.rows = [each | {"cause": "http_status"} for each in run.rows]
    found = judge(run, tmp_path)
    assert found["counts"]["completed"] == 0
    assert all(cut["ttft_s"] is cut["e2e_s"] is None for cut in found["windows"])
    assert found["recovery"]["pre_fault"]["reason"] == "no goodput in the baseline"
    assert found["invalid_reasons"] == ["G6: baseline 0.0000"]


def test_no_load_at_all_in_the_fault_window(tmp_path: Path) -> None:
    run = story()
    run.rows = [e for e in run.rows if e["kind"] != "load" or e["intended_ns"] < PLANNED]
    found = judge(run, tmp_path)
    assert window(found, "fault")["goodput"] is None
    assert found["recovery"]["pre_fault"]["reason"] == "nothing scheduled after the anchor"
    assert found["outage_outcomes"]["total"] == 0
    assert set(found["incidence"]["fault"]["cif"]) == {None}


def test_client_faults_count_for_nobody(tmp_path: Path) -> None:
    run = story()
    lost = (3 * S + S // 4, 12 * S + S // 4)  # one in the baseline, one in the outage
    run.rows = [
        row("load", each["intended_ns"], "never_sent") if each["intended_ns"] in lost else each
        for each in run.rows
    ]
    found = judge(run, tmp_path)
    assert not found["valid"]
    assert found["invalid_reasons"] == ["G2: 2 rows were not dispatched; 2 client faults"]
    assert window(found, "baseline")["goodput"] == 1.0  # 9 of 9
    assert found["incidence"]["baseline"]["n"] == 9
    assert found["recovery"]["pre_fault"]["baseline"] == 1.0
    assert found["in_flight_loss_fraction"] == 1.0
    assert found["outage_outcomes"]["client_fault"] == 1
    assert found["goodput_by_second"]["scheduled"][3] == 1


def test_interrupted_before_the_fault(tmp_path: Path) -> None:
    # stopped at 9 s: sent from 8.25 on are open (8.25, 8.75), censored; the baseline ends one
    # timeout of 3 s before the stop
    found = judge(story().interrupt(9 * S), tmp_path)
    assert (found["valid"], found["partial"]) == (False, True)
    assert found["invalid_reasons"] == [
        "the fault did not land: the run was interrupted before the fault was due",
        "partial: the run was interrupted by the user",
    ]
    counts = found["counts"]
    # 18 load rows were due by 9 s (0.25 .. 8.75), 46 were not
    assert (counts["scheduled"], counts["censored"], counts["cut"]) == (18, 2, 46)
    assert {c["name"]: (c["start_s"], c["end_s"]) for c in found["windows"]} == {
        "warmup": (0, 2),
        "baseline": (2, 6),
        "guard": (6, 9),
    }
    assert window(found, "baseline")["goodput"] == 1.0
    assert found["outage"] is None


def test_interrupted_during_the_recovery(tmp_path: Path) -> None:
    # stopped at 28 s: decided is what was sent by 25 s (one timeout of 3 s), so seconds 0..14 of
    # the fault are observed; recovery at 4 needs 4 + 2 + 4 of them
    found = judge(story().interrupt(28 * S), tmp_path)
    assert found["ttr_pre_fault_s"] == 4
    assert found["recovery"]["pre_fault"]["redegradations"] == 0  # the open ones are no relapse
    assert window(found, "fault")["end_s"] == 28.0
    assert window(found, "fault")["counts"]["censored"] == 2
    assert found["outage_s"] == 4.149999995
    # stopped at 22 s: seconds 0..8 are observed, one short of the hold
    short = judge(story().interrupt(22 * S), tmp_path / "short")
    assert short["ttr_pre_fault_s"] is None
    assert "hold not observed" in short["recovery"]["pre_fault"]["reason"]


def test_a_recovered_run_was_observed_until_its_workers_last_sign_of_life(tmp_path: Path) -> None:
    run = story().interrupt(28 * S)
    run.manifest["interrupted"] = "its parent process was killed"
    dead = {"ended": False, "exit_status": None, "stopped_ns": None, "heartbeat_ns": 27 * S}
    run.workers = [worker_facts(**dead)]
    found = judge(run, tmp_path)
    assert window(found, "fault")["end_s"] == 27.0
    assert "worker 0 died" in found["invalid_reasons"][0]


def test_times_of_health_checks_are_no_latencies(tmp_path: Path) -> None:
    run = story()
    run.rows += [healthy(3 * S + k) for k in range(50)]
    found = judge(run, tmp_path)
    assert window(found, "baseline")["counts"]["scheduled"] == 10


def test_the_fire_is_not_before_its_own_reads() -> None:
    assert BEFORE <= FIRE <= AFTER


# --- directories that are not whole ------------------------------------------------------


def text(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = json.loads((path / name).read_text())
        change(data)
        (path / name).write_text(json.dumps(data))

    return damage


def table(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        file = path / f"{name}.parquet"
        pq.write_table(change(pq.read_table(file)), file)

    return damage


DAMAGES: dict[str, Callable[[Path], None]] = {
    "no manifest": lambda p: (p / "manifest.json").unlink(),
    "a cut manifest": lambda p: (p / "manifest.json").write_text('{"schema_version": 1,'),
    "a list": lambda p: (p / "manifest.json").write_text("[]"),
    "another version": text("manifest.json", lambda m: m.update(schema_version=1)),
    "under way": text("manifest.json", lambda m: m.update(state="running")),
    "never begun": text("manifest.json", lambda m: m.update(state="preparing")),
    "no state": text("manifest.json", lambda m: m.pop("state")),
    "no config": text("manifest.json", lambda m: m.pop("config")),
    "a config of text": text("manifest.json", lambda m: m.update(config="x")),
    "no phases": text("manifest.json", lambda m: m["config"].pop("phases")),
    "phases of null": text("manifest.json", lambda m: m["config"].update(phases=None)),
    "no limit": text("manifest.json", lambda m: m["config"]["slo"].pop("ttft_s")),
    "no workers": text("manifest.json", lambda m: m.pop("workers")),
    "no run id": text("manifest.json", lambda m: m.pop("run_id")),
    "an empty fault": lambda p: (p / "fault.json").write_text("{}"),
    "a cut fault": lambda p: (p / "fault.json").write_text('{"kind": "kill"'),
    "a fire without reads": text("fault.json", lambda f: f.update(fire={"errno": 0})),
    "no fault": lambda p: (p / "fault.json").unlink(),
    "no requests": lambda p: (p / "requests.parquet").unlink(),
    "no tokens": lambda p: (p / "token_times.parquet").unlink(),
    "no schedule": lambda p: (p / "schedule.parquet").unlink(),
    "no clocks": lambda p: (p / "clocks.parquet").unlink(),
    "no client": lambda p: (p / "client.parquet").unlink(),
    "cut requests": lambda p: (p / "requests.parquet").write_bytes(
        (p / "requests.parquet").read_bytes()[:-100]
    ),
    "empty requests": lambda p: (p / "requests.parquet").write_bytes(b""),
    "a lost row": table("requests", lambda t: t.slice(1)),
    "a doubled row": table("requests", lambda t: t.take([0, *range(len(t) - 1)])),
    "a lost column": table("requests", lambda t: t.drop_columns(["cause"])),
    "another type": table(
        "clocks", lambda t: t.cast(pa.schema([pa.field(name, "double") for name in t.column_names]))
    ),
    "a file": lambda p: (shutil.rmtree(p), p.write_text("")),
    "nothing there": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_is_refused_in_one_line(
    told: Path, tmp_path: Path, damage: str
) -> None:
    place = tmp_path / "run"
    shutil.copytree(told, place)
    DAMAGES[damage](place)
    with pytest.raises(DataError) as caught:
        analyze(place)
    said = str(caught.value)
    assert said
    assert "\n" not in said


def test_an_unfinished_run_is_told_to_be_recovered(told: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(told, place)
    DAMAGES["under way"](place)
    with pytest.raises(DataError, match="percentes-fast recover"):
        analyze(place)


def test_a_kill_that_changes_nothing_hit_another_process(tmp_path: Path) -> None:
    run = story()
    for each in run.rows:
        if each["kind"] == "canary" or each["cause"] in ("stream_end", "plain_end"):
            continue
        at, kind = each["intended_ns"], each["kind"]
        each.update(healthy(at) if kind == "health" else served(kind, at, 100 * MS, S))
    found = analyze(run.write(tmp_path / "run")).summary
    assert not found.valid
    assert [why for why in found.invalid_reasons if "no consequence at the target" in why]
