"""Trees that are folders of their own, filled from the base: `copy` makes plain copies, which work
everywhere and cost time and room for every file; `reflink` makes copies that share the blocks of
their base until they are written.

Git objects never change, so plain copies have them in common with their base. Where the tree
belongs to another user than the store, its object files are further names of the base's: that user
can read and unlink them, not write them. Where both are the same user, he could; there the copy's
repository gets an empty object store that names the base's as an alternate, which sandboxes see
read-only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.errors import TreeDamaged
from carrel.domain.trees import (
    Base,
    Owner,
    Tree,
    TreeCapabilities,
    TreeMount,
    TreeRequest,
)
from carrel.linux.descriptors import Descriptor
from carrel.linux.reflink import clone_file, copy_file
from carrel.trees.changes import Ignore, ignore_nothing
from carrel.trees.drivers.common import (
    Cost,
    FolderDriver,
    enough_room,
    expect,
    note_prefix,
    open_roots,
    own_blocks,
    private_folder,
    probe_folder,
    unshared_since,
)
from carrel.trees.files import give, write_atomically
from carrel.trees.folders import Root, join, split
from carrel.trees.git.index import IndexStat, restat
from carrel.trees.layers import LayerEntry, Layers
from carrel.trees.paths import FOLDER

# Sharing git objects

OBJECTS = ".git/objects"
_INFO = OBJECTS + "/info"
_ALTERNATES = _INFO + "/alternates"
_LIST = "shared"
_EVERYBODY = 0o7006
_MAY_READ = 0o4


def _lendable(base: Base, roots: Sequence[Root], merged: Layers, owner: Owner) -> tuple[Path, ...]:
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


def _linkable(path: str, status: os.stat_result, owner: Owner) -> bool:
    """Whether a file of the base may get a further name in a tree of this owner."""
    return (
        path.startswith(OBJECTS + "/")
        and owner.uid != status.st_uid
        and owner.gid != status.st_gid
        and status.st_mode & _EVERYBODY == _MAY_READ
    )


def _leave_out(path: str) -> bool:
    """What a copy that borrows does not get of its own: all but empty folders."""
    return path.startswith(OBJECTS + "/") and path not in (_INFO, OBJECTS + "/pack")


def _ignore_borrowed(path: str, entry: LayerEntry | None) -> bool:
    """Borrowed objects are not missing, and the note that they are borrowed is not new."""
    return path == _ALTERNATES or (entry is None and path.startswith(OBJECTS + "/"))


def _borrow(private: Path, top: int, folders: tuple[Path, ...], owner: Owner) -> None:
    """Completes the object store of the copy whose root is `top`, and notes what it borrows
    where the tree's owner cannot write."""
    content = b"".join(os.fsencode(folder) + b"\n" for folder in folders)

    def fill(fd: int) -> None:
        os.write(fd, content)

    with Descriptor(os.open(_INFO, FOLDER, dir_fd=top)) as info:
        write_atomically(info, b"alternates", fill, mode=0o644, owner=owner)
    (private / _LIST).write_bytes(content)


def _noted_folders(private: Path) -> tuple[Path, ...]:
    """What `_borrow` noted; never what the tree itself says."""
    try:
        content = (private / _LIST).read_bytes()
    except FileNotFoundError:
        return ()
    return tuple(Path(os.fsdecode(line)) for line in content.splitlines())


# Building a plain folder that shows what the layers of a base show

Fill = Callable[[int, int, int], None]
"""Gives an empty file (the second descriptor) the bytes of another; the third is its size."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
Share = Callable[[str, os.stat_result], bool]
"""Whether a file is to be the base's own under another name, instead of a copy."""

_KEPT = "user."
_NOT_KEPT = "user.overlay."
"""The attributes that are the project's, and those of them that are an overlay's notes."""


