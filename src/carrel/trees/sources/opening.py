"""From what was asked for to the source that can provide it."""

from __future__ import annotations

import os
from pathlib import Path

from carrel.domain.errors import ProjectInvalid
from carrel.domain.projects import BaseRequest, OnProgress, ProjectKind
from carrel.trees.bases.exclusion import Exclusion
from carrel.trees.bases.scan import Sieve
from carrel.trees.bases.views import Opened
from carrel.trees.sources.archive import ArchiveProducer, is_archive
from carrel.trees.sources.checkout import CheckoutProducer
from carrel.trees.sources.empty import EmptyProducer
from carrel.trees.sources.folder import FolderSource, find_folder
from carrel.trees.sources.git import GitSource


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
        source = GitSource(request, data / "mirrors", on_progress)
        return Opened(_key(request, project.location), producer=CheckoutProducer(source))
    path = Path(project.location)
    if project.kind is ProjectKind.ARCHIVE or (os.path.isfile(path) and is_archive(path)):
        producer = ArchiveProducer(request, on_progress)
        return Opened(_key(request, os.path.realpath(path)), producer=producer)
    folder = find_folder(project.location, data)
    own = data.stat() if data.exists() else None
    sieve = Sieve(exclusion, data=own, max_files=request.max_files)
    return Opened(_key(request, str(folder)), source=FolderSource(folder, sieve))


def _key(request: BaseRequest, place: str) -> str:
    return "\0".join((request.project.kind.value, place, *request.exclude))
