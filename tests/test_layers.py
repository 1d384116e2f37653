"""Every import of the package and every include of csrc against docs/ARCHITECTURE.md's tables."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "percentes_fast"
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
CONTRACTS = ("errors", "schema", "config", "rundir")
GENERATED = {"_build"}


def rows(after: str) -> Iterator[tuple[str, set[str]]]:
    table = TEXT[TEXT.index(after) :]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            yield cells[0].strip("`"), {part.strip() for part in cells[2].split(",")}
        elif line.startswith(("`csrc/`", "## One request")):
            return


ALLOWED = dict(rows("## Who may import what"))
INCLUDES = dict(rows("| file | one responsibility | may include |"))


def modules() -> dict[str, Path]:
    found = {}
    for path in [*PACKAGE.rglob("*.py"), PACKAGE / "_native.pyx"]:
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if name not in GENERATED and not (name.endswith("__init__") and name != "__init__"):
            found[name] = path
    return found


def imports(path: Path) -> Iterator[str]:
    if path.suffix == ".pyx":
        for name in re.findall(r"^from (percentes_fast\.\w+)", path.read_text(), re.M):
            yield name.removeprefix("percentes_fast.")
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def reduced(name: str) -> str | None:
    """An imported name as the table writes it; None for the standard library."""
    top = name.split(".", maxsplit=1)[0]
    if top != "percentes_fast":
        return None if top in sys.stdlib_module_names else top
    known = modules()
    parts = name.split(".")[1:]
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in known:
            return ".".join(parts[:end])
    return "__init__"


def allows(allowed: set[str], name: str) -> bool:
    if name in allowed or (name in CONTRACTS and "K" in allowed):
        return True
    return name.split(".", maxsplit=1)[0] in allowed and "." in name


@pytest.mark.parametrize("module", sorted(modules()))
def test_imports_are_in_the_table(module: str) -> None:
    assert module in ALLOWED, f"{module} is not in docs/ARCHITECTURE.md"
    if "everything" in ALLOWED[module]:
        return
    found = {name for raw in imports(modules()[module]) if (name := reduced(raw))}
    found -= {module}
    wrong = sorted(name for name in found if not allows(ALLOWED[module], name))
    assert not wrong, f"{module} imports {wrong}"


def test_the_table_names_nothing_that_is_gone() -> None:
    assert sorted(set(ALLOWED) - set(modules())) == []


def test_nothing_imports_the_command_line() -> None:
    for module, path in modules().items():
        if module != "cli":
            assert "cli" not in {reduced(name) for name in imports(path)}


def test_judging_never_imports_measuring() -> None:
    measuring = ("engine", "faults", "servers", "run", "_native", "observe")
    for module, path in modules().items():
        if module.split(".")[0] in ("analysis", "report", *CONTRACTS):
            tops = {(reduced(name) or "").split(".")[0] for name in imports(path)}
            assert not tops & set(measuring), f"{module} imports {tops & set(measuring)}"


def test_includes_are_in_the_table() -> None:
    for path in sorted((ROOT / "csrc").glob("*.[ch]")):
        allowed = INCLUDES.get(path.stem) or INCLUDES.get(path.name)
        assert allowed is not None, f"{path.name} is not in docs/ARCHITECTURE.md"
        own = re.findall(r'#include "(pf_\w+)\.h"', path.read_text())
        wrong = [name for name in own if name != path.stem and name not in allowed]
        assert not wrong, f"{path.name} includes {wrong}"
