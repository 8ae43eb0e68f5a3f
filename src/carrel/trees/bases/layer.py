"""A layer on disk while it is being written, from the first folder to the last."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.trees import Skipped
from carrel.linux.descriptors import Descriptor
from carrel.trees.bases.disk import BuildContext
from carrel.trees.bases.entries import Copier, make_folder
from carrel.trees.bases.jobs import Filler, FillResult, Job, Meter
from carrel.trees.bases.manifest import Draft, FolderDraft, StoredItem
from carrel.trees.paths import PATH_LIMIT, join, open_folder, split
from carrel.trees.removal import remove_entry

OpenFolder = Callable[[bytes], int | None]
"""Opens the folder that one of the base is made from, for its attributes."""


def open_nothing(_path: bytes) -> int | None:
    return None


@dataclass
class LayerWriter:
    """Works on `place`, which exists; the caller closes it."""

    context: BuildContext
    place: Path
    draft: Draft
    meter: Meter
    on_skip: Callable[[Skipped], None]

    def __post_init__(self) -> None:
        self.root = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._made: set[bytes] = set()
        self.copier = Copier(
            self.context.owner, self.draft.layer, self.meter.pulse, on_skip=self.on_skip
        )

    def close(self) -> None:
        os.close(self.root)

    def make_folders(self, paths: Iterable[bytes]) -> None:
        """Makes them and those above them, ready to be filled."""
        wanted: set[bytes] = set()
        for path in paths:
            while path and path not in wanted and path not in self._made:
                wanted.add(path)
                path = split(path)[0]
        self._made |= wanted
        for path in sorted(wanted):
            try:
                if len(path) >= PATH_LIMIT:
                    raise FileExistsError
                os.mkdir(path, 0o700, dir_fd=self.root)
            except FileExistsError:
                self._make_slowly(path)
            self.meter.tick()

    def fill(self, jobs: list[Job], stage: str, *, adopt: bool = False) -> FillResult:
        """Stores entries of Carrel's own; with `adopt`, by moving them here. Raises OSError
        for trouble on the store's side."""
        self.make_folders({split(job.path)[0] for job in jobs})
        self.meter.begin(stage, len(jobs))
        filler = Filler(
            self.root,
            self.draft.layer,
            self.context.owner,
            self.meter,
            lambda _notes: None,
            self.on_skip,
            ours=True,
            adopt=adopt,
        )
        return filler.run(jobs)

    def distrust(self) -> None:
        """Looks again whether folders are there: entries may have changed their kind."""
        self._made.clear()

    def _make_slowly(self, path: bytes) -> None:
        above, name = split(path)
        with Descriptor(open_folder(self.root, above)) as parent:
            os.close(make_folder(parent, name))

    def link(self, groups: Mapping[bytes, list[bytes]]) -> None:
        """Gives stored files (the keys) their other names."""
        self.make_folders({split(path)[0] for names in groups.values() for path in names})
        for stored, names in groups.items():
            above, first = split(stored)
            with Descriptor(open_folder(self.root, above)) as source:
                for path in names:
                    self._link(source, first, path)
                kept = os.stat(first, dir_fd=source, follow_symlinks=False)
            item = self._item(stored)
            # Linking changed its ctime.
            item = item._replace(leader=item.leader or stored, ctime_ns=kept.st_ctime_ns)
            for path in (stored, *names):
                self.draft.put(path, item)

    def _link(self, source: int, first: bytes, path: bytes) -> None:
        above, name = split(path)
        with Descriptor(open_folder(self.root, above)) as folder:
            try:
                os.link(first, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                remove_entry(folder, name)
                os.link(first, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)

    def refresh(self, path: bytes) -> None:
        """After a stored file was replaced: its digest stays that of what it stands for."""
        above, name = split(path)
        with Descriptor(open_folder(self.root, above)) as folder:
            kept = os.stat(name, dir_fd=folder, follow_symlinks=False)
        item = self._item(path)
        self.draft.put(path, item._replace(inode=kept.st_ino, ctime_ns=kept.st_ctime_ns))

    def clean(self, *, stale: bool) -> None:
        """Hides what the base below has and this one not; with `stale`, also removes what
        earlier attempts left."""
        needed = self.draft.needed()
        self.make_folders(needed)
        have = set(needed)
        for path, draft in list(self.draft.folders.items()):
            if draft is None or not draft.changed:
                continue
            hidden = self.draft.hidden(path)
            if not hidden and not stale:
                continue
            with Descriptor(open_folder(self.root, path)) as folder:
                if stale:
                    self._sweep(folder, path, draft, have)
                for name in hidden:
                    self.context.layout.hide(folder, name)
            self.meter.tick()

    def _sweep(self, folder: int, path: bytes, draft: FolderDraft, have: set[bytes]) -> None:
        if self.context.layout.layered:
            wanted = {name for name, item in draft.items.items() if item.layer == self.draft.layer}
            wanted |= {name for name in draft.folders if join(path, name) in have}
        else:
            wanted = draft.items.keys() | draft.folders
        for name in map(os.fsencode, os.listdir(folder)):
            if name not in wanted:
                remove_entry(folder, name)

    def finish(self, open_source: OpenFolder) -> None:
        """Gives all folders their attributes, modes and times, from the inside out."""
        for path in reversed(self.draft.needed()):
            facts = self.draft.folder(path)
            assert facts is not None
            with Descriptor(open_folder(self.root, path)) as folder:
                self._take_attributes(open_source, path, folder)
                self.copier.finish_folder(folder, stat.S_IMODE(facts.mode), facts.mtime_ns)
            self.meter.tick()
        self.context.layout.seal(self.place)

    def _take_attributes(self, open_source: OpenFolder, path: bytes, folder: int) -> None:
        source = open_source(path)
        if source is not None:
            try:
                self.copier.copy_folder_attributes(source, folder, path)
            finally:
                os.close(source)

    def _item(self, path: bytes) -> StoredItem:
        item = self.draft.item(path)
        if item is None:
            raise LookupError(f"no {path!r} in the draft")
        return item
