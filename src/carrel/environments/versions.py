"""The versions that a project asks for, of its language and of its tools; and the image tags that
fit them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from carrel.domain.environments import VersionAsked
from carrel.environments.files import ProjectReader, dig, join

MAX_VERSIONS = 200
MAX_LENGTH = 100
"""Of one version; the longest real ones are ranges of some thirty characters."""


class AskedVersion(NamedTuple):
    tool: str
    version: str
    line: int | None = None


_TOOLS = {
    "dotnet-core": "dotnet",
    "dotnet-sdk": "dotnet",
    "golang": "go",
    "mvn": "maven",
    "nodejs": "node",
    "openjdk": "java",
}
"""What others call a tool that we call otherwise."""

_SINGLE = {
    ".python-version": "python",
    ".nvmrc": "node",
    ".node-version": "node",
    ".ruby-version": "ruby",
    ".java-version": "java",
    ".go-version": "go",
    ".php-version": "php",
    ".perl-version": "perl",
    ".swift-version": "swift",
    ".bun-version": "bun",
    ".dvmrc": "deno",
}
"""Files with nothing but a version, one to a line."""

_PREFIX = re.compile(r"(?:v|go|ruby-|python-|cpython-|node-)(?=\d)", re.ASCII)


def find_versions(reader: ProjectReader, folders: Iterable[str]) -> list[VersionAsked]:
    """In the order in which they count: what pins one before what gives a range."""
    found: list[VersionAsked] = []
    places = list(dict.fromkeys(folders))
    for name, read in _READERS:
        for folder in places:
            path = join(folder, name)
            if name in reader.names(folder) and reader.exists(path):
                _take(reader, path, read(reader, path), found)
    return found


def _take(
    reader: ProjectReader, path: str, asked: Iterable[AskedVersion], found: list[VersionAsked]
) -> None:
    for tool, version, line in asked:
        version = version.strip()
        if not version or len(version) > MAX_LENGTH or not (version + tool).isprintable():
            reader.note(path, f"What it asks for of {tool[:40]!r} is no version.", line)
        elif len(found) >= MAX_VERSIONS:
            reader.note(path, f"More than {MAX_VERSIONS} versions are asked for.")
            return
        else:
            found.append(VersionAsked(_TOOLS.get(tool, tool), version, path, line))


def _lines(reader: ProjectReader, path: str) -> Iterator[tuple[int, str]]:
    """What is left of each line without its comment."""
    for number, line in enumerate((reader.text(path) or "").splitlines(), 1):
        bare = line.partition("#")[0].strip()
        if bare:
            yield number, bare


def _single(reader: ProjectReader, path: str) -> Iterator[AskedVersion]:
    tool = _SINGLE[path.rpartition("/")[2]]
    for number, line in _lines(reader, path):
        yield AskedVersion(tool, _PREFIX.sub("", line, count=1), number)


def _tool_versions(reader: ProjectReader, path: str) -> Iterator[AskedVersion]:
    """asdf: a tool and its versions, the best first."""
    for number, line in _lines(reader, path):
        tool, *versions = line.split()
        if not versions:
            reader.note(path, "A tool has no version.", number)
        for version in versions:
            yield AskedVersion(tool, version, number)


def _sdkmanrc(reader: ProjectReader, path: str) -> Iterator[AskedVersion]:
    for number, line in _lines(reader, path):
        tool, equals, version = line.partition("=")
        if equals:
            yield AskedVersion(tool.strip(), version, number)
        else:
            reader.note(path, "A line is not TOOL=VERSION.", number)


def _mise(reader: ProjectReader, path: str) -> Iterator[AskedVersion]:
    tools = reader.toml(path).get("tools")
    for tool, value in tools.items() if isinstance(tools, dict) else ():
        for one in value if isinstance(value, list) else [value]:
            version = dig(one, "version") if isinstance(one, dict) else one
            if isinstance(version, str | int | float) and not isinstance(version, bool):
                yield AskedVersion(tool, str(version))


def _rust_toolchain(reader: ProjectReader, path: str) -> Iterator[AskedVersion]:
    """TOML, or in the old file also the bare name of a channel."""
    lines = list(_lines(reader, path))
    if path.endswith(".toml") or any("=" in line or "[" in line for _, line in lines):
        yield from _keys(("rust", "toolchain", "channel"))(reader, path)
    else:
        yield from (AskedVersion("rust", line, number) for number, line in lines[:1])


def _keys(*wanted: tuple[str, ...]) -> Callable[[ProjectReader, str], Iterator[AskedVersion]]:
    """A reader of TOML or JSON: each of `wanted` is a tool, and the keys to its version."""

    def read(reader: ProjectReader, path: str) -> Iterator[AskedVersion]:
        if path.endswith(".json"):
            # dotnet allows comments in its own, the others do not.
            config = reader.json(path, comments=path.endswith("global.json"))
        else:
            config = reader.toml(path)
        for tool, *keys in wanted:
            version = dig(config, *keys)
            if isinstance(version, str):
                yield AskedVersion(tool, version)

    return read


def _patterns(*wanted: tuple[str, str]) -> Callable[[ProjectReader, str], Iterator[AskedVersion]]:
    """A reader of text: each of `wanted` is a tool, and an expression whose only group is
    its version."""
    compiled = [(tool, re.compile(pattern, re.MULTILINE)) for tool, pattern in wanted]

    def read(reader: ProjectReader, path: str) -> Iterator[AskedVersion]:
        text = reader.text(path) or ""
        for tool, pattern in compiled:
            match = pattern.search(text)
            if match:
                yield AskedVersion(tool, match.group(1), text.count("\n", 0, match.start(1)) + 1)

    return read


def _package_json(reader: ProjectReader, path: str) -> Iterator[AskedVersion]:
    package = reader.json(path)
    for table in ("volta", "engines"):
        tools = dig(package, table)
        for tool, version in tools.items() if isinstance(tools, dict) else ():
            if isinstance(version, str):
                yield AskedVersion(tool, version)
    named = dig(package, "packageManager")
    if isinstance(named, str) and "@" in named:
        tool, _, version = named.partition("@")
        yield AskedVersion(tool, version.partition("+")[0])


_GO = _patterns(("go", r"^toolchain[ \t]+go(\S+)"), ("go", r"^go[ \t]+(\d\S*)"))
_GRADLE = _patterns(
    ("java", r"JavaLanguageVersion\.of\([ \t]*['\"]?(\d+)"),
    ("java", r"\bsourceCompatibility[ \t=]*['\"]?([\d.]+)"),
    ("java", r"\bsourceCompatibility[ \t=]*JavaVersion\.VERSION_(?:1_)?(\d+)"),
)

_READERS: tuple[tuple[str, Callable[[ProjectReader, str], Iterable[AskedVersion]]], ...] = (
    *((name, _single) for name in _SINGLE),
    (".tool-versions", _tool_versions),
    ("mise.toml", _mise),
    (".mise.toml", _mise),
    (".sdkmanrc", _sdkmanrc),
    ("runtime.txt", _patterns(("python", r"\Apython-(\S+)"))),
    ("rust-toolchain", _rust_toolchain),
    ("rust-toolchain.toml", _rust_toolchain),
    ("go.mod", _GO),
    ("go.work", _GO),
    ("global.json", _keys(("dotnet", "sdk", "version"))),
    ("package.json", _package_json),
    (
        "Pipfile",
        _keys(
            ("python", "requires", "python_full_version"),
            ("python", "requires", "python_version"),
        ),
    ),
    (
        "pyproject.toml",
        _keys(
            ("python", "project", "requires-python"),
            ("python", "tool", "poetry", "dependencies", "python"),
        ),
    ),
    ("setup.cfg", _patterns(("python", r"^[ \t]*python_requires[ \t]*=[ \t]*(\S.*)$"))),
    ("setup.py", _patterns(("python", r"\bpython_requires[ \t]*=[ \t]*['\"]([^'\"\n]+)"))),
    (
        "Cargo.toml",
        _keys(
            ("rust", "package", "rust-version"),
            ("rust", "workspace", "package", "rust-version"),
        ),
    ),
    ("Gemfile", _patterns(("ruby", r"^[ \t]*ruby[ \t(]*['\"]([^'\"\n]+)"))),
    (
        "composer.json",
        _keys(("php", "config", "platform", "php"), ("php", "require", "php")),
    ),
    ("mix.exs", _patterns(("elixir", r"\belixir:[ \t]*\"([^\"\n]+)\""))),
    (
        "pom.xml",
        _patterns(
            ("java", r"<maven\.compiler\.release>\s*([\d.]+)"),
            ("java", r"<java\.version>\s*([\d.]+)"),
            ("java", r"<maven\.compiler\.source>\s*([\d.]+)"),
        ),
    ),
    ("build.gradle", _GRADLE),
    ("build.gradle.kts", _GRADLE),
    (
        "CMakeLists.txt",
        _patterns(("cmake", r"(?i:cmake_minimum_required)[ \t]*\([ \t]*VERSION[ \t]+([\d.]+)")),
    ),
    ("Package.swift", _patterns(("swift", r"swift-tools-version:[ \t]*([\d.]+)"))),
)

SOURCES = tuple(name for name, _ in _READERS)
"""The files that are looked at, in order."""


# Image tags

_EXACT = re.compile(r"(?:==?\s*)?v?(\d+(?:\.\d+){0,2})", re.ASCII)
_MAJOR = re.compile(r"\^\s*v?(\d+)(?:\.\d+){0,2}|v?(\d+)(?:\.[xX*]){1,2}", re.ASCII)
_MINOR = re.compile(r"(?:~>?|~=)\s*v?(\d+\.\d+)(?:\.\d+)?|={0,2}(\d+\.\d+)\.[xX*]", re.ASCII)
_JAVA = re.compile(r"(?:[a-z]+[\w-]*?-)?(?:1\.)?(\d+)\b", re.ASCII)


def image_tag(tool: str, version: str) -> str:
    """Empty for a range that is open, and for names such as `stable`."""
    version = version.strip()
    if tool == "java":
        java = _JAVA.match(version)
        return java.group(1) if java else ""
    for form in (_EXACT, _MAJOR, _MINOR):
        match = form.fullmatch(version)
        if match:
            return next(group for group in match.groups() if group)
    return ""
