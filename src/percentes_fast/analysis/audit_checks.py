"""One comparison of a published figure with the same figure derived again, and the run's rules.

Never: a check that derives a figure from itself, or a figure that cannot be derived counted
as agreeing.
Plan: `exact`, `close` and `underivable` make `Check`s from a place in the file and a derived
value. `run_checks` applies the rules of one element of `campaign.per_run`: the kill and its
clocks, segments, log lines, in-flight and outage counts, the receive path. Every `where` is
the JSON path of the figure it judges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from percentes_fast.analysis.golden import (
    CHAIN,
    NS_PER_S,
    Node,
    RunTimeline,
    line_stamp_ns,
    log_figures,
    segment,
)

Figure = int | float | str | bool | None
RELATIVE = 1e-9
MONOTONIC_S = 1e-6  # outage_s was printed from a monotonic clock, the times from a wall clock
MONOTONIC_NS = 1_000

NO_REQUESTS = "needs the request records, not in this file"
NO_CANARY = "needs the canary streams, not in this file"
BETWEEN = f"another attempt lies before this run (gate {CHAIN})"
_PREFIX = re.compile(
    r"(?:campaign\.per_run\[\d+\]|validity_gates\[\d+\]|campaign)\."
    r"(?:container\.boundaries\.)?"
)
_SEGMENTS = {
    "container_start": ("kill", "container_start"),
    "log_bringup": ("banner", "server_start"),
    "engine_init": ("kill", "engine_init"),
    "weight_load": ("model_load_start", "weights_loaded"),
    "torch_compile": ("model_loaded", "torch_compile"),
    "profile_kv_capture": ("torch_compile", "graph_capture"),
    "engine_ready": ("kill", "engine_ready"),
    "server_ready": ("kill", "startup_complete"),
}
_MONOTONIC_SEGMENTS = ("replica_ready", "goodput_restored")
# The published segments that tile the outage: each piece as (segment, end) to (segment, end).
_TILES = (
    (("container_start", "start_at"), ("container_start", "end_at")),
    (("container_start", "end_at"), ("log_bringup", "start_at")),
    (("log_bringup", "start_at"), ("engine_init", "end_at")),
    (("engine_init", "end_at"), ("torch_compile", "start_at")),
    (("torch_compile", "start_at"), ("torch_compile", "end_at")),
    (("profile_kv_capture", "start_at"), ("profile_kv_capture", "end_at")),
    (("profile_kv_capture", "end_at"), ("log_bringup", "end_at")),
    (("log_bringup", "end_at"), ("replica_ready", "end_at")),
)
FROM_PLAN = "counted from the plan, which the kill came after (gate late)"
_CANARY_SUMS = ("streams", "completed")
_CANARY_MAXIMA = ("ttft_dev_max_us", "itl_dev_max_us", "event_lag_max_us")
_CANARY_SETTINGS = ("ttft_ms", "itl_ms", "tokens")


@dataclass(frozen=True)
class Check:
    """A published figure beside the derived one.

    `where` is its JSON path, `quantity` the same place by name, `tolerance` is absolute, in
    the figure's own unit (times are ns since the Unix epoch). `agrees` is None where the
    figure cannot be derived from the file; `note` then says why.
    """

    where: str
    quantity: str
    published: Figure
    derived: Figure
    tolerance: float
    agrees: bool | None
    note: str = ""


def exact(node: Node, published: Figure, derived: Figure, note: str) -> Check:
    """Compare two values that must be the same, type included where one is a boolean or text."""
    same_type = isinstance(published, bool | str) == isinstance(derived, bool | str)
    agrees = same_type and published == derived
    return Check(node.path, _quantity(node), published, derived, 0.0, agrees, note)


def close(
    node: Node, derived: float | None, note: str = "", tolerance: float | None = None
) -> Check:
    """Compare a published number, 1e-9 of its size unless an absolute `tolerance` is given.

    Null on both sides agrees; null in the file alone differs; null on ours alone is not
    derivable.
    """
    published = None if node.value is None else node.number()
    if derived is None:
        reason = note or "its inputs did not happen in this run"
        agrees = True if published is None else None
        return Check(node.path, _quantity(node), published, None, 0.0, agrees, reason)
    allowed = RELATIVE * abs(derived) if tolerance is None else tolerance
    agrees = published is not None and abs(published - derived) <= allowed
    return Check(node.path, _quantity(node), published, derived, allowed, agrees, note)


def underivable(node: Node, reason: str) -> Check:
    """List a figure that this file cannot prove, with the reason."""
    value = node.value if isinstance(node.value, int | float | str) else None
    return Check(node.path, _quantity(node), value, None, 0.0, None, reason)


def _quantity(node: Node) -> str:
    """Name a place without the run or campaign prefix that every neighbour shares."""
    return _PREFIX.sub("", node.label)


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS_PER_S


def run_checks(
    run: Node, found: RunTimeline, previous: Node | None, *, chained: bool, on_time: bool
) -> Iterator[Check]:
    """Judge every figure of one run; `previous` is the run before it, None for the first.

    `chained`: nothing that may have restarted the container lies between the two; `on_time`: the
    kill came at its plan.
    """
    yield from _clock_checks(run, found)
    yield from _container_checks(run)
    if previous is not None:
        yield from _chain_checks(run, previous, chained=chained)
    yield from _segment_checks(run, found)
    yield from _log_checks(run)
    yield _recovery_check(run, on_time=on_time)
    yield from _in_flight_checks(run)
    yield from _outage_checks(run)
    yield from _receive_checks(run, on_time=on_time)
    yield underivable(run.at("fault_window_e2e_p95_ms"), NO_REQUESTS)
    yield underivable(run.at("integrated_goodput_deficit"), NO_REQUESTS)
    yield underivable(run.at("survivor_cohort_absent"), NO_REQUESTS)


def _clock_checks(run: Node, found: RunTimeline) -> Iterator[Check]:
    box = run.at("container")
    note = "half interval + offset drift + larger bound"
    uncertainty = box.at("fire_uncertainty_ns")
    yield exact(uncertainty, uncertainty.integer(), found.fire_uncertainty_ns, note)
    zone = box.at("indeterminate_zone_ns")
    zone_note = "fire uncertainty + larger bound"
    yield exact(zone, zone.integer(), found.indeterminate_zone_ns, zone_note)
    yield close(run.at("fire_uncertainty_s"), _seconds(found.fire_uncertainty_ns), note)
    yield close(run.at("outage_s"), _seconds(found.outage_ns), "replica-ready - fire", MONOTONIC_S)
    start = _seconds(found.container_start_ns)
    yield close(run.at("container_start_s"), start, "container start - fire")
    yield close(box.at("die_to_start_s"), _seconds(found.die_to_start_ns), "runtime events")


def _container_checks(run: Node) -> Iterator[Check]:
    before, after = run.at("container", "before"), run.at("container", "after")
    pid, restarts = run.at("container", "kill", "pid"), after.at("restart_count")
    yield exact(pid, pid.integer(), before.at("pid").integer(), "the container's process")
    expected = before.at("restart_count").integer() + 1
    yield exact(restarts, restarts.integer(), expected, "one restart a run")


def _chain_checks(run: Node, previous: Node, *, chained: bool) -> Iterator[Check]:
    left = previous.at("container", "after")
    for key in ("pid", "restart_count"):
        node = run.at("container", "before", key)
        if chained:
            yield exact(node, node.integer(), left.at(key).integer(), "as the last run left it")
        else:
            yield underivable(node, BETWEEN)


def _segment_checks(run: Node, found: RunTimeline) -> Iterator[Check]:
    for name, (start, end) in _SEGMENTS.items():
        node = segment(run, name)
        if node is None:
            run.at("decomposition", "segments").fail(f"no segment named {name!r}")
        moments = (("start_at", found.moment_ns(start)), ("end_at", found.moment_ns(end)))
        yield from _bounds(node, moments)
    for name in _MONOTONIC_SEGMENTS:
        node = segment(run, name)
        if node is not None and node.at("measured").flag():
            published, note = node.at("start_at"), "the fire, from a monotonic clock"
            gap = abs(published.time_ns() - found.fire_ns)
            pair = (published.time_ns(), found.fire_ns)
            agrees = gap <= MONOTONIC_NS
            quantity = _quantity(published)
            yield Check(published.path, quantity, *pair, MONOTONIC_NS, agrees, note)
    yield from _tiling(run, found)


def _bounds(node: Node, moments: tuple[tuple[str, int | None], ...]) -> Iterator[Check]:
    known = all(ns is not None for _, ns in moments)
    measured = node.at("measured")
    yield exact(measured, measured.flag(), known, "both boundaries are in the file")
    if not measured.flag():
        return
    for key, ns in moments:
        place = node.at(key)
        if ns is None:
            yield underivable(place, "its boundary is not in the file")
        else:
            yield exact(place, place.time_ns(), ns, f"{node.at('name').text()} boundary")


def _tiling(run: Node, found: RunTimeline) -> Iterator[Check]:
    """The published segments laid end to end against the outage, in whole ns."""
    parts = [(segment(run, a), ak, segment(run, b), bk) for (a, ak), (b, bk) in _TILES]
    total = 0
    for first, first_key, last, last_key in parts:
        if first is None or last is None or not (first.has(first_key) and last.has(last_key)):
            return
        total += last.at(last_key).time_ns() - first.at(first_key).time_ns()
    note = "sum of the published stages, ns = replica-ready - fire"
    yield exact(run.at("decomposition", "segments"), total, found.outage_ns, note)


def _log_checks(run: Node) -> Iterator[Check]:
    parsed: dict[str, float] = {}
    for key, match in run.at("container", "boundaries", "matches").fields().items():
        stamp, at = line_stamp_ns(match), match.at("at")
        if stamp is None:
            yield underivable(at, "the line's text carries no time stamp")
        else:
            yield exact(at, at.time_ns(), stamp, "stamp at the head of the line")
        figures = log_figures(key, match.at("text").text())
        if match.has("figures") or figures:
            yield from _figures(match.at("figures"), figures)
        parsed |= figures
    yield from _figures(run.at("decomposition", "log_figures"), parsed)


def _figures(published: Node, parsed: dict[str, float]) -> Iterator[Check]:
    fields = published.fields()
    for name, node in fields.items():
        note = "in the line's text" if name in parsed else "no known wording in the line's text"
        yield close(node, parsed.get(name), note)
    for name in parsed.keys() - fields.keys():
        missing = replace(
            published, path=f"{published.path}.{name}", label=f"{published.label}.{name}"
        )
        yield exact(missing, None, parsed[name], "in the text, not published")


def _recovery_check(run: Node, *, on_time: bool) -> Check:
    """Time to recovery: whole seconds from an anchor no later than the kill order.

    The detector's windows start a whole number of seconds after the anchor (SPEC section 5),
    and the anchor is the earlier of the planned and the actual fire, so it lies in the second
    that ends at the order, of a kill that was ordered on time. That leaves one integer.
    """
    restored = segment(run, "goodput_restored")
    if restored is None or not restored.at("measured").flag():
        return close(run.at("ttr_pre_fault_s"), None, "goodput was not restored")
    if not on_time:
        return underivable(run.at("ttr_pre_fault_s"), FROM_PLAN)
    ordered = run.at("container", "kill", "sent_at").time_ns()
    seconds = -((ordered - restored.at("end_at").time_ns()) // NS_PER_S)
    return close(run.at("ttr_pre_fault_s"), seconds, "whole seconds before restored goodput")


def _in_flight_checks(run: Node) -> Iterator[Check]:
    classes = run.at("in_flight_errored_by_class")
    unsure, sure = run.at("in_flight_indeterminate"), run.at("in_flight_determinate")
    errored = sum(n.integer() for n in classes.fields().values())
    low = sure.at("errored").integer()
    high = low + unsure.integer()
    note = "sum of the classes: determinate errored, up to all indeterminate on top"
    within = min(max(errored, low), high)
    yield exact(classes, errored, within, note)
    parts = sum(sure.at(k).integer() for k in ("completed", "errored", "censored"))
    total = sure.at("total")
    yield exact(total, total.integer(), parts, "completed + errored + censored")
    everyone = parts + unsure.integer()
    loss = errored / everyone if everyone else None
    yield close(run.at("in_flight_loss_fraction"), loss, "errored / all in flight")
    rest = [unsure, *classes.fields().values()]
    rest += [sure.at(k) for k in ("completed", "errored", "censored")]
    yield from (underivable(node, NO_REQUESTS) for node in rest)


def _outage_checks(run: Node) -> Iterator[Check]:
    out = run.at("outage_outcomes")
    classes = out.at("errored_by_class").fields()
    errored, total = out.at("errored"), out.at("total")
    by_class = sum(n.integer() for n in classes.values())
    yield exact(errored, errored.integer(), by_class, "sum of the classes")
    whole = out.at("completed").integer() + by_class + out.at("censored").integer()
    yield exact(total, total.integer(), whole, "completed + errored + censored")
    rest = [out.at("completed"), out.at("censored"), *classes.values()]
    yield from (underivable(node, NO_REQUESTS) for node in rest)


def _receive_checks(run: Node, *, on_time: bool) -> Iterator[Check]:
    path = run.at("receive_path")
    yield from _pooled(path.at("fault"), path.at("fault_degraded"), path.at("fault_recovered"))
    answered = run.at("outage_outcomes", "completed").integer()
    count = path.at("outage", "client_ttft_count")
    if on_time:
        yield exact(count, count.integer(), answered, "completed requests of the outage")
    else:
        yield underivable(count, FROM_PLAN)
    for name, window in path.fields().items():
        if name == "fault":
            continue
        if name != "outage":
            yield underivable(window.at("client_ttft_count"), NO_REQUESTS)
        mean = window.at("client_ttft_mean_ms")
        if window.at("client_ttft_count").integer() == 0:
            yield close(mean, 0.0, "no sample: published as 0")
        else:
            yield underivable(mean, NO_REQUESTS)
        for key, node in window.at("canary").fields().items():
            if key not in _CANARY_SETTINGS:
                yield underivable(node, NO_CANARY)


def _pooled(whole: Node, first: Node, second: Node) -> Iterator[Check]:
    """The fault window against its two halves: sums, maxima and the pooled mean."""
    note = "fault_degraded + fault_recovered"
    counts = [w.at("client_ttft_count").integer() for w in (first, second)]
    count = whole.at("client_ttft_count")
    yield exact(count, count.integer(), sum(counts), note)
    means = [w.at("client_ttft_mean_ms").number() for w in (first, second)]
    total = sum(c * m for c, m in zip(counts, means, strict=True))
    pooled = total / sum(counts) if sum(counts) else 0.0
    yield close(whole.at("client_ttft_mean_ms"), pooled, f"pooled over {note}")
    for key, node in whole.at("canary").fields().items():
        parts = [w.at("canary", key).number() for w in (first, second)]
        if key in _CANARY_SUMS:
            yield exact(node, node.number(), sum(parts), note)
        elif key in _CANARY_MAXIMA:
            yield exact(node, node.number(), max(parts), f"larger of {note}")
        elif key not in _CANARY_SETTINGS:
            yield underivable(node, NO_CANARY)
