"""Real services on this machine for tests: an sshd of one's own and a Docker engine of one's own.

Does: starts them in the foreground with their state in a temporary directory, waits until they
      answer, breaks them as hosts break, and leaves no process, mount or bridge behind.
Never: uses the machine's own sshd, engine, keys or registries, changes firewall or forwarding,
       finds a process by its name, or skips what cannot be started: it raises with the last log
       lines.
Plan: processes and what they started; Sshd; libfaketime; what a Python needs in a container;
      Dockerd. tests/install_services.sh brings the programs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

START_LIMIT_S, CLIENT_LIMIT_S, END_LIMIT_S, TERM_LIMIT_S = 60.0, 60.0, 20.0, 5.0
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin:/usr/sbin:/sbin"))
SSHD_CONFIG = """\
AuthenticationMethods publickey
AllowTcpForwarding yes
KbdInteractiveAuthentication no
LogLevel VERBOSE
MaxSessions 100
MaxStartups 100
PasswordAuthentication no
PermitRootLogin prohibit-password
PermitUserRC no
PrintLastLog no
PrintMotd no
PubkeyAuthentication yes
StrictModes no
Subsystem sftp internal-sftp
UseDNS no
UsePAM no
"""
PENALTIES = "PerSourcePenalties no"  # an sshd since 9.8 shuts out who was refused; older: unknown
OWN_MOUNTS = """
mkdir -p /run/containerd && mount -t tmpfs none /run/containerd && exec "$@"
"""
IMAGE = "busybox:test"


def program(name: str) -> str:
    """Full path of a program; root's directories are looked at too."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise RuntimeError(f"{name} is not installed: run tests/install_services.sh")
    return found


def last_lines(log: Path, count: int = 25) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-count:]) or "(no log)"


def poll(what: str, true: Callable[[], Any], timeout: float = START_LIMIT_S) -> None:
    """Waits until `true()`."""
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {timeout:g} s")
        time.sleep(0.02)


# ---------------------------------------------------------------- processes


class Process(NamedTuple):
    """One that runs; its start time tells it from a later one with the same number."""

    pid: int
    parent: int
    session: int
    started: int


def read_process(pid: int) -> Process | None:
    """None when there is no such process, or only its exit status is left."""
    try:
        state, *words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if state in b"ZX" else Process(pid, int(words[0]), int(words[2]), int(words[18]))


def running() -> dict[int, Process]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return {pid: found for pid in pids if (found := read_process(pid))}


def below(*roots: int) -> list[Process]:
    """What these processes started and what that started in turn."""
    table, found, level = running().values(), [], set(roots)
    while level:
        children = [each for each in table if each.parent in level]
        found += children
        level = {each.pid for each in children}
    return found


def lives(process: Process) -> bool:
    now = read_process(process.pid)
    return now is not None and now.started == process.started


def send(number: int, processes: Iterable[Process]) -> None:
    """A signal to each that still lives; never to a stranger that has got its number."""
    for each in processes:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(each.pid)
            try:
                if lives(each):
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def wait_gone(processes: Iterable[Process], timeout: float = END_LIMIT_S) -> None:
    found = list(processes)
    poll(f"end of {found}", lambda: not any(map(lives, found)), timeout)


# ---------------------------------------------------------------- sshd


def write_key(path: Path) -> Path:
    words = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
    subprocess.run(words, check=True)
    return path


