"""The server under load as the client addresses it: URL, headers, trust, and what stays secret.

Never: keeps, prints or returns a secret in an error; values from the environment are read when they
are sent.
Plan: the `target` section of the configuration, the parts of a URL, names that look secret.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from percentes_fast.errors import ConfigError

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_OPTION = re.compile(  # an option, and every word after it up to the next option
    r"((?:^|\s)--?[\w-]*(?:keys?|tokens?|secrets?|passwords?|passphrase|auth|headers?)(?:=|\s+))"
    r"(?!-|\d+(?:\s|$))\S+(?:\s+(?!-)\S+)*",
    re.IGNORECASE,
)
SECRET_VARIABLE = re.compile(
    r"((?:^|\s)\w*(?:KEY|TOKEN|SECRET|PASSWORD|AUTH)\w*=)\S+", re.IGNORECASE
)
USERINFO = re.compile(r"(\w+://)[^\s/@]+@")
SECRET_WORDS = ("auth", "key", "token", "secret", "cookie", "password")


class Section(BaseModel):
    """Base of every section: frozen, strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Tls(Section):
    """How an https target is trusted, and what it is shown."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    insecure: bool = False

    @model_validator(mode="after")
    def _check_whole(self) -> Tls:
        if self.key is not None and self.cert is None:
            raise ValueError("key (--key): a key without its certificate; give --cert too")
        if self.insecure and self.ca is not None:
            raise ValueError("insecure (--insecure): checks nothing, so --ca is unused; drop one")
        return self


class Target(Section):
    """The server under load, as the client addresses it.

    api_key_env, header_env: names of environment variables; their values are sent, never stored.
    """

    url: str | None = None
    model: str = Field(default="mock", min_length=1)
    api: Literal["chat", "completions"] = "chat"
    headers: dict[str, str] = Field(default_factory=dict)
    header_env: dict[str, str] = Field(default_factory=dict)
    api_key_env: str | None = None
    tls: Tls = Tls()
    hosted: bool = False
    extra_body: dict[str, Any] = Field(default_factory=dict)
    end_marker: Literal["done", "finish_reason"] = "done"
    usage: bool = True
    ignore_eos: bool = True
    replica_header: str | None = None
    proxied: bool = False  # something that answers TCP by itself stands before the server

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None:
            split_url(url)
        return url

    @field_validator("header_env", "api_key_env")
    @classmethod
    def _check_variables(cls, given: Any) -> Any:
        named = given.values() if isinstance(given, dict) else [given]
        if any(name is not None and not VARIABLE.fullmatch(name) for name in named):
            raise ValueError("is not the name of an environment variable (its value is not shown)")
        return given

    @field_validator("header_env", "headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not name or any(c in name + value for c in "\r\n\0") or ":" in name:
                raise ValueError(f"header {name!r}: use 'Name: value' on one line")
        return headers

    @property
    def https(self) -> bool:
        """Is the target spoken to over TLS?"""
        return speaks_tls(self.url)

    def secrets(self) -> list[str]:
        """Values that are sent and kept nowhere. Raises ConfigError as `sent_headers` does."""
        sent = self.sent_headers()
        hidden = [sent[name] for name in self.header_env]
        return hidden + (
            [sent["Authorization"].removeprefix("Bearer ")] if self.api_key_env else []
        )

    def sent_headers(self) -> dict[str, str]:
        """All extra headers with their values, those from the environment too: keep them nowhere.

        Raises ConfigError where a variable is not set.
        """
        given = dict(self.headers)
        for name, variable in self.header_env.items():
            given[name] = _variable("header_env (--header-env)", variable)
        if self.api_key_env is not None:
            key = _variable("api_key_env (--api-key-env)", self.api_key_env)
            given["Authorization"] = f"Bearer {key}"
        return given

    @field_validator("extra_body")
    @classmethod
    def _check_extra_body(cls, extra: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(extra, allow_nan=False)
        except (TypeError, ValueError) as exc:
            raise ValueError(f"{exc}; give values that JSON can hold") from exc
        return extra


def _variable(what: str, name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"target.{what} {name}: the environment variable is not set; export it")
    if any(c in value for c in "\r\n\0") or not value.isascii():
        raise ConfigError(f"target.{what} {name}: its value is no header text; mend it")
    return value


def speaks_tls(url: str | None) -> bool:
    """Is a server with that URL spoken to over TLS?"""
    return url is not None and urlsplit(url).scheme == "https"


def looks_secret(header: str) -> bool:
    """Is that the name of a header whose value nobody else should read?"""
    return any(word in header.lower() for word in SECRET_WORDS)


def blotted(command: str) -> str:
    """A command line without values of options and variables that look secret, and without the
    names and passwords of URLs. It may blot too much, such as what follows such an option.
    """
    command = SECRET_OPTION.sub(r"\1<redacted>", command)
    return USERINFO.sub(r"\1<redacted>@", SECRET_VARIABLE.sub(r"\1<redacted>", command))


def split_url(url: str) -> tuple[str, int, str]:
    """(host, port, path prefix) of a target URL; ValueError in one line where it is not usable."""
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise ValueError("a name or password in the URL is not sent; use --api-key-env VARIABLE")
    if "?" in url or "#" in url:
        raise ValueError("a query in the URL is not sent; use http://HOST:PORT, maybe with a path")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise ValueError("its host or port is broken; use http://HOST:PORT") from exc
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{url!r}: scheme {parts.scheme or '(none)'!r}; use http://HOST:PORT")
    usable = all("!" <= byte <= "~" for byte in parts.path) and port != 0
    if not parts.hostname or not usable:
        raise ValueError(f"{url!r}: use http://HOST:PORT, optionally with a path")
    usual = 443 if parts.scheme == "https" else 80
    return parts.hostname, usual if port is None else port, parts.path.rstrip("/")
