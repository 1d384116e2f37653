"""Mapped column files, one a worker, named by us, that outlive any process.

Never: grows or moves a slab, leaves it sparse (a full disk must fail here, not as SIGBUS later), or
imports pyarrow or numpy (a worker stays small).
Plan: a slab is preallocated in shared memory where it fits (no write-back stalls a mapped page
there), else in the run directory; the C header lays it out; `check_layout` compares that with
schema.py once per process.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from percentes_fast import _native, schema
from percentes_fast.errors import ClientError

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "percentes-fast-"
FORMATS: dict[str, Literal["q", "i", "h", "b"]] = {"i8": "q", "i4": "i", "i2": "h", "i1": "b"}
STATE_NEW, STATE_READY, STATE_RUNNING, STATE_ENDED = range(4)


@dataclass(frozen=True, slots=True)
class SlabSize:
    """How many rows, token times, seconds and error texts a slab holds."""

    rows: int
    tokens: int
    seconds: int
    messages: int

    @property
    def bytes(self) -> int:
        """Bytes of the mapping."""
        return _native.slab_bytes(self.rows, self.tokens, self.seconds, self.messages)


def check_layout() -> None:
    """Compares the compiled lists of columns with schema.py's. Raises ClientError."""
    pairs = (
        (_native.COLUMNS, schema.NATIVE_COLUMNS),
        (_native.TOKEN_COLUMNS, schema.TOKEN_COLUMNS),
        (_native.SECOND_COLUMNS, schema.SECOND_COLUMNS),
    )
    for compiled, expected in pairs:
        if tuple((name, kind) for name, kind, _ in compiled) != expected:
            raise ClientError("the compiled core is of another version: reinstall percentes-fast")


class Slab:
    """A mapped slab; columns and words are views into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("r+b") as file:
                flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
                self._map = mmap.mmap(file.fileno(), 0, flags=flags)
        except (OSError, ValueError) as exc:
            raise ClientError(f"slab {path}: {exc}; its records cannot be read") from exc
        self.memory = memoryview(self._map)
        self._offsets = _native.slab_offsets(self.memory)
        self._words = self.memory[: 8 * len(_native.WORDS)].cast("q")

    def word(self, name: str) -> int:
        """Value of a header word."""
        return self._words[_native.WORDS[name]]

    def set_word(self, name: str, value: int) -> None:
        """Stores a header word (one aligned 8-byte store)."""
        self._words[_native.WORDS[name]] = value

    def column(self, name: str) -> memoryview[int]:
        """A column as a typed view of its whole capacity."""
        kind, count = self._shape(name)
        start = self._offsets[name]
        width = int(kind[1:])
        return self.memory[start : start + count * width].cast(FORMATS[kind])

    def _shape(self, name: str) -> tuple[str, int]:
        for columns, word in (
            (schema.NATIVE_COLUMNS, "rows"),
            (schema.TOKEN_COLUMNS, "tokens_capacity"),
            (schema.SECOND_COLUMNS, "seconds_capacity"),
        ):
            for column, kind in columns:
                if column == name:
                    return kind, self.word(word)
        raise KeyError(name)

    def offset(self, name: str) -> int:
        """Byte offset of a column, or of messages, finish_names, replica_names."""
        return self._offsets[name]

    def names(self, which: str) -> list[str]:
        """Interned names: which is finish_names or replica_names."""
        return self._texts(which, self.word(f"{which}_used"), 64)

    def messages(self) -> list[str]:
        """Error texts by slot."""
        return self._texts("messages", self.word("messages_used"), 256)

    def _texts(self, which: str, count: int, width: int) -> list[str]:
        start = self._offsets[which]
        slots = (self.memory[start + i * width : start + (i + 1) * width] for i in range(count))
        return [bytes(slot).rstrip(b"\0").decode("utf-8", "replace") for slot in slots]

    def let_go(self) -> None:
        """Drops this process's pages of it; the memory they show stays and comes back at a touch.

        Else a parent that wrote the known columns is charged for the whole slab during the load.
        """
        with suppress(OSError):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Releases the mapping where no view of it is left; the file stays."""
        self._words.release()
        self.memory.release()
        self._map.close()


def create(path: Path, size: SlabSize, worker: int) -> Slab:
    """Preallocates and formats a slab file. Raises ClientError where there is no room for it."""
    check_layout()
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as exc:
        raise ClientError(f"slab {path}: {exc.strerror}; choose another --out") from exc
    try:
        os.posix_fallocate(fd, 0, size.bytes)
        with mmap.mmap(fd, size.bytes, flags=mmap.MAP_SHARED) as mapped:
            view = memoryview(mapped)
            _native.slab_format(view, size.rows, size.tokens, size.seconds, size.messages, worker)
            view.release()
    except OSError as exc:
        path.unlink(missing_ok=True)
        raise ClientError(
            f"slab {path}: {exc.strerror}; {size.bytes // 2**20 + 1} MiB are needed, free some"
        ) from exc
    finally:
        os.close(fd)
    return Slab(path)


def place(run_id: str, worker: int, size: SlabSize, fallback: Path) -> Path:
    """Where a slab goes: shared memory where half of its free space will do, else `fallback`."""
    name = f"{PREFIX}{run_id}-{worker}.slab"
    try:
        free = os.statvfs(SHARED_MEMORY)
        if free.f_bavail * free.f_frsize >= 2 * size.bytes and os.access(SHARED_MEMORY, os.W_OK):
            return SHARED_MEMORY / name
    except OSError as exc:
        if exc.errno not in (errno.ENOENT, errno.EACCES):
            raise ClientError(f"{SHARED_MEMORY}: {exc.strerror}") from exc
    return fallback / name
