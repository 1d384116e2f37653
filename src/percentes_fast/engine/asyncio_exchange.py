"""One request's life on a connection, for the asyncio engine: dial, TLS, send, read, pool.

Never: waits, retries a request, or decides by what a server does.
Plan: a `Connection` is a non-blocking socket that the loop watches; TLS is an SSLObject between two
memory buffers, so both kinds take the same path; `Answer` judges the bytes.
"""

from __future__ import annotations

import asyncio
import errno as errors
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from percentes_fast.engine.asyncio_answer import Answer, Record, Rules
from percentes_fast.schema import Cause

READ_BYTES = 64 * 1024
READS_PER_WAKE = 8  # then others have their turn
SECOND = 1_000_000_000
TIMER_S = 0.001  # the loop's timers count in ms, and may be early by half of one
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


# struct tcp_info of linux/tcp.h (5.4): total_retrans, then reord_seen and rcv_ooopack
TCP_INFO = struct.Struct("100xI116xII")


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
    anomalies: int = 0  # of TCP, until the last request ended
    secure: ssl.SSLObject | None = None
    incoming: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    outgoing: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)


@dataclass(frozen=True, slots=True)
class Limits:
    """What connections are bound by: times in ns, one timeout a kind."""

    timeouts_ns: Sequence[int]
    idle_reuse_ns: int
    connections: int


