"""A scripted TCP server and the native engine over a slab, for the engine's tests.

Does: runs one script a connection, in threads, on 127.0.0.1; drives the engine in this process and
      reads its slab back.
Never: speaks HTTP by itself (a script sends exactly the bytes it was given), or listens elsewhere.
Plan: `Peer` is a script's end of a connection, `raw_server` the listener, `Bench` slab and engine.
A script that must wait for the engine looks at the slab (`Bench.until`), not at a clock.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from percentes_fast import _native, schema
from percentes_fast.engine import asyncio_engine, slabs
from percentes_fast.schema import Cause, Kind

HOST = "127.0.0.1"
WAIT_S = 20.0
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = STREAM + b"Transfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def token(text: str = "tok ", finish: str | None = None) -> bytes:
    ending = f'"{finish}"' if finish else "null"
    delta = f'{{"content":"{text}"}}'
    return f'data: {{"choices":[{{"delta":{delta},"finish_reason":{ending}}}]}}\n\n'.encode()


def usage(tokens: int) -> bytes:
    counts = f'{{"prompt_tokens":7,"completion_tokens":{tokens}}}'
    return f'data: {{"choices":[],"usage":{counts}}}\n\n'.encode()


def stream(*events: bytes) -> bytes:
    """A whole chunked answer of the given events."""
    return CHUNKED + b"".join(map(chunk, events)) + LAST_CHUNK


GOOD = stream(token(), token(), token(finish="length"), usage(3), DONE)


def plain(status: str, body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 " + status.encode(), b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.requests: list[bytes] = []

    def request(self) -> bytes:
        """Reads one request, head and body."""
        data = bytearray()
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, rest = bytes(data).partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        body = bytearray(rest)
        while len(body) < length:
            body += self._more()
        self.requests.append(head + b"\r\n\r\n" + body)
        return self.requests[-1]

    def _more(self) -> bytes:
        got = self.sock.recv(65_536)
        if not got:
            raise ConnectionError("the client closed")
        return got

    def send(self, *pieces: bytes) -> None:
        """Sends each piece in a system call of its own."""
        for piece in pieces:
            self.sock.sendall(piece)

    def reset(self) -> None:
        """Closes with a RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def await_close(self) -> None:
        """Until the client has closed its end (or reset it)."""
        with contextlib.suppress(ConnectionError):
            while self.sock.recv(65_536):
                pass


Script = Callable[[Peer], None]


@dataclass
class Raw:
    """A listening scripted server; peers: its connections in the order of their accepting."""

    port: int
    peers: list[Peer]


