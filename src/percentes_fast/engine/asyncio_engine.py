"""The second engine: uvloop, h11, orjson and, for https, TLS; the contract of the native one.

Does: the same schedule, columns and causes, slower; it is the reference that the native engine is
compared with, and the one that speaks TLS.
Never: sends early, retries, decides by what a server does, or has kernel stamps (they stay null).
Plan: one coroutine waits for each due row (sleep, then turns of the loop); a `Connection` is a
non-blocking socket that the loop watches, TLS is an SSLObject between two memory buffers, so both
kinds take the same path; `Answer` judges the bytes.
"""

from __future__ import annotations

import asyncio
import errno as errors
import os
import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import uvloop

from percentes_fast.engine.asyncio_answer import Answer, Record, Rules
from percentes_fast.engine.slabs import STATE_ENDED, STATE_RUNNING, Slab
from percentes_fast.schema import NULL64, Cause

READ_BYTES = 64 * 1024
SECOND = 1_000_000_000
TICK_S = 0.1
WAKE_BEFORE_NS = 2_000_000  # what a sleeping loop may be late by
LATE_AT_STOP = SECOND // 20
TIMER_S = 0.001  # the loop's timers count in ms: a deadline must not come early
CAUSE_OF_ERRNO = {
    errors.EMFILE: Cause.NO_DESCRIPTOR,
    errors.ENFILE: Cause.NO_DESCRIPTOR,
    errors.EADDRNOTAVAIL: Cause.NO_PORT,
    errors.ENOBUFS: Cause.NO_MEMORY,
    errors.ENOMEM: Cause.NO_MEMORY,
    errors.EACCES: Cause.REFUSED_HERE,
    errors.EPERM: Cause.REFUSED_HERE,
    errors.ECONNRESET: Cause.RESET,
    errors.EPIPE: Cause.RESET,
}


@dataclass(frozen=True, slots=True)
class Tls:
    """How one target is spoken to: the context and the name its certificate must bear."""

    context: ssl.SSLContext
    name: str


@dataclass(slots=True, eq=False)
class Connection:
    """One connection; `row` is the request it carries, -1 while idle."""

    sock: socket.socket
    target: int
    number: int
    row: int
    dialed_ns: int
    state: str = "dialing"  # tls, open, idle, closed
    out: bytearray = field(default_factory=bytearray)
    request_left: bool = True
    answer: Answer | None = None
    deadline: asyncio.TimerHandle | None = None
    idle_ns: int = 0
    secure: ssl.SSLObject | None = None
    incoming: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    outgoing: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)


