"""Brings files of one tree into another, all or none of them, and back.

What the source has changed, what it began with and what the target has become three states in a
repository of our own; git says which files differ between them. The target is then written as the
files of a project without git are (`checkout.py`), from the kept states.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from carrel.domain.collaborators import Bases
from carrel.domain.errors import LandingHalfDone, LandingRefused, TakeRefused
from carrel.domain.takes import TakeChange, TakeSide
from carrel.domain.trees import Change, EntryType, Owner
from carrel.linux.descriptors import Descriptor
from carrel.review.checkout import ProjectCheckout
from carrel.review.project import ProjectRepository
from carrel.review.work import WorkRepositories
from carrel.trees.drivers.common import note_prefix, open_roots, tree_errors
from carrel.trees.folders import Root
from carrel.trees.layers import Layers

_SHOWN = 10
"""Files that an error names."""
GITS = re.compile(r"(?:^|/)(?:\.git|git~\d+)(?:/|$)", re.IGNORECASE)
_TAKEN = {EntryType.FILE, EntryType.SYMLINK}


class TreeTaker:
    """Implements `carrel.domain.takes.Taker`."""

    def __init__(self, folder: Path, bases: Bases) -> None:
        """A folder of our own; made when it is missing."""
        self._bases = bases
        self._works = WorkRepositories(folder)

    def prepare(
        self,
        source: TakeSide,
        target: TakeSide,
        changes: Sequence[Change],
        sends: Callable[[str, os.stat_result], None],
        *,
        force: bool,
    ) -> TakeChange:
        paths = _paths(changes)
        base = self._bases.get(source.tree.base_id)
        with (
            tree_errors("read the trees"),
            open_roots(base.layers) as roots,
            Root(source.driver.open_root(source.tree)) as ours,
            Root(target.driver.open_root(target.tree)) as theirs,
            self._works.open(None) as made,
        ):
            layers = Layers(roots, note_prefix())
            began, before, after = made.three_states(paths, layers, theirs, ours, sends)
            files = [file for file, _ in made.changed(before, after)]
            moved = {file.path for file, _ in made.changed(began, before)}
            if not files:
                raise TakeRefused(
                    f"{target.name} has all of this already.", hint="Nothing is to be taken."
                )
            both = [file.path for file in files if file.path in moved]
            if both and not force:
                raise TakeRefused(
                    f"{target.name} has these in its own way: {_names(both)}.",
                    hint=f"See: carrel diff {target.name} {source.name}."
                    " With --force they are replaced.",
                    files=both[:_SHOWN],
                    total=len(both),
                )
            return TakeChange(str(self._works.keep(made)), before, after, tuple(files))

    def apply(self, target: TakeSide, change: TakeChange) -> None:
        files = _files_of(target, change.kept)
        try:
            with tree_errors("write the tree"):
                files.check(change.before, change.after)
                files.bring_or_leave(change.before, change.after)
        except LandingRefused as error:
            changed = cast("list[str]", error.details.get("files") or [])
            what = _names(changed) if changed else error.message
            raise TakeRefused(
                f"{target.name} has changed since: {what}.",
                hint=f"`carrel diff {target.name}` shows its work.",
                files=changed,
            ) from error
        except LandingHalfDone as error:
            raise LandingHalfDone(
                f"Some files of {target.name} are changed and others are not.",
                hint="Make room on its disk, and take or undo again: what was begun is finished"
                " then, or by the next daemon.",
            ) from error

    def settle(self, target: TakeSide, change: TakeChange) -> bool:
        files = _files_of(target, change.kept)
        with tree_errors("write the tree"):
            try:
                files.bring(change.before, change.after, whole=True)
            except LandingRefused:
                files.bring(change.after, change.before)
                return False
        return True

    def forget(self, kept: str) -> None:
        self._works.forget(Path(kept))

    def sweep(self, kept: Collection[str]) -> None:
        self._works.sweep(kept)


def _paths(changes: Sequence[Change]) -> set[str]:
    """Of files and links: folders come with what is in them. Raises `TakeRefused`."""
    wanted = [one for one in changes if {one.old_type, one.new_type} & _TAKEN]
    paths = {path for one in wanted for path in (one.path, one.old_path) if path is not None}
    for path in paths:
        if GITS.search(path):
            raise TakeRefused(
                f"Files of git's own are not taken: {path!r}.", hint="Name other files."
            )
    if not paths:
        raise TakeRefused("Only files and links are taken.", hint="Name some that have changed.")
    return paths


def _names(paths: Sequence[str]) -> str:
    return ", ".join(map(repr, paths[:3])) + (", …" if len(paths) > 3 else "")


def _files_of(target: TakeSide, kept: str) -> ProjectCheckout:
    folder = Path(kept)
    if not folder.is_dir():
        raise TakeRefused("What was replaced is not kept any more.", hint="Take it back by hand.")

    @contextmanager
    def hold() -> Iterator[tuple[int, Owner]]:
        with Descriptor(target.driver.open_root(target.tree)) as top:
            status = os.fstat(top)
            yield top, Owner(status.st_uid, status.st_gid)

    return ProjectCheckout(ProjectRepository(folder), None, folder, hold)
