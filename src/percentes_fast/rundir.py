"""The run directory: what a run leaves behind, written atomically, opened strictly.

Never: computes a figure; leaves a half-written file under its final name; overwrites a run.
Plan: `RunDir.create` claims an empty directory; facts go in as whole files (temporary name, then
rename) or as journals of one JSON line each, so that a killed parent loses nothing; `open_run`
gives the frames back and says in one line what is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from percentes_fast import schema
from percentes_fast.errors import ClientError, ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FALLOC_FL_KEEP_SIZE = 1
MANIFEST = "manifest.json"
CONFIG = "config.yaml"
FAULT = "fault.json"
CAMPAIGN = "campaign.json"
COLD_START = "cold-start.log"
SERVER_LOG = "server.log"
TORN = "?"  # mark of a line of it that is not whole
STAMP_DIGITS = 19  # of a wall clock in ns, until 2286; more are two stamps that run together
STATES = ("preparing", "running", "complete", "partial")
MANIFEST_KEYS = {
    "run_id": str,
    "instrument_version": str,
    "instrument_commit": str | None,
    "config_sha256": str,
    "overrides": list,
    "config": dict,
    "workers": list,
    "interrupted": str | None,
}
FAULT_KEYS = {
    "kind": str,
    "planned_ns": int,
    "fire": dict | None,
    "evidence": dict | None,
    "error": str | None,
}
CAMPAIGN_KEYS = {
    "config_sha256": str,
    "claims_sha256": str,
    "overrides": list,
    "config": dict,
    "dropped": list,
}
TABLES: dict[str, tuple[tuple[str, str, bool], ...]] = {
    "schedule": schema.SCHEDULE_FIELDS,
    "requests": schema.REQUEST_FIELDS,
    "token_times": schema.TOKEN_FIELDS,
    "clocks": schema.CLOCK_FIELDS,
    "client": schema.CLIENT_FIELDS,
    "offsets": schema.OFFSET_FIELDS,
    "metrics": schema.METRIC_FIELDS,
}


class LineFile:
    """Whole lines appended to a file; after one that a full disk cut the next begins anew."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._torn = False

    def write(self, lines: bytes) -> bool:
        """Writes lines with their ends; did all of it go out? Raises OSError where nothing did."""
        data = b"\n" * self._torn + lines
        written = os.write(self._fd, data)
        self._torn = written < len(data)
        return not self._torn

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def close(self) -> None:
        """Closes the file; once is enough."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Journal:
    """Facts appended while a run is under way, one JSON line each, kept in memory too."""

    def __init__(self, path: Path, room: int = 0) -> None:
        """room: bytes that are taken on the disk now, so that it may fill up meanwhile."""
        self.lines: list[Any] = []
        self.lost = 0  # lines that a full disk kept from the file; they are still in `lines`
        self._file = LineFile(path)
        if room:
            _take_room(self._file.fileno(), room)

    def append(self, fact: Any) -> None:
        """Adds a fact; a disk that is full costs the file copy, not the fact."""
        self.lines.append(fact)
        whole = False
        with contextlib.suppress(OSError):
            whole = self._file.write(json.dumps(fact).encode() + b"\n")
        self.lost += not whole

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _take_room(descriptor: int, size: int) -> None:
    """fallocate(2) that keeps the file's length; where a file system cannot, nothing."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        libc.fallocate(descriptor, FALLOC_FL_KEEP_SIZE, 0, size)


class RunDir:
    """A run directory being written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, needed_bytes: int) -> RunDir:
        """Claims a directory that does not exist or is empty, with room for the results.

        Raises ClientError in one line; a directory it made is removed again then.
        """
        made = not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise ClientError(f"out {path}: is not empty; name a new directory")
            probe = path / ".probe"
            probe.write_bytes(b"")
            probe.unlink()
            free = os.statvfs(path)
        except OSError as exc:
            raise ClientError(f"out {path}: {exc.strerror}; name a writable directory") from exc
        if free.f_bavail * free.f_frsize < needed_bytes:
            if made:
                path.rmdir()
            raise ClientError(
                f"out {path}: the disk is full: {needed_bytes // 2**20 + 1} MiB are needed;"
                " free some or name another directory"
            )
        return cls(path)

    def journal(self, name: str, room: int = 0) -> Journal:
        """A journal file in the directory, with that many bytes taken at once."""
        return Journal(self.path / f"{name}.journal", room)

    def read_journal(self, name: str) -> list[Any]:
        """Whole lines of a journal; a last line cut by a crash is left out."""
        path = self.path / f"{name}.journal"
        if not path.exists():
            return []
        facts = []
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                facts.append(json.loads(line))
        return facts

    def drop_journal(self, name: str) -> None:
        """Removes a journal whose facts stand in a table now."""
        (self.path / f"{name}.journal").unlink(missing_ok=True)

    def write_bytes(self, name: str, data: bytes) -> None:
        """Writes a file under a temporary name, syncs, renames."""
        with self._replacing(name) as temporary, temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def keep_cold_start(self, given: str | None) -> None:
        """Copies the log of a cold start, so that the directory alone says everything."""
        data = check_cold_start(given)
        if data is not None:
            self.write_bytes(COLD_START, data)

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """Writes indented JSON; NaN and infinity are refused."""
        text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
        self.write_bytes(name, text.encode() + b"\n")

    def write_table(self, name: str, table: pa.Table) -> None:
        """Writes a Parquet file of the table's schema."""
        import pyarrow.parquet as pq

        with self._replacing(f"{name}.parquet") as temporary:
            pq.write_table(table, temporary, compression="zstd")

    @contextlib.contextmanager
    def _replacing(self, name: str) -> Iterator[Path]:
        temporary = self.path / f".{name}.tmp"
        try:
            yield temporary
            temporary.replace(self.path / name)
        except OSError as exc:
            temporary.unlink(missing_ok=True)
            what = "the disk is full" if exc.errno == errno.ENOSPC else exc.strerror
            raise ClientError(
                f"{self.path / name}: {what}; free space, then run"
                f" `percentes-fast recover {self.path}`: the records are kept"
            ) from exc


