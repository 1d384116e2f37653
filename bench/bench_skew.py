"""True send error (server kernel's arrival minus intended time) over rates, both ways to poll.

The error's ratio is to the cost of one send measured by limits.c in the same run. Poisson arrivals;
one-token streams. A request that has to dial pays for the dial: the last but one columns leave
those out and say how many they are.
"""

from __future__ import annotations

import argparse

import numpy as np

import rig

RATES = (3.12, 20.0, 200.0, 1000.0, 10_000.0)
FEWEST = 60  # requests of a row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--cold", action="store_true", help="without rehearsals too")
    options = parser.parse_args()
    send = rig.limits()["send_to_spinning"][0] / 1000
    print(f"{rig.machine()}; send of 3 kB: {send:.1f} us p50")
    print(
        "| rate /s | poll | rehearsed | n | true error p50 us | p99 us | p99 / send | dials |"
        " p99 without dials us | / send | user skew p99 us | kernel send - arrival p50 us |"
        " CPU less empty polls % |\n|" + "---|" * 13
    )
    for rate in options.rates:
        for poll in ("hybrid", "busy"):
            for rehearse in (True, False) if options.cold else (True,):
                count = max(FEWEST, int(rate * options.seconds))
                load = rig.Load(count=count, rate=rate, tokens=1, poll=poll, rehearse=rehearse)
                print(row(load, rig.measure(load), send), flush=True)


def row(load: rig.Load, seen: rig.Seen, send: float) -> str:
    error = seen.arrival_kernel - seen.intended
    stamped = seen.sent_kernel > 0
    apart = np.abs(seen.arrival_kernel - seen.sent_kernel)[stamped]
    p99, warm = rig.us(error, 99), rig.us(error[seen.reused], 99)
    return (
        f"| {load.rate:g} | {load.poll} | {'yes' if load.rehearse else 'no'} | {len(error)} |"
        f" {rig.us(error, 50):.1f} | {p99:.1f} | {p99 / send:.1f} | {(~seen.reused).sum()} |"
        f" {warm:.1f} | {warm / send:.1f} |"
        f" {rig.us(seen.dispatch - seen.intended, 99):.1f} | {rig.us(apart, 50):.2f} |"
        f" {max(0.0, 100 * (seen.cpu_s - seen.idle_s) / seen.wall_s):.1f} |"
    )


if __name__ == "__main__":
    main()
