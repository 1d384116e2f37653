"""The start-up stages of inference servers in their logs: patterns as data, and matching them.

Never: a wording in code, a boundary the log does not hold, a figure no line prints, or an error
over what a server printed.
Plan: serverlogs/*.yaml of the package, read strictly -> `families`; `detect` takes the file whose
versions hold the one the log tells; `match` finds each boundary's first line among those given
(SPEC section 7: lines after the fire, of the start that served) and the numbers it prints.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import pairwise
from typing import NoReturn

import yaml

from percentes_fast.errors import ConfigError, DataError

KEYS = (
    "banner",
    "engine_init",
    "weight_download",
    "model_load_start",
    "weights_loaded",
    "model_loaded",
    "torch_compile",
    "graph_capture",
    "engine_ready",
    "server_start",
    "startup_complete",
)
FIGURES = frozenset(
    {
        "graph_capture_gib",
        "graph_capture_s",
        "init_engine_compilation_s",
        "init_engine_s",
        "model_loaded_gib",
        "model_loaded_s",
        "torch_compile_s",
        "weights_loaded_s",
    }
)
VERSION = "version"  # the key, and the named group, of what recognises a log
_FIELDS = {"family", "versions", "read", "recognised", "patterns"}
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])")
_RANGE = re.compile(r">=([0-9]{1,9}(?:\.[0-9]{1,9}){0,3}),<([0-9]{1,9}(?:\.[0-9]{1,9}){0,3})")
_RELEASE = re.compile(r"v?([0-9]{1,9}(?:\.[0-9]{1,9}){0,3})")

Release = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A line of a server. key: the boundary it is, or `VERSION` where it recognises the server.

    origin: release, file and line it was read from. confirmed: the real log that holds such a
    line; None: no log at hand does.
    """

    key: str
    regex: re.Pattern[str]
    origin: str
    confirmed: str | None


@dataclass(frozen=True, slots=True)
class Family:
    """One file: the wording of a server over a range of versions.

    name: the file's. read: the releases whose sources were read. version: what `detect` read in
    the log, None where the log does not tell; assumed: `detect` had no version, or one that no
    file holds, and took the nearest file (the newest where there is no version).
    """

    name: str
    family: str
    versions: str
    read: tuple[str, ...]
    recognised: tuple[Pattern, ...]
    patterns: tuple[Pattern, ...]
    low: Release  # first version the file holds
    end: Release  # first version it no longer holds
    version: str | None = None
    assumed: bool = False


@dataclass(frozen=True, slots=True)
class Match:
    """The line a boundary was found in.

    line: its number in the log; text: what matched, without colours and without what carriage
    returns set apart in it (a progress bar); figures: by published name, s or GiB;
    verified: a real log confirmed the pattern.
    """

    key: str
    line: int
    stamp_ns: int
    text: str
    figures: dict[str, float]
    verified: bool


# -- the files ----------------------------------------------------------------------------------


class _Once(yaml.SafeLoader):
    """SafeLoader that takes words as keys, each once: two patterns run together are an error."""


def _mapping(loader: _Once, node: yaml.MappingNode) -> dict[str, object]:
    result: dict[str, object] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node)
        if not isinstance(key, str) or key in result:
            line = key_node.start_mark.line + 1
            raise ValueError(f"line {line}: a key that is no word, or is given twice")
        result[key] = loader.construct_object(value_node, deep=True)
    return result


_Once.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


@functools.cache
def families() -> tuple[Family, ...]:
    """Every file of the package, by server and version. Raises DataError if one is malformed."""
    folder = resources.files("percentes_fast") / "serverlogs"
    found = []
    try:
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if entry.name.endswith(".yaml"):
                found.append(
                    parse(entry.name.removesuffix(".yaml"), entry.read_text(encoding="utf-8"))
                )
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"serverlogs: cannot be read ({err}); install the package again") from err
    if not found:
        raise DataError("serverlogs: holds no file; install the package again")
    return ordered(found)


def ordered(found: Sequence[Family]) -> tuple[Family, ...]:
    """By server and version. Raises DataError where two ranges of a server overlap."""
    result = tuple(sorted(found, key=lambda each: (each.family, each.low)))
    for one, two in pairwise(result):
        if one.family == two.family and two.low < one.end:
            _bad(two.name, f"versions {two.versions} overlap {one.name}'s {one.versions}")
    return result


def by_name(name: str) -> Family:
    """The file of that name. Raises ConfigError, naming the known ones."""
    for family in families():
        if family.name == name:
            return family
    known = ", ".join(family.name for family in families())
    raise ConfigError(f"log family {name[:80]!r}: not known; give one of {known}")


