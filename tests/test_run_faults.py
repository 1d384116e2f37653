"""Runs to which something happens: other targets, Ctrl-C, a dead worker, a killed parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from percentes_fast.engine.slabs import Slab
from whole_run import (
    call,
    free_port,
    is_running,
    manifest,
    mock_command,
    only_timing_faults,
    report,
    requests,
    run_seconds,
    short_config,
    start,
    wait_for,
)

pytestmark = pytest.mark.slow


def test_kill_group_of_a_served_command(tmp_path: Path) -> None:
    """The group that the supervisor made dies whole: a child of the server does not survive."""
    port = free_port()
    script = tmp_path / "server.sh"
    script.write_text(f"sleep 600 &\nexec {mock_command(port, 1)}\n")
    done = call(
        "run", "--config", short_config(tmp_path), "--serve", f"bash {script}", "--target",
        f"http://127.0.0.1:{port}", "--fault", "kill_group", "--out", "run", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode in (0, 2), done.stderr
    found = report(tmp_path / "run")
    assert only_timing_faults(found), found["invalid_reasons"]
    fault = json.loads((tmp_path / "run" / "fault.json").read_text())
    assert fault["kind"] == "kill_group"
    assert fault["evidence"]["survivors"] == []
    assert found["outage_s"] > 1.0
    assert not _alive(fault["armed"]["pid"])


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """(port, pid) of a server that a shell loop, not we, restarts."""
    port, pids = free_port(), tmp_path / "pids"
    loop = f"while :; do {mock_command(port, 1)} & echo $! >> {pids}; wait $!; done"
    shell = subprocess.Popen(
        ["bash", "-c", loop], start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: pids.exists() and pids.read_text().strip() != "")
        yield port, int(pids.read_text().split()[0])
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def test_pid_of_a_server_that_something_else_restarts(
    restarted: tuple[int, int], tmp_path: Path
) -> None:
    port, pid = restarted
    time.sleep(2.5)  # its start-up
    done = call(
        "run", "--config", short_config(tmp_path), "--pid", str(pid), "--target",
        f"http://127.0.0.1:{port}", "--out", "run", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode in (0, 2), done.stderr
    found = report(tmp_path / "run")
    assert only_timing_faults(found), found["invalid_reasons"]
    assert found["fault"]["landed"]
    assert found["outage_s"] > 1.0


def test_load_only(restarted: tuple[int, int], tmp_path: Path) -> None:
    port, _ = restarted
    time.sleep(2.5)
    config = tmp_path / "load.yaml"
    config.write_text("load: {rate: 20, prompt_tokens: 4, max_tokens: 4, timeout_s: 2}\n")
    done = call(
        "run", "--config", str(config), "--target", f"http://127.0.0.1:{port}", "--fault", "none",
        "--warmup", "0.5", "--cooldown", "0.5", "--duration", "4", "--kill-at", "3", "--out", "run",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode in (0, 2), done.stderr
    found = report(tmp_path / "run")
    assert only_timing_faults(found), found["invalid_reasons"]
    assert found["fault"] is None
    assert found["outage_s"] is None
    assert found["counts"]["completed"] == found["counts"]["scheduled"] > 40
    assert not (tmp_path / "run" / "fault.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_what_was_measured(number: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = start("run", "--config", short_config(tmp_path), "--out", "run", cwd=tmp_path)
    wait_for(lambda: is_running(out))
    wait_for(lambda: run_seconds(out) > 2.5)
    running.send_signal(number)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    rows = requests(out)
    assert len(rows[rows["outcome"] == "cut"]) > 0
    assert len(rows[rows["cause"] == "stopped"]) > 0
    assert set(rows.loc[rows["cause"] == "stopped", "outcome"]) == {"censored"}
    assert len(rows[rows["outcome"] == "completed"]) > 20
    assert not (rows["outcome"] == "client_fault").any()
    found = report(out)
    assert found["partial"]
    assert not found["fault"]["landed"]


STOPPED = """
load: {rate: 20, prompt_tokens: 8, max_tokens: 40, timeout_s: 2}
phases: {warmup_s: 0.5, kill_at_s: 3, recovery_s: 2, cooldown_s: 0.5}
mock: {startup_s: 0.5}
"""


def test_a_parent_that_was_kept_from_running_says_so(tmp_path: Path) -> None:
    """Stopped over the rest of the load: nothing fires, nothing is lost, the machine is named."""
    out = tmp_path / "run"
    (tmp_path / "stopped.yaml").write_text(STOPPED)
    running = start("run", "--config", "stopped.yaml", "--out", "run", cwd=tmp_path)
    wait_for(lambda: is_running(out))
    wait_for(lambda: run_seconds(out) > 1)
    running.send_signal(signal.SIGSTOP)
    time.sleep(8)  # the load is 5.5 s long, and nothing of it is late
    running.send_signal(signal.SIGCONT)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 2, stderr
    found = report(out)
    assert "the machine kept this process from running" in " ".join(found["invalid_reasons"])
    assert found["counts"]["completed"] == found["counts"]["scheduled"] > 80
    assert 5 < found["client"]["parent_gap_max_s"] < 20
    assert "the machine kept the parent from running" in (out / "report.txt").read_text()


def _policies(pid: int) -> set[int]:
    """Schedulers of a process's threads."""
    threads = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    return {os.sched_getscheduler(each) & ~os.SCHED_RESET_ON_FORK for each in threads}


