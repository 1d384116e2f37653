"""Flags of the command line as overrides of the configuration.

Never: validates a value that config.py validates. Plan: one small parser a compound flag.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from percentes_fast.errors import ConfigError
from percentes_fast.target import looks_secret


def overrides(flags: Mapping[str, Any]) -> dict[str, Any]:
    """`section.key` -> value of every flag that was given."""
    found: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None or value == ():
            continue
        parser = COMPOUND.get(name)
        if parser:
            found |= parser(value)
        else:
            found[name.replace("__", ".")] = value
    return found


def _arrival(text: str) -> dict[str, Any]:
    kind, _, detail = text.partition(":")
    found: dict[str, Any] = {"load.arrival": kind}
    if kind == "trace" and detail:
        found["load.trace"] = detail
    elif kind == "gamma" and detail:
        found["load.burstiness"] = detail
    elif detail:
        raise ConfigError(f"--arrival {text}: {kind} takes nothing after the colon; drop it")
    return found


def _workers(text: str) -> dict[str, Any]:
    return {"engine.workers": int(text) if text.isdecimal() else text}


def _cores(text: str) -> dict[str, Any]:
    cores: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            found = range(int(first), int(last or first) + 1)
            if not found:
                raise ValueError("a range that runs backwards")
            cores += found
    except ValueError as exc:
        raise ConfigError(f"--cores {text}: use numbers, such as 2,3 or 4-7") from exc
    return {"engine.cores": cores}


def _header(lines: tuple[str, ...]) -> dict[str, Any]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ConfigError("--header: use 'NAME: VALUE' (the value is not shown here)")
        if looks_secret(name):
            raise ConfigError(
                f"--header {name.strip()}: `ps` would show the value; use --header-env"
                f" '{name.strip()}=VARIABLE' (or --api-key-env VARIABLE for a bearer token)"
            )
        headers[name.strip()] = value.strip()
    return {"target.headers": headers}


def _header_env(lines: tuple[str, ...]) -> dict[str, Any]:
    variables = {}
    for line in lines:
        name, equals, variable = line.partition("=")
        if not equals or not name.strip() or not variable.strip():
            raise ConfigError(
                "--header-env: use 'NAME=VARIABLE', the variable that holds the value"
            )
        variables[name.strip()] = variable.strip()
    return {"target.header_env": variables}


def _extra_body(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError as exc:
        raise ConfigError(f"--extra-body: {exc}; give one JSON object") from exc
    if not isinstance(body, dict):
        raise ConfigError("--extra-body: is not a JSON object; write it as '{\"key\": value}'")
    return {"target.extra_body": body}


def _metrics(urls: tuple[str, ...]) -> dict[str, Any]:
    return {"metrics.urls": list(urls)}


def _probe_direct(urls: tuple[str, ...]) -> dict[str, Any]:
    return {"probe.direct": list(urls)}


COMPOUND: dict[str, Callable[[Any], dict[str, Any]]] = {
    "arrival": _arrival,
    "workers": _workers,
    "cores": _cores,
    "header": _header,
    "header_env": _header_env,
    "extra_body": _extra_body,
    "metrics": _metrics,
    "probe_direct": _probe_direct,
}


def new_directory() -> Path:
    """A run directory named by the time it was asked for, under runs/."""
    return Path("runs") / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
