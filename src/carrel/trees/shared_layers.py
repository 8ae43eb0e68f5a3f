"""Layers that trees share which begin with the same state, as long as there is such a tree.

A layer is a folder with its `files` and a `note` with its name. Each tree that stands on it has
another name of that note among its own files. So the kernel counts the trees, and a tree that is
gone does not count, however it went. What nobody could tidy up goes when a daemon starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from carrel.domain.trees import TreeLayer
from carrel.linux.descriptors import Descriptor
from carrel.trees.removal import remove_tree

_FILES, _NOTE, _LOCK = "files", "note", ".lock"
_GOING, _DRAFT = ".going-", ".draft-"
STALE_S = 3600.0
"""So long no layer takes to be made."""


class SharedLayers:
    """For any number of threads and processes. Methods raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lend(self, layer: TreeLayer, note: Path) -> None:
        """Makes `note` stand for the layer, which is made if no tree has it."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with self._locked():
            if self._link(layer.name, note):
                return
        draft = self._folder / f"{_DRAFT}{secrets.token_hex(8)}"
        try:
            (draft / _FILES).mkdir(parents=True)
            layer.fill(draft / _FILES)
            (draft / _NOTE).write_text(layer.name)
            with self._locked():
                # Somebody else may have made it meanwhile.
                if not self._link(layer.name, note):
                    draft.rename(self._folder / layer.name)
                    self._link(layer.name, note)
        finally:
            remove_tree(draft)

    def _link(self, name: str, note: Path) -> bool:
        try:
            os.link(self._folder / name / _NOTE, note)
        except FileNotFoundError:
            return False
        return True

    def of(self, note: Path) -> Path | None:
        """The files of the layer that it stands for; None: there is no note."""
        try:
            if stat.S_ISDIR(note.lstat().st_mode):
                # As earlier versions had it: the layer itself, of this tree alone.
                return note
            return self._folder / note.read_text() / _FILES
        except FileNotFoundError:
            return None

    def tidy(self) -> None:
        """Removes the layers that no tree stands on."""
        going: list[Path] = []
        with contextlib.suppress(FileNotFoundError), self._locked():
            for path in self._folder.iterdir():
                if path.name.startswith(_DRAFT):
                    if time.time() - path.stat().st_mtime > STALE_S:
                        going.append(path)
                elif path.name.startswith(_GOING):
                    going.append(path)
                elif path.name != _LOCK and _is_unused(path):
                    gone = path.with_name(f"{_GOING}{secrets.token_hex(8)}")
                    path.rename(gone)
                    going.append(gone)
        for path in going:
            remove_tree(path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """For moments only."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with Descriptor(os.open(self._folder / _LOCK, flags, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _is_unused(layer: Path) -> bool:
    try:
        return (layer / _NOTE).lstat().st_nlink == 1
    except FileNotFoundError:
        return True
