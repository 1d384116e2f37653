"""The HTTP response parser against hand-written results.

Does: a table of responses (bytes, whether the peer then closed -> state, status, body, what is left
over, whether the connection ends), each fed whole, byte by byte and at random cuts.
Never: takes an expected value from the parser; test_http_h11.py holds the differential part.
Plan: status lines, headers, lengths, chunks, ends, limits. Sections named are of RFC 9112.
"""

from __future__ import annotations

from typing import Any

import pytest

from cuts import cuts
from percentes_fast._native import scan_http

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
LIMIT = 64 * 1024


def right(state: str, status: int | None = 200, body: bytes = b"", **more: Any) -> dict[str, Any]:
    """The right result; nothing is left over and the connection stays unless said."""
    return {"state": state, "status": status, "body": body, "rest": b"", "close": False, **more}


END, BAD = right("end"), right("bad", None)
HELLO = right("end", body=b"hello")


def head(*lines: bytes, start: bytes = OK) -> bytes:
    return start + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def five(*lines: bytes) -> bytes:
    """A response of five bytes with these header lines besides its length."""
    return head(*lines, b"Content-Length: 5") + b"hello"


def empty(start: bytes) -> bytes:
    return head(b"Content-Length: 0", start=start)


STATUS = [
    ("plain", empty(OK), END),
    ("no reason", empty(b"HTTP/1.1 200 \r\n"), END),
    ("no reason and no space", empty(b"HTTP/1.1 200\r\n"), END),
    ("odd reason", empty(b'HTTP/1.1 200 It\'s: a "fine" \xe9\t day\r\n'), END),
    ("unknown code", empty(b"HTTP/1.1 599 x\r\n"), right("end", 599)),
    ("code 999", empty(b"HTTP/1.1 999\r\n"), right("end", 999)),
    ("HTTP/1.7", empty(b"HTTP/1.7 200 OK\r\n"), END),
    ("line feeds alone", b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", HELLO),
    ("line feed alone at the head's end", OK + b"Content-Length: 5\r\n\nhello", HELLO),
    (
        "redirect is not followed",
        head(b"Location: /x", b"Content-Length: 0", start=b"HTTP/1.1 302 Found\r\n"),
        right("end", 302),
    ),
    (
        "503 with a body",
        head(b"Content-Length: 4", start=b"HTTP/1.1 503 x\r\n") + b"busy",
        right("end", 503, b"busy"),
    ),
    ("100 before the answer", b"HTTP/1.1 100 Continue\r\n\r\n" + five(), HELLO),
    (
        "103 with headers, then 102",
        head(b"Link: x", b"Content-Length: 9", start=b"HTTP/1.1 103 Hints\r\n")
        + b"HTTP/1.1 102\r\n\r\n"
        + five(),
        HELLO,
    ),
    ("1xx says close", head(b"Connection: close", start=b"HTTP/1.1 100 x\r\n") + five(), HELLO),
    (
        "204 has no body",
        head(b"Content-Length: 5", start=b"HTTP/1.1 204 x\r\n") + b"x",
        right("end", 204, rest=b"x"),
    ),
    (
        "204 chunked has no body",
        head(b"Transfer-Encoding: chunked", start=b"HTTP/1.1 204 x\r\n"),
        right("end", 204),
    ),
    ("304 has no body", head(b"Content-Length: 5", start=b"HTTP/1.1 304 x\r\n"), right("end", 304)),
    ("HTTP/2", empty(b"HTTP/2.0 200 OK\r\n"), BAD),
    ("HTTP/0.9", b"<html>", BAD),
    ("lower case", empty(b"http/1.1 200 OK\r\n"), BAD),
    ("ICY", empty(b"ICY 200 OK\r\n"), BAD),
    ("two spaces before the code", empty(b"HTTP/1.1  200 OK\r\n"), BAD),
    ("code of two digits", empty(b"HTTP/1.1 20 OK\r\n"), BAD),
    ("code of four digits", empty(b"HTTP/1.1 2000 OK\r\n"), BAD),
    ("code below 100", empty(b"HTTP/1.1 099 x\r\n"), BAD),
    ("code with a letter", empty(b"HTTP/1.1 2x0 OK\r\n"), BAD),
    ("minor of two digits", empty(b"HTTP/1.10 200 OK\r\n"), BAD),
    ("empty line first", b"\r\n" + empty(OK), BAD),
    ("TLS alert", b"\x15\x03\x01\x00\x02\x02\x46", BAD),
]

HEADERS = [
    ("names in any case", head(b"cOnTeNt-LeNgTh: 5") + b"hello", HELLO),
    ("no space after the colon", head(b"Content-Length:5") + b"hello", HELLO),
    ("white space around a value", head(b"Content-Length: \t 5 \t ") + b"hello", HELLO),
    ("white space far past a value", head(b"Content-Length: 5" + b" " * 300) + b"hello", HELLO),
    ("empty value", five(b"X-Empty:"), HELLO),
    ("folded header", five(b"X-Long: a\r\n  b\r\n\tc"), HELLO),
    ("folded length", head(b"Content-Length:\r\n 5") + b"hello", HELLO),
    ("folded length, empty last line", head(b"Content-Length: 5\r\n ") + b"hello", HELLO),
    ("length folded in two", head(b"Content-Length: 5\r\n 5") + b"hello", BAD),
    ("folded coding", head(b"Transfer-Encoding:\r\n\tchunked") + LAST, END),
    ("fold before any header", head(b" X: a", b"Content-Length: 0"), BAD),
    ("any token character in a name", five(b"!#$%&'*+-.^_`|~09aZ: x"), HELLO),
    ("long name", five(b"X" * 1000 + b": x"), HELLO),
    ("name that begins like one", five(b"Content-Length-X: 9", b"Content-Lengt: 9"), HELLO),
    ("long value", five(b"X: " + b"v" * 10_000), HELLO),
    ("bytes above ASCII in a value", five(b"X: \xe9\xff"), HELLO),
    ("gzip not asked for", five(b"Content-Encoding: gzip"), HELLO),
    ("empty name", five(b": x"), BAD),
    ("space in a name", five(b"X Y: x"), BAD),
    ("space before the colon", head(b"Content-Length : 5") + b"hello", BAD),
    ("no colon", five(b"junk"), BAD),
    ("NUL in a name", five(b"X\0: x"), BAD),
    ("NUL in a value", five(b"X: \0"), BAD),
    ("CR in a length", head(b"Content-Length: 5\r0") + b"hello", BAD),
    ("CR in another value", five(b"X: a\rb"), HELLO),
    ("CR before the empty line", OK + b"Content-Length: 5\r\n\r\r\nhello", BAD),
    ("replica", five(b"X-Replica:  node-7 "), {**HELLO, "replica": b"node-7"}),
    ("replica of 80 bytes", five(b"x-replica: " + b"r" * 80), {**HELLO, "replica": b"r" * 64}),
    ("replica in a trailer", CHUNKED + b"0\r\nX-Replica: r\r\n\r\n", {**END, "replica": b""}),
    (
        "replica of an early answer",
        b"HTTP/1.1 100\r\nX-Replica: r\r\n\r\n" + five(),
        {**HELLO, "replica": b""},
    ),
]


def closing(*lines: bytes, start: bytes = OK) -> bytes:
    return head(*lines, b"Content-Length: 0", start=start)


OLD = b"HTTP/1.0 200 OK\r\n"
CLOSE = right("end", close=True)
CONNECTION = [
    ("close", closing(b"Connection: close"), CLOSE),
    ("close in any case", closing(b"connection: CLOSE"), CLOSE),
    ("close among others", closing(b"Connection: x-y ,\tClose , z"), CLOSE),
    ("close in a second line", closing(b"Connection: x", b"Connection: close"), CLOSE),
    ("keep-alive", closing(b"Connection: keep-alive"), END),
    ("another option", closing(b"Connection: closed, close-x"), END),
    ("close wins", closing(b"Connection: close, keep-alive"), CLOSE),
    ("Keep-Alive header", closing(b"Keep-Alive: timeout=5, max=100"), END),
    ("close past what is kept", closing(b"Connection: " + b"x" * 100 + b", close"), CLOSE),
    ("HTTP/1.0", closing(start=OLD), CLOSE),
    ("HTTP/1.0 keep-alive", closing(b"Connection: Keep-Alive", start=OLD), END),
    ("HTTP/1.0 keep-alive and close", closing(b"Connection: keep-alive, close", start=OLD), CLOSE),
    (
        "HTTP/1.0 close, then keep-alive",
        closing(b"Connection: close", b"Connection: keep-alive", start=OLD),
        CLOSE,
    ),
    # 6.1: chunked in HTTP/1.0 is faulty framing: read it, then close
    (
        "HTTP/1.0 chunked",
        head(b"Connection: keep-alive", b"Transfer-Encoding: chunked", start=OLD) + LAST,
        CLOSE,
    ),
    ("close in a trailer", CHUNKED + b"0\r\nConnection: close\r\n\r\n", END),
]

LENGTHS = [
    ("length", five(), HELLO),
    ("length twice, equal", five(b"Content-Length: 5"), HELLO),
    ("length twice in a line, equal", head(b"Content-Length: 5, 5 ,5") + b"hello", HELLO),
    ("length with zeros", head(b"Content-Length: " + b"0" * 30 + b"5") + b"hello", HELLO),
    ("length 0", head(b"Content-Length: 0"), END),
    ("lengths that differ", five(b"Content-Length: 6"), BAD),
    ("lengths that differ in a line", head(b"Content-Length: 5, 6"), BAD),
    ("comma at the end", head(b"Content-Length: 5,"), BAD),
    ("length of two words", head(b"Content-Length: 5 5"), BAD),
    ("length far past another", head(b"Content-Length: 5" + b" " * 200 + b"6"), BAD),
    ("empty length", head(b"Content-Length:"), BAD),
    ("negative length", head(b"Content-Length: -1"), BAD),
    ("length with a sign", head(b"Content-Length: +5") + b"hello", BAD),
    ("hexadecimal length", head(b"Content-Length: 0x5") + b"hello", BAD),
    ("length past 64 bits", head(b"Content-Length: 18446744073709551621") + b"hello", BAD),
    ("length of 90 digits", head(b"Content-Length: " + b"9" * 90), BAD),
    ("junk after the body", five() + b"HTTP/1.1 200 OK\r\n", {**HELLO, "rest": OK}),
    ("length and chunked", head(b"Content-Length: 9", b"Transfer-Encoding: chunked") + LAST, CLOSE),
    ("chunked and length", head(b"Transfer-Encoding: chunked", b"Content-Length: 9") + LAST, CLOSE),
    ("chunked in any case", head(b"Transfer-Encoding: ChunKed") + LAST, END),
    ("gzip, chunked", head(b"Transfer-Encoding: gzip, chunked") + LAST, BAD),
    ("gzip coding", head(b"Transfer-Encoding: gzip") + LAST, BAD),
    ("chunked twice", head(b"Transfer-Encoding: chunked, chunked") + LAST, BAD),
    (
        "chunked in two lines",
        head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked") + LAST,
        BAD,
    ),
    ("empty coding", head(b"Transfer-Encoding:") + LAST, BAD),
    (
        "coding far past another",
        head(b"Transfer-Encoding: chunked" + b" " * 200 + b", gzip") + LAST,
        BAD,
    ),
]


def chunks(data: bytes, **more: Any) -> tuple[bytes, dict[str, Any]]:
    return CHUNKED + data, right(more.pop("state", "end"), **more)


CHUNKS = [
    ("one chunk", *chunks(b"5\r\nhello\r\n" + LAST, body=b"hello")),
    ("several chunks", *chunks(b"2\r\nhe\r\n3\r\nllo\r\n" + LAST, body=b"hello")),
    ("no chunk", *chunks(LAST)),
    ("lower hex", *chunks(b"1f\r\n" + b"x" * 31 + b"\r\n" + LAST, body=b"x" * 31)),
    ("upper hex", *chunks(b"1F\r\n" + b"x" * 31 + b"\r\n" + LAST, body=b"x" * 31)),
    ("size with zeros", *chunks(b"0005\r\nhello\r\n000\r\n\r\n", body=b"hello")),
    ("size with 40 zeros", *chunks(b"0" * 40 + b"5\r\nhello\r\n" + LAST, body=b"hello")),
    ("chunk with line ends in it", *chunks(b"4\r\n\r\n\r\n\r\n" + LAST, body=b"\r\n\r\n")),
    ("chunk that looks like the end", *chunks(b"5\r\n0\r\n\r\n\r\n" + LAST, body=b"0\r\n\r\n")),
    ("extension", *chunks(b'5;a=b;c="d"\r\nhello\r\n0;x\r\n\r\n', body=b"hello")),
    ("white space before an extension", *chunks(b"5 \t; a = b\r\nhello\r\n" + LAST, body=b"hello")),
    ("white space after a size", *chunks(b"5 \r\nhello\r\n" + LAST, body=b"hello")),
    ("trailers", *chunks(b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nY:\r\n z\r\n\r\n", body=b"hello")),
    ("length in a trailer", *chunks(b"0\r\nContent-Length: 7\r\nTransfer-Encoding: gzip\r\n\r\n")),
    ("trailers with line feeds alone", *chunks(b"0\r\nX: y\n\n")),
    ("junk after the last chunk", *chunks(LAST + b"junk", rest=b"junk")),
    ("pipelined answer", *chunks(b"1\r\na\r\n" + LAST + OK, body=b"a", rest=OK)),
    ("largest size", *chunks(b"fffffffffffffff\r\nab", state="again", body=b"ab")),
    ("size overflow", *chunks(b"1000000000000000\r\nab", state="bad", rest=b"\r\nab")),
    ("size far past 64 bits", *chunks(b"f" * 16, state="bad")),
    ("no size", *chunks(b"\r\nhello", state="bad", rest=b"\nhello")),
    ("no size before an extension", *chunks(b";x\r\n", state="bad", rest=b"x\r\n")),
    ("space before a size", *chunks(b" 5\r\nhello", state="bad", rest=b"5\r\nhello")),
    ("two sizes", *chunks(b"5 5\r\nhello", state="bad", rest=b"\r\nhello")),
    ("words after a size", *chunks(b"5 x\r\nhello", state="bad", rest=b"\r\nhello")),
    ("negative size", *chunks(b"-5\r\nhello", state="bad", rest=b"5\r\nhello")),
    ("size with 0x", *chunks(b"0x5\r\nhello", state="bad", rest=b"5\r\nhello")),
    ("line feed alone after a size", *chunks(b"5\nhello", state="bad", rest=b"hello")),
    ("CR alone after a size", *chunks(b"5\rhello", state="bad", rest=b"ello")),
    ("line feed in an extension", *chunks(b"5;x\nhello", state="bad", rest=b"hello")),
    ("chunk too short", *chunks(b"6\r\nhello\r\n0", state="bad", body=b"hello\r", rest=b"0")),
    ("chunk too long", *chunks(b"4\r\nhello\r\n", state="bad", body=b"hell", rest=b"\r\n")),
    (
        "line feed alone after a chunk",
        *chunks(b"1\r\na\n0\r\n", state="bad", body=b"a", rest=b"0\r\n"),
    ),
    ("CR alone after a chunk", *chunks(b"1\r\na\r0\r\n", state="bad", body=b"a", rest=b"\r\n")),
    (
        "trailer without a colon",
        *chunks(b"0\r\nHTTP/1.1 200 OK\r\n\r\n", state="bad", rest=b"1.1 200 OK\r\n\r\n"),
    ),
    (
        "trailer with a space before its colon",
        *chunks(b"0\r\nX : y\r\n\r\n", state="bad", rest=b": y\r\n\r\n"),
    ),
    ("trailers end in a CR alone", *chunks(b"0\r\n\rx", state="bad")),
]


def cut(data: bytes, **more: Any) -> tuple[bytes, dict[str, Any]]:
    return data, right("cut", more.pop("status", None), **more)


# The peer closed after these bytes. A reset comes as an error of the socket, not as bytes.
CLOSED = [
    ("nothing came", *cut(b"")),
    ("cut in the status line", *cut(b"HTTP/1.1 20")),
    ("cut in the reason", *cut(b"HTTP/1.1 200 O")),
    ("cut after the status line", *cut(OK)),
    ("cut in a name", *cut(OK + b"Content-Le")),
    ("cut in a value", *cut(OK + b"Content-Length: 5")),
    ("cut after a header line", *cut(OK + b"Content-Length: 5\r\n")),
    ("cut in the empty line", *cut(OK + b"Content-Length: 5\r\n\r")),
    ("cut after an early answer", *cut(b"HTTP/1.1 100 Continue\r\n\r\n")),
    ("cut before the body", *cut(head(b"Content-Length: 5"), status=200)),
    ("cut in the body", *cut(five()[:-1], status=200, body=b"hell")),
    ("cut before the first size", *cut(CHUNKED, status=200)),
    ("cut in a size", *cut(CHUNKED + b"1", status=200)),
    ("cut in an extension", *cut(CHUNKED + b"1;x", status=200)),
    ("cut after a size", *cut(CHUNKED + b"1\r\n", status=200)),
    ("cut in a chunk", *cut(CHUNKED + b"5\r\nhel", status=200, body=b"hel")),
    ("cut after a chunk's data", *cut(CHUNKED + b"1\r\na", status=200, body=b"a")),
    ("cut between chunks", *cut(CHUNKED + b"1\r\na\r\n", status=200, body=b"a")),
    ("cut after the last size", *cut(CHUNKED + b"0\r\n", status=200)),
    ("cut in the last line end", *cut(CHUNKED + b"0\r\n\r", status=200)),
    ("cut in a trailer", *cut(CHUNKED + b"0\r\nX: y\r\n", status=200)),
    ("body until close", head() + b"hello", right("end", body=b"hello", close=True)),
    ("empty body until close", head(), CLOSE),
    (
        "HTTP/1.0 body until close",
        head(b"Connection: keep-alive", start=OLD) + b"x",
        right("end", body=b"x", close=True),
    ),
    ("404 until close", b"HTTP/1.0 404 x\r\n\r\nno", right("end", 404, b"no", close=True)),
    ("whole, then closed", five(), HELLO),
    ("chunked whole, then closed", CHUNKED + LAST, END),
    ("refused, then closed", b"junk", BAD),
]


def open_ended(data: bytes, **more: Any) -> tuple[bytes, dict[str, Any]]:
    return data, right("again", more.pop("status", None), **more)


FILL = b"X: " + b"v" * (LIMIT - len(OK) - len(b"X: \r\nContent-Length: 0\r\n\r\n"))
LIMITS = [
    ("head of 64 KiB", head(FILL, b"Content-Length: 0"), END),
    ("head of 64 KiB and a byte", head(FILL + b"v", b"Content-Length: 0"), BAD),
    ("endless header line", OK + b"X: " + b"v" * (LIMIT + 9), BAD),
    ("endless name", OK + b"X" * (LIMIT + 9), BAD),
    ("endless headers", OK + b"X: y\r\n" * (LIMIT // 6 + 2), BAD),
    ("endless reason", b"HTTP/1.1 200 " + b"x" * (LIMIT + 9), BAD),
    ("endless early answers", b"HTTP/1.1 100 x\r\n\r\n" * (LIMIT // 18 + 2), BAD),
    ("endless trailers", CHUNKED + b"0\r\n" + b"X: y\r\n" * (LIMIT // 6 + 2), right("bad")),
    ("endless extension", CHUNKED + b"1;" + b"x" * (LIMIT + 9), right("bad")),
    ("endless zeros", CHUNKED + b"0" * (LIMIT + 9), right("bad")),
    (
        "a short extension on each of many chunks",
        CHUNKED + (b"1;id=abcdefgh\r\na\r\n") * 9000 + LAST,
        right("end", body=b"a" * 9000),
    ),
    (
        "body until close goes on",
        *open_ended(head() + b"a" * 200_000, status=200, body=b"a" * 200_000, close=True),
    ),
    ("head under way", *open_ended(OK)),
]

Case = tuple[str, bytes, dict[str, Any]]
OPEN_CASES: list[Case] = [*STATUS, *HEADERS, *CONNECTION, *LENGTHS, *CHUNKS, *LIMITS]
CASES: list[tuple[str, bytes, bool, dict[str, Any]]] = [
    *((name, data, False, result) for name, data, result in OPEN_CASES),
    *((name, data, True, result) for name, data, result in CLOSED),
]


def free(wanted: dict[str, Any]) -> dict[str, Any]:
    """Of a refused head neither the rest nor the connection's fate is of interest."""
    return {"rest": b"", "close": True} if wanted in (BAD, right("bad")) else {}


@pytest.mark.parametrize(
    ("data", "closed", "wanted"), [pytest.param(d, c, r, id=n) for n, d, c, r in CASES]
)
def test_a_response_however_it_is_cut(data: bytes, closed: bool, wanted: dict[str, Any]) -> None:
    for pieces in cuts(data):
        found = scan_http(pieces, closed=closed, replica_header="x-replica")
        assert {**found, **free(wanted)} == {"replica": found["replica"], **wanted, **free(wanted)}


def test_names_are_unique() -> None:
    assert len({name for name, *_ in CASES}) == len(CASES)
