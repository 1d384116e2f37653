"""Runs over SSH to which something happens: what cannot be done is told, what was measured is kept.

Does: loses connections, hosts, containers, clocks and this program itself in the middle of real
      runs against a real sshd and a real Docker engine, and looks at what is left on the host.
Never: leaves a process there; takes a fault for done that was not, or for undone that was.
Plan: what cannot start; what happens before the kill; what happens after it. Several runs are done
      at a time, each with a container and an sshd of its own; the tests look at what they left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from percentes_fast.observe.offset import BURST
from real_hosts import Dockerd, Sshd, faketime, program, sweep_faketime
from remote_run import (
    Done,
    Place,
    ended,
    fault,
    served,
    server,
    together,
    wait_evidence,
    wait_gone,
    wait_second,
)
from whole_run import call, manifest, only_timing_faults, report

pytestmark = pytest.mark.slow
UNFIRED = "not fired"
INTERRUPTED = "the run was interrupted before the fault was due"


@dataclass(frozen=True)
class Scene:
    """How one run ended, and what was seen beside it."""

    place: Place
    done: Done
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return self.place.out

    def rows(self, table: str) -> pd.DataFrame:
        return pd.read_parquet(self.out / f"{table}.parquet")


Scenes = dict[str, Scene]
Act = Callable[[Sshd, Dockerd, Path], Scene]


# ---------------------------------------------------------------- what cannot start


WRONG: dict[str, tuple[str, tuple[str, ...], str]] = {
    # name: (line of YAML, flags, what is said)
    "wrong key": ("", ("--ssh-identity", "WRONG"), "--ssh-identity"),
    "no such container": ("", ("--container", "nowhere"), "No such container: nowhere"),
    "stopped container": ("", ("--container", "stopped"), "is not running (it ended at "),
    "no engine": ("container: {command: no-such-engine}", (), "no-such-engine: not found"),
    "no such socket": ("container: {socket: /nowhere/s}", (), "unix:///nowhere/s"),
}


@pytest.fixture(scope="module")
def refused(
    sshd: Sshd, dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scenes]:
    """The same good server and host, and one thing wrong in each."""
    base = tmp_path_factory.mktemp("refused")
    with served(sshd, dockerd, base / "good") as good:
        dockerd.run("stopped", ["true"], restart="no")
        places = {name: replace(good, base=base / name) for name in WRONG}
        done = together({name: partial(start_wrong, places[name], name) for name in WRONG})
        dockerd.remove("stopped")
        good.wait_quiet()
        yield {name: Scene(places[name], done[name]) for name in WRONG}


def start_wrong(place: Place, name: str) -> Done:
    more, flags, _ = WRONG[name]
    config = place.write_config()
    if more:
        kept = [line for line in config.read_text().splitlines() if "container" not in line]
        config.write_text("\n".join([*kept, more]) + "\n")
    words = [str(place.sshd.wrong_identity) if word == "WRONG" else word for word in flags]
    return place.call(*words, config=config)


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_armed_is_one_line_and_leaves_nothing(refused: Scenes, name: str) -> None:
    scene = refused[name]
    assert scene.done.returncode == 1, scene.done.stdout
    (line,) = scene.done.stderr.splitlines()
    assert line.startswith("percentes-fast: ")
    assert WRONG[name][2] in line
    assert scene.done.stdout == ""
    assert not scene.out.exists()


# ---------------------------------------------------------------- what happens before the kill


def lost_connection(sshd: Sshd, dockerd: Dockerd, base: Path) -> Scene:
    """Before the identity is checked again; the listener lives."""
    with served(sshd, dockerd, base) as place:
        running = place.start()
        wait_second(place.out, 0.3, running)
        there = place.commands()
        sshd.drop_sessions()
        wait_gone(there)  # killer and reader end with their input
        return Scene(place, ended(running), {"there": there})


def lost_last_second(sshd: Sshd, dockerd: Dockerd, base: Path) -> Scene:
    """After the identity was checked again."""
    with served(sshd, dockerd, base) as place:
        running = place.start()
        wait_second(place.out, 2.4, running)
        sshd.drop_sessions()
        return Scene(place, ended(running))


def lost_host(sshd: Sshd, dockerd: Dockerd, base: Path) -> Scene:
    with served(sshd, dockerd, base) as place:
        running = place.start()
        wait_second(place.out, 0.3, running)
        sshd.kill()
        return Scene(place, ended(running))


def restarted(sshd: Sshd, dockerd: Dockerd, base: Path) -> Scene:
    """After the identity was checked again: only the killer can see it."""
    with served(sshd, dockerd, base) as place:
        running = place.start()
        wait_second(place.out, 2.0, running)
        dockerd.docker("restart", "--time", "0", place.name)
        return Scene(place, ended(running), {"pid": dockerd.first_process(place.name)})


def replaced(sshd: Sshd, dockerd: Dockerd, base: Path) -> Scene:
    """By another container of the same name, before the identity is checked again."""
    with served(sshd, dockerd, base) as place:
        running = place.start()
        wait_second(place.out, 0.0, running)
        dockerd.remove(place.name)
        other = dockerd.run(place.name, server(place.port))
        return Scene(place, ended(running), {"id": other})


def interrupted(sshd: Sshd, dockerd: Dockerd, base: Path) -> Scene:
    """When all but the order was given."""
    with served(sshd, dockerd, base) as place:
        running, pid = place.start(), dockerd.first_process(place.name)
        wait_second(place.out, 2.4, running)
        running.send_signal(signal.SIGINT)
        done = ended(running)
        place.wait_quiet()
        lives = dockerd.first_process(place.name) == pid
        return Scene(place, done, {"lives": lives})


# ---------------------------------------------------------------- what happens after it


def lost_after(sshd: Sshd, dockerd: Dockerd, base: Path) -> Scene:
    with served(sshd, dockerd, base) as place:
        running = place.start()
        wait_evidence(place.out, running)
        sshd.drop_sessions()
        done = ended(running)
        place.wait_quiet()
        accepted = sshd.log.read_text().count("Accepted publickey")
        return Scene(place, done, {"accepted": accepted})


def interrupted_after(sshd: Sshd, dockerd: Dockerd, base: Path) -> Scene:
    with served(sshd, dockerd, base) as place:
        running = place.start()
        wait_evidence(place.out, running)
        running.send_signal(signal.SIGINT)
        done = ended(running)
        place.wait_quiet()
        return Scene(place, done)


def killed_parent(sshd: Sshd, dockerd: Dockerd, base: Path) -> Scene:
    with served(sshd, dockerd, base) as place:
        running = place.start()
        wait_evidence(place.out, running)
        os.kill(running.pid, signal.SIGKILL)
        running.communicate()
        place.wait_quiet()
        return Scene(place, call("recover", str(place.out), cwd=place.base))


def unrestarted(sshd: Sshd, dockerd: Dockerd, base: Path) -> Scene:
    with served(sshd, dockerd, base, restart="no") as place:
        return Scene(place, place.call())


def stepped(_: Sshd, dockerd: Dockerd, base: Path) -> Scene:
    """The host's clock jumps by 50 ms half a second before the kill."""
    began = time.time()
    stamp = base.with_suffix(".stamp")
    stamp.write_text("+0\n")
    try:
        with (
            Sshd(environment=stepping_clock(stamp, base.with_suffix(".bin"))) as sshd,
            served(sshd, dockerd, base) as place,
        ):
            running = place.start()
            wait_second(place.out, 2.7, running)
            stamp.write_text("+0.05\n")
            return Scene(place, ended(running))
    finally:
        sweep_faketime(began)


