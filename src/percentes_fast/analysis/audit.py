"""Derives every derivable figure of a published campaign file again and says which differ.

Never: trust a figure because another figure agrees with it, hide one that cannot be derived,
or decide an exit code (the command line does: 0 when none differs, 2 when any does).
Plan: `audit_file` reads the file, rebuilds each run's timeline from the raw clock readings and
collects the checks of the runs, their gates and the campaign. `render` prints one line per
check, grouped by run; figures that share a place and a reason for not being derivable share
a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from percentes_fast.analysis.audit_campaign import (
    Verdict,
    campaign_checks,
    gate_checks,
    verdicts,
)
from percentes_fast.analysis.audit_checks import Check, Figure, run_checks
from percentes_fast.analysis.golden import Node, RunTimeline, is_chained, is_on_time, load, timeline

__all__ = ["Audit", "Check", "Verdict", "audit_file", "render"]

VARIANT = "process_kill"
_GROUP = re.compile(r"(?:campaign\.per_run|validity_gates)\[(\d+)\]")
_WHERE, _VALUE, _TOLERANCE = 60, 21, 9


@dataclass(frozen=True)
class Audit:
    """Everything found about one published file, checks in file order of their run."""

    source: str
    checks: tuple[Check, ...]
    timelines: tuple[RunTimeline, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def derived(self) -> int:
        """Number of figures that were derived again."""
        return sum(check.agrees is not None for check in self.checks)

    @property
    def differing(self) -> int:
        """Number of figures whose derived value is not the published one."""
        return sum(check.agrees is False for check in self.checks)

    @property
    def not_derivable(self) -> int:
        """Number of published figures that the file does not carry the inputs of."""
        return sum(check.agrees is None for check in self.checks)


def audit_file(path: Path) -> Audit:
    """Audit a published campaign file of schema version 1, variant process kill.

    Integers must agree to the nanosecond, floats to 1e-9 of their size, `outage_s` to 1 us.
    Raises `DataError` (one line: what, where as a JSON path, what to do) if the file is not
    JSON, is of another schema, or lacks a key.
    """
    root = load(path)
    campaign = root.at("campaign")
    variant = campaign.at("variant")
    if variant.text() != VARIANT:
        variant.fail(f"no rules for variant {variant.text()!r}, only for {VARIANT!r}")
    runs, gates = campaign.at("per_run").items(), root.at("validity_gates").items()
    if len(runs) != len(gates):
        root.at("validity_gates").fail(f"{len(gates)} entries for {len(runs)} runs")
    timelines = tuple(timeline(run) for run in runs)
    checks = [*_all_runs(runs, gates, timelines), *campaign_checks(campaign)]
    return Audit(str(path), tuple(checks), timelines, verdicts(campaign, timelines))


def _all_runs(
    runs: Sequence[Node], gates: Sequence[Node], timelines: Sequence[RunTimeline]
) -> Iterator[Check]:
    previous: Node | None = None
    for run, gate, found in zip(runs, gates, timelines, strict=True):
        yield from run_checks(
            run, found, previous, chained=is_chained(gate), on_time=is_on_time(gate)
        )
        yield from gate_checks(run, gate)
        previous = run


def render(audit: Audit) -> str:
    """Lay the audit out as a fixed-width table of at most 135 columns, ending in the tally."""
    lines = [f"Audit of {_printable(audit.source)}", ""]
    for group, members in groupby(sorted(audit.checks, key=_order), key=_order):
        title = f"run {group + 1}" if group >= 0 else "campaign"
        lines += [title, _header(), *_rows(list(members)), ""]
    lines += ["registered claims", *(_verdict_row(v) for v in audit.verdicts), ""]
    wrong = [check for check in audit.checks if check.agrees is False]
    lines += [row for check in wrong for row in _difference(check)]
    tally = f"{audit.derived} figures re-derived, {audit.differing} differ, "
    return "\n".join([*lines, f"{tally}{audit.not_derivable} not derivable"])


def _order(check: Check) -> int:
    """Run index of a check, -1 for the campaign's own (`run` numbers stand with their run)."""
    found = _GROUP.match(check.where)
    return int(found[1]) if found else -1


def _header() -> str:
    head = f"  {'figure':<{_WHERE}} {'published':>{_VALUE}} {'derived':>{_VALUE}}"
    return f"{head} {'+/-':>{_TOLERANCE}}  result"


def _rows(checks: Sequence[Check]) -> Iterator[str]:
    yield from (_row(check) for check in checks if check.agrees is not None)
    silent = sorted((c for c in checks if c.agrees is None), key=_silence)
    for (parent, note), members in groupby(silent, key=_silence):
        names = [member.quantity for member in members]
        if parent and len(names) > 1:
            names = [f"{parent}: {len(names)} figures"]
        yield from (f"  {_fit(name, _WHERE)} not derivable: {note}" for name in names)


def _silence(check: Check) -> tuple[str, str]:
    return check.quantity.rpartition(".")[0], check.note


def _row(check: Check) -> str:
    where = _fit(check.quantity, _WHERE)
    values = f"{_shown(check.published):>{_VALUE}} {_shown(check.derived):>{_VALUE}}"
    result = "agrees" if check.agrees else "DIFFERS"
    return f"  {where} {values} {check.tolerance:>{_TOLERANCE}.2g}  {result}"


def _difference(check: Check) -> tuple[str, ...]:
    return (
        f"DIFFERS {_printable(check.where)}: {check.note}",
        f"  published {_printable(_text(check.published))}",
        f"  derived   {_printable(_text(check.derived))}",
    )


def _verdict_row(verdict: Verdict) -> str:
    return f"  {verdict.claim:<13} {verdict.verdict:<11} {verdict.evidence}"


def _text(value: Figure) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _shown(value: Figure) -> str:
    text = f"{value:.15g}" if isinstance(value, float) else _printable(_text(value))
    return text if len(text) <= _VALUE else f"{text[: _VALUE - 1]}…"


def _fit(name: str, width: int) -> str:
    """Pad a name to `width`; a longer one keeps its end, which tells the figure."""
    text = _printable(name)
    return f"{text:<{width}}" if len(text) <= width else f"…{text[1 - width :]}"


def _printable(text: str) -> str:
    """Keep text from a foreign file from moving the terminal's cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)
