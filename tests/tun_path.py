"""A path of chosen delays between two network namespaces: the two ends of TCP talk over it.

Does: makes a client's and a server's network, one TUN device in each, and carries the IP packets
      between them in a process of its own: each direction has its delay, jitter, loss and reorder.
Never: ends or answers a connection itself, touches the machine's own network, outlives its owner,
      or skips where a network cannot be made: one line says what failed.
Plan: `Delay`, `TunPath` (the owner's side); the two networks; `Direction`, `Forwarder`, its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import heapq
import json
import math
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from netns import CLONE_NEWNET, IFF_UP, NETWORK, SIOCGIFFLAGS, SIOCSIFFLAGS, own_network

ADDRESSES = {"client": "10.77.0.1", "server": "10.77.0.2"}
SIDES = tuple(ADDRESSES)
WAYS = {"there": ("client", "server"), "back": ("server", "client")}
LIFE_S = 600.0
ANSWER_LIMIT_S, CLOSE_LIMIT_S, SWEEP_LIMIT_S, GONE_LIMIT_S = 10.0, 10.0, 5.0, 1.0
MESSAGE_BYTES = 8192
DEVICE, TUN = "path0", Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8943
PR_SET_TIMERSLACK = 29
DEVICE_PACKETS, QUEUE_PACKETS = 4000, 20_000
PACKET_BYTES = 2048  # more than a device's MTU
BATCH = 16  # packets of one direction before the others have their turn
SPIN_NS, LEAST_HOLD_NS = 50_000, 1_000_000
SENT_DROPPED = 11  # the column of /proc/net/dev


class TunPathError(RuntimeError):
    """The path cannot be made, or is gone; one line."""


@dataclass(frozen=True, slots=True)
class Delay:
    """What one direction does to a packet.

    Its delay is `ms` plus a uniform share of `jitter_ms`, and it never overtakes an earlier packet.
    `loss` and `reorder` are probabilities; a reordered packet is held back once more by `ms` (at
    least 1 ms) while later ones pass it, so none is ever early.
    """

    ms: float
    jitter_ms: float = 0.0
    loss: float = 0.0
    reorder: float = 0.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(each) and each >= 0 for each in (self.ms, self.jitter_ms)):
            raise ValueError(f"{self}: delays are finite and not negative")
        if not all(0 <= each <= 1 for each in (self.loss, self.reorder)):
            raise ValueError(f"{self}: loss and reorder are probabilities")


# ---------------------------------------------------------------- the owner's side


class TunPath:
    """Two networks and the way between them, from construction until `close`.

    `close` also kills what still runs in the two networks. A socket that the owner opened in one
    keeps that network alive until it is closed. The forwarder has a real-time priority where it may
    have one (`real_time`), so give it a core apart from one that is measured: `forwarder_pid`.
    """

    client_ip, server_ip = ADDRESSES["client"], ADDRESSES["server"]

    def __init__(self, there: Delay, back: Delay, seed: int = 1, life_s: float = LIFE_S) -> None:
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[Any]] = []
        self._control, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(ANSWER_LIMIT_S)
        job = {"ways": _as_job(there, back), "seed": seed, "life_s": life_s}
        with others:
            self._forwarder = subprocess.Popen(
                [sys.executable, "-S", __file__, json.dumps(job)],
                stdin=others,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            self._networks = {side: str(link) for side, link in self._answer().items()}
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TunPath:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def forwarder_pid(self) -> int:
        return self._forwarder.pid

    @property
    def real_time(self) -> bool:
        return os.sched_getscheduler(self._forwarder.pid) == os.SCHED_FIFO

    def close(self) -> None:
        """Kills what runs in the networks, ends the forwarder; the networks go with it."""
        for child in self._children:
            child.kill()
            child.wait()
        with contextlib.suppress(OSError):  # gone before, or closed twice
            self._control.shutdown(socket.SHUT_RDWR)  # a forked child may hold it too
        self._control.close()
        try:
            self._forwarder.wait(CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._forwarder.kill()
            self._forwarder.wait()
            raise TunPathError(f"tun path: no end within {CLOSE_LIMIT_S:g} s: killed") from None

    def change(self, there: Delay, back: Delay) -> None:
        """Holds once it returns, for the packets sent from then on.

        Those under way keep their times, so a shorter delay shows once they have arrived.
        """
        self._ask({"change": _as_job(there, back)})

    def stats(self) -> dict[str, dict[str, float | None]]:
        """Counts of "there" and "back" since the start, and how late packets left (None: none did).

        Late is what comes on top of the delay, from the reading of a packet to the end of its
        writing; the time in which a packet waits for the forwarder to wake is not in it.
        """
        found: dict[str, dict[str, float | None]] = self._ask({"stats": True})
        for way, (source, _) in WAYS.items():
            found[way]["dropped_device"] = self._dropped_by_device(source)
        return found

    @contextlib.contextmanager
    def enter(self, side: str) -> Iterator[None]:
        """Moves the calling thread, and no other, into the network of that side and back."""
        if self._forwarder.poll() is not None:
            raise self._gone()
        with own_network_kept():
            try:
                set_network(self._networks[side])
            except OSError as exc:
                raise self._gone() from exc
            yield

    def popen(self, side: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """A process in the network of that side; all options are those of subprocess.Popen."""
        with self.enter(side):  # a child starts in the network of the thread that starts it
            child: subprocess.Popen[Any] = subprocess.Popen(argv, **options)
        self._children.append(child)
        return child

    def _dropped_by_device(self, side: str) -> int:
        with self.enter(side):
            lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
        line = next(each for each in lines if each.strip().startswith(f"{DEVICE}:"))
        return int(line.split(":")[1].split()[SENT_DROPPED])

    def _ask(self, message: dict[str, Any]) -> Any:
        with self._lock:
            try:
                self._control.send(json.dumps(message).encode())
            except OSError as exc:
                raise self._gone() from exc
            return self._answer()

    def _answer(self) -> Any:
        try:
            data = self._control.recv(MESSAGE_BYTES)
        except ConnectionError as exc:
            raise self._gone() from exc
        except TimeoutError as exc:
            self._control.close()  # a late answer would be taken for the next one
            raise TunPathError(f"tun path: no answer within {ANSWER_LIMIT_S:g} s") from exc
        if not data:
            raise self._gone()
        answer = json.loads(data)
        if "error" in answer:
            raise TunPathError(answer["error"])
        return answer

    def _gone(self) -> TunPathError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._forwarder.wait(GONE_LIMIT_S)
        why = {0: "closed, or life over"}.get(self._forwarder.returncode, "see its standard error")
        code = self._forwarder.returncode
        return TunPathError(f"tun path: its forwarder is gone (exit {code}): {why}")


def _as_job(there: Delay, back: Delay) -> dict[str, Any]:
    return {"there": asdict(there), "back": asdict(back)}


# ---------------------------------------------------------------- the two networks


def _libc(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def set_network(link: str) -> None:
    """Moves the calling thread into the network that a link in /proc names."""
    fd = os.open(link, os.O_RDONLY)
    try:
        _libc("setns", fd, CLONE_NEWNET)
    finally:
        os.close(fd)


@contextlib.contextmanager
def own_network_kept() -> Iterator[None]:
    """Whatever network the calling thread moves to, it is back in its own afterwards."""
    own = os.open(NETWORK, os.O_RDONLY)
    try:
        yield
    finally:
        _libc("setns", own, CLONE_NEWNET)
        os.close(own)


def _open_device() -> int:
    """A TUN device of the thread's network; it lives as long as its descriptor."""
    fd = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    asked = struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI)
    fcntl.ioctl(fd, TUNSETIFF, asked)
    return fd


