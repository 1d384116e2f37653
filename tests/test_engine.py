"""The native engine against a scripted server: every cause, and every column.

Never: asserts how long something took; a script that needs the engine to have read something waits
for the slab to say so.
Plan: one answer a cause; connections and their reuse; tokens and reads; sending; limits and stops;
stamps; recorded bytes. Two rows of one connection are half a second apart.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from raw_server import (
    CHUNKED,
    DONE,
    GOOD,
    HEAD,
    LAST_CHUNK,
    STREAM,
    Bench,
    Peer,
    Ran,
    Row,
    Script,
    answer,
    chunk,
    closed_port,
    keep_answering,
    plain,
    raw_server,
    stream,
    token,
    usage,
)

from percentes_fast.errors import ClientError
from percentes_fast.schema import Cause, Kind

LATER_S = 0.5
RECORDED = Path(__file__).parent / "data" / "vllm-0.32.0" / "recorded.json"


def ask(path: Path, script: Script, row: Row | None = None, **options: Any) -> Ran:
    """One row against one script."""
    with raw_server(script) as server:
        return Bench(path, row or Row()).run(server.port, **options)[0]


def fin(peer: Peer) -> None:
    peer.sock.shutdown(socket.SHUT_WR)
    peer.await_close()


# ---------------------------------------------------------------- one answer a cause


def error_event(told: str) -> bytes:
    return CHUNKED + chunk(f'data: {{"error":{{"message":"{told}"}}}}\n\n'.encode())


ANSWERS: dict[str, tuple[bytes, Cause, dict[str, Any]]] = {
    "stream": (GOOD, Cause.STREAM_END, {"content_events": 3, "finish": "length"}),
    "usage": (GOOD, Cause.STREAM_END, {"prompt_tokens": 7, "completion_tokens": 3}),
    "no end": (stream(token(finish="stop")), Cause.NO_END, {"content_events": 1, "finish": "stop"}),
    "empty body": (plain("200 OK", b""), Cause.NO_END, {"content_events": 0}),
    "ssh": (b"SSH-2.0-OpenSSH\r\n", Cause.BAD_HTTP, {"http_status": None}),
    "bad chunk": (CHUNKED + b"xyz\r\n", Cause.BAD_HTTP, {"http_status": 200}),
    "bad event": (stream(token(), b'data: {"a":]}\n\n'), Cause.BAD_EVENT, {"content_events": 1}),
    "bare words": (stream(b"data: hello\n\n"), Cause.BAD_EVENT, {}),
    "error": (error_event("engine died"), Cause.ERROR_EVENT, {"message": "engine died"}),
    "named error": (stream(b"event: error\ndata: no\n\n"), Cause.ERROR_EVENT, {"message": None}),
    "vllm": (
        plain("400 Bad Request", b'{"error":{"message":"too long","type":"Bad","code":400}}'),
        Cause.HTTP_STATUS,
        {"http_status": 400, "message": "too long"},
    ),
    "detail": (
        plain("404 Not Found", b'{"detail":"Not Found"}'),
        Cause.HTTP_STATUS,
        {"http_status": 404, "message": "Not Found"},
    ),
    "words": (
        plain("503 Service Unavailable", b"upstream is down\n"),
        Cause.HTTP_STATUS,
        {"http_status": 503, "message": "upstream is down\n"},
    ),
    "long words": (
        plain("500 Oops", b"x" * 300),
        Cause.HTTP_STATUS,
        {"message": "x" * 256},
    ),
    "redirect": (
        plain("307 Temporary", b"", b"Location: /x"),
        Cause.HTTP_STATUS,
        {"message": None},
    ),
    "replica": (
        plain("200 OK", token() + DONE, b"X-Replica: r-7"),
        Cause.STREAM_END,
        {"replica": "r-7"},
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("cut", ["whole", "by byte"])
def test_answer(tmp_path: Path, name: str, cut: str) -> None:
    sent, cause, expected = ANSWERS[name]
    pieces = [sent] if cut == "whole" else [sent[i : i + 1] for i in range(len(sent))]
    ran = ask(tmp_path, answer(*pieces), replica_header="X-Replica")
    assert ran.cause == cause
    assert {key: getattr(ran, key) for key in expected} == expected
    assert ran.errno_code == 0
    assert ran.dispatch_ns <= ran.sent_ns <= ran.ended_ns
    if ran.http_status is not None:
        assert ran.sent_ns <= ran.headers_ns <= ran.ended_ns
    if ran.content_events:
        assert ran.headers_ns <= ran.first_token_ns <= ran.last_token_ns <= ran.ended_ns
        assert ran.first_visible_token_ns == ran.first_token_ns
    else:
        assert ran.first_token_ns is ran.last_token_ns is ran.first_token_shared_read is None


@pytest.mark.parametrize(
    ("sent", "end", "cause", "number"),
    [
        (b"", fin, Cause.NO_RESPONSE, 0),
        (b"HTTP/1.1 2", fin, Cause.BODY_CUT, 0),
        (CHUNKED, fin, Cause.BODY_CUT, 0),
        (CHUNKED + chunk(token())[:-9], fin, Cause.BODY_CUT, 0),
        (STREAM + b"\r\n" + token() + DONE, fin, Cause.STREAM_END, 0),
        (STREAM + b"\r\n" + token(), fin, Cause.NO_END, 0),
        (STREAM + b"\r\n" + token()[:-9], fin, Cause.BAD_EVENT, 0),
        (plain("500 Oops", b"x" * 9)[:-4], fin, Cause.HTTP_STATUS, 0),
        (b"", Peer.reset, Cause.RESET, errno.ECONNRESET),
        (b"HTTP/1.1 2", Peer.reset, Cause.RESET, errno.ECONNRESET),
        (CHUNKED, Peer.reset, Cause.RESET, errno.ECONNRESET),
        (CHUNKED + chunk(token()), Peer.reset, Cause.RESET, errno.ECONNRESET),
        (GOOD, Peer.reset, Cause.STREAM_END, 0),
    ],
)
def test_closed_by_the_server(
    tmp_path: Path, sent: bytes, end: Callable[[Peer], None], cause: Cause, number: int
) -> None:
    """FIN and RST in each state; what had come until then is kept."""
    bench = Bench(tmp_path, Row())

    def then(peer: Peer) -> None:
        bench.until(lambda ran: ran.bytes_received == len(sent))
        end(peer)

    with raw_server(answer(sent, then=then)) as server:
        ran = bench.run(server.port)[0]
    assert (ran.cause, ran.errno_code, ran.bytes_received) == (cause, number, len(sent))
    assert ran.http_status == (None if len(sent) < 12 else int(sent[9:12]))
    assert ran.content_events == sent.count(b"}]}\n\n")
    assert ran.ended_ns is not None


def test_refused(tmp_path: Path) -> None:
    ran = Bench(tmp_path, Row()).run(closed_port())[0]
    assert (ran.cause, ran.errno_code) == (Cause.CONNECT, errno.ECONNREFUSED)
    assert ran.dispatch_ns <= ran.ended_ns
    assert ran.sent_ns is ran.connect_ns is ran.headers_ns is ran.conn_idle_ns is None
    assert ran.conn_reused == 0


@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
def test_health_wants_a_status_and_a_whole_body(tmp_path: Path, status: str) -> None:
    row = Row(kind=Kind.HEALTH, head=b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    ran = ask(tmp_path, answer(plain(status, b"data: {")), row)
    good = status.startswith("200")
    assert ran.cause == (Cause.PLAIN_END if good else Cause.HTTP_STATUS)
    assert (ran.content_events, ran.message) == (0, None if good else "data: {")


@pytest.mark.parametrize(
    "sent", [b"", CHUNKED, CHUNKED + chunk(token()), plain("500 X", b"y")[:-1]]
)
def test_deadline(tmp_path: Path, sent: bytes) -> None:
    timeouts = (0.3, 20.0, 20.0, 20.0)
    ran = ask(tmp_path, answer(sent), timeouts_s=timeouts)
    assert (ran.cause, ran.errno_code) == (Cause.DEADLINE, 0)
    assert ran.ended_ns - ran.dispatch_ns >= 300_000_000


def test_deadlines_are_of_the_kind(tmp_path: Path) -> None:
    rows = (Row(), Row(kind=Kind.PROBE), Row(kind=Kind.CANARY))
    with raw_server(answer()) as server:
        load, probe, canary = Bench(tmp_path, *rows).run(
            server.port, timeouts_s=(0.9, 0.3, 0.6, 20.0)
        )
    assert load.cause == probe.cause == canary.cause == Cause.DEADLINE
    assert probe.ended_ns < canary.ended_ns < load.ended_ns


# ---------------------------------------------------------------- connections


def test_reuse_takes_the_most_recently_used(tmp_path: Path) -> None:
    second = b"POST /second HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    bench = Bench(tmp_path, Row(), Row(head=second), Row(LATER_S))

    def script(peer: Peer) -> None:
        head = peer.request()
        if b"/second" in head:
            bench.until(lambda ran: ran.ended_ns)
        peer.send(GOOD)
        peer.request()
        peer.send(GOOD)

    with raw_server(script) as server:
        first, last, again = bench.run(server.port)
    assert {first.cause, last.cause, again.cause} == {Cause.STREAM_END}
    assert (first.conn_reused, last.conn_reused, again.conn_reused) == (0, 0, 1)
    assert again.conn_id == last.conn_id != first.conn_id
    assert again.conn_idle_ns == again.dispatch_ns - last.ended_ns
    assert again.connect_ns is None
    assert first.connect_ns > 0
    assert (bench.slab.word("dials"), bench.slab.word("reuses")) == (2, 1)


def test_not_reused_when_idle_too_long(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row(), Row(LATER_S))
    with raw_server(keep_answering(GOOD)) as server:
        rows = bench.run(server.port, idle_reuse_ns=100_000_000)
    assert [ran.conn_reused for ran in rows] == [0, 0]
    assert rows[1].conn_idle_ns is None
    assert rows[1].connect_ns > 0


@pytest.mark.parametrize(
    "first",
    [
        plain("200 OK", token() + DONE, b"Connection: close"),
        plain("200 OK", token() + DONE).replace(b"1.1", b"1.0", 1),
        GOOD + b"junk",
    ],
)
def test_not_reused_after_an_answer_that_ends_it(tmp_path: Path, first: bytes) -> None:
    bench = Bench(tmp_path, Row(), Row(LATER_S))
    with raw_server(answer(first), answer(GOOD)) as server:
        rows = bench.run(server.port)
        assert len(server.peers) == 2
    assert [ran.cause for ran in rows] == [Cause.STREAM_END] * 2
    assert [ran.conn_reused for ran in rows] == [0, 0]


@pytest.mark.parametrize("end", [fin, Peer.reset])
def test_closed_while_idle(tmp_path: Path, end: Callable[[Peer], None]) -> None:
    bench = Bench(tmp_path, Row(), Row(LATER_S))
    with raw_server(answer(GOOD, then=end), answer(GOOD)) as server:
        rows = bench.run(server.port)
    assert [ran.cause for ran in rows] == [Cause.STREAM_END] * 2
    assert rows[1].conn_reused == 0
    assert bench.slab.word("closed_while_idle") == 1


@pytest.mark.parametrize(("end", "cause"), [(fin, Cause.NO_RESPONSE), (Peer.reset, Cause.RESET)])
def test_keep_alive_race(tmp_path: Path, end: Callable[[Peer], None], cause: Cause) -> None:
    """The server ends an idle connection as the next request is on its way."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(GOOD)
        peer.request()
        end(peer)

    bench = Bench(tmp_path, Row(), Row(LATER_S))
    with raw_server(script) as server:
        first, lost = bench.run(server.port)
    assert (first.cause, lost.cause) == (Cause.STREAM_END, cause)
    assert lost.conn_reused == 1
    assert lost.conn_idle_ns > 0
    assert lost.bytes_received == 0


