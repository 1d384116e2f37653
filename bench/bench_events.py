"""Highest event rate of one core and CPU an event, against a bare epoll + recv loop.

The known-timing responder sends as fast as it can (gap 0) or at a steady rate, one event or several
in a send; the bare loop and the engine read streams of the same shape in turn, three times; the
median pair is shown. With one event a send the responder's core is the ceiling of the rate: both
keep up, and the CPU's ratio counts. With several the source is faster than the engine, which then
shows its own ceiling. At steady rates the client's gaps stand beside the responder's own.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import rig

# streams, tokens, gap us, events a send
CASES = (
    (100, 1000, 0, 1),
    (100, 4000, 0, 4),
    (100, 8000, 0, 16),
    (500, 500, 10_000, 1),
    (1000, 400, 10_000, 1),
)
ROUNDS = 3


def bare(binary: Path, streams: int, tokens: int, gap_us: int, per_send: int) -> dict[str, Any]:
    with rig.responder() as port:
        words = [port, streams, tokens, gap_us, rig.cores()[0], per_send]
        told = subprocess.run(
            [str(binary), *map(str, words)], check=True, capture_output=True, text=True, timeout=120
        )
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def engine(streams: int, tokens: int, gap_us: int, per_send: int) -> dict[str, float]:
    # spread over one gap, as steady streams are; at gap 0 all at once
    rate = streams / (gap_us / 1e6) if gap_us else None
    load = rig.Load(streams, rate, tokens, 50_000, gap_us, "busy", per_send=per_send)
    seen = rig.measure(load)
    events = len(seen.event_late)
    span = (seen.last_event - seen.first_event) / 1e9
    return {
        "events": events,
        "seconds": span,
        "cpu_s": max(0.0, seen.cpu_s - seen.idle_s),
        "gap_p99": rig.us(seen.gaps, 99),
        "server_gap_p99": rig.us(seen.server_gaps, 99),
    }


def main() -> None:
    print(rig.machine())
    print(
        "| streams | gap us | events a send | bare events/s | engine events/s | ratio |"
        " bare CPU us/event | engine CPU us/event | ratio | gap p99 us | server's gap p99 us |"
        " ratio |\n|" + "---|" * 12
    )
    with rig.compiled("bare") as binary:
        for case in CASES:
            pairs = [(bare(binary, *case), engine(*case)) for _ in range(ROUNDS)]
            print(row(case, *sorted(pairs, key=ratio)[ROUNDS // 2]), flush=True)


def ratio(pair: tuple[dict[str, Any], dict[str, float]]) -> float:
    return float(per_event(pair[1]) / per_event(pair[0]))


def per_event(found: dict[str, Any]) -> float:
    return float(found["cpu_s"] / found["events"] * 1e6)


def row(case: tuple[int, int, int, int], plain: dict[str, Any], own: dict[str, float]) -> str:
    rates = [found["events"] / found["seconds"] for found in (plain, own)]
    gaps = "- | - | -"
    if case[2]:
        steady = own["gap_p99"], own["server_gap_p99"]
        gaps = f"{steady[0]:.0f} | {steady[1]:.0f} | {steady[0] / steady[1]:.3f}"
    return (
        f"| {case[0]} | {case[2]} | {case[3]} | {rates[0]:.0f} | {rates[1]:.0f} |"
        f" {rates[1] / rates[0]:.2f} | {per_event(plain):.2f} | {per_event(own):.2f} |"
        f" {ratio((plain, own)):.2f} | {gaps} |"
    )


if __name__ == "__main__":
    main()
