"""Do one thing on a host, here or over SSH, with a deadline; hold one channel open to it.

Never: repeats an action whose connection was lost (only what its caller calls `again` is asked
twice), accepts a host key that is not known, or asks for a password.
Plan: `Host` is the seam: `run` one shell command to its end, `open` a command that is spoken to
line by line. `LocalHost` uses processes, `SshHost` one fabric connection.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from percentes_fast.errors import FaultError
from percentes_fast.site import Ssh

if TYPE_CHECKING:
    import fabric
    import paramiko

READ_BYTES = 65_536
KEEPALIVE_S = 5
LONGEST_LINE = 1 << 20


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

    def open(self, command: str) -> Channel:
        """Starts a shell command that is spoken to."""

    def close(self) -> None:
        """Lets go of the host."""


class _Lines:
    """Lines out of a stream of bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > LONGEST_LINE:
            raise HostError("a line of more than 1 MiB came back; this is no reader of ours")

    def next(self) -> str | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line.decode("utf-8", "replace").rstrip("\r")


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
        except subprocess.TimeoutExpired as exc:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise HostError(f"this machine: {_short(command)}: no end within {limit:g} s") from exc
        return Result(process.returncode, out.decode("utf-8", "replace"), _text(err))

    def open(self, command: str) -> LocalChannel:
        """Starts a shell command that is spoken to, in a session of its own."""
        return LocalChannel(_shell(command, stdin=subprocess.PIPE), _short(command))

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
        raise HostError(f"this machine: /bin/sh cannot be started: {exc.strerror}") from exc


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _short(command: str) -> str:
    words = command.split()
    return " ".join(words[:4])[:60]


