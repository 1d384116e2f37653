"""Verdicts on trees written by hand, then the published predictions on the published figures.

Never: takes an expected verdict from the audit's own rules: the article says what held.
Plan: paths -> one bound at its edges -> several runs -> what is absent -> scopes -> C1 to C3 as
published and with one run altered -> the summary sentence -> properties over arbitrary trees.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from percentes_fast.analysis.predictions import (
    BoundVerdict,
    Missing,
    Verdict,
    headline,
    resolve,
    single,
    verdicts,
)
from percentes_fast.claims import Prediction, check_headline, check_unique
from percentes_fast.errors import DataError

GOLDEN = Path(__file__).parent / "data" / "golden"


def claim(*bounds: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A prediction as manifest.json holds it."""
    given = {"id": "P", "text": "a claim", "bounds": list(bounds)} | fields
    return Prediction.model_validate(given).model_dump(mode="json")


def over(prediction: dict[str, Any], *values: Any) -> Verdict:
    """Judged over runs r1, r2, ... whose reports hold `x`; `...` leaves it out."""
    runs = [(f"r{i}", {} if v is ... else {"x": v}) for i, v in enumerate(values, start=1)]
    (verdict,) = verdicts([prediction], runs, None)
    return verdict


def bound(**fields: Any) -> dict[str, Any]:
    return {"quantity": "x"} | fields


def one(verdict: Verdict) -> BoundVerdict:
    (found,) = verdict.bounds
    assert found.verdict == verdict.verdict
    assert "\n" not in found.evidence
    return found


# ---------------------------------------------------------------- paths

TREE = {
    "outage_s": 41.7,
    "valid": False,
    "n": 0,
    "stages": {"kill..container_start": 0.7, "banner": None, "banner_reason": "not\nprinted"},
    "in_flight": [{"rule": "compat", "total": 15}, {"rule": "tight", "total": 14}],
    "gates": [{"id": "G1"}, {"name": "7"}, {"key": "a", "id": "b"}, {"id": "G1"}, [10, 20]],
    "recovery": {"ttr_s": None, "reason": "never entered"},
    "nothing": None,
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("outage_s", 41.7),
        ("valid", False),
        ("n", 0),
        ("stages/kill..container_start", 0.7),
        ("in_flight/tight/total", 14),
        ("in_flight/0/total", 15),
        ("in_flight/{rule}/total", 14),
        ("gates/7", {"name": "7"}),
        ("gates/a/id", "b"),
        ("gates/b/key", "a"),
        ("gates/4/1", 20),
    ],
)
def test_path_leads_to(path: str, expected: object) -> None:
    assert resolve(TREE, path, "tight") == expected


@pytest.mark.parametrize(
    ("path", "part", "reason"),
    [
        ("outage", "outage", "absent"),
        ("stages/kill/x", "stages/kill", "absent"),
        ("stages/banner", "stages/banner", "null: not printed"),
        ("stages/banner/x", "stages/banner", "null: not printed"),
        ("recovery/ttr_s", "recovery/ttr_s", "null: never entered"),
        ("nothing", "nothing", "null"),
        ("outage_s/x", "outage_s/x", "absent, what should hold it is a single value"),
        ("in_flight/{rule}/total", "in_flight/bracket", "absent"),
        ("in_flight/2", "in_flight/2", "absent"),
        ("in_flight/-1", "in_flight/-1", "absent"),
        ("in_flight/²", "in_flight/²", "absent"),
        ("in_flight/" + "9" * 5000, "in_flight/" + "9" * 5000, "absent"),
        ("gates/G1", "gates/G1", "2 elements have that name"),
        ("", "", "absent"),
    ],
)
def test_path_leads_nowhere(path: str, part: str, reason: str) -> None:
    assert resolve(TREE, path, "bracket") == Missing(part, reason)


