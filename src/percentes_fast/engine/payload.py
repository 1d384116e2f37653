"""Every request's bytes, before the run.

Never: changes a byte once the run has started, or repeats a prompt (the run id is in the prefix).
Plan: a request is a head of its own (HTTP head, the body up to and with the unique prompt prefix)
and a tail shared by all rows of its template; the engine sends both in one system call. Heads lie
one after the other in an arena, one a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from percentes_fast.config import Config, targets
from percentes_fast.engine.schedule import Schedule, Template
from percentes_fast.errors import ConfigError
from percentes_fast.schema import Kind
from percentes_fast.target import split_url

PREFIX_MARK = "\x00prefix\x00"  # no JSON text holds a raw NUL: it is found again for certain
INDEX_DIGITS = 9
WORD = "tok "
API_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
OWN_HEADERS = (
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "x-request-id",
)
DEFAULT_HEADERS = {"User-Agent": "percentes-fast", "Accept": "*/*"}


@dataclass(frozen=True, slots=True)
class Arena:
    """One worker's requests.

    heads: all heads; offset, length: of each row's head, shape (rows,); tail: index into tails.
    """

    heads: bytes
    offset: NDArray[np.int64]
    length: NDArray[np.int32]
    tail: NDArray[np.int32]
    tails: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Shape:
    """A template's bytes around the request id (twice) and the prompt prefix."""

    before_id: bytes
    after_id: bytes  # the rest of the HTTP head, and the body up to the prefix
    tail: bytes


def body(config: Config, template: Template) -> bytes:
    """The JSON body of a template, PREFIX_MARK where a row's unique prompt prefix goes."""
    words = PREFIX_MARK + WORD * template.prompt_tokens
    prompt: dict[str, Any] = {"model": config.target.model}
    if config.target.api == "chat":
        prompt["messages"] = [{"role": "user", "content": words.rstrip()}]
    else:
        prompt["prompt"] = words.rstrip()
    prompt |= {"max_tokens": template.max_tokens, "stream": True}
    if config.target.ignore_eos and not config.target.hosted:
        prompt["ignore_eos"] = True
    if config.target.usage:
        prompt["stream_options"] = {"include_usage": True}
    try:
        return orjson.dumps(_merged(prompt, config.target.extra_body))
    except TypeError as exc:
        raise ConfigError(f"target.extra_body: {exc}; give values that JSON can hold") from exc


def _merged(into: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(into)
    for key, value in extra.items():
        inner = merged.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict)
        merged[key] = _merged(inner, value) if both and inner is not None else value
    return merged


def _prefix(run_id: str, index: int) -> bytes:
    return f"{run_id}-{index:0{INDEX_DIGITS}d} ".encode()


def _shape(
    config: Config, template: Template, target: tuple[str, str | None], run_id: str
) -> _Shape:
    """target: Host header and URL of where it goes."""
    host, url = target
    prefix = split_url(url or "http://127.0.0.1")[2]
    if template.kind == Kind.HEALTH:
        head = _head(config, "GET", prefix + config.health.path, host)
        return _Shape(head, b"\r\n\r\n", b"")
    if template.kind == Kind.CANARY:
        return _canary_shape(config, host)
    marked = body(config, template)
    mark = orjson.dumps(PREFIX_MARK)[1:-1]
    if marked.count(mark) != 1:
        raise ConfigError("target.extra_body: replaces the prompt; leave messages and prompt out")
    opening, tail = marked.split(mark)
    length = len(opening) + len(_prefix(run_id, 0)) + len(tail)
    head = _head(config, "POST", prefix + API_PATHS[config.target.api], host)
    rest = f"\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    return _Shape(head, rest.encode() + opening, tail)


def _canary_shape(config: Config, host: str) -> _Shape:
    canary = config.canary
    query = (
        f"ttft_us={canary.ttft_ms * 1000:.0f}&gap_us={canary.itl_ms * 1000:.0f}"
        f"&tokens={canary.tokens}"
    )
    head = f"POST /canary?{query} HTTP/1.1\r\nHost: {host}\r\nX-Request-Id: "
    return _Shape(head.encode(), b"\r\nContent-Length: 0\r\n\r\n", b"")


def _head(config: Config, method: str, path: str, host: str) -> bytes:
    given = config.target.sent_headers()
    names = {name.lower() for name in given}
    for name in given:
        if name.lower() in OWN_HEADERS:
            raise ConfigError(f"target.headers: {name} is set by the client itself; drop it")
    headers = {k: v for k, v in DEFAULT_HEADERS.items() if k.lower() not in names} | given
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\nX-Request-Id: ").encode()


def render(
    config: Config, schedule: Schedule, rows: NDArray[np.int64], run_id: str, hosts: tuple[str, ...]
) -> Arena:
    """Bytes of the given rows (indices into the schedule).

    hosts: the Host header of each target. Raises ConfigError where extra_body or headers clash
    with what the client sets itself.
    """
    urls = [url for _, url in targets(config)]
    shapes = [
        _shape(config, template, (hosts[template.target], urls[template.target]), run_id)
        for template in schedule.templates
    ]
    heads = bytearray()
    offset = np.zeros(len(rows), np.int64)
    length = np.zeros(len(rows), np.int32)
    for at, (index, template) in enumerate(
        zip(rows.tolist(), schedule.template[rows].tolist(), strict=True)
    ):
        head = _row_head(shapes[template], run_id, index, schedule.templates[template].kind)
        offset[at], length[at] = len(heads), len(head)
        heads += head
    tails = tuple(shape.tail for shape in shapes)
    return Arena(bytes(heads), offset, length, schedule.template[rows].astype(np.int32), tails)


def _row_head(shape: _Shape, run_id: str, index: int, kind: Kind) -> bytes:
    request_id = f"{run_id}-{index}".encode()
    unique = _prefix(run_id, index) if kind in (Kind.LOAD, Kind.PROBE) else b""
    return shape.before_id + request_id + shape.after_id + unique
