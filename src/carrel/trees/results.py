"""What was made in a tree, for people: the files that truly are others now, how long each is, in
which language, and what is in it.

The tree may still be changing while it is read, and strangers filled it. Nothing is followed,
and what goes away meanwhile is told as far as it was seen.
"""

from __future__ import annotations

import base64
import contextlib
import heapq
import os
import re
import stat
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from operator import attrgetter

from carrel.domain.requests import ChangedFile, Collected
from carrel.domain.trees import Change, ChangeKind, EntryType, Tree, TreeDriver
from carrel.linux.descriptors import Descriptor
from carrel.trees.archives import LeftOut, Packer, gather
from carrel.trees.drivers.common import Comparable, tree_errors
from carrel.trees.folders import ENTRY_ERRORS, Root

# Languages: a small table of our own. What a client does with it is to colour text and to count.

# fmt: off
_BY_ENDING = {
    "ada": "adb ads", "asciidoc": "adoc asciidoc", "assembly": "asm s", "astro": "astro",
    "awk": "awk", "batch": "bat cmd", "bicep": "bicep", "c": "c h", "clojure": "clj cljs cljc edn",
    "cmake": "cmake", "cobol": "cbl cob", "coffeescript": "coffee",
    "cpp": "cc cpp cxx hh hpp hxx ipp tpp", "crystal": "cr", "csharp": "cs csx", "css": "css",
    "csv": "csv tsv", "cuda": "cu cuh", "cython": "pyx pxd", "d": "d di", "dart": "dart",
    "diff": "diff patch", "dockerfile": "dockerfile", "dotenv": "env", "elixir": "ex exs",
    "elm": "elm", "erlang": "erl hrl", "fish": "fish", "fortran": "f f90 f95 f03 f08 for",
    "fsharp": "fs fsi fsx", "gherkin": "feature", "glsl": "glsl vert frag", "go": "go",
    "graphql": "graphql gql", "groovy": "groovy gradle", "haskell": "hs lhs",
    "hcl": "hcl tf tfvars",
    "html": "html htm xhtml", "ini": "ini cfg conf", "java": "java",
    "javascript": "js mjs cjs jsx", "json": "json json5 jsonc jsonl webmanifest",
    "jinja": "j2 jinja jinja2", "julia": "jl", "kotlin": "kt kts", "latex": "tex sty cls",
    "less": "less", "lisp": "lisp lsp el", "lua": "lua", "make": "mk mak",
    "markdown": "md mdx markdown",
    "matlab": "mat", "mermaid": "mmd", "nim": "nim nims", "nix": "nix", "notebook": "ipynb",
    "objective-c": "m mm", "ocaml": "ml mli", "pascal": "pas pp", "perl": "pl pm t",
    "php": "php phtml",
    "powershell": "ps1 psm1 psd1", "prolog": "pro", "properties": "properties",
    "protobuf": "proto", "puppet": "epp", "python": "py pyi pyw", "r": "r rmd", "racket": "rkt",
    "restructuredtext": "rst", "ruby": "rb rake gemspec", "rust": "rs", "sass": "sass",
    "scala": "scala sc sbt",
    "scheme": "scm ss", "scss": "scss", "shell": "sh bash zsh ksh dash", "smalltalk": "st",
    "solidity": "sol", "sql": "sql", "starlark": "bzl star", "svelte": "svelte", "svg": "svg",
    "swift": "swift", "tcl": "tcl", "text": "txt text log", "toml": "toml",
    "typescript": "ts mts cts tsx", "typst": "typ", "vala": "vala", "verilog": "v sv svh",
    "vhdl": "vhd vhdl", "vim": "vim", "visual-basic": "vb bas", "vue": "vue",
    "webassembly": "wat wast", "xml": "xml xsd xsl xslt plist", "yaml": "yaml yml", "zig": "zig",
}
_BY_NAME = {
    "cmake": "cmakelists.txt", "dockerfile": "dockerfile containerfile", "dotenv": ".env",
    "go": "go.mod go.sum", "groovy": "jenkinsfile", "hcl": "terraform.lock.hcl",
    "ini": ".editorconfig .gitconfig .npmrc pylintrc", "json": ".babelrc .eslintrc .prettierrc",
    "just": "justfile", "make": "makefile gnumakefile", "python": "sconstruct sconscript",
    "ruby": "gemfile rakefile vagrantfile podfile brewfile",
    "shell": ".bashrc .profile .zshrc .envrc",
    "starlark": "build workspace tiltfile", "text": "license readme notice authors changelog",
    "toml": "pipfile cargo.lock poetry.lock uv.lock", "yaml": ".clang-format",
}
_BY_PROGRAM = {
    "awk": "awk gawk mawk", "fish": "fish", "groovy": "groovy",
    "javascript": "node nodejs bun deno",
    "julia": "julia", "lua": "lua luajit", "make": "make", "nix": "nix-shell", "perl": "perl",
    "php": "php", "powershell": "pwsh", "python": "python pypy", "r": "rscript", "ruby": "ruby",
    "shell": "sh bash dash ksh zsh ash", "tcl": "tclsh wish expect", "typescript": "ts-node tsx",
}
# fmt: on


