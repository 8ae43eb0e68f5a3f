"""Brings the work of a space into a branch of its project.

The mirror of the project has what the project has committed, fetched as for every space. On top of
it the space's changes become a commit (`work.py`), which is merged with where the branch is now and
looked through; only then its objects and the branch are written to the project (`project.py`).
Neither the project's checkout nor its index is touched.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from carrel.domain.collaborators import Bases, Reviews
from carrel.domain.errors import (
    CarrelError,
    LandingConflicts,
    LandingRefused,
    NothingToLand,
    ProjectInvalid,
    RefNotFound,
)
from carrel.domain.landing import BRANCHES, LandedFile, LandRequest, PreparedLanding
from carrel.domain.projects import GitReach, ProjectKind, is_address
from carrel.domain.spaces import Space
from carrel.domain.trees import Change, ReviewQuery, Tree, TreeDriver
from carrel.review.checkout import ProjectCheckout
from carrel.review.project import ProjectRepository, check_branch
from carrel.review.work import GITLINK, LINK, Merged, WorkRepositories, WorkRepository
from carrel.trees.drivers.common import note_prefix, open_roots, tree_errors
from carrel.trees.folders import Root
from carrel.trees.git.history import OID
from carrel.trees.git.mirror import Mirror
from carrel.trees.git.object_store import LayerGitFiles, read_small
from carrel.trees.git.remote import Remote, RemoteTrust, locate
from carrel.trees.layers import Layers

MOST_FILES = 200_000
"""Of one landing; each is named in memory."""
_FETCH_S = 600.0
_SHOWN = 20
"""Conflicts and refusals that an error names."""
_HEAD_BYTES = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_WHO = re.compile(r"([^<>\n]+?)\s*<([^<>\n]+)>")


class GitLander:
    """Implements `carrel.domain.landing.Lander`."""

    def __init__(
        self,
        data: Path,
        bases: Bases,
        reviews: Reviews,
        who: Callable[[], tuple[str, str]],
    ) -> None:
        """`who` gives the name and mail of the daemon's user, as git knows them."""
        self._data = data
        self._bases = bases
        self._reviews = reviews
        self._who = who
        self._works = WorkRepositories(data / "review")

    def prepare(
        self,
        space: Space,
        driver: TreeDriver,
        tree: Tree,
        request: LandRequest,
        sends: Callable[[str, os.stat_result], None],
    ) -> PreparedLanding:
        branch = check_branch(request.branch or f"{BRANCHES}{space.name}")
        remote = self._remote(space)
        assert remote.common is not None
        repository = ProjectRepository(remote.common)
        _checkout_of(remote, repository, branch)
        mirror = Mirror(self._data / "mirrors", remote, timeout_s=_FETCH_S)
        changes = self._changes(driver, tree)
        with ExitStack() as stack:
            base = stack.enter_context(open_roots(self._bases.get(tree.base_id).layers))
            layers = Layers(base, note_prefix())
            began = _head(LayerGitFiles(layers))
            before = repository.tip(branch)
            start = before or repository.tip(repository.current()) or began
            for commit in dict.fromkeys((began, start)):
                if commit:
                    _fetch(mirror, commit)
            known = mirror.folder if mirror.folder.exists() else None
            if known is not None:
                stack.enter_context(mirror.reading())
            work = stack.enter_context(self._works.open(known))
            root = stack.enter_context(Root(driver.open_root(tree)))
            stack.enter_context(tree_errors("read the tree"))
            first, now = work.states(began, changes, layers, root, sends)
            merged = _merge(work, first, now, start)
            files = _look_through(work, start, merged.tree)
            after = self._commit(work, merged.tree, start, space, request)
            repository.take(work.pack(after, start))
        return PreparedLanding(branch, before, after, files)

    def move(self, project: str, branch: str, before: str, after: str) -> None:
        remote, repository = self._located(project)
        checkout = _checkout_of(remote, repository, branch)
        if checkout is not None and before and after:
            checkout.check(before, after)
        repository.move(branch, before, after, "carrel: land or undo")
        if checkout is None:
            return
        try:
            checkout.bring(before, after)
        except BaseException:
            with contextlib.suppress(CarrelError, OSError):
                checkout.bring(after, before)
            repository.move(branch, after, before, "carrel: not landed")
            raise

    def tip(self, project: str, branch: str) -> str:
        return self._located(project)[1].tip(branch)

    def settle(self, project: str, branch: str, before: str, after: str) -> None:
        remote, repository = self._located(project)
        checkout = _checkout_of(remote, repository, branch)
        if checkout is not None and before and after:
            checkout.bring(before, after)

    def sweep(self) -> None:
        """Removes what a process that was killed has left."""
        self._works.sweep()

    def _located(self, project: str) -> tuple[Remote, ProjectRepository]:
        remote = locate(project, RemoteTrust(GitReach.AGREED, self._data))
        assert remote.common is not None
        return remote, ProjectRepository(remote.common)

    def _remote(self, space: Space) -> Remote:
        project = space.project
        if project.kind is ProjectKind.GIT and is_address(project.location):
            raise LandingRefused(
                "The project is on another machine.",
                hint="Take the work out with `carrel cp`, or push it from the space.",
            )
        if space.place or project.kind not in (ProjectKind.FOLDER, ProjectKind.GIT):
            raise LandingRefused(
                f"{space.name} has no project to land in.", hint="Copy its files out: carrel cp"
            )
        try:
            return locate(project.location, RemoteTrust(GitReach.AGREED, self._data))
        except ProjectInvalid as error:
            raise LandingRefused(error.message, hint=error.hint) from error

    def _changes(self, driver: TreeDriver, tree: Tree) -> list[Change]:
        """Of the project's files: neither what git ignores nor git's own."""
        found = self._reviews.review(driver, tree, ReviewQuery(most=MOST_FILES))
        if found.total > MOST_FILES:
            raise LandingRefused(
                f"The space changed {found.total:,} files; a landing has {MOST_FILES:,} at most.",
                hint="Let git ignore what need not be in the project.",
            )
        return list(found.listed)

    def _commit(
        self, work: WorkRepository, tree: str, start: str, space: Space, request: LandRequest
    ) -> str:
        committer = self._who()
        author = committer
        if request.author:
            said = _WHO.fullmatch(request.author.strip())
            if said is None:
                raise LandingRefused(
                    "The author is not written as git wants it.", hint="Write: Name <mail>"
                )
            author = (said[1], said[2])
        env = {
            f"GIT_{role}_{what}": value
            for role, person in (("AUTHOR", author), ("COMMITTER", committer))
            for what, value in zip(("NAME", "EMAIL"), person, strict=True)
        }
        text = request.message.strip() or f"Land the work of {space.name}"
        return work.commit(tree, f"{text}\n\nCarrel-Space: {space.space_id}\n", start, env=env)


