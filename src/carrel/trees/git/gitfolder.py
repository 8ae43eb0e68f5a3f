"""The git folder of a base: made from a mirror, and afterwards nobody's but its own.

Objects are hard links to the mirror's (both are ours, on the same disk, and git never
changes a pack), so history costs no space; no alternates, which a sandbox could not see.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from carrel.trees.git.alternates import object_files
from carrel.trees.git.config import quote
from carrel.trees.git.mirror import Mirror
from carrel.trees.git.refs import Resolved

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
