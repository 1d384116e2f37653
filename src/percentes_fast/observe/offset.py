"""Clock-offset samples of the server's host, over one channel that stays open; and the path's R.

Never: starts a process a sample where the host can do without, fits a clock (analysis/clockfit.py
does), or disturbs the run: a lost channel ends the samples and is told.
Plan: a reader on the host answers each line with its wall clock (bash with EPOCHREALTIME, else
python3, else another shell that has it, else date). A sample is (clock here before, reading there,
clock here after). `Sampler` is a thread: a burst when told, else once a second, and one fresh
connection a second for R.
"""

from __future__ import annotations

import shlex
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from percentes_fast.faults.host import Channel, Host, HostError

BURST, NEAR = 20, 5
ANSWER_S = 5.0
EVERY_S = 1.0
DIAL_TIMEOUT_S = 2.0
# resolution of a reading in ns, as the reader tells it in its first line
BASH = "echo 1000; while read -r l; do t=$EPOCHREALTIME; echo ${t%[.,]*}${t#*[.,]}000; done"
PYTHON = """
import sys, time
now = getattr(time, "time_ns", None)
print(1 if now else 239, flush=True)
for line in sys.stdin: print(now() if now else int(time.time() * 1e9), flush=True)
"""
DATE = (
    "case $(date +%N) in *[!0-9]*) echo 1000000000; s=000000000; f=%s;;"
    " *) echo 1; s=; f=%s%N;; esac; while read -r l; do echo $(date +$f)$s; done"
)
READERS = (
    (
        "bash with EPOCHREALTIME",
        "test -n \"$(bash -c 'echo $EPOCHREALTIME')\"",
        ("bash", "-c", BASH),
    ),
    ("python3", "python3 -c pass", ("python3", "-u", "-c", PYTHON)),
    (
        "sh with EPOCHREALTIME",
        "test -n \"$(sh -c 'echo $EPOCHREALTIME')\"",
        ("sh", "-c", BASH),
    ),
    ("date, one process a sample", "date +%s", ("sh", "-c", DATE)),
)
TCP_INFO_MIN_RTT = struct.Struct("68xI76xI")  # tcpi_rtt, tcpi_min_rtt of linux/tcp.h, in us


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample, or one dial; CLOCK_MONOTONIC ns here, wall clock ns there.

    phase: arm, run, near (the fire), after, or dial. A dial has no reading, and round_trip_ns by
    this kernel.
    """

    phase: str
    before_ns: int
    remote_wall_ns: int | None
    after_ns: int
    resolution_ns: int | None
    round_trip_ns: int | None


class Reader:
    """A clock reader on a host."""

    def __init__(self, host: Host) -> None:
        """Starts the best reader that the host has. Raises HostError."""
        self.name, self._channel = self._open(host)
        try:
            self.resolution_ns = int(self._channel.receive(ANSWER_S))
        except (HostError, ValueError) as exc:
            self._channel.close()
            raise HostError(f"{host.name}: the clock reader by {self.name}: {exc}") from exc

    @staticmethod
    def _open(host: Host) -> tuple[str, Channel]:
        for name, test, words in READERS:
            if host.run(test, again=True).status == 0:
                return name, host.open(shlex.join(words), "the clock reader")
        raise HostError(
            f"{host.name}: has neither bash, python3 nor date to read its clock with; install one"
        )

    def sample(self, phase: str) -> Sample:
        """One sample. Raises HostError."""
        before = time.monotonic_ns()
        self._channel.send("")
        reading = self._channel.receive(ANSWER_S)
        after = time.monotonic_ns()
        if not reading.isdigit():
            raise HostError(f"the clock reader said {reading[:40]!r}, which is no time")
        return Sample(phase, before, int(reading), after, self.resolution_ns, None)

    def close(self) -> None:
        """Ends the reader."""
        self._channel.close()


def dial(ip: str, port: int) -> Sample | None:
    """Opens and closes one fresh connection: the time from SYN to SYN-ACK, None where none came.

    The kernel's own figure (TCP_INFO, whole us, so up to 1 us is taken off), never more than the
    time that the call took.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as made:
            made.settimeout(DIAL_TIMEOUT_S)
            before = time.monotonic_ns()
            made.connect((ip, port))
            after = time.monotonic_ns()
            told = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_MIN_RTT.size)
    except OSError:
        return None
    kernel_us = min(TCP_INFO_MIN_RTT.unpack(told)) if len(told) == TCP_INFO_MIN_RTT.size else 0
    trip = after - before
    if 0 < kernel_us < 0xFFFFFFFF:
        trip = min(trip, max(0, kernel_us - 1) * 1000)
    return Sample("dial", before, None, after, None, trip)


class Sampler:
    """The samples of a run: bursts when asked for, else one a second in a thread of its own."""

    def __init__(self, host: Host, place: tuple[str, int], keep: Callable[[Sample], None]) -> None:
        """place: where a fresh connection to the victim's host is made; keep: told of each sample.

        Raises HostError where the clock cannot be read.
        """
        self.reader = Reader(host)
        self.samples: list[Sample] = []
        self.lost: str | None = None
        self._host, self._place, self._keep = host, place, keep
        self._lock = threading.Lock()  # one question at a time on the reader's channel
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def burst(self, phase: str, count: int = BURST) -> None:
        """Samples right after each other. Raises HostError."""
        for _ in range(count):
            with self._lock:
                self._add(self.reader.sample(phase))

    def near(self) -> None:
        """A few samples right before or after the fire, where they say most of its time."""
        if self.lost is None:
            try:
                self.burst("near", NEAR)
            except HostError as exc:
                self.lost = str(exc)

    def _add(self, sample: Sample) -> None:
        self.samples.append(sample)
        self._keep(sample)

    def start(self, first_ns: int) -> None:
        """One sample and one dial a second from now on, in step with CLOCK_MONOTONIC first_ns."""
        self._thread = threading.Thread(target=self._go_on, args=(first_ns,), daemon=True)
        self._thread.start()

    def _go_on(self, first_ns: int) -> None:
        step = round(EVERY_S * 1e9)
        while True:
            left = (first_ns - time.monotonic_ns()) % step
            if self._ended.wait(left / 1e9 or EVERY_S):
                return
            self._sample()
            if (made := dial(*self._place)) is not None:
                self._add(made)

    def _sample(self) -> None:
        if self.lost is not None:
            return
        try:
            self.burst("run", 1)
        except HostError as exc:
            self.lost = str(exc)

    def stop(self) -> None:
        """Ends the thread, then takes the last burst, over a new channel where the old is lost."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(ANSWER_S + DIAL_TIMEOUT_S)
        try:
            if self.lost is None:
                self.burst("after")
        except HostError as exc:
            self.lost = str(exc)
        if self.lost is not None:
            with suppress(HostError):
                self.reader.close()
                self._host.run("true", again=True)  # connects again
                self.reader = Reader(self._host)
                self.burst("after")

    def close(self) -> None:
        """Ends the reader and the thread: nothing is kept any more."""
        self._ended.set()
        self.reader.close()
        if self._thread is not None:
            self._thread.join(ANSWER_S + DIAL_TIMEOUT_S)
