"""A host, here and over a real sshd: commands with a deadline, channels, and every way to fail.

Does: runs the same tests on this machine and over SSH, then breaks keys, names, jump hosts and
      connections as they break.
Never: uses the user's own configuration, keys, agent or known hosts.
Plan: commands; channels; connecting; what is refused; jump hosts; lost connections.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from percentes_fast.faults import ssh as hosts
from percentes_fast.faults.host import Host, HostError, LocalHost, LostError
from percentes_fast.faults.ssh import SshHost
from percentes_fast.site import Ssh
from real_hosts import Sshd, below, lives, poll, program, read_process, send

WAIT_S = 20.0


def reachable(sshd: Sshd, **more: object) -> Ssh:
    """How a test reaches its sshd: nothing of the user's files is needed."""
    facts = {
        "target": f"{sshd.user}@{sshd.host}",
        "port": sshd.port,
        "identity": str(sshd.identity),
        "known_hosts": str(sshd.known_hosts),
    }
    return Ssh.model_validate({**facts, **more})


@contextlib.contextmanager
def reached(sshd: Sshd, **more: object) -> Iterator[SshHost]:
    host = SshHost(reachable(sshd, **more))
    try:
        yield host
    finally:
        host.close()


def refusal(ssh: Ssh) -> str:
    """The one line that says why a host cannot be reached."""
    before = threading.active_count()
    with pytest.raises(HostError) as caught:
        SshHost(ssh)
    poll("end of the attempt's threads", lambda: threading.active_count() <= before, WAIT_S)
    return one_line(caught.value)


def one_line(exc: BaseException) -> str:
    said = str(exc)
    assert "\n" not in said
    assert re.match(r"(this machine|ssh \S+|--ssh-identity \S+|ssh\.known_hosts \S+): .+; .+", said)
    return said


@pytest.fixture(scope="module", autouse=True)
def _nothing_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        yield


@pytest.fixture(scope="module")
def far() -> Iterator[Sshd]:
    with Sshd() as sshd:
        yield sshd


@pytest.fixture(scope="module")
def gate(far: Sshd) -> Iterator[Sshd]:
    """A jump host: knows the key of `far`, and is known by it."""
    with Sshd() as sshd:
        for here, there in ((far, sshd), (sshd, far)):
            with (there.directory / "authorized_keys").open("a") as keys:
                keys.write(Path(f"{here.identity}.pub").read_text())
        yield sshd


