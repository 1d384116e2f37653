"""Addresses of a target: names with several, and the one that a run keeps to.

Never: asks a name server: what names stand for is given.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest

from percentes_fast import launch
from percentes_fast.errors import TargetError

PORT_OF_NOBODY = 9


def named(monkeypatch: pytest.MonkeyPatch, *ips: str) -> None:
    """A name that stands for these addresses, in this order, each twice."""

    def found(host: str, port: int, **_: Any) -> list[Any]:
        return [(0, 0, 0, "", (ip, port)) for ip in ips for _ in range(2)]

    monkeypatch.setattr(socket, "getaddrinfo", found)


def test_a_name_with_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "::1", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        addresses = launch.resolve(f"http://server.test:{port}/v1")
        assert [address.ip for address in addresses] == ["::1", "127.0.0.1"]
        chosen = launch.answering(addresses)
    assert (chosen.ip, chosen.port, chosen.host) == ("127.0.0.1", port, f"server.test:{port}")
    assert chosen.tls_name is None


def test_where_none_answers_the_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    named(monkeypatch, "127.0.0.2", "127.0.0.1")
    addresses = launch.resolve(f"https://server.test:{PORT_OF_NOBODY}")
    assert launch.answering(addresses).ip == "127.0.0.2"
    assert addresses[0].tls_name == "server.test"


def test_one_address_is_not_tried_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "listens", lambda _: pytest.fail("tried"))
    assert launch.answering(launch.resolve("http://127.0.0.1:9")).ip == "127.0.0.1"


def test_ipv6_hosts_keep_their_brackets() -> None:
    (address,) = launch.resolve("http://[::1]:8000")
    assert (address.ip, address.host) == ("::1", "[::1]:8000")


def test_a_name_that_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", missing)
    with pytest.raises(TargetError, match=r"server\.test: .* not known; mend the name"):
        launch.resolve("http://server.test:1")
