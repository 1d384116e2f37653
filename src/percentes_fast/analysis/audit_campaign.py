"""The campaign's own figures: validity gates, endpoint statistics, counts, registered claims.

Never: a statistic computed from a rounded or re-ordered value, or a verdict taken from prose.
Plan: `gate_checks` decides each applicable gate again from the measurements its detail line
prints, and the run's validity from the gates. `campaign_checks` computes the endpoint
statistics from the published value lists and holds those lists against the runs. `verdicts`
applies the three registered claims (SPEC section 10) to derived quantities only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType

from percentes_fast.analysis.audit_checks import (
    BETWEEN,
    Check,
    Figure,
    close,
    exact,
    underivable,
)
from percentes_fast.analysis.golden import CHAIN, NS_PER_S, Node, RunTimeline, log_figures
from percentes_fast.analysis.stats import RunStats, headline, summarise, t_multiplier

# Gate limits as SPEC section 8 pins them.
SKEW_P99_US, SKEW_MAX_US, CPU_PERCENT = 5_000.0, 50_000.0, 70.0
GOODPUT_FLOOR, QUEUE_CEILING = 0.99, 1.0
# Claim bounds as registered before the runs.
BRING_UP_S, COMPILE_S, INIT_S, CAPTURE_S = 61.3, 5.0, 17.0, 4.0
THREE_DECIMALS = 5e-4  # the multiplier is published with three decimals
ZERO = 1e-12  # spread of equal values: a rounding residue, not a figure

HELD, REFUTED, NO_VERDICT = "held", "refuted", "no verdict"
_NUMBER = r"(\d+(?:\.\d+)?)"
_G2 = re.compile(
    rf"skew p99={_NUMBER}us/max={_NUMBER}us; undispatched={_NUMBER}; .*worst={_NUMBER}%"
)
_G6 = re.compile(rf"baseline goodput {_NUMBER}")
_G7 = re.compile(rf"r\d+={_NUMBER}/n\d+")
_STATISTICS: Mapping[str, str] = MappingProxyType(
    {
        "median": "middle value",
        "mean": "sum / n",
        "min": "smallest value",
        "max": "largest value",
        "sample_sd": "divisor n - 1",
        "sem": "SD / sqrt(n)",
        "t_interval_lo": "mean - published t * SEM",
        "t_interval_hi": "mean + published t * SEM",
        "coefficient_of_variation": "SD / |mean|",
    }
)


@dataclass(frozen=True)
class Verdict:
    """A registered claim, `held`, `refuted` or `no verdict`, and the evidence in one line."""

    claim: str
    verdict: str
    evidence: str


def gate_pass(gate: Node) -> bool | None:
    """Decide an applicable gate from the figures in its detail line; None where it has none."""
    identity, detail = gate.at("id").text(), gate.at("detail").text()
    if identity == "G2" and (found := _G2.search(detail)):
        p99, worst, unsent, cpu = map(float, found.groups())
        return p99 <= SKEW_P99_US and worst <= SKEW_MAX_US and not unsent and cpu <= CPU_PERCENT
    if identity == "G6" and (found := _G6.search(detail)):
        return float(found[1]) >= GOODPUT_FLOOR
    if identity == "G7" and (means := _G7.findall(detail)):
        return max(map(float, means)) <= QUEUE_CEILING
    return None


def gate_checks(run: Node, gates: Node) -> Iterator[Check]:
    """Judge each gate, `all_pass`, and the run's `valid` flag.

    An applicable gate that was not observed does not pass, whatever its detail says. One
    whose detail prints nothing measurable keeps its published flag.
    """
    decided = True
    for gate in gates.at("gates").items():
        flag, applicable = gate.at("pass"), gate.at("applicable").flag()
        if not applicable:
            other = "the gate does not apply to this variant"
            yield underivable(flag, BETWEEN if gate.at("id").text() == CHAIN else other)
            continue
        result = gate_pass(gate)
        if not gate.at("observed").flag():
            result = False
        if result is None:
            yield underivable(flag, "the detail line prints no measurement")
        else:
            yield exact(flag, flag.flag(), result, f"{gate.at('id').text()} limits")
        decided &= flag.flag() if result is None else result
    everything, valid = gates.at("all_pass"), run.at("valid")
    yield exact(everything, everything.flag(), decided, "every applicable gate")
    yield exact(valid, valid.flag(), decided, "every applicable gate")


def campaign_checks(campaign: Node) -> Iterator[Check]:
    """Judge the run counts and every endpoint."""
    runs = campaign.at("per_run").items()
    valid = [run for run in runs if run.at("valid").flag()]
    for number, run in enumerate(runs, start=1):
        node = run.at("run")
        yield exact(node, node.integer(), number, "place in the list")
    counts = {
        "repetitions": len(runs),
        "valid_runs": len(valid),
        "invalid_runs": len(runs) - len(valid),
    }
    for key, count in counts.items():
        node = campaign.at(key)
        yield exact(node, node.integer(), count, "counted over the runs")
    for endpoint in campaign.at("endpoints").items():
        yield from _endpoint_checks(endpoint, valid, len(runs))


def _endpoint_checks(endpoint: Node, valid: Sequence[Node], planned: int) -> Iterator[Check]:
    name, summary = endpoint.at("name").text(), endpoint.at("summary")
    given = [v for run in valid if (v := run.fields().get(name)) and v.value is not None]
    listed = summary.at("values")
    values = [] if listed.value is None else listed.items()
    for index, (place, source) in enumerate(zip_longest(values, given)):
        published = None if place is None else place.number()
        expected = None if source is None else source.number()
        where = listed.absent(index) if place is None else place
        yield exact(where, published, expected, "the run's value, verbatim")
    contributing, dropped = endpoint.at("contributing_n"), endpoint.at("dropped_runs")
    yield exact(contributing, contributing.integer(), len(given), "valid runs with a value")
    # A quantity that does not apply has no runs to drop.
    applies = endpoint.at("endpoint").text() != "not_applicable"
    missing = len(valid) - len(given) if applies else 0
    yield exact(dropped, dropped.integer(), missing, "valid runs without a value")
    yield from _summary_checks(summary, [v.number() for v in values], planned)


def _summary_checks(summary: Node, values: Sequence[float], planned: int) -> Iterator[Check]:
    multiplier = summary.at("t_multiplier")
    stats = summarise(values, multiplier=float(multiplier.number()))
    for key, note in _STATISTICS.items():
        derived = getattr(stats, key)
        if derived is None:
            yield close(summary.at(key), 0.0, "undefined: published as 0")
        else:
            yield close(summary.at(key), derived, note, max(1e-9 * abs(derived), ZERO))
    df = stats.df or 0
    quantile = t_multiplier(df) if df else 0.0
    yield close(multiplier, quantile, "Student t, 95 % two-sided", THREE_DECIMALS)
    yield from _summary_marks(summary, stats, df, planned)


def _summary_marks(summary: Node, stats: RunStats, df: int, planned: int) -> Iterator[Check]:
    pinned = df > 0 and df == planned - 1
    marks: tuple[tuple[str, Figure, str], ...] = (
        ("n", stats.n, "number of values"),
        ("df", df, "n - 1"),
        ("at_pinned_df", pinned, "every planned run contributes"),
        ("cov_defined", stats.coefficient_of_variation is not None, "two runs, mean not 0"),
    )
    for key, derived, note in marks:
        node = summary.at(key)
        published = node.flag() if isinstance(derived, bool) else node.integer()
        yield exact(node, published, derived, note)
    heavy, line = summary.at("heavy_tailed"), summary.at("headline")
    yield underivable(heavy, "a classification fixed before the runs, not a measurement")
    if stats.n == 1:
        yield underivable(line, "the published wording for one run is not known")
    else:
        yield exact(line, line.text(), headline(stats, heavy_tailed=heavy.flag()), "worded")


def verdicts(campaign: Node, timelines: Sequence[RunTimeline]) -> tuple[Verdict, ...]:
    """Apply the three registered claims to every valid run (SPEC section 10).

    C1: banner to server start under 61.3 s. C2 has two halves: every determinate in-flight
    request ends errored, and nothing sent in the outage is censored; requests too close to
    the kill support neither side. C3: compilation under 5.0 s, init engine under 17.0 s, graph
    capture at least 4 s. An absent log line refutes C1 and C3.
    """
    runs = campaign.at("per_run").items()
    valid = [(r, t) for r, t in zip(runs, timelines, strict=True) if r.at("valid").flag()]
    if not valid:
        claims = ("C1", "C2 in flight", "C2 outage", "C3")
        return tuple(Verdict(claim, NO_VERDICT, "no valid run") for claim in claims)
    nodes = [run for run, _ in valid]
    return (
        _bring_up([found for _, found in valid]),
        _in_flight(nodes),
        _hung(nodes),
        _compile_cache(nodes),
    )


def _bring_up(found: Sequence[RunTimeline]) -> Verdict:
    spans: list[float | None] = []
    for one in found:
        banner, ready = one.moment_ns("banner"), one.moment_ns("server_start")
        spans.append(None if banner is None or ready is None else (ready - banner) / NS_PER_S)
    held = all(s is not None and s < BRING_UP_S for s in spans)
    evidence = f"banner to server start {_range(spans)} s, bound under {BRING_UP_S} s"
    return Verdict("C1", HELD if held else REFUTED, evidence)


def _in_flight(runs: Sequence[Node]) -> Verdict:
    sure = [run.at("in_flight_determinate") for run in runs]
    errored = [s.at("errored").integer() for s in sure]
    others = sum(s.at(k).integer() for s in sure for k in ("completed", "censored"))
    unsure = sum(run.at("in_flight_indeterminate").integer() for run in runs)
    verdict = REFUTED if others else HELD if all(errored) else NO_VERDICT
    evidence = f"determinate {sum(errored)} errored, {others} not errored; indeterminate {unsure}"
    return Verdict("C2 in flight", verdict, evidence)


def _hung(runs: Sequence[Node]) -> Verdict:
    outcomes = [run.at("outage_outcomes") for run in runs]
    censored = sum(o.at("censored").integer() for o in outcomes)
    total = sum(o.at("total").integer() for o in outcomes)
    verdict = REFUTED if censored else HELD if total else NO_VERDICT
    return Verdict("C2 outage", verdict, f"{censored} of {total} sent in the outage censored")


def _compile_cache(runs: Sequence[Node]) -> Verdict:
    figures = [_printed(run) for run in runs]
    compiled = [f.get("init_engine_compilation_s") for f in figures]
    init = [f.get("init_engine_s") for f in figures]
    capture = [f.get("graph_capture_s") for f in figures]
    held = all(v is not None and v < COMPILE_S for v in compiled)
    held &= all(v is not None and v < INIT_S for v in init)
    held &= all(v is not None and v >= CAPTURE_S for v in capture)
    evidence = f"compilation {_range(compiled)} s, init engine {_range(init)} s, "
    evidence += f"graph capture {_range(capture)} s"
    return Verdict("C3", HELD if held else REFUTED, evidence)


def _printed(run: Node) -> dict[str, float]:
    """Every figure the restart's log lines print, parsed from their text."""
    printed: dict[str, float] = {}
    for key, match in run.at("container", "boundaries", "matches").fields().items():
        printed |= log_figures(key, match.at("text").text())
    return printed


def _range(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    absent = len(values) - len(known)
    text = f"{min(known):.2f} to {max(known):.2f}" if known else "never printed"
    return f"{text} ({absent} runs without it)" if known and absent else text
