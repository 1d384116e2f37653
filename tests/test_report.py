"""The Summary as text, page and figures, for runs that went well and runs that did not.

Never: compares a whole page; a figure is looked at for its kind, its words for their sense.
Plan: the stories -> the verdict line -> the text's tables -> the page -> figures -> files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from percentes_fast.analysis.client import Spread
from percentes_fast.analysis.summary import analyze
from percentes_fast.analysis.tree import Analysis
from percentes_fast.report import files, html, plots, text
from run_builder import BACK, MS, PLANNED, Row, Run, S, row, served, story, the_fault

PNG = b"\x89PNG\r\n\x1a\n"


def no_fault(run: Run) -> Run:
    run.fault = None
    run.config["fault"]["kind"] = "none"
    return run


def no_completion(run: Run) -> Run:
    run.rows = [each | {"cause": "http_status"} for each in run.rows]
    return run


def probes_all_served(run: Run) -> Run:
    def mended(each: Row) -> Row:
        at = each["intended_ns"]
        return served("probe", at, 90 * MS, 100 * MS, 1) if each["kind"] == "probe" else each

    run.rows = [mended(each) for each in run.rows]
    return run


def never_back(run: Run) -> Run:
    def lost(each: Row) -> Row:
        at = each["intended_ns"]
        return row(each["kind"], at, "connect", dispatch_ns=at, ended_ns=at + MS)

    late = [each["intended_ns"] >= BACK and each["kind"] != "canary" for each in run.rows]
    run.rows = [lost(each) if gone else each for each, gone in zip(run.rows, late, strict=True)]
    return run


def no_load_after_the_kill(run: Run) -> Run:
    run.rows = [e for e in run.rows if e["kind"] != "load" or e["intended_ns"] < PLANNED]
    return run


def not_fired(run: Run) -> Run:
    error = "pid 7: is not the process armed any more; the fault was not fired"
    run.fault = the_fault(fire=None, evidence=None, error=error)
    return run


def not_gone(run: Run) -> Run:
    run.fault = the_fault(evidence={"gone_ns": None, "survivors": []})
    return run


def never_sent(run: Run) -> Run:
    run.rows[0] = row("load", run.rows[0]["intended_ns"], "never_sent")
    return run


STORIES: dict[str, tuple[Callable[[Run], Run], str]] = {
    "valid": (lambda run: run, "VALID: served again 4.150 s after the kill (resolution 0.600 s)"),
    "no fault": (no_fault, "INVALID: load only, no fault"),
    "no completion": (no_completion, "INVALID: outage at least "),
    "all probes served": (
        probes_all_served,
        "VALID: outage from 0.000 s to 0.150 s (resolution 0.150 s): no probe failed",
    ),
    "never back": (never_back, "VALID: outage at least 21.551 s: no probe succeeded again"),
    "interrupted early": (
        lambda run: run.interrupt(9 * S),
        "PARTIAL: no outage: the fault was not done",
    ),
    "interrupted late": (
        lambda run: run.interrupt(28 * S),
        "PARTIAL: served again 4.150 s after the kill (resolution 0.600 s)",
    ),
    "no load after the kill": (no_load_after_the_kill, "VALID: served again 4.150 s"),
    "not fired": (not_fired, "INVALID: no outage: the fault was not done"),
    "not gone": (not_gone, "INVALID: served again 4.150 s"),
    "never sent": (never_sent, "INVALID: served again 4.150 s"),
    "nothing but load": (
        lambda run: run.without("probe", "health", "canary"),
        "VALID: outage n/a: no probe row ended",
    ),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Analysis]:
    base = tmp_path_factory.mktemp("stories")
    return {
        name: analyze(change(story()).write(base / name.replace(" ", "-")))
        for name, (change, _) in STORIES.items()
    }


def section(report: str, title: str) -> list[str]:
    """Lines under a title, without its underline."""
    lines = report.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(title)) + 2
    end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
    return lines[start:end]


# --- text --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORIES)
def test_the_text_of_every_story(told: dict[str, Analysis], name: str) -> None:
    report = text.render(told[name].summary)
    assert report.startswith(STORIES[name][1])
    assert report.endswith("\n")
    assert not report.endswith("\n\n")
    too_long = [line for line in report.splitlines() if len(line) > 110]
    assert not too_long
    assert not [line for line in report.splitlines() if line != line.rstrip()]
    assert "None" not in report
    assert "nan" not in report.lower().replace("unattainable", "")
    assert "conditional on completion" in report
    for reason in told[name].summary.invalid_reasons:
        assert reason.split(":", maxsplit=1)[0] in report


@pytest.mark.parametrize("name", STORIES)
def test_no_percentile_stands_without_its_curve(told: dict[str, Analysis], name: str) -> None:
    summary = told[name].summary
    report = text.render(summary)
    starred = {line.split()[0] for line in section(report, "Windows") if line.endswith("  *")}
    needed = {n for n, curve in summary.incidence.items() if curve.needed_beside_percentiles}
    assert starred == needed
    if needed:
        shown = {line.split()[0] for line in section(report, "Completion incidence")[1:]}
        assert needed <= shown <= needed | {"fault"}


@pytest.mark.parametrize(
    ("title", "columns"),
    [
        ("What the clients saw", ["scheduled", "completed", "errored", "censored", "client fault"]),
        ("Windows", ["from", "to", "sched", "compl", "good", "TTFT p50", "p99", "E2E p50"]),
        ("Completion incidence", ["n", "p50", "p95", "p99", "(95 % band)"]),
        (
            "In flight",
            ["caught", "sure", "errored", "completed", "censored", "unsure", "zone"],
        ),
    ],
)
@pytest.mark.parametrize("name", ["valid", "interrupted late", "never back", "nothing but load"])
def test_columns_stand_under_their_headers(
    told: dict[str, Analysis], name: str, title: str, columns: list[str]
) -> None:
    header, *rows = section(text.render(told[name].summary), title)
    rows = [line for line in rows if re.match(r"[a-z_]+ +\d", line)]
    assert rows
    place = 1
    for column in columns:
        place = header.index(" " + column, place) + 1 + len(column)
        for line in rows:
            assert line[place - 1] != " ", (column, line)
            assert line[place : place + 1] in ("", " "), (column, line)


def test_every_moment_says_how_well_it_is_known(told: dict[str, Analysis]) -> None:
    lines = section(text.render(told["valid"].summary), "Outage")[1:]
    assert [line[:20].strip() for line in lines] == [
        "port answers",
        "health 200",
        "first served token",
        "goodput restored",
    ]
    assert all("(resolution " in line for line in lines)
    for name in ("never back", "all probes served", "nothing but load"):
        for line in section(text.render(told[name].summary), "Outage")[1:]:
            assert "(resolution " in line or ": " in line or line.startswith(" ")


def test_the_three_rules_are_named(told: dict[str, Analysis]) -> None:
    lines = section(text.render(told["valid"].summary), "In flight")
    assert [line.split()[0] for line in lines[1:4]] == ["compat", "tight", "bracket"]
    assert sum(line.startswith("  ") and ":" in line for line in lines) >= 3
    joined = " ".join(" ".join(lines).split())
    assert "a cut inside [L, U] is assumed to be the kill's" in joined


def test_cut_rows_are_told_apart(told: dict[str, Analysis]) -> None:
    report = text.render(told["interrupted early"].summary)
    assert "46 load requests were not yet due when the run was interrupted" in report
    assert "not yet due" not in text.render(told["valid"].summary)


def test_what_a_worker_lost_is_told(told: dict[str, Analysis]) -> None:
    summary = told["valid"].summary
    worker = replace(summary.client.workers[0], lost={"messages_lost": 3, "names_lost": 0})
    summary = replace(summary, client=replace(summary.client, workers=(worker,)))
    assert "worker 0: messages_lost 3\n" in text.render(summary)


def test_timings_by_window_and_by_worker(told: dict[str, Analysis]) -> None:
    summary = told["valid"].summary
    lag = Spread(7, 5e-6, 9e-6, 2e-3)
    path = {name: replace(path, receive_lag_s=lag) for name, path in summary.receive_path.items()}
    worker = replace(summary.client.workers[0], send_skew_s=lag, receive_lag_s=None)
    one = replace(summary, receive_path=path, client=replace(summary.client, workers=(worker,)))
    line = "p50 5.0 us, p99 9.0 us, max 2.00 ms (n = 7)"
    report = [" ".join(row.split()) for row in text.render(one).splitlines()]
    assert {f"receive lag, {name} {line}" for name in summary.receive_path} <= set(report)
    assert not any("worker 0" in row for row in report)
    several = (worker, replace(worker, worker=1, receive_lag_s=lag))
    two = replace(one, client=replace(one.client, workers=several))
    report = [" ".join(row.split()) for row in text.render(two).splitlines()]
    assert f"send skew (user), worker 0 {line}" in report
    assert f"receive lag, worker 1 {line}" in report
    assert not any(row.startswith("receive lag, worker 0") for row in report)


def test_long_lines_are_folded_and_lose_nothing(told: dict[str, Analysis]) -> None:
    reason = " ".join(f"word{k}" for k in range(80))
    report = text.render(replace(told["valid"].summary, invalid_reasons=(reason,)))
    assert reason in " ".join(report.split())


def test_durations_in_words() -> None:
    assert [text.micros(v) for v in (None, 1e-6, 0.002)] == ["n/a", "1.0 us", "2.00 ms"]
    assert text.moment(None, None) == "n/a"
    assert text.moment(None, (0.5, None)) == "at least 0.500 s"
    assert text.resolution(0.0) == " (resolution 0.000 s)"
    assert text.classes({}) == text.classes(None) == "none"


# --- page --------------------------------------------------------------------------------


PAGES = [
    "valid",
    "no fault",
    "no completion",
    "all probes served",
    "interrupted early",
    "not fired",
]


@pytest.mark.parametrize("name", PAGES)
def test_the_page_of_every_story(told: dict[str, Analysis], name: str) -> None:
    found = told[name]
    page = html.render(found.summary, found.points)
    assert page.startswith("<!doctype html>")
    state = STORIES[name][1].partition(":")[0]
    assert f'<span class="state">{state}</span>' in page
    assert "None" not in page.replace("data:image", "")[: page.index("<img")]
    needed = any(curve.needed_beside_percentiles for curve in found.summary.incidence.values())
    parts = found.summary.decomposition
    assert page.count("<img") == 1 + needed + bool(parts and parts.stages)
    # self-contained: nothing is loaded from elsewhere
    assert all(
        src.startswith("data:image/png;base64,") for src in re.findall(r'src="([^"]*)', page)
    )
    assert "http://" not in page
    assert "https://" not in page


def test_the_page_gives_an_interval_where_the_outage_is_one(told: dict[str, Analysis]) -> None:
    found = told["all probes served"]
    assert "<b>from 0.000 s to 0.150 s</b>" in html.render(found.summary, found.points)


def test_what_a_server_or_a_user_wrote_is_escaped(told: dict[str, Analysis]) -> None:
    found = told["valid"]
    evil = "<script>alert('x')</script>&amp;"
    fault = found.summary.fault
    assert fault is not None
    summary = replace(
        found.summary, run_id=evil, invalid_reasons=(evil,), fault=replace(fault, kind=evil)
    )
    page = html.render(summary, found.points)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4  # title, headline, reason, text


# --- figures -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no load after the kill", "interrupted late", "never sent"])
def test_the_figures_are_drawn(told: dict[str, Analysis], name: str) -> None:
    found = told[name]
    assert plots.timeline_png(found.summary, found.points).startswith(PNG)


def test_curves_are_drawn_only_where_they_are_needed(told: dict[str, Analysis]) -> None:
    summary = told["valid"].summary
    curves = plots.incidence_png(summary)
    assert curves is not None
    assert curves.startswith(PNG)
    calm = {
        name: replace(curve, needed_beside_percentiles=False)
        for name, curve in summary.incidence.items()
    }
    assert plots.incidence_png(replace(summary, incidence=calm)) is None


# --- files -------------------------------------------------------------------------------


def test_the_three_files_and_the_one_that_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "render", lambda summary, points: f"page of {summary.run_id}")
    place = story().write(tmp_path / "run")
    before = {path.name for path in place.iterdir()}
    shapes = {shape: files.render(place, shape) for shape in ("text", "json", "html")}
    assert {path.name for path in place.iterdir()} == before  # rendering writes nothing
    summary, shown = files.write(place, as_json=False)
    made = {path.name for path in place.iterdir()} - before
    assert made == {"report.json", "report.txt", "report.html"}
    assert (place / "report.txt").read_text() == shown == shapes["text"]
    assert (place / "report.json").read_text() == shapes["json"]
    assert (place / "report.html").read_text() == shapes["html"]
    assert files.write(place, as_json=True)[1] == shapes["json"]
    assert json.loads(shapes["json"])["valid"] is summary.valid is True
