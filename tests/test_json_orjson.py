"""The JSON scanner against orjson: generated events, respelled, then damaged.

Does: generated documents go through orjson and are spelled anew (escapes, white space, key order);
the facts must be those of a reference that walks orjson's own tree. Damaged documents must be taken
exactly where a tolerant reading of them holds.
Never: uses the scanner to say what is right.
Where the scanner is laxer than orjson, and why (its check is brackets, strings, escapes, literals):
numbers are any run of number bytes; control characters, invalid UTF-8 and lone halves of surrogate
pairs may stand in strings. Where it is stricter: one object only, and 256 levels at most.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cuts import random_cut
from percentes_fast._native import scan_json
from test_json_scanner import facts

KEYS = [
    "choices", "delta", "content", "reasoning", "reasoning_content", "tool_calls", "function",
    "function_call", "arguments", "text", "token_ids", "finish_reason", "usage", "prompt_tokens",
    "completion_tokens", "error", "message", "detail", "object", "index", "role",
]  # fmt: skip
WORDS = [
    '"content":"a"',
    '{"choices":[{"text":"a"}]}',
    "\u2028",
    "\x85",
    "\\",
    "\U0001f600",
    "error",
]
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
TOKEN = re.compile(rb'("(?:[^"\\]|\\.)*")|[-0-9][-+.0-9eE]*', re.DOTALL)
SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\n": "\\n", "\t": "\\t", "\r": "\\r"}

texts = st.text(max_size=8) | st.sampled_from(["", *WORDS])
leaves = (
    st.none() | st.booleans() | texts | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
keys = st.sampled_from(KEYS) | texts
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)


def shape(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the fields, of the right kind or of any, and a few others, in any order."""
    known = st.fixed_dictionaries({}, optional={k: v | anything for k, v in fields.items()})
    both = st.tuples(known, st.dictionaries(keys, anything, max_size=2))
    return (
        both.map(lambda two: list({**two[1], **two[0]}.items())).flatmap(st.permutations).map(dict)
    )


functions = shape(name=texts, arguments=texts)
deltas = shape(
    role=texts, content=texts, reasoning=texts, reasoning_content=texts, function_call=functions,
    tool_calls=st.lists(shape(function=functions, index=leaves), max_size=2),
    token_ids=st.lists(leaves, max_size=2),
)  # fmt: skip
choices = shape(
    delta=deltas, text=texts, token_ids=st.lists(anything, max_size=2),
    finish_reason=st.sampled_from(["stop", "length", "abort", "x" * 40]),
)  # fmt: skip
counts = st.integers(0, 10**11)
events = shape(
    choices=st.lists(choices, max_size=2), object=st.sampled_from(["error", "chunk"]), id=texts,
    usage=shape(prompt_tokens=counts, completion_tokens=counts), message=texts, detail=texts,
    error=texts | shape(message=texts | st.text(min_size=80, max_size=300), code=leaves),
)  # fmt: skip


def spell(text: str, rng: random.Random) -> str:
    """A JSON string of `text` with escapes where they need not be."""
    out = []
    for char in text:
        how = rng.random()
        if how < 0.4:
            units = char.encode("utf-16-be")
            forms = (
                rng.choice(["%04x", "%04X"]) % int.from_bytes(units[i : i + 2])
                for i in range(0, len(units), 2)
            )
            out.extend("\\u" + form for form in forms)
        elif char in SHORT and (how < 0.7 or char != "/"):
            out.append(SHORT[char])
        else:
            out.append(char if char >= " " else f"\\u{ord(char):04x}")
    return '"' + "".join(out) + '"'


def respell(data: bytes, rng: random.Random) -> bytes:
    """The same document with other escapes and with white space."""
    spelled = STRING.sub(lambda found: spell(orjson.loads(found[0]), rng).encode(), data)
    blank = [b"", b"", b"", b" ", b"\n", b"\t\r\n"]
    parts = re.split(rb'("(?:[^"\\]|\\.)*"|[{}\[\]:,])', spelled)
    return b"".join(part + rng.choice(blank) for part in parts)


