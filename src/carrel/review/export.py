"""Writes the work of a space as one file: a patch, a bundle or a tar.

As for a landing, the states of the space become commits in a repository of our own; what makes the
file is a git in there, which no setting of the space or the project reaches.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from carrel.domain.collaborators import Bases, Reviews
from carrel.domain.errors import LandingRefused, NothingToLand, ProjectInvalid
from carrel.domain.landing import BRANCHES
from carrel.domain.projects import GitReach
from carrel.domain.review import DELETED, ExportFormat, ExportRequest
from carrel.domain.spaces import Space
from carrel.domain.tar import pack_header
from carrel.domain.trees import Change, EntryType, ReviewQuery, Skipped, Tree, TreeDriver
from carrel.review.commits import head_of
from carrel.review.landing import (
    MOST_FILES,
    TreeWork,
    expect_change,
    fetch_commit,
    merge_states,
    project_of,
)
from carrel.review.rules import look_through
from carrel.review.takes import GITS
from carrel.review.work import WorkRepositories, WorkRepository
from carrel.trees.archives import LeftOut, Packer, gather
from carrel.trees.drivers.common import note_prefix, open_roots, tree_errors
from carrel.trees.folders import Root
from carrel.trees.git.mirror import Mirror
from carrel.trees.git.object_store import LayerGitFiles
from carrel.trees.git.personal import GUEST
from carrel.trees.git.remote import RemoteTrust, locate
from carrel.trees.git.version import expect_merging_git
from carrel.trees.layers import Layers

_FETCH_S = 600.0
_MOST_IN_PATCH = 256 << 20
"""Bytes of all files: git has both versions of one in memory, and once more as text."""
_PATCH = (
    *("format-patch", "-1", "--binary", "--full-index", "--no-signature", "-M", "-l400"),
    *("--no-ext-diff", "--no-textconv"),
)
_FILES = (EntryType.FILE, EntryType.SYMLINK)
_BLOCK = 512
Sends = Callable[[str, os.stat_result], None]


class TreeExports:
    """Implements `carrel.domain.review.Exporter`."""

    def __init__(
        self, data: Path, bases: Bases, reviews: Reviews, who: Callable[[], tuple[str, str]]
    ) -> None:
        """`who` gives the name and mail of the daemon's user, as git knows them."""
        self._data = data
        self._folder = data / "exports"
        self._bases = bases
        self._reviews = reviews
        self._who = who
        self._works = WorkRepositories(self._folder)

    def export(
        self,
        space: Space,
        driver: TreeDriver,
        tree: Tree,
        request: ExportRequest,
        sends: Sends,
        skips: Callable[[Skipped], None],
    ) -> BinaryIO:
        changes = self._changes(space, driver, tree)
        work = TreeWork(driver, tree, changes, sends)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tree_errors("write the export"):
            match request.format:
                case ExportFormat.PATCH:
                    return self._patch(space, work, request)
                case ExportFormat.BUNDLE:
                    return self._bundle(space, work, request)
                case ExportFormat.TAR:
                    return self._tar(work, skips)

    def sweep(self) -> None:
        """Removes what a process that was killed has left."""
        self._works.sweep(())

    def _changes(self, space: Space, driver: TreeDriver, tree: Tree) -> list[Change]:
        query = ReviewQuery(most=MOST_FILES, personal=not space.guest)
        found = self._reviews.review(driver, tree, query)
        if found.total > MOST_FILES:
            raise LandingRefused(
                f"The space changed {found.total:,} files; an export has {MOST_FILES:,} at most.",
                hint="Let git ignore what need not be in it, or copy it: carrel cp",
            )
        if not found.listed:
            raise NothingToLand(
                "The space changed nothing of the project.", hint="`carrel changes` lists all."
            )
        return list(found.listed)

    def _patch(self, space: Space, work: TreeWork, request: ExportRequest) -> BinaryIO:
        _expect_names(work.changes)
        base = self._bases.get(work.tree.base_id)
        with open_roots(base.layers) as roots, self._works.open(None) as made:
            with work.read(Layers(roots, note_prefix())) as done:
                [(first, now)] = made.states("", done, _MOST_IN_PATCH)
            expect_change(made, first, now)
            look_through(made, first, made.tree_of(now))
            after = self._commit(made, made.tree_of(now), first, space, request)
            place = made.folder / "export"
            made.run(*_PATCH, f"--output={place}", after)
            return cast(BinaryIO, place.open("rb"))

    def _bundle(self, space: Space, work: TreeWork, request: ExportRequest) -> BinaryIO:
        _expect_names(work.changes)
        expect_merging_git()
        project = project_of(space)
        try:
            remote = locate(project, RemoteTrust(GitReach.AGREED, self._data))
        except ProjectInvalid as error:
            raise LandingRefused(
                "The project has no git repository on this machine, which a bundle is for.",
                hint="Export a patch or a tar: --patch, --tar",
            ) from error
        mirror = Mirror(self._data / "mirrors", remote, timeout_s=_FETCH_S)
        with ExitStack() as stack:
            base = stack.enter_context(open_roots(self._bases.get(work.tree.base_id).layers))
            layers = Layers(base, note_prefix())
            began = head_of(LayerGitFiles(layers))
            if began:
                fetch_commit(mirror, began)
            known = mirror.folder if mirror.folder.exists() else None
            if known is not None:
                stack.enter_context(mirror.reading())
            made = stack.enter_context(self._works.open(known))
            with work.read(layers) as done:
                [(first, now)] = made.states(began, done)
            expect_change(made, first, now)
            tree = merge_states(made, first, now, began)
            look_through(made, began, tree)
            after = self._commit(made, tree, began, space, request)
            branch = f"refs/heads/{BRANCHES}{space.name}"
            made.run("update-ref", branch, after)
            place = made.folder / "export"
            without = [f"^{began}"] if began else []
            made.run("bundle", "create", "--quiet", str(place), branch, *without)
            return cast(BinaryIO, place.open("rb"))

    def _commit(
        self, made: WorkRepository, tree: str, parent: str, space: Space, request: ExportRequest
    ) -> str:
        # Who may not know the owner's name has it in no file either.
        name, mail = GUEST if space.guest else self._who()
        env = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", name), ("EMAIL", mail))
        }
        text = request.message.strip() or f"The work of {space.name}"
        return made.commit(tree, f"{text}\n\nCarrel-Space: {space.space_id}\n", parent, env=env)

    def _tar(self, work: TreeWork, skips: Callable[[Skipped], None]) -> BinaryIO:
        with ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile(dir=self._folder))
            for piece in gather(_packed(work, skips)):
                file.write(piece)
            file.seek(0)
            stack.pop_all()
        return cast(BinaryIO, file)


def _expect_names(changes: Sequence[Change]) -> None:
    for change in changes:
        if GITS.search(change.path):
            raise LandingRefused(
                f"Git refuses the name {change.path!r}.",
                hint="Rename it in the space, or export a tar.",
            )


def _packed(work: TreeWork, skips: Callable[[Skipped], None]) -> Generator[bytes, None, None]:
    there = {one.path for one in work.changes if one.new_type in _FILES}
    gone = {one.path for one in work.changes if one.old_type in _FILES and one.path not in there}
    gone |= {one.old_path for one in work.changes if one.old_path is not None} - there
    left_out = LeftOut(skips)
    with Root(work.driver.open_root(work.tree)) as root:
        packer = Packer(root, left_out, on_send=work.sends)
        yield from packer.pack_each(sorted(there))
    if gone:
        content = b"".join(os.fsencode(path) + b"\0" for path in sorted(gone))
        size = len(content)
        yield pack_header(DELETED, tarfile.REGTYPE, 0o644, time.time_ns(), size=size)
        yield content + bytes(-size % _BLOCK)
    yield left_out.end()
