"""The limit of disk space: by the file system's project quota, else by looking.

A quota refuses the write that would go over it. Looking finds out within a second or so
that it has happened, and can only end the command then.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import secrets
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.errors import LimitsUnavailable
from carrel.domain.trees import Owner
from carrel.linux import quota

PERIOD_S = 1.0
"""How often disk use is looked at."""
_SHARE = 4
"""A walk that takes long is followed by a pause this many times as long, so that looking
never takes more than a fifth of one processor."""
MAX_DEPTH = 128
"""Folders are held open on the way down. No project is this deep; one that is counts as
over its limit, else data could be hidden there."""
TOO_DEEP = sys.maxsize

_FIRST_PROJECT = 1_900_000_000
_PROJECTS = 100_000_000
_TRIES = 64
_PROBE_LIMIT = 256 * 1024
_PROBE_WRITE = 4 * _PROBE_LIMIT
_PROBE_TIMEOUT_S = 10.0
"""To write a megabyte; more than a busy disk needs."""

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ProjectQuotas:
    """Limits of folders by project quota. All methods block shortly; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tried: dict[int, Availability] = {}

    def available(self, folder: Path, owner: Owner) -> Availability:
        """Tries it in `folder`, once for its file system: sets a limit and lets `owner`,
        who must not be root, write beyond it."""
        if os.geteuid() != 0:
            return Availability(False, "project quotas can be set by root only")
        device = folder.stat().st_dev
        known = self._tried.get(device)
        if known is None:
            known = self._tried[device] = self._look(folder, owner)
        return known

    def _look(self, folder: Path, owner: Owner) -> Availability:
        try:
            quota.get(folder, _FIRST_PROJECT)  # cheap where there are none
            probe = folder / f".quota-probe-{secrets.token_hex(6)}"
            probe.mkdir(mode=0o700)
            try:
                return self._try(probe, owner)
            finally:
                self._drop_probe(probe)
        except OSError as error:
            return Availability(
                False,
                f"the file system of {folder} keeps no project quotas ({error.strerror})",
                "mount it with pquota (xfs) or prjquota (ext4 with the project feature)",
            )

    def _try(self, probe: Path, owner: Owner) -> Availability:
        self.set(probe, _PROBE_LIMIT)
        fd = os.open(probe / "data", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # As the owner: root with all its capabilities is exempt on ext4.
            written = subprocess.run(
                ["head", "-c", str(_PROBE_WRITE), "/dev/zero"],
                stdout=fd,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                user=owner.uid,
                group=owner.gid,
                extra_groups=(),
                cwd="/",
                timeout=_PROBE_TIMEOUT_S,
                check=False,
            )
            size = os.fstat(fd).st_size
        except subprocess.TimeoutExpired:
            return Availability(False, "a write to try the quota did not end")
        finally:
            os.close(fd)
        if written.returncode != 0 and size < _PROBE_WRITE:
            return Availability(True, "a write beyond a project quota was refused")
        return Availability(False, "project quotas are kept here, but not enforced")

    def _drop_probe(self, probe: Path) -> None:
        (probe / "data").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.clear(probe)
        probe.rmdir()

    def set(self, folder: Path, limit_bytes: int) -> int:
        """Limits a folder with all that is in it and will be; answers its project.

        Idempotent: a folder keeps its project. Raises OSError when there are no quotas,
        `LimitsUnavailable` when no free project is found.
        """
        with self._lock:
            project = quota.project_of(folder)
            if project not in range(_FIRST_PROJECT, _FIRST_PROJECT + _PROJECTS):
                project = _free_project(folder)
            # The limit first: it also marks the project as taken.
            quota.set_limit(folder, project, limit_bytes)
        quota.assign(folder, project)
        return project

    def usage(self, folder: Path) -> int | None:
        """What the folder's project uses; None when it has none."""
        try:
            project = quota.project_of(folder)
            return quota.get(folder, project).used_bytes if project else None
        except OSError:
            return None

    def clear(self, folder: Path) -> None:
        """Lifts the limit of a folder; call it before the folder is removed. Idempotent."""
        with contextlib.suppress(FileNotFoundError):
            project = quota.project_of(folder)
            if project in range(_FIRST_PROJECT, _FIRST_PROJECT + _PROJECTS):
                quota.set_limit(folder, project, 0)


def _free_project(folder: Path) -> int:
    """From the folder's name, then the next ones: those of others have a limit or files."""
    digest = hashlib.sha256(os.fsencode(folder.resolve())).digest()
    start = int.from_bytes(digest[:8], "big")
    for step in range(_TRIES):
        project = _FIRST_PROJECT + (start + step) % _PROJECTS
        state = quota.get(folder, project)
        if state.limit_bytes == 0 and state.used_bytes == 0:
            return project
    raise LimitsUnavailable(
        f"No free quota project was found for {folder}.",
        hint="Lift the limits of projects whose folders are gone (repquota -P lists them).",
    )


def quota_in_force(folder: Path) -> bool:
    """Whether the folder has a limit by project quota now."""
    try:
        project = quota.project_of(folder)
        return project != 0 and quota.get(folder, project).limit_bytes > 0
    except OSError:
        return False


def disk_bytes(folders: Iterable[Path]) -> int:
    """What the folders take on disk: blocks, each file once, without what is mounted in
    them. Blocks that files share with others elsewhere count too.

    Follows no link. `TOO_DEEP` for one that is too deep to be measured. Of folders that
    cannot be read only the names count.
    """
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            fd = os.open(folder, _OPEN_FOLDER)
            total += os.fstat(fd).st_blocks * 512 + _walk(fd, _mount_of(fd), seen, 0)
    return min(total, TOO_DEEP)


def _walk(fd: int, mount: str, seen: set[tuple[int, int]], depth: int) -> int:
    """The sum below one open folder, which it closes."""
    try:
        if depth > MAX_DEPTH:
            return TOO_DEEP
        total, inner = _listed(fd, seen)
        device = os.fstat(fd).st_dev
        for name in inner:
            try:
                child = os.open(name, _OPEN_FOLDER, dir_fd=fd)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                    continue
                raise
            # Another device on the same mount is a subvolume of btrfs, and counts.
            if os.fstat(child).st_dev != device and _mount_of(child) != mount:
                os.close(child)
                continue
            total += _walk(child, mount, seen, depth + 1)
        return total
    finally:
        os.close(fd)


def _listed(fd: int, seen: set[tuple[int, int]]) -> tuple[int, list[str]]:
    """The sum of a folder's own entries, and the names of the folders among them."""
    total = 0
    inner: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(info.st_mode):
                inner.append(entry.name)
            elif info.st_nlink > 1:
                if (info.st_dev, info.st_ino) in seen:
                    continue
                seen.add((info.st_dev, info.st_ino))
            total += info.st_blocks * 512
    return total, inner


def _mount_of(fd: int) -> str:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return next((line for line in lines if line.startswith("mnt_id:")), "")


class DiskWatch:
    """Measures folders once a second and calls `on_over` with the figure when they have
    gone over the limit: once, until they are below it again.

    `pause`, `measure` and `clock` are for tests.
    """

    def __init__(
        self,
        folders: Iterable[Path],
        limit_bytes: int,
        on_over: Callable[[int], None],
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        measure: Callable[[Iterable[Path]], int] = disk_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folders = tuple(folders)
        self._limit = limit_bytes
        self._on_over = on_over
        self._pause = pause
        self._measure = measure
        self._clock = clock

    async def run(self) -> None:
        """Until it is cancelled."""
        over = False
        while True:
            began = self._clock()
            used = await asyncio.to_thread(self._measure, self._folders)
            took = self._clock() - began
            if used > self._limit and not over:
                self._on_over(used)
            over = used > self._limit
            await self._pause(max(PERIOD_S - took, took * _SHARE))
