"""Faults of the client's own machine, made for real: never blamed on the server.

Never: imitates a fault by a fake. The limits are the kernel's, on a child process alone; where one
      cannot be made the test fails.
Plan: descriptors, ports and memory run out, and rules of this machine refuse; what the engine and
a whole run then say; system calls that are missing or refused beside the send.
"""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hostile_servers import (
    ENGINES,
    Facts,
    answers_after,
    dial_of_the_own_port,
    engine_without_descriptors,
    refused_calls,
    too_few_descriptors,
    too_few_ports,
)
from mock_client import running
from netns import in_child, refuse
from percentes_fast.analysis.causes import label
from percentes_fast.schema import OUTCOMES, Cause, Kind
from raw_server import raw_server
from whole_run import call, report, requests

engines = pytest.mark.parametrize("engine", ENGINES)
CLIENT_FAULT = OUTCOMES.index("client_fault")


def outcomes(rows: Facts) -> list[str]:
    """The judge's states of raw rows."""

    def column(name: str) -> Any:
        return np.array([-1 if row[name] is None else row[name] for row in rows])

    known = {name: column(name) for name in ("content_events", "completion_tokens")}
    known["cause"] = np.array([Cause[row["cause"]] for row in rows])
    known["kind"] = np.full(len(rows), Kind.LOAD)
    known["finish_reason"] = np.array([row["finish"] for row in rows])
    states, classes = label(known, usage=True)
    assert (classes[states == CLIENT_FAULT] == -1).all()  # of no error class
    return [OUTCOMES[state] for state in states]


def are_client_faults(rows: Facts, cause: Cause, error: int) -> bool:
    """All of them, of this cause and number, and each ended after it was dispatched."""
    ended = all(row["ended_ns"] >= row["dispatch_ns"] >= 0 for row in rows)
    told = {(row["cause"], row["errno_code"]) for row in rows} == {(cause.name, error)}
    return ended and told and set(outcomes(rows)) == {"client_fault"}


def split(rows: Facts, cause: Cause) -> tuple[Facts, Facts]:
    """Those of the cause, and the others."""
    of_it = [row for row in rows if row["cause"] == cause.name]
    return of_it, [row for row in rows if row["cause"] != cause.name]


# ---------------------------------------------------------------- descriptors


@engines
def test_no_descriptor(tmp_path: Path, engine: str) -> None:
    """RLIMIT_NOFILE: those without one are the client's fault, and it passes with the shortage."""
    left = 6
    with raw_server(answers_after) as server:
        *rows, after = in_child(too_few_descriptors, engine, str(tmp_path), server.port, left)
    faults, held = split(rows, Cause.NO_DESCRIPTOR)
    assert 0 < len(held) <= left
    assert are_client_faults(faults, Cause.NO_DESCRIPTOR, errno.EMFILE)
    assert {row["sent_ns"] for row in faults} == {None}
    assert {row["cause"] for row in held} == {"DEADLINE"}
    assert set(outcomes(held)) == {"censored"}
    assert after["cause"] == "STREAM_END"


@engines
def test_an_engine_that_cannot_be_made_says_so(tmp_path: Path, engine: str) -> None:
    said = in_child(engine_without_descriptors, engine, str(tmp_path))
    assert "no descriptors left" in said


@engines
def test_an_engine_that_cannot_be_made_names_the_error(tmp_path: Path, engine: str) -> None:
    said = in_child(engine_without_descriptors, engine, str(tmp_path))
    assert f"errno {errno.EMFILE}" in said


# ---------------------------------------------------------------- ports


@engines
@pytest.mark.parametrize("ports", [1, 4])
def test_no_port(tmp_path: Path, engine: str, ports: int) -> None:
    rows = in_child(too_few_ports, engine, str(tmp_path), ports)
    faults, held = split(rows, Cause.NO_PORT)
    assert len(held) == ports
    assert are_client_faults(faults, Cause.NO_PORT, errno.EADDRNOTAVAIL)
    assert {row["cause"] for row in held} == {"DEADLINE"}


@engines
def test_a_connection_to_itself_is_no_answer_of_the_server(tmp_path: Path, engine: str) -> None:
    """TCP joins a socket to itself where a dead local server's port is given to the dial."""
    row = in_child(dial_of_the_own_port, engine, str(tmp_path))[0]
    assert (row["cause"], row["bytes_received"]) == ("CONNECT", 0)


# ---------------------------------------------------------------- memory, and this machine's rules


