"""percentes-fast and its peers side by side against one known-timing server, each where installed.

Does: gives each tool the same streams (32 tokens, the first after 50 ms, then one every 10 ms) at
      the same constant rates, and reads what it sent from the server kernel's arrival stamps, what
      it believes from its own result file, and what it cost from the kernel's accounting.
Never: puts anything between tool and server, prints a figure it did not measure (a missing field
       fails that row), or kills a process that it did not start.
Plan: one core for the server, the other for the tool with all its processes. A tool is a function
      from a job to a command line and a reader of its results; `attempt` runs it with a server of
      its own, `row` joins what both say. Installed by install_peers.sh, install_vllm.sh, apt (wrk).
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pyarrow import parquet

import rig

TTFT_US, GAP_US, TOKENS = 50_000, 10_000, 32
QUERY = f"ttft_us={TTFT_US}&gap_us={GAP_US}&tokens={TOKENS}"
CHAT = f"v1/chat/completions?{QUERY}"
WORDS = 512  # of a prompt
FEW = 2  # requests of a run that measures the start-up
COLUMNS = 13
ENGINE = "percentes-fast engine"  # alone, without the rest of a run
REAL = Path(os.environ.get("REAL_DIR", ".real")).absolute()
PEERS = Path(os.environ.get("PEERS_DIR", ".peers")).absolute()
QUIET = {
    "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    "GUIDELLM__MAX_WORKER_PROCESSES": "1", "GUIDELLM__LOGGING__CONSOLE_LOG_LEVEL": "ERROR",
}  # fmt: skip
AIPERF_BODY = """{"model": {{model|tojson}}, "messages": [{"role": "user", "content":
{{text|tojson}}}], "max_completion_tokens": {{max_tokens|tojson}}, "stream": true}"""
Array = np.ndarray[Any, Any]
Reader = Callable[[str], "Told"]  # from what the tool printed


class Job(NamedTuple):
    rate: float
    asked: int
    url: str
    place: Path  # a directory of its own, that the tool is run in


class Told(NamedTuple):
    completed: int
    ttft_ms: Array | None  # p50, p99
    rate: float | None = None  # None: seen from the arrivals
    numbers: list[int] | None = None  # of the timed requests in the log; None: by their timing
    send_us: Array | None = None  # p50, p99 of its sends against its own intended times


class Tool(NamedTuple):
    binary: Path
    version: str
    plan: Callable[[Job], tuple[list[str], Reader]]
    grid: bool = True  # can send at constant intervals


def timed(requests: Array, events: Array) -> Array:
    """Kernel stamps of the streams asked for, without the tools' probes (GET, other paths).

    From the last first event back, each belongs to the latest arrival that is `TTFT_US` earlier
    and not taken yet: all streams wait the same time, so the order is kept.
    """
    due = events[events[:, 1] == 0][:, 2] - TTFT_US * 1000
    kept, left = [], len(requests)
    for latest in np.searchsorted(requests[:, 2], due, "right")[::-1].tolist():
        left = min(left, latest) - 1
        kept += [left] if left >= 0 else []
    return np.sort(requests[kept, 1])


def results(job: Job, name: str, *paths: str) -> Reader:
    """Reads completed, TTFT p50 and p99 at `paths` (keys between slashes) of a result file."""

    def told(_: str) -> Told:
        values = []
        for path in paths:
            found = json.loads((job.place / name).read_text())
            for key in path.split("/"):
                found = found[int(key) if key.isdigit() else key]
            values.append(float(found))
        return Told(int(values[0]), np.array(values[1:]))

    return told


def prompts(job: Job, talks: bool = False) -> Path:
    """A file of prompts, one a request: lines, or a whole document of talks for vLLM."""
    texts = [f"{i} " + "word " * (WORDS - 1) for i in range(job.asked)]
    lines = "".join(json.dumps({"prompt": text, "text": text}) + "\n" for text in texts)
    told = [{"conversations": [{"value": text}, {"value": "ok"}]} for text in texts]
    (job.place / "prompts.jsonl").write_text(json.dumps(told) if talks else lines)
    return job.place / "prompts.jsonl"


def percentes(job: Job) -> tuple[list[str], Reader]:
    path = QUERY.replace("&", "/")  # its target may have a path, not a query: the server takes both
    command = (
        f"run --target {job.url}/{path} --model toy --fault none --rate {job.rate} --arrival"
        f" constant --warmup 0 --duration {job.asked / job.rate} --cooldown 0 --max-tokens {TOKENS}"
        f" --prompt-tokens {WORDS} --quiet --out run"
    )

    def told(_: str) -> Told:
        table = parquet.read_table(job.place / "run" / "requests.parquet")
        load = np.array(table["kind"].to_pylist()) == "load"
        done = np.array(table["outcome"].to_pylist())[load] == "completed"
        names = ("index", "intended_ns", "first_token_ns", "sent_kernel_ns")
        index, intended, first, sent = (np.array(table[n].to_pylist(), float)[load] for n in names)
        ttft = np.percentile((first - intended)[done] / 1e6, (50, 99))
        send = np.nanpercentile((sent - intended) / 1000, (50, 99))
        return Told(int(done.sum()), ttft, numbers=index.astype(int).tolist(), send_us=send)

    return command.split(), told


def vllm(job: Job) -> tuple[list[str], Reader]:
    # the endpoint must end in the API's name; making synthetic prompts would outweigh the sends
    command = (
        f"bench serve --backend openai-chat --base-url {job.url} --model toy --tokenizer ./model"
        f" --endpoint /{CHAT}&as=chat/completions --dataset-name sharegpt --sharegpt-output-len"
        f" {TOKENS} --dataset-path {prompts(job, True)} --num-prompts {job.asked} --request-rate"
        f" {job.rate} --burstiness inf --disable-tqdm --save-result --result-dir ."
        " --result-filename vllm.json --percentile-metrics ttft --metric-percentiles 50,99"
    )
    return command.split(), results(job, "vllm.json", "completed", "p50_ttft_ms", "p99_ttft_ms")


def aiperf(job: Job) -> tuple[list[str], Reader]:
    # its chat parser wants an "object" in each event, which the server does not send: hence the
    # template endpoint, its own way to speak to such servers
    (job.place / "body.jinja").write_text(AIPERF_BODY)
    command = (
        f"profile --model toy --tokenizer {job.place}/model --url {job.url} --endpoint /{CHAT}"
        f" --endpoint-type template --extra-inputs payload_template:{job.place}/body.jinja"
        f" --extra-inputs response_field:choices[0].delta.content --streaming --input-file"
        f" {prompts(job)} --custom-dataset-type single_turn --osl {TOKENS} --use-server-token-count"
        f" --request-rate {job.rate} --arrival-pattern constant --request-count {job.asked}"
        " --workers-max 1 --record-processors 1 --ui none --log-level error --export-level summary"
        " --no-gpu-telemetry --no-server-metrics --artifact-dir ."
    )
    paths = "request_count/avg", "time_to_first_token/p50", "time_to_first_token/p99"
    return command.split(), results(job, "profile_export_aiperf.json", *paths)


def guidellm(job: Job) -> tuple[list[str], Reader]:
    spec = {
        "backend": {"kind": "openai_http", "target": job.url, "model": "toy", "max_tokens": TOKENS,
                    "validate_backend": False, "api_routes": {"/v1/chat/completions": CHAT}},
        "profile": {"kind": "constant", "rate": [job.rate]},
        "constraints": [{"kind": "max_requests", "count": job.asked}],
        "tokenizer": {"kind": "huggingface_auto", "model": "./model"},
        "data": [{"kind": "json_file", "path": str(prompts(job))}],
        "outputs": [{"kind": "json", "path": "guidellm.json"}],
        "metrics": {"kind": "generative", "sample_size": 0},
    }  # fmt: skip
    (job.place / "config.json").write_text(json.dumps({"metadata": {}, "spec": spec}))
    ttft = "benchmarks/0/metrics/time_to_first_token_ms/successful/percentiles"
    done = "benchmarks/0/metrics/request_totals/successful"
    command = ["run", "--config", "config.json", "--disable-console"]
    return command, results(job, "guidellm.json", done, f"{ttft}/p50", f"{ttft}/p99")


def wrk(job: Job, connections: int = 0, query: str = QUERY) -> tuple[list[str], Reader]:
    script = f'wrk.method = "POST"\nwrk.body = string.rep("x", {len(rig.BODY)})\n'
    (job.place / "post.lua").write_text(script)
    # as many connections as would make the rate if each stream took its known time
    stream_s = (TTFT_US + GAP_US * (TOKENS - 1)) / 1e6
    connections = connections or max(1, round(min(job.rate * stream_s, job.asked / 2)))
    seconds = max(1, round(job.asked / job.rate))
    command = f"-t1 -c{connections} -d{seconds}s -s post.lua {job.url}/?{query}"

    def told(output: str) -> Told:
        found = re.search(r"(\d+) requests in.*Requests/sec:\s+([\d.]+)", output, re.DOTALL)
        if not found:
            raise RuntimeError(reason(output))
        return Told(int(found[1]), None, rate=float(found[2]))

    return command.split(), told


def tools() -> dict[str, Tool]:
    found = {}
    for name, package, venv, plan in (
        ("percentes-fast run", "percentes_fast", Path(sys.prefix), percentes),
        ("vllm bench serve", "vllm", REAL / "venv", vllm),
        ("aiperf", "aiperf", PEERS / "aiperf", aiperf),
        ("guidellm", "guidellm", PEERS / "guidellm", guidellm),
    ):
        at = next(venv.glob(f"lib/python*/site-packages/{package}-*.dist-info"), Path("-?"))
        found[name] = Tool(venv / "bin" / package.replace("_", "-"), at.stem.split("-")[1], plan)
    wrk_at = shutil.which("wrk") or ""
    shown = subprocess.run([wrk_at or "true", "-v"], capture_output=True, text=True, check=False)
    return found | {"wrk": Tool(Path(wrk_at), " ".join(shown.stdout.split()[1:2]), wrk, grid=False)}


def reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it said nothing"]
    errors = [line for line in lines if re.search(r"ERROR|Error: ", line)]
    return (errors or lines[-1:])[0][:160].replace("|", "/")


def reap(group: int, limit_s: float) -> tuple[int, float]:
    """Waits for a process and the orphans of its group: (exit status, CPU seconds of all)."""
    status, cpu_s = 0, 0.0
    timer = threading.Timer(limit_s, os.killpg, (group, signal.SIGKILL))
    timer.start()
    try:
        while True:
            pid, code, used = os.wait4(-group, 0)
            cpu_s += used.ru_utime + used.ru_stime
            if pid == group:
                status = os.waitstatus_to_exitcode(code)
    except ChildProcessError:
        return status, cpu_s
    finally:
        timer.cancel()


def drive(tool: Tool, wanted: list[str], place: Path, limit_s: float) -> tuple[str, float]:
    """Runs a tool on its core: (what it printed, CPU seconds)."""
    (place / "model").symlink_to(REAL / "model")
    base = {name: value for name, value in os.environ.items() if "_proxy" not in name.lower()}
    # offline, aiperf refuses a tokenizer in a directory; it reads that one without a network too
    home = {"HF_HOME": str(place / "hf")} | ({} if tool.plan is aiperf else {"HF_HUB_OFFLINE": "1"})
    # a launcher rather than a hook between fork and exec: this process has threads
    pinned = ["taskset", "-c", str(rig.cores()[0]), str(tool.binary), *wanted]
    with (place / "output").open("wb") as output:
        child = subprocess.Popen(
            pinned, env=base | QUIET | home, cwd=place, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        child.returncode, cpu_s = reap(child.pid, limit_s)
    printed = (place / "output").read_text(errors="replace")
    if child.returncode:
        raise RuntimeError(f"exit {child.returncode} (-9: {limit_s:g} s): {reason(printed)}")
    return printed, cpu_s


def attempt(tool: Tool, rate: float, count: int, **more: Any) -> tuple[float, Told, Array]:
    """One run against a server of its own: (CPU seconds, its results, stamps of arrivals)."""
    if not tool.binary.is_file():
        raise RuntimeError("not installed")
    requests, events = rig.shared(count + 2000), rig.shared((count + 2000) * TOKENS)
    with tempfile.TemporaryDirectory() as name, rig.responder(requests, events) as port:
        job = Job(rate, count, f"http://127.0.0.1:{port}", Path(name))
        wanted, reader = tool.plan(job, **more)
        printed, cpu_s = drive(tool, wanted, job.place, 120 + 8 * count / rate)
        told = reader(printed)
    requests, events = requests[requests[:, 2] != 0], events[events[:, 2] != 0]
    if told.numbers is None:
        return cpu_s, told, timed(requests, events)
    last = dict(requests[:, :2].tolist())  # of each number the last: rehearsals may use it too
    return cpu_s, told, np.sort([last[i] for i in told.numbers if i in last])


def cells(values: Array | None, digits: int = 3) -> str:
    return "n/a | n/a" if values is None else " | ".join(f"{v:.{digits}f}" for v in values)


def row(rate: float, count: int, told: Told, arrivals: Array, cpu: str) -> str:
    """What all tools' rows have in common; count 0: a closed loop, which is not asked for any."""
    if len(arrivals) < 2 or told.completed == 0:
        raise RuntimeError(f"{told.completed} completed, {len(arrivals)} arrived")
    achieved = told.rate or (len(arrivals) - 1) * rig.SECOND / int(np.ptp(arrivals))
    asked = f" of {count}" if count else " (closed loop)"
    grid = f"n/a: {len(arrivals)} arrived | n/a | n/a" if count else "n/a | n/a | n/a"
    if len(arrivals) == count:  # from the best grid of the nominal period: p50, p99, max
        late = arrivals - np.arange(count) * (rig.SECOND / rate)
        apart = np.abs(late - np.median(late)) / 1e6
        grid = cells(np.percentile(apart, (50, 99, 100)))
    ttft = None if told.ttft_ms is None else told.ttft_ms - TTFT_US / 1000
    return (
        f"{rate:g} | {told.completed}{asked} | {achieved:.1f} | {grid} | {cells(ttft)} | {cpu} |"
        f" {cells(told.send_us, 1)} |"
    )


