"""Reading and writing in a tree from outside, as a contract."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from carrel.domain.trees import EntryType


@dataclass(frozen=True)
class FileInfo:
    """One entry as it is itself: a symlink is not followed, `target` is where it points."""

    name: str
    type: EntryType
    mode: int
    size: int
    modified_ns: int
    target: str | None = None


class Files(Protocol):
    """Blocking. Paths are relative to the tree's root, as `os.fsdecode` gives them; none
    leads out. All methods raise `PathError`s and `InsufficientDisk`."""

    def stat(self, path: str) -> FileInfo: ...

    def list(self, path: str = ".") -> builtins.list[FileInfo]: ...

    def open_read(self, path: str) -> BinaryIO: ...

    def write(self, path: str, data: bytes | Iterable[bytes], mode: int | None = None) -> None: ...

    def mkdir(self, path: str, mode: int = 0o755, *, parents: bool = False) -> None: ...

    def delete(self, path: str, *, recursive: bool = False) -> None: ...

    def move(self, source: str, target: str, *, replace: bool = False) -> None: ...
