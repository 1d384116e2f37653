"""The path between two networks: its delays, order, losses, and that nothing of it is left behind.

Never: judges a short time from above but by a wide margin, or a network by its number alone (the
       kernel gives numbers anew): by its cookie too.
Plan: sockets and cookies; delays; order and loss; change; who is in which network; the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netns import FIRST_NETWORK, NETWORK, in_child
from tun_path import SIDES, Delay, TunPath, TunPathError, own_network_kept, set_network

MS = 1_000_000
LIMIT_S = 10.0
SO_NETNS_COOKIE, TCP_INFO_RETRANS_AT = 71, 100
PR_CAPBSET_DROP, CAP_NET_ADMIN, CAP_SYS_ADMIN = 24, 12, 21
CLONE_NEWNS, MS_REC_PRIVATE = 0x00020000, 0x4000 | 0x40000
NOTHING = Delay(0)
ECHO = """
import socket
with socket.create_server(("10.77.0.2", 8000)) as server:
    print("ready", flush=True)
    with server.accept()[0] as sock:
        while data := sock.recv(1000):
            sock.sendall(data)
"""


# ---------------------------------------------------------------- sockets and cookies


@contextlib.contextmanager
def udp_pair(path: TunPath) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connected UDP socket at each side."""
    socks = []
    for side in SIDES:
        with path.enter(side):
            socks.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with socks[0] as client, socks[1] as server:
        client.bind((path.client_ip, 0))
        server.bind((path.server_ip, 0))
        client.connect(server.getsockname())
        server.connect(client.getsockname())
        client.settimeout(LIMIT_S)
        server.settimeout(LIMIT_S)
        yield client, server


@contextlib.contextmanager
def tcp_pair(path: TunPath) -> Iterator[tuple[socket.socket, socket.socket]]:
    with path.enter("server"):
        listener = socket.create_server((path.server_ip, 0))
    with listener, path.enter("client"):
        client = socket.create_connection(listener.getsockname(), LIMIT_S)
        server = listener.accept()[0]
    with client, server:
        server.settimeout(LIMIT_S)
        yield client, server


def one_way_ns(sender: socket.socket, receiver: socket.socket) -> int:
    """Both networks have the machine's one clock; the packet carries its time."""
    sender.send(time.monotonic_ns().to_bytes(8))
    data, now_ns = receiver.recv(100), time.monotonic_ns()
    return now_ns - int.from_bytes(data)


def burst(path: TunPath, count: int, pause_s: float = 0.0) -> list[tuple[int, int]]:
    """Numbers and one-way times of what of `count` packets arrives at the server, in that order."""

    def send() -> None:
        for number in range(count):
            client.send(number.to_bytes(8) + time.monotonic_ns().to_bytes(8))
            time.sleep(pause_s)

    found: list[tuple[int, int]] = []
    with udp_pair(path) as (client, server):
        server.settimeout(0.05)
        sender = threading.Thread(target=send)
        sender.start()
        while True:
            try:
                data, now_ns = server.recv(100), time.monotonic_ns()
                found.append((int.from_bytes(data[:8]), now_ns - int.from_bytes(data[8:])))
            except TimeoutError:
                there = path.stats()["there"]
                if there["forwarded"] == len(found) == count - there["lost"]:
                    break
        sender.join()
    return found


def cookie_at(link: str) -> int:
    """The kernel's number of a network, which it never gives again."""
    with own_network_kept():
        set_network(link)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            return int.from_bytes(
                sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8), sys.byteorder
            )


def cookies(path: TunPath) -> dict[str, int]:
    """The two networks: what links to them read, and their cookies."""
    found = {}
    for side in SIDES:
        with path.enter(side):
            found[str(NETWORK.readlink())] = cookie_at(str(NETWORK))
    return found


