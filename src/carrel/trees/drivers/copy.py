"""Trees as plain copies: works everywhere, and costs time and room for every file."""

from __future__ import annotations

from carrel.domain.availability import Availability
from carrel.domain.trees import Base, Tree, TreeCapabilities
from carrel.linux.reflink import copy_file
from carrel.trees.drivers.assembling import Fill
from carrel.trees.drivers.common import enough_room, probe_folder
from carrel.trees.drivers.copies import Copies
from carrel.trees.usage import Cost, own_blocks


class CopyDriver(Copies):
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

    def _check_room(self, base: Base) -> None:
        enough_room(self._data, base)
