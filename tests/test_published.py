"""The published schema: the field names of the published campaign, and figures that audit derives.

Never: compares a figure with the module that wrote it: the audit derives it from raw readings.
Plan: a campaign and a single run in the published schema -> the same fields -> audit finds nothing
-> audit finds every figure that is changed -> runs that the schema cannot hold -> what lies between
two runs, told to the audit.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from percentes_fast.analysis import audit, published
from percentes_fast.analysis.audit_checks import BETWEEN
from percentes_fast.errors import DataError
from percentes_fast.rundir import CAMPAIGN
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


def test_a_run_that_did_not_recover_is_degraded_to_its_end(tmp_path: Path) -> None:
    run = remote()
    run.config["detector"] |= {"hold_s": 60}  # longer than the run
    document = published.document(run.write(tmp_path / "run"))
    found = document["campaign"]["per_run"][0]
    assert found["ttr_pre_fault_s"] is None
    path = found["receive_path"]
    # two a second from 10 to 30 s, of which the 8 of the outage were refused
    assert path["fault"]["client_ttft_count"] == 32
    assert path["fault_degraded"] == path["fault"]
    assert path["fault_recovered"]["client_ttft_count"] == 0
    assert differing(audited(document, tmp_path)) == []


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


# ---------------------------------------------------------------- what lies between two runs

ASIDE = "was running: interrupted, and done again"
LEFT_AS = [f".container.before.{key}" for key in ("pid", "restart_count")]


def attempted(path: Path, run: int, reason: str, directory: str | None) -> None:
    """Writes an attempt that is no run into campaign.json, as a campaign does."""
    file = path / CAMPAIGN
    told = json.loads(file.read_text())
    told["dropped"].append({"run": run, "reason": reason, "directory": directory})
    file.write_text(json.dumps(told))


def put_aside(path: Path, run: int, count: int = 1) -> Path:
    attempted(path, run, ASIDE, f"run-{run}-interrupted-{count}")
    return path


def chains(document: Any) -> list[str | None]:
    """Each run's statement of what lies before it."""
    found: list[str | None] = []
    for gates in document["validity_gates"]:
        mine = [gate["detail"] for gate in gates["gates"] if gate["id"] == "chain"]
        found.append(mine[0] if mine else None)
    return found


def differing(found: audit.Audit) -> list[str]:
    return [check.where for check in found.checks if check.agrees is False]


def unchained(found: audit.Audit) -> list[str]:
    silent = [check for check in found.checks if check.agrees is None and check.note == BETWEEN]
    return [check.where for check in silent if ".gates[" not in check.where]


def left_as(*places: int) -> list[str]:
    return [f"campaign.per_run[{place}]{end}" for place in places for end in LEFT_AS]


def test_a_kill_in_an_attempt_put_aside_is_no_difference(tmp_path: Path) -> None:
    """Run 2 was killed after its kill (restart 1 -> 2) and done again (2 -> 3)."""
    path = campaign(tmp_path / "c", [remote(0), remote(2), remote(3)])
    document = published.document(put_aside(path, 2))
    found = audited(document, tmp_path)
    assert differing(found) == []
    assert unchained(found) == left_as(1)
    assert chains(document) == [None, f"since run-1: run-2-interrupted-1: {ASIDE}", None]
    assert f"Dropped: run 2: {ASIDE}" in document["caveat"]
    told = [gate for gate in document["validity_gates"][1]["gates"] if gate["id"] == "chain"]
    assert [gate["applicable"] for gate in told] == [False]
    assert fields(document) - fields(json.loads(PUBLISHED.read_text())) == STRIPPED


