"""How long before a fault on another host its last check begins: as long as the host then takes."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from percentes_fast import injection
from percentes_fast.errors import FaultError
from percentes_fast.injection import Injection

MS = 1_000_000


def ahead_ns(monkeypatch: pytest.MonkeyPatch, check: Any, *, here: bool = False) -> int:
    """Of a fault that is due just after the moment of the try, which takes what `check` takes."""
    monkeypatch.setattr(injection, "TRY_AHEAD_NS", 100 * MS)
    made: Any = Injection.__new__(Injection)
    made._host, made._container = SimpleNamespace(is_here=here), None
    made._epoch = time.monotonic_ns()
    made._config = SimpleNamespace(duration_s=60.0)
    made.facts = {"planned_ns": 150 * MS}
    monkeypatch.setattr(Injection, "_check", lambda self, armed: check())
    found: int = made._ahead_ns(None, made._epoch + 150 * MS, threading.Event())
    return found


def test_as_long_as_the_host_takes_under_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ahead_ns(monkeypatch, lambda: None) == injection.CHECK_THERE_NS
    found = ahead_ns(monkeypatch, lambda: time.sleep(0.8))
    assert 2_600 * MS <= found < injection.CHECK_MOST_NS


def test_a_try_that_fails_leaves_the_most_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise FaultError("no answer")

    assert ahead_ns(monkeypatch, fails) == injection.CHECK_MOST_NS


def test_this_machine_needs_no_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> None:
        raise AssertionError

    assert ahead_ns(monkeypatch, never, here=True) == injection.CHECK_HERE_NS