def check_cold_start(given: str | None) -> bytes | None:
    """The log of a cold start. Raises ConfigError where it cannot be read."""
    if given is None:
        return None
    try:
        return Path(given).expanduser().read_bytes()
    except OSError as exc:
        raise ConfigError(f"log.cold_start {given}: {exc.strerror}; name a log file") from exc


def read_cold_start(path: Path) -> str:
    """The log of a cold start that a run's or a campaign's directory holds; empty without one."""
    with contextlib.suppress(FileNotFoundError):
        return (path / COLD_START).read_text(errors="replace")
    return ""


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run directory. Raises DataError where there is none of this version."""
    manifest = _read_json(path, MANIFEST)
    if manifest.get("schema_version") != schema.SCHEMA_VERSION:
        raise DataError(
            f"{path / MANIFEST}: schema version {manifest.get('schema_version')!r}, this program"
            f" reads {schema.SCHEMA_VERSION}; use the version that wrote it"
        )
    return manifest


def read_campaign(path: Path) -> dict[str, Any]:
    """campaign.json of a directory. Raises DataError where there is none of this version."""
    found = _read_json(path, CAMPAIGN)
    if found.get("schema_version") != schema.SCHEMA_VERSION:
        raise DataError(f"{path / CAMPAIGN}: is of another version; use the one that wrote it")
    _check_keys(path / CAMPAIGN, found, CAMPAIGN_KEYS)
    if claims_sha256(found["config"]) != found["claims_sha256"]:
        raise DataError(
            f"{path / CAMPAIGN}: its claims are not the ones that were hashed before the first run;"
            " restore the file"
        )
    _check_config(path, found["config_sha256"])
    _check_claims(path, CAMPAIGN, found["config"])
    return found


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (/proc/PID/stat, field 22): with its pid,
    who it is. None where no such process lives; a zombie is dead.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()  # the name before it may hold anything; from field 3
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def claims_sha256(config: Mapping[str, Any]) -> str:
    """Of the predictions and the headline of a configuration as plain data."""
    claims = {key: config.get(key) for key in ("predictions", "headline")}
    return hashlib.sha256(json.dumps(claims, sort_keys=True).encode()).hexdigest()


def _check_config(path: Path, sha256: str) -> None:
    """config.yaml, where it is there, is the one that was hashed before the first request."""
    file = path / CONFIG
    if file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
        raise DataError(
            f"{file}: is not the file that was hashed before the first request; restore it"
        )


def _check_claims(path: Path, name: str, config: Mapping[str, Any]) -> None:
    """The claims in `name` are those of the hashed config.yaml: no flag sets any."""
    import yaml

    from percentes_fast.claims import Prediction

    file = path / CONFIG
    if not file.exists():
        return
    given = yaml.safe_load(file.read_bytes()) or {}
    predictions = [Prediction.model_validate(each) for each in given.get("predictions") or ()]
    claims = {
        "predictions": [each.model_dump(mode="json") for each in predictions],
        "headline": given.get("headline"),
    }
    if claims_sha256(config) != claims_sha256(claims):
        raise DataError(
            f"{path / name}: its claims are not those of {CONFIG}, which was hashed before the"
            " first request; restore the file"
        )


def is_campaign(path: Path) -> bool:
    """Is that the directory of a campaign, not of one run?"""
    return (path / CAMPAIGN).exists()


def run_path(campaign: Path, number: int) -> Path:
    """Run directory of a campaign, from 1 on."""
    return campaign / f"run-{number}"


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        data = json.loads((path / name).read_bytes())
    except FileNotFoundError as exc:
        raise DataError(f"{path}: has no {name}; name a run directory") from exc
    except (OSError, ValueError) as exc:
        raise DataError(f"{path / name}: {exc}; the file is damaged") from exc
    if not isinstance(data, dict):
        raise DataError(f"{path / name}: holds no JSON object; the file is damaged")
    return data


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run directory, read: manifest, fault record (None: no fault), frames, raw log lines."""

    manifest: dict[str, Any]
    fault: dict[str, Any] | None
    requests: pd.DataFrame
    token_times: pd.DataFrame
    clocks: pd.DataFrame
    client: pd.DataFrame
    offsets: pd.DataFrame
    metrics: pd.DataFrame
    log: tuple[tuple[int, str, str], ...]
    cold_start: str = ""


