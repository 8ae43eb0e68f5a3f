"""Which kind of project somebody means who writes a path or a URL."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SCHEMES = ("http://", "https://", "ssh://", "git://", "git+ssh://", "ssh+git://", "file://")


def describe(project: str | os.PathLike[str] | None, ref: str | None = None) -> dict[str, Any]:
    """A project as the API takes it: a folder, a repository (a URL, or a folder with `ref`),
    an archive, or (None) nothing. Paths are made absolute: the daemon stands elsewhere."""
    if project is None:
        return {"kind": "empty"}
    place = os.fspath(project)
    if is_address(place):
        return {"kind": "git", "location": place, "ref": ref}
    path = os.path.abspath(os.path.expanduser(place) if place.startswith("~/") else place)
    if ref is not None:
        return {"kind": "git", "location": path, "ref": ref}
    return {"kind": "archive" if os.path.isfile(path) else "folder", "location": path}


def is_address(place: str) -> bool:
    """A URL, or the short form of ssh, host:path. What is there as a file is a file."""
    if place.startswith(_SCHEMES):
        return True
    host, colon, path = place.partition(":")
    return bool(host and colon and path and "/" not in host) and not os.path.lexists(place)
