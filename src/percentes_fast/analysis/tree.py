"""The Summary: the one tree that report.json is, its types and its printing.

Never: computes a figure. Plan: frozen dataclasses, published field names where the quantity is
published; `to_json` prints seconds exactly and other floats to 9 significant digits.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from percentes_fast.analysis import client as clients
from percentes_fast.analysis import gates as gating
from percentes_fast.analysis import inflight
from percentes_fast.analysis.outage import Outage
from percentes_fast.analysis.outcomes import Counts
from percentes_fast.analysis.predictions import BoundVerdict, Verdict
from percentes_fast.analysis.servermetrics import ReplicaWindow
from percentes_fast.analysis.stages import Decomposition
from percentes_fast.analysis.windows import GoodputSeries, Mode, Seconds, WindowReport


@dataclass(frozen=True, slots=True)
class IncidenceReport:
    """Aalen-Johansen completion incidence of one window on a grid of times (s after intended)."""

    n: int
    completed: int
    errored: int
    censored: int
    needed_beside_percentiles: bool
    quantiles_s: dict[str, Seconds | None]
    quantile_reasons: dict[str, str]
    time_s: tuple[float, ...]
    at_risk: tuple[int | None, ...]
    survivor: tuple[float | None, ...]
    cif: tuple[float | None, ...]
    lower: tuple[float | None, ...]
    upper: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class DetectorReport:
    """The recovery detector against one baseline, in seconds after the anchor."""

    baseline: float | None
    ttr_s: int | None
    reason: str | None
    cancelled_entries: int | None
    redegradations: int | None


@dataclass(frozen=True, slots=True)
class SensitivityRow:
    """Time to recovery under other settings of the detector."""

    entry: float
    window_s: int
    hold_s: int
    ttr_s: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Recovery against both baselines, by component, and its sensitivity."""

    pre_fault: DetectorReport
    degraded_plateau: DetectorReport
    components: dict[str, DetectorReport]
    deficit_goodput_s: float | None
    deficit_empty_seconds: int | None
    sensitivity: tuple[SensitivityRow, ...]


@dataclass(frozen=True, slots=True)
class KillReport:
    """The fault as it was done: times in seconds after the epoch."""

    kind: str
    planned_s: Seconds
    fire_s: Seconds | None
    fire_lo_s: Seconds | None
    fire_hi_s: Seconds | None
    gone_after_s: Seconds | None
    survivors: int | None
    landed: bool
    error: str | None
    by: str | None
    stopped_s: Seconds | None
    shm_left: tuple[str, ...] | None
    port_closed: bool | None
    gpu_memory_after: tuple[tuple[str, ...], ...] | None
    after_error: str | None


@dataclass(frozen=True, slots=True)
class ClockReport:
    """How the host's clock was compared with the client's.

    samples, dials: how many; round_trip_s: R, the smallest time of a fresh connection; offset_s:
    bounds at the fire that all samples prove (of the host's wall clock minus the run's epoch on the
    client's), None where they contradict each other; step: where, if they do.
    """

    host: str
    reader: str | None
    samples: int
    dials: int
    round_trip_s: Seconds | None
    compat_offset_s: Seconds | None
    compat_drift_s: Seconds | None
    compat_bound_s: Seconds | None
    offset_s: tuple[Seconds, Seconds] | None
    lost: str | None
    burst_lost: bool
    step: str | None


@dataclass(frozen=True, slots=True)
class Summary:
    """report.json: published field names where the quantity is published."""

    schema_version: int
    instrument_version: str
    instrument_commit: str | None
    config_sha256: str
    overrides: tuple[str, ...]
    run_id: str
    valid: bool
    partial: bool
    invalid_reasons: tuple[str, ...]
    notes: tuple[str, ...]
    counts: Counts
    counts_by_kind: dict[str, Counts]
    outage_s: Seconds | None
    outage: Outage | None
    ttr_pre_fault_s: int | None
    in_flight_loss_fraction: float | None
    in_flight_errored_by_class: dict[str, int] | None
    in_flight_indeterminate: int | None
    in_flight_determinate: dict[str, int] | None
    in_flight: tuple[inflight.InFlight, ...]
    outage_outcomes: dict[str, Any] | None
    fire_uncertainty_s: Seconds | None
    integrated_goodput_deficit: float | None
    fault_window_e2e_p95_ms: float | None
    equilibrium_note: str | None
    fault: KillReport | None
    clock: ClockReport | None
    container: dict[str, Any] | None
    container_start_s: Seconds | None
    decomposition: Decomposition | None
    cold_start: tuple[tuple[str, Seconds], ...]
    recovery: RecoveryReport | None
    gates: tuple[gating.Gate, ...]
    client: clients.ClientFigures
    windows: tuple[WindowReport, ...]
    modal_latencies: tuple[Mode, ...]
    incidence: dict[str, IncidenceReport]
    receive_path: dict[str, clients.ReceivePath]
    server_metrics: tuple[ReplicaWindow, ...]
    fingerprints: dict[str, Any] | None
    predictions: tuple[Verdict, ...]
    goodput_by_second: GoodputSeries


@dataclass(frozen=True, slots=True)
class Points:
    """What the figure draws: one entry a load request; latency of completed ones is E2E."""

    intended_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    outcome: NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The Summary and what the figure needs beside it."""

    summary: Summary
    points: Points


def plain(value: Any) -> Any:
    """The tree as JSON types: seconds exact, other floats to 9 significant digits."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Seconds):
        return float(value)
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return value


def exact(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Verdicts whose values are printed as the report they were taken from printed them."""

    def kept(bound: BoundVerdict) -> BoundVerdict:
        values = (Seconds(v) if isinstance(v, float) else v for v in bound.values)
        return dataclasses.replace(bound, values=tuple(values))

    return tuple(
        dataclasses.replace(verdict, bounds=tuple(map(kept, verdict.bounds)))
        for verdict in verdicts
    )


def to_json(summary: object) -> bytes:
    """report.json. Raises ValueError for NaN or infinity: unknown is null here."""
    text = json.dumps(plain(summary), indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"
