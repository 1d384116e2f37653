"""The live line: phase, sent, in flight, completed, errored by class, goodput, send skew.

Never: touches the hot path (it reads the mapped columns), prints where there is no terminal, ends a
run because its terminal went away, or feeds a figure into the report.
Plan: about once a second, over the rows whose time has come; goodput and skew over the last 10 s.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from percentes_fast.config import Config, seconds_ns
from percentes_fast.engine.pool import Pool
from percentes_fast.schema import NULL64, Cause, Kind

PERIOD_S = 1.0
SHARE = 200  # the line costs at most half a percent of a core
RECENT_NS = 10_000_000_000
CLASS_OF = {
    "connect": (Cause.CONNECT,),
    "reset": (Cause.RESET, Cause.NO_RESPONSE),
    "broken": (Cause.BODY_CUT, Cause.BAD_HTTP, Cause.BAD_EVENT, Cause.NO_END),
    "status": (Cause.HTTP_STATUS,),
    "error": (Cause.ERROR_EVENT,),
    "timeout": (Cause.DEADLINE,),
}


class LiveLine:
    """A watcher that keeps one line of a terminal up to date."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._next = 0.0
        self._open = self._gone = False

    def say(self, text: str) -> None:
        """A step of the preparation, on a line of its own."""
        self.close()
        self._print(text + "\n")

    def _print(self, text: str) -> None:
        """To a terminal, while it is there: a run goes on without it."""
        if self._gone:
            return
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._gone = True

    def tick(self, workers: Pool, run_ns: int) -> None:
        """Rewrites the line, about once a second."""
        if self._gone or time.monotonic() < self._next:
            return
        began = time.monotonic()
        width = 120
        line = self.line(workers, run_ns)[: width - 1]
        self._print(f"\r{line:<{width - 1}}")
        cost_s = time.monotonic() - began  # of all rows: it grows with the run
        self._next = began + max(PERIOD_S, SHARE * cost_s)
        self._open = True

    def close(self) -> None:
        """Ends the line."""
        if self._open:
            self._print("\n")
        self._open = False

    def line(self, workers: Pool, run_ns: int) -> str:
        """The line's text from what the workers have written so far."""
        columns = _columns(workers)
        load = columns["kind"] == Kind.LOAD
        cause = columns["cause"][load]
        sent = int((columns["dispatch_ns"][load] != NULL64).sum())
        flying = int((cause == Cause.OPEN).sum())
        served = int((cause == Cause.STREAM_END).sum())
        failed = [
            f"{name} {number}"
            for name, causes in CLASS_OF.items()
            if (number := int(np.isin(cause, causes).sum()))
        ]
        good, skew = self._recent(columns, run_ns)
        return (
            f"{run_ns / 1e9:6.0f}/{self._config.duration_s:.0f} s {self.phase(run_ns):9}"
            f" sent {sent} flying {flying} done {served} {' '.join(failed)}"
            f" good10s {good} skew p99 {skew}"
        )

    def phase(self, run_ns: int) -> str:
        """Name of the phase at a time of the run."""
        phases, fault = self._config.phases, self._config.fault.kind != "none"
        if run_ns < seconds_ns(phases.warmup_s):
            return "warm-up"
        if run_ns < seconds_ns(phases.kill_at_s) or not fault:
            return "baseline" if fault else "load"
        if run_ns < seconds_ns(self._config.duration_s - phases.cooldown_s):
            return "recovery"
        return "cool-down" if run_ns < seconds_ns(self._config.duration_s) else "draining"

    def _recent(self, columns: dict[str, NDArray[Any]], run_ns: int) -> tuple[str, str]:
        """Goodput of rows ended, and p99 send skew of rows sent, in the last 10 s."""
        ended, intended = columns["ended_ns"], columns["intended_ns"]
        fresh = (columns["kind"] == Kind.LOAD) & (ended > run_ns - RECENT_NS)
        slo = self._config.slo
        good = fresh & (columns["cause"] == Cause.STREAM_END)
        good &= columns["first_token_ns"] - intended <= seconds_ns(slo.ttft_s)
        good &= ended - intended <= seconds_ns(slo.e2e_s)
        sent = columns["dispatch_ns"] > run_ns - RECENT_NS
        skews = (columns["dispatch_ns"] - intended)[sent]
        skew = f"{np.percentile(skews, 99) / 1e3:.0f} us" if len(skews) else "-"
        return f"{good.sum() / fresh.sum():.0%}" if fresh.any() else "-", skew


def _columns(workers: Pool) -> dict[str, NDArray[Any]]:
    names = ("kind", "cause", "dispatch_ns", "ended_ns", "intended_ns", "first_token_ns")
    return {
        name: np.concatenate([np.asarray(slab.column(name)) for slab in workers.slabs])
        for name in names
    }