class Exchanges:
    """All connections of one worker. now: run time in ns; targets and tls: one a target."""

    def __init__(  # noqa: PLR0917 (what a worker is made of)
        self,
        record: Record,
        rules: Rules,
        targets: Sequence[tuple[str, int]],
        tls: Sequence[Tls | None],
        limits: Limits,
        now: Callable[[], int],
    ) -> None:
        self.reads = 0
        self._record, self._rules, self._targets, self._tls = record, rules, targets, tls
        self._limits, self._now = limits, now
        self._idle: list[list[Connection]] = [[] for _ in targets]
        self._open: set[Connection] = set()
        names = ("head_offset", "head_length", "tail", "dispatch_ns", "sent_ns", "connect_ns",
                 "conn_idle_ns", "conn_id", "conn_reused", "tcp_anomalies")  # fmt: skip
        self._column = {name: record.slab.column(name) for name in names} | record.column

    def begin(
        self, loop: asyncio.AbstractEventLoop, heads: memoryview, tails: Sequence[bytes]
    ) -> None:
        """The loop is there, and the requests' bytes."""
        self._loop, self._heads, self._tails = loop, heads, tails

    def end_all(self, cause: Cause) -> None:
        """Ends every open row with a cause of the engine's own."""
        for conn in list(self._open):
            self._fail(conn, cause)

    def close_all(self) -> None:
        """Closes what is left: bodies without an end, idle connections."""
        for conn in [*self._open, *(conn for idle in self._idle for conn in idle)]:
            self._close(conn)

    def retire_old(self) -> None:
        """Closes connections that have been idle for too long."""
        for idle in self._idle:
            while idle and self._now() - idle[0].idle_ns > self._limits.idle_reuse_ns:
                self._close(idle.pop(0))

    def start(self, row: int, now: int) -> None:
        """Sends a due row, over an idle connection or a new one."""
        target = self._column["target"][row]
        conn = self._reuse(target, now)
        self._column["conn_reused"][row] = conn is not None
        if conn is not None:
            self._column["conn_idle_ns"][row] = now - conn.idle_ns
            self._record.add("reuses")
        else:
            conn = self._dial(row, target, now)
        if conn is None:
            return
        conn.row = row
        conn.answer = Answer(self._record, self._rules, row)
        self._column["conn_id"][row] = conn.number
        timeout_s = self._limits.timeouts_ns[self._column["kind"][row]] / SECOND + TIMER_S
        conn.deadline = self._loop.call_later(timeout_s, self._fail, conn, Cause.DEADLINE)
        self._open.add(conn)
        if conn.state == "open":
            self._send_request(conn)

    def _reuse(self, target: int, now: int) -> Connection | None:
        while self._idle[target]:
            conn = self._idle[target].pop()
            if now - conn.idle_ns <= self._limits.idle_reuse_ns:
                conn.state, conn.request_left = "open", True
                return conn
            self._close(conn)
        return None

    def _dial(self, row: int, target: int, now: int) -> Connection | None:
        ip, port = self._targets[target]
        if len(self._open) + sum(map(len, self._idle)) >= self._limits.connections:
            self._record.end(row, Cause.NO_DESCRIPTOR, errors.EMFILE, now)
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
        conn = Connection(sock, target, self._record.add("dials"), row, now)
        try:
            self._loop.add_writer(sock, self._writable, conn)
        except OSError as exc:  # unwatched, it would end as the server's fault
            sock.close()
            self._record.end(row, Cause.NO_MEMORY, exc.errno or 0, self._now())
            return None
        return conn

    def _refuse(self, row: int, code: int) -> None:
        self._record.end(row, CAUSE_OF_ERRNO.get(code, Cause.CONNECT), code, self._now())

    def _writable(self, conn: Connection) -> None:
        if conn.state != "dialing":
            self._flush(conn)
            return
        code = conn.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == 0 and joined_to_itself(conn.sock):
            code = errors.ECONNREFUSED
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
            self._fail_tls(conn, exc)
            return
        self._dialed(conn)

    def _fail_tls(self, conn: Connection, exc: ssl.SSLError) -> None:
        """Ends the row, if it is still open, with the reason kept."""
        if conn.answer is not None and not conn.answer.over:
            reason: object = exc.reason or exc
            if isinstance(exc, ssl.SSLCertVerificationError):
                reason = exc.verify_message
            self._record.keep_text(conn.row, str(reason).encode())
        self._fail(conn, Cause.TLS)

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
        ended = conn.answer is not None and conn.answer.over
        if conn.state == "open" and conn.request_left and not ended:
            conn.request_left = False
            self._column["sent_ns"][conn.row] = self._now()

    # ------------------------------------------------------------ reading

    def _readable(self, conn: Connection) -> None:
        for _ in range(READS_PER_WAKE):
            if conn.state == "closed":
                return
            try:
                data = conn.sock.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError as exc:
                self._lost(conn, exc.errno or 0)
                return
            self.reads += 1
            if conn.state == "idle" and (conn.secure is None or not data):
                self._drop_idle(conn)  # bytes or an end that nobody asked for
            elif conn.state == "idle":
                conn.incoming.write(data)
                self._probe_idle(conn)
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
        except ssl.SSLError as exc:  # a client certificate is refused after the handshake
            self._fail_tls(conn, exc)
            return
        if conn.state == "open":
            self._ended(conn)
        elif conn.state == "idle":
            self._probe_idle(conn)

    def _probe_idle(self, conn: Connection) -> None:
        """What TLS still holds after an answer belongs to nobody: such a connection is dropped."""
        assert conn.secure is not None
        with suppress(ssl.SSLWantReadError):  # nothing, or a session ticket: it stays
            with suppress(ssl.SSLZeroReturnError):
                conn.secure.read(1)
            self._drop_idle(conn)

    def _drop_idle(self, conn: Connection) -> None:
        self._record.add("closed_while_idle")
        self._idle[conn.target].remove(conn)
        self._close(conn)

    def _take(self, conn: Connection, data: bytes) -> None:
        assert conn.answer is not None
        at = self._now()
        open_before = not conn.answer.over
        then = conn.answer.take(data, at)
        if conn.answer.over:
            conn.out.clear()  # nobody waits for the rest of the request
            if open_before:
                self._note_anomalies(conn)
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
            if not conn.answer.over:
                self._note_anomalies(conn)
            conn.answer.closed(self._now())
        self._close(conn)

    def _lost(self, conn: Connection, code: int) -> None:
        if conn.state == "idle":
            self._drop_idle(conn)
        else:
            self._fail(conn, CAUSE_OF_ERRNO.get(code, Cause.RESET), code)

    def _fail(self, conn: Connection, cause: Cause, code: int = 0) -> None:
        if conn.answer is not None:
            if not conn.answer.over and conn.state == "open":
                self._note_anomalies(conn)
            conn.answer.failed(cause, code, self._now())
        self._close(conn)

    def _note_anomalies(self, conn: Connection) -> None:
        """What TCP had to mend while the connection carried this row: read once, at its end."""
        with suppress(OSError, struct.error):  # no TCP, or a kernel before 5.4
            told = conn.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
            count = sum(TCP_INFO.unpack(told))
            self._column["tcp_anomalies"][conn.row] = count - conn.anomalies
            conn.anomalies = count

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


def joined_to_itself(sock: socket.socket) -> bool:
    """TCP does that where the dial is given the port of a dead server on this machine."""
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:  # reset meanwhile
        return False
