"""How much of the disk sandboxes take, and their limit by project quota.

A quota refuses the write that would go over it. Where the file system has none, files are counted;
`watch.DiskWatch` says when.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import math
import os
import secrets
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from carrel.domain.availability import Availability
from carrel.domain.errors import LimitsUnavailable
from carrel.domain.trees import Owner
from carrel.linux import namespaces, processes, quota
from carrel.linux.subid_trial import usable
from carrel.linux.subids import enter

LOOK_S = 1.0
"""How often disk use is looked at."""
MAX_DEPTH = 128
"""Folders are held open on the way down. No project is this deep; one that is counts as
over its limit, else data could be hidden there."""
TOO_DEEP = sys.maxsize

FILE_BYTES = 4096
"""A sandbox may have as many files as there are blocks of this size in its limit …"""
LEAST_FILES = 100_000
"""… and at least so many: a limit of little room is not one of few files."""

_FIRST_PROJECT = 1_900_000_000
_PROJECTS = 100_000_000
_TRIES = 64
_PROBE_LIMIT = 256 * 1024
_PROBE_WRITE = 4 * _PROBE_LIMIT
_PROBE_TIMEOUT_S = 10.0
"""To write a megabyte; more than a busy disk needs."""

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Use(NamedTuple):
    """What is in use, or may be."""

    bytes: int
    files: int


class Steps:
    """How far a look has come, for who waits for it in another thread."""

    def __init__(self) -> None:
        self.taken = 0
        self.asks = False
        """Another process, which takes none of these steps."""
        self.given_up = False
        """Nobody wants to know any more: the look ends at its next step."""


def limit_of(limit_bytes: int, folder: Path) -> Use:
    """With the number of files that goes with it, which is never more than half of those that
    the file system can have."""
    disk = os.statvfs(folder)
    most = disk.f_files // 2 if disk.f_files else sys.maxsize
    return Use(limit_bytes, max(min(limit_bytes // FILE_BYTES, most), min(LEAST_FILES, most)))


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
            # Remembered for all on it, to whom this one's name is not told.
            return Availability(
                False,
                f"the file system of {folder.parent} keeps no project quotas ({error.strerror})",
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
                env={"PATH": os.defpath},
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

    def set(self, folder: Path, limit_bytes: int, beside: Iterable[Path] = ()) -> int:
        """Limits a folder with all that is in it and will be, together with those `beside` it
        that are limited already; answers its project.

        Idempotent: a folder keeps its project. Raises OSError when there are no quotas,
        `LimitsUnavailable` when no free project is found.
        """
        with self._lock:
            ours = range(_FIRST_PROJECT, _FIRST_PROJECT + _PROJECTS)
            known = (_project_of(one) for one in (folder, *beside))
            project = next((one for one in known if one in ours), 0) or _free_project(folder)
            # The limit first: it also marks the project as taken.
            quota.set_limit(folder, project, *limit_of(limit_bytes, folder))
        quota.assign(folder, project)
        return project

    def usage(self, folder: Path) -> Use | None:
        """What the folder's project uses; None when it has none."""
        try:
            project = quota.project_of(folder)
            found = quota.get(folder, project)
            return Use(found.used_bytes, found.used_files) if project else None
        except OSError:
            return None

    def clear(self, folder: Path) -> None:
        """Lifts the limit of a folder; call it before the folder is removed. Idempotent."""
        with contextlib.suppress(FileNotFoundError):
            project = quota.project_of(folder)
            if project in range(_FIRST_PROJECT, _FIRST_PROJECT + _PROJECTS):
                quota.set_limit(folder, project, 0)


def _project_of(folder: Path) -> int:
    try:
        return quota.project_of(folder)
    except FileNotFoundError:
        # One of those beside it, which has just gone.
        return 0


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


def disk_bytes(paths: Iterable[Path], until: float = math.inf) -> int:
    """What `disk_use` says of blocks; also of files. TimeoutError after that moment of the
    monotonic clock, OSError for folders that are too deep to be measured."""
    found = list(paths)
    files = [path.lstat().st_blocks * 512 for path in found if path.is_file()]
    total = disk_use(found, until=until).bytes + sum(files)
    if time.monotonic() > until:
        raise TimeoutError("measuring the disk took too long")
    if total >= TOO_DEEP:
        raise OSError(errno.ENAMETOOLONG, "too deep to measure")
    return total


