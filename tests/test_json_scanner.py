"""The JSON scanner against hand-written facts and against orjson.

Does: a table of events (bytes -> facts, or None where the event does not hold), each fed whole,
byte by byte and at random cuts.
Never: takes an expected value from the scanner.
Plan: tokens, structure, usage and finish, errors; test_json_orjson.py holds the differential part.
"""

from __future__ import annotations

from typing import Any

import pytest

from cuts import cuts
from percentes_fast._native import scan_json

FLAGS = ("visible", "reasoning", "tool", "token_ids", "choices", "usage", "error")


def facts(*flags: str, **values: Any) -> dict[str, Any]:
    """The right facts of an event: the named flags set, the given values, all else empty."""
    assert set(flags) <= set(FLAGS)
    empty = {"prompt_tokens": None, "completion_tokens": None, "finish": b"", "message": b""}
    return {**{flag: flag in flags for flag in FLAGS}, **empty, **values}


def delta(inner: bytes) -> bytes:
    return b'{"choices":[{"index":0,"delta":' + inner + b',"finish_reason":null}]}'


def choice(inner: bytes) -> bytes:
    return b'{"choices":[{' + inner + b"}]}"


ROLE = facts("choices")
TEXT = facts("choices", "visible")
EMPTY = facts()

TOKENS = [
    ("role only", delta(b'{"role":"assistant"}'), ROLE),
    ("role and empty content", delta(b'{"role":"assistant","content":""}'), ROLE),
    ("role and null content", delta(b'{"role":"assistant","content":null}'), ROLE),
    ("empty delta", delta(b"{}"), ROLE),
    ("null delta", delta(b"null"), ROLE),
    ("content", delta(b'{"content":"a"}'), TEXT),
    ("content of one space", delta(b'{"content":" "}'), TEXT),
    ("content of one escape", delta(rb'{"content":"\n"}'), TEXT),
    ("content of one escaped quote", delta(rb'{"content":"\""}'), TEXT),
    ("content of one unicode escape", delta(rb'{"content":"\u00e9"}'), TEXT),
    ("content of escaped NUL", delta(rb'{"content":"\u0000"}'), TEXT),
    ("content of a surrogate pair", delta(rb'{"content":"\ud83d\ude00"}'), TEXT),
    ("content of half a pair", delta(rb'{"content":"\ud83d"}'), TEXT),
    ("content is U+2028", delta(b'{"content":"\xe2\x80\xa8"}'), TEXT),
    ("content is U+0085", delta(b'{"content":"\xc2\x85"}'), TEXT),
    ("content is UTF-8 of 4 bytes", delta(b'{"content":"\xf0\x9f\x98\x80"}'), TEXT),
    ("content is invalid UTF-8", delta(b'{"content":"\xff\xc3"}'), TEXT),
    ("content is a number", delta(b'{"content":1}'), ROLE),
    ("content is true", delta(b'{"content":true}'), ROLE),
    ("content is a list", delta(b'{"content":["a"]}'), ROLE),
    ("content is an object", delta(b'{"content":{"content":"a"}}'), ROLE),
    ("reasoning", delta(b'{"reasoning":"a"}'), facts("choices", "reasoning")),
    ("reasoning_content", delta(b'{"reasoning_content":"a"}'), facts("choices", "reasoning")),
    ("empty reasoning", delta(b'{"reasoning":"","content":"a"}'), TEXT),
    (
        "reasoning and content",
        delta(b'{"reasoning":"a","content":"b"}'),
        facts("choices", "reasoning", "visible"),
    ),
    (
        "tool call arguments",
        delta(b'{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a"}}]}'),
        facts("choices", "tool"),
    ),
    (
        "tool call with a name and empty arguments",
        delta(b'{"tool_calls":[{"function":{"name":"f","arguments":""}}]}'),
        ROLE,
    ),
    (
        "second tool call has the arguments",
        delta(b'{"tool_calls":[{"function":{"arguments":""}},{"function":{"arguments":"1"}}]}'),
        facts("choices", "tool"),
    ),
    (
        "old function call",
        delta(b'{"function_call":{"name":"f","arguments":"{"}}'),
        facts("choices", "tool"),
    ),
    ("text", choice(b'"text":"a","index":0'), TEXT),
    ("empty text", choice(b'"text":"","index":0'), ROLE),
    (
        "token ids beside empty text",
        choice(b'"text":"","token_ids":[7]'),
        facts("choices", "token_ids"),
    ),
    ("no token ids", choice(b'"text":"","token_ids":[]'), ROLE),
    ("null token ids", choice(b'"text":"","token_ids":null'), ROLE),
    ("blank between empty brackets", choice(b'"text":"","token_ids":[ \n]'), ROLE),
    ("token ids in the delta", delta(b'{"token_ids":[1,2]}'), facts("choices", "token_ids")),
    ("prompt token ids are no tokens", b'{"choices":[{}],"prompt_token_ids":[1,2]}', ROLE),
    ("second choice has the text", b'{"choices":[{"text":""},{"text":"b"}]}', TEXT),
    ("first choice has the text", b'{"choices":[{"text":"b"},{"text":""}]}', TEXT),
    ("no choices", b'{"choices":[]}', EMPTY),
    ("null choices", b'{"choices":null}', EMPTY),
    ("choices is an object", b'{"choices":{"delta":{"content":"a"}}}', EMPTY),
    ("choices of strings", b'{"choices":["text"]}', EMPTY),
    ("choices in a list in the list", b'{"choices":[[{"text":"a"}]]}', EMPTY),
]

