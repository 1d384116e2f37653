"""Registered predictions against reports: held, refuted or no verdict; and the headline sentence.

Never: computes a figure, rounds one before it is compared, or takes an unknown for a 0.
Plan: `resolve` walks a path through a report as JSON gives it. A bound reads one quantity in every
run (or in the campaign) and each reading is on a side or on neither; `verdicts` and `single` join
them. `headline` fills a template by the same paths.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, Literal

from percentes_fast.errors import DataError

Scalar = bool | int | float | str
Tree = Mapping[str, Any]
Subjects = Sequence[tuple[str, Tree]]  # what a bound is read in: (name, report)
State = Literal["held", "refuted", "no verdict"]

HELD: State = "held"
REFUTED: State = "refuted"
NO_VERDICT: State = "no verdict"
NEITHER = "neither"  # only indeterminate evidence: this reading is on no side

RULE = "{rule}"
NAMES = ("name", "id", "rule", "key")  # what an element of a list is called by
ABSENT: Mapping[str, State] = {"refuted": REFUTED, "no_verdict": NO_VERDICT, "held": HELD}
NAMED = 3  # runs that one line of evidence names


def _same(value: Any, limit: Any) -> bool:
    return isinstance(value, bool) == isinstance(limit, bool) and bool(value == limit)


LIMITS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "below": ("below", operator.lt),
    "above": ("above", operator.gt),
    "at_most": ("at most", operator.le),
    "at_least": ("at least", operator.ge),
    "equals": ("equal to", _same),
}


@dataclass(frozen=True, slots=True)
class Missing:
    """What a path did not lead to. part: the path up to what is absent; reason: in a few words."""

    part: str
    reason: str

    def __str__(self) -> str:
        return f"{self.part}: {self.reason}"


@dataclass(frozen=True, slots=True)
class BoundVerdict:
    """One bound judged. values: of each run in the order given, None where there was none."""

    quantity: str
    verdict: State
    evidence: str
    values: tuple[Scalar | None, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A prediction judged: refuted where a bound is, else no verdict where one has none."""

    id: str
    text: str
    scope: str
    rule: str
    verdict: State
    bounds: tuple[BoundVerdict, ...]


@dataclass(frozen=True, slots=True)
class Headline:
    """The sentence. missing: `path: reason` of every field that could not be filled as asked."""

    text: str
    missing: tuple[str, ...]


def verdicts(
    predictions: Iterable[Mapping[str, Any]], runs: Subjects, campaign: Tree | None
) -> tuple[Verdict, ...]:
    """Judge every prediction. runs: (name, report) of the valid runs alone.

    A run in which a bound's `needs` is not above 0 is on neither side; one where the quantity is
    absent is what the bound says. DataError where a prediction is not one.
    """
    over = [] if campaign is None else [("campaign", campaign)]
    subjects = {"every_run": (runs, "no valid run"), "campaign": (over, "no campaign report")}
    return tuple(_verdict(raw, subjects) for raw in predictions)


def single(predictions: Iterable[Mapping[str, Any]], run: Tree) -> tuple[Verdict, ...]:
    """Judge them by one run's own report; nothing is judged by a run that says it is invalid."""
    name = run.get("run_id")
    runs = [(name if isinstance(name, str) else "this run", run)]
    subjects: dict[str, tuple[Subjects, str]] = {
        "every_run": ([] if run.get("valid") is False else runs, "the run is invalid"),
        "campaign": ([], "it is about the campaign, one run cannot show it"),
    }
    return tuple(_verdict(raw, subjects) for raw in predictions)


# ---------------------------------------------------------------- paths


def resolve(tree: object, path: str, rule: str = "compat") -> object:
    """What the path leads to, or `Missing`; null counts as absent. `{rule}` stands for the rule."""
    parts = _parts(path, rule)
    here = tree
    for depth, part in enumerate(parts, start=1):
        where = "/".join(parts[:depth])
        found = _child(here, part, where)
        if isinstance(found, Missing):
            return found
        if found is None:
            return Missing(where, _null(here, part))
        here = found
    return here


def _parts(path: str, rule: str) -> list[str]:
    return [rule if part == RULE else part for part in path.split("/")]


