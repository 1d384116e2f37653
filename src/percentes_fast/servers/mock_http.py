"""The mock's connections and running requests: HTTP/1.1 in, replies and paced tokens out.

Never: sleeps, blocks, or holds a stream whose client is gone; no h11 object per token.
Plan: `Site` is what all connections share; `Connection` parses requests with h11 and routes
them; `Generation` is one running request, stepped by the pacer. h11 writes the response head
and the end of the body; token chunks are framed once as bytes and written past it. As with
uvicorn, a connection is closed when idle for `keep_alive_s` after a reply, not before its
first request. A client that does not read costs memory up to its own stream's length.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from random import Random
from typing import cast

import h11

from percentes_fast.servers import mock_replies as replies
from percentes_fast.servers.mock_metrics import Counters, prometheus_text
from percentes_fast.servers.mock_pace import Pacer, Timing

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024
LINGER_S = 1.0
JSON_TYPE = b"application/json"
STREAM_TYPE = b"text/event-stream; charset=utf-8"
METRICS_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
METHODS = {
    "/health": (b"GET",),
    "/ping": (b"GET", b"POST"),
    "/version": (b"GET",),
    "/metrics": (b"GET",),
    "/v1/models": (b"GET",),
    replies.CHAT_PATH: (b"POST",),
    replies.COMPLETIONS_PATH: (b"POST",),
}


@dataclass(slots=True, eq=False)
class Site:
    """What every connection of one server shares."""

    model: str
    version: str
    timing: Timing
    pacer: Pacer
    keep_alive_s: float
    access_log: Callable[[str], None] | None = None
    counters: Counters = field(default_factory=Counters)
    running: set[Generation] = field(default_factory=set)
    connections: set[Connection] = field(default_factory=set)
    arrived: int = 0

    def body_of(self, path: str) -> tuple[bytes, bytes | None]:
        """Body and content type of a GET."""
        if path == "/version":
            return replies.version_body(self.version), JSON_TYPE
        if path == "/v1/models":
            return replies.models_body(self.model, int(time.time())), JSON_TYPE
        if path == "/metrics":
            held = sum(job.held_tokens for job in self.running)
            text = prometheus_text(self.counters, self.model, len(self.running), held)
            return text, METRICS_TYPE
        return b"", None


class Connection(asyncio.Protocol):
    """One client connection; at most one request runs on it at a time."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._job: Generation | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._refused = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._site.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The client is gone: end its request at once."""
        self._stop_idle_timer()
        self._site.connections.discard(self)
        if self._job is not None:
            self._job.abort()

    def data_received(self, data: bytes) -> None:
        """Parse what came; after a refusal the rest is thrown away unread."""
        if self._refused:
            return
        self._stop_idle_timer()
        self._http.receive_data(data)
        self._advance()

    def close_if_idle(self) -> None:
        """Close unless a request runs (its end closes it then)."""
        if self._job is None:
            self._transport.close()

    def _advance(self) -> None:
        try:
            while not self._refused and not self._transport.is_closing():
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    return self._invite_body()
                if event is h11.PAUSED:
                    # Pipelined: read on when the running reply is over.
                    return self._transport.pause_reading()
                self._take(event)
        except h11.RemoteProtocolError:
            self._refuse(400, b"Invalid HTTP request received.", b"text/plain; charset=utf-8")

    def _invite_body(self) -> None:
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            self._transport.write(self._http.send(go_on) or b"")

    def _take(self, event: object) -> None:
        if isinstance(event, h11.Request):
            self._request, self._body = event, bytearray()
            lengths = [int(v) for k, v in event.headers if k == b"content-length"]
            self._limit(max(lengths, default=0))
        elif isinstance(event, h11.Data):
            self._body += event.data
            self._limit(len(self._body))
        elif isinstance(event, h11.EndOfMessage):
            self._answer()

    def _limit(self, length: int) -> None:
        if length > MAX_BODY_BYTES:
            self._refuse(413, replies.detail(413, "Request body too large").body, JSON_TYPE)

    def _answer(self) -> None:
        assert self._request is not None
        path = self._request.target.split(b"?", 1)[0].decode("ascii", "replace")
        allowed = METHODS.get(path)
        if allowed is None:
            self._reply(404, replies.detail(404, "Not Found").body, JSON_TYPE)
        elif self._request.method not in allowed:
            body = replies.detail(405, "Method Not Allowed").body
            self._reply(405, body, JSON_TYPE, [(b"allow", b", ".join(allowed))])
        elif path in (replies.CHAT_PATH, replies.COMPLETIONS_PATH):
            self._complete(path)
        else:
            self._reply(200, *self._site.body_of(path))

    def _complete(self, path: str) -> None:
        assert self._request is not None
        order = replies.read_order(path, bytes(self._body), self._site.model)
        self._body = bytearray()
        if isinstance(order, replies.Refusal):
            return self._reply(order.status, order.body, JSON_TYPE)
        if order.stream:
            headers = [(b"content-type", STREAM_TYPE), (b"vary", b"Origin")]
            # h11 drops this again for HTTP/1.0, whose bodies end with the connection.
            self._head(200, [*headers, (b"transfer-encoding", b"chunked")])
        given = next((v for k, v in self._request.headers if k == b"x-request-id"), b"")
        chunked = self._request.http_version >= b"1.1"
        self._job = Generation(self._site, self, order, given.decode("latin-1"), chunked)
        self._job.start()
        return None

    def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        stamped = [(b"date", _http_date(int(time.time()))), (b"server", b"uvicorn"), *headers]
        reason = HTTPStatus(status).phrase.encode()
        response = h11.Response(status_code=status, headers=stamped, reason=reason)
        self._transport.write(self._http.send(response) or b"")
        if self._site.access_log is not None and self._request is not None:
            self._site.access_log(self._access_line(self._request, status))

    def _access_line(self, request: h11.Request, status: int) -> str:
        host, port = self._transport.get_extra_info("peername")[:2]
        what = f"{request.method.decode()} {request.target.decode('ascii', 'replace')}"
        version, phrase = request.http_version.decode(), HTTPStatus(status).phrase
        return f'INFO:     {host}:{port} - "{what} HTTP/{version}" {status} {phrase}'

    def _reply(
        self,
        status: int,
        body: bytes,
        content_type: bytes | None,
        extra: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        headers = [*(extra or []), (b"content-length", b"%d" % len(body))]
        if content_type is not None:
            headers.append((b"content-type", content_type))
        self._head(status, [*headers, (b"vary", b"Origin")])
        if self._request is None or self._request.method != b"HEAD":
            self._transport.write(self._http.send(h11.Data(data=body)) or b"")
        self._end_reply()

    def _end_reply(self) -> None:
        """End the body and make the connection ready for the next request, or close it."""
        self._transport.write(self._http.send(h11.EndOfMessage()) or b"")
        if self._refused:
            return
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._site.keep_alive_s, self._transport.close)
        else:
            self._transport.close()

    def _refuse(self, status: int, body: bytes, content_type: bytes) -> None:
        """Reply, say FIN, and drop what still arrives: a close now would reset the reply."""
        self._refused = True
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return self._transport.close()
        self._reply(status, body, content_type, [(b"connection", b"close")])
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)
        return None

    def _stop_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def write(self, data: bytes) -> None:
        """Bytes of a running stream, already framed."""
        self._transport.write(data)

    def finish(self, plain: replies.Refusal | None) -> None:
        """The running request is over: its plain reply where it was not a stream."""
        self._job = None
        if plain is not None:
            self._reply(plain.status, plain.body, JSON_TYPE)
        else:
            self._end_reply()
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self._advance()