def tool_row(tool: Tool | None, rate: float, seconds: float, start: list[float]) -> str:
    """A tool's row at a rate; `start` collects the CPU of its runs of FEW requests."""
    count = round(rate * seconds)
    if tool is None:
        return engine_row(rate, count)
    while len(start) < 3:  # the first fills the file cache and is left out
        start.append(attempt(tool, 20.0, FEW)[0])
    cpu_s, told, arrivals = attempt(tool, rate, count)
    per, base = 1000 / max(1, told.completed), (start[1] + start[2]) / 2
    spread = abs(start[1] - start[2]) / 2 * per
    cpu = f"{(cpu_s - base) * per:.2f} ±{spread:.2f} | {base:.2f}"
    return row(rate, count if tool.grid else 0, told, arrivals, cpu)


def engine_row(rate: float, count: int) -> str:
    seen = rig.measure(rig.Load(count, rate, TOKENS, TTFT_US, GAP_US, constant=True))
    ttft = np.percentile(seen.ttft_error / 1e6, (50, 99)) + TTFT_US / 1000
    send = np.percentile((seen.arrival_kernel - seen.intended) / 1000, (50, 99))
    per = 1000 / count
    cpu = f"{seen.cpu_s * per:.2f} ({(seen.cpu_s - seen.idle_s) * per:.2f} less empty polls) | -"
    told = Told(seen.completed, ttft, send_us=send)
    return row(rate, count, told, np.sort(seen.arrival_kernel), cpu)


