"""The HTTP parser against h11 in the client's role: generated responses, then damaged ones.

Does: well-formed responses must give the same state, status, body, left-over bytes and fate of the
connection; damaged ones must be whole on both sides, with equal fields, or fail on both.
Never: compares how far each got before it failed: h11 reads a head only when all of it is there.
Where h11 differs, with the reason this parser goes its way (sections of RFC 9112, 9110):
- h11 stricter: a CR inside a header line is a space here (2.2 allows it); control characters in
  a reason, and all but NUL in a value, pass (4: a client should ignore the reason; 9110 5.5: it
  may keep them); white space before a chunk extension passes (7.1.1: BWS must be taken); equal
  lengths spelled with different zeros pass (9110 8.6: the same value); 101 is read as any 1xx
  (9110 15.2.2: it answers Upgrade, which is never sent); leading zeros of a size do not count.
- h11 laxer: a version other than 1.x is refused here (2.3: a client that speaks 1.1 alone); a CR
  inside a chunk extension is refused (7.1.1: neither token nor quoted string holds one).
- fate of the connection: h11 closes after every HTTP/1.0 answer, here keep-alive counts (9.3);
  with length and chunked, or chunked in 1.0, this parser closes (6.1, 6.3), h11 does not.
- limits: h11's is on what is buffered, here 64 KiB a head; values of length headers over 96 bytes.
"""

from __future__ import annotations

import random
import re
from typing import Any

import h11
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cuts import random_cut
from percentes_fast._native import scan_http
from test_http_parser import head


def by_h11(pieces: list[bytes]) -> dict[str, Any]:
    """The result in scan_http's words, of pieces after which the peer closed."""
    conn = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 * 1024)
    conn.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    conn.send(h11.EndOfMessage())
    found: dict[str, Any] = {"state": "failed", "status": None, "body": b""}
    try:
        for piece in [*filter(None, pieces), b""]:
            conn.receive_data(piece)
            while found["state"] != "end" and take(conn, found):
                pass
            if found["state"] == "end":
                break
    except h11.RemoteProtocolError:
        return found
    return found


def take(conn: h11.Connection, found: dict[str, Any]) -> bool:
    """Notes the next event; whether another may follow."""
    event = conn.next_event()
    if isinstance(event, h11.Response):
        found["status"] = event.status_code
    elif isinstance(event, h11.Data):
        found["body"] += bytes(event.data)
    elif isinstance(event, h11.EndOfMessage):
        found["state"] = "end"
        found["close"] = conn.their_state is not h11.DONE or conn.trailing_data[1]
        found["rest"] = conn.trailing_data[0]
    return event is not h11.NEED_DATA and not isinstance(event, h11.ConnectionClosed)


def by_parser(pieces: list[bytes]) -> dict[str, Any]:
    found = scan_http(pieces, closed=True)
    if found["state"] != "end":
        return {"state": "failed", "status": found["status"]}
    return {key: found[key] for key in ("state", "status", "body", "close", "rest")}


def cased(name: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from([name, name.lower(), name.upper(), name.swapcase()])


spaces = st.text(" \t", max_size=3).map(str.encode)
tokens = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=8).map(str.encode)
visible = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=6)
words = visible.map(str.encode) | st.sampled_from([b"\xe9\xff", b"a b", b'"q;, "'])
folds = st.sampled_from([b"", b"", b"\r\n ", b"\r\n\t "])
reasons = st.one_of(
    st.just(b""), st.lists(words, max_size=3).map(b" ".join).map(lambda r: b" " + r)
)
codes = st.sampled_from([200, 200, 200, 201, 204, 302, 304, 400, 404, 429, 500, 503, 599, 999])


@st.composite
def fields(draw: st.DrawFn, name: bytes, value: bytes) -> bytes:
    """One header line, in any case, with white space and folds where they may be."""
    between = draw(folds) if value else b""
    return b"".join([draw(cased(name)), b":", draw(spaces), between, value, draw(spaces), b"\r\n"])


others = st.tuples(tokens, st.lists(words, max_size=2).map(b" ".join)).flatmap(
    lambda pair: fields(b"X-" + pair[0], pair[1])
)
keeping = st.sampled_from([b"close", b"Close , x", b"keep-alive", b"upgrade", b"x,close"])


@st.composite
def chunked(draw: st.DrawFn, body: bytes) -> bytes:
    """The body in chunks, with zeros, extensions and trailers."""
    rng = draw(st.randoms(use_true_random=False))
    out = []
    for piece in filter(None, random_cut(body, rng)):
        size = draw(st.sampled_from([b"%x", b"%X", b"00%x", b"%x;a=b", b'%X;"c d";e', b"%x \t"]))
        out.append(size % len(piece) + b"\r\n" + piece + b"\r\n")
    end = draw(st.sampled_from([b"0", b"000", b"0;x=y"]))
    return b"".join([*out, end, b"\r\n", *draw(st.lists(others, max_size=2)), b"\r\n"])


binary = st.binary(max_size=40) | st.just(b"data: {}\r\n\r\n")
plain = st.text("abf059 :;-\n", max_size=20).map(str.encode)


