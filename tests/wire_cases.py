"""The wire table: bytes of an answer, how the connection ended -> the right record.

Does: lists answers in HTTP, event-stream and JSON form, odd but legal, broken, and as real servers
sent them, each with the record that the contract demands.
Never: takes an expected value from an engine, reads a clock, or opens a socket.
Plan: builders of bytes and records; HTTP (heads, framing, ends, refusals, plain rows), events,
JSON, recorded bytes; at the end what engines and table do not agree on. RFC sections: of 9112.
"""

from __future__ import annotations

import errno
import json
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from percentes_fast.schema import Cause
from raw_server import CHUNKED, DONE, LAST_CHUNK, chunk, plain, stream, token, usage


@dataclass(frozen=True)
class Record:
    """The columns of a row, names resolved; the three flags say whether a time was written."""

    cause: Cause
    http_status: int | None
    content_events: int
    finish: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    message: str | None
    replica: str | None
    errno: int
    headers: bool
    first_token: bool
    first_visible_token: bool
    pooled: bool


@dataclass(frozen=True)
class Case:
    """An answer; end: "fin", "rst", or "deadline" (still open then); kind: "stream" or "plain"."""

    name: str
    data: bytes
    end: str
    record: Record
    kind: str = "stream"
    end_by_finish: bool = False
    replica_header: str = ""


def rec(
    cause: Cause,
    status: int | None = 200,
    events: int = 0,
    *,
    finish: str | None = None,
    counts: tuple[int | None, int | None] = (None, None),
    message: str | None = None,
    replica: str | None = None,
    errno: int = 0,
    visible: bool | None = None,
    pooled: bool = False,
) -> Record:
    """A record: a status means that its head was seen, an event that a token was, a visible one
    unless it says otherwise.
    """
    first = events > 0
    seen = first if visible is None else visible
    flags = (status is not None, first, seen, pooled)
    return Record(cause, status, events, finish, *counts, message, replica, errno, *flags)


END, CUT, BAD_EVENT = Cause.STREAM_END, Cause.BODY_CUT, Cause.BAD_EVENT
OK, OLD, OOPS = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 500 Oops\r\n"
CODED = b"Transfer-Encoding: chunked"
EVENTS = (token(), token(), token(finish="length"), usage(3), DONE)
BODY = b"".join(EVENTS)
CHUNKS = b"".join(map(chunk, EVENTS)) + LAST_CHUNK

WHOLE = rec(END, events=3, finish="length", counts=(7, 3), pooled=True)
CLOSED = replace(WHOLE, pooled=False)
REFUSED = rec(Cause.BAD_HTTP, None)
NOTHING = rec(Cause.NO_END, pooled=True)


def head(*lines: bytes, start: bytes = OK) -> bytes:
    return start + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def chunked(*lines: bytes, start: bytes = OK, body: bytes = CHUNKS) -> bytes:
    return head(*lines, CODED, start=start) + body


def sized(*lines: bytes, start: bytes = OK, body: bytes = BODY, length: int = -1) -> bytes:
    size = len(body) if length < 0 else length
    return head(*lines, b"Content-Length: %d" % size, start=start) + body


def fin(*rows: tuple[str, bytes, Record]) -> list[Case]:
    """Cases that the server ends by closing its side."""
    return [Case(name, data, "fin", record) for name, data, record in rows]


# ---------------------------------------------------------------- HTTP: status lines and headers

