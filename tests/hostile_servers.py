"""The engine under test over a slab, and servers that misbehave on purpose.

Does: makes either engine by its name; gives scripts (for `raw_server`) and listeners that drip,
      flood, reset, drop or never accept; run as a program, trickles streams to many clients.
Never: listens anywhere but on loopback, or sends without an end: a script ends when its client has.
Plan: engines and `Trial`; scripts; listeners; the trickling process; jobs for `netns.in_child`,
which stand here because a child that imports no test starts sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from netns import (
    RETURN,
    allow_descriptors,
    growth_bytes,
    leave_descriptors,
    narrow_ports,
    own_network,
    program,
    refuse,
)
from percentes_fast import _native
from percentes_fast.engine import asyncio_engine, slabs
from percentes_fast.errors import ClientError
from percentes_fast.schema import Kind
from raw_server import (
    CHUNKED,
    GOOD,
    HOST,
    WAIT_S,
    Bench,
    Peer,
    Ran,
    Row,
    Script,
    answer,
    chunk,
    keep_answering,
    raw_server,
    token,
)

ENGINES = ("native", "asyncio")
SO_ATTACH_FILTER = 26
MIB = 2**20
MANY = 12
AFTER = b"POST /after HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
Facts = list[dict[str, Any]]
FACTS = ("errno_code", "bytes_received", "content_events", "completion_tokens", "dispatch_ns")
FACTS += ("sent_ns", "connect_ns", "ended_ns", "conn_reused")


# ---------------------------------------------------------------- the engine under test


class Runs(Protocol):
    """What the engines have in common."""

    def run(self) -> bool: ...


def make_engine(
    name: str,
    slab: slabs.Slab,
    heads: bytes,
    tails: Sequence[bytes],
    targets: Sequence[tuple[str, int]],
    *,
    timeouts_ns: Sequence[int],
    **options: Any,
) -> Runs:
    """An engine of that name: the only place of these tests that knows how they differ."""
    plain = [kind == Kind.HEALTH for kind in Kind]
    if name == "native":
        return _native.Engine(
            slab.memory, heads, list(tails), list(targets), timeouts_ns, plain, **options
        )
    options.pop("rehearse", None)  # has none
    return asyncio_engine.Engine(
        slab, heads, list(tails), list(targets), timeouts_ns, plain, **options
    )


class Trial(Bench):
    """A slab of the given rows, and the engine of that name over it, in this process."""

    def __init__(self, path: Path | str, engine: str, *rows: Row, tokens: int = 64) -> None:
        super().__init__(Path(path), *rows, tokens=tokens)
        self.name = engine

    def drive(
        self,
        *targets: int | tuple[str, int],
        tails: Sequence[bytes] = (b"",),
        timeout_s: float = WAIT_S,
        before: Callable[[], Any] = lambda: None,
        **options: Any,
    ) -> list[Ran]:
        """Runs the schedule; a bare port is one of 127.0.0.1. `before` acts on the made engine."""
        pairs = [(HOST, each) if isinstance(each, int) else each for each in targets]
        times = [round(timeout_s * 1e9)] * len(Kind)
        options = {"max_connections": len(self.rows), **options}
        engine = make_engine(
            self.name, self.slab, self.heads, tails, pairs, timeouts_ns=times, **options
        )
        before()
        self.slab.set_word("epoch_ns", _native.clock_now())
        assert not engine.run()
        assert self.slab.word("in_flight") == 0
        return [self.row(i) for i in range(len(self.rows))]

    def words(self, *names: str) -> list[int]:
        """Header words of the slab."""
        return [self.slab.word(name) for name in names]


# ---------------------------------------------------------------- scripts


def drip(head: bytes, slow: bytes, every_s: float) -> Script:
    """Answers with the head, then with `slow` over and over, a byte at a time."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(head)
        at = 0
        while True:
            peer.send(slow[at % len(slow) : at % len(slow) + 1])
            time.sleep(every_s)
            at += 1

    return script


