"""The parsers over bytes that real servers sent: vLLM 0.32.0 and llama.cpp 11434.

Does: recorded answers go through the HTTP parser and the event scanner, as they were read, whole,
byte by byte and at random cuts; counts, finish reasons and usage are hand-written from the bytes.
Never: changes a recorded byte. What was not recorded (a head before a tail) is put in by the test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cuts import cuts
from percentes_fast._native import scan_http, scan_json, scan_sse

DATA = Path(__file__).parent / "data"


def recorded(server: str) -> dict[str, list[bytes]]:
    """Name of an answer -> the bytes of each read."""
    wire = json.loads((DATA / server / "wire.json").read_text())
    return {name: [read.encode("latin-1") for read in reads] for name, reads in wire.items()}


VLLM, LLAMA = recorded("vllm-0.32.0"), recorded("llama.cpp-11434")


class Stream(NamedTuple):
    """What one streamed answer held."""

    events: int  # without [DONE]
    visible: int  # events with text that is seen
    first: int  # the place of the first of them
    finish: list[bytes]
    usages: int = 0
    prompt: int | None = None
    completion: int | None = None
    token_ids: int = 0


LENGTH = [b"length"]
STREAMS = [
    # 32 tokens were asked for: the server merged them into fewer events, or gave some no text
    ("vllm chat_usage", VLLM["chat_usage"], Stream(30, 28, 1, LENGTH, 1, 31, 32)),
    (
        "vllm chat_usage_continuous",
        VLLM["chat_usage_continuous"],
        Stream(23, 21, 1, LENGTH, 23, 31, 32),
    ),
    ("vllm chat_nousage", VLLM["chat_nousage"], Stream(15, 14, 1, LENGTH)),
    ("vllm chat_token_ids", VLLM["chat_token_ids"], Stream(25, 24, 1, LENGTH, token_ids=24)),
    ("vllm completions_usage", VLLM["completions_usage"], Stream(25, 24, 0, LENGTH, 1, 3, 32)),
    ("vllm n2", VLLM["n2"], Stream(10, 4, 2, LENGTH * 2)),
    ("vllm one_token", VLLM["one_token"], Stream(2, 1, 1, LENGTH)),
    ("vllm conn_close", VLLM["conn_close"], Stream(33, 32, 1, LENGTH)),
    ("llama.cpp chat_usage", LLAMA["chat_usage"], Stream(9, 6, 1, LENGTH, 1, 28, 8)),
    ("llama.cpp completions", LLAMA["completions"], Stream(5, 4, 0, LENGTH, 1, 9, 4)),
]
RUNNING = [0, 3, 4, 5, 8, 9, 10, 12, 13, 14, 16, 18, 21, 22, 23, 24, 25, 26, 27, 29, 31, 32, 32]


def every_cut(reads: list[bytes]) -> Iterator[list[bytes]]:
    yield reads
    yield from cuts(b"".join(reads))


def body_of(reads: list[bytes], status: int = 200) -> bytes:
    """The answer's body, the same however the bytes are cut; nothing may be left over."""
    found = [scan_http(pieces) for pieces in every_cut(reads)]
    assert {(one["state"], one["status"], one["rest"]) for one in found} == {("end", status, b"")}
    assert len({one["body"] for one in found}) == 1
    return found[0]["body"]


def events_of(body: bytes) -> list[Any]:
    found = [scan_sse(pieces) for pieces in cuts(body)]
    assert all(one == found[0] for one in found)
    return found[0]


def last(events: list[dict[str, Any]], key: str) -> Any:
    return next((e[key] for e in reversed(events) if e[key] is not None), None)


@pytest.mark.parametrize(
    ("reads", "wanted"), [pytest.param(reads, wanted, id=name) for name, reads, wanted in STREAMS]
)
def test_a_recorded_stream(reads: list[bytes], wanted: Stream) -> None:
    *events, done = events_of(body_of(reads))
    assert done == "done"
    seen = [event["visible"] for event in events]
    assert wanted == Stream(
        events=len(events),
        visible=sum(seen),
        first=seen.index(True),
        finish=[event["finish"] for event in events if event["finish"]],
        usages=sum(event["usage"] for event in events),
        prompt=last(events, "prompt_tokens"),
        completion=last(events, "completion_tokens"),
        token_ids=sum(event["token_ids"] for event in events),
    )
    assert not any(event["error"] or event["reasoning"] or event["tool"] for event in events)


def test_running_usage_counts_the_tokens_of_merged_events() -> None:
    events = events_of(body_of(VLLM["chat_usage_continuous"]))
    assert [event["completion_tokens"] for event in events[:-1]] == RUNNING


def test_a_read_of_llama_cpp_holds_the_role_and_the_first_token() -> None:
    head, first, *_ = LLAMA["chat_usage"]
    events = scan_sse([scan_http([head + first])["body"]])
    assert [event["visible"] for event in events] == [False, True]
    assert all(event["choices"] for event in events)


def test_an_answer_that_is_no_stream() -> None:
    facts = scan_json([body_of(VLLM["nonstream"])])
    assert (facts["prompt_tokens"], facts["completion_tokens"]) == (31, 16)
    assert (facts["finish"], facts["visible"]) == (b"length", False)


ERRORS = [
    (
        VLLM["error_model"],
        404,
        b"The model `nope` does not exist. Valid aliases: tiny.",
        False,
    ),
    (
        VLLM["error_json"],
        400,
        b"1 validation error:   {'type': 'json_invalid', 'loc': 'body.31', 'msg': 'JSON decode "
        b"error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}",
        False,
    ),
    (VLLM["error_path"], 404, b"Not Found", False),
    (VLLM["error_close"], 404, b"The model `nope` does not exist. Valid aliases: tiny.", True),
    (LLAMA["error_messages"], 400, b"Expected 'messages' to be an array", True),
    (
        LLAMA["error_context"],
        400,
        b"request (12023 tokens) exceeds the available context size (1024 tokens), "
        b"try increasing it",
        True,
    ),
]


@pytest.mark.parametrize(("reads", "status", "message", "close"), ERRORS)
def test_a_recorded_refusal(reads: list[bytes], status: int, message: bytes, close: bool) -> None:
    assert scan_json([body_of(reads, status)])["message"] == message
    assert scan_http(reads)["close"] == close


def test_a_stopped_engine_ends_its_stream_with_an_error_and_done() -> None:
    reads = [VLLM["chat_usage"][0], *VLLM["engine_stopped_tail"]]
    *events, failed, done = events_of(body_of(reads))
    assert (len(events), done) == (2, "done")
    assert (failed["error"], failed["named_error"], failed["finish"]) == (True, False, b"")
    assert failed["message"] == (
        b"EngineCore encountered an issue. See stack trace (above) for the root cause."
    )


@pytest.mark.parametrize("reads", [VLLM["chat_usage"], LLAMA["chat_usage"]], ids=["vllm", "llama"])
def test_a_stream_whose_server_was_killed_is_cut(reads: list[bytes]) -> None:
    whole = len(events_of(body_of(reads)))
    for kept in range(1, len(reads)):
        found = scan_http(reads[:kept], closed=True)
        assert (found["state"], found["status"]) == ("cut", 200)
        events = scan_sse([found["body"]])
        assert "bad" not in events
        assert len(events) <= whole
