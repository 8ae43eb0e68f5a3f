"""Control groups as files: where they are mounted, who is in one, how to empty one.

Knows version 1 (one tree per controller), version 2 (one tree for all) and both side by
side. What the limits mean is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from carrel.linux.processes import freeze_group, kill_group

PROCS = "cgroup.procs"
_EVENTS = "cgroup.events"
_UNIFIED = "0"
_SELF = Path("/proc/self")

KILL_TIMEOUT_S = 10.0
"""A killed process leaves as soon as it runs; only one stuck in the kernel takes longer."""
REMOVE_TIMEOUT_S = 5.0
"""For the last processes of an emptied group to leave it."""
_ROUND_S = 0.2
"""How long the killed have to leave before others are looked for that they have forked."""
_LOOK_S = 0.002
"""Between two looks at a group: what is killed leaves it in microseconds."""


@dataclass(frozen=True)
class Hierarchy:
    """One mounted tree. `own` is the folder of the process that looked, None when it is
    not in this mount (another namespace's)."""

    version: int
    controllers: frozenset[str]
    mount: Path
    own: Path | None
    writable: bool = True
    root: str = "/"
    """The part of the tree that this mount shows."""


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _own_paths(text: str) -> dict[str, str]:
    """`/proc/self/cgroup`: the path by controller, and by "0" for version 2."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        for name in controllers.split(",") if controllers else [number]:
            paths[name] = path
    return paths


def _own_folder(mount: Path, root: str, path: str | None) -> Path | None:
    """Where a process's path is beneath a mount that shows only `root` of the tree."""
    if path is None or ".." in (*path.split("/"), *root.split("/")):
        return None
    try:
        inner = Path(path).relative_to(root)
    except ValueError:
        return None
    folder = mount / inner
    return folder if folder.is_dir() else None


def own_folder(tree: Hierarchy, process: Path = _SELF) -> Path | None:
    """Where this process is by now."""
    own = _own_paths((process / "cgroup").read_text())
    names = sorted(tree.controllers) if tree.version == 1 else [_UNIFIED]
    path = next((own[name] for name in names if name in own), None)
    return _own_folder(tree.mount, tree.root, path)


def hierarchies(process: Path = _SELF) -> tuple[Hierarchy, ...]:
    """All mounted trees, version 2 first, each once."""
    own = _own_paths((process / "cgroup").read_text())
    found: dict[tuple[int, frozenset[str]], Hierarchy] = {}
    for line in (process / "mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        root, point, options = (_unescape(field) for field in left.split()[3:6])
        kind, _source, super_options = right.split()[:3]
        mount, writable = Path(point), "ro" not in options.split(",")
        if kind == "cgroup2":
            version, names = 2, frozenset(read(mount, "cgroup.controllers").split())
            path = own.get(_UNIFIED)
        elif kind == "cgroup":
            version = 1
            names = frozenset(name for name in super_options.split(",") if name in own)
            path = next((own[name] for name in sorted(names)), None)
        else:
            continue
        tree = Hierarchy(version, names, mount, _own_folder(mount, root, path), writable, root)
        found.setdefault((version, names if version == 1 else frozenset()), tree)
    return tuple(sorted(found.values(), key=lambda tree: -tree.version))


def read(folder: Path, name: str) -> str:
    """A file of a group; empty when there is no such file or group."""
    try:
        return (folder / name).read_text()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
            return ""
        raise


def read_table(folder: Path, name: str) -> dict[str, int]:
    """A file of `key number` lines."""
    pairs = (line.split() for line in read(folder, name).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def read_number(folder: Path, name: str) -> int | None:
    text = read(folder, name).strip()
    return int(text) if text.isdigit() else None


def write(folder: Path, name: str, value: str) -> None:
    """One write, as the kernel wants it: it takes each write as a command. OSError."""
    fd = os.open(folder / name, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def below(folder: Path) -> list[Path]:
    """The groups of a tree, the deepest first, `folder` itself last; empty when it is
    not there."""
    try:
        with os.scandir(folder) as entries:
            inner = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [group for child in inner for group in below(child)] + [folder]


def members(folder: Path) -> set[int]:
    """The processes in a group and below it, by their number here."""
    found: set[int] = set()
    for group in below(folder):
        with contextlib.suppress(FileNotFoundError):
            found.update(int(line) for line in read(group, PROCS).split())
    found.discard(0)  # processes of another pid namespace have no number here
    return found


def populated(folder: Path) -> bool:
    """Whether any process is in the group or below it."""
    events = read_table(folder, _EVENTS)
    if "populated" in events:
        return events["populated"] != 0
    return any(read(group, PROCS).strip() for group in below(folder))


def wait_empty(folder: Path, timeout: float) -> bool:
    """Waits until no process is left in the group or below it."""
    deadline = time.monotonic() + timeout
    while populated(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _kill_members(folder: Path) -> None:
    """Freezes first where that is possible, so that none can fork meanwhile."""
    freeze_group(str(folder), True)
    try:
        for pid in members(folder):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    finally:
        freeze_group(str(folder), False)


def kill(folder: Path, timeout: float = KILL_TIMEOUT_S) -> bool:
    """Kills every process of a group and below it, and waits until they are gone.

    Answers whether they are; a group that does not exist is empty.
    """
    deadline = time.monotonic() + timeout
    while populated(folder):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        if not kill_group(str(folder)):
            _kill_members(folder)
        wait_empty(folder, min(left, _ROUND_S))
    return True


def remove(folder: Path, timeout: float = REMOVE_TIMEOUT_S) -> bool:
    """Removes a group and those below it; answers whether it is gone. Kills nothing."""
    deadline = time.monotonic() + timeout
    while folder.exists():
        if _remove_once(folder):
            return True
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        if wait_empty(folder, min(left, _ROUND_S)):
            time.sleep(_LOOK_S)
    return True


def _remove_once(folder: Path) -> bool:
    for group in below(folder):
        try:
            os.rmdir(group)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return False
            raise
    return True


def join(procs: Iterable[str], pid: int = 0) -> None:
    """Moves a process, by default the caller, into groups by their `cgroup.procs` files."""
    for path in procs:
        write(Path(path).parent, PROCS, str(pid))


def subtree_controllers(folder: Path) -> frozenset[str]:
    """Version 2: the controllers that groups right below this one have."""
    return frozenset(read(folder, "cgroup.subtree_control").split())


def enable(folder: Path, names: Iterable[str]) -> frozenset[str]:
    """Version 2: hands controllers on to the groups below, each by itself so that one that
    cannot be had does not cost the others. Answers those that are on."""
    wanted = frozenset(names)
    for name in sorted(wanted - subtree_controllers(folder)):
        with contextlib.suppress(OSError):
            write(folder, "cgroup.subtree_control", f"+{name}")
    return subtree_controllers(folder) & wanted
