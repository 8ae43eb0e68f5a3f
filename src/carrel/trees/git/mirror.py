"""A bare copy of a repository, fetched once and then kept up to date; and which commit of it is
meant by a name.

Bases are made from it, so the user's repository or a slow server is asked only for what
is not here yet. The folder is ours alone: no setting of the origin ever gets into it, and
its own refs (`refs/carrel/…`) keep every commit that was ever asked for.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.errors import GitFailed, InsufficientDisk, RefNotFound
from carrel.domain.projects import ClonePolicy, OnProgress, ignore_progress
from carrel.linux.processes import python
from carrel.trees.git.process import listener, run_git, run_git_remote
from carrel.trees.git.remote import Remote, route_to
from carrel.trees.git.repository import RepositoryReader, lock_files
from carrel.trees.locks import fetch_lock
from carrel.trees.removal import remove_tree

_MAX_LENGTH = 1024
_FULL_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHORT_ID = re.compile(r"[0-9a-fA-F]{4,64}")
_STEPS = re.compile(r"(?:[~^][0-9]{0,6})*|\^\{(?:commit)?\}")
# As `git check-ref-format`: what no ref can hold.
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f:?*\[\\]|\.\.|@\{|//|\.lock(?:/|$)|(?:^|/)\.|[./]$")
_SHOWN = 5


@dataclass(frozen=True)
class Resolved:
    """A commit, and the branch that was asked for, when it was one."""

    commit: str
    branch: str | None = None


@dataclass(frozen=True)
class WantedRef:
    """A ref as it was asked for: a name, and steps back from it (`~2`, `^`)."""

    text: str
    name: str
    steps: str

    @property
    def full_id(self) -> str | None:
        lower = self.name.lower()
        return lower if _FULL_ID.fullmatch(lower) else None

    @property
    def may_be_short_id(self) -> bool:
        return _SHORT_ID.fullmatch(self.name) is not None


@dataclass(frozen=True)
class Offered:
    """What a remote has: the object of each ref, and the commit where a tag has its own."""

    refs: Mapping[str, str]
    head_branch: str | None

    @property
    def id_length(self) -> int:
        return len(next(iter(self.refs.values()), ""))

    def find(self, name: str) -> str | None:
        """The full name of a ref, looked for as `git checkout` does: branches first."""
        places = (
            ("{}", "refs/heads/{}", "refs/tags/{}")
            if name == "HEAD" or name.startswith("refs/")
            else ("refs/heads/{}", "refs/tags/{}", "refs/{}", "refs/remotes/{}")
        )
        for place in places:
            full = place.format(name)
            if full in self.refs:
                return full
        return None


def parse_ref(text: str | None) -> WantedRef:
    """Raises `RefNotFound` for what can be no ref, above all what git could take for an
    option."""
    given = "HEAD" if text is None else text
    name = re.split(r"[~^]", given, maxsplit=1)[0]
    steps = given[len(name) :]
    if (
        not name
        or len(given) > _MAX_LENGTH
        or name.startswith("-")
        or _FORBIDDEN.search(name)
        or not _STEPS.fullmatch(steps)
    ):
        raise RefNotFound(
            f"{given[:80]!r} is not the name of a commit.",
            hint="Give a branch, a tag or a commit's id.",
        )
    return WantedRef(given, "HEAD" if name == "@" else name, steps)


def parse_offered(output: bytes) -> Offered:
    """From `git ls-remote --symref`."""
    refs: dict[str, str] = {}
    head: str | None = None
    for line in output.decode(errors="surrogateescape").split("\n"):
        value, _, name = line.partition("\t")
        if not name:
            continue
        if value.startswith("ref: "):
            if name == "HEAD":
                head = value.partition("ref: refs/heads/")[2] or None
        elif name.endswith("^{}"):
            refs[name.removesuffix("^{}")] = value
        else:
            refs.setdefault(name, value)
    return Offered(refs, head)


def not_found(wanted: WantedRef, offered: Offered | None, why: str = "") -> RefNotFound:
    """The error, with names that look alike."""
    names = [
        name.split("/", 2)[2]
        for name in (offered.refs if offered else ())
        if name.startswith(("refs/heads/", "refs/tags/"))
    ]
    near = difflib.get_close_matches(wanted.name, names, _SHOWN) or sorted(names)[:_SHOWN]
    hint = f"There are, for example: {', '.join(near)}." if near else ""
    message = f"The repository has no commit {wanted.text!r}"
    return RefNotFound(f"{message}: {why}." if why else f"{message}.", hint=hint)


# The mirror

LOCAL_TIMEOUT_S = 600.0
"""Work on our own disk: a checkout of a very large repository, on a slow one."""
_TRIES = 3
"""How often a branch may be rewritten between asking for it and fetching it."""
_MANY_PACKS = 30
"""Each fetch leaves a pack, and git looks into all of them."""
_UPLOAD_PACK = "carrel.trees.git.upload_pack"
_KEPT = "refs/carrel/keep"
_FETCHED = "refs/carrel/fetched"


class Mirror:
    """Blocking, safe between threads and processes. One deadline covers one call.

    Raises `RefNotFound`, `GitFailed`, `GitTimeout` and `InsufficientDisk`; a call that
    fails leaves a mirror that was there before as usable as it was, and no new one.
    """

    def __init__(
        self,
        mirrors: Path,
        remote: Remote,
        *,
        timeout_s: float,
        on_progress: OnProgress = ignore_progress,
        policy: ClonePolicy | None = None,
    ) -> None:
        """With a policy, remotes are asked as it says: see `run_git_remote`."""
        self.remote = remote
        self._policy = policy
        self.folder = mirrors / f"{remote.key}.git"
        self._lock = mirrors / f"{remote.key}.lock"
        self._timeout_s = timeout_s
        self._deadline = 0.0
        self._on_progress = on_progress

    def resolve(self, ref: str | None) -> Resolved:
        """The commit that a ref (None: HEAD) means now; afterwards it is in the mirror.

        A full id that is here already asks nobody. All else may have moved, and asks.
        """
        wanted = parse_ref(ref)
        if wanted.full_id and not wanted.steps and self._keeps(wanted.full_id):
            return Resolved(wanted.full_id)
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        deadline = time.monotonic() + self._timeout_s
        with fetch_lock(self._lock, timeout_s=self._timeout_s), self._nothing_left():
            self._deadline = deadline
            return self._resolve(wanted)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While open, nothing in the mirror goes away."""
        with fetch_lock(self._lock, shared=True, timeout_s=self._timeout_s):
            yield

    def refs(self) -> dict[str, tuple[str, str]]:
        """Branches and tags: the object of each, and what an annotated tag is of, or ""."""
        shown = "--format=%(refname)%00%(objectname)%00%(*objectname)"
        output = self.run("for-each-ref", shown, "refs/heads", "refs/tags")
        rows = (line.split("\0") for line in os.fsdecode(output).split("\n") if line)
        return {name: (oid, peeled) for name, oid, peeled in rows}

    @property
    def head_branch(self) -> str | None:
        """The branch that the origin's HEAD was on when last asked."""
        text = (self.folder / "HEAD").read_text(errors="surrogateescape").strip()
        return text.partition("ref: refs/heads/")[2] or None

    def run(self, *args: str, timeout_s: float = LOCAL_TIMEOUT_S) -> bytes:
        """Local git on the mirror."""
        return run_git([f"--git-dir={self.folder}", *args], cwd=self.folder, timeout_s=timeout_s)

    def remove(self) -> None:
        """Forgets all; idempotent."""
        with fetch_lock(self._lock, timeout_s=self._timeout_s):
            remove_tree(self.folder)
            self._lock.unlink(missing_ok=True)

    # Everything below runs with the lock held.

    @contextlib.contextmanager
    def _nothing_left(self) -> Iterator[None]:
        """A failed call takes back what it made, and clears what a killed git left."""
        existed = self.folder.exists()
        try:
            yield
        except BaseException:
            if existed:
                self._tidy()
            else:
                remove_tree(self.folder)
                self._lock.unlink(missing_ok=True)
            raise

    def _tidy(self) -> None:
        """Removes locks and half packs of a git that died here."""
        folder = os.path.realpath(os.fsencode(self.folder))
        with RepositoryReader(folder) as files:
            for name in lock_files(files, folder):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, name))

    def _left_s(self) -> float:
        return max(0.001, self._deadline - time.monotonic())

    def _resolve(self, wanted: WantedRef) -> Resolved:
        if wanted.full_id:
            return self._resolve_id(wanted, wanted.full_id)
        offered = self._ask()
        name = offered.find(wanted.name)
        if name is None:
            return self._resolve_short(wanted, offered)
        for _ in range(_TRIES):
            commit = offered.refs[name]
            if not self._has(commit):
                self._fetch(offered, name)
            if self._has(commit):
                break
            self._refuse_other_kinds(wanted, commit, offered)
            offered = self._ask()  # rewritten meanwhile
            if name not in offered.refs:
                raise not_found(wanted, offered)
        else:
            raise GitFailed(f"{wanted.text!r} changes faster than it can be fetched.")
        branch = name.partition("refs/heads/")[2] or None
        if name == "HEAD":
            branch = offered.head_branch
        commit = self._commit(wanted, commit + wanted.steps, offered)
        return Resolved(commit, None if wanted.steps else branch)

    def _refuse_other_kinds(self, wanted: WantedRef, oid: str, offered: Offered) -> None:
        """A tag can also be of a file or a folder."""
        with contextlib.suppress(GitFailed):
            kind = self.run("cat-file", "-t", oid).decode().strip()
            if kind != "commit":
                raise not_found(wanted, offered, f"it names a {kind}")

    def _resolve_id(self, wanted: WantedRef, full_id: str) -> Resolved:
        if not self._has(full_id):
            offered = self._ask()
            if offered.id_length not in (0, len(full_id)):
                raise not_found(wanted, None, "its ids have another length")
            self._fetch(offered, None)
            if not self._has(full_id):
                with contextlib.suppress(GitFailed):
                    self._fetch(offered, full_id)
        return Resolved(self._commit(wanted, full_id + wanted.steps, None))

    def _resolve_short(self, wanted: WantedRef, offered: Offered) -> Resolved:
        if not wanted.may_be_short_id:
            why = "it has no commits at all" if not offered.refs else ""
            raise not_found(wanted, offered, why)
        expression = wanted.name + wanted.steps
        if self.folder.exists():
            with contextlib.suppress(RefNotFound):
                return Resolved(self._commit(wanted, expression, offered))
        self._fetch(offered, None)
        return Resolved(self._commit(wanted, expression, offered))

    def _commit(self, wanted: WantedRef, expression: str, offered: Offered | None) -> str:
        """The id, once it is certain that it is a commit and all of it is here."""
        try:
            found = self.run("rev-parse", "--verify", expression + "^{commit}")
        except GitFailed as error:
            why = "several have an id that starts so" if "ambiguous" in str(error) else ""
            raise not_found(wanted, offered, why) from error
        commit = found.decode().strip()
        if not self._has(commit):
            raise not_found(wanted, offered)
        self.run("update-ref", f"{_KEPT}/{commit}", commit)
        return commit

    def _keeps(self, commit: str) -> bool:
        return (self.folder / _KEPT / commit).exists()

    def _has(self, commit: str) -> bool:
        """Whether it is here with all its history: a fetch that died may have left some
        of it, but no ref that leads to it."""
        if not self.folder.exists():
            return False
        if self._keeps(commit):
            return True
        with contextlib.suppress(GitFailed):
            return bool(self.run("for-each-ref", "--count=1", "--contains", commit))
        return False

    def _ask(self) -> Offered:
        parent = self.folder.parent
        output = run_git_remote(
            ["ls-remote", "--symref", *self._reader(), "--", self.remote.address],
            cwd=parent,
            timeout_s=self._left_s(),
            env={"GIT_CEILING_DIRECTORIES": str(parent.parent)},
            route=self._route(),
        )
        return parse_offered(output)

    def _route(self) -> list[str] | None:
        """How a remote is reached for who is not the owner; None for the owner."""
        if self._policy is None:
            return None
        return [] if self.remote.folders else route_to(self.remote.address, self._policy)

    def _reader(self) -> list[str]:
        """How a repository on this machine is read."""
        if not self.remote.folders:
            return []
        strict = "0" if self._policy is None else "1"
        program = [*python(_UPLOAD_PACK), strict, *map(str, self.remote.folders)]
        return [f"--upload-pack={shlex.join([*program, '--'])}"]

    def _fetch(self, offered: Offered, also: str | None) -> None:
        """All branches and tags, and one more ref or id."""
        if not offered.refs and also is None:
            return
        self._make(offered.id_length)
        self._tidy()
        specs = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]
        if also is not None and not also.startswith(("refs/heads/", "refs/tags/")):
            # Not by its own name: `a` and `a/b` cannot both be refs.
            name = hashlib.sha256(os.fsencode(also)).hexdigest()[:16]
            specs.append(f"+{also}:{_FETCHED}/{name}")
        run_git_remote(
            [
                f"--git-dir={self.folder}",
                "-c",
                "fetch.unpackLimit=1",  # one pack is quicker to share than many objects
                "fetch",
                "--prune",
                "--no-tags",
                "--no-write-fetch-head",
                "--update-shallow",
                "--no-auto-maintenance",
                "--no-recurse-submodules",
                "--progress",
                *self._reader(),
                "--",
                self.remote.address,
                *specs,
            ],
            cwd=self.folder,
            timeout_s=self._left_s(),
            on_line=listener(self._on_progress),
            route=self._route(),
        )
        if offered.head_branch:
            self.run("symbolic-ref", "HEAD", f"refs/heads/{offered.head_branch}")
        self._repack()

    def _make(self, id_length: int) -> None:
        if self.folder.exists():
            return
        for left in self.folder.parent.glob(f".{self.folder.name}.*"):
            remove_tree(left)  # of one that was killed right here
        fresh = self.folder.with_name(f".{self.folder.name}.{secrets.token_hex(6)}")
        algorithm = "sha256" if id_length == 64 else "sha1"
        init = ["init", "-q", "--bare", "--template=", f"--object-format={algorithm}"]
        try:
            run_git([*init, "--", str(fresh)], cwd=self.folder.parent, timeout_s=self._left_s())
            fresh.rename(self.folder)
        finally:
            remove_tree(fresh)

    def _repack(self) -> None:
        """Only ever merges packs: nothing is dropped, and bases hold links to the old."""
        packs = sum(name.endswith(".pack") for name in os.listdir(self.folder / "objects/pack"))
        if packs > _MANY_PACKS:
            with contextlib.suppress(GitFailed, InsufficientDisk):
                self.run("repack", "-d", "-q", "--geometric=2")
