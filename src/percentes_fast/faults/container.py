"""What a container engine says of one container: state, events, log.

Never: changes anything (a signal goes from the host to the process, so that the restart policy
acts; the engine's own `kill` would suppress it), or guesses a state that was not told.
Plan: the engine's command line on the container's host, its JSON answers read strictly; `sudo -n`
where the user may not ask, found out once. Times are the host's wall clock in ns.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from percentes_fast.errors import FaultError
from percentes_fast.faults.host import Host, Result
from percentes_fast.site import Container as Section

LOG_TIMEOUT_S = 120.0
REFUSED = ("permission denied", "Permission denied")
RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class State:
    """The state of a container; times as the engine printed them."""

    running: bool
    pid: int
    id: str
    started_at: str
    finished_at: str
    restart_count: int
    restart_policy: str
    image: str
    image_digest: str | None
    network_mode: str
    health: str | None

    @property
    def is_host_network(self) -> bool:
        """Does its server listen in the host's own network, with nothing between?"""
        return self.network_mode == "host"


def wall_ns(text: str) -> int | None:
    """An RFC 3339 time as ns since the Unix epoch, exactly; None where it is none."""
    found = RFC3339.match(text)
    if found is None:
        return None
    zone = "+00:00" if found[3] == "Z" else found[3]
    whole = datetime.fromisoformat(found[1] + zone) - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 1_000_000_000 + int(
        (found[2] or "").ljust(9, "0")
    )


class Container:
    """One container on a host."""

    def __init__(self, host: Host, section: Section) -> None:
        """Raises FaultError where the engine is absent, or does not know the container."""
        self._host, self._name = host, str(section.name)
        words = [section.command]
        if section.socket is not None:
            words += ["-H", f"unix://{section.socket}"]
        self._words, self.sudo = words, False
        self.version = self._version()

    def _command(self, *words: str) -> str:
        return ("sudo -n " if self.sudo else "") + shlex.join([*self._words, *words])

    def _ask(self, *words: str, timeout_s: float | None = None) -> Result:
        return self._host.run(self._command(*words), timeout_s=timeout_s, again=True)

    def _version(self) -> str:
        """The engine's version: the first question, which shows whether it may be asked."""
        said = self._ask("version", "--format", "{{.Server.Version}}")
        if said.status != 0 and any(word in said.err for word in REFUSED):
            self.sudo = True
            said = self._ask("version", "--format", "{{.Server.Version}}")
        if said.status != 0:
            raise FaultError(
                f"container.command {self._words[0]!r} on {self._host.name}: {said.told}; is the"
                " container engine installed and running, and may this user ask it?"
            )
        return said.out.strip()

    def state(self) -> State:
        """What the engine says of it now. Raises FaultError where it does not know it."""
        said = self._ask("inspect", "--type", "container", self._name)
        if said.status != 0:
            raise FaultError(
                f"--container {self._name} on {self._host.name}: {said.told}; name a container that"
                " `docker ps` shows"
            )
        try:
            return self._read(json.loads(said.out)[0])
        except (ValueError, KeyError, TypeError, IndexError) as exc:
            raise FaultError(
                f"--container {self._name}: the engine's answer lacks {exc}; is"
                f" {self._words[0]!r} the docker command?"
            ) from exc

    def _read(self, found: dict[str, Any]) -> State:
        state, host = found["State"], found["HostConfig"]
        return State(
            running=bool(state["Running"]),
            pid=int(state["Pid"]),
            id=str(found["Id"]),
            started_at=str(state["StartedAt"]),
            finished_at=str(state["FinishedAt"]),
            restart_count=int(found["RestartCount"]),
            restart_policy=str(host["RestartPolicy"]["Name"]),
            image=str(found["Config"]["Image"]),
            image_digest=self._digest(str(found["Image"])),
            network_mode=str(host["NetworkMode"]),
            health=(state.get("Health") or {}).get("Status"),
        )

    def _digest(self, image: str) -> str | None:
        """The digest it was pulled by, or the id of an image that came from no registry."""
        said = self._ask("image", "inspect", "--format", "{{json .RepoDigests}}", image)
        try:
            digests = json.loads(said.out) or []
        except ValueError:
            digests = []
        return str(digests[0]) if digests else image or None

    def victim(self) -> State:
        """Its state, running. Raises FaultError where there is nothing to signal."""
        state = self.state()
        if not state.running or state.pid <= 1:
            raise FaultError(
                f"--container {self._name}: is not running (it ended at {state.finished_at});"
                " start it, and wait until it serves"
            )
        self._check_is_here(state)
        return state

    def _check_is_here(self, state: State) -> None:
        """The engine may run on another machine (a context, DOCKER_HOST): its pids are not ours.

        Raises FaultError unless the host's own kernel says that the process is the container's.
        """
        groups = self._host.run(f"cat /proc/{state.pid}/cgroup", again=True).out
        if state.id not in groups:
            raise FaultError(
                f"--container {self._name}: its pid {state.pid} is no process of it on"
                f" {self._host.name}; its engine runs elsewhere: give --ssh-target of that machine"
            )

    def events(self, since_wall_ns: int, until_wall_ns: int) -> list[dict[str, Any]]:
        """Its die and start events between two times of the host's wall clock."""
        words = ["events", "--filter", f"container={self._name}", "--format", "{{json .}}"]
        words += ["--since", _unix(since_wall_ns), "--until", _unix(until_wall_ns)]
        for event in ("die", "start", "restart", "oom"):
            words += ["--filter", f"event={event}"]
        said = self._ask(*words)
        if said.status != 0:
            raise FaultError(
                f"--container {self._name}: no events: {said.told}; see the engine's log"
            )
        found = []
        for line in said.out.splitlines():
            try:
                event = json.loads(line)
                found.append(
                    {"action": str(event["Action"]), "at_remote_wall_ns": event["timeNano"]}
                )
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def log(self, since_wall_ns: int) -> list[tuple[int, str]]:
        """Its log lines since a time of the host's wall clock: (ns, text), in the order of time."""
        since = _unix(since_wall_ns)
        command = self._command("logs", "--timestamps", "--since", since, self._name)
        said = self._host.run(f"{command} 2>&1", timeout_s=LOG_TIMEOUT_S, again=True)
        if said.status != 0:
            raise FaultError(
                f"--container {self._name}: no log: {said.told}; its log driver must be one"
                " that the engine reads (json-file, local, journald)"
            )
        lines = []
        for line in said.out.split("\n"):
            stamp, _, text = line.partition(" ")
            at = wall_ns(stamp)
            if at is not None:
                lines.append((at, text))
        return sorted(lines, key=lambda line: line[0])  # two streams, each in its order


def _unix(wall_ns: int) -> str:
    return f"{wall_ns // 1_000_000_000}.{wall_ns % 1_000_000_000:09d}"


def facts(state: State) -> dict[str, Any]:
    """A state as fault.json keeps it."""
    return asdict(state)
