"""A campaign's directory -> its report: every run's row, endpoints with statistics, dropped runs.

Never: reads a run's printed report (each run is judged again from its facts), or lets an invalid
run into a statistic.
Plan: `analyze` judges the runs one after the other and keeps a row of each; endpoints are the rows'
values through stats.summarise; predictions and headline see the tree as it is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from percentes_fast.analysis import predictions, stages, stats
from percentes_fast.analysis.summary import analyze as analyze_run
from percentes_fast.analysis.tree import Summary, exact, plain
from percentes_fast.analysis.windows import Seconds
from percentes_fast.errors import DataError
from percentes_fast.rundir import read_campaign, read_cold_start, run_path
from percentes_fast.schema import SCHEMA_VERSION

SEGMENT_ENDS = {name: (start, end) for name, _, start, end in stages.SEGMENTS}
ONE_REPLICA = "one replica: a survivor quantity"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in the campaign's tables; the run's own report says the rest."""

    run: int
    directory: str
    run_id: str
    seed: int
    valid: bool
    invalid_reasons: tuple[str, ...]
    outage_s: Seconds | None
    outage_interval_s: tuple[Seconds, Seconds | None] | None
    container_start_s: Seconds | None
    ttr_pre_fault_s: int | None
    ttr_equilibrium_s: int | None
    fire_uncertainty_s: Seconds | None
    tight_width_s: Seconds | None
    in_flight: dict[str, dict[str, int]]  # rule -> counts
    in_flight_loss_fraction: float | None
    outage_outcomes: dict[str, Any] | None
    integrated_goodput_deficit: float | None
    fault_window_e2e_p95_ms: float | None
    baseline_goodput: float | None
    stages: dict[str, Seconds]
    log_figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One quantity over the valid runs; missing: runs without a value, by name, and why."""

    name: str
    endpoint: str  # primary, secondary, exploratory, not_applicable
    summary: stats.RunStats
    heavy_tailed: bool
    headline: str
    missing: dict[str, str]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A run that is not among the rows, or not in the statistics, and why."""

    run: int
    reason: str
    directory: str | None


@dataclass(frozen=True, slots=True)
class CampaignSummary:
    """report.json of a campaign."""

    schema_version: int
    instrument_version: str
    instrument_commit: str | None
    name: str
    config_sha256: str
    claims_sha256: str
    overrides: tuple[str, ...]
    caveat: str
    planned_runs: int
    valid_runs: int
    invalid_runs: int
    valid: bool
    reasons: tuple[str, ...]
    headline: predictions.Headline | None
    predictions: tuple[predictions.Verdict, ...]
    endpoints: tuple[Endpoint, ...]
    stages: tuple[Endpoint, ...]
    runs: tuple[RunRow, ...]
    dropped: tuple[Dropped, ...]
    totals: dict[str, Any]
    median_run: RunRow | None
    cold_start: tuple[tuple[str, Seconds], ...]


@dataclass(frozen=True, slots=True)
class CampaignAnalysis:
    """The report, and every run's own behind it."""

    summary: CampaignSummary
    runs: tuple[tuple[RunRow, Summary], ...]


def analyze(path: Path) -> CampaignAnalysis:
    """Judges a campaign's directory. Raises DataError where it is none, or holds no ended run."""
    told = read_campaign(path)
    found: list[tuple[RunRow, Summary]] = []
    try:
        planned = int(told["config"]["campaign"]["runs"])
        dropped = [Dropped(d["run"], d["reason"], d["directory"]) for d in told["dropped"]]
    except (KeyError, TypeError) as exc:
        raise DataError(f"{path}: campaign.json lacks {exc}; the file is damaged") from exc
    for number in range(1, planned + 1):
        try:
            summary = analyze_run(run_path(path, number)).summary
        except DataError as exc:
            if not any(d.run == number and d.directory is None for d in dropped):
                why = str(exc).removeprefix(f"{run_path(path, number)}").lstrip("/: ")
                dropped.append(Dropped(number, f"not done: {why}", None))
            continue
        found.append((row(number, int(told["config"]["seed"]) + number, summary), summary))
    if not found:
        raise DataError(f"{path}: none of its {planned} runs has ended; go on with the campaign")
    cold = stages.cold_start(read_cold_start(path))
    return CampaignAnalysis(_summary(told, found, dropped, cold), tuple(found))


