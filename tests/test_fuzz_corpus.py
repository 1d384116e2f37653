"""The fuzz targets' seeds through the built parsers, without clang: every cut must agree.

Does: feeds each file of fuzz/corpus whole, byte by byte and at cuts that hypothesis draws; holds
the files against fuzz/seed.py.
Never: judges a result (the parsers' own tests do), or skips: fuzzing itself is `make fuzz`.
Plan: a seed is four control bytes (fuzz/pieces.h), then the case.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from percentes_fast._native import scan_http, scan_json, scan_sse

FUZZ = Path(__file__).parent.parent / "fuzz"
SEEDS = {
    str(path.relative_to(FUZZ / "corpus")): path.read_bytes()
    for path in sorted((FUZZ / "corpus").glob("*/*"))
}
CONTROL = 4
PRESENT = 100  # of each target there are about so many


def results(name: str, pieces: list[bytes]) -> Any:
    """All that a caller sees of a case fed in these pieces."""
    if name.startswith("http/"):
        return [scan_http(pieces, closed, "x-replica") for closed in (False, True)]
    return scan_sse(pieces), scan_json(pieces)


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_byte_by_byte_is_the_whole(name: str) -> None:
    case = SEEDS[name][CONTROL:]
    assert results(name, [case[i : i + 1] for i in range(len(case))]) == results(name, [case])


@given(st.sampled_from(sorted(SEEDS)), st.data())
@settings(max_examples=500, deadline=None)
def test_a_seed_however_it_is_cut_is_the_whole(name: str, draw: st.DataObject) -> None:
    case = SEEDS[name][CONTROL:]
    edges = sorted(draw.draw(st.lists(st.integers(0, len(case)), max_size=12)))
    pieces = [case[a:b] for a, b in zip([0, *edges], [*edges, len(case)], strict=True)]
    assert results(name, pieces) == results(name, [case])


def test_the_corpus_is_what_seed_py_writes() -> None:
    assert runpy.run_path(str(FUZZ / "seed.py"))["seeds"]() == SEEDS


@pytest.mark.parametrize("target", ["http", "sse"])
def test_seeds_hold_good_and_bad_cases(target: str) -> None:
    names = [name for name in SEEDS if name.startswith(f"{target}/")]
    found = [repr(results(name, [SEEDS[name][CONTROL:]])) for name in names]
    assert len(names) > PRESENT * 0.9
    for word in ("bad", "end" if target == "http" else "done"):
        assert sum(f"'{word}'" in one for one in found) > 10
