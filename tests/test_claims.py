"""What a claim may look like: everything that could be read in two ways is one line at load.

Never: tests pydantic. Plan: what is accepted and how it is stored, then each thing that is refused,
in a bound, a prediction, the list of them and the headline.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from percentes_fast.claims import (
    LIMITS,
    Bound,
    Headline,
    Prediction,
    check_headline,
    check_path,
    check_unique,
)
from percentes_fast.target import Section

BOUND = {"quantity": "outage_s", "below": 60}
CLAIM = {"id": "C1", "text": "back within a minute", "bounds": [BOUND]}


class Claims(Section):
    """The two keys as a configuration holds them."""

    predictions: tuple[Prediction, ...] = ()
    headline: Headline | None = None


def refusal(model: type[Section], given: dict[str, Any]) -> str:
    """The one line told first, with its place."""
    with pytest.raises(ValidationError) as caught:
        model.model_validate(given)
    (first,) = caught.value.errors(include_url=False)
    line = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
    assert "\n" not in line
    return line


# ---------------------------------------------------------------- accepted


def test_what_is_left_out_is_the_strict_reading() -> None:
    claim = Prediction.model_validate(CLAIM)
    assert (claim.scope, claim.rule) == ("every_run", "compat")
    (bound,) = claim.bounds
    assert (bound.needs, bound.absent) == (None, "refuted")
    assert [getattr(bound, name) for name in LIMITS] == [60, None, None, None, None]


@pytest.mark.parametrize(
    ("name", "value"),
    [("below", 61.3), ("above", 0), ("at_most", -1.5), ("at_least", 4), ("at_least", 10**400)]
    + [("equals", value) for value in (0, 0.5, True, False, "connect", "")],
)
def test_a_limit_is_kept_as_it_was_written(name: str, value: Any) -> None:
    bound = Bound.model_validate({"quantity": "a/b", name: value})
    kept = getattr(bound, name)
    assert (kept, type(kept)) == (value, type(value))
    assert bound.model_dump(mode="json")[name] == value


def test_a_claim_survives_being_stored() -> None:
    claim = Prediction.model_validate(CLAIM)
    stored = json.loads(json.dumps(claim.model_dump(mode="json")))
    assert Prediction.model_validate(stored) == claim


def test_claims_are_frozen() -> None:
    claim = Prediction.model_validate(CLAIM)
    with pytest.raises(ValidationError, match="frozen"):
        claim.id = "C2"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        claim.bounds[0].below = 61  # type: ignore[misc]


@pytest.mark.parametrize(
    "path",
    [
        "outage_s",
        "stages/kill..container_start",
        "in_flight/{rule}/determinate/completed",
        "windows/0/ttft/p99.9",
        "models/Qwen2.5-7B/share",
        "{rule}",
        "per kind/load",
    ],
)
def test_path(path: str) -> None:
    assert check_path(path) == path


# ---------------------------------------------------------------- refused in a bound


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"below": None}, ": outage_s: no limit given; give exactly one of below, above"),
        ({"above": 1}, ": outage_s: below and above given; give exactly one of"),
        ({"equals": False}, ": outage_s: below and equals given; give exactly one of"),
        ({"below": "61.3"}, "below: is no finite number; write one, unquoted"),
        ({"below": True}, "below: is no finite number"),
        ({"below": float("nan")}, "below: is no finite number"),
        ({"below": float("inf")}, "below: is no finite number"),
        ({"below": None, "equals": float("-inf")}, "equals: is no finite number, no text"),
        ({"below": None, "equals": [1]}, "equals: is no finite number, no text and not true"),
        ({"absent": "maybe"}, "absent: Input should be 'refuted', 'no_verdict' or 'held'"),
        ({"needs": "a//b"}, "needs: 'a//b': a part is empty or has spaces around it; write"),
        ({"quantity": ""}, "quantity: '': a part is empty"),
        ({"quantity": "/a"}, "quantity: '/a': a part is empty"),
        ({"quantity": "a/ b"}, "quantity: 'a/ b': a part is empty or has spaces around it"),
        ({"quantity": 3}, "quantity: Input should be a valid string"),
        ({"quantity": "a/x{rule}"}, "{rule} as a whole"),
        ({"quantity": "a/{rul}"}, "{rule} as a whole"),
        ({"quantity": "windows[0]"}, "use an element's name or number as a part"),
        ({"quantity": "outage.median"}, "'/' separates parts; write 'outage/median'"),
        ({"belw": 3}, "belw: Extra inputs are not permitted"),
    ],
)
def test_refused_bound(given: dict[str, Any], told: str) -> None:
    assert told in refusal(Bound, BOUND | given)


# ---------------------------------------------------------------- refused in a prediction


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"id": ""}, "id: '': use a short word such as C1"),
        ({"id": "the first"}, "id: 'the first': use a short word"),
        ({"id": "C1\n"}, r"id: 'C1\n': use a short word"),
        ({"id": "C" * 33}, "use a short word"),
        ({"text": " "}, "text: is empty; say the claim in words"),
        ({"bounds": []}, "bounds: is empty; give one bound or more"),
        ({"bounds": [{"quantity": "a"}]}, "bounds.0: a: no limit given; give exactly one"),
        ({"scope": "some"}, "scope: Input should be 'every_run' or 'campaign'"),
        ({"rule": "loose"}, "rule: Input should be 'compat', 'tight' or 'bracket'"),
        ({"rule": "tight"}, "C1: rule tight is used by no quantity; write {rule} as a part"),
    ],
)
def test_refused_prediction(given: dict[str, Any], told: str) -> None:
    assert told in refusal(Prediction, CLAIM | given)


@pytest.mark.parametrize("key", ["quantity", "needs"])
def test_a_rule_is_used_where_one_path_stands_on_it(key: str) -> None:
    bound = BOUND | {key: "in_flight/{rule}/total"}
    claim = Prediction.model_validate(CLAIM | {"rule": "tight", "bounds": [BOUND, bound]})
    assert claim.rule == "tight"


def test_ids_are_unique() -> None:
    one, two = (Prediction.model_validate(CLAIM | {"id": name}) for name in ("C1", "C2"))
    check_unique([])
    check_unique([one, two])
    with pytest.raises(ValueError, match=r"^predictions: id 'C1' is given twice; rename one$"):
        check_unique([one, two, one])


def test_a_refusal_names_its_place_in_the_file() -> None:
    text = """
    predictions:
    - id: C1
      text: back within a minute
      bounds:
      - quantity: outage_s
        below: 60
      - quantity: outage_s
        below: 1 min
    """
    told = refusal(Claims, yaml.safe_load(text))
    assert told.startswith("predictions.0.bounds.1.below: is no finite number")


# ---------------------------------------------------------------- headline


@pytest.mark.parametrize(
    "template",
    [
        "",
        "nothing measured",
        "{outage_s}",
        "{outage_s:s}, {n:d}, {n:,d}, {n:+d}",
        "{loss:.0%} lost, back after {outage_s:.3f} s ({x:.2e}, {x:g}, {x:,.1f})",
        "{stages/kill..container_start:.3f} s; {windows/0/ttft/p99.9:.3f}",
        "a brace {{of the sentence}}",
    ],
)
def test_headline(template: str) -> None:
    assert check_headline(template) == template
    assert Claims.model_validate({"headline": template}).headline == template


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{outage_s", "expected '}' before end of string; write {path}"),
        ("outage_s}", "Single '}' encountered"),
        ("{outage_s:.3f", "; write {path} or {path:.3f}"),
        ("{}", "'': a part is empty"),
        ("{:.3f}", "'': a part is empty"),
        ("{ outage_s }", "spaces around it"),
        ("{in_flight/{rule}/total:d}", "with parts written out"),
        ("{outage_s:{width}}", "no format '{width}'; use .3f, .0%, d or s"),
        ("{outage_s:10.3f}", "'outage_s': no format '10.3f'; use"),
        ("{outage_s:999999999d}", "no format '999999999d'"),
        ("{outage_s:x}", "no format 'x'"),
        ("{outage_s:.3d}", "no format '.3d'"),
        ("{outage_s!r}", "no format '!r'"),
        ("{outage_s.real}", "'/' separates parts; write 'outage_s/real'"),
        ("{outage_s.__class__:s}", "'/' separates parts"),
        ("{runs[0]:d}", "use an element's name or number as a part"),
        ("{runs[a:b]:d}", "use an element's name or number as a part"),
    ],
)
def test_refused_headline(template: str, told: str) -> None:
    line = refusal(Claims, {"headline": template})
    assert line.startswith("headline: ")
    assert told in line
