"""Server-sent events and their facts in plain Python: the slow reference of pf_sse and pf_json.

Never: touches a socket, a slab or a clock, or decides what a fact means for a request.
Plan: `Events` splits a body's bytes into events (LF, CR, CRLF); `facts_of` reads one event's JSON
with orjson; where orjson is stricter than the rule (brackets, strings and escapes balance and the
event is one object), a tolerant reading decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

DEEPEST = 256  # levels of nesting
LARGEST = 10**9 - 1  # a token count beyond it is none
FINISH_BYTES = 32
MESSAGE_BYTES = 256
EVENT_BYTES = 4 * 2**20  # what is longer is not kept, and counts as broken
OTHER_BYTES = 1024  # of a line without data
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
BLANK = b" \t\n"
LINE_END = re.compile(rb"\r\n|\n|\r")
_TOKEN = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")|[-0-9][-+.0-9eE]*', re.DOTALL)


@dataclass(slots=True)
class Facts:
    """What one event's JSON says; texts are UTF-8, cut at their limits."""

    visible: bool = False
    reasoning: bool = False
    tool: bool = False
    token_ids: bool = False
    choices: bool = False
    usage: bool = False
    error: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish: bytes = b""
    message: bytes = b""


class Done:
    """The stream's own end marker."""


@dataclass(slots=True)
class PlainError:
    """An event named error that is neither JSON nor [DONE]: its words."""

    message: bytes


class Broken:
    """An event that is neither one balanced JSON object nor [DONE]."""


Event = Facts | Done | PlainError | Broken


class Events:
    """Splits a body into events, fed in any pieces."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._after_cr = False
        self._first_line = True
        self._begin()

    def _begin(self) -> None:
        self._data: list[bytes] = []
        self._bytes = 0
        self._is_error = self._too_long = False

    def _keep(self, piece: bytes) -> None:
        """More of a line; of one that holds no data only the beginning matters."""
        is_data = (bytes(self._line[:4]) + piece[:4])[:4] == b"data"
        room = EVENT_BYTES if is_data else OTHER_BYTES
        if len(self._line) + len(piece) > room:
            self._too_long |= is_data
            piece = piece[: max(0, room - len(self._line))]
        self._line += piece

    def feed(self, piece: bytes) -> Iterator[tuple[Event, int]]:
        """Whole events of the body so far, each with the number of bytes of `piece` after it."""
        at = 0
        if self._after_cr and piece:
            at = int(piece[:1] == b"\n")
            self._after_cr = False
        while found := LINE_END.search(piece, at):
            self._keep(piece[at : found.start()])
            at = found.end()
            self._after_cr = found[0] == b"\r" and at == len(piece)
            event = self._end_line()
            if event is not None:
                yield event, len(piece) - at
        self._keep(piece[at:])

    def finish(self) -> Event | None:
        """The body has ended: its last event, if that has no blank line, or None."""
        if self._line:
            self._end_line()
        return self._end_event()

    def _end_line(self) -> Event | None:
        line = bytes(self._line)
        self._line.clear()
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line:
            return self._end_event()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._bytes += len(value) + 1
            if self._bytes > EVENT_BYTES:
                self._too_long = True
            else:
                self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._is_error = value.removeprefix(b" ") == b"error"
        return None

    def _end_event(self) -> Event | None:
        data, is_error = b"\n".join(self._data).lstrip(BLANK), self._is_error
        too_long = self._too_long
        self._begin()
        if not data:
            return None
        if too_long:
            return Broken()
        if data.startswith(b"{"):
            found = facts_of(data)
            if found is not None and is_error:
                found.error = True
            return found or Broken()
        if data.startswith(b"[DONE]") and not data[6:].strip(BLANK):
            return Done()
        return PlainError(_words(data[:MESSAGE_BYTES])) if is_error else Broken()


def facts_of(data: bytes) -> Facts | None:
    """Facts of one event, or None where it is not one balanced object."""
    tree = _parse(data)
    if not isinstance(tree, dict):
        return None
    facts = Facts()
    _read_choices(tree, facts)
    usage = tree.get("usage")
    if isinstance(usage, dict):
        facts.usage = True
        facts.prompt_tokens = _count(usage.get("prompt_tokens"))
        facts.completion_tokens = _count(usage.get("completion_tokens"))
    error = tree.get("error")
    facts.error = isinstance(error, dict | list | str) or tree.get("object") == "error"
    facts.message = _message(tree)
    return facts


def _parse(data: bytes) -> Any:
    if data.count(b"{") + data.count(b"[") > DEEPEST and _depth(data) > DEEPEST:
        return None
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _tolerant(data)


def _tolerant(data: bytes) -> Any:
    """Any run of number bytes is a number; strings may hold control characters and broken UTF-8."""
    plain = _TOKEN.sub(lambda found: found[1] or _plain_number(found[0]), data)
    try:
        return json.loads(plain.decode(errors="replace"), strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _plain_number(run: bytes) -> bytes:
    return (run.lstrip(b"0") or b"0")[:12] if run.isdigit() else b"-1"


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _depth(data: bytes) -> int:
    deepest = level = 0
    for byte in re.sub(rb'"[^"\\]*(?:\\.[^"\\]*)*"', b"", data, flags=re.DOTALL):
        level += (byte in b"{[") - (byte in b"}]")
        deepest = max(deepest, level)
    return deepest


def _read_choices(tree: dict[str, Any], facts: Facts) -> None:
    choices = tree.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        facts.choices = True
        _read_choice(choice, facts)


def _read_choice(choice: dict[str, Any], facts: Facts) -> None:
    delta = choice.get("delta")
    delta = delta if isinstance(delta, dict) else {}
    facts.visible |= _text(choice.get("text")) or _text(delta.get("content"))
    facts.reasoning |= _text(delta.get("reasoning")) or _text(delta.get("reasoning_content"))
    facts.token_ids |= any(
        isinstance(ids, list) and bool(ids)
        for ids in (choice.get("token_ids"), delta.get("token_ids"))
    )
    calls = delta.get("tool_calls")
    called = (
        [call.get("function") for call in calls if isinstance(call, dict)]
        if isinstance(calls, list)
        else []
    )
    for function in (*called, delta.get("function_call")):
        facts.tool |= isinstance(function, dict) and _text(function.get("arguments"))
    reason = choice.get("finish_reason")
    if isinstance(reason, str):
        facts.finish = _utf8(reason)[:FINISH_BYTES]


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= LARGEST else None


def _utf8(text: str) -> bytes:
    """Halves of surrogate pairs that stand alone become U+FFFD."""
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return joined.encode()


def _message(tree: dict[str, Any]) -> bytes:
    """The last string among the places where servers put an error's text."""
    found = ""
    for key, value in tree.items():
        if key in ("message", "detail", "error") and isinstance(value, str):
            found = value
        if key == "error" and isinstance(value, dict) and isinstance(value.get("message"), str):
            found = value["message"]
    return _words(_utf8(found)[:MESSAGE_BYTES])


def _words(text: bytes) -> bytes:
    return bytes(32 if byte < 32 else byte for byte in text)