def test_reset_while_dialing_is_a_refusal(tmp_path: Path) -> None:
    """A row of each of two targets: one refuses, the other's answers go on."""
    bench = Bench(tmp_path, Row(), Row(target=1), Row(LATER_S, target=1))
    with raw_server(keep_answering(GOOD)) as server:
        refused, good, again = bench.run(closed_port(), server.port)
    assert refused.cause == Cause.CONNECT
    assert (good.cause, again.cause) == (Cause.STREAM_END, Cause.STREAM_END)
    assert again.conn_reused == 1


# ---------------------------------------------------------------- tokens and reads


def test_many_events_in_one_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row())
    with raw_server(answer(GOOD)) as server:
        ran = bench.run(server.port)[0]
    assert bench.tokens("same_read") == [0, 1, 1]
    assert bench.tokens("event") == [0, 1, 2]
    assert bench.tokens("row") == [0, 0, 0]
    assert set(bench.tokens("time_ns")) == {ran.first_token_ns} == {ran.last_token_ns}
    assert ran.first_token_shared_read == 1


def test_an_event_a_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row())

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED)
        bench.until(lambda ran: ran.headers_ns)
        for count, event in enumerate((token(), token(), token(finish="stop")), 1):
            peer.send(chunk(event)[:20], chunk(event)[20:])
            bench.until(lambda ran, count=count: ran.content_events == count)
        peer.send(chunk(usage(3)) + chunk(DONE) + LAST_CHUNK)
        peer.await_close()

    with raw_server(script) as server:
        ran = bench.run(server.port)[0]
    times = bench.tokens("time_ns")
    assert bench.tokens("same_read") == [0, 0, 0]
    assert times == sorted(set(times))
    assert (ran.first_token_ns, ran.last_token_ns) == (times[0], times[-1])
    assert ran.first_token_shared_read == 0
    assert ran.headers_ns < ran.first_token_ns