def _turned(table: dict[str, str]) -> dict[str, str]:
    return {word: language for language, words in table.items() for word in words.split()}


_ENDINGS, _NAMES, _PROGRAMS = _turned(_BY_ENDING), _turned(_BY_NAME), _turned(_BY_PROGRAM)
_SHEBANG = re.compile(rb"#!\s*(?:\S*/)?env\s+(?:-\S+\s+)*(?:\w+=\S*\s+)*(\S+)|#!\s*(\S+)")
_VERSION = re.compile(r"[0-9.]+$")


def language_of(path: str, beginning: bytes = b"") -> str:
    """Empty when it cannot be told."""
    name = path.rpartition("/")[2].lower()
    known = _NAMES.get(name)
    if known is None and "." in name:
        known = _ENDINGS.get(name.rpartition(".")[2])
    if known is None and name.partition(".")[0] in ("dockerfile", "makefile"):
        known = _NAMES[name.partition(".")[0]]
    return known or _by_first_line(beginning)


def _by_first_line(beginning: bytes) -> str:
    found = _SHEBANG.match(beginning)
    if found is None:
        return ""
    program = (found[1] or found[2]).decode("ascii", "replace").rpartition("/")[2]
    return _PROGRAMS.get(_VERSION.sub("", program).lower(), "")


# One file

