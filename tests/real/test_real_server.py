"""Runs against servers nobody here wrote: vLLM, and llama.cpp where LLAMA_SERVER says.

Never: runs unless asked for (`make test-real`). What is asserted holds on a slow machine; the
figures are printed, to be read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from percentes_fast.rundir import read_log

ROOT = Path(__file__).resolve().parent.parent.parent
REAL = Path(os.environ.get("REAL_DIR", ROOT / ".real")).resolve()
LLAMA = os.environ.get("LLAMA_SERVER")
sys.path.insert(0, str(ROOT / "tests"))

from whole_run import call, free_port, report, requests  # noqa: E402

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
BODY = json.dumps({"temperature": 1, "seed": 7})


def vllm_command(port: int) -> str:
    """On one core, the other is the load's. Chunked prefill is off: with it, vLLM 0.32's CPU engine
    dies by itself when more than 2048 prompt tokens of seeded requests are queued."""
    serve = f"{ROOT}/tests/real/serve_vllm.sh {port} --no-enable-chunked-prefill"
    return f"env REAL_DIR={REAL} taskset -c 0 {serve}"


def llama_command(port: int) -> str:
    assert LLAMA is not None
    libraries = Path(LLAMA).resolve().parent
    return (
        f"env LD_LIBRARY_PATH={libraries} {LLAMA} -m {REAL / 'tiny.gguf'} --alias tiny"
        f" --host 127.0.0.1 --port {port} -c 8192 -np 8 -t 1 --metrics"
    )


# constant arrivals of streams longer than their gap: some are in flight at any kill
VLLM = """--arrival constant --rate 1.2 --prompt-tokens 128 --max-tokens 192 --timeout 15
 --warmup 5 --kill-at 35.4 --recovery 105 --cooldown 5"""
LLAMA_CPP = """--arrival constant --rate 1 --prompt-tokens 16 --max-tokens 128 --timeout 10
 --warmup 3 --kill-at 25.15 --recovery 50 --cooldown 3"""
SERVERS: dict[str, tuple[Callable[[int], str], str]] = {"vllm": (vllm_command, VLLM)}
if LLAMA:
    SERVERS["llama.cpp"] = (llama_command, LLAMA_CPP)


@pytest.fixture(scope="module", params=sorted(SERVERS))
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(name, run directory, port) of one run whose server's process group was killed."""
    command, flags = SERVERS[request.param]
    base = tmp_path_factory.mktemp(request.param)
    port = free_port()
    done = call(
        "run", "--serve", command(port), "--target", f"http://127.0.0.1:{port}", "--model", "tiny",
        "--fault", "kill_group", "--extra-body", BODY, "--out", "run", *flags.split(),
        cwd=base, timeout=800,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode in (0, 2), done.stderr
    return request.param, base / "run", port


def test_the_kill_landed_and_the_server_came_back(killed: Any) -> None:
    name, out, _ = killed
    found = report(out)
    assert found["fault"]["landed"]
    if found["outage_s"] is None:  # llama.cpp serves 40 ms after its start: between two probes
        assert name != "vllm"
        assert found["outage"]["interval_s"][1] > 0
    else:
        assert 0 < found["outage_s"] < 100


def test_every_stream_in_flight_was_lost(killed: Any) -> None:
    _, out, _ = killed
    found = report(out)
    caught = found["in_flight_determinate"]
    assert caught["total"] >= 1
    assert caught["errored"] == caught["total"]
    assert set(found["in_flight_errored_by_class"]) <= {"malformed_stream", "reset"}


def test_four_moments_are_told(killed: Any) -> None:
    _, out, _ = killed
    gone = report(out)["outage"]
    for name in ("port_answers", "health_200", "first_served_token", "goodput_restored"):
        moment = gone[name]
        assert moment["at_s"] is not None or moment["reason"], moment


def test_the_baseline_was_served(killed: Any) -> None:
    """Real answers, judged completed: usage counts, finish reasons, content events."""
    _, out, _ = killed
    rows = requests(out)
    done = rows[(rows["kind"] == "load") & (rows["outcome"] == "completed")]
    assert len(done) > 15
    assert (done["completion_tokens"] > 0).all()
    assert set(done["finish_reason"]) <= {"length", "stop"}
    assert (done["content_events"] > 0).all()
    counts = report(out)["counts"]
    states = ("completed", "errored", "censored", "client_fault")
    assert counts["scheduled"] == sum(counts[state] for state in states)
    assert counts["client_fault"] == 0


def test_the_supervisor_restarted_it_in_place(killed: Any) -> None:
    name, out, _ = killed
    events = [json.loads(text) for _, mark, text in read_log(out / "server.log") if mark == "s"]
    started = [event for event in events if event["event"] == "started"]
    exited = [event for event in events if event["event"] == "exited"]
    assert len(started) == 2, events
    assert exited[0]["status"] == -9
    if name == "vllm":
        lines = [text for _, _, text in read_log(out / "server.log")]
        assert sum("Application startup complete" in line for line in lines) == 2


def test_nothing_of_the_server_is_left(killed: Any) -> None:
    _, _, port = killed
    found = subprocess.run(
        ["pgrep", "-f", f"port {port}"], capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == ""
