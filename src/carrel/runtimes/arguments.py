"""The command line of bubblewrap for a sandbox with the host's toolchain."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.domain.limits import Limits
from carrel.domain.runtimes import Bind, Network, SandboxSpec
from carrel.linux.openat2 import open_real
from carrel.runtimes.etc import OWN_FILES, WITHHELD
from carrel.runtimes.sandbox import (
    HOME,
    HUB,
    INSIDE_ID,
    TOOLCHAIN,
    WORKSPACE,
    SandboxFolders,
    is_below,
)

if TYPE_CHECKING:
    from carrel.launcher.messages import MountPoint

LEAST_MEMORY_FILES = 1 << 20
"""What semaphores and the like need, however little is allowed."""
OWN_FOLDERS = ("/tmp", HUB, HOME)
"""Of a sandbox, which others may be bound below."""
STAGE = "/tmp"
"""Where the launcher shows us the staged mounts, as root."""
SECCOMP_FD = 10
INFO_FD = 11
HIDDEN = ("/proc/keys", "/proc/key-users")
"""Of an ordinary user, who has the sandbox's own host id, they would tell the host's keys."""


def arguments(
    program: str,
    spec: SandboxSpec,
    paths: dict[str, str],
    binds: list[Bind],
    places: list[str],
    *,
    survive: bool,
    pod: bool = False,
) -> list[str]:
    """`binds` begin with its own folders; `places` are those of the tree. `paths` says where
    bubblewrap finds what the sandbox shows; what is not in it comes later, and finds folders to be
    put on."""
    holder, name = _holder()
    tree = paths.get("tree")
    argv = [program, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--disable-userns", "--cap-drop", "ALL", "--clearenv"]
    if spec.network is Network.NONE and not pod:
        argv.append("--unshare-net")
    if not survive:
        argv.append("--die-with-parent")
    argv += ["--uid", str(INSIDE_ID), "--gid", str(INSIDE_ID), "--hostname", "carrel"]
    argv += _toolchain()
    argv += ["--ro-bind", paths["etc"], "/etc", "--dev", "/dev", "--proc", "/proc"]
    argv += devices(spec)
    argv += ["--symlink", "/tmp", "/var/tmp", "--dir", "/run"]
    bound = [_bound(paths.get(f"bind{number}"), bind) for number, bind in enumerate(binds)]
    own = len(OWN_FOLDERS)
    first, *others = places
    argv += chain.from_iterable(bound[:own])
    argv += ["--dir", first] if tree is None else ["--bind", tree, first]
    argv += chain.from_iterable(bound[own:])
    for target, instead in _masks(spec, binds):
        argv += ["--ro-bind", f"{paths['etc']}/{instead}", target]
    for place in others:
        argv += ["--dir", place] if tree is None else ["--bind", tree, place]
    argv += ["--ro-bind", holder, f"/run/{name}", "--remount-ro", "/"]
    return [*argv, *held_by(f"/run/{name}")]


def devices(spec: SandboxSpec, *more: str) -> list[str]:
    """What is in memory below /dev, and what of /proc is covered; `more` is put into /dev."""
    argv = ["--perms", "1777", "--size", str(memory_files(spec.limits)), "--tmpfs", "/dev/shm"]
    # What is written to /dev itself would be in memory too, and without a bound.
    argv += [*more, "--remount-ro", "/dev"]
    for hidden in filter(os.path.exists, HIDDEN):
        argv += ["--ro-bind", "/dev/null", hidden]
    return argv


def held_by(program: str) -> list[str]:
    """The end of the command line: what runs in the sandbox for as long as that is set up."""
    said = ["--seccomp", str(SECCOMP_FD), "--info-fd", str(INFO_FD), "--chdir", "/"]
    return [*said, "--", program]


def _bound(source: str | None, bind: Bind) -> list[str]:
    if source is None:
        return ["--dir", bind.target]
    return ["--bind" if bind.writable else "--ro-bind", source, bind.target]


def _masks(spec: SandboxSpec, binds: list[Bind]) -> Iterator[tuple[str, str]]:
    """What is put over hidden files and folders, by its name in our /etc. What the sandbox's user
    cannot get at needs none, and bubblewrap, which runs as that user, could not put one there."""
    named = {str(bind.source) for bind in binds}
    for bind in binds:
        top = str(bind.source)
        for path in spec.hidden:
            if path in named or not is_below(path, top) or not is_real(path):
                continue
            if all(map(_passes, _folders_between(top, path))):
                suffix = "folder" if os.path.isdir(path) else os.path.splitext(path)[1]
                instead = f"{WITHHELD}{suffix}"
                yield bind.target + path[len(top) :], instead if instead in OWN_FILES else WITHHELD


def _folders_between(top: str, path: str) -> Iterator[str]:
    while path != top:
        path = os.path.dirname(path)
        yield path


def _passes(folder: str) -> bool:
    if os.geteuid() == 0:
        return bool(os.stat(folder).st_mode & stat.S_IXOTH)
    return os.access(folder, os.X_OK)


def tree_places(spec: SandboxSpec) -> list[str]:
    """Where the sandbox shows its tree."""
    places = [WORKSPACE]
    for path in (spec.also_at, spec.and_at):
        # A link to /tmp there.
        at = f"/tmp{path.removeprefix('/var/tmp')}" if path.startswith("/var/tmp/") else path
        # Another sandbox of its pod could put a link there while this one is being set up.
        shared = bool(spec.pod) and is_below(at, "/tmp")
        nested = any(is_below(at, one) or is_below(one, at) for one in places)
        if not shared and not nested and _is_free(at, spec.binds):
            places.append(at)
    return places


def _is_free(path: str, binds: tuple[Bind, ...]) -> bool:
    """Whether a sandbox has nothing of its own there, nor below it, and can have something."""
    if not path.startswith("/") or os.path.normpath(path) != path:
        return False
    targets = [bind.target for bind in binds]
    own = (WORKSPACE, HOME, "/tmp", "/var/tmp", *targets)
    taken = (*TOOLCHAIN, "/etc", "/dev", "/proc", "/run", "/var/tmp", WORKSPACE, *targets)
    return not (
        any(is_below(path, one) for one in taken) or any(is_below(one, path) for one in own)
    )


def mount_points(spec: SandboxSpec, binds: list[Bind], places: list[str]) -> list[MountPoint]:
    """Those below what the sandbox may write, and keeps. Bubblewrap makes the folders on the way
    and follows links, while it still sees all of the host."""
    folders = SandboxFolders(spec.folder)
    writable = (("/tmp", folders.tmp), (HOME, folders.home))
    wanted: list[tuple[str, Path | None]] = [(bind.target, bind.source) for bind in binds]
    wanted += [(place, None) for place in places]
    return [
        {
            "above": str(kept),
            "path": target.removeprefix(f"{above}/"),
            "folder": source is None or source.is_dir(),
        }
        for target, source in wanted
        for above, kept in writable
        if target.startswith(f"{above}/")
    ]


def _toolchain() -> list[str]:
    """As the host has it: real folders bound, the links of merged systems made again."""
    argv: list[str] = []
    for path in TOOLCHAIN:
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            argv += ["--ro-bind", path, path]
    return argv


def _holder() -> tuple[str, str]:
    """`cat` under another name, so that nobody's `pkill cat` ends the sandbox. One program
    that plays many parts by its name must keep it."""
    found = shutil.which("cat", path="/usr/bin:/bin") or "/bin/cat"
    real = os.path.realpath(found)
    return real, "hold" if os.path.basename(real) == "cat" else "cat"


def memory_files(limits: Limits) -> int:
    """Files in memory count against the memory limit where the kernel enforces one. In any case
    they are not to be a way around the limits, nor to take all memory of the machine."""
    half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    asked = (limits.memory_bytes, limits.disk_bytes)
    return max(LEAST_MEMORY_FILES, min([half, *(one for one in asked if one is not None)]))


def is_real(path: str | Path) -> bool:
    try:
        os.close(open_real(os.fsencode(path), os.O_PATH))
    except OSError:
        return False
    return True
