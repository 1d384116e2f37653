"""The command line: click commands of a few lines each; everything heavy is imported inside them.

Never: computes, or lets an error through as a traceback: one line (what, where, what to do) and the
exit status of its class. Exit: 0 valid, 2 invalid, 1 could not run (usage too), 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from percentes_fast.errors import (
    EXIT_COULD_NOT_RUN,
    EXIT_INTERRUPTED,
    EXIT_INVALID,
    EXIT_VALID,
    ClientError,
    ConfigError,
    NativeMissingError,
    PercentesError,
)

SHAPES = ["text", "json", "html", "percentes"]
FAULTS = ["kill", "kill_group", "kill_child", "term", "stop", "kill_container", "none"]
DIRECTORY = click.argument("directory", type=click.Path(path_type=Path))
FLAGS: tuple[tuple[str, str, Any, str], ...] = (
    ("--target", "target.url", str, "URL of the server, http://HOST:PORT or https://"),
    ("--model", "target.model", str, "model name to ask for"),
    ("--api", "target.api", click.Choice(["chat", "completions"]), "which endpoint"),
    ("--serve", "serve.command", str, "command of a server to start, kill and restart"),
    ("--pid", "fault.pid", int, "process to kill, that something else restarts"),
    ("--container", "container.name", str, "container whose first process is the server"),
    ("--ssh-target", "ssh.target", str, "USER@HOST that the server runs on (this machine)"),
    ("--ssh-identity", "ssh.identity", str, "private key for it (agent, ssh_config)"),
    ("--ssh-port", "ssh.port", int, "port of its sshd (22)"),
    ("--rate", "load.rate", float, "requests a second (default 3.12)"),
    ("--warmup", "phases.warmup_s", float, "seconds of warm-up (60)"),
    ("--kill-at", "phases.kill_at_s", float, "second of the kill, from the first of load (360)"),
    ("--recovery", "phases.recovery_s", float, "seconds from the kill to the cool-down (600)"),
    ("--cooldown", "phases.cooldown_s", float, "seconds of cool-down (60)"),
    ("--duration", "phases.duration_s", float, "seconds of load, in place of --recovery"),
    ("--fault", "fault.kind", click.Choice(FAULTS), "what to do (kill)"),
    ("--prompt-tokens", "load.prompt_tokens", int, "words in each prompt (512)"),
    ("--max-tokens", "load.max_tokens", int, "tokens asked for (256)"),
    ("--timeout", "load.timeout_s", float, "deadline of a request in seconds (30)"),
    ("--seed", "seed", int, "seed of the schedule (1)"),
    ("--poll", "engine.poll", click.Choice(["auto", "hybrid", "busy"]), "how workers wait (auto)"),
    ("--engine", "engine.kind", click.Choice(["auto", "native", "asyncio"]), "who sends (auto)"),
    ("--api-key-env", "target.api_key_env", str, "variable that holds the bearer token"),
    ("--ca", "target.tls.ca", str, "PEM file of the authorities to trust, for https"),
    ("--cert", "target.tls.cert", str, "PEM file of the client's certificate"),
    ("--key", "target.tls.key", str, "PEM file of its key, where that is a file of its own"),
    ("--mock-startup", "mock.startup_s", float, "start-up of the embedded server in seconds (42)"),
)


MORE: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--config",), {"type": click.Path(path_type=Path), "help": "YAML file of the run"}),
    (("--metrics",), {"multiple": True, "help": "URL of a replica's metrics (the target's)"}),
    (("--probe-direct",), {"multiple": True, "help": "URL of a replica, the victim's first"}),
    (("--arrival",), {"help": "poisson, constant, gamma[:SHAPE] or trace:FILE"}),
    (("--workers",), {"help": "auto or a number: worker processes, one core each"}),
    (("--cores",), {"help": "cores of the workers, such as 2,3 or 4-7"}),
    (("--header",), {"multiple": True, "metavar": "'NAME: VALUE'", "help": "in every request"}),
    (("--header-env",), {"multiple": True, "metavar": "'NAME=VARIABLE'", "help": "value from it"}),
    (
        ("--insecure", "target__tls__insecure"),
        {"is_flag": True, "default": None, "help": "any cert"},
    ),
    (("--hosted", "target__hosted"), {"is_flag": True, "default": None, "help": "not our server"}),
    (("--extra-body",), {"metavar": "JSON", "help": "merged into every request body"}),
    (("--out",), {"type": click.Path(path_type=Path), "help": "new directory (runs/...)"}),
    (("--json", "as_json"), {"is_flag": True, "help": "print report.json instead of the text"}),
    (("--quiet",), {"is_flag": True, "help": "no live line, no report on the terminal"}),
)


def _flags(command: Callable[..., Any]) -> Callable[..., Any]:
    for names, options in reversed(MORE):
        command = click.option(*names, **options)(command)
    for name, key, kind, text in reversed(FLAGS):
        command = click.option(name, key.replace(".", "__"), type=kind, default=None, help=text)(
            command
        )
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="percentes-fast")
def cli() -> None:
    """Kill an LLM inference server under open-loop load; measure what its clients saw."""


@cli.command()
@_flags
def run(config: Path | None, out: Path | None, as_json: bool, quiet: bool, **flags: Any) -> int:
    """Run one experiment: load, a real kill, records, verdict."""
    from percentes_fast import config as configuration
    from percentes_fast import flags as parsing

    loaded = configuration.load(config, parsing.overrides(flags))
    label = _label(loaded.config.target.usage)
    measure = _measuring().measure
    directory = measure(loaded, out or parsing.new_directory(), label, _watcher(loaded, quiet))
    return _judge(directory.path, quiet=quiet, as_json=as_json)


@cli.command()
@_flags
@click.option("--runs", "campaign__runs", type=int, default=None, help="how many runs (5)")
@click.option("--dry-kill", is_flag=True, help="do the fault once, without load, unmeasured")
def campaign(
    config: Path | None, out: Path | None, as_json: bool, quiet: bool, dry_kill: bool, **flags: Any
) -> int:
    """Repeat one experiment; the same command goes on after an interruption."""
    from percentes_fast import config as configuration
    from percentes_fast import flags as parsing

    loaded = configuration.load(config, parsing.overrides(flags))
    path = out or parsing.new_directory()
    if dry_kill:
        return _dry_kill(loaded, path)
    _campaigning().Campaign(
        loaded, path, _label(loaded.config.target.usage), _watcher(loaded, quiet)
    ).go_on(_judge_run)
    return _judge(path, quiet=quiet, as_json=as_json)


def _dry_kill(loaded: Any, path: Path) -> int:
    facts = _campaigning().dry_kill(loaded, path, partial(click.echo, err=True))
    click.echo(f"dry kill landed; it served again within {facts['served_again_s'] + 0.5:.1f} s")
    return EXIT_VALID


def _campaigning() -> Any:
    _measuring()
    from percentes_fast import campaign as campaigning

    return campaigning


def _judge_run(path: Path) -> bool:
    """Writes the reports of a campaign's run and says how it went; was it interrupted?"""
    from percentes_fast.report import files

    summary, printed = files.write(path, as_json=False)
    click.echo(f"{path.name}: {printed.splitlines()[0]}", err=True)
    return bool(getattr(summary, "partial", False))