def test_reasoning_is_a_token_but_not_a_visible_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row())
    thought = token().replace(b'"content"', b'"reasoning_content"')

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED + chunk(thought))
        bench.until(lambda ran: ran.content_events == 1)
        peer.send(chunk(token(finish="stop")) + chunk(DONE) + LAST_CHUNK)
        peer.await_close()

    with raw_server(script) as server:
        ran = bench.run(server.port)[0]
    assert ran.content_events == 2
    assert ran.first_token_ns < ran.first_visible_token_ns == ran.last_token_ns


def running_usage(text: str, tokens: int) -> bytes:
    delta = {"choices": [{"delta": {"content": text}}], "usage": {"completion_tokens": tokens}}
    return f"data: {json.dumps(delta)}\n\n".encode()


def test_running_usage_tells_tokens_without_text(tmp_path: Path) -> None:
    """continuous_usage_stats: half a character is a token whose text is empty."""
    counts = [("", 0), ("a", 1), ("", 2), ("", 2), ("b", 3)]
    events = [running_usage(*count) for count in counts]
    ran = ask(tmp_path, answer(stream(*events, token("", "length"), usage(3), DONE)))
    assert (ran.cause, ran.content_events, ran.completion_tokens) == (Cause.STREAM_END, 3, 3)


