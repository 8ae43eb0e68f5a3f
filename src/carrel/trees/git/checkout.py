"""Checks a commit out of a mirror: in full, or as what differs from an older one.

The git folder of the checkout is nobody's but its own. Its objects are hard links to the mirror's
(both are ours, on the same disk, and git never changes a pack), so history costs no space; no
alternates, which a sandbox could not see.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from carrel.domain.errors import GitFailed
from carrel.domain.projects import OnProgress, ignore_progress
from carrel.domain.trees import Skipped
from carrel.trees.git.config import quote
from carrel.trees.git.index import GITLINK, IndexStat, entries, restat
from carrel.trees.git.mirror import LOCAL_TIMEOUT_S, Mirror, Resolved
from carrel.trees.git.objects import object_files
from carrel.trees.git.process import listener, run_git

_COPY_CHUNK = 1 << 30
_EXCLUDE = b"# Patterns that git ignores in this copy only, as in .gitignore.\n"

Exists = Callable[[bytes], bool]


def git_files(mirror: Mirror, resolved: Resolved) -> dict[bytes, bytes]:
    """All small files of the git folder but the index, by their path in it."""
    refs = mirror.refs()
    branch = resolved.branch
    if branch is not None and f"refs/heads/{branch}" not in refs:
        branch = None  # a name that only the origin vouches for
    default = mirror.head_branch
    files = {
        b"HEAD": _encode(f"ref: refs/heads/{branch}\n" if branch else f"{resolved.commit}\n"),
        b"config": _config(mirror, branch, len(resolved.commit)),
        b"packed-refs": _packed_refs(refs, branch, resolved.commit),
        b"info/exclude": _EXCLUDE,
    }
    if default is not None and f"refs/heads/{default}" in refs:
        files[b"refs/remotes/origin/HEAD"] = _encode(f"ref: refs/remotes/origin/{default}\n")
    shallow = mirror.folder / "shallow"
    if shallow.exists():
        files[b"shallow"] = shallow.read_bytes()
    return files


def make_folder(path: Path) -> None:
    """With what is missing above it, and the usual mode whatever our umask is."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        path.chmod(0o755)


def write_file(path: Path, content: bytes) -> None:
    make_folder(path.parent)
    path.write_bytes(content)
    path.chmod(0o644)


def link_objects(mirror: Mirror, git: Path, has: Exists) -> Iterator[bytes]:
    """Puts the mirror's objects and packs that are not there yet into `git`; gives the
    path of each in the git folder."""
    source = os.fsencode(mirror.folder / "objects")
    for name in object_files(source):
        path = os.path.join(b"objects", name)
        if name.endswith(b".keep") or has(path):
            continue
        target = os.path.join(os.fsencode(git), path)
        make_folder(Path(os.fsdecode(os.path.dirname(target))))
        _link(os.path.join(source, name), target)
        yield path


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _config(mirror: Mirror, branch: str | None, id_length: int) -> bytes:
    sha256 = id_length == 64
    lines = [
        b"[core]",
        b"\trepositoryformatversion = " + (b"1" if sha256 else b"0"),
        b"\tfilemode = true",
        b"\tbare = false",
        b"\tlogallrefupdates = true",
    ]
    if sha256:
        lines += [b"[extensions]", b"\tobjectformat = sha256"]
    lines += [
        b'[remote "origin"]',
        b"\turl = " + quote(_encode(mirror.remote.origin)),
        b"\tfetch = +refs/heads/*:refs/remotes/origin/*",
    ]
    if branch is not None:
        lines += [
            b"[branch " + quote(_encode(branch)) + b"]",
            b"\tremote = origin",
            b"\tmerge = " + quote(_encode(f"refs/heads/{branch}")),
        ]
    return b"\n".join(lines) + b"\n"


def _packed_refs(refs: dict[str, tuple[str, str]], branch: str | None, commit: str) -> bytes:
    """The origin's branches as remote ones, its tags, and the one branch that is ours."""
    rows = {
        name.replace("refs/heads/", "refs/remotes/origin/", 1): oids
        for name, oids in refs.items()
        if name != "refs/heads/HEAD"  # would be the remote's own HEAD
    }
    if branch is not None:
        rows[f"refs/heads/{branch}"] = (commit, "")
    lines = ["# pack-refs with: peeled fully-peeled sorted "]
    for name in sorted(rows, key=_encode):
        oid, peeled = rows[name]
        lines.append(f"{oid} {name}")
        if peeled:
            lines.append(f"^{peeled}")
    return _encode("\n".join(lines) + "\n")


