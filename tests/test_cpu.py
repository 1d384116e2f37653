"""Isolated cores, governor and wake-up latency: read, used, and put back.

Never: changes a setting of this machine: the governor's files are real files of the test's own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from percentes_fast.engine import cpu


def machine(root: Path, isolated: str = "\n", governor: str | None = "schedutil") -> Path:
    """What /sys/devices/system/cpu holds on a machine of two cores."""
    (root / "isolated").write_text(isolated)
    for core in range(2):
        place = root / f"cpu{core}" / "cpufreq"
        place.mkdir(parents=True)
        if governor is not None:
            (place / "scaling_governor").write_text(governor + "\n")
    return root


@pytest.mark.parametrize(
    ("text", "cores"),
    [("\n", set()), ("3\n", {3}), ("1,4-6\n", {1, 4, 5, 6}), ("0-1,7\n", {0, 1, 7})],
)
def test_isolated_cores(text: str, cores: set[int], tmp_path: Path) -> None:
    assert cpu.isolated(machine(tmp_path, text)) == cores


def test_a_machine_without_the_file_isolates_nothing(tmp_path: Path) -> None:
    assert cpu.isolated(tmp_path) == set()


def test_usable_cores_leave_the_affinity_as_it_was() -> None:
    before = os.sched_getaffinity(0)
    assert set(cpu.usable()) >= before
    assert os.sched_getaffinity(0) == before


def test_the_governor_is_set_and_put_back(tmp_path: Path) -> None:
    root = machine(tmp_path)
    governed = cpu.Governed(1, root=root)
    governed.favour()
    assert (cpu.governor(0, root), cpu.governor(1, root)) == ("schedutil", "performance")
    assert governed.before == "schedutil"
    governed.restore()
    assert cpu.governor(1, root) == "schedutil"
    governed.restore()  # a second time changes nothing
    cpu.set_governor(1, "powersave", root)
    governed.restore()
    assert cpu.governor(1, root) == "powersave"


def test_a_governor_that_is_right_already_is_left_alone(tmp_path: Path) -> None:
    root = machine(tmp_path, governor="performance")
    governed = cpu.Governed(0, root=root)
    governed.favour()
    assert governed.before is None


def test_a_machine_without_governors(tmp_path: Path) -> None:
    governed = cpu.Governed(0, root=machine(tmp_path, governor=None))
    governed.favour()
    assert governed.before is cpu.governor(0, tmp_path) is None


def test_a_refused_governor_is_an_error_that_changed_nothing(tmp_path: Path) -> None:
    root = machine(tmp_path)
    file = root / "cpu0" / "cpufreq" / "scaling_governor"
    file.unlink()
    file.symlink_to("/proc/version")  # readable, and nobody may write it
    governed = cpu.Governed(0, root=root)
    with pytest.raises(OSError):
        governed.favour()
    assert governed.before is None


def test_wake_up_latency_is_a_descriptor_that_stays_open(tmp_path: Path) -> None:
    file = tmp_path / "latency"
    file.write_bytes(b"")
    fd = cpu.hold_awake(file)
    try:
        assert file.read_bytes() == bytes(4)
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)
    with pytest.raises(FileNotFoundError):
        cpu.hold_awake(tmp_path / "absent")
