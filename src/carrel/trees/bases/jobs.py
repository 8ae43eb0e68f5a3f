"""Which entries of a project must be stored, storing many of them, and how far that is.

`plan` decides, from what is new in a project, what must be read. A job is one file or symlink.
Several threads do the jobs; those of the same folder go together. What a thread finishes is noted
in a journal, so that the next build carries on where this one was interrupted. A `Meter` tells the
caller how far a build is, and whoever waits for it that it lives.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from carrel.domain.projects import OnProgress, Progress
from carrel.domain.trees import Owner, Skipped
from carrel.linux.descriptors import Descriptor
from carrel.linux.statx import Row
from carrel.trees.bases.entries import Copier, EntryMoved, ReadFailed, WantedEntry
from carrel.trees.bases.manifest import Draft, StoredItem
from carrel.trees.bases.views import KnownProject, Origin, ProjectView, SeenEntry
from carrel.trees.git.objects import is_genuine
from carrel.trees.paths import open_folder, split
from carrel.trees.removal import remove_entry

_INTERVAL_S = 0.1
"""Ten times a second looks smooth, and costs nothing."""


class BuildStopped(Exception):
    """Raised in worker threads when the build was interrupted."""


class Meter:
    """Counts from any thread; speaks only from the thread that made it."""

    def __init__(self, on_progress: OnProgress, alive: Callable[[], None]) -> None:
        self._on_progress = on_progress
        self._alive = alive
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._next = 0.0
        self._stage = ""
        self._done = self._total = self._bytes = 0
        self._stopping = False

    def begin(self, stage: str, total: int = 0) -> None:
        with self._lock:
            self._stage, self._total = stage, total
            self._done = self._bytes = 0
        self._speak()

    def reach(self, done: int) -> None:
        self._done = done
        self.tick()

    def add(self, done: int) -> None:
        with self._lock:
            self._done += done
        self.tick()

    def pulse(self, count: int) -> None:
        """For `entries.Pulse`."""
        if self._stopping:
            raise BuildStopped
        if count:
            with self._lock:
                self._bytes += count
        self.tick()

    def tick(self) -> None:
        if threading.get_ident() == self._thread and time.monotonic() >= self._next:
            self._speak()

    def stop(self) -> None:
        """Makes all threads that are at work raise `BuildStopped`."""
        self._stopping = True

    def _speak(self) -> None:
        self._next = time.monotonic() + _INTERVAL_S
        self._alive()
        self._on_progress(Progress(self._stage, self._done, self._total, self._bytes))


# Planning

_GIT_OBJECT = re.compile(
    rb"(?:^|/)objects/(?:[0-9a-f]{2}/[0-9a-f]{38,62}|pack/pack-[0-9a-f]+\.(?:pack|idx|rev))$"
)
"""Named by their content and never written again. But git touches those that it would have
written, packs of any size among them, and local clones give them further names."""
_FOLDER_MODE = stat.S_IFDIR | 0o755
"""Of folders that only special rules ask for."""


@dataclass
class Plan:
    """`groups` are further names of files, by the path of the job that stores them."""

    jobs: list[Job] = field(default_factory=list)
    groups: dict[bytes, list[bytes]] = field(default_factory=dict)
    generated: dict[bytes, bytes] = field(default_factory=dict)


def plan(view: ProjectView, draft: Draft, before: KnownProject | None) -> Plan:
    """Puts folders into the draft and takes out what is gone; the rest becomes jobs.
    `before` is what the project looked like when what the draft has was stored."""
    for path in view.gone:
        draft.drop(path)
    seen_now = view.seen()
    found = [(seen.path, seen.row.mode, seen.row.mtime_ns) for seen in seen_now if _is_folder(seen)]
    made = [(path, _FOLDER_MODE, 0) for path in view.made if draft.folder(path) is None]
    for path, mode, mtime_ns in sorted([*found, *made]):
        draft.put_folder(path, mode, mtime_ns)
    result = Plan(generated=dict(view.generated))
    files = [seen for seen in seen_now if not _is_folder(seen)]
    same = _same_objects(files, draft, before) if before is not None else set()
    _plan_files([seen for seen in files if seen.path not in same], view, draft, result)
    return result


def _same_objects(files: list[SeenEntry], draft: Draft, before: KnownProject) -> set[bytes]:
    """Git objects that are stored already, and of which only the ctime changed, as when they
    get a further name: nobody writes into them, so they need not be read."""
    objects = [
        seen
        for seen in files
        if _GIT_OBJECT.search(seen.path)
        and (item := draft.item(seen.path)) is not None
        and (item.mode, item.size, item.leader) == (seen.row.mode, seen.row.size, b"")
    ]
    if not objects:
        return set()
    listings = {listing.origin: (listing, listing.index()) for listing in before.listings}
    found = set()
    for seen in objects:
        listing, places = listings.get(seen.origin, (None, {}))
        at = places.get(seen.inside)
        if listing is None or at is None:
            continue
        if _written_as(seen.row) == _written_as(listing.row(at)):
            found.add(seen.path)
    return found


def _written_as(row: Row) -> tuple[int, ...]:
    return (row.mount, row.inode, row.mode, row.size, row.mtime_ns)


def _plan_files(files: list[SeenEntry], view: ProjectView, draft: Draft, result: Plan) -> None:
    linked = {_identity(seen) for seen in files if seen.row.links > 1 and _is_file(seen)}
    names: dict[tuple[bytes, int, int], list[SeenEntry]] = {}
    if linked:
        # Also names that were looked at just before the file changed.
        for seen in view.same_files(linked):
            names.setdefault(_identity(seen), []).append(seen)
    for seen in files:
        group = names.get(_identity(seen), [])
        if len(group) < 2:
            result.jobs.append(_job(seen, _keepable(seen, draft, b"")))
    for group in names.values():
        if len(group) > 1:
            _plan_group(group, draft, result)
    result.jobs.sort(key=lambda job: job.path)


def _plan_group(group: list[SeenEntry], draft: Draft, result: Plan) -> None:
    """One file with several names in the project: stored or kept as a whole."""
    group.sort(key=lambda seen: seen.path)
    leader = group[0].path
    kept = [_keepable(seen, draft, leader) for seen in group]
    result.jobs.append(_job(group[0], kept[0] if all(kept) else None))
    result.groups[leader] = [seen.path for seen in group[1:]]


def _keepable(seen: SeenEntry, draft: Draft, leader: bytes) -> StoredItem | None:
    """What is stored already, if only its bytes are left to be compared."""
    item = draft.item(seen.path)
    row = seen.row
    if item is None or item.leader != leader:
        return None
    if (item.mode, item.size) != (row.mode, row.size):
        return None
    same = item.mtime_ns == row.mtime_ns or _GIT_OBJECT.search(seen.path) is not None
    return item if same else None


def _job(seen: SeenEntry, keep: StoredItem | None) -> Job:
    return Job(seen.path, seen.origin, seen.inside, seen.row.mode, seen.row, seen.raw, keep)


def _identity(seen: SeenEntry) -> tuple[bytes, int, int]:
    return (seen.origin.path, seen.row.mount, seen.row.inode)


def _is_folder(seen: SeenEntry) -> bool:
    return stat.S_ISDIR(seen.row.mode)


def _is_file(seen: SeenEntry) -> bool:
    return stat.S_ISREG(seen.row.mode)


# The journal. Records are only ever appended; a last one that is not whole is as none.

_LENGTH = 4


class JournalNote(NamedTuple):
    """A stored file: the row that it was seen with, and what was kept."""

    path: bytes
    row: bytes
    item: StoredItem


class _JournalRecord(msgspec.Struct, array_like=True):
    path: bytes
    row: bytes
    mode: int
    size: int
    mtime_ns: int
    digest: bytes
    inode: int
    ctime_ns: int


class _Opening(msgspec.Struct, array_like=True):
    version: int
    over: str


_FORMAT = 1
_decoder = msgspec.msgpack.Decoder(_JournalRecord)
_opening_decoder = msgspec.msgpack.Decoder(_Opening)
_encoder = msgspec.msgpack.Encoder()


class BuildJournal:
    """Open for one build. `over` is the base that is built upon: what was stored over
    another one is no good."""

    def __init__(self, path: Path, over: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        whole = sum(_LENGTH + len(record) for record in _split(path.read_bytes()))
        os.ftruncate(self._descriptor, whole)
        if not whole:
            self._append([_encoder.encode(_Opening(_FORMAT, over))])

    def note(self, notes: Iterable[JournalNote]) -> None:
        self._append(
            _encoder.encode(
                _JournalRecord(
                    note.path, note.row, *note.item[:4], note.item.inode, note.item.ctime_ns
                )
            )
            for note in notes
        )

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, records: Iterable[bytes]) -> None:
        pieces = [len(record).to_bytes(_LENGTH, "little") + record for record in records]
        data = memoryview(b"".join(pieces))
        while data:
            data = data[os.write(self._descriptor, data) :]


def read_journal(path: Path, over: str, layer: int) -> dict[bytes, JournalNote] | None:
    """The notes by path, the last one of each; None when it belongs to another build."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    records = _split(data)
    try:
        opening = _opening_decoder.decode(records[0])
        if (opening.version, opening.over) != (_FORMAT, over):
            return None
        notes = [_note(_decoder.decode(record), layer) for record in records[1:]]
    except (IndexError, msgspec.MsgspecError):
        return None
    return {note.path: note for note in notes}


