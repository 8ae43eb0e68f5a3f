"""Git objects that copies have in common with their base instead of having them too.

Objects never change. Where the tree belongs to another user than the store, its object
files are further names of the base's: that user can read and unlink them, not write them.
Where both are the same user, he could; there the copy's repository gets an empty object
store that names the base's as an alternate, which sandboxes see read-only.
"""

from __future__ import annotations

import os
from pathlib import Path

from carrel.domain.trees import Base, Owner
from carrel.trees.files import give, make_folder, write_atomically
from carrel.trees.layers import Entry, Layers

OBJECTS = ".git/objects"
_ALTERNATES = OBJECTS + "/info/alternates"
_LIST = "shared"
_EVERYBODY = 0o7006
_MAY_READ = 0o4


def lendable(base: Base, owner: Owner) -> tuple[Path, ...]:
    """The object folders of the base's layers that a repository of this owner may name as
    alternates; none when it is to have the objects itself."""
    if not base.has_git or owner != base.store_owner:
        return ()
    folders = tuple(layer / OBJECTS for layer in base.layers if _is_folder(layer / OBJECTS))
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
    """What a copy that borrows does not get of its own."""
    return path.startswith(OBJECTS + "/")


def ignore(path: str, entry: Entry | None) -> bool:
    """Borrowed objects are not missing, and the note that they are borrowed is not new."""
    return path == _ALTERNATES or (entry is None and path.startswith(OBJECTS + "/"))


def borrow(private: Path, top: int, folders: tuple[Path, ...], owner: Owner) -> None:
    """Makes the object store of the copy whose root is `top`, and notes what it borrows
    where the tree's owner cannot write."""
    store = os.open(OBJECTS, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for name in (b"info", b"pack"):
            make_folder(store, name, mode=0o755, owner=owner)
        content = b"".join(os.fsencode(folder) + b"\n" for folder in folders)
        info = os.open(b"info", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=store)
        try:

            def fill(fd: int) -> None:
                os.write(fd, content)

            write_atomically(info, b"alternates", fill, mode=0o644, owner=owner)
        finally:
            os.close(info)
        give(store, owner)
    finally:
        os.close(store)
    (private / _LIST).write_bytes(content)


def borrowed(private: Path) -> tuple[Path, ...]:
    """What `borrow` noted; never what the tree itself says."""
    try:
        content = (private / _LIST).read_bytes()
    except FileNotFoundError:
        return ()
    return tuple(Path(os.fsdecode(line)) for line in content.splitlines())


def has_objects(base: Layers) -> bool:
    found = base.find(OBJECTS)
    return found is not None and found.is_folder


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
