"""A campaign's report from runs whose answers are known: rows, statistics, what is dropped, claims.

Never: runs anything.
Plan: three equal runs -> every value verbatim -> claims and headline -> an invalid run and one that
is not there -> GPUs that changed between the runs -> text and page.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from percentes_fast import rundir
from percentes_fast.analysis import campaign as judging
from percentes_fast.analysis import summary as run_analysis
from percentes_fast.analysis.campaign import CampaignSummary
from percentes_fast.analysis.tree import plain, to_json
from percentes_fast.errors import DataError
from percentes_fast.report import campaign as text
from percentes_fast.report import files, html
from percentes_fast.report import text as of_run
from remote_story import LINES, SIGNAL, campaign, remote
from run_builder import BACK, MS, Run, S

OUTAGE = (BACK + 50 * MS + 100 * MS - SIGNAL) / S  # the probe of 14.05 s is answered in 100 ms
CLAIMS = [
    {
        "id": "back",
        "text": "It is back within 5 s.",
        "bounds": [{"quantity": "outage_s", "below": 5}],
    },
    {
        "id": "caught",
        "text": "Who was caught for certain failed.",
        "bounds": [
            {
                "quantity": "in_flight/{rule}/determinate/completed",
                "equals": 0,
                "needs": "in_flight/{rule}/determinate/scheduled",
            }
        ],
    },
    {
        "id": "even",
        "text": "The runs hardly differ.",
        "scope": "campaign",
        "bounds": [{"quantity": "endpoints/outage_s/summary/sample_sd", "at_most": 0.5}],
    },
]
HEADLINE = (
    "Back after {endpoints/outage_s/summary/median:.3f} s ({valid_runs} runs),"
    " run {median_run/run}; {median_run/stages/kill..container_start:.3f} s to the restart;"
    " {nobody/knows:.1f}."
)


def summarised(path: Path, runs: list[Run], **config: Any) -> CampaignSummary:
    return judging.analyze(campaign(path, runs, **config)).summary


def claims() -> dict[str, Any]:
    """As the manifest holds them."""
    from percentes_fast.config import load

    found = load(None, {"predictions": CLAIMS, "headline": HEADLINE}).config.model_dump(mode="json")
    return {key: found[key] for key in ("predictions", "headline")}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> CampaignSummary:
    path = tmp_path_factory.mktemp("report") / "campaign"
    return summarised(path, [remote(k) for k in range(3)], **claims())


def endpoint(found: CampaignSummary, name: str) -> judging.Endpoint:
    return next(each for each in found.endpoints if each.name == name)


def test_every_run_has_its_row(three: CampaignSummary) -> None:
    assert [row.run for row in three.runs] == [1, 2, 3]
    assert [row.seed for row in three.runs] == [2, 3, 4]
    assert [row.valid for row in three.runs] == [True] * 3, three.reasons
    assert [float(row.outage_s or 0) for row in three.runs] == [OUTAGE] * 3
    assert [float(row.container_start_s or 0) for row in three.runs] == [0.5] * 3
    for row in three.runs:
        assert sum(row.stages.values()) == pytest.approx(OUTAGE, abs=1e-9)
    assert three.valid
    assert (three.valid_runs, three.invalid_runs, three.planned_runs) == (3, 0, 3)


def test_endpoints_keep_every_value(three: CampaignSummary) -> None:
    outage = endpoint(three, "outage_s")
    assert outage.endpoint == "primary"
    assert outage.summary.values == (OUTAGE,) * 3
    assert (outage.summary.n, outage.summary.df) == (3, 2)
    assert outage.summary.sample_sd == 0.0
    assert json.loads(to_json(three))["endpoints"][0]["summary"]["values"] == [OUTAGE] * 3
    alone = endpoint(three, "ttr_equilibrium_s")
    assert (alone.endpoint, alone.summary.n) == ("not_applicable", 0)


def test_stages_have_statistics_too(three: CampaignSummary) -> None:
    assert [each.name for each in three.stages] == list(three.runs[0].stages)
    assert three.stages[0].summary.values == (0.5,) * 3


def test_sums_over_the_runs(three: CampaignSummary) -> None:
    each = three.runs[0].outage_outcomes
    assert each is not None
    assert three.totals["outage_outcomes"]["total"] == 3 * each["total"] > 0
    assert (
        three.totals["in_flight"]["compat"]["total"]
        == 3 * three.runs[0].in_flight["compat"]["total"]
    )


def test_claims_get_their_verdicts(three: CampaignSummary) -> None:
    assert [(v.id, v.verdict) for v in three.predictions] == [
        ("back", "held"),
        ("caught", "no verdict"),  # both requests end too near the kill for compat
        ("even", "held"),
    ]
    assert three.headline is not None
    assert (
        three.headline.text
        == f"Back after {OUTAGE:.3f} s (3 runs), run 2; 0.500 s to the restart; n/a."
    )
    assert len(three.headline.missing) == 1


def test_an_invalid_run_is_named_and_counts_for_nothing(tmp_path: Path) -> None:
    bad = remote(1)
    assert bad.fault is not None
    bad.fault["evidence"]["gone_ns"] = None
    found = summarised(tmp_path / "c", [remote(0), bad, remote(2)])
    assert (found.valid_runs, found.invalid_runs, found.valid) == (2, 1, False)
    assert endpoint(found, "outage_s").summary.n == 2
    assert [(each.run, "did not land" in each.reason) for each in found.dropped] == [(2, True)]
    assert "run 2: " in text.render(found)


def test_a_run_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", [remote(k) for k in range(3)])
    shutil.rmtree(rundir.run_path(path, 2))
    found = judging.analyze(path).summary
    assert (found.valid_runs, found.planned_runs, found.valid) == (2, 3, False)
    assert found.dropped[0].run == 2
    assert "not done" in found.dropped[0].reason
    for number in (1, 3):
        shutil.rmtree(rundir.run_path(path, number))
    with pytest.raises(DataError, match="none of its 3 runs has ended"):
        judging.analyze(path)


def test_gpus_that_changed_between_the_runs(tmp_path: Path) -> None:
    runs = [remote(k) for k in range(3)]
    for number, run in enumerate(runs):
        assert run.fault is not None
        clock = "2520 MHz" if number < 2 else "1980 MHz"
        for when in ("before", "after"):
            gpus = [{"index": "0", "clocks.max.graphics": clock}]
            run.fault["fingerprints"][when] = {"gpus": gpus}
    found = summarised(tmp_path / "c", runs)
    assert [row.valid for row in found.runs] == [True] * 3
    assert not found.valid
    assert any("run 3 differ from run 1" in reason for reason in found.reasons)


def test_what_a_run_lacks_is_missing_by_name(tmp_path: Path) -> None:
    never = remote(1)
    never.rows = [
        each for each in never.rows if not (each["kind"] == "probe" and each["intended_ns"] >= BACK)
    ]
    found = summarised(tmp_path / "c", [remote(0), never])
    assert "run-2" in endpoint(found, "outage_s").missing
    assert endpoint(found, "outage_s").summary.n == found.valid_runs - 1


def test_the_text_and_the_page(three: CampaignSummary) -> None:
    told = text.render(three)
    assert told.splitlines()[0].startswith(
        f"VALID: 3 of 3 runs valid; {OUTAGE:.3f} s outage (median of 3"
    )
    for part in ("Every run", "In flight at the kill", "Where the outages went", "claims SHA-256"):
        assert part in told
    assert all(len(line) <= 110 for line in told.splitlines())
    page = html.render_campaign(three)
    assert '<span class="state">VALID</span>' in page
    assert page.count("<img") == 1
    assert 'class="no-verdict"' in page
    assert not re.search(r"https?://", page)


def test_a_cold_start_stands_beside_the_restarts(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", [remote()])
    (path / rundir.COLD_START).write_text(
        "2026-10-02T16:08:00Z starting\n"
        f"2026-10-02T16:08:09Z {LINES[0][1]}\n"
        f"2026-10-02T16:09:09Z {LINES[3][1]}\n"
    )
    found = judging.analyze(path).summary
    assert found.cold_start == (("start..banner", 9.0), ("banner..server_start", 60.0))
    assert "a cold start: start..banner 9.000" in text.render(found)
    run = path / "run-1"
    assert run_analysis.analyze(run).summary.cold_start == ()
    (run / rundir.COLD_START).write_text((path / rundir.COLD_START).read_text())
    one = run_analysis.analyze(run)
    assert one.summary.cold_start == found.cold_start
    assert "a cold start: start..banner 9.000" in of_run.render(one.summary)


def test_claims_that_are_not_those_of_the_hashed_file_are_refused(tmp_path: Path) -> None:
    """No flag sets a claim, so the manifest's are the file's, down to a bound."""
    given = "predictions: [{id: A, text: t, bounds: [{quantity: outage_s, below: 9}]}]\n"
    for bound, fits in ((9, True), (99, False)):
        story = remote()
        limits = {"below": None, "above": None, "at_most": None, "at_least": None, "equals": None}
        limits |= {"below": bound, "needs": None, "absent": "refuted", "quantity": "outage_s"}
        story.config["predictions"] = [
            {"id": "A", "text": "t", "scope": "every_run", "rule": "compat", "bounds": [limits]}
        ]
        story.manifest["config_sha256"] = hashlib.sha256(given.encode()).hexdigest()
        path = story.write(tmp_path / str(bound))
        (path / rundir.CONFIG).write_text(given)
        if fits:
            assert run_analysis.analyze(path).summary.predictions[0].id == "A"
        else:
            with pytest.raises(DataError, match="its claims are not those of config"):
                run_analysis.analyze(path)


def test_the_same_bytes_again(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", [remote(k) for k in range(2)], **claims())
    files.write(path, as_json=True)
    first = (path / "report.json").read_bytes()
    copy = tmp_path / "elsewhere"
    shutil.copytree(path, copy)
    (copy / "report.json").unlink()
    files.write(copy, as_json=True)
    assert (copy / "report.json").read_bytes() == first
    assert json.loads(files.render(path, "json")) == json.loads(first)
    assert plain(judging.analyze(path).summary) == json.loads(first)


def test_claims_that_were_changed_afterwards_are_refused(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", [remote()], **claims())
    told = json.loads((path / rundir.CAMPAIGN).read_text())
    told["config"]["predictions"][0]["bounds"][0]["below"] = 50
    (path / rundir.CAMPAIGN).write_text(json.dumps(told))
    with pytest.raises(DataError, match="not the ones that were hashed before the first run"):
        judging.analyze(path)


@pytest.mark.parametrize("damage", [{"config": {}}, {"dropped": [1]}])
def test_a_damaged_campaign_is_one_line(damage: dict[str, Any], tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", [remote()])
    told = json.loads((path / rundir.CAMPAIGN).read_text()) | damage
    told["claims_sha256"] = rundir.claims_sha256(told["config"])
    (path / rundir.CAMPAIGN).write_text(json.dumps(told))
    with pytest.raises(DataError, match="the file is damaged"):
        judging.analyze(path)


def test_a_report_does_not_say_where_it_lay(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", [remote(), remote(1)])
    shutil.rmtree(rundir.run_path(path, 2))
    assert str(tmp_path) not in to_json(judging.analyze(path).summary).decode()