class Assembly:
    """One copy. `sources` remembers the stat of what each file was made from."""

    def __init__(self, base: Layers, target: Root, owner: Owner, fill: Fill, share: Share) -> None:
        self._base = base
        self._target = target
        self._owner = owner
        self._fill = fill
        self._share = share
        self._linked: dict[tuple[int, int], str] = {}
        self.sources: dict[str, os.stat_result] = {}

    def build(self, leave_out: Callable[[str], bool]) -> None:
        """Raises OSError; the caller removes what there is then."""
        top = self._base.top()
        folders: list[tuple[str, os.stat_result]] = []
        pending = [("", top)]
        while pending:
            path, folder = pending.pop()
            folders.append((path, folder.status))
            for name, entry in self._base.children(folder).items():
                below = join(path, name)
                if leave_out(below):
                    continue
                if entry.is_folder:
                    os.mkdir(name, 0o700, dir_fd=self._target.folder(path))
                    pending.append((below, entry))
                else:
                    self._make(below, entry)
        # From the inside out: filling a folder changes its time, and a folder may lose the
        # permission to be entered.
        for path, status in reversed(folders):
            self._finish(self._target.folder(path), status)

    def _make(self, path: str, entry: LayerEntry) -> None:
        above, name = split(path)
        folder = self._target.folder(above)
        if entry.is_file:
            self._make_file(path, name, folder, entry)
        elif stat.S_ISLNK(entry.status.st_mode):
            os.symlink(entry.content.root.link(entry.content.path), name, dir_fd=folder)
            if os.geteuid() == 0:
                owner = self._owner
                os.chown(name, owner.uid, owner.gid, dir_fd=folder, follow_symlinks=False)
            times = (entry.status.st_atime_ns, entry.status.st_mtime_ns)
            os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)
        else:
            return  # bases hold nothing else
        self.sources[path] = entry.status

    def _make_file(self, path: str, name: str, folder: int, entry: LayerEntry) -> None:
        if self._share(path, entry.status) and _link_to_base(name, folder, entry):
            return
        if entry.status.st_nlink > 1 and self._make_link(path, name, folder, entry):
            return
        with (
            Descriptor(entry.content.root.open_file(entry.content.path)) as source,
            Descriptor(os.open(name, _NEW, 0o600, dir_fd=folder)) as target,
        ):
            self._fill(source, target, entry.status.st_size)
            _copy_attributes(source, target)
            self._finish(target, entry.status)

    def _make_link(self, path: str, name: str, folder: int, entry: LayerEntry) -> bool:
        """For the second and later names of a file."""
        first = self._linked.setdefault(entry.key, path)
        if first == path:
            return False
        above, old_name = split(first)
        with Descriptor(os.dup(self._target.folder(above))) as source:
            # Asked for again: opening the other folder may have closed it.
            folder = self._target.folder(split(path)[0])
            os.link(old_name, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        return True

    def _finish(self, descriptor: int, status: os.stat_result) -> None:
        give(descriptor, self._owner)
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
        os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))


