"""schema.py against the compiled lists and the codes in csrc/pf_record.h.

Never: trusts one of the two: the header is read as text, the compiled lists as values.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from percentes_fast import _native, schema
from percentes_fast.engine import slabs

HEADER = Path(__file__).parents[1] / "csrc" / "pf_record.h"
LISTS = (
    (_native.COLUMNS, schema.NATIVE_COLUMNS),
    (_native.TOKEN_COLUMNS, schema.TOKEN_COLUMNS),
    (_native.SECOND_COLUMNS, schema.SECOND_COLUMNS),
)


def codes(prefix: str) -> dict[str, int]:
    found = re.findall(rf"\b{prefix}(\w+) = (\d+)", HEADER.read_text())
    return {name: int(code) for name, code in found}


@pytest.mark.parametrize(("compiled", "expected"), LISTS)
def test_columns_are_the_compiled_ones(
    compiled: tuple[tuple[str, str, int], ...], expected: tuple[tuple[str, str], ...]
) -> None:
    assert tuple((name, kind) for name, kind, _ in compiled) == expected


def test_sentinels_are_the_compiled_ones() -> None:
    for name, kind, null in _native.COLUMNS:
        expected = 0 if name in schema.ZERO_COLUMNS else schema.NULL_OF[kind]
        assert null == expected, name


def test_null_is_the_least_of_its_width() -> None:
    for kind, null in schema.NULL_OF.items():
        width = 8 * int(kind[1:])
        assert (
            null
            == {64: schema.NULL64, 32: schema.NULL32, 16: schema.NULL16, 8: schema.NULL8}[width]
        )
        assert null == -(2 ** (width - 1))


def test_causes_are_those_of_the_header() -> None:
    assert codes("PF_CAUSE_") == {cause.name: cause.value for cause in schema.Cause}
    assert tuple(cause.name.lower() for cause in sorted(schema.Cause)) == schema.CAUSE_NAMES


def test_kinds_are_those_of_the_header() -> None:
    assert codes("PF_KIND_") == {kind.name: kind.value for kind in schema.Kind}
    assert re.search(r"#define PF_KINDS (\d+)", HEADER.read_text())[1] == str(len(schema.Kind))


def test_codes_are_indices_into_the_names() -> None:
    assert [cause.value for cause in schema.Cause] == list(range(len(schema.CAUSE_NAMES)))
    assert [kind.value for kind in schema.Kind] == list(range(len(schema.KIND_NAMES)))


def test_widths_of_texts_are_those_of_the_header(tmp_path: Path) -> None:
    sizes = dict(re.findall(r"#define (PF_\w+) (\d+)", HEADER.read_text()))
    slab = slabs.create(tmp_path / "x.slab", slabs.SlabSize(1, 1, 1, 3), 0)
    offsets = _native.slab_offsets(slab.memory)
    names = int(sizes["PF_NAMES"]) * int(sizes["PF_NAME_BYTES"])
    assert offsets["finish_names"] - offsets["messages"] == 3 * int(sizes["PF_MESSAGE_BYTES"])
    assert offsets["replica_names"] - offsets["finish_names"] == names
    assert (sizes["PF_NAME_BYTES"], sizes["PF_MESSAGE_BYTES"]) == ("64", "256")


def test_columns_are_aligned_and_apart(tmp_path: Path) -> None:
    size = slabs.SlabSize(rows=3, tokens=5, seconds=7, messages=2)
    slab = slabs.create(tmp_path / "x.slab", size, 4)
    spans = []
    for columns, count in zip((pair[1] for pair in LISTS), (3, 5, 7), strict=True):
        for name, kind in columns:
            start = _native.slab_offsets(slab.memory)[name]
            spans.append((start, start + count * int(kind[1:])))
    assert all(start % 64 == 0 for start, _ in spans)
    assert all(a[1] <= b[0] for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False))
    assert max(end for _, end in spans) <= size.bytes == len(slab.memory)
    assert slab.word("worker") == 4


def test_other_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "NATIVE_COLUMNS", schema.NATIVE_COLUMNS[1:])
    with pytest.raises(slabs.ClientError, match="reinstall"):
        slabs.check_layout()


def test_request_fields_name_stored_columns() -> None:
    """Every stored field comes from a native column or is one that buffers.py derives."""
    native = {name for name, _ in schema.NATIVE_COLUMNS}
    derived = {"worker", "done_ns", "outcome", "error_class", "errno", "message"}
    derived |= {f"{name}_kernel_ns" for name in ("sent", "acked", "first_token")}
    assert {name for name, _, _ in schema.REQUEST_FIELDS} <= native | derived
