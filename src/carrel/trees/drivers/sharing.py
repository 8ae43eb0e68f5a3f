"""Git objects that copies borrow from their base instead of having them too.

Objects never change, so a copy's repository gets an empty object store that names the
base's as an alternate. What is committed in the copy stays in it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from carrel.domain.trees import Base, Owner
from carrel.trees.files import give, make_folder, write_atomically
from carrel.trees.folders import Root, join
from carrel.trees.layers import Entry, Layers

OBJECTS = ".git/objects"
_ALTERNATES = OBJECTS + "/info/alternates"
_LIST = "shared"
_MAY_READ = 0o4
_MAY_ENTER = 0o1


def shareable(base: Base, data: Path, owner: Owner) -> tuple[Path, ...]:
    """The object folders of the base's layers; none when the owner could not read them."""
    if not base.has_git:
        return ()
    folders = tuple(layer / OBJECTS for layer in base.layers if _is_folder(layer / OBJECTS))
    if any("\n" in str(folder) for folder in folders):
        return ()
    if owner != base.store_owner and not all(_readable(folder, data) for folder in folders):
        return ()
    return folders


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


def _readable(folder: Path, data: Path) -> bool:
    """Whether everybody may read all in it, and pass from the data folder to it."""
    for above in folder.parents:
        if above == data or data not in above.parents:
            break
        if not above.stat().st_mode & _MAY_ENTER:
            return False
    with Root.at(folder) as root:
        pending = [""]
        while pending:
            path = pending.pop()
            for name, status in root.list(path).items():
                wanted = _MAY_READ
                if stat.S_ISDIR(status.st_mode):
                    wanted |= _MAY_ENTER
                    pending.append(join(path, name))
                if status.st_mode & wanted != wanted:
                    return False
    return folder.stat().st_mode & (_MAY_READ | _MAY_ENTER) == _MAY_READ | _MAY_ENTER
