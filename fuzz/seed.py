"""Writes the seed corpus of the fuzz targets: fuzz/corpus/http/* and fuzz/corpus/sse/*.

Does: one small file a hand-written case, and a few made of tests/data/vllm-0.32.0/recorded.json.
Never: writes a seed longer than the targets take, or takes one from a fuzzing session.
Plan: tables of name -> bytes; each seed begins with the control bytes of fuzz/pieces.h, chosen by
its place in the table, so that the corpus holds many ways to cut. Files are exactly what `seeds`
gives; tests/test_fuzz_corpus.py compares them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
RECORDED = HERE.parent / "tests" / "data" / "vllm-0.32.0" / "recorded.json"
CONTROL = 4
MOST = 4096
# three lengths of pieces ('@' is 0, 'A' 1, 'Z' 26) and the flags: D a head that is nearly full
CUTS = (b"AAA\n", b"ABC\n", b"G@C\n", b"ZSK\n", b"B@@\n", b"EEE\n", b"aQA\n")
FLAGS = {"limit": b"ABCD", "no_replica": b"GHIA"}

OK = b"HTTP/1.1 200 OK\r\n"
OLD = b"HTTP/1.0 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
MARK = b"\xef\xbb\xbf"


def head(*lines: bytes, start: bytes = OK) -> bytes:
    """A whole head of these header lines."""
    return start + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def five(*lines: bytes, start: bytes = OK) -> bytes:
    """A whole answer of five bytes."""
    return head(*lines, b"Content-Length: 5", start=start) + b"hello"


FRAMES: dict[str, bytes] = {
    "nothing": b"",
    "length": five(),
    "length_0": head(b"Content-Length: 0"),
    "length_twice": five(b"Content-Length: 5"),
    "length_list": head(b"Content-Length: 5, 5 ,5") + b"hello",
    "length_differs": five(b"Content-Length: 6"),
    "length_empty": head(b"Content-Length:"),
    "length_negative": head(b"Content-Length: -1"),
    "length_hex": head(b"Content-Length: 0x5") + b"hello",
    "length_past_64_bits": head(b"Content-Length: 18446744073709551621"),
    "length_cut": five()[:-2],
    "length_and_more": five() + OK,
    "until_close": head(b"Content-Type: text/plain") + b"hello",
    "until_close_old": head(b"Connection: keep-alive", start=OLD) + b"x",
    "lone_line_feeds": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
    "chunked": CHUNKED + b"5\r\nhello\r\n6\r\n world\r\n" + LAST,
    "chunked_hex": CHUNKED + b"1F\r\n" + b"x" * 31 + b"\r\n0a\r\n0123456789\r\n" + LAST,
    "chunked_old": head(b"Transfer-Encoding: chunked", start=OLD) + b"1\r\na\r\n" + LAST,
    "chunked_and_length": head(b"Content-Length: 9", b"Transfer-Encoding: ChunKed") + LAST,
    "chunk_extension": CHUNKED + b'5;a=b;c="d"\r\nhello\r\n0;x\r\n\r\n',
    "chunk_space": CHUNKED + b"5 \t; a = b\r\nhello\r\n0 \r\n\r\n",
    "chunk_line_ends": CHUNKED + b"4\r\n\r\n\r\n\r\n5\r\n0\r\n\r\n\r\n" + LAST,
    "chunk_zeros": CHUNKED + b"0" * 40 + b"5\r\nhello\r\n000\r\n\r\n",
    "chunk_largest": CHUNKED + b"fffffffffffffff\r\nab",
    "chunk_overflow": CHUNKED + b"1000000000000000\r\nab",
    "chunk_no_size": CHUNKED + b"\r\nhello",
    "chunk_bad_size": CHUNKED + b"0x5\r\nhello",
    "chunk_two_sizes": CHUNKED + b"5 5\r\nhello",
    "chunk_lone_line_feed": CHUNKED + b"5\nhello\r\n" + LAST,
    "chunk_lone_cr": CHUNKED + b"5\rhello\r\n" + LAST,
    "chunk_extension_line_feed": CHUNKED + b"5;x\nhello\r\n" + LAST,
    "chunk_too_short": CHUNKED + b"6\r\nhello\r\n" + LAST,
    "chunk_too_long": CHUNKED + b"4\r\nhello\r\n" + LAST,
    "chunk_cut": CHUNKED + b"5\r\nhel",
    "chunks_many": CHUNKED + b"1;id=abcdefgh\r\na\r\n" * 40 + LAST,
    "trailers": CHUNKED + b"1\r\na\r\n0\r\nX-Sum: 1\r\nY:\r\n z\r\n\r\n",
    "trailers_line_feeds": CHUNKED + b"0\r\nX: y\n\nmore",
    "trailers_of_framing": CHUNKED + b"0\r\nContent-Length: 7\r\nConnection: close\r\n\r\n",
    "trailers_no_colon": CHUNKED + b"0\r\nHTTP/1.1 200 OK\r\n\r\n",
    "trailers_lone_cr": CHUNKED + b"0\r\n\rx",
    "coding_gzip": head(b"Transfer-Encoding: gzip, chunked") + LAST,
    "coding_twice": head(*[b"Transfer-Encoding: chunked"] * 2) + LAST,
}

HEADS: dict[str, bytes] = {
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" + five(),
    "early_hints": head(b"Link: x", b"Content-Length: 9", start=b"HTTP/1.1 103 Hints\r\n") + five(),
    "early_replica": head(b"X-Replica: r", start=b"HTTP/1.1 102\r\n") + five(),
    "early_many": b"HTTP/1.1 100 x\r\n\r\n" * 6 + five(),
    "no_content": five(start=b"HTTP/1.1 204 x\r\n"),
    "not_modified": five(start=b"HTTP/1.1 304 x\r\n"),
    "error_503": five(b"Retry-After: 1", start=b"HTTP/1.1 503 busy\r\n"),
    "no_reason": five(start=b"HTTP/1.1 200\r\n"),
    "odd_reason": five(start=b'HTTP/1.1 200 It\'s "fine" \xe9\t\r\n'),
    "minor_7": five(start=b"HTTP/1.7 200 OK\r\n"),
    "http_2": five(start=b"HTTP/2.0 200 OK\r\n"),
    "icy": five(start=b"ICY 200 OK\r\n"),
    "code_of_2": five(start=b"HTTP/1.1 20 OK\r\n"),
    "code_of_4": five(start=b"HTTP/1.1 2000 OK\r\n"),
    "code_below_100": five(start=b"HTTP/1.1 099 x\r\n"),
    "html": b"<html><body>502</body></html>\n",
    "fold": head(b"X-Long: a\r\n  b\r\n\tc", b"Content-Length:\r\n 5") + b"hello",
    "fold_empty": head(b"Content-Length: 5\r\n ") + b"hello",
    "fold_of_length": head(b"Content-Length: 5\r\n 5") + b"hello",
    "fold_first": head(b" X: a", b"Content-Length: 0"),
    "fold_of_coding": head(b"Transfer-Encoding:\r\n\tchunked") + LAST,
    "space_around": head(b"Content-Length: \t 5 \t ") + b"hello",
    "space_before_colon": head(b"Content-Length : 5") + b"hello",
    "name_any_token": five(b"!#$%&'*+-.^_`|~09aZ: x"),
    "name_empty": five(b": x"),
    "name_long": five(b"X" * 90 + b": x"),
    "name_alike": five(b"Content-Length-X: 9", b"Content-Lengt: 9"),
    "no_colon": five(b"junk"),
    "value_long": five(b"X: " + b"v" * 200),
    "value_bytes": five(b"X: \xe9\xff"),
    "value_nul": five(b"X: \0"),
    "value_cr": five(b"X: a\rb"),
    "cr_before_end": OK + b"Content-Length: 5\r\n\r\r\nhello",
    "close": five(b"Connection: x-y ,\tClose , z"),
    "close_not": five(b"Connection: closed, close-x"),
    "close_far": five(b"Connection: " + b"x" * 100 + b", close"),
    "keep_alive": five(b"Connection: Keep-Alive", start=OLD),
    "replica": five(b"X-Replica:  node-7 "),
    "replica_long": five(b"x-replica: " + b"r" * 80),
    "no_replica": five(b"X-Replica: node-7"),
    "limit": head(b"X: " + b"v" * 150, b"Y: " + b"w" * 80, b"Content-Length: 5") + b"hello",
    "limit_chunked": CHUNKED + b"1;" + b"x" * 170 + b"\r\na\r\n0\r\nX: y\r\n\r\n",
}


def data(payload: bytes, end: bytes = b"\n") -> bytes:
    """One event of one data line."""
    return b"data: " + payload + end * 2


def delta(inner: bytes) -> bytes:
    """An event's object with one choice of this delta."""
    return b'{"choices":[{"index":0,"delta":' + inner + b',"finish_reason":null}]}'


