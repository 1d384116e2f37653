"""The schedule: a pure function of configuration and seed, and the arrivals it promises.

Never: draws anew on every run: seeds are fixed, so a bound that holds once holds always.
Plan: purity and the workers' shares; the Poisson process as the workers send it; the other
arrivals; rows beside the load; trace files and their error lines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from percentes_fast import config as configuration
from percentes_fast.config import Config, seconds_ns
from percentes_fast.engine import schedule
from percentes_fast.engine.schedule import Schedule
from percentes_fast.errors import ConfigError
from percentes_fast.schema import Kind

WORKERS = (1, 2, 4, 10)
SEED = 20_261_129
LOAD_ONLY = {"probe__every_s": 0, "health__every_s": 0, "canary__every_s": 0}


def configured(seconds: float = 400.0, **sections: Any) -> Config:
    given = {
        "fault.kind": "none",
        "target.url": "http://127.0.0.1:1",
        "phases.warmup_s": 0,
        "phases.cooldown_s": 0,
        "phases.duration_s": seconds,
    }
    given |= {name.replace("__", "."): value for name, value in sections.items()}
    return configuration.load(None, given).config


def built(seconds: float = 400.0, **sections: Any) -> Schedule:
    return schedule.build(configured(seconds, **sections))


def times_of(plan: Schedule, kind: Kind) -> NDArray[np.int64]:
    return plan.intended_ns[plan.kind == kind]


def as_lists(plan: Schedule) -> tuple[Any, ...]:
    columns = (plan.intended_ns, plan.kind, plan.target, plan.template)
    return (*(column.tolist() for column in columns), plan.templates)


# ---------------------------------------------------------------- purity and shares

ARRIVALS = st.sampled_from(["poisson", "constant", "gamma"])
SEEDS = st.integers(0, 2**63 - 1)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, rate=st.floats(0.5, 200), arrival=ARRIVALS, workers=st.integers(1, 12))
def test_same_seed_same_schedule_for_any_workers(
    seed: int, rate: float, arrival: str, workers: int
) -> None:
    options = {"seed": seed, "load__rate": rate, "load__arrival": arrival}
    plan = built(20, **options, engine__workers=workers)
    assert as_lists(plan) == as_lists(built(20, **options, engine__workers="auto"))
    assert np.all(np.diff(plan.intended_ns) >= 0)
    assert plan.intended_ns[0] >= 0
    assert plan.intended_ns[-1] < 20 * 10**9
    shares = [plan.of_worker(worker, workers) for worker in range(workers)]
    assert all(np.all(share % workers == worker) for worker, share in enumerate(shares))
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(plan)))


@given(seed=st.integers(0, 2**62))
@settings(max_examples=20, deadline=None)
def test_another_seed_another_schedule(seed: int) -> None:
    one, other = (times_of(built(60, seed=s), Kind.LOAD) for s in (seed, seed + 1))
    assert not np.array_equal(one[:20], other[:20])


@given(seed=SEEDS, arrival=ARRIVALS, off=st.sets(st.sampled_from(["probe", "health", "canary"])))
@settings(max_examples=30, deadline=None)
def test_switching_others_off_moves_no_load_row(seed: int, arrival: str, off: set[str]) -> None:
    options: dict[str, Any] = {"seed": seed, "load__arrival": arrival, "load__rate": 5}
    all_on = built(30, **options)
    fewer = built(30, **options, **{f"{name}__every_s": 0 for name in off})
    assert np.array_equal(times_of(all_on, Kind.LOAD), times_of(fewer, Kind.LOAD))
    for kind in Kind:
        there = kind.name.lower() not in off
        assert (len(times_of(fewer, kind)) > 0) == there


# ---------------------------------------------------------------- one Poisson process


def pooled(workers: int, rate: float, seconds: float, **options: Any) -> NDArray[np.float64]:
    """Load arrivals (s) as the workers send them: each its own share, then pooled."""
    plan = built(seconds, seed=SEED, load__rate=rate, **options)
    parts = []
    for worker in range(workers):
        rows = plan.of_worker(worker, workers)
        parts.append(plan.intended_ns[rows][plan.kind[rows] == Kind.LOAD])
    return np.sort(np.concatenate(parts)) / 1e9


@pytest.mark.parametrize("workers", WORKERS)
def test_pooled_arrivals_are_one_poisson_process(workers: int) -> None:
    """At 20,000 arrivals: KS against the exponential of the set rate, and dispersion of counts.

    Dispersion of n windows has SD sqrt(2 / (n - 1)) = 0.032 under the null for n = 2000.
    """
    rate, seconds = 20.0, 1000.0
    times = pooled(workers, rate, seconds)
    gaps = np.diff(times, prepend=0.0)
    assert stats.kstest(gaps, "expon", args=(0, 1 / rate)).pvalue > 0.01
    counts = np.histogram(times, bins=2000, range=(0, seconds))[0]
    assert abs(counts.var(ddof=1) / counts.mean() - 1) < 0.1
    assert abs(len(times) - rate * seconds) < 4 * np.sqrt(rate * seconds)
    lag = np.corrcoef(gaps[:-1], gaps[1:])[0, 1]
    assert abs(lag) < 4 / np.sqrt(len(gaps))


def test_dispersion_over_seeds() -> None:
    """Campaigns take seed, seed + 1, ...: their schedules must not be alike."""
    counts = [len(times_of(built(100, seed=s, load__rate=10), Kind.LOAD)) for s in range(200)]
    assert 0.7 < np.var(counts, ddof=1) / np.mean(counts) < 1.3


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("workers", [1, 4])
def test_gamma_gaps(shape: float, workers: int) -> None:
    options = {"load__arrival": "gamma", "load__burstiness": shape}
    gaps = np.diff(pooled(workers, 20.0, 1000.0, **options), prepend=0.0)
    assert gaps.std() / gaps.mean() == pytest.approx(1 / np.sqrt(shape), rel=0.05)
    assert gaps.mean() == pytest.approx(1 / 20, rel=0.05)
    assert stats.kstest(gaps, "gamma", args=(shape, 0, 1 / shape / 20)).pvalue > 0.01


def test_gamma_of_shape_one_is_poisson() -> None:
    one = built(50, seed=3, load__arrival="gamma", load__burstiness=1)
    assert as_lists(one) == as_lists(built(50, seed=3))


def test_burstiest_that_is_allowed_ends() -> None:
    times = times_of(
        built(50, load__arrival="gamma", load__burstiness=0.001, load__rate=100), Kind.LOAD
    )
    assert np.all(np.diff(times) >= 0)


@pytest.mark.parametrize("rate", [0.3, 3.0, 7.0, 3.12, 1000.0])
def test_constant_is_exact(rate: float) -> None:
    times = times_of(built(50, load__arrival="constant", load__rate=rate), Kind.LOAD)
    exact = [round(k / rate * 1e9) for k in range(len(times) + 1)]
    assert times.tolist() == exact[:-1]
    assert exact[-1] >= 50 * 10**9


# ---------------------------------------------------------------- beside the load


@pytest.mark.parametrize(
    ("kind", "first_s", "every_s", "target"),
    [
        (Kind.PROBE, 0.05, 0.5, schedule.SERVER),
        (Kind.CANARY, 0.15, 0.45, schedule.CANARY),
        (Kind.HEALTH, 0.30, 0.5, schedule.SERVER),
    ],
)
def test_times_beside_the_load(kind: Kind, first_s: float, every_s: float, target: int) -> None:
    plan = built(30)
    times = times_of(plan, kind)
    steps = range(seconds_ns(first_s), 30 * 10**9, seconds_ns(every_s))
    assert times.tolist() == list(steps)
    assert set(plan.target[plan.kind == kind].tolist()) == {target}
    (template,) = set(plan.template[plan.kind == kind].tolist())
    assert plan.templates[template].kind == kind


def test_templates_name_their_sizes() -> None:
    plan = built(30, load__prompt_tokens=5, load__max_tokens=9, canary__tokens=4)
    sizes = {t.kind: (t.prompt_tokens, t.max_tokens) for t in plan.templates}
    assert sizes == {
        Kind.LOAD: (5, 9),
        Kind.PROBE: (1, 1),
        Kind.CANARY: (1, 4),
        Kind.HEALTH: (0, 0),
    }


def test_no_load_row_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no request falls into"):
        built(1, load__rate=1e-9)


# ---------------------------------------------------------------- traces


def traced(path: Path, text: str, seconds: float = 10.0, **options: Any) -> Schedule:
    path.write_text(text)
    return built(seconds, load__arrival="trace", load__trace=str(path), **LOAD_ONLY, **options)


CSV = "time_s,prompt_tokens,max_tokens\n2.5,8,16\n0.25,,\n1.0,8,4\n"
JSONL = (
    '{"time_s": 2.5, "prompt_tokens": 8, "max_tokens": 16}\n'
    '{"time_s": 0.25}\n\n'
    '{"time_s": 1, "prompt_tokens": 8, "max_tokens": 4, "other": [1]}\n'
)


@pytest.mark.parametrize(("name", "text"), [("t.csv", CSV), ("t.jsonl", JSONL)])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_trace(tmp_path: Path, name: str, text: str, mark: str) -> None:
    plan = traced(tmp_path / name, mark + text)
    sizes = [plan.templates[template] for template in plan.template.tolist()]
    assert plan.intended_ns.tolist() == [250_000_000, 10**9, 2_500_000_000]
    assert [(t.prompt_tokens, t.max_tokens) for t in sizes] == [(512, 256), (8, 4), (8, 16)]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("t.csv", "", "no sends"),
        ("t.csv", "when\n1\n", "row 1: no time_s"),
        ("t.csv", "time_s\n1\nsoon\n", "row 2: .*soon"),
        ("t.csv", "time_s\n-1\n", "row 1: a negative time"),
        ("t.csv", "time_s\nnan\n", "row 1: .*nan"),
        ("t.csv", "time_s,max_tokens\n1,0\n", "row 1: .*size outside 1"),
        ("t.csv", "time_s,max_tokens\n1,1.5\n", "row 1: .*1.5"),
        ("t.csv", "time_s\n11\n", "after the end of the load at 10 s"),
        ("t.jsonl", '{"time_s": 1}\n{"time_s"\n', "row 2: "),
        ("t.jsonl", "[1]\n", "row 1: no time_s"),
        ("t.jsonl", '{"time_s": null}\n', "row 1: "),
        ("t.jsonl", '{"time_s": 1, "max_tokens": 0}\n', "row 1: .*size outside 1"),
        ("t.jsonl", '{"time_s": 1, "max_tokens": 2.5}\n', "row 1: .*2.5"),
        ("t.jsonl", '{"time_s": 1, "max_tokens": 1e400}\n', "row 1: "),
        ("t.jsonl", '{"time_s": 1, "prompt_tokens": 1000000000}\n', "row 1: .*1000000"),
        ("t.jsonl", '{"time_s": 1e400}\n', "row 1: "),
    ],
)
def test_trace_error_is_one_line(tmp_path: Path, name: str, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        traced(tmp_path / name, text)
    line = str(caught.value)
    assert str(tmp_path / name) in line
    assert "\n" not in line
    assert ";" in line


def test_trace_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    options = {"load__arrival": "trace", **LOAD_ONLY}
    with pytest.raises(ConfigError, match="name a readable file"):
        built(10, load__trace=str(tmp_path / "none.csv"), **options)
    (tmp_path / "t.csv").write_bytes(b"time_s\n\xff\n")
    with pytest.raises(ConfigError, match=r"use .csv with a header"):
        built(10, load__trace=str(tmp_path / "t.csv"), **options)


def test_trace_that_ends_before_the_kill(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps({"time_s": 5}))
    given = {"load.arrival": "trace", "load.trace": str(tmp_path / "t.jsonl")}
    with pytest.raises(ConfigError, match="before the kill at 360 s"):
        schedule.build(configuration.load(None, given).config)
