"""Figures as words: the same units and digits in every report.

Never: computes a figure. Plan: one small function a kind of value; unknown is n/a.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

UNKNOWN = "n/a"
WIDTH = 110


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


def sent(outcomes: Mapping[str, Any]) -> str:
    """Outcomes of what was sent during an outage."""
    return (
        f"{outcomes['total']}: {outcomes['completed']} completed, {outcomes['errored']} errored"
        f" ({classes(outcomes['errored_by_class'])}), {outcomes['censored']} censored"
    )


def instrument(version: str, commit: str | None) -> str:
    """What measured."""
    return f"percentes-fast {version} ({commit or 'commit unknown'})"


Section = tuple[str, Iterable[str]]


def laid_out(opening: Iterable[str], sections: Iterable[Section], last: str) -> str:
    """A whole report: opening lines, each section that has lines under its title, the last line.

    Ends in a newline; no line is longer than WIDTH.
    """
    lines = list(opening)
    for title, body in sections:
        rows = list(body)
        if rows:
            lines += ["", title, "-" * len(title), *rows]
    lines += ["", last]
    return "\n".join(part for line in lines for part in _folded(line.rstrip())) + "\n"


def _folded(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    return textwrap.wrap(line, WIDTH, subsequent_indent="      ", break_on_hyphens=False)
