"""What belongs to a space beside its tree: the systems of its images, and its volumes.

A system is looked at through its layers: what the space wrote is in the upper folder, what it
began with as a fork below that, and the image at the bottom. It is written to through its mount,
where the kernel sees to it. Who owns an entry is told as the image has it: so a state fits a space
with other ids.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from carrel.domain.errors import TreeDamaged
from carrel.domain.launching import MountHelper
from carrel.domain.systems import MOUNTED, Part, System, Volume
from carrel.domain.trees import Change, Owner
from carrel.linux import mounts
from carrel.linux.openat2 import open_beneath
from carrel.trees.changes import Comparison, PathTest, every_path
from carrel.trees.drivers.common import note_prefix, open_roots
from carrel.trees.drivers.written import Written, as_written
from carrel.trees.folders import Root, split, walk
from carrel.trees.layers import LayerEntry, Layers
from carrel.trees.shared_layers import SharedLayers

UPPER, BELOW = "upper", "below"

Seen = Written


class Ids(Protocol):
    """Who is who: nothing to be told where everything belongs to one user."""

    @property
    def bits(self) -> int:
        """Of a file's mode that are kept."""
        ...

    @property
    def folder_bits(self) -> int: ...

    def stored(self, owner: tuple[int, int]) -> Owner:
        """Whom its kept file belongs to on the disk: as layers have them."""
        ...

    def inside(self, status: os.stat_result) -> tuple[int, int]:
        """As an image has them."""
        ...

    def outside(self, owner: tuple[int, int]) -> Owner:
        """On the host."""
        ...


class SpacePart(Protocol):
    """Blocking. Methods raise OSError."""

    @property
    def name(self) -> str:
        """The same in all forks of a space."""
        ...

    @property
    def base_id(self) -> str:
        """Of what is below it; empty: nothing is."""
        ...

    @property
    def ids(self) -> Ids: ...

    @property
    def own(self) -> Path:
        """The folder of the disk with what was written, in which files have their own paths: some
        of those that `open_root` shows."""
        ...

    @property
    def stays(self) -> frozenset[str]:
        """Folders with a mount in them, which are not removed."""
        ...

    @property
    def layered(self) -> bool:
        """A new one can begin with a layer."""
        ...

    def open_root(self) -> int:
        """To write in."""
        ...

    def base(self) -> AbstractContextManager[Layers | None]:
        """What it has where nothing is said of it."""
        ...

    def began(self) -> AbstractContextManager[Layers | None]:
        """What it began with, where that is not its base."""
        ...

    def now(self, root: Root, *, whole: bool = False) -> Iterator[Seen]:
        """What differs from the base, as it is; of a folder that went only the folder, unless
        `whole`."""
        ...


