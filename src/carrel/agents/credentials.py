"""Keys of the user, by name: one file each, which only the daemon's user can read."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from carrel.domain.errors import CredentialNotFound, MessageInvalid

MAX_BYTES = 64 << 10
"""Of one; the largest are files of JSON that services give to programs."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")


class Credentials:
    """Blocking, quick. Nothing here says a value but `given`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self._folder) if _NAME.fullmatch(name))
        return []

    def set(self, name: str, value: str) -> None:
        """Instead of what it was. `MessageInvalid`."""
        _check(name, value)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._folder / f".{secrets.token_hex(8)}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(value)
            file.flush()
            os.fsync(descriptor)
        os.replace(draft, self._folder / name)

    def remove(self, name: str) -> None:
        """Raises `CredentialNotFound`."""
        if not _NAME.fullmatch(name):
            raise _missing(name)
        try:
            (self._folder / name).unlink()
        except FileNotFoundError:
            raise _missing(name) from None

    def given(self, names: Iterable[str]) -> Mapping[str, str]:
        """Those of them that there are."""
        found: dict[str, str] = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found[name] = (self._folder / name).read_text()
        return found


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
