"""Ways to cut the bytes of a case for a parser that takes pieces.

Does: gives the whole, byte by byte, and seeded random cuts with an empty piece among them.
Never: draws from anything but its seed, so a failing cut comes back on the next run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

RANDOM_ROUNDS = 6


def random_cut(data: bytes, rng: random.Random) -> list[bytes]:
    """Pieces that join to `data`; the first may be empty."""
    count = rng.randint(0, min(len(data), 12))
    edges = sorted(rng.randint(0, len(data)) for _ in range(count))
    return [data[a:b] for a, b in zip([0, *edges], [*edges, len(data)], strict=True)]


def cuts(data: bytes, rounds: int = RANDOM_ROUNDS) -> Iterator[list[bytes]]:
    """The whole, byte by byte, then `rounds` random cuts."""
    yield [data]
    yield [data[i : i + 1] for i in range(len(data))]
    rng = random.Random(len(data))
    for _ in range(rounds):
        yield random_cut(data, rng)