STRUCTURE = [
    ("empty object", b"{}", EMPTY),
    ("white space around", b' \t\r\n{ "choices" :\n[ { "text" : "a" } ] }\r\n', TEXT),
    (
        "keys in another order",
        b'{"id":"x","choices":[{"logprobs":{"content":[]},"text":"a"}]}',
        TEXT,
    ),
    ("unknown fields", b'{"x":{"y":[1,{"z":null}]},"choices":[{"q":[],"text":"a"}]}', TEXT),
    ("escaped key", rb'{"\u0063hoices":[{"t\u0065xt":"a"}]}', TEXT),
    ("key escaped to another one", rb'{"choices":[{"te\u0058t":"a"}]}', ROLE),
    ("key with an escaped NUL", rb'{"choices":[{"text\u0000":"a"}]}', ROLE),
    ("key longer than any known", b'{"choices":[{"' + b"text" * 50 + b'":"a"}]}', ROLE),
    ("key that begins like one", b'{"choices":[{"tex":"a","textt":"a","":"a"}]}', ROLE),
    ("key of 24 bytes", b'{"choices":[{"reasoning_content_______":"a"}]}', ROLE),
    ("content outside a delta", b'{"choices":[{"content":"a"}],"content":"b"}', ROLE),
    ("content inside a string", delta(rb'{"role":"\"content\":\"a\""}'), ROLE),
    ("choices inside a string", rb'{"id":"{\"choices\":[{\"text\":\"a\"}]}"}', EMPTY),
    ("choices one level down", b'{"data":{"choices":[{"text":"a"}]}}', EMPTY),
    ("text after a deep value", choice(b'"l":' + b"[" * 200 + b"]" * 200 + b',"text":"a"'), TEXT),
    ("text in a deep value", b'{"a":' * 9 + choice(b'"text":"a"') + b"}" * 9, EMPTY),
    ("256 levels", b'{"a":' + b"[" * 255 + b"]" * 255 + b"}", EMPTY),
    ("257 levels", b'{"a":' + b"[" * 256 + b"]" * 256 + b"}", None),
    ("1 MB of content", delta(b'{"content":"' + b"a" * 1_000_000 + b'"}'), TEXT),
    ("literals", b'{"a":true,"b":false,"c":null,"d":[true,false,null]}', EMPTY),
    ("numbers", b'{"a":[0,-1,1.5,1e3,-2.5E-7,12345678901234567890]}', EMPTY),
    ("every short escape", rb'{"a":"\"\\\/\b\f\n\r\t"}', EMPTY),
    ("nothing", b"", None),
    ("white space only", b" \n", None),
    ("list", b"[]", None),
    ("string", b'"a"', None),
    ("number", b"1", None),
    ("null", b"null", None),
    ("two objects", b"{}{}", None),
    ("object and junk", b"{} x", None),
    ("object and NUL", b"{}\0", None),
    ("byte-order mark before", b"\xef\xbb\xbf{}", None),
    ("open object", b'{"a":1', None),
    ("open string", b'{"a":"b', None),
    ("open escape", b'{"a":"b\\', None),
    ("open list", b'{"a":[1', None),
    ("closed by the other bracket", b'{"a":[1}', None),
    ("list closed as an object", b'{"a":{"b":1]}', None),
    ("closed once too often", b"{}}", None),
    ("comma before the end", b'{"a":1,}', None),
    ("comma before the list's end", b'{"a":[1,]}', None),
    ("comma first", b'{,"a":1}', None),
    ("two commas", b'{"a":[1,,2]}', None),
    ("no comma", b'{"a":1 "b":2}', None),
    ("no colon", b'{"a" 1}', None),
    ("two colons", b'{"a"::1}', None),
    ("no value", b'{"a":}', None),
    ("key alone", b'{"a"}', None),
    ("key without quotes", b"{a:1}", None),
    ("single quotes", b"{'a':1}", None),
    ("unknown escape", rb'{"a":"\x41"}', None),
    ("escaped NUL byte", b'{"a":"\\\0"}', None),
    ("short unicode escape", rb'{"a":"\u12"}', None),
    ("unicode escape with a sign", rb'{"a":"\u+123"}', None),
    ("literal cut", b'{"a":tru}', None),
    ("literal misspelt", b'{"a":nulL}', None),
    ("literal too long", b'{"a":truee}', None),
    ("NaN", b'{"a":NaN}', None),
    ("Infinity", b'{"a":Infinity}', None),
    ("number glued to a literal", b'{"a":1true}', None),
    ("string beside a string", b'{"a":"b""c"}', None),
    ("comment", b'{"a":1/*x*/}', None),
    # The check is of brackets, strings, escapes and literals: what follows is let through.
    ("number with two dots", b'{"a":1.2.3}', EMPTY),
    ("number with a leading zero", b'{"a":01}', EMPTY),
    ("raw line feed in a string", b'{"a":"b\nc"}', EMPTY),
]


