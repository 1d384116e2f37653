"""A real vLLM in a container on a "remote" host: one run of a campaign, killed from outside.

Never: runs unless asked for (`make test-real`). What is asserted holds on a slow machine; the
figures are printed, to be read.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
REAL = Path(os.environ.get("REAL_DIR", ROOT / ".real")).resolve()
sys.path.insert(0, str(ROOT / "tests"))

from real_hosts import Dockerd, Sshd  # noqa: E402
from whole_run import call, free_port  # noqa: E402

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
START_S = 240.0
CONFIG = """
load: {{arrival: constant, rate: 1.2, prompt_tokens: 128, max_tokens: 192, timeout_s: 15}}
phases: {{warmup_s: 5, kill_at_s: 35.4, recovery_s: 120, cooldown_s: 5}}
fault: {{kind: kill_container}}
ssh: {{known_hosts: {known_hosts}, port: {port}}}
container: {{socket: {socket}}}
target: {{extra_body: {{temperature: 1, seed: 7}}}}
campaign: {{runs: 1, name: real-container}}
predictions:
  - id: R1
    text: The restart prints its banner and starts its server within two minutes of each other.
    bounds: [{{quantity: decomposition/segments/log_bringup/s, below: 120}}]
"""


def environment() -> dict[str, str]:
    return {
        "HOME": "/tmp",
        "USER": "root",
        "PATH": "/host/bin:/bin:/usr/bin",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


def serve(port: int) -> list[str]:
    """vLLM itself is the container's first process."""
    options = f"""--served-model-name tiny --host 127.0.0.1 --port {port} --max-model-len 1024
        --max-num-seqs 16 --dtype bfloat16 --enforce-eager --no-enable-chunked-prefill"""
    return [f"{REAL}/venv/bin/vllm", "serve", f"{REAL}/model", *options.split()]


def await_health(port: int, docker: Dockerd) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(docker.docker("logs", "--tail", "30", "vllm"))


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Directory of a campaign of one run."""
    base, port = tmp_path_factory.mktemp("container"), free_port()
    with Sshd() as ssh, Dockerd() as docker:
        docker.run(
            "vllm",
            serve(port),
            # vLLM wants 160 MiB of shared memory (its documentation says --ipc=host), and lscpu
            mounts={REAL: str(REAL), Path("/usr/bin"): "/host/bin", Path("/dev/shm"): "/dev/shm"},
            env=environment(),
        )
        await_health(port, docker)
        config = base / "campaign.yaml"
        config.write_text(
            CONFIG.format(known_hosts=ssh.known_hosts, port=ssh.port, socket=docker.socket)
        )
        done = call(
            "campaign", "--config", str(config), "--target", f"http://127.0.0.1:{port}",
            "--model", "tiny", "--ssh-target", f"{ssh.user}@{ssh.host}", "--ssh-identity",
            str(ssh.identity), "--container", "vllm", "--out", "study",
            cwd=base, timeout=800,
        )  # fmt: skip
        print(done.stdout, done.stderr)
        assert done.returncode in (0, 2), done.stderr
        print((base / "study" / "run-1" / "report.txt").read_text())
        yield base / "study"


def report(campaign: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((campaign / "run-1" / "report.json").read_text())
    return found


def test_the_container_was_restarted_in_place(campaign: Path) -> None:
    found = report(campaign)
    assert found["fault"]["landed"], found["invalid_reasons"]
    before, after = found["container"]["before"], found["container"]["after"]
    assert after["id"] == before["id"]
    assert after["restart_count"] == before["restart_count"] + 1
    assert 0 < found["outage_s"] < 110


def test_the_stages_are_those_that_this_build_prints(campaign: Path) -> None:
    parts = report(campaign)["decomposition"]
    assert parts["family"] == "vllm-0.32"
    assert parts["family_note"] is None
    assert parts["unverified"] == []
    known = {b["key"] for b in parts["boundaries"] if b["at_s"] is not None}
    assert {"container_start", "banner", "engine_init", "server_start", "replica_ready"} <= known
    assert sum(stage["s"] for stage in parts["stages"]) == pytest.approx(
        report(campaign)["outage_s"], abs=1e-9
    )


def test_the_true_kill_lies_in_the_tight_interval(campaign: Path) -> None:
    """The "host" is this machine: the killer's own monotonic readings are the truth."""
    run = campaign / "run-1"
    fire = json.loads((run / "fault.json").read_text())["fire"]
    epoch = json.loads((run / "manifest.json").read_text())["epoch_monotonic_ns"]
    truth = [
        (fire["remote"][f"monotonic_{which}_ns"] - epoch) / 1e9 for which in ("before", "after")
    ]
    tables = {table["rule"]: table for table in report(campaign)["in_flight"]}
    for rule in ("tight", "bracket"):
        assert tables[rule]["applicable"], tables[rule]["note"]
        assert tables[rule]["lo_s"] <= truth[0] <= truth[1] <= tables[rule]["hi_s"]


def test_its_own_metrics_were_read(campaign: Path) -> None:
    gates = {gate["id"]: gate for gate in report(campaign)["gates"]}
    assert gates["G7"]["applicable"]
    assert gates["G7"]["observed"], gates["G7"]["detail"]
    rows = [r for r in report(campaign)["server_metrics"] if r["window"] == "baseline"]
    assert rows[0]["ttft_mean_s"] > 0


def test_the_claim_has_its_verdict(campaign: Path) -> None:
    found = json.loads((campaign / "report.json").read_text())
    valid = found["valid_runs"] == 1
    assert [v["verdict"] for v in found["predictions"]] == ["held" if valid else "no verdict"]


def test_audit_derives_the_published_schema_again(campaign: Path, tmp_path: Path) -> None:
    told = call("report", str(campaign), "--format", "percentes", cwd=tmp_path)
    (tmp_path / "campaign.json").write_text(told.stdout)
    audited = call("audit", "campaign.json", cwd=tmp_path)
    assert audited.returncode == 0, audited.stdout[-2000:]
    assert ", 0 differ, " in audited.stdout
