"""Bad input: one clear line (what, where, what to do), exit 1, nothing half-written."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from whole_run import call, command, free_port, mock_command

CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "no such target": (("--target", "http://127.0.0.1:9", "--fault", "none"), "refused"),
    "name not found": (("--target", "http://nowhere.invalid", "--fault", "none"), "mend the name"),
    "wrong scheme": (("--target", "ftp://127.0.0.1:9", "--fault", "none"), "http://HOST:PORT"),
    "no scheme": (("--target", "127.0.0.1:9", "--fault", "none"), "http://HOST:PORT"),
    "https": (("--target", "https://127.0.0.1:9", "--fault", "none"), "https"),
    "nothing to kill": (("--target", "http://127.0.0.1:9"), "nothing to kill"),
    "rate 0": (("--rate", "0"), "load.rate"),
    "rate of letters": (("--rate", "fast"), "--rate"),
    "negative kill time": (("--kill-at", "-5"), "phases.kill_at_s"),
    "kill after the end": (("--duration", "300", "--kill-at", "360"), "after the end"),
    "kill inside warm-up": (("--kill-at", "50"), "baseline"),
    "unknown flag": (("--rat", "3"), "--rat"),
    "no such config": (("--config", "nowhere.yaml"), "nowhere.yaml"),
    "pid without target": (("--pid", "99999999"), "--target"),
    "no such pid": (
        ("--pid", "4194303", "--target", "http://127.0.0.1:PORT", "--max-tokens", "2"),
        "no such process",
    ),
    "serve without target": (("--serve", "sleep 1"), "--target"),
    "serve command not found": (
        ("--serve", "/no/such/program", "--target", "http://127.0.0.1:FREE"),
        "/no/such/program",
    ),
    "serve command that exits": (
        ("--serve", "sh -c 'echo no model; exit 3'", "--target", "http://127.0.0.1:FREE"),
        "status 3",
    ),
    "port in use": (("--serve", "sleep 60", "--target", "http://127.0.0.1:PORT"), "in use"),
    "core that is not there": (("--cores", "4096"), "--cores"),
    "cores of letters": (("--cores", "a-b"), "--cores"),
    "more workers than cores": (("--workers", "200"), "--workers"),
    "bad extra body": (("--extra-body", "{"), "--extra-body"),
    "bad header": (("--header", "novalue"), "--header"),
    "bad arrival": (("--arrival", "sometimes"), "load.arrival"),
    "no such trace": (("--arrival", "trace:nowhere.csv"), "nowhere.csv"),
    "wrong model": (
        ("--target", "http://127.0.0.1:PORT", "--fault", "none", "--model", "other"),
        "404",
    ),
}


@pytest.fixture(scope="module")
def server() -> object:
    """Port of a running simulated server."""
    port = free_port()
    process = subprocess.Popen(
        mock_command(port, 0).split(), stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if b"Application startup complete" in line:
            break
    yield port
    process.terminate()
    process.wait()
    process.stdout.close()


def one_line(done: subprocess.CompletedProcess[str], says: str) -> None:
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1, done.stderr
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("percentes-fast: ")
    assert says in lines[0]
    assert done.stdout == ""


@pytest.mark.parametrize("name", CASES)
def test_run_refuses(name: str, server: int, tmp_path: Path) -> None:
    words, says = CASES[name]
    told = [w.replace("PORT", str(server)).replace("FREE", str(free_port())) for w in words]
    done = call("run", *told, "--out", "out", cwd=tmp_path)
    one_line(done, says)
    assert list(tmp_path.iterdir()) == []
    assert not list(Path("/dev/shm").glob("percentes-fast-*preflight*"))


def test_config_with_a_typo(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("load: {raet: 3}\n")
    done = call("run", "--config", "c.yaml", "--out", "out", cwd=tmp_path)
    one_line(done, "did you mean 'rate'")
    assert not (tmp_path / "out").exists()


def test_out_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("kept")
    done = call("run", "--out", "out", cwd=tmp_path)
    one_line(done, "not empty")
    assert (tmp_path / "out" / "precious").read_text() == "kept"


def test_out_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one_line(call("run", "--out", "file/out", cwd=tmp_path), "writable directory")


def test_out_that_may_not_be_written(tmp_path: Path) -> None:
    """/proc refuses new directories to everyone, root too."""
    one_line(call("run", "--out", "/proc/percentes", cwd=tmp_path), "writable directory")


def test_a_full_disk(tmp_path: Path) -> None:
    """A file system of 1 MiB of our own, in a mount namespace of our own."""
    words = " ".join(command("run", "--out", "disk/out"))
    script = f"mkdir disk; mount -t tmpfs -o size=1m tmpfs disk; {words}; s=$?; ls disk; exit $s"
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    one_line(done, "disk is full")


def test_mock_on_a_port_in_use(server: int, tmp_path: Path) -> None:
    done = call("mock", "--port", str(server), cwd=tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "in use" in done.stderr


@pytest.mark.parametrize("verb", ["analyze", "report", "recover"])
def test_a_directory_that_is_no_run(verb: str, tmp_path: Path) -> None:
    one_line(call(verb, str(tmp_path), cwd=tmp_path), "manifest.json")


def test_audit_of_no_campaign(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    one_line(call("audit", "x.json", cwd=tmp_path), "x.json")
    one_line(call("audit", "nowhere.json", cwd=tmp_path), "nowhere.json")


def test_a_server_that_speaks_no_http(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        running = subprocess.Popen(
            command("run", "--target", f"http://127.0.0.1:{port}", "--fault", "none", "--out", "o"),
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        peer, _ = listener.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(b"220 mail.example ESMTP\r\n")
            _, said = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "does not answer in HTTP/1.1" in said
    assert len(said.splitlines()) == 1


def test_usage_errors_do_not_read_as_invalid(tmp_path: Path) -> None:
    assert call("nonsense", cwd=tmp_path).returncode == 1
    assert call("report", cwd=tmp_path).returncode == 1
    assert call("--help", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    "words", [("run", "--out", "shut/x"), ("campaign", "--out", "shut/x"), ("report", "shut/x")]
)
def test_a_directory_that_may_not_be_searched(words: tuple[str, ...], tmp_path: Path) -> None:
    """Without the capabilities by which root may search any directory."""
    (tmp_path / "shut").mkdir(mode=0o600)
    bare = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    done = subprocess.run(
        [*bare, *command(*words)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    one_line(done, "Permission denied; use a place that is open to you")
