"""The event-stream scanner against hand-written event lists and a reference splitter.

Does: a table of bodies (bytes -> the events seen), each fed whole, byte by byte and at random cuts;
generated bodies against a splitter that follows the WHATWG rules on bytes.
Never: splits on anything but LF, CR and CRLF, and never decodes: U+2028, U+0085 and 0x0B are text.
An event is written here as the number of its completion tokens (each test event has its own), with
"error " before it where the event's name is error; "done" is [DONE], "error" an error event in
plain words, "bad" an event that does not hold (the scan ends there).
Where the scanner leaves WHATWG: the last event counts without its blank line (SPEC 3 judges the
stream's own end), and data of white space alone is a ping, not an event.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuts import cuts, random_cut
from percentes_fast._native import scan_json, scan_sse


def tokens(count: int) -> bytes:
    return b'{"usage":{"completion_tokens":%d}}' % count


def told(event: Any) -> Any:
    """One event of a scan, as the tables write it."""
    if isinstance(event, str):
        return event
    count = event["completion_tokens"]
    return f"error {count}" if event["named_error"] else count


A, B = tokens(1), tokens(2)
MARK = b"\xef\xbb\xbf"

CASES: list[tuple[str, bytes, list[Any]]] = [
    ("nothing", b"", []),
    ("LF", b"data: " + A + b"\n\ndata: " + B + b"\n\n", [1, 2]),
    ("CRLF", b"data: " + A + b"\r\n\r\ndata: " + B + b"\r\n\r\n", [1, 2]),
    ("CR", b"data: " + A + b"\r\rdata: " + B + b"\r\r", [1, 2]),
    ("mixed line ends", b"data: " + A + b"\r\n\ndata: " + B + b"\n\r", [1, 2]),
    ("LF then CRLF is two ends", b"data: " + A + b"\n\r\ndata: " + B + b"\r\r\n", [1, 2]),
    ("no space", b"data:" + A + b"\n\n", [1]),
    ("two spaces", b"data:  " + A + b"\n\n", [1]),
    ("tab", b"data:\t" + A + b"\n\n", [1]),
    ("space after the object", b"data: " + A + b" \n\n", [1]),
    ("space before the field", b" data: " + A + b"\n\n", []),
    ("space before the colon", b"data : " + A + b"\n\n", []),
    ("two data lines", b'data: {"usage":\ndata: {"completion_tokens":3}}\n\n', [3]),
    (
        "number over two data lines",
        b'data: {"usage":{"completion_tokens":3\ndata: 4}}\n\n',
        ["bad"],
    ),
    ("three data lines, one empty", b"data: {\ndata\ndata: " + A[1:] + b"\n\n", [1]),
    ("empty data lines around", b"data:\ndata: " + A + b"\ndata\n\n", [1]),
    ("two objects in two data lines", b"data: " + A + b"\ndata: " + B + b"\n\n", ["bad"]),
    ("comment", b": ping\n\ndata: " + A + b"\n\n", [1]),
    ("empty comment", b":\n\n:\n\n", []),
    ("comment between data lines", b"data: {\n: data: x\ndata: " + A[1:] + b"\n\n", [1]),
    ("comment with data in it", b": data: {\n\n", []),
    ("many blank lines", b"\n\n\r\n\r\rdata: " + A + b"\n\n\n\n", [1]),
    ("empty data is a ping", b"data:\n\ndata: \n\ndata\n\ndata: " + A + b"\n\n", [1]),
    ("event, id and retry", b"event: message\nid: 7\nretry: 100\ndata: " + A + b"\n\n", [1]),
    ("fields after the data", b"data: " + A + b"\nid: 7\nevent: chunk\n\n", [1]),
    ("field without a colon", b"data: " + A + b"\nid\nevent\nx\n\n", [1]),
    ("unknown fields", b"dat: x\ndata2: y\ndataa\nDATA: z\ndata: " + A + b"\n\n", [1]),
    ("event without data", b"event: error\n\ndata: " + A + b"\n\n", [1]),
    ("error event of JSON", b"event: error\ndata: " + A + b"\n\n", ["error 1"]),
    ("error event without the space", b"event:error\ndata: " + A + b"\n\n", ["error 1"]),
    ("name after the data", b"data: " + A + b"\nevent: error\n\n", ["error 1"]),
    ("error event in plain words", b"event: error\ndata: out of memory\n\n", ["error"]),
    ("plain words before the name", b"data: out of memory\nevent: error\n\n", ["error"]),
    ("plain words in brackets", b"event: error\ndata: [31] killed\n\n", ["error"]),
    ("plain words on two lines", b"event: error\ndata: out\ndata: {of} memory\n\n", ["error"]),
    ("error event of broken JSON", b'event: error\ndata: {"a"\n\n', ["bad"]),
    ("the last name counts", b"event: error\nevent: message\ndata: " + A + b"\n\n", [1]),
    ("the last name is error", b"event: x\nevent: error\ndata: " + A + b"\n\n", ["error 1"]),
    ("an empty name undoes it", b"event: error\nevent:\ndata: " + A + b"\n\n", [1]),
    ("a name without colon undoes it", b"event: error\nevent\ndata: " + A + b"\n\n", [1]),
    ("names that are not error", b"event: errors\nevent2: error\ndata: " + A + b"\n\n", [1]),
    ("two spaces before the name", b"event:  error\ndata: " + A + b"\n\n", [1]),
    ("cut name", b"event: erro\ndata: " + A + b"\n\n", [1]),
    (
        "a name counts for one event",
        b"event: error\ndata: " + A + b"\n\ndata: " + B + b"\n\n",
        ["error 1", 2],
    ),
    ("byte-order mark", MARK + b"data: " + A + b"\n\n", [1]),
    ("two byte-order marks", MARK + MARK + b"data: " + A + b"\n\ndata: " + B + b"\n\n", [2]),
    ("byte-order mark later", b"\n" + MARK + b"data: " + A + b"\n\n", []),
    ("byte-order mark in an event", b"data: " + MARK + A + b"\n\n", ["bad"]),
    ("part of a byte-order mark", b"\xef\xbbdata: " + A + b"\n\ndata: " + B + b"\n\n", [2]),
    ("byte-order mark alone", MARK, []),
    ("done", b"data: [DONE]\n\n", ["done"]),
    ("done without the space", b"data:[DONE]\r\n\r\n", ["done"]),
    ("done and white space", b"data:  [DONE] \t\n\n", ["done"]),
    ("done twice", b"data: [DONE]\n\ndata: [DONE]\n\n", ["done", "done"]),
    ("text after done", b"data: [DONE]\n\ndata: " + A + b"\n\n", ["done", 1]),
    ("done over two lines", b"data: [DO\ndata: NE]\n\n", ["bad"]),
    ("done and more", b"data: [DONE]x\n\n", ["bad"]),
    ("done cut", b"data: [DON\n\n", ["bad"]),
    ("done in lower case", b"data: [done]\n\n", ["bad"]),
    ("done as an event's name", b"event: [DONE]\n\n", []),
    ("done without data", b"[DONE]\n\n", []),
    ("last event without its blank line", b"data: " + A + b"\n\ndata: " + B + b"\n", [1, 2]),
    ("last event without its line end", b"data: " + A + b"\n\ndata: [DONE]", [1, "done"]),
    ("last event cut", b"data: " + A + b"\n\ndata: " + B[:-1], [1, "bad"]),
    ("done cut at the end", b"data: [DONE", ["bad"]),
    ("field cut at the end", b"data: " + A + b"\n\ndat", [1]),
    ("data field alone at the end", b"data: " + A + b"\n\ndata:", [1]),
    ("error event without its blank line", b"data: x\nevent: error", ["error"]),
    ("CR at the end", b"data: " + A + b"\r\n\r", [1]),
    ("JSON array", b"data: [1]\n\n", ["bad"]),
    ("JSON string", b'data: "a"\n\n', ["bad"]),
    ("plain words", b"data: hello\n\ndata: " + A + b"\n\n", ["bad"]),
    ("invalid JSON", b'data: {"a":}\n\n', ["bad"]),
    (
        "invalid JSON after an event",
        b"data: " + A + b"\n\ndata: {\n\ndata: " + B + b"\n\n",
        [1, "bad"],
    ),
    ("HTML", b"<html>\n<body>502</body>\n</html>\n", []),
    ("JSON without a field", A + b"\n\n", []),
    ("U+2028 in a string", b'data: {"a":"\xe2\x80\xa8",' + A[1:] + b"\n\n", [1]),
    ("U+0085 in a string", b'data: {"a":"\xc2\x85",' + A[1:] + b"\n\n", [1]),
    ("VT and FF in a string", b'data: {"a":"\x0b\x0c",' + A[1:] + b"\n\n", [1]),
    ("invalid UTF-8 in a string", b'data: {"a":"\xff\xfe",' + A[1:] + b"\n\n", [1]),
    ("NUL between events", b"\0\n\ndata: " + A + b"\n\n", [1]),
    ("gzip magic", b"\x1f\x8b\x08\0\0\0\0\0\0\3\n\n", []),
    ("500 events in one read", (b"data: " + A + b"\n\n") * 500, [1] * 500),
    ("event of 1 MB", b'data: {"a":"' + b"x" * 1_000_000 + b'",' + A[1:] + b"\n\n", [1]),
]


@pytest.mark.parametrize(("data", "right"), [pytest.param(d, r, id=n) for n, d, r in CASES])
def test_events_of_a_body_however_it_is_cut(data: bytes, right: list[Any]) -> None:
    for pieces in cuts(data):
        assert [told(event) for event in scan_sse(pieces)] == right


def test_names_are_unique() -> None:
    assert len({name for name, _, _ in CASES}) == len(CASES)


def test_a_body_of_100_mb_without_an_event() -> None:
    piece = b"x" * 1_000_000
    assert scan_sse(piece for _ in range(100)) == []


def test_an_event_carries_its_own_facts_only() -> None:
    first = b'{"choices":[{"text":"a","finish_reason":"stop"}],"error":"e"}'
    one, two = scan_sse([b"data: " + first + b"\n\ndata: {}\n\n"])
    assert one == {**scan_json([first]), "named_error": False}
    assert two == {**scan_json([b"{}"]), "named_error": False}


LINE_END = re.compile(rb"\r\n|\r|\n")


def split(body: bytes) -> list[tuple[bytes, bytes]]:
    """WHATWG 9.2.6 on bytes: (name, data) of each event; the end of the body ends the last one."""
    events, name, data = [], b"", list[bytes]()
    for line in [*LINE_END.split(body.removeprefix(MARK)), b""]:
        if not line:
            events.append((name, b"\n".join(data)))
            name, data = b"", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            name = value
        if field == b"data":
            data.append(value)
    return events


def judge(name: bytes, data: bytes) -> Any:
    """What one event is; None for a ping."""
    payload = data.strip(b" \t\n")
    if not payload:
        return None
    if payload.startswith(b"{"):
        found = scan_json([payload])
        return "bad" if found is None else {**found, "named_error": name == b"error"}
    if payload == b"[DONE]":
        return "done"
    return "error" if name == b"error" else "bad"


def reference(body: bytes) -> list[Any]:
    found: list[Any] = []
    for event in split(body):
        verdict = judge(*event)
        if verdict is not None:
            found.append(verdict)
        if verdict == "bad":
            break
    return found


ENDS = [b"\n", b"\r", b"\r\n"]
FIELDS = [
    b"data: " + A,
    b"data:" + B,
    b"data: [DONE]",
    b"data: {",
    b"data: " + A[1:],
    b"data",
    b"data:",
    b"data:  ",
    b"event: error",
    b"event:error",
    b"event: x",
    b"event",
    b"event:",
    b"id: 1",
    b":",
    b": data: {",
    b"datum: x",
    b"data: words",
    b"data: [DONE] ",
    b'data: {"error":"\xe2\x80\xa8"}',
    b"data: [",
    b"\xef",
    MARK,
    b" ",
    b"x",
]
lines = st.sampled_from(FIELDS) | st.binary(max_size=4)
bodies = st.lists(
    st.tuples(lines, st.lists(st.sampled_from(ENDS), max_size=3).map(b"".join)), max_size=10
)
events = st.lists(
    st.tuples(st.sampled_from(FIELDS[:3]), st.sampled_from([b"\n\n", b"\r\r", b"\r\n\r\n"])),
    max_size=8,
)


@given(
    st.sampled_from([b"", MARK, MARK[:2], MARK[:1]]),
    events,
    bodies,
    st.randoms(use_true_random=False),
)
@settings(max_examples=400, deadline=None)
def test_events_are_those_of_the_reference_splitter(
    start: bytes, whole: list[tuple[bytes, bytes]], rest: list[tuple[bytes, bytes]], rng: Any
) -> None:
    body = start + b"".join(line + end for line, end in [*whole, *rest])
    right = reference(body)
    assert scan_sse([body]) == right
    assert scan_sse([body[i : i + 1] for i in range(len(body))]) == right
    assert scan_sse(random_cut(body, rng)) == right


@given(
    st.lists(st.sampled_from([*FIELDS, *ENDS, b"data: ", b"{", b"}", b'"']), max_size=14).map(
        b"".join
    )
)
@settings(max_examples=400, deadline=None)
def test_bytes_thrown_together(body: bytes) -> None:
    right = reference(body)
    assert scan_sse([body]) == right
    assert scan_sse([body[i : i + 1] for i in range(len(body))]) == right
