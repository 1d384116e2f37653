"""The published schema: the field names of the published campaign, and figures that audit derives.

Never: compares a figure with the module that wrote it: the audit derives it from raw readings.
Plan: a campaign and a single run in the published schema -> the same fields -> audit finds nothing
-> audit finds every figure that is changed -> runs that the schema cannot hold.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from percentes_fast.analysis import audit, published
from percentes_fast.errors import DataError
from remote_story import OFFSET, SIGNAL, campaign, remote
from run_builder import EPOCH_WALL, Run, S, story, the_fault

PUBLISHED = Path(__file__).resolve().parent / "data" / "golden" / "campaign-2026-10-02.json"


# prose, addresses and file names of the published file, left out of its copy here (see ORIGIN.md)
STRIPPED = {
    ".caveat",
    ".campaign.caveat",
    ".campaign.endpoints[].dropped_reason",
    ".campaign.per_run[].container.after.id",
    ".campaign.per_run[].container.before.id",
    ".campaign.per_run[].container.fingerprint_after_path",
    ".campaign.per_run[].container.fingerprint_before_path",
    ".campaign.per_run[].container.log_path",
    ".campaign.per_run[].decomposition.segments[].note",
    ".campaign.per_run[].equilibrium_note",
    ".validity_gates[].gates[].name",
}


def audited(document: Any, tmp_path: Path) -> audit.Audit:
    path = tmp_path / "document.json"
    path.write_text(json.dumps(document))
    return audit.audit_file(path)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("published") / "campaign"
    return published.document(campaign(path, [remote(k) for k in range(3)]))


def test_audit_derives_every_figure_again(three: dict[str, Any], tmp_path: Path) -> None:
    found = audited(three, tmp_path)
    assert [check.where for check in found.checks if check.agrees is False] == []
    assert found.derived > 250
    assert [timeline.fire_ns for timeline in found.timelines] == [SIGNAL + EPOCH_WALL] * 3


def fields(value: Any, path: str = "") -> set[str]:
    """Paths of all members; an array's elements count as one, keys that are data as any."""
    if isinstance(value, list):
        return set().union(*(fields(each, f"{path}[]") for each in value)) if value else set()
    if not isinstance(value, dict):
        return {path}
    found: set[str] = set()
    for key, inner in value.items():
        data = path.endswith(
            (".errored_by_class", "_by_class", ".matches", ".figures", "log_figures")
        )
        found |= fields(inner, f"{path}.{'*' if data else key}")
    return found


def test_the_field_names_are_the_published_ones(three: dict[str, Any]) -> None:
    theirs = fields(json.loads(PUBLISHED.read_text()))
    ours = fields(three)
    assert ours - theirs == STRIPPED
    assert theirs - ours == set()


@pytest.mark.parametrize(
    "change",
    [
        lambda run: run["container"]["kill"].update(
            remote_before_ns=run["container"]["kill"]["remote_before_ns"] + 2
        ),
        lambda run: run["container"].update(
            fire_uncertainty_ns=run["container"]["fire_uncertainty_ns"] + 1
        ),
        lambda run: run.update(outage_s=run["outage_s"] + 1e-5),
        lambda run: run.update(container_start_s=run["container_start_s"] + 1e-7),
        lambda run: run["container"]["after"].update(restart_count=9),
        lambda run: run.update(ttr_pre_fault_s=run["ttr_pre_fault_s"] + 1),
        lambda run: run["outage_outcomes"].update(errored=1),
        lambda run: run["decomposition"]["segments"][1].update(
            end_at=published.rfc3339(EPOCH_WALL + 11 * S)
        ),
        lambda run: run["in_flight_determinate"].update(total=99),
    ],
)
def test_audit_finds_a_changed_figure(three: dict[str, Any], change: Any, tmp_path: Path) -> None:
    changed = copy.deepcopy(three)
    change(changed["campaign"]["per_run"][1])
    assert audited(changed, tmp_path).differing > 0


def test_one_run_is_a_campaign_of_one(tmp_path: Path) -> None:
    run = remote().write(tmp_path / "run")
    document = published.document(run)
    assert len(document["campaign"]["per_run"]) == 1
    assert audited(document, tmp_path).differing == 0


def test_an_invalid_run_says_why_as_a_gate_of_its_own(tmp_path: Path) -> None:
    bad = remote()
    assert bad.fault is not None
    bad.fault["evidence"]["gone_ns"] = None
    document = published.document(campaign(tmp_path / "c", [remote(), bad]))
    gates = document["validity_gates"][1]["gates"]
    assert gates[-1]["id"] == "fault"
    assert "did not land" in gates[-1]["detail"]
    assert document["campaign"]["valid_runs"] == 1
    found = audited(document, tmp_path)
    # the second story begins where the first began, so only the container's history differs
    wrong = {check.where for check in found.checks if check.agrees is False}
    assert all("container.before" in where for where in wrong), wrong


def local_kill() -> Run:
    run = story()
    run.fault = the_fault()
    return run


@pytest.mark.parametrize("kind", ["kill_child", "term", "stop"])
def test_other_faults_have_no_place_in_the_published_schema(kind: str, tmp_path: Path) -> None:
    run = remote()
    assert run.fault is not None
    run.fault["kind"] = kind
    with pytest.raises(DataError, match="kill of a container's first process"):
        published.document(run.write(tmp_path / "run"))


def test_a_kill_without_a_container_neither(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="kill of a container's first process"):
        published.document(local_kill().write(tmp_path / "run"))


def test_a_container_of_this_machine_is_on_one_clock(tmp_path: Path) -> None:
    run = remote()
    assert run.fault is not None
    run.fault |= {"same_clock": True, "host": "this machine"}
    run.fault["fire"] |= {"before_ns": SIGNAL - 5, "after_ns": SIGNAL + 6, "remote": None}
    run.offsets = []
    shift = OFFSET - EPOCH_WALL  # the story's log is 8 ms ahead; here it is on the client's clock
    run.log = "".join(
        f"{int(line.split(' ')[0]) - shift} {line.partition(' ')[2]}\n"
        for line in run.log.splitlines()
    )
    document = published.document(run.write(tmp_path / "run"))
    box = document["campaign"]["per_run"][0]["container"]
    assert box["fire_uncertainty_ns"] == 5
    assert box["offset_at_arm"]["bound_ns"] == 0
    assert audited(document, tmp_path).differing == 0


def test_times_are_printed_without_rounding() -> None:
    assert published.rfc3339(1790957731_344250405) == "2026-10-02T16:15:31.344250405Z"
    assert published.rfc3339(1790957731_344250400) == "2026-10-02T16:15:31.3442504Z"
    assert published.rfc3339(1790957731 * S) == "2026-10-02T16:15:31Z"