def answer(*pieces: bytes, then: Callable[[Peer], None] | None = None) -> Script:
    """A script: read a request, send the pieces, then hold the connection (or do `then`)."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(*pieces)
        (then or Peer.await_close)(peer)

    return script


def keep_answering(*pieces: bytes) -> Script:
    """A script: the same answer to every request of the connection."""

    def script(peer: Peer) -> None:
        while True:
            peer.request()
            peer.send(*pieces)

    return script


@contextlib.contextmanager
def raw_server(*scripts: Script, receive_bytes: int = 0) -> Iterator[Raw]:
    """Runs the n-th script on the n-th connection; the last one on all further ones.

    A script's exceptions other than a closed connection are raised at the end.
    """
    failures: list[BaseException] = []
    threads: list[threading.Thread] = []
    listener = socket.create_server((HOST, 0), backlog=64)
    if receive_bytes:  # inherited by what it accepts
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    server = Raw(listener.getsockname()[1], [])

    def serve(peer: Peer, script: Script) -> None:
        with peer.sock:
            try:
                peer.sock.settimeout(WAIT_S)
                peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                script(peer)
            except ConnectionError:
                pass
            except BaseException as exc:
                failures.append(exc)

    def accept() -> None:
        while True:
            try:
                sock = listener.accept()[0]
            except OSError:
                return
            peer = Peer(sock)
            script = scripts[min(len(server.peers), len(scripts) - 1)]
            server.peers.append(peer)
            threads.append(threading.Thread(target=serve, args=(peer, script)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()
        listener.close()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def closed_port() -> int:
    """A port of 127.0.0.1 where nothing listens."""
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class Row:
    """One scheduled request: when (s), what kind, to which target, and its bytes."""

    at_s: float = 0.0
    kind: Kind = Kind.LOAD
    target: int = 0
    head: bytes = HEAD % 0
    tail: int = 0


@dataclass
class Ran:
    """A row of a slab as the engine left it; sentinels are None."""

    cause: Cause
    message: str | None
    finish: str | None
    replica: str | None
    values: dict[str, int | None]

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


class Bench:
    """A slab of the given rows, and the engine over it, in this process."""

    kind = "native"  # of the engine; tests of both set it

    def __init__(self, path: Path, *rows: Row, tokens: int = 64, messages: int = 8) -> None:
        self.rows = rows
        size = slabs.SlabSize(len(rows), tokens, 64, messages)
        self.slab = slabs.create(path / "bench.slab", size, 0)
        self.heads = b"".join(row.head for row in rows)
        offset = 0
        for i, row in enumerate(rows):
            known = {
                "index": i,
                "intended_ns": round(row.at_s * 1e9),
                "head_offset": offset,
                "head_length": len(row.head),
                "tail": row.tail,
                "kind": int(row.kind),
                "target": row.target,
            }
            for name, value in known.items():
                self.slab.column(name)[i] = value
            offset += len(row.head)
        self.pair = (0, 0, 0)
        self.epoch = 0

    def run(
        self,
        *ports: int,
        tails: Sequence[bytes] = (b"",),
        timeouts_s: Sequence[float] = (WAIT_S,) * 4,
        **options: Any,
    ) -> list[Ran]:
        """Runs the schedule against the ports (one a target); its rows."""
        engine = self.engine(
            list(tails),
            [(HOST, port) for port in ports],
            [round(timeout * 1e9) for timeout in timeouts_s],
            [kind == Kind.HEALTH for kind in Kind],
            **options,
        )
        self.pair = _native.clock_pair()
        self.epoch = _native.clock_now()
        self.slab.set_word("epoch_ns", self.epoch)
        self.interrupted = engine.run()
        return [self.row(i) for i in range(len(self.rows))]

    def row(self, i: int) -> Ran:
        values: dict[str, int | None] = {}
        for name, kind in schema.NATIVE_COLUMNS:
            value = self.slab.column(name)[i]
            null = value == schema.NULL_OF[kind] and name not in schema.ZERO_COLUMNS
            values[name] = None if null else value
        finish, replica, slot = (values[n] for n in ("finish_reason", "replica", "message_slot"))
        return Ran(
            cause=Cause(self.slab.column("cause")[i]),
            message=None if slot is None or slot < 0 else self.slab.messages()[slot],
            finish=None if finish is None else self.slab.names("finish_names")[finish],
            replica=None if replica is None else self.slab.names("replica_names")[replica],
            values=values,
        )

    def engine(self, *arguments: Any, **options: Any) -> Any:
        """The engine of this kind over the slab."""
        if self.kind == "native":
            return _native.Engine(self.slab.memory, self.heads, *arguments, **options)
        return asyncio_engine.Engine(self.slab, self.heads, *arguments, **options)

    def tokens(self, name: str) -> list[int]:
        """The used part of a token column."""
        return list(self.slab.column(f"token_{name}")[: self.slab.word("tokens_used")])

    def until(self, told: Callable[[Ran], Any], row: int = 0) -> None:
        """For scripts: waits until the engine has written what `told` looks for in a row."""
        deadline = time.monotonic() + WAIT_S
        while not told(self.row(row)):
            if time.monotonic() > deadline:
                raise TimeoutError("the engine did not write what the script waits for")
            time.sleep(0.001)


def ask(path: Path, script: Script, row: Row | None = None, **options: Any) -> Ran:
    """One row against one script."""
    with raw_server(script) as server:
        return Bench(path, row or Row()).run(server.port, **options)[0]


def fin(peer: Peer) -> None:
    """Ends the server's side and waits for the client's."""
    peer.sock.shutdown(socket.SHUT_WR)
    peer.await_close()