class Generation:
    """One running completion request. Times are monotonic ns; the schedule is absolute."""

    def __init__(
        self, site: Site, client: Connection, order: replies.Order, given_id: str, chunked: bool
    ) -> None:
        site.arrived += 1
        self._site, self._client, self._order, self._chunked = site, client, order, chunked
        self._rng: Random = site.timing.rng(site.arrived)
        self._arrived_ns = time.monotonic_ns()
        self._due_ns = self._arrived_ns + site.timing.first_ns(self._rng)
        self._done = 0
        self._live = True
        named = given_id or f"{self._rng.getrandbits(64):016x}"
        prefix = "chatcmpl" if order.chat else "cmpl"
        made_s = int(time.time())
        self._wording = replies.Wording(order, f"{prefix}-{named}", made_s, site.version)
        self._chunk = self._framed(self._wording.token)

    @property
    def held_tokens(self) -> int:
        """Tokens this request holds in the simulated cache."""
        return self._order.prompt_tokens + self._done

    def start(self) -> None:
        """Register with the pacer; the first token is due after the drawn time to it."""
        self._site.running.add(self)
        self._site.pacer.add(self._due_ns, self)

    def step(self) -> int | None:
        """Emit the token that is due; the next one's due time, None when over."""
        if not self._live:
            return None
        self._done += 1
        self._site.counters.generation_tokens += 1
        if self._done == 1:
            self._first()
        if self._done == self._order.max_tokens:
            self._last()
            return None
        if self._order.stream:
            self._client.write(
                self._framed(self._wording.token_at(self._done))
                if self._order.continuous_usage
                else self._chunk
            )
        self._due_ns += self._site.timing.gap_ns(self._rng)
        return self._due_ns

    def abort(self) -> None:
        """The client is gone."""
        self._close("abort")

    def fail(self) -> None:
        """The server stops: end the reply as vLLM does when its engine is gone."""
        self._close("error")
        if self._order.stream:
            self._client.write(self._framed(replies.engine_dead_event()))
            self._client.write(self._framed(replies.DONE_EVENT))
        self._client.finish(None if self._order.stream else replies.engine_dead())

    def _first(self) -> None:
        self._site.counters.prompt_tokens += self._order.prompt_tokens
        self._site.counters.ttft.observe((time.monotonic_ns() - self._arrived_ns) / 1e9)
        role = self._wording.role()
        if self._order.stream and role is not None:
            self._client.write(self._framed(role))

    def _last(self) -> None:
        self._close("length")
        self._site.counters.e2e.observe((time.monotonic_ns() - self._arrived_ns) / 1e9)
        if not self._order.stream:
            return self._client.finish(replies.Refusal(200, self._wording.plain()))
        for event in (self._wording.token_at(self._done), *self._wording.tail()):
            self._client.write(self._framed(event))
        return self._client.finish(None)

    def _close(self, reason: str) -> None:
        self._live = False
        self._site.running.discard(self)
        self._site.counters.finished[reason] += 1

    def _framed(self, event: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event


_stamp: tuple[int, bytes] = (0, b"")


def _http_date(now_s: int) -> bytes:
    """The Date header's value, formatted once a second."""
    global _stamp  # noqa: PLW0603  (a cache of one entry)
    if _stamp[0] != now_s:
        _stamp = (now_s, formatdate(now_s, usegmt=True).encode())
    return _stamp[1]
