"""Flags of the command line as overrides, and the lines for those that are wrong.

Never: validates what config.py validates.
"""

from __future__ import annotations

from typing import Any

import pytest

from percentes_fast import config as configuration
from percentes_fast import flags
from percentes_fast.errors import ConfigError

SECRET = "s3cr3t"


def test_plain_flags_become_dotted_keys() -> None:
    given = {"load__rate": 3.0, "target__url": None, "seed": 0, "header": (), "fault__pid": 5}
    assert flags.overrides(given) == {"load.rate": 3.0, "seed": 0, "fault.pid": 5}


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("arrival", "poisson", {"load.arrival": "poisson"}),
        ("arrival", "gamma:0.5", {"load.arrival": "gamma", "load.burstiness": "0.5"}),
        ("arrival", "gamma", {"load.arrival": "gamma"}),
        ("arrival", "trace:a:b.csv", {"load.arrival": "trace", "load.trace": "a:b.csv"}),
        ("workers", "auto", {"engine.workers": "auto"}),
        ("workers", "12", {"engine.workers": 12}),
        ("workers", "²", {"engine.workers": "²"}),
        ("cores", "2,4-6", {"engine.cores": [2, 4, 5, 6]}),
        ("header", ("A: b: c", "X:"), {"target.headers": {"A": "b: c", "X": ""}}),
        ("header_env", ("X-Key=K", "B = c"), {"target.header_env": {"X-Key": "K", "B": "c"}}),
        ("extra_body", '{"a": {"b": 1}}', {"target.extra_body": {"a": {"b": 1}}}),
    ],
)
def test_compound_flags(flag: str, value: Any, expected: dict[str, Any]) -> None:
    assert flags.overrides({flag: value}) == expected


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("arrival", "poisson:2", "takes nothing after the colon; drop it"),
        ("cores", "a", "use numbers, such as 2,3 or 4-7"),
        ("cores", "", "use numbers, such as 2,3 or 4-7"),
        ("cores", "-3", "use numbers, such as 2,3 or 4-7"),
        ("cores", "6-4", "use numbers, such as 2,3 or 4-7"),
        ("header", (f"Authorization {SECRET}",), "use 'NAME: VALUE'"),
        ("header", (f": {SECRET}",), "use 'NAME: VALUE'"),
        ("header", (f"X-Api-Key: {SECRET}",), "X-Api-Key: `ps` would show"),
        ("header_env", ("X-Key",), "use 'NAME=VARIABLE'"),
        ("header_env", (f"=PF_{SECRET}",), "use 'NAME=VARIABLE'"),
        ("extra_body", "{", "give one JSON object"),
        ("extra_body", "[1]", "is not a JSON object"),
    ],
)
def test_wrong_flag_is_one_line(flag: str, value: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        flags.overrides({flag: value})
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert f"--{flag.replace('_', '-')}" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"workers": "none"}, "engine.workers"),
        ({"workers": "0"}, "engine.workers"),
        ({"arrival": "uniform"}, "load.arrival"),
        ({"arrival": "gamma:big"}, "load.burstiness"),
        ({"arrival": "trace:"}, "load.trace"),
        ({"extra_body": '{"a": NaN}'}, "target.extra_body"),
    ],
)
def test_the_configuration_refuses_the_rest(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configuration.load(None, flags.overrides(given))


def test_new_directory_is_named_by_the_time() -> None:
    path = flags.new_directory()
    assert path.parent.name == "runs"
    assert path.name.endswith("Z")
