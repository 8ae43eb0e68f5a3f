"""The result of a landing in a fresh tree, for a command that checks it.

The tree is one of the base that the space began with: what git ignores there, such as installed
packages, is there too, and only the files that differ are written. What the person had not
committed then is no part of the result, and is taken out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping

from carrel.domain.landing import PreparedLanding
from carrel.domain.trees import ReviewQuery, Tree, TreeDriver
from carrel.linux.descriptors import Descriptor
from carrel.review.checkout import (
    ChangedMeanwhile,
    CheckoutFile,
    CheckoutWriter,
    Version,
    expect_below,
    hash_of,
    hashed,
    is_program,
)
from carrel.review.landing import GitLander
from carrel.review.project import ProjectRepository, zero_ended
from carrel.review.states import GITLINK, LINK
from carrel.trees.drivers.common import tree_errors
from carrel.trees.folders import join
from carrel.trees.git import index
from carrel.trees.git.object_store import read_small
from carrel.trees.layers import LayerEntry
from carrel.trees.review import GIT, Look, TreeReviews

_NOTHING = Version(0, "")


class CheckTrees:
    """Blocking."""

    def __init__(self, reviews: TreeReviews, lander: GitLander) -> None:
        self._reviews = reviews
        self._lander = lander

    def check_out(self, landing: PreparedLanding, driver: TreeDriver, tree: Tree) -> None:
        """Makes of a fresh tree of the space's base what the landing would make of the project.
        Raises `GitFailed`, `GitTimeout`, `InsufficientDisk`, and what the tree's driver raises."""
        repository = self._lander.repository(landing.place)
        with self._reviews.look(driver, tree, ReviewQuery()) as look, repository.contents() as copy:
            if landing.place.kept:
                files = self._lander.changed(landing)
            else:
                files = list(_differing(look, _wanted(repository, landing.after)))
            with Descriptor(driver.open_root(tree)) as top, tree_errors("write the tree"):
                writer = CheckoutWriter(top, tree.owner, copy)
                for one in sorted(files, key=lambda file: file.new.mode != 0):
                    _put(writer, one)


def _put(writer: CheckoutWriter, file: CheckoutFile) -> None:
    """Whatever is there: nobody else is in the tree, and a filter may have had its way with it."""
    try:
        writer.bring(file)
    except ChangedMeanwhile:
        writer.remove(file.path)
        writer.bring(CheckoutFile(file.path, _NOTHING, file.new))


def _wanted(repository: ProjectRepository, commit: str) -> dict[str, Version]:
    """All files of a commit; submodules stay as the base has them."""
    found = {}
    for row in zero_ended(repository.run("ls-tree", "-r", "-z", commit)):
        about, _, name = row.partition(b"\t")
        if name:
            mode, _, oid = about.decode().split(" ")
            if int(mode, 8) != GITLINK:
                path = os.fsdecode(name)
                expect_below(path)
                found[path] = Version(int(mode, 8), oid)
    return found


def _differing(look: Look, wanted: Mapping[str, Version]) -> Iterator[CheckoutFile]:
    like = next(iter(wanted.values()), Version(0, "0" * 40)).oid
    indexed = _Indexed(look, like)
    left = dict(wanted)
    for path, entry in _files(look):
        new = left.pop(path, None)
        if new is None and look.ignored is not None and look.ignored.has(path):
            continue
        old = indexed.version(path, entry)
        if old != (new or _NOTHING):
            yield CheckoutFile(path, old, new or _NOTHING)
    for path, new in left.items():
        yield CheckoutFile(path, _NOTHING, new)


def _files(look: Look) -> Iterator[tuple[str, LayerEntry]]:
    """Of the base: neither git's own, nor of other repositories, nor in ignored folders."""
    layers = look.base_layers
    pending = [("", layers.top())]
    while pending:
        path, folder = pending.pop()
        children = layers.children(folder)
        if path and GIT in children:
            continue
        for name, entry in children.items():
            inside = join(path, name)
            if not entry.is_folder:
                yield inside, entry
            elif name != GIT and not (look.ignored and look.ignored.has_folder(inside)):
                pending.append((inside, entry))


class _Indexed:
    """What git would say of the base's files. Those that its index knows are not read."""

    def __init__(self, look: Look, like: str) -> None:
        """`like` is any object's name."""
        self._like = like
        self._places: dict[bytes, int] = {}
        content = read_small(look.base, f"{GIT}/index", index.MAX_BYTES) or b""
        try:
            self._data, places = index.parse(content)
        except index.MalformedIndex:
            return
        self._places = {path: offset for offset, path in places}

    def version(self, path: str, entry: LayerEntry) -> Version:
        mode = entry.status.st_mode
        if stat.S_ISLNK(mode):
            target = entry.content.root.link(entry.content.path)
            return Version(LINK, hashed(target, self._like))
        if not entry.is_file:
            return Version(-1, "")
        kind = 0o100755 if is_program(mode) else 0o100644
        offset = self._places.get(os.fsencode(path))
        if offset is not None and self._is_known(offset, entry):
            return Version(kind, self._data.oid(offset).hex())
        with Descriptor(entry.content.root.open_file(entry.content.path)) as file:
            return Version(kind, hash_of(file, entry.status.st_size, self._like))

    def _is_known(self, offset: int, entry: LayerEntry) -> bool:
        return self._data.stage(offset) == 0 and self._data.stat(offset).fits(entry.status)
