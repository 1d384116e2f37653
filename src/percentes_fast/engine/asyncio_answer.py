"""What an answer's bytes say, on h11 and orjson: the slow reference of pf_http and pf_answer.

Never: touches a socket or a clock; a caller says when each read was.
Plan: one `Answer` a request. `take` is one read, `closed` and `failed` are the connection's end;
each writes columns and, once, the row's end through `Record`. h11 reads a head only when all of it
is there, so an unfinished head is looked at before: what can never become one is refused at once,
as the native engine does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11

from percentes_fast.engine.events import (
    MESSAGE_BYTES,
    Broken,
    Done,
    Event,
    Events,
    Facts,
    facts_of,
)
from percentes_fast.engine.slabs import Slab
from percentes_fast.schema import NULL64, Cause

HEAD_LIMIT = 64 * 1024
LENGTH_TOP = 1 << 56  # as in pf_http.c
NAME_BYTES = 64
VALUE_BYTES = 96
NAMES = 64
MESSAGE_LOST = -1
SHORTEST_SECRET = 4
STATUS_FORM = b"HTTP/1.d ddd"
NAME_START = re.compile(rb"[A-Za-z0-9!#$%&'*+\-.^_`|~]+(?::|\Z)")


@dataclass(frozen=True, slots=True)
class Rules:
    """What an answer is judged by, the same for all of a run."""

    plain: tuple[bool, ...]  # by kind
    end_by_finish: bool
    replica_header: bytes


def redacted(text: bytes, secrets: tuple[bytes, ...]) -> bytes:
    """A kept text without the secrets that were sent, as pf_answer_redact blots them out."""
    for secret in secrets:
        if len(secret) <= MESSAGE_BYTES:
            text = text.replace(secret, b"*" * len(secret))
        for n in range(min(len(secret), MESSAGE_BYTES), SHORTEST_SECRET - 1, -1):
            if len(text) == MESSAGE_BYTES and text.endswith(secret[:n]):
                text = text[:-n] + b"*" * n
                break
    return text


class Record:
    """One worker's columns; times are run time in ns."""

    def __init__(self, slab: Slab, secrets: tuple[bytes, ...] = ()) -> None:
        self.slab, self._secrets = slab, secrets
        names = (
            "kind", "target", "headers_ns", "first_token_ns", "first_visible_token_ns",
            "last_token_ns", "ended_ns", "bytes_received", "content_events", "prompt_tokens",
            "completion_tokens", "errno_code", "message_slot", "http_status", "finish_reason",
            "replica", "cause", "first_token_shared_read",
        )  # fmt: skip
        self.column = {name: slab.column(name) for name in names}
        self._token = {
            name: slab.column(f"token_{name}")
            for name in ("time_ns", "kernel_wall_ns", "row", "event", "same_read")
        }
        self.column["messages"] = slab.memory[slab.offset("messages") :]
        self._texts = {
            which: slab.memory[slab.offset(which) :] for which in ("finish_names", "replica_names")
        }

    def add(self, word: str, amount: int = 1) -> int:
        """Adds to a header word; its value before."""
        before = self.slab.word(word)
        self.slab.set_word(word, before + amount)
        return before

    def end(self, row: int, cause: Cause, errno: int, at: int) -> None:
        """Ends a row; its cause is written last."""
        slot = self.column["message_slot"][row]
        if slot >= 0 and self._secrets:
            start = slot * MESSAGE_BYTES
            room = self.column["messages"][start : start + MESSAGE_BYTES]
            room[:] = redacted(bytes(room).rstrip(b"\0"), self._secrets).ljust(MESSAGE_BYTES, b"\0")
        self.column["errno_code"][row] = errno
        self.column["ended_ns"][row] = at
        self.column["cause"][row] = cause
        self.add("in_flight", -1)

    def token(self, row: int, event: int, at: int, *, same_read: bool) -> None:
        """One line of token times, or one more of those that found no room."""
        line = self.slab.word("tokens_used")
        if line >= self.slab.word("tokens_capacity"):
            self.add("tokens_lost")
            return
        values = {"time_ns": at, "kernel_wall_ns": NULL64, "row": row, "event": event}
        for name, value in {**values, "same_read": int(same_read)}.items():
            self._token[name][line] = value
        self.add("tokens_used")

    def keep_text(self, row: int, text: bytes) -> None:
        """The row's message, at most 256 bytes, in a slot given out at the first use."""
        slots = self.column["message_slot"]
        if not text or slots[row] == MESSAGE_LOST:
            return
        if slots[row] < 0:
            if self.slab.word("messages_used") >= self.slab.word("messages_capacity"):
                self.add("messages_lost")
                slots[row] = MESSAGE_LOST
                return
            slots[row] = self.add("messages_used")
        start = slots[row] * MESSAGE_BYTES
        room = text[:MESSAGE_BYTES].ljust(MESSAGE_BYTES, b"\0")
        self.column["messages"][start : start + MESSAGE_BYTES] = room

    def intern(self, which: str, name: bytes) -> int | None:
        """Number of a name in its table, or None where the table is full."""
        room, used = self._texts[which], self.slab.word(f"{which}_used")
        padded = name[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
        for number in range(used):
            if room[number * NAME_BYTES : (number + 1) * NAME_BYTES] == padded:
                return number
        if used >= NAMES:
            self.add("names_lost")
            return None
        room[used * NAME_BYTES : (used + 1) * NAME_BYTES] = padded
        return self.add(f"{which}_used")


def _joined(response: h11.Response) -> dict[bytes, bytes]:
    """Headers by name, the values of a repeated one joined with commas (RFC 9110 5.3)."""
    found: dict[bytes, bytes] = {}
    for name, value in response.headers:
        found[name] = found[name] + b", " + value if name in found else value
    return found


def _elements(headers: dict[bytes, bytes], name: bytes) -> set[bytes]:
    """The parts of a list, in lower case."""
    return {part.strip().lower() for part in headers.get(name, b"").split(b",")}


class Answer:
    """One request's answer on a connection; `over` is whether its row has ended."""

    def __init__(self, record: Record, rules: Rules, row: int) -> None:
        self.over = False
        self._record, self._rules, self._row = record, rules, row
        self._plain = rules.plain[record.column["kind"][row]]
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_LIMIT)
        self._http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        self._http.send(h11.EndOfMessage())
        self._head = HeadCheck()
        self._response: h11.Response | None = None
        self._events = Events()
        self._refusal = bytearray()
        self._usage_seen = self._finish_seen = False
        self._last_count = 0
        self._closes = self._coded = False
        self._read_tokens = 0

    # ------------------------------------------------------------ the connection's side

    def take(self, data: bytes, at: int) -> str:
        """One read: "open", "reuse" (the answer is whole, the connection idle) or "close"."""
        self._read_tokens = 0
        if not self.over:
            self._record.column["bytes_received"][self._row] += len(data)
        if not self._head.takes(data):
            return self._end(Cause.BAD_HTTP, at)
        try:
            self._http.receive_data(data)
            return self._take_events(at)
        except (h11.RemoteProtocolError, ValueError):  # ValueError: a length of 5000 digits
            return self._end(self._cause_of_refusal(Cause.BAD_HTTP), at)

    def closed(self, at: int) -> None:
        """The peer closed."""
        if self.over:
            return
        if self._record.column["bytes_received"][self._row] == 0:
            self._end(Cause.NO_RESPONSE, at)
        elif self._until_close():
            self._end(self._cause_at_end(at), at)
        else:
            self._end(self._cause_of_refusal(Cause.BODY_CUT), at)

    def failed(self, cause: Cause, errno: int, at: int) -> None:
        """The connection, or the client's patience, ended: a cause from outside the bytes."""
        if not self.over:
            self._end(cause, at, errno)

    # ------------------------------------------------------------ HTTP

    def _take_events(self, at: int) -> str:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed):
                return "open"
            if isinstance(event, h11.Response):
                if not self._take_head(event, at):
                    return self._end(Cause.BAD_HTTP, at)
            elif isinstance(event, h11.Data):
                if not self.over and self._take_body(bytes(event.data), at):
                    return "close"
            elif isinstance(event, h11.EndOfMessage):
                return self._body_ended(at)

    def _take_head(self, response: h11.Response, at: int) -> bool:
        """False where h11 is laxer than the rule: another version than 1.x, a status below 100, a
        length beyond 64 bits.
        """
        headers = _joined(response)
        length = headers.get(b"content-length", b"0").partition(b",")[0].strip()[:20]
        far = length.isdigit() and int(length) // 10 >= LENGTH_TOP
        if not response.http_version.startswith(b"1.") or response.status_code < 100 or far:
            return False
        self._response = response
        connection = _elements(headers, b"connection")
        framed_twice = b"transfer-encoding" in headers and (
            b"content-length" in headers or response.http_version == b"1.0"
        )
        kept = response.http_version != b"1.0" or b"keep-alive" in connection
        cut = len(headers.get(b"connection", b"")) > VALUE_BYTES  # more than pf_http keeps
        self._closes = not kept or b"close" in connection or framed_twice or cut
        self._coded = bool(_elements(headers, b"content-encoding") - {b"", b"identity"})
        column, row = self._record.column, self._row
        column["headers_ns"][row] = at
        column["http_status"][row] = response.status_code
        replica = headers.get(self._rules.replica_header, b"")[:NAME_BYTES]
        if self._rules.replica_header and replica:
            number = self._record.intern("replica_names", replica)
            if number is not None:
                column["replica"][row] = number
        return True

    def _until_close(self) -> bool:
        if self._response is None:
            return False
        names = {name for name, _ in self._response.headers}
        return not names & {b"content-length", b"transfer-encoding"}

    def _body_ended(self, at: int) -> str:
        if not self.over:
            self._end(self._cause_at_end(at), at)
        left_over = bool(self._http.trailing_data[0])
        return "close" if self._closes or left_over else "reuse"

    # ------------------------------------------------------------ the body

    def _take_body(self, data: bytes, at: int) -> bool:
        """Whether the connection must be closed."""
        assert self._response is not None
        if self._response.status_code != 200:
            self._take_refusal(data)
            return False
        if self._plain or self._coded:
            return False
        rest = data
        for event, left in self._events.feed(data):
            self._mark_shared()
            cause = self._take_event(event, at)
            if cause is Cause.STREAM_END:
                self._end(cause, at)
                return False
            if cause is not Cause.OPEN:
                self._end(cause, at)
                return True
            rest = data[len(data) - left :]
        if rest not in (b"", b"\n"):  # more than the LF of a CR LF
            self._mark_shared()
        return False

    def _take_refusal(self, data: bytes) -> None:
        """An answer that is not 200: its first bytes are kept as they come."""
        if self._coded:
            return
        begun = len(self._refusal)
        self._refusal += data[: max(0, HEAD_LIMIT - begun)]
        if begun < MESSAGE_BYTES:
            text = bytes(self._refusal[:MESSAGE_BYTES]).replace(b"\0", b" ")
            self._record.keep_text(self._row, text)

    def _mark_shared(self) -> None:
        """More came in the read of the first token, after it."""
        column = self._record.column
        if self._read_tokens and column["content_events"][self._row] == self._read_tokens:
            column["first_token_shared_read"][self._row] = 1

    def _take_event(self, event: Event, at: int) -> Cause:
        if isinstance(event, Broken):
            return Cause.BAD_EVENT
        if isinstance(event, Done):
            return Cause.STREAM_END
        if not isinstance(event, Facts) or event.error:
            self._record.keep_text(self._row, event.message)
            return Cause.ERROR_EVENT
        self._take_facts(event, at)
        return Cause.OPEN

    def _take_facts(self, facts: Facts, at: int) -> None:
        column, row = self._record.column, self._row
        grew = self._usage_grew(facts)
        text = facts.visible or facts.tool
        if text or facts.reasoning or facts.token_ids or grew:
            self._token(at, visible=text or not facts.reasoning)
        if facts.prompt_tokens is not None:
            column["prompt_tokens"][row] = facts.prompt_tokens
        if facts.completion_tokens is not None:
            column["completion_tokens"][row] = facts.completion_tokens
        if facts.finish:
            self._finish_seen = True
            number = self._record.intern("finish_names", facts.finish)
            if number is not None:
                column["finish_reason"][row] = number

    def _usage_grew(self, facts: Facts) -> bool:
        """A running count that grew is a token; a count reported once is none."""
        if not facts.usage or facts.completion_tokens is None:
            return False
        grew = self._usage_seen and facts.choices and facts.completion_tokens > self._last_count
        self._usage_seen, self._last_count = True, facts.completion_tokens
        return grew

    def _token(self, at: int, *, visible: bool) -> None:
        column, row = self._record.column, self._row
        if column["content_events"][row] == 0:
            column["first_token_ns"][row] = at
            column["first_token_shared_read"][row] = 0
        if visible and column["first_visible_token_ns"][row] == NULL64:
            column["first_visible_token_ns"][row] = at
        column["last_token_ns"][row] = at
        self._record.token(row, column["content_events"][row], at, same_read=self._read_tokens > 0)
        column["content_events"][row] += 1
        self._read_tokens += 1

    # ------------------------------------------------------------ the end

    def _cause_at_end(self, at: int) -> Cause:
        assert self._response is not None
        if self._response.status_code != 200:
            self._keep_message()
            return Cause.HTTP_STATUS
        if self._plain:
            return Cause.PLAIN_END
        last = self._events.finish()
        if last is not None:
            cause = self._take_event(last, at)
            if cause is not Cause.OPEN:
                return cause
        ended = self._rules.end_by_finish and self._finish_seen
        return Cause.STREAM_END if ended else Cause.NO_END

    def _cause_of_refusal(self, otherwise: Cause) -> Cause:
        """Of an answer that cannot be read to its end: one that is not 200 is that before all."""
        if self.over or self._response is None or self._response.status_code == 200:
            return otherwise
        self._keep_message()
        return Cause.HTTP_STATUS

    def _keep_message(self) -> None:
        """The error text that the whole JSON of a refusal holds takes the place of its bytes."""
        facts = facts_of(bytes(self._refusal))
        if facts is not None:
            self._record.keep_text(self._row, facts.message)

    def _end(self, cause: Cause, at: int, errno: int = 0) -> str:
        if not self.over:
            self._record.end(self._row, cause, errno, at)
        self.over = True
        return "close"


class HeadCheck:
    """Can the bytes so far be the beginning of a response, after any number of 1xx ones?

    Each line is looked at while it comes; what follows the head is not.
    """

    def __init__(self) -> None:
        self._size = 0
        self._line = bytearray()  # the one under way
        self._status = b""  # of the head under way, once that line is whole
        self._over = False

    def takes(self, data: bytes) -> bool:
        """The bytes of one read; False where they cannot go on to a head of at most 64 KiB."""
        while data and not self._over:
            line, end, data = data.partition(b"\n")
            self._size += len(line) + len(end)
            self._line += line
            fits = _header_fits if self._status else _status_fits
            if self._size > HEAD_LIMIT or not fits(self._line, whole=bool(end)):
                return False
            if end:
                self._end_line()
        return True

    def _end_line(self) -> None:
        if not self._status:
            self._status = bytes(self._line)
        elif bytes(self._line) in (b"", b"\r"):
            self._over = not self._status.startswith(b"1", 9)
            self._status = b""
        self._line.clear()


def _status_fits(line: bytearray, *, whole: bool) -> bool:
    for want, got in zip(STATUS_FORM, line, strict=False):
        digit = chr(got).isdigit()
        if (want == ord("d") and not digit) or (want != ord("d") and got != want):
            return False
    if whole and len(line.rstrip(b"\r")) < len(STATUS_FORM):
        return False
    return bytes(line[12:13]) in (b"", b" ", b"\r")


def _header_fits(line: bytearray, *, whole: bool) -> bool:
    if bytes(line[:1]) in (b"", b"\r", b" ", b"\t"):
        return True
    found = NAME_START.match(line)
    return found is not None and (found[0].endswith(b":") or not whole)