class Sshd:
    """A real sshd and everything a client needs to reach it.

    `popen(argv)` starts it somewhere else, say in another network namespace (same processes, same
    files). `environment` is set in every session; HOME is an empty directory unless it is given, so
    that no profile of the user runs. `options` are more lines of sshd_config.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        popen: Callable[[list[str]], subprocess.Popen[Any]] | None = None,
    ) -> None:
        self.host, self.port = host, 0
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        self.directory = Path(tempfile.gettempdir(), f"pfs{secrets.token_hex(4)}")
        self.log = self.directory / "log"
        self.identity = self.directory / "key"
        self.wrong_identity = self.directory / "wrong"  # a good key that is not authorised
        self.known_hosts = self.directory / "known_hosts"
        self._made_s = time.time()
        self._home = self.directory / "home"
        self._environment = {"HOME": str(self._home), **(environment or {})}
        self._options = options
        self._popen = popen or self._popen_here
        self.process: subprocess.Popen[Any] | None = None
        self._roots: list[Process] = []  # what was started, and the listener if that is another
        self._orphans: list[Process] = []  # commands whose sessions were dropped

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- life

    def start(self) -> None:
        """Listens; after `stop` or `kill` again, on the same port and with the same keys."""
        chosen = bool(self.port)
        for _ in range(1 if chosen else 5):
            if not chosen:
                self._choose_port()
            if self._listens():
                return
        raise RuntimeError(
            f"sshd does not listen on {self.host}:{self.port}\n{last_lines(self.log)}"
        )

    def stop(self) -> None:
        """An orderly end: SIGTERM to the listener and all below it; SIGKILL to what ignores it."""
        self._end(signal.SIGTERM, commands=True)

    def kill(self, *, commands: bool = True) -> None:
        """SIGKILL to the listener, to every session and to the commands they run: a host is lost.

        Without `commands` only sshd is lost; what it ran is left with closed pipes.
        """
        self._end(signal.SIGKILL, commands=commands)

    def drop_sessions(self, *, commands: bool = False) -> int:
        """SIGKILL to the session processes: connections are lost, the listener lives; how many.

        What the sessions ran lives too, as it does when a network fails, unless `commands`.
        """
        found = below(*(each.pid for each in self._roots if lives(each)))
        ours = self._sessions(found)
        rest = [each for each in found if each not in ours]
        self._orphans += rest
        ended = ours + (rest if commands else [])
        send(signal.SIGKILL, ended)
        wait_gone(ended)
        return len(self._leaders(ours))

    def close(self) -> None:
        """Nothing that this sshd started is left, nor its directory."""
        self.kill()
        orphans = [*self._orphans, *below(*(each.pid for each in self._orphans if lives(each)))]
        send(signal.SIGKILL, orphans)
        wait_gone(orphans)
        if "FAKETIME" in self._environment:
            sweep_faketime(self._made_s)
        shutil.rmtree(self.directory, ignore_errors=True)

    # -- clients

    def command(self, *words: str, identity: Path | None = None) -> list[str]:
        """An ssh client's argv that runs the words there; no file of the user is read."""
        options = self._client_options(identity or self.identity)
        flags = [flag for name, value in options for flag in ("-o", f"{name}={value}")]
        return [program("ssh"), "-F", "/dev/null", *flags, self.host, *words]

    def run(
        self, *words: str, identity: Path | None = None, timeout: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs the words there to their end; their output, and 255 when ssh itself failed."""
        return subprocess.run(
            self.command(*words, identity=identity),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def ssh_config(
        self, path: Path, alias: str, *, jump: str | None = None, identity: Path | None = None
    ) -> Path:
        """Adds this host to a client's configuration (`ssh -F path alias`), behind alias `jump`."""
        options = self._client_options(identity or self.identity)
        lines = [f"Host {alias}", *(f"    {name} {value}" for name, value in options)]
        if jump is not None:
            lines.append(f"    ProxyJump {jump}")
        with path.open("a") as file:
            file.write("\n".join(lines) + "\n")
        return path

    def _client_options(self, identity: Path) -> list[tuple[str, str]]:
        return [
            ("HostName", self.host),
            ("Port", str(self.port)),
            ("User", self.user),
            ("IdentityFile", str(identity)),
            ("IdentitiesOnly", "yes"),
            ("IdentityAgent", "none"),
            ("UserKnownHostsFile", str(self.known_hosts)),
            ("GlobalKnownHostsFile", "/dev/null"),
            ("StrictHostKeyChecking", "yes"),
            ("BatchMode", "yes"),
        ]

    # -- inside

    def _prepare(self) -> None:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
            self._refuse_locked_account()
        self.directory.mkdir(mode=0o700)
        self._home.mkdir()
        write_key(self.directory / "host")
        write_key(self.wrong_identity)
        shutil.copy(f"{write_key(self.identity)}.pub", self.directory / "authorized_keys")

    def _refuse_locked_account(self) -> None:
        """An sshd without PAM lets no locked account in, whatever its keys."""
        for line in Path("/etc/shadow").read_text().splitlines():
            if line.startswith(f"{self.user}:!"):
                raise RuntimeError(f"{self.user} is locked: usermod -p '*' {self.user} unlocks it")

    def _choose_port(self) -> None:
        with socket.create_server(("", 0)) as listener:
            self.port = int(listener.getsockname()[1])
        key = (self.directory / "host.pub").read_text()
        self.known_hosts.write_text(f"[{self.host}]:{self.port} {key}")
        self._write_config()

    def _write_config(self) -> None:
        variables = " ".join(f'"{name}={value}"' for name, value in self._environment.items())
        lines = [
            f"ListenAddress {self.host}",
            f"Port {self.port}",
            f"HostKey {self.directory}/host",
            f"AuthorizedKeysFile {self.directory}/authorized_keys",
            f"PidFile {self._pid_file()}",
            f"SetEnv {variables}",
            *([PENALTIES] if self._is_accepted(PENALTIES) else []),
            *self._options,
        ]
        self._config().write_text(SSHD_CONFIG + "\n".join(lines) + "\n")

    def _is_accepted(self, option: str) -> bool:
        words = f"{program('sshd')} -t -f /dev/null -h {self.directory}/host -o".split()
        return subprocess.run([*words, option], capture_output=True, check=False).returncode == 0

    def _config(self) -> Path:
        return self.directory / "sshd_config"

    def _pid_file(self) -> Path:
        return self.directory / "pid"

    def _popen_here(self, words: list[str]) -> subprocess.Popen[Any]:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)

    def _listens(self) -> bool:
        """False when it ended at once; it writes the pid file once it listens."""
        self._pid_file().unlink(missing_ok=True)
        words = [program("sshd"), "-D", "-E", str(self.log), "-f", str(self._config())]
        process = self.process = self._popen(words)
        poll("sshd's start", lambda: self._listener() or process.poll() is not None)
        pids = {process.pid, self._listener()}
        self._roots = [found for pid in pids if (found := read_process(pid))]
        return process.poll() is None

    def _listener(self) -> int:
        """Its pid, 0 while there is none."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._pid_file().read_text())
        return 0

    def _leaders(self, found: list[Process]) -> set[int]:
        """The listener's children: one a connection."""
        roots = {each.pid for each in self._roots}
        return {each.pid for each in found if each.parent in roots} - roots

    def _sessions(self, found: list[Process]) -> list[Process]:
        """The sshd processes among those below the listener.

        Each connection is a session of the kernel's (setsid) led by the listener's child; a command
        gets a session of its own.
        """
        leaders = self._leaders(found)
        return [each for each in found if each.pid in leaders or each.session in leaders]

    def _end(self, number: int, *, commands: bool) -> None:
        process = self.process
        if process is None:
            return
        roots = [each for each in self._roots if lives(each)]
        send(signal.SIGSTOP, roots)  # no connection is accepted while we look
        found = below(*(each.pid for each in roots))
        ours = found if commands else self._sessions(found)
        self._orphans += [each for each in found if each not in ours and each not in roots]
        ended = [*roots, *ours]
        send(number, ended)
        send(signal.SIGCONT, roots)
        with contextlib.suppress(subprocess.TimeoutExpired, RuntimeError):
            process.wait(TERM_LIMIT_S)
            wait_gone(ended, TERM_LIMIT_S)
        send(signal.SIGKILL, ended)
        process.wait(END_LIMIT_S)
        wait_gone(ended)
        self.process = None
        self._pid_file().unlink(missing_ok=True)


