"""Request bodies read, and every reply body and stream event written, in vLLM's shapes.

Never: touches a socket or a clock, or keeps state between requests.
Plan: errors, then the reading of a completion request (an order, or a refusal), then the
wording of its reply: the events of a stream (constant bytes wherever they can be) and the
body of a plain answer, then the small GET bodies. Key order and error shapes are those
recorded from vLLM 0.32.0. A prompt counts one token a word: an estimate, said so here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

DEFAULT_MAX_TOKENS = 16
MAX_MODEL_LEN = 32_768
TOKEN_TEXT = " tok"
CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
DONE_EVENT = b"data: [DONE]\n\n"
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error reply: HTTP status and JSON body."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Order:
    """What a completion request asked for, checked."""

    chat: bool
    model: str
    max_tokens: int
    prompt_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool


def _error(status: int, message: str, kind: str, param: str | None) -> Refusal:
    error = {"message": message, "type": kind, "param": param, "code": status}
    return Refusal(status, orjson.dumps({"error": error}))


def _invalid(where: str, kind: str, text: str, given: str, ctx: str = "") -> Refusal:
    """A 400 in the form of vLLM's validation errors; `where` is the place in the body."""
    told = f"{{'type': '{kind}', 'loc': '{where}', 'msg': '{text}', 'input': '{given}'{ctx}}}"
    return _error(400, f"1 validation error:\n  {told}", "Bad Request", where)


def detail(status: int, text: str) -> Refusal:
    """A reply of the web framework itself: wrong path, wrong method, body too large."""
    return Refusal(status, orjson.dumps({"detail": text}))


def engine_dead() -> Refusal:
    """The 500 of a request whose engine is gone."""
    return _error(500, ENGINE_DEAD, "InternalServerError", None)


def engine_dead_event() -> bytes:
    """The error event inside a 200 stream, with the spaced JSON that vLLM prints there."""
    told = json.dumps(orjson.loads(engine_dead().body))
    return b"data: " + told.encode() + b"\n\n"


def read_order(path: str, body: bytes, model: str) -> Order | Refusal:
    """Check a completion request against the one model served; fields in vLLM's order."""
    fields = _decoded(body)
    if isinstance(fields, Refusal):
        return fields
    chat = path == CHAT_PATH
    return (
        _bad_field(fields, "messages" if chat else "prompt")
        or _bad_model(fields, model)
        or _bad_length(fields)
        or _order(fields, chat, model)
    )


def _decoded(body: bytes) -> Json | Refusal:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        return _not_json(body, exc)
    if not isinstance(fields, dict):
        text = "Input should be a valid dictionary"
        return _invalid("body", "dict_type", text, f"<{type(fields).__name__}>")
    return fields


def _not_json(body: bytes, refused: orjson.JSONDecodeError) -> Refusal:
    """Position and reason in the standard library's words, as the recording has them."""
    text, position = "Invalid JSON", refused.pos
    try:
        json.loads(body)
    except json.JSONDecodeError as exc:
        text, position = exc.msg, exc.pos
    except (ValueError, RecursionError):
        pass
    ctx = f", 'ctx': {{'error': '{text}'}}"
    where = f"body.{position}"
    return _invalid(where, "json_invalid", "JSON decode error", "<dict of 0 items>", ctx)


def _bad_field(fields: Json, prompt_key: str) -> Refusal | None:
    if fields.get(prompt_key) is None:
        given = f"<dict of {len(fields)} items>"
        return _invalid(f"body.{prompt_key}", "missing", "Field required", given)
    if not isinstance(fields[prompt_key], (list, str) if prompt_key == "prompt" else list):
        text = "Input should be a valid list"
        return _invalid(f"body.{prompt_key}", "list_type", text, _short(fields[prompt_key]))
    for key, kind, text in (
        ("max_tokens", int, "integer, unable to parse string as an integer"),
        ("max_completion_tokens", int, "integer, unable to parse string as an integer"),
        ("n", int, "integer, unable to parse string as an integer"),
        ("stream", bool, "boolean, unable to interpret input"),
        ("ignore_eos", bool, "boolean, unable to interpret input"),
        ("stream_options", dict, "dictionary"),
    ):
        value = fields.get(key)
        if value is not None and type(value) is not kind:
            told = f"Input should be a valid {text}"
            return _invalid(f"body.{key}", f"{kind.__name__}_parsing", told, _short(value))
    return None


def _short(value: object) -> str:
    return str(value)[:64]


def _bad_model(fields: Json, model: str) -> Refusal | None:
    asked = fields.get("model")
    if asked is None or asked == model:
        return None
    told = f"The model `{_short(asked)}` does not exist. Valid aliases: {model}."
    return _error(404, told, "NotFoundError", "model")


