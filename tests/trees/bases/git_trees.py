"""Trees with git at work in them, and what git had to read to say what changed."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.trees import Base, Owner
from carrel.linux import mounts
from carrel.linux.ids import store_gid, store_uid
from carrel.trees.bases.store import BaseStore
from carrel.trees.changes import Comparison
from carrel.trees.drivers.common import note_prefix, open_roots
from carrel.trees.git.index import GITLINK, entries
from carrel.trees.layers import Layers
from tests.folders import remove_folder

GIT_TIMEOUT_S = 60.0
"""Every repository here is small; the rest is for a loaded machine."""
_SCANNED = re.compile(r"refresh/sum_scan:(\d+)")
STATUS = ("status", "--porcelain")


def git_store(data: Path) -> BaseStore:
    """Its trees are mounted by the store's own user: then all that git compares is as in a
    sandbox."""
    return BaseStore(data, shown=Owner(store_uid(), store_gid()), verify_after_s=0)


@dataclass(frozen=True)
class GitTree:
    view: Path
    upper: Path

    def git(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        return run(self.view, words, env).stdout

    def status(self, *, locks: bool = True) -> str:
        """Without locks git writes nothing."""
        return self.git(*STATUS, env={"GIT_OPTIONAL_LOCKS": str(int(locks))})

    def loose_status(self) -> str:
        """As git says it that compares as little as it can."""
        words = ("-c", "core.checkStat=minimal", "-c", "core.trustctime=false", *STATUS)
        return self.git(*words, env={"GIT_OPTIONAL_LOCKS": "0"})

    def reads(self) -> int:
        """How many files a `git status` reads to compare them."""
        index = self.view / ".git/index"
        second = int(index.stat().st_mtime)
        # Git does not count these: it reads them for being as young as the index.
        files = entries(index, lambda _path, mode: mode != GITLINK)
        doubted = sum(entry.stat.mtime_s >= second for entry in files)
        with tempfile.NamedTemporaryFile("r", prefix="carrel-trace-") as trace:
            env = {"GIT_TRACE2_PERF": trace.name, "GIT_OPTIONAL_LOCKS": "0"}
            assert run(self.view, STATUS, env).stderr == ""
            return doubted + sum(map(int, _SCANNED.findall(trace.read())))

    @property
    def has_own_index(self) -> bool:
        """Whether git wrote one."""
        return (self.upper / ".git/index").exists()


def run(
    folder: Path, words: tuple[str, ...], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Git, with no configuration but the repository's."""
    whole = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_CONFIG_KEY_1": "protocol.file.allow",
        "GIT_CONFIG_VALUE_1": "always",
    }
    for role in ("AUTHOR", "COMMITTER"):
        whole |= {f"GIT_{role}_NAME": "Tester", f"GIT_{role}_EMAIL": "tester@example.org"}
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env=whole | dict(env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=GIT_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"git {' '.join(words)}: {done.stdout}{done.stderr}"
    return done


def freeze(store: BaseStore, base: Base, tree: GitTree) -> Base:
    with open_roots((tree.upper, *base.layers)) as roots:
        merged, below = Layers(roots, note_prefix()), Layers(roots[1:], note_prefix())
        changes = list(Comparison(merged, below, links=True).changes())
    root = os.open(tree.view, os.O_PATH | os.O_DIRECTORY)
    try:
        return store.freeze(base, changes, root)
    finally:
        os.close(root)


@contextlib.contextmanager
def git_tree(base: Base, place: Path) -> Iterator[GitTree]:
    """A writable overlay of a base, mounted at `place`, with the options of the driver."""
    work = Path(tempfile.mkdtemp(prefix="carrel-tree-", dir=base.folder.parent.parent))
    place.mkdir(exist_ok=True)
    try:
        for name in ("upper", "work"):
            (work / name).mkdir()
        lowers = mounts.open_layers(base.layers)
        upper, scratch = mounts.open_layers((work / "upper", work / "work"))
        try:
            overlay = mounts.Overlay(tuple(lowers), upper, scratch, (("redirect_dir", "on"),))
            mounts.mount_overlay(overlay, str(place))
        finally:
            mounts.close_all([*lowers, upper, scratch])
        yield GitTree(place, work / "upper")
    finally:
        mounts.detach_all(str(place))
        remove_folder(work)
