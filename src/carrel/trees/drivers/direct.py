"""A folder of the host as the tree itself: what is written there is written there.

For callers who name a folder of theirs to work in. Nothing is copied and nothing is private;
of its own the driver has only a note which folder it is and a list of what was in it. Nothing
of a tree's folder leads to the other one, so that whatever removes a tree removes no more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from carrel.domain.availability import Availability
from carrel.domain.errors import CarrelError, TreeDamaged, TreeUnavailable
from carrel.domain.trees import (
    DIRECT,
    Base,
    Change,
    Owner,
    Tree,
    TreeCapabilities,
    TreeMount,
    TreeRequest,
    TreeUsage,
)
from carrel.trees.drivers import direct_index
from carrel.trees.drivers.common import (
    begin,
    expect,
    make,
    private_folder,
    settle,
    tree_errors,
)
from carrel.trees.folders import Root
from carrel.trees.projects import open_real, shown_clone
from carrel.trees.removal import remove_tree
from carrel.trees.usage import all_blocks, measure

_PLACE, _INDEX = "place", "index"


class Place(msgspec.Struct, frozen=True):
    """Which folder it is: the path may come to name another one."""

    path: bytes
    device: int
    inode: int


class DirectDriver:
    """Implements `TreeDriver`; is never chosen, only asked for by name."""

    name = DIRECT

    @property
    def capabilities(self) -> TreeCapabilities:
        return TreeCapabilities(
            copy_on_write=False,
            instant=False,
            visible_on_host=True,
            renames_base_folders=True,
            stays=True,
            notes=(
                "The tree is the folder itself: others see each change at once.",
                "Files that are too large for a digest count as changed when they were touched.",
                "Limits of disk space do not count what is in the folder.",
            ),
        )

    def probe(self) -> Availability:
        return Availability(False, "Only the service asks for it, with a folder.")

    def create(self, request: TreeRequest) -> Tree:
        if request.place is None:
            raise TreeUnavailable(f"The driver {DIRECT!r} needs a folder.", hint="Name one.")
        private = begin(request)
        tree = make(request, self.name, 0)
        try:
            with tree_errors("look at the folder"), Root(open_real(request.place)) as root:
                _note(root, request.place, private)
                direct_index.write_index(root, private / _INDEX)
                created_ns = settle(private)
        except BaseException:
            with contextlib.suppress(CarrelError):
                self.drop(tree)
            raise
        return make(request, self.name, created_ns)

    def ensure(self, tree: Tree) -> None:
        os.close(self.open_root(tree))

    def open_root(self, tree: Tree) -> int:
        expect(tree)
        return _open(tree.tree_id, _noted(tree))

    @contextlib.contextmanager
    def mount(self, tree: Tree) -> Iterator[TreeMount]:
        self.ensure(tree)
        place = _noted(tree)
        path = Path(os.fsdecode(place.path))
        if os.geteuid() != 0:
            yield TreeMount(path)
        else:
            yield TreeMount(path, detached=partial(_clone, tree.tree_id, place, tree.owner))

    def changes(self, tree: Tree) -> Iterator[Change]:
        with Root(self.open_root(tree)) as root, tree_errors("compare the folder"):
            yield from direct_index.changes(root, private_folder(tree) / _INDEX)

    def usage(self, tree: Tree) -> TreeUsage:
        """What would be free without it: its own notes."""
        expect(tree)
        with Root.at(private_folder(tree)) as root, tree_errors("measure the tree"):
            return measure(root, all_blocks)

    def freeze(self, tree: Tree) -> Base:
        raise TreeUnavailable(
            f"The space {tree.tree_id} works in a folder itself, which is no base.",
            hint="Make a space from the folder, and fork that.",
        )

    def drop(self, tree: Tree) -> None:
        with tree_errors("remove the tree"):
            remove_tree(private_folder(tree))


def _note(root: Root, path: Path, private: Path) -> None:
    found = root.status("")
    assert found is not None
    place = Place(os.fsencode(path), found.st_dev, found.st_ino)
    (private / _PLACE).write_bytes(msgspec.msgpack.encode(place))


def _noted(tree: Tree) -> Place:
    try:
        raw = (private_folder(tree) / _PLACE).read_bytes()
        return msgspec.msgpack.decode(raw, type=Place)
    except (OSError, msgspec.MsgspecError) as error:
        raise TreeDamaged(
            f"The space {tree.tree_id} does not know its folder any more.", hint="Remove it."
        ) from error


def _open(tree_id: str, place: Place) -> int:
    name = os.fsdecode(place.path)
    try:
        opened = open_real(Path(name))
    except OSError as error:
        raise _swapped(tree_id, name) from error
    found = os.fstat(opened)
    if (found.st_dev, found.st_ino) != (place.device, place.inode):
        os.close(opened)
        raise _swapped(tree_id, name)
    return opened


def _clone(tree_id: str, place: Place, owner: Owner) -> int:
    opened = _open(tree_id, place)
    try:
        return shown_clone(opened, owner)
    finally:
        os.close(opened)


def _swapped(tree_id: str, name: str) -> TreeDamaged:
    return TreeDamaged(
        f"{name} is not the folder any more that the space {tree_id} works in.",
        hint="Put it back, or remove the space.",
    )
