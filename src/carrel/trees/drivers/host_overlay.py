"""Overlays that root mounts on the host.

The layers of a base belong on disk to the store's own user. An id-mapped mount shows them
as the tree's owner's; the upper folder belongs to that owner for real.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from carrel.domain.errors import TreeDamaged, TreeUnavailable
from carrel.domain.trees import Base, Owner, Tree, TreeMount
from carrel.linux import mounts
from carrel.linux.idmaps import make_id_map
from carrel.linux.mounts import Overlay
from carrel.trees.drivers.common import PRIVATE, private_folder, tree_errors

_OPTIONS = (
    ("redirect_dir", "on"),
    ("metacopy", "on"),
    # Off whatever the machine's defaults are: both would tie an upper folder to one
    # mount of its lower layers, which are shown through another one after a reboot.
    ("index", "off"),
    ("nfs_export", "off"),
)
_REFUSED_MAPS = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP)


class HostOverlay:
    """Mounts, and finds again what it mounted."""

    def __init__(self, *, attaches: bool = False) -> None:
        """`attaches` does at once what is else done when the kernel turns out to be old."""
        self._attaches = attaches

    def mount(self, folder: Path, base: Base, owner: Owner) -> None:
        private = folder / PRIVATE
        with contextlib.ExitStack() as stack, tree_errors("mount the overlay"):
            upper, work = mounts.open_layers([private / "upper", private / "work"])
            stack.callback(mounts.close_all, (upper, work))
            lowers = stack.enter_context(self._lowers(base, owner))
            overlay = Overlay(tuple(lowers), upper, work, _OPTIONS)
            if owner == base.store_owner:
                mounts.mount_overlay(overlay, str(folder / "project"))
            else:
                self._mount_mapped(overlay, folder)

    def _mount_mapped(self, overlay: Overlay, folder: Path) -> None:
        """Before Linux 6.15, layers had to be attached somewhere, if only for a moment."""
        if not self._attaches:
            try:
                mounts.mount_overlay(overlay, str(folder / "project"))
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        with attached(overlay.lowers, folder / PRIVATE / "lower") as lowers:
            shown = Overlay(tuple(lowers), overlay.upper, overlay.work, overlay.options)
            try:
                mounts.mount_overlay(shown, str(folder / "project"))
            except OSError as error:
                # Linux 5.12 to 5.18 has id-mapped mounts, but not as layers.
                if error.errno == errno.EINVAL:
                    raise no_id_maps(error) from error
                raise
        self._attaches = True

    @contextlib.contextmanager
    def _lowers(self, base: Base, owner: Owner) -> Iterator[list[int]]:
        if owner == base.store_owner:
            opened = mounts.open_layers(base.layers)
        else:
            opened = self._mapped(base, owner)
        try:
            yield opened
        finally:
            mounts.close_all(opened)

    def _mapped(self, base: Base, owner: Owner) -> list[int]:
        opened: list[int] = []
        try:
            for layer in base.layers:
                opened.append(mounts.clone_mount(str(layer)))
            show_as(opened, base.store_owner, owner)
        except BaseException:
            mounts.close_all(opened)
            raise
        return opened

    def is_mounted(self, tree: Tree) -> bool:
        return mounts.is_mounted(tree.path)

    def open_root(self, tree: Tree) -> int:
        """Raises `TreeDamaged` when it is not mounted: then there is an empty folder."""
        with tree_errors("open the tree"):
            descriptor = os.open(tree.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            if os.fstat(descriptor).st_dev != os.stat(tree.folder).st_dev:
                return descriptor
        os.close(descriptor)
        raise TreeDamaged(
            f"The tree {tree.tree_id} is not mounted.", hint="It is mounted again by `ensure`."
        )

    @contextlib.contextmanager
    def shown(self, tree: Tree) -> Iterator[TreeMount]:
        root = self.open_root(tree)

        def detached() -> int:
            with tree_errors("show the tree to a sandbox"):
                return mounts.clone_mount(root)

        try:
            yield TreeMount(tree.path, detached=detached)
        finally:
            os.close(root)

    def unmount(self, tree: Tree) -> int | None:
        """Takes it off the mount table, and what an interrupted mount left attached.

        Gives a descriptor that keeps the file system alive, if it was mounted: when the
        last one is closed, the kernel writes the whole disk's unwritten data out.
        """
        held = None
        with tree_errors("unmount the tree"):
            if self.is_mounted(tree):
                held = os.open(tree.path, os.O_PATH | os.O_CLOEXEC)
            mounts.detach_all(str(tree.path))
            lower = private_folder(tree) / "lower"
            if lower.is_dir():
                for point in lower.iterdir():
                    mounts.detach_all(str(point))
        return held


@contextlib.contextmanager
def attached(layers: tuple[int, ...], folder: Path) -> Iterator[list[int]]:
    """Detached mounts on folders of their own for a while, as descriptors of those."""
    folder.mkdir()
    points = []
    try:
        for number, layer in enumerate(layers):
            point = folder / str(number)
            point.mkdir()
            points.append(point)
            mounts.attach(layer, str(point))
        opened = mounts.open_layers(points)
        try:
            yield opened
        finally:
            mounts.close_all(opened)
    finally:
        for point in points:
            mounts.detach_all(str(point))
            point.rmdir()
        folder.rmdir()


def show_as(clones: list[int], store: Owner, owner: Owner) -> None:
    """Makes detached mounts show what belongs to the store as the owner's. Raises
    `TreeUnavailable` where there are no id-mapped mounts."""
    try:
        namespace = make_id_map((store.uid, store.gid), (owner.uid, owner.gid))
    except OSError as error:
        raise no_id_maps(error) from error
    try:
        for clone in clones:
            mounts.map_ids(clone, namespace)
    except OSError as error:
        if error.errno in _REFUSED_MAPS:
            raise no_id_maps(error) from error
        raise
    finally:
        os.close(namespace)


def no_id_maps(error: OSError) -> TreeUnavailable:
    return TreeUnavailable(
        f"The kernel or the file system refuses id-mapped mounts ({error.strerror}).",
        hint="They need Linux 5.19, and a data folder on ext4, xfs or btrfs.",
        id_maps=False,
    )
