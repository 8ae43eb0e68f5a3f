"""Where on this machine groups can be made, found by making one.

Version 2 has rules of its own: a group hands controllers on only when it has no process
itself (the root is exempt), and a process is moved only by whoever may write to both the
new group and the nearest one that holds the old and the new. So an ordinary user needs a
part of the tree that was delegated to him and that his processes are in already.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from carrel.linux import cgroupfs
from carrel.linux.cgroupfs import Hierarchy

PARENT = "carrel"
"""All groups are below one of this name."""
PROBE = "probe-"
_LEAF = "carrel-self"
"""Where the processes go that stand in the way of handing controllers on."""
_ROUNDS = 8
"""A process may have forked just before it was moved; a few times over is enough."""
LIMITING = ("memory", "pids", "cpu")
_USEFUL = frozenset({*LIMITING, "cpuacct", "freezer"})
_CHILD_TIMEOUT_S = 5.0
"""For a shell that reads one line to end once its input was closed."""


@dataclass(frozen=True)
class Site:
    """A folder that groups can be made in, with the controllers that they then have."""

    version: int
    folder: Path
    controllers: frozenset[str]


@dataclass(frozen=True)
class Survey:
    """The sites that work, and in sentences why others do not."""

    sites: tuple[Site, ...]
    refusals: tuple[str, ...]

    def having(self, controller: str) -> Site | None:
        return next((site for site in self.sites if controller in site.controllers), None)


def survey(trees: tuple[Hierarchy, ...] | None = None) -> Survey:
    """Tries every mounted tree: makes a group, moves a process into it, removes it."""
    trees = cgroupfs.hierarchies() if trees is None else trees
    sites: list[Site] = []
    refusals: list[str] = []
    for tree in trees:
        had = frozenset[str]().union(*(site.controllers for site in sites))
        if tree.version == 1 and not tree.controllers & _USEFUL - had:
            continue
        if not tree.writable:
            refusals.append(f"{tree.mount} is mounted read-only.")
            continue
        try:
            sites.append(_site(tree))
        except OSError as error:
            refusals.append(f"{error.filename or tree.mount}: {error.strerror}.")
    if not trees:
        refusals.append("No control groups are mounted.")
    return Survey(tuple(sites), tuple(refusals))


def _site(tree: Hierarchy) -> Site:
    """The best place in one tree. Raises the first refusal when there is none."""
    best: Site | None = None
    first: OSError | None = None
    wanted = len(tree.controllers.intersection(LIMITING))
    for parent in _parents(tree):
        try:
            site = _prepare(tree, parent)
            _try(site)
        except OSError as error:
            first = first or error
            continue
        if best is None or len(site.controllers) > len(best.controllers):
            best = site
        if len(site.controllers.intersection(LIMITING)) == wanted:
            break
    if best is None:
        raise first or OSError(errno.EACCES, "no group here belongs to this user", str(tree.mount))
    return best


def _parents(tree: Hierarchy) -> list[Path]:
    """Folders to try, the best first."""
    own = [tree.own] if tree.own is not None else []
    if os.geteuid() == 0:
        return list(dict.fromkeys([tree.mount, *own]))
    if tree.version == 1:
        return own
    # The uppermost folder that is ours holds all our processes, so that they can be moved.
    lineage = [path for folder in own for path in reversed((folder, *folder.parents))]
    ours = [path for path in lineage if path.is_relative_to(tree.mount) and _is_ours(path)]
    uid = os.geteuid()
    session = tree.mount / f"user.slice/user-{uid}.slice/user@{uid}.service"
    return list(dict.fromkeys([*ours[:1], *own, *([session] if session.is_dir() else [])]))


def _is_ours(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / cgroupfs.PROCS, os.W_OK)


def _prepare(tree: Hierarchy, parent: Path) -> Site:
    folder = parent / PARENT
    if tree.version == 1:
        folder.mkdir(exist_ok=True)
        return Site(1, folder, tree.controllers & _USEFUL)
    offered = cgroupfs.read(parent, "cgroup.controllers").split()
    wanted = frozenset(offered) & frozenset(LIMITING)
    if wanted - cgroupfs.subtree_controllers(parent):
        _step_aside(parent)
        cgroupfs.enable(parent, wanted)
    folder.mkdir(exist_ok=True)
    # What every group of version 2 does without a controller for it.
    built_in = {"cpuacct", "freezer"} if (folder / "cgroup.freeze").exists() else {"cpuacct"}
    return Site(2, folder, cgroupfs.enable(folder, wanted) | built_in)


def _step_aside(parent: Path) -> None:
    """Moves the processes of a group one down, so that it can hand controllers on. To try
    without would not only fail for memory: processors and processes would be handed on,
    and turn the group into one of threads, which nothing can be moved to."""
    if not (parent / "cgroup.type").exists():
        return  # the root of the tree, which may have both
    leaf = parent / _LEAF
    for _ in range(_ROUNDS):
        here = cgroupfs.read(parent, cgroupfs.PROCS).split()
        if not here:
            return
        leaf.mkdir(exist_ok=True)
        for pid in here:
            with contextlib.suppress(ProcessLookupError):
                cgroupfs.write(leaf, cgroupfs.PROCS, pid)
    raise OSError(errno.EBUSY, "processes that cannot be moved are in it", str(parent))


def probe_name() -> str:
    """Of a group that is made to see whether that works; tells who made it."""
    return f"{PROBE}{os.getpid()}-{secrets.token_hex(4)}"


def _sweep(folder: Path) -> None:
    """Removes what one that died while it tried has left."""
    for group in folder.glob(f"{PROBE}*"):
        if not Path(f"/proc/{group.name.removeprefix(PROBE).split('-')[0]}").exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def _try(site: Site) -> None:
    """Does once what a sandbox will need. Raises OSError."""
    _sweep(site.folder)
    group = site.folder / probe_name()
    group.mkdir()
    try:
        with _child() as pid:
            cgroupfs.join([str(group / cgroupfs.PROCS)], pid)
            if pid not in cgroupfs.members(group):
                raise OSError(errno.EIO, "a process that was moved is not here", str(group))
    finally:
        removed = cgroupfs.remove(group)
    if not removed:
        raise OSError(errno.EBUSY, "a group that was made cannot be removed", str(group))


@contextlib.contextmanager
def _child() -> Iterator[int]:
    """A process to be moved, which ends when it is no longer needed."""
    with subprocess.Popen(
        ["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield process.pid
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_CHILD_TIMEOUT_S)
