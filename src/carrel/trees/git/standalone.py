"""Plans how a copied folder gets git repositories of its own.

A checkout's repository need not lie in the checkout: a linked worktree and many
submodules have a file `.git` that points elsewhere, object stores borrow from others,
and a main checkout lists worktrees that are not in the copy. Copied as they are, such
repositories are broken, or worse: they write into the origin. The plan says what is to be
copied from elsewhere, rewritten or left out so that `git` in the copy works and touches
nothing outside.

Only reads files, never runs git: the folder may be hostile. Never raises for a
repository that is merely broken: that is copied as it is, and noted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.trees import Skipped
from carrel.trees.git import config
from carrel.trees.git.alternates import lenders, object_files
from carrel.trees.git.layout import (
    common_folder,
    find_roots,
    is_git_folder,
    lock_files,
    names,
    pointed_folder,
    private_paths,
    read_small,
    worktree_parts,
)


@dataclass(frozen=True)
class GitIndex:
    """An index file of the result, and the folder that its paths start from (b"": the
    top). The stat data of its entries wants `carrel.trees.git.index.restat`."""

    index: bytes
    worktree: bytes


@dataclass(frozen=True)
class GitPlan:
    """What differs from a plain copy. All destinations are relative to the top.

    For each path the first rule that names it counts: `generate`, then `replace`, then
    `omit`, then what the walk of the project (or of a replaced folder) finds. Folders
    above a destination are made where they are missing.
    """

    replace: tuple[tuple[bytes, Path], ...]
    """(destination, source): the destination gets what the source, a file or a folder
    with all below it, holds; sorted, so that a folder comes before what is in it."""
    generate: Mapping[bytes, bytes]
    """Files written with this content (mode 0644)."""
    omit: frozenset[bytes]
    """Left out, with all below them."""
    indexes: tuple[GitIndex, ...]
    notes: tuple[Skipped, ...] = ()
    """What could not be made whole."""
    at_top: bool = True
    """The folder itself is a checkout; else only folders in it are."""


def plan_git(source: Path, found: Iterable[bytes] | None = None) -> GitPlan | None:
    """The plan for a folder and every checkout in it; None when there is no repository.

    `found` are the folders (relative, b"" for the top) that hold an entry `.git`, when
    the caller has walked already; else they are looked for.
    """
    top = os.path.abspath(os.fsencode(source))
    roots = sorted(find_roots(top) if found is None else found)
    bare = b"" not in roots and is_git_folder(top)
    if not roots and not bare:
        return None
    planner = _Planner(top)
    if bare:
        planner.add_bare()
    for root in roots:
        planner.add(root)
    return planner.finish(at_top=b"" in roots)


def _relative(path: bytes, start: bytes) -> bytes:
    return os.path.relpath(b"/" + path, b"/" + start)


def _join(*parts: bytes) -> bytes:
    return os.path.join(b"", *parts)


class _Planner:
    """Works from the outermost checkout inwards: inner ones may live in outer ones."""

    def __init__(self, top: bytes) -> None:
        self._top = top
        # Where folders of the real world come to lie in the result.
        self._placed = [(os.path.realpath(top), b"")]
        self._replace: dict[bytes, bytes] = {}
        self._generate: dict[bytes, bytes] = {}
        self._omit: set[bytes] = set()
        self._indexes: list[GitIndex] = []
        self._notes: list[Skipped] = []
        self._owned: dict[bytes, bytes] = {}
        self._kept_worktrees: set[bytes] = set()

    def add(self, root: bytes) -> None:
        entry = os.path.join(self._top, root, b".git")
        if os.path.isdir(entry):
            target = os.path.realpath(entry)
        else:
            pointed = pointed_folder(entry)
            target = b"" if pointed is None else os.path.realpath(pointed)
        if not target or not is_git_folder(target):
            self._note(_join(root, b".git"), "does not lead to a repository; copied as it is")
            return
        common = os.path.realpath(common_folder(target))
        if common != target:
            self._add_linked(root, target, common)
        else:
            self._add_plain(root, entry, target)

    def add_bare(self) -> None:
        """The top is itself a git folder, without a checkout."""
        self._own(b"", os.path.realpath(self._top), None)

    def finish(self, *, at_top: bool) -> GitPlan:
        for folder, common in self._owned.items():
            self._omit_worktrees(folder, common)
        return GitPlan(
            replace=tuple(
                (to, Path(os.fsdecode(self._replace[to]))) for to in sorted(self._replace)
            ),
            generate=self._generate,
            omit=frozenset(self._omit - self._replace.keys() - self._generate.keys()),
            indexes=tuple(self._indexes),
            notes=tuple(self._notes),
            at_top=at_top,
        )

    def _note(self, path: bytes, why: str) -> None:
        self._notes.append(Skipped(os.fsdecode(path), why))

    def _locate(self, real: bytes) -> bytes | None:
        """Where in the result a real path comes to lie."""
        best: tuple[int, bytes] | None = None
        for folder, placed in self._placed:
            if real == folder or real.startswith(folder.rstrip(b"/") + b"/"):
                rest = real[len(folder) :].lstrip(b"/")
                if best is None or len(folder) > best[0]:
                    best = (len(folder), os.path.join(placed, rest) if rest else placed)
        return None if best is None else best[1]

    def _add_plain(self, root: bytes, entry: bytes, target: bytes) -> None:
        """A repository with a folder of its own, at `.git` or where `.git` points to."""
        git = _join(root, b".git")
        located = self._locate(target)
        movable = not os.path.islink(entry) or not os.path.isabs(os.readlink(entry))
        if located is None or not movable:
            self._replace[git] = target
            self._placed.append((target, git))
            located = git
        elif located != git and not os.path.isdir(entry):
            self._point(root, located)
        self._own(located, target, root)

    def _add_linked(self, root: bytes, target: bytes, common: bytes) -> None:
        """A linked worktree: it stays one if its main repository comes along."""
        shared, own = self._locate(common), self._locate(target)
        if shared is None or own is None:
            self._materialise(root, target, common)
            return
        self._point(root, own)
        back = _relative(_join(root, b".git"), own)
        self._generate[_join(own, b"gitdir")] = back + b"\n"
        if os.path.isabs(read_small(os.path.join(target, b"commondir")) or b""):
            self._generate[_join(own, b"commondir")] = _relative(shared, own) + b"\n"
        self._kept_worktrees.add(own)
        self._omit.update(_join(own, path) for path in lock_files(target))
        self._add_index(own, target, root)
        self._own(shared, common, None)

    def _materialise(self, root: bytes, target: bytes, common: bytes) -> None:
        """Makes a linked worktree a repository: the common folder without what is its
        main worktree's own, and this worktree's own in its place."""
        git = _join(root, b".git")
        items = config.parse(read_small(os.path.join(common, b"config")) or b"")
        if config.last(items, "extensions.refstorage") == b"reftable":
            self._omit.add(git)
            self._note(git, "a linked worktree with reftable refs cannot stand alone; left out")
            return
        self._replace[git] = common
        self._placed += [(common, git), (target, git)]
        self._omit.update(_join(git, path) for path in private_paths(common))
        self._omit.discard(_join(git, b"worktrees"))
        for part in worktree_parts(target):
            self._replace[_join(git, part)] = os.path.join(target, part)
        self._own(git, common, root, own=target)
        plain = config.without(items, {"core.worktree", "core.bare"}.__contains__)
        self._generate[_join(git, b"config")] = plain + b"[core]\n\tbare = false\n"
        if config.is_true(config.last(items, "extensions.worktreeconfig")):
            extra = config.parse(read_small(os.path.join(target, b"config.worktree")) or b"")
            self._generate[_join(git, b"config.worktree")] = config.without(
                extra, {"core.worktree", "core.bare"}.__contains__
            )

    def _point(self, root: bytes, located: bytes) -> None:
        """Makes `.git` of a checkout a relative pointer, if it is not that already."""
        wanted = _relative(located, root)
        current = read_small(os.path.join(self._top, root, b".git")) or b""
        if os.path.normpath(current.removeprefix(b"gitdir:").strip()) != wanted:
            self._generate[_join(root, b".git")] = b"gitdir: " + wanted + b"\n"

    def _own(self, git: bytes, folder: bytes, root: bytes | None, own: bytes = b"") -> None:
        """Cuts what ties a git folder to its place. `own`: where its index is, if that
        is another folder."""
        if root is not None:
            self._add_index(git, own or folder, root)
        if git in self._owned:
            return
        self._owned[git] = folder
        moved = git in self._replace
        self._resolve_links(git, folder, moved=moved)
        for name in (b"config", b"config.worktree"):
            self._fix_worktree_setting(git, folder, name, root)
        self._take_borrowed(git, folder)
        self._note_partial(git, folder)
        self._omit.update(_join(git, path) for path in lock_files(folder))

    def _add_index(self, git: bytes, folder: bytes, root: bytes) -> None:
        if os.path.isfile(os.path.join(folder, b"index")):
            self._indexes.append(GitIndex(_join(git, b"index"), root))

    def _resolve_links(self, git: bytes, folder: bytes, *, moved: bool) -> None:
        """Parts that are symlinks to another repository (git-new-workdir, repo)."""
        parents = (b"", b"logs", b"objects")
        parts = [_join(up, name) for up in parents for name in names(_join(folder, up))]
        for part in parts:
            path = os.path.join(folder, part)
            if not os.path.islink(path):
                continue
            real = os.path.realpath(path)
            inside = real.startswith(folder + b"/") or (
                not moved and self._locate(real) is not None
            )
            if os.path.exists(real) and (os.path.isabs(os.readlink(path)) or not inside):
                self._replace[_join(git, part)] = real

    def _fix_worktree_setting(
        self, git: bytes, folder: bytes, name: bytes, root: bytes | None
    ) -> None:
        """`core.worktree` must lead to the checkout's place in the result."""
        items = config.parse(read_small(os.path.join(folder, name)) or b"")
        current = config.last(items, "core.worktree")
        if current is None:
            return
        apart = root is not None and git != _join(root, b".git")
        leads_to = os.path.normpath(os.path.join(b"/" + git, current))
        if not os.path.isabs(current) and (root is None or leads_to == b"/" + root.rstrip(b"/")):
            return
        plain = config.without(items, "core.worktree".__eq__)
        if root is not None and apart:
            value = config.quote(_relative(root, git))
            plain += b"[core]\n\tworktree = " + value + b"\n"
        self._generate[_join(git, name)] = plain

    def _take_borrowed(self, git: bytes, folder: bytes) -> None:
        """Objects of alternates come along; the list of alternates does not."""
        objects = os.path.join(folder, b"objects")
        lent, missing = lenders(objects)
        for lost in missing:
            self._note(_join(git, b"objects"), f"borrows from {os.fsdecode(lost)}, which is gone")
        if not lent and not missing:
            return
        present = set(object_files(objects))
        for lender in lent:
            for name in object_files(lender):
                if name not in present:
                    present.add(name)
                    self._replace[_join(git, b"objects", name)] = os.path.join(lender, name)
        # A chain of commit graphs may lean on one of a lender.
        for name in (b"alternates", b"commit-graphs"):
            self._omit.add(_join(git, b"objects/info", name))

    def _note_partial(self, git: bytes, folder: bytes) -> None:
        items = config.parse(read_small(os.path.join(folder, b"config")) or b"")
        if any(item.name.endswith(".promisor") and config.is_true(item.value) for item in items):
            self._note(git, "a partial clone: objects that were never fetched are not in it")

    def _omit_worktrees(self, git: bytes, common: bytes) -> None:
        """Else git takes branches for checked out in worktrees that are not here."""
        folder = _join(git, b"worktrees")
        listed = {_join(folder, name) for name in names(os.path.join(common, b"worktrees"))}
        if listed and not listed & self._kept_worktrees:
            self._omit.add(folder)
        self._omit |= listed - self._kept_worktrees
