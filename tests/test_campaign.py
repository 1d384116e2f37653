"""Campaigns over SSH and Docker from the command line: run, judged again, resumed, published.

Does: three short runs against a real container that a killer beside it kills, over a real sshd;
      compares what was concluded with what the kernel, the container engine and the audit say.
Never: takes a printed figure for its own evidence where the raw one is at hand.
Plan: one campaign and everything that must hold of it; one that is interrupted and goes on; one run
      behind docker-proxy.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from percentes_fast.analysis import summary
from percentes_fast.analysis.golden import MARKS
from percentes_fast.analysis.stages import Decomposition
from percentes_fast.rundir import read_log
from real_hosts import Dockerd, Sshd
from remote_run import (
    Done,
    Place,
    ended,
    fault,
    phases,
    published,
    served,
    together,
    wait_evidence,
    wait_second,
)
from whole_run import WITHOUT_CORE, call, manifest, only_timing_faults, report

pytestmark = pytest.mark.slow
RUNS = (1, 2, 3)
SECOND = 1_000_000_000
BLOCKED = f"""{WITHOUT_CORE}
from percentes_fast import cli
sys.exit(cli.call(cli.cli, sys.argv[1:]))
"""
CLAIMS = """
campaign: {name: container-kill, caveat: a simulated server}
predictions:
  - id: C1
    text: each outage is longer than the server's start-up
    bounds: [{quantity: outage_s, above: 0.5}]
  - id: C2
    text: what was surely in flight does not complete
    rule: tight
    bounds:
      - quantity: in_flight/{rule}/determinate/completed
        equals: 0
        needs: in_flight/{rule}/determinate/scheduled
  - id: C3
    text: the median outage is below a tenth of a second
    scope: campaign
    bounds: [{quantity: endpoints/outage_s/summary/median, below: 0.1}]
