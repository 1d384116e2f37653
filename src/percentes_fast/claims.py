"""What is claimed before a run: predictions, each with its bounds, and the headline sentence.

Never: looks at a result, or lets a claim in that could be read in two ways: one limit a bound, one
id a prediction.
Plan: a path into report.json, a bound on what is found there, a prediction of one bound or more,
the template of the headline. What a report makes of them is `analysis.predictions`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, field_validator, model_validator

from percentes_fast.target import Section

LIMITS = ("below", "above", "at_most", "at_least", "equals")
RULE = "{rule}"  # this part of a path stands for the prediction's clock rule
# a dot as in code: names such as kill..container_start and p99.9 are not meant
DOTTED = re.compile(r"(?<!\.)\.(?=[A-Za-z_])")
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
FORMAT = re.compile(r"|s|\+?,?d|\+?,?(\.\d{1,2})?[feg%]")


def check_path(path: str) -> str:
    """The path as given; ValueError, one line, where it can name nothing in a report."""
    parts = path.split("/")
    if any(not part or part != part.strip() for part in parts):
        raise ValueError(f"{path!r}: a part is empty or has spaces around it; write outage/lo_s")
    if any(c in part for part in parts if part != RULE for c in "{}[]"):
        raise ValueError(f"{path!r}: use an element's name or number as a part, {RULE} as a whole")
    if DOTTED.search(path):
        raise ValueError(f"{path!r}: '/' separates parts; write {DOTTED.sub('/', path)!r}")
    return path


def check_headline(template: str) -> str:
    """The template as given; ValueError, one line, where a field of it could not be filled."""
    try:
        fields = list(Formatter().parse(template))
    except ValueError as exc:
        raise ValueError(
            f"{exc}; write {{path}} or {{path:.3f}} with parts written out, and a brace"
            " of the sentence twice"
        ) from exc
    for _, path, form, conversion in fields:
        if path is None:
            continue
        if conversion or not FORMAT.fullmatch(form or ""):
            odd = f"!{conversion}" if conversion else form
            raise ValueError(f"{path!r}: no format {odd!r}; use .3f, .0%, d or s")
        check_path(path)
    return template


def _finite(given: Any) -> bool:
    if isinstance(given, float):
        return math.isfinite(given)
    return isinstance(given, int) and not isinstance(given, bool)


def _number(given: Any) -> Any:
    if given is not None and not _finite(given):
        raise ValueError("is no finite number; write one, unquoted")
    return given


def _value(given: Any) -> Any:
    if given is not None and not isinstance(given, bool | str) and not _finite(given):
        raise ValueError("is no finite number, no text and not true or false; write one of these")
    return given


Path = Annotated[str, AfterValidator(check_path)]
Number = Annotated[int | float | None, BeforeValidator(_number)]
Value = Annotated[bool | int | float | str | None, BeforeValidator(_value)]
Headline = Annotated[str, AfterValidator(check_headline)]


class Bound(Section):
    """One limit on one reported quantity.

    quantity: a path of names into report.json; an element of a list is chosen by its `name`, `id`,
    `rule` or `key`, or by number from 0. needs: where that quantity is not above 0 the run gives no
    evidence for either side. absent: what it means where the report has no such quantity.
    """

    quantity: Path
    below: Number = None
    above: Number = None
    at_most: Number = None
    at_least: Number = None
    equals: Value = None
    needs: Path | None = None
    absent: Literal["refuted", "no_verdict", "held"] = "refuted"

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path it reads."""
        return (self.quantity,) if self.needs is None else (self.quantity, self.needs)

    @model_validator(mode="after")
    def _check_whole(self) -> Bound:
        given = [name for name in LIMITS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{self.quantity}: {' and '.join(given) or 'no limit'} given; give exactly one of"
                f" {', '.join(LIMITS)}"
            )
        return self


class Prediction(Section):
    """A claim made before the run; it holds where every bound does.

    scope: about every valid run, or about the campaign's own report. rule: the clock rule that
    `{rule}` stands for in its paths.
    """

    id: str
    text: str
    scope: Literal["every_run", "campaign"] = "every_run"
    rule: Literal["compat", "tight", "bracket"] = "compat"
    bounds: tuple[Bound, ...]

    @field_validator("id")
    @classmethod
    def _check_id(cls, name: str) -> str:
        if not WORD.fullmatch(name):
            raise ValueError(f"{name!r}: use a short word such as C1: letters, digits, _ . -")
        return name

    @field_validator("bounds")
    @classmethod
    def _check_bounds(cls, bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
        if not bounds:
            raise ValueError("is empty; give one bound or more")
        return bounds

    @field_validator("text")
    @classmethod
    def _check_text(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("is empty; say the claim in words")
        return text

    @model_validator(mode="after")
    def _check_whole(self) -> Prediction:
        used = any(RULE in path.split("/") for bound in self.bounds for path in bound.paths)
        if self.rule != "compat" and not used:
            raise ValueError(
                f"{self.id}: rule {self.rule} is used by no quantity; write {RULE} as a part, as in"
                " in_flight/{rule}/determinate/completed, or drop the rule"
            )
        return self


def check_unique(predictions: Iterable[Prediction]) -> None:
    """ValueError, one line, where two predictions have one id."""
    seen: set[str] = set()
    for prediction in predictions:
        if prediction.id in seen:
            raise ValueError(f"predictions: id {prediction.id!r} is given twice; rename one")
        seen.add(prediction.id)
