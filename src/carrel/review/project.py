"""The project's own repository, as landing touches it: objects come in, and one branch moves.

Its settings are the project's, which nobody has looked at: no hook runs, no remote is asked, and
nothing is checked out, so that no filter runs either. Git works as the account that the repository
belongs to, which can look into that process and have it say anything.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from carrel.domain.errors import GitFailed, GitTimeout, LandingRefused
from carrel.domain.trees import Owner
from carrel.linux.descriptors import Descriptor, is_readable
from carrel.linux.openat2 import open_real
from carrel.review.work import LOCAL_S
from carrel.trees.git.process import (
    OutputTooLarge,
    Pump,
    TimeIsUp,
    bare_environment,
    bound_memory,
    close_streams,
    command_name,
    environment,
    failure,
    kill,
    options,
)
from carrel.trees.git.repository import endless_file

_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NO_BRANCH = re.compile(
    r"[\x00-\x20\x7f:?*\[\\~^]|\.\.|@\{|//|\.lock(?:/|$)|(?:^|/)[.-]|[./]$|^/|^HEAD$|^@$"
)
"""As `git check-ref-format --branch` has it."""
_MOST_NAME = 200
_WRITTEN = ("objects/pack", "objects/info", "packed-refs", "reftable", "index", "logs/HEAD")
"""What git writes in a git folder, beside a branch and its log."""
_WRITER = {
    f"GIT_COMMITTER_{what}": value
    for what, value in (("NAME", "carrel"), ("EMAIL", "carrel@localhost"))
}
"""Who is named in the logs of branches: else the project's settings say what is written there."""
_PIECE = 1 << 20
_LINE = 256
"""Bytes of what git says of an object, before its content."""
_MOST_LINKS = 40
"""As the kernel: more on the way are a loop."""


def check_branch(name: str) -> str:
    """Raises `LandingRefused` for what can be no branch."""
    if not name or len(name.encode(errors="replace")) > _MOST_NAME or _NO_BRANCH.search(name):
        raise LandingRefused(
            f"{name[:80]!r} cannot be the name of a branch.", hint="Give another one with --into."
        )
    return name


@contextmanager
def held(folder: Path) -> Iterator[tuple[int, Owner]]:
    """A folder, and whose it is. As root we work there as that account, or write for it. So nobody
    but root and that account may have a say in where the path leads: another one could have us
    write in any folder. Raises `LandingRefused`."""
    with Descriptor(_owners_alone(folder)) as opened:
        status = os.fstat(opened)
        yield opened, Owner(status.st_uid, status.st_gid)


def _owners_alone(folder: Path) -> int:
    try:
        real, accounts = _way_to(folder)
        opened = open_real(real)
    except OSError as error:
        raise gone(folder, error.strerror) from error
    if os.geteuid() == 0 and accounts - {0, os.fstat(opened).st_uid}:
        os.close(opened)
        raise LandingRefused(
            f"{folder} is not its owner's alone: another account's folder or link leads there.",
            hint="Give the project to that account, or have it in a folder of its owner's.",
        )
    return opened


def _way_to(folder: Path) -> tuple[Path, set[int]]:
    """The real path, and the accounts whose folders and links are on the way. OSError."""
    here, accounts, links = Path("/"), {os.lstat("/").st_uid}, 0
    left = [*reversed(os.path.abspath(folder).split("/"))]
    while left:
        name = left.pop()
        if name in ("", ".", ".."):
            here = here.parent if name == ".." else here
            continue
        step = here / name
        status = os.lstat(step)
        accounts.add(status.st_uid)
        if not stat.S_ISLNK(status.st_mode):
            here = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
        target = os.readlink(step)
        left += reversed(target.split("/"))
        here = Path("/") if target.startswith("/") else here
    return here, accounts


