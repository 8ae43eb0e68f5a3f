"""Real repositories for tests, and what to look at afterwards."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

from carrel.domain.projects import GitReach
from carrel.trees.git.objects import object_files
from carrel.trees.git.remote import Remote, RemoteTrust, locate
from carrel.trees.git.standalone import GitPlan

GIT_TIMEOUT_S = 60.0
"""Every repository here is tiny; the rest is for a loaded machine."""


def git(folder: Path, *args: str, env: Mapping[str, str] | None = None, check: bool = True) -> str:
    """Runs git as a person would, and gives what it printed."""
    result = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *args],
        cwd=folder,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=GIT_TIMEOUT_S,
        check=False,
    )
    if check and result.returncode:
        raise AssertionError(f"git {args}: {result.stderr.decode(errors='replace')}")
    return result.stdout.decode(errors="surrogateescape")


def found_at(location: str, reach: GitReach = GitReach.AGREE, *, own: bool = True) -> Remote:
    """Where a repository is, for the owner who has agreed to all that it names."""
    data = Path(location).parent / "carrel-data"
    return locate(location, RemoteTrust(reach, data, own=own))


def make_repository(folder: Path, *options: str) -> Path:
    """A repository on branch `main` with two commits and a few files."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main", *options)
    (folder / "a.txt").write_text("one\n")
    (folder / "src").mkdir()
    (folder / "src" / "b.txt").write_text("bee\n")
    commit(folder, "first")
    (folder / "a.txt").write_text("two\n")
    commit(folder, "second")
    return folder


def commit(folder: Path, message: str) -> str:
    """Commits everything; gives the id."""
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", message)
    return head(folder)


def head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD").strip()


def digest(folder: Path) -> str:
    """Of all names, modes, times and contents: any write shows."""
    found = hashlib.sha256()
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(parent, name)
            status = os.lstat(path)
            found.update(repr((path, status.st_mode, status.st_mtime_ns)).encode())
            if stat.S_ISLNK(status.st_mode):
                found.update(os.fsencode(os.readlink(path)))
            elif stat.S_ISREG(status.st_mode):
                found.update(Path(path).read_bytes())
    return found.hexdigest()


def apply_plan(source: Path, plan: GitPlan | None, target: Path) -> Path:
    """Copies a folder as the plan's contract says."""
    if plan is None:
        shutil.copytree(source, target, symlinks=True)
        return target
    replaced = dict(plan.replace)

    def place(relative: bytes, path: bytes) -> None:
        if relative in plan.generate or relative in plan.omit:
            return
        to = os.path.join(os.fsencode(target), relative)
        if os.path.isdir(path) and not os.path.islink(path):
            os.makedirs(to, exist_ok=True)
            for name in os.listdir(path):
                below = os.path.join(relative, name)
                if below not in replaced:
                    place(below, os.path.join(path, name))
            shutil.copystat(path, to)
        elif not os.path.lexists(to):
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy2(path, to, follow_symlinks=False)

    place(b"", os.fsencode(source))
    for relative, path in plan.replace:
        place(relative, os.fsencode(path))
    for relative, store in plan.objects:
        for name in object_files(os.fsencode(store)):
            to = Path(os.fsdecode(os.path.join(os.fsencode(target), relative, name)))
            if not to.exists():
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(store / os.fsdecode(name), to, follow_symlinks=False)
    for relative, content in plan.generate.items():
        to = Path(os.fsdecode(os.path.join(os.fsencode(target), relative)))
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(content)
    return target


def exercise(folder: Path, *, name: str = "made-here") -> None:
    """Commit, branch, stash, rebase, gc: what an agent does, each of which writes."""
    git(folder, "status")
    git(folder, "checkout", "-q", "-b", name)
    (folder / "new.txt").write_text("new\n")
    commit(folder, "a commit")
    (folder / "new.txt").write_text("newer\n")
    git(folder, "stash")
    git(folder, "stash", "pop")
    commit(folder, "another")
    git(folder, "checkout", "-q", "-b", f"{name}-topic", "HEAD~1")
    (folder / "topic.txt").write_text("topic\n")
    commit(folder, "topic")
    git(folder, "rebase", "-q", name)
    git(folder, "tag", "-a", "-m", "a tag", f"{name}-tag")
    git(folder, "reflog", "expire", "--expire=now", "--all")
    git(folder, "gc", "-q", "--prune=now")
    git(folder, "fsck", "--strict")
    assert "topic.txt" in git(folder, "ls-files")
