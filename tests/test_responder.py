"""The known-timing server as a client reads it.

Never: asserts an upper bound on a time; that an event does not come early is certain.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from array import array
from collections.abc import Iterator
from typing import Any

import h11
import orjson
import pytest

from percentes_fast import _native
from percentes_fast.engine.canary import Canary

HOST = "127.0.0.1"
WAIT_S = 20.0
Answer = tuple[int, list[bytes]]


@contextlib.contextmanager
def responder() -> Iterator[tuple[int, dict[str, int]]]:
    """(port, figures): the figures are there once it has ended."""
    stop = array("i", [0])
    figures: dict[str, int] = {}
    with socket.create_server((HOST, 0)) as listener:
        listener.setblocking(False)
        args = (listener.fileno(), 0, 200_000, stop)
        thread = threading.Thread(target=lambda: figures.update(_native.respond(*args)))
        thread.start()
        try:
            yield listener.getsockname()[1], figures
        finally:
            stop[0] = 1
            thread.join()


def post(tokens: int, ttft_us: int = 2000, gap_us: int = 1000, body: bytes = b"") -> bytes:
    query = f"ttft_us={ttft_us}&gap_us={gap_us}&tokens={tokens}"
    length = f"Content-Length: {len(body)}"
    return f"POST /canary?{query} HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode() + body


GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def read(sock: socket.socket, left: bytes = b"") -> tuple[int, list[bytes], bytes]:
    """Status, chunks and what came after the answer."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    if left:
        client.receive_data(left)
    status, chunks = 0, []
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            client.receive_data(sock.recv(65_536))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            chunks.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            return status, chunks, client.trailing_data[0]


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=WAIT_S)


def events(chunks: list[bytes]) -> list[Any]:
    body = b"".join(chunks)
    assert body.endswith(b"data: [DONE]\n\n")
    lines = body.removesuffix(b"data: [DONE]\n\n").split(b"\n\n")
    return [orjson.loads(line.removeprefix(b"data: ")) for line in lines if line]


@pytest.mark.parametrize("tokens", [1, 2, 32])
def test_events_in_order(tokens: int) -> None:
    with responder() as (port, figures), connect(port) as sock:
        sock.sendall(post(tokens))
        status, chunks, rest = read(sock)
    *content, told = events(chunks)
    choices = [event["choices"][0] for event in content]
    assert (status, rest) == (200, b"")
    assert [choice["delta"]["content"] for choice in choices] == ["tok "] * tokens
    assert [choice["finish_reason"] for choice in choices] == [None] * (tokens - 1) + ["length"]
    assert told == {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}
    assert (figures["requests"], figures["events"]) == (1, tokens)
    assert 0 <= figures["late_max_ns"] <= figures["late_sum_ns"]


def test_no_event_comes_early() -> None:
    with responder() as (port, _), connect(port) as sock:
        begun = time.monotonic()
        sock.sendall(post(3, ttft_us=50_000, gap_us=20_000))
        read(sock)
        assert time.monotonic() - begun >= 0.090


def test_get() -> None:
    with responder() as (port, figures), connect(port) as sock:
        sock.sendall(GET)
        assert read(sock) == (200, [], b"")
    assert (figures["requests"], figures["events"]) == (1, 0)


def test_keep_alive() -> None:
    with responder() as (port, figures), connect(port) as sock:
        for tokens in (2, 1, 3):
            sock.sendall(post(tokens, body=b"x" * 20_000))
            assert len(events(read(sock)[1])) == tokens + 1
    assert figures["requests"] == 3


@pytest.mark.parametrize("size", [10**6, 1, 7])
def test_pipelined_requests_are_answered_one_after_the_other(size: int) -> None:
    """Cut anywhere: whole, byte by byte, and in pieces that cross the requests."""
    raw = post(3) + GET + post(2, body=b"abc") + post(1) + GET
    with responder() as (port, figures), connect(port) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(raw), size):
            sock.sendall(raw[at : at + size])
        counts, rest = [], b""
        for _ in range(5):
            status, chunks, rest = read(sock, rest)
            counts.append(len(events(chunks)) - 1 if chunks else 0)
            assert status == 200
    assert counts == [3, 0, 2, 1, 0]
    assert rest == b""
    assert (figures["requests"], figures["events"]) == (5, 6)


def test_many_at_once() -> None:
    with responder() as (port, figures), contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(port)) for _ in range(50)]
        for i, sock in enumerate(socks):
            sock.sendall(post(5, ttft_us=20_000 - 300 * i))
        assert all(len(events(read(sock)[1])) == 6 for sock in socks)
    assert (figures["requests"], figures["events"]) == (50, 250)


@pytest.mark.parametrize("raw", [b"X" * 5000, post(50) + b"Y" * 5000])
def test_too_much_is_dropped(raw: bytes) -> None:
    with responder() as (port, _):
        with connect(port) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(raw)
            while sock.recv(65_536):
                pass
        with connect(port) as sock:
            sock.sendall(GET)
            assert read(sock)[0] == 200


def test_a_client_that_leaves_in_mid_stream() -> None:
    with responder() as (port, _):
        with connect(port) as sock:
            sock.sendall(post(50))
            sock.recv(10)
        with connect(port) as sock:
            sock.sendall(post(2))
            assert len(events(read(sock)[1])) == 3


def test_process_of_its_own() -> None:
    canary = Canary()
    with connect(canary.port) as sock:
        sock.sendall(post(4))
        assert len(events(read(sock)[1])) == 5
    told = canary.stop()
    assert told is not None
    assert (told["requests"], told["events"]) == (1, 4)
