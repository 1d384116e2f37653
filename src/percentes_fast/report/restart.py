"""The fault and the restart as text: clocks, container, stages, server metrics, predictions.

Never: computes a figure. Plan: one generator of lines a section; text.py puts them in their places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from percentes_fast.analysis.client import ReceivePath
from percentes_fast.analysis.predictions import Verdict
from percentes_fast.analysis.stages import Decomposition
from percentes_fast.analysis.tree import KillReport, Summary
from percentes_fast.report.words import UNKNOWN, micros, seconds

SHOWN_KEYS = 6


def evidence(fault: KillReport) -> Iterator[str]:
    """What showed that the fault landed."""
    if fault.by is not None:
        yield f"done by {fault.by}"
    if fault.stopped_s is not None:
        yield f"continued {seconds(fault.stopped_s)} after the stop"
    if fault.survivors:
        yield f"{fault.survivors} processes of its group, or its children, outlived it by a second"
    if fault.port_closed is not None:
        state = "closed" if fault.port_closed else "still open"
        yield f"a second later the server's port was {state} on its host"
    if fault.shm_left:
        names = ", ".join(fault.shm_left[:SHOWN_KEYS])
        more = len(fault.shm_left) - SHOWN_KEYS
        yield f"in /dev/shm before and after: {names}{f' and {more} more' if more > 0 else ''}"
    if fault.gpu_memory_after:
        rows = "; ".join(" ".join(row) for row in fault.gpu_memory_after)
        yield f"GPU memory by pid a second later: {rows}"


def clocks(summary: Summary) -> Iterator[str]:
    """How the host's clock was compared."""
    clock = summary.clock
    if clock is None or clock.reader is None:
        return
    yield f"{clock.host}: {clock.samples} samples by {clock.reader}, {clock.dials} fresh dials"
    yield f"R (fastest fresh connection) {micros(clock.round_trip_s)}"
    yield (
        f"compat: offset at arm {seconds(clock.compat_offset_s, 6)}, drift"
        f" {micros(clock.compat_drift_s)}, bound {micros(clock.compat_bound_s)}"
    )
    if clock.offset_s is not None:
        lo, hi = clock.offset_s
        yield f"all samples: offset at the fire {lo:.6f} to {hi:.6f} s ({micros(hi - lo)} wide)"
    if clock.step is not None:
        yield f"a clock stepped {clock.step}"


def container(summary: Summary) -> Iterator[str]:
    """The container before and after."""
    found = summary.container
    if found is None:
        return
    before, after = found["before"], found["after"] or {}
    yield (
        f"{before['image']} ({before['image_digest'] or 'no digest'}), id {before['id'][:12]},"
        f" network {before['network_mode']}, engine {found['engine_version']}"
    )
    for key in ("pid", "started_at", "finished_at", "restart_count", "restart_policy"):
        yield f"{key.replace('_', ' '):15} {before[key]!s:32} -> {after.get(key, UNKNOWN)}"
    parts = summary.decomposition
    if parts is not None and parts.die_to_start_s is not None:
        yield f"die event to start event {seconds(parts.die_to_start_s)} (the engine's own clock)"


def cold_start(found: Sequence[tuple[str, float]]) -> Iterator[str]:
    """Stages of a start without a kill, to compare with."""
    if found:
        yield "a cold start: " + ", ".join(f"{name} {value:.3f}" for name, value in found)


def stages(parts: Decomposition | None) -> Iterator[str]:
    """Where the outage went, and what is not known of it."""
    if parts is None:
        return
    if parts.stages:
        total = sum(stage.s for stage in parts.stages)
        for stage in parts.stages:
            share = stage.s / total if total else 0.0
            bar = "#" * round(40 * share)
            yield f"{stage.name:32} {seconds(stage.s):>12} {share:6.1%} {bar}"
            if stage.note:
                yield f"    {stage.note}"
    elif parts.reason is not None:
        yield f"no stages: {parts.reason}"
    if parts.family is not None:
        yield f"log lines by serverlogs/{parts.family}.yaml"
    if parts.family_note is not None:
        yield f"  {parts.family_note}"
    if parts.unverified:
        yield f"  patterns that no real log has confirmed: {', '.join(parts.unverified)}"
    figures = ", ".join(f"{name} {value:g}" for name, value in sorted(parts.log_figures.items()))
    if figures:
        yield f"printed by the server: {figures}"


def metrics(summary: Summary) -> Iterator[str]:
    """The server's own metrics by window."""
    if not summary.server_metrics:
        return
    yield (
        f"{'replica':10} {'window':16} {'scrapes':>8} {'failed':>6} {'waiting':>8} {'running':>8}"
        f" {'cache':>6} {'TTFT mean':>10}"
    )
    for row in summary.server_metrics:
        yield (
            f"{row.replica:10} {row.window:16} {f'{row.scrapes}/{row.expected}':>8} {row.failed:6}"
            f" {_plain(row.waiting_mean):>8} {_plain(row.running_mean):>8}"
            f" {_share(row.cache_use_max):>6} {_milli(row.ttft_mean_s):>10}"
        )


def receive_path(summary: Summary) -> Iterator[str]:
    """What the client's own path adds, by window, beside the TTFT means of client and server."""
    paths = {name: path for name, path in summary.receive_path.items() if path.canary}
    if not paths:
        return
    yield (
        f"{'':16} {'':>8} {'TTFT':>13}  {'gap':>18} {'event lag':>14} {'TTFT mean':>11}"
        f" {'the server':>11}"
    )
    yield (
        f"{'window':16} {'streams':>8} {'p50':>6} {'max':>6} {'p50':>6} {'p99':>6} {'max':>6}"
        f" {'p99':>7} {'max':>6} {'of load':>11} {'says':>11}"
    )
    for name, path in paths.items():
        yield _path(summary, name, path)


def _path(summary: Summary, name: str, path: ReceivePath) -> str:
    canary = path.canary
    assert canary is not None
    theirs = [row.ttft_mean_s for row in summary.server_metrics if row.window == name]
    known = [value for value in theirs if value is not None]
    ours = path.client_ttft_mean_ms
    figures = (
        (canary.ttft_dev_p50_us, 6),
        (canary.ttft_dev_max_us, 6),
        (canary.itl_dev_p50_us, 6),
        (canary.itl_dev_p99_us, 6),
        (canary.itl_dev_max_us, 6),
        (canary.event_lag_p99_us, 7),
        (canary.event_lag_max_us, 6),
    )
    shown = " ".join(f"{UNKNOWN if v is None else f'{v:.0f}':>{width}}" for v, width in figures)
    return (
        f"{name:16} {canary.streams:8} {shown} {_milli(None if ours is None else ours / 1e3):>11}"
        f" {_milli(known[0] if len(known) == 1 else None):>11}"
    )


def _plain(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _milli(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value * 1e3:.1f} ms"


def predictions(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Each claim that was registered before the run, with its verdict and the evidence."""
    for verdict in verdicts:
        yield f"{verdict.id} {verdict.verdict.upper()}: {verdict.text}"
        for bound in verdict.bounds:
            yield f"    {bound.verdict}: {bound.quantity}: {bound.evidence}"
