"""The configuration: everything that is not exactly right is one line, and secrets stay out of it.

Never: tests pydantic. Plan: defaults; what is refused, as a file and as overrides; contradictions;
YAML's own traps; overrides and what is kept of them; what a campaign may not repeat.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from percentes_fast import campaign, target
from percentes_fast import config as configuration
from percentes_fast.config import Config, ConfigError, load, replicas, targets

ROOT = Path(__file__).resolve().parent.parent

SECRET = "s3cr3t"
LOAD_ONLY = {"target.url": "http://h:1", "fault.kind": "none"}


def refusal(overrides: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        configuration.load(None, overrides)
    return one_line(caught.value)


def one_line(exc: ConfigError) -> str:
    line = str(exc)
    assert "\n" not in line
    assert SECRET not in line
    assert exc.exit_code == 1
    return line


def refused_file(path: Path, text: str | bytes) -> str:
    file = path / "run.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        configuration.load(file)
    return one_line(caught.value)


# ---------------------------------------------------------------- defaults


def test_defaults_are_the_published_experiment() -> None:
    config = configuration.load(None).config
    assert config.embedded
    assert (config.load.arrival, config.load.rate) == ("poisson", 3.12)
    assert (config.load.prompt_tokens, config.load.max_tokens) == (512, 256)
    assert (config.phases.warmup_s, config.phases.kill_at_s) == (60, 360)
    assert (config.recovery_s, config.phases.cooldown_s, config.duration_s) == (600, 60, 1020)
    assert (config.slo.ttft_s, config.slo.e2e_s, config.load.timeout_s) == (1, 14, 30)
    assert config.engine.idle_reuse_s == 4


def test_configuration_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        configuration.load(None).config.load.rate = 5.0  # type: ignore[misc]


# ---------------------------------------------------------------- refused

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"load.rte": 3}, r"load\.rte: is not a key here; did you mean 'rate'\?"),
    ({"loda.rate": 3}, r"loda: is not a key here; did you mean 'load'\?"),
    ({"load.zzzzzz": 3}, "known keys: arrival, rate"),
    ({"load.rate": "fast"}, "load.rate: .*valid number"),
    ({"load.rate": 0}, "load.rate: .*greater than 0"),
    ({"load.rate": float("nan")}, "load.rate: .*finite"),
    ({"load.rate": float("inf")}, "load.rate: "),
    ({"load.burstiness": 1e-300}, "load.burstiness: .*greater than or equal to 0.001"),
    ({"load.max_tokens": 1.5}, "load.max_tokens: .*integer"),
    ({"load.arrival": "uniform"}, "load.arrival: .*'poisson', 'constant', 'gamma' or 'trace'"),
    ({"phases.kill_at_s": -1}, "phases.kill_at_s: .*greater than 0"),
    ({"phases.warmup_s": -1}, "phases.warmup_s: .*greater than or equal to 0"),
    ({"fault.kind": "explode"}, "fault.kind: .*'kill', 'kill_group', .* or 'none'"),
    ({"fault.pid": 1}, "fault.pid: "),
    ({"seed": -1}, "seed: "),
    ({"engine.workers": 0}, "engine.workers: use 'auto' or a number from 1 to 256"),
    ({"engine.workers": "many"}, "engine.workers"),
    ({"mock.port": 70_000}, "mock.port: "),
    ({"health.path": "health"}, "health.path: "),
    ({"probe.every_s": 1e-10}, "probe.every_s: .*send fewer"),
    ({"canary.every_s": 1e-5}, "canary.every_s: .*send fewer"),
    ({"target.url": "h:1"}, "target.url: .*use http://HOST:PORT"),
    ({"target.url": "https://h", "engine.kind": "native"}, "speaks no TLS; use auto or asyncio"),
    ({"target.url": "http://h:1", "target.tls.insecure": True}, "only for an https:// target"),
    ({"target.url": "https://h", "target.tls.key": "k"}, "a key without its certificate"),
    ({"target.url": "https://h", "target.tls": {"ca": "a", "insecure": True}}, "drop one"),
    ({"target.hosted": True}, r"target\.hosted \(--hosted\): say which server"),
    (
        {"target.api_key_env": "K", "target.header_env": {"authorization": "V"}},
        "Authorization is given as a header too; keep one",
    ),
    ({"target.url": "http://:80"}, "target.url: .*use http://HOST:PORT"),
    ({"target.url": "http://h:0"}, "target.url: .*use http://HOST:PORT"),
    ({"target.url": "http://h:99999"}, "target.url: .*use http://HOST:PORT"),
    ({"target.url": "http://h/a b"}, "target.url: .*use http://HOST:PORT"),
    ({"target.url": "http://h/?q=1"}, "target.url: .*use http://HOST:PORT"),
    ({"target.url": f"http://u:{SECRET}@h:1"}, "target.url: .*use --api-key-env"),
    ({"target.url": f"https://:{SECRET}@h:1"}, "target.url: .*use --api-key-env"),
    ({"target.headers": {"A": f"x\r\n{SECRET}"}}, "target.headers: header 'A': .*on one line"),
    ({"target.headers": {"A": [SECRET]}}, "target.headers.A: .*string"),
    ({"target.headers": {"A:b": SECRET}}, "target.headers: header 'A:b'"),
    ({"target.extra_body": {"temperature": float("nan")}}, "extra_body: .*JSON"),
    ({"target.extra_body": {"when": b"x"}}, "extra_body: .*JSON"),
    ({"target.extra_body": [1]}, "target.extra_body: .*dictionary"),
]


@pytest.mark.parametrize(("overrides", "told"), REFUSED)
def test_refused(overrides: dict[str, Any], told: str) -> None:
    line = refusal(overrides)
    assert re.search(told, line), line


def test_first_of_several_is_told_and_the_others_counted() -> None:
    assert refusal({"load.rate": 0, "seed": -1}).endswith("(and 1 more)")


# ---------------------------------------------------------------- contradictions

SERVED = {"target.url": "http://h:1", "serve.command": "server"}
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"target.url": "http://h:1"}, "nothing to kill; give --serve, --pid or --container"),
    ({"fault.pid": 99}, "say where the process of --pid listens"),
    ({"serve.command": "server"}, "say where --serve's server listens"),
    ({**SERVED, "serve.command": "  "}, "is empty; give the server's command line"),
    ({**SERVED, "fault.pid": 99}, "found by itself; drop --pid"),
    ({**LOAD_ONLY, "fault.pid": 99}, "drop one of them"),
    ({"phases.duration_s": 300}, "--kill-at 360.* is after the end of the load at 300 s"),
    ({"phases.duration_s": 360}, "is after the end of the load at 360 s"),
    ({"phases.duration_s": 400}, "leaves no recovery after the kill"),
    ({"phases.duration_s": 999, "phases.recovery_s": 9}, "are both given; keep one"),
    ({"phases.kill_at_s": 80}, "baseline runs from .* and is empty; kill later"),
    ({"phases.warmup_s": 330}, "is empty; kill later, or shorten"),
    ({**LOAD_ONLY, "phases.duration_s": 100, "phases.warmup_s": 40}, "leaves no time"),
    ({"load.arrival": "trace"}, "is missing; name the file"),
    ({"load.trace": "x.csv"}, "arrival is poisson; use arrival: trace"),
    ({"load.rate": 100_000}, "lower the rate or shorten the run"),
    ({"detector.exit": 0.95}, "detector.exit: is above detector.entry"),
]


@pytest.mark.parametrize(("overrides", "told"), CONTRADICTIONS)
def test_contradiction(overrides: dict[str, Any], told: str) -> None:
    line = refusal(overrides)
    assert re.search(told, line), line
    assert ";" in line


# ---------------------------------------------------------------- YAML


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("load:\n  rate: 3\nload:\n  rate: 4\n", "line 3: 'load' is given twice; keep one"),
        ("load:\n  rate: 3\n  rate: 4\n", "line 3: 'rate' is given twice"),
        ("load: {rate: {{ rate }}}\n", "line 1: a key is no plain word"),
        ("? [a, b]\n: c\n", "line 1: a key is no plain word"),
        ("load: [\n", "run.yaml line 2: .*; mend the YAML"),
        ("load: 3\n", "run.yaml: load: "),
        ("load:\n", "run.yaml: load: "),
        ("- load\n", "holds a list; write `section:` mappings"),
        ("3: 4\n", "run.yaml: 3: "),
        ("a: !!python/object/apply:os.getcwd []\n", "mend the YAML"),
        ("load: &x {rate: *x}\n", "mend the YAML"),
        (b"\xff\xfe\x00", "mend the YAML"),
        (f"target:\n  headers: {{A: 1{SECRET}}}\n  x: 1\n", "target.x: is not a key"),
    ],
)
def test_yaml_is_strict(tmp_path: Path, text: str | bytes, told: str) -> None:
    line = refused_file(tmp_path, text)
    assert re.search(told, line), line


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name a readable YAML file"):
        configuration.load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="name a readable YAML file"):
        configuration.load(tmp_path)


def test_bytes_and_hash_are_the_file_s(tmp_path: Path) -> None:
    text = b"# a comment\nload: {rate: 5}\n"
    (tmp_path / "run.yaml").write_bytes(text)
    loaded = configuration.load(tmp_path / "run.yaml")
    assert (loaded.text, loaded.sha256) == (text, hashlib.sha256(text).hexdigest())
    assert loaded.config.load.rate == 5
    assert loaded.overrides == ()


def test_empty_file_is_all_defaults(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"# nothing\n")
    assert configuration.load(tmp_path / "run.yaml").config == Config()


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_is_a_configuration_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.mktemp("any") / "run.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        configuration.load(file)
    except ConfigError as exc:
        assert "\n" not in str(exc)


# ---------------------------------------------------------------- overrides


def test_overrides_lie_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"load": {"rate": 5, "max_tokens": 7}, "seed": 3}))
    loaded = configuration.load(file, {"load.rate": 6, "slo.ttft_s": 2})
    assert (loaded.config.load.rate, loaded.config.load.max_tokens) == (6, 7)
    assert (loaded.config.seed, loaded.config.slo.ttft_s) == (3, 2)
    assert loaded.overrides == ("load.rate=6", "slo.ttft_s=2")


def test_override_of_a_section_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("load: 3\n")
    with pytest.raises(ConfigError, match=r"load: .*write it as a mapping"):
        configuration.load(tmp_path / "run.yaml", {"load.rate": 6})


def test_header_values_are_redacted() -> None:
    headers = {"Authorization": f"Bearer {SECRET}"}
    loaded = configuration.load(None, {**LOAD_ONLY, "target.headers": headers})
    assert loaded.config.target.headers == headers
    assert SECRET not in repr(loaded.overrides) + repr(loaded.config.public())
    assert "Authorization" in loaded.overrides[1]
    assert loaded.config.public()["target"]["headers"] == {"Authorization": configuration.REDACTED}


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "Cookie", "X-Auth-Token"])
def test_a_secret_in_the_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(f"target:\n  headers:\n    {name}: {SECRET}\n")
    with pytest.raises(ConfigError, match=rf"{name}: .*target\.header_env") as caught:
        configuration.load(tmp_path / "run.yaml")
    assert SECRET not in str(caught.value)


def test_headers_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"target.headers": {"X": "y"}, "target.header_env": {"X-Key": "PF_A"}}
    given = {**LOAD_ONLY, **given, "target.api_key_env": "PF_B"}
    monkeypatch.setenv("PF_A", SECRET)
    monkeypatch.setenv("PF_B", SECRET + "2")
    loaded = configuration.load(None, given)
    sent = loaded.config.target.sent_headers()
    assert sent == {"X": "y", "X-Key": SECRET, "Authorization": f"Bearer {SECRET}2"}
    assert SECRET not in repr(loaded)
    for wrong in ("", "a\nb", "\xe9"):
        monkeypatch.setenv("PF_A", wrong)
        with pytest.raises(ConfigError, match=r"PF_A: (the environment|its value)"):
            loaded.config.target.sent_headers()


@pytest.mark.parametrize(
    "given",
    [
        {"target.api_key_env": f"sk-{SECRET}"},
        {"target.header_env": {"Authorization": f"Bearer {SECRET}"}},
        {"target.url": f"https://h/v1?api-key={SECRET}"},
        {"target.url": f"https://user:a/{SECRET}@h/"},
        {"target.header_env": {f"X: {SECRET}\r\nY": "V"}},
    ],
)
def test_a_secret_in_the_wrong_place_is_not_shown(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        configuration.load(None, {**LOAD_ONLY, **given})
    assert SECRET not in str(caught.value).replace(repr(f"X: {SECRET}\r\nY"), "")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "asked", "kind"),
    [
        ("http://h", "auto", "native"),
        ("https://h", "auto", "asyncio"),
        ("http://h", "asyncio", "asyncio"),
        (None, "auto", "native"),
    ],
)
def test_which_engine(url: str | None, asked: str, kind: str) -> None:
    given = {**LOAD_ONLY, "target.url": url, "engine.kind": asked}
    assert configuration.load(None, given).config.engine_kind == kind
    assert target.split_url("https://h/a") == ("h", 443, "/a")


def test_public_is_the_whole_configuration() -> None:
    config = configuration.load(None, LOAD_ONLY).config
    assert Config.model_validate(config.public()) == config


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://h:81/", ("h", 81, "")),
        ("http://h", ("h", 80, "")),
        ("http://[::1]:8000/a/b/", ("::1", 8000, "/a/b")),
        ("http://h/@x", ("h", 80, "/@x")),
    ],
)
def test_split_url(url: str, parts: tuple[str, int, str]) -> None:
    assert target.split_url(url) == parts


@pytest.mark.parametrize(("seconds", "ns"), [(0.1, 100_000_000), (3e-10, 0), (0.45, 450_000_000)])
def test_seconds_ns(seconds: float, ns: int) -> None:
    assert configuration.seconds_ns(seconds) == ns


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_no_duration(seconds: float) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        configuration.seconds_ns(seconds)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_configuration_that_ships_is_whole(path: Path) -> None:
    assert load(path).config.load.rate > 0


def test_an_unknown_key_inside_a_list_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("predictions: [{id: C1, text: x, bounds: [{quantity: a, belw: 2}]}]")
    with pytest.raises(ConfigError, match=r"predictions.0.bounds.0.belw: .*did you mean 'below'"):
        load(path)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"ssh.target": "u@h"}, "say where the host's server listens"),
        ({"ssh.identity": "key"}, "for which host"),
        ({"target.url": "http://h:1", "ssh.target": "u@h"}, "nothing to kill"),
        (
            {"target.url": "http://h:1", "ssh.target": "u@h", "serve.command": "x"},
            "starts a server here",
        ),
        ({"container.name": "c"}, "say where the container's server is"),
        ({"target.url": "http://h:1", "container.name": "c", "fault.pid": 7}, "drop --serve"),
        ({"target.url": "http://h:1", "fault.kind": "kill_container", "fault.pid": 7}, "which one"),
        ({"target.url": "http://h:1", "container.name": "-rm"}, "container.name"),
        ({"target.url": "http://h:1", "container.name": "$(id)"}, "container.name"),
        ({"target.url": "http://h:1", "container.name": "c", "log.path": "x"}, "log.path"),
        ({"probe.direct": ["http://h:1"]}, "of which service"),
        (
            {
                "target.url": "http://h:1",
                "fault.kind": "none",
                "probe.direct": ["http://h:1", "http://h:1/"],
            },
            "given twice",
        ),
        ({"metrics.urls": ["ftp://h"]}, "metrics.urls"),
        ({"ssh.target": "root@"}, "use USER@HOST"),
        ({"ssh.target": "root@[::1]:22"}, "without a port"),
        ({"ssh.target": ""}, "use USER@HOST"),
        ({"ssh.target": "root@127.0.0.1:2299"}, "without a port"),
        ({"ssh.target": "h:x"}, "without a port"),
        ({"ssh.target": "h:99999"}, "without a port"),
        ({"ssh.target": "h:"}, "without a port"),
        ({"log.family": "nosuch"}, "use auto or one of llama.cpp"),
        (
            {"target.url": "http://h:1", "fault.kind": "none", "container.name": "c"},
            "looks at no host",
        ),
        (
            {
                "target.url": "http://h:1",
                "fault.kind": "none",
                "probe.direct": ["https://h:2"],
            },
            "http and https are mixed",
        ),
    ],
)
def test_a_site_that_cannot_be(overrides: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load(None, overrides)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("root@h", "root@h"),
        ("h", "h"),
        ("fe80::1", "fe80::1"),
        ("root@::1", "root@::1"),
        ("root@[::1]", "root@::1"),
    ],
)
def test_an_ssh_target(given: str, kept: str) -> None:
    reached = {"target.url": "http://h:1", "fault.pid": 7, "ssh.target": given}
    assert load(None, reached).config.ssh.target == kept
    jumping = {**reached, "ssh.jump": "gate:2222"}  # there is no option for its port
    assert load(None, jumping).config.ssh.jump == "gate:2222"


# ---------------------------------------------------------------- --pid and several runs

PID = {"target.url": "http://h:1", "fault.pid": 4711}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        *(
            ({"fault.kind": kind}, "is gone after run 1, or another process's; use --runs 1, or --")
            for kind in ("kill", "kill_group", "kill_child", "term")
        ),
        ({"campaign.runs": 2}, "is gone after run 1"),
        ({"fault.kind": "stop", "ssh.target": "h"}, "over SSH nothing checks"),
    ],
)
def test_a_pid_is_not_for_several_runs(more: dict[str, Any], told: str, tmp_path: Path) -> None:
    loaded = load(None, {**PID, **more})  # a single run may have it, whatever campaign.runs says
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=r"^fault\.pid \(--pid 4711\): .*" + told) as caught:
        campaign.begin(loaded, out)
    one_line(caught.value)
    assert not out.exists()


@pytest.mark.parametrize(
    "more",
    [
        {"campaign.runs": 1},
        {"campaign.runs": 1, "fault.kind": "kill_child", "ssh.target": "h"},
        {"campaign.runs": 3, "fault.kind": "stop"},
        {"campaign.runs": 3, "fault.pid": None, "serve.command": "server"},
    ],
)
def test_a_campaign_that_may_be_repeated(more: dict[str, Any], tmp_path: Path) -> None:
    assert campaign.begin(load(None, {**PID, **more}), tmp_path / "out")["dropped"] == []


def test_targets_and_replicas_of_a_service() -> None:
    direct = ["http://b:2", "http://a:1/"]
    config = load(
        None, {"target.url": "http://a:1", "fault.kind": "none", "probe.direct": direct}
    ).config
    assert [name for name, _ in targets(config)] == ["server", "canary", "replica-1"]
    assert [name for name, _ in replicas(config)] == ["replica-1", "server"]
    alone = load(None, {"target.url": "http://a:1", "fault.kind": "none"}).config
    assert replicas(alone) == (("server", "http://a:1"),)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("vllm serve m --api-key sk-123 --port 1", "vllm serve m --api-key <redacted> --port 1"),
        ("vllm serve m --api-key=sk-123", "vllm serve m --api-key=<redacted>"),
        ("x --HF_TOKEN abc -key abc", "x --HF_TOKEN <redacted> -key <redacted>"),
        ("x --max-num-batched-tokens 8192", "x --max-num-batched-tokens 8192"),
        ("x --api-key sk-1 sk-2 --port 1", "x --api-key <redacted> --port 1"),
        ("env HF_TOKEN=hf_a VLLM_API_KEY=b x", "env HF_TOKEN=<redacted> VLLM_API_KEY=<redacted> x"),
        ("x --header Authorization: Bearer y", "x --header <redacted>"),
        ("x --redis redis://u:pw@h:1/0", "x --redis redis://<redacted>@h:1/0"),
        (
            "x --ssl-keyfile k.pem --trust-key --port 1",
            "x --ssl-keyfile k.pem --trust-key --port 1",
        ),
    ],
)
def test_secrets_of_a_command_line_are_blotted_out(command: str, shown: str) -> None:
    assert target.blotted(command) == shown
