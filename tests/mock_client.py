"""A simulated server as a process, and a small h11 client for it. Shared by the mock's tests.

Never: judges an answer, or leaves a process behind.
Plan: the process and the reading of its lines, then one request on one connection.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h11

READY = "Application startup complete."
HOST = "127.0.0.1"
WAIT_S = 60


@dataclass
class Running:
    """A server process, the lines it has printed, and its port."""

    process: subprocess.Popen[bytes]
    lines: list[bytes]
    port: int = 0

    def read_until(self, text: str) -> bytes:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text.encode() in line:
                return line
        raise AssertionError(f"the server ended without {text!r}: {self.lines}")


def command(**options: object) -> list[str]:
    flags = [part for k, v in options.items() for part in ("--" + k.replace("_", "-"), str(v))]
    return [sys.executable, "-m", "percentes_fast.servers.mock", *flags]


@contextlib.contextmanager
def running(**options: object) -> Iterator[Running]:
    with subprocess.Popen(
        command(**{"port": 0, **options}), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        server = Running(process, [])
        try:
            if options.get("startup_s") == 0:
                told = server.read_until("Starting vLLM server on ")
                server.port = int(told.rsplit(b":", 1)[1])
                server.read_until(READY)
            yield server
        finally:
            process.kill()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    chunks: list[bytes]

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def answer_on(sock: socket.socket, client: h11.Connection) -> Answer:
    """Read one response; chunks as framed by the server, one entry each."""
    head: h11.Response | None = None
    chunks: list[bytes] = []
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            client.receive_data(sock.recv(65536))
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            if event.chunk_start or not chunks:
                chunks.append(b"")
            chunks[-1] += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            headers = {k.decode(): v.decode() for k, v in head.headers}
            return Answer(head.status_code, headers, chunks)


def post_bytes(path: str, body: bytes, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", f"Host: {HOST}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def ask(port: int, raw: bytes) -> Answer:
    with socket.create_connection((HOST, port), timeout=WAIT_S) as sock:
        client = h11.Connection(h11.CLIENT)
        method, path = raw.split(b" ", 2)[:2]
        client.send(h11.Request(method=method, target=path, headers=[("host", HOST)]))
        client.send(h11.EndOfMessage())
        sock.sendall(raw)
        return answer_on(sock, client)


def post(port: int, path: str, body: dict[str, Any], *headers: str) -> Answer:
    return ask(port, post_bytes(path, json.dumps(body).encode(), *headers))


def get(port: int, path: str) -> Answer:
    return ask(port, f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
