"""A host over SSH: one fabric connection, made again only to ask what may be repeated.

Never: accepts a host key that is not known, asks for a password, or prints what paramiko says.
Plan: `SshHost` connects (jump hosts too, host keys checked at each hop) and runs each command tied
to its input, so that a lost connection ends it; `SshChannel` is a command that is spoken to.
"""

from __future__ import annotations

import logging
import math
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from percentes_fast.faults.host import (
    END_S,
    HANGS,
    LOST,
    READ_BYTES,
    Host,
    HostError,
    Lines,
    LocalHost,
    LostError,
    Result,
    kill_process,
    last_line,
    left,
    short,
    text_of,
    tied,
)
from percentes_fast.site import Ssh

if TYPE_CHECKING:
    import fabric
    import paramiko

KEEPALIVE_S = 5
SETTLE_S = 0.1
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"

# what paramiko has to say is raised too; a logger without a handler would print it
logging.getLogger("paramiko").addHandler(logging.NullHandler())


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
        """The IP address that the connection goes to: the host's own, or the first jump host's.

        Empty behind a proxy command.
        """
        first = list(_chain(self._connection))[-1]
        transport = first.client.get_transport()
        if transport is None or first.gateway is not None:
            return ""
        return str(transport.sock.getpeername()[0])

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
        time.sleep(SETTLE_S)  # channels end right before their connection says that it has
        with self._lock:
            if not _is_alive(self._connection):
                _disconnect(self._connection)
                self._connection = self._connect()
        return self._run(command, limit)

    def _run(self, command: str, limit: float) -> Result:
        channel = self._session(tied(command), short(command), limit)
        try:
            return channel.drain(limit)
        finally:
            channel.close()

    def open(self, command: str, what: str | None = None) -> SshChannel:
        """Starts a shell command that is spoken to."""
        return self._session(command, what or short(command), self._ssh.command_timeout_s)

    def _session(self, command: str, what: str, limit: float) -> SshChannel:
        import paramiko

        where, deadline = f"{self.name}: {what}", time.monotonic() + limit
        try:
            transport = self._connection.client.get_transport()
            if transport is None or not transport.is_active():
                raise LostError(f"{where}: {LOST}")
            channel = transport.open_session(timeout=limit)
            watch = threading.Timer(left(deadline), channel.close)  # else it would wait for ever
            watch.daemon = True
            watch.start()
            try:
                channel.exec_command(f"/bin/sh -c {shlex.quote(command)}")
            finally:
                watch.cancel()
        except paramiko.ChannelException as exc:
            raise HostError(
                f"{where}: the host opens no more sessions ({exc.text}); raise MaxSessions of its"
                " sshd"
            ) from exc
        except (paramiko.SSHException, EOFError, OSError) as exc:
            if left(deadline) == 0:
                raise HostError(f"{where}: no answer within {limit:g} s; {HANGS}") from exc
            raise LostError(f"{where}: {LOST}") from exc
        return SshChannel(channel, where)

    def close(self) -> None:
        """Closes the connection."""
        _disconnect(self._connection)

    # ------------------------------------------------------------ connecting

    def _connect(self) -> fabric.Connection:
        import paramiko

        made = self._made()
        try:
            made.open()
            for one in _chain(made):
                transport = one.client.get_transport()
                assert transport is not None
                transport.set_keepalive(KEEPALIVE_S)
                if isinstance(transport.sock, socket.socket):  # an order must not wait for an ACK
                    transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (paramiko.SSHException, OSError, EOFError) as exc:
            failed = next((c for c in reversed(list(_chain(made))) if not c.is_connected), made)
            _disconnect(made)
            where = self.name if failed is made else f"{self.name}: jump host {failed.host}"
            told = _why(exc, self._ssh.connect_timeout_s)
            raise HostError(f"{where}: {told}") from exc
        return made

    def _made(self) -> fabric.Connection:
        """A connection, and those it goes through, not yet opened."""
        import fabric
        import paramiko

        known: dict[str, Any] = {}
        if self._ssh.config is not None:
            known = {"runtime_ssh_path": str(Path(self._ssh.config).expanduser())}
        try:
            config = fabric.Config(**known)
            jump = self._ssh.jump and fabric.Connection(self._ssh.jump, config=config)
            made = fabric.Connection(
                str(self._ssh.target), port=self._ssh.port, config=config, gateway=jump or None
            )
        except (OSError, ValueError, paramiko.SSHException) as exc:
            raise HostError(
                f"{self.name}: ssh.config: {_told(exc)}; mend it, or name another"
            ) from exc
        key = self._key()
        for one in _chain(made):
            self._prepare(one, key if one is made or one is jump else None)
            self._know(one)
        return made

    def _key(self) -> paramiko.PKey | None:
        """The key of --ssh-identity."""
        import paramiko

        if self._ssh.identity is None:
            return None
        path = Path(self._ssh.identity).expanduser()
        if not path.is_file():
            raise HostError(f"--ssh-identity {path}: is no file; name the private key")
        try:
            return paramiko.PKey.from_path(path)
        except TypeError as exc:
            raise HostError(
                f"--ssh-identity {path}: needs a passphrase; load it into the agent (ssh-add) and"
                " leave --ssh-identity out"
            ) from exc
        except (OSError, ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as exc:
            raise HostError(
                f"--ssh-identity {path}: is no private key that can be read ({exc}); name another,"
                " best an ed25519 one"
            ) from exc

    def _prepare(self, made: fabric.Connection, key: paramiko.PKey | None) -> None:
        """Its deadlines, and the keys that are there."""
        limit = self._ssh.connect_timeout_s
        made.connect_timeout = math.ceil(limit)
        kwargs = dict(made.connect_kwargs)
        files = [f for f in kwargs.pop("key_filename", []) if Path(f).expanduser().is_file()]
        kwargs |= dict.fromkeys(("banner_timeout", "auth_timeout", "channel_timeout"), limit)
        if key is not None:
            kwargs |= {"pkey": key, "look_for_keys": False, "allow_agent": False}
        made.connect_kwargs = kwargs | ({"key_filename": files} if files else {})

    def _know(self, made: fabric.Connection) -> None:
        """Host keys: the known ones, and no other."""
        import paramiko

        made.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        told = made.ssh_config
        user = told.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2")
        files = f"{user} {told.get('globalknownhostsfile', GLOBAL_KNOWN_HOSTS)}".split()
        named = self._ssh.known_hosts
        for file in files if named is None else [named]:
            path = Path(file).expanduser()
            if named is None and not path.is_file():
                continue  # as ssh does
            try:
                made.client.load_system_host_keys(str(path))
            except OSError as exc:
                raise HostError(
                    f"ssh.known_hosts {path}: {exc.strerror}; name a file of host keys"
                ) from exc
            except Exception as exc:  # whatever paramiko's parsers meet
                raise HostError(
                    f"ssh.known_hosts {path}: holds a damaged line; mend it, or name another file"
                ) from exc


def _chain(made: fabric.Connection) -> Iterator[fabric.Connection]:
    """A connection, then the one it goes through, and so on to the first hop."""
    while made is not None and not isinstance(made, str):  # a string: a proxy command
        yield made
        made = made.gateway


def _is_alive(made: fabric.Connection) -> bool:
    transport = made.client.get_transport()
    if transport is None:
        return False
    with suppress(Exception):  # of a proxy command that has ended only a write tells
        transport.send_ignore()
        return bool(transport.is_active())
    return False


def _disconnect(made: fabric.Connection) -> None:
    for one in _chain(made):
        transport = one.client.get_transport()
        with suppress(Exception):
            one.client.close()
        proxy = getattr(transport and transport.sock, "process", None)
        if proxy is not None:  # paramiko tells it to end, no more
            transport.join(END_S)
            kill_process(proxy)


def _told(exc: BaseException) -> str:
    """What an exception says, without its errno."""
    told = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    file = getattr(exc, "filename", None)
    return (f"{file}: {told}" if file else told) or type(exc).__name__


REFUSED = (
    "the host refused this user and key; give --ssh-identity FILE, or load the key into the agent"
)
UNKNOWN = (
    "the host's key is not known; check it once with `ssh` by hand, or name a file with"
    " ssh.known_hosts"
)
CHANGED = (
    "the host key is another than the known one; if the host was set up anew, remove its line from"
    " known_hosts"
)
NO_KEY = ("not a valid", "encountered", "No authentication methods")  # the last of many keys tried


def _why(exc: Exception, limit: float) -> str:
    """Why there is no connection, and what to do."""
    import paramiko

    told = _told(exc)
    if isinstance(exc, paramiko.BadHostKeyException):
        why = CHANGED
    elif "known_hosts" in told:
        why = UNKNOWN
    elif isinstance(exc, paramiko.AuthenticationException) or any(w in told for w in NO_KEY):
        why = REFUSED
    elif isinstance(exc, socket.gaierror):
        why = f"{told}; mend the name of the host"
    elif isinstance(exc, TimeoutError):
        why = f"no answer within {limit:g} s; is it up, and does a firewall let SSH through?"
    elif isinstance(exc, OSError):
        why = f"cannot be reached: {told}; is its sshd up?"
    else:
        why = f"{told}; try `ssh` by hand"
    return why


class SshChannel:
    """A command on a host over SSH that is spoken to."""

    def __init__(self, channel: paramiko.Channel, what: str) -> None:
        self._channel, self._what, self._lines = channel, what, Lines()

    def send(self, line: str) -> None:
        """Writes one line; the calling thread itself writes to the socket."""
        try:
            self._channel.sendall(line.encode() + b"\n")
        except (OSError, EOFError) as exc:  # EOFError: paramiko's, where the write itself failed
            raise LostError(f"{self._what}: {LOST}") from exc

    def receive(self, timeout_s: float) -> str:
        """One line of its output."""
        deadline = time.monotonic() + timeout_s
        while (line := self._lines.next()) is None:
            data = self._read(left(deadline))
            if data is None:
                told = f"no answer within {timeout_s:g} s; look whether the host hangs"
                raise HostError(f"{self._what}: {told}")
            if not data:
                told = self.complaint()
                raise LostError(f"{self._what}: {f'{told}; see why it ended' if told else LOST}")
            self._lines.add(data)
        return line

    def _read(self, timeout_s: float) -> bytes | None:
        """What it says next, empty at its end, None after the timeout."""
        self._channel.settimeout(max(0.001, timeout_s))
        try:
            return self._channel.recv(READ_BYTES)
        except TimeoutError:
            return None
        except OSError as exc:
            raise LostError(f"{self._what}: {LOST}") from exc

    def drain(self, limit: float) -> Result:
        """All it says until its end."""
        deadline, out, err = time.monotonic() + limit, bytearray(), bytearray()
        while (data := self._read(min(0.1, left(deadline)))) != b"":
            out += data or b""
            while self._channel.recv_stderr_ready():
                err += self._channel.recv_stderr(READ_BYTES)
            if left(deadline) == 0:
                raise HostError(f"{self._what}: no end within {limit:g} s; {HANGS}")
        while chunk := self._stderr():
            err += chunk
        self._channel.status_event.wait(max(0.5, min(5.0, left(deadline))))
        status = self._channel.recv_exit_status() if self._channel.status_event.is_set() else -1
        if status < 0:
            raise LostError(f"{self._what}: {LOST}")
        return Result(status, text_of(bytes(out)), text_of(bytes(err)))

    def _stderr(self) -> bytes:
        self._channel.settimeout(0.05)
        try:
            return self._channel.recv_stderr(READ_BYTES)
        except OSError:
            return b""

    def complaint(self) -> str:
        """The last line of its error output."""
        return last_line(self._stderr())

    def close(self) -> None:
        """Ends it: the channel is closed, so its input ends."""
        with suppress(Exception):
            self._channel.close()


def reach(ssh: Ssh) -> Host:
    """The server's host. Raises HostError where it cannot be reached."""
    return LocalHost(ssh.command_timeout_s) if ssh.target is None else SshHost(ssh)
