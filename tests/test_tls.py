"""TLS targets on the asyncio engine: real certificates, a real TLS server, and what goes wrong.

Never: opens a port beyond loopback, or leaves a key behind.
Plan: a raw server behind TLS with a certificate of the test's own authority; the engine alone, then
a whole `percentes-fast run` with a token from the environment, that must be found nowhere.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from percentes_fast.engine import engines
from percentes_fast.engine.asyncio_exchange import Tls
from percentes_fast.errors import ConfigError
from percentes_fast.schema import Cause
from raw_server import GOOD, HOST, Bench, Peer, Row, Script, keep_answering

TOKEN = "tok-0f3a-not-to-be-seen"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@contextmanager
def tls_server(
    authority: trustme.CA, script: Script, name: str = HOST, client: bool = False
) -> Iterator[int]:
    """A raw server behind TLS; its port. client: asks for a certificate of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    if client:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    listener = socket.create_server((HOST, 0), backlog=64)
    listener.settimeout(0.1)
    stop = threading.Event()

    def talk(sock: socket.socket) -> None:
        with suppress(OSError, ssl.SSLError, EOFError, ConnectionError):
            sock.settimeout(20)
            with context.wrap_socket(sock, server_side=True) as secure:
                script(Peer(secure))

    def serve() -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        stop.set()
        thread.join()
        listener.close()


def settings(**given: Any) -> ssl.SSLContext:
    return engines.context({"ca": None, "cert": None, "key": None, "insecure": False, **given})


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def ask(path: Path, port: int, context: ssl.SSLContext, name: str = HOST, rows: int = 1) -> Any:
    bench = Bench(path, *(Row(i * 0.3) for i in range(rows)))
    bench.kind = "asyncio"
    return bench.run(port, tls=[Tls(context, name)]), bench


def test_a_stream_over_tls(authority: trustme.CA, trusted: str, tmp_path: Path) -> None:
    with tls_server(authority, keep_answering(GOOD)) as port:
        rows, bench = ask(tmp_path, port, settings(ca=trusted), rows=3)
    assert [ran.cause for ran in rows] == [Cause.STREAM_END] * 3
    assert [ran.content_events for ran in rows] == [3] * 3
    assert [ran.bytes_received for ran in rows] == [len(GOOD)] * 3  # what TLS carried, decrypted
    assert [ran.conn_reused for ran in rows] == [0, 1, 1]
    assert bench.slab.word("dials") == 1
    assert rows[0].connect_ns > 0  # with the handshake


def test_an_authority_that_is_not_trusted(authority: trustme.CA, tmp_path: Path) -> None:
    with tls_server(authority, keep_answering(GOOD)) as port:
        (ran,), _ = ask(tmp_path, port, settings())
    assert ran.cause == Cause.TLS
    assert "certificate" in ran.message
    assert ran.connect_ns is None


def test_a_certificate_of_another_name(authority: trustme.CA, trusted: str, tmp_path: Path) -> None:
    with tls_server(authority, keep_answering(GOOD), name="elsewhere.test") as port:
        (ran,), _ = ask(tmp_path, port, settings(ca=trusted))
    assert ran.cause == Cause.TLS
    assert "not valid for" in ran.message or "doesn't match" in ran.message


def test_insecure_takes_any_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    with tls_server(authority, keep_answering(GOOD), name="elsewhere.test") as port:
        (ran,), _ = ask(tmp_path, port, settings(insecure=True))
    assert ran.cause == Cause.STREAM_END


@pytest.mark.parametrize("shown", [True, False])
def test_a_client_certificate(
    shown: bool, authority: trustme.CA, trusted: str, tmp_path: Path
) -> None:
    own, files = authority.issue_cert("client.test"), {}
    if shown:
        files = {"cert": str(tmp_path / "own.pem"), "key": str(tmp_path / "key.pem")}
        own.private_key_pem.write_to_path(files["key"])
        own.cert_chain_pems[0].write_to_path(files["cert"])
    with tls_server(authority, keep_answering(GOOD), client=True) as port:
        (ran,), _ = ask(tmp_path, port, settings(ca=trusted, **files))
    assert ran.cause in ({Cause.STREAM_END} if shown else {Cause.TLS, Cause.RESET})


