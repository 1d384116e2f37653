"""Either engine from the same plain options: the native one for http, the asyncio one for https.

Never: imports the asyncio engine (uvloop, h11, orjson) or ssl where the native one is asked for: a
worker stays small.
Plan: `options` is what a worker's job carries; TLS files are read here, in the process that speaks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from percentes_fast import _native
from percentes_fast.engine.slabs import Slab
from percentes_fast.errors import ConfigError

if TYPE_CHECKING:
    import ssl


class Engine(Protocol):
    """What both engines are to a worker."""

    @property
    def rehearses(self) -> bool:
        """Are sends rehearsed?"""

    def run(self) -> bool:
        """Runs the schedule of the slab; True when it was interrupted."""


def make(
    slab: Slab, heads: bytes, tails: Sequence[bytes], options: Mapping[str, Any], connections: int
) -> Engine:
    """The engine that `options["engine"]` names, over a filled slab.

    options: what pool.engine_options gives, and of a job also busy and parent. Raises ConfigError
    where a TLS file cannot be used, ClientError where memory or descriptors are lacking.
    """
    targets = [tuple(target) for target in options["targets"]]
    shared = {
        "idle_reuse_ns": options["idle_reuse_ns"],
        "max_connections": connections,
        "parent_pid": options.get("parent", 0),
        "end_by_finish": options["end_by_finish"],
        "replica_header": options["replica_header"],
        "secrets": [secret.encode() for secret in options["secrets"]],
    }
    timeouts, plain = options["timeouts_ns"], options["plain"]
    if options["engine"] == "native":
        return _native.Engine(
            slab.memory, heads, list(tails), targets, timeouts, plain, spin_ns=options["spin_ns"],
            stamps=options["stamps"], rehearse=options["rehearse"],
            busy=options.get("busy", False), **shared,
        )  # fmt: skip
    from percentes_fast.engine import asyncio_engine

    tls = [None if told is None else _tls(told) for told in options["tls"]]
    return asyncio_engine.Engine(slab, heads, tails, targets, timeouts, plain, tls=tls, **shared)


def _tls(told: Mapping[str, Any]) -> Any:
    from percentes_fast.engine.asyncio_exchange import Tls

    return Tls(context(told), told["name"])


def context(told: Mapping[str, Any]) -> ssl.SSLContext:
    """TLS settings from plain data: ca, cert, key (paths or None), insecure."""
    import ssl

    try:
        made = ssl.create_default_context(cafile=told["ca"])
        if told["cert"] is not None:
            # an empty password: an encrypted key is an error here, not a question on the terminal
            made.load_cert_chain(told["cert"], told["key"], password="")
    except (OSError, ssl.SSLError) as exc:
        reason = exc.strerror or str(exc)
        raise ConfigError(
            f"target.tls (--ca, --cert, --key): {reason}; name readable PEM files"
        ) from exc
    if told["insecure"]:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made
