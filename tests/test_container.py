"""What a real Docker engine says of a container, asked here and over SSH; the engine is only asked.

Does: state, events and log around a SIGKILL from the host, and every way in which nothing is said;
      what a host shows beside its victim.
Never: uses the machine's own engine, or lets the engine signal a container.
Plan: times; state; events and log; refusals; sudo; evidence beside the victim.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from percentes_fast.errors import FaultError
from percentes_fast.faults import container as containers
from percentes_fast.faults import evidence
from percentes_fast.faults.container import Container, State, wall_ns
from percentes_fast.faults.host import Host, LocalHost
from percentes_fast.site import Container as Section
from real_hosts import Dockerd, Sshd, poll, program
from test_host import reached
from test_killer import nobodys

WAIT_S = 20.0
HERE = LocalHost()
TALK = "i=0; while :; do i=$((i+1)); echo out $i; echo err $i >&2; sleep 0.05; done"
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def engine() -> Iterator[Dockerd]:
    with Dockerd() as dockerd:
        dockerd.run("talker", ["sh", "-c", TALK])
        dockerd.run("ended", ["sleep", "0.2"], restart="no", network="none")
        yield dockerd


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    with Sshd() as started:
        yield started


@pytest.fixture(scope="module", params=["here", "ssh"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    if request.param == "here":
        yield HERE
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", "/nowhere")
        with reached(request.getfixturevalue("sshd")) as found:
            yield found


def asked(host: Host, engine: Dockerd, name: str = "talker") -> Container:
    return Container(host, section(engine, name))


def section(engine: Dockerd, name: str = "talker", **more: str) -> Section:
    facts = {"name": name, "command": program("docker"), "socket": str(engine.socket)}
    return Section.model_validate({**facts, **more})


def refusal(host: Host, told: Section) -> str:
    with pytest.raises(FaultError) as caught:
        Container(host, told).victim()
    said = str(caught.value)
    assert "\n" not in said
    assert re.match(r"(container\.command '.+' on|--container) .+: .+", said), said
    return said


# ---------------------------------------------------------------- times


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("2026-03-01T12:00:00.123456789Z", 1_772_366_400_123_456_789),
        ("2026-03-01T14:00:00.123456789+02:00", 1_772_366_400_123_456_789),
        ("2026-03-01T06:30:00.000000001-05:30", 1_772_366_400_000_000_001),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000_000_000),
        ("2026-03-01 12:00:00Z", None),
        ("", None),
    ],
)
def test_times_are_exact(text: str, ns: int | None) -> None:
    assert wall_ns(text) == ns


# ---------------------------------------------------------------- state


def test_a_running_container_is_told_whole(host: Host, engine: Dockerd) -> None:
    found = asked(host, engine)
    state = found.victim()
    assert found.sudo is False
    assert re.match(r"\d+\.\d+", found.version)
    told = engine.inspect("talker")
    assert state.running is True
    assert state.pid == engine.first_process("talker")
    assert (state.id, state.started_at) == (told["Id"], told["State"]["StartedAt"])
    assert (state.restart_count, state.restart_policy) == (told["RestartCount"], "on-failure")
    assert (state.image, state.image_digest) == ("busybox:test", told["Image"])
    assert (state.network_mode, state.is_host_network, state.health) == ("host", True, None)
    assert abs((wall_ns(state.started_at) or 0) - time.time_ns()) < 600 * SECOND
    json.dumps(containers.facts(state))
    assert State(**containers.facts(state)) == state


def test_a_container_that_has_ended_is_no_victim(host: Host, engine: Dockerd) -> None:
    poll("its end", lambda: engine.first_process("ended") == 0, WAIT_S)
    state = asked(host, engine, "ended").state()
    assert (state.running, state.pid, state.is_host_network) == (False, 0, False)
    assert (wall_ns(state.started_at) or 0) < (wall_ns(state.finished_at) or 0)
    said = refusal(host, section(engine, "ended"))
    assert said == (
        f"--container ended: is not running (it ended at {state.finished_at}); start it, and wait"
        " until it serves"
    )


def test_health_is_told_where_the_image_checks_it(engine: Dockerd) -> None:
    words = ["--health-cmd", "true", "--health-interval", "1s", engine.import_image()]
    engine.docker("run", "--detach", "--name", "checked", *words, "sleep", "600")
    assert asked(HERE, engine, "checked").state().health in ("starting", "healthy")
    engine.remove("checked")


# ---------------------------------------------------------------- events and log


def test_a_kill_from_the_host_is_told_to_the_nanosecond(host: Host, engine: Dockerd) -> None:
    found = asked(host, engine)
    before = found.victim()
    first = time.time_ns()
    killed = engine.kill_first_process("talker")
    last = time.time_ns()
    assert killed == before.pid
    poll("another process", lambda: engine.first_process("talker") not in (0, killed), WAIT_S)
    after = found.victim()
    assert (after.id, after.image_digest) == (before.id, before.image_digest)
    assert after.pid != before.pid
    assert after.restart_count == before.restart_count + 1
    finished, started = wall_ns(after.finished_at), wall_ns(after.started_at)
    assert finished is not None and started is not None
    assert first <= finished <= started <= time.time_ns()

    events = found.events(first, time.time_ns())
    assert [event["action"] for event in events] == ["die", "start"]
    died, restarted = (event["at_remote_wall_ns"] for event in events)
    assert last - SECOND < first <= died <= restarted <= time.time_ns()
    assert any(at % 1000 for at in (died, restarted)), "not a clock of nanoseconds"
    assert found.events(first - 60 * SECOND, first - 59 * SECOND) == []


def test_log_lines_have_stamps_and_are_in_their_order(host: Host, engine: Dockerd) -> None:
    found = asked(host, engine)
    time.sleep(0.3)
    since = time.time_ns() - SECOND // 4
    lines = found.log(since)
    assert 4 <= len(lines) <= 14
    times = [at for at, _ in lines]
    assert times == sorted(times)
    assert since <= times[0] <= times[-1] <= time.time_ns()
    assert any(at % 1000 for at in times)
    for stream in ("out", "err"):
        numbers = [int(text.split()[1]) for _, text in lines if text.startswith(stream)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert len(numbers) >= 2


def test_a_log_goes_on_over_a_restart(engine: Dockerd) -> None:
    found = asked(HERE, engine)
    since, killed = time.time_ns(), engine.kill_first_process("talker")
    poll("another process", lambda: engine.first_process("talker") not in (0, killed), WAIT_S)
    poll("its first line", lambda: "out 1" in [text for _, text in found.log(since)], WAIT_S)
    at = {text: at for at, text in reversed(found.log(since))}["out 1"]
    state = found.state()
    assert (wall_ns(state.started_at) or 0) - SECOND < at < time.time_ns()


def test_odd_lines_come_through(engine: Dockerd) -> None:
    printed = r"printf 'a  b \n\nbar\rdone\n\377\n2026-01-01T00:00:00Z x\nno end'; sleep 600"
    engine.docker("run", "--detach", "--name", "odd", engine.import_image(), "sh", "-c", printed)
    found = asked(HERE, engine, "odd")
    poll("its lines", lambda: len(found.log(0)) >= 5, WAIT_S)
    texts = [text for _, text in found.log(0)]
    assert texts[:5] == ["a  b ", "", "bar\rdone", "\ufffd", "2026-01-01T00:00:00Z x"]
    engine.remove("odd")


def test_a_log_that_the_engine_cannot_read_is_told(engine: Dockerd) -> None:
    words = ["--log-driver", "none", engine.import_image(), "sleep", "600"]
    engine.docker("run", "--detach", "--name", "silent", *words)
    with pytest.raises(FaultError, match=r"--container silent: no log: .*; its log driver must be"):
        asked(HERE, engine, "silent").log(0)
    engine.remove("silent")


# ---------------------------------------------------------------- refusals


def test_a_name_that_the_engine_does_not_know(host: Host, engine: Dockerd) -> None:
    said = refusal(host, section(engine, "nobody"))
    assert said.startswith(f"--container nobody on {host.name}: ")
    assert "o such container: nobody; name a container that `docker ps` shows" in said


def test_an_image_is_no_container(engine: Dockerd) -> None:
    assert "o such container: busybox:test" in refusal(HERE, section(engine, "busybox:test"))


def test_an_engine_that_is_absent(host: Host, engine: Dockerd) -> None:
    said = refusal(host, section(engine, command="no-such-engine"))
    assert said.startswith(f"container.command 'no-such-engine' on {host.name}: ")
    assert "not found; is the container engine installed and running, and may this" in said


def test_a_socket_where_no_engine_listens(host: Host, engine: Dockerd, tmp_path: Path) -> None:
    silent = tmp_path / "s"
    for path in (silent, tmp_path / "none"):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(silent)) if path == silent and not silent.exists() else None
            said = refusal(host, section(engine, socket=str(path)))
        assert said.startswith(f"container.command '{program('docker')}' on {host.name}: ")
        assert str(path) in said and "; is the container engine installed and running" in said


def test_a_command_that_is_no_engine(engine: Dockerd) -> None:
    said = refusal(HERE, section(engine, command="false"))
    assert "container.command 'false' on this machine: exit status 1; is the container" in said
    said = refusal(HERE, section(engine, command="echo"))
    assert said.startswith("--container talker: the engine's answer lacks ")
    assert said.endswith("is 'echo' the docker command?")


def test_an_engine_that_went_away_is_told(engine: Dockerd) -> None:
    found = asked(HERE, engine)
    found._words[-1] = "unix:///nowhere"
    for ask in (found.state, lambda: found.events(0, 1), lambda: found.log(0)):
        with pytest.raises(FaultError, match=r"^--container talker.*: .*/nowhere.*; ") as caught:
            ask()
        assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- sudo


@pytest.fixture
def closed(engine: Dockerd) -> Iterator[Dockerd]:
    """The engine's socket is root's alone."""
    engine.directory.chmod(0o711)
    engine.socket.chmod(0o600)
    yield engine
    engine.socket.chmod(0o660)


def test_sudo_asks_where_the_user_may_not(closed: Dockerd) -> None:
    with tempfile.TemporaryDirectory(prefix="pfc") as name:
        Path(name).chmod(0o755)
        with nobodys("dash", Path(name), sudo=True) as sshd, reached(sshd) as host:
            found = asked(host, closed)
            assert found.sudo is True
            assert found.victim().pid == closed.first_process("talker")
            assert found.log(time.time_ns() - SECOND)


def test_without_sudo_one_line_says_so(closed: Dockerd) -> None:
    with tempfile.TemporaryDirectory(prefix="pfc") as name:
        Path(name).chmod(0o755)
        with nobodys("dash", Path(name), sudo=False) as sshd, reached(sshd) as host:
            said = refusal(host, section(closed))
            assert "sudo: not found; is the container engine installed and running, and may" in said


# ---------------------------------------------------------------- evidence beside the victim


def test_a_port_that_listens_and_shared_memory_are_seen(host: Host) -> None:
    shared = Path(f"/dev/shm/pf-test-{os.getpid()}")
    shared.touch()
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            found = evidence.look(host, port)
            assert (found["port"], found["listens"]) == (port, True)
            assert shared.name in found["shm"] == sorted(found["shm"])
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
            assert evidence.look(host, listener.getsockname()[1])["listens"] is True
        assert evidence.look(host, port)["listens"] is False
    finally:
        shared.unlink()


def test_a_connection_is_no_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
    port = client.getsockname()[1]
    assert evidence.look(HERE, port)["listens"] is False
    client.close()


SMI = """#!/bin/sh
case $* in
*compute-apps*) {apps};;
*) {gpus};;
esac
"""


NONE = "echo 'No devices were found'; exit 6"


@pytest.mark.parametrize(
    ("apps", "memory"),
    [("echo '12, 300 MiB'", [["12", "300 MiB"]]), (":", []), (NONE, None)],
)
def test_graphics_memory_is_what_the_tool_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apps: str, memory: list[list[str]] | None
) -> None:
    gpus = NONE if apps == NONE else "echo '0, H100 PCIe, GPU-1, 550.1'; echo '1, B'"
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI.format(apps=apps, gpus=gpus))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert evidence.look(HERE, 1)["gpu_memory"] == memory
    found = evidence.fingerprint(HERE)
    names = found["gpus"] and [each["name"] for each in found["gpus"]]
    assert names == (None if memory is None else ["H100 PCIe", "B"])


def test_a_fingerprint_without_graphics(host: Host) -> None:
    found = evidence.fingerprint(host)
    assert found["kernel"] == " ".join((os.uname().sysname, os.uname().release, os.uname().machine))
    assert int(found["cpus"]) >= 1
    assert found["gpus"] is None or found["gpus"]
