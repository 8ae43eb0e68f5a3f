"""Plans how a copied folder gets git repositories of its own.

A checkout's repository need not lie in the checkout: a linked worktree and many
submodules have a file `.git` that points elsewhere, object stores borrow from others,
and a main checkout lists worktrees that are not in the copy. Copied as they are, such
repositories are broken, or worse: they write into the origin. The plan says what is to be
copied from elsewhere, rewritten or left out so that `git` in the copy works and touches
nothing outside.

Only reads files, never runs git: the folder may be hostile. What its content names outside
of it is not read, unless its owner said so (`repository.OutsideAccess`); and then only what
git needs of it. Links stay links. Never raises for a repository that is merely broken: that is
copied as it is, and noted.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.projects import GitReach
from carrel.domain.trees import Skipped
from carrel.trees.git import config
from carrel.trees.git.process import redact
from carrel.trees.git.repository import (
    SHARED_NAMES,
    OutsideAccess,
    RepositoryReader,
    find_roots,
    is_git_folder,
    is_within,
    lenders,
    lock_files,
    private_paths,
    state_paths,
)

_HINT = "; `carrel new --follow-git` takes what git needs from there"
_KEPT_SETTINGS = re.compile(
    r"core\.(repositoryformatversion|filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol"
    r"|safecrlf|logallrefupdates|sparsecheckout|sparsecheckoutcone|abbrev|quotepath)"
    r"|extensions\.\w+|index\.\w+|user\.(name|email)|branch\..+\.(remote|merge|rebase)"
    r"|remote\..+\.(url|pushurl|fetch|tagopt|promisor|partialclonefilter)"
    r"|submodule\..+\.(url|active|branch)",
    re.DOTALL,
)
"""Of a repository elsewhere: how its files are to be read, and where its commits come from and
go to. Nothing that names a program or another file, and no credentials."""
_MAX_NOTED_LINKS = 8
"""Of one repository: a hostile one can have any number."""


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
    with all below it, holds; sorted, so that a folder comes before what is in it. No link
    is followed, on the way to it or in it."""
    objects: tuple[tuple[bytes, Path], ...]
    """(destination, source): stores of objects. The destination gets what has the name of
    an object or a pack, lacks there, and is what its name says: see `objects`."""
    generate: Mapping[bytes, bytes]
    """Files written with this content (mode 0644)."""
    omit: frozenset[bytes]
    """Left out, with all below them."""
    indexes: tuple[GitIndex, ...]
    notes: tuple[Skipped, ...] = ()
    """What could not be made whole."""
    at_top: bool = True
    """The folder itself is a checkout; else only folders in it are."""