def test_rule_is_compat_where_none_is_named() -> None:
    assert resolve(TREE, "in_flight/{rule}/total") == 15


# ---------------------------------------------------------------- one bound


@pytest.mark.parametrize(
    ("limit", "value", "held"),
    [
        ({"below": 61.3}, 61.3, False),
        ({"below": 61.3}, 61.29999999999999, True),
        ({"above": 4}, 4, False),
        ({"above": 4}, 4.000000000000001, True),
        ({"at_most": 5}, 5.0, True),
        ({"at_most": 5}, 5.000000000000001, False),
        ({"at_least": 4}, 4, True),
        ({"at_least": 4}, 3.9999999999999996, False),
        ({"equals": 0}, 0, True),
        ({"equals": 0}, 0.0, True),
        ({"equals": 0}, -0.0, True),
        ({"equals": 0}, 5e-324, False),
        ({"equals": 0}, False, False),  # a flag is no number
        ({"equals": True}, True, True),
        ({"equals": True}, 1, False),
        ({"equals": "connect"}, "connect", True),
        ({"equals": "connect"}, "reset", False),
        ({"equals": "4"}, 4, False),
        ({"at_most": 1e300}, 10**400, False),  # beyond any float
    ],
)
def test_limit_at_its_edge(limit: dict[str, Any], value: Any, held: bool) -> None:
    found = one(over(claim(bound(**limit)), value))
    assert found.verdict == ("held" if held else "refuted")
    assert found.values == (value,)


@pytest.mark.parametrize("value", [[], [1], {}, {"total": 1}, float("nan"), float("inf"), None])
@pytest.mark.parametrize("limit", [{"below": 9}, {"equals": "a"}])
def test_what_is_no_single_known_value_is_absent(value: Any, limit: dict[str, Any]) -> None:
    for absent, verdict in (("refuted",) * 2, ("no_verdict", "no verdict"), ("held",) * 2):
        found = one(over(claim(bound(**limit, absent=absent)), value))
        assert (found.verdict, found.values) == (verdict, (None,))


@pytest.mark.parametrize("value", ["3", True])
def test_a_limit_of_numbers_finds_none_in_a_word(value: Any) -> None:
    found = one(over(claim(bound(below=9)), value))
    assert found.verdict == "refuted"
    assert f"x: {json.dumps(value)} is no number" in found.evidence


# ---------------------------------------------------------------- several runs


def test_held_over_runs_tells_the_range_as_reported() -> None:
    found = one(over(claim(bound(below=61.3)), 29.5, 28.050812785, 28.1))
    assert found.evidence == "28.050812785 to 29.5 in 3 runs; bound: below 61.3"
    assert found.values == (29.5, 28.050812785, 28.1)


def test_one_value_is_no_range() -> None:
    assert one(over(claim(bound(equals=0)), 0, 0)).evidence == "0 in 2 runs; bound: equal to 0"
    assert one(over(claim(bound(above=0)), 5)).evidence == "5 in 1 run; bound: above 0"


def test_words_are_told_once_each() -> None:
    assert one(over(claim(bound(equals="a")), "a", "a")).evidence.startswith('"a" in 2 runs')


def test_one_run_refutes_and_is_named_with_its_value() -> None:
    found = one(over(claim(bound(at_most=2)), 1, 2.5, 2))
    assert (found.verdict, found.evidence) == ("refuted", "r2: 2.5; bound: at most 2")
    assert found.values == (1, 2.5, 2)


def test_many_refuting_runs_are_named_up_to_three() -> None:
    found = one(over(claim(bound(below=1)), 1, 2, 0, 3, 4))
    assert found.evidence == "r1: 1, r2: 2, r4: 3 and 1 more; bound: below 1"


def test_long_words_are_cut_in_evidence_and_kept_in_values() -> None:
    word = "z" * 1000
    found = one(over(claim(bound(equals="a")), word))
    assert len(found.evidence) < 200
    assert found.values == (word,)