@pytest.fixture(scope="module", params=["here", "ssh"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    if request.param == "here":
        yield LocalHost()
        return
    with reached(request.getfixturevalue("far")) as found:
        yield found


# ---------------------------------------------------------------- commands


def test_status_output_and_complaint_come_back(host: Host) -> None:
    found = host.run("echo out; echo err >&2; exit 7")
    assert (found.status, found.out, found.err) == (7, "out\n", "err\n")
    assert found.told == "err"
    assert host.run("exit 3").told == "exit status 3"
    assert host.run("printf %s 'it is \"$HOME\"\\n' | cat").out == 'it is "$HOME"\\n'


def test_a_command_reads_no_input_and_is_in_a_group_of_its_own(host: Host) -> None:
    assert host.run("cat; cat <&0").out == ""
    group, session = host.run("cut -d' ' -f5,6 /proc/self/stat").out.split()
    assert int(group) != os.getpgrp()
    assert int(session) != os.getsid(0)


def test_a_signal_is_a_status(host: Host) -> None:
    assert host.run("kill -9 $$").status == 128 + signal.SIGKILL


def test_what_is_no_text_is_replaced(host: Host) -> None:
    assert host.run("printf 'a\\377b'").out == "a\ufffdb"


def test_much_on_both_streams_at_once_comes_whole(host: Host) -> None:
    found = host.run("head -c 3000000 /dev/zero | tr '\\0' x | tee /dev/stderr")
    assert (len(found.out), len(found.err)) == (3_000_000, 3_000_000)


def test_after_the_timeout_the_command_is_gone(host: Host, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    began = time.monotonic()
    with pytest.raises(HostError, match=r"sleep 600 & echo: no end within 0.3 s; look") as caught:
        host.run(f"sleep 600 & echo $$ $! >{file}; sleep 600", timeout_s=0.3)
    assert 0.2 < time.monotonic() - began < 3
    assert one_line(caught.value).startswith(host.name)
    assert not isinstance(caught.value, LostError)
    pids = [int(word) for word in file.read_text().split()]
    assert len(pids) == 2
    poll("end of the command", lambda: not any(map(read_process, pids)), WAIT_S)
    assert host.run("echo still").out == "still\n"


def test_the_timeout_is_kept_while_output_comes(host: Host) -> None:
    began = time.monotonic()
    with pytest.raises(HostError, match=r"while : ; do: no end within 0\.3 s"):
        host.run("while : ; do echo; sleep 0.01; done", timeout_s=0.3)
    assert time.monotonic() - began < 3


def test_what_left_the_group_and_holds_the_output_is_not_waited_for(
    host: Host, tmp_path: Path
) -> None:
    file, began = tmp_path / "pid", time.monotonic()
    command = f"setsid sh -c 'echo $$ >{file}; exec sleep 600' & sleep 600"
    with pytest.raises(HostError, match="no end within"):
        host.run(command, timeout_s=0.3)
    assert time.monotonic() - began < 5
    os.kill(int(file.read_text()), signal.SIGKILL)


def test_many_threads_ask_at_once(host: Host) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: host.run(f"echo {i}", again=True).out, range(24)))
    assert found == [f"{i}\n" for i in range(24)]


# ---------------------------------------------------------------- channels


def test_lines_go_and_come_and_close_ends_the_command(host: Host) -> None:
    channel = host.open("echo $$; exec cat")
    pid = int(channel.receive(WAIT_S))
    for line in ("a", "", "b c  ", "ü"):
        channel.send(line)
        assert channel.receive(WAIT_S) == line
    assert read_process(pid)
    channel.close()
    channel.close()
    poll("its end", lambda: read_process(pid) is None, WAIT_S)
    with pytest.raises(LostError):
        channel.send("x")
    with pytest.raises(LostError):
        channel.receive(1.0)


def test_lines_that_come_together_are_told_apart(host: Host) -> None:
    channel = host.open("printf 'a\\n\\nb\\r\\nrest'; read x")
    assert [channel.receive(WAIT_S) for _ in range(3)] == ["a", "", "b"]
    with pytest.raises(HostError, match=r"printf .*: no answer within 0\.2 s; look") as caught:
        channel.receive(0.2)
    assert one_line(caught.value).startswith(host.name)
    assert not isinstance(caught.value, LostError)
    channel.close()


def test_a_channel_goes_on_after_a_timeout(host: Host) -> None:
    channel = host.open("read x; echo got $x")
    with pytest.raises(HostError):
        channel.receive(0.05)
    channel.send("it")
    assert channel.receive(WAIT_S) == "got it"
    channel.close()


def test_a_long_line_comes_whole_and_one_without_end_is_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "END_S", 0.1)
    channel = host.open("head -c 1000000 /dev/zero | tr '\\0' x; echo; echo after; read x")
    assert channel.receive(WAIT_S) == "x" * 1_000_000
    assert channel.receive(WAIT_S) == "after"
    channel.close()
    channel = host.open("cat /dev/zero")
    with pytest.raises(HostError, match="more than 1 MiB"):
        channel.receive(WAIT_S)
    channel.close()


def test_the_end_is_told_with_the_last_complaint(host: Host) -> None:
    channel = host.open("echo one; echo first >&2; echo last >&2", "the reader")
    assert channel.receive(WAIT_S) == "one"
    with pytest.raises(LostError, match="the reader: last; see why it ended") as caught:
        channel.receive(WAIT_S)
    assert one_line(caught.value).startswith(host.name)
    channel.close()


