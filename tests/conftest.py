"""Settings of every test: no time limit a single hypothesis example (machines are shared).

In CI the examples are the same each time, so that a change is judged by itself; elsewhere new ones
are tried at every run.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