def stepping_clock(stamp: Path, tools: Path) -> dict[str, str]:
    """Environment of sessions whose wall clock is off by what the file says.

    Without python3, whose sleeps libfaketime breaks: the killer is the one in shell.
    """
    tools.mkdir()
    for name in ("bash", "cat", "docker", "grep", "ls", "sleep", "tr", "uname"):
        (tools / name).symlink_to(program(name))
    fake = faketime("+0")
    del fake["FAKETIME"]  # else the file is not read
    more = {"FAKETIME_TIMESTAMP_FILE": str(stamp), "FAKETIME_NO_CACHE": "1", "PATH": str(tools)}
    return fake | more


# ---------------------------------------------------------------- all of it


UNFIRED_SCENES: tuple[Act, ...] = (
    lost_connection,
    lost_last_second,
    lost_host,
    restarted,
    replaced,
)
OTHER_SCENES: tuple[Act, ...] = (
    *(interrupted, lost_after, interrupted_after, killed_parent, unrestarted, stepped),
)


@pytest.fixture(scope="module")
def scenes(dockerd: Dockerd, tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    base = tmp_path_factory.mktemp("scenes")

    def scene(act: Act) -> Scene:
        with Sshd() as sshd:
            return act(sshd, dockerd, base / act.__name__)

    acts = (*UNFIRED_SCENES, *OTHER_SCENES)
    return together({act.__name__: partial(scene, act) for act in acts}, at_a_time=6)


@pytest.mark.parametrize("act", UNFIRED_SCENES)
def test_a_fault_that_was_not_fired_makes_a_kept_run_invalid(scenes: Scenes, act: Act) -> None:
    scene = scenes[act.__name__]
    assert scene.done.returncode == 2, scene.done.stderr
    found, told = report(scene.out), fault(scene.out)
    assert told["fire"] is None
    assert found["fault"]["landed"] is False
    (reason,) = (r for r in found["invalid_reasons"] if "fault" in r)
    assert reason == f"the fault did not land: {told['error']}"
    assert not found["partial"]
    assert found["counts"]["scheduled"] == len(
        scene.rows("requests").query("kind == 'load'")
    )  # the load went on to its end
    assert found["counts"]["cut"] == found["counts"]["client_fault"] == 0


def test_a_lost_connection_is_not_made_again_to_fire(scenes: Scenes) -> None:
    scene = scenes["lost_connection"]
    told = fault(scene.out)
    assert "connection was lost" in told["error"]
    assert UNFIRED in told["error"]
    assert len(scene.seen["there"]) >= 3  # the session, the killer, the reader
    assert told["container"]["after"]["restart_count"] == 0  # asked over a connection made anew


def test_a_connection_lost_in_the_last_second_fires_nothing(scenes: Scenes) -> None:
    told = fault(scenes["lost_last_second"].out)
    assert "connection was lost" in told["error"]
    assert told["container"]["after"]["pid"] == told["container"]["before"]["pid"]


def test_a_lost_host_is_told(scenes: Scenes) -> None:
    scene = scenes["lost_host"]
    told = fault(scene.out)
    assert "cannot be reached" in told["error"]
    assert UNFIRED in told["error"]
    assert "cannot be reached" in told["after_error"]
    assert any("clock samples ended early" in note for note in report(scene.out)["notes"])
    assert not set(scene.rows("offsets")["phase"]) & {"near", "after"}


def test_a_restarted_container_is_not_killed_again(scenes: Scenes) -> None:
    scene = scenes["restarted"]
    told = fault(scene.out)
    assert f"pid {told['armed']['pid']}" in told["error"]
    assert UNFIRED in told["error"]
    assert told["container"]["after"]["pid"] == scene.seen["pid"] != told["armed"]["pid"]


def test_a_container_of_the_same_name_is_another_one(scenes: Scenes) -> None:
    scene = scenes["replaced"]
    told = fault(scene.out)
    assert "--container replaced" in told["error"]
    assert UNFIRED in told["error"]
    assert told["container"]["after"]["id"] == scene.seen["id"] != told["container"]["before"]["id"]
    assert told["container"]["after"]["running"]


def test_an_interruption_calls_the_fault_off(scenes: Scenes) -> None:
    scene = scenes["interrupted"]
    assert scene.done.returncode == 130, scene.done.stderr
    assert fault(scene.out)["error"] == INTERRUPTED
    assert scene.seen["lives"]
    found = report(scene.out)
    assert found["partial"]
    assert not found["fault"]["landed"]
    assert "after" in set(scene.rows("offsets")["phase"])


def test_a_connection_lost_after_the_kill_costs_clock_samples_only(scenes: Scenes) -> None:
    scene = scenes["lost_after"]
    found = report(scene.out)
    assert only_timing_faults(found), found["invalid_reasons"]
    assert found["fault"]["landed"]
    assert any("clock samples ended early" in note for note in found["notes"])
    assert scene.seen["accepted"] == 2
    phases = scene.rows("offsets")["phase"].value_counts()
    assert phases["arm"] == phases["after"] == BURST
    assert found["clock"]["compat_drift_s"] is not None
    assert found["container"]["after"]["restart_count"] == 1


def test_an_interruption_after_the_kill_keeps_it(scenes: Scenes) -> None:
    scene = scenes["interrupted_after"]
    assert scene.done.returncode == 130, scene.done.stderr
    found = report(scene.out)
    assert found["partial"]
    assert found["fault"]["landed"]
    assert found["container"]["after"]["restart_count"] == 1
    assert found["in_flight"][0]["total"] > 0
    assert (scene.rows("requests")["outcome"] == "cut").any()


def test_a_killed_parent_leaves_offsets_and_metrics_to_recover(scenes: Scenes) -> None:
    scene = scenes["killed_parent"]
    assert scene.done.returncode == 130, scene.done.stderr
    found, told = report(scene.out), fault(scene.out)
    assert manifest(scene.out)["state"] == "partial"
    assert found["fault"]["landed"]
    assert told["fire"]["remote"]["before_remote_wall_ns"] > 0
    assert {"arm", "run", "near", "dial"} == set(scene.rows("offsets")["phase"])
    metrics = scene.rows("metrics")
    assert metrics["answered_ns"].notna().any()
    assert metrics["answered_ns"].max() < told["evidence"]["gone_ns"] + 2_000_000_000
    rules = {table["rule"]: table for table in found["in_flight"]}
    assert all(table["applicable"] and table["total"] for table in rules.values())
    assert "the burst after the load was lost" in rules["compat"]["note"]
    assert not list(scene.out.glob("*.journal"))


def test_a_container_that_is_only_killed_makes_the_run_invalid(scenes: Scenes) -> None:
    scene = scenes["unrestarted"]
    assert scene.done.returncode == 2, scene.done.stderr
    found = report(scene.out)
    assert found["fault"]["landed"]
    shared = ("G2", "G6", "G7: server: too few")  # several runs at a time
    (reason,) = (r for r in found["invalid_reasons"] if not r.startswith(shared))
    assert reason == "the container was not restarted by its policy (no), only killed"
    assert found["outage_s"] is None
    assert found["container"]["after"]["running"] is False


def test_a_stepped_clock_is_located_and_tight_falls_back(scenes: Scenes) -> None:
    scene = scenes["stepped"]
    found, told = report(scene.out), fault(scene.out)
    assert only_timing_faults(found), found["invalid_reasons"]
    assert any("stepped between" in note for note in found["notes"])
    assert any("no pidfd" in note for note in found["notes"])  # the killer in shell
    tables = {table["rule"]: table for table in found["in_flight"]}
    assert "one stepped by" in tables["tight"]["note"]
    assert "compat's interval is used" in tables["tight"]["note"]
    assert found["fire_uncertainty_s"] > 0.05  # the drift of compat is the step
    order = told["fire"]["before_ns"] / 1e9, told["fire"]["after_ns"] / 1e9
    assert order[0] <= tables["tight"]["lo_s"] <= tables["tight"]["hi_s"] <= order[1]
    assert tables["compat"]["lo_s"] < order[1] and order[0] < tables["compat"]["hi_s"]