def _measuring() -> Any:
    try:
        from percentes_fast import _native  # noqa: F401
    except ImportError as exc:
        raise NativeMissingError(
            "the compiled core is not installed: measuring needs Linux and a C compiler at install"
            f" time ({exc}); analyze, report and audit work without it"
        ) from exc
    from percentes_fast import run as measuring

    return measuring


def _label(usage: bool) -> Any:
    from percentes_fast.analysis import causes

    return partial(causes.label, usage=usage)


def _watcher(loaded: Any, quiet: bool) -> Any:
    if quiet or not sys.stderr.isatty():
        return None
    from percentes_fast.live import LiveLine

    return LiveLine(loaded.config)


def _judge(path: Path, *, quiet: bool, as_json: bool) -> int:
    """Analyses a directory, writes its reports, prints one; the exit status."""
    from percentes_fast.report import files

    summary, printed = files.write(path, as_json=as_json)
    if not quiet:
        click.echo(printed, nl=False)
        click.echo(f"report: {path / 'report.html'}", err=True)
    if getattr(summary, "partial", False):
        return EXIT_INTERRUPTED
    return EXIT_VALID if summary.valid else EXIT_INVALID


@cli.command()
@DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="print report.json instead of the text")
@click.option("--quiet", is_flag=True, help="print nothing")
def analyze(directory: Path, as_json: bool, quiet: bool) -> int:
    """Judge a stored run, or campaign, again and write its reports."""
    return _judge(directory, quiet=quiet, as_json=as_json)


@cli.command()
@DIRECTORY
@click.option("--format", "shape", type=click.Choice(SHAPES), default="text")
def report(directory: Path, shape: str) -> int:
    """Print the report of a stored run, or campaign; writes nothing.

    percentes: a kill of a container in the schema of the published campaign.
    """
    from percentes_fast.report import files

    click.echo(files.render(directory, shape), nl=False)
    return EXIT_VALID


@cli.command()
@DIRECTORY
def recover(directory: Path) -> int:
    """Finish a run whose parent process was killed."""
    from percentes_fast.rundir import read_manifest

    usage = read_manifest(directory)["config"]["target"]["usage"]
    _measuring()
    from percentes_fast import store

    store.recover(directory, _label(usage))
    return _judge(directory, quiet=False, as_json=False)


@cli.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def mock(arguments: tuple[str, ...]) -> int:
    """Serve the embedded simulated server (mock --help for its options)."""
    from percentes_fast.servers import mock as server

    return server.main(list(arguments))


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
def audit(file: Path) -> int:
    """Re-derive every derivable figure of a published campaign file."""
    from percentes_fast.analysis import audit as auditing

    found = auditing.audit_file(file)
    click.echo(auditing.render(found).rstrip("\n"))
    return EXIT_INVALID if found.differing else EXIT_VALID


@cli.command()
def doctor() -> int:
    """Say whether this machine can measure, and what to change."""
    _measuring()
    from percentes_fast import doctor as examining

    findings = examining.examine()
    click.echo(examining.render(findings))
    return EXIT_VALID


def main() -> None:
    """Entry point: maps every ending to its exit status."""
    sys.exit(call(cli, sys.argv[1:]))


def call(command: click.Command, arguments: list[str]) -> int:
    """Runs a command; its exit status, errors told in one line on stderr."""
    try:
        status = command.main(arguments, prog_name="percentes-fast", standalone_mode=False)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except (PercentesError, click.ClickException, PermissionError) as exc:
        return _told(_ours(exc))
    except (click.Abort, KeyboardInterrupt):
        click.echo("percentes-fast: interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_COULD_NOT_RUN
    return int(status or 0)


def _ours(exc: PercentesError | click.ClickException | PermissionError) -> PercentesError:
    if isinstance(exc, click.ClickException):
        return ConfigError(exc.format_message())
    if isinstance(exc, PermissionError):
        where = exc.filename or "this machine"
        return ClientError(f"{where}: {exc.strerror}; use a place that is open to you")
    return exc


def _told(exc: PercentesError) -> int:
    click.echo(f"percentes-fast: {exc}", err=True)
    return exc.exit_code


if __name__ == "__main__":
    main()
