"""A dead target at 2000 refused connects a second: does it delay the other sends?

The same live load with and without the storm beside it, in turn, three times; the median run by
its p99 is shown. True send error as in bench_skew, and the receive lag of the live streams.
"""

from __future__ import annotations

from dataclasses import replace

import rig

LIVE = rig.Load(count=2000, rate=200.0, tokens=8, ttft_us=50_000)
STORM = 2000.0
ROUNDS = 3


def main() -> None:
    send = rig.limits()["send_to_spinning"][0] / 1000
    print(f"{rig.machine()}; send of 3 kB: {send:.1f} us p50")
    print(
        "| poll | refused /s | live completed | refused | true error p50 us | p99 us | p99 / calm |"
        " receive lag p50 us | p99 us | CPU less empty polls % |\n|" + "---|" * 10
    )
    for poll in ("hybrid", "busy"):
        calm = replace(LIVE, poll=poll)
        storm = replace(calm, dead_rate=STORM)
        pairs = [(rig.measure(calm), rig.measure(storm)) for _ in range(ROUNDS)]
        middle = [sorted(runs, key=p99)[ROUNDS // 2] for runs in zip(*pairs, strict=True)]
        for load, seen in zip((calm, storm), middle, strict=True):
            print(row(load, seen, p99(middle[0])), flush=True)


def p99(seen: rig.Seen) -> float:
    return rig.us(seen.arrival_kernel - seen.intended, 99)


def row(load: rig.Load, seen: rig.Seen, calm: float) -> str:
    error = seen.arrival_kernel - seen.intended
    return (
        f"| {load.poll} | {load.dead_rate:g} | {seen.completed} of {load.count} | {seen.refused} |"
        f" {rig.us(error, 50):.1f} | {p99(seen):.1f} | {p99(seen) / calm:.2f} |"
        f" {rig.us(seen.receive_lag, 50):.1f} | {rig.us(seen.receive_lag, 99):.1f} |"
        f" {max(0.0, 100 * (seen.cpu_s - seen.idle_s) / seen.wall_s):.1f} |"
    )


if __name__ == "__main__":
    main()
