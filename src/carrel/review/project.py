"""The project's own repository, as landing touches it: objects come in, and one branch moves.

Its settings are the project's, which nobody has looked at: no hook runs, no remote is asked, and
nothing is checked out, so that no filter runs either. Git works as the account that the repository
belongs to.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from tempfile import TemporaryFile

from carrel.domain.errors import GitTimeout, LandingRefused
from carrel.review.work import LOCAL_S
from carrel.trees.git.process import (
    close_streams,
    command_name,
    environment,
    failure,
    kill,
    options,
)

_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NO_BRANCH = re.compile(
    r"[\x00-\x20\x7f:?*\[\\~^]|\.\.|@\{|//|\.lock(?:/|$)|(?:^|/)[.-]|[./]$|^/|^HEAD$|^@$"
)
"""As `git check-ref-format --branch` has it."""
_MOST_NAME = 200


def check_branch(name: str) -> str:
    """Raises `LandingRefused` for what can be no branch."""
    if not name or len(name.encode(errors="replace")) > _MOST_NAME or _NO_BRANCH.search(name):
        raise LandingRefused(
            f"{name[:80]!r} cannot be the name of a branch.", hint="Give another one with --into."
        )
    return name


class ProjectRepository:
    """`folder` is the git folder with the branches, a real path. Blocking. Raises `GitFailed`,
    `GitTimeout`, `InsufficientDisk`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tip(self, branch: str) -> str:
        """Where a branch is; empty: there is none."""
        words = ("for-each-ref", "--format=%(objectname) %(refname)", f"refs/heads/{branch}")
        for line in self._run(*words).decode(errors="replace").splitlines():
            oid, _, name = line.partition(" ")
            if name == f"refs/heads/{branch}" and _ID.fullmatch(oid):
                return oid
        return ""

    def current(self) -> str:
        """The branch that the checkout is on; empty: none."""
        try:
            said = self._run("symbolic-ref", "-q", "HEAD", well=(0, 1)).decode(errors="replace")
        except UnicodeError:
            return ""
        return said.strip().partition("refs/heads/")[2]

    def checked_out(self, branch: str) -> str:
        """The folder in which a branch is checked out; empty: nowhere."""
        words = ("for-each-ref", "--format=%(worktreepath)", f"refs/heads/{branch}")
        return os.fsdecode(self._run(*words)).strip()

    def take(self, pack: Path) -> None:
        """Adds the objects of a pack. Git reads each, and refuses what is broken."""
        with pack.open("rb") as file:
            self._run("index-pack", "--stdin", "--strict", stdin=file.fileno())

    def move(self, branch: str, before: str, after: str, why: str) -> None:
        """Raises `LandingRefused` when the branch is not at `before`."""
        zero = "0" * len(before or after)
        name = f"refs/heads/{branch}"
        if after:
            words = ["--create-reflog", "-m", why, name, after, before or zero]
        else:
            words = ["-d", name, before]
        now = self.tip(branch)
        if now != before:
            raise moved(branch)
        self._run("update-ref", *words)

    def run(self, *args: str, input: bytes = b"", folder: Path | None = None) -> bytes:
        """Git in the repository; in the git folder of a checkout of its own, if that is given."""
        with TemporaryFile() as file:
            file.write(input)
            file.seek(0)
            return self._run(*args, stdin=file.fileno(), folder=folder)

    def _run(
        self,
        *args: str,
        stdin: int = subprocess.DEVNULL,
        well: tuple[int, ...] = (0,),
        folder: Path | None = None,
    ) -> bytes:
        owner = os.stat(self._folder)
        other = os.geteuid() == 0 and owner.st_uid != 0
        env = environment({"GIT_ALLOW_PROTOCOL": "none"}, remote=False)
        if other:
            env |= {"HOME": "/nonexistent"}
        process = subprocess.Popen(
            ["git", *options(remote=False), f"--git-dir={folder or self._folder}", *args],
            cwd="/",
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            umask=0o022,
            user=owner.st_uid if other else None,
            group=owner.st_gid if other else None,
            extra_groups=[] if other else None,
        )
        name = command_name(["git", *args])
        try:
            out, errors = process.communicate(timeout=LOCAL_S)
        except subprocess.TimeoutExpired as error:
            raise GitTimeout(
                f"git {command_name(['git', *args])} did not finish in the project.",
                hint="Try again when less runs.",
            ) from error
        finally:
            kill(process)
            close_streams(process)
        if process.returncode not in well:
            if b".lock': File exists" in errors:
                raise LandingRefused(
                    "Another git is at work in the project, or has left a lock.",
                    hint="Try again when it is done; if none runs, remove the `.lock` file.",
                )
            raise failure(name, process.returncode, errors)
        return out


def moved(branch: str) -> LandingRefused:
    return LandingRefused(
        f"The branch {branch!r} of the project has moved meanwhile.", hint="Try again."
    )
