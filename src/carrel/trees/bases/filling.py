"""Copies many entries into a layer, by several threads, so that it can be carried on.

A job is one file or symlink. Jobs of the same folder go together; what a thread finishes
is noted in the journal.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import NamedTuple

from carrel.domain.trees import Owner, Skipped
from carrel.linux.statx import Row
from carrel.trees.bases.contents import ReadFailed
from carrel.trees.bases.copying import Copier, Moved, Wanted
from carrel.trees.bases.journal import Note
from carrel.trees.bases.listing import Origin
from carrel.trees.bases.manifest import Item
from carrel.trees.bases.metering import Meter
from carrel.trees.bases.places import open_folder, split

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
    keep: Item | None = None


@dataclass
class Filled:
    """`different` are to be stored, after all; `moved` were not as they had been seen;
    `failed` could not be read."""

    items: dict[bytes, Item] = field(default_factory=dict)
    different: list[Job] = field(default_factory=list)
    moved: list[Job] = field(default_factory=list)
    failed: dict[bytes, OSError] = field(default_factory=dict)

    def add(self, other: Filled) -> None:
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
    note: Callable[[Iterable[Note]], None]
    on_skip: Callable[[Skipped], None]
    ours: bool = False
    """The origins are Carrel's own."""
    adopt: bool = False
    """Entries are taken over, not copied; the origins are not needed any more."""

    def run(self, jobs: list[Job]) -> Filled:
        """Stops at the first that cannot be read. Raises OSError for trouble on the
        store's side."""
        tasks = _tasks(jobs)
        if len(jobs) <= _FEW or _THREADS == 1:
            filled = Filled()
            copier = self._copier()
            for task in tasks:
                self._take(filled, task, self._do(task, copier))
                if filled.failed:
                    break
            return filled
        return self._run_in_threads(tasks)

    def _run_in_threads(self, tasks: list[list[Job]]) -> Filled:
        filled = Filled()
        copiers = [self._copier() for _ in range(_THREADS)]
        waiting = iter(tasks)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="carrel-base") as pool:
            running: dict[Future[Filled], tuple[list[Job], Copier]] = {}
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

    def _take(self, filled: Filled, task: list[Job], result: Filled) -> None:
        filled.add(result)
        self.note(
            Note(job.path, job.raw, result.items[job.path])
            for job in task
            if job.path in result.items and result.items[job.path] is not job.keep
        )
        self.meter.add(len(task))

    def _do(self, task: list[Job], copier: Copier) -> Filled:
        filled = Filled()
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
            target = open_folder(self.layer_fd, split(task[0].path)[0])
            try:
                for job in task:
                    self._do_one(job, copier, source, target, filled)
            finally:
                os.close(target)
        finally:
            os.close(source)
        return filled

    def _do_one(self, job: Job, copier: Copier, source: int, target: int, filled: Filled) -> None:
        name = split(job.inside)[1] if job.inside else split(job.origin.path)[1]
        wanted = Wanted(source, name, job.row, job.path, self.ours)
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
                filled.items[job.path] = copier.store_file(wanted, target, into)
        except Moved:
            filled.moved.append(job)
        except ReadFailed as failure:
            cause = failure.__cause__
            assert isinstance(cause, OSError)
            _note_failure(filled, job, cause)


def _note_failure(filled: Filled, job: Job, error: OSError) -> None:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE):
        filled.moved.append(job)
    else:
        filled.failed[job.path] = error


def _open_source_folder(job: Job) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if not job.inside:
        return os.open(split(job.origin.path)[0] or b"/", flags)
    root = os.open(job.origin.path, flags)
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
