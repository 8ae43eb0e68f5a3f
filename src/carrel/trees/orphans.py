"""What is left on the machine of spaces that nobody knows: after a crash in the middle of
making or removing one, or with a record that was lost."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from carrel.domain.cleanup import Stray
from carrel.domain.errors import SpaceInvalid
from carrel.domain.ids import is_id, space_of
from carrel.domain.launching import MountHelper
from carrel.linux import mounts
from carrel.linux.descriptors import Descriptor
from carrel.trees.drivers import btrfs
from carrel.trees.drivers.common import PRIVATE, tree_errors
from carrel.trees.mount_table import mounted_below
from carrel.trees.paths import open_folder
from carrel.trees.removal import remove_tree

HELD = "held overlay"
MOUNT = "mount"
FOLDER = "folder"
USER = "user"
CLAIMS = ("uids", "ranges")
"""Folders of the claims on users, and on ranges of them."""


def strays(
    data: Path,
    known: Collection[str],
    helper: MountHelper | None = None,
    *,
    before: float | None = None,
) -> list[Stray]:
    """In the order in which they are to be removed: overlays that the launcher holds for
    ordinary users, mounts, folders, claims on users.

    Only what is named like a space is looked at. What changed at `before` (seconds since
    1970) or later is left out: a space whose record is being written, or a trial, may look
    like a stray for a moment. Raises `LauncherUnavailable`.
    """
    spaces = data / "spaces"
    found = list(_held(spaces, helper)) if helper is not None and os.geteuid() != 0 else []
    found += [Stray(MOUNT, _space_of(spaces, point), point) for point in _mounted(spaces)]
    found += [Stray(FOLDER, name, str(spaces / name)) for name in _names(spaces)]
    found += [claim for folder in CLAIMS for claim in _claims(data / folder)]
    unknown = [name for name in _names(spaces) if name not in known]
    working = {name for name in unknown if _holds_work(spaces / name)}
    return [
        dataclasses.replace(stray, holds_work=stray.space_id in working)
        for stray in found
        if _is_space(stray.space_id)
        and stray.space_id not in known
        and not _is_young(spaces, stray, before)
    ]


def remove_stray(stray: Stray, data: Path, helper: MountHelper | None = None) -> None:
    """Idempotent. Raises `TreeUnavailable` when the machine refuses, for instance because
    somebody still writes there, and `LauncherUnavailable`."""
    spaces = data / "spaces"
    if not _is_space(stray.space_id):
        raise SpaceInvalid(f"{stray.space_id[:80]!r} is no id of a space.")
    with tree_errors(f"remove the {stray.kind} {stray.path!r}"):
        if stray.kind == HELD:
            if helper is not None:
                for key in sorted(helper.held()):
                    if space_of(key) == stray.space_id != key:
                        helper.release(key)
                helper.release(stray.space_id)
        elif stray.kind == MOUNT:
            _unmount(spaces, stray.path)
        elif stray.kind == FOLDER:
            _remove_folder(spaces, stray.space_id)
        elif stray.kind == USER:
            _give_up(data, stray)


def remove_trial(folder: Path) -> None:
    """A folder in which an earlier daemon tried what works here, with all that it had
    mounted in there when it was killed. Idempotent. Raises `TreeUnavailable`."""
    with tree_errors(f"remove the trial {str(folder)!r}"):
        _remove_folder(folder.parent, folder.name)


def _is_space(name: str) -> bool:
    return is_id(name) and name.startswith("sp_")


def _held(spaces: Path, helper: MountHelper) -> Iterator[Stray]:
    # A space may have several: its tree's, and those of its systems.
    for space_id in sorted(set(map(space_of, helper.held()))):
        yield Stray(HELD, space_id, str(spaces / space_id / "project"))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _claims(folder: Path) -> Iterator[Stray]:
    """A claim on a user is a symlink that names the space."""
    for name in _names(folder):
        with contextlib.suppress(OSError):
            yield Stray(USER, os.readlink(folder / name), str(folder / name))


def _mounted(folder: Path) -> list[str]:
    """What is mounted below the folder, the last first: it may be on top of the others."""
    real = os.path.realpath(folder)
    points = [mount.point.removeprefix(real).lstrip("/") for mount in mounted_below(real)]
    return [str(folder / point) for point in reversed(points)]


def _space_of(spaces: Path, point: str) -> str:
    return Path(point).relative_to(spaces).parts[0]


def _holds_work(folder: Path) -> bool:
    """Whether a driver made a tree there: from then on there may be. In a trial of a runtime
    there is none."""
    try:
        return (folder / PRIVATE).is_dir()
    except OSError:
        return True


def _is_young(spaces: Path, stray: Stray, before: float | None) -> bool:
    if before is None:
        return False
    for path in (spaces / stray.space_id, Path(stray.path)):
        with contextlib.suppress(OSError):
            if os.lstat(path).st_ctime >= before:
                return True
    return False


def _unmount(spaces: Path, point: str) -> None:
    """Also what is in use. On the way there no symlink is followed: what is in a tree that
    is mounted itself was put there by strangers."""
    inside = os.path.relpath(point, spaces)
    above, name = os.path.split(inside)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), _folder(spaces) as root:
        try:
            folder = open_folder(root, os.fsencode(above))
        except OSError as error:
            if error.errno == errno.ELOOP:
                return
            raise
        try:
            mounts.detach_all(f"/proc/self/fd/{folder}/{name}")
        finally:
            os.close(folder)


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[int]:
    with Descriptor(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        yield descriptor


def _remove_folder(above: Path, name: str) -> None:
    folder = above / name
    for point in _mounted(folder):
        _unmount(above, point)
    # A snapshot goes at once; what is left of it, like every folder, one by one.
    if not folder.is_symlink() and (folder / "project").is_dir():
        btrfs.delete(folder / "project")
    remove_tree(folder)


def _give_up(data: Path, stray: Stray) -> None:
    """Unless somebody else has claimed the user since."""
    claim = Path(stray.path)
    if claim.parent.name not in CLAIMS:
        return
    path = data / claim.parent.name / claim.name
    with contextlib.suppress(FileNotFoundError):
        if os.readlink(path) == stray.space_id:
            path.unlink()
