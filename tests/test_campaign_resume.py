"""Campaigns of this machine alone that go on: a full disk, a restart, and whose pid it is by then.

Does: fills a disk under a real run, kills its process and takes its slabs away as a restart of the
      machine does, stops and kills real servers.
Never: needs a container or another host.
Plan: a run that was measured whole is kept; one whose records are lost is done again; one --pid for
      several runs, and a process that is not the one which an earlier run was armed at.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from percentes_fast.engine.slabs import Slab
from whole_run import (
    call,
    free_port,
    is_running,
    manifest,
    mock_command,
    report,
    run_seconds,
    start,
    wait_for,
)

pytestmark = pytest.mark.slow
FAST = """
load: {rate: 20, prompt_tokens: 8, max_tokens: 15, timeout_s: 1}
phases: {warmup_s: 0.5, kill_at_s: 2.5, recovery_s: 2, cooldown_s: 0.5}
mock: {startup_s: 0.3}
detector: {window_s: 1, hold_s: 1}
serve: {ready_timeout_s: 5}
fault: {stop_s: 0.5}
"""


def write_config(base: Path) -> str:
    path = base / "fast.yaml"
    path.write_text(FAST)
    return str(path)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def alive(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


# ---------------------------------------------------------------- measured whole


def test_a_run_that_only_the_disk_had_no_room_for_is_kept(tmp_path: Path) -> None:
    """On a 64 MiB file system of our own, filled mid-run; the same command then stores and judges
    what was measured, and does nothing again.
    """
    script = f"""
set -e
mkdir disk; mount -t tmpfs -o size=64m tmpfs disk
go="{sys.executable} -m percentes_fast.cli campaign --config {write_config(tmp_path)}
 --runs 1 --out disk/out --quiet"
