"""Whole runs on the embedded server: the kill, the records, the judgement, again elsewhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from percentes_fast.config import load
from percentes_fast.engine.schedule import build
from percentes_fast.rundir import read_log
from whole_run import (
    WITHOUT_CORE,
    call,
    manifest,
    only_timing_faults,
    report,
    requests,
    short_config,
)

pytestmark = pytest.mark.slow
BLOCKED = f"""{WITHOUT_CORE}
from percentes_fast import cli
sys.exit(cli.call(cli.cli, sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """(run directory, exit status) of one whole run with two workers where the machine has them."""
    base = tmp_path_factory.mktemp("run")
    done = call("run", "--config", short_config(base), "--out", "run", cwd=base)
    assert done.returncode in (0, 2), done.stderr
    return base / "run", done.returncode


def test_exit_status_says_valid(finished: tuple[Path, int]) -> None:
    out, status = finished
    found = report(out)
    assert status == (0 if found["valid"] else 2)
    assert only_timing_faults(found), found["invalid_reasons"]


def test_every_scheduled_row_is_one_record(finished: tuple[Path, int]) -> None:
    out, _ = finished
    schedule = pd.read_parquet(out / "schedule.parquet")
    rows = requests(out)
    assert rows["index"].tolist() == schedule["index"].tolist() == list(range(len(rows)))
    assert (rows["intended_ns"] == schedule["intended_ns"]).all()
    for counts in report(out)["counts_by_kind"].values():
        states = ("completed", "errored", "censored", "client_fault")
        assert counts["scheduled"] == sum(counts[state] for state in states)
        assert counts["errored"] == sum(counts["errored_by_class"].values())


def test_the_schedule_is_a_function_of_the_configuration(finished: tuple[Path, int]) -> None:
    out, _ = finished
    config = load(out / "config.yaml").config
    stored = pd.read_parquet(out / "schedule.parquet")
    assert np.array_equal(build(config).intended_ns, stored["intended_ns"].to_numpy())


def test_what_the_clients_saw(finished: tuple[Path, int]) -> None:
    out, _ = finished
    found = report(out)
    caught = found["in_flight_determinate"]
    assert caught["total"] > 0
    assert caught["errored"] == caught["total"]
    assert set(found["in_flight_errored_by_class"]) <= {"malformed_stream", "reset"}
    assert found["counts"]["censored"] == 0
    rows = requests(out)
    down = rows[(rows["kind"] == "load") & (rows["cause"] == "connect")]
    assert len(down) > 0
    assert set(down["error_class"]) == {"connect"}
    assert set(down["errno"]) == {111}


def test_the_kill_lies_between_its_clock_reads(finished: tuple[Path, int]) -> None:
    out, _ = finished
    fault = json.loads((out / "fault.json").read_text())
    assert fault["fire"]["before_ns"] >= fault["planned_ns"]
    assert fault["fire"]["before_ns"] < fault["fire"]["after_ns"] < fault["evidence"]["gone_ns"]
    rows = requests(out)
    victims = rows[(rows["kind"] == "load") & rows["cause"].isin(["body_cut", "reset"])]
    assert (victims["ended_ns"] > fault["fire"]["before_ns"]).all()


def test_outage_against_the_servers_own_log(finished: tuple[Path, int]) -> None:
    """Outage - downtime lies between 0 and a probe's period and answer, and scheduling noise."""
    out, _ = finished
    epoch = manifest(out)["epoch_monotonic_ns"]
    fire = json.loads((out / "fault.json").read_text())["fire"]["after_ns"]
    ready = [
        stamp - epoch
        for stamp, _, text in read_log(out / "server.log")
        if "Application startup complete" in text and stamp - epoch > fire
    ]
    downtime = (ready[0] - fire) / 1e9
    assert downtime >= 1.5  # the start-up it was told
    assert -0.05 < report(out)["outage_s"] - downtime < 3.0


def test_four_moments_in_order(finished: tuple[Path, int]) -> None:
    out, _ = finished
    gone = report(out)["outage"]
    moments = [gone[name]["at_s"] for name in ("port_answers", "health_200", "first_served_token")]
    assert all(moment is not None and moment > 1.5 for moment in moments)
    assert moments[0] <= min(moments[1:])
    assert gone["resolution_s"] > 0


def test_tokens_and_kernel_stamps(finished: tuple[Path, int]) -> None:
    out, _ = finished
    rows = requests(out)
    tokens = pd.read_parquet(out / "token_times.parquet")
    done = rows[(rows["kind"] == "load") & (rows["outcome"] == "completed")]
    assert (done["content_events"] == 40).all()
    assert (done["completion_tokens"] == 40).all()
    assert (done["finish_reason"] == "length").all()
    per_row = tokens.groupby("index").size()
    assert (per_row[done["index"]] == 40).all()
    stamped = rows[rows["sent_kernel_ns"].notna()]
    assert len(stamped) > 0.9 * len(rows[rows["sent_ns"].notna()])
    assert (stamped["sent_kernel_ns"] > stamped["dispatch_ns"] - 100_000).all()


def test_analyze_of_a_copy_is_byte_identical(finished: tuple[Path, int], tmp_path: Path) -> None:
    out, status = finished
    before = (out / "report.json").read_bytes()
    copy = tmp_path / "elsewhere"
    shutil.copytree(out, copy)
    for name in ("report.json", "report.txt", "report.html"):
        (copy / name).unlink()
    assert call("analyze", str(copy), "--quiet", cwd=tmp_path).returncode == status
    assert (copy / "report.json").read_bytes() == before


def test_analyze_without_the_extension(finished: tuple[Path, int], tmp_path: Path) -> None:
    out, status = finished
    copy = tmp_path / "elsewhere"
    shutil.copytree(out, copy)
    (copy / "report.json").unlink()
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, "analyze", str(copy)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == status, done.stderr
    assert (copy / "report.json").read_bytes() == (out / "report.json").read_bytes()


def test_measuring_without_the_extension_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, "run", "--out", str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "compiled core" in done.stderr


@pytest.mark.parametrize("shape", ["text", "json", "html"])
def test_report_prints_each_format(finished: tuple[Path, int], shape: str) -> None:
    out, _ = finished
    done = call("report", str(out), "--format", shape, cwd=out.parent)
    assert done.returncode == 0, done.stderr
    if shape == "json":
        assert done.stdout.encode() == (out / "report.json").read_bytes()
    else:
        assert "served again" in done.stdout


def test_nothing_is_left_in_shared_memory(finished: tuple[Path, int]) -> None:
    out, _ = finished
    run_id = manifest(out)["run_id"]
    assert not list(Path("/dev/shm").glob(f"percentes-fast-{run_id}*"))
    assert manifest(out)["slabs"] == []
    assert not list(out.glob("*.journal"))
