"""Fills a server's own folder before it starts: its settings, and copies of what of the project
it would write in.

Called in a sandbox where others run too, else before anything runs. It follows no link: the
project is somebody's, and whoever calls this may be allowed to read more than that one.
"""

from __future__ import annotations

import os
import re
from typing import Any

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ABOVE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_BYTES = 64 << 20
"""That are copied of a project: settings and notes."""
MOST_ENTRIES = 10_000
MOST_DEPTH = 100
"""Of folders in one another."""
COPIED = "copied"


class FolderTooLarge(Exception):
    pass


class Furnisher:
    def __init__(self, state: str) -> None:
        self._state = state
        self._bytes = 0
        self._entries = 0
        self.copied = False
        """There was something to copy."""

    def put(self, files: dict[str, str]) -> None:
        """A path that ends with a slash is a folder."""
        for path, text in files.items():
            target = f"{self._state}/{path}"
            os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
            if not path.endswith("/"):
                with open(os.open(target, _NEW, 0o600), "w", encoding="utf-8") as file:
                    file.write(text)

    def copy(self, project: str, copies: dict[str, str]) -> None:
        """What is not there, or is a link, is left out. The project is named by its real path."""
        for source, target in copies.items():
            above = _walk(project, os.path.dirname(source))
            if above is None:
                continue
            whole = f"{self._state}/{target}"
            os.makedirs(os.path.dirname(whole.rstrip("/")), 0o700, exist_ok=True)
            try:
                self._entry(above, os.path.basename(source), whole, MOST_DEPTH)
            finally:
                os.close(above)

    def _entry(self, above: int, name: str, target: str, depth: int) -> None:
        self._entries += 1
        if self._entries > MOST_ENTRIES or not depth:
            raise FolderTooLarge("the project has too many files, or too deep ones, to copy")
        try:
            below = os.open(name, _FOLDER, dir_fd=above)
        except OSError:
            self._file(above, name, target)
            return
        try:
            os.makedirs(target, 0o700, exist_ok=True)
            for entry in os.listdir(below):
                self._entry(below, entry, f"{target}/{entry}", depth - 1)
        finally:
            os.close(below)

    def _file(self, above: int, name: str, target: str) -> None:
        try:
            source = os.open(name, _FILE, dir_fd=above)
        except OSError:
            return
        self.copied = True
        with open(source, "rb") as file, open(os.open(target, _NEW, 0o600), "wb") as copy:
            while piece := file.read(1 << 16):
                self._bytes += len(piece)
                if self._bytes > MOST_BYTES:
                    raise FolderTooLarge("the project has too much to copy")
                copy.write(piece)

    def swap(self, files: list[str], keys: list[str], word: str, instead: str) -> bool:
        """A word in lists of these copies. Whether there was one."""
        found = False
        for path in files:
            try:
                with open(f"{self._state}/{path}", "r+", encoding="utf-8", newline="") as file:
                    text = file.read()
                    changed = swapped(text, keys, word, instead)
                    if changed != text:
                        file.seek(0)
                        file.write(changed)
                        file.truncate()
                        found = True
            except (FileNotFoundError, UnicodeDecodeError):
                continue
        return found


def swapped(text: str, keys: list[str], word: str, instead: str) -> str:
    """YAML with another word where one of the keys has it: as `key: word`, `key: [word, …]`, or in
    the lines below. No parser of it is here, and comments are to stay."""
    key = re.compile(rf"({'|'.join(map(re.escape, keys))}):(?=\s|$)")
    named = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])", re.IGNORECASE)
    lines, within = text.splitlines(keepends=True), False
    for number, line in enumerate(lines):
        begun = key.match(line)
        item = within and (line[:1] in " \t-]#" or not line.strip())
        within = bool(begun or item)
        if within:
            said, hash_, comment = line.partition("#")
            start = begun.end() if begun else 0
            lines[number] = said[:start] + named.sub(instead, said[start:]) + hash_ + comment
    return "".join(lines)


def _walk(folder: str, path: str) -> int | None:
    """A descriptor of a folder below another, whose own path is a real one: a link on the way
    was put there to lead us elsewhere."""
    here = os.open("/", _ABOVE)
    for part in filter(None, f"{folder}/{path}".split("/")):
        try:
            below = os.open(part, _ABOVE, dir_fd=here)
        except OSError:
            return None
        finally:
            os.close(here)
        here = below
    return here


def fill(order: Any) -> None:
    os.makedirs(order["state"], 0o700, exist_ok=True)
    furnisher = Furnisher(order["state"])
    furnisher.put(order["files"])
    # In a sandbox there is nothing to be led to.
    furnisher.copy(os.path.realpath(order["project"]), order["copies"])
    # For who has called this: `LocalServerAdapter.furnished`.
    if furnisher.copied:
        print(COPIED)
    for number, swap in enumerate(order["swaps"]):
        if furnisher.swap(**swap):
            print(number, flush=True)
