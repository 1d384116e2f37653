"""Would io_uring beat epoll as the read back end? The same client over both, CPU, rate and lag.

Never: judges by one run, or by a run that lost its core: such a run is repeated, TRIES times at
most. Where io_uring is not permitted it says so in one line and shows epoll's rows alone.
Plan: `uring.c` reads streams of the known-timing responder in each mode in turn, the order turned
by one each round; medians. CPU is less the polls that found nothing, by the same rule for all. The
machine's speed drifts within a minute, so the ratio is to a run of epoll + recvmsg, which is what
the engine does, right beside each run; that mode's own ratio is the noise. Lag is from the kernel's
receive stamp to the wall clock read when the completion was seen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path

import numpy as np

import rig

CASES = ((100, 1000, 0), (500, 100, 10_000), (1000, 100, 10_000))
ROUNDS = 3
TRIES = 4
MOST_LOST = 0.01  # of the wall time of a run, to others on its core
NOT_HERE = 3
ENGINE = ("epoll-recvmsg", "")
FEW, MANY = "4096 64", "4096 1024"  # bytes of a buffer, buffers; where completions pile up: MANY
MODES = {
    ("epoll-recv", ""): "",
    ENGINE: "",
    **{
        (mode, setup): buffers
        for mode in ("uring-recv", "uring-recvmsg")
        for setup, buffers in (
            ("plain", MANY),
            ("coop", MANY),
            ("defer", FEW),
            ("defer-enter", FEW),
        )
    },
    ("uring-poll", "defer"): "",
}
Mode = tuple[str, str]
Found = dict[str, float]


class NotPermittedError(Exception):
    """io_uring is not there; the reason is its text."""


def once(binary: Path, case: tuple[int, int, int], mode: Mode) -> Found:
    with rig.responder() as port:
        numbers = (port, *case, rig.cores()[0])
        words = [*map(str, numbers), *(word for word in mode if word), *MODES[mode].split()]
        told = subprocess.run(
            [str(binary), *words], check=False, capture_output=True, text=True, timeout=120
        )
    if told.returncode == NOT_HERE:
        raise NotPermittedError(told.stdout.strip())
    if told.returncode != 0:
        raise RuntimeError(f"{mode}: {told.stderr.strip()}")
    found: Found = json.loads(told.stdout)
    return found


def undisturbed(binary: Path, case: tuple[int, int, int], mode: Mode) -> Found:
    found = once(binary, case, mode)
    for _ in range(TRIES - 1):
        if found["lost"] <= MOST_LOST:
            break
        found = once(binary, case, mode)
    return found


def pair(binary: Path, case: tuple[int, int, int], mode: Mode, turn: int) -> tuple[Found, Found]:
    """(mode's, engine's), one right after the other, every other time the other way round."""
    if turn % 2:
        base = undisturbed(binary, case, ENGINE)
        return undisturbed(binary, case, mode), base
    return undisturbed(binary, case, mode), undisturbed(binary, case, ENGINE)


def permitted(binary: Path) -> list[Mode]:
    """The modes that can run here."""
    modes = []
    for mode in MODES:
        try:
            once(binary, (1, 2, 0), mode)
        except NotPermittedError as reason:
            if mode[1] == "plain":  # the least that is asked of a kernel
                print(f"{reason}: epoll's rows alone")
                return [mode for mode in MODES if not mode[1]]
            print(f"{reason}: no rows of {' '.join(mode)}")
        else:
            modes.append(mode)
    return modes


def cpu_us(found: Found, what: str = "cpu_s", unit: str = "events") -> float:
    return found[what] / found[unit] * 1e6


def row(case: tuple[int, int, int], mode: Mode, pairs: list[tuple[Found, Found]]) -> str:
    runs = [own for own, _ in pairs]

    def middle(values: list[float]) -> float:
        return statistics.median(values)

    def shown(name: str) -> str:
        value = middle([found[name] for found in runs])
        return f"{value:.1f}" if value >= 0 else "-"

    rate = middle([found["events"] / found["seconds"] for found in runs])
    cpu = [
        middle([cpu_us(found, *what) for found in runs])
        for what in (("cpu_s", "events"), ("cpu_s", "reads"), ("total_cpu_s", "events"))
    ]
    ratios = [cpu_us(own) / cpu_us(base) for own, base in pairs]
    low, ratio, high = np.percentile(ratios, (25, 50, 75))
    return (
        f"| {case[0]} | {case[2]} | {' '.join(mode).strip()} | {rate:.0f} | {cpu[0]:.2f} |"
        f" {ratio:.2f} ({low:.2f}-{high:.2f}) | {cpu[1]:.2f} | {cpu[2]:.2f} |"
        f" {shown('lag_p50_us')} | {shown('lag_p99_us')} |"
        f" {shown('empty_ns')} | {shown('send_us')} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--only", nargs="*", help="modes as in the table; epoll-recvmsg comes along"
    )
    asked = parser.parse_args()
    print(rig.machine())
    with rig.compiled("uring") as binary:
        modes = [
            mode
            for mode in permitted(binary)
            if not asked.only or mode == ENGINE or " ".join(mode).strip() in asked.only
        ]
        print(
            "| streams | gap us | mode | events/s | CPU us/event | ratio (middle half) |"
            " CPU us/read | total CPU us/event | lag p50 us | p99 us | empty poll ns | send us |\n|"
            + "---|"
            * 12
        )
        for case in CASES:
            runs: dict[Mode, list[tuple[Found, Found]]] = {mode: [] for mode in modes}
            for turn in range(asked.rounds):
                at = turn % len(modes)
                for mode in modes[at:] + modes[:at]:
                    runs[mode].append(pair(binary, case, mode, turn))
            for mode in modes:
                print(row(case, mode, runs[mode]), flush=True)


if __name__ == "__main__":
    main()
