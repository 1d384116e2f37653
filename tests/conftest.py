"""Settings of every test, and the fixture that runs a test on both engines.

No time limit a single hypothesis example (machines are shared). In CI the examples are the same
each time, so that a change is judged by itself; elsewhere new ones are tried at every run.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

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