def test_role_only_and_empty_events_are_no_tokens(tmp_path: Path) -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    once = running_usage("", 5)  # usage told once is no running count
    ran = ask(tmp_path, answer(stream(role, b": ping\n\n", once, token("", "stop"), DONE)))
    assert (ran.cause, ran.content_events, ran.first_token_ns) == (Cause.STREAM_END, 0, None)
    assert ran.completion_tokens == 5


@pytest.mark.parametrize("marked", [True, False])
def test_end_by_finish(tmp_path: Path, marked: bool) -> None:
    events = (token(), token(finish="stop" if marked else None))
    ran = ask(tmp_path, answer(stream(*events)), end_by_finish=True)
    assert ran.cause == (Cause.STREAM_END if marked else Cause.NO_END)


# ---------------------------------------------------------------- sending


def test_slow_reader_gets_every_byte(tmp_path: Path) -> None:
    """More than the socket buffers hold: many partial sends, from head into tail."""
    tail = bytes(range(256)) * 65_536
    bench = Bench(tmp_path, Row(head=HEAD % len(tail)))
    with raw_server(answer(GOOD), receive_bytes=65_536) as server:
        ran = bench.run(server.port, tails=[tail])[0]
        assert server.peers[0].requests[0].endswith(b"\r\n\r\n" + tail)
    assert ran.cause == Cause.STREAM_END
    assert ran.dispatch_ns < ran.sent_ns <= ran.headers_ns