def flood(head: bytes, piece: bytes, count: int = 2**62) -> Script:
    """Answers with the head, then with the piece as fast as it goes, `count` times at most."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(head)
        for _ in range(count):
            peer.send(piece)
        peer.await_close()

    return script


def after_request(then: Callable[[Peer], None]) -> Script:
    """Reads one request, then does `then` instead of answering."""

    def script(peer: Peer) -> None:
        peer.request()
        then(peer)

    return script


# ---------------------------------------------------------------- listeners that do not serve


@contextlib.contextmanager
def never_accepts() -> Iterator[int]:
    """Port of a listener whose connections the kernel opens and nobody takes."""
    with socket.create_server((HOST, 0), backlog=64) as listener:
        yield listener.getsockname()[1]


@contextlib.contextmanager
def filter_drops_syn() -> Iterator[int]:
    """Port where a socket filter of the listener (`ret 0`) throws every segment away."""
    with socket.create_server((HOST, 0)) as listener:
        nothing = program((RETURN, 0, 0, 0))
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, bytes(nothing))
        yield listener.getsockname()[1]


@contextlib.contextmanager
def full_queue_drops_syn() -> Iterator[int]:
    """Port of a listener with backlog 0 that is full: the kernel drops further SYNs."""
    with socket.create_server((HOST, 0), backlog=0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address):
            yield address[1]


@contextlib.contextmanager
def only_ipv6(script: Script) -> Iterator[int]:
    """Port of ::1 where one connection gets the script; nothing listens there on 127.0.0.1."""
    with socket.socket(socket.AF_INET6) as listener:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(("::1", 0))
        listener.listen()

        def serve() -> None:
            sock = listener.accept()[0]
            with sock, contextlib.suppress(ConnectionError):
                script(Peer(sock))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


# ---------------------------------------------------------------- many trickling streams


async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        while not reader.at_eof():
            writer.write(chunk(token()))
            await writer.drain()
            await asyncio.sleep(0.5)
    writer.close()


async def serve_trickles() -> None:
    server = await asyncio.start_server(trickle, HOST, 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def trickling() -> Iterator[int]:
    """Port of a process that sends every client a token each half second."""
    with subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


# ---------------------------------------------------------------- jobs for children


def refused_at_once(engine: str, path: str, count: int) -> dict[str, Any]:
    """In a namespace where nothing listens: rows all due in the same instant."""
    own_network()
    allow_descriptors(count + 100)
    trial = Trial(path, engine, *[Row()] * count)
    rows = trial.drive(9)
    return {
        "endings": Counter(f"{ran.cause.name} {ran.errno_code}" for ran in rows),
        "early": sum(ran.dispatch_ns < ran.intended_ns for ran in rows),
        "unended": sum(ran.ended_ns is None or ran.ended_ns < ran.dispatch_ns for ran in rows),
        "sent": sum(ran.sent_ns is not None or ran.connect_ns is not None for ran in rows),
        "connections": len({ran.conn_id for ran in rows}),
    }


def memory_of_a_body(engine: str, path: str, port: int) -> dict[str, Any]:
    trial = Trial(path, engine, Row())
    grew = growth_bytes(lambda: trial.drive(port))
    ran = trial.row(0)
    return {"grew": grew, "cause": ran.cause, "events": ran.content_events, **ran.values}


def memory_of_streams(engine: str, path: str, port: int, count: int) -> dict[str, Any]:
    allow_descriptors(count + 100)
    rows = [Row(0.5 * i / count) for i in range(count)]
    trial = Trial(path, engine, *rows, tokens=8 * count)
    grew = growth_bytes(functools.partial(trial.drive, port, timeout_s=2.0))
    ran = [trial.row(i) for i in range(count)]
    return {
        "grew": grew,
        "most": trial.words("in_flight_max")[0],
        "causes": Counter(each.cause.name for each in ran),
        "least": min(each.content_events for each in ran),
    }


def facts(rows: list[Ran]) -> Facts:
    """Rows as JSON can hold them."""
    known = [{name: ran.values[name] for name in FACTS} for ran in rows]
    texts = [{"cause": ran.cause.name, "finish": ran.finish or ""} for ran in rows]
    return [{**one, **other} for one, other in zip(known, texts, strict=True)]


def answers_after(peer: Peer) -> None:
    """Silent, but to the row that comes after the shortage."""
    if b"/after" in peer.request():
        peer.send(GOOD)
    peer.await_close()


def too_few_descriptors(engine: str, path: str, port: int, left: int) -> Facts:
    """Rows all due at once, and one after the first have met their deadline."""
    trial = Trial(path, engine, *[Row()] * MANY, Row(1.0, head=AFTER))
    before = lambda: leave_descriptors(left)  # noqa: E731
    return facts(trial.drive(port, timeout_s=0.6, before=before))


def engine_without_descriptors(engine: str, path: str) -> str:
    trial = Trial(path, engine, Row())
    leave_descriptors(0)
    try:
        make_engine(engine, trial.slab, trial.heads, [b""], [("127.0.0.1", 9)], timeouts_ns=[1] * 4)
    except ClientError as exc:
        return str(exc)
    return "made"


def too_few_ports(engine: str, path: str, ports: int) -> Facts:
    """In a namespace: silent server, rows all due at once."""
    own_network()
    trial = Trial(path, engine, *[Row()] * MANY)
    with raw_server(answer()) as server:
        before = lambda: narrow_ports(20_001, 20_000 + ports)  # noqa: E731
        return facts(trial.drive(server.port, timeout_s=0.5, before=before))


def dial_of_the_own_port(engine: str, path: str) -> Facts:
    """In a namespace: nothing listens, and the only local port is the server's."""
    own_network()
    narrow_ports(20_001, 20_001)
    return facts(Trial(path, engine, Row()).drive(20_001, timeout_s=0.5, rehearse=False))


def refused_calls(engine: str, path: str, calls: list[str], error: int) -> Facts:
    """The server's threads stand outside the filter: it is of the engine's thread alone."""
    rows = [Row(i / 100) for i in range(MANY)]
    with raw_server(keep_answering(GOOD)) as server:
        before = lambda: refuse(calls, error)  # noqa: E731
        return facts(Trial(path, engine, *rows).drive(server.port, timeout_s=1.0, before=before))


if __name__ == "__main__":
    allow_descriptors(4096)
    asyncio.run(serve_trickles())