def _link(source: bytes, target: bytes) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or too many links. The kernel shares the blocks if it can.
        with open(source, "rb") as reader, open(target, "xb") as writer:
            while os.copy_file_range(reader.fileno(), writer.fileno(), _COPY_CHUNK):
                pass
            os.fchmod(writer.fileno(), 0o444)


# The checkout

_SETTLED_S = 2
"""Files are dated at least this much before the index: a later change then always shows in
the mtime, whose seconds are all that many builds of git compare, and git does not doubt
what is older than the index."""

OldFile = Callable[[bytes], Path | None]
"""Where a file of the older base is (its path from the top), or None."""


@dataclass(frozen=True)
class Delta:
    """What differs from the older base. First remove `deleted` (folders come after what
    was in them), then put what stands in the given folder at the `changed` paths, in place
    of whatever is there: files, symlinks and, for submodules, empty folders."""

    changed: tuple[bytes, ...]
    deleted: tuple[bytes, ...]
    skipped: tuple[Skipped, ...]


class _Row(NamedTuple):
    old_mode: int
    new_mode: int
    path: bytes


def export_commit(
    mirror: Mirror, resolved: Resolved, into: Path, on_progress: OnProgress = ignore_progress
) -> tuple[Skipped, ...]:
    """Fills the empty folder `into` with a checkout that has the whole history.

    Gives what it does not hold: submodules, and files that git-lfs keeps elsewhere.
    Raises `GitFailed`, `GitTimeout`, `InsufficientDisk`.
    """
    git = into / ".git"
    with mirror.reading():
        for folder in ("objects/info", "objects/pack", "refs/heads", "refs/tags", "hooks"):
            make_folder(git / folder)
        for name, content in git_files(mirror, resolved).items():
            write_file(git / os.fsdecode(name), content)
        for _name in link_objects(mirror, git, lambda _path: False):
            pass
        run_git(
            [
                f"--git-dir={git}",
                f"--work-tree={into}",
                "-c",
                "checkout.workers=0",  # as many as there are processors
                "read-tree",
                "-m",
                "-u",
                "-v",
                resolved.commit,
            ],
            cwd=into,
            timeout_s=LOCAL_TIMEOUT_S,
            on_line=listener(on_progress),
        )
        _settle(mirror, resolved, into, None)
        return tuple(_not_held(mirror, git / "index"))


def export_delta(
    mirror: Mirror, old_commit: str, resolved: Resolved, old: OldFile, into: Path
) -> Delta | None:
    """Fills the empty folder `into` with what a base at `old_commit` lacks, its new index
    (with the stat data of unchanged files as it was) and new objects among it.

    None when only a full checkout will do: attributes changed, which count for files that
    did not, the older base's index does not fit, or the mirror no longer has its commit.
    Then `into` may hold a part of it.
    Raises as `export_commit` does.
    """
    with mirror.reading():
        rows = _differences(mirror, old_commit, resolved.commit)
        if rows is None or any(os.path.basename(row.path) == b".gitattributes" for row in rows):
            return None
        index = old(b".git/index")
        if index is None or not _merge_index(mirror, old_commit, resolved.commit, index, into):
            return None
        written = [row.path for row in rows if _is_written(row)]
        _check_out(mirror, into, written)
        _settle(mirror, resolved, into, set(written))
        changed = [*written, b".git/index", *_new_git_files(mirror, resolved, old, into)]
        deleted = [row.path for row in rows if row.new_mode == 0]
        return Delta(
            changed=tuple(changed),
            deleted=(*deleted, *_emptied(mirror, resolved.commit, deleted)),
            skipped=tuple(_not_held(mirror, into / ".git/index")),
        )


def measure(mirror: Mirror, commit: str) -> tuple[int, int]:
    """How many files a checkout of a commit has, and how many bytes in them."""
    listed = mirror.run("ls-tree", "-r", "-l", "-z", "--full-tree", commit)
    sizes = [row.split(b"\t", 1)[0].split()[-1] for row in listed.split(b"\0") if row]
    return len(sizes), sum(int(size) for size in sizes if size != b"-")


def _differences(mirror: Mirror, old: str, new: str) -> list[_Row] | None:
    try:
        output = mirror.run("diff-tree", "-r", "-z", "--raw", "--no-renames", old, new)
    except GitFailed:
        return None
    fields = output.split(b"\0")
    rows = []
    for meta, path in zip(fields[::2], fields[1::2], strict=False):
        old_mode, new_mode = meta[1:].split(b" ")[:2]
        rows.append(_Row(int(old_mode, 8), int(new_mode, 8), path))
    return rows


