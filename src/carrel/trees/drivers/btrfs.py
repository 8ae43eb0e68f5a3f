"""Trees as btrfs snapshots of a base's subvolume.

A snapshot keeps the owner of every file, so on disk a tree belongs to the store's own
user. Sandboxes see it through an id-mapped mount that shows it as theirs.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.errors import CarrelError, TreeUnavailable
from carrel.domain.trees import (
    Base,
    Owner,
    Tree,
    TreeCapabilities,
    TreeMount,
    TreeRequest,
)
from carrel.linux import btrfs, mounts
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import store_gid, store_uid
from carrel.trees.drivers.common import (
    Cost,
    FolderDriver,
    expect,
    probe_folder,
    some_owner,
    tree_errors,
    unshared_since,
)
from carrel.trees.drivers.overlay import show_as


class BtrfsDriver(FolderDriver):
    name = "btrfs"
    _making = "snapshot the base"

    @property
    def capabilities(self) -> TreeCapabilities:
        return TreeCapabilities(
            copy_on_write=True,
            instant=True,
            visible_on_host=True,
            renames_base_folders=True,
            notes=("On the host, files belong to the store's own user.",)
            if os.geteuid() == 0
            else (),
        )

    def probe(self) -> Availability:
        try:
            if not btrfs.on_btrfs(self._data):
                return Availability(
                    False,
                    f"{str(self._data)!r} is not on btrfs.",
                    remedy="Put the data folder on btrfs.",
                )
            with probe_folder(self._data) as folder:
                self._try(folder)
        except (CarrelError, OSError) as refusal:
            return Availability(False, f"A snapshot did not work: {refusal}")
        return Availability(True, "A subvolume was made, snapshotted and deleted.")

    def _try(self, folder: Path) -> None:
        store = Owner(store_uid(), store_gid())
        one, two = folder / "one", folder / "two"
        btrfs.create_subvolume(one)
        if os.geteuid() == 0:
            os.chown(one, store.uid, store.gid)
        btrfs.snapshot(one, two)
        if os.geteuid() == 0:
            _try_showing(two, some_owner())
        for path in (two, one):
            delete(path)

    def _check(self, base: Base) -> None:
        _subvolume(base)

    def _make(self, request: TreeRequest, private: Path, path: Path) -> None:
        btrfs.snapshot(_subvolume(request.base), path)

    def _cost(self, tree: Tree) -> Cost:
        return unshared_since(tree.created_ns)

    @contextlib.contextmanager
    def mount(self, tree: Tree) -> Iterator[TreeMount]:
        expect(tree, tree.path)
        detached = partial(_clone, tree.path, tree.owner) if os.geteuid() == 0 else None
        yield TreeMount(tree.path, detached=detached)

    def drop(self, tree: Tree) -> None:
        with tree_errors("delete the snapshot"):
            delete(tree.path)
        super().drop(tree)


def _try_showing(path: Path, owner: Owner) -> None:
    with Descriptor(_clone(path, owner)) as mount:
        if os.fstat(mount).st_uid != owner.uid:
            raise TreeUnavailable("An id-mapped mount did not show another owner.")


def _clone(path: Path, owner: Owner) -> int:
    """A detached mount that shows what is the store's as the owner's."""
    store = Owner(store_uid(), store_gid())
    with tree_errors("show the tree to a sandbox"):
        clone = mounts.clone_mount(str(path))
        try:
            if owner != store:
                show_as([clone], store, owner)
        except BaseException:
            os.close(clone)
            raise
    return clone


def delete(path: Path) -> None:
    """Deletes a snapshot; where that is refused, as to ordinary users, it is left to be
    emptied like a folder."""
    if not btrfs.is_subvolume(path):
        return
    try:
        btrfs.delete_subvolume(path)
    except OSError as error:
        # ENOTEMPTY: another subvolume was made in it.
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOTEMPTY, errno.EROFS):
            raise


def _subvolume(base: Base) -> Path:
    if len(base.layers) != 1 or not btrfs.is_subvolume(base.layers[0]):
        raise TreeUnavailable(
            f"The base {base.base_id} is not kept as a btrfs subvolume.",
            hint="Build it again with the btrfs driver chosen.",
        )
    return base.layers[0]
