"""The simulated inference server: starts like vLLM, answers like vLLM, generates nothing.

Never: answers (or accepts) before its start-up is over, takes a port that is in use, leaves
the machine it runs on, or runs a model.
Plan: options, the start-up (bind, print the stage lines at their times, listen), the life of
the server until SIGTERM or SIGINT, and the command line. The port is bound at once but does
not listen until the end, so a client is refused all through the start-up and a port in use is
known before the wait. What is said on a connection is in mock_http.py and mock_replies.py,
when tokens are due in mock_pace.py.

Default latencies: time to first token lognormal (sigma 0.05), gaps between tokens normal with
an SD of 2 % of the mean. Neither follows load: there is no batching and no queue.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import math
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import NoReturn

import uvloop

from percentes_fast.errors import ClientError, ConfigError, PercentesError
from percentes_fast.servers.mock_http import Connection, Site
from percentes_fast.servers.mock_pace import Pacer, Spread, Timing
from percentes_fast.servers.mock_stages import (
    LISTENING_LINE,
    STAGE_LINES,
    StartFacts,
    rendered,
)

BACKLOG = 2048
DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class MockOptions:
    """How the simulated server behaves; `_s` in seconds, `_ms` in milliseconds.

    Raises ConfigError for a value out of range.
    """

    host: str = field(default="127.0.0.1", metadata={"help": "address to listen on"})
    port: int = field(default=8000, metadata={"help": "TCP port, 0 = any free one (printed)"})
    model: str = field(default="mock", metadata={"help": "served model name"})
    startup_s: float = field(default=42.0, metadata={"help": "time from start to listening"})
    ttft_ms: float = field(default=148.0, metadata={"help": "mean time to first token"})
    itl_ms: float = field(default=25.0, metadata={"help": "mean gap between tokens"})
    ttft_dist: str = field(
        default="lognormal:0.05",
        metadata={"help": "constant, normal[:SD], lognormal[:SIGMA] or exponential; relative"},
    )
    itl_dist: str = field(default="normal:0.02", metadata={"help": "the same for the gaps"})
    seed: int = field(default=0, metadata={"help": "seed of all draws"})
    keep_alive_s: float = field(default=5.0, metadata={"help": "idle time before FIN"})
    vllm_version: str = field(default="0.29.0", metadata={"help": "version it claims to be"})
    access_log: bool = field(default=False, metadata={"help": "print a line a request"})

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port {self.port}: use 0 to 65535")
        for name in ("startup_s", "ttft_ms", "itl_ms", "keep_alive_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= 86_400_000):
                raise ConfigError(f"{name} {value}: use a number from 0 to a day")
        Spread.parse(self.ttft_dist)
        Spread.parse(self.itl_dist)

    def timing(self) -> Timing:
        """The latencies in the form the generations draw from."""
        return Timing(
            ttft_ns=round(self.ttft_ms * 1e6),
            itl_ns=round(self.itl_ms * 1e6),
            ttft=Spread.parse(self.ttft_dist),
            itl=Spread.parse(self.itl_dist),
            seed=self.seed,
        )


def serve(options: MockOptions) -> None:
    """Start, serve until SIGTERM or SIGINT, and return.

    Raises ClientError when the address cannot be had. Prints to standard output.
    """
    began_ns = time.monotonic_ns()
    _raise_descriptor_limit()
    with _bound(options) as listener:
        uvloop.run(_live(options, listener, began_ns))


def _bound(options: MockOptions) -> socket.socket:
    """A bound socket that does not listen: connects are refused."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as exc:
        listener.close()
        raise _no_address(options.host, options.port, exc) from exc
    return listener


def _no_address(host: str, port: int, exc: OSError) -> ClientError:
    if exc.errno == errno.EADDRINUSE:
        return ClientError(
            f"port {port} on {host} is already in use: stop the process that holds it,"
            " or choose another with --port (0 takes any free one)"
        )
    return ClientError(
        f"cannot listen on {host} port {port} ({exc.strerror or exc}):"
        " choose an address of this machine with --host, or another port with --port"
    )


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _live(options: MockOptions, listener: socket.socket, began_ns: int) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = listener.getsockname()[:2]
    facts = StartFacts(
        options.model, options.vllm_version, host, port, os.getpid(), options.startup_s
    )
    await _start_up(facts, began_ns, stop)
    if stop.is_set():
        return
    site = _site(options, loop)
    try:
        server = await loop.create_server(lambda: Connection(site), sock=listener, backlog=BACKLOG)
    except OSError as exc:
        raise _no_address(host, port, exc) from exc
    _print(rendered(LISTENING_LINE, facts))
    await stop.wait()
    _print("INFO:     Shutting down")
    await _shut_down(server, site)
    _print(f"INFO:     Finished server process [{facts.pid}]")


def _site(options: MockOptions, loop: asyncio.AbstractEventLoop) -> Site:
    return Site(
        model=options.model,
        version=options.vllm_version,
        timing=options.timing(),
        pacer=Pacer(loop),
        keep_alive_s=options.keep_alive_s,
        access_log=_print if options.access_log else None,
    )


async def _start_up(facts: StartFacts, began_ns: int, stop: asyncio.Event) -> None:
    """Print each stage line at its share of the start-up time; return early when stopped."""
    for line in (*STAGE_LINES, LISTENING_LINE):
        await _until(began_ns + round(line.share * facts.startup_s * 1e9), stop)
        if stop.is_set() or line is LISTENING_LINE:
            return
        _print(rendered(line, facts))


async def _until(due_ns: int, stop: asyncio.Event) -> None:
    wait_s = (due_ns - time.monotonic_ns()) / 1e9
    if wait_s > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait_s)


async def _shut_down(server: asyncio.Server, site: Site) -> None:
    """Refuse new clients, end running replies with vLLM's error event, close the rest."""
    server.close()
    for job in tuple(site.running):
        job.fail()
    for connection in tuple(site.connections):
        connection.close_if_idle()
    limit_ns = time.monotonic_ns() + round(DRAIN_S * 1e9)
    while site.connections and time.monotonic_ns() < limit_ns:
        await asyncio.sleep(0.01)


def _print(line: str) -> None:
    """Unbuffered; a reader that has gone away does not end the server."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line.encode() + b"\n")


class _Parser(argparse.ArgumentParser):
    """A parser whose usage errors are this package's errors: one line, exit code 1."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m percentes_fast.servers.mock",
        description="A simulated inference server with vLLM's protocol and start-up log.",
    )
    for item in fields(MockOptions):
        name, text = "--" + item.name.replace("_", "-"), item.metadata["help"]
        if isinstance(item.default, bool):
            parser.add_argument(name, action="store_true", help=text)
        else:
            kind, told = type(item.default), f"{text} (default {item.default})"
            parser.add_argument(name, type=kind, default=item.default, help=told)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. Errors are one line on standard error."""
    try:
        serve(MockOptions(**vars(_parser().parse_args(arguments))))
    except PercentesError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return exc.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
