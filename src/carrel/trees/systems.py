"""The systems of spaces: the files of an image, and what a space writes there kept apart.

A system is an overlay, as a tree is: the image below, a folder of the space's own above. On disk
the image has the ids that it came with; a map shows them as the space's own ids. As root it is
mounted on the host; for ordinary users the launcher mounts it beside the tree, in the namespace
that holds that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from carrel.domain.errors import ImageInvalid, TreeDamaged
from carrel.domain.launching import MountHelper, OverlayMount
from carrel.domain.systems import ImageAccount, Part, System
from carrel.domain.trees import Change, Tree, TreeLayer, TreeUsage
from carrel.linux import mounts
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import RANGE, may_give, open_ids
from carrel.linux.mounts import Overlay, descriptor_path
from carrel.linux.openat2 import open_beneath
from carrel.trees.drivers.common import all_blocks, measure, tree_errors
from carrel.trees.drivers.overlay import BackgroundCloser, attached, no_id_maps
from carrel.trees.folders import Root
from carrel.trees.parts import BELOW, UPPER, SpacePart, SystemPart, part_of
from carrel.trees.removal import remove_tree
from carrel.trees.shared_layers import SharedLayers

MOST_FILLED = 20_000
"""Entries of an image that a new volume begins with. Those that images have there are few."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
WORK, LOWER = "work", "lower"
_OPTIONS = (("redirect_dir", "on"), ("metacopy", "on"), ("index", "off"), ("nfs_export", "off"))