USAGE = b'{"choices":[],"usage":{"prompt_tokens":31,"total_tokens":63,"completion_tokens":32}}'
STOP = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
DONE = data(b"[DONE]")
WORD = delta(b'{"content":"a"}')

SPLITS: dict[str, bytes] = {
    "nothing": b"",
    "line_feeds": data(WORD) + data(STOP) + DONE,
    "crlf": data(WORD, b"\r\n") + data(STOP, b"\r\n") + data(b"[DONE]", b"\r\n"),
    "cr": data(WORD, b"\r") + data(STOP, b"\r") + data(b"[DONE]", b"\r"),
    "mixed_ends": b"data: {}\r\n\ndata: {}\n\rdata: {}\n\r\ndata: {}\r\r\n",
    "mark": MARK + data(WORD) + DONE,
    "mark_twice": MARK + MARK + data(WORD) + DONE,
    "mark_part": MARK[:2] + data(WORD) + DONE,
    "mark_alone": MARK,
    "mark_later": b"\n" + MARK + data(WORD),
    "no_space": b"data:{}\n\ndata:[DONE]\n\n",
    "space": b"data:  \t{} \t\n\ndata:\t[DONE] \t\n\n",
    "space_before_field": b" data: {}\n\ndata : {}\n\n",
    "comments": b": ping\n\n:\n\ndata: {\n: data: x\ndata: }\n\n",
    "pings": b"data:\n\ndata: \n\ndata\n\n\n\n" + DONE,
    "fields": b"id: 7\nretry: 100\nevent: message\nid\nevent\nx\ndat: y\ndata2: z\n" + data(WORD),
    "two_data_lines": b'data: {"usage":\ndata: {"completion_tokens":3}}\n\n',
    "number_over_lines": b'data: {"usage":{"completion_tokens":3\ndata: 4}}\n\n',
    "empty_data_lines": b"data:\ndata: {\ndata\ndata: }\ndata\n\n",
    "two_objects": b"data: {}\ndata: {}\n\n",
    "done_over_lines": b"data: [DO\ndata: NE]\n\n",
    "done_and_more": b"data: [DONE]x\n\n",
    "done_cut": b"data: [DON",
    "done_lower_case": b"data: [done]\n\n",
    "error_event": b'event: error\ndata: {"message":"out of memory"}\n\n' + DONE,
    "error_words": b"event: error\ndata: out\ndata: of {memory}\n\n",
    "error_name_last": b"data: [31] killed\nevent: error\n\n",
    "error_words_done": b"event: error\ndata: [DON\n\n",
    "error_undone": b"event: error\nevent:\ndata: {}\n\nevent: error\n\ndata: {}\n\n",
    "error_alike": b"event: errors\ndata: {}\n\nevent:  error\ndata: {}\n\n"
    b"event:\terror\ndata: {}\n\n",
    "error_broken": b'event: error\ndata: {"a"\n\n',
    "words": b"data: hello\n\n" + data(WORD),
    "no_blank_line": data(WORD) + b"data: [DONE]",
    "no_end": data(WORD) + b"data: {",
    "html": b"<html>\n<body>502</body>\n</html>\n",
    "gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\3\n\n",
    "unicode_line_ends": data(delta(b'{"content":"\xe2\x80\xa8\xc2\x85\x0b\x0c"}')),
    "not_utf8": data(delta(b'{"content":"\xff\xfe\xc3"}')),
    "many": data(b"{}") * 60 + DONE,
}