def plan_git(
    source: Path, found: Iterable[bytes] | None = None, outside: OutsideAccess | None = None
) -> GitPlan | None:
    """The plan for a folder (its real path) and every checkout in it; None when there is no
    repository. Raises OSError when the folder cannot be opened.

    `found` are the folders (relative, b"" for the top) that hold an entry `.git`, when
    the caller has walked already; else they are looked for. Without `outside`, nothing
    outside of the folder is read.
    """
    top = os.path.abspath(os.fsencode(source))
    if outside is None:
        outside = OutsideAccess(top, GitReach.NONE, Path(os.devnull))
    with RepositoryReader(top) as files:
        roots = sorted(find_roots(files) if found is None else found)
        bare = b"" not in roots and is_git_folder(files, top, top)
        if not roots and not bare:
            return None
        planner = _Planner(files, outside)
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

    def __init__(self, files: RepositoryReader, outside: OutsideAccess) -> None:
        self._files = files
        self._top = files.project
        self._outside = outside
        self._replace: dict[bytes, bytes] = {}
        self._objects: list[tuple[bytes, bytes]] = []
        self._generate: dict[bytes, bytes] = {}
        self._omit: set[bytes] = set()
        self._indexes: dict[bytes, GitIndex] = {}
        """By the path of each: any number of checkouts may name one git folder, and its index
        belongs to the first of them."""
        self._notes: list[Skipped] = []
        self._owned: dict[bytes, bytes] = {}
        self._kept_worktrees: set[bytes] = set()

    def add(self, root: bytes) -> None:
        git = _join(root, b".git")
        entry = os.path.join(self._top, git)
        before = len(self._outside.left_out)
        found = self._outside.reach(self._files, entry)
        if refused := self._outside.left_out[before:]:
            self._leave_out(git, entry, refused[0])
            return
        if found is None:
            self._note(git, "does not lead to a repository; copied as it is")
            return
        target, common = found
        if self._locate(target) is None or self._locate(common) is None:
            self._materialise(root, target, common)
        elif common != target:
            self._add_linked(root, target, common)
        else:
            self._add_plain(root, entry, target)

    def add_bare(self) -> None:
        """The top is itself a git folder, without a checkout."""
        self._own(b"", self._top, None)

    def finish(self, *, at_top: bool) -> GitPlan:
        for folder, common in self._owned.items():
            self._omit_worktrees(folder, common)
        return GitPlan(
            replace=tuple(
                (to, Path(os.fsdecode(self._replace[to]))) for to in sorted(self._replace)
            ),
            objects=tuple((to, Path(os.fsdecode(source))) for to, source in self._objects),
            generate=self._generate,
            omit=frozenset(self._omit - self._replace.keys() - self._generate.keys()),
            indexes=tuple(self._indexes.values()),
            notes=tuple(self._notes),
            at_top=at_top,
        )

    def _note(self, path: bytes, why: str) -> None:
        self._notes.append(Skipped(os.fsdecode(path), why))

    def _leave_out(self, git: bytes, entry: bytes, named: bytes) -> None:
        """Folders and links stay. A pointer goes: where a space can see what it points to,
        git would write there."""
        if stat.S_ISREG(self._files.mode(entry, follow=False)):
            self._omit.add(git)
        self._note(git, f"leads to {_shown(named)}, outside of the project; left out" + _HINT)

    def _locate(self, real: bytes) -> bytes | None:
        """Where in the result a real path comes to lie; None for what is outside."""
        if not is_within(real, self._top):
            return None
        return real[len(self._top) :].lstrip(b"/")

    def _add_plain(self, root: bytes, entry: bytes, target: bytes) -> None:
        """A repository with a folder of its own, at `.git` or where `.git` points to."""
        located = self._locate(target) or b""
        link = self._files.link(entry)
        if located != _join(root, b".git") and (link is None or os.path.isabs(link)):
            self._point(root, located)
        self._own(located, target, root)

    def _add_linked(self, root: bytes, target: bytes, common: bytes) -> None:
        """A linked worktree whose main repository is in the project: it stays one."""
        shared, own = self._locate(common) or b"", self._locate(target) or b""
        self._point(root, own)
        back = _relative(_join(root, b".git"), own)
        self._generate[_join(own, b"gitdir")] = back + b"\n"
        if os.path.isabs(self._files.read(os.path.join(target, b"commondir")) or b""):
            self._generate[_join(own, b"commondir")] = _relative(shared, own) + b"\n"
        self._kept_worktrees.add(own)
        self._omit.update(_join(own, path) for path in lock_files(self._files, target))
        self._add_index(own, target, root)
        self._own(shared, common, None)

    def _materialise(self, root: bytes, target: bytes, common: bytes) -> None:
        """Makes a repository of what is elsewhere: what git needs of the common folder, and
        the checkout's own. `target` and `common` are the same but for a linked worktree."""
        git = _join(root, b".git")
        items = self._settings(os.path.join(common, b"config"))
        if config.last(items, "extensions.refstorage") == b"reftable":
            self._omit.add(git)
            self._note(git, "a repository elsewhere with reftable refs is not taken; left out")
            return
        if self._locate(target) != git:
            self._omit.add(git)
        if target != common:
            self._omit.update(_join(git, path) for path in private_paths(self._files, common))
        for folder, parts in (
            (common, SHARED_NAMES),
            (target, tuple(state_paths(self._files, target))),
        ):
            for part in parts:
                path = os.path.join(folder, part)
                mode = self._files.mode(path, follow=False)
                if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                    self._replace[_join(git, part)] = path
        self._objects.append((_join(git, b"objects"), os.path.join(common, b"objects")))
        self._take_borrowed(git, common)
        self._note_partial(git, items)
        self._omit.update(_join(git, path) for path in lock_files(self._files, common))
        self._add_index(git, target, root)
        self._generate[_join(git, b"config")] = _kept(items) + b"[core]\n\tbare = false\n"
        if config.is_true(config.last(items, "extensions.worktreeconfig")):
            extra = self._settings(os.path.join(target, b"config.worktree"))
            self._generate[_join(git, b"config.worktree")] = _kept(extra)

    def _settings(self, path: bytes) -> list[config.ConfigItem]:
        return config.parse(self._files.read(path) or b"")

    def _point(self, root: bytes, located: bytes) -> None:
        """Makes `.git` of a checkout a relative pointer, if it is not that already."""
        wanted = _relative(located, root)
        entry = os.path.join(self._top, root, b".git")
        current = b"" if self._files.link(entry) else self._files.read(entry) or b""
        if os.path.normpath(current.removeprefix(b"gitdir:").strip()) != wanted:
            self._generate[_join(root, b".git")] = b"gitdir: " + wanted + b"\n"

    def _own(self, git: bytes, folder: bytes, root: bytes | None) -> None:
        """Cuts what ties a git folder of the project to its place."""
        if root is not None:
            self._add_index(git, folder, root)
        if git in self._owned:
            return
        self._owned[git] = folder
        self._note_links(git, folder)
        names = (b"config", b"config.worktree")
        settings = {name: self._settings(os.path.join(folder, name)) for name in names}
        for name, items in settings.items():
            self._fix_worktree_setting(git, name, items, root)
        self._take_borrowed(git, folder)
        self._note_partial(git, settings[b"config"])
        self._omit.update(_join(git, path) for path in lock_files(self._files, folder))

    def _add_index(self, git: bytes, folder: bytes, root: bytes) -> None:
        if stat.S_ISREG(self._files.mode(os.path.join(folder, b"index"), follow=False)):
            path = _join(git, b"index")
            self._indexes.setdefault(path, GitIndex(path, root))

    def _note_links(self, git: bytes, folder: bytes) -> None:
        """Parts that are symlinks to another repository (git-new-workdir, repo) stay links,
        and lead nowhere when that is outside."""
        parents = (b"", b"logs", b"objects")
        parts = (_join(up, name) for up in parents for name in self._files.links(_join(folder, up)))
        noted = 0
        for part in parts:
            if self._files.leads_out(os.path.join(folder, part)):
                noted += 1
                if noted <= _MAX_NOTED_LINKS:
                    self._note(_join(git, part), "a link out of the project; stays a link")

    def _fix_worktree_setting(
        self, git: bytes, name: bytes, items: list[config.ConfigItem], root: bytes | None
    ) -> None:
        """`core.worktree` must lead to the checkout's place in the result."""
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
        before = len(self._outside.left_out)
        lent, lost = lenders(
            self._files, objects, lambda named: self._outside.admit_objects(self._files, named)
        )
        refused = {os.path.normpath(named) for named in self._outside.left_out[before:]}
        for named in lost:
            why = (
                f"outside of the project; left out{_HINT}" if named in refused else "which is gone"
            )
            self._note(_join(git, b"objects"), f"borrows from {_shown(named)}, {why}")
        if not lent and not lost:
            return
        self._objects += [(_join(git, b"objects"), lender) for lender in lent]
        # A chain of commit graphs may lean on one of a lender.
        for name in (b"alternates", b"commit-graphs"):
            self._omit.add(_join(git, b"objects/info", name))

    def _note_partial(self, git: bytes, items: list[config.ConfigItem]) -> None:
        if any(item.name.endswith(".promisor") and config.is_true(item.value) for item in items):
            self._note(git, "a partial clone: objects that were never fetched are not in it")

    def _omit_worktrees(self, git: bytes, common: bytes) -> None:
        """Else git takes branches for checked out in worktrees that are not here."""
        folder = _join(git, b"worktrees")
        names = self._files.names(os.path.join(common, b"worktrees"))
        listed = {_join(folder, name) for name in names}
        if listed and not listed & self._kept_worktrees:
            self._omit.add(folder)
        self._omit |= listed - self._kept_worktrees


def _kept(items: Iterable[config.ConfigItem]) -> bytes:
    """The settings that a repository elsewhere brings along, written anew."""
    kept = b""
    for item in items:
        if _KEPT_SETTINGS.fullmatch(item.name):
            section, _, key = os.fsencode(item.name).rpartition(b".")
            name, dot, sub = section.partition(b".")
            value = item.value
            if key in (b"url", b"pushurl"):
                value = os.fsencode(redact(os.fsdecode(value)))
            head = name + (b" " + config.quote(sub) if dot else b"")
            kept += b"[" + head + b"]\n\t" + key + b" = " + config.quote(value) + b"\n"
    return kept


def _shown(path: bytes) -> str:
    return os.fsdecode(os.path.normpath(path))[:200]