@st.composite
def responses(draw: st.DrawFn, bodies: st.SearchStrategy[bytes] = binary) -> bytes:
    """A well-formed response of any framing, early answers before and other bytes after it."""
    code, body = draw(codes), draw(bodies)
    framing = draw(st.sampled_from(["length", "equal lengths", "chunked", "close"]))
    lines = draw(st.lists(others, max_size=3))
    length = fields(b"Content-Length", b"%d" % len(body))
    if framing == "length":
        lines.append(draw(length))
    if framing == "equal lengths":
        both = fields(b"Content-Length", b"%d, %d" % (len(body), len(body)))
        lines += [draw(length), draw(st.one_of(length, both))]
    if framing == "chunked":
        lines.append(draw(fields(b"Transfer-Encoding", draw(cased(b"chunked")))))
        body = draw(chunked(body))
    if draw(st.booleans()):
        lines.append(draw(keeping.flatmap(lambda value: fields(b"Connection", value))))
    version = (
        draw(st.sampled_from([b"1.1", b"1.1", b"1.1", b"1.0"])) if framing != "chunked" else b"1.1"
    )
    early = draw(
        st.sampled_from(
            [b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103\r\nLink: x\r\n\r\n"]
        )
    )
    start = b"HTTP/%s %d%s\r\n" % (version, code, draw(reasons))
    after = (
        b"" if framing == "close" else draw(st.sampled_from([b"", b"junk", b"HTTP/1.1 200 OK\r\n"]))
    )
    return early + start + b"".join(draw(st.permutations(lines))) + b"\r\n" + body + after


OLD_KEPT = re.compile(rb"^HTTP/1\.0 .*^connection:[^:]*keep-alive", re.I | re.M | re.S)


@given(responses(), st.integers(0, 2**32))
@settings(max_examples=350, deadline=None)
def test_well_formed_responses_are_read_as_h11_reads_them(data: bytes, seed: int) -> None:
    wanted = by_h11([data])
    assert wanted["state"] == "end"
    if OLD_KEPT.search(data):
        wanted.pop("close")
    rng = random.Random(seed)
    for pieces in ([data], [data[i : i + 1] for i in range(len(data))], random_cut(data, rng)):
        found = by_parser(pieces)
        assert {key: found[key] for key in wanted} == wanted


@given(responses(), st.floats(0, 1), st.integers(0, 2**32))
@settings(max_examples=250, deadline=None)
def test_a_response_cut_anywhere_ends_as_in_h11(data: bytes, end: float, seed: int) -> None:
    data = data[: int(end * len(data))]
    wanted, found = by_h11([data]), by_parser(random_cut(data, random.Random(seed)))
    assert (found["state"], found["status"]) == (wanted["state"], wanted["status"])
    assert found.get("body") == (wanted["body"] if wanted["state"] == "end" else None)


PIECES = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b",", b";", b"0", b"1", b"5", b"f", b"F", b"-",
    b"\r\n\r\n", b"\x0b", b"\xff", b"HTTP/1.1 ", b"0\r\n\r\n", b"5\r\nhello\r\n", b"X: y\r\n",
    b"Content-Length: 3\r\n", b"Content-Length: 4\r\n", b"Content-Length: 05\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n",
]  # fmt: skip
damages = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 4), st.sampled_from([b"", *PIECES])), max_size=3
)


def damaged(data: bytes, blows: list[tuple[float, int, bytes]]) -> bytes:
    for where, cut, put in blows:
        at = int(where * len(data))
        data = data[:at] + put + data[at + cut :]
    return data


# A sign of each difference named above; a body may show one too, which costs only an example.
LOOSER = re.compile(
    rb"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f]|HTTP/1\.\d 101|[0-9a-f][ \t]+;|0{10}"
    rb"|length:[^\r\n]*\b0[0-9]",
    re.I,
)
STRICTER = re.compile(rb"HTTP/(?!1\.)|\r(?!\n)|[0-9]{17}|.{80}", re.I)


def excused(data: bytes, found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether the two may differ on these bytes: only in the way the head of this file says."""
    if found["state"] == "end" and wanted["state"] != "end":
        return LOOSER.search(data) is not None
    if found["state"] != "end" and wanted["state"] == "end":
        return STRICTER.search(data) is not None
    return False


@given(responses(plain), damages, st.integers(0, 2**32))
@example(head(b"Content-Length: 1", b"Transfer-Encoding: chunked") + b"0\r\n\r\n", [], 0)
@example(head(b": x", b"Content-Length: 0"), [], 0)
@example(head(b"Transfer-Encoding: chunked") + b"0\r\nno colon\r\n\r\n", [], 0)
@settings(max_examples=350, deadline=None)
def test_damaged_responses_fail_together(
    data: bytes, blows: list[tuple[float, int, bytes]], seed: int
) -> None:
    data = damaged(data, blows)
    assume(data)
    wanted, found = by_h11([data]), by_parser([data])
    assert by_parser(random_cut(data, random.Random(seed))) == found
    if excused(data, found, wanted):
        return
    assert (found["state"], found["status"] if found["state"] == "end" else None) == (
        wanted["state"], wanted["status"] if wanted["state"] == "end" else None
    )  # fmt: skip
    if found["state"] == "end":
        assert (found["body"], found["rest"]) == (wanted["body"], wanted["rest"])
