"""Runs over SSH against a server in a container, for tests: real sshd, real engine, real kills.

Does: puts a server in a container and waits until it serves; starts the command line against it;
      says how a run stands and what is left on the host; does several such things at a time.
Never: asserts anything by itself, or times anything: scenes of several runs at a time make clients
       late, which only the gates of a shared machine (G2, G6) may show.
Plan: `Place` is a container behind an sshd and a directory for its runs; how a run stands; threads.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import whole_run
from real_hosts import Dockerd, Process, Sshd, below, lives, poll

INSIDE = 8000  # the server's port in a container with a network of its own
STARTUP_S, SLOW_STARTUP_S = 0.5, 1.5
END_LIMIT_S, CALL_LIMIT_S = 10.0, 200.0
Done = subprocess.CompletedProcess[str]
Running = subprocess.Popen[str]


def phases(*, timeout_s: float = 0.7, kill_at_s: float = 3.2, recovery_s: float = 2.6) -> str:
    """A whole experiment in a few seconds; the identity is checked 2 s before the kill.

    A request takes 0.33 s; the server is back 1.5 to 2 s after the kill.
    """
    return f"""
load: {{rate: 16, prompt_tokens: 4, max_tokens: 8, timeout_s: {timeout_s}}}
phases: {{warmup_s: 0.3, kill_at_s: {kill_at_s}, recovery_s: {recovery_s}, cooldown_s: 0.2}}
detector: {{window_s: 1, hold_s: 1}}
fault: {{kind: kill_container}}
metrics: {{every_s: 0.3, timeout_s: 0.25}}
"""


@dataclass(frozen=True)
class Place:
    """A container with the embedded server, the sshd its host is reached by, a directory."""

    sshd: Sshd
    dockerd: Dockerd
    name: str
    port: int
    base: Path

    @property
    def out(self) -> Path:
        """Where `words` puts the run, or the campaign."""
        return self.base / "out"

    def write_config(self, more: str = "", *, timing: str | None = None) -> Path:
        """The configuration of this place; `more` is YAML added to it."""
        self.base.mkdir(exist_ok=True)
        path = self.base / "config.yaml"
        known = f"ssh: {{known_hosts: {self.sshd.known_hosts}, port: {self.sshd.port}}}\n"
        engine = f"container: {{socket: {self.dockerd.socket}}}\n"
        path.write_text((timing or phases()) + known + engine + more)
        return path

    def words(self, verb: str, *more: str, config: Path | None = None) -> list[str]:
        """Arguments of the command line; an option in `more` takes the place of the one here."""
        given = {
            "--config": str(config or self.write_config()),
            "--target": f"http://127.0.0.1:{self.port}",
            "--ssh-target": f"{self.sshd.user}@{self.sshd.host}",
            "--ssh-identity": str(self.sshd.identity),
            "--container": self.name,
            "--out": str(self.out),
        }
        kept = (word for pair in given.items() if pair[0] not in more for word in pair)
        return [verb, *kept, *more]

    def call(self, *more: str, verb: str = "run", config: Path | None = None) -> Done:
        """Runs the command line to its end."""
        words = self.words(verb, *more, config=config)
        return whole_run.call(*words, cwd=self.base, timeout=CALL_LIMIT_S)

    def start(self, *more: str, verb: str = "run", config: Path | None = None) -> Running:
        """Starts the command line."""
        return whole_run.start(*self.words(verb, *more, config=config), cwd=self.base)

    def commands(self) -> list[Process]:
        """What runs on the host: every process below the sshd."""
        assert self.sshd.process is not None
        return below(self.sshd.process.pid)

    def wait_quiet(self) -> None:
        """Until nothing runs on the host any more. Raises RuntimeError."""
        poll(f"end of {self.commands()}", lambda: not self.commands(), END_LIMIT_S)


def wait_gone(processes: Sequence[Process]) -> None:
    """Until none of them lives any more. Raises RuntimeError."""
    poll(f"end of {processes}", lambda: not any(map(lives, processes)), END_LIMIT_S)


# ---------------------------------------------------------------- servers


def server(port: int, *more: str, startup_s: float = STARTUP_S) -> list[str]:
    """argv of the embedded server in a container."""
    words = ("--port", str(port), "--startup-s", str(startup_s), *more)
    return [sys.executable, "-m", "percentes_fast.servers.mock", *words]


def serves(port: int) -> bool:
    """Does GET /health answer 200?"""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        client.request("GET", "/health")
        return client.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        client.close()


@contextlib.contextmanager
def served(
    sshd: Sshd, dockerd: Dockerd, base: Path, *more: str, restart: str = "on-failure"
) -> Iterator[Place]:
    """A server in a container of the host's network, called as `base` is and removed at the end."""
    place = Place(sshd, dockerd, base.name, whole_run.free_port(), base)
    dockerd.run(place.name, server(place.port, *more), restart=restart)
    with _until_removed(place):
        yield place


@contextlib.contextmanager
def published(sshd: Sshd, dockerd: Dockerd, base: Path) -> Iterator[Place]:
    """A server that starts slowly, in a container with a network of its own, behind docker-proxy.

    The proxy holds what it accepts before the container answers, and tries again after 1 s: a
    server that is back by then serves it.
    """
    place = Place(sshd, dockerd, base.name, whole_run.free_port(), base)
    words = server(INSIDE, "--host", "0.0.0.0", startup_s=SLOW_STARTUP_S)
    dockerd.run(place.name, words, network="bridge", ports={place.port: INSIDE})
    with _until_removed(place):
        yield place


@contextlib.contextmanager
def _until_removed(place: Place) -> Iterator[None]:
    try:
        poll(f"{place.name} to serve", lambda: serves(place.port))
        yield
    finally:
        place.dockerd.remove(place.name)


# ---------------------------------------------------------------- how a run stands


def fault(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "fault.json").read_text())
    return found


def wait_second(out: Path, second: float, running: Running) -> None:
    """Until so many seconds after the epoch of the run in `out`. Raises RuntimeError."""
    _wait_for_run(
        running, lambda: whole_run.is_running(out) and whole_run.run_seconds(out) >= second
    )


def wait_evidence(out: Path, running: Running) -> None:
    """Until the fault of the run in `out` and its evidence are stored. Raises RuntimeError."""
    _wait_for_run(running, lambda: _is_told(out))


def _is_told(out: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return fault(out)["evidence"] is not None
    return False


def _wait_for_run(running: Running, true: Callable[[], bool]) -> None:
    def reached() -> bool:
        if running.poll() is not None:
            raise RuntimeError(f"it has ended: {running.communicate()[1]}")
        return true()

    poll("a moment of the run", reached, CALL_LIMIT_S)


def ended(running: Running) -> Done:
    """Waits for its end."""
    stdout, stderr = running.communicate(timeout=CALL_LIMIT_S)
    return subprocess.CompletedProcess(running.args, running.returncode, stdout, stderr)


# ---------------------------------------------------------------- several at a time


def together(scenes: Mapping[str, Callable[[], Any]], *, at_a_time: int = 8) -> dict[str, Any]:
    """Does several of them at a time; what each gave. Raises what the first of them raised."""
    with ThreadPoolExecutor(at_a_time) as threads:
        begun = {name: threads.submit(scene) for name, scene in scenes.items()}
    return {name: future.result() for name, future in begun.items()}
