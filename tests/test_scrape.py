"""Scrapes of server metrics: names and pages by hand, the child process over real sockets.

Never: asks anything beyond loopback, or leaves a process behind.
Plan: the samples of recorded and hand-written pages -> filter against whole page -> journal lines
and rows -> the child: the embedded server, servers that are killed, and servers that misbehave.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mock_client import READY, Running, command, post
from percentes_fast.errors import TargetError
from percentes_fast.observe import scrape
from percentes_fast.observe.scrape import Lines, Scraper, first_tick, rows, samples, wanted_lines
from raw_server import HOST, Peer, answer, chunk, closed_port, keep_answering, plain, raw_server
from run_builder import MS, S
from test_tls import tls_server

PAGES = Path(__file__).parent / "data" / "metrics"
VLLM = (PAGES / "vllm-0.32.0.txt").read_bytes()
LLAMA = (PAGES / "llama.cpp-11434.txt").read_bytes()
TINY = 'engine="0",model_name="tiny"'
SECRET = "tok-5c1d-not-to-be-seen"
GAUGE = b"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 3.0\n"
WAIT_S = 30.0


# ---------------------------------------------------------------- pages


def test_the_recorded_vllm_page() -> None:
    found = samples(VLLM)
    assert Counter(quantity for quantity, *_ in found) == {
        "waiting": 1,
        "running": 1,
        "cache_use": 1,
        "ttft_sum": 1,
        "ttft_count": 1,
        "ttft_bucket": 23,
    }
    ttft = "vllm:time_to_first_token_seconds"
    assert ("waiting", "vllm:num_requests_waiting", TINY, None, 0.0) in found
    assert ("cache_use", "vllm:kv_cache_usage_perc", TINY, None, 0.0) in found
    assert ("ttft_sum", f"{ttft}_sum", TINY, None, 15.107978820800781) in found
    assert ("ttft_count", f"{ttft}_count", TINY, None, 11.0) in found
    buckets = [(edge, value) for quantity, _, _, edge, value in found if quantity == "ttft_bucket"]
    assert buckets[:4] == [(0.001, 0.0), (0.005, 5.0), (0.01, 8.0), (0.02, 9.0)]
    assert buckets[-1] == ("+Inf", 11.0)
    assert {labels for _, _, labels, _, _ in found} == {TINY}  # the edge is no label


def test_the_recorded_llama_page_has_two_of_the_quantities() -> None:
    assert samples(LLAMA) == [
        ("running", "llamacpp:requests_processing", "", None, 0.0),
        ("waiting", "llamacpp:requests_deferred", "", None, 0.0),
    ]


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        (
            'vllm:gpu_cache_usage_perc{model_name="m"} 0.25',
            ("cache_use", "vllm:gpu_cache_usage_perc", 'model_name="m"', None, 0.25),
        ),
        (
            'sglang:num_queue_reqs{tp_rank="0",model_name="m"} 7.0',
            ("waiting", "sglang:num_queue_reqs", 'model_name="m",tp_rank="0"', None, 7.0),
        ),
        (
            "sglang:num_running_reqs 4",
            ("running", "sglang:num_running_reqs", "", None, 4.0),
        ),
        ("sglang:token_usage 0.5", ("cache_use", "sglang:token_usage", "", None, 0.5)),
        (
            'sglang:time_to_first_token_seconds_bucket{le="0.4",is_streaming="true"} 2',
            (
                *("ttft_bucket", "sglang:time_to_first_token_seconds_bucket"),
                *('is_streaming="true"', 0.4, 2.0),
            ),
        ),
        (
            "llamacpp:kv_cache_usage_ratio 0.75",
            ("cache_use", "llamacpp:kv_cache_usage_ratio", "", None, 0.75),
        ),
    ],
)
def test_names_of_other_servers_and_versions(line: str, sample: tuple[Any, ...]) -> None:
    assert samples(line.encode()) == [sample]


def test_values_that_are_no_numbers_are_kept_as_null() -> None:
    page = "\n".join(f"vllm:num_requests_waiting {v}" for v in ("NaN", "+Inf", "-Inf", "2e3"))
    assert [value for *_, value in samples(page.encode())] == [None, None, None, 2000.0]


def test_labels_are_one_text_a_set() -> None:
    page = b'vllm:num_requests_waiting{b="x\\"y\\\\z\\n",a="\xe2\x80\xa8{}"} 1\n'
    ((_, _, labels, _, _),) = samples(page)
    assert labels == 'a="\u2028{}",b="x\\"y\\\\z\\n"'


def test_lookalikes_and_creation_times_are_left_out() -> None:
    page = "vllm:num_requests_waiting_by_reason 1\nvllm:time_to_first_token_seconds_created 1\n"
    assert samples((page + "xvllm:num_requests_waiting 1\n").encode()) == []


@pytest.mark.parametrize("page", [b"", b"\n \n", b"# just a remark\n", b"up 1\n"])
def test_a_page_without_a_known_metric(page: bytes) -> None:
    assert samples(page) == []


@pytest.mark.parametrize(
    "page",
    [
        b"<!DOCTYPE html>\n<html></html>",
        b'{"detail": "Not Found"}',
        b"\x1f\x8b\x08\x00",
        b"vllm:num_requests_waiting",
        b"vllm:num_requests_waiting many\n",
        b'vllm:num_requests_waiting{engine="0} 1\n',
        b"vllm:time_to_first_token_seconds_bucket 1\n",
        b'vllm:time_to_first_token_seconds_bucket{le="wide"} 1\n',
        b'vllm:time_to_first_token_seconds_bucket{le="NaN"} 1\n',
    ],
)
def test_what_is_not_prometheus_text(page: bytes) -> None:
    with pytest.raises(TargetError, match="not Prometheus text"):
        samples(page)


def test_a_page_of_too_many_samples() -> None:
    with pytest.raises(TargetError, match="more than 4096"):
        samples(b"vllm:num_requests_waiting 1\n" * 4097)


def whole(text: str) -> list[scrape.Sample]:
    """The wanted samples by parsing everything."""
    return [
        scrape._sample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in scrape.NAMES
    ]


@pytest.mark.parametrize("page", [VLLM, LLAMA])
def test_the_filter_loses_nothing_of_the_recordings(page: bytes) -> None:
    assert samples(page) == whole(page.decode())
    assert len(wanted_lines(page.decode())) == len(samples(page))


PIECES = [
    "vllm:num_requests_waiting",
    "sglang:token_usage",
    "vllm:other",
    "# HELP",
    " ",
    "\t",
    "\n",
]
PIECES += ["{", '{a="b"}', " 1", "\u2028", "\r", "\x0b"]


@given(st.lists(st.sampled_from(PIECES), max_size=30))
def test_the_wanted_lines_are_those_whose_first_word_is_a_wanted_name(parts: list[str]) -> None:
    text = "".join(parts)
    names = [re.match(r"\s*([^\s{]+)", line) for line in text.split("\n")]
    wanted = [
        line
        for line, name in zip(text.split("\n"), names, strict=True)
        if name and name[1] in scrape.NAMES
    ]
    assert wanted_lines(text) == wanted


names = st.sampled_from(
    [
        *(name for name in scrape.NAMES if not name.endswith("_bucket")),
        *("vllm:num_requests_waiting_by_reason", "vllm:time_to_first_token_seconds_created"),
        *("avllm:num_requests_waiting", "sglang:token_usage_x", "process_cpu_seconds_total", "x"),
    ]
)
texts = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from('\n"\\{},=# '))
values = st.floats().map(str) | st.integers(0, 10**6).map(str) | st.sampled_from(["+Inf", "NaN"])
spaces = st.sampled_from(["", " ", "  "])


@st.composite
def families(draw: st.DrawFn) -> str:
    """One metric as a server prints it: maybe HELP and TYPE, then its samples."""
    name = draw(names)
    lines = (
        [f"# HELP {name} {draw(texts)!r}", f"# TYPE {name} gauge"] if draw(st.booleans()) else []
    )
    for _ in range(draw(st.integers(0, 3))):
        labels = draw(st.dictionaries(st.sampled_from(["engine", "model_name", "a"]), texts))
        inner = scrape.labels_text(labels)
        stamp = draw(st.sampled_from(["", " 1700000000000"]))
        lead = draw(spaces)
        braces = f"{{{inner}}}" if inner or draw(st.booleans()) else ""
        lines.append(f"{lead}{name}{braces} {draw(values)}{stamp}")
    lines += draw(st.sampled_from([[], [""], ["# a remark: vllm:num_requests_waiting 9"]]))
    return "".join(line + "\n" for line in lines)


@st.composite
def histograms(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(["vllm", "sglang", "other"])) + ":time_to_first_token_seconds"
    label = scrape.labels_text({"model_name": draw(texts)})
    lines = [
        f'{name}_bucket{{le="{edge}",{label}}} {draw(st.integers(0, 99))}'
        for edge in draw(st.lists(st.sampled_from(["0.001", "1", "2.5e3", "+Inf", "-Inf"])))
    ]
    lines += [f"{name}_count{{{label}}} 3", f"{name}_sum{{{label}}} {draw(values)}"]
    return f"# TYPE {name} histogram\n" + "".join(line + "\n" for line in lines)


@given(st.lists(families() | histograms(), max_size=6))
def test_the_filter_gives_what_parsing_the_whole_page_gives(parts: list[str]) -> None:
    text = "".join(parts)
    assert samples(text.encode()) == whole(text)


# ---------------------------------------------------------------- lines and rows


def test_the_grid() -> None:
    assert [first_tick(at, S) for at in (-5 * S, 0, 250 * MS)] == [0, 0, 0]
    assert [first_tick(at, S) for at in (250 * MS + 1, 1250 * MS, 1251 * MS)] == [1, 1, 2]


def test_rows_by_hand() -> None:
    lines = [
        [
            "a",
            250,
            260,
            None,
            [["waiting", "w", "", None, 2.0], ["ttft_bucket", "b", "", "+Inf", 1]],
        ],
        ["b", 250, None, "Connection refused", []],
        ["b", 1250, 1260, None, []],
    ]
    found = rows(json.loads(json.dumps(lines)))
    assert found == {
        "replica": ["a", "a", "b", "b"],
        "asked_ns": [250, 250, 250, 1250],
        "answered_ns": [260, 260, None, 1260],
        "quantity": ["waiting", "ttft_bucket", None, None],
        "metric": ["w", "b", None, None],
        "labels": ["", "", None, None],
        "le": [None, float("inf"), None, None],
        "value": [2.0, 1, None, None],
        "error": [None, None, "Connection refused", None],
    }
    assert set(rows([])) == set(scrape.COLUMNS)


def test_a_line_that_was_cut_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.journal"
    lines = Lines(str(path))
    lines.append(["a"])
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(scrape.os, "write", lambda fd, data: write(fd, data[:3]))
        lines.append(["cut"])
    lines.append(["b"])
    assert path.read_bytes() == b'["a"]\n["c\n["b"]\n'
    assert lines.lost == 1


# ---------------------------------------------------------------- the child


def replica(name: str, port: int, **more: Any) -> dict[str, Any]:
    told = {"name": name, "ip": HOST, "port": port, "host": f"{HOST}:{port}", "path": "/metrics"}
    return told | {"headers": {}} | more


class Observed:
    """A scraper under test and its journal."""

    def __init__(self, path: Path, *replicas: dict[str, Any], **changed: Any) -> None:
        self.path = path / "metrics.journal"
        self.job = {
            "epoch_monotonic_ns": time.monotonic_ns(),
            "every_s": 1.0,
            "timeout_s": 0.9,
            "until_ns": 600 * S,
            "journal": str(self.path),
            "cores": sorted(os.sched_getaffinity(0)),
            "replicas": list(replicas),
            **changed,
        }
        self.scraper = Scraper.start(self.job)

    def lines(self) -> list[Any]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_bytes().split(b"\n")[:-1]]

    def until(self, count: int) -> list[Any]:
        """The journal once it has that many lines."""
        end = time.monotonic() + WAIT_S
        while len(self.lines()) < count:
            assert time.monotonic() < end, self.lines()
            assert self.scraper.running(), self.scraper.stop()
            time.sleep(0.02)
        return self.lines()


@contextlib.contextmanager
def observed(path: Path, *replicas: dict[str, Any], **changed: Any) -> Iterator[Observed]:
    found = Observed(path, *replicas, **changed)
    try:
        yield found
    finally:
        found.scraper.stop()
        assert not found.scraper.running()


@contextlib.contextmanager
def mock_server(port: int = 0) -> Iterator[Running]:
    """The embedded server, serving, with an access log in `lines`."""
    options = command(port=port, startup_s=0, model="tiny", ttft_ms=20, itl_ms=1)
    with subprocess.Popen([*options, "--access-log"], stdout=subprocess.PIPE) as process:
        server = Running(process, [])
        try:
            told = server.read_until("Starting vLLM server on ")
            server.port = int(told.rsplit(b":", 1)[1])
            server.read_until(READY)
            yield server
        finally:
            process.kill()


def errors(lines: list[Any]) -> list[str | None]:
    return [error for _, _, _, error, _ in lines]


def on_grid(asked: list[int]) -> bool:
    """Each within a quarter of a second of a tick of its own."""
    ticks = [(at - 250 * MS + S // 2) // S for at in asked]
    near = all(
        abs(at - tick * S - 250 * MS) < 260 * MS for at, tick in zip(asked, ticks, strict=True)
    )
    return near and len(set(ticks)) == len(ticks)


def test_the_embedded_server_once_a_second_on_one_connection(tmp_path: Path) -> None:
    with mock_server() as server, observed(tmp_path, replica("r0", server.port)) as found:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        post(server.port, "/v1/chat/completions", body)
        lines = found.until(4)
        counters = found.scraper.stop()
        server.process.terminate()
        log = server.process.stdout.read() if server.process.stdout else b""
    assert errors(lines) == [None] * len(lines)
    assert on_grid([asked for _, asked, *_ in lines])
    assert (counters["scrapes"], counters["cut"], counters["lost"]) == (len(lines), 0, 0)
    assert counters["scheduler"] == "fifo"
    assert all(asked < answered < asked + 900 * MS for _, asked, answered, *_ in lines)
    found_last = {sample[0]: sample[4] for sample in lines[-1][4]}
    assert (found_last["waiting"], found_last["running"], found_last["ttft_count"]) == (0, 0, 1)
    assert 0.01 < found_last["ttft_sum"] < 1.0
    clients = {line.split(b" - ")[0] for line in log.splitlines() if b"GET /metrics" in line}
    assert len(clients) == 1


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    with mock_server() as first:
        port = first.port
        with observed(tmp_path, replica("r0", port), replica("gone", closed_port())) as found:
            found.until(2)
            first.process.kill()
            first.process.wait()
            before = len(found.lines())
            found.until(before + 2)
            with mock_server(port):
                after = len(found.lines())
                lines = found.until(after + 4)
    seen = [error for name, _, _, error, _ in lines if name == "r0"]
    assert seen[0] is None
    assert seen[-1] is None
    assert "Connection refused" in seen
    gone = [line for line in lines if line[0] == "gone"]
    assert set(errors(gone)) == {"Connection refused"}
    assert all(answered is None for _, _, answered, _, _ in gone)


@pytest.mark.parametrize("how", ["stdin", "SIGTERM", "until", "SIGKILL"])
def test_every_end(how: str, tmp_path: Path) -> None:
    until = 400 * MS if how == "until" else 600 * S
    with (
        raw_server(keep_answering(plain("200 OK", GAUGE))) as server,
        observed(tmp_path, replica("r", server.port), until_ns=until) as found,
    ):
        process = found.scraper.process
        assert process is not None
        assert process.stdin is not None
        if how != "until":
            found.until(1)
        if how == "stdin":
            process.stdin.close()
        elif how.startswith("SIG"):
            process.send_signal(getattr(signal, how))
        process.wait(WAIT_S)
        assert not found.scraper.running()
        told = found.scraper.stop()
    if how == "SIGKILL":
        assert told == {"error": "the scraper died (exit status -9)"}
    else:
        assert told["scrapes"] == len(found.lines())
    assert found.scraper.stop() == told  # again: the same


@pytest.mark.slow
def test_a_stopped_scraper_skips_what_it_missed(tmp_path: Path) -> None:
    with (
        raw_server(keep_answering(plain("200 OK", GAUGE))) as server,
        observed(tmp_path, replica("r", server.port)) as found,
    ):
        found.until(1)
        process = found.scraper.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.6)
        process.send_signal(signal.SIGCONT)
        lines = found.until(3)
        told = found.scraper.stop()
    asked = [at for _, at, *_ in lines]
    assert on_grid(asked)
    last = (asked[-1] - 250 * MS + S // 2) // S
    assert told["missed"] >= 2
    assert told["missed"] >= last + 1 - len(asked)  # each tick was asked or counted


def test_bad_servers(tmp_path: Path) -> None:
    def flood(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            peer.send(chunk(b"x 1\n" * 2**16))

    def drip(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
        peer.await_close()

    def cut(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")

    def echo(peer: Peer) -> None:
        peer.send(peer.request())

    def interim(peer: Peer) -> None:
        while True:
            peer.request()
            peer.send(b"HTTP/1.1 103 Early Hints\r\n\r\n", plain("200 OK", GAUGE))

    scripts = {
        "status": keep_answering(plain("500 Internal Server Error", GAUGE)),
        "flood": flood,
        "html": keep_answering(plain("200 OK", b"<html></html>")),
        "drip": drip,
        "silent": Peer.await_close,
        "cut": cut,
        "fin": answer(then=lambda peer: None),
        "reset": answer(then=Peer.reset),
        "echo": echo,
        "zip": keep_answering(plain("200 OK", b"\x1f\x8b", b"Content-Encoding: gzip")),
        "switch": keep_answering(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
        "interim": interim,
        "stray": keep_answering(plain("200 OK", GAUGE) + plain("200 OK", b"")),
        "until_close": answer(b"HTTP/1.1 200 OK\r\n\r\n" + GAUGE, then=lambda peer: None),
        "header": keep_answering(plain("200 OK", GAUGE)),
    }
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(raw_server(each)) for name, each in scripts.items()}
        headers = {"Authorization": f"Bearer {SECRET}", "Content-Length": "7"}
        told = [replica(name, raw.port, headers=headers) for name, raw in servers.items()]
        told[-1]["headers"] = {"X-Key": f"{SECRET}\x00"}
        found = stack.enter_context(observed(tmp_path, *told))
        lines = found.until(2 * len(scripts))
        answered = {name: at for name, _, at, _, _ in lines}
        found.scraper.stop()
        asked = servers["status"].peers[0].requests[0].lower()
        connections = {name: len(raw.peers) for name, raw in servers.items()}
    by_name: dict[str, set[str | None]] = {name: set() for name in scripts}
    for name, _, _, error, _ in lines:
        by_name[name].add(error)
    assert by_name == {
        "status": {"HTTP 500"},
        "flood": {"a body of more than 8 MiB"},
        "html": {"not Prometheus text"},
        "drip": {"no answer within 0.9 s"},
        "silent": {"no answer within 0.9 s"},
        "cut": {"not HTTP, or an answer that was cut"},
        "fin": {"closed without an answer"},
        "reset": {"Connection reset by peer"},
        "echo": {"not HTTP, or an answer that was cut"},
        "zip": {"a content encoding that was not asked for"},
        "switch": {"not HTTP, or an answer that was cut"},
        "interim": {None},
        "stray": {None},
        "until_close": {None},
        "header": {"a header or the path cannot be sent"},
    }
    assert (answered["status"] is None, answered["silent"] is None) == (False, True)
    assert f"bearer {SECRET}".encode() in asked
    assert b"content-length" not in asked
    assert (connections["status"], connections["interim"]) == (1, 1)
    assert connections["stray"] >= 2  # what follows an answer unasked belongs to no scrape
    assert SECRET not in found.path.read_text()


@pytest.mark.slow
def test_a_kept_connection_that_was_closed_is_no_failure(tmp_path: Path) -> None:
    with (
        raw_server(answer(plain("200 OK", GAUGE), then=lambda peer: None)) as server,
        observed(tmp_path, replica("r", server.port)) as found,
    ):
        lines = found.until(3)
    assert set(errors(lines)) == {None}
    assert len(server.peers) >= 3


def test_a_close_that_crosses_the_request_is_asked_again(tmp_path: Path) -> None:
    def closes_on_the_second(peer: Peer) -> None:
        peer.request()
        peer.send(plain("200 OK", GAUGE))
        peer.request()
        peer.reset()

    with (
        raw_server(closes_on_the_second) as server,
        observed(tmp_path, replica("r", server.port)) as found,
    ):
        lines = found.until(3)
    assert set(errors(lines)) == {None}


def test_a_full_disk_costs_the_lines_only(tmp_path: Path) -> None:
    with (
        raw_server(keep_answering(plain("200 OK", GAUGE))) as server,
        observed(tmp_path, replica("r", server.port), journal="/dev/full") as found,
    ):
        end = time.monotonic() + WAIT_S
        while sum(len(peer.requests) for peer in server.peers) < 2:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert found.scraper.running()
        told = found.scraper.stop()
    assert told["lost"] == told["scrapes"] >= 1


def test_a_child_that_cannot_work_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with observed(tmp_path, journal=str(tmp_path / "no" / "file")) as found:
        process = found.scraper.process
        assert process is not None
        process.wait(WAIT_S)
        assert found.scraper.stop()["error"].startswith("FileNotFoundError")
    monkeypatch.setattr(scrape.sys, "executable", "/no/python")
    none = Scraper.start({})
    assert (none.running(), none.stop()) == (
        False,
        {"error": "the scraper cannot be started: No such file or directory"},
    )


def test_tls(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    for name, each in (("ca", authority), ("other", other)):
        each.cert_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    script = keep_answering(plain("200 OK", GAUGE))
    with tls_server(authority, script) as port:
        told = functools.partial(replica, port=port, tls_name=HOST)
        with observed(
            tmp_path,
            told("trusted", ca=str(tmp_path / "ca.pem")),
            told("other", ca=str(tmp_path / "other.pem")),
            told("insecure", insecure=True),
            told("no_file", ca=str(tmp_path / "none.pem")),
        ) as found:
            lines = found.until(8)
    by_name = {name: error for name, _, _, error, _ in lines}
    assert (by_name["trusted"], by_name["insecure"]) == (None, None)
    assert (by_name["other"] or "").startswith("TLS: ")
    assert by_name["no_file"] == "No such file or directory"


@pytest.mark.slow
def test_a_host_that_never_answers_leaves_no_connections(tmp_path: Path) -> None:
    """A backlog that is full: the dial itself hangs, and is given up each second."""
    listener = socket.socket()
    with listener, contextlib.ExitStack() as stack:
        listener.bind((HOST, 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((HOST, port))
        with observed(tmp_path, replica("r", port)) as found:
            assert set(errors(found.until(2))) == {"no answer within 0.9 s"}
            process = found.scraper.process
            assert process is not None
            before = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
            found.until(4)
            assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) <= before + 1


def test_the_child_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import json, os, signal, sys\n"
        "from percentes_fast.observe.scrape import Scraper\n"
        "print(Scraper.start(json.loads(sys.argv[1])).process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with observed(tmp_path) as found:
        job = json.dumps(found.job)
    dying = [sys.executable, "-c", program, job]
    child = int(subprocess.run(dying, stdout=subprocess.PIPE, check=False).stdout)
    end = time.monotonic() + WAIT_S
    while alive(child):
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
