"""The three parsers alone, in C, under ASan and UBSan, with their input against a guard page.

Does: compiles csrc's parsers and tests/c/guard.c with the strict warnings as errors; gives the
program every case of the tables and the recorded answers; every split of each must agree.
Never: needs the built extension's object code, or passes when the sanitizers did not run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import test_http_parser
import test_json_scanner
import test_sse_scanner
from test_recorded_wire import LLAMA, VLLM

ROOT = Path(__file__).parent.parent
STRICT = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
LONGEST = 4096  # splits cost the square of an input's length
ENV = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def inputs() -> list[bytes]:
    """Every case of the tables, each once, and the recorded answers."""
    tables = (test_json_scanner.CASES, test_sse_scanner.CASES, test_http_parser.CASES)
    cases = [case[1] for table in tables for case in table]
    events = [b"data: " + case[1] + b"\n\n" for case in test_json_scanner.CASES]
    wire = [b"".join(reads) for reads in (*VLLM.values(), *LLAMA.values())]
    return [data[:LONGEST] for data in dict.fromkeys([*cases, *events, *wire])]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("guard") / "guard"
    sources = [
        ROOT / "tests/c/guard.c",
        *(ROOT / f"csrc/pf_{p}.c" for p in ("json", "http", "sse")),
    ]
    command = ["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", *STRICT, *SANITIZE, "-I", "csrc"]
    built = subprocess.run(
        [*command, *sources, "-o", target], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return target


def test_no_parser_reads_past_its_input_and_every_split_agrees(
    program: Path, tmp_path: Path
) -> None:
    cases = inputs()
    files = [tmp_path / str(i) for i in range(len(cases))]
    for file, data in zip(files, cases, strict=True):
        file.write_bytes(data)
    ran = subprocess.run(
        [program, *files], env=ENV, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    runs = 3 * sum(len(data) + 3 for data in cases)
    assert ran.stdout == f"{len(cases)} inputs, {runs} runs, 0 differ\n"


def test_the_program_is_built_with_the_address_sanitizer(program: Path) -> None:
    listed = subprocess.run(
        [program], env={**ENV, "ASAN_OPTIONS": "help=1"}, capture_output=True, check=False
    )
    assert b"AddressSanitizer" in listed.stderr + listed.stdout
