"""The overhead test: N streams at once, 50 ms to the first token, then a token every 10 ms.

What the client adds: its TTFT less the known 50 ms, its gaps less the server's own gaps, which the
server logs right before each send, and the lag of each read behind the kernel's stamp. N streams
start as a Poisson process over 0.2 s (1 s from 5000 on). Beyond the server's own rate its tokens
are late: its column says so, and the lag columns still speak of the client alone.
"""

from __future__ import annotations

import argparse

import numpy as np

import rig
from percentes_fast import _native

# streams, gap ms
TESTS = (
    *((streams, 10) for streams in (1, 10, 100, 300, 500, 1000, 5000)),
    (5000, 50),
    (10_000, 100),
)
SPREAD_S, LONG_SPREAD_S = 0.2, 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--most", type=int, default=10_000, help="streams")
    options = parser.parse_args()
    recv = rig.limits()["recv_stamped"][0] / 1000
    print(f"{rig.machine()}; epoll + recvmsg of a ready event: {recv:.1f} us p50;")
    print(f"connection state {_native.CONNECTION_BYTES} B a stream, beside the socket\n")
    print(
        "| streams | gap ms | events/s asked | completed | TTFT error p50 us | p99 us |"
        " gap error SD us | gap SD us | server gap SD us | kernel -> user p50 us | p99 us |"
        " p50 / recv | CPU us an event |\n|" + "---|" * 13
    )
    for streams, gap_ms in TESTS:
        if streams > options.most:
            break
        spread = SPREAD_S if streams < 5000 else LONG_SPREAD_S
        rate = None if streams == 1 else streams / spread
        tokens = options.tokens if streams < 5000 else min(options.tokens, 40)
        load = rig.Load(streams, rate, tokens, 50_000, gap_ms * 1000, "busy")
        print(row(load, rig.measure(load), recv), flush=True)


def row(load: rig.Load, seen: rig.Seen, recv: float) -> str:
    asked = load.count * 1e6 / load.gap_us
    lag = rig.us(seen.receive_lag, 50)
    return (
        f"| {load.count} | {load.gap_us // 1000} | {asked:.0f} | {seen.completed} |"
        f" {rig.us(seen.ttft_error, 50):.0f} | {rig.us(seen.ttft_error, 99):.0f} |"
        f" {np.std(seen.gap_error) / 1000:.0f} | {np.std(seen.gaps) / 1000:.0f} |"
        f" {np.std(seen.server_gaps) / 1000:.0f} | {lag:.1f} |"
        f" {rig.us(seen.receive_lag, 99):.1f} | {lag / recv:.1f} |"
        f" {(seen.cpu_s - seen.idle_s) / len(seen.event_late) * 1e6:.1f} |"
    )


if __name__ == "__main__":
    main()