def open_run(path: Path) -> StoredRun:
    """Reads a finished run. Raises DataError in one line where it is not whole."""
    if not path.is_dir():
        raise DataError(f"{path}: is not a directory; name a run directory")
    manifest = read_manifest(path)
    if manifest.get("state") not in ("complete", "partial"):
        raise DataError(
            f"{path}: the run was not finished; run `percentes-fast recover {path}` first"
        )
    _check_keys(path / MANIFEST, manifest, MANIFEST_KEYS)
    _check_config(path, manifest["config_sha256"])
    _check_claims(path, MANIFEST, manifest["config"])
    fault = _read_json(path, FAULT) if (path / FAULT).exists() else None
    if fault is not None:
        _check_keys(path / FAULT, fault, FAULT_KEYS)
    requests = _frame(path, "requests")
    _check_rows(path, requests)
    return StoredRun(
        manifest=manifest,
        fault=fault,
        requests=requests,
        token_times=_frame(path, "token_times"),
        clocks=_frame(path, "clocks"),
        client=_frame(path, "client"),
        offsets=_frame(path, "offsets"),
        metrics=_frame(path, "metrics"),
        log=tuple(read_log(path / SERVER_LOG)),
        cold_start=read_cold_start(path),
    )


def _check_keys(file: Path, data: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
    for key, kind in needed.items():
        if key not in data or not isinstance(data[key], kind):
            raise DataError(f"{file}: {key} is missing or of another type; the file is damaged")


def _check_rows(path: Path, requests: pd.DataFrame) -> None:
    """Every scheduled row is one record, in the order of the schedule."""
    schedule = _frame(path, "schedule")
    names = ("index", "intended_ns")
    if not all(schedule[name].equals(requests[name]) for name in names):
        raise DataError(
            f"{path}: requests.parquet ({len(requests)} rows) is not the record of schedule.parquet"
            f" ({len(schedule)} rows); the run directory is damaged"
        )


def _frame(path: Path, name: str) -> pd.DataFrame:
    """A table as a frame: nullable integers stay integers, times stay exact."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    nullable = {
        pa.int64(): pd.Int64Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    file = path / f"{name}.parquet"
    try:
        table = pq.read_table(file, partitioning=None)  # no columns from a path such as rate=3/
    except FileNotFoundError as exc:
        raise DataError(f"{path}: has no {name}.parquet; the run directory is incomplete") from exc
    except (OSError, pa.ArrowException) as exc:
        raise DataError(f"{file}: {exc}; the file is damaged") from exc
    expected = schema.arrow_schema(TABLES[name])
    if table.schema.names != expected.names or table.schema.types != expected.types:
        raise DataError(
            f"{file}: has other columns than schema version {schema.SCHEMA_VERSION};"
            " use the version that wrote it"
        )
    frame: pd.DataFrame = table.to_pandas(types_mapper=nullable.get)
    return frame


def read_log(path: Path) -> Iterator[tuple[int, str, str]]:
    """(ns, mark, text) of each line of a time-stamped server log.

    mark: `o` output of the server, `s` an event of the supervisor; `d` output whose time stamp is
    the wall clock of the server's host, by a container engine or a reader there; TORN (at 0 ns):
    none of these, since a full disk cuts lines anywhere.
    """
    if not path.exists():
        return
    for raw in path.read_bytes().split(b"\n"):
        stamp, _, rest = raw.partition(b" ")
        mark, _, text = rest.partition(b" ")
        stamped = stamp.isdigit() and len(stamp) <= STAMP_DIGITS
        if stamped and mark in (b"o", b"s", b"d"):
            yield int(stamp), mark.decode(), text.decode("utf-8", "replace")
        elif raw:
            yield 0, TORN, raw.decode("utf-8", "replace")


def table_of(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """An Arrow table of one of the run's tables from arrays or lists by column name."""
    import pyarrow as pa

    shape = schema.arrow_schema(TABLES[name])
    return pa.table({field.name: columns[field.name] for field in shape}, schema=shape)