# ---------------------------------------------------------------- needs


def sided(*pairs: tuple[Any, Any], **fields: Any) -> BoundVerdict:
    """`x` equals 0 where `sure` is above 0, over (x, sure) of each run."""
    prediction = claim(bound(equals=0, needs="sure", **fields))
    runs = [(f"r{i}", {"x": x, "sure": sure}) for i, (x, sure) in enumerate(pairs, start=1)]
    return one(verdicts([prediction], runs, None)[0])


def test_no_evidence_in_any_run_is_no_verdict() -> None:
    found = sided((0, 0), (0, 0))
    assert (found.verdict, found.values) == ("no verdict", (0, 0))
    assert found.evidence == ("only indeterminate evidence in 2 runs: r1: sure is 0, r2: sure is 0")


def test_runs_without_evidence_count_for_neither_side() -> None:
    found = sided((0, 3), (7, 0), (0, 1))
    assert (found.verdict, found.values) == ("held", (0, 7, 0))
    assert found.evidence == (
        "0 in 2 runs; bound: equal to 0; "
        "1 run had only indeterminate evidence, which counts for neither side"
    )


def test_evidence_in_one_run_can_refute() -> None:
    found = sided((0, 0), (1, 1), (0, 0))
    assert (found.verdict, found.evidence) == ("refuted", "r2: 1; bound: equal to 0")


@pytest.mark.parametrize("sure", [None, "many", True, {}])
def test_needs_that_cannot_be_read_is_absent(sure: Any) -> None:
    assert sided((0, 1), (0, sure)).verdict == "refuted"
    assert sided((0, 1), (0, sure), absent="no_verdict").verdict == "no verdict"
    found = sided((0, 1), (9, sure), absent="held")
    assert (found.verdict, found.values) == ("held", (0, None))
    assert "absent in 1 run, which counts as held" in found.evidence


# ---------------------------------------------------------------- absent


def test_absent_refutes_unless_it_is_said_otherwise() -> None:
    found = one(over(claim(bound(below=5)), 1, ..., 1))
    assert (found.verdict, found.evidence) == ("refuted", "r2: x: absent; bound: below 5")
    assert found.values == (1, None, 1)


def test_absent_in_one_run_can_leave_no_verdict() -> None:
    found = one(over(claim(bound(below=5, absent="no_verdict")), 1, ..., 1))
    assert (found.verdict, found.evidence) == ("no verdict", "r2: x: absent; bound: below 5")


def test_a_refuting_run_outweighs_one_without_verdict() -> None:
    found = one(over(claim(bound(below=5, absent="no_verdict")), ..., 6))
    assert (found.verdict, found.evidence) == ("refuted", "r2: 6; bound: below 5")


def test_absent_can_count_as_held() -> None:
    prediction = claim(bound(below=5, absent="held"))
    assert one(over(prediction, 1, ..., 2)).evidence == (
        "1 to 2 in 2 runs, absent in 1 run, which counts as held; bound: below 5"
    )
    assert one(over(prediction, ...)).verdict == "held"
    assert one(over(prediction, ..., 5)).verdict == "refuted"


# ---------------------------------------------------------------- the whole, and its scope


@pytest.mark.parametrize(
    ("first", "second", "whole"),
    [
        (bound(below=5), bound(above=0), "held"),
        (bound(below=5), bound(above=5), "refuted"),
        (bound(below=5), bound(above=0, needs="y"), "no verdict"),
        (bound(above=5), bound(above=0, needs="y"), "refuted"),
    ],
)
def test_a_prediction_is_as_good_as_its_worst_bound(
    first: dict[str, Any], second: dict[str, Any], whole: str
) -> None:
    for bounds in ((first, second), (second, first)):
        (found,) = verdicts([claim(*bounds)], [("r1", {"x": 1, "y": 0})], None)
        assert found.verdict == whole


