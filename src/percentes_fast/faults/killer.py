"""A fault done by a killer that is already running beside the victim and waits for one line.

Never: sends the order twice, or takes a lost connection for a kill that was not done.
Plan: with python3 on the host the killer is remote_killer.py, which holds a pidfd; with a shell
alone it is the script below, which looks at the start time right before the signal, and the race
that leaves is told. Both speak JSON lines. Where the user may not signal, `sudo -n` is tried once,
at arming.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any

from percentes_fast.errors import FaultError
from percentes_fast.faults import process
from percentes_fast.faults.base import Evidence, Fired, Identity, Remote
from percentes_fast.faults.host import Channel, Host, HostError, LostError

ANSWER_S = 20.0
ENOUGH_PYTHON = "import sys; sys.exit(sys.version_info < (3, 6))"
RACE_OF_PIDS = "no pidfd: the pid could pass to another process between the check and the signal"
WHO = "whether the fault was done is not known; it is not repeated"

# $1 pid, $2 start ticks, $3 what kill gets (PID or -GROUP), $4 signal, $5 seconds of a stop,
# $6 how often to look for its end, 50 ms apart. B, with start ticks U, ends the stop if nobody else
# does. Of any POSIX shell: dash and busybox know no `kill --`.
SHELL_KILLER = r"""
trap '' HUP PIPE; LC_ALL=C; export LC_ALL
if [ -n "$EPOCHREALTIME" ]; then R=1000
  now() { N=$EPOCHREALTIME; N=${N%[.,]*}${N#*[.,]}000; }
else now() { N=$(date +%s%N); case $N in *[!0-9]*) N=$(date +%s)000000000;; esac; }
  case $(date +%N) in *[!0-9]*) R=1000000000;; *) R=1;; esac; fi
ticks() { X=; read -r L 2>/dev/null < /proc/$1/stat || return 1; set -- ${L##*) }
  Z=$1; X=${20}; case $Z in [ZX]) return 1;; esac; }
same() { ticks $1 && [ "$X" = "$2" ]; }
nap() { sleep 0.05 2>/dev/null && I=$((I+1)) || { sleep 1; I=$((I+20)); }; }
cont() { same $P $T && kill -CONT $K; now; echo "{\"continued\":$N}"; }
P=$1; T=$2; K=$3; G=$4; S=$5; W=$6; B=
same $P $T || { echo '{"armed":false,"errno":3,"error":"is another process"}'; exit; }
M=$(kill -0 $K 2>&1) || { case $M in *ermitted*) E=1;; *) E=3;; esac
  echo "{\"armed\":false,\"errno\":$E,\"error\":\"may not be signalled\"}"; exit; }
F=false; chrt -f -p 10 $$ >/dev/null 2>&1 && F=true
echo "{\"armed\":true,\"pidfd\":false,\"real_time\":$F,\"resolution\":$R}"
while read -r O; do case $O in
check) if same $P $T; then echo '{"same":true}'; else echo '{"same":false}'; fi;;
fire) same $P $T || { echo '{"fired":false,"error":"is another process by now"}'; continue; }
  if [ $G = STOP ]; then
    ({ sleep $S || sleep $((${S%.*}+1)); } >/dev/null 2>&1; cont) </dev/null 2>/dev/null &
    B=$!; ticks $B; U=$X; fi
  now; A=$N; kill -$G $K 2>/dev/null; E=$?; now
  [ $E = 0 ] || E=3; echo "{\"fired\":true,\"errno\":$E,\"before\":$A,\"after\":$N}"; I=0
  if [ $G = STOP ]; then D=false
    while [ $I -lt 40 ] && ticks $P; do case $Z in [Tt]) D=true; break;; esac; nap; done
    echo "{\"stopped\":$D}"
  else while same $P $T && [ $I -lt $W ]; do nap; done
    now; if same $P $T; then echo '{"gone":null}'; else echo "{\"gone\":$N}"; fi; fi;;
