"""Reads how a repository lies on disk: git folders, pointers to them, what is private.

Pure Python on untrusted files: only regular files are read, and only their beginning.
All paths are bytes, as the kernel has them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress

_MAX_SMALL_FILE = 4 << 20
"""Pointers are a line, configurations some kilobytes."""

_PSEUDO_REF = re.compile(rb"[A-Z][A-Z_]*")
_WORKTREE_NAMES = frozenset(
    {
        b"index",
        b"config.worktree",
        b"worktrees",
        b"modules",
        b"gitdir",
        b"commondir",
        b"locked",
        b"rebase-merge",
        b"rebase-apply",
        b"sequencer",
        b"gc.pid",
        b"info/sparse-checkout",
        b"logs/HEAD",
        b"refs/bisect",
        b"refs/rewritten",
        b"refs/worktree",
        b"logs/refs/bisect",
        b"logs/refs/rewritten",
        b"logs/refs/worktree",
    }
)
_POINTERS = frozenset({b"gitdir", b"commondir", b"locked", b"config.worktree"})
_SHARED_FOLDERS = frozenset({b"info", b"logs", b"refs", b"logs/refs"})


def read_small(path: bytes) -> bytes | None:
    """The content of a regular file, or None for anything else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return os.read(handle, _MAX_SMALL_FILE)
    except OSError:
        return None
    finally:
        os.close(handle)


def names(folder: bytes) -> list[bytes]:
    """What a folder holds, sorted; nothing when it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def find_roots(source: bytes) -> list[bytes]:
    """Every folder at or below `source` that holds an entry `.git`, outermost first."""
    roots: list[bytes] = []
    pending = [b""]
    while pending:
        relative = pending.pop()
        with suppress(OSError), os.scandir(os.path.join(source, relative)) as found:
            for entry in found:
                if entry.name == b".git":
                    roots.append(relative)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append(os.path.join(relative, entry.name))
    return sorted(roots)


def pointed_folder(pointer: bytes) -> bytes | None:
    """Where a `.git` file (`gitdir: …`) points to; None when it is no such file."""
    content = read_small(pointer)
    if content is None or not content.startswith(b"gitdir:"):
        return None
    target = content[len(b"gitdir:") :].strip(b" \t").rstrip(b"\r\n")
    if not target or b"\0" in target:
        return None
    return os.path.normpath(os.path.join(os.path.dirname(pointer), target))


def common_folder(git_folder: bytes) -> bytes:
    """The folder whose objects and refs it uses: its own, but for a linked worktree."""
    content = read_small(os.path.join(git_folder, b"commondir"))
    if not content or b"\0" in content:
        return git_folder
    return os.path.normpath(os.path.join(git_folder, content.rstrip(b"\r\n")))


def is_git_folder(folder: bytes) -> bool:
    """As git decides it: HEAD, and objects and refs here or in the common folder."""
    common = common_folder(folder)
    return os.path.lexists(os.path.join(folder, b"HEAD")) and all(
        os.path.isdir(os.path.join(common, part)) for part in (b"objects", b"refs")
    )


def private_paths(common: bytes) -> Iterator[bytes]:
    """What in a common folder belongs to its main worktree alone, relative to it."""
    for name in names(common):
        if name.startswith(b"sharedindex.") or _PSEUDO_REF.fullmatch(name):
            yield name
    yield from sorted(_WORKTREE_NAMES)


def worktree_parts(git_folder: bytes, folder: bytes = b"") -> Iterator[bytes]:
    """What a linked worktree's own git folder brings, relative to it: whole entries, but
    single ones of the folders that it shares with the common folder."""
    for name in names(os.path.join(git_folder, folder)):
        relative = os.path.join(folder, name)
        if relative in _SHARED_FOLDERS:
            yield from worktree_parts(git_folder, relative)
        elif relative not in _POINTERS and not name.endswith(b".lock"):
            yield relative


def lock_files(git_folder: bytes) -> Iterator[bytes]:
    """Locks and half-written packs of a git that is running or died, relative."""
    pending = [b""]
    while pending:
        relative = pending.pop()
        with suppress(OSError), os.scandir(os.path.join(git_folder, relative)) as found:
            for entry in found:
                path = os.path.join(relative, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    if path not in (b"objects", b"modules", b"lfs", b"worktrees"):
                        pending.append(path)
                elif entry.name.endswith(b".lock"):
                    yield path
    for folder in (b"objects/pack", b"objects/info"):
        for name in names(os.path.join(git_folder, folder)):
            if name.endswith(b".lock") or name.startswith(b"tmp_"):
                yield os.path.join(folder, name)
