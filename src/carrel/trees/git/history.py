"""Which commits a repository has that another one has not, read without git.

Both are git folders on disk, and whoever filled them is a stranger: nothing is followed, every size
and every walk is bounded. Where a reference leads to what cannot be read, nobody knows which
commits there are, and that is said. Only references and HEADs are looked at; what another machine
has was not made here, or is not only here.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from carrel.trees.git import config
from carrel.trees.git.object_store import (
    BYTES_A_US,
    COMMIT,
    MOST_DEPTH,
    OPEN_US,
    TAG,
    Effort,
    GitFiles,
    HistoryUnread,
    ObjectStore,
    folder_names,
    read_small,
)

_MOST_REFS = 10_000
_MAX_REFS_FILE, MAX_REF_FILE, MAX_CONFIG = 16 << 20, 4 << 10, 64 << 10
_MAX_SUBJECT = 200
OID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_HEAD = re.compile(
    rb"tree [0-9a-f]+\n((?:parent [0-9a-f]+\n)*)author [^\n]*\ncommitter ([^\n]*)(?:\n|\Z)"
)
"""How a commit begins; what else is in its head nobody looks at."""
_ELSEWHERE = re.compile(
    rb"(?i)(?!file:|(?:[a-z0-9+.-]+://)?(?:[^/@]*@)?(?:localhost|127\.|\[::1\]))"
    rb"(?:[a-z][a-z0-9+.-]*://|[^/:]+:(?!:|//))"
)
"""The address of a repository on another machine; not a path, a program, or this machine."""
_PACKED = re.compile(rb"^([0-9a-f]{40,64}) (refs/[^\n]+)$", re.MULTILINE)


@dataclass(frozen=True)
class MadeCommit:
    """`oid` as git writes it; `subject` is the first line of its message."""

    oid: str
    subject: str


def new_commits(now: GitFiles, before: GitFiles, folder: str, effort: Effort) -> list[MadeCommit]:
    """Those of the git folder that `now` has at this path and `before` has not, newest first.
    Raises `HistoryUnread`."""
    if stat.S_ISREG(now.mode(folder)):
        if not git_folder(now, folder):
            raise HistoryUnread
        # That one is looked at by itself.
        return []
    folder_names(now, folder)
    old = refs(before, folder, effort)
    tips = {name: oid for name, oid in refs(now, folder, effort).items() if old.get(name) != oid}
    if UNREADABLE in tips.values():
        raise HistoryUnread
    others = _other_machines(now, folder)
    fetched = {name: tips.pop(name) for name in list(tips) if name.startswith(others)}
    stash = tips.pop(b"refs/stash", None)
    with ObjectStore(now, folder, effort) as objects, ObjectStore(before, folder, effort) as known:
        walk = _Walk(objects, known.has, _shallow(now, folder, effort))
        for oid in fetched.values():
            walk.begin(oid)
        not_made = {commit.oid for commit in walk}
        for oid in tips.values():
            walk.begin(oid)
        made = [commit for commit in walk if commit.oid not in not_made]
        # A stash is two commits or three, and one thing.
        return [*walk.only([stash] if stash else []), *made]


def git_folder(files: GitFiles, path: str) -> str:
    """What a file in place of a git folder names; empty when that is not in the tree. It is a path
    of the sandbox, where the tree has several: its end is that in the tree."""
    said = read_small(files, path, MAX_REF_FILE) or b""
    named = os.fsdecode(said.removeprefix(b"gitdir:").strip())
    found = os.path.normpath(os.path.join("/", os.path.dirname(path), named))
    while found := found.partition("/")[2]:
        if files.mode(f"{found}/HEAD"):
            return found
    return ""


def _other_machines(files: GitFiles, folder: str) -> tuple[bytes, ...]:
    """How references begin that say what another machine has: it was fetched from there or pushed
    to it. A remote without such an address goes with the space."""
    items = config.parse(read_small(files, f"{folder}/config", MAX_CONFIG) or b"")
    if any(one.name.startswith("include") or one.name.endswith("insteadof") for one in items):
        return ()
    found: dict[str, bool] = {}
    for one in items:
        section, _, key = one.name.rpartition(".")
        if section.startswith("remote.") and key in ("url", "pushurl"):
            found[section] = found.get(section, True) and bool(_ELSEWHERE.match(one.value))
    names = [section.removeprefix("remote.") for section, there in found.items() if there]
    return tuple(os.fsencode(f"refs/remotes/{name}/") for name in names)


# References

UNREADABLE = b""


def refs(files: GitFiles, folder: str, effort: Effort) -> dict[bytes, bytes]:
    """What they point to, by name. HEADs and references of further checkouts are there too, those
    that only name another one are not. Raises `HistoryUnread`."""
    packed = read_small(files, f"{folder}/packed-refs", _MAX_REFS_FILE)
    if packed is None or folder_names(files, f"{folder}/reftable"):
        raise HistoryUnread
    effort.spend(len(packed) // BYTES_A_US)
    found = {name: oid for oid, name in _PACKED.findall(packed)}
    folders, files_of_refs = ["refs"], ["HEAD"]
    for name, mode in folder_names(files, f"{folder}/worktrees"):
        if stat.S_ISLNK(mode):
            raise HistoryUnread
        folders.append(f"worktrees/{name}/refs")
        files_of_refs.append(f"worktrees/{name}/HEAD")
    while folders:
        above = folders.pop()
        for name, mode in sorted(folder_names(files, f"{folder}/{above}")):
            into = folders if stat.S_ISDIR(mode) else files_of_refs
            into.append(f"{above}/{name}")
        if len(found) + len(folders) + len(files_of_refs) > _MOST_REFS:
            raise HistoryUnread
        effort.spend(OPEN_US)
    for path in files_of_refs:
        effort.spend(OPEN_US)
        said = read_small(files, f"{folder}/{path}", MAX_REF_FILE)
        # One that is being written is not there yet, and an empty one is left of a crash.
        if said is None or (said.strip() and not said.startswith(b"ref:")):
            first = (said or b"").partition(b"\n")[0].split(b" ")[0]
            found[os.fsencode(path)] = first if OID.fullmatch(first) else UNREADABLE
    return {name: oid for name, oid in found.items() if not name.endswith(b".lock")}


def _shallow(files: GitFiles, folder: str, effort: Effort) -> frozenset[bytes]:
    """Commits whose parents were never fetched."""
    said = read_small(files, f"{folder}/shallow", _MAX_REFS_FILE) or b""
    effort.spend(len(said) // BYTES_A_US)
    return frozenset(OID.findall(said))


# Walking


class _Commit(NamedTuple):
    oid: bytes
    parents: tuple[bytes, ...]
    time: int
    subject: str


class _Walk:
    """Every commit that can be reached from where it begins, up to those that are known. It can
    begin again elsewhere: what it has seen it does not give twice."""

    def __init__(
        self, objects: ObjectStore, known: Callable[[bytes], bool], shallow: frozenset[bytes]
    ) -> None:
        self._objects = objects
        self._known = known
        self._shallow = shallow
        self._seen: set[bytes] = set()
        self._next: list[tuple[int, _Commit]] = []

    def begin(self, oid: bytes) -> None:
        if oid in self._seen:
            return
        self._seen.add(oid)
        if self._known(oid):
            return
        commit = self._read(oid)
        if commit is not None:
            heapq.heappush(self._next, (-commit.time, commit))

    def __iter__(self) -> Iterator[MadeCommit]:
        while self._next:
            commit = heapq.heappop(self._next)[1]
            for parent in () if commit.oid in self._shallow else commit.parents:
                self.begin(parent)
            yield MadeCommit(commit.oid.decode(), commit.subject)

    def only(self, oids: Sequence[bytes]) -> Iterator[MadeCommit]:
        """These themselves, without those before them."""
        for oid in oids:
            commit = None if oid in self._seen or self._known(oid) else self._read(oid)
            if commit is not None:
                yield MadeCommit(commit.oid.decode(), commit.subject)

    def _read(self, oid: bytes) -> _Commit | None:
        """None for the tag of one that is known, or was seen."""
        for _ in range(MOST_DEPTH):
            kind, content = self._objects.read(oid)
            if kind == COMMIT:
                return _parsed(oid, content)
            target = content.partition(b"\n")[0].removeprefix(b"object ")
            if kind != TAG or not OID.fullmatch(target):
                raise HistoryUnread
            oid = target
            if oid in self._seen or self._known(oid):
                return None
            self._seen.add(oid)
        raise HistoryUnread


def _parsed(oid: bytes, content: bytes) -> _Commit:
    """Raises `HistoryUnread` for what git would not write."""
    head = _HEAD.match(content)
    if head is None:
        raise HistoryUnread
    said = head[2].rsplit(b" ", 2)[1:2]
    message = content.partition(b"\n\n")[2].lstrip()[: 4 * _MAX_SUBJECT]
    subject = message.partition(b"\n")[0].decode("utf-8", "replace")
    return _Commit(
        oid,
        tuple(OID.findall(head[1])),
        int(said[0]) if said and said[0].isdigit() and len(said[0]) < 16 else 0,
        subject.rstrip()[:_MAX_SUBJECT],
    )
