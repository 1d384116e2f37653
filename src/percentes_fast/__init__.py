"""percentes-fast: kill an LLM inference server under open-loop load, measure what clients saw.

Never: imports anything heavy by itself. Public names are loaded at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from percentes_fast.analysis.summary import analyze as analyze
    from percentes_fast.analysis.tree import Summary as Summary
    from percentes_fast.run import measure as measure
    from percentes_fast.store import recover as recover

__version__ = "0.1.0"
__all__ = ["Summary", "__version__", "analyze", "commit", "measure", "recover"]

_HOMES = {
    "Summary": "percentes_fast.analysis.tree",
    "analyze": "percentes_fast.analysis.summary",
    "measure": "percentes_fast.run",
    "recover": "percentes_fast.store",
}


def commit() -> str | None:
    """Commit this package was built from; None where it was not built from a checkout."""
    import importlib

    try:
        return str(importlib.import_module("percentes_fast._build").COMMIT)
    except ImportError:
        return None


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
