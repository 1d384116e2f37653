"""A server's log followed as it grows, here and over SSH, into what a run directory reads back.

Does: appends to real files from another process, rotates them, drops the connection, and counts.
Never: loses or doubles a line that was written while it was followed.
Plan: lines; rotation; what cannot be followed; lost connections; logs of containers.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from percentes_fast import rundir
from percentes_fast.errors import FaultError
from percentes_fast.faults.host import Host, LocalHost
from percentes_fast.observe.logtail import Tail, container_log
from real_hosts import Sshd, poll, program, running
from test_host import reached
from test_killer import NOBODY, apart, links

WAIT_S = 20.0
HERE = LocalHost()


@pytest.fixture(scope="module", autouse=True)
def _nothing_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        yield


def linked(root: Path, name: str) -> str:
    """A PATH with tail, and bash or python3 to stamp lines with."""
    path = links(root / name, name)
    for tool in ("tail", "wc"):
        (root / name / tool).symlink_to(program("busybox" if name == "busybox" else tool))
    return path


@pytest.fixture(scope="module", params=["here", "bash", "python"])
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    if request.param == "here":
        yield HERE
        return
    path = linked(tmp_path_factory.mktemp("path"), request.param)
    with Sshd(environment={"PATH": path}) as sshd, reached(sshd) as found:
        yield found


@contextlib.contextmanager
def followed(host: Host, log: Path, into: Path) -> Iterator[Tail]:
    tail = Tail(host, str(log), into)
    try:
        yield tail
    finally:
        tail.stop()


def lines(path: Path) -> list[tuple[int, str, str]]:
    return list(rundir.read_log(path))


def texts(path: Path) -> list[str]:
    return [text for _, _, text in lines(path)]


def readers(log: Path) -> list[int]:
    """Processes that follow this log."""
    found = []
    for pid in running():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"tail" in words[0] and os.fsencode(log) in words:
                found.append(pid)
    return found


# ---------------------------------------------------------------- lines


def test_every_line_once_in_order_with_a_stamp_of_its_time(host: Host, tmp_path: Path) -> None:
    log, into = tmp_path / "a log", tmp_path / "server.log"
    log.write_text("before\n" * 3)
    first = time.time_ns()
    with followed(host, log, into) as tail:
        written: list[tuple[int, str]] = []
        with log.open("a", buffering=1) as file:
            for i in range(100):  # from the first moment on
                written.append((time.time_ns(), f"line {i}"))
                file.write(f"line {i}\n")
                time.sleep(0.002 if i % 10 else 0.02)
        poll("the last line", lambda: texts(into)[-1:] == ["line 99"], WAIT_S)
        assert tail.lost is None
    last = time.time_ns()
    found = lines(into)
    assert [text for _, _, text in found] == [text for _, text in written]
    assert {mark for _, mark, _ in found} == {"d"}
    times = [at for at, _, _ in found]
    assert times == sorted(times)
    assert first < times[0] <= times[-1] < last
    assert all(at - 1000 <= stamp for (at, _), stamp in zip(written, times, strict=True))
    assert tail.lost is None
    poll("the end of the readers", lambda: readers(log) == [], WAIT_S)


def test_what_is_in_a_line_is_kept(host: Host, tmp_path: Path) -> None:
    log, into = tmp_path / "log", tmp_path / "server.log"
    log.write_bytes(b"half a li")
    odd = [
        r"a\nb \t %s \\",
        "  two  spaces ",
        "",
        "'quotes\" $HOME `x`",
        "ü ☃",
        "x" * 100_000,
        "-n",
    ]
    with followed(host, log, into):
        with log.open("ab") as file:
            file.write(b"ne\n" + "".join(f"{line}\n" for line in odd).encode() + b"\xff\nlast\n")
        poll("the last line", lambda: texts(into)[-1:] == ["last"], WAIT_S)
    assert texts(into) == ["ne", *odd, "\ufffd", "last"]


def test_a_line_is_told_when_it_is_whole(host: Host, tmp_path: Path) -> None:
    log, into = tmp_path / "log", tmp_path / "server.log"
    log.touch()
    with followed(host, log, into), log.open("a", buffering=1) as file:
        file.write("first\nha")
        poll("the first line", lambda: texts(into) == ["first"], WAIT_S)
        time.sleep(0.2)
        file.write("lf\n")
        poll("the second", lambda: texts(into) == ["first", "half"], WAIT_S)


def test_lines_that_come_fast_come_all(host: Host, tmp_path: Path) -> None:
    log, into = tmp_path / "log", tmp_path / "server.log"
    log.touch()
    with followed(host, log, into):
        log.write_text("".join(f"{i}\n" for i in range(5000)))
        poll("all", lambda: texts(into)[-1:] == ["4999"], WAIT_S)
    assert texts(into) == [str(i) for i in range(5000)]


def test_what_was_in_the_file_here_stays(tmp_path: Path) -> None:
    log, into = tmp_path / "log", tmp_path / "server.log"
    log.touch()
    into.write_text("1 s started\n")
    with followed(HERE, log, into):
        log.write_text("up\n")
        poll("a line", lambda: len(lines(into)) == 2, WAIT_S)
    assert lines(into)[0] == (1, "s", "started")


def test_stop_ends_the_reader_of_a_quiet_log(host: Host, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    tail = Tail(host, str(log), tmp_path / "server.log")
    poll("its start", lambda: readers(log) != [], WAIT_S)
    began = time.monotonic()
    tail.stop()
    assert time.monotonic() - began < 1.5
    assert tail.lost is None
    poll("its end", lambda: readers(log) == [], WAIT_S)
    assert not any("_follow" in each.name for each in threading.enumerate())


# ---------------------------------------------------------------- rotation


def test_a_log_rotated_by_its_name_is_followed_on(host: Host, tmp_path: Path) -> None:
    log, into = tmp_path / "log", tmp_path / "server.log"
    log.write_text("old\n")
    with followed(host, log, into):
        written = 0
        for turn in range(3):
            with log.open("a", buffering=1) as file:
                for _ in range(10):
                    file.write(f"{written}\n")
                    written += 1
            poll("its lines", lambda: len(lines(into)) == written, WAIT_S)  # noqa: B023
            log.rename(tmp_path / f"log.{turn}")
            log.touch()
            time.sleep(0.05)
    assert texts(into) == [str(i) for i in range(30)]


def test_a_log_that_is_cut_and_goes_on_is_followed_on(tmp_path: Path) -> None:
    log, into = tmp_path / "log", tmp_path / "server.log"
    log.write_text("much that was there before\n" * 100)
    with followed(HERE, log, into), log.open("a", buffering=1) as file:
        file.write("one\n")
        poll("a line", lambda: texts(into) == ["one"], WAIT_S)
        os.truncate(log, 0)
        time.sleep(0.3)  # tail has looked at its size
        file.write("two\n")
        poll("a line", lambda: texts(into)[-1:] == ["two"], WAIT_S)
    assert texts(into) == ["one", "two"]


# ---------------------------------------------------------------- what cannot be followed


def test_a_log_that_is_not_there_is_told_in_one_line(host: Host, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("none", ".", "pipe"):
        with pytest.raises(FaultError) as caught:
            Tail(host, str(tmp_path / name), tmp_path / "server.log")
        assert str(caught.value) == (
            f"log.path {tmp_path / name}: cannot be read on {host.name}; name the server's log"
        )
    assert not (tmp_path / "server.log").exists()


def test_a_log_of_another_user_is_told_in_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch(0o600)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from percentes_fast.faults.host import LocalHost\n"
        "from percentes_fast.observe.logtail import Tail\n"
        "try: Tail(LocalHost(), sys.argv[1], Path('/nowhere'))\nexcept Exception as exc: print(exc)"
    )
    words = [*apart(sudo=False), program("setpriv"), *NOBODY, sys.executable, "-B", "-c", code]
    done = subprocess.run(
        [*words, str(log)], capture_output=True, text=True, cwd="/", timeout=60, check=False
    )
    assert (done.stdout.count("\n"), done.stderr) == (1, "")
    assert "cannot be read on this machine; name the server's log" in done.stdout


def test_a_host_where_nothing_can_stamp_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    refused = pytest.raises(FaultError, match=r"neither bash 5 nor python3 to stamp .*; install")
    environment = {"PATH": linked(tmp_path, "dash")}
    with Sshd(environment=environment) as sshd, reached(sshd) as host, refused:
        Tail(host, str(log), tmp_path / "server.log")


# ---------------------------------------------------------------- lost connections


def test_a_lost_connection_is_told_and_leaves_no_reader(tmp_path: Path) -> None:
    log, into = tmp_path / "log", tmp_path / "server.log"
    log.touch()
    with Sshd() as sshd, reached(sshd) as host:
        tail = Tail(host, str(log), into)
        log.write_text("one\n")
        poll("a line", lambda: texts(into) == ["one"], WAIT_S)
        sshd.drop_sessions()
        poll("the loss", lambda: tail.lost is not None, WAIT_S)
        assert tail.lost is not None and "the log reader: the connection was lost" in tail.lost
        poll("its end", lambda: readers(log) == [], WAIT_S)
        tail.stop()
        assert tail.lost is not None
    assert texts(into) == ["one"]


def test_a_reader_that_died_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    tail = Tail(HERE, str(log), tmp_path / "server.log")
    poll("its start", lambda: readers(log) != [], WAIT_S)
    for pid in readers(log):
        os.kill(pid, 9)
    poll("the loss", lambda: tail.lost is not None, WAIT_S)
    tail.stop()
    assert tail.lost is not None and "this machine: the log reader: " in tail.lost


# ---------------------------------------------------------------- logs of containers


def test_lines_of_a_container_are_read_back(tmp_path: Path) -> None:
    given = [
        (1_772_366_400_123_456_789, "INFO: up  "),
        (1_772_366_400_123_456_790, ""),
        (1_772_366_401_000_000_000, "d o s 12 ü \ufffd \x85 \x1c bar\r100%"),
    ]
    (tmp_path / "server.log").write_bytes(container_log(given))
    assert lines(tmp_path / "server.log") == [(at, "d", text) for at, text in given]
    assert container_log([]) == b""
