"""Trees that are folders of their own, filled from the base: what `copy` and `reflink`
have in common."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.errors import CarrelError, TreeDamaged
from carrel.domain.trees import (
    Base,
    Change,
    Owner,
    Tree,
    TreeCapabilities,
    TreeMount,
    TreeRequest,
    TreeUsage,
)
from carrel.trees.changes import Comparison, ignore_nothing
from carrel.trees.drivers import sharing
from carrel.trees.drivers.assembling import Assembly, Fill, Share
from carrel.trees.drivers.common import (
    Bases,
    begin,
    expect,
    freeze,
    make,
    note_prefix,
    open_roots,
    private_folder,
    remove_folders,
    settle,
    tree_errors,
)
from carrel.trees.folders import Root
from carrel.trees.git.index import IndexStat, restat
from carrel.trees.layers import Layers
from carrel.trees.usage import Cost, measure


class Copies:
    """Base of both drivers; they say how a file is filled and what it costs."""

    name: str
    _shares_objects: bool

    def __init__(self, data: Path, bases: Bases) -> None:
        self._data = data
        self._bases = bases

    @property
    def capabilities(self) -> TreeCapabilities:
        raise NotImplementedError

    def probe(self) -> Availability:
        raise NotImplementedError

    def _fill(self) -> Fill:
        raise NotImplementedError

    def _cost(self, tree: Tree) -> Cost:
        raise NotImplementedError

    def _check_room(self, base: Base) -> None:
        """Before work that may take minutes. Raises `InsufficientDisk`."""

    def create(self, request: TreeRequest) -> Tree:
        self._check_room(request.base)
        private = begin(request)
        tree = make(request, self.name, 0)
        try:
            with tree_errors("copy the base"):
                self._assemble(request, private)
                (private / "new").rename(tree.path)
                created_ns = settle(private)
        except BaseException:
            with contextlib.suppress(CarrelError):
                remove_folders(tree)
            raise
        return make(request, self.name, created_ns)

    def _assemble(self, request: TreeRequest, private: Path) -> None:
        """In the private folder, so that a tree is either complete or not to be seen."""
        base, new = request.base, private / "new"
        new.mkdir(0o700)
        with open_roots(base.layers) as roots, Root.at(new) as target:
            layers = Layers(roots, note_prefix())
            borrowed: tuple[Path, ...] = ()
            if self._shares_objects:
                borrowed = sharing.lendable(base, roots, layers, request.owner)
            assembly = Assembly(
                layers, target, request.owner, self._fill(), self._share(request.owner)
            )
            assembly.build(sharing.leave_out if borrowed else lambda _path: False)
            if borrowed:
                sharing.borrow(private, target.folder(""), borrowed, request.owner)
            if base.has_git:
                _refresh_index(new, assembly.sources)

    def _share(self, owner: Owner) -> Share:
        if not self._shares_objects:
            return lambda _path, _status: False
        return lambda path, status: sharing.linkable(path, status, owner)

    def ensure(self, tree: Tree) -> None:
        expect(tree, tree.path)

    def open_root(self, tree: Tree) -> int:
        expect(tree, tree.path)
        with tree_errors("open the tree"):
            return os.open(tree.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def mount(self, tree: Tree) -> Iterator[TreeMount]:
        expect(tree, tree.path)
        yield TreeMount(tree.path, read_only=self._borrowed(tree))

    def _borrowed(self, tree: Tree) -> tuple[Path, ...]:
        folders = sharing.borrowed(private_folder(tree))
        for folder in folders:
            if not folder.is_dir():
                raise TreeDamaged(
                    f"The git objects that tree {tree.tree_id} borrows from its base are gone.",
                    hint="Drop it, and start again from a base.",
                )
        return folders

    def changes(self, tree: Tree) -> Iterator[Change]:
        return self.compare(tree, links=False)

    def compare(self, tree: Tree, *, links: bool, renames: bool = True) -> Iterator[Change]:
        expect(tree, tree.path)
        base = self._bases.get(tree.base_id)
        shares = bool(sharing.borrowed(private_folder(tree)))
        folders = (tree.path, *base.layers)
        with open_roots(folders) as roots, tree_errors("compare the tree"):
            yield from Comparison(
                Layers(roots[:1], None),
                Layers(roots[1:], note_prefix()),
                settled_ns=tree.created_ns,
                links=links,
                renames=renames,
                ignore=sharing.ignore if shares else ignore_nothing,
            ).changes()

    def usage(self, tree: Tree) -> TreeUsage:
        expect(tree, tree.path)
        with Root.at(tree.path) as root, tree_errors("measure the tree"):
            return measure(root, self._cost(tree))

    def freeze(self, tree: Tree) -> Base:
        return freeze(self, self._bases, tree)

    def drop(self, tree: Tree) -> None:
        remove_folders(tree)


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

    restat(top / ".git" / "index", look_up)


def _is_of(recorded: IndexStat, source: os.stat_result) -> bool:
    """But for the owner, who is another in every tree."""
    found = IndexStat.of(source)
    return recorded[:4] == found[:4] and (recorded.ino, recorded.size) == (found.ino, found.size)