class Engine:
    """One worker's engine over a formatted slab; the arguments are those of `_native.Engine`.

    tls: one a target, None for http.
    """

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
    ) -> None:
        self.slab, self.record = slab, Record(slab)
        self._heads, self._tails = memoryview(heads), tails
        self._targets = targets
        self._tls = list(tls) or [None] * len(targets)
        self._timeouts = timeouts_ns
        self._rules = Rules(tuple(plain), end_by_finish, replica_header.lower().encode())
        self._idle_reuse, self._parent, self._most = idle_reuse_ns, parent_pid, max_connections
        self._idle: list[list[Connection]] = [[] for _ in targets]
        self._open: set[Connection] = set()
        self._epoch = self._next = self._reads = self._sent = self._polls = self._idle_poll = 0
        self._skew_max: int | None = None
        self._cpu_before = 0
        names = ("intended_ns", "head_offset", "head_length", "tail", "dispatch_ns", "sent_ns",
                 "connect_ns", "conn_idle_ns", "conn_id", "conn_reused")  # fmt: skip
        self._column = {name: slab.column(name) for name in names} | self.record.column
        self._seconds = {
            name: slab.column(f"second_{name}")
            for name in (
                "end_ns",
                "cpu_ns",
                "idle_poll_ns",
                "sent",
                "skew_max_ns",
                "reads",
                "polls",
            )
        }

    # ------------------------------------------------------------ the schedule

    def run(self) -> bool:
        """Runs the schedule to its end; True when it was interrupted."""
        return uvloop.run(self._main())

    async def _main(self) -> bool:
        self._loop = asyncio.get_running_loop()
        self._epoch = self.slab.word("epoch_ns")
        self._cpu_before = time.thread_time_ns()
        self.slab.set_word("state", STATE_RUNNING)
        beat = asyncio.ensure_future(self._beat())
        rows = self.slab.word("rows")
        while (self._next < rows or self.slab.word("in_flight")) and not self.slab.word("stop"):
            if self._next < rows:
                await self._wait(self._column["intended_ns"][self._next])
                if self._now() >= self._column["intended_ns"][self._next]:
                    self._start(self._take_row())
            else:
                await asyncio.sleep(0.001)
        stopped = bool(self._next < rows or self.slab.word("in_flight"))
        if stopped:
            self._interrupt(rows)
        beat.cancel()
        self._close_all()
        self._write_second(self._now())
        self.slab.set_word("heartbeat_ns", self._now())
        self.slab.set_word("state", STATE_ENDED)
        return stopped

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
            reads = self._reads
            await asyncio.sleep(0)
            self._polls += 1
            now = self._now()
            if reads == self._reads:
                self._idle_poll += now - before
            before = now

    def _take_row(self) -> int:
        row = self._next
        self._next += 1
        self.slab.set_word("next_row", self._next)
        return row

    def _interrupt(self, rows: int) -> None:
        at = self._now()
        for conn in list(self._open):
            self._fail(conn, Cause.STOPPED)
        for row in range(self._next, rows):
            if self._column["intended_ns"][row] > at - LATE_AT_STOP:
                self._column["cause"][row] = Cause.NOT_DUE
        self.slab.set_word("stopped_ns", at)

    # ------------------------------------------------------------ one request

    def _start(self, row: int) -> None:
        now = self._now()
        self._note_dispatch(row, now)
        target = self._column["target"][row]
        conn = self._reuse(target, now)
        self._column["conn_reused"][row] = conn is not None
        if conn is not None:
            self._column["conn_idle_ns"][row] = now - conn.idle_ns
            self.record.add("reuses")
        else:
            conn = self._dial(row, target, now)
        if conn is None:
            return
        conn.row = row
        conn.answer = Answer(self.record, self._rules, row)
        self._column["conn_id"][row] = conn.number
        timeout_s = self._timeouts[self._column["kind"][row]] / SECOND + TIMER_S
        conn.deadline = self._loop.call_later(timeout_s, self._fail, conn, Cause.DEADLINE)
        self._open.add(conn)
        if conn.state == "open":
            self._send_request(conn)

    def _note_dispatch(self, row: int, now: int) -> None:
        skew = now - self._column["intended_ns"][row]
        self._skew_max = skew if self._skew_max is None else max(skew, self._skew_max)
        self._sent += 1
        self._column["dispatch_ns"][row] = now
        self._column["cause"][row] = Cause.OPEN
        flying = self.record.add("in_flight") + 1
        if flying > self.slab.word("in_flight_max"):
            self.slab.set_word("in_flight_max", flying)

    def _reuse(self, target: int, now: int) -> Connection | None:
        while self._idle[target]:
            conn = self._idle[target].pop()
            if now - conn.idle_ns <= self._idle_reuse:
                conn.state, conn.request_left = "open", True
                return conn
            self._close(conn)
        return None

    def _dial(self, row: int, target: int, now: int) -> Connection | None:
        ip, port = self._targets[target]
        number = self.record.add("dials")
        if len(self._open) + sum(map(len, self._idle)) >= self._most:
            self.record.end(row, Cause.NO_DESCRIPTOR, errors.EMFILE, now)
            return None
        try:
            sock = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
        except OSError as exc:
            self._refuse(row, exc.errno or 0)
            return None
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex((ip, port))
        if code not in (0, errors.EINPROGRESS):
            sock.close()
            self._refuse(row, code)
            return None
        conn = Connection(sock, target, number, row, now)
        self._loop.add_writer(sock, self._writable, conn)
        return conn

    def _refuse(self, row: int, code: int) -> None:
        self.record.end(row, CAUSE_OF_ERRNO.get(code, Cause.CONNECT), code, self._now())

    def _writable(self, conn: Connection) -> None:
        if conn.state != "dialing":
            self._flush(conn)
            return
        code = conn.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(conn, CAUSE_OF_ERRNO.get(code, Cause.CONNECT), code)
            return
        self._loop.remove_writer(conn.sock)
        self._loop.add_reader(conn.sock, self._readable, conn)
        tls = self._tls[conn.target]
        if tls is None:
            self._dialed(conn)
            return
        conn.state = "tls"
        conn.secure = tls.context.wrap_bio(conn.incoming, conn.outgoing, server_hostname=tls.name)
        self._shake(conn)

    def _dialed(self, conn: Connection) -> None:
        conn.state = "open"
        self._column["connect_ns"][conn.row] = self._now() - conn.dialed_ns
        self._send_request(conn)

    def _shake(self, conn: Connection) -> None:
        assert conn.secure is not None
        try:
            conn.secure.do_handshake()
        except ssl.SSLWantReadError:
            self._flush(conn)
            return
        except ssl.SSLError as exc:
            self.record.keep_text(conn.row, str(exc.verify_message if isinstance(
                exc, ssl.SSLCertVerificationError) else exc.reason or exc).encode())  # fmt: skip
            self._fail(conn, Cause.TLS)
            return
        self._dialed(conn)

    def _send_request(self, conn: Connection) -> None:
        start = self._column["head_offset"][conn.row]
        head = self._heads[start : start + self._column["head_length"][conn.row]]
        request = bytes(head) + self._tails[self._column["tail"][conn.row]]
        if conn.secure is None:
            conn.out += request
        else:
            conn.secure.write(request)
        self._flush(conn)

    def _flush(self, conn: Connection) -> None:
        if conn.secure is not None:
            conn.out += conn.outgoing.read()
        try:
            while conn.out:
                del conn.out[: conn.sock.send(conn.out)]
        except BlockingIOError:
            self._loop.add_writer(conn.sock, self._writable, conn)
            return
        except OSError as exc:
            self._fail(conn, CAUSE_OF_ERRNO.get(exc.errno or 0, Cause.RESET), exc.errno or 0)
            return
        self._loop.remove_writer(conn.sock)
        if conn.state == "open" and conn.request_left:
            conn.request_left = False
            self._column["sent_ns"][conn.row] = self._now()

    # ------------------------------------------------------------ reading

    def _readable(self, conn: Connection) -> None:
        while conn.state != "closed":
            try:
                data = conn.sock.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError as exc:
                self._lost(conn, exc.errno or 0)
                return
            self._reads += 1
            if conn.state == "idle":  # bytes or an end that nobody asked for
                self.record.add("closed_while_idle")
                self._idle[conn.target].remove(conn)
                self._close(conn)
            elif not data:
                self._ended(conn)
            elif conn.secure is None:
                self._take(conn, data)
            else:
                self._decrypt(conn, data)

    def _decrypt(self, conn: Connection, data: bytes) -> None:
        assert conn.secure is not None
        conn.incoming.write(data)
        if conn.state == "tls":
            self._shake(conn)
        try:
            while conn.state == "open" and (plain := conn.secure.read(READ_BYTES)):
                self._take(conn, plain)
        except ssl.SSLWantReadError:
            if conn.outgoing.pending:
                self._flush(conn)
            return
        except ssl.SSLZeroReturnError:
            self._ended(conn)
            return
        except ssl.SSLError:
            self._fail(conn, Cause.TLS)
            return
        if conn.state == "open":
            self._ended(conn)

    def _take(self, conn: Connection, data: bytes) -> None:
        assert conn.answer is not None
        at = self._now()
        then = conn.answer.take(data, at)
        if then == "reuse" and not conn.request_left:
            self._open.discard(conn)
            if conn.deadline is not None:
                conn.deadline.cancel()
            conn.state, conn.idle_ns, conn.row = "idle", at, -1
            self._idle[conn.target].append(conn)
        elif then != "open":
            self._close(conn)

    def _ended(self, conn: Connection) -> None:
        if conn.state == "tls":
            self._fail(conn, Cause.TLS)
            return
        if conn.answer is not None:
            conn.answer.closed(self._now())
        self._close(conn)

    def _lost(self, conn: Connection, code: int) -> None:
        if conn.state == "idle":
            self.record.add("closed_while_idle")
            self._idle[conn.target].remove(conn)
            self._close(conn)
        else:
            self._fail(conn, CAUSE_OF_ERRNO.get(code, Cause.RESET), code)

    def _fail(self, conn: Connection, cause: Cause, code: int = 0) -> None:
        if conn.answer is not None:
            conn.answer.failed(cause, code, self._now())
        self._close(conn)

    def _close(self, conn: Connection) -> None:
        if conn.state == "closed":
            return
        conn.state = "closed"
        if conn.deadline is not None:
            conn.deadline.cancel()
        self._open.discard(conn)
        self._loop.remove_reader(conn.sock)
        self._loop.remove_writer(conn.sock)
        conn.sock.close()

    def _close_all(self) -> None:
        for conn in [*self._open, *(conn for idle in self._idle for conn in idle)]:
            self._close(conn)

    # ------------------------------------------------------------ own figures

    async def _beat(self) -> None:
        """Once a second: own figures, old idle connections, is the parent still there?"""
        while True:
            at = (self._now() // SECOND + 1) * SECOND
            await asyncio.sleep(max(0, at - self._now()) / SECOND)
            self._write_second(self._now())
            self.slab.set_word("heartbeat_ns", self._now())
            for idle in self._idle:
                while idle and self._now() - idle[0].idle_ns > self._idle_reuse:
                    self._close(idle.pop(0))
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
            "reads": self._reads,
            "polls": self._polls,
        }
        for name, value in values.items():
            self._seconds[name][line] = value
        self.record.add("seconds_used")
        self._cpu_before, self._skew_max = cpu, None
        self._idle_poll = self._sent = self._reads = self._polls = 0

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
            answer.failed(cause, errors.ECONNRESET if rst else 0, self._now())
        return then == "reuse"