def test_several_attempts_are_each_named(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", [remote(0), remote(3)])
    document = published.document(put_aside(put_aside(path, 2), 2, count=2))
    assert audited(document, tmp_path).differing == 0
    (said,) = filter(None, chains(document))
    assert "run-2-interrupted-1" in said
    assert "run-2-interrupted-2" in said


def test_with_nothing_in_between_a_broken_chain_differs(tmp_path: Path) -> None:
    document = published.document(campaign(tmp_path / "c", [remote(0), remote(2)]))
    found = audited(document, tmp_path)
    assert differing(found) == left_as(1)
    assert unchained(found) == []
    assert chains(document) == [None, None]


def test_an_attempt_excuses_the_chain_before_its_run_only(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", [remote(0), remote(2), remote(4)])
    found = audited(published.document(put_aside(path, 2)), tmp_path)
    assert differing(found) == left_as(2)
    assert unchained(found) == left_as(1)


def test_an_attempt_at_the_first_run_excuses_nothing(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", [remote(1), remote(3)])
    document = published.document(put_aside(path, 1))
    assert chains(document) == [None, None]
    assert differing(audited(document, tmp_path)) == left_as(1)


def test_a_run_that_could_not_start_lies_between(tmp_path: Path) -> None:
    path = campaign(tmp_path / "c", [remote(0), remote(1), remote(5)])
    shutil.rmtree(path / "run-2")
    attempted(path, 2, "could not start: --container vllm: is not running", None)
    document = published.document(path)
    assert audited(document, tmp_path).differing == 0
    assert chains(document) == [
        None,
        "since run-1: run 2: could not start: --container vllm: is not running",
    ]


def test_a_kill_long_after_its_plan_says_from_when_recovery_counts(tmp_path: Path) -> None:
    """By hand: planned 3 s before the kill of 10 s, so the plan is what recovery counts from."""
    late = remote(0)
    assert late.fault is not None
    late.fault["planned_ns"] -= 3 * S
    document = published.document(campaign(tmp_path / "c", [late]))
    gates = document["validity_gates"][0]["gates"]
    assert gates[-1]["id"] == "late"
    assert re.fullmatch(r"fired 3\.\d{3} s after its plan, .*", gates[-1]["detail"])
    assert differing(audited(document, tmp_path)) == []
    gates.pop()
    assert differing(audited(document, tmp_path)) == [
        "campaign.per_run[0].ttr_pre_fault_s",
        "campaign.per_run[0].receive_path.outage.client_ttft_count",
    ]
    on_time = published.document(campaign(tmp_path / "d", [remote(0)]))
    assert "late" not in {gate["id"] for gate in on_time["validity_gates"][0]["gates"]}


# ---------------------------------------------------------------- runs without a place


def unseen(run: Run) -> str:
    """The host was lost before the container could be looked at again."""
    assert run.fault is not None
    run.fault["container"] |= {"after": None, "events": None, "log_lines": None}
    run.fault["after_error"] = "ssh me@host: no answer"
    return "the container was not looked at after the load: ssh me@host: no answer"


def burst_lost(run: Run) -> str:
    """The host's clock was not read any more after the load."""
    assert run.fault is not None
    run.offsets = [sample for sample in run.offsets if sample["phase"] != "after"]
    run.fault["clock"]["lost"] = "ssh me@host: ended early"
    return "the burst of clock samples after the load is missing: ssh me@host: ended early"


def nothing_after(run: Run) -> str:
    """No sample at all since arming, and nothing known of why."""
    run.offsets = [sample for sample in run.offsets if sample["phase"] in ("arm", "dial")]
    return "the burst of clock samples after the load is missing"


def unfired(run: Run) -> str:
    assert run.fault is not None
    run.fault |= {"fire": None, "evidence": None, "error": "the killer is gone"}
    return "the fault did not land: the killer is gone"


def refused_signal(run: Run) -> str:
    assert run.fault is not None
    run.fault["fire"]["errno"] = 3
    run.fault["evidence"] = None
    return "the fault did not land: the kernel refused the signal (errno 3)"


LOST = [unseen, burst_lost, nothing_after, unfired, refused_signal]


@pytest.mark.parametrize("lose", LOST)
def test_a_run_without_a_place_is_left_out_and_named(lose: Any, tmp_path: Path) -> None:
    bad = remote(1)
    why = lose(bad)
    document = published.document(campaign(tmp_path / "c", [remote(0), bad, remote(2)]))
    inner = document["campaign"]
    logs = [run["container"]["log_path"] for run in inner["per_run"]]
    assert logs == ["run-1/server.log", "run-3/server.log"]
    assert [run["run"] for run in inner["per_run"]] == [1, 2]
    assert inner["repetitions"] == inner["valid_runs"] + inner["invalid_runs"] == 2
    assert document["caveat"] == inner["caveat"]
    assert f"Left out of this file: run 2: {why}." in document["caveat"]
    assert "Dropped: run 2" not in document["caveat"]
    assert chains(document) == [None, f"since run-1: run-2: {why}"]
    found = audited(document, tmp_path)
    assert differing(found) == []
    assert unchained(found) == left_as(1)


@pytest.mark.parametrize("lose", [unseen, burst_lost, unfired])
def test_where_no_run_has_a_place_the_error_says_why(lose: Any, tmp_path: Path) -> None:
    runs = [remote(0), remote(1)]
    why = [lose(run) for run in runs]
    with pytest.raises(DataError) as caught:
        published.document(campaign(tmp_path / "c", runs))
    said = f"run 1: {why[0]}; run 2: {why[1]}; `report --format json` has everything"
    assert str(caught.value) == f"c: has no run that can be published: {said}"


def test_one_run_without_a_place_says_why(tmp_path: Path) -> None:
    run = remote()
    why = unseen(run)
    with pytest.raises(DataError, match="run-7: has no run that can be published: the container"):
        published.document(run.write(tmp_path / "run-7"))
    assert why.startswith("the container was not looked at after the load")


@pytest.mark.parametrize("lose", [None, unseen, unfired])
def test_a_campaign_of_another_fault_is_refused_as_such(lose: Any, tmp_path: Path) -> None:
    runs = [remote(0), remote(1)]
    for run in runs:
        assert run.fault is not None
        run.fault["kind"] = "term"
    if lose is not None:
        lose(runs[0])
    with pytest.raises(DataError, match=f"run-1: {published.ONLY}"):
        published.document(campaign(tmp_path / "c", runs))


def test_times_are_printed_without_rounding() -> None:
    assert published.rfc3339(1790957731_344250405) == "2026-10-02T16:15:31.344250405Z"
    assert published.rfc3339(1790957731_344250400) == "2026-10-02T16:15:31.3442504Z"
    assert published.rfc3339(1790957731 * S) == "2026-10-02T16:15:31Z"
