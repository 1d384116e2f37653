"""The dry kill: the fault done once over SSH, without load, to see that everything works.

Does: a real kill in a real container, from the command line, and one that cannot be armed.
Never: leaves a directory where nothing was done.
Plan: both calls at a time; what each said, and what fault.json holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from real_hosts import Dockerd, Sshd
from remote_run import Done, Place, fault, served, together

pytestmark = pytest.mark.slow
Calls = dict[str, tuple[Place, Done]]


@pytest.fixture(scope="module")
def calls(
    sshd: Sshd, dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Calls]:
    base = tmp_path_factory.mktemp("dry")
    with served(sshd, dockerd, base / "dry-victim") as victim:
        lost = replace(victim, base=base / "lost", name="nowhere")
        places = {"landed": victim, "lost": lost}
        done = together(
            {
                name: lambda place=place: place.call("--dry-kill", verb="campaign")
                for name, place in places.items()
            }
        )
        yield {name: (place, done[name]) for name, place in places.items()}
        victim.wait_quiet()


def test_it_lands_and_says_so_in_one_line(calls: Calls) -> None:
    place, done = calls["landed"]
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("dry kill landed; it served again within ")
    kept = sorted(each.name for each in place.out.iterdir())
    assert kept == ["config.yaml", "fault.json", "server.log"]


def test_fault_json_holds_the_container_before_and_after(calls: Calls) -> None:
    place, _ = calls["landed"]
    told = fault(place.out)
    before, after = told["container"]["before"], told["container"]["after"]
    assert before["running"] and after["running"]
    assert before["id"] == after["id"]
    assert before["pid"] == told["armed"]["pid"] != after["pid"]
    assert (before["restart_count"], after["restart_count"]) == (0, 1)
    kill_ns = told["fire"]["remote"]["before_remote_wall_ns"]
    events = told["container"]["events"]
    later = [event["action"] for event in events if event["at_remote_wall_ns"] > kill_ns]
    assert later == ["die", "start"]
    assert told["fire"]["errno"] == 0
    assert told["evidence"]["gone_ns"] > told["fire"]["before_ns"] >= told["planned_ns"]
    assert told["served_again_s"] > 0


def test_a_container_that_is_not_there_is_told_and_leaves_nothing(calls: Calls) -> None:
    place, done = calls["lost"]
    assert done.returncode == 1
    assert done.stdout == ""
    *said, error = done.stderr.splitlines()
    assert said == ["dry kill: arming"]
    assert error.startswith("percentes-fast: --container nowhere on ssh ")
    assert "No such container" in error
    assert not place.out.exists()


def test_a_container_that_nothing_starts_again_is_left_alone(
    sshd: Sshd, dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("unrestarted")
    with served(sshd, dockerd, base / "unrestarted-victim", restart="no") as victim:
        done = victim.call("--dry-kill", verb="campaign")
        assert done.returncode == 1
        assert "has no restart policy" in done.stderr
        assert dockerd.first_process(victim.name) != 0
        assert not victim.out.exists()
