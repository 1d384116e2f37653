"""Trials whose true time of the fire is known: what the rules must hold, and that a trial can fail.

Never: asks compat to be right; it is measured beside the other two.
Plan: the host's clock; the trials of every kind, once; checks that fail when the truth is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clock_trials import (
    KINDS,
    MS,
    Found,
    HostClock,
    build_library,
    can_read,
    draw,
    failures,
    run_all,
    table,
    wrong_sides,
)
from percentes_fast.observe.offset import BASH

TRIALS, SEED = 20, 1
PYTHON = "import time as t; print(t.clock_gettime_ns(t.CLOCK_REALTIME)); print(t.monotonic_ns())"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trials() -> list[Found]:
    return list(run_all(draw(number, SEED) for number in range(TRIALS)))


# ---------------------------------------------------------------- the host's clock


@pytest.fixture
def clock(tmp_path: Path) -> HostClock:
    made = HostClock(tmp_path / "clock")
    made.environment["LD_PRELOAD"] = str(build_library(tmp_path))
    return made


def read(clock: HostClock, *words: str) -> tuple[list[int], int, int]:
    """What a program prints under that clock, and the time around."""
    before = time.monotonic_ns()
    done = subprocess.run(
        words, input=b"\n", env={**os.environ, **clock.environment}, capture_output=True, check=True
    )
    return [int(line) for line in done.stdout.split()], before, time.monotonic_ns()


def test_bash_python_and_date_read_the_one_clock(clock: HostClock) -> None:
    clock.start(-90_000 * MS, 400_000)
    (grain, bash), *around = read(clock, "bash", "-c", BASH)
    assert can_read(clock.pieces, bash, grain, *around)
    (python, monotonic), *around = read(clock, sys.executable, "-c", PYTHON)
    assert can_read(clock.pieces, python, 1, *around)
    assert around[0] < monotonic < around[1]
    (date,), *around = read(clock, "date", "+%s%N")
    assert can_read(clock.pieces, date, 1, *around)
    assert time.time_ns() - date > 80_000 * MS


def test_the_clock_steps_and_changes_its_rate_when_it_was_told(clock: HostClock) -> None:
    clock.start(0, 0)
    begun = clock.pieces[0]
    clock.go_on(begun.from_ns + 1, -7_000 * MS, -100_000)
    (python, monotonic), *around = read(clock, sys.executable, "-c", PYTHON)
    assert can_read(clock.pieces, python, 1, *around)
    since = (
        monotonic - begun.from_ns
    )  # another reading, before or after: up to the whole read apart
    apart = around[1] - around[0]
    assert abs(python - (begun.wall_ns + since - 7_000 * MS - since // 10_000)) < apart
    assert not can_read(clock.pieces[:1], python, 1, *around)


# ---------------------------------------------------------------- the rules


def test_every_trial_holds(trials: list[Found], capsys: pytest.CaptureFixture[str]) -> None:
    """The fire in tight, its arrival in the bracket, nobody on the wrong side; compat beside."""
    with capsys.disabled():
        print(f"\n{table(trials)}")
    told = [(found.trial, line) for found in trials for line in failures(found)]
    assert not told, "\n".join(f"{trial}: {line}" for trial, line in told)
    assert {found.trial.kind for found in trials} == set(KINDS)
    readers = {found.facts["fault"]["clock"]["reader"] for found in trials}
    assert readers == {"bash with EPOCHREALTIME"}


def test_a_wrong_truth_is_found_out(trials: list[Found]) -> None:
    """A fire said to be elsewhere fails the checks of the intervals, earlier as well as later."""
    for found in trials:
        lo, hi = found.interval("tight")
        for wrong_ns in (hi - lo + 1, lo - hi - 1):
            assert any(line.startswith("1:") for line in failures(found, wrong_ns))
        back, (first, last) = found.trial.back, found.fire
        wide = found.width("bracket") + round((back.ms + back.jitter_ms) * MS) + last - first
        for wrong_ns in (wide + 1, -wide - 1):
            assert any(line.startswith("2:") for line in failures(found, wrong_ns))


def test_a_row_on_the_wrong_side_is_found_out(trials: list[Found]) -> None:
    found = trials[0]
    change: dict[str, Callable[[str], bool]] = {
        "in": lambda cause: cause == "stream_end",
        "out": lambda cause: cause == "body_cut",
    }
    for side, wanted in change.items():
        rows = [dict(row) for row in found.facts["rows"]]
        row = next(row for row in rows if wanted(row["cause"]))
        row["tight"] = row["bracket"] = side
        wrong = replace(found, facts={**found.facts, "rows": rows})
        for rule in ("tight", "bracket"):
            assert wrong_sides(wrong, rule, found.fire) == [row]
        assert sum(line.startswith("3:") for line in failures(wrong)) == 2


def test_another_clock_than_the_planned_one_is_found_out(trials: list[Found]) -> None:
    """Every trial looks whether both programs of the host read that clock, and that it was off."""
    for found in trials:
        assert abs(found.lie_ns()) > 500 * MS
        moved = tuple(replace(piece, wall_ns=piece.wall_ns + 1000 * MS) for piece in found.pieces)
        told = failures(replace(found, pieces=moved))
        assert any("killer read another clock" in line for line in told)
        assert any("reader read another clock" in line for line in told)
