"""Readings of a host's clock, here and over SSH, by every reader there is; dials; the sampler.

Does: compares readings with this machine's own clock (it is the same one), moves a host's clock,
      loses channels, connections and hosts while they are sampled.
Never: judges an offset.
Plan: readers; dials; the sampler; lost channels.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from percentes_fast.faults import killer
from percentes_fast.faults.host import Host, HostError, LocalHost
from percentes_fast.observe import logtail, offset
from percentes_fast.observe.offset import BURST, NEAR, Reader, Sample, Sampler, dial
from real_hosts import Sshd, below, faketime, poll, read_process, running, send
from test_host import one_line, reached
from test_killer import links

WAIT_S = 20.0
HERE = LocalHost()
READERS = {
    "bash": ("bash with EPOCHREALTIME", 1000),
    "python": ("python3", 1),
    "dash": ("date, one process a sample", 1),
    "busybox": ("sh with EPOCHREALTIME", 1000),
}


@pytest.fixture(scope="module", autouse=True)
def _nothing_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        yield


@pytest.fixture(scope="module")
def far() -> Iterator[Sshd]:
    with Sshd() as sshd:
        yield sshd


@contextlib.contextmanager
def open_reader(host: Host) -> Iterator[Reader]:
    reader = Reader(host)
    try:
        yield reader
    finally:
        reader.close()


# ---------------------------------------------------------------- readers


def check_readings(reader: Reader) -> None:
    last = 0
    for _ in range(20):
        wall, monotonic = time.time_ns(), time.monotonic_ns()
        found = reader.sample("run")
        wall_after = time.time_ns()
        assert (found.phase, found.round_trip_ns) == ("run", None)
        assert found.resolution_ns == reader.resolution_ns
        assert monotonic <= found.before_ns < found.after_ns <= time.monotonic_ns()
        assert found.remote_wall_ns is not None
        assert wall - reader.resolution_ns < found.remote_wall_ns <= wall_after
        assert found.remote_wall_ns >= last
        last = found.remote_wall_ns


def test_the_reader_of_this_machine() -> None:
    with open_reader(HERE) as reader:
        check_readings(reader)


@pytest.mark.parametrize("name", READERS)
def test_every_reader_tells_the_time_of_its_host(name: str, tmp_path: Path) -> None:
    environment = {"PATH": links(tmp_path / name, name)}
    with Sshd(environment=environment) as sshd, reached(sshd) as host, open_reader(host) as reader:
        assert (reader.name, reader.resolution_ns) == READERS[name]
        check_readings(reader)


def test_a_date_of_whole_seconds_says_so(tmp_path: Path) -> None:
    path = links(tmp_path / "whole", "dash")
    date = tmp_path / "whole" / "date"
    date.unlink()
    date.write_text('#!/bin/sh\ncase $1 in +%s) exec /bin/date +%s;; *) echo "$1";; esac\n')
    date.chmod(0o755)
    environment = {"PATH": path}
    with Sshd(environment=environment) as sshd, reached(sshd) as host, open_reader(host) as reader:
        assert reader.resolution_ns == 1_000_000_000
        check_readings(reader)


@pytest.mark.parametrize("name", ["bash", "python"])
def test_the_clock_read_is_that_of_the_host(name: str, tmp_path: Path) -> None:
    environment = {**faketime("-30d"), "PATH": links(tmp_path / name, name)}
    with Sshd(environment=environment) as sshd, reached(sshd) as host, open_reader(host) as reader:
        reading = reader.sample("arm").remote_wall_ns
        assert reading is not None
        assert time.time_ns() - reading == pytest.approx(30 * 86_400e9, abs=60e9)


def test_a_reading_is_made_of_one_look_at_the_clock() -> None:
    """Seconds and fractions of two looks would be a second apart once in a while."""
    for script in (offset.BASH, logtail.BASH, killer.SHELL_KILLER):
        assert "EPOCHREALTIME" in script
        assert "${EPOCHREALTIME" not in script


def test_a_host_without_any_reader(tmp_path: Path) -> None:
    path = links(tmp_path / "bare", "dash")
    (tmp_path / "bare" / "date").unlink()
    with Sshd(environment={"PATH": path}) as sshd, reached(sshd) as host:
        with pytest.raises(HostError, match="has neither bash, python3 nor date") as caught:
            Reader(host)
        one_line(caught.value)


def test_a_reader_that_has_ended_is_told(far: Sshd) -> None:
    with reached(far) as there:
        for host in (HERE, there):
            before = set(running())
            reader = Reader(host)
            for pid in set(running()) - before:
                if (one := read_process(pid)) and b"EPOCH" in _words(pid):
                    send(signal.SIGKILL, [one])
            with pytest.raises(HostError, match="the clock reader: ") as caught:
                for _ in range(2):
                    reader.sample("run")
            one_line(caught.value)
            reader.close()


def _words(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_close_ends_the_reader(far: Sshd) -> None:
    with reached(far) as there:
        for host in (HERE, there):
            before = set(running())
            reader = Reader(host)
            started = [pid for pid in set(running()) - before if b"EPOCH" in _words(pid)]
            assert started
            reader.close()
            poll("its end", lambda: not any(map(read_process, started)), WAIT_S)  # noqa: B023


# ---------------------------------------------------------------- dials


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1"])
def test_a_dial_is_no_longer_than_its_call(ip: str) -> None:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.create_server((ip, 0), family=family) as listener:
        for _ in range(20):
            began = time.monotonic_ns()
            found = dial(ip, listener.getsockname()[1])
            assert found is not None
            assert (found.phase, found.remote_wall_ns, found.resolution_ns) == ("dial", None, None)
            assert began <= found.before_ns < found.after_ns <= time.monotonic_ns()
            assert found.round_trip_ns is not None
            assert 0 <= found.round_trip_ns <= found.after_ns - found.before_ns
            connection, _ = listener.accept()
            assert connection.recv(1) == b""  # opened and closed, nothing said
            connection.close()


def test_where_nothing_answers_there_is_no_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset, "DIAL_TIMEOUT_S", 0.2)
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert dial("127.0.0.1", port) is None  # refused
        listener.listen(0)
        for _ in range(4):  # its queue is full: no SYN is answered
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        assert dial("127.0.0.1", port) is None
    assert dial("no address", 1) is None


# ---------------------------------------------------------------- the sampler


@pytest.fixture
def place() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield "127.0.0.1", listener.getsockname()[1]


def phases(samples: list[Sample]) -> Counter[str]:
    return Counter(sample.phase for sample in samples)


def test_bursts_when_told_and_once_a_second_in_between(
    far: Sshd, place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset, "EVERY_S", 0.1)  # its second
    kept: list[Sample] = []
    with reached(far) as host:
        sampler = Sampler(host, place, kept.append)
        sampler.burst("arm")
        first = time.monotonic_ns() + 500_000_000
        sampler.start(first)
        time.sleep(0.25)
        sampler.near()
        time.sleep(0.3)
        sampler.stop()
        sampler.close()
        found = phases(sampler.samples)
    assert kept == sampler.samples
    assert sampler.lost is None
    assert (found["arm"], found["near"], found["after"]) == (BURST, NEAR, BURST)
    assert 4 <= found["run"] <= 6
    assert 4 <= found["dial"] <= 6
    for sample in kept:
        assert sample.before_ns < sample.after_ns
        assert (sample.remote_wall_ns is None) is (sample.phase == "dial")
        if sample.phase == "run":
            assert (sample.before_ns - first) % 100_000_000 < 50_000_000


def test_a_place_that_refuses_costs_the_dials_alone(
    far: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset, "EVERY_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()
    with reached(far) as host:
        sampler = Sampler(host, closed, lambda _: None)
        sampler.start(time.monotonic_ns())
        poll("samples", lambda: phases(sampler.samples)["run"] >= 3, WAIT_S)
        sampler.close()
        assert set(phases(sampler.samples)) == {"run"}
        assert sampler.lost is None


def test_nothing_is_kept_after_close(
    far: Sshd, place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset, "EVERY_S", 0.001)
    closed: list[bool] = []
    late: list[Sample] = []
    with reached(far) as host:
        sampler = Sampler(host, place, lambda s: late.append(s) if closed else None)
        sampler.start(time.monotonic_ns())
        poll("samples", lambda: len(sampler.samples) > 5, WAIT_S)
        sampler.close()
        closed.append(True)
        time.sleep(0.05)
    assert late == []


# ---------------------------------------------------------------- lost channels


@pytest.fixture
def fragile() -> Iterator[Sshd]:
    with Sshd() as sshd:
        yield sshd


def test_a_lost_channel_ends_the_samples_and_the_last_burst_takes_a_new_one(
    fragile: Sshd, place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset, "EVERY_S", 0.05)
    with reached(fragile) as host:
        sampler = Sampler(host, place, lambda _: None)
        sampler.burst("arm")
        sampler.start(time.monotonic_ns())
        poll("samples", lambda: phases(sampler.samples)["run"] >= 2, WAIT_S)
        fragile.drop_sessions()
        poll("a lost channel", lambda: sampler.lost is not None, WAIT_S)
        before = phases(sampler.samples)
        assert sampler.lost is not None and "\n" not in sampler.lost
        assert "the clock reader: the connection was lost" in sampler.lost
        poll("more dials", lambda: phases(sampler.samples)["dial"] > before["dial"] + 2, WAIT_S)
        sampler.near()
        assert phases(sampler.samples)["run"] == before["run"]
        assert phases(sampler.samples)["near"] == 0
        sampler.stop()
        assert phases(sampler.samples)["after"] == BURST
        assert sampler.lost is not None
        sampler.close()
    assert fragile.log.read_text().count("Accepted publickey") == 2


def test_a_channel_that_is_lost_before_anybody_noticed(
    fragile: Sshd, place: tuple[str, int]
) -> None:
    with reached(fragile) as host:
        sampler = Sampler(host, place, lambda _: None)
        sampler.burst("arm")
        fragile.drop_sessions()
        sampler.stop()
        assert phases(sampler.samples) == {"arm": BURST, "after": BURST}
        assert sampler.lost is not None
        sampler.close()


def test_a_host_that_does_not_come_back_costs_the_last_burst(
    fragile: Sshd, place: tuple[str, int]
) -> None:
    with reached(fragile) as host:
        sampler = Sampler(host, place, lambda _: None)
        fragile.kill()
        sampler.near()
        assert sampler.lost is not None
        sampler.stop()
        assert sampler.samples == []
        sampler.close()


def test_a_host_that_hangs_is_lost_in_time_and_no_answer_is_taken_for_another(
    fragile: Sshd, place: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset, "ANSWER_S", 0.3)
    with reached(fragile) as host:
        sampler = Sampler(host, place, lambda _: None)
        assert fragile.process is not None
        sessions = below(fragile.process.pid)
        send(signal.SIGSTOP, sessions)
        began = time.monotonic()
        sampler.near()
        assert time.monotonic() - began < 2
        assert sampler.lost is not None and "no answer within 0.3 s" in sampler.lost
        send(signal.SIGCONT, sessions)
        wall = time.time_ns()
        sampler.stop()
        readings = [sample.remote_wall_ns or 0 for sample in sampler.samples]
        assert len(readings) == BURST
        assert all(wall - 1000 <= reading <= time.time_ns() for reading in readings)
        sampler.close()