def half_read(peer: Peer, sent: bytes, bench: Bench) -> None:
    peer.sock.recv(1000)
    peer.send(sent)
    if sent:
        bench.until(lambda ran: ran.headers_ns)


@pytest.mark.parametrize(
    ("sent", "cause"),
    [
        (b"", Cause.RESET),
        (plain("413 Too Large", b"no"), Cause.HTTP_STATUS),
        (GOOD, Cause.STREAM_END),
    ],
)
def test_answered_before_the_request_was_sent(tmp_path: Path, sent: bytes, cause: Cause) -> None:
    """The rest of the request is not owed any more, and the connection not used again."""
    tail = b"x" * 2**24
    bench = Bench(tmp_path, Row(head=HEAD % len(tail)), Row(LATER_S))
    first = partial(half_read, sent=sent, bench=bench)
    with raw_server(first, answer(GOOD), receive_bytes=65_536) as server:
        ran, after = bench.run(server.port, tails=[tail])
    assert (ran.cause, ran.sent_ns) == (cause, None)
    assert (after.conn_reused, after.conn_id) == (0, 1)


# ---------------------------------------------------------------- limits and stops


def test_full_token_buffer_is_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row(), tokens=2)
    with raw_server(answer(stream(*[token()] * 5, DONE))) as server:
        ran = bench.run(server.port)[0]
    assert ran.content_events == 5
    assert (bench.slab.word("tokens_used"), bench.slab.word("tokens_lost")) == (2, 3)


def test_full_message_buffer_is_counted_once_a_row(tmp_path: Path) -> None:
    refusal = plain("500 Oops", b'{"detail":"out of luck"}')
    bench = Bench(tmp_path, Row(), Row(0.01), Row(0.02), messages=1)
    pieces = [refusal[i : i + 7] for i in range(0, len(refusal), 7)]
    with raw_server(keep_answering(*pieces)) as server:
        rows = bench.run(server.port)
    assert sorted(ran.message or "" for ran in rows) == ["", "", "out of luck"]
    assert bench.slab.word("messages_lost") == 2


def test_no_descriptor_left(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row(), Row(0.01))
    told = partial(bench.until, lambda ran: ran.cause == Cause.NO_DESCRIPTOR, 1)

    def script(peer: Peer) -> None:
        peer.request()
        told()
        peer.send(GOOD)
        peer.await_close()

    with raw_server(script) as server:
        first, second = bench.run(server.port, max_connections=1)
    assert (first.cause, second.cause) == (Cause.STREAM_END, Cause.NO_DESCRIPTOR)
    assert (second.errno_code, second.sent_ns) == (errno.EMFILE, None)


def test_stop_word(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row(), Row(3600.0), Row(3600.0))

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(CHUNKED + chunk(token()))
        bench.until(lambda ran: ran.content_events)
        bench.slab.set_word("stop", 1)
        peer.await_close()

    with raw_server(script) as server:
        rows = bench.run(server.port)
    assert bench.interrupted
    assert [ran.cause for ran in rows] == [Cause.STOPPED, Cause.NOT_DUE, Cause.NOT_DUE]
    assert rows[0].content_events == 1
    assert rows[1].dispatch_ns is None
    assert 0 < bench.slab.word("stopped_ns") <= rows[0].ended_ns


def test_own_figures_add_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, *[Row(0.02 * i) for i in range(60)])
    with raw_server(keep_answering(GOOD)) as server:
        rows = bench.run(server.port)
    used = bench.slab.word("seconds_used")
    column = {n: bench.slab.column(f"second_{n}")[:used] for n in ("end_ns", "sent", "skew_max_ns")}
    assert [ran.cause for ran in rows] == [Cause.STREAM_END] * 60
    assert sum(column["sent"]) == 60
    assert max(column["skew_max_ns"]) == max(r.dispatch_ns - r.intended_ns for r in rows)
    assert list(column["end_ns"]) == sorted(column["end_ns"])
    assert min(r.dispatch_ns - r.intended_ns for r in rows) >= 0
    assert bench.slab.word("dials") + bench.slab.word("reuses") == 60
    assert (bench.slab.word("in_flight"), bench.slab.word("next_row")) == (0, 60)


