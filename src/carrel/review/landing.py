"""Brings the work of a space into a branch of its project.

The mirror of the project has what the project has committed, fetched as for every space. On top of
it the space's changes become a commit (`work.py`), which is merged with where the branch is now and
looked through; only then its objects and the branch are written to the project (`project.py`).
A checkout that is on the branch goes along (`checkout.py`); no other is touched.
"""

from __future__ import annotations

import os
import posixpath
import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.collaborators import Bases, Reviews
from carrel.domain.errors import (
    CarrelError,
    LandingConflicts,
    LandingHalfDone,
    LandingRefused,
    NothingToLand,
    ProjectInvalid,
    RefNotFound,
)
from carrel.domain.landing import BRANCHES, LandedFile, LandingPlace, LandRequest, PreparedLanding
from carrel.domain.projects import GitReach, ProjectKind, is_address
from carrel.domain.spaces import Space
from carrel.domain.trees import Change, ReviewQuery, Tree, TreeDriver
from carrel.review.checkout import CheckoutFile, ProjectCheckout
from carrel.review.project import ProjectRepository, check_branch, held
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
_MOST_LINKS = 40
"""As the kernel: who follows more gets nowhere."""
_MOST_STEPS = 2_000_000
"""Of all links of a tree, in a second or two."""
_GITS = re.compile(r"(?:^|/)(?:\.git|git~\d+)(?:/|$)", re.IGNORECASE)
"""Names that git refuses, since some file systems take them for its own folder."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_WHO = re.compile(r"([^<>\n\0]+?)\s*<([^<>\n\0]+)>")


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
        work = _TreeWork(driver, tree, self._changes(driver, tree), sends)
        project = _project_of(space)
        if not os.path.lexists(os.path.join(project, ".git")) and _is_plain(space):
            if request.branch:
                raise LandingRefused(
                    "The project has no git repository, and so no branches.",
                    hint="Leave the branch out: the files themselves land.",
                )
            return self._prepare_files(project, work)
        branch = check_branch(request.branch or f"{BRANCHES}{space.name}")
        return self._prepare_branch(space, LandingPlace(project, branch), work, request)

    def _prepare_branch(
        self, space: Space, place: LandingPlace, work: _TreeWork, request: LandRequest
    ) -> PreparedLanding:
        remote, repository = self._located(place)
        _checkout_of(remote, repository, place.branch)
        mirror = Mirror(self._data / "mirrors", remote, timeout_s=_FETCH_S)
        with ExitStack() as stack:
            base = stack.enter_context(open_roots(self._bases.get(work.tree.base_id).layers))
            layers = Layers(base, note_prefix())
            began = _head(LayerGitFiles(layers))
            before = repository.tip(place.branch)
            start = before or repository.tip(repository.current()) or began
            for commit in dict.fromkeys((began, start)):
                if commit:
                    _fetch(mirror, commit)
            known = mirror.folder if mirror.folder.exists() else None
            if known is not None:
                stack.enter_context(mirror.reading())
            made = stack.enter_context(self._works.open(known))
            first, now = work.states(made, began, layers)
            merged = _merge(made, first, now, start)
            files = _look_through(made, start, merged.tree)
            _expect_no_filter(made, merged.tree, files)
            after = self._commit(made, merged.tree, start, space, request)
            repository.take(made.pack(after, start))
        return PreparedLanding(place, before, after, files)

    def _prepare_files(self, project: str, work: _TreeWork) -> PreparedLanding:
        base = self._bases.get(work.tree.base_id)
        with open_roots(base.layers) as roots, self._works.open(None) as made:
            first, now = work.states(made, "", Layers(roots, note_prefix()))
            _expect_change(made, first, now)
            files = _look_through(made, first, made.tree_of(now))
            place = LandingPlace(project, kept=str(self._works.keep(made)))
        return PreparedLanding(place, first, now, files)

    def move(self, place: LandingPlace, before: str, after: str) -> None:
        with tree_errors("write the project"):
            self._move(place, before, after)

    def _move(self, place: LandingPlace, before: str, after: str) -> None:
        if place.kept:
            files = _files_of(place)
            files.check(before, after)
            files.bring_or_leave(before, after)
            return
        remote, repository = self._located(place)
        found = _checkout_of(remote, repository, place.branch)
        if found is not None and not after:
            raise LandingRefused(
                f"The branch {place.branch!r} is checked out.", hint="Check out another one."
            )
        if found is not None:
            found.check(before, after)
        repository.move(place.branch, before, after, "carrel: land or undo")
        if found is None:
            return
        try:
            found.bring_or_leave(before, after)
        except LandingHalfDone:
            # The branch says where it goes on.
            raise
        except (CarrelError, OSError):
            repository.move(place.branch, after, before, "carrel: not landed")
            raise

    def settle(self, place: LandingPlace, before: str, after: str) -> bool:
        if place.kept:
            return _settle_files(_files_of(place), before, after)
        remote, repository = self._located(place)
        if repository.tip(place.branch) != after:
            return False
        if before and after and (found := _checkout_of(remote, repository, place.branch)):
            found.bring(before, after)
        return True

    def repository(self, place: LandingPlace) -> ProjectRepository:
        """The one with the objects of a landing that was prepared."""
        return ProjectRepository(Path(place.kept)) if place.kept else self._located(place)[1]

    def changed(self, landing: PreparedLanding) -> list[CheckoutFile]:
        """What landing it would change in a project without git."""
        return _files_of(landing.place).moved(landing.before, landing.after)

    def forget(self, place: LandingPlace) -> None:
        if place.kept:
            self._works.forget(Path(place.kept))

    def sweep(self, kept: Collection[str]) -> None:
        self._works.sweep(kept)

    def _located(self, place: LandingPlace) -> tuple[Remote, ProjectRepository]:
        """Raises `LandingRefused` for what is no repository, or none to write in."""
        try:
            with held(Path(place.project)):
                pass
            remote = locate(place.project, RemoteTrust(GitReach.AGREED, self._data))
        except ProjectInvalid as error:
            raise LandingRefused(error.message, hint=error.hint) from error
        assert remote.common is not None
        repository = ProjectRepository(remote.common)
        repository.check(place.branch, remote.checkout)
        return remote, repository

    def _changes(self, driver: TreeDriver, tree: Tree) -> list[Change]:
        """Of the project's files: neither what git ignores nor git's own."""
        found = self._reviews.review(driver, tree, ReviewQuery(most=MOST_FILES))
        if found.total > MOST_FILES:
            raise LandingRefused(
                f"The space changed {found.total:,} files; a landing has {MOST_FILES:,} at most.",
                hint="Let git ignore what need not be in the project.",
            )
        for change in found.listed:
            if _GITS.search(change.path):
                raise LandingRefused(
                    f"The work cannot land: git refuses the name {change.path!r}.",
                    hint="Rename it in the space, and land again.",
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


@dataclass(frozen=True)
class _TreeWork:
    """What a space changed, and where that is read."""

    driver: TreeDriver
    tree: Tree
    changes: Sequence[Change]
    sends: Callable[[str, os.stat_result], None]

    def states(self, made: WorkRepository, began: str, base: Layers) -> tuple[str, str]:
        with Root(self.driver.open_root(self.tree)) as root, tree_errors("read the tree"):
            return made.states(began, self.changes, base, root, self.sends)


def _project_of(space: Space) -> str:
    """Raises `LandingRefused` for one that is not a folder of this machine."""
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
    return project.location


def _is_plain(space: Space) -> bool:
    """A folder: one that was asked for as a repository may be bare."""
    return space.project.kind is ProjectKind.FOLDER


def _files_of(place: LandingPlace) -> ProjectCheckout:
    kept = Path(place.kept)
    if not kept.is_dir():
        raise LandingRefused(
            "What the landing replaced is not kept any more.", hint="Take it back by hand."
        )
    return ProjectCheckout(ProjectRepository(kept), None, Path(place.project))


def _settle_files(files: ProjectCheckout, before: str, after: str) -> bool:
    """All of them or none: a person may have changed some since."""
    try:
        files.bring(before, after, whole=True)
    except LandingRefused:
        files.bring(after, before)
        return False
    return True


def _checkout_of(
    remote: Remote, repository: ProjectRepository, branch: str
) -> ProjectCheckout | None:
    """The checkout of the project, if it is on this branch. Raises `LandingRefused` when another
    one is, or when there is no commit on it yet that the files could be compared with."""
    place = repository.checked_out(branch)
    if not place:
        bare = remote.common == Path(os.path.realpath(remote.origin))
        if not bare and repository.current() == branch and not repository.tip(branch):
            raise LandingRefused(
                f"The checkout is on {branch!r}, which has no commit yet.",
                hint="Commit something, or land on another branch: --into BRANCH",
            )
        return None
    if os.path.realpath(place) != os.path.realpath(remote.origin) or remote.checkout is None:
        raise LandingRefused(
            f"The branch {branch!r} is checked out in {place}.",
            hint="Land on another branch, and merge that with git.",
        )
    # As it was asked for: what git says of it is the project's word.
    return ProjectCheckout(repository, remote.checkout, Path(remote.origin))


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
    _expect_change(work, first, now)
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


def _expect_change(work: WorkRepository, first: str, now: str) -> None:
    if work.tree_of(first) == work.tree_of(now):
        raise NothingToLand(
            "The space changed nothing of the project.", hint="`carrel changes` lists all of it."
        )


def _look_through(work: WorkRepository, start: str, tree: str) -> tuple[LandedFile, ...]:
    """What git takes and a checkout could be harmed by. Raises `LandingRefused`."""
    empty = work.run("mktree").decode().strip()
    found = work.changed(work.tree_of(start) if start else empty, tree)
    new = [file for file, _ in found if file.kind != "D"]
    problems = [
        *filter(None, map(_problem, new)),
        *_links_out(work.links(start) if start else {}, work.links(tree)),
        *_twins(work, tree, [file.path for file in new]),
    ]
    if problems:
        raise LandingRefused(
            f"The work cannot land: {problems[0]}",
            hint="Change it in the space, and land again.",
            problems=problems[:_SHOWN],
            total=len(problems),
        )
    return tuple(file for file, _ in found)


def _expect_no_filter(work: WorkRepository, tree: str, files: Sequence[LandedFile]) -> None:
    """New files would be kept as they are, where the project wants a pointer to them, or has them
    encrypted. Raises `LandingRefused`."""
    new = [file.path for file in files if file.kind == "A" and file.mode != LINK]
    if found := work.filters(tree, new) if new else {}:
        path, name = next(iter(found.items()))
        raise LandingRefused(
            f"The project keeps files such as {path!r} by a filter ({name}), and none runs here.",
            hint="Take them out with `carrel cp`, and commit them with git in the project.",
            problems=list(found)[:_SHOWN],
            total=len(found),
        )


def _problem(file: LandedFile) -> str:
    path = file.path
    if _CONTROL.search(path):
        return f"the name {path!r} has a control character or a backslash."
    if file.mode == GITLINK:
        return f"{path!r} is a repository of its own."
    names = (".gitattributes", ".gitignore", ".gitmodules")
    if file.mode == LINK and path.rpartition("/")[2].lower() in names:
        return f"{path!r} is a link, which git would follow."
    return ""


def _links_out(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    """Links of the landing that lead out, and those of the project that do because of it."""
    if not after:
        return
    was, now = _Links(before), _Links(after)
    for path, target in after.items():
        problem = now.problem(path)
        if problem and not (before.get(path) == target and was.problem(path)):
            yield f"the link {path!r} {problem}, to {target[:200]!r}."


class _Links:
    """Where the links of a tree lead, each by way of others: `a/up/../x` is not in `a` when
    `a/up` is a link."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self._links = links
        self._steps = _MOST_STEPS

    def problem(self, path: str) -> str:
        here = path.split("/")[:-1]
        left = [path.rpartition("/")[2]]
        followed = 0
        while left:
            self._steps -= 1
            name = left.pop()
            if name == "..":
                if not here:
                    return "leads out of the project"
                here.pop()
                continue
            if name in ("", "."):
                continue
            if _GITS.fullmatch(name):
                return "leads into git's own folder"
            here.append(name)
            target = self._links.get("/".join(here))
            if target is None:
                continue
            here.pop()
            followed += 1
            if target.startswith("/"):
                return "leads out of the project"
            if followed > _MOST_LINKS:
                return ""
            if self._steps < 0:
                return "is one of too many links through links"
            left += reversed(target.split("/"))
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
