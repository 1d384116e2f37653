"""The server of a run: the embedded one, a command, or one that is there already.

Never: starts a server where something listens already, or calls one ready that did not answer.
Plan: resolve the address once; start the command under a supervisor; wait until it answers one
request of one token, through the engine that the run uses.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from percentes_fast import rundir
from percentes_fast.config import Config
from percentes_fast.engine import pool, preflight
from percentes_fast.errors import TargetError
from percentes_fast.schema import Cause
from percentes_fast.servers.supervisor import Supervised, split_command
from percentes_fast.target import speaks_tls, split_url

READY_POLL_S = 0.05
STILL_LOADING = 500  # llama.cpp answers 503 while it loads; a 4xx is an answer, for preflight
ANSWERS = (Cause.STREAM_END, Cause.HTTP_STATUS, Cause.NO_END, Cause.TLS)  # preflight tells


@dataclass(frozen=True, slots=True)
class Launched:
    """A server to load: configuration with its URL, address, its supervisor if we run it."""

    config: Config
    address: pool.Address
    server: Supervised | None


def embedded_config(config: Config) -> Config:
    """The configuration with the embedded server's URL, where that is the target."""
    if not config.embedded:
        return config
    url = f"http://127.0.0.1:{config.mock.port or _free_port()}"
    return config.model_copy(update={"target": config.target.model_copy(update={"url": url})})


def launch(
    config: Config,
    run_id: str,
    directory: Path,
    cores: tuple[Sequence[int], Sequence[int]],
    say: Callable[[str], None],
) -> Launched:
    """Starts the server where the run has one; waits until it answers.

    cores: (those left beside the workers, for the embedded server; all, for a command). Raises
    TargetError or ConfigError; whatever it started has ended then.
    """
    told = embedded_config(config)
    url = str(told.target.url)
    addresses = resolve(url)
    if config.embedded:
        command, allowed = _mock_command(config, addresses[0].port), cores[0]
    elif config.serve.command is not None:
        command, allowed = split_command(config.serve.command), cores[1]
    else:
        return Launched(told, answering(addresses), None)
    if any(map(listens, addresses)):
        raise TargetError(
            f"target {url}: port {addresses[0].port} is in use: something answers there before the"
            " server was started; stop it or take another port"
        )
    say(f"starting the server: {config.serve.command or 'the embedded one'}")
    server = Supervised(command, directory / rundir.SERVER_LOG, allowed)
    try:
        address = _await_ready(told, addresses, server, run_id, directory)
    except BaseException:
        server.stop()
        raise
    return Launched(told, address, server)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _mock_command(config: Config, port: int) -> list[str]:
    mock = config.mock
    options = {
        "port": port,
        "model": config.target.model,
        "startup-s": mock.startup_s,
        "ttft-ms": mock.ttft_ms,
        "itl-ms": mock.itl_ms,
        "ttft-dist": mock.ttft_dist,
        "itl-dist": mock.itl_dist,
        "seed": config.seed,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "percentes_fast.servers.mock", *words]


def resolve(url: str) -> tuple[pool.Address, ...]:
    """Addresses of a target, resolved once. Raises TargetError where the name is not found."""
    host, port, _ = split_url(url)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as exc:
        raise TargetError(f"target {url}: {host}: {exc.strerror}; mend the name") from exc
    shown = f"[{host}]" if ":" in host else host
    tls_name = host if speaks_tls(url) else None
    ips = dict.fromkeys(str(entry[4][0]) for entry in found)
    return tuple(pool.Address(ip, port, f"{shown}:{port}", tls_name) for ip in ips)


def answering(addresses: Sequence[pool.Address]) -> pool.Address:
    """The first address that something listens on (of localhost: 127.0.0.1 or ::1), else the first.

    A run keeps to the one that is chosen before it.
    """
    if len(addresses) == 1:
        return addresses[0]
    return next(filter(listens, addresses), addresses[0])


def listens(address: pool.Address) -> bool:
    """Does something accept connections there now?"""
    with socket.socket(socket.AF_INET6 if ":" in address.ip else socket.AF_INET) as probe:
        probe.settimeout(2.0)
        return probe.connect_ex((address.ip, address.port)) == 0


def _await_ready(
    config: Config,
    addresses: Sequence[pool.Address],
    server: Supervised,
    run_id: str,
    directory: Path,
) -> pool.Address:
    """The address on which it answers."""
    deadline = time.monotonic() + config.serve.ready_timeout_s
    nowhere = pool.Address("127.0.0.1", 9, "127.0.0.1:9")  # the canary's place; nothing is sent
    while time.monotonic() < deadline:
        server.check_alive(directory / rundir.SERVER_LOG)
        address = answering(addresses)
        if listens(address):
            answer = preflight.ask(config, (address, nowhere), run_id, directory, short=True)
            if answer.cause in ANSWERS and (answer.http_status or 0) < STILL_LOADING:
                return address
        time.sleep(READY_POLL_S)
    raise TargetError(
        f"target {config.target.url}: did not answer within {config.serve.ready_timeout_s:g} s of"
        " its start; raise serve.ready_timeout_s"
    )