def test_no_valid_run_is_no_verdict() -> None:
    found = one(over(claim(bound(below=5))))
    assert (found.verdict, found.evidence, found.values) == ("no verdict", "no valid run", ())


def test_a_claim_about_the_campaign_reads_its_report_alone() -> None:
    prediction = claim(bound(below=5), scope="campaign")
    runs = [("r1", {"x": 9})]
    (found,) = verdicts([prediction], runs, {"x": 4})
    assert one(found).evidence == "4 in the campaign; bound: below 5"
    (found,) = verdicts([prediction], runs, {"x": 5})
    assert one(found).evidence == "campaign: 5; bound: below 5"
    (found,) = verdicts([prediction], runs, {})
    assert one(found).evidence == "campaign: x: absent; bound: below 5"
    (found,) = verdicts([prediction], runs, None)
    assert (one(found).verdict, one(found).evidence) == ("no verdict", "no campaign report")
    needy = claim(bound(below=5, needs="y"), scope="campaign")
    (found,) = verdicts([needy], runs, {"x": 4, "y": 0})
    assert one(found).evidence == ("only indeterminate evidence in the campaign: campaign: y is 0")


def test_one_run_alone() -> None:
    predictions = [claim(bound(below=5)), claim(bound(below=5), scope="campaign")]
    run, campaign = single(predictions, {"run_id": "k1", "valid": True, "x": 7})
    assert one(run).evidence == "k1: 7; bound: below 5"
    assert (campaign.verdict, one(campaign).values) == ("no verdict", ())
    assert one(campaign).evidence == "it is about the campaign, one run cannot show it"
    assert one(single(predictions, {"x": 7})[0]).evidence == "this run: 7; bound: below 5"


def test_an_invalid_run_neither_holds_nor_refutes() -> None:
    (found,) = single([claim(bound(below=5))], {"valid": False, "x": 7})
    assert (found.verdict, one(found).evidence) == ("no verdict", "the run is invalid")


def test_rule_stands_in_quantity_and_needs() -> None:
    prediction = claim(
        {"quantity": "f/{rule}/lost", "equals": 0, "needs": "f/{rule}/n"}, rule="tight"
    )
    tree = {"f": [{"rule": "compat", "lost": 1, "n": 1}, {"rule": "tight", "lost": 0, "n": 1}]}
    (found,) = verdicts([prediction], [("r1", tree)], None)
    assert (found.verdict, found.rule) == ("held", "tight")
    assert one(found).quantity == "f/tight/lost"


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.pop("bounds"),
        lambda p: p.pop("id"),
        lambda p: p.update(scope="elsewhere"),
        lambda p: p.update(scope=[]),
        lambda p: p.update(rule=None),
        lambda p: p.update(bounds=[3]),
        lambda p: p["bounds"][0].update(below=None),
        lambda p: p["bounds"][0].update(above=1),
        lambda p: p["bounds"][0].update(below="5"),
        lambda p: p["bounds"][0].update(absent="maybe"),
        lambda p: p["bounds"][0].update(quantity=None),
    ],
)
def test_a_prediction_of_another_version_is_one_line(damage: Callable[[Any], object]) -> None:
    prediction = claim({"quantity": "f/{rule}/x", "below": 5})
    damage(prediction)
    with pytest.raises(DataError, match=r"^manifest\.json: a prediction cannot be read .*; take"):
        single([prediction], {})


# ---------------------------------------------------------------- the published predictions