def row(number: int, seed: int, summary: Summary) -> RunRow:
    """A run's row in the campaign's tables."""
    parts, recovery = summary.decomposition, summary.recovery
    baseline = next((w for w in summary.windows if w.name == "baseline"), None)
    tight = next((t for t in summary.in_flight if t.rule == "tight"), None)
    width = None
    if tight is not None and tight.lo_s is not None and tight.hi_s is not None:
        width = Seconds(tight.hi_s - tight.lo_s)
    return RunRow(
        run=number,
        directory=run_path(Path(), number).name,
        run_id=summary.run_id,
        seed=seed,
        valid=summary.valid,
        invalid_reasons=summary.invalid_reasons,
        outage_s=summary.outage_s,
        outage_interval_s=summary.outage.interval_s if summary.outage else None,
        container_start_s=summary.container_start_s,
        ttr_pre_fault_s=summary.ttr_pre_fault_s,
        ttr_equilibrium_s=recovery.degraded_plateau.ttr_s if recovery else None,
        fire_uncertainty_s=summary.fire_uncertainty_s,
        tight_width_s=width,
        in_flight={table.rule: _counts(table) for table in summary.in_flight if table.applicable},
        in_flight_loss_fraction=summary.in_flight_loss_fraction,
        outage_outcomes=summary.outage_outcomes,
        integrated_goodput_deficit=summary.integrated_goodput_deficit,
        fault_window_e2e_p95_ms=summary.fault_window_e2e_p95_ms,
        baseline_goodput=baseline.goodput if baseline else None,
        stages={stage.name: stage.s for stage in parts.stages} if parts else {},
        log_figures=parts.log_figures if parts else {},
    )


def _counts(table: Any) -> dict[str, int]:
    return {
        "total": table.total,
        "determinate": table.determinate.scheduled,
        "indeterminate": table.indeterminate.scheduled,
        "errored": sum(table.errored_by_class.values()),
        "determinate_not_errored": table.determinate.scheduled - table.determinate.errored,
    }


# ---------------------------------------------------------------- endpoints


def _endpoint(
    name: str,
    kind: str,
    rows: Iterable[RunRow],
    value: Callable[[RunRow], float | None],
    *,
    heavy: bool,
    why: str = "the run has no such value",
) -> Endpoint:
    """One endpoint over the valid rows."""
    values, missing = [], {}
    for row in rows:
        found = value(row)
        if found is None:
            missing[row.directory] = why
        else:
            values.append(found)
    summary = stats.summarise(values)
    shown = stats.headline(summary, heavy_tailed=heavy)
    kept = replace(summary, values=tuple(map(Seconds, values)))  # printed verbatim
    return Endpoint(name, kind, kept, heavy, shown, missing)


def endpoints(rows: Sequence[RunRow], replicas: int) -> tuple[Endpoint, ...]:
    """The published endpoints over valid rows, those of several replicas included."""
    several = "secondary" if replicas > 1 else "not_applicable"
    plateau: Callable[[RunRow], float | None] = lambda row: row.ttr_equilibrium_s  # noqa: E731
    return (
        _endpoint("outage_s", "primary", rows, lambda row: row.outage_s, heavy=True),
        _endpoint(
            "container_start_s", "secondary", rows, lambda row: row.container_start_s, heavy=True
        ),
        _endpoint(
            "ttr_equilibrium_s",
            several,
            rows if replicas > 1 else (),
            plateau,
            heavy=True,
            why=ONE_REPLICA,
        ),
        _endpoint(
            "ttr_pre_fault_s", "secondary", rows, lambda row: row.ttr_pre_fault_s, heavy=True
        ),
        _endpoint(
            "in_flight_loss_fraction",
            "secondary",
            rows,
            lambda row: row.in_flight_loss_fraction,
            heavy=False,
        ),
        _endpoint(
            "integrated_goodput_deficit",
            "exploratory",
            rows,
            lambda row: row.integrated_goodput_deficit,
            heavy=False,
        ),
    )


def _stage_endpoints(rows: Sequence[RunRow]) -> tuple[Endpoint, ...]:
    names = list(dict.fromkeys(name for row in rows for name in row.stages))

    def value(name: str) -> Callable[[RunRow], float | None]:
        return lambda row: row.stages.get(name)

    return tuple(_endpoint(name, "secondary", rows, value(name), heavy=True) for name in names)


