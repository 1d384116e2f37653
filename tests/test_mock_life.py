"""The simulated server's life: start-up, stage lines, port, signals, and its seeded draws.

Never: asserts an absolute time, leaves a process behind, or talks to another machine.
Plan: the start, what cannot start, the end, the restart, then the draws without a process.
"""

from __future__ import annotations

import re
import signal
import socket
import statistics
import subprocess
from random import Random

import pytest

from mock_client import HOST, READY, WAIT_S, command, get, post_bytes, running
from percentes_fast.errors import ConfigError
from percentes_fast.servers.mock import MockOptions
from percentes_fast.servers.mock_pace import Spread, Timing
from percentes_fast.servers.mock_stages import STAGE_LINES


def refused(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex((HOST, port)) != 0


def test_refused_until_the_stage_lines_are_out() -> None:
    with running(startup_s=3, model="m") as server:
        told = server.read_until("non-default args")
        port = int(re.search(rb"'port': (\d+)", told)[1])  # type: ignore[index]
        assert refused(port)
        server.read_until("Initializing")
        assert refused(port)
        server.read_until(READY)
        assert get(port, "/health").status == 200
        pid = server.process.pid
        texts = [line.decode() for line in server.lines]
        assert len(texts) == len(STAGE_LINES) + 1
        for line, text in zip(STAGE_LINES, texts, strict=False):
            if line.process:
                stamp = r"INFO \d\d-\d\d \d\d:\d\d:\d\d"
                tag = rf"\({line.process} pid={pid}\) {stamp} \[{re.escape(line.origin)}\] "
                assert re.match(tag, text)
            start = line.text.partition("{")[0]
            assert start in text
        tail = ["Started server process [%d]" % pid, "Waiting for application startup.", READY]  # noqa: UP031
        assert texts[-3:] == [f"INFO:     {text}\n" for text in tail]


def test_stage_shares_rise_within_the_start() -> None:
    shares = [line.share for line in STAGE_LINES]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1


@pytest.mark.parametrize("listening", [True, False])
def test_port_in_use_is_told_before_the_wait(listening: bool) -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        if listening:
            holder.listen()
        port = holder.getsockname()[1]
        done = subprocess.run(
            command(port=port, startup_s=86400), capture_output=True, check=False, timeout=WAIT_S
        )
    assert done.returncode == 1
    assert done.stdout == b""
    told = done.stderr.decode()
    assert told.count("\n") == 1
    assert f"port {port} on {HOST}" in told
    assert "--port" in told


@pytest.mark.parametrize("flags", [["--ttft-dist", "zipf"], ["--port", "x"], ["--startup-s", "-1"]])
def test_bad_flags_are_one_line(flags: list[str]) -> None:
    done = subprocess.run([*command(), *flags], capture_output=True, check=False, timeout=WAIT_S)
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_streams_and_exits_0(number: signal.Signals) -> None:
    with running(startup_s=0, ttft_ms=1, itl_ms=5) as server:
        body = b'{"prompt":"a","max_tokens":30000,"stream":true}'
        with socket.create_connection((HOST, server.port), timeout=WAIT_S) as sock:
            sock.sendall(post_bytes("/v1/completions", body))
            assert sock.recv(64)
            server.process.send_signal(number)
            received = b"".join(iter(lambda: sock.recv(65536), b""))
        assert b'data: {"error": {"message": "EngineCore' in received
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert server.process.wait(WAIT_S) == 0
        assert server.process.stderr is not None
        assert server.process.stderr.read() == b""


def test_signal_during_the_start_exits_0() -> None:
    with running(startup_s=3) as server:
        server.read_until("non-default args")
        server.process.terminate()
        assert server.process.wait(WAIT_S) == 0
        assert READY.encode() not in server.process.stdout.read()  # type: ignore[union-attr]


def test_restart_takes_the_port_at_once() -> None:
    """The killed server's connections are in TIME_WAIT or half closed; the port is free."""
    with running(startup_s=0) as first:
        sock = socket.create_connection((HOST, first.port), timeout=WAIT_S)
        with sock:
            sock.sendall(f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            assert sock.recv(64)
            first.process.kill()
            first.process.wait(WAIT_S)
            with running(startup_s=0, port=first.port) as second:
                assert second.port == first.port
                assert get(first.port, "/health").status == 200


@pytest.mark.parametrize("text", ["constant", "normal", "normal:0.3", "lognormal", "exponential"])
def test_spreads_have_mean_1_and_repeat_with_the_seed(text: str) -> None:
    spread = Spread.parse(text)
    draws = [[spread.factor(rng) for _ in range(4000)] for rng in (Random("7/1"), Random("7/1"))]
    assert draws[0] == draws[1]
    assert min(draws[0]) >= 0
    assert statistics.fmean(draws[0]) == pytest.approx(1, abs=0.06)
    assert statistics.pstdev(draws[0]) == pytest.approx(spread.width, rel=0.1, abs=1e-12)


@pytest.mark.parametrize("text", ["", "zipf", "normal:x", "normal:-1", "normal:9", "constant:1"])
def test_bad_spreads_are_config_errors(text: str) -> None:
    with pytest.raises(ConfigError):
        Spread.parse(text)
    with pytest.raises(ConfigError):
        MockOptions(itl_dist=text)


def schedule(timing: Timing, number: int) -> list[int]:
    rng = timing.rng(number)
    return [timing.first_ns(rng), *(timing.gap_ns(rng) for _ in range(20))]


def test_draws_depend_on_seed_and_arrival_number_alone() -> None:
    one, two = MockOptions(seed=1).timing(), MockOptions(seed=2).timing()
    assert schedule(one, 5) == schedule(MockOptions(seed=1).timing(), 5)
    assert schedule(one, 5) != schedule(one, 6)
    assert schedule(one, 5) != schedule(two, 5)