def _checkout_of(
    remote: Remote, repository: ProjectRepository, branch: str
) -> ProjectCheckout | None:
    """The checkout of the project, if it is on this branch. Raises `LandingRefused` when another
    one is."""
    place = repository.checked_out(branch)
    if not place:
        return None
    if os.path.realpath(place) != os.path.realpath(remote.origin) or remote.checkout is None:
        raise LandingRefused(
            f"The branch {branch!r} is checked out in {place}.",
            hint="Land on another branch, and merge that with git.",
        )
    return ProjectCheckout(repository, remote.checkout, Path(place))


def _head(files: LayerGitFiles) -> str:
    """The commit that the project was on when the space began; empty: there was none."""
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


def _fetch(mirror: Mirror, commit: str) -> None:
    try:
        mirror.resolve(commit)
    except RefNotFound as error:
        raise LandingRefused(
            f"The project has lost the commit {commit[:12]} that the space began with.",
            hint="Take the work out with `carrel cp`.",
        ) from error


def _merge(work: WorkRepository, first: str, now: str, start: str) -> Merged:
    """Raises `NothingToLand`, `LandingConflicts`."""
    if work.tree_of(first) == work.tree_of(now):
        raise NothingToLand(
            "The space changed nothing of the project.", hint="`carrel changes` lists all of it."
        )
    if not start:
        return Merged(work.tree_of(now))
    merged = work.merge(first, now, start)
    if merged.conflicts:
        names = ", ".join(one.path for one in merged.conflicts[:3])
        count = len(merged.conflicts)
        raise LandingConflicts(
            f"The project changed the same as the space in {count} file{'s'[: count != 1]}:"
            f" {names}{', …' if count > 3 else ''}.",
            hint="Have the agent merge the project's changes in the space, or land on another"
            " branch: carrel land --into BRANCH",
            conflicts=[{"path": one.path, "text": one.text} for one in merged.conflicts[:_SHOWN]],
            total=count,
        )
    if merged.tree == work.tree_of(start):
        raise NothingToLand(
            "The project has all of the space's work.", hint="`carrel rm` removes the space."
        )
    return merged


def _look_through(work: WorkRepository, start: str, tree: str) -> tuple[LandedFile, ...]:
    """What git takes and a checkout could be harmed by. Raises `LandingRefused`."""
    empty = work.run("mktree").decode().strip()
    found = work.changed(work.tree_of(start) if start else empty, tree)
    new = [(file, oid) for file, oid in found if file.kind != "D"]
    targets = work.contents(oid for file, oid in new if file.mode == LINK)
    problems = [
        *filter(None, (_problem(file, os.fsdecode(targets.get(oid, b""))) for file, oid in new)),
        *_twins(work, tree, [file.path for file, _ in new]),
    ]
    if problems:
        raise LandingRefused(
            f"The work cannot land: {problems[0]}",
            hint="Change it in the space, and land again.",
            problems=problems[:_SHOWN],
            total=len(problems),
        )
    return tuple(file for file, _ in found)


def _problem(file: LandedFile, target: str) -> str:
    """`target` is where a link leads."""
    path = file.path
    if _CONTROL.search(path):
        return f"the name {path!r} has a control character or a backslash."
    if file.mode == GITLINK:
        return f"{path!r} is a repository of its own."
    if file.mode == LINK:
        if path.rpartition("/")[2].lower() in (".gitattributes", ".gitignore", ".gitmodules"):
            return f"{path!r} is a link, which git would follow."
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if target.startswith("/") or inside == ".." or inside.startswith("../"):
            return f"the link {path!r} leads out of the project, to {target[:200]!r}."
        if ".git" in inside.lower().split("/"):
            return f"the link {path!r} leads into git's own folder."
    return ""


def _twins(work: WorkRepository, tree: str, paths: list[str]) -> Iterator[str]:
    """New names that some file systems take for one that is there too."""
    folders: dict[str, set[str]] = {}
    for path in paths:
        while path:
            above, _, name = path.rpartition("/")
            folders.setdefault(above, set()).add(name)
            path = above
    listed = work.names(tree)
    for folder, names in folders.items():
        seen: dict[str, str] = {}
        for name in listed.get(folder, ()):
            key = unicodedata.normalize("NFKC", name).casefold()
            other = seen.setdefault(key, name)
            if other != name and {other, name} & names:
                yield f"{posixpath.join(folder, name)!r} and {other!r} differ only in their case."
