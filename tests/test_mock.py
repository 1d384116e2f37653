"""The simulated server's protocol, over real sockets, held against a recording.

Never: asserts an absolute time, leaves a process behind, or talks to another machine.
Plan: one server process, then requests held against the shapes recorded from vLLM 0.32.0
(tests/data/vllm-0.32.0), connections, refusals, metrics, and clients that leave.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mock_client import HOST, WAIT_S, Running, ask, get, post, post_bytes, running
from percentes_fast.servers.mock_http import MAX_BODY_BYTES
from percentes_fast.servers.mock_metrics import Histogram

RECORDED = json.loads((Path(__file__).parent / "data/vllm-0.32.0/recorded.json").read_text())


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(startup_s=0, ttft_ms=20, itl_ms=4, model="tiny", keep_alive_s=0.5) as started:
        yield started


def metrics(port: int) -> dict[str, float]:
    text = get(port, "/metrics").body.decode()
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def gauge(port: int, name: str) -> float:
    return metrics(port)[f'vllm:{name}{{engine="0",model_name="tiny"}}']


def eventually(check: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def shape(value: Any) -> Any:
    """Key order and types of a JSON value, without what it says."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def event_json(chunk: str) -> Any:
    assert chunk.startswith("data: ")
    assert chunk.endswith("\n\n")
    return json.loads(chunk[6:])


STREAM_PATHS = {
    name: "/v1/chat/completions" if name.startswith("chat") else "/v1/completions"
    for name in RECORDED["streams"]
}


@pytest.mark.parametrize("name", RECORDED["streams"])
def test_stream_has_the_recorded_shape(server: Running, name: str) -> None:
    recorded = RECORDED["streams"][name]
    answer = post(server.port, STREAM_PATHS[name], recorded["request"])
    events = [chunk.decode() for chunk in answer.chunks]
    asked = recorded["request"]["max_tokens"]
    role = name.startswith("chat")
    usage = "stream_options" in recorded["request"]
    assert len(events) == asked + role + usage + 1
    assert events[-1] == recorded["chunks"][-1] == "data: [DONE]\n\n"
    first = [0, 1] if role and asked > 1 else [0]
    last = range(-len(recorded["chunks"]) + len(first), -1)
    for ours in (*first, *last):
        assert shape(event_json(events[ours])) == shape(event_json(recorded["chunks"][ours]))


@pytest.mark.parametrize("name", RECORDED["streams"])
def test_stream_head_has_the_recorded_headers(server: Running, name: str) -> None:
    recorded = RECORDED["streams"][name]
    answer = post(server.port, STREAM_PATHS[name], recorded["request"])
    lines = dict(line.lower().split(": ", 1) for line in recorded["head"][1:])
    assert recorded["head"][0] == f"HTTP/1.1 {answer.status} OK"
    assert set(answer.headers) == set(lines)
    for header in set(lines) - {"date"}:
        assert answer.headers[header].lower() == lines[header]


def test_stream_says_role_then_tokens_then_length_then_usage(server: Running) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "three words here"}],
        "max_completion_tokens": 5,
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = post(server.port, "/v1/chat/completions", body, "X-Request-Id: run-7")
    events = [event_json(chunk.decode()) for chunk in answer.chunks[:-1]]
    assert {event["id"] for event in events} == {"chatcmpl-run-7"}
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(event["choices"][0]["delta"]["content"] for event in events[1:6])
    reasons = [event["choices"][0]["finish_reason"] for event in events[:6]]
    assert reasons == [None] * 5 + ["length"]
    assert events[6]["choices"] == []
    assert events[6]["usage"] == {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}


