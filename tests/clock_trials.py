"""Trials in which the true time of the fire is known: real processes and packets, a lying clock.

Does: kills a server behind a path of unequal, jittering delays, on a host whose wall clock is
      shifted, drifts, is slewed or steps; asks each rule when the fire was and who was in flight.
Never: lets the instrument see the truth (the killer's own CLOCK_MONOTONIC, one kernel with the
       client), judges a rule by its own figures, or asks of compat that it is right.
Plan: the clock of the host: a preloaded library, its pieces, its exact value; a trial drawn from a
      seed; the client's side: one run; the bench: path, sshd, server, client; checks on facts; the
      table; `python tests/clock_trials.py --trials N`.

The way back of a trial takes at most the shortest round trip: back + its jitter <= there + back, as
the tight rule takes R, the shortest time of a dial, for the longest way of an answer.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import math
import mmap
import os
import queue
import random
import select
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from real_hosts import Sshd, last_lines, poll
from tun_path import Delay, TunPath

US, MS, S = 1_000, 1_000_000, 1_000_000_000
KINDS = ("shifted", "drifting", "slewing", "stepped before", "stepped after")
RULES = ("tight", "bracket", "compat")
SIDES = ("out", "in", "unknown")
KILL_AT_S, PORT = 1.3, 8000
START_LIMIT_S, TRIAL_LIMIT_S, LIFE_S = 60.0, 60.0, 7200.0
LANES, CALM_NS = 2, 200 * MS
LEAST_CUT, LEAST_COMPLETED = 1, 20  # a trial with fewer has shown nothing
CUT_BY_KILL = ("body_cut", "reset", "no_response", "error_event", "connect")

# ---------------------------------------------------------------- the clock of the host

# libfaketime 0.9.10 leaves what bash reads by itself true, and its rates start at each process
LIBRARY = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
struct piece { int64_t from, wall, ppb; };
static const struct { int64_t count, unused[2]; struct piece pieces[100]; } *plan;

__attribute__((constructor)) static void open_plan(void) {
  const char *path = getenv("HOST_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *found = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
  if (found == MAP_FAILED) _exit(97);
  close(fd);
  plan = found;
}

static int64_t wall_ns(void) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  int64_t at = now.tv_sec * SECOND + now.tv_nsec;
  int64_t last = __atomic_load_n(&plan->count, __ATOMIC_ACQUIRE) - 1;
  while (last > 0 && plan->pieces[last].from > at) last--;
  const struct piece *piece = &plan->pieces[last];
  int64_t since = at - piece->from, more = since * piece->ppb;
  return piece->wall + since + more / SECOND - (more % SECOND < 0);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  if (!plan || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
    return (int)syscall(SYS_clock_gettime, clock, at);
  int64_t wall = wall_ns();
  at->tv_sec = wall / SECOND;
  at->tv_nsec = wall % SECOND;
  return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
"""


def build_library(directory: Path) -> Path:
    """Preloaded, it gives every program that wall clock, also bash by itself; no other clock."""
    source, made = directory / "host_clock.c", directory / "host_clock.so"
    source.write_text(LIBRARY)
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", made, source], check=True)
    return made


@dataclass(frozen=True, slots=True)
class Piece:
    """From a moment of CLOCK_MONOTONIC on the wall clock goes on from `wall_ns`, off by `ppb`."""

    from_ns: int
    wall_ns: int
    ppb: int

    def at(self, monotonic_ns: int) -> int:
        since = monotonic_ns - self.from_ns
        return self.wall_ns + since + since * self.ppb // S


