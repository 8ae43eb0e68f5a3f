"""Plain folders that a sandbox is shown as they are: what is written there is the project's own."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

from carrel.domain.errors import (
    ProjectInvalid,
    ProjectNotAFolder,
    ProjectNotFound,
    ProjectUnreadable,
)
from carrel.domain.trees import Owner, TreeMount
from carrel.linux import mounts
from carrel.linux.libc import AT_FDCWD
from carrel.linux.openat2 import RESOLVE_NO_SYMLINKS, openat2, openat2_works
from carrel.trees.drivers.common import tree_errors
from carrel.trees.drivers.host_overlay import show_as

PROTECTED = frozenset(
    {"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root"}
    | {"/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var", "/workspace"}
)
"""Folders that are no project, however they are named."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEVER_BELOW = ("/proc/", "/sys/", "/dev/")


class PlainProjects:
    """Implements `carrel.service.instances.places.Projects`."""

    def owner(self, path: Path) -> Owner:
        name = str(path)
        if name in PROTECTED or name.startswith(_NEVER_BELOW) or name == _home():
            raise ProjectInvalid(
                f"{name} is a folder of the system or a whole home, and no project.",
                hint="Name the project's own folder.",
            )
        try:
            found = os.stat(path)
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except FileNotFoundError:
            raise ProjectNotFound(f"There is no folder {name}.", hint="Check the path.") from None
        except NotADirectoryError:
            raise ProjectNotAFolder(f"{name} is no folder.", hint="Name a folder.") from None
        except OSError as error:
            raise ProjectUnreadable(
                f"{name} cannot be read: {error.strerror}.", hint="Look at its permissions."
            ) from error
        if not stat.S_ISDIR(found.st_mode):
            raise ProjectNotAFolder(f"{name} is no folder.", hint="Name a folder.")
        return Owner(found.st_uid, found.st_gid)

    def mount(self, path: Path, owner: Owner) -> TreeMount:
        """An ordinary user's is resolved once more when it is bound, so a link is refused here:
        whoever may write in a folder above could have put one there since the last start."""
        with tree_errors("show the project to a sandbox"):
            os.close(open_real(path))
        if os.geteuid() != 0:
            return TreeMount(path)
        return TreeMount(path, detached=partial(_clone, path, owner))


def _home() -> str:
    return os.path.realpath(os.path.expanduser("~"))


def open_real(path: Path) -> int:
    """The path is a real one: a link on the way was put there since, to lead us elsewhere."""
    if not openat2_works():
        return _walk(path)
    flags = os.O_PATH | os.O_DIRECTORY
    return openat2(AT_FDCWD, os.fsencode(path), flags, resolve=RESOLVE_NO_SYMLINKS)


def _walk(path: Path) -> int:
    here = os.open("/", _FOLDER)
    for part in path.parts[1:]:
        try:
            below = os.open(part, _FOLDER, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


def _clone(path: Path, owner: Owner) -> int:
    with tree_errors("show the project to a sandbox"):
        place = open_real(path)
    try:
        return shown_clone(place, owner)
    finally:
        os.close(place)


def shown_clone(place: int, owner: Owner) -> int:
    """A detached mount that shows what is the project's owner's as the sandbox's."""
    with tree_errors("show the project to a sandbox"):
        clone = mounts.clone_mount(place)
        try:
            found = os.fstat(clone)
            own = Owner(found.st_uid, found.st_gid)
            if own != owner:
                show_as([clone], own, owner)
        except BaseException:
            os.close(clone)
            raise
    return clone
