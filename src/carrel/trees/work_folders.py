"""Which folders of the host may be given to a sandbox to write in, and why others may not."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Iterable
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
from carrel.trees.mount_table import Inner, inner_path, mounted_below
from carrel.trees.projects import PROTECTED, open_real

_VARIABLE = {f"/var/{name}" for name in ("cache", "lib", "log", "mail", "opt", "spool", "tmp")}
_NEVER = PROTECTED | _VARIABLE | {"/media", "/mnt", "/usr/local"}
_NEVER_BELOW = ("/bin", "/boot", "/dev", "/etc", "/proc", "/run", "/sbin", "/sys", "/usr")
_BELOW_ALL_THE_SAME = ("/run/media", "/run/user", "/usr/local/src", "/usr/src")
"""Where people do have projects."""
_OWNER_READS = stat.S_IRUSR | stat.S_IXUSR
_OWNER_WRITES = stat.S_IWUSR | stat.S_IXUSR


class PlainFolders:
    """Implements `WorkFolders`. That something is mounted at a folder is no reason to refuse
    it; what is mounted is looked at by what it shows, under whatever name."""

    def __init__(self, data: Path) -> None:
        """`data` is Carrel's own folder, with the trees of all spaces."""
        self._data = data

    def check(self, path: str, taken: Iterable[str] = ()) -> str:
        real = _real(path)
        _refuse_protected(real)
        folder = _open(real)
        try:
            status = os.fstat(folder)
            _refuse_home(real, status.st_uid)
            self._refuse_own(real)
            _check_permissions(real, folder, status)
        finally:
            os.close(folder)
        for other in taken:
            if _nested(real, other):
                raise ProjectInUse(
                    f"Another space works in {other}.", hint="Wait for it, or remove it."
                )
        return real

    def _refuse_own(self, real: str) -> None:
        data = os.path.realpath(self._data)
        own = [inner_path(data), *mounted_below(data)]
        if _nested(real, data) or any(_same(inner_path(real), one) for one in own):
            raise ProjectInvalid(
                f"{real} is in Carrel's own data, or Carrel's data in it.",
                hint="Name the project's own folder.",
            )


def _real(path: str) -> str:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise ProjectInvalid("The path is no path.", hint="Send UTF-8.") from None
    if not os.path.isabs(path) or "\0" in path:
        raise ProjectInvalid("A folder is named by an absolute path.", hint="Write / first.")
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
            f"{real} is a whole home, or homes are in it.", hint="Name the project's own folder."
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
