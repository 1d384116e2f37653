"""When each simulated token is due, and the one timer that serves all streams.

Never: sleeps relative to the last token, emits a token before it is due, or lets a late
token move a later one.
Plan: a spread (shape of a random factor with mean 1), the timing of one server drawn request
by request from a seed, and a pacer: a heap of absolute due times behind one loop timer. uvloop
timers have a resolution of 1 ms, so a token leaves up to about 1 ms after it is due.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from dataclasses import dataclass
from random import Random
from typing import Protocol

from percentes_fast.errors import ConfigError

_DEFAULT_WIDTH = {"constant": 0.0, "normal": 0.02, "lognormal": 0.05, "exponential": 1.0}
_FIXED_WIDTH = frozenset({"constant", "exponential"})


@dataclass(frozen=True, slots=True)
class Spread:
    """The shape of a random factor whose mean is 1.

    `width` is the SD for `normal` (cut at 0), sigma of the logarithm for `lognormal`;
    `constant` and `exponential` have none of their own.
    """

    kind: str
    width: float

    @classmethod
    def parse(cls, text: str) -> Spread:
        """Read `constant`, `normal[:SD]`, `lognormal[:SIGMA]` or `exponential`.

        Raises ConfigError for another name, or a width that is not a number from 0 to 2.
        """
        kind, colon, number = text.partition(":")
        if kind not in _DEFAULT_WIDTH:
            raise ConfigError(f"spread {text!r}: use one of {', '.join(_DEFAULT_WIDTH)}")
        if not colon:
            return cls(kind, _DEFAULT_WIDTH[kind])
        if kind in _FIXED_WIDTH:
            raise ConfigError(f"spread {text!r}: {kind} takes no width, write {kind!r}")
        return cls(kind, _width(text, number))

    def factor(self, rng: Random) -> float:
        """One draw, at least 0."""
        if self.kind == "constant":
            return 1.0
        if self.kind == "normal":
            return max(0.0, rng.gauss(1.0, self.width))
        if self.kind == "lognormal":
            return rng.lognormvariate(-self.width * self.width / 2, self.width)
        return rng.expovariate(1.0)


def _width(text: str, number: str) -> float:
    try:
        width = float(number)
    except ValueError:
        width = math.nan
    if not 0.0 <= width <= 2.0:
        raise ConfigError(f"spread {text!r}: the width must be a number from 0 to 2")
    return width


@dataclass(frozen=True, slots=True)
class Timing:
    """The server's latencies: means in ns, their spreads, and the seed of all draws."""

    ttft_ns: int
    itl_ns: int
    ttft: Spread
    itl: Spread
    seed: int

    def rng(self, request_number: int) -> Random:
        """The generator of one request: depends on the seed and its arrival number alone."""
        return Random(f"{self.seed}/{request_number}")

    def first_ns(self, rng: Random) -> int:
        """Time from the request to its first token, ns."""
        return round(self.ttft_ns * self.ttft.factor(rng))

    def gap_ns(self, rng: Random) -> int:
        """Time from one token's due time to the next one's, ns."""
        return round(self.itl_ns * self.itl.factor(rng))


class Paced(Protocol):
    """Something that has a next due time."""

    def step(self) -> int | None:
        """Emit what is due and return the next due time (monotonic ns), None when over."""


class Pacer:
    """Calls `step` of every registered job at its due times, late ones at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heap: list[tuple[int, int, Paced]] = []
        self._added = 0
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns = 0

    def add(self, due_ns: int, job: Paced) -> None:
        """Register a job whose first step is due at `due_ns` (monotonic)."""
        self._added += 1
        heapq.heappush(self._heap, (due_ns, self._added, job))
        if self._timer is None or due_ns < self._armed_ns:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ns = self._heap[0][0]
        wait_ms = max(1, -(-(self._armed_ns - time.monotonic_ns()) // 1_000_000))
        self._timer = self._loop.call_later(wait_ms / 1e3, self._tick)

    def _tick(self) -> None:
        self._timer = None
        heap = self._heap
        now_ns = time.monotonic_ns()
        while heap and heap[0][0] <= now_ns:
            _, number, job = heap[0]
            next_ns = job.step()
            if next_ns is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (next_ns, number, job))
        if heap:
            self._arm()
