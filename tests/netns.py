"""Child processes under real limits: a network of their own, few descriptors, refused system calls.

Does: runs one function of a test module in a fresh Python, which then limits itself; measures the
      memory of that process.
Never: limits the process of the tests, touches the machine's own network, or skips where a limit
      cannot be made: the child fails, and the test with it.
Plan: `in_child` and its other end; network namespace; descriptors; seccomp; resident memory.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import importlib
import json
import os
import platform
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CHILD_LIMIT_S = 60.0
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
NETWORK = Path("/proc/thread-self/ns/net")
FIRST_NETWORK = NETWORK.readlink()
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
SECCOMP_KILL, SECCOMP_ERRNO, SECCOMP_ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
LOAD_WORD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_AT, MACHINE_AT = 0, 4  # in struct seccomp_data
MACHINE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CALLS = {
    "x86_64": {
        "socket": 41,
        "connect": 42,
        "sendto": 44,
        "recvfrom": 45,
        "sendmsg": 46,
        "recvmsg": 47,
        "setsockopt": 54,
        "epoll_ctl": 233,
        "epoll_pwait2": 441,
    },
    "aarch64": {
        "socket": 198,
        "connect": 203,
        "sendto": 206,
        "recvfrom": 207,
        "setsockopt": 208,
        "sendmsg": 211,
        "recvmsg": 212,
        "epoll_ctl": 21,
        "epoll_pwait2": 441,
    },
}


# ---------------------------------------------------------------- the child


def in_child(job: Callable[..., Any], *arguments: Any) -> Any:
    """What `job(*arguments)` returns in a process of its own; both ways as JSON."""
    done = subprocess.run(
        [sys.executable, __file__, job.__module__, job.__name__],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        timeout=CHILD_LIMIT_S,
        cwd=Path(__file__).parent,
        check=False,
    )
    assert done.returncode == 0, f"{job.__name__}: exit {done.returncode}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout)


def main(module: str, name: str) -> None:
    """The other end of `in_child`."""
    job = getattr(importlib.import_module(module), name)
    print(json.dumps(job(*json.load(sys.stdin))))


def _libc(name: str, *arguments: Any) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


# ---------------------------------------------------------------- network


def own_network() -> None:
    """A network namespace of this thread's own, where only loopback is up and nothing listens."""
    user, group = os.geteuid(), os.getegid()
    _libc("unshare", CLONE_NEWNET | (CLONE_NEWUSER if user else 0))
    if user:  # root of the namespace only: enough for its own settings
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16xh14x", fcntl.ioctl(sock, SIOCGIFFLAGS, asked))[0]
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def narrow_ports(first: int, last: int) -> None:
    """Dials get a local port of this range; only in a namespace of our own."""
    if NETWORK.readlink() == FIRST_NETWORK:
        raise RuntimeError("narrow_ports would change the machine's own network")
    PORT_RANGE.write_text(f"{first} {last}")


# ---------------------------------------------------------------- descriptors


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError as exc:
        if exc.errno != errno.EBADF:
            raise
        return False
    return True


def leave_descriptors(left: int) -> None:
    """From now on this process can open `left` more descriptors."""
    limit = free = 0
    while free < left or _is_open(limit):
        free += not _is_open(limit)
        limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def allow_descriptors(wanted: int) -> None:
    """Raises the soft limit; an error where the hard one is lower and cannot be raised."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))


# ---------------------------------------------------------------- refused system calls


class Instruction(ctypes.Structure):
    """struct sock_filter."""

    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_uint16), ("first", ctypes.POINTER(Instruction)))


def program(*instructions: tuple[int, int, int, int]) -> Program:
    """A classic BPF program; it keeps its instructions alive."""
    block = (Instruction * len(instructions))(*(Instruction(*each) for each in instructions))
    return Program(len(instructions), block)


def refuse(calls: Sequence[str], error: int) -> None:
    """From now on these system calls of this thread (and of what it starts) fail with `error`."""
    machine = platform.machine()
    numbers = [CALLS[machine][name] for name in calls]
    tests = [(JUMP_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    filtered = program(
        (LOAD_WORD, 0, 0, MACHINE_AT),
        (JUMP_EQUAL, 1, 0, MACHINE[machine]),
        (RETURN, 0, 0, SECCOMP_KILL),
        (LOAD_WORD, 0, 0, NUMBER_AT),
        *tests,
        (RETURN, 0, 0, SECCOMP_ALLOW),
        (RETURN, 0, 0, SECCOMP_ERRNO | error),
    )
    _libc("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filtered), 0, 0)


# ---------------------------------------------------------------- memory


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def growth_bytes(action: Callable[[], Any]) -> int:
    """By how much the resident memory of this process grew at most during the action."""
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _status_bytes("VmRSS")
    action()
    return _status_bytes("VmHWM") - before


if __name__ == "__main__":
    main(*sys.argv[1:])
