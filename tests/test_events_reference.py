"""The Python reader of events against the native one: the same facts, the same events.

Does: whole and damaged JSON, event streams thrown together, cut at random.
Never: says which of the two is right: test_json_orjson and test_sse_scanner do.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cuts import random_cut
from percentes_fast._native import scan_json, scan_sse
from percentes_fast.engine.events import Broken, Done, Events, Facts, facts_of
from test_json_orjson import PIECES, anything, damaged, damages, events, respell

import orjson  # isort: skip


def shown(facts: Facts | None) -> dict[str, Any] | None:
    return None if facts is None else {name: getattr(facts, name) for name in facts.__slots__}


@given(events | anything, damages, st.floats(0, 2), st.integers(0, 2**32))
@settings(max_examples=400)
def test_facts(event: Any, blows: list[Any], end: float, seed: int) -> None:
    data = damaged(respell(orjson.dumps(event), random.Random(seed)), blows)
    data = data[: int(end * len(data))]
    assert shown(facts_of(data)) == scan_json([data])


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
@settings(max_examples=400)
def test_bytes_thrown_together(data: bytes) -> None:
    whole = b'{"a":' + data + b"}"
    assert shown(facts_of(whole)) == scan_json([whole])


def by_python(pieces: list[bytes]) -> list[Any]:
    """In the words of `scan_sse`; what follows a broken event is not looked at."""
    reader, found = Events(), []
    for piece in pieces:
        for event, _ in reader.feed(piece):
            found.append(told(event))
            if found[-1] == "bad":
                return found
    last = reader.finish()
    return found if last is None else [*found, told(last)]


def told(event: Any) -> Any:
    if isinstance(event, Broken):
        return "bad"
    if isinstance(event, Done):
        return "done"
    return shown(event) if isinstance(event, Facts) else "error"


def by_scanner(pieces: list[bytes]) -> list[Any]:
    found = []
    for event in scan_sse(pieces):
        if isinstance(event, dict):
            named = event.pop("named_error")
            event["error"] = event["error"] or named
        found.append(event)
    return found


LINES = [
    b'data: {"choices":[{"delta":{"content":"a"}}]}', b"data: {}", b"data:[DONE]", b"data: [DON",
    b"data: [DONE] x", b"data", b"data:", b"data:  ", b"data: 1", b"data: {", b"data: }",
    b"event: error", b"event: x", b"event", b"event:error", b": ping", b"id: 1", b"retry: 5", b"",
    b"", b"dat", b"dataa: {}", b"\xef\xbb\xbfdata: {}", b"\xef\xbb", b'data: {"error":',
    b'data: "x"}', b"data: words", b" data: {}",
]  # fmt: skip
ENDS = [b"\n", b"\r\n", b"\r"]


@given(
    st.lists(
        st.tuples(st.sampled_from(LINES), st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=14
    ),
    st.booleans(),
    st.integers(0, 2**32),
)
@example([(b"event: error", b"\n"), (b"data: [DONE] x", b"\n"), (b"", b"\n")], True, 0)
@settings(max_examples=800)
def test_event_streams(lines: list[tuple[bytes, bytes]], ended: bool, seed: int) -> None:
    body = b"".join(line + end for line, end in lines)
    body = body if ended else body.rstrip(b"\r\n")
    pieces = random_cut(body, random.Random(seed)) if body else []
    assert by_python([body]) == by_python(pieces) == by_scanner(pieces)