def test_a_complaint_is_read_without_waiting(host: Host) -> None:
    channel = host.open("echo note >&2; echo up; read x")
    assert channel.receive(WAIT_S) == "up"
    time.sleep(0.05)
    assert channel.complaint() == "note"
    assert channel.complaint() == ""
    channel.close()


def test_a_send_to_what_has_ended_is_lost(host: Host) -> None:
    channel, lost = host.open("true", "the reader"), list[LostError]()

    def sent() -> bool:
        try:
            channel.send("x")
        except LostError as exc:
            lost.append(exc)
        return bool(lost)

    poll("an error", sent, WAIT_S)
    assert one_line(lost[0]).startswith(f"{host.name}: the reader: ")
    channel.close()


def test_close_wakes_who_waits_for_a_line(host: Host) -> None:
    channel = host.open("read x")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.receive, 60.0)
        time.sleep(0.1)
        channel.close()
        assert isinstance(waiting.exception(WAIT_S), LostError)


def test_here_a_command_that_ignores_its_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "END_S", 0.2)
    channel = LocalHost().open("echo $$; exec sleep 600")
    pid = int(channel.receive(WAIT_S))
    channel.close()
    assert read_process(pid) is None


def test_descriptors_beyond_those_of_select_are_waited_for() -> None:
    code = """
import os, resource
from percentes_fast.faults.host import LocalHost
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000))
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
channel = LocalHost().open("read x; echo $x")
channel.send("y")
print(channel.receive(20.0))
channel.close()
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("y\n", "")


def test_nothing_is_left_open(far: Sshd) -> None:
    def held() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before, threads = held(), threading.active_count()
    for host in (LocalHost(), SshHost(reachable(far))):
        host.run("true")
        channel = host.open("cat")
        channel.close()
        with contextlib.suppress(HostError):
            host.run("sleep 600", timeout_s=0.1)
        host.close()
        host.close()
    poll("closed descriptors", lambda: held() <= before, WAIT_S)
    poll("ended threads", lambda: threading.active_count() <= threads, WAIT_S)


# ---------------------------------------------------------------- connecting


def test_reach_gives_this_machine_or_the_host(far: Sshd) -> None:
    here = hosts.reach(Ssh())
    assert (here.is_here, here.name) == (True, "this machine")
    there = hosts.reach(reachable(far))
    try:
        assert isinstance(there, SshHost)
        assert (there.is_here, there.name) == (False, f"ssh {far.user}@{far.host}")
        assert (there.address, there.jumps) == ("127.0.0.1", False)
    finally:
        there.close()


@pytest.mark.parametrize("written", ["::1", "[::1]"])
def test_an_ipv6_host(written: str) -> None:
    with Sshd("::1") as sshd:
        ssh = Ssh.model_validate(
            {**reachable(sshd).model_dump(), "target": f"{sshd.user}@{written}"}
        )
        there = SshHost(ssh)
        try:
            assert (there.name, there.address) == (f"ssh {sshd.user}@::1", "::1")
            assert there.run("echo up", again=True).out == "up\n"
        finally:
            there.close()


@pytest.mark.parametrize("kind", ["rsa -b 2048", "ecdsa", "ed25519"])
def test_keys_of_every_kind_are_used_or_refused(far: Sshd, tmp_path: Path, kind: str) -> None:
    key = tmp_path / "key"  # paramiko (its issue 2445) fails at ECDSA keys of certain lengths
    words = [program("ssh-keygen"), "-q", "-t", *kind.split(), "-N", "", "-C", "abc", "-f", key]
    subprocess.run(words, check=True)
    said = refusal(reachable(far, identity=str(key)))
    assert said.startswith(f"ssh {far.user}@{far.host}: the host refused this user and key; give")
    with (far.directory / "authorized_keys").open("a") as keys:
        keys.write(key.with_suffix(".pub").read_text())
    with reached(far, identity=str(key)) as found:
        assert found.run("echo in").out == "in\n"


def test_no_key_at_all_is_told_as_a_refused_one(far: Sshd) -> None:
    assert "the host refused this user and key" in refusal(reachable(far, identity=None))


def test_an_alias_of_ssh_config_is_enough(far: Sshd, tmp_path: Path) -> None:
    config = far.ssh_config(tmp_path / "config", "far")
    host = SshHost(Ssh(target="far", config=str(config)))
    try:
        assert host.run("echo in").out == "in\n"
        assert (host.name, host.address, host.jumps) == ("ssh far", "127.0.0.1", False)
    finally:
        host.close()


def test_files_may_be_named_from_the_home_directory(far: Sshd) -> None:
    home = Path(os.environ["HOME"])
    shutil.copy(far.identity, home / "k")
    shutil.copy(far.known_hosts, home / "h")
    far.ssh_config(home / "c", "far")
    text = (home / "c").read_text().replace(str(far.identity), "~/k")
    (home / "c").write_text(text.replace(str(far.known_hosts), "~/nowhere ~/h"))
    for ssh in (
        Ssh(target="far", config="~/c"),
        reachable(far, identity="~/k", known_hosts="~/h"),
    ):
        host = SshHost(ssh)
        assert host.run("echo in").out == "in\n"
        host.close()


def test_a_key_of_ssh_config_that_is_not_there_is_passed_over(far: Sshd, tmp_path: Path) -> None:
    config = far.ssh_config(tmp_path / "config", "far")
    text = config.read_text()
    config.write_text(text + "    IdentityFile /nowhere/key\n")
    host = SshHost(Ssh(target="far", config=str(config)))
    host.close()
    config.write_text(text.replace(str(far.identity), "/nowhere/key"))
    assert "the host refused this user and key" in refusal(Ssh(target="far", config=str(config)))


# ---------------------------------------------------------------- what is refused


def test_another_key_is_refused(far: Sshd) -> None:
    said = refusal(reachable(far, identity=str(far.wrong_identity)))
    assert "give --ssh-identity FILE, or load the key into the agent" in said


@pytest.mark.parametrize("named", [True, False])
def test_a_host_that_is_not_known_is_refused(far: Sshd, tmp_path: Path, named: bool) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    said = refusal(reachable(far, known_hosts=str(empty) if named else None))
    assert "the host's key is not known; check it once with `ssh` by hand" in said
    assert empty.read_bytes() == b""


def test_a_host_with_another_key_than_the_known_one_is_refused(
    far: Sshd, gate: Sshd, tmp_path: Path
) -> None:
    theirs = gate.known_hosts.read_text().replace(f":{gate.port} ", f":{far.port} ")
    (tmp_path / "known").write_text(theirs)
    said = refusal(reachable(far, known_hosts=str(tmp_path / "known")))
    assert "the host key is another than the known one" in said
    assert "remove its line from known_hosts" in said


def test_a_port_where_nothing_listens(far: Sshd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    said = refusal(reachable(far, port=port))
    assert f"cannot be reached: Unable to connect to port {port} on 127.0.0.1; is its" in said


def test_a_name_that_is_not_found(far: Sshd) -> None:
    said = refusal(reachable(far, target="nowhere.invalid"))
    assert re.search(r"^ssh nowhere.invalid: .*(name|Name).*; mend the name of the host$", said)


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200])
def test_what_is_no_ssh_server_is_told_in_time(far: Sshd, greeting: bytes) -> None:
    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            held.append(connection)
            connection.sendall(greeting)

    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        began = time.monotonic()
        said = refusal(reachable(far, port=listener.getsockname()[1], connect_timeout_s=0.5))
        assert time.monotonic() - began < 5
        assert said.endswith("; try `ssh` by hand")
        thread.join(WAIT_S)
    for connection in held:
        connection.close()


def test_a_host_that_says_nothing_at_all(far: Sshd) -> None:
    """Its queue of connections is full, so that no SYN is answered."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        port = listener.getsockname()[1]
        said = refusal(reachable(far, port=port, connect_timeout_s=0.4))
    assert "no answer within 0.4 s; is it up, and does a firewall" in said


