"""Highest event rate of one core and CPU an event, against a bare epoll + recv loop.

The known-timing responder sends as fast as it can (gap 0) or at a steady rate; the bare loop and
the engine read streams of the same shape in turn, three times; the median pair is shown. The
responder's own core is the ceiling of the rate, so the ratios count.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import rig

CASES = ((100, 1000, 0), (500, 100, 10_000), (1000, 100, 10_000))
ROUNDS = 3


def bare(binary: Path, streams: int, tokens: int, gap_us: int) -> dict[str, Any]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    listener.setblocking(False)
    server = rig.serve(listener, None, None, 2_000_000)
    words = [listener.getsockname()[1], streams, tokens, gap_us, rig.cores()[0]]
    try:
        told = subprocess.run(
            [str(binary), *map(str, words)], check=True, capture_output=True, text=True, timeout=120
        )
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        listener.close()
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def engine(streams: int, tokens: int, gap_us: int) -> dict[str, float]:
    load = rig.Load(streams, None, tokens, 50_000, gap_us, "busy")
    seen = rig.measure(load)
    events = len(seen.event_late)
    span = (seen.last_event - seen.first_event) / 1e9
    return {"events": events, "seconds": span, "cpu_s": max(0.0, seen.cpu_s - seen.idle_s)}


def main() -> None:
    print(rig.machine())
    print(
        "| streams | gap us | bare events/s | engine events/s | ratio | bare CPU us/event |"
        " engine CPU us/event | ratio |\n|" + "---|" * 8
    )
    with tempfile.TemporaryDirectory() as place:
        binary = Path(place) / "bare"
        source = str(rig.ROOT / "bench" / "bare.c")
        include = f"-I{rig.ROOT / 'csrc'}"
        subprocess.run(
            ["cc", "-O2", "-D_GNU_SOURCE", include, source, "-o", str(binary)], check=True
        )
        for case in CASES:
            pairs = [(bare(binary, *case), engine(*case)) for _ in range(ROUNDS)]
            print(row(case, *sorted(pairs, key=ratio)[ROUNDS // 2]), flush=True)


def ratio(pair: tuple[dict[str, Any], dict[str, float]]) -> float:
    return float(per_event(pair[1]) / per_event(pair[0]))


def per_event(found: dict[str, Any]) -> float:
    return float(found["cpu_s"] / found["events"] * 1e6)


def row(case: tuple[int, int, int], plain: dict[str, Any], own: dict[str, float]) -> str:
    rates = [found["events"] / found["seconds"] for found in (plain, own)]
    return (
        f"| {case[0]} | {case[2]} | {rates[0]:.0f} | {rates[1]:.0f} | {rates[1] / rates[0]:.2f} |"
        f" {per_event(plain):.2f} | {per_event(own):.2f} | {ratio((plain, own)):.2f} |"
    )


if __name__ == "__main__":
    main()
