"""The published campaign, derived again; and proof that the audit can fail.

Never: a figure that is neither judged, listed as not derivable, nor named as a raw reading.
Plan: the timelines against the reference, the whole file against itself, then every derived
figure of one run and of the campaign is altered in turn and exactly its own check must
differ (with those figures that are computed from it, named in `_followers`). Raw readings,
absent lines, claims, damaged files and the table follow.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from percentes_fast.analysis.audit import Audit, audit_file, render
from percentes_fast.analysis.golden import MARKS, timeline
from percentes_fast.errors import DataError

GOLDEN = Path(__file__).parent / "data" / "golden"
CAMPAIGN = GOLDEN / "campaign-2026-10-02.json"
PUBLISHED = json.loads(CAMPAIGN.read_text(encoding="utf-8"))
EXPECTED = json.loads((GOLDEN / "expected-timeline.json").read_text(encoding="utf-8"))["runs"]
AUDIT = audit_file(CAMPAIGN)
RUN = "campaign.per_run[1]"  # the second run: it has a run before it and one after it

# Readings, settings and identities: the audit's inputs, not figures.
RAW = re.compile(
    r"schema_version"
    r"|.*\.container\.(before|after)\.(pid|running|restart_count)"
    r"|.*\.offset_(at_arm|after)\.(offset_ns|bound_ns|samples)"
    r"|.*\.kill\.(signal|remote_before_ns|remote_after_ns)"
    r"|.*\.matches\.\w+\.(line|resolution_ns)|.*\.boundaries\.lines|.*\.log_bytes"
    r"|.*\.canary\.(ttft_ms|itl_ms|tokens)"
    r"|.*\.decomposition\.segments\[\d+\]\.measured"
    r"|validity_gates\[\d+\]\.(gates\[\d+\]\.(applicable|observed|label_determining)"
    r"|node_loss_representative)"
)


def _steps(path: str) -> list[str | int]:
    return [int(t[1:-1]) if t[0] == "[" else t for t in re.findall(r"\[\d+\]|[^.\[\]]+", path)]


def _get(data: object, path: str) -> object:
    for step in _steps(path):
        data = data[step]
    return data


def _set(data: object, path: str, value: object) -> None:
    *parents, last = _steps(path)
    for step in parents:
        data = data[step]
    data[last] = value


def _leaves(data: object, path: str = ""):
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _leaves(value, f"{path}.{key}" if path else key)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _leaves(value, f"{path}[{index}]")
    else:
        yield path, data


def _audit(data: object, folder: Path) -> Audit:
    path = folder / "campaign.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return audit_file(path)


def _differing(audit: Audit) -> set[str]:
    return {check.where for check in audit.checks if check.agrees is False}


@pytest.fixture
def data():
    return copy.deepcopy(PUBLISHED)


# --- the published figures hold ---------------------------------------------------------


@pytest.mark.parametrize("index", range(5))
def test_timeline_reproduces_the_reference(index):
    found, expected = timeline(PUBLISHED["campaign"]["per_run"][index]), EXPECTED[index]
    for key, value in expected.items():
        if key.endswith("_ns") or key == "run":
            assert getattr(found, key) == value, key
    stages = {name: ns / 1e9 for name, ns in found.stages_ns.items()}
    assert stages == pytest.approx(expected["stages_s"], rel=1e-9)
    # The reference keeps the published outage, up to 83 ns off: it is from a monotonic clock.
    assert found.outage_ns / 1e9 == pytest.approx(expected["outage_s"], abs=1e-6)
    assert found.die_to_start_ns / 1e9 == pytest.approx(expected["die_to_start_s"], rel=1e-9)


@pytest.mark.parametrize("found", AUDIT.timelines, ids=lambda t: f"run{t.run}")
def test_stages_sum_to_the_outage_exactly(found):
    assert tuple(found.marks_ns) == MARKS
    assert len(found.stages_ns) == len(MARKS) - 1
    assert sum(found.stages_ns.values()) == found.outage_ns


def test_every_derivable_figure_agrees():
    assert _differing(AUDIT) == set()
    assert (AUDIT.derived, AUDIT.differing, AUDIT.not_derivable) == (565, 0, 367)


def test_every_number_and_flag_of_the_file_is_accounted_for():
    judged = {check.where for check in AUDIT.checks}
    missed = [
        path
        for path, value in _leaves(PUBLISHED)
        if isinstance(value, int | float) and path not in judged and not RAW.fullmatch(path)
    ]
    assert missed == []


def test_what_cannot_be_derived_has_a_reason_and_no_derived_value():
    silent = [check for check in AUDIT.checks if check.agrees is None]
    assert all(check.note and check.derived is None for check in silent)


def test_the_articles_own_words_follow_from_the_file():
    runs = PUBLISHED["campaign"]["per_run"]
    assert sum(r["in_flight_errored_by_class"]["malformed_stream"] for r in runs) == 111
    assert sum(r["outage_outcomes"]["errored"] for r in runs) == 684
    assert sum(r["outage_outcomes"]["completed"] for r in runs) == 6
    median = [round(ns / 1e9, 3) for ns in AUDIT.timelines[3].stages_ns.values()]
    assert median == [0.738, 12.618, 10.965, 7.612, 0.822, 5.732, 2.923, 0.780]


# --- the audit can fail -----------------------------------------------------------------

ENDPOINTS = {e["name"]: i for i, e in enumerate(PUBLISHED["campaign"]["endpoints"])}
ALTERED = [
    check.where
    for check in AUDIT.checks
    if check.agrees and (check.where.startswith((RUN, "validity_gates[1]", "campaign.end")))
] + ["campaign.repetitions", "campaign.valid_runs", "campaign.invalid_runs"]
SEGMENTS = [s["name"] for s in PUBLISHED["campaign"]["per_run"][1]["decomposition"]["segments"]]
# Segment ends whose neighbour in the tiling is the end of another segment.
UNPAIRED = {
    ("container_start", "start_at"),
    ("torch_compile", "end_at"),
    ("profile_kv_capture", "start_at"),
}


def _altered(where: str, value: object) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        absolute = {"outage_s": 2e-6, "t_multiplier": 0.01}
        return value + absolute.get(where.rsplit(".", 1)[-1], 4e-9 * value)
    assert isinstance(value, str)
    return _later(value, 2000 if _segment(where)[0] in ("replica_ready", "goodput_restored") else 1)


def _later(text: str, by_ns: int) -> str:
    found = re.fullmatch(r"(.*T\d\d:\d\d:\d\d)(?:\.(\d+))?Z", text)
    if not found:
        return f"{text} "
    return f"{found[1]}.{int((found[2] or '').ljust(9, '0')) + by_ns:09d}Z"


def _segment(where: str) -> tuple[str, str]:
    found = re.search(r"segments\[(\d+)\]\.(\w+)$", where)
    return (SEGMENTS[int(found[1])], found[2]) if found else ("", "")


def _followers(where: str) -> set[str]:
    """Name the published figures that are computed from the one that was altered."""
    local = where.removeprefix(f"{RUN}.")
    if local in ENDPOINTS:
        return {f"campaign.endpoints[{ENDPOINTS[local]}].summary.values[1]"}
    if _segment(where) in UNPAIRED:
        return {f"{RUN}.decomposition.segments"}
    return {
        "container.before.pid": {f"{RUN}.container.kill.pid"},
        "container.before.restart_count": {f"{RUN}.container.after.restart_count"},
        "container.after.restart_count": {
            "campaign.per_run[2].container.before.restart_count",
        },
    }.get(local, set())


def _is_cascade(where: str) -> bool:
    """Say whether whole groups of figures hang on this one; tested below by group."""
    return (
        bool(re.search(r"summary\.(values\[|t_multiplier)", where))
        or where == f"{RUN}.valid"
        or isinstance(_get(PUBLISHED, where), dict | list)
    )


@pytest.mark.parametrize("where", [w for w in ALTERED if not _is_cascade(w)])
def test_an_altered_figure_is_the_one_that_differs(where, data, tmp_path):
    _set(data, where, _altered(where, _get(data, where)))
    assert _differing(_audit(data, tmp_path)) == {where} | _followers(where)


@pytest.mark.parametrize("where", [w for w in ALTERED if "summary.values[" in w])
def test_an_altered_endpoint_value_reaches_its_statistics_only(where, data, tmp_path):
    _set(data, where, _get(data, where) * 1.01)
    differing, summary = _differing(_audit(data, tmp_path)), where.partition("values")[0]
    assert {where, f"{summary}mean", f"{summary}sample_sd", f"{summary}headline"} <= differing
    assert all(path.startswith(summary) for path in differing)


@pytest.mark.parametrize("index", range(7))
def test_an_altered_multiplier_reaches_the_interval_only(index, data, tmp_path):
    summary = f"campaign.endpoints[{index}].summary."
    _set(data, f"{summary}t_multiplier", _get(data, f"{summary}t_multiplier") + 0.01)
    allowed = {f"{summary}{key}" for key in ("t_interval_lo", "t_interval_hi", "headline")}
    differing = _differing(_audit(data, tmp_path))
    assert f"{summary}t_multiplier" in differing
    assert differing <= {f"{summary}t_multiplier"} | allowed


def test_a_longer_or_absent_value_list_differs(data, tmp_path):
    summary = data["campaign"]["endpoints"][0]["summary"]
    summary["values"].append(42.0)
    assert "campaign.endpoints[0].summary.values[5]" in _differing(_audit(data, tmp_path))
    summary["values"] = None
    differing = _differing(_audit(data, tmp_path))
    assert {f"campaign.endpoints[0].summary.{k}" for k in ("values[0]", "n", "mean")} <= differing


def test_a_run_called_invalid_changes_the_counts(data, tmp_path):
    _set(data, f"{RUN}.valid", False)
    differing = _differing(_audit(data, tmp_path))
    assert {f"{RUN}.valid", "campaign.valid_runs", "campaign.invalid_runs"} <= differing
    rest = differing - {f"{RUN}.valid", "campaign.valid_runs", "campaign.invalid_runs"}
    assert all(path.startswith("campaign.endpoints") for path in rest)


def test_in_flight_classes_must_fit_the_in_flight_counts(data, tmp_path):
    where = f"{RUN}.in_flight_errored_by_class"
    _set(data, f"{where}.malformed_stream", 26)
    differing = _differing(_audit(data, tmp_path))
    assert differing == {where, f"{RUN}.in_flight_loss_fraction"}


@pytest.mark.parametrize("count", ["completed", "censored"])
def test_outage_outcomes_are_conserved(count, data, tmp_path):
    _set(data, f"{RUN}.outage_outcomes.{count}", 7)
    assert f"{RUN}.outage_outcomes.total" in _differing(_audit(data, tmp_path))


@pytest.mark.parametrize(
    ("where", "by", "figures"),
    [
        ("container.kill.remote_after_ns", 2, ["fire_uncertainty_ns", "fire_uncertainty_s"]),
        ("container.offset_at_arm.offset_ns", 5, ["fire_uncertainty_ns", "fire_uncertainty_s"]),
        ("container.offset_after.offset_ns", 5, ["fire_uncertainty_ns", "fire_uncertainty_s"]),
        ("container.offset_after.bound_ns", 10_000_000, ["indeterminate_zone_ns"]),
        ("container.offset_at_arm.bound_ns", 10_000_000, ["indeterminate_zone_ns"]),
        ("container.after.started_at", 5, ["container_start_s"]),
        ("container.events[1].at", 5, ["die_to_start_s"]),
        ("decomposition.segments[10].end_at", 3000, ["outage_s"]),
        ("decomposition.segments[13].end_at", -1_000_000_000, ["ttr_pre_fault_s"]),
        ("in_flight_indeterminate", 1, ["in_flight_loss_fraction"]),
        ("receive_path.fault_degraded.canary.streams", 1, ["streams"]),
        ("receive_path.fault_recovered.canary.ttft_dev_max_us", 10_000, ["ttft_dev_max_us"]),
        ("receive_path.fault_recovered.client_ttft_mean_ms", 0.001, ["client_ttft_mean_ms"]),
    ],
)
def test_an_altered_reading_reaches_the_figures_made_from_it(where, by, figures, data, tmp_path):
    value = _get(data, f"{RUN}.{where}")
    if isinstance(value, str) and by < 0:
        changed = value.replace("21.008492561Z", "20.008492561Z")
    else:
        changed = _later(value, by) if isinstance(value, str) else value + by
    assert changed != value
    _set(data, f"{RUN}.{where}", changed)
    leaves = {path.rsplit(".", 1)[-1] for path in _differing(_audit(data, tmp_path))}
    assert set(figures) <= leaves


@pytest.mark.parametrize(
    ("key", "change", "figure"),
    [
        ("engine_ready", ("took 8.17 s", "took 8.27 s"), "init_engine_s"),
        ("engine_ready", ("compilation: 0.18", "compilation: 0.28"), "init_engine_compilation_s"),
        ("graph_capture", ("in 5 secs", "in 6 secs"), "graph_capture_s"),
        ("graph_capture", ("0.52 GiB", "0.53 GiB"), "graph_capture_gib"),
        ("model_loaded", ("14.29 GiB", "14.30 GiB"), "model_loaded_gib"),
        ("model_loaded", ("4.807834", "4.807835"), "model_loaded_s"),
        ("torch_compile", ("took 0.18", "took 0.19"), "torch_compile_s"),
        ("weights_loaded", ("took 2.81", "took 2.82"), "weights_loaded_s"),
    ],
)
def test_log_figures_come_from_the_text_of_the_line(key, change, figure, data, tmp_path):
    match = f"{RUN}.container.boundaries.matches.{key}"
    text = _get(data, f"{match}.text")
    assert change[0] in text
    _set(data, f"{match}.text", text.replace(*change))
    expected = {f"{match}.figures.{figure}", f"{RUN}.decomposition.log_figures.{figure}"}
    assert _differing(_audit(data, tmp_path)) == expected


@pytest.mark.parametrize(
    ("gate", "old", "new"),
    [
        (1, "p99=16us", "p99=5001us"),
        (1, "max=106us", "max=50001us"),
        (1, "undispatched=0", "undispatched=1"),
        (1, "worst=3.1%", "worst=70.1%"),
        (5, "goodput 1.0000", "goodput 0.9899"),
        (6, "r0=0.000", "r0=1.001"),
    ],
)
def test_a_gate_is_decided_from_its_own_measurements(gate, old, new, data, tmp_path):
    where = f"validity_gates[1].gates[{gate}]"
    _set(data, f"{where}.detail", _get(data, f"{where}.detail").replace(old, new))
    expected = {f"{where}.pass", "validity_gates[1].all_pass", f"{RUN}.valid"}
    assert _differing(_audit(data, tmp_path)) == expected


def test_an_applicable_gate_that_was_not_observed_does_not_pass(data, tmp_path):
    _set(data, "validity_gates[1].gates[4].applicable", True)
    _set(data, "validity_gates[1].gates[4].pass", True)
    expected = {"validity_gates[1].gates[4].pass", "validity_gates[1].all_pass", f"{RUN}.valid"}
    assert _differing(_audit(data, tmp_path)) == expected


# --- an attempt between two runs ---------------------------------------------------------

CHAIN = [f"{RUN}.container.before.{key}" for key in ("pid", "restart_count")]


def _restarted_between(data: object, place: int, *, applicable: bool) -> None:
    """Another restart lies before run 2; the gates of the run at `place` tell of an attempt."""
    for run in data["campaign"]["per_run"][1:]:
        for side in ("before", "after"):
            run["container"][side]["restart_count"] += 1
    _set(data, f"{RUN}.container.before.pid", 9)
    _set(data, f"{RUN}.container.kill.pid", 9)
    gates = data["validity_gates"][place]["gates"]
    said = {"id": "chain", "applicable": applicable, "observed": applicable, "pass": applicable}
    gates.append({**gates[0], **said, "detail": "since run-1: run-2-interrupted-1: interrupted"})


def test_the_chain_is_not_derivable_over_an_attempt_that_the_file_names(data, tmp_path):
    _restarted_between(data, 1, applicable=False)
    audit = _audit(data, tmp_path)
    assert _differing(audit) == set()
    silent = {c.where: c.note for c in audit.checks if c.agrees is None}
    assert {silent[where] for where in CHAIN} == {
        "another attempt lies before this run (gate chain)"
    }
    # two links of the chain, and the flag of the gate that does not apply
    assert (audit.derived, audit.not_derivable) == (565 - 2, 367 + 2 + 1)
    assert max(map(len, render(audit).split("\n")[1:])) <= 135


@pytest.mark.parametrize(("place", "applicable"), [(0, False), (2, False), (1, True)])
def test_an_attempt_told_elsewhere_leaves_a_broken_chain(place, applicable, data, tmp_path):
    _restarted_between(data, place, applicable=applicable)
    assert _differing(_audit(data, tmp_path)) == set(CHAIN)


# --- what did not happen ----------------------------------------------------------------


def test_an_absent_log_line_joins_its_neighbours_stages(data, tmp_path):
    run = data["campaign"]["per_run"][1]
    del run["container"]["boundaries"]["matches"]["torch_compile"]
    found, whole = timeline(run), AUDIT.timelines[1]
    assert found.marks_ns["torch_compile"] is None
    joined = [whole.stages_ns["model_loaded..torch_compile"]]
    joined.append(whole.stages_ns["torch_compile..graph_capture"])
    assert found.stages_ns["model_loaded..graph_capture"] == sum(joined)
    assert sum(found.stages_ns.values()) == found.outage_ns
    audit = _audit(data, tmp_path)
    places = {f"{RUN}.decomposition.segments[{i}].measured" for i in (6, 7)}
    assert _differing(audit) == places
    silent = {c.where for c in audit.checks if c.agrees is None}
    assert f"{RUN}.decomposition.log_figures.torch_compile_s" in silent


def test_a_replica_that_never_came_back_has_no_outage(data, tmp_path):
    run = data["campaign"]["per_run"][1]
    run["decomposition"]["segments"][10] = {"name": "replica_ready", "measured": False}
    assert timeline(run).outage_ns is None
    silent = {c.where for c in _audit(data, tmp_path).checks if c.agrees is None}
    assert f"{RUN}.outage_s" in silent


def test_null_where_the_figure_can_be_derived_differs(data, tmp_path):
    _set(data, f"{RUN}.container_start_s", None)
    assert f"{RUN}.container_start_s" in _differing(_audit(data, tmp_path))


# --- the registered claims --------------------------------------------------------------


def _verdicts(audit: Audit) -> dict[str, str]:
    return {v.claim: v.verdict for v in audit.verdicts}


def test_verdicts_are_the_articles():
    # C1 held, C2's first half without a verdict and its second half held, C3 held.
    assert _verdicts(AUDIT) == {
        "C1": "held",
        "C2 in flight": "no verdict",
        "C2 outage": "held",
        "C3": "held",
    }
    evidence = {v.claim: v.evidence for v in AUDIT.verdicts}
    assert "28.05 to 29.55 s" in evidence["C1"]
    assert "111" in evidence["C2 in flight"]
    assert "0 of 690" in evidence["C2 outage"]


@pytest.mark.parametrize(
    ("path", "value", "claim"),
    [
        ("container.boundaries.matches.banner.text", "2026-10-02T16:32:19.768Z x", "C1"),
        ("in_flight_determinate.completed", 1, "C2 in flight"),
        ("in_flight_determinate.censored", 1, "C2 in flight"),
        ("outage_outcomes.censored", 1, "C2 outage"),
        ("container.boundaries.matches.graph_capture.text", "finished in 3 secs, took 1 GiB", "C3"),
        (
            "container.boundaries.matches.engine_ready.text",
            "took 8 s (compilation: 5.0 s)",
            "C3",
        ),
        (
            "container.boundaries.matches.engine_ready.text",
            "took 17.0 s (compilation: 0.2 s)",
            "C3",
        ),
        ("container.boundaries.matches.engine_ready.text", "nothing printed", "C3"),
    ],
)
def test_one_valid_run_refutes_a_claim(path, value, claim, data, tmp_path):
    _set(data, f"{RUN}.{path}", value)
    expected = _verdicts(AUDIT) | {claim: "refuted"}
    assert _verdicts(_audit(data, tmp_path)) == expected


def test_an_absent_boundary_line_refutes_the_bring_up_claim(data, tmp_path):
    del _get(data, f"{RUN}.container.boundaries.matches")["server_start"]
    assert _verdicts(_audit(data, tmp_path))["C1"] == "refuted"


def test_determinate_failures_in_every_run_hold_the_claim(data, tmp_path):
    for run in data["campaign"]["per_run"]:
        run["in_flight_determinate"] |= {"total": 3, "errored": 3}
    assert _verdicts(_audit(data, tmp_path))["C2 in flight"] == "held"


def test_an_invalid_run_neither_holds_nor_refutes(data, tmp_path):
    _set(data, f"{RUN}.outage_outcomes.censored", 1)
    _set(data, f"{RUN}.valid", False)
    assert _verdicts(_audit(data, tmp_path))["C2 outage"] == "held"
    for run in data["campaign"]["per_run"]:
        run["valid"] = False
    assert set(_verdicts(_audit(data, tmp_path)).values()) == {"no verdict"}


# --- files that are not what they should be ---------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "{", "[1,", '"\\ud800', "NaN?", "[" * 100_000], ids=lambda t: t[:6] or "empty"
)
def test_a_file_that_is_not_json_is_refused(text, tmp_path):
    path = tmp_path / "campaign.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="not JSON"):
        audit_file(path)


def test_bytes_that_are_not_text_and_absent_files_are_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not JSON"):
        audit_file(tmp_path / "binary")
    with pytest.raises(DataError, match="cannot be read"):
        audit_file(tmp_path / "absent")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema_version", 2, "schema_version: 2 is not 1"),
        ("schema_version", "1", "schema_version: expected a whole number, found a string"),
        ("campaign", [], "campaign: expected an object, found an array"),
        ("campaign.variant", "partition", "campaign.variant: no rules for variant"),
        ("validity_gates", [], "validity_gates: 0 entries for 5 runs"),
        (f"{RUN}.valid", 1, "expected true or false, found a number"),
        (f"{RUN}.outage_s", float("nan"), "outage_s: the number is not finite"),
        (f"{RUN}.outage_s", 10**30, "outage_s: the number is not finite or does not fit"),
        (f"{RUN}.container.kill.remote_before_ns", None, "remote_before_ns: .* found null"),
        (f"{RUN}.container.kill.remote_before_ns", 1.5, "expected a whole number"),
        (f"{RUN}.container.after.started_at", "noon", "'noon' is not an RFC 3339 time"),
        (f"{RUN}.container.after.started_at", "2026-02-30T00:00:00Z", "not an RFC 3339"),
        (f"{RUN}.decomposition.segments", [], "no segment named 'container_start'"),
    ],
)
def test_a_damaged_value_is_refused_with_its_place(path, value, message, data, tmp_path):
    _set(data, path, value)
    with pytest.raises(DataError, match=message) as caught:
        _audit(data, tmp_path)
    assert "\n" not in str(caught.value)


# A matched log line, an endpoint's per-run value and an empty window may be absent.
KEYS = sorted(
    {
        path
        for path, _ in _leaves(PUBLISHED)
        if path.startswith((RUN, "validity_gates[1].gates[1]", "campaign.endpoints[0]"))
        and not path.endswith("]")
    }
)


@pytest.mark.parametrize("path", KEYS)
def test_a_missing_key_is_told_or_judged_never_a_crash(path, data, tmp_path):
    *parents, last = _steps(path)
    owner = data
    for step in parents:
        owner = owner[step]
    del owner[last]
    try:
        audit = _audit(data, tmp_path)
    except DataError as error:
        assert f"missing key '{last}'" in str(error)
        return
    # What may go unnoticed is what nothing is derived from: raw readings, names, single classes.
    unseen = RAW.fullmatch(path) or not isinstance(_get(PUBLISHED, path), int | float)
    gone = path not in {check.where for check in audit.checks if check.agrees}
    assert unseen or gone or _differing(audit)


# --- the table --------------------------------------------------------------------------


def test_the_table_ends_in_the_tally_and_fits_its_width():
    lines = render(AUDIT).split("\n")
    assert lines[-1] == "565 figures re-derived, 0 differ, 367 not derivable"
    assert max(map(len, lines[1:])) <= 135
    titles = [line for line in lines if re.fullmatch(r"campaign|run \d", line)]
    assert titles == ["campaign", *(f"run {i}" for i in range(1, 6))]
    assert sum(line.endswith("  agrees") for line in lines) == AUDIT.derived
    assert "DIFFERS" not in render(AUDIT)


def test_the_table_shows_a_difference_in_full(data, tmp_path):
    headline = "median 1.000 (range 0.000–2.000, N=5); something else entirely"
    _set(data, "campaign.endpoints[0].summary.headline", headline)
    text = render(_audit(data, tmp_path))
    assert "DIFFERS campaign.endpoints[0].summary.headline" in text
    assert f"  published {headline}" in text
    assert text.endswith("565 figures re-derived, 1 differ, 367 not derivable")


def test_the_table_lets_no_control_character_through(data, tmp_path):
    _set(data, "campaign.endpoints[0].summary.headline", "\x1b[2J\u202e\nforged line")
    text = render(_audit(data, tmp_path))
    assert all(c == "\n" or c.isprintable() for c in text)
    assert "\nforged line" not in text


def test_checks_are_plain_values():
    check = AUDIT.checks[0]
    assert set(asdict(check)) == {
        "where",
        "quantity",
        "published",
        "derived",
        "tolerance",
        "agrees",
        "note",
    }
    with pytest.raises(AttributeError):
        check.agrees = False
