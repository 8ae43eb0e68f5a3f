"""Folders of the host that a sandbox is shown as they are: what is written there is the project's
own. Says which may be given to a sandbox to write in, and why others may not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import NoReturn

from carrel.domain.errors import (
    ProjectInUse,
    ProjectInvalid,
    ProjectNotAFolder,
    ProjectNotFound,
    ProjectReadOnly,
    ProjectUnreadable,
)
from carrel.domain.trees import Owner, TreeMount
from carrel.linux import mounts
from carrel.linux.descriptors import Descriptor
from carrel.linux.openat2 import open_real
from carrel.trees.drivers.common import tree_errors
from carrel.trees.drivers.overlay import show_as
from carrel.trees.mount_table import Inner, inner_path, mounted_below

PROTECTED = frozenset(
    {"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root"}
    | {"/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var", "/workspace"}
)
"""Folders that are no project, however they are named."""
_KERNELS = ("/proc/", "/sys/", "/dev/")


class PlainProjects:
    """Implements `carrel.service.instances.places.Projects`."""

    def owner(self, path: Path) -> Owner:
        name = str(path)
        if name in PROTECTED or name.startswith(_KERNELS) or name == _home():
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


# Folders to write in

_VARIABLE = {f"/var/{name}" for name in ("cache", "lib", "log", "mail", "opt", "spool", "tmp")}
_NEVER = PROTECTED | _VARIABLE | {"/media", "/mnt", "/usr/local"}
_NEVER_BELOW = ("/bin", "/boot", "/dev", "/etc", "/proc", "/run", "/sbin", "/sys", "/usr")
_BELOW_ALL_THE_SAME = ("/run/media", "/run/user", "/usr/local/src", "/usr/src")
"""Where people do have projects."""
_OWNER_READS = stat.S_IRUSR | stat.S_IXUSR
_OWNER_WRITES = stat.S_IWUSR | stat.S_IXUSR


class HostFolders:
    """Implements `WorkFolders`. That something is mounted at a folder is no reason to refuse
    it; what is mounted is looked at by what it shows, under whatever name."""

    def __init__(self, data: Path) -> None:
        """`data` is Carrel's own folder, with the trees of all spaces."""
        self._data = data

    def check(self, path: str, taken: Iterable[str] = ()) -> str:
        real = _real(path)
        _refuse_protected(real)
        with Descriptor(_open(real)) as folder:
            status = os.fstat(folder)
            _refuse_home(real, status.st_uid)
            self._refuse_own(real)
            _check_permissions(real, folder, status)
        for other in taken:
            if _nested(real, other):
                raise ProjectInUse(
                    f"Another space works in {other}.",
                    hint="Wait for it, or remove it.",
                    folder=other,
                )
        return real

    def _refuse_own(self, real: str) -> None:
        data = os.path.realpath(self._data)
        own = [inner_path(data), *(mount.shown for mount in mounted_below(data))]
        if _nested(real, data) or any(_same(inner_path(real), one) for one in own):
            raise ProjectInvalid(
                f"{real} is inside Carrel's own data folder, or contains it.",
                hint="Name the project's own folder.",
            )


def _real(path: str) -> str:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ProjectInvalid("The path is not valid UTF-8.", hint="Send it in UTF-8.") from None
    if not os.path.isabs(path) or "\0" in path:
        raise ProjectInvalid("A folder is named by an absolute path.", hint="Begin it with /.")
    return os.path.realpath(path)


def _refuse_protected(real: str) -> None:
    system = any(_within(real, folder) for folder in _NEVER_BELOW)
    usual = any(_within(real, folder) and real != folder for folder in _BELOW_ALL_THE_SAME)
    if real in _NEVER or (system and not usual):
        raise ProjectInvalid(
            f"{real} is a folder of the system, and no project.",
            hint="Name the project's own folder.",
        )


def _refuse_home(real: str, owner: int) -> None:
    """Also one that homes are in."""
    homes = {os.path.realpath(os.path.expanduser("~"))}
    with contextlib.suppress(KeyError):
        homes.add(os.path.realpath(pwd.getpwuid(owner).pw_dir))
    if os.path.dirname(real) == "/home" or any(_within(home, real) for home in homes):
        raise ProjectInvalid(
            f"{real} is a home folder, or contains home folders.",
            hint="Name the project's own folder.",
        )


def _open(real: str) -> int:
    """For looking at. Raises `ProjectError`s."""
    try:
        if not stat.S_ISDIR(os.lstat(real).st_mode):
            raise ProjectNotAFolder(f"{real} is no folder.", hint="Name a folder.")
        return open_real(Path(real))
    except OSError as error:
        _refuse(real, error)


def _refuse(real: str, error: OSError) -> NoReturn:
    if error.errno == errno.ENOENT:
        raise ProjectNotFound(f"There is no folder {real}.", hint="Check the path.") from None
    if error.errno == errno.ENOTDIR:
        raise ProjectNotAFolder(
            f"{real} is no folder, or leads through something that is none.", hint="Name a folder."
        ) from None
    if error.errno == errno.ENAMETOOLONG:
        raise ProjectInvalid("The path is too long.", hint="Shorten it.") from None
    raise ProjectUnreadable(
        f"{real} cannot be read: {error.strerror}.", hint="Look at its permissions."
    ) from error


def _check_permissions(real: str, folder: int, status: os.stat_result) -> None:
    """Root's own say nothing: a sandbox works in it as whom it belongs to."""
    place = f"/proc/self/fd/{folder}"
    if os.geteuid() == 0:
        reads = status.st_mode & _OWNER_READS == _OWNER_READS
        writes = status.st_mode & _OWNER_WRITES == _OWNER_WRITES
    else:
        reads = os.access(place, os.R_OK | os.X_OK)
        writes = os.access(place, os.W_OK | os.X_OK)
    if not reads:
        raise ProjectUnreadable(f"{real} may not be read.", hint="Look at its permissions.")
    if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
        raise ProjectReadOnly(
            f"{real} is on a read-only file system.", hint="Mount it for writing, or copy it."
        )
    if not writes:
        raise ProjectReadOnly(f"{real} may not be written.", hint="Look at its permissions.")


def _nested(one: str, other: str) -> bool:
    return _within(one, other) or _within(other, one)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _same(one: Inner, other: Inner) -> bool:
    return one.device == other.device and _nested(one.path, other.path)