REGISTERED = """
- id: C1
  text: >-
    In every valid run, the API-server bring-up (version banner to the server-start line) is under
    61.3 s.
  bounds:
  - quantity: stages/banner..server_start
    below: 61.3
- id: C2
  text: >-
    In every valid run, every in-flight request that is not indeterminate ends errored, and no
    request scheduled from the fire to replica-ready ends censored.
  bounds:
  - quantity: in_flight/{rule}/determinate/completed
    equals: 0
    needs: in_flight/{rule}/determinate/scheduled
  - quantity: in_flight/{rule}/determinate/censored
    equals: 0
    needs: in_flight/{rule}/determinate/scheduled
  - quantity: outage_outcomes/censored
    equals: 0
    needs: outage_outcomes/total
- id: C3
  text: >-
    In every valid run, the restart reuses the torch.compile cache: compilation under 5.0 s, init
    engine under 17.0 s, CUDA-graph capture at least 4 s.
  bounds:
  - quantity: log_figures/init_engine_compilation_s
    below: 5.0
  - quantity: log_figures/init_engine_s
    below: 17.0
  - quantity: log_figures/graph_capture_s
    at_least: 4
"""
CLAIMS = [Prediction.model_validate(item) for item in yaml.safe_load(REGISTERED)]
STORED = [prediction.model_dump(mode="json") for prediction in CLAIMS]


def published() -> tuple[list[tuple[str, dict[str, Any]]], dict[str, Any]]:
    """The published runs in the shape of our reports, and their campaign."""
    campaign = json.loads((GOLDEN / "campaign-2026-10-02.json").read_text())["campaign"]
    timelines = json.loads((GOLDEN / "expected-timeline.json").read_text())["runs"]
    runs = []
    for run, timeline in zip(campaign["per_run"], timelines, strict=True):
        marks, sure = timeline["marks_ns"], run["in_flight_determinate"]
        span = (marks["server_start"] - marks["banner"]) / 1e9
        counts = {key: sure[key] for key in ("completed", "errored", "censored")}
        tree = {
            "run_id": f"run-{run['run']}",
            "valid": run["valid"],
            "stages": timeline["stages_s"] | {"banner..server_start": span},
            "log_figures": run["decomposition"]["log_figures"],
            "in_flight": [
                {
                    "rule": "compat",
                    "determinate": {"scheduled": sure["total"]} | counts,
                    "indeterminate": {"scheduled": run["in_flight_indeterminate"]},
                }
            ],
            "outage_outcomes": run["outage_outcomes"],
        }
        runs.append((tree["run_id"], tree))
    return runs, campaign


RUNS, CAMPAIGN = published()


def judged(runs: list[tuple[str, dict[str, Any]]]) -> dict[str, Verdict]:
    return {verdict.id: verdict for verdict in verdicts(STORED, runs, None)}


def test_published_predictions_come_out_as_published() -> None:
    check_unique(CLAIMS)
    found = judged(RUNS)
    assert {name: verdict.verdict for name, verdict in found.items()} == {
        "C1": "held",
        "C2": "no verdict",
        "C3": "held",
    }
    # the first half of C2 has no verdict, its second half held
    assert [b.verdict for b in found["C2"].bounds] == ["no verdict", "no verdict", "held"]
    caught = [tree["in_flight"][0]["indeterminate"]["scheduled"] for _, tree in RUNS]
    assert sum(caught) == 111


def test_published_evidence_is_the_article_s() -> None:
    found = judged(RUNS)
    spans = found["C1"].bounds[0].values
    assert [f"{end(spans):.1f}" for end in (min, max)] == ["28.1", "29.5"]
    compiled, init, capture = (b.evidence for b in found["C3"].bounds)
    assert compiled == "0.18 to 0.2 in 5 runs; bound: below 5.0"
    assert init == "7.98 to 8.33 in 5 runs; bound: below 17.0"
    assert capture == "5 in 5 runs; bound: at least 4"
    first, _, hung = found["C2"].bounds
    assert first.evidence.startswith("only indeterminate evidence in 5 runs: run-1: in_flight/")
    assert hung.evidence == "0 in 5 runs; bound: equal to 0"


def sure(**counts: int) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        tree["in_flight"][0]["determinate"].update({"scheduled": sum(counts.values())} | counts)

    return change