def streams_row(tool: Tool | None, rate: float, seconds: float) -> str:
    """One-token streams by CPU: of the engine (no tool) at a rate, of wrk as fast as it gets."""
    count, query = round(rate * seconds), "ttft_us=0&gap_us=0&tokens=1"
    if tool:  # its start-up is some ms and not taken off
        whole, told, _ = attempt(tool, rate, count, connections=64, query=query)
        how, done, achieved, busy = "closed loop, 64", told.completed, told.rate or 0, whole
    else:
        seen = rig.measure(rig.Load(count, rate, 1, 0, 0, poll="busy", constant=True))
        how, done, whole = f"{rate:g} /s, {count} asked", seen.completed, seen.cpu_s
        busy = whole - seen.idle_s
        achieved = (len(seen.arrival_kernel) - 1) * rig.SECOND / int(np.ptp(seen.arrival_kernel))
    each = f"{done / busy:.0f}" if busy > 0 else "n/a"
    return f"{how} | {done} | {achieved:.0f} | {busy:.2f} | {each} | {done / whole:.0f} |"


def reported(name: str, columns: int, make: Callable[..., str], *values: Any) -> None:
    """Prints a row, or why there is none: one tool's failure must not end the others."""
    try:
        line = make(*values)
    except Exception as error:
        why = f"no {error} in its results" if isinstance(error, LookupError) else str(error)
        line = f"{reason(why)} |" + " - |" * (columns - 2)
    print(f"| {name} | {line}", flush=True)


