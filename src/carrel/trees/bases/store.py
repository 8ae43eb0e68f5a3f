"""The bases of one data folder: building, finding, listing and removing them."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import secrets
import time
from base64 import b32encode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from carrel.domain.errors import BaseInUse, BaseNotFound, TreeDamaged, TreeUnavailable
from carrel.domain.projects import BaseRequest, OnProgress, Progress, ignore_progress
from carrel.domain.trees import Base, Change, Owner
from carrel.linux import btrfs
from carrel.linux.ids import store_gid, store_uid
from carrel.trees.bases.disk import (
    HEADS,
    STAGING,
    BuildContext,
    LayeredLayout,
    Layout,
    StackGone,
    SubvolumeLayout,
    no_room_as_error,
)
from carrel.trees.bases.folder_base import (
    PATIENCE_S,
    FolderBuild,
    Patience,
    Previous,
    TornLook,
    changed,
)
from carrel.trees.bases.frozen_base import Freeze
from carrel.trees.bases.jobs import Meter
from carrel.trees.bases.manifest import read_manifest
from carrel.trees.bases.produced_base import ProducedBuild
from carrel.trees.bases.publication import Stack
from carrel.trees.bases.records import FILE, LAYER, Record, check_record, read_record
from carrel.trees.bases.views import Opened, OpenProject, ProjectHead, read_head
from carrel.trees.locks import HeldLock, build_lock, try_lock
from carrel.trees.removal import remove_tree
from carrel.trees.sources.folder import repository_above
from carrel.trees.sources.project import open_project

SANDBOX_OWNER = Owner(1000, 1000)
"""Whom every file of a tree belongs to, as a sandbox sees it."""
VERIFY_AFTER_S = 0.5
"""What was read in less time is as good as one moment; else the project is looked at
again, and what changed meanwhile is read again."""
STALE_STAGING_S = 7 * 24 * 3600.0
"""Nobody carries on a build that was interrupted so long ago."""
STALE_REMOVAL_S = 3600.0
"""Nobody takes so long to remove a base."""
EXACT_S = 3600.0
"""So exactly it is known when a base was last used."""
_ATTEMPTS = 3
"""How often a base below may be removed under a build before it gives up."""
_ID = re.compile(r"ba_[a-z2-7]{26}")
_DISCARDED = "discarded-"


class BaseStore:
    """Any number of threads and processes may use the same data folder at once."""

    def __init__(
        self,
        data: Path,
        *,
        open_project: OpenProject = open_project,
        layout: Layout | None = None,
        shown: Owner = SANDBOX_OWNER,
        verify_after_s: float = VERIFY_AFTER_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._data = data
        self._open_project = open_project
        owner = Owner(store_uid(), store_gid())
        bases = data / "bases"
        bases.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (STAGING, HEADS):
            (bases / name).mkdir(mode=0o700, exist_ok=True)
        self._context = BuildContext(
            bases, layout or LayeredLayout(owner), owner, shown, verify_after_s, patience_s
        )
        self._remove_stale()

    def build(self, request: BaseRequest, progress: OnProgress = ignore_progress) -> Base:
        """The base of a project as it is now; the last one, if nothing changed since.

        Raises a `ProjectError` for whatever is wrong with the project, `InsufficientDisk`,
        and leaves nothing then. When interrupted, the next call carries on.
        """
        held: list[HeldLock] = []

        def told(step: Progress) -> None:
            for lock in held:
                lock.alive()
            progress(step)

        opened = self._open_project(request, self._data, told)
        key = _key(opened.key, self._context.layout.name)
        waiting = _seldom(lambda: progress(Progress("waiting", 0, 0)))
        with no_room_as_error(self._data), build_lock(self._context.key_lock(key), waiting) as lock:
            held.append(lock)
            meter = Meter(progress, lock.alive)
            try:
                built = self._guarded(key, lambda: self._build(key, opened, request, meter))
                _note_use(built.folder)
                return dataclasses.replace(
                    built, skipped=(*repository_above(request.project), *built.skipped)
                )
            finally:
                held.clear()

    def freeze(self, parent: Base, changes: Iterable[Change], root_fd: int) -> Base:
        """A new base of what a tree holds: `parent`, with the changes, which are read
        from the tree's root. Costs what changed.

        Raises `TreeUnavailable` for what cannot be read, `InsufficientDisk`, `TreeDamaged`.
        """
        key = f"freeze-{secrets.token_hex(8)}"
        record = check_record(self._record(parent.base_id))
        stack = Stack(record, read_manifest(record.base.folder))
        with no_room_as_error(self._data), build_lock(self._context.key_lock(key)) as lock:
            meter = Meter(ignore_progress, lock.alive)
            staging = self._context.staging(key)
            freeze = Freeze(self._context, staging, meter, stack, root_fd)
            return self._guarded(key, lambda: freeze.run(changes).base)

    def get(self, base_id: str) -> Base:
        """Raises `BaseNotFound`, `TreeDamaged`."""
        return check_record(self._record(base_id)).base

    def use(self, base_id: str) -> Base:
        """As `get`; it counts as used now."""
        base = self.get(base_id)
        _note_use(base.folder)
        return base

    def used_at(self, base: Base) -> float:
        """When it was last built, or found to be the project's state."""
        try:
            return (base.folder / FILE).stat().st_mtime
        except OSError:
            return base.created_at

    def list(self) -> list[Base]:
        """All that can be used, the oldest first."""
        found = []
        for record in self._records():
            with contextlib.suppress(TreeDamaged):
                found.append(check_record(record).base)
        return sorted(found, key=lambda base: base.created_at)

    def remove(self, base_id: str) -> None:
        """Raises `BaseNotFound`, and `BaseInUse` while another base stands on it.
        Whether trees use it is for the caller to know."""
        if not _ID.fullmatch(base_id) or not (self._context.bases / base_id).is_dir():
            raise _not_found(base_id)
        with build_lock(self._context.lock):
            above = [other.base.base_id for other in self._records() if base_id in other.stack[1:]]
            if above:
                raise BaseInUse(
                    f"The base {base_id} cannot be removed: {len(above)} others depend on "
                    f"it, such as {above[0]}.",
                    hint="Remove those first.",
                    base_id=base_id,
                    above=above,
                )
            discarded = self._set_aside(base_id)
        _discard(discarded)
        self._forget_heads(base_id)

    # Building

    def _build(self, key: str, opened: Opened, request: BaseRequest, meter: Meter) -> Base:
        patience = Patience(self._context.patience_s)
        gone = 0
        while gone < _ATTEMPTS:
            previous = self._previous(key)
            try:
                with no_room_as_error(self._context.bases):
                    return self._build_once(key, opened, request, meter, previous, patience)
            except StackGone:
                self._context.staging(key).discard()
                gone += 1
            except TornLook as torn:
                if not patience.pause():
                    raise changed({torn.path}) from torn
        raise TreeUnavailable(
            "Bases of this project are being removed all the time.", hint="Try again."
        )

    def _build_once(
        self,
        key: str,
        opened: Opened,
        request: BaseRequest,
        meter: Meter,
        previous: tuple[ProjectHead, Stack] | None,
        patience: Patience,
    ) -> Base:
        context = self._context
        head, stack = previous or (None, None)
        if opened.producer is not None:
            before = head.state if head else b""
            build = ProducedBuild(context, key, opened.producer, request, meter, stack, before)
            return build.run()
        assert opened.source is not None
        last = Previous(stack.record, stack.manifest, head.known) if stack and head else None
        return FolderBuild(context, key, opened.source, request, meter, last, patience).run()

    def _previous(self, key: str) -> tuple[ProjectHead, Stack] | None:
        """The last base of the project; one that is damaged is as none."""
        head = read_head(self._context.head(key))
        if head is None:
            return None
        try:
            record = check_record(self._record(head.base_id))
            return head, Stack(record, read_manifest(record.base.folder))
        except (BaseNotFound, TreeDamaged, FileNotFoundError):
            return None

    def _guarded(self, key: str, work: Callable[[], Base]) -> Base:
        """A failure leaves nothing; an interruption leaves what the next call can use."""
        try:
            return work()
        except StackGone as gone:
            self._context.staging(key).discard()
            raise TreeDamaged(
                "The base that this one depends on was removed meanwhile.", hint="Try again."
            ) from gone
        except Exception:
            self._context.staging(key).discard()
            raise

    # Keeping

    def _record(self, base_id: str) -> Record:
        if _ID.fullmatch(base_id):
            with contextlib.suppress(FileNotFoundError):
                return read_record(self._context.bases / base_id)
        raise _not_found(base_id)

    def _records(self) -> Iterator[Record]:
        for folder in sorted(self._context.bases.iterdir()):
            if _ID.fullmatch(folder.name):
                with contextlib.suppress(FileNotFoundError, TreeDamaged):
                    yield read_record(folder)

    def _set_aside(self, base_id: str) -> Path:
        """Takes a base out of sight in one step; what is left is to be discarded."""
        name = f"{_DISCARDED}{base_id}-{secrets.token_hex(4)}"
        return (self._context.bases / base_id).rename(self._context.bases / STAGING / name)

    def _forget_heads(self, base_id: str) -> None:
        for head in (self._context.bases / HEADS).iterdir():
            with contextlib.suppress(FileNotFoundError), head.open("rb") as file:
                # The id is the second field; the rest can be big.
                if base_id.encode() in file.read(64):
                    head.unlink()

    def _remove_stale(self) -> None:
        """What does not go now goes another time: that is no reason not to open."""
        for path in (self._context.bases / STAGING).iterdir():
            with contextlib.suppress(OSError):
                if path.is_dir():
                    self._remove_if_stale(path)
        for path in (self._context.bases / HEADS).glob("*.new"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE_REMOVAL_S:
                    path.unlink()

    def _remove_if_stale(self, folder: Path) -> None:
        age = time.time() - max(folder.stat().st_mtime, _last_note(folder))
        if folder.name.startswith(_DISCARDED):
            if age > STALE_REMOVAL_S:
                _discard(folder)
        elif age > STALE_STAGING_S:
            self._remove_staging(folder.name)

    def _remove_staging(self, key: str) -> None:
        path = self._context.key_lock(key)
        lock = try_lock(path)
        if lock is not None:
            try:
                self._context.staging(key).discard()
                path.unlink(missing_ok=True)
            finally:
                os.close(lock)


def _note_use(folder: Path) -> None:
    """By the time of its record, which nobody changes; not each time, which would be a write."""
    with contextlib.suppress(OSError):
        if time.time() - (folder / FILE).stat().st_mtime > EXACT_S:
            os.utime(folder / FILE)


def _not_found(base_id: str) -> BaseNotFound:
    return BaseNotFound(f"There is no base {base_id!r}.", hint="Build it again from its project.")


def _discard(folder: Path) -> None:
    """Removes a base that was set aside."""
    if btrfs.is_subvolume(folder / LAYER):
        SubvolumeLayout().discard(folder / LAYER)
    remove_tree(folder)


def _last_note(folder: Path) -> float:
    try:
        return (folder / "journal").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _key(project: str, layout: str) -> str:
    digest = hashlib.blake2b(f"{layout}\0{project}".encode(errors="surrogateescape"))
    return b32encode(digest.digest()[:16]).decode().lower().rstrip("=")


def _seldom(speak: Callable[[], None], interval_s: float = 0.1) -> Callable[[], None]:
    last = [0.0]

    def maybe() -> None:
        if time.monotonic() - last[0] >= interval_s:
            last[0] = time.monotonic()
            speak()

    return maybe
