"""The commits that were made in a space, read without git and written again on a branch.

The space's git folder is hostile: our own code reads it, follows nothing, and takes an object only
if it is what its name says. What is read becomes commits in the repository of one landing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from carrel.domain.errors import LandingRefused
from carrel.review.rules import GITS
from carrel.review.states import GITLINK, AgentCommit, AgentFile, AgentWork
from carrel.trees.folders import Root
from carrel.trees.git.history import OID
from carrel.trees.git.object_store import (
    BLOB,
    COMMIT,
    TREE,
    Effort,
    GitFiles,
    HistoryUnread,
    ObjectStore,
    TreeGitFiles,
    read_small,
)

MOST_COMMITS = 1000
_MOST_FILES = 200_000
"""Of all commits together, with the folders on the way; each is named in memory."""
_LONGEST_PATH = 4096
"""As the kernel: no checkout has a longer one."""
_MOST_BYTES = 64 << 20
"""Of one file, which is in memory while it is copied."""
_EFFORT_US, _EFFORT_S = 300_000_000, 300.0
_HEAD_BYTES = 4096
_FOLDER = 0o40000
_COMMIT = re.compile(
    rb"tree ([0-9a-f]{40,64})\n((?:parent [0-9a-f]{40,64}\n)*)author ([^\n]*)\n"
    rb"committer [^\n]*\n((?:[^\n]+\n)*)\n",
)
_AUTHOR = re.compile(rb"[^<>\n\0]* <[^<>\n\0]*> \d{1,12} [+-]\d{4}")
_ENCODING = re.compile(rb"^encoding ([\w.:-]{1,40})$", re.MULTILINE)
_ENTRY = re.compile(rb"([0-7]{5,6}) ([^/\0]+)\0")
_HINT = "Land all of it as one commit: --squash"


def head_of(files: GitFiles) -> str:
    """The commit that a checkout is on; empty: there is none."""
    said = (read_small(files, ".git/HEAD", _HEAD_BYTES) or b"").strip()
    for _ in range(5):
        if OID.fullmatch(said):
            return said.decode()
        name = said.removeprefix(b"ref:").strip()
        if not name.startswith(b"refs/") or b".." in name:
            return ""
        loose = (read_small(files, f".git/{os.fsdecode(name)}", _HEAD_BYTES) or b"").strip()
        if not loose:
            packed = read_small(files, ".git/packed-refs", 16 << 20) or b""
            found = re.search(rb"^([0-9a-f]{40,64}) %s$" % re.escape(name), packed, re.MULTILINE)
            loose = found[1] if found else b""
        said = loose
    return ""


@contextmanager
def agent_work(root: Root, began: str) -> Iterator[AgentWork]:
    """The commits from `began` (empty: from the first one) to where the space's checkout is. Their
    files can be read while it is open. Raises `LandingRefused`."""
    with ExitStack() as stack:
        try:
            yield _read(stack, TreeGitFiles(root), began)
        except HistoryUnread as error:
            raise LandingRefused(
                "The commits of the space cannot be read: they are damaged, too many or too large,"
                f" or a file of theirs has more than {_MOST_BYTES >> 20} MiB.",
                hint=_HINT,
            ) from error


def _read(stack: ExitStack, files: GitFiles, began: str) -> AgentWork:
    effort = Effort(_EFFORT_US, _EFFORT_S)
    objects = stack.enter_context(ObjectStore(files, ".git", effort, _MOST_BYTES))
    head = head_of(files)
    if not head and began:
        raise LandingRefused("The space's checkout is on no commit.", hint=_HINT)
    chain = _chain(objects, head, began) if head else []
    tree = _object(objects, began.encode(), COMMIT) if began else b""
    before = _commit_at(began, tree).tree if began else b""
    made, left = [], _MOST_FILES
    for one in chain:
        changed = _changed(objects, before, one.tree, left)
        left -= len(changed)
        made.append(AgentCommit(one.oid, one.author, one.encoding, one.message, changed))
        before = one.tree
    return AgentWork(tuple(made), lambda oid: _object(objects, oid, BLOB))


@dataclass(frozen=True)
class _Commit:
    oid: str
    tree: bytes
    parents: tuple[bytes, ...]
    author: bytes
    encoding: bytes
    message: bytes


def _chain(objects: ObjectStore, head: str, began: str) -> list[_Commit]:
    """The oldest first."""
    found: list[_Commit] = []
    oid = head
    while oid != began:
        if len(found) >= MOST_COMMITS:
            raise LandingRefused(
                f"The space has more than {MOST_COMMITS:,} commits of its own.", hint=_HINT
            )
        commit = _commit_at(oid, _object(objects, oid.encode(), COMMIT))
        if len(commit.parents) > 1:
            raise LandingRefused(
                f"The commit {oid[:12]} is a merge, and commits land in a line.", hint=_HINT
            )
        if not commit.parents and began:
            raise LandingRefused(
                f"The space's commits do not stand on {began[:12]}, with which it began: its"
                " history was written anew.",
                hint=_HINT,
            )
        found.append(commit)
        oid = commit.parents[0].decode() if commit.parents else ""
    return found[::-1]


def _commit_at(oid: str, content: bytes) -> _Commit:
    head = _COMMIT.match(content)
    if head is None:
        raise HistoryUnread
    message = content[head.end() :]
    if not _AUTHOR.fullmatch(head[3]) or b"\0" in message:
        raise LandingRefused(
            f"The commit {oid[:12]} has an author or a message that git would refuse.", hint=_HINT
        )
    encoding = _ENCODING.search(head[4])
    said = encoding[1] if encoding else b""
    return _Commit(oid, head[1], tuple(OID.findall(head[2])), head[3], said, message)


def _object(objects: ObjectStore, oid: bytes, kind: int) -> bytes:
    found, content = objects.read(oid)
    if found != kind:
        raise HistoryUnread
    return content


def _changed(
    objects: ObjectStore, before: bytes, after: bytes, most: int
) -> dict[str, AgentFile | None]:
    """The files that differ between two trees, either of which may be missing; None: it is gone.
    Only folders that differ are read, and no more than `most` of both: a few small objects can
    name any number of them, and as deep."""
    found: dict[str, AgentFile | None] = {}
    pending = [("", before, after)]
    while pending:
        above, *trees = pending.pop()
        old, new = (_entries(objects, tree) for tree in trees)
        for name in sorted({*old, *new}):
            was, now = old.get(name), new.get(name)
            if was == now:
                continue
            path = f"{above}/{os.fsdecode(name)}" if above else os.fsdecode(name)
            most -= 1
            if most < 0 or len(path) > _LONGEST_PATH:
                raise HistoryUnread
            _check_name(path, now)
            folders = [one[1] if one and one[0] == _FOLDER else b"" for one in (was, now)]
            if now and not folders[1]:
                found[path] = AgentFile(now[0], now[1])
            elif was and not folders[0]:
                found[path] = None
            if any(folders):
                pending.append((path, folders[0], folders[1]))
    return found


def _check_name(path: str, now: tuple[int, bytes] | None) -> None:
    if GITS.search(path):
        raise LandingRefused(f"The work cannot land: git refuses the name {path!r}.", hint=_HINT)
    if now and now[0] == GITLINK:
        raise LandingRefused(
            f"The work cannot land: {path!r} is a repository of its own.", hint=_HINT
        )


def _entries(objects: ObjectStore, tree: bytes) -> dict[bytes, tuple[int, bytes]]:
    """Mode and object by name."""
    if not tree:
        return {}
    content, size = _object(objects, tree, TREE), len(tree) // 2
    found: dict[bytes, tuple[int, bytes]] = {}
    at = 0
    while at < len(content):
        entry = _ENTRY.match(content, at)
        if entry is None or entry[2] in (b".", b"..") or entry.end() + size > len(content):
            raise HistoryUnread
        at = entry.end() + size
        found[entry[2]] = (int(entry[1], 8), content[entry.end() : at].hex().encode())
    return found
