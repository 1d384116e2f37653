"""The second engine: uvloop, h11, orjson and, for https, TLS; the contract of the native one.

Does: the same schedule, columns and causes, slower; it is the reference that the native engine is
compared with, and the one that speaks TLS.
Never: sends early, retries, decides by what a server does, or has kernel stamps (they stay null).
Plan: one coroutine waits for each due row (sleep, then turns of the loop) and hands it to
`Exchanges`; another keeps the figures of each second.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import uvloop

from percentes_fast.engine.asyncio_answer import Answer, Record, Rules
from percentes_fast.engine.asyncio_exchange import SECOND, TIMER_S, Exchanges, Limits, Tls
from percentes_fast.engine.slabs import STATE_ENDED, STATE_RUNNING, Slab
from percentes_fast.errors import ClientError
from percentes_fast.schema import NULL64, Cause

TICK_S = 0.1
WAKE_BEFORE_NS = 2_000_000  # what a sleeping loop may be late by
LATE_AT_STOP = SECOND // 20
SECOND_NAMES = ("end_ns", "cpu_ns", "idle_poll_ns", "sent", "skew_max_ns", "reads", "polls")


class Engine:
    """One worker's engine over a formatted slab; the arguments are those of `_native.Engine`.

    tls: one a target, None for http.
    """

    rehearses = False  # a loop that is milliseconds late has no use for it

    def __init__(  # noqa: PLR0917 (the order of the native engine)
        self,
        slab: Slab,
        heads: bytes,
        tails: Sequence[bytes],
        targets: Sequence[tuple[str, int]],
        timeouts_ns: Sequence[int],
        plain: Sequence[bool],
        *,
        tls: Sequence[Tls | None] = (),
        idle_reuse_ns: int = 4 * SECOND,
        max_connections: int = 1024,
        parent_pid: int = 0,
        end_by_finish: bool = False,
        replica_header: str = "",
        secrets: Sequence[bytes] = (),
    ) -> None:
        told = tuple(secret for secret in secrets if secret)
        self.slab, self.record = slab, Record(slab, told)
        self._heads, self._tails = memoryview(heads), tails
        self._parent = parent_pid
        self._rules = Rules(tuple(plain), end_by_finish, replica_header.lower().encode())
        self._exchanges = Exchanges(
            self.record,
            self._rules,
            targets,
            list(tls) or [None] * len(targets),
            Limits(timeouts_ns, idle_reuse_ns, max_connections),
            self._now,
        )
        self._epoch = self._next = self._cpu_before = self._reads_before = 0
        self._sent = self._polls = self._idle_poll = 0
        self._skew_max: int | None = None
        self._defect: BaseException | None = None
        names = ("intended_ns", "dispatch_ns")
        self._column = {name: slab.column(name) for name in names} | self.record.column
        try:
            self._loop = uvloop.new_event_loop()
        except OSError as exc:
            raise ClientError(
                f"engine: no memory or no descriptors left (errno {exc.errno})"
            ) from exc
        self._seconds = {name: slab.column(f"second_{name}") for name in SECOND_NAMES}

    # ------------------------------------------------------------ the schedule

    def run(self) -> bool:
        """Runs the schedule to its end; True when it was interrupted."""
        asyncio.set_event_loop(self._loop)
        try:
            return bool(self._loop.run_until_complete(self._main()))
        finally:
            self._loop.close()
            asyncio.set_event_loop(None)

    def __del__(self) -> None:
        if hasattr(self, "_loop"):
            self._loop.close()

    async def _main(self) -> bool:
        self._loop.set_exception_handler(self._note_defect)
        self._exchanges.begin(self._loop, self._heads, self._tails)
        self._epoch = self.slab.word("epoch_ns")
        self._cpu_before = time.thread_time_ns()
        self.slab.set_word("state", STATE_RUNNING)
        beat = asyncio.ensure_future(self._beat())
        rows = self.slab.word("rows")
        while (self._next < rows or self.slab.word("in_flight")) and not self.slab.word("stop"):
            if self._defect is not None:
                raise self._defect
            if self._next < rows:
                await self._wait(self._column["intended_ns"][self._next])
                if (now := self._now()) >= self._column["intended_ns"][self._next]:
                    row = self._take_row()
                    self._note_dispatch(row, now)
                    self._exchanges.start(row, now)
                    await asyncio.sleep(0)  # reads have their turn between two sends
            else:
                await asyncio.sleep(0.001)
        stopped = bool(self._next < rows or self.slab.word("in_flight"))
        if stopped:
            self._interrupt(rows)
        beat.cancel()
        self._exchanges.close_all()
        self._write_second(self._now())
        self.slab.set_word("heartbeat_ns", self._now())
        self.slab.set_word("state", STATE_ENDED)
        return stopped

    def _note_defect(self, _: Any, context: dict[str, Any]) -> None:
        """A callback that failed is a defect of ours: the worker dies, no row waits it out."""
        self._defect = context.get("exception") or ClientError(str(context.get("message")))

    def _now(self) -> int:
        return time.monotonic_ns() - self._epoch

    async def _wait(self, due: int) -> None:
        """Until shortly before `due` asleep, then in turns of the loop; at most a tick."""
        left = due - self._now() - WAKE_BEFORE_NS
        if left > 0:
            await asyncio.sleep(min(left / SECOND, TICK_S))
            return
        before = self._now()
        while before < due:
            reads = self._exchanges.reads
            await asyncio.sleep(0)
            self._polls += 1
            now = self._now()
            if reads == self._exchanges.reads:
                self._idle_poll += now - before
            before = now

    def _take_row(self) -> int:
        row = self._next
        self._next += 1
        self.slab.set_word("next_row", self._next)
        return row

    def _interrupt(self, rows: int) -> None:
        at = self._now()
        self._exchanges.end_all(Cause.STOPPED)
        for row in range(self._next, rows):
            if self._column["intended_ns"][row] > at - LATE_AT_STOP:
                self._column["cause"][row] = Cause.NOT_DUE
        self.slab.set_word("stopped_ns", at)

    def _note_dispatch(self, row: int, now: int) -> None:
        skew = now - self._column["intended_ns"][row]
        self._skew_max = skew if self._skew_max is None else max(skew, self._skew_max)
        self._sent += 1
        self._column["dispatch_ns"][row] = now
        self._column["cause"][row] = Cause.OPEN
        flying = self.record.add("in_flight") + 1
        if flying > self.slab.word("in_flight_max"):
            self.slab.set_word("in_flight_max", flying)

    # ------------------------------------------------------------ own figures

    async def _beat(self) -> None:
        """Once a second: own figures, old idle connections, is the parent still there?"""
        at = SECOND
        while True:
            while (left := at - self._now()) > 0:
                await asyncio.sleep(left / SECOND + TIMER_S)
            at = (self._now() // SECOND + 1) * SECOND
            self._write_second(self._now())
            self.slab.set_word("heartbeat_ns", self._now())
            self._exchanges.retire_old()
            if self._parent and os.getppid() != self._parent:
                self.slab.set_word("stop", 1)

    def _write_second(self, at: int) -> None:
        cpu, line = time.thread_time_ns(), self.slab.word("seconds_used")
        if line >= self.slab.word("seconds_capacity"):
            self.record.add("seconds_lost")
            return
        values = {
            "end_ns": at,
            "cpu_ns": cpu - self._cpu_before,
            "idle_poll_ns": self._idle_poll,
            "sent": self._sent,
            "skew_max_ns": NULL64 if self._skew_max is None else self._skew_max,
            "reads": self._exchanges.reads - self._reads_before,
            "polls": self._polls,
        }
        for name, value in values.items():
            self._seconds[name][line] = value
        self.record.add("seconds_used")
        self._cpu_before, self._skew_max = cpu, None
        self._reads_before = self._exchanges.reads
        self._idle_poll = self._sent = self._polls = 0

    # ------------------------------------------------------------ for tests of the wire

    def answer(self, row: int, pieces: Iterable[bytes], end: str) -> bool:
        """As `_native.Engine.answer`: each piece is a read, then `end` is fin, rst or deadline."""
        self._epoch = self.slab.word("epoch_ns")
        self._note_dispatch(row, self._now())
        answer, then = Answer(self.record, self._rules, row), "open"
        for piece in pieces:
            if then == "open":
                then = answer.take(piece, self._now())
            elif then == "reuse":
                self.record.add("closed_while_idle")
                then = "close"
        if then == "open" and end == "fin":
            answer.closed(self._now())
        elif then == "open":
            rst = end == "rst"
            cause = Cause.RESET if rst else Cause.DEADLINE
            answer.failed(cause, errno.ECONNRESET if rst else 0, self._now())
        return then == "reuse"