SOCKET, CONNECT = ["socket"], ["connect"]
SEND, RECEIVE = ["sendmsg", "sendto"], ["recvmsg", "recvfrom"]
REFUSED = [
    (SOCKET, errno.ENOBUFS, Cause.NO_MEMORY),
    (SOCKET, errno.ENOMEM, Cause.NO_MEMORY),
    (SOCKET, errno.EMFILE, Cause.NO_DESCRIPTOR),
    (SOCKET, errno.ENFILE, Cause.NO_DESCRIPTOR),
    (SOCKET, errno.EACCES, Cause.REFUSED_HERE),
    (CONNECT, errno.ENOBUFS, Cause.NO_MEMORY),
    (CONNECT, errno.ENOMEM, Cause.NO_MEMORY),
    (CONNECT, errno.EADDRNOTAVAIL, Cause.NO_PORT),
    (CONNECT, errno.EPERM, Cause.REFUSED_HERE),
    (SEND, errno.ENOBUFS, Cause.NO_MEMORY),
    (SEND, errno.ENOMEM, Cause.NO_MEMORY),
    (SEND, errno.EPERM, Cause.REFUSED_HERE),
    (RECEIVE, errno.ENOMEM, Cause.NO_MEMORY),
]


@engines
@pytest.mark.parametrize(
    ("calls", "error", "cause"),
    REFUSED,
    ids=[f"{calls[0]} {errno.errorcode[error]}" for calls, error, _ in REFUSED],
)
def test_refused_by_the_kernel(
    tmp_path: Path, engine: str, calls: list[str], error: int, cause: Cause
) -> None:
    rows = in_child(refused_calls, engine, str(tmp_path), calls, error)
    assert are_client_faults(rows, cause, error)
    assert {row["bytes_received"] for row in rows} == {0}
    dialed = calls in (SEND, RECEIVE)
    assert all((row["connect_ns"] is not None) == dialed for row in rows)
    assert all((row["sent_ns"] is not None) == (calls == RECEIVE) for row in rows)


# ---------------------------------------------------------------- calls beside the send (native)


def test_connections_that_cannot_be_watched(tmp_path: Path) -> None:
    """max_user_watches: a connection nobody looks at would end as the server's silence."""
    rows = in_child(refused_calls, "native", str(tmp_path), ["epoll_ctl"], errno.ENOSPC)
    assert are_client_faults(rows, Cause.NO_MEMORY, errno.ENOSPC)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("setsockopt", errno.EPERM),  # no stamps, no TCP_NODELAY
        ("epoll_pwait2", errno.ENOSYS),  # before Linux 5.11
        pytest.param(
            "epoll_pwait2",
            errno.EPERM,  # older container runtimes refuse calls they do not know
        ),
    ],
)
def test_done_without(tmp_path: Path, call: str, error: int) -> None:
    rows = in_child(refused_calls, "native", str(tmp_path), [call], error)
    assert {row["cause"] for row in rows} == {"STREAM_END"}
    assert set(outcomes(rows)) == {"completed"}


# ---------------------------------------------------------------- whole runs


SIZE = "--rate 40 --arrival constant --warmup 0.3 --duration 2.5 --cooldown 0.2 --prompt-tokens 8"
SIZE += " --max-tokens 40 --timeout 3 --fault none --out out"


def run_under(path: str, port: int, kind: str, value: int) -> tuple[int, str]:
    """Exit status and standard error of a run in which the limit, or the refused call, is real."""
    if kind == "descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (value, value))
    else:
        refuse([kind], value)
    target = f"http://127.0.0.1:{port}"
    done = call("run", "--target", target, *SIZE.split(), cwd=Path(path), timeout=50)
    return done.returncode, done.stderr


def limited_run(tmp_path: Path, kind: str, value: int) -> tuple[int, str]:
    with running(startup_s=0, ttft_ms=200, itl_ms=40) as server:
        status, said = in_child(run_under, str(tmp_path), server.port, kind, value)
    return status, said


@pytest.mark.slow
def test_a_run_without_descriptors_is_invalid_and_says_what_to_do(tmp_path: Path) -> None:
    status, said = limited_run(tmp_path, "descriptors", 90)
    assert status == 2, said
    found = report(tmp_path / "out")
    reasons = "; ".join(found["invalid_reasons"])
    rows = requests(tmp_path / "out")
    faults = rows[rows["outcome"] == "client_fault"]
    assert set(faults["cause"]) == {"no_descriptor"}
    assert set(faults["errno"]) == {errno.EMFILE}
    assert set(rows["outcome"]) <= {"completed", "client_fault"}
    assert faults["error_class"].isna().all()
    assert f"{len(faults)} client faults" in reasons
    assert "ulimit" in reasons


@pytest.mark.parametrize(("call_name", "error"), [("connect", errno.ENOBUFS)])
def test_a_run_that_cannot_dial_blames_this_machine(
    tmp_path: Path, call_name: str, error: int
) -> None:
    status, said = limited_run(tmp_path, call_name, error)
    assert status == 1
    assert f"this machine: {os.strerror(error)}" in said
    assert len(said.strip().splitlines()) == 1


def test_a_run_that_cannot_make_a_socket_says_so_in_one_line(tmp_path: Path) -> None:
    status, said = limited_run(tmp_path, "socket", errno.EMFILE)
    assert status == 1
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1