# ---------------------------------------------------------------- libfaketime


def faketime(value: str, *, monotonic: bool = False) -> dict[str, str]:
    """Environment in which programs see another wall clock ("-30d", "+1.5s").

    The monotonic clock stays as it is unless `monotonic`: libfaketime would make it the wall clock.
    """
    library = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
    if library is None:
        raise RuntimeError("libfaketime is not installed: run tests/install_services.sh")
    keep = {} if monotonic else {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    return {"LD_PRELOAD": str(library), "FAKETIME": value, **keep}


def sweep_faketime(since: float) -> None:
    """Removes what libfaketime left in shared memory for processes that were killed or replaced."""
    for path in Path("/dev/shm").glob("*faketime_s*_*"):
        with contextlib.suppress(OSError, ValueError):
            unused = read_process(int(path.name.rpartition("_")[2])) is None
            if unused and path.stat().st_ctime >= since:
                path.unlink()


# ---------------------------------------------------------------- Docker


def python_mounts() -> list[Path]:
    """What this interpreter needs in a container to run the package; none lies in another."""
    spec = importlib.util.find_spec("percentes_fast")
    assert spec is not None and spec.origin is not None
    libraries = map(Path, ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"))
    python = map(Path, (sys.base_prefix, sys.prefix, os.path.realpath(sys.executable)))
    wanted = {*libraries, *python, Path(spec.origin).parents[1]}
    return [each for each in sorted(wanted) if each.exists() and wanted.isdisjoint(each.parents)]


def image_tar() -> bytes:
    """A root file system: the static busybox under all its names, and empty directories."""
    busybox = program("busybox")
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for name in ("bin", "dev", "etc", "lib", "lib64", "proc", "root", "sys", "tmp", "usr/lib"):
            tar.addfile(_member(name, tarfile.DIRTYPE))
        program_file = _member("bin/busybox", tarfile.REGTYPE)
        program_file.size = Path(busybox).stat().st_size
        with Path(busybox).open("rb") as file:
            tar.addfile(program_file, file)
        for name in sorted({*names.split(), "sh"} - {"busybox"}):
            link = _member(f"bin/{name}", tarfile.SYMTYPE)
            link.linkname = "busybox"
            tar.addfile(link)
    return held.getvalue()


def _member(name: str, kind: bytes) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.mode = kind, 0o1777 if name == "tmp" else 0o755
    return found


class Dockerd:
    """A real Docker engine with an image, a bridge and a socket of its own. Needs root.

    It lives in a mount namespace of its own, so its mounts end with it and a containerd of the
    machine stays unseen. Published ports go through docker-proxy: there are no firewall rules.
    """

    def __init__(self) -> None:
        self.bridge = f"pf{secrets.token_hex(4)}"
        self.directory = Path("/tmp") / self.bridge  # a short path: sockets allow 107 bytes
        self.socket = self.directory / "s"
        self.log = self.directory / "log"
        # for a client of one's own: which engine, and no file of the user is read
        self.environment = {
            "DOCKER_HOST": f"unix://{self.socket}",
            "DOCKER_CONFIG": str(self.directory / "client"),
        }
        self.process: subprocess.Popen[Any] | None = None
        self._image = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- containers

    def docker(self, *words: str, given: bytes | None = None) -> str:
        """What the client prints."""
        done = subprocess.run(
            [program("docker"), *words],
            input=given or b"",
            capture_output=True,
            timeout=CLIENT_LIMIT_S,
            env=self._client_environment(),
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"docker {' '.join(words)}: {done.stderr.decode().strip()}")
        return done.stdout.decode().strip()

    def import_image(self) -> str:
        """Name of an image with busybox, made here; no registry knows it."""
        if not self._image:
            self.docker("import", "-", IMAGE, given=image_tar())
            self._image = IMAGE
        return self._image

    def run(
        self,
        name: str,
        argv: Sequence[str],
        *,
        network: str = "host",
        ports: Mapping[int, int] | None = None,
        restart: str = "on-failure",
        mounts: Mapping[Path, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Starts a container in which this Python and its packages can run; its id.

        `ports` are those of 127.0.0.1 and of the container, `mounts` are writable.
        """
        words = ["--name", name, "--network", network, "--restart", restart]
        for ours, theirs in (ports or {}).items():
            words += ["--publish", f"127.0.0.1:{ours}:{theirs}"]
        for each in python_mounts():
            words += ["--mount", f"type=bind,source={each},target={each},readonly"]
        for path, target in (mounts or {}).items():
            words += ["--mount", f"type=bind,source={path},target={target}"]
        for variable, value in (env or {}).items():
            words += ["--env", f"{variable}={value}"]
        return self.docker("run", "--detach", *words, self.import_image(), *argv)

    def inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.docker("inspect", name))[0]
        return found

    def first_process(self, name: str) -> int:
        """Its pid on the host, 0 while the container does not run."""
        return int(self.inspect(name)["State"]["Pid"])

    def kill_first_process(self, name: str) -> int:
        """SIGKILL from the host, behind the engine's back; which pid."""
        pid = self.first_process(name)
        if pid == 0:
            raise RuntimeError(f"container {name} does not run")
        os.kill(pid, signal.SIGKILL)
        return pid

    def events(self, name: str, since_wall_ns: int, until_wall_ns: int) -> list[dict[str, Any]]:
        """The engine's own record of a container between two moments; `timeNano` is when."""
        since, until = (f"{ns // 10**9}.{ns % 10**9:09d}" for ns in (since_wall_ns, until_wall_ns))
        words = ("--since", since, "--until", until, "--format", "{{json .}}")
        words += ("--filter", "type=container")
        lines = self.docker("events", *words, "--filter", f"container={name}")
        return [json.loads(line) for line in lines.splitlines()]

    def remove(self, name: str) -> None:
        self.docker("rm", "--force", "--volumes", name)

    # -- life

    def close(self) -> None:
        """Leaves no container, process, bridge or file, also after the engine was killed."""
        process = self.process
        if process is not None:
            process.send_signal(signal.SIGCONT)
            if process.poll() is None:
                self._remove_all()
                process.terminate()
            try:
                process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(END_LIMIT_S)
        left = self.processes()
        send(signal.SIGKILL, left)
        wait_gone(left)
        if Path("/sys/class/net", self.bridge).exists():
            self._ip("link", "del", self.bridge)
        shutil.rmtree(self.directory, ignore_errors=True)

    def processes(self) -> list[Process]:
        """All of this engine: those with its directory among their arguments, and all below them.

        A shim is no child of the engine, but is told the engine's socket.
        """
        table = running()
        roots = [each for pid, each in table.items() if self._is_named_in(pid)]
        return list(dict.fromkeys([*roots, *below(*(each.pid for each in roots))]))

    def _is_named_in(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            return f"{self.directory}/".encode() in words and pid != os.getpid()
        return False

    def _remove_all(self) -> None:
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            if names := self.docker("ps", "--all", "--quiet").split():
                self.docker("rm", "--force", "--volumes", *names)

    def _start(self) -> None:
        if os.geteuid() != 0:
            raise RuntimeError("a Docker engine of one's own needs root")
        self.directory.mkdir(mode=0o711)
        (self.directory / "config.json").write_text("{}")
        self._make_bridge()
        with self.log.open("wb") as log:
            process = self.process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._client_environment(), "PATH": PATH},
                start_new_session=True,
            )
        try:
            poll("dockerd's start", lambda: process.poll() is not None or self._answers())
        except RuntimeError as exc:
            raise RuntimeError(f"{exc}\n{last_lines(self.log)}") from exc
        if process.poll() is not None:
            raise RuntimeError(f"dockerd: exit {process.returncode}\n{last_lines(self.log)}")

    def _command(self) -> list[str]:
        """The engine ends with the thread that started it; its mounts are seen by nobody else."""
        alone = [program("setpriv"), "--pdeathsig", "TERM"]
        alone += [program("unshare"), "--mount", "--propagation", "slave"]
        alone += ["/bin/sh", "-c", OWN_MOUNTS, "dockerd"]
        flags = {
            "config-file": self.directory / "config.json",
            "data-root": self.directory / "d",
            "exec-root": self.directory / "x",
            "pidfile": self.directory / "p",
            "host": f"unix://{self.socket}",
            "bridge": self.bridge,
            "userland-proxy": "true",
            "iptables": "false",
            "ip6tables": "false",
            "ip-forward": "false",
            "ip-masq": "false",
        }
        return [*alone, program("dockerd"), *(f"--{name}={value}" for name, value in flags.items())]

    def _answers(self) -> bool:
        try:
            self.docker("version")
        except (RuntimeError, subprocess.TimeoutExpired):
            return False
        return True

    def _client_environment(self) -> dict[str, str]:
        others = {k: v for k, v in os.environ.items() if not k.startswith("DOCKER_")}
        return {**others, **self.environment}

    def _make_bridge(self) -> None:
        used = self._ip("-oneline", "-4", "address") + self._ip("-4", "route")
        wanted = (f"10.213.{(os.getpid() + i) % 256}." for i in range(256))
        subnet = next(each for each in wanted if each not in used)
        self._ip("link", "add", self.bridge, "type", "bridge")
        self._ip("address", "add", f"{subnet}1/24", "dev", self.bridge)
        self._ip("link", "set", self.bridge, "up")

    def _ip(self, *words: str) -> str:
        done = subprocess.run(
            [program("ip"), *words], capture_output=True, text=True, timeout=10, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout
