"""Reviews: how the files of a space differ from those that it began with."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from carrel.api.types.common import Answer, Body, PathText, Word
from carrel.domain.review import DiffFile, ExportFormat
from carrel.domain.trees import Commit

MAX_FILES = 100_000
MAX_PATHS = 1000


class DiffBody(Body, frozen=True, kw_only=True):
    """Against what the space began with, with what was not committed then. Many paths do not fit
    into an address, so it is a body."""

    paths: Annotated[tuple[PathText, ...], Meta(max_length=MAX_PATHS)] = ()
    """Only these files, and what is in these folders: names from the root of the tree, never
    patterns."""
    ignored: bool = False
    """Files that git ignores too."""
    to: Word = ""
    """Another space: how its files differ from this one's."""
    since: Word = ""
    """A checkpoint of this space, instead of what it began with: what has changed since then."""


class DiffFilesBody(DiffBody, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_FILES)] = 10_000


class ExportBody(Body, frozen=True, kw_only=True):
    format: ExportFormat
    message: Annotated[str, Meta(max_length=100_000)] = ""
    """Of the commit in a patch or a bundle."""


class DiffSummary(Answer, frozen=True, kw_only=True):
    files: tuple[DiffFile, ...]
    """Sorted by path."""
    total: int
    """How many there are, also when not all are listed."""
    added: int
    """Lines of all files."""
    deleted: int
    commits: tuple[Commit, ...] = ()
    """That were made in the space, newest first; none between two spaces, or since a
    checkpoint."""
    hidden: int = 0
    """Files that git ignores, and that were not asked for."""
