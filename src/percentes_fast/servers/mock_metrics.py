"""The mock's counters, and their Prometheus text under vLLM's names.

Never: estimates a figure that the server counts; no series that vLLM does not have.
Plan: a histogram (bucket edges as vLLM 0.32.0 prints them), the counters of one server, and
the rendering. The queue gauge is always 0: the mock runs every request at once.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

TTFT_EDGES_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
E2E_EDGES_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
# 16 tokens a block; a 7B model in bfloat16 leaves room for about this many on a 24 GB card.
KV_CACHE_TOKENS = 131_072


class Histogram:
    """A cumulative histogram of seconds."""

    def __init__(self, edges_s: tuple[float, ...]) -> None:
        self._edges_s = edges_s
        self._counts = [0] * (len(edges_s) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value; a value on an edge belongs to that edge's bucket."""
        self._counts[bisect_left(self._edges_s, seconds)] += 1
        self._sum_s += seconds

    def lines(self, name: str, labels: str) -> list[str]:
        """The series in Prometheus text."""
        total, out = 0, []
        for edge, count in zip((*self._edges_s, "+Inf"), self._counts, strict=True):
            total += count
            out.append(f'{name}_bucket{{engine="0",le="{edge}",{labels}}} {float(total)}')
        out.append(f'{name}_count{{engine="0",{labels}}} {float(total)}')
        out.append(f'{name}_sum{{engine="0",{labels}}} {self._sum_s}')
        return out


@dataclass(slots=True)
class Counters:
    """What one server has counted since it began to listen."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_EDGES_S))
    e2e: Histogram = field(default_factory=lambda: Histogram(E2E_EDGES_S))


def _family(name: str, kind: str, text: str, series: list[str]) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *series]


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def prometheus_text(counters: Counters, model: str, running: int, kv_tokens: int) -> bytes:
    """The /metrics body. `running` requests hold `kv_tokens` tokens of cache at this moment."""
    name = f'model_name="{_escaped(model)}"'

    def single(metric: str, kind: str, text: str, value: float) -> list[str]:
        return _family(metric, kind, text, [f'{metric}{{engine="0",{name}}} {float(value)}'])

    used = min(1.0, kv_tokens / KV_CACHE_TOKENS)
    success = "vllm:request_success_total"
    ttft, e2e = "vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"
    finished = [
        f'{success}{{engine="0",finished_reason="{reason}",{name}}} {float(count)}'
        for reason, count in counters.finished.items()
    ]
    lines = [
        *single("vllm:num_requests_running", "gauge", "Requests being generated.", running),
        *single("vllm:num_requests_waiting", "gauge", "Requests in the queue.", 0),
        *single("vllm:kv_cache_usage_perc", "gauge", "Share of the cache in use, 0 to 1.", used),
        *single("vllm:prompt_tokens_total", "counter", "Prompt tokens.", counters.prompt_tokens),
        *single(
            "vllm:generation_tokens_total",
            "counter",
            "Generated tokens.",
            counters.generation_tokens,
        ),
        *_family(success, "counter", "Requests that ended, by reason.", finished),
        *_family(ttft, "histogram", "Time to the first token, s.", counters.ttft.lines(ttft, name)),
        *_family(e2e, "histogram", "Time to the last token, s.", counters.e2e.lines(e2e, name)),
    ]
    return ("\n".join(lines) + "\n").encode()