LIMIT = 64 * 1024
STATUS = fin(
    ("answer", chunked(), WHOLE),
    ("reason empty", chunked(start=b"HTTP/1.1 200 \r\n"), WHOLE),
    ("no reason, no space", chunked(start=b"HTTP/1.1 200\r\n"), WHOLE),
    ("reason of UTF-8", chunked(start=b"HTTP/1.1 200 Sch\xc3\xb6n\r\n"), WHOLE),
    ("reason of obs-text", chunked(start=b"HTTP/1.1 200 \xe9\xff\xa0\r\n"), WHOLE),
    ("reason that misleads", chunked(start=b'HTTP/1.1 200 "500"\tNo: 404\r\n'), WHOLE),
    ("HTTP/1.2", chunked(start=b"HTTP/1.2 200 OK\r\n"), WHOLE),
    ("HTTP/2.0", chunked(start=b"HTTP/2.0 200 OK\r\n"), REFUSED),
    ("HTTP in lower case", chunked(start=b"http/1.1 200 OK\r\n"), REFUSED),
    ("another protocol", b"SSH-2.0-OpenSSH_9.6\r\n", REFUSED),
    ("TLS alert", b"\x15\x03\x01\x00\x02\x02\x46", REFUSED),
    ("HTTP/0.9 body", b"<html>no</html>\n", REFUSED),
    ("events without a head", BODY, REFUSED),
    ("status of two digits", chunked(start=b"HTTP/1.1 20 OK\r\n"), REFUSED),
    ("status of four digits", chunked(start=b"HTTP/1.1 2000 OK\r\n"), REFUSED),
    ("status with a letter", chunked(start=b"HTTP/1.1 2OO OK\r\n"), REFUSED),
    ("two spaces before the status", chunked(start=b"HTTP/1.1  200 OK\r\n"), REFUSED),
    ("empty line before the status line", b"\r\n" + chunked(), REFUSED),
)
EARLY = b"HTTP/1.1 100 Continue\r\n\r\n"
HINTS = head(b"Link: </x>", b"Content-Length: 9", CODED, start=b"HTTP/1.1 103 Early Hints\r\n")
INTERIM = fin(
    ("100 before the answer", EARLY + chunked(), WHOLE),
    ("102 before the answer", b"HTTP/1.1 102 Processing\r\n\r\n" + chunked(), WHOLE),
    ("103 with headers", HINTS + chunked(), WHOLE),
    ("100, 102 and 103", EARLY + b"HTTP/1.1 102\r\n\r\n" + HINTS + sized(), WHOLE),
    ("100 before a refusal", EARLY + plain("503 X", b"busy"),
     rec(Cause.HTTP_STATUS, 503, message="busy", pooled=True)),
    ("endless 100", EARLY * (LIMIT // len(EARLY) + 2), REFUSED),
)  # fmt: skip
NO_BODY = fin(
    ("204", head(start=b"HTTP/1.1 204 No Content\r\n"), rec(Cause.HTTP_STATUS, 204, pooled=True)),
    ("204 said to be chunked", head(CODED, start=b"HTTP/1.1 204 x\r\n"),
     rec(Cause.HTTP_STATUS, 204, pooled=True)),
    ("204 with a body", sized(start=b"HTTP/1.1 204 x\r\n"), rec(Cause.HTTP_STATUS, 204)),
    ("304 with a length", head(b"Content-Length: 5", start=b"HTTP/1.1 304 x\r\n"),
     rec(Cause.HTTP_STATUS, 304, pooled=True)),
)  # fmt: skip
LONG = b"X-Long: " + b"v" * (LIMIT - 10) + b"\r\n"  # with its name and line end 64 KiB
HEADERS = fin(
    ("header names in any case", head(b"tRANSFER-eNCODING: cHUNKED") + CHUNKS, WHOLE),
    ("no space after the colon", head(b"Transfer-Encoding:chunked") + CHUNKS, WHOLE),
    ("white space around a value", head(b"Transfer-Encoding: \t chunked \t ") + CHUNKS, WHOLE),
    ("empty value", chunked(b"X-Empty:", b"X-Space: "), WHOLE),
    ("folded header", chunked(b"X-Long: a\r\n b\r\n\tc: d"), WHOLE),
    ("folded coding", head(b"Transfer-Encoding:\r\n chunked") + CHUNKS, WHOLE),
    ("folded length", head(b"Content-Length:\r\n\t %d" % len(BODY)) + BODY, WHOLE),
    ("obs-text in a value", chunked(b"X-Name: J\xf6rg \xff"), WHOLE),
    (
        "header names that begin like one",
        chunked(b"Content-Length-X: 1", b"Content-Leng: 2"),
        WHOLE,
    ),
    ("bare line feeds", (b"HTTP/1.1 200 OK\nContent-Length: %d\n\n" % len(BODY)) + BODY, WHOLE),
    ("bare line feed at the head's end", OK + CODED + b"\r\n\n" + CHUNKS, WHOLE),
    ("header line of 60 KiB", chunked(b"X-Long: " + b"v" * 61_432), WHOLE),
    ("header line of 64 KiB", OK + LONG + CODED + b"\r\n\r\n" + CHUNKS, REFUSED),
    ("endless header line", OK + b"X: " + b"v" * 70_000, REFUSED),
    ("endless header name", OK + b"X" * 70_000, REFUSED),
    ("endless headers", OK + b"X: y\r\n" * 11_000, REFUSED),
    ("endless reason", b"HTTP/1.1 200 " + b"x" * 70_000, REFUSED),
    ("space before the colon", head(b"Transfer-Encoding : chunked") + CHUNKS, REFUSED),
    ("space in a name", chunked(b"X Y: z"), REFUSED),
    ("empty name", chunked(b": x"), REFUSED),
    ("header without a colon", chunked(b"junk"), REFUSED),
    ("NUL in a name", chunked(b"X\0: y"), REFUSED),
    ("NUL in a value", chunked(b"X: \0"), REFUSED),
)
REPLICA = [
    Case(name, data, "fin", record, replica_header="X-Replica")
    for name, data, record in [
        ("replica", chunked(b"x-rEPLICA: \tr-7 "), replace(WHOLE, replica="r-7")),
        ("no replica", chunked(b"X-Replicas: r-7"), WHOLE),
        ("replica of a refusal", plain("500 X", b"no", b"X-Replica: r-7"),
         rec(Cause.HTTP_STATUS, 500, message="no", replica="r-7", pooled=True)),
        ("replica of a 100", b"HTTP/1.1 100\r\nX-Replica: r-6\r\n\r\n" + chunked(), WHOLE),
        ("replica in a trailer", chunked(body=CHUNKS[:-2] + b"X-Replica: r-6\r\n\r\n"), WHOLE),
        ("replica of 70 bytes", chunked(b"X-Replica: " + b"r" * 70),
         replace(WHOLE, replica="r" * 64)),
    ]
]  # fmt: skip

# ---------------------------------------------------------------- HTTP: length, chunks, close

SHORT = rec(Cause.NO_END, events=3, finish="length", counts=(7, 3))
LENGTHS = fin(
    ("length", sized(), WHOLE),
    ("length twice, equal", sized(b"Content-Length: %d" % len(BODY)), WHOLE),
    ("length in a list, equal", head(b"Content-Length: %d, %d" % ((len(BODY),) * 2)) + BODY, WHOLE),
    ("length with zeros", head(b"Content-Length: %030d" % len(BODY)) + BODY, WHOLE),
    ("lengths that differ", sized(b"Content-Length: 3"), REFUSED),
    ("lengths that differ in a list", head(b"Content-Length: 5, 6") + BODY, REFUSED),
    ("negative length", head(b"Content-Length: -1") + BODY, REFUSED),
    ("length with a sign", head(b"Content-Length: +%d" % len(BODY)) + BODY, REFUSED),
    ("hexadecimal length", head(b"Content-Length: 0x%x" % len(BODY)) + BODY, REFUSED),
    ("empty length", head(b"Content-Length:") + BODY, REFUSED),
    ("length past 64 bits", head(b"Content-Length: 18446744073709551617") + BODY, REFUSED),
    ("length 0", sized(body=b""), NOTHING),
    ("length and chunked", chunked(b"Content-Length: 3"), CLOSED),  # 6.3: chunked wins, then close
    ("chunked and length", head(CODED, b"Content-Length: 3") + CHUNKS, CLOSED),
    ("length that leaves the end marker out", sized(length=len(BODY) - len(DONE)), SHORT),
    ("length that ends in the end marker", sized(length=len(BODY) - 4),
     replace(SHORT, cause=BAD_EVENT)),
    ("length that ends in an event", sized(length=len(token()) * 2 - 9), rec(BAD_EVENT, events=1)),
    ("length that leaves line ends out", sized(length=len(BODY) - 2), CLOSED),
    ("length too long", sized(length=len(BODY) + 1), CLOSED),
    ("transfer coding gzip, chunked", head(b"Transfer-Encoding: gzip, chunked") + CHUNKS, REFUSED),
    ("transfer coding gzip", head(b"Transfer-Encoding: gzip") + CHUNKS, REFUSED),
    ("transfer coding identity", head(b"Transfer-Encoding: identity") + BODY, REFUSED),
    ("chunked twice", head(CODED, CODED) + CHUNKS, REFUSED),
    ("empty element in a coding list", head(b"Transfer-Encoding: ,chunked") + CHUNKS, WHOLE),
)  # fmt: skip

AT = CHUNKED + chunk(token())  # one token has come
BROKEN = rec(Cause.BAD_HTTP, events=1)
PADDED = b": " + b"p" * 27 + b"\n\n"  # 31 bytes: 1f
QUOTED = b';a;b=c;d="e;f,\\" g"\r\n'
CHUNK = fin(
    ("one chunk", chunked(body=chunk(BODY) + LAST_CHUNK), WHOLE),
    ("chunks of one byte", stream(*(b"%c" % byte for byte in BODY)), WHOLE),
    ("chunk of its own for a line feed", stream(BODY[:-1], BODY[-1:]), WHOLE),
    ("size in lower hex", chunked(body=b"1f\r\n" + PADDED + b"\r\n" + CHUNKS), WHOLE),
    ("size in upper hex", chunked(body=b"1F\r\n" + PADDED + b"\r\n" + CHUNKS), WHOLE),
    ("size with zeros", chunked(body=b"000" + chunk(BODY) + b"0000" + LAST_CHUNK), WHOLE),
    ("size of 30 digits, most zeros", chunked(body=b"0" * 28 + chunk(BODY) + LAST_CHUNK), WHOLE),
    ("extensions", chunked(body=chunk(BODY).replace(b"\r\n", QUOTED, 1) + b"0;x=1\r\n\r\n"), WHOLE),
    ("space before an extension", chunked(body=chunk(BODY).replace(b"\r\n", b" \t; a=b\r\n", 1)
     + LAST_CHUNK), WHOLE),
    ("endless extension", AT + b"5;" + b"x" * 70_000, BROKEN),
    ("trailers", chunked(body=CHUNKS[:-2] + b"X-Sum: 1\r\nY:\r\n z\r\n\r\n"), WHOLE),
    ("trailers that look like framing", chunked(
        body=CHUNKS[:-2] + b"Content-Length: 7\r\nConnection: close\r\n\r\n"), WHOLE),
    ("trailers with bare line feeds", chunked(body=CHUNKS[:-2] + b"X: y\n\n"), WHOLE),
    ("trailer without a colon", AT + b"0\r\njunk\r\n\r\n", BROKEN),
    ("endless trailers", AT + b"0\r\n" + b"X: y\r\n" * 11_000, BROKEN),
    ("endless trailers after the end marker", chunked(body=CHUNKS[:-2] + b"X: y\r\n" * 11_000),
     CLOSED),
    ("data that looks like a last chunk", stream(b": \r\n0\r\n\r\n", BODY), WHOLE),
    ("size of 17 digits", AT + b"10000000000000000\r\nx", BROKEN),
    ("size of 24 digits", AT + b"f" * 24 + b"\r\nx", BROKEN),
    ("size without digits", AT + b"\r\nhello", BROKEN),
    ("size with 0x", AT + b"0x5\r\nhello\r\n", BROKEN),
    ("negative size", AT + b"-5\r\nhello\r\n", BROKEN),
    ("words for a size", AT + b"five\r\nhello\r\n", BROKEN),
    ("two sizes", AT + b"5 5\r\nhello\r\n", BROKEN),
    ("bare line feed after a size", AT + b"5\nhello\r\n", BROKEN),
    ("bare carriage return after a size", AT + b"5\rhello\r\n", BROKEN),
    ("bare line feed after a chunk", AT + b"2\r\n\n\n\n0\r\n\r\n", BROKEN),
    ("chunk longer than its size", AT + b"1\r\n\n\n\r\n0\r\n\r\n", BROKEN),
    ("chunk shorter than its size", AT + b"3\r\n\n\n\r\n0\r\n\r\n", BROKEN),
    ("broken framing after the end marker", chunked(body=CHUNKS[:-5] + b"xyz"), CLOSED),
)  # fmt: skip

JUNK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
CONNECTION = [
    *fin(
        ("keep-alive", chunked(b"Connection: keep-alive", b"Keep-Alive: timeout=5"), WHOLE),
        ("close", chunked(b"Connection: close"), CLOSED),
        ("close in any case, in a list", sized(b"connection: x,\tCLOSE ,y"), CLOSED),
        ("close in a second line", sized(b"Connection: x", b"Connection: close"), CLOSED),
        ("close beside keep-alive", sized(b"Connection: keep-alive, close"), CLOSED),
        ("options that begin like close", sized(b"Connection: closed, close-x"), WHOLE),
        ("HTTP/1.0 with a length", sized(start=OLD), CLOSED),
        ("HTTP/1.0 keep-alive", sized(b"Connection: Keep-Alive", start=OLD), WHOLE),
        ("HTTP/1.0 close", sized(b"Connection: close", start=OLD), CLOSED),
        ("HTTP/1.0 chunked", chunked(b"Connection: keep-alive", start=OLD), CLOSED),  # 6.1
        ("HTTP/1.0 until close", head(start=OLD) + BODY, CLOSED),
        ("until close", head() + BODY, CLOSED),
        ("until close with keep-alive", head(b"Connection: keep-alive") + BODY, CLOSED),
        ("until close, no end marker", head() + token(), rec(Cause.NO_END, events=1)),
        ("until close, empty", head(), rec(Cause.NO_END)),
        ("until close, cut in an event", head() + token() + token()[:-9], rec(BAD_EVENT, events=1)),
        ("pipelined answer after a chunked one", chunked() + JUNK, CLOSED),
        ("pipelined answer after a sized one", sized() + JUNK, CLOSED),
        ("CR LF after the last chunk", chunked() + b"\r\n", CLOSED),
        ("event after the last chunk", chunked() + token(), CLOSED),
    ),
    Case("until close, reset", head() + token(), "rst",
         rec(Cause.RESET, events=1, errno=errno.ECONNRESET)),
    Case("until close, reset after the end marker", head() + BODY, "rst", CLOSED),
    Case("until close, open at the deadline", head() + token(), "deadline",
         rec(Cause.DEADLINE, events=1)),
    Case("reset after a whole answer", chunked(), "rst", WHOLE),
    Case("open at the deadline after a whole answer", chunked(), "deadline", WHOLE),
    Case("end marker, then closed", chunked(body=CHUNKS[:-5]), "fin", CLOSED),
    Case("end marker, then reset", chunked(body=CHUNKS[:-5]), "rst", CLOSED),
    Case("end marker, then silence", chunked(body=CHUNKS[:-5]), "deadline", CLOSED),
    Case("end marker, closed in the trailers", chunked(body=CHUNKS[:-2] + b"X: y"), "fin", CLOSED),
]  # fmt: skip

# ---------------------------------------------------------------- HTTP: ended in each state

ONE = rec(CUT, events=1)
NO_HEAD, NO_TOKEN = rec(CUT, None), rec(CUT)
ERROR_HALF = OOPS + b'Content-Length: 99\r\n\r\n{"error":{"message":"eng'
ENDINGS: list[tuple[str, bytes, Record]] = [
    ("before any byte", b"", rec(Cause.NO_RESPONSE, None)),
    ("in the version", b"HTT", NO_HEAD),
    ("in the status", b"HTTP/1.1 20", NO_HEAD),
    ("in the reason", b"HTTP/1.1 200 O", NO_HEAD),
    ("after the status line", OK, NO_HEAD),
    ("in a header's name", OK + b"Transfer-Enc", NO_HEAD),
    ("in a header's value", OK + b"Transfer-Encoding: chu", NO_HEAD),
    ("after a header", OK + CODED + b"\r\n", NO_HEAD),
    ("in the head's last line end", OK + CODED + b"\r\n\r", NO_HEAD),
    ("after a 100", EARLY, NO_HEAD),
    ("between head and body", CHUNKED, NO_TOKEN),
    ("in the first size", CHUNKED + b"4", NO_TOKEN),
    ("in a size", AT + b"4", ONE),
    ("in an extension", AT + b'4;a="', ONE),
    ("in a size's line end", AT + b"4a\r", ONE),
    ("after a size", AT + b"4a\r\n", ONE),
    ("in a chunk", AT + chunk(token())[:-9], ONE),
    ("in a chunk, after an event", AT[:-2], ONE),
    ("in a chunk's line end", AT[:-1], ONE),
    ("after a chunk", AT, ONE),
    ("in a broken event", AT + chunk(b'data: {"a":]}\n\n')[:-3], ONE),  # not yet an event
    ("after the last size", AT + b"0\r\n", ONE),
    ("in a trailer", AT + b"0\r\nX-Sum: 1", ONE),
    ("after a trailer", AT + b"0\r\nX-Sum: 1\r\n", ONE),
    ("in a length body", sized(body=token(), length=500), ONE),
    ("before a length body", sized(body=b"", length=500), NO_TOKEN),
    ("before a refusal's body", sized(start=OOPS, body=b"", length=9), rec(Cause.HTTP_STATUS, 500)),
    ("in a refusal's words", sized(start=OOPS, body=b"engine", length=9),
     rec(Cause.HTTP_STATUS, 500, message="engine")),
    ("in a refusal's JSON", ERROR_HALF,
     rec(Cause.HTTP_STATUS, 500, message='{"error":{"message":"eng')),
]  # fmt: skip


def ended(cut: tuple[str, bytes, Record]) -> list[Case]:
    """The same bytes, then FIN, RST or nothing until the deadline."""
    name, data, record = cut
    reset = replace(record, cause=Cause.RESET, errno=errno.ECONNRESET)
    return [
        Case(f"closed {name}", data, "fin", record),
        Case(f"reset {name}", data, "rst", reset),
        Case(f"open {name}", data, "deadline", replace(record, cause=Cause.DEADLINE)),
    ]


STATES = [case for cut in ENDINGS for case in ended(cut)]

# ---------------------------------------------------------------- HTTP: content codings, refusals


def gzipped(level: int) -> bytes:
    """The body in gzip; at level 0 its text stands there as it is, behind ten odd bytes."""
    packer = zlib.compressobj(level, zlib.DEFLATED, 31)
    return packer.compress(BODY) + packer.flush()


GZIP = b"Content-Encoding: gzip"
CODINGS = fin(
    ("identity", chunked(b"Content-Encoding: identity"), WHOLE),
    ("gzip not asked for", sized(GZIP, body=gzipped(9)), NOTHING),
    ("gzip until close", head(GZIP) + gzipped(9), rec(Cause.NO_END)),
    ("gzip that does not compress", sized(GZIP, body=gzipped(0)), NOTHING),
    ("gzip on plain text", sized(GZIP), NOTHING),
)


def refused(status: str, body: bytes, message: str | None, *lines: bytes) -> tuple[bytes, Record]:
    code = int(status[:3])
    return plain(status, body, *lines), rec(Cause.HTTP_STATUS, code, message=message, pooled=True)


HTML = b"<html>\r\n<h1>502 Bad Gateway</h1>\r\n</html>\r\n"
PRETTY = b'{\n  "error": {\n    "code": 500,\n    "message": "no",\n    "type": "x"\n  }\n}\n'
REFUSALS = fin(
    ("301", *refused("301 Moved", HTML, HTML.decode(), b"Location: http://x/")),
    ("307 is not followed", *refused("307 Temporary", b"", None, b"Location: /v2")),
    ("201 with a stream", *refused("201 Created", DONE, DONE.decode())),
    ("400 of vLLM", *refused("400 Bad Request", b'{"error":{"message":"too long: 9 > 8",'
     b'"type":"BadRequestError","param":null,"code":400}}', "too long: 9 > 8")),
    ("400 of older vLLM", *refused("400 Bad Request", b'{"object":"error","message":"too long",'
     b'"type":"BadRequestError","param":null,"code":400}', "too long")),
    ("401 of OpenAI", *refused("401 Unauthorized", b'{"error":{"message":"Incorrect API key",'
     b'"type":"invalid_request_error","code":"invalid_api_key"}}', "Incorrect API key")),
    ("429 of OpenAI", *refused("429 Too Many Requests", b'{"error":{"message":"Rate limit",'
     b'"type":"tokens","param":null,"code":"rate_limit_exceeded"}}', "Rate limit",
     b"Retry-After: 1")),
    ("500 of SGLang", *refused("500 x", b'{"object":"error","message":"scheduler died",'
     b'"type":"InternalServerError","param":null,"code":500}', "scheduler died")),
    ("503 of llama.cpp", *refused("503 Service Unavailable", b'{"error":{"code":503,"message":'
     b'"Loading model","type":"unavailable_error"}}', "Loading model")),
    ("429 of TGI", *refused("429 x", b'{"error":"Model is overloaded","error_type":"overloaded"}',
     "Model is overloaded")),
    ("404 of Ollama", *refused("404 Not Found", b'{"error":"model \'x\' not found"}',
     "model 'x' not found")),
    ("404 of FastAPI", *refused("404 Not Found", b'{"detail":"Not Found"}', "Not Found")),
    ("422 of FastAPI", *refused("422 x", b'{"detail":[{"msg":"required"}]}',
     '{"detail":[{"msg":"required"}]}')),
    ("500 of pretty JSON", *refused("500 x", PRETTY, "no")),
    ("500 of escaped JSON", *refused("500 x", rb'{"error":"a\n\"b\" \u00e9\ud83d\ude00"}',
     'a "b" \u00e9\U0001f600')),
    ("500 of JSON without a text", *refused("500 x", b'{"status":"error"}', '{"status":"error"}')),
    ("500 of broken JSON", *refused("500 x", b'{"error":"a"', '{"error":"a"')),
    ("500 of long JSON", *refused("500 x", b'{"error":"' + b"m" * 300 + b'"}', "m" * 256)),
    ("500 in event form", *refused("500 x", b'data: {"error":"a"}\n\n', 'data: {"error":"a"}\n\n')),
    ("503 of words", *refused("503 x", b"upstream is down\n", "upstream is down\n")),
    ("503 of UTF-8", *refused("503 x", "\u00fcberlastet".encode(), "\u00fcberlastet")),
    ("502 of HTML", *refused("502 Bad Gateway", HTML, HTML.decode())),
    ("500 of 1 MB", *refused("500 x", b"x" * 1_000_000, "x" * 256)),
    ("500 without a body", *refused("500 x", b"", None)),
    ("500 without a reason", *refused("500", b"no", "no")),
    ("503 in chunks", chunked(start=b"HTTP/1.1 503 x\r\n",
     body=chunk(b'{"error":{"mess') + chunk(b'age":"busy"}}') + LAST_CHUNK),
     rec(Cause.HTTP_STATUS, 503, message="busy", pooled=True)),
    ("503 until close", head(start=b"HTTP/1.0 503 x\r\n") + b"busy",
     rec(Cause.HTTP_STATUS, 503, message="busy")),
    ("500 and close", plain("500 x", b"no", b"Connection: close"),
     rec(Cause.HTTP_STATUS, 500, message="no")),
    ("500 and more", plain("500 x", b"no") + JUNK, rec(Cause.HTTP_STATUS, 500, message="no")),
    ("500 in broken chunks", chunked(start=OOPS, body=chunk(b"out of memory") + b"xyz"),
     rec(Cause.HTTP_STATUS, 500, message="out of memory")),
)  # fmt: skip

# ---------------------------------------------------------------- rows that want no stream

GOOD = rec(Cause.PLAIN_END, pooled=True)


def health(name: str, data: bytes, record: Record, end: str = "fin") -> Case:
    return Case(f"health {name}", data, end, record, kind="plain")


PLAIN = [
    health("empty", plain("200 OK", b""), GOOD),
    health("words", plain("200 OK", b'{"status":"ok"}'), GOOD),
    health("in chunks", stream(b"o", b"k"), GOOD),
    health("until close", head() + b"ok", rec(Cause.PLAIN_END)),
    health("of broken events", plain("200 OK", b"data: {\n\ndata: x\n\n"), GOOD),
    health("of a whole stream", chunked(), GOOD),
    health("of an error event", stream(b'event: error\ndata: {"error":"a"}\n\n'), GOOD),
    health("in gzip", sized(GZIP, body=gzipped(9)), GOOD),
    health("204", head(start=b"HTTP/1.1 204 x\r\n"), rec(Cause.HTTP_STATUS, 204, pooled=True)),
    health("503", *refused("503 x", b'{"error":{"message":"Loading model"}}', "Loading model")),
    health("cut", plain("200 OK", b"okay")[:-1], rec(CUT)),
    health("cut after the end marker", chunked()[:-5], rec(CUT)),
    health("broken", CHUNKED + b"xyz\r\n", rec(Cause.BAD_HTTP)),
    health("unanswered", b"", rec(Cause.NO_RESPONSE, None)),
    health("reset", plain("200 OK", b"ok")[:-1], rec(Cause.RESET, errno=errno.ECONNRESET), "rst"),
    health("silent", head(), rec(Cause.DEADLINE), "deadline"),
]

# ---------------------------------------------------------------- events

TEXT = token()[6:-2]  # one token's JSON


def ok(name: str, body: bytes, events: int = 1, **told: object) -> tuple[str, bytes, Record]:
    """Events in one chunk, then [DONE]: all is well."""
    record = rec(END, events=events, pooled=True, **told)  # type: ignore[arg-type]
    return name, stream(body + DONE), record


def bad(name: str, event: bytes) -> tuple[str, bytes, Record]:
    """A token, then an event that does not hold; nothing after it counts."""
    return name, stream(token() + event + token() + DONE), rec(BAD_EVENT, events=1)


def mixed(body: bytes) -> bytes:
    """Line ends of all three kinds; CR LF and LF CR of two lines never make up a single one."""
    ends = [b"\n", b"\r\n", b"\r\r\n", b"\n\r\n", b"\r\n\r", b"\n\r"]
    events = body.split(b"\n\n")[:-1]
    return b"".join(event + ends[2 + i % 4] for i, event in enumerate(events))


CRLF = BODY.replace(b"\n", b"\r\n")
MARK = b"\xef\xbb\xbf"
LINES = fin(
    ("LF", stream(BODY), WHOLE),
    ("CRLF", stream(CRLF), WHOLE),
    ("CR", stream(BODY.replace(b"\n", b"\r")), WHOLE),
    ("mixed line ends", stream(mixed(BODY)), WHOLE),
    ("CRLF cut by chunks", stream(*(CRLF[i : i + 1] for i in range(len(CRLF)))), WHOLE),
    ("CR until close", head() + BODY.replace(b"\n", b"\r"), CLOSED),
    ok("no space", b"data:" + TEXT + b"\n\n"),
    ok("two spaces and a tab", b"data:  \t" + TEXT + b"\n\n"),
    ok("white space after the object", b"data: " + TEXT + b" \t\n\n"),
    ok("several data lines", b"data: " + TEXT.replace(b":[", b":\ndata: [\ndata:") + b"\n\n"),
    ok("several data lines in CRLF", b"data: {\r\ndata: " + TEXT[1:] + b"\r\n\r\n"),
    ok("empty data lines around", b"data\ndata:\ndata: " + TEXT + b"\ndata: \n\n"),
    ok("comments", b": ping\n\n:\n\n:data: {\n\n" + token(), 1),
    ok("comment inside an event", b"data: {\n: data: x\ndata: " + TEXT[1:] + b"\n\n"),
    ok("pings of every kind", b": ping - 1\r\n\r\n\n\n\r\rdata:\n\nping\n\n" + token()),
    ok("event, id and retry", b"event: message\nid: 7\nretry: 100\n" + token()),
    ok("fields after the data", b"data: " + TEXT + b"\nretry: x\nid\nevent: chunk\n\n"),
    ok("fields without a colon", b"id\nretry\nevent\nx\n" + token()),
    ok("unknown fields", b"dat: x\ndataa: y\nDATA: {\nerror\nfoo:bar\n" + token()),
    ok("space before the field", b" data: {\n" + token()),
    ok("empty data", b"data\n\ndata:\n\ndata: \n\n" + token()),
    ok("byte-order mark", MARK + token() + token(), 2),
    ok("two byte-order marks", MARK + MARK + token() + token(), 1),
    ok("byte-order mark later", token() + MARK + token(), 1),
    ok("NUL in an id", b"id: a\0b\n" + token()),
    ok("NUL in a comment and a name", b": \0\nda\0ta: {\n\0\n" + token()),
    ok("VT, FF and U+0085 end no line", b": \x0bdata: {\x0cdata: {\xc2\x85data: {\n" + token()),
    ok("500 events in one read", token() * 500, 500),
    ("events over many chunks", stream(*(BODY[i : i + 7] for i in range(0, len(BODY), 7))), WHOLE),
    ok("event of 1 MB", token("x" * 1_000_000)),
    ok("comment of 1 MB", b":" + b"x" * 1_000_000 + b"\n" + token()),
    ("1 MB without an event", stream(b"x" * 1_000_000), NOTHING),
    ("100 KB of blank lines", stream(b"\r\n" * 50_000), NOTHING),
    ok("names that are not error", b"event: errors\nevent2: error\n" + token()),
    ok("the last name counts", b"event: error\nevent: x\n" + token()),
    ok("error event without data", b"event: error\n\n" + token()),
)  # fmt: skip

LAST = rec(Cause.NO_END, events=1, pooled=True)
ENDS = fin(
    ("end marker without its blank line", stream(token() + DONE[:-1]), replace(LAST, cause=END)),
    ("end marker without a line end", stream(token() + DONE[:-2]), replace(LAST, cause=END)),
    ("end marker without the space", stream(token() + b"data:[DONE]\r\n\r\n"),
     replace(LAST, cause=END)),
    ("end marker, bare, until close", head() + token() + b"data: [DONE]", rec(END, events=1)),
    ("last event without its blank line", stream(token() + token()[:-1]),
     rec(Cause.NO_END, events=2, pooled=True)),
    ("last event without a line end", stream(token()[:-2]), LAST),
    ("last event cut", stream(token() + token()[:-3]), replace(LAST, cause=BAD_EVENT)),
    ("end marker cut", stream(token() + b"data: [DON"), replace(LAST, cause=BAD_EVENT)),
    ("field cut", stream(token() + b"dat"), LAST),
    ("error as the last event, without its line end", stream(b'data: {"error":"a"}'),
     rec(Cause.ERROR_EVENT, message="a", pooled=True)),
    ("end marker twice", stream(token(), DONE, DONE), replace(LAST, cause=END)),
    ("end marker alone", stream(DONE), rec(END, pooled=True)),
    ("text after the end marker", stream(token(), DONE, token(finish="stop"), usage(2)),
     replace(LAST, cause=END)),
    ("error after the end marker", stream(token(), DONE, b'data: {"error":"late"}\n\n'),
     replace(LAST, cause=END)),
    ("broken event after the end marker", stream(token(), DONE, b"data: {]\n\n"),
     replace(LAST, cause=END)),
    ("no end marker", stream(*EVENTS[:-1]), replace(SHORT, pooled=True)),
    ("stream without an event", stream(), NOTHING),
    bad("end marker and more", b"data: [DONE]x\n\n"),
    bad("end marker in lower case", b"data: [done]\n\n"),
    bad("end marker over two lines", b"data: [DO\ndata: NE]\n\n"),
    bad("plain words", b"data: hello\n\n"),
    ("end marker without a field", stream(token(), b"[DONE]\n\n"), LAST),
    ("end marker as a name", stream(token(), b"event: [DONE]\n\n"), LAST),
    ("200 of JSON", plain("200 OK", b'{"choices":[{"message":{"content":"a"}}]}'), NOTHING),
    ("200 of error JSON", plain("200 OK", b'{"error":{"message":"no"}}'), NOTHING),
    ("200 of HTML", plain("200 OK", HTML), NOTHING),
    ("JSON lines of Ollama", plain("200 OK", b'{"response":"a"}\n{"error":"killed"}\n'), NOTHING),
    ("error field of older llama.cpp",  # a field of that name is unknown, so it is ignored
     stream(token(), b'error: {"code":500,"message":"a"}\n\n', DONE), replace(LAST, cause=END)),
)  # fmt: skip

# ---------------------------------------------------------------- JSON in the events


def data(text: bytes) -> bytes:
    return b"data: " + text + b"\n\n"


def delta(inner: bytes) -> bytes:
    return data(b'{"choices":[{"index":0,"delta":{' + inner + b'},"finish_reason":null}]}')


def choice(inner: bytes) -> bytes:
    return data(b'{"choices":[{' + inner + b"}]}")


TOOL = b'"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"%s"}}]'
TOKENS = fin(
    ok("role alone", delta(b'"role":"assistant"'), 0),
    ok("role and empty content", delta(b'"role":"assistant","content":""'), 0),
    ok("role and null content", delta(b'"role":"assistant","content":null'), 0),
    ok("role, then a token", delta(b'"role":"assistant","content":""') + token(), 1),
    ok("role beside content", delta(b'"role":"assistant","content":"a"')),
    ok("empty delta", delta(b""), 0),
    ok("content of one space", delta(b'"content":" "')),
    ok("content that is no string", delta(b'"content":["a"]') + delta(b'"content":1'), 0),
    ok("content outside a delta", choice(b'"content":"a"') + data(b'{"content":"a"}'), 0),
    ok("reasoning", delta(b'"reasoning":"a"') * 2, 2, visible=False),
    ok("reasoning_content", delta(b'"reasoning_content":"a"'), visible=False),
    ok("reasoning, then content", delta(b'"reasoning":"a","content":null') + token(), 2),
    ok("reasoning beside content", delta(b'"reasoning_content":"a","content":"b"')),
    ok("reasoning beside empty content", delta(b'"reasoning":"a","content":""'), visible=False),
    ok("tool call", delta(TOOL % b'{\\"a')),
    ok("tool call without arguments", delta(TOOL % b""), 0),
    ok("second tool call has arguments",
       delta(b'"tool_calls":[{"function":{"arguments":""}},{"function":{"arguments":"{"}}]')),
    ok("function call", delta(b'"function_call":{"name":"f","arguments":"{}"}')),
    ok("text", choice(b'"index":0,"text":"a","logprobs":null')),
    ok("empty text", choice(b'"index":0,"text":""'), 0),
    ok("several choices, one event", data(b'{"choices":[{"text":""},{"text":"b"},{"text":"c"}]}')),
    ok("several choices, an event each", choice(b'"index":0,"text":"a"')
       + choice(b'"index":1,"text":"b"'), 2),
    ok("choices empty or null", data(b'{"choices":[]}') + data(b'{"choices":null}'), 0),
    ok("token ids beside empty text", choice(b'"text":"","token_ids":[7]')),
    ok("token ids empty or null", choice(b'"text":"","token_ids":[]')
       + choice(b'"token_ids":null'), 0),
    ok("prompt's token ids", data(b'{"choices":[{"delta":{}}],"prompt_token_ids":[1,2]}'), 0),
)  # fmt: skip
STRINGS = fin(
    ok("escapes", delta(rb'"content":"\"\\\/\b\f\n\r\t\u00e9"')),
    ok("content of one escape", delta(rb'"content":"\n"')),
    ok("content of an escaped NUL", delta(rb'"content":"\u0000"')),
    ok("content inside a string", delta(rb'"role":"\"content\":\"a\""'), 0),
    ok("choices inside a string", data(rb'{"id":"{\"choices\":[{\"text\":\"a\"}]}"}'), 0),
    ok("brackets inside a string", delta(rb'"content":"}]}\\","x":"{[\""')),
    ok("error inside a string", delta(rb'"content":"\"error\":{\"message\":\"no\"}"')),
    ok("end marker inside a string", delta(b'"content":"data: [DONE]"')),
    ok("U+2028 and U+2029", delta('"content":"a\u2028b\u2029c"'.encode())),
    ok("U+0085", delta('"content":"a\u0085b"'.encode())),
    ok("UTF-8 of 2, 3 and 4 bytes", delta('"content":"\u00e9\u20ac\U0001f600"'.encode())),
    ok("surrogate pair", delta(rb'"content":"\ud83d\ude00"')),
    ok("lone first surrogate", delta(rb'"content":"\ud83d"')),
    ok("lone second surrogate", delta(rb'"content":"\ude00x"')),
    ok("byte-order mark in a string", delta(b'"content":"' + MARK + b'"')),
    ok("invalid UTF-8", delta(b'"content":"\xff\xc3"')),  # WHATWG: decoded to U+FFFD
    ok("escaped keys", data(rb'{"\u0063hoices":[{"t\u0065xt":"a"}]}')),
    ok("unknown fields of all kinds", data(
        b'{"x":{"y":[1,{"z":null}]},"q":-1.5e3,"choices":[{"w":[[]],"text":"a"}],"e":false}')),
    ok("keys in another order", data(
        b'{"usage":null,"choices":[{"finish_reason":null,"delta":{"content":"a"},"index":0}]}')),
    ok("white space everywhere", data(
        b'{ "choices" :\t[ { "delta" : { "content" : "a" } , "index" : 0 } ] } ')),
    ok("choices one level down", data(b'{"data":{"choices":[{"text":"a"}]}}'), 0),
    ok("text after a deep value", choice(b'"x":' + b"[" * 200 + b"]" * 200 + b',"text":"a"')),
    ok("256 levels", data(b'{"a":' + b"[" * 255 + b"]" * 255 + b"}") + token()),
    bad("257 levels", data(b'{"a":' + b"[" * 256 + b"]" * 256 + b"}")),
)  # fmt: skip


def running(text: str, tokens: int, reason: str = "null") -> bytes:
    """An event of a server that counts in every one."""
    usage_of = b'"usage":{"prompt_tokens":7,"completion_tokens":%d}' % tokens
    inner = f'"delta":{{"content":"{text}"}},"finish_reason":{reason}'
    return data(b'{"choices":[{' + inner.encode() + b"}]," + usage_of + b"}")


def counted(text: bytes) -> bytes:
    return data(b'{"choices":[],"usage":' + text + b"}")


GOOD_REASONS = ("stop", "length", "tool_calls", "function_call", "content_filter")
USAGE = fin(
    *(ok(f"finish {word}", token(finish=word), finish=word) for word in (*GOOD_REASONS, "abort")),
    ok("finish in an event of its own", token() + choice(b'"delta":{},"finish_reason":"stop"'),
       finish="stop"),
    ok("finish before the text", choice(b'"finish_reason":"length","text":"a"'), finish="length"),
    ok("finish of one of two choices",
       data(b'{"choices":[{"text":"a","finish_reason":"stop"},{"finish_reason":null}]}'),
       finish="stop"),
    ok("finish, then null", token(finish="stop") + token(), 2, finish="stop"),
    ok("finish outside a choice", data(b'{"finish_reason":"stop"}') + token()),
    ok("stop_reason", choice(b'"text":"a","stop_reason":"stop"')),
    ok("no finish", token() + usage(1), counts=(7, 1)),
    ok("usage in every event", running("", 0) + running("a", 1) + running("bc", 3, '"stop"')
       + usage(3), 2, finish="stop", counts=(7, 3)),
    ok("running usage beside empty text", running("", 0) + running("a", 1) + running("", 2)
       + running("", 2) + running("b", 3), 3, counts=(7, 3)),
    ok("usage told once beside empty text", running("", 5), 0, counts=(7, 5)),
    ok("usage-only event that grew", running("", 0) + running("a", 1) + usage(2), counts=(7, 2)),
    ok("usage without an event", usage(5), 0, counts=(7, 5)),
    ok("no usage", token(finish="stop"), finish="stop"),
    ok("usage of more tokens than events", token() + usage(32), counts=(7, 32)),
    ok("usage of fewer tokens than events", token() * 3 + usage(1), 3, counts=(7, 1)),
    ok("usage null", data(b'{"choices":[{"text":"a"}],"usage":null}')),
    ok("usage of none", counted(b'{"prompt_tokens":0,"completion_tokens":0}'), 0, counts=(0, 0)),
    ok("usage with details of the same names", counted(
        b'{"prompt_tokens":7,"completion_tokens_details":{"completion_tokens":1},'
        b'"completion_tokens":9,"prompt_tokens_details":{"prompt_tokens":2}}'), 0, counts=(7, 9)),
    ok("usage of odd numbers", counted(b'{"prompt_tokens":-7,"completion_tokens":9.5}'), 0),
    ok("usage of half a pair", counted(b'{"completion_tokens":9}'), 0, counts=(None, 9)),
    ok("usage in a choice", choice(b'"text":"a","usage":{"completion_tokens":9}')),
)  # fmt: skip


def error(name: str, event: bytes, message: str | None) -> tuple[str, bytes, Record]:
    """Two tokens, then an error; nothing after it counts."""
    body = stream(token(), token(), event, token(finish="stop"), usage(9), DONE)
    return f"error event {name}", body, rec(Cause.ERROR_EVENT, events=2, message=message)


ERRORS = fin(
    error("of vLLM", data(b'{"error": {"message": "EngineCore died.", "type": "InternalServer'
          b'Error", "param": null, "code": 500}}'), "EngineCore died."),
    error("of older vLLM", data(b'{"object":"error","message":"too long","code":400}'), "too long"),
    error("of OpenAI", data(b'{"error":{"message":"The server had an error","type":"server_error",'
          b'"param":null,"code":null}}'), "The server had an error"),
    error("of SGLang", data(b'{"error": {"object": "error", "message": "aborted", "type": '
          b'"InternalServerError", "param": null, "code": 500}}'), "aborted"),
    error("of llama.cpp", data(b'{"error":{"code":500,"message":"context shift is off","type":'
          b'"server_error"}}'), "context shift is off"),
    error("of TGI", b'event: error\n' + data(b'{"error":"CUDA error","error_type":"generation"}'),
          "CUDA error"),
    error("of TGI without a name", data(b'{"error":"CUDA error","error_type":"generation"}'),
          "CUDA error"),
    error("of Ollama", data(b'{"error":"llama runner process has terminated"}'),
          "llama runner process has terminated"),
    error("named after its data", b'data: {"message":"a"}\nevent: error\n\n', "a"),
    error("named, without a text", b"event: error\ndata: {}\n\n", None),
    error("named, in plain words", b"event: error\ndata: out of memory\n\n", "out of memory"),
    error("of an empty object", data(b'{"error":{}}'), None),
    error("beside a token", data(b'{"choices":[{"text":"a"}],"error":{"message":"m"}}'), "m"),
    error("of 300 bytes", data(b'{"error":"' + b"m" * 300 + b'"}'), "m" * 256),
    error("with escapes", data(rb'{"error":"a\n\u00e9\ud83d\ude00\"b\""}'),
          'a \u00e9\U0001f600"b"'),
    ok("error null", data(b'{"error":null,"choices":[{"text":"a"}]}')),
    ok("error in a choice", choice(b'"text":"a","error":"x"')),
)  # fmt: skip

INVALID = fin(
    bad("open object", data(b'{"a":1')),
    bad("open string", data(b'{"a":"b}')),
    bad("open list", data(b'{"a":[1}')),
    bad("closed by the other bracket", data(b'{"a":{"b":1]}')),
    bad("closed once too often", data(b'{"a":1}}')),
    bad("two objects", data(b"{}{}")),
    bad("two objects in two lines", b"data: " + TEXT + b"\ndata: " + TEXT + b"\n\n"),
    bad("object and words", data(TEXT + b" x")),
    bad("array", data(b"[" + TEXT + b"]")),
    bad("bare number", data(b"42")),
    bad("bare string", data(b'"a"')),
    bad("bare null", data(b"null")),
    bad("comma before the end", data(b'{"a":1,}')),
    bad("comma before the list's end", data(b'{"a":[1,]}')),
    bad("no comma", data(b'{"a":1 "b":2}')),
    bad("no colon", data(b'{"a" 1}')),
    bad("no value", data(b'{"a":}')),
    bad("key without quotes", data(b"{a:1}")),
    bad("single quotes", data(b"{'a':1}")),
    bad("bad escape", data(rb'{"a":"\x41"}')),
    bad("short unicode escape", data(rb'{"a":"\u12"}')),
    bad("NaN", data(b'{"a":NaN}')),
    bad("literal cut", data(b'{"a":tru}')),
    bad("comment in it", data(b'{"a":1/*x*/}')),
    bad("byte-order mark before it", data(MARK + TEXT)),
    bad("half an event", data(TEXT[:30])),
    bad("named error of broken JSON", b'event: error\ndata: {"error":"a"\n\n'),
    # Only brackets, strings and escapes are asked to balance; the grammar's rest is let through.
    ok("balanced: control characters in a string", delta(b'"content":"a\tb\0c"')),
    ok("balanced: number with a leading zero", data(b'{"a":01}') + token()),
)

# ---------------------------------------------------------------- the finish reason as the end


def by_finish(name: str, data: bytes, record: Record, end: str = "fin") -> Case:
    return Case(f"end by finish, {name}", data, end, record, end_by_finish=True)


STOP = token(finish="stop")
STOPPED = rec(END, events=2, finish="stop", pooled=True)
FINISH = [
    by_finish("whole", stream(token(), STOP), STOPPED),
    by_finish("usage follows", stream(token(), STOP, usage(2)), replace(
        STOPPED, prompt_tokens=7, completion_tokens=2)),
    by_finish("end marker follows", stream(token(), STOP, DONE), STOPPED),
    by_finish("no blank line", stream(token(), STOP[:-2]), STOPPED),
    by_finish("until close", head() + token() + STOP, replace(STOPPED, pooled=False)),
    by_finish("aborted", stream(token(), token(finish="abort")), replace(STOPPED, finish="abort")),
    by_finish("end marker without finish", stream(token(), DONE), rec(END, events=1, pooled=True)),
    by_finish("no finish", stream(token(), token()), rec(Cause.NO_END, events=2, pooled=True)),
    by_finish("error follows", stream(token(), STOP, b'data: {"error":"a"}\n\n'),
              rec(Cause.ERROR_EVENT, events=2, finish="stop", message="a")),
    by_finish("cut after it", CHUNKED + chunk(token()) + chunk(STOP), replace(
        STOPPED, cause=CUT, pooled=False)),
    by_finish("reset after it", CHUNKED + chunk(token()) + chunk(STOP), replace(
        STOPPED, cause=Cause.RESET, errno=errno.ECONNRESET, pooled=False), "rst"),
    by_finish("open after it", CHUNKED + chunk(token()) + chunk(STOP), replace(
        STOPPED, cause=Cause.DEADLINE, pooled=False), "deadline"),
]  # fmt: skip

# ---------------------------------------------------------------- bytes that real servers sent


def recorded(server: str) -> dict[str, list[bytes]]:
    """Name of an answer -> the bytes of each read."""
    wire = json.loads((Path(__file__).parent / "data" / server / "wire.json").read_text())
    return {name: [read.encode("latin-1") for read in reads] for name, reads in wire.items()}


VLLM, LLAMA = recorded("vllm-0.32.0"), recorded("llama.cpp-11434")
VLLM_HEALTH = head(b"server: uvicorn", b"content-length: 0")


def real(name: str, reads: list[bytes], record: Record, end: str = "fin") -> Case:
    return Case(f"vLLM {name}", b"".join(reads), end, record)


def lasted(events: int, *counts: int, pooled: bool = True) -> Record:
    both = (counts[0], counts[1]) if counts else (None, None)
    return rec(END, events=events, finish="length", counts=both, pooled=pooled)


# counted in the recorded bytes: events with text, or with token ids; the first names the role
NOT_FOUND = "The model `nope` does not exist. Valid aliases: tiny."
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
ALIVE, PART = VLLM["chat_usage"], VLLM["chat_usage"][:3]  # the head, role and 2 tokens, 1 token
RECORDED = [
    real("chat", ALIVE, lasted(28, 31, 32)),
    real("usage in every event", VLLM["chat_usage_continuous"], lasted(21, 31, 32)),
    real("no usage", VLLM["chat_nousage"], lasted(14)),
    real("token ids", VLLM["chat_token_ids"], lasted(24)),
    real("completions", VLLM["completions_usage"], lasted(24, 3, 32)),
    real("two choices", VLLM["n2"], lasted(4)),
    real("one token", VLLM["one_token"], lasted(1)),
    real("told to close", VLLM["conn_close"], lasted(32, pooled=False)),
    real("not streamed", VLLM["nonstream"], NOTHING),
    real("unknown model", VLLM["error_model"],
         rec(Cause.HTTP_STATUS, 404, message=NOT_FOUND, pooled=True)),
    real("unknown model, told to close", VLLM["error_close"],
         rec(Cause.HTTP_STATUS, 404, message=NOT_FOUND)),
    real("unknown path", VLLM["error_path"],
         rec(Cause.HTTP_STATUS, 404, message="Not Found", pooled=True)),
    real("killed after its head", PART[:1], rec(CUT)),
    real("killed between events", PART, rec(CUT, events=3)),
    real("killed in an event", [*PART[:2], PART[2][:100]], rec(CUT, events=2)),
    real("killed in its usage event", [b"".join(ALIVE)[:-60]],
         rec(CUT, events=28, finish="length")),
    real("killed after its end marker", [b"".join(ALIVE)[:-5]], lasted(28, 31, 32, pooled=False)),
    real("killed with a reset", PART, rec(Cause.RESET, events=3, errno=errno.ECONNRESET), "rst"),
    real("halted", PART, rec(Cause.DEADLINE, events=3), "deadline"),
    real("stopped", [*PART, *VLLM["engine_stopped_tail"]],
         rec(Cause.ERROR_EVENT, events=3, message=DEAD)),
    Case("vLLM health", VLLM_HEALTH, "fin", GOOD, kind="plain"),
    Case("llama.cpp chat", b"".join(LLAMA["chat_usage"]), "fin", lasted(6, 28, 8)),
    Case("llama.cpp completions", b"".join(LLAMA["completions"]), "fin", lasted(4, 9, 4)),
    Case("llama.cpp refusal", b"".join(LLAMA["error_messages"]), "fin",
         rec(Cause.HTTP_STATUS, 400, message="Expected 'messages' to be an array")),
]  # fmt: skip

GROUPS: dict[str, list[Case]] = {
    "status lines": [*STATUS, *INTERIM, *NO_BODY],
    "headers": [*HEADERS, *REPLICA],
    "lengths": LENGTHS,
    "chunks": CHUNK,
    "connection": CONNECTION,
    "ended in each state": STATES,
    "content codings": CODINGS,
    "refusals": REFUSALS,
    "plain rows": PLAIN,
    "event lines": LINES,
    "stream ends": ENDS,
    "tokens": TOKENS,
    "strings and structure": STRINGS,
    "usage and finish": USAGE,
    "error events": ERRORS,
    "invalid events": INVALID,
    "end by finish": FINISH,
    "recorded": RECORDED,
}
CASES: list[Case] = [case for group in GROUPS.values() for case in group]

# ---------------------------------------------------------------- what engines do otherwise


class Dispute(NamedTuple):
    """A case that engines answer otherwise, and why the table does not give way."""

    case: str
    engines: tuple[str, ...]
    reason: str


DISPUTED = [  # h11's own ways
    Dispute("length with zeros", ("asyncio",), "RFC 9110 8.6: 1*DIGIT; h11 refuses 30: bad_http"),
    Dispute("size of 30 digits, most zeros", ("asyncio",), "7.1: 1*HEXDIG; h11 refuses: bad_http"),
    Dispute("size of 17 digits", ("asyncio",), "h11 reads 20 digits and waits: body_cut"),
    Dispute("space before an extension", ("asyncio",), "7.1.1: BWS; h11 refuses it: bad_http"),
    Dispute("empty element in a coding list", ("asyncio",),
            "RFC 9110 5.6.1.2: empty list elements must be ignored; h11 refuses them: bad_http"),
]  # fmt: skip