class LocalChannel:
    """A process of this machine that is spoken to."""

    def __init__(self, process: subprocess.Popen[bytes], what: str) -> None:
        self._process, self._what, self._lines = process, what, _Lines()

    def send(self, line: str) -> None:
        """Writes one line."""
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), line.encode() + b"\n")
        except (OSError, ValueError) as exc:
            raise LostError(f"this machine: {self._what}: has ended") from exc

    def receive(self, timeout_s: float) -> str:
        """One line of its output."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while (line := self._lines.next()) is None:
            if not select.select([self._process.stdout], [], [], max(0.0, _left(deadline)))[0]:
                raise HostError(f"this machine: {self._what}: no answer within {timeout_s:g} s")
            data = os.read(self._process.stdout.fileno(), READ_BYTES)
            if not data:
                raise LostError(f"this machine: {self._what}: {self.complaint() or 'has ended'}")
            self._lines.add(data)
        return line

    def complaint(self) -> str:
        """The last line of its error output."""
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        said = self._process.stderr.read() or b""
        return _text(said).strip().rpartition("\n")[2]

    def close(self) -> None:
        """Ends it: its input is closed; what does not end then is killed."""
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in streams:
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _left(deadline: float) -> float:
    return deadline - time.monotonic()


# ---------------------------------------------------------------- over SSH


class SshHost:
    """A host over SSH: one connection, made again only to ask what may be repeated."""

    is_here = False

    def __init__(self, ssh: Ssh) -> None:
        """Connects. Raises HostError in one line: name, key, host key, permission, jump."""
        assert ssh.target is not None
        self.name = f"ssh {ssh.target}"
        self._ssh = ssh
        self._lock = threading.Lock()
        self._connection = self._connect()

    @property
    def address(self) -> str:
        """The IP address that the connection goes to: the host's own, or the jump host's."""
        jump = self._connection.gateway
        first = self._connection if jump is None else jump
        transport = first.client.get_transport()
        return str(transport.sock.getpeername()[0]) if transport else ""

    @property
    def jumps(self) -> bool:
        """Is there a jump host, or a proxy command, between?"""
        return self._connection.gateway is not None

    def run(self, command: str, *, timeout_s: float | None = None, again: bool = False) -> Result:
        """Runs a shell command; see Host."""
        limit = timeout_s or self._ssh.command_timeout_s
        try:
            return self._run(command, limit)
        except LostError:
            if not again:
                raise
        with self._lock:
            if not self._connection.is_connected:
                self._connection = self._connect()
        return self._run(command, limit)

    def _run(self, command: str, limit: float) -> Result:
        channel = self._session(command)
        try:
            return channel.drain(limit)
        finally:
            channel.close()

    def open(self, command: str) -> SshChannel:
        """Starts a shell command that is spoken to."""
        return self._session(command)

    def _session(self, command: str) -> SshChannel:
        import paramiko

        try:
            transport = self._connection.client.get_transport()
            if transport is None or not transport.is_active():
                raise LostError(f"{self.name}: the connection is gone")
            channel = transport.open_session(timeout=self._ssh.command_timeout_s)
            channel.exec_command(f"/bin/sh -c {shlex.quote(command)}")
        except (paramiko.SSHException, EOFError, OSError) as exc:
            raise LostError(f"{self.name}: the connection was lost ({exc})") from exc
        return SshChannel(channel, f"{self.name}: {_short(command)}")

    def close(self) -> None:
        """Closes the connection."""
        with suppress(Exception):
            self._connection.close()

    # ------------------------------------------------------------ connecting

    def _connect(self) -> fabric.Connection:
        import fabric
        import paramiko

        known: dict[str, Any] = {"runtime_ssh_path": self._ssh.config} if self._ssh.config else {}
        try:
            config = fabric.Config(**known)
            gateway = self._made(config, self._ssh.jump) if self._ssh.jump else None
            made = self._made(config, str(self._ssh.target), self._ssh.port, gateway)
            made.open()
            transport = made.client.get_transport()
            assert transport is not None
            transport.set_keepalive(KEEPALIVE_S)
        except paramiko.BadHostKeyException as exc:
            raise HostError(
                f"{self.name}: the host key is another than the known one; if the host was set up"
                " anew, remove its line from known_hosts"
            ) from exc
        except paramiko.AuthenticationException as exc:
            raise HostError(
                f"{self.name}: the host refused this user and key; give --ssh-identity FILE, or"
                " load the key into the agent"
            ) from exc
        except paramiko.SSHException as exc:
            raise HostError(f"{self.name}: {self._reason(exc)}") from exc
        except socket.gaierror as exc:
            raise HostError(f"{self.name}: {exc.strerror}; mend the name of the host") from exc
        except (OSError, EOFError) as exc:
            told = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
            raise HostError(f"{self.name}: cannot be reached: {told}; is its sshd up?") from exc
        return made

    def _reason(self, exc: Exception) -> str:
        if "known_hosts" in str(exc):
            return (
                "the host's key is not known; check it once with `ssh` by hand, or name a file"
                " with ssh.known_hosts"
            )
        if "not a valid" in str(exc) or "encountered" in str(exc).lower():
            return f"the key cannot be used ({exc}); give another --ssh-identity"
        return f"{exc}; try `ssh {self._ssh.target} true` by hand"

    def _made(
        self,
        config: fabric.Config,
        target: str,
        port: int | None = None,
        gateway: fabric.Connection | None = None,
    ) -> fabric.Connection:
        """A connection that knows its host keys and refuses others."""
        import fabric

        keys: dict[str, Any] = {}
        if self._ssh.identity is not None:
            path = Path(self._ssh.identity).expanduser()
            if not path.is_file():
                raise HostError(f"--ssh-identity {path}: is no file; name the private key")
            keys = {"key_filename": str(path), "look_for_keys": False, "allow_agent": False}
        made = fabric.Connection(
            target,
            port=port,
            config=config,
            gateway=gateway,
            connect_timeout=self._ssh.connect_timeout_s,
            connect_kwargs=keys,
        )
        self._know(made)
        if isinstance(made.gateway, fabric.Connection):
            self._know(made.gateway)
        return made

    def _know(self, made: fabric.Connection) -> None:
        """Host keys: the known ones, and no other."""
        import paramiko

        made.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        told = made.ssh_config.get("userknownhostsfile", "").split()
        files = [self._ssh.known_hosts] if self._ssh.known_hosts else told or [None]
        for file in files:
            try:
                made.client.load_system_host_keys(None if file is None else str(file))
            except OSError as exc:
                raise HostError(f"ssh.known_hosts {file}: {exc.strerror}; name the file") from exc


class SshChannel:
    """A command on a host over SSH that is spoken to."""

    def __init__(self, channel: paramiko.Channel, what: str) -> None:
        self._channel, self._what, self._lines = channel, what, _Lines()

    def send(self, line: str) -> None:
        """Writes one line; the calling thread itself writes to the socket."""
        try:
            self._channel.sendall(line.encode() + b"\n")
        except OSError as exc:
            raise LostError(f"{self._what}: the connection was lost") from exc

    def receive(self, timeout_s: float) -> str:
        """One line of its output."""
        deadline = time.monotonic() + timeout_s
        while (line := self._lines.next()) is None:
            self._channel.settimeout(max(0.001, _left(deadline)))
            try:
                data = self._channel.recv(READ_BYTES)
            except TimeoutError as exc:
                raise HostError(f"{self._what}: no answer within {timeout_s:g} s") from exc
            except OSError as exc:
                raise LostError(f"{self._what}: the connection was lost") from exc
            if not data:
                raise LostError(f"{self._what}: {self.complaint() or 'ended, or was cut off'}")
            self._lines.add(data)
        return line

    def drain(self, limit: float) -> Result:
        """All it says until its end."""
        deadline, out, err = time.monotonic() + limit, bytearray(), bytearray()
        while True:
            self._channel.settimeout(max(0.001, min(0.1, _left(deadline))))
            try:
                data = self._channel.recv(READ_BYTES)
            except TimeoutError as exc:
                data = None
                if _left(deadline) <= 0:
                    raise HostError(f"{self._what}: no end within {limit:g} s") from exc
            except OSError as exc:
                raise LostError(f"{self._what}: the connection was lost") from exc
            while self._channel.recv_stderr_ready():
                err += self._channel.recv_stderr(READ_BYTES)
            if data == b"":
                break
            out += data or b""
        return self._ended(deadline, out, err)

    def _ended(self, deadline: float, out: bytearray, err: bytearray) -> Result:
        if not self._channel.status_event.wait(max(0.5, min(5.0, _left(deadline)))):
            raise LostError(f"{self._what}: the connection was lost")
        while chunk := self._stderr():
            err += chunk
        status = self._channel.recv_exit_status()
        if status < 0:
            raise LostError(f"{self._what}: the connection was lost")
        return Result(status, _text(bytes(out)), _text(bytes(err)))

    def _stderr(self) -> bytes:
        self._channel.settimeout(0.05)
        try:
            return self._channel.recv_stderr(READ_BYTES)
        except OSError:
            return b""

    def complaint(self) -> str:
        """The last line of its error output."""
        return _text(self._stderr()).strip().rpartition("\n")[2]

    def close(self) -> None:
        """Ends it: the channel is closed, so its input ends."""
        with suppress(Exception):
            self._channel.close()


def reach(ssh: Ssh) -> Host:
    """The server's host. Raises HostError where it cannot be reached."""
    return LocalHost(ssh.command_timeout_s) if ssh.target is None else SshHost(ssh)
