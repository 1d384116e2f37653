"""One worker against several: the same schedule dealt to one core or to more.

Row i goes to worker i mod W, so the union of what the workers send is the one Poisson process that
was drawn; what changes is how much of it a core has to serve. `--cores 3,2,1` names the workers'
cores (the server has the lowest usable one); the rows are 1, 2, ... of them. With two cores in all
the second worker shares the server's core, which therefore sleeps between its sends, and the rates
stay where both have room: say so beside the figures.
"""

from __future__ import annotations

import argparse

import numpy as np

import rig

RATES = (200.0, 1000.0, 2000.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cores", help="of the workers, such as 3,2,1; default: all, highest first"
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    engine, server = rig.cores()
    named = options.cores or f"{engine},{server}"
    places = tuple(int(core) for core in named.split(","))
    print(f"{rig.machine()}; server on core {server}, workers on {named}")
    print(
        "| rate /s | tokens | workers | completed | true error p50 us | p99 us | gaps' dispersion |"
        " CPU less empty polls, a worker % |\n|" + "---|" * 8
    )
    for rate in RATES:
        for workers in range(1, len(places) + 1):
            load = rig.Load(
                int(rate * options.seconds), rate, tokens=4, engine_cores=places[:workers]
            )
            print(row(load, rig.measure(load, server_spin_us=0), workers), flush=True)


def row(load: rig.Load, seen: rig.Seen, workers: int) -> str:
    error = seen.arrival_kernel - seen.intended
    gaps = np.diff(np.sort(seen.arrival_kernel))
    busy = 100 * (seen.cpu_s - seen.idle_s) / seen.wall_s / workers
    return (
        f"| {load.rate:g} | {load.tokens} | {workers} | {seen.completed} of {load.count} |"
        f" {rig.us(error, 50):.1f} | {rig.us(error, 99):.1f} |"
        f" {float(gaps.std() / gaps.mean()):.3f} | {max(0.0, busy):.1f} |"
    )


if __name__ == "__main__":
    main()
