"""Exports: the work of a space as one file, for other places than its project."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO, Protocol

from carrel.domain.spaces import Space
from carrel.domain.trees import Skipped, Tree, TreeDriver

DELETED = ".carrel-deleted"
"""The file in a tar that names what was deleted, with a zero byte after each name."""


class ExportFormat(StrEnum):
    PATCH = "patch"
    """One mail, as `git am` and `git apply` take it."""
    BUNDLE = "bundle"
    """A commit on top of the one that the space began with, as `git fetch` takes it."""
    TAR = "tar"
    """The files that changed."""


@dataclass(frozen=True)
class ExportRequest:
    format: ExportFormat
    message: str = ""
    """Of the commit; empty: one is made."""


class Exporter(Protocol):
    def export(
        self,
        space: Space,
        driver: TreeDriver,
        tree: Tree,
        request: ExportRequest,
        sends: Callable[[str, os.stat_result], None],
        skips: Callable[[Skipped], None],
    ) -> BinaryIO:
        """All of it, in a file that has no name and is gone when it is closed. `sends` is told of
        each file before its bytes are read, `skips` of what is left out. Blocking. Raises
        `LandingError`s, `GitFailed`, `GitTimeout`, `InsufficientDisk`, `TreeError`s."""
        ...
