"""Builds a base from a live project: look, copy, look again, publish."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from carrel.domain.errors import ProjectChanged
from carrel.domain.projects import BaseRequest
from carrel.domain.trees import Base, Skipped
from carrel.linux.descriptors import Descriptor
from carrel.linux.statx import StatBatch, unpack_row
from carrel.trees.bases.disk import BuildContext, Staging, can_clone, check_room
from carrel.trees.bases.entries import digest_of
from carrel.trees.bases.indexes import Indexes, InheritedIndexes, KeptIndexes
from carrel.trees.bases.jobs import (
    BuildJournal,
    Filler,
    FillResult,
    Job,
    JournalNote,
    Meter,
    Plan,
    plan,
    read_journal,
)
from carrel.trees.bases.layer import LayerWriter
from carrel.trees.bases.manifest import Draft, Manifest, NoFolder, StoredItem
from carrel.trees.bases.publication import About, Publisher, Stack
from carrel.trees.bases.records import IndexFile, Record
from carrel.trees.bases.scan import guard_size, unreadable
from carrel.trees.bases.views import (
    KnownProject,
    ProjectHead,
    ProjectSource,
    ProjectView,
    shown,
    write_head,
)
from carrel.trees.paths import is_below, open_folder, split

_ROUNDS = 3
"""How often files that changed meanwhile are read again at once, before there are pauses."""
PATIENCE_S = 10.0
"""A `git gc` after a commit and most builds are over by then."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_NAMED = 5
_LEFT_AS_IT_IS = "an index that is damaged, shared or split: taken as it is, so git reads all files"
_WORTH_A_NEW_HEAD = 64
"""So many files that were looked into in vain are remembered for the next time."""
_AS_MUCH_AS_A_FILE = 1 << 17
"""So many bytes take as long to look into as another file."""


@dataclass(frozen=True)
class Previous:
    """The last base of the same project, and what the project looked like then."""

    record: Record
    manifest: Manifest
    known: KnownProject


class TornLook(Exception):
    """What was seen of the project in one look does not go together."""

    def __init__(self, path: bytes) -> None:
        super().__init__(path)
        self.path = path