def disk_use(
    folders: Iterable[Path],
    *,
    ask: bool = True,
    until: float = math.inf,
    steps: Steps | None = None,
) -> Use:
    """What the folders take on disk: the blocks of each file once, and all names, without what
    is mounted in them. Blocks that files share with others elsewhere count too.

    Follows no link. `TOO_DEEP` for one that is too deep to be measured. What is in folders that
    this user may not read is asked of a process that may, where the kernel lets us have one: half
    of the time is left to it. After `until`, a moment of the monotonic clock, what was found so
    far; `TOO_DEEP` when that process had time and did not end.
    """
    steps = steps or Steps()
    walk = _DiskWalk(until, steps)
    for folder in folders:
        walk.passed_by.add(f"{folder}/{_KERNELS}")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            fd = os.open(folder, _OPEN_FOLDER)
            walk.total += os.fstat(fd).st_blocks * 512
            walk.below(fd, _mount_of(fd), str(folder), 0)
        if walk.is_over():
            break
    found = Use(min(walk.total, TOO_DEEP), walk.count)
    if not walk.unreadable or not ask or steps.given_up:
        return found
    left = until - time.monotonic()
    steps.asks = True
    more = _ask_reader(walk.unreadable, until, steps)
    steps.asks = False
    if more.bytes >= TOO_DEEP and left < _READER_S and time.monotonic() > until:
        return found
    return Use(min(found.bytes + more.bytes, TOO_DEEP), found.files + more.files)


class _DiskWalk:
    def __init__(self, until: float, steps: Steps) -> None:
        self._until = until
        self._half = (time.monotonic() + until) / 2
        self._steps = steps
        self.total = 0
        self.count = 0
        self.unreadable: list[str] = []
        self.passed_by: set[str] = set()
        self._seen: set[tuple[int, int]] = set()
        self._entered: set[tuple[int, int]] = set()
        """Folders. One that is moved to where the walk has not been yet would be walked through
        again and again, and the walk would never end."""

    def is_over(self) -> bool:
        until = self._half if self.unreadable else self._until
        return self._steps.given_up or time.monotonic() > until

    def below(self, fd: int, mount: str, path: str, depth: int) -> None:
        """Adds what is below one open folder, which it closes."""
        try:
            if depth > MAX_DEPTH:
                self.total = TOO_DEEP
                return
            found = os.fstat(fd)
            device = found.st_dev
            if (device, found.st_ino) in self._entered:
                return
            self._entered.add((device, found.st_ino))
            for name in self._listed(fd, path):
                if self.is_over():
                    return
                self._steps.taken += 1
                inner = f"{path}/{name}"
                try:
                    child = os.open(name, _OPEN_FOLDER, dir_fd=fd)
                except OSError as error:
                    if error.errno == errno.EACCES:
                        self._leave_to_reader(inner)
                    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES):
                        continue
                    raise
                # Another device on the same mount is a subvolume of btrfs, and counts.
                if os.fstat(child).st_dev != device and _mount_of(child) != mount:
                    os.close(child)
                    continue
                self.below(child, mount, inner, depth + 1)
        finally:
            os.close(fd)

    def _leave_to_reader(self, path: str) -> None:
        if path in self.passed_by:
            return
        if len(path) > _LONGEST:
            self.total = TOO_DEEP
        else:
            self.unreadable.append(path)

    def _listed(self, fd: int, path: str) -> list[str]:
        """Adds a folder's own entries, and names the folders among them. Of one that can be
        read and not passed through, names are all that we get to know."""
        inner: list[str] = []
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except PermissionError:
                    self._leave_to_reader(path)
                    return []
                self.count += 1
                self._steps.taken += 1
                if self.count % _CLOCK == 0 and self.is_over():
                    return []
                if stat.S_ISDIR(info.st_mode):
                    inner.append(entry.name)
                elif info.st_nlink > 1:
                    if (info.st_dev, info.st_ino) in self._seen:
                        continue
                    self._seen.add((info.st_dev, info.st_ino))
                self.total += info.st_blocks * 512
        return inner


_CLOCK = 1024
"""A folder may have any number of names: after so many the clock is looked at."""
_KERNELS = "tree/work/work"
"""In the folder of a sandbox: where the kernel prepares what an overlay shows. No sandbox reaches
it, its owner may not read it, and asking another process about it would make each look slow."""
_LONGEST = 1000
"""Letters of a path that the kernel surely takes, whatever bytes they are."""
_RANGE = "range"
"""Tells a reader that there are further ids."""
_FORBIDDEN = 3
"""The exit code of a reader that may not have a namespace."""
_READER_S = 6.0
"""A reader that had as long as this and did not end is kept from it, or has millions of files to
count: that is over the limit, else data could be hidden there. It is more than a sandbox stands
still for (`watch.STILL_S`): what was found until then decides."""
_ASKING_S = 0.1
"""Between two looks at whether the answer of a reader is still wanted."""