def parse(name: str, text: str) -> Family:
    """The family in the text of a file. Raises DataError, in one line, if it is malformed."""
    try:
        data = yaml.load(text, _Once)
    except (yaml.YAMLError, ValueError, RecursionError) as err:
        _bad(name, f"is no YAML ({err})")
    if not isinstance(data, dict) or set(data) != _FIELDS:
        _bad(name, f"must hold {', '.join(sorted(_FIELDS))} and nothing else")
    versions = _text(name, "versions", data["versions"])
    bounds = _RANGE.fullmatch(versions)
    if bounds is None:
        _bad(name, f"versions {versions!r} is no range like '>=0.29,<0.33'")
    low, end = (_release(bound) for bound in bounds.groups())
    if low >= end:
        _bad(name, f"versions {versions!r} holds none")
    return Family(
        name=name,
        family=_text(name, "family", data["family"]),
        versions=versions,
        read=tuple(_text(name, "read", item) for item in _items(name, "read", data["read"])),
        recognised=tuple(
            _pattern(name, {"key": VERSION, **_fields(name, item)}, {VERSION})
            for item in _items(name, "recognised", data["recognised"])
        ),
        patterns=tuple(
            _pattern(name, _fields(name, item), FIGURES)
            for item in _items(name, "patterns", data["patterns"])
        ),
        low=low,
        end=end,
    )


def _pattern(name: str, item: dict[str, object], groups: set[str] | frozenset[str]) -> Pattern:
    key = _text(name, "key", item.get("key"))
    if key not in (*KEYS, VERSION) or (key == VERSION) != (VERSION in groups):
        _bad(name, f"key {key!r} is none of {', '.join(KEYS)}")
    proof = set(item) - {"key", "regex", "origin"}
    if proof not in ({"confirmed"}, {"unverified"}) or item.get("unverified", True) is not True:
        _bad(name, f"{key}: needs regex, origin and either confirmed or `unverified: true`")
    try:
        regex = re.compile(_text(name, f"{key}: regex", item.get("regex")), re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as err:
        _bad(name, f"{key}: regex: {err}")
    if not set(regex.groupindex) <= groups or regex.search("") is not None:
        _bad(name, f"{key}: regex may name {', '.join(sorted(groups))}, and must need some text")
    return Pattern(
        key=key,
        regex=regex,
        origin=_text(name, f"{key}: origin", item.get("origin")),
        confirmed=(
            _text(name, f"{key}: confirmed", item["confirmed"]) if "confirmed" in item else None
        ),
    )


def _bad(name: str, problem: str) -> NoReturn:
    raise DataError(f"serverlogs/{name}.yaml: {problem}; mend the file")


def _text(name: str, where: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        _bad(name, f"{where}: must be a text in quotes")
    return value


def _items(name: str, where: str, value: object) -> list[object]:
    if not isinstance(value, list) or not value:
        _bad(name, f"{where}: must be a list with something in it")
    return value


def _fields(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        _bad(name, f"{str(value)[:80]!r}: must be a mapping")
    return value


def _release(text: str) -> Release:
    """The numbers a version begins with, without zeros at the end; () where it has none."""
    found = _RELEASE.match(text)
    parts = [int(part) for part in found[1].split(".")] if found else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


# -- which file ---------------------------------------------------------------------------------


def detect(lines: Sequence[str]) -> Family | None:
    """The file for a log: by the first version its lines tell, else by a line that is a server's.

    None where nothing is recognised. What was read and whether it fits: `version`, `assumed`.
    """
    signs = dict.fromkeys(
        (each.family, sign.regex) for each in families() for sign in each.recognised
    )
    unversioned: str | None = None
    for line in lines:
        text = _clean(line)
        for server, regex in signs:
            found = regex.search(text)
            if found is None:
                continue
            version = found.groupdict().get(VERSION)
            if version is not None:
                return _nearest(server, version)
            unversioned = unversioned or server
    return None if unversioned is None else _nearest(unversioned, None)


def _nearest(server: str, version: str | None) -> Family:
    files = [family for family in families() if family.family == server]
    if version is None:
        return replace(files[-1], assumed=True)
    release = _release(version)
    below = [family for family in files if family.low <= release]
    family = below[-1] if below else files[0]
    return replace(family, version=version, assumed=not family.low <= release < family.end)


# -- matching -----------------------------------------------------------------------------------


def match(family: Family, lines: Sequence[tuple[int, int, str]]) -> dict[str, Match]:
    """Each boundary's first line, in the order of the lines; a key without one is absent.

    lines: number in the log, its time in ns, text, of those that count.
    """
    found: dict[str, Match] = {}
    for line, stamp_ns, raw in lines:
        text = _clean(raw)
        for pattern in family.patterns:
            hit = None if pattern.key in found else pattern.regex.search(text)
            if hit is not None:
                found[pattern.key] = Match(
                    key=pattern.key,
                    line=line,
                    stamp_ns=stamp_ns,
                    text=_segment(text, hit),
                    figures=dict(_figures(hit)),
                    verified=pattern.confirmed is not None,
                )
    return found


def _clean(text: str) -> str:
    """A log's line without colours, and what carriage returns set apart as lines of it."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.replace("\r", "\n")


def _segment(text: str, hit: re.Match[str]) -> str:
    """The line of a cleaned text that a pattern was found in."""
    start, end = text.rfind("\n", 0, hit.start()) + 1, text.find("\n", hit.end())
    return text[start:] if end < 0 else text[start:end]


def _figures(hit: re.Match[str]) -> Iterator[tuple[str, float]]:
    for name, text in hit.groupdict().items():
        try:
            value = float(text) if text is not None else math.nan
        except ValueError:
            continue
        if math.isfinite(value):
            yield name, value
