"""The real services of the tests do what the tests rely on: sshd, libfaketime, the Docker engine.

Does: connects with real clients, breaks sessions, listeners, containers and the engine, and looks
      at what is left.
Never: needs a network beyond loopback and a bridge of its own, or leaves anything running.
Plan: what is installed; sshd: keys, broken sessions, other clock, other network, jump; containers:
      the host's network, published ports, the engine's record; close.
"""

from __future__ import annotations

import collections
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import real_hosts
from real_hosts import (
    Dockerd,
    Sshd,
    faketime,
    lives,
    poll,
    program,
    read_process,
)
from whole_run import free_port

SHARED = Path("/dev/shm")
INSTALL = Path(__file__).parent / "install_services.sh"
REQUEST = b"GET /health HTTP/1.1\r\nHost: far\r\n\r\n"
INSIDE = 8000  # the port of a server in a container with a network of its own


@pytest.fixture(scope="module")
def far() -> Iterator[Sshd]:
    with Sshd() as sshd:
        yield sshd


@pytest.fixture(scope="module")
def engine() -> Iterator[Dockerd]:
    with Dockerd() as dockerd:
        dockerd.import_image()
        yield dockerd


def mock(port: int, startup_s: float, *more: str) -> list[str]:
    words = ("--port", str(port), "--startup-s", str(startup_s), *more)
    return [sys.executable, "-m", "percentes_fast.servers.mock", *words]


def health(port: int) -> int:
    """Status of GET /health, 0 while nothing answers."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        client.request("GET", "/health")
        return client.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        client.close()


def attempt(port: int, sent: bytes = b"") -> str:
    """How a connection fares: refused, closed or reset after it was accepted, answered."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(sent)
            return "answered" if client.recv(1) else "closed"
    except ConnectionRefusedError:
        return "refused"
    except (ConnectionResetError, BrokenPipeError):
        return "reset"


def fates(port: int) -> collections.Counter[str]:
    """Of one request after the other until one is answered."""
    seen = collections.Counter[str]()
    while (fate := attempt(port, REQUEST)) != "answered":
        seen[fate] += 1
        time.sleep(0.005)
    return seen