class Systems:
    """Implements `carrel.domain.systems.SystemMounts`. Blocking."""

    def __init__(self, helper: MountHelper, layers: SharedLayers) -> None:
        self._helper = helper
        self._layers = layers
        self._closer = BackgroundCloser()

    def part(self, part: Part, space: Path) -> SpacePart:
        """To be kept with the space that has this folder."""
        return part_of(part, space, self._layers, self._helper)

    def account(self, image: Path, wanted: str) -> ImageAccount:
        with Descriptor(os.open(image, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
            users = _lines(root, b"etc/passwd", 7)
            groups = _lines(root, b"etc/group", 3)
        name, _, group = wanted.partition(":")
        found = _user(users, name or "root")
        return found if not group else replace(found, gid=_group(groups, group))

    def ensure(self, system: System, layer: TreeLayer | None = None) -> None:
        """Idempotent: mounts it where it is not. Raises `TreeDamaged` if the image is gone, and
        `TreeUnavailable`."""
        if not system.image.is_dir():
            raise TreeDamaged(
                f"The files of the image {system.image_id} are gone.",
                hint="Import or build the image again, and make a new space.",
            )
        with tree_errors("mount the system"):
            if layer is not None and not (system.folder / UPPER).exists():
                system.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._layers.lend(layer, system.folder / BELOW)
            _make_folders(system)
            if os.geteuid() != 0:
                self._hold(system)
            elif not mounts.is_mounted(system.root):
                _mount(system, self._lowers(system))

    def _lowers(self, system: System) -> tuple[Path, ...]:
        """The uppermost first."""
        below = self._layers.of(system.folder / BELOW)
        return (system.image,) if below is None else (below, system.image)

    def make_volume(self, system: System, volume: Path, target: str) -> None:
        if volume.is_dir():
            return
        with tree_errors("make the volume"):
            draft = volume.with_name(f".{volume.name}.new")
            if draft.is_dir():
                remove_tree(draft)
            draft.mkdir(mode=0o755)
            if may_give():
                os.chown(draft, *system.shown(0, 0))
            with (
                Descriptor(
                    os.open(system.image, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                ) as root,
                contextlib.suppress(OSError),
                Descriptor(open_beneath(root, os.fsencode(target.lstrip("/")))) as source,
            ):
                _fill(system, source, draft, [MOST_FILLED])
            draft.rename(volume)

    def _hold(self, system: System) -> None:
        if system.key not in self._helper.held():
            self._helper.mount_overlay(
                system.key,
                OverlayMount(
                    lowers=self._lowers(system),
                    upper=system.folder / UPPER,
                    work=system.folder / WORK,
                    target=system.root,
                    beside=system.beside,
                    ranged=system.first_id is not None,
                ),
            )

    def changes(self, system: System) -> Iterator[Change]:
        part = SystemPart(system, system.folder.name, self._layers, self._helper)
        with tree_errors("compare the system"):
            yield from part.changes()

    def usage(self, system: System) -> TreeUsage:
        with tree_errors("measure the system"):
            if not (system.folder / UPPER).is_dir():
                return TreeUsage(0, 0)
            with Root.at(system.folder / UPPER) as root:
                return measure(root, all_blocks)

    def give_back(self, tree: Tree) -> None:
        """Root reads everybody's."""

    def drop(self, system: System) -> None:
        """Idempotent, whatever there is of it."""
        with tree_errors("remove the system"):
            held = None
            if os.geteuid() != 0:
                self._helper.release(system.key)
            else:
                with contextlib.suppress(FileNotFoundError):
                    if mounts.is_mounted(system.root):
                        held = os.open(system.root, os.O_PATH | os.O_CLOEXEC)
                    mounts.detach_all(str(system.root))
                    for number in (0, 1):
                        mounts.detach_all(str(system.folder / LOWER / str(number)))
            shared = (system.folder / BELOW).exists()
            try:
                if system.folder.exists():
                    remove_tree(system.folder)
                if shared:
                    self._layers.tidy()
            finally:
                if held is not None:
                    self._closer.close(held)


def _fill(system: System, source: int, folder: Path, left: list[int]) -> None:
    """As the image has that folder, with the ids of the space. Raises OSError where it is none."""
    found = os.fstat(source)
    if not stat.S_ISDIR(found.st_mode):
        return
    _as_it_is(system, found, folder)
    with os.scandir(descriptor_path(source)) as entries:
        names = sorted(entries, key=lambda one: one.name)
    for entry in names:
        left[0] -= 1
        if left[0] < 0:
            return
        info, target = entry.stat(follow_symlinks=False), folder / entry.name
        if stat.S_ISDIR(info.st_mode):
            target.mkdir(mode=0o700)
            with Descriptor(os.open(entry.name, _FOLDER, dir_fd=source)) as below:
                _fill(system, below, target, left)
        elif stat.S_ISLNK(info.st_mode):
            target.symlink_to(os.readlink(entry.name, dir_fd=source))
            _own(system, info, target)
        elif stat.S_ISREG(info.st_mode):
            with (
                open(os.open(entry.name, _FILE, dir_fd=source), "rb") as old,
                open(target, "xb") as new,
            ):
                shutil.copyfileobj(old, new)
            _as_it_is(system, info, target)


def _as_it_is(system: System, info: os.stat_result, path: Path) -> None:
    _own(system, info, path)
    os.chmod(path, stat.S_IMODE(info.st_mode) & 0o1777)


def _own(system: System, info: os.stat_result, path: Path) -> None:
    if may_give():
        owner = system.shown(*system.inside(info.st_uid, info.st_gid))
        os.chown(path, *owner, follow_symlinks=False)


def _make_folders(system: System) -> None:
    """The folder above has the mode and the owner of the image's root, as the space sees them."""
    system.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (system.folder / WORK).mkdir(mode=0o700, exist_ok=True)
    system.root.mkdir(mode=0o755, exist_ok=True)
    upper = system.folder / UPPER
    if upper.is_dir():
        return
    draft = system.folder / "upper.new"
    if draft.is_dir():
        remove_tree(draft)
    draft.mkdir(mode=0o700)
    top = system.image.stat()
    os.chmod(draft, stat.S_IMODE(top.st_mode))
    if os.geteuid() == 0:
        os.chown(draft, *system.shown(top.st_uid, top.st_gid))
    os.utime(draft, ns=(top.st_atime_ns, top.st_mtime_ns))
    draft.rename(upper)


def _mount(system: System, layers: tuple[Path, ...]) -> None:
    with contextlib.ExitStack() as stack:
        upper, work = mounts.open_layers([system.folder / UPPER, system.folder / WORK])
        stack.callback(mounts.close_all, (upper, work))
        lowers = stack.enter_context(_mapped(system, layers))
        overlay = Overlay(lowers, upper, work, _OPTIONS)
        try:
            mounts.mount_overlay(overlay, str(system.root))
        except OSError:
            # Before Linux 6.15, layers had to be attached somewhere, if only for a moment.
            with attached(lowers, system.folder / LOWER) as shown:
                mounted = Overlay(tuple(shown), upper, work, _OPTIONS)
                mounts.mount_overlay(mounted, str(system.root))


@contextlib.contextmanager
def _mapped(system: System, layers: tuple[Path, ...]) -> Iterator[tuple[int, ...]]:
    """As the space's own ids have them."""
    clones: list[int] = []
    try:
        for layer in layers:
            clones.append(mounts.clone_mount(str(layer)))
        namespace = open_ids(*system.ids)
        try:
            for clone in clones:
                mounts.map_ids(clone, namespace)
        except OSError as error:
            raise no_id_maps(error) from error
        finally:
            os.close(namespace)
        yield tuple(clones)
    finally:
        mounts.close_all(clones)


# Who is who in an image

_MOST_TEXT = 1024
"""Characters of a name or a path there."""
_MOST_LINES = 1 << 20
"""Bytes of such a file: a system has a few thousand."""


def _lines(root: int, path: bytes, fields: int) -> list[list[str]]:
    """Of a file of the image, which may be anything."""
    try:
        with Descriptor(open_beneath(root, path)) as place:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                return []
            with open(mounts.descriptor_path(place), "rb") as file:
                text = file.read(_MOST_LINES).decode("utf-8", "replace")
    except OSError:
        return []
    rows = [line.split(":") for line in text.splitlines()]
    return [row for row in rows if len(row) >= fields and row[2].isdecimal()]


def _user(users: list[list[str]], wanted: str) -> ImageAccount:
    """A number need not be anybody's. Without a list of users there is root."""
    for row in users:
        if wanted in (row[0], row[2]):
            uid, gid = _number(row[2]), _number(row[3])
            home, shell = _path(row[5], "/"), _path(row[6], "/bin/sh")
            return ImageAccount(uid, gid, row[0] if _is_plain(row[0]) else str(uid), home, shell)
    if wanted == "root":
        return ImageAccount()
    if wanted.isdecimal():
        return ImageAccount(_number(wanted), 0, wanted, "/", "/bin/sh")
    raise _unknown("user", wanted)


def _path(text: str, otherwise: str) -> str:
    return text if text.startswith("/") and _is_plain(text) else otherwise


def _is_plain(text: str) -> bool:
    """It is shown, and every command has it in its environment."""
    return text.isprintable() and len(text) <= _MOST_TEXT


def _group(groups: list[list[str]], wanted: str) -> int:
    for row in groups:
        if wanted in (row[0], row[2]):
            return _number(row[2])
    if wanted.isdecimal():
        return _number(wanted)
    raise _unknown("group", wanted)


def _number(text: str) -> int:
    if text.isdecimal() and len(text) < 8 and int(text) < RANGE:
        return int(text)
    raise _unknown("id", text)


def _unknown(what: str, name: str) -> ImageInvalid:
    return ImageInvalid(
        f"The image has no {what} {name[:80]!r} that commands could run as.",
        hint="Name another one in the image (USER), with a number below 65536.",
    )