MAX_COUNTED = 64 << 20
"""Lines of larger files are not counted: nobody reads them."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_LOOKED_AT = 8 << 10
"""A zero byte in the beginning makes a file no text, as git has it."""
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class ResultEntry:
    """One that is not as it was; never a folder."""

    path: str
    change: ChangeKind
    type: EntryType


@dataclass
class _Seen:
    """What is learned of the bytes of one entry; `kept` are those themselves, if wanted."""

    size: int = 0
    executable: bool = False
    text: bool = False
    beginning: bytes = b""
    lines: int | None = None
    kept: list[bytes] | None = None


class ResultReader:
    def __init__(self, root: Root, content_bytes: int) -> None:
        """At most so many bytes of content are given, of all files together."""
        self._root = root
        self._wanted = content_bytes > 0
        self._left = content_bytes

    def read(self, entry: ResultEntry) -> ChangedFile:
        """What went away meanwhile is told without figures."""
        seen = _Seen()
        try:
            if entry.change is ChangeKind.DELETED:
                pass
            elif entry.type is EntryType.SYMLINK:
                seen = self._link(entry.path)
            elif entry.type is EntryType.FILE:
                seen = self._file(entry.path)
        except OSError as error:
            if error.errno not in ENTRY_ERRORS:
                raise
        return _told(entry, seen)

    def _link(self, path: str) -> _Seen:
        target = self._root.link(path)
        kept = [target] if self._affords(len(target)) else None
        return _Seen(len(target), text=True, kept=kept)

    def _file(self, path: str) -> _Seen:
        with Descriptor(self._root.open_file(path)) as descriptor:
            about = os.fstat(descriptor)
            seen = _Seen(
                about.st_size,
                bool(about.st_mode & stat.S_IXUSR),
                kept=[] if self._affords(about.st_size) else None,
            )
            _look_through(descriptor, seen)
        return seen

    def _affords(self, size: int) -> bool:
        if not self._wanted or size > self._left:
            return False
        self._left -= size
        return True


def _look_through(descriptor: int, seen: _Seen) -> None:
    """Only as far as somebody wants to know; never beyond the size that it had."""
    piece = os.read(descriptor, min(seen.size, _CHUNK))
    seen.beginning = piece[:_LOOKED_AT]
    seen.text = b"\0" not in seen.beginning
    counts = seen.text and seen.size <= MAX_COUNTED
    ends, last, done = 0, b"\n", 0
    while piece and (counts or seen.kept is not None):
        if counts:
            ends += piece.count(b"\n")
            last = piece[-1:]
        if seen.kept is not None:
            seen.kept.append(piece)
        done += len(piece)
        piece = os.read(descriptor, min(seen.size - done, _CHUNK))
    if counts:
        # A last line counts without its end.
        seen.lines = ends + (last != b"\n")


def _told(entry: ResultEntry, seen: _Seen) -> ChangedFile:
    content = None if seen.kept is None else b"".join(seen.kept)
    text = _as_text(content) if content is not None and seen.text else None
    if text is not None and 5 * len(_CONTROLS.findall(text)) > len(text):
        # No text: JSON would write six characters for each of them.
        text = None
    coded = None
    if content is not None and text is None:
        coded = base64.b64encode(content).decode()
    link = entry.type is EntryType.SYMLINK
    return ChangedFile(
        path=entry.path,
        change=str(entry.change),
        bytes=seen.size,
        lines=seen.lines,
        language="" if link else language_of(entry.path, seen.beginning),
        type=entry.type,
        executable=seen.executable,
        text=text,
        base64=coded,
    )


def _as_text(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


# All of them

_LEVEL = 4
"""Of zlib: most of what can be saved, twice as fast as its own choice."""
_GIT = ".git"


class Results:
    """Implements `carrel.domain.requests.Collecting`."""

    def collect(
        self, driver: TreeDriver, tree: Tree, *, most: int, after: str = "", content_bytes: int = 0
    ) -> Collected:
        tally = _Tally(after)
        entries = tally.count(_entries(driver, tree))
        page = heapq.nsmallest(most, entries, key=attrgetter("path"))
        # It takes nothing where nothing is wanted.
        for _ in entries:
            pass
        with Root(driver.open_root(tree)) as root, tree_errors("read what changed"):
            reader = ResultReader(root, content_bytes)
            return Collected(tuple(reader.read(entry) for entry in page), tally.total)

    def archive(self, driver: TreeDriver, tree: Tree, *, everything: bool) -> Iterator[bytes]:
        """Who stops early closes it. Modes and times are kept, owners are not. What is wrong
        with the tree is told at once."""
        os.close(driver.open_root(tree))
        return _gzip(gather(_packed(driver, tree, everything)))


def _entries(driver: TreeDriver, tree: Tree) -> Iterator[ResultEntry]:
    """Nearly in the order of their paths: a renamed file is two."""
    for change in _changes(driver, tree):
        if change.kind is ChangeKind.RENAMED and change.old_path is not None:
            yield from _entry(change.old_path, change.old_type, None)
            yield from _entry(change.path, None, change.new_type)
        else:
            yield from _entry(change.path, change.old_type, change.new_type)


def _changes(driver: TreeDriver, tree: Tree) -> Iterator[Change]:
    """As they are found, where the driver can: there may be any number."""
    if isinstance(driver, Comparable):
        return driver.compare(tree, links=False, renames=None)
    return driver.changes(tree)


def _entry(path: str, old: EntryType | None, new: EntryType | None) -> Iterator[ResultEntry]:
    """Nothing for folders: where one takes a file's place, the file has gone."""
    if _is_git(path):
        return
    if new is not None and new is not EntryType.FOLDER:
        there = old is not None and old is not EntryType.FOLDER
        yield ResultEntry(path, ChangeKind.MODIFIED if there else ChangeKind.ADDED, new)
    elif old is not None and old is not EntryType.FOLDER:
        yield ResultEntry(path, ChangeKind.DELETED, old)


def _is_git(path: str) -> bool:
    return _GIT in path and _GIT in path.split("/")


@dataclass
class _Tally:
    after: str
    total: int = 0

    def count(self, entries: Iterator[ResultEntry]) -> Iterator[ResultEntry]:
        for entry in entries:
            self.total += 1
            if entry.path > self.after:
                yield entry


def _packed(driver: TreeDriver, tree: Tree, everything: bool) -> Generator[bytes, None, None]:
    paths = [] if everything else _there(driver, tree)
    left_out = LeftOut()
    with Root(driver.open_root(tree)) as root:
        packer = Packer(root, left_out, leave_out=_is_git)
        if everything:
            yield from packer.pack_all()
        else:
            yield from packer.pack_each(paths)
    yield left_out.end()


def _there(driver: TreeDriver, tree: Tree) -> list[str]:
    entries = _entries(driver, tree)
    return sorted(one.path for one in entries if one.change is not ChangeKind.DELETED)


def _gzip(blocks: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Without a time and a name, so that the same files give the same bytes."""
    packing = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    with contextlib.closing(blocks):
        for block in blocks:
            if piece := packing.compress(block):
                yield piece
    yield packing.flush()
