"""Whole responses, generated, cut and broken off anywhere: both engines write the same record.

Does: heads, framings and events in any mixture, broken off after any byte, in reads cut anywhere,
with every end of a connection; the native engine against h11 and orjson.
Never: says which is right (test_wire.py does), or damages framing, where h11 needs a whole line.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cuts import random_cut
from percentes_fast import _native
from percentes_fast.schema import Kind
from raw_server import HOST, Bench, Row, chunk, token, usage
from test_events_reference import ENDS, LINES

SEEN = ("headers_ns", "first_token_ns", "first_visible_token_ns", "last_token_ns")
PLAIN = (
    "cause", "errno_code", "http_status", "content_events", "prompt_tokens", "completion_tokens",
    "bytes_received",
)  # fmt: skip

early = st.sampled_from(
    [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 X\r\nLink: a\r\n\r\n"]
)
starts = st.sampled_from([
    b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/1.1 503 busy",
    b"HTTP/1.1 204 X",
])  # fmt: skip
headers = st.lists(
    st.sampled_from([
        b"Content-Type: text/event-stream", b"Connection: close", b"connection: Keep-Alive",
        b"X-Replica:  r1 ", b"X: a\r\n b", b"x-replica: r2", b"Date:",
    ]),
    max_size=3,
    unique_by=lambda line: line.lower().partition(b":")[0],
)  # fmt: skip
texts = st.text('ab"\\\u2028\u0085é😀', max_size=4)
deltas = st.dictionaries(
    st.sampled_from(["content", "reasoning", "reasoning_content", "role", "tool_calls"]),
    texts | st.none() | st.just([{"function": {"arguments": "x"}}]),
    max_size=2,
)
whole = st.lists(
    st.sampled_from([token(), token(""), token(finish="stop"), usage(3), b"data: [DONE]\n\n"])
    | st.builds(lambda delta: b"data: " + _json({"choices": [{"delta": delta}]}) + b"\n\n", deltas),
    max_size=8,
).map(b"".join)
rough = st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(ENDS)), max_size=10).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


def _json(value: Any) -> bytes:
    import orjson

    return orjson.dumps(value)


def framed(body: bytes, framing: str, sizes: list[int]) -> tuple[list[bytes], bytes]:
    """(header lines, bytes) of a body in one of the three framings."""
    if framing == "length":
        return [b"Content-Length: %d" % len(body)], body
    if framing == "close":
        return [], body
    at, pieces = 0, []
    for size in [*sizes, len(body) + 1]:
        if body[at : at + size]:
            pieces.append(chunk(body[at : at + size]))
        at += size
    return [b"Transfer-Encoding: chunked"], b"".join(pieces) + b"0\r\n\r\n"


@st.composite
def responses(draw: Any) -> bytes:
    body = draw(whole | rough)
    sizes = draw(st.lists(st.integers(1, 40), max_size=4))
    framing, data = framed(body, draw(st.sampled_from(["length", "close", "chunked"])), sizes)
    lines = [draw(starts), *draw(headers), *framing]
    end = draw(st.sampled_from([b"\r\n", b"\n"]))
    head = draw(early) + b"".join(line + end for line in lines) + end
    return head + data + draw(st.sampled_from([b"", b"", b"", b"junk"]))


def record(kind: str, path: Path, pieces: list[bytes], end: str, plain: bool) -> dict[str, Any]:
    """What an engine writes of an answer."""
    bench = Bench(path, Row(kind=Kind.HEALTH if plain else Kind.LOAD), tokens=256)
    bench.kind = kind
    bench.slab.set_word("epoch_ns", _native.clock_now())
    engine = bench.engine(
        [b""], [(HOST, 1)], [10**9] * 4, [k == Kind.HEALTH for k in Kind],
        replica_header="X-Replica",
    )  # fmt: skip
    pooled = engine.answer(0, pieces, end)
    ran = bench.row(0)
    bench.slab.path.unlink()
    found = {name: ran.values[name] for name in PLAIN}
    found |= {name: ran.values[name] is not None for name in SEEN}
    found |= {"shared": ran.values["first_token_shared_read"], "same": bench.tokens("same_read")}
    return found | {
        "pooled": pooled, "message": ran.message, "finish": ran.finish, "replica": ran.replica,
    }  # fmt: skip


@given(
    responses(), st.floats(0, 1.3), st.sampled_from(["fin", "rst", "deadline"]), st.booleans(),
    st.integers(0, 2**32),
)  # fmt: skip
@settings(max_examples=400)
def test_the_same_record(data: bytes, kept: float, end: str, plain: bool, seed: int) -> None:
    data = data[: int(kept * len(data))]
    pieces = list(filter(None, random_cut(data, random.Random(seed)))) if data else []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        for reads in ([data] if data else [], pieces):
            native = record("native", Path(place), reads, end, plain)
            assert native == record("asyncio", Path(place), reads, end, plain)