@pytest.mark.parametrize(
    ("column", "value"), [("kind", 4), ("target", 1), ("tail", 1), ("head_length", 999)]
)
def test_unsound_slab_is_refused(tmp_path: Path, column: str, value: int) -> None:
    bench = Bench(tmp_path, Row())
    bench.slab.column(column)[0] = value
    with pytest.raises(ClientError, match="damaged slab"):
        bench.run(1)


def test_refused_engine_leaves_other_descriptors_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row())
    before = os.fstat(0)
    with pytest.raises(ClientError, match="targets"):
        bench.run()
    assert os.path.samestat(os.fstat(0), before)


# ---------------------------------------------------------------- kernel stamps


def test_kernel_stamps_stand_between_the_user_s(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Row(), Row(LATER_S))
    waiting = iter((0, 1))

    def script(peer: Peer) -> None:
        for row in waiting:
            peer.request()
            bench.until(lambda ran: ran.acked_kernel_wall_ns, row)
            peer.send(CHUNKED, chunk(token()), chunk(DONE) + LAST_CHUNK)

    with raw_server(script) as server:
        rows = bench.run(server.port)
    before, wall, after = bench.pair
    epoch_wall = wall + bench.epoch - (before + after) // 2
    slack = 2_000_000  # the two clocks' rates, and a pair that was interrupted
    for ran in rows:
        sent, acked = ran.sent_kernel_wall_ns - epoch_wall, ran.acked_kernel_wall_ns - epoch_wall
        got = ran.first_token_kernel_wall_ns - epoch_wall
        assert ran.dispatch_ns - slack <= sent <= acked <= got <= ran.first_token_ns + slack
    assert bench.slab.word("stamps_refused") == 0
    assert bench.slab.word("stamps_unmatched") == 0
    assert all(stamp > 0 for stamp in bench.tokens("kernel_wall_ns"))


def test_without_kernel_stamps(tmp_path: Path) -> None:
    ran = ask(tmp_path, answer(GOOD), stamps=False)
    assert ran.cause == Cause.STREAM_END
    assert ran.sent_kernel_wall_ns is ran.first_token_kernel_wall_ns is None


# ---------------------------------------------------------------- recorded bytes


def recorded() -> dict[str, Any]:
    return json.loads(RECORDED.read_text()) if RECORDED.exists() else {"streams": {}, "errors": {}}


def cuts(data: bytes) -> Iterator[list[bytes]]:
    yield [data]
    yield [data[i : i + 97] for i in range(0, len(data), 97)]


@pytest.mark.parametrize("name", recorded()["streams"])
def test_recorded_stream(tmp_path: Path, name: str) -> None:
    told = recorded()["streams"][name]
    head = "\r\n".join(told["head"]).encode() + b"\r\n\r\n"
    body = b"".join(chunk(piece.encode()) for piece in told["chunks"]) + LAST_CHUNK
    texts = [json.loads(c[6:]) for c in told["chunks"] if c.startswith("data: {")]
    choices = [event["choices"][0] for event in texts if event["choices"]]
    given = [c.get("text") or c.get("delta", {}).get("content") for c in choices]
    for at, pieces in enumerate(cuts(head + body)):
        (tmp_path / str(at)).mkdir()
        ran = ask(tmp_path / str(at), answer(*pieces))
        assert (ran.cause, ran.finish, ran.http_status) == (Cause.STREAM_END, "length", 200)
        assert ran.content_events >= sum(bool(text) for text in given) > 0
        if "usage" in name:
            assert ran.completion_tokens == told["request"]["max_tokens"]


@pytest.mark.parametrize("name", recorded()["errors"])
def test_recorded_error(tmp_path: Path, name: str) -> None:
    told = recorded()["errors"][name]
    body = json.loads(told["body"])
    expected = body["detail"] if "detail" in body else body["error"]["message"]
    ran = ask(tmp_path, answer(plain(f"{told['status']} Said", told["body"].encode())))
    assert (ran.cause, ran.http_status) == (Cause.HTTP_STATUS, told["status"])
    assert ran.message == " ".join(expected.split("\n"))[:256]