def heading(found: dict[str, Tool], seconds: float) -> None:
    send = rig.limits()["send_to_spinning"][0] / 1000
    have = [f"{name} {tool.version}" for name, tool in found.items() if tool.binary.is_file()]
    print(f"{rig.machine()}; send of 3 kB: {send:.1f} us p50\n\n{', '.join(have)}.")
    print(
        f"Tools with all their processes on core {rig.cores()[0]}, server on core"
        f" {rig.cores()[1]}. {TOKENS} tokens, the first after {TTFT_US / 1000:g} ms, then one every"
        f" {GAP_US / 1000:g} ms; {seconds:g} s of load. Start-up: mean of two warm runs of {FEW}"
        " requests, ± half their difference.\n\n"
        "| tool | rate /s | completed | achieved /s | grid deviation p50 ms | p99 | max |"
        " TTFT error p50 ms | p99 | CPU s per 1000 requests less start-up | start-up CPU s |"
        " own send error p50 us | p99 |\n|" + "---|" * COLUMNS
    )


def main() -> None:
    found = tools()
    names = [ENGINE, *found]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[20, 100, 300, 1000])
    parser.add_argument("--seconds", type=float, default=10.0, help="of load in each run")
    parser.add_argument("--tools", nargs="+", default=names, choices=names, metavar="TOOL")
    options = parser.parse_args()
    # 36 is PR_SET_CHILD_SUBREAPER: a tool's orphans come here, so that their CPU time is counted
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    heading(found, options.seconds)
    start: dict[str, list[float]] = {name: [] for name in names}
    for name, rate in itertools.product(options.tools, options.rates):
        reported(name, COLUMNS, tool_row, found.get(name), rate, options.seconds, start[name])
    print(
        "\n| one-token streams | how | completed | achieved /s | CPU s less empty polls |"
        " streams per CPU s | with empty polls |\n|" + "---|" * 7
    )
    for name, rate in (ENGINE, 1000.0), (ENGINE, 10_000.0), (ENGINE, 30_000.0), ("wrk", 1000.0):
        if name in options.tools:
            reported(name, 7, streams_row, found.get(name), rate, min(5.0, options.seconds))


if __name__ == "__main__":
    main()
