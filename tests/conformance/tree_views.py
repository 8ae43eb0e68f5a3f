"""What a folder holds, told apart from what the drivers say of it."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path
from typing import NamedTuple

from carrel.domain.trees import Change

SHARED = ".git/objects"
"""Some drivers' trees borrow these from the base instead of having them."""
INDEX = ".git/index"
"""Has the inodes of the files beside it, so every copy has its own."""


class Seen(NamedTuple):
    """`content` names the bytes, or is a link's target; `links` are all names of the file."""

    kind: int
    mode: int
    size: int
    content: str
    links: tuple[str, ...]


def look(top: Path | str = ".", *, but: str = SHARED) -> dict[str, Seen]:
    """Every entry below `top`, without what is below `but`."""
    found: dict[str, tuple[os.stat_result, str]] = {}
    pending = [""]
    while pending:
        folder = pending.pop()
        for name in os.listdir(os.path.join(top, folder)):
            path = os.path.join(folder, name)
            status = os.lstat(os.path.join(top, path))
            if stat.S_ISDIR(status.st_mode) and path != but:
                pending.append(path)
            found[path] = (status, _content(os.path.join(top, path), status))
    names: dict[tuple[int, int], list[str]] = {}
    for path, (status, _) in sorted(found.items()):
        if not stat.S_ISDIR(status.st_mode):
            names.setdefault((status.st_dev, status.st_ino), []).append(path)
    return {
        path: Seen(
            stat.S_IFMT(status.st_mode),
            stat.S_IMODE(status.st_mode),
            status.st_size if stat.S_ISREG(status.st_mode) else 0,
            content if path != INDEX else "",
            tuple(names.get((status.st_dev, status.st_ino), ())),
        )
        for path, (status, content) in found.items()
    }


def _content(path: str, status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(path)
    if not stat.S_ISREG(status.st_mode):
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(top: Path) -> str:
    """Of everything that can be told of a folder, but for the times of reading, and for
    how many names git's objects have."""
    found = hashlib.sha256()
    for folder, names, files in sorted(os.walk(top)):
        for name in sorted([*names, *files]):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            facts = [status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns]
            if SHARED not in path:
                facts += [status.st_nlink, status.st_ctime_ns, status.st_rdev]
            found.update(repr((os.path.relpath(path, top), facts)).encode())
            found.update(_content(path, status).encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def owners(top: str = ".") -> set[tuple[int, int]]:
    """But for git's objects, which may be those of the base."""
    found = {(os.lstat(top).st_uid, os.lstat(top).st_gid)}
    for folder, names, files in os.walk(top):
        if os.path.relpath(folder, top).startswith(SHARED):
            continue
        for name in (*names, *files):
            status = os.lstat(os.path.join(folder, name))
            found.add((status.st_uid, status.st_gid))
    return found


def make_project(folder: Path) -> Path:
    """A checkout with everything that projects have."""
    folder.mkdir()
    (folder / "src" / "deep" / "er").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print('hello')\n")
    (folder / "src" / "deep" / "one").write_text("one\n")
    (folder / "src" / "deep" / "er" / "two").write_text("two two\n")
    (folder / "src" / "run.sh").write_text("#!/bin/sh\necho run\n")
    (folder / "src" / "run.sh").chmod(0o755)
    (folder / "README").write_text("read me\n")
    (folder / "to-main").symlink_to("src/main.py")
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / ".gitignore").write_text(".env\nbuild/\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    (folder / "src" / "main.py").write_text("print('hello, world')\n")
    git(folder, "commit", "--quiet", "--all", "--message=second")
    _add_uncommitted(folder)
    return folder


def _add_uncommitted(folder: Path) -> None:
    (folder / ".env").write_text("SECRET=1\n")
    (folder / ".env").chmod(0o600)
    (folder / "build" / "out").mkdir(parents=True)
    (folder / "build" / "out" / "object.o").write_bytes(os.urandom(70_000))
    (folder / "empty-folder").mkdir(mode=0o750)
    (folder / "empty-file").touch()
    (folder / "nowhere").symlink_to("does/not/exist")
    (folder / "to-root").symlink_to("/")
    (folder / "a\nnew line").write_text("odd\n")
    Path(os.fsdecode(bytes(folder) + b"/\xff\xfe")).write_text("not text\n")
    (folder / ("n" * 255)).write_text("long\n")
    with (folder / "sparse").open("wb") as file:
        file.truncate(8 << 20)
        file.seek(4 << 20)
        file.write(b"in the middle")
    (folder / "hard-one").write_text("linked\n")
    (folder / "hard-two").hardlink_to(folder / "hard-one")
    (folder / "fixed").mkdir()
    (folder / "fixed" / "file").write_text("cannot be changed\n")
    (folder / "fixed" / "file").chmod(0o444)
    (folder / "fixed").chmod(0o555)


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def do_much() -> None:
    """Of everything that programs do to files."""
    Path("new").mkdir()
    Path("new", "file").write_text("new\n")
    Path("README").write_text("changed\n")
    with open("src/main.py", "a") as file:
        file.write("more\n")
    os.truncate("sparse", 100)
    os.chmod("src/run.sh", 0o700)
    os.unlink("empty-file")
    os.rename("src/deep/one", "src/deep/uno")
    os.link("src/deep/er/two", "src/deep/er/deux")
    os.rmdir("empty-folder")
    os.symlink("new", "empty-folder")
    os.unlink("to-main")
    os.mkdir("to-main")
    os.utime(".env", (1, 1))
    subprocess.run(["rm", "-rf", "build"], check=True)


def told(changes: list[Change]) -> list[tuple[str, str]]:
    """Without git's own files, which few tests are about."""
    return [(change.kind.value, change.path) for change in changes if not is_git(change.path)]


def is_git(path: str) -> bool:
    return path == ".git" or path.startswith(".git/")