OBJECTS: dict[str, bytes] = {
    "role": delta(b'{"role":"assistant","content":""}'),
    "content": WORD,
    "reasoning": delta(b'{"reasoning":"a","content":null}'),
    "reasoning_content": delta(b'{"reasoning_content":"a"}'),
    "tool_call": delta(b'{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a"}}]}'),
    "tool_name": delta(b'{"tool_calls":[{"function":{"name":"f","arguments":""}}]}'),
    "function_call": delta(b'{"function_call":{"name":"f","arguments":"{"}}'),
    "text": b'{"choices":[{"text":"a","token_ids":[7,8],"finish_reason":"length"}]}',
    "token_ids": b'{"choices":[{"delta":{"token_ids":[1]},"token_ids":[ ]}]}',
    "usage": USAGE,
    "usage_null": b'{"choices":[],"usage":null}',
    "usage_large": b'{"usage":{"prompt_tokens":2147483648,"completion_tokens":999999999}}',
    "usage_odd": b'{"usage":{"prompt_tokens":-3,"completion_tokens":1.5e+3}}',
    "finish": STOP,
    "finish_long": b'{"choices":[{"finish_reason":"' + b"f" * 40 + b'"}]}',
    "error": b'{"error":{"message":"no room","type":"x","code":500}}',
    "error_text": b'{"error":"no\\nroom"}',
    "error_null": b'{"error":null,"choices":[]}',
    "error_object": b'{"object":"error","message":"bad\x01 thing","code":400}',
    "error_long": b'{"error":{"message":"' + b"m" * 300 + b'"}}',
    "error_in_plain": b'{"error":{"message":"\\ud83d\\ude00\\u00e9\\u20ac"}}',
    "detail": b'{"detail":"Not Found"}',
    "escapes": rb'{"error":"\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac"}',
    "escaped_keys": rb'{"\u0063hoices":[{"t\u0065xt":"a"}]}',
    "surrogates": rb'{"error":"\ud83d\ude00 \ud83d \ude00 \ud83d\ud83d\ude00 \ud83dx"}',
    "surrogate_last": rb'{"choices":[{"finish_reason":"\ud83d"}]}',
    "surrogate_then_escape": rb'{"error":"\ud83d\n\ud83d\u0041"}',
    "escape_unknown": rb'{"a":"\x41"}',
    "escape_short": rb'{"a":"\u12"}',
    "literals": b'{"a":true,"b":false,"c":null,"d":[true,false,null]}',
    "literal_wrong": b'{"a":nulL}',
    "numbers": b'{"a":[0,-1,1.5,1e3,-2.5E-7,12345678901234567890]}',
    "key_long": b'{"choices":[{"reasoning_content_______":"a","' + b"k" * 60 + b'":1}]}',
    "white_space": b' {\t"choices" : [ { "text" : "a" } ] } ',
    "deep": b'{"a":' + b"[" * 255 + b"]" * 255 + b"}",
    "too_deep": b'{"a":' + b"[" * 256 + b"]" * 256 + b"}",
    "deep_objects": b'{"a":' * 60 + b"1" + b"}" * 60,
    "wrong_bracket": b'{"a":{"b":[1}}',
    "closed_twice": b"{}}",
    "list": b"[1]",
    "comma_last": b'{"a":[1,],}',
    "no_colon": b'{"a" 1}',
    "open_string": b'{"a":"b\\',
}


