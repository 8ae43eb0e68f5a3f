"""Opens a project: from what was asked for to the source or producer that provides it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from carrel.domain.errors import ProjectInvalid, ProjectNotFound
from carrel.domain.projects import BaseRequest, GitReach, OnProgress, ProjectKind
from carrel.domain.trees import Skipped
from carrel.trees.bases.records import IndexFile
from carrel.trees.bases.scan import Exclusion, ScanFilter
from carrel.trees.bases.views import Opened
from carrel.trees.git.checkout import Delta
from carrel.trees.git.repository import OutsideAccess
from carrel.trees.sources.archive import ArchiveProducer, is_archive
from carrel.trees.sources.folder import FolderSource, find_folder
from carrel.trees.sources.git import GitProducer


class EmptyProducer:
    indexes: tuple[IndexFile, ...] = ()

    def state(self) -> bytes:
        return b"empty"

    def produce(self, into: Path) -> tuple[Skipped, ...]:
        return ()

    def update(
        self, before: bytes, find: Callable[[bytes], Path | None], into: Path
    ) -> Delta | None:
        return None


def open_project(request: BaseRequest, data: Path, on_progress: OnProgress) -> Opened:
    """Raises the errors of bad input that show without reading the project."""
    exclusion = Exclusion(request.exclude)
    project = request.project
    if project.kind is ProjectKind.EMPTY:
        return Opened("empty", producer=EmptyProducer())
    if not project.location or "\0" in project.location:
        raise ProjectInvalid(
            f"{project.location!r} is not the place of a project.",
            hint="Give a path, or for git also a URL.",
        )
    if project.kind is ProjectKind.GIT:
        repository = GitProducer(request, data, on_progress)
        return Opened(_key(request, project.location), producer=repository)
    path = Path(project.location)
    if project.kind is ProjectKind.ARCHIVE or (os.path.isfile(path) and is_archive(path)):
        # `Path.resolve` raises no OSError for a loop of links.
        if data.resolve() in Path(os.path.realpath(path)).parents:
            raise ProjectInvalid(
                f"{project.location!r} is in Carrel's own data folder.", hint="Check the path."
            )
        producer = ArchiveProducer(request, on_progress)
        return Opened(_key(request, os.path.realpath(path)), producer=producer)
    folder = find_folder(project.location, data)
    if request.narrow and str(folder) != project.location:
        # A link that came after it was looked at where this caller may read.
        raise ProjectNotFound(f"There is no project at {project.location!r}.")
    own = data.stat() if data.exists() else None
    rules = ScanFilter(exclusion, data=own, max_files=request.max_files)
    source = FolderSource(folder, rules, lambda top: OutsideAccess(top, request.git_reach, data))
    return Opened(_key(request, str(folder)), source=source)


def _key(request: BaseRequest, place: str) -> str:
    # What one caller may read is in no base that another one starts from.
    narrow = ("\0",) if request.git_reach is GitReach.NONE else ()
    return "\0".join((request.project.kind.value, place, *request.exclude, *narrow))