def test_running_usage_counts_up(server: Running) -> None:
    recorded = RECORDED["streams"]["chat_continuous"]["request"]
    answer = post(server.port, "/v1/chat/completions", recorded)
    events = [event_json(chunk.decode()) for chunk in answer.chunks[:-1]]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [*range(33), 32]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_plain_answer(server: Running, path: str) -> None:
    prompt = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a b"}]}]}
    body = prompt if "chat" in path else {"prompt": "a b"}
    answer = post(server.port, path, body)
    choice = answer.json["choices"][0]
    text = choice["message"]["content"] if "chat" in path else choice["text"]
    assert answer.status == 200
    assert len(text.split()) == 16
    assert choice["finish_reason"] == "length"
    assert answer.json["usage"]["prompt_tokens"] == 2
    assert answer.json["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("name", RECORDED["errors"])
def test_errors_are_as_recorded(server: Running, name: str) -> None:
    recorded = RECORDED["errors"][name]
    method, path, _ = recorded["request_line"].split()
    body = recorded["request_body"].encode()
    answer = ask(server.port, post_bytes(path, body)) if body else get(server.port, path)
    assert method == ("POST" if body else "GET")
    assert answer.status == recorded["status"]
    assert sorted(answer.headers) == recorded["headers"]
    if name == "wrong_type":
        assert answer.json["error"]["param"] == json.loads(recorded["body"])["error"]["param"]
        assert shape(answer.json) == shape(json.loads(recorded["body"]))
    else:
        assert answer.body.decode() == recorded["body"]


@pytest.mark.parametrize("path", RECORDED["gets"])
def test_small_gets_are_as_recorded(server: Running, path: str) -> None:
    recorded = RECORDED["gets"][path]
    answer = get(server.port, path + "?x=1")
    assert (answer.status, sorted(answer.headers)) == (recorded["status"], recorded["headers"])
    assert shape(json.loads(answer.body or b"0")) == shape(json.loads(recorded["body"] or "0"))


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ([], 400),
        ({"prompt": 7}, 400),
        ({"prompt": "a", "stream": "yes"}, 400),
        ({"prompt": "a", "stream_options": 3}, 400),
        ({"prompt": "a", "max_tokens": 10**9}, 400),
        ({"prompt": "a", "max_tokens": True}, 400),
        ({"prompt": "a", "n": 2}, 400),
        ({"prompt": "a", "model": ["tiny"]}, 404),
        ({"prompt": [1, 2, 3], "max_tokens": 1, "ignore_eos": True}, 200),
    ],
)
def test_odd_bodies(server: Running, fields: Any, status: int) -> None:
    answer = post(server.port, "/v1/completions", fields)
    assert answer.status == status
    assert ("error" in answer.json) == (status != 200)


def test_models_lists_the_model(server: Running) -> None:
    assert [entry["id"] for entry in get(server.port, "/v1/models").json["data"]] == ["tiny"]


