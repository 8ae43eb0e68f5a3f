"""What agents are given to read: one file each, in a folder that their sandbox only shows."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from carrel.domain.agents import ContextFile
from carrel.domain.errors import PathInvalid, PathNotFound, TooLarge

MAX_BYTES = 16 << 20
"""Of one: a picture or a long document. What is larger belongs into the tree."""
MAX_FILES = 1000
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Context:
    """Implements `carrel.domain.agents.ContextStore`. Where nothing confines the agent it may
    put anything there, so nothing is followed."""

    def list(self, folder: Path) -> Sequence[ContextFile]:
        try:
            place = _open(folder)
        except FileNotFoundError:
            return []
        try:
            return sorted(_files(place), key=lambda file: file.name)
        finally:
            os.close(place)

    def read(self, folder: Path, name: str) -> bytes:
        _check(name)
        with _place(folder, name) as place:
            descriptor = os.open(name, _READ, dir_fd=place)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise _missing(name)
            with os.fdopen(descriptor, "rb") as file:
                return file.read(MAX_BYTES)

    def put(self, folder: Path, name: str, data: bytes) -> None:
        """Whole or not at all."""
        _check(name)
        if len(data) > MAX_BYTES:
            raise TooLarge(f"A context file has at most {MAX_BYTES} bytes.", hint="carrel cp")
        with _place(folder, name) as place:
            if len(_files(place)) >= MAX_FILES:
                raise TooLarge(f"There are {MAX_FILES} context files already.", hint="Remove some.")
            _put(place, name, data)

    def remove(self, folder: Path, name: str) -> None:
        _check(name)
        with _place(folder, name) as place:
            os.unlink(name, dir_fd=place)


def _put(place: int, name: str, data: bytes) -> None:
    draft = f".{secrets.token_hex(8)}"
    descriptor = os.open(draft, _NEW, 0o644, dir_fd=place)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            file.write(data)
        os.rename(draft, name, src_dir_fd=place, dst_dir_fd=place)
    except BaseException:
        os.unlink(draft, dir_fd=place)
        raise


@contextlib.contextmanager
def _place(folder: Path, name: str) -> Iterator[int]:
    place = -1
    try:
        place = _open(folder)
        yield place
    except (FileNotFoundError, IsADirectoryError):
        raise _missing(name) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _missing(name) from None
        raise
    finally:
        if place >= 0:
            os.close(place)


def _open(folder: Path) -> int:
    return os.open(folder / "agent" / "context", _FOLDER)


def _files(place: int) -> list[ContextFile]:
    """Without drafts, and without what is no file."""
    found: list[ContextFile] = []
    with os.scandir(place) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False):
                found.append(ContextFile(entry.name, entry.stat(follow_symlinks=False).st_size))
    return found


def _check(name: str) -> None:
    fits = 0 < len(name.encode("utf-8", "surrogateescape")) <= 255
    if not fits or name.startswith(".") or not name.isprintable() or "/" in name:
        raise PathInvalid(
            f"{name[:80]!r} cannot be the name of a context file.",
            hint="A plain name, without a folder or a dot before it.",
        )


def _missing(name: str) -> PathNotFound:
    return PathNotFound(
        f"There is no context file {name[:80]!r}.", hint="`carrel context ls SPACE` lists them."
    )