ALTERED: list[tuple[Callable[[dict[str, Any]], Any], str, int, str]] = [
    (lambda t: t["stages"].update({"banner..server_start": 61.3}), "C1", 0, "run-2: 61.3;"),
    (
        lambda t: t["stages"].pop("banner..server_start"),
        "C1",
        0,
        "run-2: stages/banner..server_start: absent;",
    ),
    (
        lambda t: t.update(stages={"banner..server_start": None, "reason": "no banner line"}),
        "C1",
        0,
        "run-2: stages/banner..server_start: null: no banner line;",
    ),
    (sure(completed=1), "C2", 0, "run-2: 1;"),
    (sure(errored=7, censored=2), "C2", 1, "run-2: 2;"),
    (lambda t: t["outage_outcomes"].update(censored=1), "C2", 2, "run-2: 1;"),
    (lambda t: t["log_figures"].update(init_engine_compilation_s=5.0), "C3", 0, "run-2: 5.0;"),
    (lambda t: t["log_figures"].update(init_engine_s=17.0), "C3", 1, "run-2: 17.0;"),
    (lambda t: t["log_figures"].update(graph_capture_s=3), "C3", 2, "run-2: 3;"),
    (lambda t: t["log_figures"].pop("graph_capture_s"), "C3", 2, "graph_capture_s: absent;"),
]


@pytest.mark.parametrize(("change", "name", "index", "evidence"), ALTERED)
def test_one_run_refutes_a_published_prediction(
    change: Callable[[dict[str, Any]], Any], name: str, index: int, evidence: str
) -> None:
    runs = copy.deepcopy(RUNS)
    change(runs[1][1])
    found = judged(runs)
    states = {key: verdict.verdict for key, verdict in found.items()}
    assert states == {"C1": "held", "C2": "no verdict", "C3": "held"} | {name: "refuted"}
    refuted = found[name].bounds[index]
    assert refuted.verdict == "refuted"
    assert evidence in refuted.evidence
    assert refuted.evidence.startswith("run-2: ")


def test_a_failure_surely_in_flight_holds_the_first_half() -> None:
    runs = copy.deepcopy(RUNS)
    sure(errored=3)(runs[3][1])
    found = judged(runs)["C2"]
    assert found.verdict == "held"
    assert "4 runs had only indeterminate evidence" in found.bounds[0].evidence


def test_a_published_run_alone() -> None:
    found = single(STORED, RUNS[0][1])
    assert [v.verdict for v in found] == ["held", "no verdict", "held"]


# ---------------------------------------------------------------- the sentence


@pytest.mark.parametrize(
    ("template", "text", "missing"),
    [
        ("{x:.3f} s", "41.700 s", ()),
        ("{x}, {n}, {flag}, {word}", "41.7, 7, true, some text", ()),
        ("{x:s}, {n:s}, {flag:s}, {word:s}", "41.7, 7, true, some text", ()),
        ("{one:.0%} and {zero:.0%}", "100% and 0%", ()),
        ("{n:d} of {big:,d}, {whole:d}", "7 of 1,234,567, 41", ()),
        ("{{{n:d}}}", "{7}", ()),
        ("  one line \n", "one line", ()),
        ("{none:.3f} s", "n/a s", ("none: null: probes were off",)),
        ("{y:d}, {y:.3f}", "n/a, n/a", ("y: absent",)),
        ("{list} {inner/list/2:d}", "n/a n/a", ("list: not a single value", "inner: absent")),
        ("{word:.3f}", "some text", ('word: "some text" is no number',)),
        ("{flag:d}", "true", ("flag: true is no number",)),
        ("{x:d}", "41.7", ("x: 41.7 does not fit the format d",)),
        ("{nan:.3f} {inf:d}", "n/a n/a", ("nan: not finite", "inf: not finite")),
        ("{huge:.3f}", f"1{'0' * 76}...", (f"huge: 1{'0' * 76}... does not fit the format .3f",)),
        ("{vast:d}", "a number too long to print", None),
    ],
)
def test_headline_is_filled(template: str, text: str, missing: tuple[str, ...] | None) -> None:
    tree = {
        "x": 41.7,
        "n": 7,
        "flag": True,
        "word": "some text",
        "one": 1,
        "zero": 0.0,
        "big": 1234567,
        "whole": 41.0,
        "none": None,
        "none_reason": "probes were off",
        "list": [1],
        "nan": float("nan"),
        "inf": float("inf"),
        "huge": 10**400,
        "vast": 10**5000,
    }
    found = headline(check_headline(template), tree)
    assert found.text == text
    assert len(found.missing) == 1 if missing is None else found.missing == missing


