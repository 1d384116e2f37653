"""Validity gates: applicable, observed, pass. A run proves itself or says why it does not.

Never: passes a gate that was not observed. Plan: SPEC section 8; a function a gate, a line of
detail with the figures it was decided on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from percentes_fast.analysis.client import ClientFigures, Spread
from percentes_fast.analysis.servermetrics import Waiting
from percentes_fast.analysis.windows import WindowReport
from percentes_fast.config import engine_for
from percentes_fast.errors import REMEDIES

SKEW_P99_S, SKEW_MAX_S = 0.005, 0.050
BUSY_LIMIT = 0.70
STAMPS_AGREE_S = 0.001  # p99 of |kernel - user| send stamp: beyond it, it is not the send's
BASELINE_GOODPUT = 0.99
SHARE_SLACK = 0.1  # of an even share: 45-55 % of two replicas
WAITING_LIMIT = 1.0


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate; `passed` is False where it applies and was not observed."""

    id: str
    name: str
    applicable: bool
    observed: bool
    passed: bool
    detail: str

    @property
    def holds(self) -> bool:
        """Does it leave the run valid?"""
        return self.passed or not self.applicable


def _not_applicable(gate: str, name: str, why: str) -> Gate:
    return Gate(gate, name, applicable=False, observed=False, passed=False, detail=why)


def _skew_faults(what: str, skew: Spread | None) -> list[str]:
    if skew is None:
        return [f"{what} skew not observed"]
    faults = []
    if skew.p99 > SKEW_P99_S:
        faults.append(f"{what} skew p99 {skew.p99 * 1e3:.3f} ms > {SKEW_P99_S * 1e3:g} ms")
    if skew.max > SKEW_MAX_S:
        faults.append(f"{what} skew max {skew.max * 1e3:.3f} ms > {SKEW_MAX_S * 1e3:g} ms")
    return faults


def _worker_faults(client: ClientFigures) -> list[str]:
    faults = []
    for worker in client.workers:
        if not worker.ended:
            faults.append(f"worker {worker.worker} died (exit status {worker.exit_status})")
        if worker.busy_worst is None or worker.busy_worst > BUSY_LIMIT:
            shown = "not observed" if worker.busy_worst is None else f"{worker.busy_worst:.0%}"
            faults.append(f"worker {worker.worker} busy {shown} over 5 s, limit {BUSY_LIMIT:.0%}")
        if worker.lost.get("seconds_lost"):
            faults.append(
                f"worker {worker.worker} lost {worker.lost['seconds_lost']} seconds of its figures"
            )
        if worker.tokens_lost:
            faults.append(f"worker {worker.worker} lost {worker.tokens_lost} token times")
    return faults


def _stamp_faults(client: ClientFigures) -> list[str]:
    apart = client.stamp_disagreement_s
    if apart is None:
        return ["kernel send stamps not observed; set engine.kernel_stamps: false to do without"]
    if apart.p99 > STAMPS_AGREE_S:
        return [f"kernel and user send stamps differ by {apart.p99 * 1e3:.3f} ms at p99"]
    return []


def _remedies(client: ClientFigures) -> str:
    """What to change on this machine, by errno."""
    told = [
        f"{name} {number}: {REMEDIES.get(name, 'mend this machine')}"
        for name, number in client.client_fault_errnos.items()
    ]
    return f" ({', '.join(told)})" if told else ""


def g2(client: ClientFigures, *, stamps: bool) -> Gate:
    """The client was on time, lost nothing, and had CPU to spare."""
    faults = _skew_faults("send", client.send_skew_s) + _worker_faults(client)
    if client.undispatched:
        faults.append(f"{client.undispatched} rows were not dispatched")
    if client.client_fault:
        faults.append(f"{client.client_fault} client faults{_remedies(client)}")
    if stamps:
        faults += _stamp_faults(client)
    skew = client.send_skew_s
    busy = max((worker.busy_worst or 0.0 for worker in client.workers), default=0.0)
    clean = "no send was observed"
    if skew is not None:
        clean = f"skew p99 {skew.p99 * 1e6:.1f} us, max {skew.max * 1e6:.1f} us; busy {busy:.1%}"
    detail = "; ".join(faults) or clean
    return Gate("G2", "client on time", True, skew is not None, not faults, detail)


def g6(baseline: WindowReport | None) -> Gate:
    """The load was right: nearly everything was good before the fault."""
    name = f"baseline goodput >= {BASELINE_GOODPUT}"
    goodput = baseline.goodput if baseline else None
    if goodput is None:
        return Gate("G6", name, True, False, False, "no request lies in the baseline")
    return Gate("G6", name, True, True, goodput >= BASELINE_GOODPUT, f"baseline {goodput:.4f}")


def _has_stamps(config: Mapping[str, Any]) -> bool:
    """Kernel stamps were asked for, and the engine is the one that has them."""
    engine = config["engine"]
    native = engine_for(engine.get("kind", "auto"), config["target"]["url"]) == "native"
    return native and bool(engine["kernel_stamps"])


def notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What a reader must know about how this run measured, in the order of weight."""
    target, found = config["target"], []
    if target.get("tls", {}).get("insecure"):
        found.append(
            "the server's certificate was NOT checked (--insecure): anyone may have answered"
        )
    if not _has_stamps(config):
        found.append("no kernel stamps: send skew and receive times are the client's own")
    if target.get("hosted"):
        found.append("hosted target: ignore_eos is not sent, so answers may end before max_tokens")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Observed:
    """What the gates look at beside the client: baseline requests by replica, the hosts'
    fingerprints, the waiting queues, replicas without a metrics page, how many scrapes of each the
    baseline should have, whether metrics were asked for.
    """

    by_replica: Mapping[str, int]
    fingerprints: Mapping[str, Any] | None
    waiting: Mapping[str, Waiting]
    without_page: frozenset[str]
    expected_scrapes: int
    metrics_asked: bool


def g1(replicas: int, counts: Mapping[str, int], header: str | None) -> Gate:
    """Each replica had its share of the baseline's requests, give or take a tenth of it.

    counts: baseline requests by the replica that a response header named.
    """
    name = (
        "per-replica share 45-55 %" if replicas <= 2 else f"per-replica share 1/{replicas} +- 10 %"
    )
    if replicas < 2:
        why = "one target without replicas: there is no share to look at"
        return _not_applicable("G1", name, why)
    if header is None:
        why = "which replica answered is not known; set target.replica_header"
        return Gate("G1", name, True, False, False, why)
    total = sum(counts.values())
    if total == 0:
        return Gate("G1", name, True, False, False, f"no answer of the baseline had {header}")
    shares = {replica: number / total for replica, number in sorted(counts.items())}
    shown = ", ".join(f"{replica} {part:.1%}" for replica, part in shares.items())
    lo, hi = (1 - SHARE_SLACK) / replicas, (1 + SHARE_SLACK) / replicas
    passed = len(shares) == replicas and all(lo <= part <= hi for part in shares.values())
    return Gate("G1", name, True, True, passed, f"{shown} of {total}")


def g5(fingerprints: Mapping[str, Any] | None, hosted: bool) -> Gate:
    """GPU clocks, power and driver were the same before and after."""
    name = "GPU clocks, power, driver equal"
    if hosted:
        return _not_applicable("G5", name, "a hosted target's GPUs are out of sight")
    if not fingerprints:
        return _not_applicable("G5", name, "without a fault no fingerprint is taken")
    before, after = fingerprints["before"], fingerprints["after"]
    if before.get("gpu_error") or (after or {}).get("gpu_error"):
        return Gate("G5", name, True, False, False, "nvidia-smi is there, but failed")
    if before["gpus"] is None:
        return _not_applicable("G5", name, "the server's host has no nvidia-smi")
    if after is None:
        return Gate("G5", name, True, False, False, "the host was not looked at after the load")
    changed = _changed(before["gpus"], after["gpus"] or [])
    return Gate("G5", name, True, True, not changed, changed or f"{len(before['gpus'])} GPUs equal")


def _changed(before: list[dict[str, str]], after: list[dict[str, str]]) -> str:
    """The first difference between two readings of the GPUs, or nothing."""
    if len(before) != len(after):
        return f"{len(before)} GPUs before, {len(after)} after"
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        for key, value in one.items():
            if other.get(key) != value:
                return f"GPU {number} {key}: {value} before, {other.get(key)} after"
    return ""


def g7(seen: Observed, hosted: bool) -> Gate:
    """The mean waiting queue of each replica over the baseline, where it has the gauge."""
    name = f"mean waiting queue <= {WAITING_LIMIT}"
    waiting, without = seen.waiting, seen.without_page
    if hosted:
        return _not_applicable("G7", name, "a hosted target shows no waiting queue")
    if not waiting:
        why = "server metrics were not asked for (metrics.urls)"
        if not seen.metrics_asked:
            return _not_applicable("G7", name, why)
        return Gate("G7", name, True, False, False, "no scrape lies in the baseline")
    shown, faults, known = [], [], False
    for replica, (mean, scrapes, failed) in waiting.items():
        if replica in without:
            shown.append(f"{replica} has no metrics page")
            continue
        counted = f"{scrapes} scrapes, {failed} failed"
        if mean is None and scrapes > failed:
            shown.append(f"{replica} has no such gauge ({counted})")
        elif scrapes - failed < seen.expected_scrapes - max(1, seen.expected_scrapes // 10):
            faults.append(f"{replica}: too few of {seen.expected_scrapes} answered ({counted})")
        elif mean is None:
            told = "did not answer" if scrapes else "was not asked within the baseline"
            faults.append(f"{replica} {told} ({counted})")
        else:
            known = True
            shown.append(f"{replica} {mean:.3f} ({counted})")
            if mean > WAITING_LIMIT:
                faults.append(f"{replica} {mean:.3f} > {WAITING_LIMIT}")
    if not known and not faults:
        return _not_applicable("G7", name, "; ".join(shown))
    return Gate("G7", name, True, known, known and not faults, "; ".join(faults or shown))


def gates(
    client: ClientFigures,
    baseline: WindowReport | None,
    config: Mapping[str, Any],
    seen: Observed,
) -> tuple[Gate, ...]:
    """All gates of a run."""
    black = "only for black-hole faults, whose clients see no end"
    target, direct = config["target"], config["probe"].get("direct") or ()
    hosted = bool(target.get("hosted"))
    return (
        g1(len(direct), seen.by_replica, target.get("replica_header")),
        g2(client, stamps=_has_stamps(config)),
        _not_applicable("G3", "no terminal signal on victim streams", black),
        _not_applicable("G4", "traffic to the dead endpoint for >= 20 s", black),
        g5(seen.fingerprints, hosted),
        g6(baseline),
        g7(seen, hosted),
    )