def holders(networks: dict[str, int]) -> list[str]:
    """Where in /proc one of these networks is: a thread in it, or a descriptor of it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        links: list[Path] = []
        with contextlib.suppress(OSError):  # gone meanwhile
            links += process.glob("task/*/ns/net")
            links += process.glob("fd/*")
        for link in links:
            with contextlib.suppress(OSError):
                read = str(link.readlink())
                if read in networks and cookie_at(str(link)) == networks[read]:
                    found.append(str(link))
    return found


# ---------------------------------------------------------------- delays


def test_a_delay_is_finite_and_a_probability_is_one() -> None:
    for wrong in ({"ms": -1}, {"ms": float("nan")}, {"ms": 0, "jitter_ms": -0.1}):
        with pytest.raises(ValueError, match="delays are finite"):
            Delay(**wrong)
    for wrong in ({"ms": 0, "loss": 1.1}, {"ms": 0, "reorder": -0.1}):
        with pytest.raises(ValueError, match="probabilities"):
            Delay(**wrong)


def test_a_round_trip_of_tcp_takes_there_and_back() -> None:
    with TunPath(Delay(8), Delay(3)) as path:
        server = path.popen("server", [sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
        with server.stdout:
            assert server.stdout.readline() == b"ready\n"
        started_ns, trips_ns = time.monotonic_ns(), []
        with path.enter("client"):
            sock = socket.create_connection((path.server_ip, 8000), LIMIT_S)
        with sock:
            assert time.monotonic_ns() - started_ns >= 11 * MS
            for _ in range(15):
                sent_ns = time.monotonic_ns()
                sock.sendall(b"x")
                assert sock.recv(10) == b"x"
                trips_ns.append(time.monotonic_ns() - sent_ns)
        assert server.wait(LIMIT_S) == 0
    assert min(trips_ns) >= 11 * MS
    assert statistics.median(trips_ns) < 4 * 11 * MS


def test_each_direction_has_its_own_delay() -> None:
    with TunPath(Delay(30), Delay(2)) as path, udp_pair(path) as (client, server):
        there_ns = [one_way_ns(client, server) for _ in range(15)]
        back_ns = [one_way_ns(server, client) for _ in range(15)]
    assert min(there_ns) >= 30 * MS
    assert min(back_ns) >= 2 * MS
    assert statistics.median(back_ns) < 30 * MS


def test_stats_count_packets_and_lateness() -> None:
    with TunPath(NOTHING, Delay(1)) as path, udp_pair(path) as (client, server):
        before = path.stats()
        for _ in range(20):
            one_way_ns(client, server)
        after = path.stats()
    assert before["there"] == before["back"] == after["back"]
    assert before["there"] == {
        "forwarded": 0,
        "lost": 0,
        "reordered": 0,
        "dropped_full": 0,
        "dropped_device": 0,
        "late_p50_ms": None,
        "late_max_ms": None,
    }
    assert after["there"]["forwarded"] == 20
    assert 0 <= after["there"]["late_p50_ms"] <= after["there"]["late_max_ms"]


# ---------------------------------------------------------------- order and loss


def test_packets_keep_their_order_under_jitter() -> None:
    with TunPath(Delay(2, jitter_ms=10), NOTHING) as path:
        found = burst(path, 100, pause_s=0.001)
    assert [number for number, _ in found] == list(range(100))
    assert min(took for _, took in found) >= 2 * MS
    assert max(took for _, took in found) > 6 * MS  # all 100 shares below 0.4: never


def test_reordered_packets_are_late_and_none_is_early() -> None:
    with TunPath(Delay(2, reorder=0.2), NOTHING) as path:
        found = burst(path, 100)
        reordered = path.stats()["there"]["reordered"]
    numbers = [number for number, _ in found]
    assert sorted(numbers) == list(range(100)) != numbers
    assert 0 < reordered < 100
    assert min(took for _, took in found) >= 2 * MS


def test_losses_are_counted_and_follow_the_seed() -> None:
    arrived = []
    for seed in (7, 7, 8):
        with TunPath(Delay(0, loss=0.5), NOTHING, seed) as path:
            arrived.append([number for number, _ in burst(path, 100)])
    assert arrived[0] == arrived[1] != arrived[2]
    assert 0 < len(arrived[0]) < 100


def test_tcp_sends_again_what_was_lost() -> None:
    with TunPath(Delay(1), Delay(1)) as path, tcp_pair(path) as (client, server):
        path.change(Delay(1, loss=0.1), Delay(1))
        sender = threading.Thread(target=client.sendall, args=(bytes(200_000),))
        sender.start()
        left = 200_000
        while left:
            left -= len(server.recv(left))
        sender.join()
        lost = path.stats()["there"]["lost"]
        info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_RETRANS_AT + 4)
        again = int.from_bytes(info[TCP_INFO_RETRANS_AT:], sys.byteorder)
    assert lost > 0
    assert again >= lost


# ---------------------------------------------------------------- change


def test_a_change_holds_from_its_return() -> None:
    with TunPath(Delay(1), Delay(1)) as path, udp_pair(path) as (client, server):
        one_way_ns(client, server)
        path.change(Delay(40), Delay(20))
        assert one_way_ns(client, server) >= 40 * MS
        assert one_way_ns(server, client) >= 20 * MS
        path.change(NOTHING, NOTHING)
        for pair in ((client, server), (server, client)):
            assert statistics.median(one_way_ns(*pair) for _ in range(9)) < 20 * MS


def test_packets_under_way_keep_their_times_and_their_place() -> None:
    with TunPath(Delay(50), NOTHING) as path, udp_pair(path) as (client, server):
        sent_ns = time.monotonic_ns()
        client.send(b"first")
        path.change(NOTHING, NOTHING)
        client.send(b"second")
        assert [server.recv(100) for _ in range(2)] == [b"first", b"second"]
        assert time.monotonic_ns() - sent_ns >= 50 * MS


# ---------------------------------------------------------------- who is in which network


def test_enter_moves_the_calling_thread_only() -> None:
    entered, seen = threading.Event(), []

    def look() -> None:
        entered.wait(LIMIT_S)
        seen.append(NETWORK.readlink())

    with TunPath(NOTHING, NOTHING) as path:
        other = threading.Thread(target=look)
        other.start()
        with path.enter("client"):
            entered.set()
            other.join()
            with path.enter("server"):
                inner = NETWORK.readlink()
            outer = NETWORK.readlink()
        with pytest.raises(KeyError), path.enter("client"):
            raise KeyError
        assert NETWORK.readlink() == FIRST_NETWORK
    assert seen == [FIRST_NETWORK]
    assert len({FIRST_NETWORK, inner, outer}) == 3


def test_processes_start_in_their_network_from_any_thread() -> None:
    seen: dict[str, set[str]] = {side: set() for side in SIDES}
    argv = [sys.executable, "-S", "-c", "import os; print(os.readlink('/proc/self/ns/net'))"]

    def start(side: str) -> None:
        for _ in range(3):
            with path.popen(side, argv, stdout=subprocess.PIPE, text=True) as child:
                seen[side].add(child.stdout.read().strip())

    with TunPath(NOTHING, NOTHING) as path:
        threads = [threading.Thread(target=start, args=(side,)) for side in SIDES]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert NETWORK.readlink() == FIRST_NETWORK
        expected = list(cookies(path))
    assert seen == {side: {expected[i]} for i, side in enumerate(SIDES)}


def test_a_missing_program_is_an_error_at_once() -> None:
    with TunPath(NOTHING, NOTHING) as path:
        with pytest.raises(FileNotFoundError):
            path.popen("client", ["/no/such/program"])
        assert NETWORK.readlink() == FIRST_NETWORK


# ---------------------------------------------------------------- the end


def test_close_leaves_no_process_and_no_network() -> None:
    with TunPath(NOTHING, NOTHING) as path:
        tree = path.popen("server", ["sh", "-c", "sleep 60 & sleep 60"])
        networks = cookies(path)
        assert len(holders(networks)) >= 3
    assert holders(networks) == []
    assert tree.returncode == -signal.SIGKILL
    assert not Path(f"/proc/{path.forwarder_pid}").exists()
    path.close()
    for call in (path.stats, lambda: path.change(NOTHING, NOTHING), path.enter("client").__enter__):
        with pytest.raises(TunPathError, match="is gone"):
            call()


def own_until_killed() -> None:
    """The owner of the next test."""
    path = TunPath(NOTHING, NOTHING)
    inside = path.popen("server", ["sleep", "60"])
    copy = os.fork()  # has all of the owner's descriptors, and lives on
    if copy:
        print(json.dumps([cookies(path), path.forwarder_pid, inside.pid, copy]), flush=True)
    time.sleep(60)


def test_an_owner_that_is_killed_leaves_nothing() -> None:
    argv = [sys.executable, "-c", "import test_tun_path as test; test.own_until_killed()"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parent) as owner:
        networks, *pids = json.loads(owner.stdout.readline())
        ends = {os.pidfd_open(pid): pid for pid in pids}
        assert len(holders(networks)) >= 3
        owner.kill()
    *gone, copy_end = ends
    for end in gone:
        assert select.select([end], (), (), LIMIT_S)[0], f"{ends[end]} lives"
    assert holders(networks) == []
    assert not select.select([copy_end], (), (), 0)[0]
    signal.pidfd_send_signal(copy_end, signal.SIGKILL)
    for end in ends:
        os.close(end)


def test_a_path_ends_by_itself() -> None:
    with TunPath(NOTHING, NOTHING, life_s=0.2) as path:
        networks = cookies(path)
        child = path.popen("client", ["sleep", "60"])
        assert child.wait(LIMIT_S) == -signal.SIGKILL
        with pytest.raises(TunPathError, match=r"is gone \(exit 0\): closed, or life over"):
            path.stats()
        assert holders(networks) == []


def refusal() -> str:
    with pytest.raises(TunPathError) as found, TunPath(NOTHING, NOTHING):
        pass
    return str(found.value)


def refusal_without(capability: int) -> str:
    """What a root without this capability reads; a forwarder gets it no more."""
    assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0
    return refusal()


def refusal_without_device() -> str:
    """What a container without /dev/net/tun reads."""
    libc = ctypes.CDLL(None)
    assert libc.unshare(CLONE_NEWNS) == 0
    assert libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0
    assert libc.mount(b"none", b"/dev/net", b"tmpfs", 0, None) == 0
    return refusal()


def test_what_cannot_be_made_is_one_line() -> None:
    start = "tun path: cannot make a network namespace (needs root with CAP_SYS_ADMIN"
    for capability in (CAP_SYS_ADMIN, CAP_NET_ADMIN):
        line = in_child(refusal_without, capability)
        assert line.startswith(start)
        assert line.endswith("Operation not permitted")
    line = in_child(refusal_without_device)
    assert line.startswith("tun path: cannot make a TUN device (needs /dev/net/tun")
    assert "No such file" in line