class SystemPart:
    def __init__(
        self, system: System, name: str, layers: SharedLayers, helper: MountHelper
    ) -> None:
        self.system = system
        self.ids: Ids = _IdsOf(system)
        self.name = name
        self.base_id = system.image_id
        if system.first_id is not None and os.geteuid() != 0:
            # Layers are kept as their system has them then.
            self.base_id += f"-{system.uid}-{system.gid}"
        self.own = system.folder / UPPER
        self.layered = True
        self._layers = layers
        self._helper = helper
        self._mounted = frozenset((*MOUNTED, *system.mounted))
        self.stays = frozenset(above for one in self._mounted for above in _above(one))

    def open_root(self) -> int:
        """Raises `TreeDamaged` where it is not mounted."""
        system = self.system
        if os.geteuid() != 0:
            if system.key not in self._helper.held():
                raise _not_mounted()
            return self._helper.open_in(system.key, system.root)
        if not mounts.is_mounted(system.root):
            raise _not_mounted()
        return os.open(system.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def base(self) -> Iterator[Layers | None]:
        with open_roots((self.system.image,)) as roots:
            yield Layers(roots, note_prefix())

    @contextlib.contextmanager
    def began(self) -> Iterator[Layers | None]:
        yield None

    def now(self, root: Root, *, whole: bool = False) -> Iterator[Seen]:
        return as_written(self.changes(links=True, renames=None), root.status, whole=whole)

    def changes(
        self, *, links: bool = False, renames: PathTest | None = every_path
    ) -> Iterator[Change]:
        """From its image, sorted by path."""
        folder = self.system.folder
        below = self._layers.of(folder / BELOW)
        folders = (folder / UPPER, *([] if below is None else [below]), self.system.image)
        with open_roots(folders) as roots:
            yield from Comparison(
                Layers(roots, note_prefix()),
                Layers(roots[-1:], note_prefix()),
                ignore=lambda path, _entry: path in self._mounted,
                links=links,
                renames=renames,
                same_owner=self._same_owner,
            ).changes()

    def _same_owner(self, one: LayerEntry, other: LayerEntry) -> bool:
        return self.ids.inside(one.status) == self.ids.inside(other.status)


class VolumePart:
    """Nothing is below it: all that is in it is its own."""

    base_id = ""
    stays = frozenset({""})
    layered = False

    def __init__(self, volume: Volume, name: str) -> None:
        self.own = volume.folder
        self._volume = volume
        self.ids: Ids = _IdsOf(volume.system)
        self.name = name

    def open_root(self) -> int:
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.own, flags)

    @contextlib.contextmanager
    def base(self) -> Iterator[Layers | None]:
        yield None

    @contextlib.contextmanager
    def began(self) -> Iterator[Layers | None]:
        """What the image has at its place, by no link that leads out of it."""
        image, target = self._volume.system.image, os.fsencode(self._volume.target.lstrip("/"))
        with contextlib.ExitStack() as stack:
            found = None
            if target:
                with contextlib.suppress(OSError), Root.at(image) as whole:
                    place = open_beneath(whole.folder(""), target)
                    found = stack.enter_context(Root(place, loosens=False))
            top = found.status("") if found is not None else None
            is_folder = top is not None and stat.S_ISDIR(top.st_mode)
            yield Layers([found], None) if found is not None and is_folder else None

    def now(self, root: Root, *, whole: bool = False) -> Iterator[Seen]:
        # Servers ask for a mode and an owner of the folder itself.
        yield "", root.status("")
        yield from walk(root)


def part_of(part: Part, space: Path, layers: SharedLayers, helper: MountHelper) -> SpacePart:
    """`space` is the folder of the space that has it."""
    name = part.folder.relative_to(space).as_posix()
    if isinstance(part, System):
        return SystemPart(part, name, layers, helper)
    return VolumePart(part, name)


PartOf = Callable[[Part, Path], SpacePart]
"""Of the space that has this folder."""


def no_parts(_part: Part, _space: Path) -> SpacePart:
    """For who looks at the tree alone."""
    raise TypeError("nothing is known beside the tree")


class OneOwner:
    """Everything in a tree is its owner's, and in bases the store's."""

    bits = 0o777
    folder_bits = 0o3777

    def __init__(self, owner: Owner, store: Owner) -> None:
        self._owner = owner
        self._store = store

    def stored(self, owner: tuple[int, int]) -> Owner:
        return self._store

    def inside(self, status: os.stat_result) -> tuple[int, int]:
        return 0, 0

    def outside(self, owner: tuple[int, int]) -> Owner:
        return self._owner


class _IdsOf:
    """Set-id bits stay: whoever makes them can have them, and they give nothing outside."""

    bits = folder_bits = 0o7777

    def __init__(self, system: System) -> None:
        self._system = system

    def stored(self, owner: tuple[int, int]) -> Owner:
        # Root's layers are mapped when they are mounted; nobody else's can be.
        return Owner(*(owner if os.geteuid() == 0 else self._system.shown(*owner)))

    def inside(self, status: os.stat_result) -> tuple[int, int]:
        return self._system.inside(status.st_uid, status.st_gid)

    def outside(self, owner: tuple[int, int]) -> Owner:
        return Owner(*self._system.shown(*owner))


def _above(path: str) -> Iterator[str]:
    while path := split(path)[0]:
        yield path


def _not_mounted() -> TreeDamaged:
    return TreeDamaged("The system is not mounted.", hint="It is mounted again by `ensure`.")
