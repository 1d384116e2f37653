"""The reports of a run directory as files: report.json, report.txt, report.html.

Never: computes. Plan: analyze once, write the three atomically, or render one of them.
"""

from __future__ import annotations

from pathlib import Path

from percentes_fast.analysis.summary import analyze
from percentes_fast.analysis.tree import Summary, to_json
from percentes_fast.report import text
from percentes_fast.rundir import RunDir


def write(path: Path, *, as_json: bool) -> tuple[Summary, str]:
    """Writes the reports of a run; the Summary, and the one asked for as text."""
    from percentes_fast.report import html

    found = analyze(path)
    directory = RunDir(path)
    data = to_json(found.summary)
    shown = text.render(found.summary)
    directory.write_bytes("report.json", data)
    directory.write_bytes("report.txt", shown.encode())
    directory.write_bytes("report.html", html.render(found.summary, found.points).encode())
    return found.summary, data.decode() if as_json else shown


def render(path: Path, shape: str) -> str:
    """One report of a run: text, json or html. Writes nothing."""
    found = analyze(path)
    if shape == "json":
        return to_json(found.summary).decode()
    if shape == "html":
        from percentes_fast.report import html

        return html.render(found.summary, found.points)
    return text.render(found.summary)