def test_a_killed_worker_is_a_client_fault_and_no_hang(tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = start("run", "--config", short_config(tmp_path), "--out", "run", cwd=tmp_path)
    wait_for(lambda: is_running(out))
    wait_for(lambda: run_seconds(out) > 2.0)
    slab = Slab(Path(manifest(out)["slabs"][0]))
    os.kill(slab.word("pid"), signal.SIGKILL)
    slab.close()
    _, stderr = running.communicate(timeout=90)
    assert running.returncode == 2, stderr
    found = report(out)
    assert found["counts"]["client_fault"] > 0
    assert found["counts"]["completed"] > 5
    assert any("died" in reason for reason in found["invalid_reasons"])


def test_a_killed_parent_loses_nothing_that_had_ended(tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = start("run", "--config", short_config(tmp_path), "--out", "run", cwd=tmp_path)
    wait_for(lambda: is_running(out))
    wait_for(lambda: run_seconds(out) > 7.0)  # the kill at 5 s is among what must be kept
    slab = Slab(Path(manifest(out)["slabs"][0]))
    causes = list(slab.column("cause"))
    ended_before = [row for row, cause in enumerate(causes) if cause > 1]
    server = json.loads((out / "fault.json").read_text())
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    refused = call("analyze", str(out), cwd=tmp_path)
    assert refused.returncode == 1
    assert "recover" in refused.stderr
    done = call("recover", str(out), cwd=tmp_path)
    assert done.returncode == 130, done.stderr
    rows = requests(out).set_index("index")
    assert len(ended_before) > 50
    for row in ended_before:
        assert rows.loc[slab.column("index")[row], "cause"] == _name(causes[row])
    slab.close()
    found = report(out)
    assert found["partial"]
    assert found["fault"]["fire_s"] == pytest.approx(server["fire"]["before_ns"] / 1e9, abs=0.01)
    assert found["counts"]["cut"] > 0
    assert not list(Path("/dev/shm").glob(f"percentes-fast-{manifest(out)['run_id']}*"))
    assert call("recover", str(out), cwd=tmp_path).returncode == 1  # nothing left to recover


def _name(cause: int) -> str:
    from percentes_fast.schema import CAUSE_NAMES

    return CAUSE_NAMES[cause]


def test_the_parents_death_ends_server_and_workers(tmp_path: Path) -> None:
    out = tmp_path / "run"
    running = start("run", "--config", short_config(tmp_path), "--out", "run", cwd=tmp_path)
    wait_for(lambda: is_running(out))
    wait_for(lambda: run_seconds(out) > 1.0)
    server = json.loads((out / "fault.json").read_text())["armed"]["pid"]
    slab = Slab(Path(manifest(out)["slabs"][0]))
    worker = slab.word("pid")
    slab.close()
    assert manifest(out)["scheduler"] == {"parent": "fifo", "refused": None}
    assert (_policies(running.pid), _policies(server)) == ({os.SCHED_FIFO}, {os.SCHED_OTHER})
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    wait_for(lambda: not _alive(server) and not _alive(worker), timeout=20)
    assert call("recover", str(out), cwd=tmp_path).returncode == 130


def test_disk_that_fills_during_the_run(tmp_path: Path) -> None:
    """On a 64 MiB file system of our own, filled mid-run: exit 1, then recover has everything."""
    script = f"""
set -e
mkdir disk; mount -t tmpfs -o size=64m tmpfs disk
config={short_config(tmp_path)}
{sys.executable} -m percentes_fast.cli run --config $config --out disk/run --quiet &
run=$!
until grep -q '"state": "running"' disk/run/manifest.json 2>/dev/null; do sleep 0.1; done
dd if=/dev/zero of=disk/filler bs=1M 2>/dev/null || true
set +e; wait $run; echo "status $?"; set -e
rm disk/filler
set +e; {sys.executable} -m percentes_fast.cli recover disk/run >/dev/null; echo "recovered $?"
cp disk/run/report.json report.json
"""
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "bash", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert "status 1" in done.stdout, done.stdout + done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("percentes-fast:")]
    assert len(said) == 1, done.stderr
    assert "disk is full" in said[0]
    assert "recover" in said[0]
    assert "recovered 0" in done.stdout or "recovered 2" in done.stdout, done.stdout + done.stderr
    found = json.loads((tmp_path / "report.json").read_text())
    assert not found["partial"]
    assert found["counts"]["client_fault"] == 0
    assert found["counts"]["cut"] == 0