# ---------------------------------------------------------------- the whole


def _summary(
    told: Mapping[str, Any],
    found: Sequence[tuple[RunRow, Summary]],
    dropped: Sequence[Dropped],
    cold: tuple[tuple[str, Seconds], ...],
) -> CampaignSummary:
    rows = tuple(row for row, _ in found)
    valid = tuple(row for row in rows if row.valid)
    config = told["config"]
    planned = int(config["campaign"]["runs"])
    invalid = [
        Dropped(r.run, "; ".join(r.invalid_reasons), r.directory) for r in rows if not r.valid
    ]
    reasons = [f"run {each.run}: {each.reason}" for each in (*dropped, *invalid)]
    reasons += _across(found)
    made = CampaignSummary(
        schema_version=SCHEMA_VERSION,
        instrument_version=told["instrument_version"],
        instrument_commit=told["instrument_commit"],
        name=config["campaign"]["name"],
        config_sha256=told["config_sha256"],
        claims_sha256=told["claims_sha256"],
        overrides=tuple(told["overrides"]),
        caveat=config["campaign"]["caveat"],
        planned_runs=planned,
        valid_runs=len(valid),
        invalid_runs=len(rows) - len(valid),
        valid=len(valid) == planned and not _across(found),
        reasons=tuple(reasons),
        headline=None,
        predictions=(),
        endpoints=endpoints(valid, len(config["probe"]["direct"])),
        stages=_stage_endpoints(valid),
        runs=rows,
        dropped=(*dropped, *invalid),
        totals=_totals(valid),
        median_run=_median_run(valid),
        cold_start=cold,
    )
    return _claimed(made, [(row.directory, one) for row, one in found if row.valid], config)


def _across(found: Sequence[tuple[RunRow, Summary]]) -> list[str]:
    """G5 over the runs: the GPUs of each as of the first."""
    prints = [(row.run, s.fingerprints["before"]["gpus"]) for row, s in found if s.fingerprints]
    return [
        f"G5: GPU clocks, power or driver of run {run} differ from run {prints[0][0]}"
        for run, gpus in prints[1:]
        if gpus != prints[0][1]
    ]


def _totals(rows: Sequence[RunRow]) -> dict[str, Any]:
    """Sums over the valid runs: outcomes of the outage, requests in flight by rule."""
    outcomes: dict[str, int] = {}
    classes: dict[str, int] = {}
    caught: dict[str, dict[str, int]] = {}
    for row in rows:
        for key, value in (row.outage_outcomes or {}).items():
            if isinstance(value, int):
                outcomes[key] = outcomes.get(key, 0) + value
        for key, value in ((row.outage_outcomes or {}).get("errored_by_class") or {}).items():
            classes[key] = classes.get(key, 0) + value
        for rule, counts in row.in_flight.items():
            sums = caught.setdefault(rule, {})
            for key, value in counts.items():
                sums[key] = sums.get(key, 0) + value
    lost = caught.get("compat", {})
    share = lost["errored"] / lost["total"] if lost.get("total") else None
    total = outcomes.get("total", 0)
    return {
        "outage_outcomes": outcomes | {"errored_by_class": classes},
        "in_flight": caught,
        "in_flight_loss_fraction": share,
        "outage_censored_fraction": outcomes.get("censored", 0) / total if total else None,
    }


def _median_run(rows: Sequence[RunRow]) -> RunRow | None:
    """The run with the median outage (of an even number, the lower of the two)."""
    known = sorted((row for row in rows if row.outage_s is not None), key=_outage)
    return known[(len(known) - 1) // 2] if known else None


def _outage(row: RunRow) -> float:
    return float(row.outage_s or 0.0)


def _claimed(
    made: CampaignSummary, runs: Sequence[tuple[str, Summary]], config: Mapping[str, Any]
) -> CampaignSummary:
    claims, template = config.get("predictions") or (), config.get("headline")
    tree = plain(made)
    trees = [(name, plain(summary)) for name, summary in runs]
    return replace(
        made,
        predictions=exact(predictions.verdicts(claims, trees, tree)) if claims else (),
        headline=None if template is None else predictions.headline(template, tree),
    )