class ProjectRepository:
    """`folder` is the git folder with the branches, a real path. Blocking. Raises `GitFailed`,
    `GitTimeout`, `InsufficientDisk`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first: os.stat_result | None = None

    def expect_place(self) -> None:
        """Raises `LandingRefused` when something else is there than at first."""
        with self._held():
            pass

    @contextmanager
    def _held(self) -> Iterator[Owner]:
        with held(self._folder) as (opened, owner):
            status = os.fstat(opened)
            self._first = self._first or status
            if not os.path.samestat(status, self._first):
                raise gone(self._folder, "something else is there now")
            yield owner

    def check(self, branch: str, checkout: Path | None) -> None:
        """Git follows links in its folder when it writes, and appends to what they name. Raises
        `LandingRefused` for them, and for a branch that is another one's name."""
        places = (*_WRITTEN, f"refs/heads/{branch}", f"logs/refs/heads/{branch}")
        for folder in {self._folder, checkout or self._folder}:
            for place in places:
                _check_written(folder, place)
            if found := endless_file(os.fsencode(folder)):
                raise LandingRefused(
                    f"Git cannot read the project: {os.fsdecode(found)} is no file, or too large.",
                    hint="Take the work out with `carrel cp`, or mend the project.",
                )
        name = f"refs/heads/{branch}"
        if other := self._run("symbolic-ref", "-q", name, well=(0, 1)).decode(errors="replace"):
            raise LandingRefused(
                f"The branch {branch!r} is another name of {other.strip()}.",
                hint="Land on that one: --into BRANCH",
            )

    def tip(self, branch: str) -> str:
        """Where a branch is; empty: there is none."""
        words = ("for-each-ref", "--format=%(objectname) %(refname)", f"refs/heads/{branch}")
        for line in self._run(*words).decode(errors="replace").splitlines():
            oid, _, name = line.partition(" ")
            if name == f"refs/heads/{branch}" and _ID.fullmatch(oid):
                return oid
        return ""

    def is_ancestor(self, old: str, new: str) -> bool:
        """Whether a commit stands on another one; not if one of them is not there."""
        try:
            self._run("merge-base", "--is-ancestor", old, new)
        except GitFailed:
            return False
        return True

    def current(self) -> str:
        """The branch that the checkout is on; empty: none."""
        try:
            said = self._run("symbolic-ref", "-q", "HEAD", well=(0, 1)).decode(errors="replace")
        except UnicodeError:
            return ""
        return said.strip().partition("refs/heads/")[2]

    def head(self, checkout: Path | None) -> str:
        """The commit that a checkout is on, whether by a branch or not; empty: none yet."""
        words = ("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        said = self._run(*words, well=(0, 1), folder=checkout).decode(errors="replace").strip()
        return said if _ID.fullmatch(said) else ""

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

    @contextmanager
    def contents(self) -> Iterator[Callable[[str, int], None]]:
        """Copies one object after the other into a file, without holding more than a piece."""
        process = self._start("cat-file", "--batch", stdin=subprocess.PIPE)
        try:
            yield _Answers(process, self.expect_place).copy
        finally:
            kill(process)
            close_streams(process)

    def _run(
        self,
        *args: str,
        stdin: int = subprocess.DEVNULL,
        well: tuple[int, ...] = (0,),
        folder: Path | None = None,
    ) -> bytes:
        process = self._start(*args, stdin=stdin, folder=folder)
        name = command_name(["git", *args])
        pump = Pump(b"", lambda _line: None)
        try:
            pump.run(process, time.monotonic() + LOCAL_S)
        except TimeIsUp as error:
            raise GitTimeout(
                f"git {name} did not finish in the project.", hint="Try again when less runs."
            ) from error
        except OutputTooLarge as error:
            raise GitFailed(f"git {name} says more of the project than can be held.") from error
        finally:
            kill(process)
            close_streams(process)
        if process.returncode not in well:
            errors = pump.errors
            if b".lock': File exists" in errors:
                raise locked()
            self._expect_found(errors)
            raise failure(name, process.returncode, errors, self._folder)
        return pump.output

    def _expect_found(self, errors: bytes) -> None:
        """What git says of a project that was moved away is no help to anybody."""
        with self._held() as owner:
            if b"not a git repository" not in errors:
                return
            raise LandingRefused(
                f"Git finds no repository in {self._folder} when it works as uid {owner.uid}, whose"
                " project it is.",
                hint="Let that account enter all folders above it, or have it checked: git fsck",
            )

    def _start(self, *args: str, stdin: int, folder: Path | None = None) -> subprocess.Popen[bytes]:
        with self._held() as owner:
            other = os.geteuid() == 0 and owner.uid != 0
        said = {"GIT_ALLOW_PROTOCOL": "none", **_WRITER}
        # That account can read the environment: it is to find nothing of ours there.
        env = bare_environment(said) if other else environment(said, remote=False)
        process = subprocess.Popen(
            ["git", *options(remote=False), f"--git-dir={folder or self._folder}", *args],
            cwd="/",
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            umask=0o022,
            user=owner.uid if other else None,
            group=owner.gid if other else None,
            extra_groups=[] if other else None,
        )
        bound_memory(process)
        return process


class _Answers:
    """What `git cat-file --batch` says. Whose project it is can hold its output open for ever."""

    def __init__(self, git: subprocess.Popen[bytes], expect_place: Callable[[], None]) -> None:
        assert git.stdin is not None and git.stdout is not None
        self._input, self._output = git.stdin, git.stdout.fileno()
        self._expect_place = expect_place
        self._until = time.monotonic() + LOCAL_S
        self._rest = b""

    def copy(self, oid: str, target: int) -> None:
        with suppress(BrokenPipeError):  # It says nothing either.
            self._input.write(f"{oid}\n".encode())
            self._input.flush()
        while b"\n" not in self._rest and len(self._rest) < _LINE and self._more():
            pass
        line, _, self._rest = self._rest.partition(b"\n")
        about = line.split()
        if len(about) != 3 or about[1] != b"blob":
            self._expect_place()
            raise GitFailed(f"git cannot read {oid} in the project.")
        left, refused = int(about[2]), None
        while left:
            if not self._rest and not self._more():
                raise GitFailed(f"git could not read all of {oid} in the project.")
            piece, self._rest = self._rest[:left], self._rest[left:]
            left -= len(piece)
            view = memoryview(piece)
            try:
                while view and refused is None:
                    view = view[os.write(target, view) :]
            except OSError as error:
                # The rest is read all the same: another object may be asked for.
                refused = error
        if not self._rest:
            self._more()
        self._rest = self._rest[1:]
        if refused is not None:
            raise refused

    def _more(self) -> bool:
        if not is_readable(self._output, self._until - time.monotonic()):
            raise GitTimeout(
                "git cat-file did not finish in the project.", hint="Try again when less runs."
            )
        piece = os.read(self._output, _PIECE)
        self._rest += piece
        return bool(piece)


def zero_ended(text: bytes) -> Iterator[bytes]:
    """One after the other: the project's git can say nothing but zero bytes, without an end."""
    at = 0
    while (end := text.find(b"\0", at)) >= 0:
        yield text[at:end]
        at = end + 1


def _check_written(folder: Path, place: str) -> None:
    """Every step to what git may write is a folder or a file, as far as it is there."""
    step = folder
    for name in place.split("/"):
        step /= name
        try:
            mode = os.lstat(step).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise LandingRefused(
                f"Git would write elsewhere than in the project: {step} is a link, or no file.",
                hint="Take the work out with `carrel cp`, or clone the project without links.",
            )


def gone(folder: Path, why: str | None) -> LandingRefused:
    return LandingRefused(
        f"{folder} was moved or replaced: {why}.",
        hint="Put it back, or take the work out: carrel export SPACE --patch",
    )


def locked() -> LandingRefused:
    return LandingRefused(
        "Another git is at work in the project, or has left a lock.",
        hint="Try again when it is done; if none runs, remove the `.lock` file.",
        locked=True,
    )


def moved(branch: str) -> LandingRefused:
    return LandingRefused(
        f"The branch {branch!r} of the project has moved meanwhile.", hint="Try again.", moved=True
    )
