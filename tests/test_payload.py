"""Every request's bytes, parsed back with h11 and orjson.

Never: compares with bytes written by hand: what counts is what a server reads.
Plan: the load's request; what is unique in it; the other kinds; extra_body and headers, merged or
refused; where secrets do not go.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import h11
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percentes_fast import config as configuration
from percentes_fast.config import Config
from percentes_fast.engine import payload, pool, schedule
from percentes_fast.errors import ConfigError
from percentes_fast.schema import Kind

HOSTS = ("server:8000", "127.0.0.1:9")
RUN_ID = "0123456789"
SECRET = "Bearer s3cr3t"


def configured(**sections: Any) -> Config:
    given = {"phases.duration_s": 10, "phases.warmup_s": 0, "phases.cooldown_s": 0}
    given |= {"fault.kind": "none", "target.url": "http://server:8000"}
    given |= {name.replace("__", "."): value for name, value in sections.items()}
    return configuration.load(None, given).config


@dataclass
class Request:
    """One request as a server reads it."""

    index: int
    kind: Kind
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


def parsed(raw: bytes, index: int, kind: Kind) -> Request:
    server = h11.Connection(h11.SERVER)
    server.receive_data(raw)
    head = server.next_event()
    assert isinstance(head, h11.Request)
    body = b""
    while isinstance(event := server.next_event(), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert server.trailing_data == (b"", False)
    headers = {name.decode(): value.decode() for name, value in head.headers}
    assert len(headers) == len(head.headers)
    return Request(index, kind, head.method.decode(), head.target.decode(), headers, body)


def requests(config: Config, run_id: str = RUN_ID, workers: int = 1) -> list[Request]:
    plan = schedule.build(config)
    found = []
    for worker in range(workers):
        rows = plan.of_worker(worker, workers)
        arena = payload.render(config, plan, rows, run_id, HOSTS)
        for at, row in enumerate(rows.tolist()):
            start = int(arena.offset[at])
            head = arena.heads[start : start + int(arena.length[at])]
            raw = head + arena.tails[arena.tail[at]]
            found.append(parsed(raw, row, Kind(int(plan.kind[row]))))
    return found


def of(kind: Kind, found: list[Request]) -> list[Request]:
    return [request for request in found if request.kind == kind]


def prompt(request: Request) -> str:
    body = request.json
    return str(body["prompt"] if "prompt" in body else body["messages"][0]["content"])


# ---------------------------------------------------------------- the load


@pytest.mark.parametrize(
    ("api", "path"), [("chat", "/v1/chat/completions"), ("completions", "/v1/completions")]
)
def test_load_request(api: str, path: str) -> None:
    config = configured(target__api=api, target__model="a/b", load__max_tokens=17)
    for request in of(Kind.LOAD, requests(config)):
        assert (request.method, request.target) == ("POST", path)
        assert request.headers["host"] == "server:8000"
        assert request.headers["content-type"] == "application/json"
        assert int(request.headers["content-length"]) == len(request.body)
        assert request.headers["x-request-id"] == f"{RUN_ID}-{request.index}"
        body = request.json
        assert (body["model"], body["max_tokens"], body["stream"]) == ("a/b", 17, True)
        assert (body["ignore_eos"], body["stream_options"]) == (True, {"include_usage": True})
        assert set(body) == {
            *("model", "max_tokens", "stream", "ignore_eos", "stream_options"),
            "messages" if api == "chat" else "prompt",
        }
        if api == "chat":
            assert [message["role"] for message in body["messages"]] == ["user"]


def test_prompt_is_a_prefix_and_the_words_asked_for() -> None:
    for request in of(Kind.LOAD, requests(configured(load__prompt_tokens=5))):
        prefix, *words = prompt(request).split(" ")
        assert prefix == f"{RUN_ID}-{request.index:09d}"
        assert words == ["tok"] * 5


def test_options_can_be_left_out() -> None:
    config = configured(target__ignore_eos=False, target__usage=False)
    body = of(Kind.LOAD, requests(config))[0].json
    assert "ignore_eos" not in body
    assert "stream_options" not in body


def test_path_of_the_url_comes_first() -> None:
    found = requests(configured(target__url="http://server:8000/gateway/"))
    targets = {kind: {request.target for request in of(kind, found)} for kind in Kind}
    assert targets[Kind.LOAD] == targets[Kind.PROBE] == {"/gateway/v1/chat/completions"}
    assert targets[Kind.HEALTH] == {"/gateway/health"}


# ---------------------------------------------------------------- what is unique


@pytest.mark.parametrize("workers", [1, 3])
def test_no_prompt_and_no_id_comes_twice(workers: int) -> None:
    config = configured()
    runs = [requests(config, run_id, workers) for run_id in ("aaaaaaaaaa", "aaaaaaaaab")]
    with_prompt = [r for r in itertools.chain(*runs) if r.kind in (Kind.LOAD, Kind.PROBE)]
    prefixes = [prompt(request).split(" ")[0] for request in with_prompt]
    assert len(set(prefixes)) == len(prefixes)
    ids = [request.headers["x-request-id"] for request in itertools.chain(*runs)]
    assert len(set(ids)) == len(ids)


def test_bytes_do_not_depend_on_the_workers() -> None:
    one, three = (requests(configured(), workers=workers) for workers in (1, 3))
    assert sorted(three, key=lambda request: request.index) == one


def test_lengths_of_all_rows_of_a_template_are_equal() -> None:
    """The index has a fixed number of digits in the prompt, so one Content-Length serves all."""
    config = configured()
    plan = schedule.build(config)
    load = int(np.flatnonzero(plan.kind == Kind.LOAD)[0])
    copies = schedule.Schedule(
        *(np.repeat(column[load], 20_000) for column in (plan.intended_ns, plan.kind)),
        target=np.repeat(plan.target[load], 20_000),
        template=np.repeat(plan.template[load], 20_000),
        templates=plan.templates,
    )
    rows = np.array([0, 9, 10, 9_999, 10_000, 19_999])
    arena = payload.render(config, copies, rows, RUN_ID, HOSTS)
    for at, row in enumerate(rows.tolist()):
        start = int(arena.offset[at])
        head = arena.heads[start : start + int(arena.length[at])]
        request = parsed(head + arena.tails[arena.tail[at]], row, Kind.LOAD)
        assert prompt(request).startswith(f"{RUN_ID}-{row:09d} ")


# ---------------------------------------------------------------- other kinds


def test_probe_asks_for_one_token() -> None:
    for request in of(Kind.PROBE, requests(configured())):
        assert request.json["max_tokens"] == 1
        assert prompt(request).split(" ")[1:] == ["tok"]


def test_health_is_a_get() -> None:
    for request in of(Kind.HEALTH, requests(configured(health__path="/ready?deep=1"))):
        assert (request.method, request.target, request.body) == ("GET", "/ready?deep=1", b"")
        assert request.headers["host"] == "server:8000"


def test_canary_tells_its_timing_and_nothing_of_the_target() -> None:
    config = configured(canary__ttft_ms=1.5, canary__tokens=3, target__headers={"A": SECRET})
    for request in of(Kind.CANARY, requests(config)):
        assert request.target == "/canary?ttft_us=1500&gap_us=10000&tokens=3"
        assert request.headers["host"] == "127.0.0.1:9"
        assert SECRET not in request.headers.values()


# ---------------------------------------------------------------- extra_body and headers

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
OWN = {"model", "messages", "prompt", "stream_options"}
EXTRAS = st.dictionaries(st.text(max_size=8).filter(lambda key: key not in OWN), VALUES, max_size=4)


@settings(max_examples=60, deadline=None)
@given(extra=EXTRAS)
def test_extra_body_is_merged(extra: dict[str, Any]) -> None:
    text = json.dumps(extra)
    if "prefix" in text or "\\ud" in text:  # the mark's own text; orjson takes no lone surrogate
        return
    found = requests(configured(target__extra_body=extra, phases__duration_s=1))
    for request in of(Kind.LOAD, found) + of(Kind.PROBE, found):
        assert int(request.headers["content-length"]) == len(request.body)
        assert {key: request.json[key] for key in extra} == extra
        assert RUN_ID in prompt(request)


def test_extra_body_is_merged_into_what_is_there() -> None:
    extra = {"stream_options": {"continuous_usage_stats": True}, "temperature": 0}
    body = of(Kind.LOAD, requests(configured(target__extra_body=extra)))[0].json
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert body["temperature"] == 0


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"messages": []}, "replaces the prompt"),
        ({"messages": [{"role": "user", "content": "x"}]}, "replaces the prompt"),
        ({"n": 2**70}, "extra_body: .*64-bit"),
        ({"user": "\ud800"}, "extra_body: .*surrogates"),
    ],
)
def test_extra_body_that_cannot_be(extra: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        requests(configured(target__extra_body=extra))
    assert "\n" not in str(caught.value)


def test_prompt_replaced_in_the_other_api() -> None:
    with pytest.raises(ConfigError, match="replaces the prompt"):
        requests(configured(target__api="completions", target__extra_body={"prompt": "x"}))


def test_headers_are_added_and_replace_only_what_may_be() -> None:
    headers = {"Authorization": SECRET, "user-agent": "mine", "ACCEPT": "text/event-stream"}
    for request in requests(configured(target__headers=headers)):
        if request.kind != Kind.CANARY:
            assert request.headers["authorization"] == SECRET
            assert request.headers["user-agent"] == "mine"
            assert request.headers["accept"] == "text/event-stream"


@pytest.mark.parametrize(
    "headers",
    [
        *({name: SECRET} for name in ("Host", "content-LENGTH", "Content-Type", "Connection")),
        *({name: SECRET} for name in ("Transfer-Encoding", "X-Request-ID")),
        {"Authorization": SECRET, "authorization": SECRET},
    ],
)
def test_header_clash_is_one_line_without_the_value(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"target.headers: .*(drop it|keep one)") as caught:
        requests(configured(target__headers=headers))
    assert SECRET not in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- secrets


def test_secrets_stay_out_of_all_that_is_stored_or_shown() -> None:
    """Header values are in the heads alone, which go to a worker by a file without a name."""
    loaded = configuration.load(
        None,
        {
            "target.headers": {"Authorization": SECRET},
            "target.url": "http://server:8000",
            "fault.kind": "none",
        },
    )
    config = loaded.config
    plan = schedule.build(config)
    arena = payload.render(config, plan, plan.of_worker(0, 1), RUN_ID, HOSTS)
    address = pool.Address("127.0.0.1", 1, HOSTS[0])
    job = pool.engine_options(config, arena, (address, address))
    for kept in (loaded.overrides, loaded.text, config.public(), job, arena.tails, plan.templates):
        assert "s3cr3t" not in repr(kept)
    assert b"s3cr3t" in arena.heads