def framed(chunks: list[str]) -> bytes:
    """These texts as HTTP chunks, the last one with them."""
    bodies = [chunk.encode() for chunk in chunks]
    return b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies) + LAST


def refusal(name: str, answer: dict[str, Any]) -> Iterator[tuple[str, str, bytes]]:
    """A recorded answer that is no stream, as (target, name, bytes)."""
    body = answer["body"].encode()
    start = b"HTTP/1.1 %d x\r\n" % answer["status"]
    lines = [b"content-type: application/json", b"content-length: %d" % len(body)]
    yield "http", f"vllm_{name}", head(*lines, start=start) + body
    yield "sse", f"vllm_{name}", body


def recorded() -> Iterator[tuple[str, str, bytes]]:
    """The recorded answers as (target, name, bytes)."""
    found = json.loads(RECORDED.read_text())
    for name, stream in found["streams"].items():
        top = "\r\n".join([*stream["head"], "", ""]).encode()
        yield "http", f"vllm_{name}", top + framed(stream["chunks"])
        yield "sse", f"vllm_{name}", "".join(stream["chunks"]).encode()
    for name, answer in found["errors"].items():
        yield from refusal(name, answer)


def written() -> Iterator[tuple[str, str, bytes]]:
    """The hand-written cases as (target, name, bytes); an object also alone, without its event."""
    for name, case in {**FRAMES, **HEADS}.items():
        yield "http", name, case
    for name, case in SPLITS.items():
        yield "sse", name, case
    for name, case in OBJECTS.items():
        yield "sse", f"event_{name}", data(case)
        yield "sse", f"json_{name}", case


def control(place: int, name: str) -> bytes:
    """The control bytes of a seed."""
    flags = [bytes_ for prefix, bytes_ in FLAGS.items() if name.startswith(prefix)]
    return flags[0] if flags else CUTS[place % len(CUTS)]


def seeds() -> dict[str, bytes]:
    """Every seed: target/name -> control bytes and case."""
    found = {
        f"{target}/{name}": control(place, name) + case
        for place, (target, name, case) in enumerate([*written(), *recorded()])
    }
    assert all(len(seed) <= MOST for seed in found.values())
    return found


def main() -> None:
    """Writes the corpus anew; a file that no case makes is removed."""
    found = seeds()
    for old in CORPUS.glob("*/*"):
        if str(old.relative_to(CORPUS)) not in found:
            old.unlink()
    for name, seed in found.items():
        target = CORPUS / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(seed)
    print(f"fuzz: {len(found)} seeds in {CORPUS.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
