"""Whose records are recovered: the run's own process, a stranger with its pid, slabs that are gone.

Does: starts real processes (one of them with a hostile name, a zombie, one that works on a slab).
Never: leaves one behind.
Plan: who a process is; a run directory whose slabs are gone tells by its refusal whether its parent
was taken for alive; a worker that still ends is waited for, another process with its pid is not.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from percentes_fast import rundir, schema, store
from percentes_fast.engine import slabs
from percentes_fast.errors import ClientError, DataError
from whole_run import wait_for

OURS = "import sys; print(flush=True); sys.stdin.read()"
RECOVER = """
import sys
from pathlib import Path
from percentes_fast import store
try:
    store.recover(Path(sys.argv[1]), None)
except Exception as exc:
    print(exc)
"""
WORK = """
import sys, time
from pathlib import Path
from percentes_fast.engine import slabs
slab = slabs.Slab(Path(sys.argv[1]))
print(flush=True)
time.sleep(1)
slab.set_word("state", slabs.STATE_ENDED)
sys.stdin.read()
"""
Starter = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Starter]:
    """Starts processes that live until their input ends."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str, **options: Any) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen(words, text=True, **pipes, **options))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def ours(start: Starter) -> subprocess.Popen[str]:
    """A process whose command line says percentes."""
    process = start(sys.executable, "-c", OURS, "percentes-fast")
    assert process.stdout is not None
    process.stdout.readline()
    return process


# ---------------------------------------------------------------- who a process is


def uptime_ticks() -> float:
    return float(Path("/proc/uptime").read_text().split()[0]) * os.sysconf("SC_CLK_TCK")


def test_start_ticks_of_a_process_with_a_hostile_name(start: Starter, tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 (b"  # the kernel keeps 15 bytes of it, unquoted
    shutil.copy(str(shutil.which("cat")), program)
    before = uptime_ticks()
    process = start(str(program))
    after = uptime_ticks()
    found = rundir.start_ticks(process.pid)
    assert found is not None
    assert before - 2 <= found <= after + 2  # both are cut off to 10 ms


def test_a_zombie_is_dead(start: Starter) -> None:
    process = start(sys.executable, "-c", "")
    wait_for(lambda: b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes())
    assert rundir.start_ticks(process.pid) is None
    process.wait()
    assert rundir.start_ticks(process.pid) is None


# ---------------------------------------------------------------- a run's parent


def run_dir(path: Path, *names: Path, **facts: Any) -> Path:
    """A run without a parent, whose last slab is gone."""
    path.mkdir()
    gone = [*map(str, names), str(path / "gone.slab")]
    manifest = {"schema_version": schema.SCHEMA_VERSION, "state": "running", "slabs": gone}
    (path / "manifest.json").write_text(json.dumps({**manifest, **facts}))
    return path


def told(path: Path) -> str:
    with pytest.raises((ClientError, DataError)) as caught:
        store.recover(path, lambda *_: [])
    line = str(caught.value)
    assert "\n" not in line
    lost = isinstance(caught.value, store.RecordsLostError)
    assert lost == ("records are lost" in line)
    return line


ALIVE, LOST = "is still under way", "its records are lost"


def test_the_run_s_own_process_is_waited_for(ours: subprocess.Popen[str], tmp_path: Path) -> None:
    ticks = rundir.start_ticks(ours.pid)
    path = run_dir(tmp_path / "run", parent_pid=ours.pid, parent_start_ticks=ticks)
    assert ALIVE in told(path)


def test_a_later_process_with_its_pid_is_not(ours: subprocess.Popen[str], tmp_path: Path) -> None:
    ticks = (rundir.start_ticks(ours.pid) or 0) - 1
    path = run_dir(tmp_path / "run", parent_pid=ours.pid, parent_start_ticks=ticks)
    assert LOST in told(path)


def test_its_zombie_is_not(ours: subprocess.Popen[str], tmp_path: Path) -> None:
    ticks = rundir.start_ticks(ours.pid)
    ours.kill()
    os.waitid(os.P_PID, ours.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table
    path = run_dir(tmp_path / "run", parent_pid=ours.pid, parent_start_ticks=ticks)
    assert LOST in told(path)


def test_an_older_directory_has_the_command_line(
    ours: subprocess.Popen[str], start: Starter, tmp_path: Path
) -> None:
    assert ALIVE in told(run_dir(tmp_path / "ours", parent_pid=ours.pid))
    assert LOST in told(run_dir(tmp_path / "other", parent_pid=start("cat").pid))


def test_the_recovering_process_is_not_the_run(start: Starter, tmp_path: Path) -> None:
    """With the pid of the run, as in a container where both are the first process."""
    path = tmp_path / "run"
    script = f"import os; input(){RECOVER}"
    process = start(sys.executable, "-c", script, str(path), "percentes-fast")
    run_dir(path, parent_pid=process.pid)
    said, _ = process.communicate("\n", timeout=60)
    assert LOST in said


# ---------------------------------------------------------------- a run's workers


def running_slab(path: Path) -> slabs.Slab:
    slab = slabs.create(path, slabs.SlabSize(1, 1, 1, 1), 0)
    slab.set_word("state", slabs.STATE_RUNNING)
    return slab


def test_a_worker_that_is_ending_is_waited_for(start: Starter, tmp_path: Path) -> None:
    file = tmp_path / "one.slab"
    slab = running_slab(file)
    worker = start(sys.executable, "-c", WORK, str(file))
    slab.set_word("pid", worker.pid)
    assert worker.stdout is not None
    worker.stdout.readline()
    assert settled(slab) == slabs.STATE_ENDED


def test_another_process_with_its_pid_is_not(ours: subprocess.Popen[str], tmp_path: Path) -> None:
    slab = running_slab(tmp_path / "one.slab")
    began = time.monotonic()
    for pid in (ours.pid, os.getpid()):
        slab.set_word("pid", pid)
        assert settled(slab) == slabs.STATE_RUNNING
    assert time.monotonic() - began < 4  # a worker would have been given 5 s


def settled(slab: slabs.Slab) -> int:
    """State of a slab after it was waited for."""
    return store._settled(slab).word("state")


# ---------------------------------------------------------------- slabs that cannot be read


@pytest.mark.parametrize("content", [None, b"", b"no slab, but of some length"])
def test_a_slab_that_cannot_be_read(content: bytes | None, tmp_path: Path) -> None:
    path = run_dir(tmp_path / "run", parent_pid=2**22)
    if content is not None:
        (path / "gone.slab").write_bytes(content)
    line = told(path)
    assert line.startswith(f"{path}: its records are lost (")
    assert line.endswith("; measure it again")
    assert json.loads((path / "manifest.json").read_text())["state"] == "running"  # untouched
