"""Settings of every test: no time limit a single hypothesis example (machines are shared)."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
