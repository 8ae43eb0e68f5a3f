"""What the user entrusts to the daemon: keys by name, and consent to what projects bring.

One file each, which only the daemon's user can read.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from carrel.domain.errors import CredentialNotFound, MessageInvalid

MAX_BYTES = 64 << 10
"""Of one; the largest are files of JSON that services give to programs."""
ENDPOINTS = ".endpoints"
"""The file beside a key's that says where it may go; no name of a key has a dot."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")


class Credentials:
    """Keys by name. Blocking, quick. Only `given` tells values."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self._folder) if _NAME.fullmatch(name))
        return []

    def set(self, name: str, value: str | None, endpoints: Sequence[str] | None = None) -> None:
        """Replaces a value and its endpoints; None leaves one as it is. Raises `MessageInvalid`,
        `CredentialNotFound`."""
        if value is not None:
            _check(name, value)
        elif name not in self.names():
            raise _missing(name)
        if endpoints is not None:
            self._write(name + ENDPOINTS, "".join(f"{one}\n" for one in endpoints))
        if value is not None:
            self._write(name, value)

    def endpoints(self, name: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / (name + ENDPOINTS)).read_text().split()
        return []

    def _write(self, name: str, value: str) -> None:
        write_private(self._folder / name, value.encode())

    def remove(self, name: str) -> None:
        """Raises `CredentialNotFound`."""
        if not _NAME.fullmatch(name):
            raise _missing(name)
        (self._folder / (name + ENDPOINTS)).unlink(missing_ok=True)
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            raise _missing(name) from None

    def given(self, names: Iterable[str]) -> Mapping[str, str]:
        """The values of those that there are."""
        found: dict[str, str] = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found[name] = (self._folder / name).read_text()
        return found


def write_private(path: Path, data: bytes) -> None:
    """Writes a file that only the daemon's user can read, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.parent / f".{secrets.token_hex(8)}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    os.replace(draft, path)


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise MessageInvalid(
            f"{name[:80]!r} cannot be a credential's name.",
            hint="Use lower-case letters, digits, dashes and underscores: anthropic, openai.",
        )
    if not value.strip() or len(value.encode()) > MAX_BYTES or "\0" in value:
        raise MessageInvalid(
            f"A credential has 1 to {MAX_BYTES} bytes, and no NUL.", hint="Give it on stdin."
        )


def _missing(name: str) -> CredentialNotFound:
    return CredentialNotFound(
        f"There is no credential {name[:80]!r}.", hint="`carrel auth ls` lists them."
    )


# A person's answers about what projects bring for agents: one file for each digest

YES, NO = "yes", "no"


class AgreedDigests:
    """Implements `carrel.domain.agents.Agreements`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def said(self, digest: str) -> bool | None:
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / digest).read_text() == YES
        return None

    def say(self, digest: str, agreed: bool) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._folder / f".{digest}"
        draft.write_text(YES if agreed else NO)
        os.replace(draft, self._folder / digest)