def test_a_broken_template_is_one_line() -> None:
    with pytest.raises(DataError, match=r"^headline: .*; mend the template$"):
        headline("{x", {})


# the published template, its fields filled from a campaign's report
TEMPLATE = """\
Under a SIGKILL of the only vLLM replica at 65 percent of measured single-replica capacity, \
{endpoints/in_flight_loss_fraction/summary/median:.0%} of in-flight requests failed and \
{timed_out:.0%} timed out at 30 s; the replica served again \
{endpoints/outage_s/summary/median:.3f} s after the kill (median of {valid_runs:d} valid runs, \
range {endpoints/outage_s/summary/min:.3f} to {endpoints/outage_s/summary/max:.3f} s), every \
request scheduled in the outage ended errored ({outage_outcomes/errored:d}) or completed \
({outage_outcomes/completed:d}), and the outage decomposed as kill to container start \
({stages/kill..container_start:.3f} s), container start to version banner \
({stages/container_start..banner:.3f} s), banner to engine init \
({stages/banner..engine_init:.3f} s), engine init to model loaded \
({stages/engine_init..model_loaded:.3f} s), model loaded to the torch.compile took line \
({stages/model_loaded..torch_compile:.3f} s), compile end to capture end \
({stages/torch_compile..graph_capture:.3f} s), capture end to Starting vLLM server \
({stages/graph_capture..server_start:.3f} s) and Starting vLLM server to first served inference \
({stages/server_start..replica_ready:.3f} s) in run {median_run:d}, the median run, with \
{dominating} dominating; recovery to the pre-fault baseline took \
{endpoints/ttr_pre_fault_s/summary/median:d} s (median; range \
{endpoints/ttr_pre_fault_s/summary/min:d} to {endpoints/ttr_pre_fault_s/summary/max:d} s).
"""
SENTENCE = """\
Under a SIGKILL of the only vLLM replica at 65 percent of measured single-replica capacity, \
100% of in-flight requests failed and 0% timed out at 30 s; the replica served again 42.190 s \
after the kill (median of 5 valid runs, range 41.685 to 43.695 s), every request scheduled in the \
outage ended errored (684) or completed (6), and the outage decomposed as kill to container start \
(0.738 s), container start to version banner (12.618 s), banner to engine init (10.965 s), engine \
init to model loaded (7.612 s), model loaded to the torch.compile took line (0.822 s), compile \
end to capture end (5.732 s), capture end to Starting vLLM server (2.923 s) and Starting vLLM \
server to first served inference (0.780 s) in run 4, the median run, with container start to \
version banner dominating; recovery to the pre-fault baseline took 41 s (median; range 41 to \
43 s)."""


def summed(key: str) -> int:
    return sum(run["outage_outcomes"][key] for run in CAMPAIGN["per_run"])


def test_published_sentence() -> None:
    tree = CAMPAIGN | {
        "timed_out": 0,
        "median_run": 4,
        "stages": RUNS[3][1]["stages"],
        "dominating": "container start to version banner",
        "outage_outcomes": {key: summed(key) for key in ("errored", "completed")},
    }
    found = headline(check_headline(TEMPLATE), tree)
    assert found.missing == ()
    assert found.text == SENTENCE


