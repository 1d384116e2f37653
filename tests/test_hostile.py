"""Servers that misbehave on purpose: each row ends in the right cause, and nothing else is hurt.

Never: asserts that something was fast; a deadline is held to "not before", a flood to a bound that
would take a defect to miss.
Plan: slow and endless answers; silence and dropped SYNs; resets, refusals and half-closed sockets;
other addresses, keep-alive races; heads without end; memory.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hostile_servers import (
    ENGINES,
    MIB,
    Trial,
    after_request,
    drip,
    filter_drops_syn,
    flood,
    full_queue_drops_syn,
    memory_of_a_body,
    memory_of_streams,
    never_accepts,
    only_ipv6,
    refused_at_once,
    trickling,
)
from netns import in_child
from percentes_fast import _native
from percentes_fast.schema import Cause
from raw_server import (
    CHUNKED,
    DONE,
    GOOD,
    HEAD,
    HOST,
    STREAM,
    Peer,
    Ran,
    Row,
    Script,
    answer,
    chunk,
    closed_port,
    fin,
    keep_answering,
    raw_server,
    token,
    usage,
)

pytestmark = pytest.mark.parametrize("engine", ENGINES)
REUSED_S = 0.25


def against(path: Path, engine: str, script: Script, row: Row | None = None, **how: Any) -> Ran:
    """One row against one script."""
    with raw_server(script) as server:
        return Trial(path, engine, row or Row()).drive(server.port, **how)[0]


def met_deadline(ran: Ran, timeout_s: float) -> bool:
    """Censored, without an error number, and not before its time."""
    in_time = ran.ended_ns - ran.dispatch_ns >= round(timeout_s * 1e9)
    return ran.cause == Cause.DEADLINE and ran.errno_code == 0 and in_time


# ---------------------------------------------------------------- slow and endless answers


def test_slow_loris_head(tmp_path: Path, engine: str) -> None:
    """Header lines, a byte at a time, beyond the deadline."""
    slow = drip(b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n", 0.02)
    ran = against(tmp_path, engine, slow, timeout_s=0.6)
    assert met_deadline(ran, 0.6)
    assert ran.headers_ns is ran.first_token_ns is None
    assert 17 < ran.bytes_received < 17 + 0.6 / 0.02 + 2


@pytest.mark.slow
def test_a_byte_a_second(tmp_path: Path, engine: str) -> None:
    ran = against(tmp_path, engine, drip(CHUNKED, chunk(token()), 1.0), timeout_s=1.5)
    assert met_deadline(ran, 1.5)
    assert (ran.http_status, ran.content_events) == (200, 0)
    assert ran.headers_ns is not None
    assert ran.bytes_received - len(CHUNKED) in (1, 2)


@pytest.mark.parametrize("events", [1, 100])
def test_endless_stream(tmp_path: Path, engine: str, events: int) -> None:
    """As fast as it goes: the deadline is met all the same, and every token is counted."""
    trial = Trial(tmp_path, engine, Row(), tokens=1000)
    with raw_server(flood(CHUNKED, chunk(token()) * events)) as server:
        ran = trial.drive(server.port, timeout_s=0.5)[0]
    assert met_deadline(ran, 0.5)
    assert ran.content_events > 1000
    whole = (ran.bytes_received - len(CHUNKED)) // len(chunk(token()))
    assert whole - 1 <= ran.content_events <= whole + 1
    assert trial.words("tokens_used", "tokens_lost") == [1000, ran.content_events - 1000]
    assert ran.first_token_ns < ran.last_token_ns <= ran.ended_ns


@pytest.mark.alone
def test_endless_stream_does_not_hold_up_another_row(tmp_path: Path, engine: str) -> None:
    """Rows of other connections go out, and end, while four streams flood."""
    rows = [*[Row()] * 4, *[Row(0.1 + i / 100, target=1) for i in range(30)]]
    with (
        raw_server(flood(CHUNKED, chunk(token()) * 100)) as floods,
        raw_server(keep_answering(GOOD)) as good,
    ):
        ran = Trial(tmp_path, engine, *rows).drive(floods.port, good.port, timeout_s=1.5)
    assert all(met_deadline(each, 1.5) for each in ran[:4])
    assert {each.cause for each in ran[4:]} == {Cause.STREAM_END}


@pytest.mark.alone
def test_no_end_of_the_body_after_the_stream_s_end(tmp_path: Path, engine: str) -> None:
    """[DONE] ends the row; what comes after it belongs to nobody and holds up nothing."""
    events = (token(finish="length"), usage(1), DONE)
    head = CHUNKED + b"".join(map(chunk, events))
    rows = (Row(), Row(0.3))
    with raw_server(flood(head, chunk(b": more\n\n")), answer(GOOD)) as server:
        first, after = Trial(tmp_path, engine, *rows).drive(server.port, timeout_s=0.8)
    assert (first.cause, first.content_events) == (Cause.STREAM_END, 1)
    assert (after.cause, after.conn_reused) == (Cause.STREAM_END, 0)


# ---------------------------------------------------------------- silence and dropped SYNs


def test_accepted_by_the_kernel_alone(tmp_path: Path, engine: str) -> None:
    with never_accepts() as port:
        ran = Trial(tmp_path, engine, Row()).drive(port, timeout_s=0.4)[0]
    assert met_deadline(ran, 0.4)
    assert ran.connect_ns > 0
    assert ran.dispatch_ns < ran.sent_ns < ran.ended_ns
    assert (ran.bytes_received, ran.headers_ns) == (0, None)


@pytest.mark.parametrize("dropping", [filter_drops_syn, full_queue_drops_syn])
def test_syn_dropped(
    tmp_path: Path, engine: str, dropping: Callable[[], contextlib.AbstractContextManager[int]]
) -> None:
    """The dial never ends: censored, nothing was sent, and the other target is served."""
    rows = (Row(), Row(0.05), Row(0.1, target=1))
    with dropping() as port, raw_server(answer(GOOD)) as server:
        *lost, good = Trial(tmp_path, engine, *rows).drive(port, server.port, timeout_s=0.4)
    for ran in lost:
        assert met_deadline(ran, 0.4)
        assert ran.connect_ns is ran.sent_ns is None
        assert (ran.bytes_received, ran.conn_reused) == (0, 0)
    assert good.cause == Cause.STREAM_END


def test_server_never_reads(tmp_path: Path, engine: str) -> None:
    """8 MB of request into a full send buffer."""
    tail = bytes(8 * MIB)
    trial = Trial(tmp_path, engine, Row(head=HEAD % len(tail)))

    def silent(peer: Peer) -> None:
        trial.until(lambda ran: ran.ended_ns)

    with raw_server(silent, receive_bytes=65_536) as server:
        ran = trial.drive(server.port, tails=[tail], timeout_s=0.6)[0]
    assert met_deadline(ran, 0.6)
    assert ran.connect_ns > 0
    assert (ran.sent_ns, ran.bytes_received) == (None, 0)


# ---------------------------------------------------------------- resets, refusals, half-closed


STREAMED = CHUNKED + chunk(token()) * 2
RESETS: dict[str, tuple[Script, int]] = {
    "at accept": (Peer.reset, 0),
    "after the request": (after_request(Peer.reset), 0),
    "in mid-stream": (answer(STREAMED, then=Peer.reset), len(STREAMED)),
}


@pytest.mark.parametrize("when", RESETS)
def test_storm_of_resets(tmp_path: Path, engine: str, when: str) -> None:
    """Every connection is reset: what had come until then is kept, byte for byte."""
    script, received = RESETS[when]
    trial = Trial(tmp_path, engine, *[Row(i / 1000) for i in range(300)], tokens=600)
    with raw_server(script) as server:
        ran = trial.drive(server.port)
        assert len(server.peers) == 300
    assert {each.cause for each in ran} == {Cause.RESET}
    assert {each.errno_code for each in ran} <= {errno.ECONNRESET, errno.EPIPE}
    assert {each.bytes_received for each in ran} == {received}
    assert {each.content_events for each in ran} == {2 if received else 0}
    assert trial.words("dials", "reuses") == [300, 0]


@pytest.mark.alone
def test_ten_thousand_refused_at_once(tmp_path: Path, engine: str) -> None:
    found = in_child(refused_at_once, engine, str(tmp_path), 10_000)
    assert found["endings"] == {f"CONNECT {errno.ECONNREFUSED}": 10_000}
    assert (found["early"], found["unended"], found["sent"]) == (0, 0, 0)


def test_server_ends_its_side_while_the_request_is_sent(tmp_path: Path, engine: str) -> None:
    """A head, then FIN, with most of an 8 MB request unread."""
    tail = bytes(8 * MIB)
    trial = Trial(tmp_path, engine, Row(head=HEAD % len(tail)))

    def script(peer: Peer) -> None:
        peer.send(CHUNKED)
        trial.until(lambda ran: ran.headers_ns)
        peer.sock.shutdown(socket.SHUT_WR)
        trial.until(lambda ran: ran.ended_ns)

    with raw_server(script, receive_bytes=65_536) as server:
        ran = trial.drive(server.port, tails=[tail])[0]
    assert (ran.cause, ran.http_status, ran.sent_ns) == (Cause.BODY_CUT, 200, None)
    assert ran.bytes_received == len(CHUNKED)


@pytest.mark.parametrize("asked", [True, False])
def test_server_shuts_its_reading_side(tmp_path: Path, engine: str, asked: bool) -> None:
    """That is not seen on the wire: the answer still comes, and counts."""

    def script(peer: Peer) -> None:
        if asked:
            peer.request()
        peer.sock.shutdown(socket.SHUT_RD)
        peer.send(*(GOOD[i : i + 50] for i in range(0, len(GOOD), 50)))
        fin(peer)

    ran = against(tmp_path, engine, script)
    assert (ran.cause, ran.content_events) == (Cause.STREAM_END, 3)
    assert ran.bytes_received == len(GOOD)


# ---------------------------------------------------------------- addresses and keep-alive


def test_ipv6_only(tmp_path: Path, engine: str) -> None:
    rows = (Row(), Row(target=1), Row(target=2))
    trial = Trial(tmp_path, engine, *rows)
    with only_ipv6(answer(GOOD)) as port:
        good, wrong, nobody = trial.drive(("::1", port), (HOST, port), ("::1", closed_port()))
    assert (good.cause, good.content_events) == (Cause.STREAM_END, 3)
    refused = (Cause.CONNECT, errno.ECONNREFUSED)
    assert [(ran.cause, ran.errno_code) for ran in (wrong, nobody)] == [refused] * 2


def numbered(rows: int) -> list[bytes]:
    """A head for each row that the server can tell from the others."""
    return [b"POST /%d HTTP/1.1\r\nContent-Length: 0\r\n\r\n" % i for i in range(rows)]


@pytest.mark.parametrize(("end", "cause"), [(fin, Cause.NO_RESPONSE), (Peer.reset, Cause.RESET)])
def test_keep_alive_races_are_not_retried(
    tmp_path: Path, engine: str, end: Callable[[Peer], None], cause: Cause
) -> None:
    """Twenty connections end as the second request of each comes: it is lost, and asked once."""
    heads = numbered(40)
    rows = [Row(0.0 if i < 20 else REUSED_S + i / 1000, head=head) for i, head in enumerate(heads)]
    held = threading.Barrier(20)

    def script(peer: Peer) -> None:
        peer.request()
        held.wait(10)  # so that no connection serves two of the first rows
        peer.send(GOOD)
        peer.request()
        end(peer)

    trial = Trial(tmp_path, engine, *rows)
    with raw_server(script) as server:
        ran = trial.drive(server.port)
        asked = [request for peer in server.peers for request in peer.requests]
    assert {each.cause for each in ran[:20]} == {Cause.STREAM_END}
    for lost in ran[20:]:
        assert (lost.cause, lost.conn_reused, lost.bytes_received) == (cause, 1, 0)
        assert lost.conn_idle_ns > 0
    assert sorted(asked) == sorted(heads)
    assert trial.words("dials", "reuses") == [20, 20]


def test_server_closes_about_when_the_next_request_is_written(tmp_path: Path, engine: str) -> None:
    """A real race, either way: a row that fails went out on a used connection; none goes twice."""
    heads = numbered(60)
    late = [REUSED_S - 0.015 + i / 1000 for i in range(30)]
    rows = [Row(at, head=head) for at, head in zip([0.0] * 30 + late, heads, strict=True)]
    held = threading.Barrier(30)

    def script(peer: Peer) -> None:
        peer.request()
        if len(server.peers) <= 30:
            held.wait(10)
        peer.send(GOOD)
        time.sleep(REUSED_S)
        fin(peer)

    trial = Trial(tmp_path, engine, *rows)
    with raw_server(script) as server:
        ran = trial.drive(server.port)
    for each in ran[30:]:
        if each.cause != Cause.STREAM_END:
            assert each.cause in (Cause.NO_RESPONSE, Cause.RESET)
            assert (each.conn_reused, each.bytes_received) == (1, 0)
    assert sum(trial.words("dials", "reuses")) == 60


# ---------------------------------------------------------------- heads without end


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
HEAD_LIMIT = 64 * 1024


def test_flood_of_informational_answers(tmp_path: Path, engine: str) -> None:
    """Each is short, so only a bound over all of them ends it before the deadline."""
    ran = against(tmp_path, engine, flood(b"", CONTINUE * 40))
    assert (ran.cause, ran.http_status, ran.headers_ns) == (Cause.BAD_HTTP, None, None)
    assert HEAD_LIMIT < ran.bytes_received < MIB


def test_informational_answers_before_a_good_one(tmp_path: Path, engine: str) -> None:
    ran = against(tmp_path, engine, answer(CONTINUE * 100, GOOD))
    assert (ran.cause, ran.http_status, ran.content_events) == (Cause.STREAM_END, 200, 3)
    assert ran.bytes_received == len(CONTINUE) * 100 + len(GOOD)


@pytest.mark.parametrize(
    ("length", "cause"), [(HEAD_LIMIT - 1024, Cause.STREAM_END), (HEAD_LIMIT, Cause.BAD_HTTP)]
)
def test_one_header_line_of_64_kib(tmp_path: Path, engine: str, length: int, cause: Cause) -> None:
    line = b"X-Long: " + b"x" * (length - 10) + b"\r\n"
    ran = against(tmp_path, engine, answer(GOOD.replace(b"\r\n", b"\r\n" + line, 1)))
    assert (ran.cause, ran.http_status) == (cause, 200 if cause == Cause.STREAM_END else None)
    assert ran.content_events == (3 if cause == Cause.STREAM_END else 0)


# ---------------------------------------------------------------- memory

BODY = 100 * MIB
HEAVY = {
    "comments": (STREAM, b"", b": " + b"x" * 1021 + b"\n", Cause.NO_END),
    "one line": (STREAM, b'data: {"a":"', b"x" * 1024, Cause.BAD_EVENT),
    "one object": (STREAM, b'data: {"a":{', b'"a":[1],' * 128, Cause.BAD_EVENT),
    "refusal": (b"HTTP/1.1 500 Oops\r\n", b"", b"words \r\n" * 128, Cause.HTTP_STATUS),
}


@pytest.mark.parametrize("kind", HEAVY)
def test_a_body_of_100_mb_without_an_event(tmp_path: Path, engine: str, kind: str) -> None:
    head, begin, piece, cause = HEAVY[kind]
    head += b"Content-Length: %d\r\n\r\n" % (BODY + len(begin)) + begin
    with raw_server(flood(head, piece * 1024, BODY // MIB)) as server:
        found = in_child(memory_of_a_body, engine, str(tmp_path), server.port)
    assert (found["cause"], found["events"]) == (cause, 0)
    assert found["bytes_received"] == len(head) + BODY
    assert found["grew"] < 0.2 * BODY


@pytest.mark.alone
@pytest.mark.slow
def test_memory_a_stream(tmp_path: Path, engine: str) -> None:
    """2000 streams at once: 4 KiB each in the process, beside the sockets in the kernel.

    The asyncio engine, whose streams are Python objects, is held to four times that.
    """
    with trickling() as port:
        found = in_child(memory_of_streams, engine, str(tmp_path), port, 2000)
    assert found["causes"] == {"DEADLINE": 2000}
    assert (found["most"], found["least"] > 0) == (2000, True)
    assert _native.CONNECTION_BYTES <= 4096
    assert found["grew"] <= 2000 * {"native": 4096, "asyncio": 4 * 4096}[engine]