def _note(record: _JournalRecord, layer: int) -> JournalNote:
    item = StoredItem(
        record.mode,
        record.size,
        record.mtime_ns,
        record.digest,
        layer,
        record.inode,
        record.ctime_ns,
    )
    return JournalNote(record.path, record.row, item)


def _split(data: bytes) -> list[bytes]:
    records = []
    at = 0
    while at + _LENGTH <= len(data):
        end = at + _LENGTH + int.from_bytes(data[at : at + _LENGTH], "little")
        if end > len(data):
            break
        records.append(data[at + _LENGTH : end])
        at = end
    return records


# Doing the jobs

_TOGETHER = 64
"""Jobs of one folder that one thread does in one go."""
_THREADS = min(4, os.cpu_count() or 1)
"""More only wait for one another: much of a small file's cost is Python's."""
_FEW = 64
"""So many jobs are not worth starting threads for."""
_WAIT_S = 0.1
"""How long to wait for threads before showing progress again."""


class Job(NamedTuple):
    """`path` is the place in the base; `inside` where it is in the origin. `row` None
    takes the entry as it is. With `keep`, it may be the same as what is stored already."""

    path: bytes
    origin: Origin
    inside: bytes
    mode: int
    row: Row | None
    raw: bytes
    keep: StoredItem | None = None


