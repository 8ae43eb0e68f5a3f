"""From a finished layer in the staging area to a base that everybody sees, in one step."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.trees import Base, Owner
from carrel.trees.bases.layouts import Layout
from carrel.trees.bases.locks import hold
from carrel.trees.bases.manifest import Document, encode_document
from carrel.trees.bases.records import FILE, LAYER, Record, encode_record
from carrel.trees.removal import remove_tree

STAGING = ".staging"
HEADS = ".heads"
LOCK = ".lock"


class StackGone(Exception):
    """A base that this one was to stand on was removed meanwhile."""


@dataclass(frozen=True)
class Shop:
    """Where bases are made, and how."""

    bases: Path
    layout: Layout
    owner: Owner
    """Whom everything belongs to on disk."""
    shown: Owner
    """Whom sandboxes see it belong to."""
    verify_after_s: float
    """A project that took longer to read is looked at a second time."""

    @property
    def lock(self) -> Path:
        return self.bases / STAGING / LOCK

    def head(self, key: str) -> Path:
        return self.bases / HEADS / key

    def kept_indexes(self, key: str) -> Path:
        return self.bases / HEADS / f"{key}.indexes"

    def staging(self, key: str) -> Staging:
        return Staging(self.bases / STAGING / key, self.layout)

    def key_lock(self, key: str) -> Path:
        return self.bases / STAGING / f"{key}.lock"


@dataclass(frozen=True)
class Staging:
    """The private place of one build."""

    folder: Path
    layout: Layout

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def base(self) -> Path:
        """What is renamed in the end."""
        return self.folder / "base"

    @property
    def layer(self) -> Path:
        return self.base / LAYER

    def begin(self, previous: Path | None) -> None:
        self.discard()
        self.base.mkdir(mode=0o700, parents=True)
        self.layout.begin(self.layer, previous)

    def discard(self) -> None:
        """Idempotent."""
        self.layout.discard(self.layer)
        remove_tree(self.folder)


def publish(shop: Shop, staging: Staging, record: Record, document: Document) -> Base:
    """Raises `StackGone`; OSError when the disk refuses."""
    files = ((FILE, encode_record(record)), ("manifest", encode_document(document)))
    with contextlib.ExitStack() as stack:
        # All is written before any is forced to disk: then that takes one round.
        written = [stack.enter_context(open(staging.base / name, "wb")) for name, _ in files]
        for file, (_, data) in zip(written, files, strict=True):
            file.write(data)
            file.flush()
        for file in written:
            os.fsync(file.fileno())
    _sync_folder(staging.base)
    base = record.base
    with hold(shop.lock):
        if not all(layer.is_dir() for layer in base.layers[1:]):
            raise StackGone
        with contextlib.suppress(FileExistsError):
            _rename(staging.base, base.folder)
            _sync_folder(shop.bases)
    staging.discard()
    return base


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            # Somebody else built the same content: theirs is as good.
            raise FileExistsError from error
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def boot_id() -> str:
    """Names the time since the machine was started."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
