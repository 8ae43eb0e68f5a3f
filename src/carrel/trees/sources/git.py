"""A git repository at a ref as the content of a base.

Unlike a folder it does not change while it is read: a ref is resolved once, to a commit,
and that is exported, whole or as what differs from a commit that there is a base of.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from carrel.domain.errors import ProjectTooLarge
from carrel.domain.projects import BaseRequest, OnProgress, ignore_progress
from carrel.domain.trees import Skipped
from carrel.trees.git.checkout import Delta, OldFile, export_commit, export_delta, measure
from carrel.trees.git.location import locate
from carrel.trees.git.mirror import Mirror
from carrel.trees.git.refs import Resolved


@dataclass(frozen=True)
class GitState:
    """What a base of a git project is made of: equal states give equal checkouts.

    Where other branches of the origin stood when it was fetched does not count, just as
    a clone does not follow them.
    """

    repository: str
    origin: str
    commit: str
    branch: str | None


class GitSource:
    """One request. Blocking; every method may raise `GitFailed`, `GitTimeout` or
    `InsufficientDisk`, and leaves the user's repository untouched."""

    def __init__(
        self, request: BaseRequest, mirrors: Path, on_progress: OnProgress = ignore_progress
    ) -> None:
        """Raises `ProjectNotFound`, `ProjectNotAFolder`, `ProjectUnreadable` or
        `ProjectInvalid`."""
        self._request = request
        self._on_progress = on_progress
        self._mirror = Mirror(
            mirrors,
            locate(request.project.location),
            timeout_s=request.git_timeout_s,
            on_progress=on_progress,
        )

    def resolve(self) -> GitState:
        """What the ref means now; afterwards it can be exported. Raises `RefNotFound`,
        and `ProjectTooLarge` when the request allows less (unless it also excludes some,
        which is known only after the export)."""
        found = self._mirror.resolve(self._request.project.ref)
        remote = self._mirror.remote
        state = GitState(remote.key, remote.origin, found.commit, found.branch)
        if not self._request.exclude:
            self._check_limits(state)
        return state

    def size(self, state: GitState) -> tuple[int, int]:
        """How many files a checkout has, and their bytes without the git folder."""
        return measure(self._mirror, state.commit)

    def export(self, state: GitState, into: Path) -> tuple[Skipped, ...]:
        """Fills an empty folder; see `export_commit`."""
        return export_commit(self._mirror, _resolved(state), into, self._on_progress)

    def export_since(
        self, old: GitState, state: GitState, old_file: OldFile, into: Path
    ) -> Delta | None:
        """Fills an empty folder with what is new since `old`; None when only a full
        export will do. See `export_delta`."""
        if old.repository != state.repository:
            return None
        return export_delta(self._mirror, old.commit, _resolved(state), old_file, into)

    def _check_limits(self, state: GitState) -> None:
        limits = self._request
        if limits.max_files is None and limits.max_bytes is None:
            return
        files, size = self.size(state)
        for found, allowed, what in (
            (files, limits.max_files, "files"),
            (size, limits.max_bytes, "bytes"),
        ):
            if allowed is not None and found > allowed:
                raise ProjectTooLarge(
                    f"The project has {found} {what}; {allowed} are allowed.",
                    hint="Allow more, or exclude what is not needed.",
                    found=found,
                    allowed=allowed,
                )


def _resolved(state: GitState) -> Resolved:
    return Resolved(state.commit, state.branch)