$go &
campaign=$!
until grep -q '"state": "running"' disk/out/run-1/manifest.json 2>/dev/null; do sleep 0.1; done
dd if=/dev/zero of=disk/filler bs=1M 2>/dev/null || true
set +e; wait $campaign; echo "first $?"; set -e
rm disk/filler; cp disk/out/run-1/manifest.json before.json
set +e; $go; echo "second $?"; set -e
ls disk/out; cp -r disk/out out
"""
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "bash", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert "first 1" in done.stdout, done.stdout + done.stderr
    assert "disk is full" in done.stderr
    assert "second 0" in done.stdout or "second 2" in done.stdout, done.stdout + done.stderr
    out, before = tmp_path / "out", read(tmp_path / "before.json")
    assert before["state"] == "running"
    now = manifest(out / "run-1")
    assert (now["state"], now["run_id"]) == ("complete", before["run_id"])
    assert now["epoch_monotonic_ns"] == before["epoch_monotonic_ns"]
    assert now["canary_server"]["requests"] > 5  # known only after the load
    assert not list((out / "run-1").glob("*.journal"))
    assert [path.name for path in out.glob("run-*")] == ["run-1"]
    assert read(out / "campaign.json")["dropped"] == []
    assert not report(out / "run-1")["partial"]
    assert [row["run_id"] for row in report(out)["runs"]] == [before["run_id"]]


# ---------------------------------------------------------------- its records are lost


def test_after_a_restart_of_the_machine_the_run_is_done_again(tmp_path: Path) -> None:
    words = ("campaign", "--config", write_config(tmp_path), "--runs", "1", "--out", "out")
    run = tmp_path / "out" / "run-1"
    running = start(*words, cwd=tmp_path)
    wait_for(lambda: is_running(run))
    wait_for(lambda: run_seconds(run) > 1.0)
    lost = manifest(run)
    opened = [Slab(Path(name)) for name in lost["slabs"]]
    workers = [slab.word("pid") for slab in opened]
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    wait_for(lambda: not any(map(alive, workers)))
    for slab in opened:
        slab.close()
        slab.path.unlink()
    done = call(*words, cwd=tmp_path)
    assert done.returncode in (0, 2), done.stderr
    (dropped,) = read(tmp_path / "out" / "campaign.json")["dropped"]
    assert (dropped["run"], dropped["directory"]) == (1, "run-1-interrupted-1")
    assert dropped["reason"].startswith("was running: its records are lost (slab /dev/shm/")
    assert dropped["reason"].endswith("), and done again")
    assert manifest(tmp_path / "out" / dropped["directory"])["run_id"] == lost["run_id"]
    (row,) = report(tmp_path / "out")["runs"]
    assert row["run_id"] == manifest(run)["run_id"] != lost["run_id"]


# ---------------------------------------------------------------- --pid


@dataclass(frozen=True)
class Server:
    """A simulated server that nothing restarts."""

    base: Path
    process: subprocess.Popen[bytes]
    port: int

    @property
    def state(self) -> str:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2][0]

    def words(self, out: str, *more: str) -> tuple[str, ...]:
        where = ("--target", f"http://127.0.0.1:{self.port}", "--pid", str(self.process.pid))
        config = ("--config", str(self.base / "fast.yaml"))
        return ("campaign", *config, *where, "--out", out, "--quiet", *more)

    def armed(self, run: Path, *, at_another: bool = False) -> dict[str, Any]:
        """Whom a run was armed at; at_another: makes that a process with its pid, 10 ms older."""
        facts = read(run / "fault.json")
        if at_another:
            facts["armed"]["start_ticks"] -= 1
            (run / "fault.json").write_text(json.dumps(facts))
        found: dict[str, Any] = facts["armed"]
        return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    port = free_port()
    write_config(tmp_path)
    process = subprocess.Popen(
        mock_command(port, 0.3).split(), stderr=subprocess.DEVNULL, start_new_session=True
    )
    yield Server(tmp_path, process, port)
    process.kill()
    process.wait()


def told(stranger: Path, pid: int) -> str:
    return (
        f"--pid {pid}: the process that {stranger.name} was armed at (pid {pid}) has ended since;"
        " begin a new campaign with the server's pid of now"
    )


def test_one_process_is_stopped_in_every_run(server: Server, tmp_path: Path) -> None:
    stop = ("--fault", "stop", "--runs", "2")
    done = call(*server.words("out", *stop), cwd=tmp_path)
    assert done.returncode in (0, 2), done.stderr
    runs = [tmp_path / "out" / f"run-{number}" for number in (1, 2)]
    assert read(tmp_path / "out" / "campaign.json")["dropped"] == []
    assert all(read(run / "fault.json")["evidence"]["stopped"] for run in runs)
    assert server.armed(runs[0]) == server.armed(runs[1])
    # the same, but for a server that ended after run 1, whose pid another process has
    shutil.rmtree(runs[1])
    server.armed(runs[0], at_another=True)
    done = call(*server.words("out", *stop), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    (dropped,) = read(tmp_path / "out" / "campaign.json")["dropped"]
    reason = f"could not start: {told(runs[0], server.process.pid)}"
    assert dropped == {"run": 2, "reason": reason, "directory": None}
    assert not runs[1].exists()
    assert server.state == "S"


def test_a_run_done_again_kills_only_the_same_process(server: Server, tmp_path: Path) -> None:
    run = tmp_path / "out" / "run-1"
    running = start(*server.words("out", "--runs", "1"), cwd=tmp_path)
    wait_for(lambda: is_running(run))
    wait_for(lambda: run_seconds(run) > 0.5)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    shutil.copytree(tmp_path / "out", tmp_path / "reused")
    server.armed(tmp_path / "reused" / "run-1", at_another=True)
    for _ in range(2):  # as often as it is tried
        done = call(*server.words("reused", "--runs", "1"), cwd=tmp_path)
        aside = tmp_path / "reused" / "run-1-interrupted-1"
        assert done.returncode == 1
        assert done.stderr == f"percentes-fast: {told(aside, server.process.pid)}\n"
        assert server.process.poll() is None
    done = call(*server.words("out", "--runs", "1"), cwd=tmp_path)  # it is the same process there
    assert done.returncode in (0, 2), done.stderr
    assert server.armed(run) == server.armed(run.with_name("run-1-interrupted-1"))
    assert server.process.wait(10) == -signal.SIGKILL
    assert read(run / "fault.json")["fire"]["errno"] == 0


def test_a_pid_for_several_kills_is_refused(server: Server, tmp_path: Path) -> None:
    done = call(*server.words("out"), cwd=tmp_path)  # five runs are the default
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"percentes-fast: fault.pid (--pid {server.process.pid}): is gone after")
    assert "use --runs 1, or --serve or --container" in line
    assert not (tmp_path / "out").exists()
    assert server.process.poll() is None