headline: "{valid_runs} of {planned_runs} runs, outage {endpoints/outage_s/summary/median:.3f} s"
"""
STAGES_FIGURE = '<img alt="Stages from the kill to the first served token'


@dataclass(frozen=True)
class Campaign:
    """A finished campaign and how its command ended."""

    place: Place
    done: Done

    @property
    def out(self) -> Path:
        return self.place.out

    def run(self, number: int) -> Path:
        return self.out / f"run-{number}"


@pytest.fixture(scope="module")
def finished(
    sshd: Sshd, dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Campaign]:
    base = tmp_path_factory.mktemp("campaign") / "victim"
    with served(sshd, dockerd, base, "--access-log") as place:
        config = place.write_config(CLAIMS, timing=phases(recovery_s=4.2))
        done = place.call("--runs", "3", verb="campaign", config=config)
        place.wait_quiet()
    assert done.returncode in (0, 2), done.stderr
    yield Campaign(place, done)


def valid_runs(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in found["runs"] if row["valid"]]


def test_every_run_is_valid(finished: Campaign) -> None:
    found = report(finished.out)
    assert finished.done.returncode == (0 if found["valid"] else 2)
    assert [row["run"] for row in found["runs"]] == list(RUNS)
    assert all(map(only_timing_faults, found["runs"])), found["reasons"]
    assert found["valid_runs"] == len(valid_runs(found)) == 3 - found["invalid_runs"]
    assert found["planned_runs"] == 3
    said = [line for line in finished.done.stderr.splitlines() if line.startswith("run-")]
    assert [line.split(": ")[0] for line in said] == ["run-1", "run-2", "run-3"]


def test_run_k_uses_seed_and_k(finished: Campaign) -> None:
    rows = report(finished.out)["runs"]
    assert [row["seed"] for row in rows] == [2, 3, 4]
    for number in RUNS:
        facts = manifest(finished.run(number))
        assert facts["config"]["seed"] == 1 + number
        assert f"seed={1 + number}" in facts["overrides"]
    sent = [pd.read_parquet(finished.run(k) / "schedule.parquet")["intended_ns"] for k in RUNS]
    assert not any(one.equals(other) for one, other in pairwise(sent))


# ---------------------------------------------------------------- each run's times


@pytest.mark.parametrize("number", RUNS)
def test_stages_sum_to_the_outage_to_the_nanosecond(finished: Campaign, number: int) -> None:
    found = summary.analyze(finished.run(number)).summary
    parts = found.decomposition
    assert isinstance(parts, Decomposition)
    at = {boundary.key: boundary.at_ns for boundary in parts.boundaries}
    known = [(key, moment) for key in MARKS if (moment := at[key]) is not None]
    spans = {f"{a}..{b}": end - start for (a, start), (b, end) in pairwise(known)}
    assert (known[0][0], known[-1][0]) == ("kill", "replica_ready")
    assert {stage.name: round(stage.s * SECOND) for stage in parts.stages} == spans
    assert found.outage_s is not None
    assert sum(spans.values()) == known[-1][1] - known[0][1] == round(found.outage_s * SECOND)
    assert {"container_start", "banner", "server_start"} <= {key for key, _ in known}


@pytest.mark.parametrize("number", RUNS)
def test_the_true_kill_lies_where_each_rule_says(finished: Campaign, number: int) -> None:
    """Killer and client share a kernel here: its monotonic clock is the truth."""
    path = finished.run(number)
    fire, epoch = fault(path)["fire"], manifest(path)["epoch_monotonic_ns"]
    true = [fire["remote"][f"monotonic_{side}_ns"] - epoch for side in ("before", "after")]
    assert fire["before_ns"] < true[0] < true[1] < fire["after_ns"]
    tables = {table["rule"]: table for table in report(path)["in_flight"]}
    assert set(tables) == {"compat", "tight", "bracket"}
    for table in tables.values():
        assert table["applicable"], table["note"]
        assert table["lo_s"] * SECOND <= sum(true) / 2 <= table["hi_s"] * SECOND, table
    tight, bracket = tables["tight"], tables["bracket"]
    assert tight["hi_s"] - tight["lo_s"] < 0.05
    assert fire["before_ns"] <= bracket["lo_s"] * SECOND


@pytest.mark.parametrize("number", RUNS)
def test_clock_samples_of_every_phase(finished: Campaign, number: int) -> None:
    samples = pd.read_parquet(finished.run(number) / "offsets.parquet")
    counts = samples["phase"].value_counts()
    assert set(counts.index) == {"arm", "run", "near", "after", "dial"}
    assert counts["arm"] == counts["after"] == 20
    assert counts["near"] == 10
    assert min(counts["run"], counts["dial"]) >= 5  # one a second
    dials = samples["phase"] == "dial"
    assert samples.loc[dials, "remote_wall_ns"].isna().all()
    assert (samples.loc[dials, "round_trip_ns"] > 0).any()
    readings = samples[~dials]
    assert (readings["before_ns"] < readings["after_ns"]).all()
    assert report(finished.run(number))["clock"]["step"] is None


# ---------------------------------------------------------------- each run's server


@pytest.mark.parametrize("number", RUNS)
def test_metrics_are_there_and_the_queue_was_observed(finished: Campaign, number: int) -> None:
    path = finished.run(number)
    metrics = pd.read_parquet(path / "metrics.parquet")
    assert {"waiting", "running"} <= set(metrics["quantity"].dropna())
    (gate,) = (gate for gate in report(path)["gates"] if gate["id"] == "G7")
    assert gate["applicable"] and gate["observed"] and gate["passed"], gate


@pytest.mark.parametrize("number", RUNS)
def test_the_container_was_restarted_once_a_run(finished: Campaign, number: int) -> None:
    path = finished.run(number)
    told = fault(path)["container"]
    before, after = told["before"], told["after"]
    assert (before["restart_count"], after["restart_count"]) == (number - 1, number)
    assert before["id"] == after["id"]
    kill_ns = fault(path)["fire"]["remote"]["before_remote_wall_ns"]
    events = [e["action"] for e in told["events"] if e["at_remote_wall_ns"] > kill_ns]
    assert events == ["die", "start"]
    stamps = [stamp for stamp, _, _ in read_log(path / "server.log")]
    assert stamps == sorted(stamps)
    assert kill_ns - 5 * SECOND <= stamps[0] < kill_ns < stamps[-1]
    assert len(stamps) == told["log_lines"]


# ---------------------------------------------------------------- the campaign's report


def test_predictions_and_headline(finished: Campaign) -> None:
    found = report(finished.out)
    verdicts = {each["id"]: each["verdict"] for each in found["predictions"]}
    assert set(verdicts) == {"C1", "C2", "C3"}
    if valid_runs(found):
        assert verdicts == {"C1": "held", "C2": "held", "C3": "refuted"}
        median = next(e for e in found["endpoints"] if e["name"] == "outage_s")["summary"]["median"]
        text = f"{found['valid_runs']} of 3 runs, outage {median:.3f} s"
        assert found["headline"]["text"] == text
    assert len(found["claims_sha256"]) == 64
    for number in RUNS:
        assert {each["id"] for each in report(finished.run(number))["predictions"]} >= {"C1", "C2"}


def test_the_pages_hold_the_stages_figure(finished: Campaign) -> None:
    for path in (finished.out, *map(finished.run, RUNS)):
        page = (path / "report.html").read_text()
        assert STAGES_FIGURE in page
        assert "data:image/png;base64," in page


def test_analyze_of_a_copy_is_byte_identical(finished: Campaign, tmp_path: Path) -> None:
    """With the compiled core and without."""
    copies = {name: tmp_path / name for name in ("with", "without")}
    for copy in copies.values():
        shutil.copytree(finished.out, copy)
        for path in (copy, *(copy / f"run-{number}" for number in RUNS)):
            for name in ("report.json", "report.txt", "report.html"):
                (path / name).unlink()
    without = [sys.executable, "-c", BLOCKED, "analyze", str(copies["without"])]
    done = together(
        {
            "with": partial(call, "analyze", str(copies["with"]), cwd=tmp_path),
            "without": lambda: subprocess.run(
                without, capture_output=True, text=True, check=False, timeout=120
            ),
        }
    )
    for name, copy in copies.items():
        assert done[name].returncode == finished.done.returncode, done[name].stderr
        assert (copy / "report.json").read_bytes() == (finished.out / "report.json").read_bytes()


def test_the_published_form_agrees_with_its_audit(finished: Campaign, tmp_path: Path) -> None:
    said = call("report", str(finished.out), "--format", "percentes", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    (tmp_path / "published.json").write_text(said.stdout)
    audited = call("audit", "published.json", cwd=tmp_path)
    assert audited.returncode == 0, audited.stdout
    assert " figures re-derived, 0 differ, " in audited.stdout.splitlines()[-1]
    ours = report(finished.out)
    runs = json.loads(said.stdout)["campaign"]["per_run"]
    assert len(runs) == 3
    for row, theirs in zip(ours["runs"], runs, strict=True):
        known = theirs["container"]["fire_uncertainty_ns"] / SECOND
        assert row["fire_uncertainty_s"] == theirs["fire_uncertainty_s"] == known
        for key in ("outage_s", "container_start_s", "ttr_pre_fault_s", "in_flight_loss_fraction"):
            assert row[key] == theirs[key], key


# ---------------------------------------------------------------- interrupted, and behind a proxy


@dataclass(frozen=True)
class Resumed:
    """A campaign that was interrupted after the kill of its second run, and went on."""

    place: Place
    busy: Done  # the same command while the first one ran
    interrupted: Done
    kept: tuple[bytes, bytes]  # records and manifest of run 1 then
    other: Done  # another configuration in between
    done: Done
    kept_after: tuple[bytes, bytes]


def records(path: Path) -> tuple[bytes, bytes]:
    return (path / "requests.parquet").read_bytes(), (path / "manifest.json").read_bytes()


def resume(sshd: Sshd, dockerd: Dockerd, base: Path) -> Resumed:
    with served(sshd, dockerd, base) as place:
        config = place.write_config(timing=phases(recovery_s=1.6))
        again: dict[str, Any] = {"verb": "campaign", "config": config}
        running = place.start("--runs", "3", **again)
        wait_second(place.out / "run-1", 0.5, running)
        busy = place.call("--runs", "3", **again)
        wait_evidence(place.out / "run-2", running)
        running.send_signal(signal.SIGINT)
        interrupted = ended(running)
        kept = records(place.out / "run-1")
        other = place.call("--runs", "3", "--seed", "9", **again)
        done = place.call("--runs", "3", **again)
        return Resumed(place, busy, interrupted, kept, other, done, records(place.out / "run-1"))


def behind_proxy(sshd: Sshd, dockerd: Dockerd, base: Path) -> Campaign:
    with published(sshd, dockerd, base) as place:
        config = place.write_config(timing=phases(timeout_s=2, kill_at_s=4.5, recovery_s=5))
        return Campaign(place, place.call(config=config))


@pytest.fixture(scope="module")
def others(
    sshd: Sshd, dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    base = tmp_path_factory.mktemp("others")
    return together(
        {
            name: partial(scene, sshd, dockerd, base / name)
            for name, scene in (("resumed", resume), ("proxied", behind_proxy))
        }
    )


@pytest.fixture
def resumed(others: dict[str, Any]) -> Resumed:
    found: Resumed = others["resumed"]
    return found


@pytest.fixture
def proxied(others: dict[str, Any]) -> Campaign:
    found: Campaign = others["proxied"]
    assert found.done.returncode in (0, 2), found.done.stderr
    return found


def one_line(done: Done) -> str:
    assert done.returncode == 1, done.stdout
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("percentes-fast: ")
    return line


def test_an_interrupted_campaign_says_how_to_go_on(resumed: Resumed) -> None:
    assert resumed.interrupted.returncode == 130, resumed.interrupted.stderr
    last = resumed.interrupted.stderr.splitlines()[-1]
    assert last.endswith("run 2 was interrupted; the same command goes on with it")


def test_the_same_command_goes_on(resumed: Resumed) -> None:
    out = resumed.place.out
    found = report(out)
    assert resumed.done.returncode == (0 if found["valid"] else 2), resumed.done.stderr
    assert resumed.kept == resumed.kept_after
    kept = {row["directory"] for row in found["runs"]}
    (dropped,) = (each for each in found["dropped"] if each["directory"] not in kept)
    assert (dropped["run"], dropped["directory"]) == (2, "run-2-interrupted-1")
    assert "interrupted" in dropped["reason"]
    assert report(out / dropped["directory"])["partial"]
    assert [row["run"] for row in found["runs"]] == list(RUNS)
    assert all(map(only_timing_faults, found["runs"])), found["reasons"]
    assert found["valid_runs"] + found["invalid_runs"] == 3
    ids = [row["run_id"] for row in found["runs"]]
    assert len({*ids, report(out / dropped["directory"])["run_id"]}) == 4
    said = [line for line in resumed.done.stderr.splitlines() if line.startswith("run-")]
    assert [line.split(":")[0] for line in said] == ["run-2", "run-3"]


def test_audit_knows_of_the_kill_between_the_runs(resumed: Resumed, tmp_path: Path) -> None:
    """Of the attempt that is not in the file: without the gate that says so two figures differ."""
    said = call("report", str(resumed.place.out), "--format", "percentes", cwd=tmp_path)
    document = json.loads(said.stdout)
    boxes = [run["container"] for run in document["campaign"]["per_run"]]
    assert [box["before"]["restart_count"] for box in boxes] == [0, 2, 3]
    gates = document["validity_gates"][1]["gates"]
    assert gates[-1]["detail"].startswith("since run-1: run-2-interrupted-1: ")
    for differing in (0, 2):
        (tmp_path / "told.json").write_text(json.dumps(document))
        audited = call("audit", "told.json", cwd=tmp_path)
        assert f", {differing} differ, " in audited.stdout.splitlines()[-1]
        gates[-1:] = []


def test_another_configuration_is_refused(resumed: Resumed) -> None:
    assert "another configuration or other overrides" in one_line(resumed.other)


def test_a_campaign_under_way_is_left_alone(resumed: Resumed) -> None:
    assert "its campaign is under way" in one_line(resumed.busy)


def test_docker_proxy_accepts_and_resets_while_the_server_starts(proxied: Campaign) -> None:
    """Refused only until the proxy is up again, which it is before the container is."""
    told = fault(proxied.out)
    fire_ns, wall_ns = told["fire"]["after_ns"], manifest(proxied.out)["epoch_wall_ns"]
    died, started = (e["at_remote_wall_ns"] - wall_ns for e in told["container"]["events"][-2:])
    found = report(proxied.out)
    ready_ns = fire_ns + round(found["outage"]["first_served_token"]["at_s"] * SECOND)
    rows = pd.read_parquet(proxied.out / "requests.parquet")
    after = rows[(rows["target"] == "server") & (rows["dispatch_ns"] > fire_ns)]
    refused, reset = (after[after["error_class"] == name] for name in ("connect", "reset"))
    assert set(refused["errno"]) <= {111}
    assert set(reset["cause"]) <= {"reset", "no_response"}
    assert reset["headers_ns"].isna().all()
    assert died < started
    assert (refused["dispatch_ns"] < started).all()
    assert (reset["dispatch_ns"] > started).any()
    assert (reset["dispatch_ns"] < ready_ns).all()
    counts = found["outage_outcomes"]["errored_by_class"]
    assert counts["reset"] > counts.get("connect", 0)
    assert set(counts) <= {"reset", "connect"}


def test_the_bracket_does_not_apply_behind_docker_proxy(proxied: Campaign) -> None:
    found = report(proxied.out)
    assert only_timing_faults(found), found["invalid_reasons"]
    tables = {table["rule"]: table for table in found["in_flight"]}
    bracket = tables.pop("bracket")
    assert not bracket["applicable"]
    assert bracket["note"].startswith("not applicable behind a proxy: the container's network is")
    assert "'bridge'" in bracket["note"]
    assert all(table["applicable"] and table["total"] for table in tables.values())
