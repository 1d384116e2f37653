"""The fault of one run: its host, its victim, the order, what shows that it landed.

Never: judges whether it landed, fires at what was not checked again, or raises once the load runs:
what failed is a line in fault.json.
Plan: `Injection(...)` reaches and arms everything before the epoch, `fire` is the body of a thread,
`conclude` looks at the host again after the load. Times of this machine are stored on the run's
clock, readings of the host as they are (`_remote_wall_ns`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from percentes_fast import priority, rundir
from percentes_fast.config import Config, replicas, seconds_ns
from percentes_fast.errors import ClientError, FaultError, PercentesError
from percentes_fast.faults import container as containers
from percentes_fast.faults import evidence, kinds, process
from percentes_fast.faults.base import Armed, Evidence, Fired
from percentes_fast.faults.host import Host
from percentes_fast.faults.ssh import SshHost, reach
from percentes_fast.observe import logtail
from percentes_fast.observe.offset import NEAR, Sample, Sampler

CHECK_HERE_NS, CHECK_THERE_NS, CHECK_MOST_NS = 20_000_000, 2_000_000_000, 15_000_000_000
TRY_AHEAD_NS = 20_000_000_000  # within the guard of a default run
NEAR_AHEAD_NS = 50_000_000
LOG_BEFORE_NS = 5_000_000_000  # the log is kept from so long before the kill on
FACTS_BYTES, OFFSETS_BYTES = 256 * 1024, 1024 * 1024  # taken before the load
SERVER = "server"  # the target's name
UNFIRED = "the fault was not fired"


class Injection:
    """One armed fault with its host, container and clock samples."""

    def __init__(
        self,
        config: Config,
        directory: rundir.RunDir,
        server_pid: int | None,
        place: tuple[str, int],
    ) -> None:
        """Reaches the host, identifies the victim, arms, samples the clock.

        server_pid: of the supervised server; place: address of the victim's server. Raises
        FaultError or ConfigError in one line; nothing is left running then.
        """
        self._config, self._directory, self._epoch = config, directory, 0
        self._armed: Armed | None = None
        self._sampler: Sampler | None = None
        self._tail: logtail.Tail | None = None
        self._journal: rundir.Journal | None = None
        self._container: containers.Container | None = None
        self._host: Host = reach(config.ssh)
        self._facts_journal = directory.journal("fault", FACTS_BYTES)
        self.facts: dict[str, Any] = {
            "kind": config.fault.kind,
            "signal": int(kinds.SIGNALS[config.fault.kind]),
            "planned_ns": seconds_ns(config.phases.kill_at_s),
            "host": self._host.name,
            "same_clock": self._host.is_here,
            "fire": None,
            "evidence": None,
            "container": None,
            "clock": None,
            "log_lost": None,
            "error": None,
            "after_error": None,
        }
        try:
            self._prepare(server_pid, place)
        except BaseException:
            self.release()
            raise

    def _prepare(self, server_pid: int | None, place: tuple[str, int]) -> None:
        config = self._config
        pid = self._find(server_pid)
        if config.log.path is not None:
            log = self._directory.path / rundir.SERVER_LOG
            self._tail = logtail.Tail(self._host, config.log.path, log)
        self._armed = kinds.ARM[config.fault.kind](kinds.Victim(self._host, pid), config.fault)
        self.facts["armed"] = asdict(self._armed.identity)
        self.facts["how"] = self._armed.how
        self.facts["path"] = self._path(place)
        self.facts["before"] = evidence.look(self._host, place[1])
        self._place = place
        self.facts["fingerprints"] = {"before": self._fingerprint(pid), "after": None}
        if not self._host.is_here:
            self._journal = self._directory.journal("offsets", OFFSETS_BYTES)
            self._sampler = Sampler(self._host, place, self._keep)
            self._sampler.burst("arm")
            reader = self._sampler.reader
            self.facts["clock"] = {
                "reader": reader.name,
                "resolution_ns": reader.resolution_ns,
                "lost": None,
            }

    def _keep(self, sample: Sample) -> None:
        if self._journal is not None:
            self._journal.append(asdict(sample))

    def _find(self, server_pid: int | None) -> int:
        """The server's first process."""
        config = self._config
        if config.container.name is not None:
            self._container = containers.Container(self._host, config.container)
            state = self._container.victim()
            self.facts["container"] = {
                "engine_version": self._container.version,
                "sudo": self._container.sudo,
                "before": containers.facts(state),
                "after": None,
                "events": None,
                "log_lines": None,
            }
            return state.pid
        pid = server_pid if server_pid is not None else config.fault.pid
        assert pid is not None  # the configuration is checked
        return pid

    def _path(self, place: tuple[str, int]) -> dict[str, Any]:
        """Do order and answers share the network path, and does anything answer TCP in between?"""
        proxied, why = self._config.target.proxied, "the configuration says so (target.proxied)"
        found = self.facts["container"]
        if found is not None and found["before"]["network_mode"] != "host":
            proxied = True
            why = f"the container's network is {found['before']['network_mode']!r}, not the host's"
        if replicas(self._config)[0][0] != SERVER:
            proxied, why = True, "the load goes through the service in front of the victim"
        jumps = isinstance(self._host, SshHost) and self._host.jumps
        ssh_ip = self._host.address if isinstance(self._host, SshHost) else None
        return {
            "server_ip": place[0],
            "ssh_ip": ssh_ip,
            "jump": jumps,
            "same_path": ssh_ip == place[0] and not jumps,
            "proxied": proxied,
            "proxied_because": why if proxied else None,
        }

    def _fingerprint(self, pid: int | None) -> dict[str, Any]:
        """The host's GPUs and kernel, the server's command line (of `pid`) and versions."""
        command = None
        if pid:
            with contextlib.suppress(FaultError):  # it may be gone again: told elsewhere
                command = process.identify(self._host, pid).command
        https = self._config.target.https
        return {
            "command": command,
            "server_version": None if https else evidence.server_version(*self._place),
            "container_engine": self._container.version if self._container else None,
            **evidence.fingerprint(self._host),
        }

    # ------------------------------------------------------------ the load

    def begin(self, epoch_ns: int) -> None:
        """The epoch is known: samples go on once a second, half a second off the fire."""
        self._epoch = epoch_ns
        if self._sampler is not None:
            self._sampler.start(epoch_ns + int(self.facts["planned_ns"]) + 500_000_000)

    def fire(self, cancelled: threading.Event) -> None:
        """The fault's thread: waits, checks the identity again, fires, looks for the evidence."""
        armed = self._armed
        assert armed is not None
        try:
            # The victim wakes to die, on this core as likely as not: it must not run before the
            # clock is read again. This thread spins for 0.5 ms, once.
            with priority.raised(priority.KILL):
                fired = self._fire(armed, self._epoch + int(self.facts["planned_ns"]), cancelled)
        except Exception as exc:
            self.facts["error"] = _told(exc)
            self.write()
            return
        self.facts["fire"] = self._fired(fired)
        self.write()
        try:
            self.facts["evidence"] = self._evidence(armed.evidence())
        except Exception as exc:
            self.facts["after_error"] = _told(exc)
        self.write()

    def _fire(self, armed: Armed, at: int, cancelled: threading.Event) -> Fired:
        """Checks, waits, fires. Raises FaultError where it did not fire.

        An interruption calls the fault off until its last moment, some 50 ms before it is due.
        """
        self._wait(at - self._ahead_ns(armed, at, cancelled), cancelled)
        self._check(armed)
        self._wait(at - self._last_moment_ns(), cancelled)
        if self._sampler is not None:
            self._sampler.near()
        fired = armed.fire(at)
        if self._sampler is not None:
            self._sampler.near()
        return fired

    def _ahead_ns(self, armed: Armed, at: int, cancelled: threading.Event) -> int:
        """How long before the fire the check begins: on another host, or through a container
        engine, as one that is tried under the load takes, twice, and a second.
        """
        if self._host.is_here and not self._container:
            return CHECK_HERE_NS
        if time.monotonic_ns() > at - TRY_AHEAD_NS:
            return CHECK_THERE_NS
        self._wait(at - TRY_AHEAD_NS, cancelled)
        begun = time.monotonic_ns()
        try:
            self._check(armed)
        except FaultError:
            return CHECK_MOST_NS  # the one that counts is told
        took = time.monotonic_ns() - begun
        return max(CHECK_THERE_NS, min(2 * took + 1_000_000_000, CHECK_MOST_NS))

    def _wait(self, until_ns: int, cancelled: threading.Event) -> None:
        """Waits for CLOCK_MONOTONIC `until_ns`. Raises FaultError where it was called off, or the
        load is over: nothing fires then.
        """
        called_off = cancelled.wait(max(0.0, (until_ns - time.monotonic_ns()) / 1e9))
        now = time.monotonic_ns() - self._epoch
        over = now >= seconds_ns(self._config.duration_s)
        if not called_off and not over:
            return
        if not over:
            raise FaultError("the run was interrupted before the fault was due")
        late_s = (now - int(self.facts["planned_ns"])) / 1e9
        raise FaultError(
            f"the machine kept this process from running until {late_s:.1f} s after the fault was"
            " due, when the load was over; leave it a core, or allow real-time scheduling"
            " (percentes-fast doctor)"
        )

    def _last_moment_ns(self) -> int:
        """How long before the fire the last samples of the clock begin: the nearer, the better."""
        if self._sampler is None:
            return CHECK_HERE_NS
        trip_ns = min(
            s.after_ns - s.before_ns for s in self._sampler.samples if s.remote_wall_ns is not None
        )
        return NEAR_AHEAD_NS + 2 * NEAR * trip_ns

    def _check(self, armed: Armed) -> None:
        """The victim is there, and the one that was armed. Raises FaultError."""
        try:
            self._check_victim(armed)
        except FaultError as exc:
            told = str(exc)
            if UNFIRED not in told:
                raise FaultError(f"{told}; {UNFIRED}") from exc
            raise

    def _check_victim(self, armed: Armed) -> None:
        if self._container is not None:
            now, then = self._container.victim(), self.facts["container"]["before"]
            if (now.id, now.pid) != (then["id"], then["pid"]):
                raise FaultError(
                    f"--container {self._config.container.name}: is not the one armed any more"
                    f" (pid {then['pid']}, now {now.pid}); {UNFIRED}"
                )
        armed.check()

    def _fired(self, fired: Fired) -> dict[str, Any]:
        return {
            "before_ns": fired.before_ns - self._epoch,
            "after_ns": fired.after_ns - self._epoch,
            "errno": fired.errno,
            "remote": None if fired.remote is None else asdict(fired.remote),
        }

    def _evidence(self, found: Evidence) -> dict[str, Any]:
        def run_time(at: int | None) -> int | None:
            return None if at is None else at - self._epoch

        return {
            "gone_ns": run_time(found.gone_ns),
            "stopped": found.stopped,
            "continued_ns": run_time(found.continued_ns),
            "survivors": [asdict(identity) for identity in found.survivors],
            **evidence.look(self._host, self.facts["before"]["port"]),
        }

    def write(self) -> None:
        """fault.json as far as it is known; where the disk is full, `recover` finds it in the
        journal, whose room was taken at arming.
        """
        self._facts_journal.append(self.facts)
        with contextlib.suppress(ClientError):
            self._directory.write_json(rundir.FAULT, self.facts)

    def hasten(self) -> None:
        """After an interruption: a stopped server runs again now."""
        if self._armed is not None:
            self._armed.hasten()

    # ------------------------------------------------------------ afterwards

    def sample_after(self) -> None:
        """Right after the load: the last burst of clock samples."""
        self._try(self._last_samples)

    def conclude(self) -> None:
        """After the load: the container again, its log, the fingerprint again."""
        for step in (
            self._end_of_log,
            self._container_state,
            self._container_events,
            self._container_log,
            self._fingerprint_after,
        ):
            self._try(step)
        self.write()

    def cut_short(self) -> None:
        """An interruption ended `conclude`: what is known is kept, and that it is not all."""
        told = "interrupted while the server's host was looked at after the load"
        self.facts["after_error"] = self.facts["after_error"] or told
        self.write()

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as exc:
            self.facts["after_error"] = self.facts["after_error"] or _told(exc)

    def _last_samples(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
            self.facts["clock"]["lost"] = self._sampler.lost

    def _end_of_log(self) -> None:
        if self._tail is not None:
            self.facts["log_lost"] = self._tail.lost

    def _fingerprint_after(self) -> None:
        found = self.facts["container"]
        pid = None if found is None or found["after"] is None else found["after"]["pid"]
        self.facts["fingerprints"]["after"] = self._fingerprint(pid)

    def _container_state(self) -> None:
        if self._container is not None:
            self.facts["container"]["after"] = containers.facts(self._container.state())

    def _container_events(self) -> None:
        if self._container is not None:
            found = self._container.events(*self._span(self.facts["fire"]))
            self.facts["container"]["events"] = found

    def _container_log(self) -> None:
        if self._container is not None:
            lines = self._container.log(self._span(self.facts["fire"])[0])
            self.facts["container"]["log_lines"] = len(lines)
            self._directory.write_bytes(rundir.SERVER_LOG, logtail.container_log(lines))

    def _span(self, fire: dict[str, Any] | None) -> tuple[int, int]:
        """From before the kill to now, on the host's wall clock, a second wide of what is known."""
        now = time.time_ns()
        if self._sampler is not None:
            last = self._sampler.samples[-1]
            readings = [s for s in self._sampler.samples if s.remote_wall_ns is not None]
            last = readings[-1]
            now = int(last.remote_wall_ns or 0) + time.monotonic_ns() - last.after_ns
        at = int(self.facts["planned_ns"] if fire is None else fire["before_ns"])
        since = now - (time.monotonic_ns() - self._epoch - at)
        if fire is not None and fire["remote"] is not None:
            since = int(fire["remote"]["before_remote_wall_ns"])
        return since - LOG_BEFORE_NS, now

    def samples(self) -> list[Sample]:
        """Every clock sample and dial so far."""
        return [] if self._sampler is None else list(self._sampler.samples)

    def release(self) -> None:
        """Undoes the fault and lets go of the host; safe to call at any time."""
        closing: list[Callable[[], None]] = []
        if self._armed is not None:
            closing.append(self._armed.undo)
        if self._tail is not None:
            closing.append(self._tail.stop)
        if self._sampler is not None:
            closing.append(self._sampler.close)
        if self._journal is not None:
            closing.append(self._journal.close)
        closing.append(self._facts_journal.close)
        closing.append(self._host.close)
        for close in closing:
            with contextlib.suppress(PercentesError, OSError):
                close()


def _told(exc: Exception) -> str:
    """What went wrong once the load ran, in one line, whatever it was."""
    return str(exc) if isinstance(exc, PercentesError) else f"{type(exc).__name__}: {exc}"