def _is_written(row: _Row) -> bool:
    """A submodule that merely moves on is an empty folder before and after."""
    return row.new_mode != 0 and not (row.old_mode == row.new_mode == GITLINK)


def _merge_index(mirror: Mirror, old: str, new: str, index: Path, into: Path) -> bool:
    target = into / ".git/index"
    write_file(target, index.read_bytes())
    try:
        run_git(
            [f"--git-dir={mirror.folder}", "read-tree", "-i", "-m", old, new],
            cwd=into,
            timeout_s=LOCAL_TIMEOUT_S,
            env={"GIT_INDEX_FILE": str(target)},
        )
    except GitFailed:
        return False
    return True


def _check_out(mirror: Mirror, into: Path, paths: Iterable[bytes]) -> None:
    run_git(
        [
            f"--git-dir={mirror.folder}",
            f"--work-tree={into}",
            "-c",
            "core.bare=false",
            "-c",
            "checkout.workers=0",
            "checkout-index",
            "-f",
            "-q",
            "-z",
            "--stdin",
        ],
        cwd=into,
        timeout_s=LOCAL_TIMEOUT_S,
        env={"GIT_INDEX_FILE": str(into / ".git/index")},
        input=b"".join(path + b"\0" for path in paths),
    )


def _settle(mirror: Mirror, resolved: Resolved, into: Path, only: set[bytes] | None) -> None:
    """Dates the files as the commit, and tells the index what is true of them."""
    shown = mirror.run("show", "-s", "--format=%ct", resolved.commit)
    index = into / ".git/index"
    when = min(int(shown.split()[-1]), int(index.stat().st_mtime) - _SETTLED_S)
    top = os.fsencode(into)

    def found(path: bytes, _recorded: IndexStat) -> IndexStat | None:
        if only is not None and path not in only:
            return None
        full = os.path.join(top, path)
        os.utime(full, (when, when), follow_symlinks=False)
        return IndexStat.of(os.lstat(full))

    restat(index, found, racy=True)


def _new_git_files(mirror: Mirror, resolved: Resolved, old: OldFile, into: Path) -> Iterator[bytes]:
    """Writes the files of the git folder that are not as in the older base."""
    for name, content in git_files(mirror, resolved).items():
        path = os.path.join(b".git", name)
        before = old(path)
        if before is None or before.read_bytes() != content:
            write_file(into / os.fsdecode(path), content)
            yield path
    for name in link_objects(
        mirror, into / ".git", lambda name: old(os.path.join(b".git", name)) is not None
    ):
        yield os.path.join(b".git", name)


def _emptied(mirror: Mirror, commit: str, deleted: Iterable[bytes]) -> list[bytes]:
    """Folders that held nothing but what was deleted, the deepest first."""
    parents: set[bytes] = set()
    for path in deleted:
        while path := os.path.dirname(path):
            parents.add(path)
    if not parents:
        return []
    listed = mirror.run("ls-tree", "-r", "-d", "-z", "--name-only", "--full-tree", commit)
    return sorted(parents - set(listed.split(b"\0")), reverse=True)


def _not_held(mirror: Mirror, index: Path) -> Iterator[Skipped]:
    attributes: dict[str, bytes] = {}
    for entry in entries(
        index, lambda path, mode: mode == GITLINK or path.endswith(b".gitattributes")
    ):
        if entry.mode == GITLINK:
            yield Skipped(os.fsdecode(entry.path), "submodules are not fetched")
        elif stat.S_ISREG(entry.mode):
            attributes.setdefault(entry.oid.hex(), entry.path)
    for oid, content in _blobs(mirror, attributes):
        if b"filter=lfs" in content:
            why = "git-lfs files are not fetched, only their pointers"
            yield Skipped(os.fsdecode(attributes[oid]), why)


def _blobs(mirror: Mirror, oids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Each with its content, by one git."""
    asked = "".join(f"{oid}\n" for oid in oids).encode()
    if not asked:
        return
    output = run_git(
        [f"--git-dir={mirror.folder}", "cat-file", "--batch"],
        cwd=mirror.folder,
        timeout_s=LOCAL_TIMEOUT_S,
        input=asked,
    )
    at = 0
    while at < len(output):
        end = output.index(b"\n", at)
        oid, _kind, size = output[at:end].split()
        start, at = end + 1, end + 2 + int(size)
        yield oid.decode(), output[start : at - 1]