def test_identities_that_cannot_be_used(far: Sshd, tmp_path: Path) -> None:
    said = refusal(reachable(far, identity=str(tmp_path / "none")))
    assert said == f"--ssh-identity {tmp_path}/none: is no file; name the private key"
    said = refusal(reachable(far, identity=f"{far.identity}.pub"))
    assert said.startswith(f"--ssh-identity {far.identity}.pub: is no private key that can be read")
    assert said.endswith("; name another, best an ed25519 one")
    locked = tmp_path / "locked"
    words = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)]
    subprocess.run(words, check=True)
    said = refusal(reachable(far, identity=str(locked)))
    assert said.startswith(f"--ssh-identity {locked}: needs a passphrase; load it into the agent")


def test_files_that_cannot_be_used(far: Sshd, tmp_path: Path) -> None:
    said = refusal(reachable(far, known_hosts=str(tmp_path / "none")))
    assert said == (
        f"ssh.known_hosts {tmp_path}/none: No such file or directory; name a file of host keys"
    )
    damaged = tmp_path / "damaged"
    damaged.write_text("far ssh-ed25519 AAAAdamaged=x\n")
    said = refusal(reachable(far, known_hosts=str(damaged)))
    assert f"ssh.known_hosts {damaged}: holds a damaged line; mend it" in said
    said = refusal(reachable(far, config=str(tmp_path / "none")))
    assert f"ssh.config: {tmp_path}/none: No such file or directory; mend it" in said
    (tmp_path / "config").write_text("Host far\n    Port many\n")
    said = refusal(Ssh(target="far", config=str(tmp_path / "config")))
    assert said.startswith("ssh far: ssh.config: ") and said.endswith("; mend it, or name another")


