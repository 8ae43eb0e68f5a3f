"""Work that was staged and is nowhere else, read without git: its content is in git's objects, and
only the index names it. As in `history`, whoever filled the git folder is a stranger.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from carrel.domain.errors import PathInvalid
from carrel.linux.descriptors import Descriptor
from carrel.trees.folders import DEEPEST, ENTRY_ERRORS, join
from carrel.trees.git import config
from carrel.trees.git.history import MAX_CONFIG, MAX_REF_FILE, OID, refs
from carrel.trees.git.index import HASHES, IndexName, MalformedIndex, walk
from carrel.trees.git.object_store import (
    BYTES_A_US,
    COMMIT,
    OPEN_US,
    TREE,
    Effort,
    GitFiles,
    HistoryUnread,
    ObjectStore,
    folder_names,
    read_small,
)
from carrel.trees.paths import LONGEST

_MAX_INDEX = 64 << 20
"""Of half a million files. Not more than one entry of it is in memory."""
_ENTRY_A_US = 8
"""Bytes of an index or a tree that are taken apart."""
_CHUNK = 1 << 16
_TREE = re.compile(rb"tree (%b)\n" % OID.pattern)
_MOST_TREES = 64
"""Folders of a commit that are kept in memory; paths come in order."""


class Staged(NamedTuple):
    """`path` is in the tree, `oid` names the content as git writes it."""

    path: str
    oid: str


def only_staged(now: GitFiles, before: GitFiles, folder: str, effort: Effort) -> Iterator[Staged]:
    """What the git folder that `now` has at this path names in an index, and nobody has otherwise:
    neither `before`, nor the commit that is checked out, nor a changed file. Raises
    `HistoryUnread`."""
    if stat.S_ISREG(now.mode(folder)):
        # A submodule's or a further checkout's: it is looked at where its index is.
        return
    linked = [f"{folder}/worktrees/{name}" for name, _ in folder_names(now, f"{folder}/worktrees")]
    with ObjectStore(now, folder, effort) as objects, ObjectStore(before, folder, effort) as known:
        for at in (folder, *linked):
            place = _work_tree(now, folder) if at == folder else None
            commit: _CommitFiles | None = None
            for entry in _new_entries(now, before, f"{at}/index", effort):
                oid = entry.oid.hex().encode()
                path = _checked(entry.path)
                if known.has(oid) or not objects.has(oid):
                    continue
                if place is not None and _is_changed(now, before, join(place, path), effort):
                    continue
                commit = commit or _CommitFiles(objects, _head(now, at, folder, effort), effort)
                if not commit.has(entry.path, oid):
                    yield Staged(join(folder if place is None else place, path), oid.decode())


def _new_entries(now: GitFiles, before: GitFiles, path: str, effort: Effort) -> Iterator[IndexName]:
    """Files in this index that are not the same in the older one. Both are sorted."""
    effort.spend(OPEN_US)
    data, old = (read_small(files, path, _MAX_INDEX) for files in (now, before))
    if data is None:
        raise HistoryUnread
    if not data or data == old:
        return
    nothing = {HASHES[size](b"blob 0\0").digest() for size in HASHES}
    known = _entries(old or b"", effort)
    last = next(known, None)
    for entry in _entries(data, effort):
        while last is not None and last.path < entry.path:
            last = next(known, None)
        is_file = stat.S_IFMT(entry.mode) in (stat.S_IFREG, stat.S_IFLNK)
        if entry != last and is_file and not entry.stage and entry.oid not in nothing:
            yield entry


def _entries(data: bytes, effort: Effort) -> Iterator[IndexName]:
    effort.spend(len(data) // BYTES_A_US)
    try:
        for entry in walk(data) if data else ():
            effort.spend(1 + len(entry.path) // _ENTRY_A_US)
            yield entry
    except MalformedIndex as error:
        raise HistoryUnread from error


def _checked(path: bytes) -> str:
    """As git takes it: it leads nowhere but into the tree. Raises `HistoryUnread`."""
    parts = path.split(b"/")
    strange = not {b"", b".", b"..", b".git"}.isdisjoint(parts) or len(max(parts, key=len)) > 255
    if strange or len(path) > LONGEST or len(parts) > DEEPEST:
        raise HistoryUnread
    return os.fsdecode(path)


def _work_tree(files: GitFiles, folder: str) -> str | None:
    """Where the files are of which a git folder has the index; None: nobody knows."""
    above, name = os.path.split(folder)
    if name == ".git":
        return above
    for one in config.parse(read_small(files, f"{folder}/config", MAX_CONFIG) or b""):
        if one.name == "core.worktree":
            found = os.path.normpath(os.path.join(folder, os.fsdecode(one.value)))
            return None if found.startswith(("/", "..")) or "\0" in found else found
    return None


def _is_changed(now: GitFiles, before: GitFiles, path: str, effort: Effort) -> bool:
    """Whether a file is there that counts by itself: one that is not as it was."""
    effort.spend(OPEN_US)
    try:
        mode, old = now.mode(path), before.mode(path)
        if not stat.S_ISREG(mode):
            return False
        if not stat.S_ISREG(old) or (mode ^ old) & stat.S_IXUSR:
            return True
        with Descriptor(now.open_file(path)) as mine, Descriptor(before.open_file(path)) as theirs:
            return _differ(mine, theirs, effort)
    except PathInvalid:
        # With the way to it, it is too long.
        raise HistoryUnread from None
    except OSError as error:
        if error.errno not in ENTRY_ERRORS:
            raise
        return False


def _differ(mine: int, theirs: int, effort: Effort) -> bool:
    size = os.fstat(mine).st_size
    if size != os.fstat(theirs).st_size:
        return True
    for at in range(0, size, _CHUNK):
        effort.spend(2 * _CHUNK // BYTES_A_US)
        if os.pread(mine, _CHUNK, at) != os.pread(theirs, _CHUNK, at):
            return True
    return False


def _head(files: GitFiles, at: str, folder: str, effort: Effort) -> bytes | None:
    """The commit that is checked out; None before the first one."""
    said = read_small(files, f"{at}/HEAD", MAX_REF_FILE) or b""
    if said.startswith(b"ref:"):
        return refs(files, folder, effort).get(said.removeprefix(b"ref:").strip())
    found = OID.match(said)
    return None if found is None else found[0]


class _CommitFiles:
    """What is in a commit. Raises `HistoryUnread`."""

    def __init__(self, objects: ObjectStore, commit: bytes | None, effort: Effort) -> None:
        self._objects = objects
        self._effort = effort
        self._trees: dict[bytes, dict[bytes, bytes]] = {}
        self._top: bytes | None = None
        if commit is not None:
            kind, content = objects.read(commit)
            found = _TREE.match(content)
            if kind != COMMIT or found is None:
                raise HistoryUnread
            self._top = found[1]

    def has(self, path: bytes, oid: bytes) -> bool:
        found = self._top
        for name in path.split(b"/"):
            if found is None:
                return False
            found = self._tree(found).get(name)
        return found == oid

    def _tree(self, oid: bytes) -> dict[bytes, bytes]:
        known = self._trees.get(oid)
        if known is None:
            if len(self._trees) >= _MOST_TREES:
                self._trees.clear()
            kind, content = self._objects.read(oid)
            if kind != TREE:
                # A file, where the path goes on.
                return {}
            self._effort.spend(len(content) // _ENTRY_A_US)
            known = self._trees[oid] = dict(_names(content, len(oid) // 2))
        return known


def _names(tree: bytes, size: int) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while (end := tree.find(b"\0", at)) > 0:
        name = tree[at:end].partition(b" ")[2]
        at = end + 1 + size
        yield name, tree[end + 1 : at].hex().encode()