def items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def said(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 10**9 else None


def kept(value: str, limit: int) -> bytes:
    return value.encode()[:limit]


def last_message(event: dict[str, Any]) -> bytes:
    """The last string among the places where servers put an error's text."""
    found = ""
    for key, value in event.items():
        inner = table(value).get("message") if key == "error" else None
        for text in (value if key in ("error", "message", "detail") else None, inner):
            found = text if isinstance(text, str) else found
    return bytes(32 if byte < 32 else byte for byte in kept(found, 256))


def reference(event: dict[str, Any]) -> dict[str, Any]:
    """The facts as SPEC 3 words them, from the parsed tree."""
    every = items(event.get("choices"))
    inner = [table(one.get("delta")) for one in every]
    functions = [table(call.get("function")) for d in inner for call in items(d.get("tool_calls"))]
    functions += [table(d.get("function_call")) for d in inner]
    ids = [one.get("token_ids") for one in (*every, *inner)]
    reasons = [one["finish_reason"] for one in every if isinstance(one.get("finish_reason"), str)]
    error, used = event.get("error"), event.get("usage")
    flags = {
        "visible": any(said(d.get("content")) for d in inner)
        or any(said(c.get("text")) for c in every),
        "reasoning": any(said(d.get(k)) for d in inner for k in ("reasoning", "reasoning_content")),
        "tool": any(said(f.get("arguments")) for f in functions),
        "token_ids": any(isinstance(i, list) and i for i in ids),
        "choices": bool(every),
        "usage": isinstance(used, dict),
        "error": isinstance(error, (dict, list, str)) or event.get("object") == "error",
    }
    return facts(
        *(name for name, is_set in flags.items() if is_set),
        prompt_tokens=count(table(used).get("prompt_tokens")),
        completion_tokens=count(table(used).get("completion_tokens")),
        finish=kept(reasons[-1], 32) if reasons else b"",
        message=last_message(event),
    )


@given(events, st.integers(0, 2**32))
@settings(max_examples=250, deadline=None)
def test_facts_are_those_of_the_parsed_tree(event: dict[str, Any], seed: int) -> None:
    rng = random.Random(seed)
    plain = orjson.dumps(event)
    spelled = respell(plain, rng)
    right = reference(orjson.loads(spelled))
    assert orjson.loads(spelled) == orjson.loads(plain)
    for data in (plain, spelled):
        assert scan_json([data]) == right
        assert scan_json(random_cut(data, rng)) == right
        assert scan_json([data[i : i + 1] for i in range(len(data))]) == right


def depth(value: Any) -> int:
    inner = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    )
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def refuse(word: str) -> Any:
    raise ValueError(word)


def holds(data: bytes) -> bool:
    """A tolerant reading: numbers are made plain, the rest must parse, as one object."""
    plain = TOKEN.sub(lambda found: found[1] or b"0", data).decode(errors="replace")
    try:
        value = json.loads(plain, strict=False, parse_constant=refuse)
    except ValueError:
        return False
    return isinstance(value, dict) and depth(value) <= 256


PIECES = [
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"\\u12", b"\\ud800", b"null", b"tru", b"-",
    b"1e", b"0", b"\0", b"\n", b"\xff", b"\xe2\x80", b" ", b'"a":', b"/", b"NaN", b"[[[[",
    b'{"a":[1]}', b"\xef\xbb\xbf", b"\x0b",
]  # fmt: skip
damages = st.lists(
    st.tuples(
        st.floats(0, 1), st.integers(0, 3), st.sampled_from([b"", *PIECES]) | st.binary(max_size=2)
    ),
    max_size=3,
)


def damaged(data: bytes, blows: list[tuple[float, int, bytes]]) -> bytes:
    for where, cut, put in blows:
        at = int(where * len(data))
        data = data[:at] + put + data[at + cut :]
    return data


@given(events | anything, damages, st.floats(0, 2), st.integers(0, 2**32))
@example({"a": 1}, [(0.9, 0, b"\\")], 2.0, 0)
@settings(max_examples=350, deadline=None)
def test_a_damaged_event_is_taken_where_it_still_holds(
    event: Any, blows: list[tuple[float, int, bytes]], end: float, seed: int
) -> None:
    rng = random.Random(seed)
    data = damaged(respell(orjson.dumps(event), rng), blows)
    data = data[: int(end * len(data))]
    found = scan_json([data])
    assert (found is not None) == holds(data)
    assert scan_json(random_cut(data, rng)) == found
    try:
        strict = isinstance(orjson.loads(data), dict)
    except orjson.JSONDecodeError:
        strict = False
    assert found is not None or not strict  # what orjson takes as an object is taken


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
@settings(max_examples=700, deadline=None)
def test_bytes_thrown_together(data: bytes) -> None:
    whole = b'{"a":' + data + b"}"
    assert (scan_json([whole]) is not None) == holds(whole)
    assert (scan_json([data]) is not None) == holds(data)


@given(st.integers(1, 300), st.booleans())
@settings(max_examples=60, deadline=None)
def test_depth(levels: int, objects: bool) -> None:
    opening, closing = (b'{"a":', b"}") if objects else (b"[", b"]")
    data = b'{"a":' + opening * (levels - 1) + b"1" + closing * (levels - 1) + b"}"
    assert (scan_json([data]) is not None) == (levels <= 256)
    assert orjson.loads(data)
