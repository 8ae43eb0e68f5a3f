"""Bases and trees: the nouns and the contract of a tree driver.

Everything here is blocking file-system work: async callers use a worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from carrel.domain.availability import Availability
from carrel.domain.projects import Project

DIRECT = "direct"
"""The driver whose trees are folders of the host as they are; only the service asks for it."""


@dataclass(frozen=True)
class Owner:
    """A host uid and gid."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Skipped:
    """Something of the project that a base does not hold, and why."""

    path: str
    why: str


@dataclass(frozen=True)
class Base:
    """An immutable, content-addressed tree of a project at one state; metadata only.

    `layers` are folders, the uppermost first, in overlayfs's format (whiteouts are
    0/0 character devices); a base kept by a driver that snapshots has exactly one.
    On disk every entry belongs to `store_owner`; `project_owner` is whom the
    project's files belonged to, for the way back out.
    """

    base_id: str
    project: Project
    folder: Path
    layers: tuple[Path, ...]
    entries: int
    size_bytes: int
    created_at: float
    store_owner: Owner
    project_owner: Owner
    has_git: bool = False
    skipped: tuple[Skipped, ...] = ()
    unstable: tuple[str, ...] = ()
    """Files that kept changing while they were read: each is as it was at one moment."""


@dataclass(frozen=True)
class TreeLayer:
    """What lies between the base and a tree's own writes. Trees whose layers have the same name
    share one, which is the first's; `fill` makes it in an empty folder, in overlayfs's format."""

    name: str
    fill: Callable[[Path], None]


@dataclass(frozen=True)
class TreeRequest:
    """`folder` is an existing, private folder that the driver may fill; the tree
    appears at `folder/project`. `owner` is the host user that will write in it."""

    tree_id: str
    base: Base
    folder: Path
    owner: Owner
    place: Path | None = None
    """The folder that is to be the tree, for a driver that makes none."""
    layer: TreeLayer | None = None
    """For a driver that has `layers`."""


@dataclass(frozen=True)
class Tree:
    """A space's private writable view of its base; metadata only, can be written down."""

    tree_id: str
    driver: str
    base_id: str
    folder: Path
    owner: Owner
    created_ns: int

    @property
    def path(self) -> Path:
        """Where the tree is (or is mounted) on the host; nothing is there for one that stays."""
        return self.folder / "project"


class ChangeKind(StrEnum):
    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    RENAMED = "renamed"
    MODE = "mode"
    TYPE = "type"


class EntryType(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True)
class Change:
    """One difference of a tree from its base. Paths are relative, as `os.fsdecode` gives.

    `modified` may come with another mode too. Only regular files are `renamed`: the
    same bytes under another name. Times alone are no change.
    """

    path: str
    kind: ChangeKind
    old_path: str | None = None
    old_type: EntryType | None = None
    new_type: EntryType | None = None
    old_mode: int | None = None
    new_mode: int | None = None
    size: int = 0


@dataclass(frozen=True)
class Commit:
    """One that was made in a tree. `repository` is the folder of its checkout, empty for the
    project's own."""

    id: str
    subject: str
    repository: str = ""


@dataclass(frozen=True)
class ReviewQuery:
    """Which changes are listed, and how many at most: those of the project's files, and with
    these also what git ignores and git's own files."""

    most: int = 0
    ignored: bool = False
    git: bool = False
    personal: bool = True
    """The owner's own rules of what git ignores count too."""
    rough: bool = False
    """Only whether there is something worth keeping: neither rules nor commits are read."""


@dataclass(frozen=True)
class Review:
    """What a tree has that its base has not, as everybody is told it. Folders are not counted: what
    is in them is."""

    files: int = 0
    """Of the project: neither ignored by git nor git's own."""
    ignored: int = 0
    git: int = 0
    commits: tuple[Commit, ...] = ()
    """Newest first; all that were read."""
    listed: tuple[Change, ...] = ()
    """The first that were asked for, sorted by path."""
    total: int = 0
    """How many of these there are."""
    left_files: int = 0
    """Of `files`, those that nobody has taken out as they are now."""
    left_commits: int = 0
    left: tuple[str, ...] = ()
    """The first of what nobody has taken out, in words."""
    worth_keeping: bool = False
    """There is more than git's own bookkeeping."""


@dataclass(frozen=True)
class TreeUsage:
    """What a tree costs beyond its base."""

    bytes_used: int
    files_used: int


@dataclass(frozen=True)
class TreeMount:
    """How a runtime binds a tree, for as long as the context is open.

    `path` always names the tree. `detached` (root only) gives, at each call, a new detached
    mount that shows every entry as the tree's owner's; the caller closes it. `namespace`
    (ordinary users only) is the key under which the launcher holds the mount namespace in
    which `path` is mounted. `read_only` are further host folders that the tree needs at
    their own path.
    """

    path: Path
    detached: Callable[[], int] | None = None
    namespace: str | None = None
    read_only: tuple[Path, ...] = ()


@dataclass(frozen=True)
class TreeCapabilities:
    """What differs between drivers, for people and for tests."""

    copy_on_write: bool
    instant: bool
    """Creating does not grow with the project."""
    visible_on_host: bool
    """`Tree.path` shows the files to every program of the host."""
    renames_base_folders: bool
    """rename(2) of a folder that stands in the base works (else EXDEV, as between disks)."""
    any_owner: bool = True
    """Every space's tree can belong to a user of its own."""
    layers: bool = False
    """A tree may begin with a layer above its base."""
    stays: bool = False
    """What was changed is there when the tree is dropped, so nothing can be lost with it."""
    notes: tuple[str, ...] = ()


class TreeDriver(Protocol):
    """One way of giving private copies. Implementations: `carrel.trees.drivers`.

    All methods raise `TreeUnavailable` when the machine refuses, `TreeDamaged` when what
    is on disk is not what was made, `InsufficientDisk` when there is no room.
    """

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> TreeCapabilities: ...

    def probe(self) -> Availability:
        """Tries the real thing in the data folder, and leaves nothing."""
        ...

    def create(self, request: TreeRequest) -> Tree:
        """Makes the tree, or raises and leaves nothing. `TreeExists` if there is one."""
        ...

    def ensure(self, tree: Tree) -> None:
        """Makes a tree usable again after a reboot; does nothing when it is."""
        ...

    def open_root(self, tree: Tree) -> int:
        """An O_PATH descriptor of the tree's root; the caller closes it."""
        ...

    def mount(self, tree: Tree) -> AbstractContextManager[TreeMount]:
        """For a runtime that is about to start a sandbox on the tree."""
        ...

    def changes(self, tree: Tree) -> Iterator[Change]:
        """Sorted by path; computed as it is read."""
        ...

    def usage(self, tree: Tree) -> TreeUsage: ...

    def freeze(self, tree: Tree) -> Base:
        """A new base with what the tree holds now; costs what changed. The caller sees
        to it that nothing writes meanwhile."""
        ...

    def drop(self, tree: Tree) -> None:
        """Removes the tree and all it used; idempotent, copes with half-made ones."""
        ...
