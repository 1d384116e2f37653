"""The server's own metrics, once a second from every replica: Prometheus text -> rows.

Never: turns a metric that is absent into 0, bunches scrapes that it missed, keeps what a server or
a header said inside an error, or lets a failure of its own reach the run.
Plan: the wanted names -> the samples of a page -> `Link`, one HTTP/1.1 exchange -> one scrape as
one journal line -> the child's loop on a fixed grid -> `Scraper`, the parent's handle -> `rows` of
metrics.parquet.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11
import uvloop
from prometheus_client.parser import text_string_to_metric_families

from percentes_fast import priority
from percentes_fast.errors import TargetError
from percentes_fast.rundir import LineFile

SECOND = 1_000_000_000
OFFSET_NS = SECOND // 4  # ticks lie at k * every_s + 0.25 s, away from a run's whole seconds
LATE_SHARE = 0.25  # of the interval: a tick reached later than that is missed, not made up for
CLOCK_STEP_S = 0.001  # of the loop's clock: without it a tick is asked up to 1 ms early
BODY_LIMIT = 8 * 2**20
SAMPLE_LIMIT = 4096  # 150 engines of one vLLM; parsing them takes about 0.2 s
READ_BYTES = 2**18
STOP_TIMEOUT_S = 5.0
OWN_HEADERS = ("host", "connection", "content-length", "transfer-encoding", "accept-encoding")
DEFAULT_HEADERS = {"User-Agent": "percentes-fast", "Accept": "text/plain;version=0.0.4"}


def _histogram(metric: str) -> dict[str, str]:
    return {f"{metric}_{part}": f"ttft_{part}" for part in ("sum", "count", "bucket")}


# metric -> quantity. Gauges are counts of requests; cache_use is a share of 1.
NAMES: dict[str, str] = {
    # vLLM. Read from the page of 0.32.0 (tests/data/metrics). The same, but for the cache gauge, in
    # vllm/engine/metrics.py (V0 engine) and in vllm/v1/metrics/loggers.py of about 0.9.
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_requests_running": "running",
    "vllm:kv_cache_usage_perc": "cache_use",
    # The only one before 0.9, which printed both; since removed (the same two files; vllm pull
    # requests 18354, 29330). No page of these versions was seen: unverified on a server.
    "vllm:gpu_cache_usage_perc": "cache_use",
    **_histogram("vllm:time_to_first_token_seconds"),
    # SGLang: read from srt/observability/metrics_collector.py of the 0.5.23 wheel, where metrics
    # must be enabled. No page, and no older version, was seen: unverified on a server.
    "sglang:num_queue_reqs": "waiting",
    "sglang:num_running_reqs": "running",
    "sglang:token_usage": "cache_use",
    **_histogram("sglang:time_to_first_token_seconds"),
    # llama.cpp: read from the page of build 11434 with --metrics (tests/data/metrics); it has no
    # TTFT histogram and no cache gauge.
    "llamacpp:requests_deferred": "waiting",
    "llamacpp:requests_processing": "running",
    # Gone since llama.cpp pull request 13660 (README.md of an older server): unverified.
    "llamacpp:kv_cache_usage_ratio": "cache_use",
}
# lines of the names alone, found without a step a line: a page of 8 MiB takes a few ms
WANTED = re.compile(rf"^[^\S\n]*(?:{'|'.join(map(re.escape, NAMES))})(?=[\s{{]|$)[^\n]*", re.M)

# quantity, metric, labels, le ("+Inf" for the last bucket: JSON has no infinity), value
Sample = tuple[str, str, str, float | str | None, float | None]


def wanted_lines(text: str) -> list[str]:
    """Lines of a page that hold a sample of a wanted metric: the parser then sees 5 % of it."""
    return WANTED.findall(text)  # ^ is after \n alone: a label may hold U+2028


def samples(page: bytes) -> list[Sample]:
    """Samples of the wanted metrics, in the order of the page.

    Raises TargetError where the page, or a wanted line of it, is not Prometheus text.
    """
    text = page.decode("utf-8", "replace")
    lines = wanted_lines(text)
    if len(lines) > SAMPLE_LIMIT:
        raise TargetError(f"more than {SAMPLE_LIMIT} samples of the wanted metrics")
    if not lines:
        _check_exposition(text)
        return []
    return _parsed("\n".join(lines))


def _check_exposition(text: str) -> None:
    """A page without a wanted metric must at least begin as Prometheus text does (or be empty)."""
    first = text.lstrip().partition("\n")[0]
    if first and not first.startswith("#"):
        _parsed(first)


def _parsed(text: str) -> list[Sample]:
    """All samples of the text; those of other metrics are left out."""
    try:
        families = list(text_string_to_metric_families(text))
        return [
            _sample(sample.name, sample.labels, sample.value)
            for family in families
            for sample in family.samples
            if sample.name in NAMES
        ]
    except Exception as exc:  # the parser meets any bytes: what it raises differs by its version
        raise TargetError("not Prometheus text") from exc


def _sample(metric: str, labels: Mapping[str, str], value: float) -> Sample:
    quantity = NAMES[metric]
    edge = _edge(labels["le"]) if quantity == "ttft_bucket" else None
    rest = {k: v for k, v in labels.items() if edge is None or k != "le"}
    number = float(value)
    return quantity, metric, labels_text(rest), edge, number if math.isfinite(number) else None


def _edge(le: str) -> float | str:
    edge = float(le)
    if math.isnan(edge):
        raise ValueError("a bucket's edge is not a number")
    return edge if math.isfinite(edge) else f"{'+' if edge > 0 else '-'}Inf"


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels in the order of their names, as Prometheus writes them: one text a label set."""
    return ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# ---------------------------------------------------------------- one exchange


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer. encoding: its Content-Encoding."""

    status: int
    encoding: str
    body: bytes

    def page(self) -> bytes:
        """The page; TargetError in one line where it is none."""
        if self.status != 200:
            raise TargetError(f"HTTP {self.status}")
        if self.encoding not in ("", "identity"):
            raise TargetError("a content encoding that was not asked for")
        return self.body


class Link:
    """One replica's connection: kept while the server keeps it, opened again when it is gone."""

    def __init__(self, replica: Mapping[str, Any]) -> None:
        self.name = str(replica["name"])
        self._replica = replica
        self._context: ssl.SSLContext | None = None
        self._http: h11.Connection | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def fetch(self) -> Answer:
        """One GET. Raises what went wrong; the connection is closed then."""
        try:
            if self._http is not None and not self._reader.at_eof():
                with contextlib.suppress(ConnectionError):  # closed meanwhile: on a new one
                    return await self._exchange(self._http)
            self.close()
            return await self._exchange(await self._dial())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Drops the connection."""
        if self._http is not None:
            self._writer.transport.abort()
            self._http = None

    async def _dial(self) -> h11.Connection:
        name = self._replica.get("tls_name")
        if name is not None and self._context is None:
            self._context = _tls(self._replica)
        self._reader, self._writer = await asyncio.open_connection(
            self._replica["ip"],
            self._replica["port"],
            limit=READ_BYTES,
            ssl=self._context,
            server_hostname=name,
        )
        self._http = h11.Connection(h11.CLIENT)
        return self._http

    async def _exchange(self, http: h11.Connection) -> Answer:
        self._writer.write(http.send(_request(self._replica)) or b"")
        http.send(h11.EndOfMessage())
        head: h11.Response | None = None
        body = bytearray()
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                await self._read(http, began=head is not None)
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > BODY_LIMIT:
                    raise TargetError(f"a body of more than {BODY_LIMIT // 2**20} MiB")
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                self._keep(http)
                encoding = dict(head.headers).get(b"content-encoding", b"")
                return Answer(head.status_code, encoding.decode("latin-1").lower(), bytes(body))
            elif not isinstance(event, h11.InformationalResponse):
                raise TargetError("not HTTP, or an answer that was cut")

    async def _read(self, http: h11.Connection, began: bool) -> None:
        data = await self._reader.read(READ_BYTES)
        if not data and not began:
            raise ConnectionResetError("closed without an answer")
        try:
            http.receive_data(data)
        except RuntimeError as exc:  # h11 was told of the end before
            raise ConnectionResetError("closed inside its answer") from exc

    def _keep(self, http: h11.Connection) -> None:
        """Keeps the connection for the next tick, unless its end or stray bytes were announced."""
        if (
            http.our_state is h11.DONE
            and http.their_state is h11.DONE
            and not any(http.trailing_data)
        ):
            http.start_next_cycle()
        else:
            self.close()


def _request(replica: Mapping[str, Any]) -> h11.Request:
    given = {k: v for k, v in replica["headers"].items() if k.lower() not in OWN_HEADERS}
    names = {name.lower() for name in given}
    usual = {k: v for k, v in DEFAULT_HEADERS.items() if k.lower() not in names}
    headers = {"Host": replica["host"], **usual, **given}
    return h11.Request(
        method="GET",
        target=replica["path"],
        headers=[
            (name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()
        ],
    )


def _tls(replica: Mapping[str, Any]) -> ssl.SSLContext:
    """Trust, and the client's certificate where there is one: ca, cert, key, insecure."""
    context = ssl.create_default_context(cafile=replica.get("ca"))
    if replica.get("cert") is not None:
        context.load_cert_chain(replica["cert"], replica.get("key"), password="")
    if replica.get("insecure"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


# ---------------------------------------------------------------- one scrape


async def scrape(link: Link, timeout_s: float, now: Callable[[], int]) -> list[Any]:
    """One scrape as a journal line: replica, asked_ns, answered_ns, error, samples.

    answered_ns: the whole answer was read, whatever it said.
    """
    asked_ns, answered_ns = now(), None
    found: list[Sample] = []
    error = None
    try:
        async with asyncio.timeout(timeout_s):
            answer = await link.fetch()
        answered_ns = now()
        found = samples(answer.page())
    except Exception as exc:  # an observer goes on, and says so
        error = _why(exc, timeout_s)
    return [link.name, asked_ns, answered_ns, error, found]


def _why(exc: Exception, timeout_s: float) -> str:  # noqa: PLR0911 (a table)
    """What went wrong, without any byte that the server or a header holds."""
    match exc:
        case TargetError():
            return str(exc)
        case h11.LocalProtocolError() | UnicodeEncodeError():
            return "a header or the path cannot be sent"
        case h11.RemoteProtocolError():
            return "not HTTP, or an answer that was cut"
        case ssl.SSLCertVerificationError():
            return f"TLS: {exc.verify_message}"
        case ssl.SSLError():
            return f"TLS: {exc.reason or 'failed'}"
        case OSError(errno=int(code)):
            return os.strerror(code)
        case TimeoutError():
            return f"no answer within {timeout_s:g} s"
        case OSError():
            return str(exc) or type(exc).__name__
    return f"the scraper failed: {type(exc).__name__}"


# ---------------------------------------------------------------- the child


def first_tick(now_ns: int, every_ns: int) -> int:
    """Number of the first tick at or after a run time; ticks begin with 0."""
    return max(0, -((OFFSET_NS - now_ns) // every_ns))


class Lines:
    """Appends one JSON line each; a full disk costs the line, not the process."""

    def __init__(self, path: str) -> None:
        self.lost = 0
        self._file = LineFile(Path(path))

    def append(self, fact: list[Any]) -> None:
        """Writes the line, or counts it as lost."""
        whole = False
        with contextlib.suppress(OSError):
            whole = self._file.write(json.dumps(fact, allow_nan=False).encode() + b"\n")
        self.lost += not whole


class Observer:
    """Asks every replica on the grid until it is stopped. Its counters go to the parent."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self.scrapes = self.missed = self.cut = 0
        self.lines = Lines(job["journal"])
        self._epoch_ns = int(job["epoch_monotonic_ns"])
        self._every_ns = round(job["every_s"] * SECOND)
        self._timeout_s = float(job["timeout_s"])
        self._until_ns = int(job["until_ns"])
        self._links = [Link(replica) for replica in job["replicas"]]

    def now(self) -> int:
        """Run time in ns."""
        return time.monotonic_ns() - self._epoch_ns

    async def run(self) -> None:
        """Until the end of the run, the end of stdin, or SIGTERM."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_reader(0, lambda: None if os.read(0, 4096) else stop.set())
        loop.call_later(max(0.0, (self._until_ns - self.now()) / SECOND), stop.set)
        tasks = [loop.create_task(self._follow(link)) for link in self._links]
        await stop.wait()
        loop.remove_reader(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, link: Link) -> None:
        """One replica's ticks: each is asked in its time, or counted as missed."""
        due = 0
        while True:
            tick = max(due, first_tick(self.now(), self._every_ns))
            self.missed += tick - due
            due = tick + 1
            at_ns = tick * self._every_ns + OFFSET_NS
            if at_ns >= self._until_ns:
                return
            await asyncio.sleep((at_ns - self.now()) / SECOND + CLOCK_STEP_S)
            if self.now() - at_ns > LATE_SHARE * self._every_ns:
                self.missed += 1
            else:
                await self._ask(link)

    async def _ask(self, link: Link) -> None:
        try:
            line = await scrape(link, self._timeout_s, self.now)
        except asyncio.CancelledError:
            self.cut += 1  # stopped while under way: neither an answer nor a failure
            raise
        self.scrapes += 1
        self.lines.append(line)


def main() -> int:
    """Runs one job from stdin; its counters, or why it could not, as one JSON line on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    told: dict[str, Any]
    try:
        job = json.loads(sys.stdin.buffer.readline())
        with contextlib.suppress(OSError):
            if job["cores"] is not None:
                os.sched_setaffinity(0, job["cores"])
        priority.this_thread(priority.OBSERVER)
        observer = Observer(job)
        uvloop.run(observer.run())
        told = {name: getattr(observer, name) for name in ("scrapes", "missed", "cut")}
        told |= {"lost": observer.lines.lost, "scheduler": priority.scheduler()}
    except Exception as exc:
        told = {"error": f"{type(exc).__name__}: {exc}"}
    with contextlib.suppress(OSError):  # the parent is gone
        os.write(1, json.dumps(told).encode() + b"\n")
    return 1 if "error" in told else 0


# ---------------------------------------------------------------- the parent's side


class Scraper:
    """The parent's handle of the child. Only an observer: no method raises, whatever it does."""

    def __init__(self, process: subprocess.Popen[bytes] | None, error: str | None = None) -> None:
        self.process = process
        self._told: dict[str, Any] | None = None if error is None else {"error": error}

    @classmethod
    def start(cls, job: Mapping[str, Any]) -> Scraper:
        """Starts the child with a job (keys in `Observer` and `Link`)."""
        command = [sys.executable, "-m", "percentes_fast.observe.scrape"]
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as exc:
            return cls(None, f"the scraper cannot be started: {exc.strerror}")
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it died at once: `running` tells
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        return cls(process)

    def running(self) -> bool:
        """Is the child alive?"""
        return self.process is not None and self.process.poll() is None

    def stop(self) -> dict[str, Any]:
        """Ends it; its counters (scrapes, missed, cut, lost) and scheduler, or `error`."""
        if self._told is None:
            self._told = self._ended()
        return self._told

    def _ended(self) -> dict[str, Any]:
        assert self.process is not None
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
            self.process.stdin = None  # or `communicate` would flush it
        try:
            said, _ = self.process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            return {"error": f"the scraper did not end within {STOP_TIMEOUT_S:g} s"}
        with contextlib.suppress(ValueError):
            return dict(json.loads(said))
        return {"error": f"the scraper died (exit status {self.process.returncode})"}


# ---------------------------------------------------------------- journal -> table

COLUMNS = (
    *("replica", "asked_ns", "answered_ns", "quantity", "metric", "labels", "le", "value"),
    "error",
)
NO_SAMPLE = (None, None, None, None, None)


def rows(lines: Iterable[Any]) -> dict[str, list[Any]]:
    """Columns of metrics.parquet from the journal's lines: a row a sample.

    A scrape without samples is one row without a quantity: with its error, or answered without any
    known metric. The last bucket's edge is inf.
    """
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for replica, asked_ns, answered_ns, error, found in lines:
        for quantity, metric, labels, le, value in found or [NO_SAMPLE]:
            edge = None if le is None else float(le)
            sample = (quantity, metric, labels, edge, value)
            row = (replica, asked_ns, answered_ns, *sample, error)
            for name, each in zip(COLUMNS, row, strict=True):
                columns[name].append(each)
    return columns


if __name__ == "__main__":
    sys.exit(main())
