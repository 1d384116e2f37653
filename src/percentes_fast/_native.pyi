"""Types of the compiled core; see _native.pyx."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

COLUMNS: tuple[tuple[str, str, int], ...]
TOKEN_COLUMNS: tuple[tuple[str, str, int], ...]
SECOND_COLUMNS: tuple[tuple[str, str, int], ...]
WORDS: dict[str, int]
CONNECTION_BYTES: int

def clock_now() -> int: ...
def clock_pair() -> tuple[int, int, int]: ...
def clock_cost(reads: int) -> float: ...
def wait_overshoot(waits: int, period: int, spin_ns: int) -> list[int]: ...
def slab_bytes(rows: int, tokens: int, seconds: int, messages: int) -> int: ...
def slab_format(
    slab: memoryview, rows: int, tokens: int, seconds: int, messages: int, worker: int
) -> None: ...
def slab_offsets(slab: memoryview) -> dict[str, int]: ...

class Engine:
    def __init__(
        self,
        slab: memoryview,
        heads: memoryview | bytes,
        tails: list[bytes],
        targets: list[tuple[str, int]],
        timeouts_ns: Sequence[int],
        plain: Sequence[bool],
        *,
        spin_ns: int = ...,
        idle_reuse_ns: int = ...,
        max_connections: int = ...,
        parent_pid: int = ...,
        end_by_finish: bool = ...,
        stamps: bool = ...,
        busy: bool = ...,
        rehearse: bool = ...,
        secrets: Sequence[bytes] = ...,
        replica_header: str = ...,
    ) -> None: ...
    def answer(self, row: int, pieces: Iterable[bytes], end: str) -> bool: ...
    @property
    def rehearses(self) -> bool: ...
    def run(self) -> bool: ...

def pidfd_open(pid: int) -> int: ...
def fire(pidfd: int, group: int, signal: int, at: int) -> tuple[int, int, int]: ...
def respond(
    listener: int,
    parent_pid: int,
    spin_ns: int,
    stop: array[int],
    requests: Any = ...,
    events: Any = ...,
) -> dict[str, int]: ...
def scan_json(pieces: Iterable[bytes]) -> dict[str, Any] | None: ...
def scan_sse(pieces: Iterable[bytes]) -> list[Any]: ...
def scan_http(
    pieces: Iterable[bytes], closed: bool = ..., replica_header: str = ...
) -> dict[str, Any]: ...
