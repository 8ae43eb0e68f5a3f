"""Trees as copies that share the blocks of their base until they are written."""

from __future__ import annotations

import errno
import os

from carrel.domain.availability import Availability
from carrel.domain.trees import Tree, TreeCapabilities
from carrel.linux.reflink import clone_file
from carrel.trees.drivers.assembling import Fill
from carrel.trees.drivers.common import probe_folder
from carrel.trees.drivers.copies import Copies
from carrel.trees.usage import Cost, unshared_since

_PROBE_BYTES = 1 << 16
"""Whole blocks: smaller files may be kept inside their inode, where nothing is shared."""


class ReflinkDriver(Copies):
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

    def _fill(self) -> Fill:
        return _clone

    def _cost(self, tree: Tree) -> Cost:
        return unshared_since(tree.created_ns)


def _clone(source: int, target: int, size: int) -> None:
    if size and not clone_file(source, target):
        raise OSError(errno.EOPNOTSUPP, "the file system cannot share blocks")