def _child(here: object, part: str, where: str) -> object:
    if isinstance(here, Mapping):
        return here[part] if part in here else Missing(where, "absent")
    if not isinstance(here, list | tuple):
        return Missing(where, "absent, what should hold it is a single value")
    called = [item for item in here if isinstance(item, Mapping) and _is_called(item, part)]
    if len(called) > 1:
        return Missing(where, f"{len(called)} elements have that name")
    if called:
        return called[0]
    number = int(part) if part.isascii() and part.isdigit() and len(part) < 10 else len(here)
    return here[number] if number < len(here) else Missing(where, "absent")


def _is_called(item: Mapping[str, Any], part: str) -> bool:
    return any(isinstance(item.get(key), str) and item[key] == part for key in NAMES)


def _null(parent: object, part: str) -> str:
    """Why it is null, where a reason stands beside it."""
    if isinstance(parent, Mapping):
        for key in (f"{part}_reason", "reason"):
            if isinstance(parent.get(key), str):
                return f"null: {_line(parent[key])}"
    return "null"


def _scalar(found: object, where: str, *, number: bool) -> Scalar | Missing:
    """A single value that can be compared and printed, or why it is none."""
    if isinstance(found, Missing):
        return found
    if not isinstance(found, bool | int | float | str):
        return Missing(where, "not a single value")
    if isinstance(found, float) and not math.isfinite(found):
        return Missing(where, "not finite")
    if number and isinstance(found, bool | str):
        return Missing(where, f"{_shown(found)} is no number")
    return found


# ---------------------------------------------------------------- bounds


@dataclass(frozen=True, slots=True)
class _Bound:
    quantity: str
    limit: str
    value: Scalar
    needs: str | None
    absent: State


@dataclass(frozen=True, slots=True)
class _Reading:
    """One bound in one report. text: the value, or why there is none."""

    run: str
    state: str
    value: Scalar | None
    text: str


def _verdict(raw: Mapping[str, Any], subjects: Mapping[str, tuple[Subjects, str]]) -> Verdict:
    try:
        scope, rule = raw["scope"], raw["rule"]
        runs, none = subjects[scope]
        bounds = [_bound(bound, rule) for bound in raw["bounds"]]
        name, text = raw["id"], raw["text"]
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise DataError(
            f"manifest.json: a prediction cannot be read ({type(exc).__name__}: {exc}); take the"
            " version that made this run"
        ) from exc
    judged = tuple(_judge(bound, scope, runs, none) for bound in bounds)
    states = {bound.verdict for bound in judged}
    verdict = REFUTED if REFUTED in states else NO_VERDICT if NO_VERDICT in states else HELD
    return Verdict(id=name, text=text, scope=scope, rule=rule, verdict=verdict, bounds=judged)


def _bound(raw: Mapping[str, Any], rule: str) -> _Bound:
    (limit,) = (name for name in LIMITS if raw.get(name) is not None)
    value = _scalar(raw[limit], limit, number=limit != "equals")
    if isinstance(value, Missing):
        raise ValueError(str(value))
    needs = raw.get("needs")
    return _Bound(
        quantity="/".join(_parts(raw["quantity"], rule)),
        limit=limit,
        value=value,
        needs=None if needs is None else "/".join(_parts(needs, rule)),
        absent=ABSENT[raw.get("absent", "refuted")],
    )


def _judge(bound: _Bound, scope: str, runs: Subjects, none: str) -> BoundVerdict:
    readings = [_read(bound, name, tree) for name, tree in runs]
    verdict, evidence = _joined(bound, readings, scope) if readings else (NO_VERDICT, none)
    values = tuple(reading.value for reading in readings)
    return BoundVerdict(bound.quantity, verdict, evidence, values)


def _read(bound: _Bound, run: str, tree: Tree) -> _Reading:
    number = bound.limit != "equals"
    found = _scalar(resolve(tree, bound.quantity), bound.quantity, number=number)
    if bound.needs is not None:
        needed = _scalar(resolve(tree, bound.needs), bound.needs, number=True)
        if isinstance(needed, Missing):
            return _Reading(run, bound.absent, None, str(needed))
        if not LIMITS["above"][1](needed, 0):
            value = None if isinstance(found, Missing) else found
            return _Reading(run, NEITHER, value, f"{bound.needs} is {_shown(needed)}")
    if isinstance(found, Missing):
        return _Reading(run, bound.absent, None, str(found))
    holds = LIMITS[bound.limit][1](found, bound.value)
    return _Reading(run, HELD if holds else REFUTED, found, _shown(found))


