"""The package itself: what is in sdist and wheel, what works without the core, start-up cost."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import percentes_fast

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "golden"


def run(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, **env},
    )


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, built from a copy so that the checkout stays as it is."""
    out = tmp_path_factory.mktemp("sdist")
    copy = tmp_path_factory.mktemp("source") / "copy"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    done = run(sys.executable, "-m", "build", "-q", "-n", "-s", "-o", str(out), cwd=copy)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.tar.gz"))


@pytest.mark.slow
def test_sdist_is_complete(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for path in (ROOT / "csrc").glob("*.[ch]"):
        assert f"csrc/{path.name}" in names
    for wanted in (
        "setup.py", "README.md", "CHANGELOG.md", "src/percentes_fast/_native.pyx",
        "src/percentes_fast/_native.pyi", "src/percentes_fast/report/report.html.j2",
        "src/percentes_fast/py.typed", "tests/test_package.py", "configs/demo.yaml",
    ):  # fmt: skip
        assert wanted in names
    assert not [name for name in names if name.endswith((".so", "_native.c"))]


@pytest.mark.slow
def test_wheel_from_the_sdist_holds_core_and_data(sdist: Path, tmp_path: Path) -> None:
    done = run(
        sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
        "-w", str(tmp_path), str(sdist), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert any(name.startswith("percentes_fast/_native.cpython") for name in names)
    for wanted in ("report/report.html.j2", "py.typed", "_native.pyi", "_build.py"):
        assert f"percentes_fast/{wanted}" in names


@pytest.mark.slow
def test_judging_works_from_a_wheel_without_the_core(sdist: Path, tmp_path: Path) -> None:
    done = run(
        sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
        "-w", str(tmp_path), str(sdist), cwd=tmp_path, PERCENTES_FAST_NO_EXT="1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wheel = next(tmp_path.glob("*-none-any.whl"))
    place = tmp_path / "place"
    zipfile.ZipFile(wheel).extractall(place)
    campaign = next(DATA.glob("campaign*.json"))
    done = run(
        sys.executable, "-m", "percentes_fast.cli", "audit", str(campaign),
        cwd=tmp_path, PYTHONPATH=str(place),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 differ" in done.stdout
    done = run(
        sys.executable, "-m", "percentes_fast.cli", "run", cwd=tmp_path, PYTHONPATH=str(place)
    )
    assert done.returncode == 1
    assert "compiled core" in done.stderr


def test_help_costs_little(tmp_path: Path) -> None:
    """Under 0.3 s of CPU: told by the operating system, the best of three."""
    costs = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run(sys.executable, "-m", "percentes_fast.cli", "--help", cwd=tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(costs) < 0.3


@pytest.mark.parametrize("heavy", ["numpy", "pandas", "pyarrow", "pydantic", "matplotlib"])
def test_import_is_light(heavy: str, tmp_path: Path) -> None:
    code = f"import sys, percentes_fast, percentes_fast.cli; sys.exit({heavy!r} in sys.modules)"
    assert run(sys.executable, "-c", code, cwd=tmp_path).returncode == 0


def test_public_names_are_there() -> None:
    for name in percentes_fast.__all__:
        assert getattr(percentes_fast, name) is not None
    with pytest.raises(AttributeError):
        _ = percentes_fast.nothing