class HostClock:
    """The wall clock of the host, a function of CLOCK_MONOTONIC that all its programs share."""

    HEAD, SIZE = struct.calcsize("3q"), 4096

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(self.SIZE))
        self.environment = {"HOST_CLOCK": str(path)}
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), self.SIZE)
        self.pieces: list[Piece] = []
        self.start(0, 0)

    def start(self, shift_ns: int, ppb: int) -> None:
        """A new life: the true wall clock, shifted, off by `ppb` from now on."""
        now = time.monotonic_ns()
        self.pieces = []
        self._add(Piece(now, time.time_ns() + shift_ns, ppb))

    def go_on(self, from_ns: int, jump_ns: int, ppb: int) -> None:
        """From a later moment on: a jump, and another rate."""
        self._add(Piece(from_ns, self.pieces[-1].at(from_ns) + jump_ns, ppb))

    def _add(self, piece: Piece) -> None:
        number = len(self.pieces)
        self.pieces.append(piece)
        at = self.HEAD + number * struct.calcsize("3q")
        struct.pack_into("3q", self._map, at, piece.from_ns, piece.wall_ns, piece.ppb)
        self._map[:8] = struct.pack("q", number + 1)


def can_read(pieces: Sequence[Piece], reading: int, grain: int, first: int, last: int) -> bool:
    """Can that clock be read as `reading`, cut to `grain` ns, between two CLOCK_MONOTONIC times?"""
    ends = [*(piece.from_ns for piece in pieces[1:]), last + 1]
    for piece, end in zip(pieces, ends, strict=True):
        one, other = max(first, piece.from_ns), min(last, end)
        if one <= other and piece.at(one) // grain * grain <= reading <= piece.at(other):
            return True
    return False


# ---------------------------------------------------------------- a trial


@dataclass(frozen=True, slots=True)
class Trial:
    """What one trial does; `changes` are (after the planned kill in ns, jump in ns, ppb)."""

    number: int
    kind: str
    there: Delay
    back: Delay
    shift_ns: int
    ppb: int
    changes: tuple[tuple[int, int, int], ...]


def draw(number: int, seed: int) -> Trial:
    """The kinds take turns; delays, clock and moments come from the seed."""
    rng = random.Random(f"{seed} {number}")
    kind = KINDS[number % len(KINDS)]
    there, back = _between(rng, 1.0, 10.0), _between(rng, 1.0, 10.0)
    jitter_back = rng.uniform(0, min(4.0, there - 0.3))  # the rest is for a late forwarder
    shift = _sign(rng) * round(_between(rng, 1.0, 600.0) * S)
    before = -round(rng.uniform(0.1, 1.1) * S)
    after = round(rng.uniform(0.05, 0.8) * S)
    ppb, changes = 0, []
    if kind == "drifting":
        ppb = _sign(rng) * 100_000
    elif kind == "slewing":
        fast = _sign(rng) * round(rng.uniform(100_000, 490_000))
        changes = [(before, 0, fast), (after, 0, 0)][rng.choice((0, 1)) :]
        ppb = 0 if len(changes) == 2 else fast
    elif kind.startswith("stepped"):
        at = before if kind == "stepped before" else after
        changes = [(at, _sign(rng) * round(_between(rng, 30.0, 400.0) * MS), 0)]
    return Trial(
        number=number,
        kind=kind,
        there=Delay(there, rng.uniform(0, 4.0)),
        back=Delay(back, jitter_back),
        shift_ns=shift,
        ppb=ppb,
        changes=tuple(changes),
    )