def _ask_reader(paths: list[str], until: float, steps: Steps) -> Use:
    """From a process with a user namespace of its own, in which its user's files are no secret
    to it. Nothing is known where the kernel forbids that; one that fails otherwise was kept from
    looking by who moves folders around. It is killed when its time is over, or it is given up."""
    argv = processes.python("carrel.runtimes.limits.disk")
    argv += [_RANGE] if usable() is not None else []
    names: bytes | None = b"\0".join(os.fsencode(os.path.abspath(path)) for path in paths)
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=nothing, cwd="/") as reader:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    said, _ = reader.communicate(names, timeout=_ASKING_S)
                    break
                names = None  # It is being written: what is given a second time is refused.
                if steps.given_up or time.monotonic() > until:
                    steps.asks = False  # If it does not die, the walk is stuck.
                    reader.kill()
                    return Use(TOO_DEEP, 0)
        if reader.returncode:
            return Use(0 if reader.returncode == _FORBIDDEN else TOO_DEEP, 0)
        total, count = said.split()
        return Use(int(total), int(count))
    except (OSError, ValueError):
        return Use(0, 0)


def _mount_of(fd: int) -> str:
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return next((line for line in lines if line.startswith("mnt_id:")), "")


_IN_MEMORY = ("/memfd:", "/SYSV", "/dev/zero", "/[aio]", "/anon_hugepage")
"""Files without a name that take memory, and no disk."""
_SHARED_MEMORY = "/dev/shm/"
"""… and those there, unless it is a folder of the disk that the sandbox has in its place."""
MOST_LINKS = 200_000
"""Two seconds of looking. No honest space has so many descriptors; one that has counts as over
its limit, else it would keep all others from being looked at."""


LINKS_S = 5.0
"""… nor takes them so long to be looked at."""


def unlinked_use(pids: Iterable[int], folder: Path, steps: Steps | None = None) -> Use:
    """What processes hold of files and folders that have no name any more: open, or mapped.
    `TOO_DEEP` when they have more descriptors than can be looked at in time. `folder` is on the
    sandbox's disk."""
    until = time.monotonic() + LINKS_S
    disk = folder.stat().st_dev
    steps = steps or Steps()
    found: dict[tuple[int, int], int] = {}
    links = itertools.chain.from_iterable(map(_links, pids))
    for path in itertools.islice(links, MOST_LINKS):
        steps.taken += 1
        if steps.given_up:
            break
        with contextlib.suppress(OSError):
            info = os.stat(path)
            if (info.st_dev, info.st_ino) in found:
                continue
            if time.monotonic() > until:
                return Use(TOO_DEEP, len(found))
            kinds = stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)
            if info.st_nlink == 0 and kinds and not _is_in_memory(path, info, disk):
                found[info.st_dev, info.st_ino] = info.st_blocks * 512
    too_many = next(links, None) is not None
    return Use(TOO_DEEP if too_many else sum(found.values()), len(found))


def _is_in_memory(path: str, info: os.stat_result, disk: int) -> bool:
    """By the name that it had. One too long to be told is that of a file on the disk."""
    try:
        target = os.readlink(path)
    except OSError:
        return False
    elsewhere = target.startswith(_SHARED_MEMORY) and info.st_dev != disk
    return elsewhere or target.startswith(_IN_MEMORY)


def _links(pid: int) -> Iterator[str]:
    """Of /proc to what a process holds. Threads may have descriptors of their own. What is only
    mapped can be seen by root alone."""
    folders = [f"/proc/{pid}/map_files"] if os.geteuid() == 0 else []
    threads = processes.owners_of_descriptors(pid)
    folders += [f"/proc/{pid}/task/{one}/fd" for one in threads]
    # What it was executed from, which it may have unmapped, and where it is.
    yield from (f"/proc/{pid}/{name}" for name in ("exe", "cwd", "root"))
    for folder in folders:
        with contextlib.suppress(OSError):
            yield from (f"{folder}/{name}" for name in os.listdir(folder))


def main() -> int:
    """Says what folders take that their owner may not read: a process of its own, which
    `python -P -m carrel.runtimes.limits.disk` starts. Its input names them, separated by NUL.

    In a user namespace of its own, a process may read all files of its user, whatever their
    modes say, and changes nothing of them. With a range of ids, those of the others too.
    """
    folders = [Path(os.fsdecode(name)) for name in sys.stdin.buffer.read().split(b"\0")]
    try:
        if _RANGE in sys.argv:
            enter()
        else:
            namespaces.unshare_user()
    except OSError:
        return _FORBIDDEN
    print(*disk_use(folders, ask=False))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
