"""Brings the work of a space into a branch of its project.

The mirror of the project has what the project has committed, fetched as for every space. On top of
it the space's changes become a commit (`work.py`), which is merged with where the branch is now and
looked through; only then its objects and the branch are written to the project (`project.py`).
A checkout that is on the branch goes along (`checkout.py`); no other is touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.domain.collaborators import Bases, Reviews
from carrel.domain.errors import (
    CarrelError,
    GitFailed,
    LandingConflicts,
    LandingHalfDone,
    LandingRefused,
    NothingToLand,
    ProjectError,
    RefNotFound,
)
from carrel.domain.landing import (
    BRANCHES,
    LandedFile,
    Landing,
    LandingPlace,
    LandingState,
    LandRequest,
    PreparedLanding,
)
from carrel.domain.projects import GitReach, ProjectKind, is_address
from carrel.domain.spaces import Space
from carrel.domain.trees import Change, ReviewQuery, Tree, TreeDriver
from carrel.review.checkout import CheckoutFile, ProjectCheckout
from carrel.review.commits import agent_work, head_of
from carrel.review.project import ProjectRepository, check_branch, held
from carrel.review.rules import GITS, SHOWN, expect_no_filter, look_through
from carrel.review.states import AgentWork, SpaceWork
from carrel.review.work import WorkRepositories, WorkRepository
from carrel.trees.drivers.common import note_prefix, open_roots, tree_errors
from carrel.trees.folders import Root
from carrel.trees.git import config
from carrel.trees.git.mirror import Mirror
from carrel.trees.git.object_store import LayerGitFiles
from carrel.trees.git.remote import Remote, RemoteTrust, locate
from carrel.trees.git.version import expect_merging_git
from carrel.trees.layers import Layers

MOST_FILES = 200_000
"""Of one landing; each is named in memory."""
_FETCH_S = 600.0
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
        earlier: Sequence[Landing] = (),
    ) -> PreparedLanding:
        work = TreeWork(driver, tree, self._changes(driver, tree), sends, earlier)
        project = project_of(space)
        if not os.path.lexists(os.path.join(project, ".git")) and _is_plain(space):
            if request.branch or request.commits:
                raise LandingRefused(
                    "The project has no git repository, and so no branches and no commits.",
                    hint="Leave these out: the files themselves land.",
                )
            return self._prepare_files(project, work)
        expect_merging_git()
        branch = check_branch(request.branch or f"{BRANCHES}{space.name}")
        return self._prepare_branch(space, LandingPlace(project, branch), work, request)

    def _prepare_branch(
        self, space: Space, place: LandingPlace, work: TreeWork, request: LandRequest
    ) -> PreparedLanding:
        remote, repository = self._located(place)
        with ExitStack() as stack:
            stack.enter_context(_unmoved(place, repository))
            found = _checkout_of(remote, repository, place.branch)
            mirror = Mirror(self._data / "mirrors", remote, timeout_s=_FETCH_S)
            base = stack.enter_context(open_roots(self._bases.get(work.tree.base_id).layers))
            layers = Layers(base, note_prefix())
            began = head_of(LayerGitFiles(layers))
            before = repository.tip(place.branch)
            start = before or repository.head(remote.checkout) or began
            if request.worktree and found is None:
                place = replace(place, worktree=_expect_checkout(remote, start))
            for commit in dict.fromkeys((began, start, *space.merged.values())):
                if commit:
                    fetch_commit(mirror, commit)
            last = work.last(repository, mirror, place.branch, start)
            known = mirror.folder if mirror.folder.exists() else None
            if known is not None:
                stack.enter_context(mirror.reading())
            made = stack.enter_context(self._works.open(known))
            read = work.read(layers, space.merged, began if request.commits else None, last)
            done = stack.enter_context(read)
            pairs = made.states(began, done)
            after, files = self._replay(made, done, pairs, start, space, request)
            state = made.commit(made.tree_of(pairs[-1][1]), "")
            repository.take(made.pack([after, state], start))
        landed = tuple(one.oid for one in done.agent.commits)
        return PreparedLanding(place, before, after, files, landed, state)

    def _replay(
        self,
        made: WorkRepository,
        done: SpaceWork,
        pairs: Sequence[tuple[str, str]],
        start: str,
        space: Space,
        request: LandRequest,
    ) -> tuple[str, tuple[LandedFile, ...]]:
        """The last commit of the landing, and what it changes. Each commit is looked through.
        Raises `NothingToLand`, `LandingConflicts`, `LandingRefused`."""
        after, steps = start, 0
        if len(pairs) == 1 and not done.landed:
            expect_change(made, *pairs[0])
        for (first, now), commit in zip(pairs, (*done.new_commits, None), strict=True):
            tree = merge_states(made, first, now, after)
            if after and tree == made.tree_of(after):
                continue
            steps += 1
            files = look_through(made, after, tree)
            expect_no_filter(made, tree, files)
            if commit is None:
                after = self._commit(made, tree, after, space, request)
            else:
                after = made.commit_again(tree, after, commit, self._who())
        if not steps:
            raise NothingToLand(
                "The project has all of the space's work.", hint="`carrel rm` removes the space."
            )
        return after, files if steps == 1 else look_through(made, start, made.tree_of(after))

    def _prepare_files(self, project: str, work: TreeWork) -> PreparedLanding:
        base = self._bases.get(work.tree.base_id)
        with open_roots(base.layers) as roots, self._works.open(None) as made:
            with work.read(Layers(roots, note_prefix())) as done:
                [(first, now)] = made.states("", done)
            expect_change(made, first, now)
            files = look_through(made, first, made.tree_of(now))
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
        with _unmoved(place, repository):
            self._move_branch(place, before, after, remote, repository)

    def _move_branch(
        self,
        place: LandingPlace,
        before: str,
        after: str,
        remote: Remote,
        repository: ProjectRepository,
    ) -> None:
        found = _checkout_of(remote, repository, place.branch)
        if found is not None and not after:
            raise LandingRefused(
                f"The branch {place.branch!r} is checked out.", hint="Check out another one."
            )
        found = found or _loose_checkout(remote, repository, place)
        ends = (before or place.worktree, after or place.worktree)
        if found is not None:
            found.check(*ends)
        repository.move(place.branch, before, after, "carrel: land or undo")
        if found is None:
            return
        try:
            found.bring_or_leave(*ends)
        except LandingHalfDone:
            # The branch says where it goes on.
            raise
        except (CarrelError, OSError) as why:
            try:
                repository.move(place.branch, after, before, "carrel: not landed")
            except (CarrelError, OSError) as error:
                raise LandingHalfDone(
                    f"The branch {place.branch!r} has moved, and the checkout has not: {why}",
                    hint="Make room on its disk, and land or undo again: what was begun is"
                    " finished then, or by the next daemon.",
                ) from error
            raise

    def settle(self, place: LandingPlace, before: str, after: str) -> bool:
        if place.kept:
            return _settle_files(_files_of(place), before, after)
        remote, repository = self._located(place)
        if repository.tip(place.branch) != after:
            return False
        found = _checkout_of(remote, repository, place.branch)
        found = found or _loose_checkout(remote, repository, place)
        first, last = before or place.worktree, after or place.worktree
        if first and last and found is not None:
            found.bring(first, last)
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
        with _unmoved(place):
            try:
                remote = locate(place.project, RemoteTrust(GitReach.AGREED, self._data))
            except ProjectError as error:
                raise LandingRefused(error.message, hint=error.hint) from error
        assert remote.common is not None
        repository = ProjectRepository(remote.common)
        with _unmoved(place, repository):
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
            if GITS.search(change.path):
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
class TreeWork:
    """What a space changed, and where that is read."""

    driver: TreeDriver
    tree: Tree
    changes: Sequence[Change]
    sends: Callable[[str, os.stat_result], None]
    earlier: Sequence[Landing] = ()
    """Of the same space, the newest first."""

    def last(
        self, repository: ProjectRepository, mirror: Mirror, branch: str, start: str
    ) -> Landing | None:
        """The one that `start`, where the branch is, stands on. What landed then is in the mirror
        afterwards; git may have dropped it, which is as if it had not landed."""
        for one in self.earlier:
            here = one.branch == branch and one.state is LandingState.LANDED and one.work
            if here and repository.is_ancestor(one.after, start):
                with suppress(LandingRefused):
                    fetch_commit(mirror, one.work)
                    return one
                return None
        return None

    @contextmanager
    def read(
        self,
        base: Layers,
        merged: Mapping[str, str] | None = None,
        began: str | None = None,
        last: Landing | None = None,
    ) -> Iterator[SpaceWork]:
        """With the commits that stand on `began`; None: as if there were none."""
        with ExitStack() as stack, tree_errors("read the tree"):
            root = stack.enter_context(Root(self.driver.open_root(self.tree)))
            agent = AgentWork()
            if began is not None:
                agent = stack.enter_context(agent_work(root, began))
            done = SpaceWork(self.changes, base, root, self.sends, agent, merged or {})
            if last is not None:
                done = replace(done, landed=last.work, landed_commits=last.commits)
            if merged and done.new_commits:
                raise LandingRefused(
                    "The space has merged changes of the project, of which its commits know"
                    " nothing.",
                    hint="Land all of it as one commit: --squash",
                )
            yield done


def project_of(space: Space) -> str:
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


@contextmanager
def _unmoved(place: LandingPlace, repository: ProjectRepository | None = None) -> Iterator[None]:
    """Where the project is replaced meanwhile, any step can be the one that fails. Whoever asked is
    told what was done, and not what that step has made of it. Raises `LandingRefused`."""
    with held(Path(place.project)):
        pass
    try:
        yield
    except (CarrelError, OSError) as error:
        if not isinstance(error, LandingHalfDone):
            with held(Path(place.project)):
                pass
            if repository is not None:
                repository.expect_place()
        raise


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


def _loose_checkout(
    remote: Remote, repository: ProjectRepository, place: LandingPlace
) -> ProjectCheckout | None:
    """One that is given the files although it is not on the branch."""
    if not place.worktree or remote.checkout is None:
        return None
    return ProjectCheckout(repository, remote.checkout, Path(remote.origin), loose=True)


def _expect_checkout(remote: Remote, start: str) -> str:
    if remote.checkout is None or not start or remote.common == Path(remote.origin):
        raise LandingRefused(
            "The project has no checkout, or no commit yet, for --worktree.",
            hint="Leave --worktree out: the work lands on a branch.",
        )
    return start


def fetch_commit(mirror: Mirror, commit: str) -> None:
    try:
        mirror.resolve(commit)
    except RefNotFound as error:
        raise LandingRefused(
            f"The project has lost the commit {commit[:12]} that the space began with.",
            hint="Take the work out with `carrel cp`.",
        ) from error
    except GitFailed as error:
        if not _is_partial(mirror.remote):
            raise
        raise LandingRefused(
            "The project is a partial clone, and lacks objects that only its remote has.",
            hint="Apply the work with git: carrel export SPACE --patch | git am; or clone all of"
            " the project.",
        ) from error


def _is_partial(remote: Remote) -> bool:
    if remote.common is None:
        return False
    with suppress(OSError):
        items = config.parse((remote.common / "config").read_bytes())
        return any(item.name == "extensions.partialclone" for item in items) or any(
            item.name.startswith("remote.") and item.name.endswith(".promisor") for item in items
        )
    return False


def merge_states(work: WorkRepository, first: str, now: str, start: str) -> str:
    """The tree. Raises `LandingConflicts`."""
    if not start:
        return work.tree_of(now)
    merged = work.merge(first, now, start)
    if not merged.conflicts:
        return merged.tree
    paths = [one.path for one in merged.conflicts]
    count = f"{len(paths)} file{'s'[: len(paths) != 1]}"
    said = f"The project changed the same as the space in {count}"
    hint = "Have the agent merge the project's changes in the space, or land on another branch:"
    hint += " carrel land --into BRANCH"
    if _not_committed(work, first, start, paths):
        said = f"The work stands on changes that you had not committed, in {count}"
        hint = "Commit them in the project, and land again: carrel land. A patch has the work"
        hint += " alone: carrel export --patch"
    raise LandingConflicts(
        f"{said}: {', '.join(paths[:3])}{', …' if len(paths) > 3 else ''}.",
        hint=hint,
        conflicts=[{"path": one.path, "text": one.text} for one in merged.conflicts[:SHOWN]],
        total=len(paths),
        commit=start,
    )


def _not_committed(work: WorkRepository, first: str, start: str, paths: Sequence[str]) -> bool:
    """Whether the project has these files as it had them when the space began, where they were
    other ones."""
    [_, *began] = work.one("rev-list", "--parents", "-1", first).split()
    if not began:
        return False
    then, given, here = (work.entries(one, paths) for one in (began[0], first, start))
    return all(then.get(one) == here.get(one) != given.get(one) for one in paths)


def expect_change(work: WorkRepository, first: str, now: str) -> None:
    if work.tree_of(first) == work.tree_of(now):
        raise NothingToLand(
            "The space changed nothing of the project.", hint="`carrel changes` lists all of it."
        )
