"""Real-time scheduling: every thread of a process, none of its children, and given back."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

STORY = """
import json, os, sys, threading
from percentes_fast import priority

def policies():
    tasks = [int(each) for each in os.listdir("/proc/self/task")]
    return sorted(os.sched_getscheduler(t) & ~os.SCHED_RESET_ON_FORK for t in tasks)

def child():
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, str(os.sched_getscheduler(0)).encode())
        os._exit(0)
    return int(os.read(reader, 9))

end = threading.Event()
def begin():
    threading.Thread(target=end.wait, daemon=True).start()

begin()
if sys.argv[1] == "unprivileged":
    import resource
    resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
    if os.geteuid() == 0:
        os.setresuid(65534, 65534, 65534)
threads = priority.Threads(priority.OBSERVER)
threads.take()
said = {"taken": policies(), "ranks": [], "refused": threads.refused, "child": child()}
if threads.refused is None:
    tasks = os.listdir("/proc/self/task")
    said["ranks"] = [os.sched_getparam(int(t)).sched_priority for t in tasks]
begin()
said["begun_since"] = policies()
threads.take()
said["taken_again"] = policies()
said["name"] = priority.scheduler()
threads.give_back()
said["given_back"] = policies()
with priority.raised(priority.KILL):
    said["raised"] = policies()
said["lowered"] = policies()
said["one"] = priority.this_thread(priority.KILL)
said["only_this"] = policies()
print(json.dumps(said))
"""
OTHER, FIFO = 0, 1


def told(how: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", STORY, how], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_thread_but_no_child() -> None:
    found = told("as we are")
    if found["refused"] is not None:
        pytest.fail(f"this machine refuses real-time scheduling: {found['refused']}")
    assert found["taken"] == [FIFO] * 2
    assert found["ranks"] == [5, 5]
    assert found["child"] == OTHER
    assert found["begun_since"] == [OTHER, FIFO, FIFO]
    assert found["taken_again"] == [FIFO] * 3
    assert found["name"] == "fifo"
    assert found["given_back"] == [OTHER] * 3
    assert (found["raised"], found["lowered"]) == ([OTHER, OTHER, FIFO], [OTHER] * 3)
    assert (found["one"], found["only_this"]) == (None, [OTHER, OTHER, FIFO])


def test_what_is_refused_is_a_text_and_changes_nothing() -> None:
    found = told("unprivileged")
    assert found["refused"] == found["one"] == "Operation not permitted"
    assert set(found["taken"] + found["taken_again"] + found["raised"]) == {OTHER}
    assert (found["child"], found["name"]) == (OTHER, "other")
