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


# files that take longest, so that three processes end at about the same time
LONGEST = (
    *("test_clock_trials", "test_campaign", "test_run_faults", "test_remote_faults", "test_run"),
    *("test_campaign_resume", "test_published", "test_interrupts", "test_stages"),
    *("test_tls", "test_host", "test_killer", "test_scrape", "test_real_hosts", "test_package"),
    *("test_supervisor", "test_mock", "test_mock_life", "test_client_faults"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; the rest stay in their order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


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