def finish(inner: bytes) -> bytes:
    return b'{"choices":[{"delta":{},"finish_reason":' + inner + b"}]}"


def usage(inner: bytes) -> bytes:
    return b'{"choices":[],"usage":' + inner + b"}"


USAGE = [
    (
        "usage only",
        usage(b'{"prompt_tokens":3,"total_tokens":12,"completion_tokens":9}'),
        facts("usage", prompt_tokens=3, completion_tokens=9),
    ),
    ("usage null", usage(b"null"), EMPTY),
    ("usage empty", usage(b"{}"), facts("usage")),
    ("usage a list", usage(b'[{"completion_tokens":1}]'), EMPTY),
    ("usage a number", usage(b"9"), EMPTY),
    (
        "usage beside text",
        b'{"usage":{"completion_tokens":1},"choices":[{"text":"a"}]}',
        facts("choices", "visible", "usage", completion_tokens=1),
    ),
    (
        "details with the same names",
        usage(
            b'{"completion_tokens_details":{"completion_tokens":7},"completion_tokens":9,'
            b'"x":{"prompt_tokens":5}}'
        ),
        facts("usage", completion_tokens=9),
    ),
    ("no tokens", usage(b'{"completion_tokens":0}'), facts("usage", completion_tokens=0)),
    ("null tokens", usage(b'{"completion_tokens":null}'), facts("usage")),
    ("tokens as a string", usage(b'{"completion_tokens":"9"}'), facts("usage")),
    ("negative tokens", usage(b'{"completion_tokens":-9}'), facts("usage")),
    ("fractional tokens", usage(b'{"completion_tokens":9.0}'), facts("usage")),
    ("tokens with an exponent", usage(b'{"completion_tokens":9e1}'), facts("usage")),
    (
        "most tokens",
        usage(b'{"completion_tokens":999999999}'),
        facts("usage", completion_tokens=999_999_999),
    ),
    ("too many tokens", usage(b'{"completion_tokens":1000000000}'), facts("usage")),
    ("far too many tokens", usage(b'{"completion_tokens":' + b"9" * 40 + b"}"), facts("usage")),
    ("usage inside a choice", choice(b'"usage":{"completion_tokens":9}'), ROLE),
    ("finish null", finish(b"null"), ROLE),
    ("finish stop", finish(b'"stop"'), facts("choices", finish=b"stop")),
    ("finish abort", finish(b'"abort"'), facts("choices", finish=b"abort")),
    ("finish empty", finish(b'""'), ROLE),
    ("finish escaped", finish(rb'"\u0073top"'), facts("choices", finish=b"stop")),
    ("finish a number", finish(b"1"), ROLE),
    ("finish of 40 bytes", finish(b'"' + b"x" * 40 + b'"'), facts("choices", finish=b"x" * 32)),
    (
        "finish beside text",
        choice(b'"finish_reason":"length","text":"a"'),
        facts("choices", "visible", finish=b"length"),
    ),
    (
        "finish of the first of two choices",
        b'{"choices":[{"finish_reason":"stop"},{"finish_reason":null}]}',
        facts("choices", finish=b"stop"),
    ),
    ("finish outside a choice", b'{"finish_reason":"stop"}', EMPTY),
    ("stop_reason is another field", choice(b'"stop_reason":"stop"'), ROLE),
]


def failed(message: bytes, *flags: str) -> dict[str, Any]:
    return facts("error", *flags, message=message)


