"""Builds the fuzz targets and runs each for a time: executions, coverage, findings.

Does: builds with clang under ASan and UBSan, fuzzes from the seeds and from what earlier sessions
found new, replays all of it in a build that counts lines, prints one block a target. Exit code 1
with the input's path on any finding, and where clang is missing.
Never: changes fuzz/corpus (new inputs go to fuzz/build/corpus, findings to fuzz/found), or ends
well when a target could not be built or did not run.
Plan: Target names the sources; build -> fuzz -> cover; figures are read from libFuzzer's own lines.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUZZ = Path("fuzz")
BUILD = FUZZ / "build"
FOUND = FUZZ / "found"
STRICT = ["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
SANITIZE = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
COUNTED = ["-fsanitize=fuzzer", "-fprofile-instr-generate", "-fcoverage-mapping"]
LIMITS = ["-timeout=5", "-rss_limit_mb=2048", "-max_len=4096"]
MARGIN_S = 120  # beyond the time asked for: loading the corpus, writing the end


@dataclass(frozen=True)
class Target:
    """One fuzz target and the files of csrc/ that it holds."""

    name: str
    parsers: tuple[str, ...]

    @property
    def sources(self) -> list[str]:
        """What is compiled."""
        return [f"fuzz/fuzz_{self.name}.c", *(f"csrc/pf_{parser}.c" for parser in self.parsers)]

    @property
    def corpora(self) -> list[str]:
        """Where inputs come from; libFuzzer writes new ones to the first."""
        return [str(BUILD / "corpus" / self.name), str(FUZZ / "corpus" / self.name)]


TARGETS = (Target("http", ("http",)), Target("sse", ("sse", "json")))


class FuzzError(Exception):
    """Nothing could be run; the message says why."""


def run(command: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the project's root and keeps what it prints."""
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def build(target: Target, flags: list[str], suffix: str = "") -> str:
    """Compiles a target; returns the program's path from the root."""
    program = str(BUILD / f"fuzz_{target.name}{suffix}")
    command = ["clang", *STRICT, "-O1", "-g", *flags, "-Icsrc", *target.sources, "-o", program]
    built = run(command)
    if built.returncode != 0:
        raise FuzzError(f"{target.name} does not build\n{built.stderr}")
    return program


def last_number(pattern: str, text: str) -> int:
    """The last match's number; 0 where there is none."""
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def fuzz(target: Target, seconds: int) -> str:
    """One session; returns what libFuzzer said. Raises nothing on a finding."""
    program = build(target, SANITIZE)
    (ROOT / target.corpora[0]).mkdir(parents=True, exist_ok=True)
    options = [*LIMITS, f"-max_total_time={seconds}", f"-dict=fuzz/{target.name}.dict"]
    options += ["-print_final_stats=1", f"-artifact_prefix={FOUND}/{target.name}-"]
    try:
        ran = subprocess.run(
            [f"./{program}", *options, *target.corpora],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=seconds + MARGIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FuzzError(f"{target.name} did not end in {seconds + MARGIN_S} s") from error
    said = ran.stderr.decode(errors="replace")
    if ran.returncode != 0 and not findings(said):
        raise FuzzError(f"{target.name} ended with code {ran.returncode}\n{said[-4000:]}")
    return said


def findings(said: str) -> list[str]:
    """Paths of the inputs that libFuzzer saved."""
    return re.findall(r"Test unit written to (\S+)", said)


def reason(said: str) -> str:
    """The line that says what went wrong."""
    pattern = r".*(?:property does not hold|runtime error|ERROR: \w+Sanitizer|ERROR: libFuzzer).*"
    found = re.search(pattern, said)
    return found[0].strip() if found else "no reason given"


def coverage(target: Target) -> str:
    """Lines and branches of the parsers over all inputs, as llvm-cov tells them."""
    if not (shutil.which("llvm-profdata") and shutil.which("llvm-cov")):
        return "  lines and branches: llvm-profdata and llvm-cov are not installed"
    program = build(target, COUNTED, "_counted")
    raw, merged = BUILD / f"{target.name}.profraw", BUILD / f"{target.name}.profdata"
    names = [f"csrc/pf_{parser}.c" for parser in target.parsers]
    steps = (
        [f"./{program}", "-runs=0", *LIMITS, *target.corpora],
        ["llvm-profdata", "merge", "-sparse", str(raw), "-o", str(merged)],
        ["llvm-cov", "export", "-summary-only", f"-instr-profile={merged}", program, *names],
    )
    for step in steps:
        ran = run(step, LLVM_PROFILE_FILE=str(raw))
        if ran.returncode != 0:
            return f"  lines and branches: {step[0]} failed: {ran.stderr[-300:]}"
    return covered(ran.stdout)


def covered(report: str) -> str:
    """One line a file of an llvm-cov export."""
    lines = []
    for file in json.loads(report)["data"][0]["files"]:
        parts = [
            f"{kind} {count['covered']}/{count['count']} ({count['percent']:.1f} %)"
            for kind, count in file["summary"].items()
            if kind in ("lines", "branches", "functions")
        ]
        lines.append(f"  {Path(file['filename']).name}: {', '.join(parts)}")
    return "\n".join(lines)


def report(target: Target, said: str) -> bool:
    """Prints a session's figures; True when it had no finding."""
    runs = last_number(r"stat::number_of_executed_units:\s+(\d+)", said)
    speed = last_number(r"stat::average_exec_per_sec:\s+(\d+)", said)
    cov, features = last_number(r"cov: (\d+)", said), last_number(r"ft: (\d+)", said)
    print(f"fuzz {target.name}: {runs} executions, {speed}/s, cov: {cov}, ft: {features}")
    found = findings(said)
    for path in found:
        print(f"  FINDING {path}: {reason(said)}")
    if not found:
        print(f"  no finding\n{coverage(target)}")
    sys.stdout.flush()
    return not found


def session(seconds: int, names: list[str]) -> int:
    """All targets, one after another: a finding of one does not hide the other's."""
    if shutil.which("clang") is None:
        print("fuzz: clang is not installed (apt install clang)")
        return 1
    for folder in (BUILD, FOUND):
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
    chosen = [target for target in TARGETS if not names or target.name in names]
    clean = [report(target, fuzz(target, seconds)) for target in chosen]
    return 0 if all(clean) else 1


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Fuzzes the parsers with libFuzzer.")
    parser.add_argument("--seconds", type=int, default=60, help="of each target (default: 60)")
    names = [target.name for target in TARGETS]
    parser.add_argument("targets", nargs="*", help=f"{', '.join(names)} (default: all)")
    asked = parser.parse_args()
    if unknown := set(asked.targets) - set(names):
        parser.error(f"unknown target: {', '.join(sorted(unknown))}")
    if asked.seconds <= 0:
        parser.error("--seconds must be above 0")
    try:
        return session(asked.seconds, asked.targets)
    except FuzzError as error:
        print(f"fuzz: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
