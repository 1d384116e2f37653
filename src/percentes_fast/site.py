"""Where the server runs and what is done to it: sections of the configuration.

Never: reaches a host, reads a key, or keeps a secret (an identity is a path, a password is none).
Plan: how to reach the host, the container on it, its log, its metrics, the fault; what only all
of them together can tell is checked by `check_site`.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from percentes_fast.target import Section, Target, split_url

Positive = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
BRACKETED = re.compile(r"(.*@)?\[([^]]*:[^]]*)\]")  # an IPv6 address as a URL writes it
NO_HOST = "use USER@HOST, HOST, or a name of the ssh configuration, without a port (--ssh-port)"
WORD = re.compile(r"[^\s'\"\\$`;|&<>()-][^\s'\"\\$`;|&<>()]*")  # no option, nothing a shell expands


def _word(given: str) -> str:
    if not WORD.fullmatch(given):
        raise ValueError("use one plain word, without blanks, quotes or a leading dash")
    return given


def _host(given: str) -> str:
    if bracketed := BRACKETED.fullmatch(given):
        given = (bracketed[1] or "") + bracketed[2]
    user, at, host = given.rpartition("@")
    if not WORD.fullmatch(host) or "[" in host or (at and not WORD.fullmatch(user)):
        raise ValueError(NO_HOST)
    return given


def _portless(given: str) -> str:
    """One colon would be dialled as HOST:PORT; an address with several is IPv6."""
    if given.rpartition("@")[2].count(":") == 1:
        raise ValueError(NO_HOST)
    return given


Word = Annotated[str, AfterValidator(_word)]
HostName = Annotated[str, AfterValidator(_host)]
Portless = Annotated[HostName, AfterValidator(_portless)]


class Ssh(Section):
    """How the server's host is reached; without a target it is this machine."""

    target: Portless | None = None  # [USER@]HOST, or a name of ssh_config
    port: int | None = Field(default=None, ge=1, le=65_535)
    identity: str | None = None
    config: str | None = None
    known_hosts: str | None = None
    jump: HostName | None = None  # a port may follow: there is no option for it
    connect_timeout_s: Positive = 10.0
    command_timeout_s: Positive = 20.0


class Container(Section):
    """The container that the server runs in, and the engine that runs it."""

    name: Word | None = None
    command: Word = "docker"
    socket: Word | None = None  # of the engine, where not the default


class Metrics(Section):
    """The server's own metrics; urls null: /metrics of the target, or of each direct probe."""

    urls: tuple[str, ...] | None = None
    every_s: Positive = 1.0
    timeout_s: Positive = 0.9

    @field_validator("urls")
    @classmethod
    def _check_urls(cls, urls: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for url in urls or ():
            split_url(url)
        return urls


class Log(Section):
    """The server's log on its host, where neither a container nor this run keeps it."""

    path: str | None = None
    family: str = "auto"  # of serverlogs/*.yaml
    cold_start: str | None = None  # the log of a cold start, drawn beside the restarts

    @field_validator("family")
    @classmethod
    def _check_family(cls, name: str) -> str:
        files = resources.files("percentes_fast").joinpath("serverlogs").iterdir()
        known = sorted(each.name.removesuffix(".yaml") for each in files)
        if name != "auto" and name not in known:
            raise ValueError(f"{name!r} is not known; use auto or one of {', '.join(known)}")
        return name


class Fault(Section):
    """What is done to the server at `phases.kill_at_s`.

    role: of kill_child, what the command line of the process among the server's own children says.
    """

    kind: Literal["kill", "kill_group", "kill_child", "term", "stop", "kill_container", "none"] = (
        "kill"
    )
    pid: int | None = Field(default=None, ge=2)
    role: str = Field(default="EngineCore", min_length=1)
    stop_s: Positive = 10.0
    gone_timeout_s: Positive = 10.0


def check_site(  # noqa: PLR0917 (the sections of one configuration)
    target: Target, ssh: Ssh, container: Container, log: Log, fault: Fault, command: str | None
) -> None:
    """What only the whole can tell. command: of --serve. Raises ValueError in one line."""
    if command is not None and not command.strip():
        raise ValueError("serve.command (--serve): is empty; give the server's command line")
    if command is not None and target.url is None:
        raise ValueError("target.url (--target): is missing; say where --serve's server listens")
    _check_pid(target, fault, command)
    if fault.kind == "none" and (ssh != Ssh() or container != Container() or log.path is not None):
        raise ValueError(
            "fault.kind (--fault none): the load alone looks at no host; drop --ssh-target,"
            " --container and log.path"
        )
    _check_host(target, ssh, command)
    _check_container(target, container, log, fault, command)
    needs_victim = fault.kind != "none" and container.name is None
    if needs_victim and target.url is not None and command is None and fault.pid is None:
        raise ValueError(
            f"fault.kind (--fault {fault.kind}): nothing to kill; give --serve, --pid or"
            " --container, or --fault none to load only"
        )


def _check_pid(target: Target, fault: Fault, command: str | None) -> None:
    if fault.pid is None:
        return
    if command is not None:
        raise ValueError("fault.pid (--pid): the server of --serve is found by itself; drop --pid")
    if target.url is None:
        raise ValueError(
            "target.url (--target): is missing; say where the process of --pid listens"
        )
    if fault.kind == "none":
        raise ValueError("fault.pid (--pid): a process to kill, but --fault none; drop one of them")


def _check_host(target: Target, ssh: Ssh, command: str | None) -> None:
    if ssh.target is None and ssh != Ssh():
        raise ValueError("ssh (--ssh-identity): for which host? give --ssh-target USER@HOST")
    if ssh.target is None:
        return
    if target.url is None:
        raise ValueError("target.url (--target): is missing; say where the host's server listens")
    if command is not None:
        raise ValueError(
            "serve.command (--serve): starts a server here, but --ssh-target names another host;"
            " drop one, or start the server there and give --pid or --container"
        )


def _check_container(
    target: Target, container: Container, log: Log, fault: Fault, command: str | None
) -> None:
    if container.name is not None and target.url is None:
        raise ValueError("target.url (--target): is missing; say where the container's server is")
    if container.name is None and fault.kind == "kill_container":
        raise ValueError("fault.kind (--fault kill_container): which one? give --container NAME")
    if container.name is not None and (command is not None or fault.pid is not None):
        raise ValueError(
            "container.name (--container): its first process is the server; drop --serve and --pid"
        )
    if log.path is not None and (command is not None or container.name is not None):
        raise ValueError("log.path: the log is read from --serve or --container; drop it")