def test_published_sentence_of_a_report_without_stages() -> None:
    found = headline(TEMPLATE, CAMPAIGN)
    assert "kill to container start (n/a s)" in found.text
    assert "range 41.685 to 43.695 s" in found.text
    assert found.missing[:2] == ("timed_out: absent", "outage_outcomes: absent")
    assert found.missing[2:] == ("stages: absent", "median_run: absent", "dominating: absent")


# ---------------------------------------------------------------- properties

KEYS = st.sampled_from(["x", "y", "name", "rule", "compat", "0", "reason"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | KEYS
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
REPORTS = st.dictionaries(KEYS, TREES, max_size=4)
PATHS = st.lists(KEYS, min_size=1, max_size=3).map("/".join)
FORMATS = st.sampled_from(["", ":s", ":d", ":,d", ":.3f", ":.0%", ":+,.2e", ":g"])
LIMIT = st.sampled_from(["below", "above", "at_most", "at_least"])
BOUNDS = st.fixed_dictionaries(
    {"quantity": PATHS, "absent": st.sampled_from(["refuted", "no_verdict", "held"])},
    optional={"needs": PATHS},
).flatmap(
    lambda made: (
        st.tuples(LIMIT, st.integers(-3, 3)).map(lambda pair: made | {pair[0]: pair[1]})
        | st.sampled_from([0, True, "x"]).map(lambda value: made | {"equals": value})
    )
)


@given(st.lists(BOUNDS, min_size=1, max_size=3), st.lists(REPORTS, max_size=5), st.randoms())
def test_verdicts_do_not_depend_on_the_order_of_runs(
    bounds: list[dict[str, Any]], trees: list[dict[str, Any]], random: Any
) -> None:
    runs = [(f"r{i}", tree) for i, tree in enumerate(trees)]
    (before,) = verdicts([claim(*bounds)], runs, None)
    random.shuffle(runs)
    (after,) = verdicts([claim(*bounds)], runs, None)
    assert before.verdict == after.verdict
    for one_way, other in zip(before.bounds, after.bounds, strict=True):
        assert one_way.verdict == other.verdict
        assert sorted(map(repr, one_way.values)) == sorted(map(repr, other.values))
        assert len(one_way.values) == len(runs)


@given(BOUNDS, st.lists(REPORTS, min_size=1, max_size=5))
def test_runs_together_say_what_they_say_alone(
    made: dict[str, Any], trees: list[dict[str, Any]]
) -> None:
    alone = {verdicts([claim(made)], [("r", tree)], None)[0].verdict for tree in trees}
    together = verdicts([claim(made)], [("r", tree) for tree in trees], None)[0].verdict
    assert together in alone
    assert (together == "refuted") == ("refuted" in alone)


@given(
    st.lists(st.tuples(st.sampled_from(["", " s, ", "{{"]), PATHS, FORMATS), max_size=4),
    REPORTS | TREES,
)
def test_headline_never_raises(fields: list[tuple[str, str, str]], tree: Any) -> None:
    template = "".join(f"{text}{{{path}{form}}}" for text, path, form in fields)
    found = headline(check_headline(template), tree)
    assert len(found.missing) <= len(fields)


@given(REPORTS, st.text(alphabet="xy/{}0.: ", max_size=12))
def test_any_path_leads_somewhere_or_says_where_it_ends(tree: Any, path: str) -> None:
    found = resolve(tree, path)
    assert found is not None
    if isinstance(found, Missing):
        assert found.reason


@given(st.text(alphabet="{}xy/0:.3fds![] ", max_size=12), REPORTS)
def test_a_template_is_refused_at_load_or_filled(template: str, tree: Any) -> None:
    try:
        check_headline(template)
    except ValueError as exc:
        assert "\n" not in str(exc)
    else:
        headline(template, tree)
