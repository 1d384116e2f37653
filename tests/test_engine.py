"""What the native engine makes of an answer, against a scripted server: causes and columns.

Never: asserts how long something took; a script that needs the engine to have read something waits
for the slab to say so.
Plan: one answer a cause, and one end of the connection a state; tokens and reads; recorded bytes.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from percentes_fast.schema import NULL64, Cause, Kind
from raw_server import (
    CHUNKED,
    DONE,
    GOOD,
    LAST_CHUNK,
    STREAM,
    Bench,
    Peer,
    Row,
    answer,
    ask,
    chunk,
    closed_port,
    fin,
    plain,
    raw_server,
    stream,
    token,
    usage,
)

pytestmark = pytest.mark.usefixtures("both_engines")
RECORDED = Path(__file__).parent / "data" / "vllm-0.32.0" / "recorded.json"


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
    "named error": (stream(b"event: error\ndata: no\n\n"), Cause.ERROR_EVENT, {"message": "no"}),
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


def first_read(tmp_path: Path, *pieces: bytes) -> tuple[Bench, Any]:
    """A stream whose first pieces come in one segment, the rest once they were taken in."""
    bench = Bench(tmp_path, Row())

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"".join(pieces))
        bench.until(lambda ran: ran.content_events)
        peer.send(stream(token(finish="stop"), usage(2), DONE)[len(CHUNKED) :])
        peer.await_close()

    with raw_server(script) as server:
        return bench, bench.run(server.port)[0]


@pytest.mark.native_only
def test_a_head_in_the_read_of_the_first_token_leaves_its_stamp_exact(tmp_path: Path) -> None:
    bench, ran = first_read(tmp_path, CHUNKED, chunk(token()))
    assert ran.cause == Cause.STREAM_END
    assert ran.first_token_shared_read == 0
    assert bench.tokens("kernel_wall_ns")[0] == ran.first_token_kernel_wall_ns


@pytest.mark.native_only
@pytest.mark.parametrize("after", [b": ping\n", b"event: x\n", b"d"])
def test_bytes_after_the_first_token_make_its_stamp_a_bound(tmp_path: Path, after: bytes) -> None:
    later = chunk(after + b"\n" if after == b"d" else after)  # a field without a value
    bench, ran = first_read(tmp_path, CHUNKED, chunk(token()), later)
    assert ran.cause == Cause.STREAM_END
    assert ran.first_token_shared_read == 1
    assert ran.first_token_kernel_wall_ns is not None
    assert bench.tokens("kernel_wall_ns")[0] == NULL64


@pytest.mark.native_only
def test_the_line_feed_of_a_cr_lf_is_part_of_its_event(tmp_path: Path) -> None:
    event = token().replace(b"\n", b"\r\n")
    assert event.endswith(b"\r\n\r\n")
    bench, ran = first_read(tmp_path, CHUNKED, chunk(event))
    assert ran.first_token_shared_read == 0
    assert bench.tokens("kernel_wall_ns")[0] != NULL64


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
