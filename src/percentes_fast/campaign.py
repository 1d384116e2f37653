"""N runs of one experiment: the published study from one command, resumed where it was interrupted.

Never: measures or judges itself; does a run again that has ended; starts a run before the server
answers again, with another configuration than the campaign began with, or at a pid that is another
process's by now.
Plan: campaign.json says what is repeated, run-1, run-2, ... are run directories of their own (run k
uses seed + k); a run that was interrupted is put aside under another name and done again. The dry
kill does one fault without load.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import percentes_fast
from percentes_fast import launch, run, rundir, store
from percentes_fast.config import Config, LoadedConfig, replicas
from percentes_fast.engine import pool, preflight
from percentes_fast.engine.buffers import Label
from percentes_fast.errors import (
    ConfigError,
    DataError,
    FaultError,
    InterruptedRunError,
    PercentesError,
    TargetError,
)
from percentes_fast.injection import Injection
from percentes_fast.schema import SCHEMA_VERSION

POLL_S = 0.5
DRY_LEAD_S = 3.0
Judge = Callable[[Path], bool]  # writes a run's reports; was it interrupted?


def settings(loaded: LoadedConfig) -> dict[str, Any]:
    """What a campaign is a function of; two that differ are two campaigns."""
    return {"config_sha256": loaded.sha256, "overrides": list(loaded.overrides)}


def begin(loaded: LoadedConfig, out: Path) -> dict[str, Any]:
    """Claims a directory for a new campaign, or opens the one that was interrupted there.

    Raises ConfigError where it cannot be repeated or another campaign lies there, ClientError where
    it cannot be written.
    """
    check_pid(loaded.config)
    if rundir.is_campaign(out):
        found = rundir.read_campaign(out)
        if {key: found[key] for key in settings(loaded)} != settings(loaded):
            raise ConfigError(
                f"out {out}: holds a campaign of another configuration or other overrides; name a"
                " new directory, or go on with the same command"
            )
        return found
    rundir.check_cold_start(loaded.config.log.cold_start)
    directory = rundir.RunDir.create(out, 0)
    registered = {
        "schema_version": SCHEMA_VERSION,
        "instrument_version": percentes_fast.__version__,
        "instrument_commit": percentes_fast.commit(),
        **settings(loaded),
        "config": loaded.config.public(),
        "claims_sha256": rundir.claims_sha256(loaded.config.public()),
        "registered_wall_ns": time.time_ns(),
        "dropped": [],
    }
    directory.write_bytes(rundir.CONFIG, loaded.text)
    directory.keep_cold_start(loaded.config.log.cold_start)
    directory.write_json(rundir.CAMPAIGN, registered)
    return registered


def check_pid(config: Config) -> None:
    """Raises ConfigError where a later run would signal whoever has --pid's number by then.

    A single run takes no notice of campaign.runs, so the configuration alone cannot tell.
    """
    pid = config.fault.pid
    if pid is None or config.campaign.runs == 1:
        return
    if config.fault.kind != "stop":
        raise ConfigError(
            f"fault.pid (--pid {pid}): is gone after run 1, or another process's; use --runs 1, or"
            " --serve or --container, which find the server again"
        )
    if config.ssh.target is not None:
        raise ConfigError(
            f"fault.pid (--pid {pid}): over SSH nothing checks between the runs that it is the same"
            " process; use --runs 1 or --container"
        )


def _alone(out: Path) -> int:
    """A descriptor that keeps others from going on with the same campaign while it is open, that
    is until this process ends. Raises ConfigError where another one holds it.
    """
    descriptor = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        os.close(descriptor)
        raise ConfigError(
            f"out {out}: its campaign is under way; wait for it, or end that process first"
        ) from exc
    except OSError:
        pass  # a file system without locks
    return descriptor


class Campaign:
    """A campaign under way."""

    def __init__(
        self, loaded: LoadedConfig, out: Path, label: Label, watcher: run.Watcher | None
    ) -> None:
        """Begins or resumes. Raises ConfigError or ClientError."""
        self.path = out
        self._loaded, self._label = loaded, label
        self._watcher = watcher or run.Silent()
        self._existed = out.exists()
        self._facts = begin(loaded, out)
        self._lock = _alone(out)

    def go_on(self, judge: Judge) -> None:
        """Does every run that has not ended; a run that could not start is dropped by name.

        Raises InterruptedRunError after an interruption; the same command goes on from there.
        """
        for number in range(1, self._loaded.config.campaign.runs + 1):
            if not self._has_ended(number):
                self._run(number, judge)
            elif self._lacks_reports(number):
                judge(rundir.run_path(self.path, number))

    def _lacks_reports(self, number: int) -> bool:
        """Was the campaign interrupted between the end of that run and its reports?"""
        path = rundir.run_path(self.path, number)
        return path.exists() and not (path / "report.html").exists()

    def _has_ended(self, number: int) -> bool:
        """A run that ended is kept; one that did not is put aside, and named."""
        path = rundir.run_path(self.path, number)
        dropped = [each["run"] for each in self._facts["dropped"] if each["directory"] is None]
        if number in dropped:
            return True
        if not path.exists():
            return False
        state, why = _state(path), "interrupted"
        if state == "running":  # its parent was killed: what it had measured is still in memory
            self._watcher.say(f"run {number} was cut off: storing what it had measured")
            why = self._recovered(path) or why
        if _state(path) == "complete":
            return True
        self._drop(number, f"was {state or 'not begun'}: {why}, and done again", aside=True)
        return False

    def _recovered(self, path: Path) -> str | None:
        """Stores what a run without a parent had measured; why that cannot be, for good."""
        try:
            store.recover(path, self._label)
        except store.RecordsLostError as exc:
            return f"its records are lost ({exc.__cause__})"
        return None

    def _drop(self, number: int, reason: str, *, aside: bool) -> None:
        directory = None
        path = rundir.run_path(self.path, number)
        if aside and path.exists():
            count = 1
            while (moved := path.with_name(f"{path.name}-interrupted-{count}")).exists():
                count += 1
            path.rename(moved)
            directory = moved.name
        self._facts["dropped"].append({"run": number, "reason": reason, "directory": directory})
        rundir.RunDir(self.path).write_json(rundir.CAMPAIGN, self._facts)

    def _run(self, number: int, judge: Judge) -> None:
        runs = self._loaded.config.campaign.runs
        self._watcher.say(f"run {number} of {runs}")
        loaded = self._of_run(number)
        try:
            if number > 1 or self._facts["dropped"]:
                self._refuse_stranger()
                self._await_server(loaded.config)
                self._refuse_stranger()  # that may have taken minutes
            made = run.measure(
                loaded, rundir.run_path(self.path, number), self._label, self._watcher
            )
        except PercentesError as exc:
            if number == 1:
                self._forget()
            if number == 1 or not isinstance(exc, TargetError | FaultError):
                raise
            self._watcher.say(f"run {number} could not start: {exc}")
            self._drop(number, f"could not start: {exc}", aside=False)
            return
        if judge(made.path):
            raise InterruptedRunError(
                f"run {number} was interrupted; the same command goes on with it"
            )

    def _forget(self) -> None:
        """A campaign whose first run never began leaves nothing, so that a mended command may have
        the directory.
        """
        if not self._facts["dropped"] and not rundir.run_path(self.path, 1).exists():
            _empty(self.path, remove=not self._existed)

    def _of_run(self, number: int) -> LoadedConfig:
        config = self._loaded.config
        seeded = config.model_copy(update={"seed": config.seed + number})
        return LoadedConfig(
            seeded,
            self._loaded.text,
            self._loaded.sha256,
            (*self._loaded.overrides, f"seed={seeded.seed}"),
        )

    def _refuse_stranger(self) -> None:
        """Raises FaultError where --pid is not the process that an earlier run had armed."""
        config = self._loaded.config
        if config.fault.pid is None:
            return
        for path in sorted(self.path.glob("run-*")):
            armed = _armed(path)
            if armed is None:
                continue
            here = config.ssh.target is None
            if here and rundir.start_ticks(armed["pid"]) == armed["start_ticks"]:
                continue
            told = "has ended since" if here else "may have ended since, which SSH does not tell"
            raise FaultError(
                f"--pid {config.fault.pid}: the process that {path.name} was armed at (pid"
                f" {armed['pid']}) {told}; begin a new campaign with the server's pid of now"
            )

    def _await_server(self, config: Config) -> None:
        """Until a server that something else restarts answers again."""
        if config.embedded or config.serve.command is not None:
            return
        await_ready(config, self.path)


def _empty(path: Path, *, remove: bool) -> None:
    """Takes back what a campaign or a dry kill has written before anything was done."""
    names = (rundir.CAMPAIGN, rundir.CONFIG, rundir.COLD_START, rundir.SERVER_LOG)
    for name in (*names, "offsets.journal", "fault.journal"):
        (path / name).unlink(missing_ok=True)
    if remove:
        with contextlib.suppress(OSError):
            path.rmdir()


def _state(path: Path) -> str | None:
    try:
        return str(rundir.read_manifest(path)["state"])
    except DataError:
        return None


def _armed(path: Path) -> dict[str, Any] | None:
    """The process that the fault of a run was armed at; None where it never was."""
    facts = rundir.RunDir(path).read_journal("fault")  # all there is, where the disk was full
    file = path / rundir.FAULT
    try:
        if file.exists():
            facts.append(json.loads(file.read_bytes()))
    except (OSError, ValueError) as exc:
        raise DataError(f"{file}: {exc}; the file is damaged") from exc
    return next((each["armed"] for each in facts if each.get("armed")), None)


def await_ready(config: Config, directory: Path) -> float:
    """Waits until the target serves a token; the seconds that took. Raises TargetError."""
    began = time.monotonic()
    limit_s = config.serve.ready_timeout_s
    nowhere = pool.Address("127.0.0.1", 9, "127.0.0.1:9")
    name = secrets.token_hex(5)  # a run id of its own: two campaigns may wait at a time
    while time.monotonic() - began < limit_s:
        address = launch.answering(launch.resolve(str(config.target.url)))
        if launch.listens(address):
            answer = preflight.ask(config, (address, nowhere), name, directory, short=True)
            try:
                preflight.expect(config, answer)
            except TargetError:
                pass
            else:
                return time.monotonic() - began
        time.sleep(POLL_S)
    raise TargetError(
        f"target {config.target.url}: does not serve {limit_s:g} s after the last run; look at the"
        " server, or raise serve.ready_timeout_s"
    )


def dry_kill(loaded: LoadedConfig, out: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Does the fault once without load, unmeasured: does everything work? Its fault.json.

    Raises FaultError where it did not land, TargetError where the server did not come back.
    """
    config = loaded.config
    if config.embedded or config.serve.command is not None or config.fault.kind == "none":
        raise ConfigError(
            "--dry-kill: tries the fault on a server that something else restarts; give --target"
            " and --container or --pid"
        )
    existed = out.exists()
    directory = rundir.RunDir.create(out, 0)
    try:
        directory.write_bytes(rundir.CONFIG, loaded.text)
        say("dry kill: arming")
        injection = _dry_armed(config, directory)
    except BaseException:
        _empty(out, remove=not existed)
        raise
    try:
        injection.begin(time.monotonic_ns())
        say("dry kill: firing")
        injection.fire(threading.Event())
        if injection.facts["error"] is None:
            say("dry kill: waiting for the server")
            time.sleep(POLL_S)
            injection.facts["served_again_s"] = await_ready(config, out)
        injection.conclude()
    finally:
        injection.write()
        injection.release()
        for name in ("offsets", "fault"):
            directory.drop_journal(name)  # it is no run: nothing reads them
    _check_landed(injection.facts)
    return injection.facts


def _dry_armed(config: Config, directory: rundir.RunDir) -> Injection:
    address = launch.answering(launch.resolve(str(replicas(config)[0][1])))
    now = config.model_copy(
        update={"phases": config.phases.model_copy(update={"kill_at_s": DRY_LEAD_S})}
    )
    injection = Injection(now, directory, None, (address.ip, address.port))
    found = injection.facts["container"]
    if found is not None and found["before"]["restart_policy"] in ("", "no"):
        injection.release()
        raise FaultError(
            f"--container {config.container.name}: has no restart policy, so nothing would start it"
            " again; give it one (docker update --restart on-failure)"
        )
    return injection


def _check_landed(facts: dict[str, Any]) -> None:
    for key in ("error", "after_error"):
        if facts[key] is not None:
            raise FaultError(f"dry kill: {facts[key]}")
    evidence = facts["evidence"]
    if evidence["gone_ns"] is None and not evidence["stopped"]:
        raise FaultError("dry kill: the process was not seen to go; raise fault.gone_timeout_s")