undo) break;; esac; done
[ -z "$B" ] || { same $B $U && kill $B; cont; }
"""


@dataclass(frozen=True, slots=True)
class Order:
    """What the killer is to do."""

    signal: int
    group: bool
    stop_s: float
    gone_timeout_s: float


class Killer:
    """A killer on a host, armed and verified."""

    def __init__(self, host: Host, pid: int, order: Order) -> None:
        """Identifies the victim and starts the killer. Raises FaultError."""
        self._host, self._order = host, order
        self.identity: Identity = process.identify(host, pid)
        if order.group:
            process.refuse_group(host, self.identity)
        self._channel, said, sudo = self._armed()
        self._resolution_ns = int(said.get("resolution", 1))
        self.how: dict[str, object] = {
            "by": f"a killer on {host.name}",
            "pidfd": bool(said["pidfd"]),
            "sudo": sudo,
            "real_time": bool(said.get("real_time")),
            "group": order.group,
            "race": _race(pidfd=bool(said["pidfd"]), group=order.group),
        }
        try:
            self._family = self._children()
        except FaultError:
            self.undo()
            raise

    def _children(self) -> tuple[int, ...]:
        below = process.descendants(process.table(self._host), self.identity.pid)
        return tuple(p.pid for p in below)

    # ------------------------------------------------------------ arming

    def _armed(self) -> tuple[Channel, dict[str, Any], bool]:
        python = self._python()
        for sudo in (False, True):
            command = ("sudo -n " if sudo else "") + self._command(python)
            channel = self._host.open(command, "the killer")
            try:
                said = _facts(channel.receive(ANSWER_S))
            except FaultError as exc:
                channel.close()
                if sudo and isinstance(exc, HostError):
                    raise FaultError(
                        f"pid {self.identity.pid}: {self._host.name}: may not be signalled by this"
                        f" user, and sudo -n refused ({exc}); allow it, or use the owner"
                    ) from exc
                raise
            if said.get("armed"):
                return channel, said, sudo
            channel.close()
            if said.get("errno") != errno.EPERM:
                raise FaultError(
                    f"pid {self.identity.pid}: {self._host.name}: {said.get('error')}; give the pid"
                    " of a running server"
                )
        raise FaultError(
            f"pid {self.identity.pid}: {self._host.name}: may not be signalled, not by sudo either"
        )

    def _python(self) -> str | None:
        if self._host.is_here:
            return sys.executable
        said = self._host.run(f"python3 -c {shlex.quote(ENOUGH_PYTHON)}", again=True)
        return "python3" if said.status == 0 else None

    def _command(self, python: str | None) -> str:
        victim, order = self.identity, self._order
        if python is None:
            target = f"-{victim.group}" if order.group else str(victim.pid)
            name = signal.Signals(order.signal).name.removeprefix("SIG")
            looks = str(round(order.gone_timeout_s / 0.05))
            words = [
                str(victim.pid),
                str(victim.start_ticks),
                target,
                name,
                f"{order.stop_s:.3f}",
                looks,
            ]
            script = shlex.join([SHELL_KILLER, "killer", *words])
            shell = f"S=$(command -v bash || command -v sh); exec $S -c {script}"
            return shlex.join(["/bin/sh", "-c", shell])
        source = resources.files("percentes_fast.faults").joinpath("remote_killer.py").read_text()
        job = {
            "pid": victim.pid,
            "ticks": victim.start_ticks,
            "group": victim.group if order.group else 0,
            "signal": order.signal,
            "stop_s": order.stop_s,
            "gone_timeout_s": order.gone_timeout_s,
        }
        return shlex.join([python, "-u", "-c", source, json.dumps(job)])

    # ------------------------------------------------------------ firing

    def check(self) -> None:
        """The killer is there, and the process is the one armed. Raises FaultError."""
        self._channel.send("check")
        if not _facts(self._channel.receive(ANSWER_S)).get("same"):
            raise FaultError(
                f"pid {self.identity.pid}: is not the process armed any more"
                f" ({self.identity.command!r} has ended); the fault was not fired"
            )
        process.refuse_another(self.identity, process.identify(self._host, self.identity.pid))
        self._family = self._children()

    def fire(self, at_ns: int) -> Fired:
        """Writes the order at `at_ns`; reads the clock before it, and after its answer."""
        while (left := at_ns - time.monotonic_ns()) > 0:
            time.sleep(
                left / 1e9
            )  # no spin: the thread that reads the answer needs the interpreter
        before = time.monotonic_ns()
        try:
            self._channel.send("fire")
            said = _facts(self._channel.receive(ANSWER_S))
        except HostError as exc:
            raise FaultError(f"the order to fire: {exc}; {WHO}") from exc
        after = time.monotonic_ns()
        if not said.get("fired"):
            raise FaultError(f"pid {self.identity.pid}: {said.get('error')}; it was not fired")
        return self._fired(before, after, said)

    def _fired(self, before: int, after: int, said: dict[str, Any]) -> Fired:
        remote = Remote(
            before_remote_wall_ns=int(said["before"]),
            after_remote_wall_ns=int(said["after"]),
            monotonic_before_ns=said.get("mono_before"),
            monotonic_after_ns=said.get("mono_after"),
            resolution_ns=self._resolution_ns,
        )
        code = int(said["errno"])
        if not self._host.is_here:
            return Fired(before, after, code, remote)
        return Fired(int(said["mono_before"]), int(said["mono_after"]), code)  # one clock

    # ------------------------------------------------------------ afterwards

    def evidence(self) -> Evidence:
        """What the killer and then the host say of the victim."""
        if self._order.signal == signal.SIGSTOP:
            return self._stopped()
        said = self._said(self._order.gone_timeout_s + ANSWER_S)
        at = said.get("mono_gone") if self._host.is_here else time.monotonic_ns()
        gone_ns = at if said.get("gone") is not None else None
        time.sleep(process.SURVIVOR_WAIT_S)
        return Evidence(gone_ns, process.survivors(self._host, self.identity, self._family))

    def _stopped(self) -> Evidence:
        stopped = self._said(ANSWER_S).get("stopped")
        continued = None
        said = self._said(self._order.stop_s + ANSWER_S)
        if said.get("continued") is not None:
            continued = said["mono_continued"] if self._host.is_here else time.monotonic_ns()
        return Evidence(None, (), stopped=bool(stopped), continued_ns=continued)

    def _said(self, timeout_s: float) -> dict[str, Any]:
        try:
            return _facts(self._channel.receive(timeout_s))
        except LostError as exc:
            raise FaultError(f"{exc}: what became of the victim was not seen") from exc

    def hasten(self) -> None:
        """A stopped process runs again now; the killer still says when."""
        if self._order.signal == signal.SIGSTOP:
            with suppress(HostError):
                self._channel.send("undo")

    def undo(self) -> None:
        """Ends the killer; a stopped process runs again."""
        with suppress(HostError):
            self._channel.send("undo")
        self._channel.close()


def _race(*, pidfd: bool, group: bool) -> str | None:
    """Whom the signal could reach instead of the victim, in one sentence; None where nobody."""
    if group:
        return process.RACE_OF_GROUPS
    return None if pidfd else RACE_OF_PIDS


def _facts(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as exc:
        raise FaultError(f"the killer said {line[:60]!r}, which is no JSON") from exc
    if not isinstance(found, dict):
        raise FaultError(f"the killer said {line[:60]!r}, which is no JSON object")
    return found


def may_signal_here(pid: int) -> bool:
    """May this process signal that one of this machine?"""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except OSError:
        return True  # it is not there: told better elsewhere
    return True
