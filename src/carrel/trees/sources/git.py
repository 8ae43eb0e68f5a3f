"""A git repository at a ref as the content of a base.

Unlike a folder it does not change while it is read: a ref is resolved once, to a commit,
and that is exported, whole or as what differs from a commit that there is a base of.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from carrel.domain.errors import ProjectTooLarge
from carrel.domain.projects import BaseRequest, OnProgress, ignore_progress
from carrel.domain.trees import Skipped
from carrel.trees.bases.records import IndexFile
from carrel.trees.git.checkout import Delta, OldFile, export_commit, export_delta, measure
from carrel.trees.git.mirror import Mirror, Resolved
from carrel.trees.git.remote import RemoteTrust, locate


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


_decoder = msgspec.json.Decoder(GitState)


class GitProducer:
    """One request; see `views.Producer`. Blocking; every method may raise `GitFailed`,
    `GitTimeout` or `InsufficientDisk`, and leaves the user's repository untouched."""

    indexes: tuple[IndexFile, ...] = (IndexFile(b".git/index", b""),)

    def __init__(
        self, request: BaseRequest, data: Path, on_progress: OnProgress = ignore_progress
    ) -> None:
        """Raises `ProjectNotFound`, `ProjectNotAFolder`, `ProjectUnreadable` or
        `ProjectInvalid`."""
        self._request = request
        self._on_progress = on_progress
        self._mirror = Mirror(
            data / "mirrors",
            locate(
                request.project.location,
                RemoteTrust(request.git_reach, data, own=request.clone_policy is None),
            ),
            timeout_s=request.git_timeout_s,
            on_progress=on_progress,
            policy=request.clone_policy,
        )

    @cached_property
    def resolved(self) -> GitState:
        """What the ref means now; afterwards it can be exported. Raises `RefNotFound`,
        and `ProjectTooLarge` when the request allows less (unless it also excludes some,
        which is known only after the export)."""
        found = self._mirror.resolve(self._request.project.ref)
        if not self._request.exclude:
            self._check_limits(found.commit)
        remote = self._mirror.remote
        return GitState(remote.key, remote.origin, found.commit, found.branch)

    def state(self) -> bytes:
        return msgspec.json.encode(self.resolved)

    def produce(self, into: Path) -> tuple[Skipped, ...]:
        return export_commit(self._mirror, self._wanted, into, self._on_progress)

    def update(self, before: bytes, find: OldFile, into: Path) -> Delta | None:
        old = _decoder.decode(before)
        if old.repository != self.resolved.repository:
            return None
        return export_delta(self._mirror, old.commit, self._wanted, find, into)

    @property
    def _wanted(self) -> Resolved:
        return Resolved(self.resolved.commit, self.resolved.branch)

    def _check_limits(self, commit: str) -> None:
        limits = self._request
        if limits.max_files is None and limits.max_bytes is None:
            return
        files, size = measure(self._mirror, commit)
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