@dataclass
class FillResult:
    """`different` are to be stored, after all; `moved` were not as they had been seen;
    `failed` could not be read."""

    items: dict[bytes, StoredItem] = field(default_factory=dict)
    different: list[Job] = field(default_factory=list)
    moved: list[Job] = field(default_factory=list)
    failed: dict[bytes, OSError] = field(default_factory=dict)

    def add(self, other: FillResult) -> None:
        self.items |= other.items
        self.different += other.different
        self.moved += other.moved
        self.failed |= other.failed


@dataclass(frozen=True)
class Filler:
    """`layer_fd` is the root of the layer, whose folders are there already; None only
    compares jobs with what they may be the same as."""

    layer_fd: int | None
    layer: int
    owner: Owner
    meter: Meter
    note: Callable[[Iterable[JournalNote]], None]
    on_skip: Callable[[Skipped], None]
    ours: bool = False
    """The origins are Carrel's own."""
    adopt: bool = False
    """Entries are taken over, not copied; the origins are not needed any more."""

    def run(self, jobs: list[Job]) -> FillResult:
        """Stops at the first that cannot be read. Raises OSError for trouble on the
        store's side."""
        tasks = _tasks(jobs)
        if len(jobs) <= _FEW or _THREADS == 1:
            filled = FillResult()
            copier = self._copier()
            for task in tasks:
                self._take(filled, task, self._do(task, copier))
                if filled.failed:
                    break
            return filled
        return self._run_in_threads(tasks)

    def _run_in_threads(self, tasks: list[list[Job]]) -> FillResult:
        filled = FillResult()
        copiers = [self._copier() for _ in range(_THREADS)]
        waiting = iter(tasks)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="carrel-base") as pool:
            running: dict[Future[FillResult], tuple[list[Job], Copier]] = {}
            try:
                while True:
                    while copiers and (task := next(waiting, None)) is not None:
                        copier = copiers.pop()
                        running[pool.submit(self._do, task, copier)] = (task, copier)
                    if not running:
                        return filled
                    done, _ = wait(running, _WAIT_S, FIRST_COMPLETED)
                    for future in done:
                        task, copier = running.pop(future)
                        copiers.append(copier)
                        self._take(filled, task, future.result())
                    if filled.failed:
                        waiting = iter(())
                    self.meter.tick()
            except BaseException:
                self.meter.stop()
                wait(running)
                for future, (task, _) in running.items():
                    if future.exception() is None:
                        self._take(filled, task, future.result())
                raise

    def _copier(self) -> Copier:
        return Copier(self.owner, self.layer, self.meter.pulse, on_skip=self.on_skip)

    def _take(self, filled: FillResult, task: list[Job], result: FillResult) -> None:
        filled.add(result)
        self.note(
            JournalNote(job.path, job.raw, result.items[job.path])
            for job in task
            if job.path in result.items and result.items[job.path] is not job.keep
        )
        self.meter.add(len(task))

    def _do(self, task: list[Job], copier: Copier) -> FillResult:
        filled = FillResult()
        try:
            source = _open_source_folder(task[0])
        except OSError as error:
            for job in task:
                _note_failure(filled, job, error)
            return filled
        try:
            if self.layer_fd is None:
                for job in task:
                    self._do_one(job, copier, source, -1, filled)
                return filled
            with Descriptor(open_folder(self.layer_fd, split(task[0].path)[0])) as target:
                for job in task:
                    self._do_one(job, copier, source, target, filled)
        finally:
            os.close(source)
        return filled

    def _do_one(
        self, job: Job, copier: Copier, source: int, target: int, filled: FillResult
    ) -> None:
        name = split(job.inside)[1] if job.inside else split(job.origin.path)[1]
        wanted = WantedEntry(source, name, job.row, job.path, self.ours)
        into = split(job.path)[1]
        try:
            if self.adopt:
                filled.items[job.path] = copier.adopt(wanted, target, into)
            elif self.layer_fd is None:
                if job.keep is not None and copier.digest(wanted, job.mode) == job.keep.digest:
                    filled.items[job.path] = job.keep
                else:
                    filled.different.append(job)
            elif stat.S_ISLNK(job.mode):
                filled.items[job.path] = copier.store_link(wanted, target, into)
            else:
                item = copier.store_file(wanted, target, into)
                if not job.origin.objects or self._is_genuine(job, target, into):
                    filled.items[job.path] = item
        except EntryMoved:
            filled.moved.append(job)
        except ReadFailed as failure:
            cause = failure.__cause__
            assert isinstance(cause, OSError)
            _note_failure(filled, job, cause)

    def _is_genuine(self, job: Job, folder: int, name: bytes) -> bool:
        """Looks into a stored object; one that is none goes again."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with Descriptor(os.open(name, flags, dir_fd=folder)) as file:
            if is_genuine(file, job.inside):
                return True
        remove_entry(folder, name)
        self.on_skip(Skipped(os.fsdecode(job.path), "is not the git object that its name says"))
        return False


def _note_failure(filled: FillResult, job: Job, error: OSError) -> None:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE):
        filled.moved.append(job)
    else:
        filled.failed[job.path] = error


def _open_source_folder(job: Job) -> int:
    root = job.origin.open()
    if not job.inside:
        return root
    try:
        return open_folder(root, split(job.inside)[0])
    finally:
        os.close(root)


def _tasks(jobs: list[Job]) -> list[list[Job]]:
    """Jobs by the folders they lead from and to, in the order of their first job."""
    groups: dict[tuple[bytes, bytes, bytes], list[list[Job]]] = {}
    for job in jobs:
        source = split(job.inside)[0] if job.inside else split(job.origin.path)[0]
        key = (job.origin.path if job.inside else b"", source, split(job.path)[0])
        pieces = groups.setdefault(key, [[]])
        if len(pieces[-1]) >= _TOGETHER:
            pieces.append([])
        pieces[-1].append(job)
    return [piece for pieces in groups.values() for piece in pieces]
