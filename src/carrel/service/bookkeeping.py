"""Which changes of a tree nobody would miss: git's own notes, without the work in it.

A look at the state of a repository already rewrites its index. What a person would miss are
the files, and in the repository what names work: branches, tags, the stash, HEAD.
"""

from __future__ import annotations

_WORK = ("HEAD", "packed-refs", "refs", "config", "hooks", "MERGE_HEAD", "CHERRY_PICK_HEAD")


def is_bookkeeping(path: str) -> bool:
    parts = path.split("/")
    if ".git" not in parts:
        return False
    inside = parts[parts.index(".git") + 1 :]
    while len(inside) >= 2 and inside[0] in ("modules", "worktrees"):
        inside = inside[2:]
    if not inside or inside[0] not in _WORK:
        return True
    # Folders of references are made and removed as references come and go.
    return inside == ["refs"]
