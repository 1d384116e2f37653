"""What a starting vLLM prints, as data: each line with its share of the start-up time.

Never: waits, prints, or opens a socket; no figure here is drawn or measured.
Plan: the table, then one function that writes a line in vLLM's log format. Shares are the
medians of five published restarts of vLLM 0.29.0 on one GPU (41 s from process start to
"Application startup complete."), and so are the durations some lines quote, which scale with
the start-up time. The three uvicorn lines have the bare form recorded from vLLM 0.32.0.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

API = "APIServer"
ENGINE = "EngineCore"
BARE = ""


@dataclass(frozen=True, slots=True)
class StageLine:
    """One line of a start: who prints it, when, and what.

    `share` and `took` are fractions of the start-up time; `origin` is the file and line tag.
    """

    stage: str
    share: float
    process: str
    origin: str
    text: str
    took: float = 0.0


@dataclass(frozen=True, slots=True)
class StartFacts:
    """What the templates quote. `startup_s` in seconds; `pid` is the mock's own process.

    The mock is one process, so both of vLLM's process prefixes carry the same pid: a reader
    that signals the pid of a log line never hits a stranger.
    """

    model: str
    version: str
    host: str
    port: int
    pid: int
    startup_s: float


_BANNER = "api_utils.py:347"
STAGE_LINES: tuple[StageLine, ...] = (
    StageLine("banner", 0.298, API, _BANNER, "\r"),
    StageLine("banner", 0.298, API, _BANNER, " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}\r"),
    StageLine("banner", 0.298, API, _BANNER, "  █▄█▀ █     █     █     █  model   {model}\r"),
    StageLine(
        "banner",
        0.298,
        API,
        "api_utils.py:286",
        "non-default args: {{'model_tag': '{model}', 'host': '{host}', 'port': {port},"
        " 'model': '{model}'}}",
    ),
    StageLine(
        "engine_init",
        0.561,
        ENGINE,
        "core.py:123",
        "Initializing a V1 LLM engine (v{version}) with config: model='{model}',"
        " speculative_config=None, tokenizer='{model}', skip_tokenizer_init=False,"
        " tokenizer_mode=auto, dtype=torch.bfloat16, load_format=auto, tensor_parallel_size=1,"
        " enforce_eager=False, device_config=cuda, seed=0, served_model_name={model}",
    ),
    StageLine(
        "model_loading", 0.664, ENGINE, "model_runner.py:382", "Loading model from scratch..."
    ),
    StageLine(
        "weights",
        0.740,
        BARE,
        "",
        "\rLoading safetensors checkpoint shards: 100% Completed | 4/4"
        " [00:{took:02.0f}<00:00,  1.46it/s]",
        took=0.068,
    ),
    StageLine(
        "weights",
        0.741,
        ENGINE,
        "default_loader.py:430",
        "Loading weights took {took:.2f} seconds",
        took=0.068,
    ),
    StageLine(
        "model_loaded",
        0.757,
        ENGINE,
        "model_runner.py:404",
        "Model loading took 14.29 GiB memory and {took:.6f} seconds",
        took=0.117,
    ),
    StageLine(
        "torch_compile",
        0.779,
        ENGINE,
        "monitor.py:53",
        "torch.compile took {took:.2f} s in total",
        took=0.0046,
    ),
    StageLine(
        "graph_capture",
        0.920,
        ENGINE,
        "model_runner.py:960",
        "Graph capturing finished in {took:.0f} secs, took 0.52 GiB",
        took=0.122,
    ),
    StageLine(
        "init_engine",
        0.955,
        ENGINE,
        "core.py:361",
        "init engine (profile, create kv cache, warmup model) took {took:.2f} s",
        took=0.199,
    ),
    StageLine(
        "server_start",
        0.991,
        API,
        "entry.py:139",
        "Starting vLLM server on http://{host}:{port}",
    ),
    StageLine("server_start", 0.992, BARE, "", "INFO:     Started server process [{pid}]"),
    StageLine("server_start", 0.992, BARE, "", "INFO:     Waiting for application startup."),
)
LISTENING_LINE = StageLine("listening", 1.0, BARE, "", "INFO:     Application startup complete.")


def rendered(line: StageLine, facts: StartFacts) -> str:
    """The line as vLLM would print it now (local time, one-second stamp), without a newline."""
    text = line.text.format(
        model=facts.model,
        version=facts.version,
        host=facts.host,
        port=facts.port,
        pid=facts.pid,
        took=line.took * facts.startup_s,
    )
    if line.process == BARE:
        return text
    stamp = time.strftime("%m-%d %H:%M:%S")
    return f"({line.process} pid={facts.pid}) INFO {stamp} [{line.origin}] {text}"
