"""Names, types and codes of everything a run directory holds; the schema version.

Never: reads or writes a file, judges a record, or imports pyarrow at import time (a worker
process imports the codes from here and must stay small).
Plan: codes, then the native columns (the same list as csrc/pf_record.h, compared by a test),
then the Arrow schemas built on demand.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 2

WALL_STEP_NS = 1_000_000  # a step of the wall clock beyond it is reported, and no stamp trusted

NULL64 = -(2**63)
NULL32 = -(2**31)
NULL16 = -(2**15)
NULL8 = -(2**7)
NULL_OF = {"i8": NULL64, "i4": NULL32, "i2": NULL16, "i1": NULL8}


class Kind(IntEnum):
    """What a scheduled row is for."""

    LOAD = 0
    PROBE = 1
    CANARY = 2
    HEALTH = 3


class Cause(IntEnum):
    """How a row ended, as the engine saw it: a fact, not a verdict."""

    NEVER_SENT = 0
    OPEN = 1
    STREAM_END = 2
    PLAIN_END = 3
    CONNECT = 4
    RESET = 5
    NO_RESPONSE = 6
    BODY_CUT = 7
    BAD_HTTP = 8
    BAD_EVENT = 9
    NO_END = 10
    HTTP_STATUS = 11
    ERROR_EVENT = 12
    DEADLINE = 13
    STOPPED = 14
    NOT_DUE = 15
    NO_DESCRIPTOR = 16
    NO_PORT = 17
    NO_MEMORY = 18
    REFUSED_HERE = 19
    TLS = 20


OUTCOMES = ("completed", "errored", "censored", "client_fault", "cut")
ERROR_CLASSES = (
    "connect",
    "reset",
    "malformed_stream",
    "http_status",
    "error_event",
    "aborted",
    "tls",
)

KIND_NAMES = tuple(kind.name.lower() for kind in Kind)
CAUSE_NAMES = tuple(cause.name.lower() for cause in Cause)

NATIVE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("index", "i8"),
    ("intended_ns", "i8"),
    ("head_offset", "i8"),
    ("head_length", "i4"),
    ("tail", "i4"),
    ("kind", "i2"),
    ("target", "i2"),
    ("dispatch_ns", "i8"),
    ("sent_ns", "i8"),
    ("connect_ns", "i8"),
    ("conn_idle_ns", "i8"),
    ("headers_ns", "i8"),
    ("first_token_ns", "i8"),
    ("first_visible_token_ns", "i8"),
    ("last_token_ns", "i8"),
    ("ended_ns", "i8"),
    ("sent_kernel_wall_ns", "i8"),
    ("acked_kernel_wall_ns", "i8"),
    ("first_token_kernel_wall_ns", "i8"),
    ("bytes_received", "i8"),
    ("conn_id", "i4"),
    ("content_events", "i4"),
    ("prompt_tokens", "i4"),
    ("completion_tokens", "i4"),
    ("errno_code", "i4"),
    ("message_slot", "i4"),
    ("tcp_anomalies", "i4"),
    ("http_status", "i2"),
    ("finish_reason", "i2"),
    ("replica", "i2"),
    ("cause", "i2"),
    ("conn_reused", "i1"),
    ("first_token_shared_read", "i1"),
)
TOKEN_COLUMNS: tuple[tuple[str, str], ...] = (
    ("token_time_ns", "i8"),
    ("token_kernel_wall_ns", "i8"),
    ("token_row", "i4"),
    ("token_event", "i4"),
    ("token_same_read", "i1"),
)
SECOND_COLUMNS: tuple[tuple[str, str], ...] = (
    ("second_end_ns", "i8"),
    ("second_cpu_ns", "i8"),
    ("second_idle_poll_ns", "i8"),
    ("second_sent", "i8"),
    ("second_skew_max_ns", "i8"),
    ("second_reads", "i8"),
    ("second_polls", "i8"),
)
ZERO_COLUMNS = frozenset({"bytes_received", "content_events", "errno_code", "cause"})

# requests.parquet in the order of the columns: (name, Arrow type name, may be null)
REQUEST_FIELDS: tuple[tuple[str, str, bool], ...] = (
    ("index", "int64", False),
    ("kind", "text", False),
    ("worker", "int16", False),
    ("target", "text", False),
    ("intended_ns", "int64", False),
    ("dispatch_ns", "int64", True),
    ("sent_ns", "int64", True),
    ("connect_ns", "int64", True),
    ("conn_id", "int32", True),
    ("conn_reused", "bool", True),
    ("conn_idle_ns", "int64", True),
    ("headers_ns", "int64", True),
    ("first_token_ns", "int64", True),
    ("first_visible_token_ns", "int64", True),
    ("last_token_ns", "int64", True),
    ("ended_ns", "int64", True),
    ("done_ns", "int64", True),
    ("sent_kernel_ns", "int64", True),
    ("acked_kernel_ns", "int64", True),
    ("first_token_kernel_ns", "int64", True),
    ("first_token_shared_read", "bool", True),
    ("cause", "text", False),
    ("outcome", "text", False),
    ("error_class", "text", True),
    ("errno", "int32", True),
    ("http_status", "int16", True),
    ("content_events", "int32", False),
    ("prompt_tokens", "int32", True),
    ("completion_tokens", "int32", True),
    ("finish_reason", "text", True),
    ("bytes_received", "int64", False),
    ("tcp_anomalies", "int32", True),
    ("replica", "text", True),
    ("message", "string", True),
)
SCHEDULE_FIELDS = (
    ("index", "int64", False),
    ("intended_ns", "int64", False),
    ("kind", "text", False),
    ("target", "text", False),
    ("template", "int32", False),
)
TOKEN_FIELDS = (
    ("index", "int64", False),
    ("event", "int32", False),
    ("time_ns", "int64", False),
    ("kernel_ns", "int64", True),
    ("same_read", "bool", False),
)
CLOCK_FIELDS = (
    ("before_ns", "int64", False),
    ("realtime_wall_ns", "int64", False),
    ("after_ns", "int64", False),
)
OFFSET_FIELDS = (
    ("phase", "text", False),
    ("before_ns", "int64", False),
    ("remote_wall_ns", "int64", True),
    ("after_ns", "int64", False),
    ("resolution_ns", "int64", True),
    ("round_trip_ns", "int64", True),
)
METRIC_FIELDS = (
    ("replica", "text", False),
    ("asked_ns", "int64", False),
    ("answered_ns", "int64", True),
    ("quantity", "text", True),
    ("metric", "text", True),
    ("labels", "text", True),
    ("le", "float64", True),
    ("value", "float64", True),
    ("error", "text", True),
)
CLIENT_FIELDS = (
    ("worker", "int16", False),
    ("end_ns", "int64", False),
    ("cpu_ns", "int64", False),
    ("idle_poll_ns", "int64", False),
    ("sent", "int64", False),
    ("skew_max_ns", "int64", True),
    ("reads", "int64", False),
    ("polls", "int64", False),
)


def arrow_type(name: str) -> pa.DataType:
    """Arrow type of a field's type name; `text` is a dictionary of strings (few values)."""
    import pyarrow as pa

    if name == "float64":
        return pa.float64()
    if name == "text":
        return pa.dictionary(pa.int32(), pa.string())
    if name == "bool":
        return pa.bool_()
    return pa.type_for_alias(name)


def arrow_schema(fields: tuple[tuple[str, str, bool], ...]) -> pa.Schema:
    """Arrow schema of one of the `*_FIELDS` above, the schema version in its metadata."""
    import pyarrow as pa

    return pa.schema(
        [pa.field(name, arrow_type(kind), nullable) for name, kind, nullable in fields],
        metadata={"percentes_fast_schema": str(SCHEMA_VERSION)},
    )