def popen_ssh(sshd: Sshd, words: str) -> subprocess.Popen[str]:
    """A client of a command that says its pid first."""
    return subprocess.Popen(
        sshd.command(f"echo $$; {words}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def first_line(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    return client.stdout.readline().strip()


# ---------------------------------------------------------------- installation


def test_nothing_is_installed_or_said_when_all_is_there() -> None:
    done = subprocess.run([INSTALL], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_root_one_line_names_the_packages() -> None:
    hide = 'mount --bind /dev/null "$1"; shift; exec "$@"'
    hidden = [program("unshare"), "--mount", "/bin/sh", "-c", hide, "sh", program("sshd")]
    nobody = [program("setpriv"), "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    with INSTALL.open("rb") as script:
        done = subprocess.run(
            [*hidden, *nobody, "bash", "-s"],
            stdin=script,
            capture_output=True,
            text=True,
            cwd="/",
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "the tests need these Debian packages: openssh-server; " + (
        "install them as root\n"
    )


# ---------------------------------------------------------------- sshd


def test_a_command_runs_and_its_status_and_output_come_back(far: Sshd) -> None:
    done = far.run("echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert far.run("id -un").stdout == f"{far.user}\n"
    assert "Accepted publickey" in far.log.read_text()


def test_another_key_is_refused(far: Sshd) -> None:
    done = far.run("true", identity=far.wrong_identity)
    assert done.returncode == 255
    assert "Permission denied (publickey)" in done.stderr


def test_another_host_key_is_refused(far: Sshd, tmp_path: Path) -> None:
    with Sshd() as other:
        words = [w.replace(str(far.known_hosts), str(tmp_path / "k")) for w in far.command("true")]
        theirs = other.known_hosts.read_text().replace(f":{other.port} ", f":{far.port} ")
        (tmp_path / "k").write_text(theirs)
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_dropped_sessions_end_clients_but_neither_commands_nor_the_listener() -> None:
    with Sshd() as sshd, popen_ssh(sshd, "exec sleep 100") as client:
        sleep = read_process(int(first_line(client)))
        assert sleep is not None
        assert sshd.drop_sessions() == 1
        assert client.wait(10) == 255
        assert lives(sleep)
        assert sshd.run("echo again").stdout == "again\n"
    assert not lives(sleep)


def test_dropped_sessions_can_take_their_commands_along(far: Sshd) -> None:
    with popen_ssh(far, "exec sleep 100") as client, popen_ssh(far, "exec sleep 100") as other:
        commands = [read_process(int(first_line(each))) for each in (client, other)]
        assert far.drop_sessions(commands=True) == 2
        assert not any(each and lives(each) for each in commands)


def test_a_killed_host_refuses_and_comes_back_on_its_port() -> None:
    with Sshd() as sshd, popen_ssh(sshd, "exec sleep 100") as client:
        sleep = read_process(int(first_line(client)))
        sshd.kill()
        assert client.wait(10) == 255
        assert sleep is not None and not lives(sleep)
        assert "Connection refused" in sshd.run("true").stderr
        sshd.start()
        assert sshd.run("echo back").stdout == "back\n"
        sshd.stop()
        assert "Connection refused" in sshd.run("true").stderr
    assert not sshd.directory.exists()


def test_an_orderly_end_kills_what_ignores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_hosts, "TERM_LIMIT_S", 0.5)
    with Sshd() as sshd, popen_ssh(sshd, "trap '' TERM; while :; do sleep 1; done") as client:
        shell = read_process(int(first_line(client)))
        assert shell is not None and lives(shell)
        sshd.stop()
        assert client.wait(10) == 255
        assert not lives(shell)


def test_a_killed_sshd_leaves_its_commands_to_close() -> None:
    with Sshd() as sshd, popen_ssh(sshd, "exec sleep 100") as client:
        sleep = read_process(int(first_line(client)))
        sshd.kill(commands=False)
        assert client.wait(10) == 255
        assert sleep is not None and lives(sleep)
    assert not lives(sleep)


def test_a_far_wall_clock_can_differ_and_the_monotonic_one_stays() -> None:
    code = "import time; print(time.monotonic_ns())"
    others = set(SHARED.glob("*faketime*"))
    with Sshd(environment={**faketime("-30d"), "A": "two words"}) as sshd:
        far_s, words = sshd.run("date +%s; echo $A").stdout.splitlines()
        before = time.monotonic_ns()
        far_ns = int(sshd.run(f"{sys.executable} -c '{code}'").stdout)
        after = time.monotonic_ns()
    assert words == "two words"
    assert set(SHARED.glob("*faketime*")) <= others
    assert time.time() - int(far_s) == pytest.approx(30 * 86400, abs=60)
    assert before < far_ns < after


def test_a_host_in_another_network_is_reached_only_from_there() -> None:
    def elsewhere(words: list[str]) -> subprocess.Popen[Any]:
        up = 'ip link set lo up; exec "$@"'
        return subprocess.Popen([program("unshare"), "--net", "sh", "-c", up, "sh", *words])

    with Sshd(popen=elsewhere) as sshd:
        assert "Connection refused" in sshd.run("true").stderr
        assert sshd.process is not None
        inside = [program("nsenter"), f"--net=/proc/{sshd.process.pid}/ns/net"]
        words = [*inside, *sshd.command("echo here")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout == "here\n"


def test_a_host_behind_a_jump_is_reached_through_it(tmp_path: Path) -> None:
    with Sshd() as gate, Sshd(environment={"WHERE": "far"}) as far:
        config = gate.ssh_config(tmp_path / "config", "gate")
        far.ssh_config(config, "far", jump="gate")
        words = [program("ssh"), "-F", str(config), "far", "echo $WHERE"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert (done.stdout, done.returncode) == ("far\n", 0)
        assert "Accepted publickey" in gate.log.read_text()
        gate.kill()
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 255


# ---------------------------------------------------------------- containers


def test_a_container_on_the_hosts_network_is_restarted_by_the_engine(engine: Dockerd) -> None:
    port, began_ns = free_port(), time.time_ns()
    container = engine.run("host", mock(port, 1.0))
    poll("an answer", lambda: health(port) == 200)
    found = engine.inspect("host")
    assert found["Id"] == container
    assert found["HostConfig"]["NetworkMode"] == "host"
    assert found["RestartCount"] == 0

    killed_ns = time.time_ns()
    killed = engine.kill_first_process("host")
    poll("another process", lambda: engine.first_process("host") not in (0, killed))
    poll("an answer", lambda: health(port) == 200)
    assert engine.inspect("host")["RestartCount"] == 1
    record = engine.events("host", began_ns, time.time_ns())
    engine.remove("host")
    assert [each["Action"] for each in record] == ["create", "start", "die", "start"]
    assert record[2]["Actor"]["Attributes"]["exitCode"] == "137"
    died_ns, restarted_ns = (each["timeNano"] for each in record[2:])
    assert killed_ns < died_ns < restarted_ns
    assert any(each["timeNano"] % 1000 for each in record), "not a clock of nanoseconds"
    assert attempt(port) == "refused"


def test_a_container_is_known_by_its_image_and_its_process_by_the_container(
    engine: Dockerd,
) -> None:
    container = engine.run("named", ["sleep", "100"])
    image = engine.inspect(engine.import_image())
    assert engine.inspect("named")["Image"] == image["Id"]
    assert image["Id"].startswith("sha256:")
    assert container in Path(f"/proc/{engine.first_process('named')}/cgroup").read_text()
    engine.remove("named")


def test_mounts_variables_and_commands_reach_a_container(engine: Dockerd, tmp_path: Path) -> None:
    engine.run(
        "once",
        ["sh", "-c", "echo $WORD > /out/file"],
        network="bridge",
        restart="no",
        mounts={tmp_path: "/out"},
        env={"WORD": "said"},
    )
    assert engine.docker("wait", "once") == "0"
    engine.remove("once")
    assert (tmp_path / "file").read_text() == "said\n"
    with pytest.raises(RuntimeError, match=r"docker inspect once: .*[Nn]o such"):
        engine.inspect("once")


def test_a_published_port_accepts_and_breaks_off_while_the_server_starts(engine: Dockerd) -> None:
    """docker-proxy accepts at once, dials the container, is refused there, and closes.

    Who has said nothing reads the end of the stream. Who has said something is reset when it came
    before the close (unread bytes), and reads the end or is reset when it came after. Only while
    the engine restarts the container is there nobody to accept.
    """
    port = free_port()
    server = mock(INSIDE, 1.5, "--host", "0.0.0.0")
    engine.run("published", server, network="bridge", ports={port: INSIDE})
    assert engine.inspect("published")["HostConfig"]["NetworkMode"] == "bridge"
    assert attempt(port) == "closed"
    assert attempt(port, bytes(64 << 20)) == "reset"
    seen = fates(port)
    assert seen["refused"] == 0 < seen["closed"] + seen["reset"], seen
    assert health(port) == 200

    engine.kill_first_process("published")
    seen = fates(port)
    assert min(seen["refused"], seen["closed"] + seen["reset"]) > 0, seen
    engine.docker("stop", "published")
    assert attempt(port) == "refused"
    engine.remove("published")


# ---------------------------------------------------------------- the engine's end


@pytest.mark.parametrize("killed", [False, True])
def test_close_leaves_no_process_bridge_mount_or_file(killed: bool) -> None:
    with Dockerd() as dockerd:
        dockerd.run("left", ["sleep", "100"], network="bridge", ports={free_port(): INSIDE})
        found = dockerd.processes()
        assert dockerd.first_process("left") in {each.pid for each in found}
        assert len(found) >= 5  # engine, containerd, docker-proxy, shim, sleep
        if killed:
            assert dockerd.process is not None
            dockerd.process.kill()
            dockerd.process.wait(10)
    assert not any(map(lives, found))
    assert dockerd.processes() == []
    assert dockerd.bridge not in {name for _, name in socket.if_nameindex()}
    assert str(dockerd.directory) not in Path("/proc/mounts").read_text()
    assert not dockerd.directory.exists()


def test_an_engine_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    dockerd = Dockerd()
    command = dockerd._command()
    monkeypatch.setattr(dockerd, "_command", lambda: [*command, "--storage-driver=no-such"])
    with pytest.raises(RuntimeError, match=r"(?s)dockerd: exit 1\n.*no-such"), dockerd:
        pytest.fail("it started")
    assert not dockerd.directory.exists()