def _set_up(address: str) -> None:
    """The device's address in a /24, a longer queue, and up."""
    name = DEVICE.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.0")):
            packed = socket.inet_aton(value)
            fcntl.ioctl(sock, request, struct.pack("16sH2x4s16x", name, socket.AF_INET, packed))
        fcntl.ioctl(sock, SIOCSIFTXQLEN, struct.pack("16si20x", name, DEVICE_PACKETS))
        asked = struct.pack("16sh22x", name, 0)
        flags = struct.unpack("16xh22x", fcntl.ioctl(sock, SIOCGIFFLAGS, asked))[0]
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh22x", name, flags | IFF_UP))


def _make_network(side: str) -> tuple[int, int]:
    """Descriptors of a new network and of its device; one line where it cannot be made."""
    step = "a network namespace (needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN)"
    try:
        if os.geteuid() != 0:
            raise PermissionError("not root")
        own_network()
        network = os.open(NETWORK, os.O_RDONLY)
        step = f"a TUN device (needs {TUN} and CAP_NET_ADMIN)"
        device = _open_device()
        step = f"the address {ADDRESSES[side]} on {DEVICE} (needs CAP_NET_ADMIN)"
        _set_up(ADDRESSES[side])
    except OSError as exc:
        raise TunPathError(f"tun path: cannot make {step}: {exc}") from exc
    return network, device


# ---------------------------------------------------------------- the forwarder


class Direction:
    """What comes out of one device goes into the other when it is due."""

    def __init__(self, source: int, sink: int, seed: str) -> None:
        self.source, self.sink = source, sink
        self.random = random.Random(seed)
        self.queue: list[tuple[int, int, bytes]] = []  # due, number, packet: a heap
        self.last_due_ns = self.number = self.latest_ns = 0
        self.counts: Counter[str] = Counter()
        self.late_us: Counter[int] = Counter()

    def set(self, delay: Delay) -> None:
        self.delay = delay
        self.base_ns, self.jitter_ns = round(delay.ms * 1e6), round(delay.jitter_ms * 1e6)

    def read(self) -> None:
        for _ in range(BATCH):
            try:
                packet = os.read(self.source, PACKET_BYTES)
            except BlockingIOError:
                return
            if packet[0] >> 4 == 4:  # a device also asks for IPv6 routers
                self._queue(packet, time.monotonic_ns())

    def _queue(self, packet: bytes, read_ns: int) -> None:
        draw = self.random.random  # as often for each packet: what one drew does not move the next
        lost, share, reordered = draw(), draw(), draw()
        if lost < self.delay.loss:
            self.counts["lost"] += 1
            return
        if len(self.queue) == QUEUE_PACKETS:
            self.counts["dropped_full"] += 1
            return
        due_ns = max(self.last_due_ns, read_ns + self.base_ns + int(share * self.jitter_ns))
        if reordered < self.delay.reorder:
            self.counts["reordered"] += 1
            due_ns += max(self.base_ns, LEAST_HOLD_NS)
        else:
            self.last_due_ns = due_ns
        self.number += 1
        heapq.heappush(self.queue, (due_ns, self.number, packet))

    def write_due(self) -> None:
        now_ns = time.monotonic_ns()
        for _ in range(BATCH):
            if not self.queue or self.queue[0][0] > now_ns:
                return
            due_ns, _, packet = heapq.heappop(self.queue)
            os.write(self.sink, packet)
            now_ns = time.monotonic_ns()
            self.counts["forwarded"] += 1
            self.late_us[(now_ns - due_ns) // 1000] += 1
            self.latest_ns = max(self.latest_ns, now_ns - due_ns)

    def stats(self) -> dict[str, float | None]:
        names = ("forwarded", "lost", "reordered", "dropped_full")
        found: dict[str, float | None] = {name: self.counts[name] for name in names}
        found |= {"late_p50_ms": self._median_ms(), "late_max_ms": self.latest_ns / 1e6}
        return found if self.counts["forwarded"] else found | {"late_max_ms": None}

    def _median_ms(self) -> float | None:
        left = (self.counts["forwarded"] + 1) // 2
        for late_us, count in sorted(self.late_us.items()):
            left -= count
            if left <= 0:
                return late_us / 1e3
        return None


class Forwarder:
    """Both directions and the owner's messages in one loop, until the owner or the time is gone."""

    def __init__(
        self, control: socket.socket, owner: int, job: dict[str, Any], devices: dict[str, int]
    ) -> None:
        self.control, self.owner_end = control, os.pidfd_open(owner)
        self.end_ns = time.monotonic_ns() + int(job["life_s"] * 1e9)
        self.ways = {
            way: Direction(devices[source], devices[sink], f"{way} {job['seed']}")
            for way, (source, sink) in WAYS.items()
        }
        self._change(job["ways"])

    def run(self) -> None:
        ways = tuple(self.ways.values())
        control = self.control.fileno()
        watched = [control, self.owner_end, *(way.source for way in ways)]
        while (now_ns := time.monotonic_ns()) < self.end_ns:
            ready = select.select(watched, (), (), self._wait_s(now_ns))[0]
            for way in ways:
                if way.source in ready:
                    way.read()
                way.write_due()
            if self.owner_end in ready or (control in ready and not self._answer()):
                return

    def _wait_s(self, now_ns: int) -> float:
        """Until shortly before the next packet is due, then none: the last of it is spun.

        The kernel may end a wait late by a thousandth of it, so a hundredth is waited anew.
        """
        dues = [way.queue[0][0] - SPIN_NS for way in self.ways.values() if way.queue]
        return max(0, min([self.end_ns, *dues]) - now_ns) * 0.99e-9

    def _answer(self) -> bool:
        """False once the owner is gone."""
        try:
            data = self.control.recv(MESSAGE_BYTES)
            if not data:
                return False
            message = json.loads(data)
            answer: Any = {}
            if "change" in message:
                self._change(message["change"])
            else:
                answer = {name: way.stats() for name, way in self.ways.items()}
            self.control.send(json.dumps(answer).encode())
        except ConnectionError:
            return False
        return True

    def _change(self, ways: dict[str, Any]) -> None:
        for name, way in self.ways.items():
            way.set(Delay(**ways[name]))


def _be_prompt() -> None:
    """No pause for garbage, waits that end on time, and a core at once where that is allowed."""
    gc.disable()
    _libc("prctl", PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with contextlib.suppress(PermissionError):  # the owner sees it in `real_time`
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def _residents(networks: Sequence[int], spared: Sequence[int]) -> list[int]:
    """Processes whose network is one of these."""
    wanted = {os.fstat(fd).st_ino for fd in networks}
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or a zombie
            if (each / "ns/net").stat().st_ino in wanted and int(each.name) not in spared:
                found.append(int(each.name))
    return found


def _sweep(networks: Sequence[int], owner: int) -> None:
    """Kills what still runs in the networks; not the owner, one of whose threads may be there."""
    end = time.monotonic() + SWEEP_LIMIT_S
    while (left := _residents(networks, (owner, os.getpid()))) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def main(argument: str) -> int:
    """The forwarder; its standard input is the owner's control socket."""
    job, owner = json.loads(argument), os.getppid()
    with socket.socket(fileno=0) as control:
        try:
            made = {side: _make_network(side) for side in SIDES}  # and stays in the last one
        except TunPathError as exc:
            control.send(json.dumps({"error": str(exc)}).encode())
            return 1
        networks = [network for network, _ in made.values()]
        devices = {side: device for side, (_, device) in made.items()}
        try:
            forwarder = Forwarder(control, owner, job, devices)
            _be_prompt()
            # the owner opens them anew at each use: no child of it holds a network by accident
            links = {side: f"/proc/{os.getpid()}/fd/{made[side][0]}" for side in SIDES}
            control.send(json.dumps(links).encode())
            forwarder.run()
        finally:
            _sweep(networks, owner)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