def test_a_host_that_opens_no_more_sessions() -> None:
    with Sshd(options=["Match all", "MaxSessions 2"]) as sshd, reached(sshd) as host:
        channels = [host.open("cat") for _ in range(2)]
        for again in (False, True):
            with pytest.raises(HostError, match=r"opens no more sessions .* raise MaxSessions"):
                host.run("true", again=again)
        channels[0].send("x")
        assert channels[0].receive(WAIT_S) == "x"
        for channel in channels:
            channel.close()
        poll("a free session", lambda: _runs(host), WAIT_S)


def _runs(host: Host) -> bool:
    with contextlib.suppress(HostError):
        return host.run("true").status == 0
    return False


# ---------------------------------------------------------------- jump hosts


def both_known(far: Sshd, gate: Sshd, path: Path) -> str:
    path.write_text(far.known_hosts.read_text() + gate.known_hosts.read_text())
    return str(path)


def test_a_host_behind_a_jump_host(far: Sshd, gate: Sshd, tmp_path: Path) -> None:
    jump = f"{gate.user}@{gate.host}:{gate.port}"
    known = both_known(far, gate, tmp_path / "known")
    with reached(far, jump=jump, known_hosts=known) as host:
        assert host.run("echo in").out == "in\n"
        assert (host.address, host.jumps) == ("127.0.0.1", True)
        channel = host.open("cat")
        channel.send("x")
        assert channel.receive(WAIT_S) == "x"
        channel.close()
        assert gate.drop_sessions() == 1
        assert host.run("echo again", again=True).out == "again\n"


def test_a_jump_host_of_ssh_config(far: Sshd, gate: Sshd, tmp_path: Path) -> None:
    config = gate.ssh_config(tmp_path / "config", "gate")
    far.ssh_config(config, "far", jump="gate")
    host = SshHost(Ssh(target="far", config=str(config)))
    try:
        assert host.run("echo in").out == "in\n"
        assert (host.address, host.jumps) == ("127.0.0.1", True)
    finally:
        host.close()
    poll("the jump host's end of the connection", lambda: not _connections(gate), WAIT_S)


def _connections(sshd: Sshd) -> bool:
    assert sshd.process is not None
    return bool(below(sshd.process.pid))


