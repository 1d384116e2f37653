"""The killer: runs on the victim's host, holds the process, waits for one line, signals it.

Shipped as text to any Python from 3.6 on, so it imports nothing of this package.
Never: looks for a process, signals one that is not the one it was given, or leaves one stopped: the
end of its input, a signal to itself, and its own death (a second process watches) all undo a stop.
Plan: argv[1] is a job in JSON; every answer is a line of JSON. Orders: `check`, `fire`, `undo`.
"""

import errno
import gc
import json
import os
import select
import signal
import sys
import time
from typing import Any, Dict, Optional, Tuple

LATE_LOOK_S = 0.002
JOB: Dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
PIDFD: Any = getattr(os, "pidfd_open", None)


ORDERS = bytearray()


def order() -> str:
    """The next line of input, empty at its end; not buffered elsewhere, as `stop` polls it."""
    while b"\n" not in ORDERS:
        data = os.read(0, 4096)
        if not data:
            return ""
        ORDERS.extend(data)
    end = ORDERS.index(b"\n")
    line = bytes(ORDERS[:end])
    del ORDERS[: end + 1]
    return line.decode().strip()


def say(**facts: object) -> None:
    """One line of answer; nobody there to read it changes nothing."""
    try:
        os.write(1, json.dumps(facts).encode() + b"\n")
    except OSError:
        pass


def stat(pid: int) -> Optional[Tuple[str, int]]:
    """State and start time of a process, or None."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[19])


class Victim:
    """The process, or the group that it leads, held by a pidfd where the host has them."""

    def __init__(self, pid: int, ticks: int, group: int) -> None:
        """Raises OSError where it is not there, or may not be signalled."""
        self.pid, self.ticks, self.group, self.fd = pid, ticks, group, -1
        if PIDFD is not None:
            try:
                self.fd = PIDFD(pid)
            except OSError as exc:
                if exc.errno not in (errno.ENOSYS, errno.EPERM):  # an old kernel, a seccomp filter
                    raise
        if not self.same():
            raise OSError(errno.ESRCH, "is another process than the one identified")
        self.send(0)

    def same(self) -> bool:
        """Is the pid still the process that was identified, and alive?"""
        now = stat(self.pid)
        return now is not None and now[1] == self.ticks and now[0] not in "ZX"

    def send(self, number: int) -> None:
        """The signal itself."""
        if self.group:
            os.killpg(self.group, number)
        elif self.fd >= 0:
            signal.pidfd_send_signal(self.fd, number)
        else:
            os.kill(self.pid, number)

    def gone(self) -> bool:
        """Has it ended?"""
        if self.fd >= 0:
            return bool(select.select([self.fd], [], [], 0)[0])
        return not self.same()


def fire(victim: Victim) -> Optional[int]:
    """Signals between clock reads; errno (0: the kernel took it), None where it is another."""
    if not victim.same():
        say(fired=False, error="is another process by now")
        return None
    number, code = JOB["signal"], 0
    monotonic = time.CLOCK_MONOTONIC
    start = time.clock_gettime(monotonic)  # warms the path
    m0 = _ns(monotonic)
    r0 = _ns(time.CLOCK_REALTIME)
    try:
        victim.send(number)
    except OSError as exc:
        code = exc.errno or -1
    r1 = _ns(time.CLOCK_REALTIME)
    m1 = _ns(monotonic)
    say(fired=True, errno=code, before=r0, after=r1, mono_before=m0, mono_after=m1, warm=start > 0)
    return code


def _ns(clock: int) -> int:
    if hasattr(time, "clock_gettime_ns"):
        return time.clock_gettime_ns(clock)
    return int(time.clock_gettime(clock) * 1e9)


def watch_gone(victim: Victim) -> None:
    """Says when the process has ended, on this host's clocks; an order ends the watch."""
    deadline = time.monotonic() + JOB["gone_timeout_s"]
    held = [victim.fd] if victim.fd >= 0 else []
    while not victim.gone():
        left = deadline - time.monotonic()
        if left <= 0 or ORDERS or select.select([0], [], [], 0)[0]:
            say(gone=None)
            return
        select.select([0, *held], [], [], left if held else min(left, LATE_LOOK_S))
    say(gone=_ns(time.CLOCK_REALTIME), mono_gone=_ns(time.CLOCK_MONOTONIC))


def guard(victim: Victim) -> int:
    """A second process that undoes the stop when this one ends without having done so.

    Returns the descriptor that tells it by one byte that nothing is left to undo.
    """
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        os.close(writer)
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        if not os.read(reader, 1):
            try:
                victim.send(signal.SIGCONT)
            except OSError:
                pass
        os._exit(0)
    os.close(reader)
    return writer


def stop(victim: Victim) -> None:
    """SIGSTOP, then SIGCONT after the time asked for, or at once when nobody listens any more."""
    writer = guard(victim)
    until = time.monotonic() + JOB["stop_s"]
    code = fire(victim)
    if code != 0:
        os.write(writer, b"d")
        if code is not None:
            say(stopped=False)
            say(continued=None)
        return
    try:
        while not _stopped(victim) and time.monotonic() < until:
            time.sleep(LATE_LOOK_S)
        say(stopped=_stopped(victim))
        left = until - time.monotonic()
        if left > 0 and not ORDERS:
            select.select([0], [], [], left)  # undo, or the end of the input
    finally:
        try:
            victim.send(signal.SIGCONT)
        except OSError:
            pass
        at = _ns(time.CLOCK_REALTIME)
        mono = _ns(time.CLOCK_MONOTONIC)
        os.write(writer, b"d")
    say(continued=at, mono_continued=mono)


def _stopped(victim: Victim) -> bool:
    now = stat(victim.pid)
    return now is not None and now[0] in "Tt"


def outrank() -> bool:
    """The victim wakes to die: it must not run before the clock is read again. Where allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(10))
    except (AttributeError, OSError):  # no Linux; no right
        return False
    return True


def main() -> None:
    """Arms, then obeys until the input ends."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        victim = Victim(JOB["pid"], JOB["ticks"], JOB["group"])
    except OSError as exc:
        say(armed=False, errno=exc.errno, error=exc.strerror)
        return
    gc.disable()
    fine = hasattr(time, "clock_gettime_ns")  # else a float of seconds: 2^-22 s
    resolution = 1 if fine else 239
    say(armed=True, pidfd=victim.fd >= 0, real_time=outrank(), resolution=resolution)
    while True:
        told = order()
        if told in ("", "undo"):
            return
        if told == "check":
            say(same=victim.same())
        elif JOB["signal"] == signal.SIGSTOP:
            stop(victim)
        elif fire(victim) is not None:
            watch_gone(victim)


if __name__ == "__main__":
    main()
