"""True send error (server kernel's arrival minus intended time) over rates, both ways to poll.

The error's ratio is to the cost of one send measured by limits.c in the same run. Poisson arrivals;
one-token streams; connections warm after the first seconds.
"""

from __future__ import annotations

import argparse

import numpy as np

import rig

RATES = (3.12, 20.0, 200.0, 1000.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    seconds = parser.parse_args().seconds
    found = rig.limits()
    send = found["send_to_spinning"][0] / 1000
    print(f"{rig.machine()}; send of 3 kB: {send:.1f} us p50")
    print(
        "| rate /s | poll | n | true error p50 us | p99 us | p99 / send | user skew p99 us |"
        " kernel send - arrival p50 us | CPU less empty polls % |\n|" + "---|" * 9
    )
    for rate in RATES:
        for poll in ("hybrid", "busy"):
            load = rig.Load(count=max(30, int(rate * seconds)), rate=rate, tokens=1, poll=poll)
            seen = rig.measure(load)
            error = seen.arrival_kernel - seen.intended
            stamped = seen.sent_kernel > 0
            apart = np.abs(seen.arrival_kernel - seen.sent_kernel)[stamped]
            busy = 100 * (seen.cpu_s - seen.idle_s) / seen.wall_s
            print(
                f"| {rate:g} | {poll} | {len(error)} | {rig.us(error, 50):.1f} |"
                f" {rig.us(error, 99):.1f} | {rig.us(error, 99) / send:.1f} |"
                f" {rig.us(seen.dispatch - seen.intended, 99):.1f} | {rig.us(apart, 50):.2f} |"
                f" {max(0.0, busy):.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