def test_a_server_that_speaks_no_tls(trusted: str, tmp_path: Path) -> None:
    from raw_server import raw_server

    with raw_server(lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
        (ran,), _ = ask(tmp_path, server.port, settings(ca=trusted))
    assert ran.cause in {Cause.TLS, Cause.RESET}


def test_a_cut_stream_over_tls(authority: trustme.CA, trusted: str, tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(GOOD[:-40])

    with tls_server(authority, script) as port:
        (ran,), _ = ask(tmp_path, port, settings(ca=trusted))
    assert ran.cause == Cause.BODY_CUT
    assert ran.content_events == 3


def test_what_follows_an_answer_in_the_same_segment_is_nobody_s(
    authority: trustme.CA, trusted: str, tmp_path: Path
) -> None:
    """Two TLS records at once: the answer, and bytes that must not become the next one's."""

    def script(peer: Peer) -> None:
        while peer.request():
            peer.sock.sendall(GOOD)
            peer.sock.sendall(GOOD.replace(b'"tok "', b'"bad "'))

    with tls_server(authority, script) as port:
        rows, bench = ask(tmp_path, port, settings(ca=trusted), rows=3)
    assert [ran.cause for ran in rows] == [Cause.STREAM_END] * 3
    assert all(ran.headers_ns > ran.sent_ns for ran in rows)
    assert bench.slab.word("closed_while_idle") + bench.slab.word("reuses") > 0
    assert all(ran.bytes_received <= 2 * len(GOOD) for ran in rows)


def test_a_key_that_asks_for_a_pass_phrase(authority: trustme.CA, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as forms

    own = authority.issue_cert("client.test")
    key = forms.load_pem_private_key(own.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.BestAvailableEncryption(b"phrase")
    )
    (tmp_path / "key.pem").write_bytes(locked)
    own.cert_chain_pems[0].write_to_path(str(tmp_path / "own.pem"))
    with pytest.raises(ConfigError, match="name readable PEM files"):
        settings(cert=str(tmp_path / "own.pem"), key=str(tmp_path / "key.pem"))


@pytest.mark.parametrize("which", ["ca", "cert"])
def test_files_that_cannot_be_used(which: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"target\.tls .*; name readable PEM files"):
        settings(**{which: str(tmp_path / "absent.pem")})


# ---------------------------------------------------------------- a whole run


def percentes(path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "percentes_fast.cli", "run", *words, "--out", str(path)]
    shape = ["--rate", "5", "--duration", "4", "--warmup", "1", "--cooldown", "1", "--timeout", "5"]
    return subprocess.run(
        [*command, *shape, "--fault", "none"],
        env={**os.environ, **environment}, check=False, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip


def test_a_run_over_tls_keeps_its_secrets(
    authority: trustme.CA, trusted: str, tmp_path: Path
) -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        while request := peer.request():
            seen.append(request)
            peer.send(GOOD if b"POST" in request[:4] else PLAIN)

    words = [
        "--ca",
        trusted,
        "--api-key-env",
        "PF_KEY",
        "--header-env",
        "X-Other=PF_OTHER",
        "--hosted",
    ]
    with tls_server(authority, script) as port:
        ran = percentes(
            tmp_path / "run", "--target", f"https://{HOST}:{port}", *words,
            PF_KEY=TOKEN, PF_OTHER=TOKEN + "-2",
        )  # fmt: skip
    assert ran.returncode in (0, 2), ran.stderr
    posts = [request for request in seen if request.startswith(b"POST")]
    assert posts
    assert all(f"Authorization: Bearer {TOKEN}\r\n".encode() in request for request in posts)
    assert all(f"X-Other: {TOKEN}-2\r\n".encode() in request for request in posts)
    assert not any(b"ignore_eos" in request for request in posts)
    for file in (tmp_path / "run").iterdir():
        assert TOKEN.encode() not in file.read_bytes(), file.name
    assert TOKEN not in ran.stdout + ran.stderr
    report = (tmp_path / "run" / "report.txt").read_text()
    assert "no kernel stamps" in report
    assert "hosted target" in report
    assert "NOT checked" not in report


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def test_insecure_is_said_aloud(authority: trustme.CA, tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        while request := peer.request():
            peer.send(GOOD if b"POST" in request[:4] else PLAIN)

    with tls_server(authority, script, name="elsewhere.test") as port:
        ran = percentes(tmp_path / "run", "--target", f"https://{HOST}:{port}", "--insecure")
    assert ran.returncode in (0, 2), ran.stderr
    assert "certificate was NOT checked (--insecure)" in ran.stdout
    assert "NOT checked" in (tmp_path / "run" / "report.html").read_text()


def test_a_variable_that_is_not_set(tmp_path: Path) -> None:
    ran = percentes(
        tmp_path / "run", "--api-key-env", "PF_ABSENT", "--target", "http://127.0.0.1:9"
    )
    assert ran.returncode == 1
    assert "PF_ABSENT: the environment variable is not set; export it" in ran.stderr
    assert not (tmp_path / "run").exists()


def test_an_untrusted_server_is_told_before_the_run(authority: trustme.CA, tmp_path: Path) -> None:
    with tls_server(authority, keep_answering(GOOD)) as port:
        ran = percentes(tmp_path / "run", "--target", f"https://{HOST}:{port}")
    assert ran.returncode == 1
    assert "TLS handshake failed" in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