def test_connection_serves_many_requests(server: Running) -> None:
    """http.client, as another parser than h11, over one keep-alive connection."""
    client = http.client.HTTPConnection(HOST, server.port, timeout=WAIT_S)
    with contextlib.closing(client):
        ports = set()
        for stream in (True, False, True):
            body = {"prompt": "a", "max_tokens": 3, "stream": stream}
            client.request("POST", "/v1/completions", json.dumps(body))
            answer = client.getresponse()
            assert answer.status == 200
            assert answer.read()
            ports.add(client.sock.getsockname()[1])
        client.request("HEAD", "/health")
        assert client.getresponse().status == 405
    assert len(ports) == 1


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    with socket.create_connection((HOST, server.port), timeout=WAIT_S) as sock:
        body = {"prompt": "a", "max_tokens": 3, "stream": True}
        stream = post_bytes("/v1/completions", json.dumps(body).encode())
        sock.sendall(stream + f"GET /version HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        received = b""
        while not received.endswith(b"}"):
            received += sock.recv(65536)
    assert received.index(b"[DONE]") < received.index(b'{"version"')


def test_connection_close_is_honoured(server: Running) -> None:
    raw = post_bytes("/v1/completions", b'{"prompt":"a","stream":true}', "Connection: close")
    with socket.create_connection((HOST, server.port), timeout=WAIT_S) as sock:
        sock.sendall(raw)
        received = b"".join(iter(lambda: sock.recv(65536), b""))
    assert b"connection: close" in received.split(b"\r\n\r\n")[0].lower()
    assert received.endswith(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


def test_http_1_0_stream_ends_with_the_connection(server: Running) -> None:
    raw = post_bytes("/v1/completions", b'{"prompt":"a","stream":true}', version="1.0")
    with socket.create_connection((HOST, server.port), timeout=WAIT_S) as sock:
        sock.sendall(raw)
        received = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


def test_idle_connection_gets_fin(server: Running) -> None:
    with socket.create_connection((HOST, server.port), timeout=WAIT_S) as sock:
        began = time.monotonic()
        sock.sendall(f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert sock.recv(65536) == b""
    assert time.monotonic() - began >= 0.45


def test_running_stream_outlives_the_idle_time(server: Running) -> None:
    body = {"prompt": "a", "max_tokens": 300, "stream": True}
    answer = post(server.port, "/v1/completions", body)
    assert len(answer.chunks) == 301


@pytest.mark.parametrize("declared", [True, False])
def test_body_over_the_limit_is_refused(server: Running, declared: bool) -> None:
    size = MAX_BODY_BYTES + 1
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\n"
    if declared:
        raw = f"{head}Content-Length: {size}\r\n\r\n".encode()
    else:
        raw = f"{head}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode() + b"x" * size
    answer = ask(server.port, raw)
    assert answer.status == 413
    assert answer.headers["connection"] == "close"


def test_big_body_below_the_limit_is_served(server: Running) -> None:
    body = {"prompt": "tok " * 1_900_000, "max_tokens": 1}
    answer = post(server.port, "/v1/completions", body)
    assert answer.json["usage"]["prompt_tokens"] == 1_900_000


def test_expect_continue_is_answered(server: Running) -> None:
    body = b'{"prompt":"a","max_tokens":1}'
    raw = post_bytes("/v1/completions", body, "Expect: 100-continue")
    with socket.create_connection((HOST, server.port), timeout=WAIT_S) as sock:
        sock.sendall(raw[: -len(body)])
        assert sock.recv(65536).startswith(b"HTTP/1.1 100")
        sock.sendall(body)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_garbage_gets_400_and_fin(server: Running) -> None:
    with socket.create_connection((HOST, server.port), timeout=WAIT_S) as sock:
        sock.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        received = b"".join(iter(lambda: sock.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 400 Bad Request\r\n")


def metric_names(lines: list[str]) -> list[str]:
    names = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    return [re.sub(r'model_name="[^"]*"', "M", name) for name in names]


def test_metrics_have_the_recorded_series(server: Running) -> None:
    answer = get(server.port, "/metrics")
    assert metric_names(answer.body.decode().splitlines()) == metric_names(RECORDED["metrics"])
    assert answer.headers["content-type"].startswith("text/plain; version=1.0.0")


def test_metrics_count_a_request(server: Running) -> None:
    before = metrics(server.port)
    post(server.port, "/v1/completions", {"prompt": "a b c", "max_tokens": 7, "stream": True})
    after = metrics(server.port)
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    label = 'engine="0",model_name="tiny"'
    assert grown[f"vllm:prompt_tokens_total{{{label}}}"] == 3
    assert grown[f"vllm:generation_tokens_total{{{label}}}"] == 7
    assert grown[f"vllm:time_to_first_token_seconds_count{{{label}}}"] == 1
    assert grown[f"vllm:e2e_request_latency_seconds_count{{{label}}}"] == 1
    success = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}'
    assert grown[success] == 1


def test_histogram_edge_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 9.0):
        histogram.observe(value)
    values = [float(line.rsplit(" ", 1)[1]) for line in histogram.lines("n", "l")]
    assert values == [1.0, 2.0, 3.0, 3.0, 11.5]


@pytest.mark.parametrize("polite", [True, False])
def test_client_that_leaves_frees_its_stream(server: Running, polite: bool) -> None:
    aborted = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}'
    before = metrics(server.port)[aborted]
    body = b'{"prompt":"a","max_tokens":30000,"stream":true}'
    with socket.create_connection((HOST, server.port), timeout=WAIT_S) as sock:
        sock.sendall(post_bytes("/v1/completions", body))
        assert sock.recv(64)
        eventually(lambda: gauge(server.port, "num_requests_running") == 1)
        assert gauge(server.port, "kv_cache_usage_perc") > 0
        if not polite:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    eventually(lambda: gauge(server.port, "num_requests_running") == 0)
    assert metrics(server.port)[aborted] == before + 1
    generated = gauge(server.port, "generation_tokens_total")
    time.sleep(0.1)
    assert gauge(server.port, "generation_tokens_total") == generated


def test_streams_run_side_by_side(server: Running) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 400, "stream": True}).encode()
    with contextlib.ExitStack() as stack:
        socks = [
            stack.enter_context(socket.create_connection((HOST, server.port), timeout=WAIT_S))
            for _ in range(20)
        ]
        for sock in socks:
            sock.sendall(post_bytes("/v1/completions", body, "Connection: close"))
        eventually(lambda: gauge(server.port, "num_requests_running") > 10)
        for sock in socks:
            received = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))
            assert received.count(b"data: {") == 400