def _bad_length(fields: Json) -> Refusal | None:
    key, count = _asked_tokens(fields)
    if count < 1:
        text = f"{key} must be at least 1, got {count}. (parameter={key}, value={count})"
        return _error(400, text, "BadRequestError", key)
    if count > MAX_MODEL_LEN:
        text = f"{key}={count} cannot be greater than max_model_len={MAX_MODEL_LEN}. Please request"
        text += f" fewer output tokens. (parameter={key}, value={count})"
        return _error(400, text, "BadRequestError", key)
    if fields.get("n") not in (None, 1):
        return _error(400, "n must be 1: the mock writes one choice.", "BadRequestError", "n")
    return None


def _asked_tokens(fields: Json) -> tuple[str, int]:
    for key in ("max_completion_tokens", "max_tokens"):
        if fields.get(key) is not None:
            return key, int(fields[key])
    return "max_tokens", DEFAULT_MAX_TOKENS


def _order(fields: Json, chat: bool, model: str) -> Order:
    asked = fields.get("stream_options") or {}
    return Order(
        chat=chat,
        model=model,
        max_tokens=_asked_tokens(fields)[1],
        prompt_tokens=_words(fields["messages"] if chat else fields["prompt"]),
        stream=bool(fields.get("stream")),
        include_usage=bool(asked.get("include_usage")),
        continuous_usage=bool(asked.get("include_usage") and asked.get("continuous_usage_stats")),
    )


def _words(prompt: object) -> int:
    """Words in a prompt: a string, token ids, or chat messages with text or text parts."""
    if isinstance(prompt, str):
        return len(prompt.split())
    if isinstance(prompt, list):
        return sum(map(_words, prompt))
    if isinstance(prompt, dict):
        return _words(prompt.get("content", prompt.get("text")))
    return 1 if isinstance(prompt, int) else 0


class Wording:
    """All bytes of one reply. Events are unframed: `data: ...` with its empty line."""

    def __init__(self, order: Order, reply_id: str, created_s: int, version: str) -> None:
        self._order = order
        self._fingerprint = f"vllm-{version}-mock"
        kind = "chat.completion.chunk" if order.chat else "text_completion"
        self._base = {"id": reply_id, "object": kind, "created": created_s, "model": order.model}
        self.token = self._token_event(1)

    def role(self) -> bytes | None:
        """The chat stream's first event, which carries no token; completions have none."""
        if not self._order.chat:
            return None
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        running = self._running_usage(0)
        ends = {"prompt_token_ids": None, "prompt_text": None}
        return _event({**self._base, "choices": [choice], **running, **ends})

    def token_at(self, count: int) -> bytes:
        """The event of token `count`, counted from 1, where it is not the constant one."""
        return self._token_event(count)

    def tail(self) -> tuple[bytes, ...]:
        """What follows the last token: the usage event where asked for, and the end marker."""
        if not self._order.include_usage:
            return (DONE_EVENT,)
        body = {**self._base, "choices": [], "usage": self._usage(self._order.max_tokens)}
        return _event({**body, "system_fingerprint": self._fingerprint}), DONE_EVENT

    def plain(self) -> bytes:
        """The whole body of an answer that is not streamed."""
        order = self._order
        text = TOKEN_TEXT * order.max_tokens
        message = {"role": "assistant", "content": text, "refusal": None, "reasoning": None}
        said = {"message": message} if order.chat else {"text": text}
        ends = {"logprobs": None, "finish_reason": "length", "stop_reason": None}
        kind = "chat.completion" if order.chat else "text_completion"
        return orjson.dumps(
            {
                **self._base,
                "object": kind,
                "choices": [{"index": 0, **said, **ends, "token_ids": None}],
                "service_tier": None,
                "system_fingerprint": self._fingerprint,
                "usage": {**self._usage(order.max_tokens), "prompt_tokens_details": None},
            }
        )

    def _token_event(self, count: int) -> bytes:
        last = count == self._order.max_tokens
        choice: Json = {"index": 0}
        choice |= {"delta": {"content": TOKEN_TEXT}} if self._order.chat else {"text": TOKEN_TEXT}
        choice |= {"logprobs": None, "finish_reason": "length" if last else None}
        if last or not self._order.chat:
            choice["stop_reason"] = None
        if not self._order.chat:
            choice["prompt_token_ids"] = None
        choice["token_ids"] = None
        body = {**self._base, "choices": [choice], **self._running_usage(count)}
        if last and not self._order.include_usage:
            body["system_fingerprint"] = self._fingerprint
        return _event(body)

    def _running_usage(self, count: int) -> Json:
        if not self._order.continuous_usage:
            return {}
        return {"usage": {**self._usage(count), "completion_tokens_details": None}}

    def _usage(self, count: int) -> dict[str, int | None]:
        prompt = self._order.prompt_tokens
        total = prompt + count
        return {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": count}


def _event(body: Json) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


def models_body(model: str, created_s: int) -> bytes:
    """GET /v1/models: the one model."""
    entry = {"id": model, "object": "model", "created": created_s, "owned_by": "vllm"}
    entry |= {"root": model, "parent": None, "max_model_len": MAX_MODEL_LEN, "permission": []}
    return orjson.dumps({"object": "list", "data": [entry]})


def version_body(version: str) -> bytes:
    """GET /version."""
    return orjson.dumps({"version": version})