def _link_to_base(name: str, folder: int, entry: LayerEntry) -> bool:
    above, base_name = split(entry.content.path)
    source = entry.content.root.folder(above)
    try:
        os.link(base_name, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        # So many names as a file may have, or a file system without: then it is copied.
        if error.errno in (errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP):
            return False
        raise
    return True


def _copy_attributes(source: int, target: int) -> None:
    try:
        names = os.listxattr(source)
    except OSError:
        return
    for name in names:
        if name.startswith(_KEPT) and not name.startswith(_NOT_KEPT):
            # What this file system or user cannot have is no part of the file.
            with contextlib.suppress(OSError):
                os.setxattr(target, name, os.getxattr(source, name))


# The drivers


class _Copies(FolderDriver):
    """Base of both drivers; they say how a file is filled."""

    _making = "copy the base"
    _shares_objects: bool

    @abstractmethod
    def _fill(self) -> Fill: ...

    def _make(self, request: TreeRequest, private: Path, path: Path) -> None:
        self._assemble(request, private)
        (private / "new").rename(path)

    def _assemble(self, request: TreeRequest, private: Path) -> None:
        """In the private folder, so that a tree is either complete or not to be seen."""
        base, new = request.base, private / "new"
        new.mkdir(0o700)
        with open_roots(base.layers) as roots, Root.at(new) as target:
            layers = Layers(roots, note_prefix())
            borrowed: tuple[Path, ...] = ()
            if self._shares_objects:
                borrowed = _lendable(base, roots, layers, request.owner)
            assembly = Assembly(
                layers, target, request.owner, self._fill(), self._share(request.owner)
            )
            assembly.build(_leave_out if borrowed else lambda _path: False)
            if borrowed:
                _borrow(private, target.folder(""), borrowed, request.owner)
            if base.has_git:
                _refresh_index(new, assembly.sources)

    def _share(self, owner: Owner) -> Share:
        if not self._shares_objects:
            return lambda _path, _status: False
        return lambda path, status: _linkable(path, status, owner)

    @contextlib.contextmanager
    def mount(self, tree: Tree) -> Iterator[TreeMount]:
        expect(tree, tree.path)
        yield TreeMount(tree.path, read_only=self._borrowed(tree))

    def _borrowed(self, tree: Tree) -> tuple[Path, ...]:
        folders = _noted_folders(private_folder(tree))
        for folder in folders:
            if not folder.is_dir():
                raise TreeDamaged(
                    f"The git objects that tree {tree.tree_id} borrows from its base are gone.",
                    hint="Remove its space (carrel rm --force SPACE), and make a new one.",
                )
        return folders

    def _ignores(self, tree: Tree) -> Ignore:
        return _ignore_borrowed if _noted_folders(private_folder(tree)) else ignore_nothing


def _refresh_index(top: Path, sources: dict[str, os.stat_result]) -> None:
    """Writes the stat of the copies into git's index, wherever it had that of the files
    they were made from; else git would read every file again."""

    def look_up(path: bytes, recorded: IndexStat) -> IndexStat | None:
        name = os.fsdecode(path)
        source = sources.get(name)
        if source is None or not _is_of(recorded, source):
            return None
        found = IndexStat.of(os.lstat(os.path.join(top, name)))
        # The base's index already names the owner that sandboxes see.
        return found._replace(uid=recorded.uid, gid=recorded.gid)

    if not (top / ".git").is_symlink():
        # Else it would be the index of wherever that leads.
        restat(top / ".git" / "index", look_up)


def _is_of(recorded: IndexStat, source: os.stat_result) -> bool:
    """But for the owner, who is another in every tree."""
    found = IndexStat.of(source)
    return recorded[:4] == found[:4] and (recorded.ino, recorded.size) == (found.ino, found.size)


class CopyDriver(_Copies):
    name = "copy"
    _shares_objects = True

    @property
    def capabilities(self) -> TreeCapabilities:
        return TreeCapabilities(
            copy_on_write=False,
            instant=False,
            visible_on_host=True,
            renames_base_folders=True,
            notes=("Git objects are not copied: a tree's repository has the base's.",),
        )

    def probe(self) -> Availability:
        try:
            with probe_folder(self._data) as folder:
                (folder / "file").write_bytes(b"x")
        except OSError as error:
            return Availability(False, f"The data folder cannot be written: {error}.")
        return Availability(True, "Plain copies always work; each costs as much as the project.")

    def _fill(self) -> Fill:
        return copy_file

    def _cost(self, tree: Tree) -> Cost:
        return own_blocks(tree.owner)

    def _check(self, base: Base) -> None:
        enough_room(self._data, base)


_PROBE_BYTES = 1 << 16
"""Whole blocks: smaller files may be kept inside their inode, where nothing is shared."""


class ReflinkDriver(_Copies):
    name = "reflink"
    # Sharing blocks already costs no room, and the tree does not depend on the base.
    _shares_objects = False

    @property
    def capabilities(self) -> TreeCapabilities:
        return TreeCapabilities(
            copy_on_write=True,
            instant=False,
            visible_on_host=True,
            renames_base_folders=True,
        )

    def probe(self) -> Availability:
        try:
            with probe_folder(self._data) as folder:
                (folder / "one").write_bytes(os.urandom(_PROBE_BYTES))
                with (folder / "one").open("rb") as one, (folder / "two").open("wb") as two:
                    works = clone_file(one.fileno(), two.fileno())
        except OSError as error:
            return Availability(False, f"The data folder cannot be written: {error}.")
        if works:
            return Availability(True, "A file was cloned, and shares its blocks.")
        return Availability(
            False,
            f"The file system of {str(self._data)!r} cannot share blocks between files.",
            remedy="Put the data folder on btrfs, or on xfs made with reflink=1.",
        )

    def _check(self, base: Base) -> None:
        """Shared blocks need no room."""

    def _fill(self) -> Fill:
        return _clone

    def _cost(self, tree: Tree) -> Cost:
        return unshared_since(tree.created_ns)


def _clone(source: int, target: int, size: int) -> None:
    if size and not clone_file(source, target):
        raise OSError(errno.EOPNOTSUPP, "the file system cannot share blocks")
