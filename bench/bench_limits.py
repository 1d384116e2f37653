"""Prints what clock, send, recv and epoll cost on this machine now."""

from __future__ import annotations

import rig

NAMES = {
    "clock": "clock read",
    "overshoot": "busy-wait overshoot (sleep, then 500 us spin)",
    "epoll_empty": "epoll_wait(0), nothing there",
    "send_to_spinning": "send of 3 kB to a spinning peer",
    "send_to_sleeping": "send of 3 kB that wakes a sleeping peer",
    "recv_ready": "recv of 200 B that lie ready",
    "recv_stamped": "epoll_wait + recvmsg of them with the kernel's stamp",
    "read_woken_cpu": "CPU of the same where epoll had to sleep, once a ms",
}


def main() -> None:
    found = rig.limits()
    print(rig.machine())
    print(f"| {'limit':52} | p50 us | p99 us | max us |\n|---|---|---|---|")
    for key, name in NAMES.items():
        p50, p99, most = (value / 1000 for value in found[key])
        print(f"| {name:52} | {p50:6.2f} | {p99:6.2f} | {most:6.0f} |")


if __name__ == "__main__":
    main()
