"""Figures as words: the same units and digits in every report.

Never: computes a figure. Plan: one small function a kind of value; unknown is n/a.
"""

from __future__ import annotations

from collections.abc import Mapping

UNKNOWN = "n/a"


def seconds(value: float | None, digits: int = 3) -> str:
    """Seconds with a fixed number of digits, n/a where unknown."""
    return UNKNOWN if value is None else f"{value:.{digits}f} s"


def micros(value: float | None) -> str:
    """A short duration in us or ms."""
    if value is None:
        return UNKNOWN
    return f"{value * 1e6:.1f} us" if value < 1e-3 else f"{value * 1e3:.2f} ms"


def percent(value: float | None) -> str:
    """A fraction in percent."""
    return UNKNOWN if value is None else f"{value:.2%}"


def classes(by_class: Mapping[str, int] | None) -> str:
    """`connect 66, reset 2`, or none."""
    return ", ".join(f"{name} {number}" for name, number in (by_class or {}).items()) or "none"
