"""The overhead test: N streams at once, 50 ms to the first token, then a token every 10 ms.

What the client adds: its TTFT less the known 50 ms, and its gaps less the server's own gaps, which
the server logs right before each send. The N streams start as a Poisson process over 0.2 s.
"""

from __future__ import annotations

import argparse

import numpy as np

import rig

STREAMS = (1, 10, 100, 500, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--spread-ms", type=float, default=200.0, help="arrivals over this time")
    options = parser.parse_args()
    print(rig.machine())
    print(
        "| streams | events/s asked | completed | TTFT error p50 us | p99 us | gap error SD us |"
        " gap SD us | receive lag p50 us | p99 us | CPU s per million events |\n|" + "---|" * 10
    )
    for streams in STREAMS:
        rate = None if streams == 1 else streams / (options.spread_ms / 1000)
        load = rig.Load(
            count=streams, rate=rate, tokens=options.tokens, ttft_us=50_000, poll="busy"
        )
        seen = rig.measure(load)
        print(
            f"| {streams} | {streams * 100} | {seen.completed} |"
            f" {rig.us(seen.ttft_error, 50):.0f} | {rig.us(seen.ttft_error, 99):.0f} |"
            f" {np.std(seen.gap_error) / 1000:.0f} |"
            f" {np.std(seen.gaps) / 1000:.0f} | {rig.us(seen.event_late, 50):.1f} |"
            f" {rig.us(seen.event_late, 99):.1f} |"
            f" {(seen.cpu_s - seen.idle_s) / len(seen.event_late) * 1e6:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
