"""Build of the native core: csrc/*.c with the thin Cython layer, on Linux only.

Switches (environment): PERCENTES_FAST_NO_EXT=1 builds the judge leg alone;
PERCENTES_FAST_DEBUG=1 compiles with -O1, assertions, ASan and UBSan.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup


def flags() -> tuple[list[str], list[str]]:
    common = ["-std=gnu11", "-fvisibility=hidden"]
    if os.environ.get("PERCENTES_FAST_DEBUG") == "1":
        san = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
        return [*common, "-O1", "-g", *san], san
    return [*common, "-O2", "-g", "-DNDEBUG"], []


def extensions() -> list[Extension]:
    if os.environ.get("PERCENTES_FAST_NO_EXT") == "1" or not sys.platform.startswith("linux"):
        return []
    from Cython.Build import cythonize

    compile_args, link_args = flags()
    # Cython's own output is not warning-free under -Wconversion: `make lint-c` compiles csrc alone
    # with the strict set as errors; here the strict set would break on a newer compiler's opinion.
    native = Extension(
        "percentes_fast._native",
        ["src/percentes_fast/_native.pyx", *(str(p) for p in sorted(Path("csrc").glob("*.c")))],
        include_dirs=["csrc"],
        depends=[str(p) for p in sorted(Path("csrc").glob("*.h"))],
        define_macros=[("_GNU_SOURCE", "1")],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    return list(cythonize([native], compiler_directives={"language_level": "3"}))


def record_commit() -> None:
    """Writes the commit a checkout is at into the package; elsewhere leaves what is there."""
    git = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    if not Path(".git").exists():
        return
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    if found.returncode == 0:
        text = f'"""Written by setup.py."""\n\nCOMMIT = "{found.stdout.strip()}"\n'
        Path("src/percentes_fast/_build.py").write_text(text)


record_commit()
setup(ext_modules=extensions())
