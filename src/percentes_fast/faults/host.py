"""Do one thing on a host, here or over SSH, with a deadline; hold one channel open to it.

Never: repeats an action whose connection was lost (only what its caller calls `again` is asked
twice).
Plan: `Host` is the seam: `run` one shell command to its end, `open` a command that is spoken to
line by line. `LocalHost` uses processes; ssh.py has the other one, and `reach` that chooses.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from percentes_fast.errors import FaultError

READ_BYTES = 65_536
LONGEST_LINE = 1 << 20
END_S = 2.0
HANGS = "look whether it hangs, or raise ssh.command_timeout_s"
LOST = "the connection was lost; look at the host and the network"


class HostError(FaultError):
    """The host cannot be reached, or did not answer in time."""


class LostError(HostError):
    """The connection to the host was lost: what was asked may have been done."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a command on a host ended."""

    status: int
    out: str
    err: str

    @property
    def told(self) -> str:
        """Its last line of complaint, for an error of one line."""
        lines = (self.err or self.out).strip().splitlines()
        return lines[-1].strip() if lines else f"exit status {self.status}"


class Channel(Protocol):
    """A command on a host that is spoken to line by line, from one thread at a time."""

    def send(self, line: str) -> None:
        """Writes one line. Raises LostError."""

    def receive(self, timeout_s: float) -> str:
        """One line of its output. Raises LostError at its end, HostError after the timeout."""

    def complaint(self) -> str:
        """What it has written to its error output, the last line."""

    def close(self) -> None:
        """Ends it: its input is closed."""


class Host(Protocol):
    """A machine that commands are run on."""

    @property
    def name(self) -> str:
        """For messages: `this machine`, or where SSH goes."""

    @property
    def is_here(self) -> bool:
        """Is it this machine, by itself and not over SSH?"""

    def run(self, command: str, *, timeout_s: float | None = None, again: bool = False) -> Result:
        """Runs a shell command to its end.

        again: ask once more after a lost connection; only for what changes nothing. Raises
        HostError after the timeout (default: of the configuration), LostError.
        """

    def open(self, command: str, what: str | None = None) -> Channel:
        """Starts a shell command that is spoken to; what: its name in messages."""

    def close(self) -> None:
        """Lets go of the host."""


class Lines:
    """Lines out of a stream of bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        """What came. Raises HostError where no line ends in 1 MiB."""
        self._buffer += data
        if len(self._buffer) > LONGEST_LINE:
            raise HostError("a line of more than 1 MiB came back; look what the host prints there")

    def next(self) -> str | None:
        """The next whole line, None where there is none yet."""
        end = self._buffer.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line.decode("utf-8", "replace").rstrip("\r")


def tied(command: str) -> str:
    """A shell command that ends, with all it started, when its input does.

    Its process group is its own, here and under sshd.
    """
    return (
        "exec 3<&0 </dev/null; (read -r x <&3; kill -9 0) >/dev/null 2>&1 &"
        f" /bin/sh -c {shlex.quote(command)} 3<&-; S=$?; kill -9 $!; exit $S"
    )


def text_of(data: bytes) -> str:
    """Text of what a command said."""
    return data.decode("utf-8", "replace")


def last_line(data: bytes) -> str:
    """Its last line that is not empty."""
    return text_of(data).strip().rpartition("\n")[2].strip()


def short(command: str) -> str:
    """A command's first words, for messages."""
    words = command.split()
    return " ".join(words[:4])[:60]


def left(deadline: float) -> float:
    """Seconds left until a time of time.monotonic, 0 after it."""
    return max(0.0, deadline - time.monotonic())


# ---------------------------------------------------------------- this machine


class LocalHost:
    """This machine."""

    name = "this machine"
    is_here = True

    def __init__(self, timeout_s: float = 20.0) -> None:
        self._timeout_s = timeout_s

    def run(self, command: str, *, timeout_s: float | None = None, again: bool = False) -> Result:  # noqa: ARG002
        """Runs a shell command; see Host."""
        limit = timeout_s or self._timeout_s
        process = _shell(command, stdin=subprocess.DEVNULL)
        try:
            out, err = process.communicate(timeout=limit)
        except BaseException as exc:
            kill_process(process)
            if not isinstance(exc, subprocess.TimeoutExpired):
                raise
            told = f"this machine: {short(command)}: no end within {limit:g} s; {HANGS}"
            raise HostError(told) from exc
        status = process.returncode
        return Result(status if status >= 0 else 128 - status, text_of(out), text_of(err))

    def open(self, command: str, what: str | None = None) -> LocalChannel:
        """Starts a shell command that is spoken to, in a session of its own."""
        return LocalChannel(_shell(command, stdin=subprocess.PIPE), what or short(command))

    def close(self) -> None:
        """Nothing is held."""


def _shell(command: str, stdin: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as exc:
        raise HostError(
            f"this machine: /bin/sh cannot be started: {exc.strerror}; free memory or processes"
        ) from exc


def kill_process(process: subprocess.Popen[bytes]) -> None:
    """Ends its group; what left the group, or is another user's, is not waited for."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    _close(process)


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.close()


class LocalChannel:
    """A process of this machine that is spoken to."""

    def __init__(self, process: subprocess.Popen[bytes], what: str) -> None:
        self._process, self._what, self._lines = process, f"this machine: {what}", Lines()
        self._reading = threading.Lock()  # close() waits for it: a descriptor is not closed in use

    def send(self, line: str) -> None:
        """Writes one line."""
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line.encode() + b"\n")
        except (OSError, ValueError) as exc:
            raise LostError(self._ended()) from exc

    def receive(self, timeout_s: float) -> str:
        """One line of its output."""
        deadline = time.monotonic() + timeout_s
        with self._reading:
            while (line := self._lines.next()) is None:
                data = self._read(deadline)
                if data is None:
                    told = f"no answer within {timeout_s:g} s; look whether the machine hangs"
                    raise HostError(f"{self._what}: {told}")
                if not data:
                    raise LostError(self._ended())
                self._lines.add(data)
        return line

    def _read(self, deadline: float) -> bytes | None:
        """What it says next, empty at its end, None at the deadline."""
        stream = self._process.stdout
        assert stream is not None
        if stream.closed:
            return b""
        poller = select.poll()
        poller.register(stream, select.POLLIN)
        return os.read(stream.fileno(), READ_BYTES) if poller.poll(left(deadline) * 1000) else None

    def _ended(self) -> str:
        return f"{self._what}: {self.complaint() or 'has ended'}; see why it ended"

    def complaint(self) -> str:
        """The last line of its error output."""
        stream = self._process.stderr
        assert stream is not None
        if stream.closed:
            return ""
        os.set_blocking(stream.fileno(), False)
        return last_line(stream.read() or b"")

    def close(self) -> None:
        """Ends it: its input is closed; what does not end then is killed."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        if self._reading.acquire(timeout=END_S):
            _close(self._process)
            self._reading.release()