def test_a_jump_host_is_checked_as_every_host(far: Sshd, gate: Sshd, tmp_path: Path) -> None:
    where = f"ssh {far.user}@{far.host}: jump host 127.0.0.1: "
    jump = f"{gate.user}@{gate.host}:{gate.port}"
    said = refusal(reachable(far, jump=jump))  # only the host itself is known
    assert said.startswith(f"{where}the host's key is not known")
    config = gate.ssh_config(tmp_path / "config", "gate")
    far.ssh_config(config, "far", jump="gate")
    config.write_text(config.read_text().replace(str(gate.known_hosts), str(far.known_hosts)))
    said = refusal(Ssh(target="far", config=str(config)))
    assert said.startswith("ssh far: jump host 127.0.0.1: the host's key is not known")


def test_which_of_both_does_not_answer_is_told(far: Sshd, gate: Sshd, tmp_path: Path) -> None:
    known = both_known(far, gate, tmp_path / "known")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    said = refusal(reachable(far, known_hosts=known, jump=f"{gate.user}@127.0.0.1:{closed}"))
    assert f"jump host 127.0.0.1: cannot be reached: Unable to connect to port {closed}" in said
    jump = f"{gate.user}@{gate.host}:{gate.port}"
    said = refusal(reachable(far, known_hosts=known, jump=jump, port=closed))
    assert said.startswith(f"ssh {far.user}@{far.host}: ") and "jump host" not in said


# ---------------------------------------------------------------- lost connections


@pytest.fixture
def fragile() -> Iterator[Sshd]:
    with Sshd() as sshd:
        yield sshd


def counted(file: Path) -> str:
    """A command that leaves a line in a file, and ends only when it has been asked twice."""
    return f"echo x >>{file}; [ $(wc -l <{file}) -ge 2 ] || exec sleep 600"


def drop_when(sshd: Sshd, true: Callable[[], bool]) -> threading.Thread:
    def drop() -> None:
        poll("the moment", true, WAIT_S)
        sshd.drop_sessions()

    thread = threading.Thread(target=drop)
    thread.start()
    return thread


def test_a_lost_question_is_asked_again_over_a_new_connection(
    fragile: Sshd, tmp_path: Path
) -> None:
    file = tmp_path / "count"
    with reached(fragile) as host:
        thread = drop_when(fragile, file.exists)
        assert host.run(counted(file), again=True).status == 0
        thread.join(WAIT_S)
    assert file.read_text() == "x\nx\n"
    assert fragile.log.read_text().count("Accepted publickey") == 2


