"""Builds a base from a project that is produced, not read: a commit, an archive, nothing.

Such a project has a state with a name, and the same state gives the same base. What is
produced is taken over as it is, without a second copy.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.domain.projects import BaseRequest
from carrel.domain.trees import Base, Owner, Skipped
from carrel.linux.statx import Row, StatBatch, row_of
from carrel.trees.bases.disk import BuildContext
from carrel.trees.bases.indexes import Indexes
from carrel.trees.bases.jobs import Job, Meter, Plan, plan
from carrel.trees.bases.layer import LayerWriter, open_nothing
from carrel.trees.bases.manifest import Draft
from carrel.trees.bases.publication import About, Publisher, Stack
from carrel.trees.bases.records import Record
from carrel.trees.bases.scan import Exclusion, ScanFilter, Scanner, guard_size
from carrel.trees.bases.views import (
    KnownProject,
    Origin,
    Producer,
    ProjectHead,
    ProjectView,
    write_head,
)
from carrel.trees.paths import join

_FOLDER_MODE = stat.S_IFDIR | 0o755


@dataclass
class ProducedBuild:
    context: BuildContext
    key: str
    producer: Producer
    request: BaseRequest
    meter: Meter
    previous: Stack | None
    before: bytes
    """The state of `previous`."""

    def run(self) -> Base:
        """Raises what `BaseStore.build` says; leaves staging for the caller to remove."""
        state = self.producer.state()
        if self.previous is not None and state == self.before:
            return self._describe(self.previous.record)
        staging = self._staging = self.context.staging(self.key)
        staging.discard()
        record = self._update() or self._produce()
        staging.discard()
        head = ProjectHead(record.base.base_id, KnownProject(()), state)
        write_head(self.context.head(self.key), head)
        return self._describe(record)

    def _produce(self) -> Record:
        self._staging.discard()
        self._staging.begin(None)
        layer = self._staging.layer
        skipped = self.producer.produce(layer)
        view = self._look(layer)
        draft = Draft(None, 0)
        planned = plan(view, draft, None)
        # The root was made by the store, with a mode for the time of writing.
        draft.put_folder(b"", _FOLDER_MODE, view.known.listings[0].row(0).mtime_ns)
        return self._store(draft, planned, view, None, skipped)

    def _update(self) -> Record | None:
        if self.previous is None or not self.before:
            return None
        previous = self.previous
        incoming = self._staging.folder / "incoming"
        incoming.mkdir(mode=0o700, parents=True)
        found = self.producer.update(self.before, _finder(previous), incoming)
        if found is None:
            return None
        self._staging.base.mkdir(mode=0o700)
        self.context.layout.begin(self._staging.layer, previous.record.base.layers[0])
        layers = previous.manifest.layers
        draft = Draft(previous.manifest, len(layers) if self.context.layout.layered else 0)
        for path in found.deleted:
            draft.drop(path)
        exclusion = Exclusion(self.request.exclude)
        wanted = [path for path in found.changed if not _excluded(exclusion, path)]
        planned = _plan_update(draft, incoming, wanted)
        view = self._look(incoming)
        return self._store(draft, planned, view, previous, found.skipped)

    def _look(self, folder: Path) -> ProjectView:
        rules = ScanFilter(Exclusion(self.request.exclude), max_files=self.request.max_files)
        scanned = Scanner(Origin(os.fsencode(folder), ours=True), rules, StatBatch()).full(
            self.meter.reach
        )
        return ProjectView(
            KnownProject((scanned.listing,)),
            {0: scanned.touched},
            (),
            Owner(os.getuid(), os.getgid()),
        )

    def _store(
        self,
        draft: Draft,
        planned: Plan,
        view: ProjectView,
        stack: Stack | None,
        skipped: tuple[Skipped, ...],
    ) -> Record:
        guard_size(view.known.listings, self.request.max_bytes)
        writer = LayerWriter(self.context, self._staging.layer, draft, self.meter, _ignore)
        try:
            self._adopt(planned, draft, writer)
            # Also takes away what is excluded.
            writer.clean(stale=True)
            self._patch_indexes(draft, writer, planned, view)
            writer.finish(open_nothing)
        finally:
            writer.close()
        indexes = self.producer.indexes
        about = About(
            self.request.project, view.owner, bool(indexes), (*skipped, *view.skipped), (), indexes
        )
        return Publisher(self.context, self._staging, self.meter).finish(draft, stack, about)

    def _patch_indexes(
        self, draft: Draft, writer: LayerWriter, planned: Plan, view: ProjectView
    ) -> None:
        below = self.previous.record.base.layers[::-1] if self.previous and draft.layer else ()
        new = {job.path for job in planned.jobs}
        with Indexes(self.context, draft, [*below, writer.place]) as indexes:
            for index in self.producer.indexes:
                if index.path in new:
                    indexes.from_project(index, view.rows())
                    writer.refresh(index.path)

    def _adopt(self, planned: Plan, draft: Draft, writer: LayerWriter) -> None:
        filled = writer.fill(planned.jobs, "storing", adopt=True)
        for path, item in filled.items.items():
            draft.put(path, item)
        writer.link(planned.groups)

    def _describe(self, record: Record) -> Base:
        return replace(record.base, project=self.request.project)


def _ignore(_skipped: Skipped) -> None:
    pass


def _finder(stack: Stack) -> Callable[[bytes], Path | None]:
    draft = Draft(stack.manifest, 0)
    layers = stack.record.base.layers[::-1]

    def find(path: bytes) -> Path | None:
        item = draft.item(path)
        return layers[item.layer] / os.fsdecode(path) if item is not None else None

    return find


def _excluded(exclusion: Exclusion, path: bytes) -> bool:
    if not exclusion:
        return False
    parts = path.split(b"/")
    above = (b"/".join(parts[:count]) for count in range(1, len(parts)))
    return any(exclusion.matches(folder, folder=True) for folder in above) or exclusion.matches(
        path, folder=False
    )


def _plan_update(draft: Draft, incoming: Path, paths: Iterable[bytes]) -> Plan:
    """Folders go into the draft, all else becomes jobs."""
    planned = Plan()
    origin = Origin(os.fsencode(incoming), ours=True)
    for path in sorted(paths):
        _make_parents(draft, path)
        row = _row(origin, path)
        if stat.S_ISDIR(row.mode):
            draft.put_folder(path, row.mode, row.mtime_ns)
        else:
            planned.jobs.append(Job(path, origin, path, row.mode, None, b""))
    return planned


def _make_parents(draft: Draft, path: bytes) -> None:
    parts = path.split(b"/")[:-1]
    current = b""
    for part in parts:
        current = join(current, part)
        if draft.folder(current) is None:
            draft.put_folder(current, _FOLDER_MODE, 0)


def _row(origin: Origin, path: bytes) -> Row:
    return row_of(os.lstat(os.path.join(origin.path, path)))
