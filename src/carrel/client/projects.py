"""Which kind of project somebody means who writes a path or a URL."""

from __future__ import annotations

import os

from carrel.domain.projects import is_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def describe(project: str | os.PathLike[str] | None, ref: str | None = None) -> dict[str, Any]:
    """A project as the API takes it: a folder, a repository (a URL, or a folder with `ref`),
    an archive, or (None) nothing. Paths are made absolute: the daemon stands elsewhere."""
    if project is None:
        return {"kind": "empty"}
    place = os.fspath(project)
    # What is there as a file is a file.
    if is_address(place) and not os.path.lexists(place):
        return {"kind": "git", "location": place, "ref": ref}
    path = os.path.abspath(os.path.expanduser(place) if place.startswith("~/") else place)
    if ref is not None:
        return {"kind": "git", "location": path, "ref": ref}
    return {"kind": "archive" if os.path.isfile(path) else "folder", "location": path}
