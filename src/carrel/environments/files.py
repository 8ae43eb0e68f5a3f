"""The files of a project, as the rules read them: beneath the root, bounded, each once, and with
a note for whatever is wrong with one.

Parsers raise `MalformedFile`, which the reader makes a note. JSON may have comments and trailing
commas, as devcontainer.json is written: they are blanked out, and Python's own parser reads the
rest, so that it is as strict as JSON otherwise and the lines in its complaints are those of the
file. The libraries there are read the wider JSON5, a hundred times slower.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from carrel.domain.environments import Listing, Note, ReadFiles
from carrel.domain.errors import (
    PathDenied,
    PathError,
    PathEscapes,
    ProjectNotAFolder,
    ProjectNotFound,
    ProjectUnreadable,
)
from carrel.linux.descriptors import Descriptor
from carrel.linux.openat2 import open_beneath


class MalformedFile(ValueError):
    """A file, or one line of it, is not what it should be."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class BoundReached(MalformedFile):
    """A bound is reached: the rest of the file is not looked at either."""


# JSON with comments

# Every alternative matches whatever follows its first character, so no input makes it look
# at a character twice. What is not closed is left for the parser to complain about.
_TOKEN = re.compile(
    r"""
      (?P<string> "(?:[^"\\\n]|\\[^\n])*"? )
    | (?P<comment> //[^\n]* | /\*(?s:.*?)(?:\*/|\Z) )
    | (?P<space> [ \t\r\n]+ )
    | (?P<comma> , )
    | (?P<close> [}\]] )
    | (?P<other> [^"/ \t\r\n,}\]]+ | / )
    """,
    re.VERBOSE,
)
_VISIBLE = re.compile(r"[^\r\n]")


def parse_jsonc(text: str) -> object:
    """Raises `MalformedFile`."""
    return parse_json(_blanked(text))


def parse_json(text: str) -> object:
    """Raises `MalformedFile`, also for what Python reads beyond JSON (`NaN`), and for strings
    that cannot be written as UTF-8 again (half a surrogate pair)."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise MalformedFile(f"It is not valid JSON: {error.msg}.", error.lineno) from None
    except UnicodeEncodeError:
        raise MalformedFile("It is not valid JSON: an escape is half a character.") from None
    except RecursionError:
        raise MalformedFile("It is nested too deeply.") from None
    except ValueError as error:
        raise MalformedFile(f"It is not valid JSON: {error}") from None
    return value


def _no_constant(name: str) -> NoReturn:
    raise MalformedFile(f"It is not valid JSON: {name} is not a number.")


def _blanked(text: str) -> str:
    """Of the same length, with the lines where they were."""
    pieces: list[str] = []
    before = ""  # the last character that counts
    comma: int | None = None  # the place of a comma after a value, if nothing followed yet
    for match in _TOKEN.finditer(text):
        token, kind = match.group(), match.lastgroup
        if kind == "comment":
            if token.startswith("/*") and (len(token) < 4 or not token.endswith("*/")):
                line = text.count("\n", 0, match.start()) + 1
                raise MalformedFile("It is not valid JSON: a comment does not end.", line)
            token = _VISIBLE.sub(" ", token)
        elif kind != "space":
            if kind == "close" and comma is not None:
                pieces[comma] = " "
            comma = len(pieces) if kind == "comma" and before not in ("", *"[{,:") else None
            before = token[-1]
        pieces.append(token)
    return "".join(pieces)


# Folders of the host

MAX_NAMES = 50_000
"""The most names of one folder that are looked at: some hundredths of a second."""
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class FolderFiles:
    """A folder of the host, beneath which everything is opened. `root_fd` stays the
    caller's."""

    def __init__(self, root_fd: int) -> None:
        self._root = root_fd

    def read(self, path: str, limit: int) -> bytes | None:
        with _errors(path), self._opened(path) as place:
            if place is None or not stat.S_ISREG(os.fstat(place).st_mode):
                return None
            # The descriptor is known to be of a regular file, so opening it cannot block.
            with open(os.open(f"/proc/self/fd/{place}", _READ), "rb") as file:
                return file.read(limit)

    def list(self, path: str) -> Listing:
        with _errors(path), self._opened(path) as place:
            if place is None or not stat.S_ISDIR(os.fstat(place).st_mode):
                return Listing()
            with Descriptor(os.open(b".", _FOLDER, dir_fd=place)) as folder:
                return _list(folder)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int | None]:
        try:
            fd = open_beneath(self._root, os.fsencode(path))
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            yield None
            return
        try:
            yield fd
        finally:
            os.close(fd)


@contextlib.contextmanager
def open_folder(root: Path) -> Iterator[FolderFiles]:
    """Raises `ProjectNotFound`, `ProjectNotAFolder`, `ProjectUnreadable`."""
    try:
        fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, ValueError):
        raise ProjectNotFound(f"{root} does not exist.", hint="Check the path.") from None
    except NotADirectoryError:
        raise ProjectNotAFolder(f"{root} is not a folder.", hint="Name its folder.") from None
    except OSError as error:
        raise ProjectUnreadable(
            f"{root} cannot be opened: {error.strerror}.", hint="Check its permissions."
        ) from None
    try:
        yield FolderFiles(fd)
    finally:
        os.close(fd)