def _between(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _sign(rng: random.Random) -> int:
    return rng.choice((-1, 1))


# ---------------------------------------------------------------- the client's side


class _Teller:
    """A watcher that says when the epoch is, half a second before it."""

    def __init__(self) -> None:
        self.told = False

    def say(self, text: str) -> None:
        """Nothing."""

    def tick(self, workers: object, run_ns: int) -> None:
        if not self.told:
            tell({"epoch_ns": time.monotonic_ns() - run_ns})
            self.told = True

    def close(self) -> None:
        """Nothing."""


def tell(facts: dict[str, Any]) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def client() -> None:
    """In the client's network: one run for each job on the standard input."""
    for line in sys.stdin:
        job = json.loads(line)
        faulthandler.dump_traceback_later(TRIAL_LIMIT_S - 10, exit=True)
        try:
            tell({"facts": run_once(job["config"], Path(job["out"]))})
        except Exception as exc:
            tell({"error": f"{type(exc).__name__}: {exc}"})
        faulthandler.cancel_dump_traceback_later()


def run_once(config: dict[str, Any], out: Path) -> dict[str, Any]:
    """One whole run, and what the three rules make of it."""
    from percentes_fast import config as configuration
    from percentes_fast import run
    from percentes_fast.analysis import causes

    file = out.with_suffix(".yaml")
    file.write_text(json.dumps(config))
    label = partial(causes.label, usage=True)
    run.measure(configuration.load(file), out, label, _Teller())
    return judge(out)


def judge(out: Path) -> dict[str, Any]:
    """Facts of a stored run, in ns of its clock; each row's side under each rule."""
    from percentes_fast import rundir
    from percentes_fast.analysis import inflight, kill
    from percentes_fast.analysis.outcomes import judged

    stored = rundir.open_run(out)
    rows = judged(stored.requests, usage=True)
    found = kill.find(stored, rows, kill.host_clock(stored))
    assert stored.fault is not None and found is not None, stored.fault
    load = rows[(rows["kind"] == "load") & (rows["outcome"] != "client_fault")]
    table = load[["cause", "dispatch_ns", "headers_ns", "ended_ns", "tcp_anomalies"]].copy()
    for name, rule in inflight.RULES:
        if name == "bracket" and found.bracket is None:
            continue
        surely, unknown, _ = rule(load, found)
        table[name] = [SIDES[2 if u else int(s)] for s, u in zip(surely, unknown, strict=True)]
    return {
        "epoch_ns": stored.manifest["epoch_monotonic_ns"],
        "epoch_wall_ns": stored.manifest["epoch_wall_ns"],
        "fault": stored.fault,
        "kill": asdict(found),
        "samples": _records(stored.offsets),
        "rows": _records(table),
    }


def _records(frame: Any) -> Any:
    """Rows as plain data; what never happened is None."""
    return json.loads(frame.to_json(orient="records"))


# ---------------------------------------------------------------- the bench


class Lane:
    """A path, a host with sshd and a clock of its own, a client; `run` does a trial."""

    def __init__(self, keep: Path | None = None) -> None:
        self._held, self._keep, self._said = contextlib.ExitStack(), keep, bytearray()
        try:
            self._open()
        except BaseException:
            self._held.close()
            raise

    def _open(self) -> None:
        made = self._held.enter_context(tempfile.TemporaryDirectory(prefix="pft"))
        self._directory = Path(made)
        self.path = self._held.enter_context(TunPath(Delay(1), Delay(1), life_s=LIFE_S))
        self._cores = sorted(os.sched_getaffinity(0))
        if len(self._cores) > 1:  # the worker has the last one
            os.sched_setaffinity(self.path.forwarder_pid, self._cores[:-1])
        self.clock = HostClock(self._directory / "host_clock")
        preload = {"LD_PRELOAD": str(build_library(self._directory)), **self.clock.environment}
        host = Sshd(self.path.server_ip, environment=preload, popen=self._serve)
        self.sshd = self._held.enter_context(host)
        words = [sys.executable, __file__, "--client"]
        self._client = self.path.popen(
            "client", words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._held.callback(self._end_client)

    def _end_client(self) -> None:
        for stream in (self._client.stdin, self._client.stdout):
            assert stream is not None
            stream.close()

    def _serve(self, words: list[str]) -> subprocess.Popen[Any]:
        return self.path.popen("server", words, stdin=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def run(self, trial: Trial, turn: threading.Lock) -> Found:
        """One server killed under load; what the client made of it.

        turn: is held until shortly after the kill, so that no other trial disturbs that.
        """
        out = self._directory / f"trial-{trial.number}"
        self.path.change(trial.there, trial.back)
        self.clock.start(trial.shift_ns, trial.ppb)
        with self._server() as pid:
            with turn:
                self._tell({"config": self._config(trial, pid), "out": str(out)})
                kill_ns = self._answer("epoch_ns") + round(KILL_AT_S * S)
                for after_ns, jump_ns, ppb in trial.changes:
                    self.clock.go_on(kill_ns + after_ns, jump_ns, ppb)
                time.sleep(max(0, kill_ns + CALM_NS - time.monotonic_ns()) / S)
            facts = self._answer("facts")
        late_ms = max(way["late_max_ms"] or 0.0 for way in self.path.stats().values())
        found = Found(trial, tuple(self.clock.pieces), facts, late_ms)
        if self._keep is not None and failures(found):
            shutil.copytree(out, self._keep / out.name)
        shutil.rmtree(out)
        return found

    @contextlib.contextmanager
    def _server(self) -> Iterator[int]:
        words = ["--host", self.path.server_ip, "--port", str(PORT), "--startup-s", "0.1"]
        words += ["--ttft-ms", "25", "--itl-ms", "14", "--itl-dist", "normal:0.2"]
        server = self.path.popen(
            "server",
            [sys.executable, "-m", "percentes_fast.servers.mock", *words],
            stdout=subprocess.DEVNULL,
        )
        try:
            poll("the server's start", self._listens, START_LIMIT_S)
            yield server.pid
        finally:
            server.kill()
            server.wait()

    def _listens(self) -> bool:
        with self.path.enter("server"), socket.socket() as probe:
            return probe.connect_ex((self.path.server_ip, PORT)) == 0

    def _config(self, trial: Trial, pid: int) -> dict[str, Any]:
        sshd = self.sshd
        return {
            "seed": trial.number,
            "target": {"url": f"http://{self.path.server_ip}:{PORT}"},
            "load": {"rate": 60, "prompt_tokens": 8, "max_tokens": 10, "timeout_s": 0.8},
            "phases": {
                "warmup_s": 0.2,
                "kill_at_s": KILL_AT_S,
                "recovery_s": 1.0,
                "cooldown_s": 0,
            },
            "fault": {"kind": "kill", "pid": pid},
            "ssh": {
                "target": f"{sshd.user}@{sshd.host}",
                "port": sshd.port,
                "identity": str(sshd.identity),
                "known_hosts": str(sshd.known_hosts),
                "config": "/dev/null",
            },
            "metrics": {"urls": []},
            "probe": {"every_s": 0},
            "canary": {"tokens": 8},
            "engine": {"workers": 1, "cores": self._cores[-1:]},
        }

    # -- the client

    def _tell(self, job: dict[str, Any]) -> None:
        assert self._client.stdin is not None
        self._client.stdin.write(json.dumps(job).encode() + b"\n")
        self._client.stdin.flush()

    def _answer(self, name: str) -> Any:
        assert self._client.stdout is not None
        deadline = time.monotonic() + TRIAL_LIMIT_S
        while b"\n" not in self._said:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._client.stdout], [], [], left)[0]:
                raise RuntimeError(f"the client did not tell {name} within {TRIAL_LIMIT_S:g} s")
            data = os.read(self._client.stdout.fileno(), 1 << 16)
            if not data:
                raise RuntimeError(f"no {name}: the client has ended; see its standard error")
            self._said += data
        line, _, rest = bytes(self._said).partition(b"\n")
        self._said = bytearray(rest)
        told = json.loads(line)
        if name not in told:
            raise RuntimeError(f"no {name}: {told}\n{last_lines(self.sshd.log)}")
        return told[name]


def run_all(trials: Iterable[Trial], keep: Path | None = None) -> Iterator[Found]:
    """Two lanes take turns: while one ends its trial, the other prepares the next."""
    turn = threading.Lock()
    with contextlib.ExitStack() as held:
        free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for _ in range(LANES):
            free.put(held.enter_context(Lane(keep)))

        def run(trial: Trial) -> Found:
            lane = free.get()
            try:
                return lane.run(trial, turn)
            finally:
                free.put(lane)

        with ThreadPoolExecutor(LANES) as pool:
            yield from pool.map(run, trials)


# ---------------------------------------------------------------- checks


@dataclass(frozen=True, slots=True)
class Found:
    """A trial, the clock it really had, what came of it; late_ms: of the path so far, at most."""

    trial: Trial
    pieces: tuple[Piece, ...]
    facts: dict[str, Any]
    late_ms: float

    @property
    def fire(self) -> tuple[int, int]:
        """The truth: the client's clock right before and after the signal, told by the killer."""
        remote = self.facts["fault"]["fire"]["remote"]
        epoch = self.facts["epoch_ns"]
        return remote["monotonic_before_ns"] - epoch, remote["monotonic_after_ns"] - epoch

    def interval(self, rule: str) -> tuple[int, int]:
        kill = self.facts["kill"]
        if rule == "compat":
            known = kill["uncertainty_ns"]
            return kill["fire_ns"] - known, kill["fire_ns"] + known
        return kill[rule]["lo_ns"], kill[rule]["hi_ns"]

    def width(self, rule: str) -> int:
        """Of the interval; of compat the zone."""
        if rule == "compat":
            return int(self.facts["kill"]["zone_ns"])
        lo, hi = self.interval(rule)
        return hi - lo

    def unknown(self, rule: str) -> int:
        return sum(row[rule] == "unknown" for row in self.facts["rows"])

    def lie_ns(self) -> int:
        """By how much the host's clock was off at the fire, as the killer read it."""
        facts, remote = self.facts, self.facts["fault"]["fire"]["remote"]
        true_wall = facts["epoch_wall_ns"] + self.fire[0]
        return int(remote["before_remote_wall_ns"]) - int(true_wall)


def failures(found: Found, wrong_ns: int = 0) -> list[str]:
    """What was not as it must be; wrong_ns: by how much to be wrong about the truth."""
    fire = found.fire[0] + wrong_ns, found.fire[1] + wrong_ns
    return [*_clock(found), *_fire(found, fire), *_sides(found, fire)]


def _clock(found: Found) -> list[str]:
    """Both programs of the host read one clock, the planned one, and it was not the true one."""
    facts, told = found.facts, []
    epoch, fault = facts["epoch_ns"], facts["fault"]
    if fault["error"] or fault["after_error"]:
        told.append(f"0: the fault: {fault['error'] or fault['after_error']}")
    if abs(found.lie_ns()) < S // 2:
        told.append(f"0: the clock was off by {found.lie_ns()} ns only")
    remote = fault["fire"]["remote"]
    first, last = remote["monotonic_before_ns"], remote["monotonic_after_ns"]
    for name in ("before_remote_wall_ns", "after_remote_wall_ns"):
        if not can_read(found.pieces, remote[name], 1, first, last):
            told.append(f"0: the killer read another clock ({name})")
    for sample in facts["samples"]:
        if sample["phase"] == "dial":
            continue
        ends = sample["before_ns"] + epoch, sample["after_ns"] + epoch
        grain = sample["resolution_ns"]
        if not can_read(found.pieces, sample["remote_wall_ns"], grain, *ends):
            told.append(f"0: the reader read another clock: {sample}")
    return told


def _fire(found: Found, fire: tuple[int, int]) -> list[str]:
    """Checks 1 and 2: the fire, and its arrival here, lie where the rules say."""
    told, (lo, hi) = [], found.interval("tight")
    if not lo <= fire[0] <= fire[1] <= hi:
        told.append(f"1: fire {fire} not in tight {(lo, hi)}")
    if found.facts["kill"]["bracket"] is None:
        return [*told, f"2: no bracket: {found.facts['kill']['bracket_note']}"]
    back = found.trial.back
    first = fire[0] + round(back.ms * MS)
    last = fire[1] + round((back.ms + back.jitter_ms) * MS)
    lo, hi = found.interval("bracket")
    if not (lo <= last and hi >= first):
        told.append(f"2: arrival {(first, last)} not in bracket {(lo, hi)}")
    return told


def wrong_sides(found: Found, rule: str, fire: tuple[int, int]) -> list[dict[str, Any]]:
    """Rows whose cause shows that they lie on the other side than the rule says."""
    return [row for row in found.facts["rows"] if row.get(rule) == _impossible(row, fire)]


def _impossible(row: dict[str, Any], fire: tuple[int, int]) -> str | None:
    """The side that a row is not on: a whole stream was sent before the kill, a cut one was not."""
    dispatched = row["dispatch_ns"]
    if row["cause"] == "stream_end" or dispatched is None or dispatched >= fire[1]:
        return "in"
    return "out" if row["cause"] in CUT_BY_KILL and dispatched < fire[0] else None


def _sides(found: Found, fire: tuple[int, int]) -> list[str]:
    """Check 3, and that there was something to check."""
    rows = found.facts["rows"]
    told = [
        f"3: {rule} says {row[rule]}: {row}"
        for rule in ("tight", "bracket")
        for row in wrong_sides(found, rule, fire)
    ]
    causes = [row["cause"] for row in rows]
    cut = [row for row in rows if row["cause"] in CUT_BY_KILL[:-1]]
    if causes.count("stream_end") < LEAST_COMPLETED or len(cut) < LEAST_CUT:
        told.append(f"0: {causes.count('stream_end')} completed, {len(cut)} cut: too few")
    told += [f"0: cut before the fire: {row}" for row in cut if row["ended_ns"] < fire[0]]
    return told


def compat_is_wrong(found: Found) -> bool:
    """Does the fire lie outside compat's uncertainty?"""
    lo, hi = found.interval("compat")
    return not lo <= sum(found.fire) // 2 <= hi


# ---------------------------------------------------------------- the table


def table(all_found: Sequence[Found]) -> str:
    """A line a kind of clock, and one for all."""
    head = (
        "clock           n  tight ms p50   max  bracket p50   max  compat zone p50   max"
        "  unknown t/b/c      compat: fire outside  wrong sides"
    )
    lines = [head]
    for kind in (*KINDS, "all"):
        rows = [each for each in all_found if kind in ("all", each.trial.kind)]
        if rows:
            lines.append(_line(kind, rows))
    return "\n".join(lines)


def _line(kind: str, rows: Sequence[Found]) -> str:
    def spread(rule: str) -> tuple[float, float]:
        widths = [each.width(rule) / MS for each in rows if each.facts["kill"].get(rule, True)]
        return (statistics.median(widths), max(widths)) if widths else (math.nan, math.nan)

    unknown = "/".join(str(sum(each.unknown(rule) for each in rows)) for rule in RULES)
    outside = sum(map(compat_is_wrong, rows))
    wrong = sum(len(wrong_sides(each, "compat", each.fire)) for each in rows)
    (tight, tight_max), (bracket, bracket_max), (zone, zone_max) = map(spread, RULES)
    return (
        f"{kind:<14}{len(rows):>3}  {tight:>12.2f}{tight_max:>6.2f}  {bracket:>11.2f}"
        f"{bracket_max:>6.2f}  {zone:>15.2f}{zone_max:>6.1f}  {unknown:>13}  {outside:>22}"
        f"{wrong:>13}"
    )


def main() -> int:
    """Does the trials; 1 where one failed."""
    parser = argparse.ArgumentParser(description="Trials whose true time of the fire is known.")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="directory for the runs that failed")
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        client()
        return 0
    all_found, failed = [], 0
    numbers = range(given.first, given.first + given.trials)
    for found in run_all((draw(number, given.seed) for number in numbers), given.keep):
        all_found.append(found)
        told = failures(found)
        failed += bool(told)
        for line in told:
            print(f"trial {found.trial.number} ({found.trial.kind}): {line}", flush=True)
        if told:
            print(f"  {found.trial}; R {found.facts['kill']['round_trip_ns']}", flush=True)
    print(table(all_found))
    late_ms = max(each.late_ms for each in all_found)
    print(f"{len(all_found)} trials, {failed} failed; path late by {late_ms:.2f} ms")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
