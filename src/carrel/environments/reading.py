"""What the rules read: bounded, each file once, and a note for whatever is wrong with it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable

from carrel.domain.environments import Listing, Note, ReadFiles
from carrel.domain.errors import PathError
from carrel.environments.jsonc import parse_json, parse_jsonc
from carrel.environments.malformed import Malformed

MAX_BYTES = 256 << 10
"""Of one file. Those that describe a toolchain have some kilobytes; lock files, which have
more, are only looked for."""
MAX_NOTES = 100
MAX_TOML_COST = 5_000_000
"""Python's parser takes the square of a key's length in time and memory, for each line below
a header. This is some tenths of a second; a real file has a thousandth of it."""
_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


class Reader:
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
                except Malformed as error:
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
        raise Malformed("Its keys are too long.")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise Malformed("It is nested too deeply.") from None
    except ValueError as error:
        place = _LINE.search(str(error))
        line = int(place.group(1)) if place else None
        message = _LINE.sub("", str(error))
        raise Malformed(f"It is not valid TOML: {message}.", line) from None


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