ERRORS = [
    (
        "vLLM",
        b'{"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError",'
        b' "param": null, "code": 500}}',
        failed(b"EngineCore encountered an issue."),
    ),
    (
        "older vLLM",
        b'{"object":"error","message":"too long","type":"BadRequestError","code":400}',
        failed(b"too long"),
    ),
    (
        "OpenAI",
        b'{"error":{"message":"The server had an error","type":"server_error","param":null}}',
        failed(b"The server had an error"),
    ),
    (
        "SGLang",
        b'{"error": {"object": "error", "message": "aborted by the scheduler", "code": 503}}',
        failed(b"aborted by the scheduler"),
    ),
    (
        "llama.cpp",
        b'{"error":{"code":500,"message":"context shift is off","type":"server_error"}}',
        failed(b"context shift is off"),
    ),
    (
        "TGI",
        b'{"error":"Request failed during generation: CUDA error","error_type":"generation"}',
        failed(b"Request failed during generation: CUDA error"),
    ),
    (
        "Ollama",
        b'{"error":"llama runner process has terminated"}',
        failed(b"llama runner process has terminated"),
    ),
    ("FastAPI detail", b'{"detail":"Not Found"}', facts(message=b"Not Found")),
    ("FastAPI list of details", b'{"detail":[{"msg":"field required"}]}', EMPTY),
    ("error null", b'{"error":null,"choices":[{"text":"a"}]}', TEXT),
    ("error empty object", b'{"error":{}}', failed(b"")),
    ("error empty string", b'{"error":""}', failed(b"")),
    ("error list", b'{"error":[]}', failed(b"")),
    ("error false", b'{"error":false}', EMPTY),
    ("error inside a choice", choice(b'"error":"x"'), ROLE),
    (
        "error beside text",
        b'{"choices":[{"text":"a"}],"error":{"message":"m"}}',
        failed(b"m", "choices", "visible"),
    ),
    (
        "message of a cause inside",
        b'{"error":{"cause":{"message":"inner"},"message":"outer"}}',
        failed(b"outer"),
    ),
    ("object of another kind", b'{"object":"errors","message":"m"}', facts(message=b"m")),
    ("object escaped", rb'{"object":"err\u006fr"}', failed(b"")),
    ("message before the error's own", b'{"message":"first","error":"second"}', failed(b"second")),
    ("message after the error's own", b'{"error":"first","message":"second"}', failed(b"second")),
    ("error given twice", b'{"error":"first","error":"second"}', failed(b"second")),
    ("message of 300 bytes", b'{"error":"' + b"m" * 300 + b'"}', failed(b"m" * 256)),
    ("message with control characters", rb'{"error":"a\n\tb"}', failed(b"a  b")),
    ("message with escapes", rb'{"error":"\u00e9\u20ac\/\""}', failed('é€/"'.encode())),
    (
        "message with a surrogate pair",
        rb'{"error":"a\ud83d\ude00b"}',
        failed("a\U0001f600b".encode()),
    ),
    ("last pair", rb'{"error":"\udbff\udfff"}', failed("\U0010ffff".encode())),
    ("half a pair before text", rb'{"error":"\ud83dx"}', failed("\ufffdx".encode())),
    ("half a pair before an escape", rb'{"error":"\ud83d\n"}', failed("\ufffd ".encode())),
    ("half a pair at the end", rb'{"error":"\ud83d"}', failed("\ufffd".encode())),
    ("halves the wrong way round", rb'{"error":"\ude00\ud83d"}', failed("\ufffd\ufffd".encode())),
    (
        "two first halves and a second",
        rb'{"error":"\ud83d\ud83d\ude00"}',
        failed("\ufffd\U0001f600".encode()),
    ),
    (
        "half a pair is not carried over",
        rb'{"error":"\ud83d","b":"\ude00"}',
        failed("\ufffd".encode()),
    ),
]

CASES = [*TOKENS, *STRUCTURE, *USAGE, *ERRORS]


@pytest.mark.parametrize(("data", "right"), [pytest.param(d, r, id=n) for n, d, r in CASES])
def test_facts_of_an_event_however_it_is_cut(data: bytes, right: dict[str, Any] | None) -> None:
    for pieces in cuts(data):
        assert scan_json(pieces) == right


def test_names_are_unique() -> None:
    names = [name for name, _, _ in CASES]
    assert len(names) == len(set(names))


def test_no_prefix_of_an_event_is_an_event() -> None:
    whole = delta(rb'{"content":"a\u00e9","tool_calls":[{"function":{"arguments":"{}"}}]}')
    assert scan_json([whole]) is not None
    assert [n for n in range(len(whole)) if scan_json([whole[:n]]) is not None] == []
