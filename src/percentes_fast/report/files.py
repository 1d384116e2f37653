"""The reports of a directory, a run's or a campaign's: report.json, report.txt, report.html.

Never: computes. Plan: analyze once, write the three atomically, or render one of them.
"""

from __future__ import annotations

import json
from pathlib import Path

from percentes_fast.analysis.campaign import CampaignSummary
from percentes_fast.analysis.campaign import analyze as analyze_campaign
from percentes_fast.analysis.summary import analyze
from percentes_fast.analysis.tree import Summary, to_json
from percentes_fast.report import campaign, text
from percentes_fast.rundir import RunDir, is_campaign


def write(path: Path, *, as_json: bool) -> tuple[Summary | CampaignSummary, str]:
    """Writes the reports of a run or a campaign; its Summary, and the one asked for as text."""
    summary, data, shown, page = _whole(path) if is_campaign(path) else _one(path)
    directory = RunDir(path)
    directory.write_bytes("report.json", data)
    directory.write_bytes("report.txt", shown.encode())
    directory.write_bytes("report.html", page.encode())
    return summary, data.decode() if as_json else shown


def _one(path: Path) -> tuple[Summary, bytes, str, str]:
    from percentes_fast.report import html

    found = analyze(path)
    shown = text.render(found.summary)
    return found.summary, to_json(found.summary), shown, html.render(found.summary, found.points)


def _whole(path: Path) -> tuple[CampaignSummary, bytes, str, str]:
    from percentes_fast.report import html

    found = analyze_campaign(path).summary
    return found, to_json(found), campaign.render(found), html.render_campaign(found)


def render(path: Path, shape: str) -> str:
    """One report of a run or a campaign: text, json, html or percentes. Writes nothing."""
    if shape == "percentes":
        from percentes_fast.analysis import published

        return json.dumps(published.document(path), indent=2, ensure_ascii=False) + "\n"
    _, data, shown, page = _whole(path) if is_campaign(path) else _one(path)
    return {"json": data.decode(), "html": page, "text": shown}[shape]
