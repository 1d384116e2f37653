"""One request before the epoch: does the target answer as the configuration expects?

Never: counts for anything, or uses another path than the run's own engine.
Plan: a schedule of one load row through the native engine, its record read back, and one line that
says what is missing and what to do.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from percentes_fast.config import Config
from percentes_fast.engine import engines, pool, slabs
from percentes_fast.engine.payload import render
from percentes_fast.engine.schedule import SERVER, Schedule, Template
from percentes_fast.errors import ClientError, TargetError, remedy
from percentes_fast.schema import Cause, Kind


@dataclass(frozen=True, slots=True)
class Answer:
    """What the target answered to one load request."""

    cause: Cause
    errno: int
    http_status: int | None
    message: str
    content_events: int
    prompt_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    ended_ns: int

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "cause": self.cause.name.lower(),
            "content_events": self.content_events,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "finish_reason": self.finish_reason,
            "duration_ns": self.ended_ns,
        }


def ask(
    config: Config,
    addresses: Sequence[pool.Address],
    run_id: str,
    directory: Path,
    *,
    short: bool = False,
) -> Answer:
    """Sends one load request (short: one token) and waits for its end or deadline.

    directory: where the record may lie for the moment if shared memory has no room.
    """
    sizes = (1, 1) if short else (config.load.prompt_tokens, config.load.max_tokens)
    schedule = Schedule(
        intended_ns=np.zeros(1, np.int64),
        kind=np.zeros(1, np.int16),
        target=np.full(1, SERVER, np.int16),
        template=np.zeros(1, np.int32),
        templates=(Template(Kind.LOAD, *sizes),),
    )
    rows = np.zeros(1, np.int64)
    arena = render(config, schedule, rows, f"{run_id}-preflight", tuple(a.host for a in addresses))
    size = slabs.SlabSize(1, sizes[1] + pool.SPARE_TOKENS, 86_400, 1)
    path = slabs.place(f"{run_id}-preflight", 0, size, directory)
    slab = slabs.create(path, size, 0)
    path.unlink()
    pool.fill(slab, schedule, rows, arena)
    _run(config, slab, arena, addresses)
    return _read(slab)


def _run(config: Config, slab: slabs.Slab, arena: Any, addresses: Sequence[pool.Address]) -> None:
    options = pool.engine_options(config, arena, addresses)
    engine = engines.make(slab, arena.heads, arena.tails, options, 1)
    slab.set_word("epoch_ns", time.monotonic_ns())
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        thread.join()
    except BaseException:  # Ctrl-C must not wait for the answer's deadline
        slab.set_word("stop", 1)
        thread.join()
        raise


def _read(slab: slabs.Slab) -> Answer:
    def known(name: str) -> int | None:
        value = slab.column(name)[0]
        return value if value >= 0 else None

    finish, slot = known("finish_reason"), known("message_slot")
    return Answer(
        cause=Cause(slab.column("cause")[0]),
        errno=slab.column("errno_code")[0],
        http_status=known("http_status"),
        message="" if slot is None else slab.messages()[slot],
        content_events=slab.column("content_events")[0],
        prompt_tokens=known("prompt_tokens"),
        completion_tokens=known("completion_tokens"),
        finish_reason=None if finish is None else slab.names("finish_names")[finish],
        ended_ns=slab.column("ended_ns")[0],
    )


def expect(config: Config, answer: Answer) -> None:
    """Raises TargetError (or ClientError), one line, where the answer lacks what the run needs."""
    url = config.target.url
    problem = _failure(config, answer) or _lack(config, answer)
    if problem:
        raise TargetError(f"target {url}: {problem}")


def _failure(config: Config, answer: Answer) -> str | None:
    if answer.cause in (Cause.NO_DESCRIPTOR, Cause.NO_PORT, Cause.NO_MEMORY, Cause.REFUSED_HERE):
        told = remedy(answer.errno, "mend it and run again")
        raise ClientError(f"this machine: {os.strerror(answer.errno)}; {told}")
    told = f": {answer.message}" if answer.message else ""
    texts = {
        Cause.TLS: f"the TLS handshake failed{told}; mend --ca, --cert or the server's certificate",
        Cause.CONNECT: f"{os.strerror(answer.errno)}; start the server, or mend --target",
        Cause.RESET: f"reset the connection ({os.strerror(answer.errno)}); is it an HTTP server?",
        Cause.NO_RESPONSE: "closed the connection without an answer; is it an HTTP server?",
        Cause.BAD_HTTP: "does not answer in HTTP/1.1; mend --target",
        Cause.BODY_CUT: "ended its answer early; look at the server's log",
        Cause.BAD_EVENT: "sent an event that is not JSON; look at the server's log",
        Cause.ERROR_EVENT: f"answered with an error{told}; look at the server's log",
        Cause.HTTP_STATUS: f"answered {answer.http_status}{told}; mend --model, --api or the sizes",
        Cause.DEADLINE: f"no whole answer within {config.load.timeout_s:g} s; raise --timeout"
        " or ask for fewer --max-tokens",
        Cause.NO_END: "its answer lacks the stream's end; does it stream? else set"
        " target.end_marker: finish_reason",
    }
    return texts.get(answer.cause)


def _lack(config: Config, answer: Answer) -> str | None:
    if config.target.usage and answer.completion_tokens is None:
        return "sends no usage event; set target.usage: false to do without"
    if answer.content_events == 0 and not answer.completion_tokens:
        return "its stream holds no token; ask for more with --max-tokens"
    if answer.finish_reason is None:
        return "its stream gives no finish_reason; every answer would count as broken"
    return None
