"""What is read of the servers while the load runs: their metrics, by a process of its own.

Never: raises once the load runs, takes a core of the workers, or shows the target's headers (they
may be secrets) to another server.
Plan: the replicas' metrics URLs as one job of observe.scrape; its journal in the run directory is
what metrics.parquet is made of, so that a killed parent loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from percentes_fast import launch, rundir
from percentes_fast.config import Config, replicas, seconds_ns, targets
from percentes_fast.engine.pool import Address
from percentes_fast.errors import TargetError
from percentes_fast.observe.scrape import Scraper
from percentes_fast.target import split_url

METRICS_PATH = "/metrics"
DRAIN_S = 5.0
ROOM_BYTES, ROOM_LIMIT = 4096, 32 * 2**20  # a scrape's line; what is taken before the load


class Observation:
    """The scrape of one run: prepared before its epoch, begun at it."""

    def __init__(
        self,
        config: Config,
        directory: rundir.RunDir,
        addresses: Sequence[Address],
        cores: Sequence[int],
    ) -> None:
        """addresses: of the run's targets, in their order. Raises TargetError for a name that is
        not found.
        """
        self._config, self._directory, self._cores = config, directory, cores
        self._scraper: Scraper | None = None
        self._asked = _asked(config, addresses)

    def begin(self, epoch_ns: int) -> None:
        """Starts asking, where there is somebody to ask."""
        config = self._config
        if not self._asked:
            return
        scrapes = len(self._asked) * math.ceil(config.duration_s / config.metrics.every_s)
        self._directory.journal("metrics", min(scrapes * ROOM_BYTES, ROOM_LIMIT)).close()
        self._scraper = Scraper.start(
            {
                "epoch_monotonic_ns": epoch_ns,
                "every_s": config.metrics.every_s,
                "timeout_s": config.metrics.timeout_s,
                "until_ns": seconds_ns(config.duration_s + config.load.timeout_s + DRAIN_S),
                "journal": str(self._directory.path / "metrics.journal"),
                "cores": list(self._cores) or None,
                "replicas": self._asked,
            }
        )

    def stop(self) -> dict[str, Any] | None:
        """Ends the scrape; what it says of itself, None where nothing was asked."""
        return None if self._scraper is None else self._scraper.stop()

    def lines(self) -> list[Any]:
        """The scrapes so far, as they were journalled."""
        return self._directory.read_journal("metrics")


def _asked(config: Config, addresses: Sequence[Address]) -> list[dict[str, Any]]:
    """The replicas to ask, as the job names them."""
    urls = config.metrics.urls
    named = replicas(config)
    if urls is None:
        if config.target.hosted:
            return []
        order = [name for name, _ in targets(config)]
        prefixes = [split_url(str(url))[2] + METRICS_PATH for _, url in named]
        places = [addresses[order.index(name)] for name, _ in named]
    else:
        prefixes = [split_url(url)[2] or METRICS_PATH for url in urls]
        places = [_resolved(url) for url in urls]
    return [
        {
            "name": _name(number, [name for name, _ in named]),
            "ip": place.ip,
            "port": place.port,
            "host": place.host,
            "path": path,
            "headers": config.target.sent_headers() if place in addresses else {},
            "tls_name": place.tls_name,
            "insecure": config.target.tls.insecure,
            "ca": config.target.tls.ca,
            "cert": config.target.tls.cert,
            "key": config.target.tls.key,
        }
        for number, (place, path) in enumerate(zip(places, prefixes, strict=True))
    ]


def _resolved(url: str) -> Address:
    try:
        return launch.answering(launch.resolve(url))
    except TargetError as exc:
        raise TargetError(f"metrics.urls (--metrics): {exc}") from exc


def _name(number: int, names: Sequence[str]) -> str:
    return names[number] if number < len(names) else f"metrics-{number + 1}"
