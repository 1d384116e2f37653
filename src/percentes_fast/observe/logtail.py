"""Raw log lines of the server with the time stamp of the reader nearest to it.

Never: interprets a line, or loses one to a slow disk: what was read is kept in order.
Plan: `Tail` follows a file on the host through a reader there that stamps each line with the host's
wall clock; `container_log` writes what a container engine has stamped. Both end as lines
`<wall ns> d <text>` of server.log.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterable
from pathlib import Path

from percentes_fast.errors import FaultError
from percentes_fast.faults.host import Host, HostError, tied
from percentes_fast.rundir import LineFile

ANSWER_S = 5.0
QUIET_S = 3600.0 * 24
STAMPED = b"d"
BASH = (
    "while IFS= read -r l; do t=$EPOCHREALTIME;"
    ' printf \'%s000 d %s\\n\' "${t%[.,]*}${t#*[.,]}" "$l"; done'
)
PYTHON = (
    "import sys,time\n"
    "for l in sys.stdin.buffer:\n"
    " sys.stdout.buffer.write(b'%d d '%int(time.time()*1e9)+l); sys.stdout.buffer.flush()"
)


class Tail:
    """Follows a log file on a host into a file here."""

    def __init__(self, host: Host, path: str, into: Path) -> None:
        """Raises FaultError where the file cannot be read, or nothing there can stamp lines."""
        self.lost: str | None = None
        quoted = shlex.quote(path)
        stamper = self._stamper(host)
        said = host.run(f"test -f {quoted} && test -r {quoted} && wc -c <{quoted}", again=True)
        if said.status != 0:
            raise FaultError(
                f"log.path {path}: cannot be read on {host.name}; name the server's log"
            )
        # from the byte where it ends now: no line is lost until tail has started
        follow = f"tail -c +{int(said.out) + 1} -F -- {quoted} 2>/dev/null | {stamper}"
        self._channel = host.open(tied(follow), "the log reader")
        self._file = LineFile(into)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @staticmethod
    def _stamper(host: Host) -> str:
        if host.run("test -n \"$(bash -c 'echo $EPOCHREALTIME')\"", again=True).status == 0:
            return shlex.join(["bash", "-c", BASH])
        if host.run("python3 -c pass", again=True).status == 0:
            return shlex.join(["python3", "-u", "-c", PYTHON])
        raise FaultError(
            f"log.path: {host.name} has neither bash 5 nor python3 to stamp lines with; install one"
        )

    def _follow(self) -> None:
        try:
            while True:
                self._file.write(self._channel.receive(QUIET_S).encode() + b"\n")
        except (HostError, OSError, ValueError) as exc:
            self.lost = str(exc)

    def stop(self) -> None:
        """Ends the reader; what it has read is in the file."""
        told = self.lost
        self._channel.close()
        self._thread.join(ANSWER_S)
        self.lost = told
        self._file.close()


def container_log(lines: Iterable[tuple[int, str]]) -> bytes:
    """server.log of lines that a container engine stamped: (wall ns, text)."""
    return b"".join(b"%d %s %s\n" % (at, STAMPED, text.encode()) for at, text in lines)
