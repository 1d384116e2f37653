"""Settings of every test, a test on both engines, and the real services of the session.

No time limit a single hypothesis example (machines are shared). In CI the examples are the same
each time, so that a change is judged by itself; elsewhere new ones are tried at every run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from real_hosts import Dockerd, Sshd

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that use `both_engines` run once an engine; those marked native_only on that one."""
    if "both_engines" in metafunc.fixturenames:
        alone = metafunc.definition.get_closest_marker("native_only")
        kinds = ["native"] if alone else ["native", "asyncio"]
        metafunc.parametrize("both_engines", kinds, indirect=True)


@pytest.fixture
def both_engines(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine that the test's Bench makes."""
    from raw_server import Bench

    monkeypatch.setattr(Bench, "kind", request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def sshd() -> Iterator[Sshd]:
    """A real sshd, started by the first test that asks; raises where it cannot be."""
    from real_hosts import Sshd

    with Sshd() as started:
        yield started


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """A real Docker engine, started by the first test that asks; raises where it cannot be."""
    from real_hosts import Dockerd

    with Dockerd() as started:
        started.import_image()
        yield started