def test_a_lost_order_is_not_repeated(fragile: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "count"
    with reached(fragile) as host:
        thread = drop_when(fragile, file.exists)
        with pytest.raises(LostError, match="the connection was lost; look at the host") as caught:
            host.run(counted(file))
        thread.join(WAIT_S)
        assert one_line(caught.value).startswith(f"{host.name}: echo x ")
        with pytest.raises(LostError):
            host.run(counted(file))
        with pytest.raises(LostError):
            host.open("cat")
        assert file.read_text() == "x\n"
        assert fragile.log.read_text().count("Accepted publickey") == 1
        assert host.run("echo in", again=True).out == "in\n"
        assert host.run("echo in").out == "in\n"


def test_what_a_lost_connection_ran_is_gone(fragile: Sshd, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with reached(fragile) as host:
        thread = drop_when(fragile, file.exists)
        with pytest.raises(LostError):
            host.run(f"echo $$ >{file}.new; mv {file}.new {file}; sleep 600")
        thread.join(WAIT_S)
    pid = int(file.read_text())
    poll("its end", lambda: read_process(pid) is None, WAIT_S)


def test_a_channel_of_a_lost_connection_says_so(fragile: Sshd) -> None:
    with reached(fragile) as host:
        channel = host.open("cat", "the reader")
        fragile.drop_sessions()
        with pytest.raises(LostError, match="the reader: the connection was lost; look") as caught:
            channel.receive(WAIT_S)
        one_line(caught.value)
        with pytest.raises(LostError, match="the reader: the connection was lost; look"):
            channel.send("x")
        channel.close()


def test_a_host_that_went_and_came_back(fragile: Sshd) -> None:
    with reached(fragile) as host:
        fragile.kill()
        with pytest.raises(HostError, match="cannot be reached") as caught:
            host.run("true", again=True)
        one_line(caught.value)
        fragile.start()
        assert host.run("echo in", again=True).out == "in\n"


def test_a_host_that_hangs_is_given_up_in_time(fragile: Sshd) -> None:
    with reached(fragile, command_timeout_s=0.3) as host:
        channel = host.open("cat")
        assert fragile.process is not None
        sessions = [each for each in below(fragile.process.pid) if lives(each)]
        send(signal.SIGSTOP, sessions)
        for ask in (lambda: host.run("true", again=True), lambda: host.open("cat")):
            began = time.monotonic()
            with pytest.raises(HostError, match=r"no answer within 0.3 s; look") as caught:
                ask()
            assert time.monotonic() - began < 3
            one_line(caught.value)
        with pytest.raises(HostError, match=r"no answer within 0.2 s; look"):
            channel.receive(0.2)
        send(signal.SIGCONT, sessions)
        channel.send("x")
        assert channel.receive(WAIT_S) == "x"
        assert host.run("echo in").out == "in\n"
        channel.close()


RELAY = (
    "import socket,sys,threading,os;"
    "s=socket.create_connection((sys.argv[1],int(sys.argv[2])));"
    "back=lambda:([os.write(1,d) for d in iter(lambda:s.recv(9999),bytes())],os._exit(0));"
    "threading.Thread(target=back,daemon=True).start();"
    "[s.sendall(d) for d in iter(lambda:os.read(0,9999),bytes())]"
)


def test_a_proxy_command_of_ssh_config_is_started_anew(
    fragile: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it has ended paramiko sees only when it writes the next sign of life."""
    monkeypatch.setattr(hosts, "KEEPALIVE_S", 1)
    config = fragile.ssh_config(tmp_path / "config", "far")
    words = f"{sys.executable} -c '{RELAY}' %h %p"
    config.write_text(config.read_text() + f"    ProxyCommand {words}\n")
    host = SshHost(Ssh(target="far", config=str(config)))
    try:
        assert host.run("echo in").out == "in\n"
        assert (host.address, host.jumps) == ("", True)
        assert fragile.drop_sessions() == 1
        assert host.run("echo again", again=True).out == "again\n"
    finally:
        host.close()


PRINTS = """
import os, sys, threading
from percentes_fast.errors import FaultError
from percentes_fast.faults.ssh import SshHost
from percentes_fast.site import Ssh

def shown(ask):
    try:
        print(ask(), flush=True)
    except FaultError as exc:
        print(exc, flush=True)

ssh = Ssh.model_validate_json(sys.argv[1])
host = SshHost(ssh)
channel = host.open("cat", "the reader")
print("up", flush=True)
shown(lambda: channel.receive(20.0))
shown(lambda: host.run("true"))
shown(lambda: host.run("true", again=True))
sys.stdin.readline()
shown(lambda: host.run("true"))
shown(lambda: host.run("true", again=True))
shown(lambda: SshHost(Ssh(target="x@127.0.0.1", port=int(sys.argv[2]), connect_timeout_s=0.3)))
channel.close()
host.close()
"""


def test_a_lost_connection_prints_nothing(fragile: Sshd) -> None:
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ssh, port = reachable(fragile), silent.getsockname()[1]
        words = [sys.executable, "-X", "dev", "-c", PRINTS, ssh.model_dump_json(), str(port)]
        with subprocess.Popen(words, text=True, **pipes) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "up\n"
            fragile.drop_sessions()
            dropped = [client.stdout.readline() for _ in range(3)]
            fragile.kill()
            out, err = client.communicate("\n", timeout=60)
    assert err == ""
    assert client.returncode == 0
    assert "the reader: the connection was lost; look" in dropped[0]
    assert "true: the connection was lost; look" in dropped[1]
    assert dropped[2].startswith("Result(status=0, ")
    killed, back, strange = out.splitlines()
    assert "true: the connection was lost; look" in killed
    assert "cannot be reached: " in back
    assert strange.endswith("; try `ssh` by hand")