def _joined(bound: _Bound, readings: Sequence[_Reading], scope: str) -> tuple[State, str]:
    """The verdict over all readings and its evidence in one line."""
    by: dict[str, list[_Reading]] = {HELD: [], REFUTED: [], NO_VERDICT: [], NEITHER: []}
    for reading in readings:
        by[reading.state].append(reading)
    limit = f"bound: {LIMITS[bound.limit][0]} {_shown(bound.value)}"
    for state in (REFUTED, NO_VERDICT):
        if by[state]:
            return state, f"{_named(by[state])}; {limit}"
    neither = _many(len(by[NEITHER]), scope)
    if not by[HELD]:
        return NO_VERDICT, f"only indeterminate evidence in {neither}: {_named(by[NEITHER])}"
    evidence = f"{_held(by[HELD], scope)}; {limit}"
    if by[NEITHER]:
        evidence += f"; {neither} had only indeterminate evidence, which counts for neither side"
    return HELD, evidence


def _held(readings: Sequence[_Reading], scope: str) -> str:
    known = [reading.value for reading in readings if reading.value is not None]
    texts = [f"{_range(known)} in {_many(len(known), scope)}"] if known else []
    if len(known) < len(readings):
        absent = _many(len(readings) - len(known), scope)
        texts.append(f"absent in {absent}, which counts as held")
    return ", ".join(texts)


def _range(values: Sequence[Scalar]) -> str:
    """Least to greatest as reported; of what is no number, each value once."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        return ", ".join(sorted({_shown(value) for value in values}))
    least, most = min(numbers), max(numbers)
    return _shown(least) if least == most else f"{_shown(least)} to {_shown(most)}"


def _named(readings: Sequence[_Reading]) -> str:
    """The first runs by name with what was read there, and how many more."""
    told = ", ".join(f"{_line(reading.run)}: {reading.text}" for reading in readings[:NAMED])
    more = len(readings) - NAMED
    return f"{told} and {more} more" if more > 0 else told


def _many(count: int, scope: str) -> str:
    if scope == "campaign":
        return "the campaign"
    return f"{count} run" if count == 1 else f"{count} runs"


# ---------------------------------------------------------------- the sentence


def headline(template: str, tree: object) -> Headline:
    """Fill the template's `{path:format}` fields from a report; what is absent becomes n/a.

    A value that its format does not fit is shown as it is and listed. DataError where the
    template itself is broken.
    """
    try:
        fields = list(Formatter().parse(template.strip()))
    except ValueError as exc:
        raise DataError(f"headline: {exc}; mend the template") from exc
    texts: list[str] = []
    missing: dict[str, None] = {}
    for literal, path, form, _ in fields:
        texts.append(literal)
        if path is not None:
            text, problem = _filled(tree, path, form or "")
            texts.append(text)
            if problem:
                missing[problem] = None
    return Headline("".join(texts), tuple(missing))


def _filled(tree: object, path: str, form: str) -> tuple[str, str]:
    """The field's text, and what is wrong with it ("" where nothing is)."""
    value = _scalar(resolve(tree, path), path, number=False)
    if isinstance(value, Missing):
        return "n/a", str(value)
    plain = value if isinstance(value, str) else _shown(value)
    if form in ("", "s"):
        return plain, ""
    if isinstance(value, bool | str):
        return plain, f"{path}: {_shown(value)} is no number"
    try:
        whole = form.endswith("d") and isinstance(value, float) and value.is_integer()
        return format(int(value) if whole else value, form), ""
    except (ValueError, OverflowError):
        return plain, f"{path}: {plain} does not fit the format {form}"


def _shown(value: Scalar) -> str:
    """A value as report.json prints it, cut where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except ValueError:  # an integer of thousands of digits
        return "a number too long to print"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _line(text: str) -> str:
    return " ".join(text.split())