def _list(folder: int) -> Listing:
    files: list[str] = []
    folders: list[str] = []
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, MAX_NAMES):
            (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.name)
        complete = next(entries, None) is None
    return Listing(tuple(sorted(files)), tuple(sorted(folders)), complete)


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise PathEscapes(f"{path!r} leads out of the project.") from None
        kind = PathDenied if error.errno in (errno.EACCES, errno.EPERM) else PathError
        raise kind(f"{path!r} cannot be read: {error.strerror}.") from None


# The reader of the rules

MAX_BYTES = 256 << 10
"""Of one file. Those that describe a toolchain have some kilobytes; lock files, which have
more, are only looked for."""
MAX_NOTES = 100
MAX_TOML_COST = 5_000_000
"""Python's parser takes the square of a key's length in time and memory, for each line below
a header. This is some tenths of a second; a real file has a thousandth of it."""
_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


class ProjectReader:
    """One look at one project."""

    def __init__(self, files: ReadFiles) -> None:
        self._files = files
        self._present: dict[str, bool] = {}
        self._texts: dict[str, str | None] = {}
        self._parsed: dict[str, object] = {}
        self._listings: dict[str, Listing] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._notes: list[Note] = []
        self._unnoted = 0

    @property
    def notes(self) -> tuple[Note, ...]:
        if not self._unnoted:
            return tuple(self._notes)
        return (*self._notes, Note("", f"{self._unnoted} further notes are left out."))

    def note(self, path: str, message: str, line: int | None = None) -> None:
        note = Note(path, message, line)
        if len(self._notes) >= MAX_NOTES:
            self._unnoted += 1
        elif note not in self._notes:
            self._notes.append(note)

    def listing(self, folder: str) -> Listing:
        """Without names that cannot be shown: no rule knows one."""
        if folder not in self._listings:
            self._listings[folder] = self._list(folder)
        return self._listings[folder]

    def names(self, folder: str) -> frozenset[str]:
        """Of everything in it that is not a folder."""
        if folder not in self._names:
            self._names[folder] = frozenset(self.listing(folder).files)
        return self._names[folder]

    def exists(self, path: str) -> bool:
        """Whether it is a regular file inside the project."""
        if path not in self._present:
            self._present[path] = self._read(path, 0) is not None
        return self._present[path]

    def text(self, path: str) -> str | None:
        """None when there is no such file, or not one that can be read."""
        if path not in self._texts:
            self._texts[path] = self._load(path)
        return self._texts[path]

    def toml(self, path: str) -> dict[str, object]:
        """Empty when there is none, or it is malformed."""
        value = self._parse(path, _parse_toml)
        return value if isinstance(value, dict) else {}

    def json(self, path: str, *, comments: bool = False) -> dict[str, object] | None:
        """The object in the file; None when there is none, or it is malformed."""
        value = self._parse(path, parse_jsonc if comments else parse_json)
        if value is None or isinstance(value, dict):
            return value
        self.note(path, "It is not a JSON object.")
        return None

    def _parse(self, path: str, parse: Callable[[str], object]) -> object:
        if path not in self._parsed:
            self._parsed[path] = None
            text = self.text(path)
            if text is not None:
                try:
                    self._parsed[path] = parse(text)
                except MalformedFile as error:
                    self.note(path, error.message, error.line)
        return self._parsed[path]

    def _read(self, path: str, limit: int) -> bytes | None:
        try:
            return self._files.read(path, limit)
        except PathError as error:
            self.note(path, error.message)
            return None

    def _load(self, path: str) -> str | None:
        data = self._read(path, MAX_BYTES + 1)
        if data is None:
            return None
        if len(data) > MAX_BYTES:
            self.note(path, f"It is larger than {MAX_BYTES >> 10} KiB, and was not read.")
            return None
        return self._decode(path, data)

    def _decode(self, path: str, data: bytes) -> str:
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            self.note(path, "It is not UTF-8; what could not be read is replaced.")
            return data.decode("utf-8-sig", "replace")

    def _list(self, folder: str) -> Listing:
        try:
            found = self._files.list(folder)
        except PathError as error:
            self.note(folder, error.message)
            return Listing()
        if not found.complete:
            self.note(folder, "It has too many names; not all were looked at.")
        return Listing(
            tuple(name for name in found.files if name.isprintable()),
            tuple(name for name in found.folders if name.isprintable()),
            found.complete,
        )


def _parse_toml(text: str) -> object:
    if _toml_cost(text) > MAX_TOML_COST:
        raise MalformedFile("Its keys are too long.")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise MalformedFile("It is nested too deeply.") from None
    except ValueError as error:
        place = _LINE.search(str(error))
        line = int(place.group(1)) if place else None
        message = _LINE.sub("", str(error))
        raise MalformedFile(f"It is not valid TOML: {message}.", line) from None


def _toml_cost(text: str) -> int:
    """At most so many steps, taking every dot for one in a key."""
    cost = header = 0
    for line in text.splitlines():
        dots = line.count(".")
        if line.lstrip().startswith("["):
            header = dots
            cost += dots**2
        else:
            cost += (header + dots) ** 2
    return cost


def dig(value: object, *keys: str) -> object:
    """What is in nested tables under these keys; None when a step is missing."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def join(folder: str, name: str) -> str:
    """A path of the project; its root is `.`."""
    return name if folder in ("", ".") else f"{folder}/{name}"