class Patience:
    """Waits, longer each time, for whatever writes to the project to be done."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._pause = _FIRST_PAUSE_S

    def pause(self) -> bool:
        """Says false, at once, when all of the time is used up."""
        if self._left <= 0:
            return False
        time.sleep(min(self._pause, self._left))
        self._left -= self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        return True


@dataclass
class FolderBuild:
    """One build, in the thread that holds the project's lock."""

    context: BuildContext
    key: str
    source: ProjectSource
    request: BaseRequest
    meter: Meter
    previous: Previous | None
    patience: Patience
    _skipped: list[Skipped] = field(default_factory=list)
    _unstable: set[bytes] = field(default_factory=set)
    _stored: set[bytes] = field(default_factory=set)
    _stale: bool = False
    _looked_into: int = 0
    _one_look: bool = True

    def run(self) -> Base:
        """Raises what `BaseStore.build` says, and `TornLook`: then another build may carry on
        with the same staging, which is the caller's to remove."""
        self._began_ns = time.time_ns()
        began = time.monotonic()
        self.meter.begin("scanning")
        known = self.previous.known if self.previous else None
        view = self.source.look(known, self.meter.reach)
        guard_size(view.known.listings, self.request.max_bytes)
        if self.previous is not None and not view.changed and not view.generated:
            return self._describe(self.previous.record, view)
        try:
            view = self._rounds(view, began)
            return self._finish(view)
        except NoFolder as error:
            raise TornLook(error.path) from error
        except OSError as error:
            # Nobody else writes in our layer: what was seen in two looks does not go together.
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise TornLook(b"") from error
        finally:
            self._close()

    # Reading

    @cached_property
    def _draft(self) -> Draft:
        if self.previous is None:
            return Draft(None, 0)
        layers = self.previous.manifest.layers
        return Draft(self.previous.manifest, len(layers) if self.context.layout.layered else 0)

    @cached_property
    def _staging(self) -> Staging:
        return self.context.staging(self.key)

    @cached_property
    def _journal(self) -> BuildJournal:
        return BuildJournal(self._staging.journal, self._over)

    @cached_property
    def _notes(self) -> dict[bytes, JournalNote]:
        """What an interrupted build of the same has stored."""
        notes = read_journal(self._staging.journal, self._over, self._draft.layer)
        if notes is not None and self._staging.layer.is_dir():
            self._stale = True
            self.context.layout.resume(self._staging.layer)
            return notes
        previous = self.previous.record.base.layers[0] if self.previous else None
        self._staging.begin(previous)
        return {}

    @cached_property
    def _writer(self) -> LayerWriter:
        assert self._notes is not None  # which has made or found the layer
        return LayerWriter(
            self.context, self._staging.layer, self._draft, self.meter, self._skipped.append
        )

    @property
    def _over(self) -> str:
        return self.previous.record.base.base_id if self.previous else ""

    def _close(self) -> None:
        if "_writer" in self.__dict__:
            self._writer.close()
        if "_journal" in self.__dict__:
            self._journal.close()

    def _rounds(self, view: ProjectView, began: float) -> ProjectView:
        retry: list[Job] = []
        before = self.previous.known if self.previous else None
        for count in itertools.count(1):
            retry = self._take(plan(view, self._draft, before), retry)
            in_no_time = time.monotonic() - began < self.context.verify_after_s
            if not retry and in_no_time and count == 1:
                return view
            self._one_look = False
            self.meter.begin("checking")
            before = view.known
            view = self.source.look(before, self.meter.reach)
            guard_size(view.known.listings, self.request.max_bytes)
            if not retry and not _matters(view):
                # At most the time of a folder in which something came and went.
                self._take(plan(view, self._draft, before), [])
                return view
            self._stale = True
            if "_writer" in self.__dict__:
                self._writer.distrust()
            if count >= _ROUNDS and not self.patience.pause():
                break
        return self._give_up(view, retry)

    def _give_up(self, view: ProjectView, retry: list[Job]) -> ProjectView:
        """After the last round something was still not as it had been seen. A file that a
        server or a build keeps writing is taken as it is at one moment; git's own files go
        together, so a repository in the middle of something is refused."""
        restless = {seen.path for seen in view.seen() if not stat.S_ISDIR(seen.row.mode)}
        restless |= {job.path for job in retry} | set(view.gone)
        of_git = {path for path in restless if b".git" in path.split(b"/")}
        # Git writes a file anew beside it, and renames that: until then the old one holds.
        locks = {path for path in of_git if path.endswith(b".lock")}
        if of_git - locks and not self.request.allow_changing:
            raise changed(of_git - locks)
        self._take(plan(view, self._draft, None), retry, lenient=True)
        for path in locks:
            self._draft.drop(path)
        self._unstable = {path for path in restless if self._draft.item(path) is not None}
        return view

    def _take(self, planned: Plan, retry: list[Job], lenient: bool = False) -> list[Job]:
        """Stores what is planned, and again what moved away before; gives what moved."""
        jobs = [*planned.jobs]
        known = {job.path for job in jobs}
        jobs += [job for job in retry if job.path not in known and self._still_there(job)]
        if lenient:
            jobs = [job._replace(row=None, keep=None) for job in jobs]
        if not jobs and not planned.generated:
            return []
        filled = self._fill(jobs) if jobs else FillResult()
        if lenient:
            for job in filled.moved:
                self._draft.drop(job.path)
            filled.moved.clear()
        for path, item in filled.items.items():
            if self._draft.item(path) is not item:
                self._draft.put(path, item)
                self._stored.add(path)
        self._link(planned, filled)
        self._generate(planned)
        return filled.moved

    def _still_there(self, job: Job) -> bool:
        """Whether it may still be the file that it was seen to be."""
        above = self._draft.folder(split(job.path)[0])
        return above is not None and self._draft.folder(job.path) is None

    def _fill(self, jobs: list[Job]) -> FillResult:
        self._looked_into += sum(1 + _size(job) // _AS_MUCH_AS_A_FILE for job in jobs)
        self.meter.begin("copying", len(jobs))
        filled = FillResult()
        maybe_same = [job for job in jobs if job.keep is not None]
        if maybe_same:
            filled.add(self._filler(None).run(maybe_same))
        rest = [job for job in jobs if job.keep is None] + filled.different
        if rest and not filled.failed:
            self._store(rest, filled)
        if filled.failed:
            raise _unreadable(filled, jobs)
        return filled

    def _store(self, jobs: list[Job], filled: FillResult) -> None:
        recalled = self._recall(jobs)
        filled.items |= {path: note.item for path, note in recalled.items()}
        self.meter.add(len(recalled))
        new = [job for job in jobs if job.path not in recalled]
        bases = self.context.bases
        check_room(bases, (_size(job) for job in new), lambda: _measure(new, bases))
        self._writer.make_folders({split(job.path)[0] for job in new})
        filled.add(self._filler(self._writer.root).run(new))

    def _filler(self, layer_fd: int | None) -> Filler:
        return Filler(
            layer_fd,
            self._draft.layer,
            self.context.owner,
            self.meter,
            (lambda _notes: None) if layer_fd is None else self._journal.note,
            self._skipped.append,
        )

    def _recall(self, jobs: list[Job]) -> dict[bytes, JournalNote]:
        """Of what an interrupted build has stored, that which is still right."""
        notes = self._notes
        wanted = [
            job.path
            for job in jobs
            if (note := notes.get(job.path)) is not None
            and note.row == job.raw
            and job.row is not None
        ]
        if not wanted:
            return {}
        answers = StatBatch().run(self._writer.root, wanted, 0)
        failed = set(answers.failed)
        found = {}
        for index, path in enumerate(wanted):
            row, item = unpack_row(answers.rows, index), notes[path].item
            if index not in failed and (row.inode, row.ctime_ns) == (item.inode, item.ctime_ns):
                found[path] = notes[path]
        return found

    def _link(self, planned: Plan, filled: FillResult) -> None:
        groups = {}
        for leader, names in planned.groups.items():
            if leader in self._stored and leader in filled.items:
                groups[leader] = names
                self._stored.update(names)
        if groups:
            self._writer.link(groups)

    def _generate(self, planned: Plan) -> None:
        for path, content in planned.generated.items():
            before = self._draft.item(path)
            same = before is not None and before.digest == digest_of(content)
            if same and before is not None and stat.S_ISREG(before.mode):
                continue
            above, name = split(path)
            self._writer.make_folders([above])
            with Descriptor(open_folder(self._writer.root, above)) as folder:
                item = self._writer.copier.write_file(content, self._began_ns, folder, name)
            self._draft.put(path, item)
            self._stored.add(path)

    # Publishing

    def _finish(self, view: ProjectView) -> Base:
        if not any(folder is None or folder.changed for folder in self._draft.folders.values()):
            assert self.previous is not None
            return self._same(self.previous.record, view, set())
        if self.previous is not None:
            digest = self._draft.finish().root.digest
            if digest == self.previous.manifest.root().digest:
                # Times of folders alone make no new base; they are seen again next time.
                folders = self._draft.folders.items()
                soft = {path for path, found in folders if found and found.changed}
                return self._same(self.previous.record, view, soft)
        self.meter.begin("publishing")
        inheritance = InheritedIndexes(self._draft, self._writer, self._find_stored)
        doubted = inheritance.bring(view.indexes, self._stored)
        self._writer.clean(stale=self._stale)
        kept = self._patch_indexes(view, doubted)
        self._writer.finish(lambda path: _open_origin(view, path))
        about = About(
            self.request.project,
            view.owner,
            view.has_git,
            (*view.skipped, *self._skipped),
            tuple(sorted(map(os.fsdecode, self._unstable))),
            view.indexes,
        )
        previous = self.previous
        stack = Stack(previous.record, previous.manifest) if previous else None
        record = Publisher(self.context, self._staging, self.meter).finish(
            self._draft, stack, about
        )
        self._remember(record.base.base_id, view, self._unstable)
        kept.remember(record.base.base_id)
        return self._describe(record, view)

    def _patch_indexes(
        self, view: ProjectView, doubted: dict[IndexFile, set[bytes]]
    ) -> KeptIndexes:
        kept = KeptIndexes(self.context.kept_indexes(self.key), self._find_stored)
        below = self.previous.record.base.layers[::-1] if self.previous else ()
        layers = [*below[: self._draft.layer], self._staging.layer]
        with Indexes(self.context, self._draft, layers) as indexes:
            for index in view.indexes:
                if index in doubted:
                    indexes.doubt(index, doubted[index])
                elif index.path in self._stored and (item := self._draft.item(index.path)):
                    if not kept.patch(indexes, index, item, view):
                        self._skipped.append(Skipped(os.fsdecode(index.path), _LEFT_AS_IT_IS))
                        continue
                else:
                    continue
                self._writer.refresh(index.path)
        return kept

    def _find_stored(self, path: bytes) -> tuple[StoredItem, Path] | None:
        """A file of the last base, and where its bytes are."""
        if self.previous is None:
            return None
        above, name = split(path)
        record = self.previous.manifest.folder(above)
        item = record.items().get(name) if record else None
        if item is None:
            return None
        layer = self.previous.record.base.layers[::-1][item.layer]
        return item, layer / os.fsdecode(path)

    def _same(self, record: Record, view: ProjectView, soft: set[bytes]) -> Base:
        self._staging.discard()
        if self._looked_into > _WORTH_A_NEW_HEAD:
            self._remember(record.base.base_id, view, soft)
        return self._describe(record, view)

    def _remember(self, base_id: str, view: ProjectView, doubtful: set[bytes]) -> None:
        known = view.known
        settled = tuple(
            listing.settled(
                self._began_ns, doubtful, view.touched[number] if self._one_look else None
            )
            for number, listing in enumerate(known.listings)
        )
        head = ProjectHead(base_id, replace(known, listings=settled))
        write_head(self.context.head(self.key), head)

    def _describe(self, record: Record, view: ProjectView) -> Base:
        """As this build saw it: the same content may have been built from elsewhere."""
        return replace(
            record.base,
            project=self.request.project,
            project_owner=view.owner,
            has_git=view.has_git,
            skipped=(*view.skipped, *self._skipped),
            unstable=tuple(sorted(map(os.fsdecode, self._unstable))),
        )


def _matters(view: ProjectView) -> bool:
    """Whether more than times of folders changed."""
    return bool(view.gone) or any(not stat.S_ISDIR(seen.row.mode) for seen in view.seen())


def _size(job: Job) -> int:
    return job.row.size if job.row is not None and stat.S_ISREG(job.mode) else 0


def _measure(jobs: list[Job], bases: Path) -> int:
    """What the files really take on disk, and nothing where blocks are shared."""
    total = 0
    clones: dict[int, bool] = {}
    for job in jobs:
        if not _size(job):
            continue
        path = os.path.join(job.origin.path, job.inside) if job.inside else job.origin.path
        with suppress(OSError):
            found = os.lstat(path)
            if found.st_dev not in clones:
                clones[found.st_dev] = can_clone(path, bases)
            if not clones[found.st_dev]:
                total += min(found.st_blocks * 512, found.st_size)
    return total


def _open_origin(view: ProjectView, path: bytes) -> int | None:
    """The project's folder that one of the base is made from."""
    origins = [listing.origin for listing in view.known.listings if not listing.origin.is_file]
    for origin in sorted(origins, key=lambda origin: -len(origin.target)):
        if is_below(path, origin.target):
            with suppress(OSError), Descriptor(origin.open()) as root:
                return open_folder(root, path[len(origin.target) :].lstrip(b"/"))
            return None
    return None


def changed(paths: set[bytes]) -> ProjectChanged:
    found = sorted(paths)
    names = ", ".join(repr(shown(path)) for path in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ProjectChanged(
        f"The project kept changing while it was read: {names}{more}.",
        hint="Wait until whatever writes there is done (for files of .git: a git command), "
        "and try again.",
        paths=[os.fsdecode(path) for path in found[:_NAMED]],
        count=len(found),
    )


def _unreadable(filled: FillResult, jobs: list[Job]) -> Exception:
    """Names all that cannot be read, also what was not tried yet."""
    failed = dict(filled.failed)
    for job in jobs:
        path = os.path.join(job.origin.path, job.inside) if job.inside else job.origin.path
        if stat.S_ISREG(job.mode) and not os.access(path, os.R_OK, effective_ids=True):
            failed.setdefault(job.path, PermissionError(13, "Permission denied"))
    reason = next(iter(failed.values())).strerror or "reading failed"
    return unreadable(failed, reason)
