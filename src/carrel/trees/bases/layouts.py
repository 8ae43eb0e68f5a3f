"""How bases lie on disk: as layers over one another, or as whole subvolumes of btrfs."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Protocol

from carrel.domain.trees import Owner
from carrel.linux import btrfs
from carrel.trees.removal import remove_entry, remove_tree


class Layout(Protocol):
    """What the store asks for while it makes one base. All raise OSError."""

    @property
    def name(self) -> str: ...

    @property
    def layered(self) -> bool:
        """A base is what its layers show together; else its one layer has everything."""
        ...

    def begin(self, place: Path, previous: Path | None) -> None:
        """Makes the folder that is to become a layer. `previous` is the uppermost layer of
        the base that it follows."""
        ...

    def resume(self, place: Path) -> None:
        """Makes a folder that was begun, and maybe sealed, writable again."""
        ...

    def hide(self, folder: int, name: bytes) -> None:
        """Makes an entry of the previous base not appear in the new one."""
        ...

    def seal(self, place: Path) -> None:
        """Nothing is written any more."""
        ...

    def discard(self, place: Path) -> None:
        """Removes a layer, a half-made one too; idempotent."""
        ...


class LayeredLayout:
    """Thin layers in overlayfs's format. `owner` is whom all entries belong to."""

    name = "layered"
    layered = True

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def begin(self, place: Path, previous: Path | None) -> None:
        place.mkdir(mode=0o700)

    def resume(self, place: Path) -> None:
        pass

    def hide(self, folder: int, name: bytes) -> None:
        remove_entry(folder, name)
        # A whiteout. Linux lets everybody make this one device since 5.8.
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=folder)
        if os.geteuid() == 0:
            os.chown(name, self._owner.uid, self._owner.gid, dir_fd=folder)

    def seal(self, place: Path) -> None:
        pass

    def discard(self, place: Path) -> None:
        remove_tree(place)


class SubvolumeLayout:
    """Each base is a read-only subvolume: a snapshot of the one before, with the changes
    made in it."""

    name = "subvolume"
    layered = False

    def begin(self, place: Path, previous: Path | None) -> None:
        if previous is None:
            btrfs.create_subvolume(place)
            place.chmod(0o700)
        else:
            btrfs.snapshot(previous, place)

    def resume(self, place: Path) -> None:
        btrfs.set_read_only(place, False)

    def hide(self, folder: int, name: bytes) -> None:
        remove_entry(folder, name)

    def seal(self, place: Path) -> None:
        btrfs.set_read_only(place, True)

    def discard(self, place: Path) -> None:
        if not btrfs.is_subvolume(place):
            remove_tree(place)
            return
        btrfs.set_read_only(place, False)
        with contextlib.suppress(PermissionError):
            btrfs.delete_subvolume(place)
        # Ordinary users may not delete a subvolume, but an empty one goes like a folder.
        remove_tree(place)
