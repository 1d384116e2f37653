"""Every engine against the wire table: the same bytes, in any reads, give the same record.

Does: plays each case of wire_cases.py to each engine whole, byte by byte and at random cuts,
without a socket, and compares every field.
Never: asserts a time, waits, or opens a port. What is in the table stands there by hand.
Plan: ENGINES builds an engine over a slab; `Wire` keeps engines with rows to spend and plays cases;
then the tests, and the figures of the suite. A case in DISPUTED is expected to fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuts import random_cut
from percentes_fast import _native
from percentes_fast.engine.asyncio_engine import Engine
from percentes_fast.schema import Cause, Kind
from raw_server import Bench, Row
from wire_cases import CASES, DISPUTED, GROUPS, Case, Record

ROWS = 1024  # a slab's
RANDOM_CUTS = 20
BY_BYTE = 32 * 1024  # larger answers are cut at every STRIDE bytes instead
STRIDE = 997
EVERY = 20  # a generated cut is tried on one case of so many
TARGETS, TIMEOUTS_NS = [("127.0.0.1", 1)], [10**9] * 4
PLAIN = [kind == Kind.HEALTH for kind in Kind]
WAYS = ("whole", "by byte", "random cuts")

Factory = Callable[[Bench, dict[str, Any]], Any]


def native(bench: Bench, options: dict[str, Any]) -> Any:
    memory, heads = bench.slab.memory, bench.heads
    return _native.Engine(memory, heads, [b""], TARGETS, TIMEOUTS_NS, PLAIN, **options)


def by_asyncio(bench: Bench, options: dict[str, Any]) -> Any:
    return Engine(bench.slab, bench.heads, [b""], TARGETS, TIMEOUTS_NS, PLAIN, **options)


ENGINES: dict[str, Factory] = {"native": native, "asyncio": by_asyncio}


class Wire:
    """Engines by name and options, each over a slab with rows left; a case takes one row a run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made = 0
        self._engines: dict[tuple[str, bool, str], tuple[Bench, Any, Iterator[int]]] = {}

    def play(self, name: str, case: Case, pieces: list[bytes]) -> Record:
        """The record of one run of a case in the given reads."""
        bench, engine, row = self._room(name, case)
        kind = Kind.HEALTH if case.kind == "plain" else Kind.LOAD
        bench.slab.column("kind")[row] = int(kind)
        pooled = engine.answer(row, [piece for piece in pieces if piece], case.end)
        return seen(bench.row(row), pooled)

    def _room(self, name: str, case: Case) -> tuple[Bench, Any, int]:
        key = (name, case.end_by_finish, case.replica_header)
        for _ in range(2):
            if key in self._engines:
                bench, engine, rows = self._engines[key]
                row = next(rows, None)
                if row is not None:
                    return bench, engine, row
            self._engines[key] = self._make(*key)
        raise AssertionError("a new slab has no row")

    def _make(self, name: str, by_finish: bool, replica: str) -> tuple[Bench, Any, Iterator[int]]:
        path = self._path / str(self._made)
        path.mkdir()
        self._made += 1
        bench = Bench(path, *[Row(head=b"")] * ROWS, messages=ROWS)
        bench.slab.set_word("epoch_ns", _native.clock_now())
        engine = ENGINES[name](bench, {"end_by_finish": by_finish, "replica_header": replica})
        return bench, engine, iter(range(ROWS))


def seen(ran: Any, pooled: bool) -> Record:
    """A row in the table's words. That it has ended, and when its last token was, is checked."""
    assert ran.ended_ns is not None
    assert (ran.last_token_ns is None) == (ran.content_events == 0)
    return Record(
        Cause(ran.cause),
        ran.http_status,
        ran.content_events,
        ran.finish,
        ran.prompt_tokens,
        ran.completion_tokens,
        ran.message,
        ran.replica,
        ran.errno_code,
        ran.headers_ns is not None,
        ran.first_token_ns is not None,
        ran.first_visible_token_ns is not None,
        pooled,
    )


def whole(case: Case) -> Iterator[list[bytes]]:
    yield [case.data]


def by_byte(case: Case) -> Iterator[list[bytes]]:
    size = len(case.data)
    step = 1 if size <= BY_BYTE else STRIDE
    yield [case.data[i : i + step] for i in range(0, size, step)]


def at_random(case: Case) -> Iterator[list[bytes]]:
    rng = random.Random(case.name)
    for _ in range(RANDOM_CUTS):
        yield random_cut(case.data, rng)


CUTTING = dict(zip(WAYS, (whole, by_byte, at_random), strict=True))


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Wire:
    return Wire(tmp_path_factory.mktemp("wire"))


def check(wire: Wire, engine: str, case: Case, pieces: list[bytes]) -> None:
    found = wire.play(engine, case, pieces)
    lengths = [len(piece) for piece in pieces][:40]
    assert found == case.record, f"{case.name!r} on {engine}, in reads of {lengths}"


REASONS = {(engine, told.case): told.reason for told in DISPUTED for engine in told.engines}


def param(engine: str, case: Case) -> Any:
    """A dispute that has ended must leave the list."""
    reason = REASONS.get((engine, case.name), "")
    disputed = pytest.mark.xfail(strict=True, reason=reason)
    return pytest.param(
        engine, case, id=f"{engine}-{case.name}", marks=[disputed] if reason else []
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("engine", "case"), [param(engine, case) for engine in ENGINES for case in CASES]
)
def test_record(wire: Wire, engine: str, case: Case, way: str) -> None:
    for pieces in CUTTING[way](case):
        check(wire, engine, case, pieces)


def at_edges(data: bytes, parts: list[float]) -> list[bytes]:
    """Pieces of the data, cut at these parts of its length."""
    edges = [0, *sorted(int(part * len(data)) for part in parts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@pytest.mark.parametrize("engine", ENGINES)
@given(st.integers(0, EVERY - 1), st.lists(st.floats(0, 1), max_size=12))
@settings(max_examples=100, deadline=None)
def test_any_case_at_any_cuts(wire: Wire, engine: str, start: int, parts: list[float]) -> None:
    """An example cuts a share of the table: drawn one by one, most cases would never come up."""
    for case in CASES[start::EVERY]:
        if (engine, case.name) not in REASONS:
            check(wire, engine, case, at_edges(case.data, parts))


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert {told.case for told in DISPUTED} <= set(names)


def test_the_table_shows_every_field_in_more_than_one_state() -> None:
    for field in fields(Record):
        assert len({getattr(case.record, field.name) for case in CASES}) > 1, field.name


def figures() -> dict[str, int]:
    """What the suite holds."""
    return {
        "cases": len(CASES),
        "groups": len(GROUPS),
        "engines": len(ENGINES),
        "ways of cutting": len(WAYS) + 1,
        "runs": len(CASES) * len(ENGINES) * (RANDOM_CUTS + 2),
        "disputed": len(DISPUTED),
    }


def test_figures() -> None:
    told = figures()
    assert told["cases"] >= 150
    print("wire: " + ", ".join(f"{count} {name}" for name, count in told.items()))
