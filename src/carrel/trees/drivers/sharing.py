"""Git objects that copies have in common with their base instead of having them too.

Objects never change. Where the tree belongs to another user than the store, its object
files are further names of the base's: that user can read and unlink them, not write them.
Where both are the same user, he could; there the copy's repository gets an empty object
store that names the base's as an alternate, which sandboxes see read-only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from carrel.domain.trees import Base, Owner
from carrel.trees.files import write_atomically
from carrel.trees.folders import Root
from carrel.trees.layers import Entry, Layers

OBJECTS = ".git/objects"
_INFO = OBJECTS + "/info"
_ALTERNATES = _INFO + "/alternates"
_LIST = "shared"
_EVERYBODY = 0o7006
_MAY_READ = 0o4


def lendable(base: Base, roots: Sequence[Root], merged: Layers, owner: Owner) -> tuple[Path, ...]:
    """The object folders of the base's layers (open as `roots`) that a repository of this
    owner may name as alternates; none when it is to have the objects itself."""
    if not base.has_git or owner != base.store_owner:
        return ()
    # Never by path: a layer below may have a symlink where the merged view has a folder.
    found, info = merged.find(OBJECTS), merged.find(_INFO)
    if found is None or info is None or not info.is_folder:
        return ()
    folders = tuple(base.layers[roots.index(part.root)] / part.path for part in found.parts)
    return () if any("\n" in str(folder) for folder in folders) else folders


def linkable(path: str, status: os.stat_result, owner: Owner) -> bool:
    """Whether a file of the base may get a further name in a tree of this owner."""
    return (
        path.startswith(OBJECTS + "/")
        and owner.uid != status.st_uid
        and owner.gid != status.st_gid
        and status.st_mode & _EVERYBODY == _MAY_READ
    )


def leave_out(path: str) -> bool:
    """What a copy that borrows does not get of its own: all but empty folders."""
    return path.startswith(OBJECTS + "/") and path not in (_INFO, OBJECTS + "/pack")


def ignore(path: str, entry: Entry | None) -> bool:
    """Borrowed objects are not missing, and the note that they are borrowed is not new."""
    return path == _ALTERNATES or (entry is None and path.startswith(OBJECTS + "/"))


def borrow(private: Path, top: int, folders: tuple[Path, ...], owner: Owner) -> None:
    """Completes the object store of the copy whose root is `top`, and notes what it borrows
    where the tree's owner cannot write."""
    content = b"".join(os.fsencode(folder) + b"\n" for folder in folders)

    def fill(fd: int) -> None:
        os.write(fd, content)

    info = os.open(_INFO, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        write_atomically(info, b"alternates", fill, mode=0o644, owner=owner)
    finally:
        os.close(info)
    (private / _LIST).write_bytes(content)


def borrowed(private: Path) -> tuple[Path, ...]:
    """What `borrow` noted; never what the tree itself says."""
    try:
        content = (private / _LIST).read_bytes()
    except FileNotFoundError:
        return ()
    return tuple(Path(os.fsdecode(line)) for line in content.splitlines())
