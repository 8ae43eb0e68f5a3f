"""Makes a new base of what a tree holds now: its own base, with the tree's changes.

The tree was written by strangers. Everything is opened below its root without following
a symlink, and only regular files are read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field

from carrel.domain.errors import TreeUnavailable
from carrel.domain.trees import Change, ChangeKind, Skipped
from carrel.linux.statx import Row, row_of
from carrel.trees.bases.disk import BuildContext, Staging, check_room
from carrel.trees.bases.indexes import Indexes
from carrel.trees.bases.jobs import Job, Meter
from carrel.trees.bases.layer import LayerWriter
from carrel.trees.bases.manifest import Draft
from carrel.trees.bases.publication import About, Publisher, Stack
from carrel.trees.bases.records import Record
from carrel.trees.bases.views import Origin
from carrel.trees.paths import join, open_folder, split

_WHOLE = frozenset({ChangeKind.ADDED, ChangeKind.TYPE})
"""Of a folder that changed like this, everything in it is new."""


@dataclass
class Freeze:
    """`root` is a descriptor of the tree's root."""

    context: BuildContext
    staging: Staging
    meter: Meter
    stack: Stack
    root: int
    _jobs: dict[bytes, Job] = field(default_factory=dict)
    _groups: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    _rows: dict[bytes, Row] = field(default_factory=dict)
    _skipped: list[Skipped] = field(default_factory=list)

    def run(self, changes: Iterable[Change]) -> Record:
        """Raises `TreeUnavailable`, `InsufficientDisk`, `StackGone`, OSError."""
        layers = self.stack.manifest.layers
        layer = len(layers) if self.context.layout.layered else 0
        draft = Draft(self.stack.manifest, layer)
        self._collect(changes, draft)
        self.staging.begin(self.stack.record.base.layers[0])
        writer = LayerWriter(
            self.context, self.staging.layer, draft, self.meter, self._skipped.append
        )
        try:
            self._fill(draft, writer)
            writer.clean(stale=False)
            self._patch_indexes(draft, writer)
            writer.finish(self._open_folder)
        finally:
            writer.close()
        base = self.stack.record.base
        about = About(
            base.project,
            base.project_owner,
            base.has_git,
            (*base.skipped, *self._skipped),
            base.unstable,
            self.stack.record.indexes,
        )
        return Publisher(self.context, self.staging, self.meter).finish(draft, self.stack, about)

    def _collect(self, changes: Iterable[Change], draft: Draft) -> None:
        fresh: dict[bytes, bool] = {}
        for change in changes:
            path = os.fsencode(change.path)
            if change.kind is ChangeKind.DELETED:
                draft.drop(path)
                continue
            if change.old_path is not None:
                draft.drop(os.fsencode(change.old_path))
            fresh[path] = change.kind in _WHOLE
        for path in sorted(fresh):
            self._add(path, fresh[path], draft)

    def _add(self, path: bytes, whole: bool, draft: Draft) -> None:
        pending = [path]
        while pending:
            current = pending.pop()
            if current in self._rows:
                continue
            found = self._stat(current)
            if found is None:
                draft.drop(current)
                continue
            self._rows[current] = row_of(found)
            if stat.S_ISDIR(found.st_mode):
                draft.put_folder(current, found.st_mode, found.st_mtime_ns)
                if whole:
                    pending += [join(current, name) for name in self._list(current)]
            elif stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode):
                self._add_file(current, found)
            else:
                draft.drop(current)
                self._skipped.append(Skipped(os.fsdecode(current), "is not a file"))

    def _add_file(self, path: bytes, found: os.stat_result) -> None:
        origin = Origin(b"/proc/self/fd/%d" % self.root, ours=True)
        self._jobs[path] = Job(path, origin, path, found.st_mode, None, b"")
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            self._groups.setdefault((found.st_dev, found.st_ino), []).append(path)

    def _stat(self, path: bytes) -> os.stat_result | None:
        above, name = split(path)
        try:
            folder = open_folder(self.root, above)
        except OSError as error:
            # An index may name files below what is a symlink now.
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise _refused(above, error) from error
        try:
            return os.stat(name or b".", dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return None
        finally:
            os.close(folder)

    def _list(self, path: bytes) -> list[bytes]:
        try:
            folder = open_folder(self.root, path)
        except OSError as error:
            raise _refused(path, error) from error
        try:
            return [os.fsencode(name) for name in os.listdir(folder)]
        finally:
            os.close(folder)

    def _fill(self, draft: Draft, writer: LayerWriter) -> None:
        groups = {paths[0]: paths[1:] for paths in map(sorted, self._groups.values()) if paths[1:]}
        others = {path for paths in groups.values() for path in paths}
        jobs = [job for path, job in self._jobs.items() if path not in others]
        sizes = [self._rows[job.path].size for job in jobs if stat.S_ISREG(job.mode)]
        check_room(self.context.bases, sizes, lambda: sum(sizes))
        filled = writer.fill(jobs, "copying")
        for path, error in filled.failed.items():
            raise _refused(path, error) from error
        for job in filled.moved:
            raise TreeUnavailable(
                f"{os.fsdecode(job.path)!r} changed while the tree was being frozen.",
                hint="Stop what runs in the tree, and try again.",
            )
        for path, item in filled.items.items():
            draft.put(path, item)
        writer.link(groups)

    def _patch_indexes(self, draft: Draft, writer: LayerWriter) -> None:
        layers = [*self.stack.record.base.layers[::-1][: draft.layer], writer.place]
        with Indexes(self.context, draft, layers) as indexes:
            for index in self.stack.record.indexes:
                if index.path in self._jobs and draft.item(index.path) is not None:
                    indexes.from_project(index, self._row)
                    writer.refresh(index.path)

    def _row(self, path: bytes) -> Row | None:
        row = self._rows.get(path)
        if row is None:
            found = self._stat(path)
            row = row_of(found) if found is not None else None
        # Git in the sandbox saw another owner than there is on disk.
        shown = self.context.shown
        return row._replace(uid=shown.uid, gid=shown.gid) if row is not None else None

    def _open_folder(self, path: bytes) -> int | None:
        with contextlib.suppress(OSError):
            return open_folder(self.root, path)
        return None


def _refused(path: bytes, error: OSError) -> TreeUnavailable:
    return TreeUnavailable(
        f"{os.fsdecode(path)!r} of the tree cannot be read: {error.strerror}.",
        hint="Give its owner the permission to read it, or delete it.",
    )
