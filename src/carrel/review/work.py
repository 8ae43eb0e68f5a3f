"""A repository for one landing: the states of a space as commits, and their merge.

It is bare, ours, and gone afterwards. It reads the objects of the project's mirror, and no setting
of the project or of the space is ever in it, so no driver, filter or hook that they name can run.
What a space has is written by git's importer from the files themselves: neither the space's index
nor its git folder is asked.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.errors import LandingRefused
from carrel.domain.landing import LandedFile, LandingConflict
from carrel.domain.trees import EntryType
from carrel.review.states import (
    GITLINK,
    LINK,
    MOST_BYTES,
    AgentCommit,
    SpaceWork,
    StateImporter,
    TreeEntry,
)
from carrel.trees.folders import Root
from carrel.trees.git.process import feed_git, read_git, run_git
from carrel.trees.layers import Layers
from carrel.trees.removal import remove_tree

LOCAL_S = 600.0
"""Work on our own disk; a merge of 50,000 files takes a tenth of a second."""
MOST_LISTED = 2_000_000
"""Files and folders of a commit, which is looked through in seconds; large projects have half."""
_PREFIX, _KEPT = ".land-", "kept-"
_BEGAN, _NOW, _EARLIER = "refs/heads/began", "refs/heads/now", "refs/heads/earlier"
_BEFORE, _AFTER = "refs/heads/before-", "refs/heads/after-"
_IMPORT = (
    *("-c", "core.protectNTFS=true", "-c", "core.protectHFS=true", "-c", "core.fsync=none"),
    *("-c", "fastimport.unpackLimit=0", "fast-import", "--quiet", "--done"),
)
_MERGED_FILES = (EntryType.FILE, EntryType.SYMLINK)
_COMMAND = 64 << 10
"""Bytes of one command's words; every kernel takes twice as much."""
_MAX_SHOWN = 64 << 10
"""Bytes of a file with a conflict that are told."""
_MOST_SHOWN = 20
"""Such files, whose text is told."""
_LONGEST_LINK = 4096
_POINTER = 1024
"""Bytes that a pointer to a large file never has."""
_LFS = b"version https://git-lfs.github.com/spec/"
_RAW = re.compile(rb":(\d{6}) (\d{6}) ([0-9a-f]+) ([0-9a-f]+) ([A-Z])\d*")


@dataclass(frozen=True)
class Merged:
    """`conflicts` are empty when the merge went well."""

    tree: str
    conflicts: tuple[LandingConflict, ...] = ()


class WorkRepository:
    """Blocking. Raises `GitFailed`, `GitTimeout`, `InsufficientDisk`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(
        self,
        *args: str,
        input: bytes = b"",
        env: dict[str, str] | None = None,
        well: tuple[int, ...] = (0,),
    ) -> bytes:
        words = [f"--git-dir={self.folder}", *args]
        return run_git(
            words,
            cwd=self.folder,
            timeout_s=LOCAL_S,
            input=input,
            env=env,
            well=well,
            bounded=True,
        )

    def one(self, *args: str) -> str:
        """What git prints, a line."""
        return self.run(*args).decode().strip()

    def tree_of(self, commit: str) -> str:
        return self.one("rev-parse", "--verify", f"{commit}^{{tree}}")

    def states(
        self, start: str, work: SpaceWork, most_bytes: int = MOST_BYTES
    ) -> list[tuple[str, str]]:
        """Pairs of commits, one for each new commit of the agent's and one for what it did not
        commit: what it changed as that was before, and as it is then. The first stands on the
        commit `start`, if there is one. What the person had not committed when the space was made
        is in both of a pair, and so in no difference of theirs, and what landed before is too."""
        wanted = [one for one in work.changes if {one.old_type, one.new_type} & set(_MERGED_FILES)]
        paths = {path for one in wanted for path in (one.path, one.old_path) if path is not None}
        paths |= {path for one in work.agent.commits for path in one.files}
        if work.landed:
            before = self.tree_of(start) if start else self.empty_tree()
            paths |= {file.path for file, _ in self.changed(before, work.landed)}
        known = self.blobs(start, paths) if start else {}
        given = self._given(work, paths)
        pairs: list[str] = []
        with feed_git(_IMPORT, folder=self.folder, timeout_s=LOCAL_S) as write:
            importer = StateImporter(write, known, self.sha256, most_bytes)
            touched: set[str] = set()
            for number, commit in enumerate((*work.agent.commits, None)):
                files = sorted(paths if commit is None else commit.files)
                first, now = f"{_BEFORE}{number}", f"{_AFTER}{number}"
                importer.begin(first, start)
                is_new = commit is None or commit.oid not in work.landed_commits
                for path in files if is_new else ():
                    if path in given:
                        importer.put_entry(path, given.pop(path))
                    elif path not in touched:
                        importer.put_old(path, work.base)
                importer.begin(now, first)
                for path in files:
                    if commit is None:
                        importer.put_new(path, work.tree, work.sends)
                    else:
                        importer.put_file(path, commit.files[path], work.agent.read)
                touched.update(files)
                pairs += [first, now] if is_new else []
                start = now
            write(b"done\n")
        found = self.one("rev-parse", *pairs).split("\n")
        return list(zip(found[::2], found[1::2], strict=True))

    def _given(self, work: SpaceWork, paths: Collection[str]) -> dict[str, TreeEntry | None]:
        """What the agent worked on where that is not the base: what has landed, and what it was
        given of the project since."""
        found: dict[str, TreeEntry | None] = {}
        if work.landed:
            found |= {**dict.fromkeys(paths), **self.entries(work.landed, paths)}
        for commit in set(work.merged.values()):
            here = [path for path, one in work.merged.items() if one == commit and path in paths]
            found |= {**dict.fromkeys(here), **self.entries(commit, here)}
        return {path: entry for path, entry in found.items() if path in paths}

    def empty_tree(self) -> str:
        return self.run("mktree").decode().strip()

    def three_states(
        self,
        paths: Collection[str],
        base: Layers,
        target: Root,
        source: Root,
        sends: Callable[[str, os.stat_result], None],
    ) -> tuple[str, str, str]:
        """A commit each of what a base and two trees have at these paths."""
        with feed_git(_IMPORT, folder=self.folder, timeout_s=LOCAL_S) as write:
            importer = StateImporter(write, {}, self.sha256, MOST_BYTES)
            importer.begin(_BEGAN, "")
            for path in sorted(paths):
                importer.put_old(path, base)
            importer.begin(_EARLIER, "")
            for path in sorted(paths):
                importer.put_new(path, target, lambda _path, _status: None)
            importer.begin(_NOW, "")
            for path in sorted(paths):
                importer.put_new(path, source, sends)
            write(b"done\n")
        began, before, now = (self.one("rev-parse", ref) for ref in (_BEGAN, _EARLIER, _NOW))
        return began, before, now

    def blobs(self, commit: str, paths: Iterable[str]) -> dict[str, tuple[str, bytes]]:
        """Of the paths that the commit has as files: the name of their content, and its bytes
        where it is a pointer to a large file elsewhere. Raises `LandingRefused`."""
        found = self.entries(commit, paths)
        for path, entry in found.items():
            if entry.mode == GITLINK:
                raise LandingRefused(
                    f"{path!r} is a submodule, and the space changed files of it.",
                    hint="Take them out with `carrel cp`, and commit them in the submodule.",
                )
        small = {one.oid for one in found.values() if one.mode != LINK and one.size < _POINTER}
        read = self.contents(small)
        pointers = {oid: text for oid, text in read.items() if text.startswith(_LFS)}
        return {path: (one.oid, pointers.get(one.oid, b"")) for path, one in found.items()}

    def entries(self, commit: str, paths: Iterable[str]) -> dict[str, TreeEntry]:
        """What the commit has at these paths, without folders; also submodules on the way."""
        wanted = set(paths)
        for path in list(wanted):
            while path := path.rpartition("/")[0]:
                wanted.add(path)
        found: dict[str, TreeEntry] = {}
        for words in _batches(sorted(wanted)):
            for row in self.run("ls-tree", "-z", "-l", commit, "--", *words).split(b"\0"):
                about, _, name = row.partition(b"\t")
                mode, kind, oid, size = (about.decode().split() + [""] * 4)[:4]
                if kind in ("blob", "commit"):
                    length = int(size) if size.isdigit() else 0
                    found[os.fsdecode(name)] = TreeEntry(int(mode, 8), oid, length)
        return found

    def contents(self, oids: Iterable[str]) -> dict[str, bytes]:
        """For small ones: all are in memory."""
        wanted = list(dict.fromkeys(oids))
        if not wanted:
            return {}
        out = self.run("cat-file", "--batch", input="".join(f"{one}\n" for one in wanted).encode())
        found, at = {}, 0
        for oid in wanted:
            end = out.index(b"\n", at)
            size = int(out[at:end].split(b" ")[2])
            found[oid] = out[end + 1 : end + 1 + size]
            at = end + size + 2
        return found

    def names(self, tree: str, folders: Collection[str]) -> dict[str, list[str]]:
        """Of these folders, what is in each. Raises `LandingRefused`, as `links` does."""
        found: dict[str, list[str]] = {}
        for row in self._rows("ls-tree", "-r", "-t", "-z", "--name-only", tree):
            above, _, name = os.fsdecode(row).rpartition("/")
            if above in folders:
                found.setdefault(above, []).append(name)
        return found

    def links(self, tree: str) -> dict[str, str]:
        """Where each leads; those that no system could make are left out."""
        found = {}
        for row in self._rows("ls-tree", "-r", "-z", "-l", tree):
            if row.startswith(b"120000 "):
                about, _, name = row.partition(b"\t")
                oid, size = about.decode().split()[2:]
                if int(size) <= _LONGEST_LINK:
                    found[os.fsdecode(name)] = oid
        targets = self.contents(found.values())
        return {path: os.fsdecode(targets[oid]) for path, oid in found.items()}

    def _rows(self, *words: str) -> Iterator[bytes]:
        """As git lists them: a few small objects of a project can name any number of files."""
        pieces = read_git(words, folder=self.folder, idle_s=LOCAL_S)
        with closing(pieces):
            rest, left = b"", MOST_LISTED
            for piece in pieces:
                *rows, rest = (rest + piece).split(b"\0")
                left -= len(rows)
                if left < 0:
                    raise LandingRefused(
                        f"The project's commit names more than {MOST_LISTED:,} files.",
                        hint="Take the work out: carrel export SPACE --patch",
                    )
                yield from rows

    def filters(self, tree: str, paths: Iterable[str]) -> dict[str, str]:
        """Of the paths for which the tree's attributes name a filter: which. None runs."""
        env = {"GIT_INDEX_FILE": str(self.folder / "attributes")}
        self.run("read-tree", tree, env=env)
        asked = b"".join(os.fsencode(path) + b"\0" for path in paths)
        words = ("check-attr", "--cached", "-z", "--stdin", "filter")
        said = self.run(*words, input=asked, env=env).split(b"\0")
        found = zip(said[::3], said[2::3], strict=False)
        none = (b"unspecified", b"unset")
        return {os.fsdecode(path): os.fsdecode(name) for path, name in found if name not in none}

    @property
    def sha256(self) -> bool:
        return "sha256" in (self.folder / "config").read_text()

    def merge(self, began: str, now: str, tip: str) -> Merged:
        """What changed from `began` to `now`, on top of `tip`."""
        # Git looks for a common ancestor itself: this stands for the tip as a child of `began`.
        ours = self.commit(self.tree_of(tip), "", began)
        words = ("merge-tree", "--write-tree", "-z", "--allow-unrelated-histories", ours, now)
        out = self.run(*words, well=(0, 1))
        tree, _, rest = out.partition(b"\0")
        names = dict.fromkeys(
            os.fsdecode(row.partition(b"\t")[2])
            for row in rest.partition(b"\0\0")[0].split(b"\0")
            if b"\t" in row
        )
        name = tree.decode()
        texts = self._shown(name, names) if names else {}
        return Merged(name, tuple(LandingConflict(one, texts.get(one, "")) for one in names))

    def _shown(self, tree: str, paths: Iterable[str]) -> dict[str, str]:
        """The text of files with conflicts, marks and all."""
        found = self.entries(tree, paths)
        small = {path: one for path, one in found.items() if one.mode not in (LINK, GITLINK)}
        fit = {path: one.oid for path, one in small.items() if one.size <= _MAX_SHOWN}
        read = self.contents(list(fit.values())[:_MOST_SHOWN])
        texts = {path: read.get(oid, b"\0") for path, oid in fit.items()}
        return {
            path: "" if b"\0" in text else text.decode("utf-8", "replace")
            for path, text in texts.items()
        }

    def commit(
        self, tree: str, message: str, *parents: str, env: dict[str, str] | None = None
    ) -> str:
        words = [word for parent in parents if parent for word in ("-p", parent)]
        nobody = {
            f"GIT_{who}_{what}": value
            for who in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "carrel"), ("EMAIL", "carrel@localhost"))
        }
        out = self.run(
            "commit-tree", tree, *words, input=message.encode() or b"\n", env=nobody | (env or {})
        )
        return out.decode().strip()

    def commit_again(
        self, tree: str, parent: str, made: AgentCommit, committer: tuple[str, str]
    ) -> str:
        """A commit of the agent's with another tree: its author, date and message stay."""
        now = int(time.time())
        lines = [f"tree {tree}".encode(), *([f"parent {parent}".encode()] if parent else [])]
        lines += [b"author " + made.author]
        lines += [f"committer {committer[0]} <{committer[1]}> {now} +0000".encode()]
        lines += [b"encoding " + made.encoding] if made.encoding else []
        content = b"\n".join([*lines, b"", made.message])
        return (
            self.run("hash-object", "-t", "commit", "-w", "--stdin", input=content).decode().strip()
        )

    def changed(self, before: str, after: str) -> list[tuple[LandedFile, str]]:
        """The files that differ between two trees, each with the name of its new content."""
        words = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", before, after]
        fields = iter(self.run(*words).split(b"\0"))
        found = []
        for about in fields:
            row = _RAW.fullmatch(about)
            if row is None:
                continue
            path = os.fsdecode(next(fields))
            found.append((LandedFile(path, row[5].decode(), int(row[2], 8)), row[4].decode()))
        return found

    def pack(self, commits: list[str], known: str) -> Path:
        """A file with all objects of these commits that another one has not."""
        wanted = [*commits, *([f"^{known}"] if known else [])]
        words = ("pack-objects", "--revs", "--delta-base-offset", "-q", "landing")
        lines = "".join(f"{line}\n" for line in wanted)
        name = self.run(*words, input=lines.encode()).decode().strip()
        return self.folder / f"landing-{name}.pack"


def _batches(names: Iterable[str]) -> Iterator[list[str]]:
    """As many as fit into one command."""
    batch: list[str] = []
    room = _COMMAND
    for name in names:
        size = len(os.fsencode(name)) + 1
        if size > room and batch:
            yield batch
            batch, room = [], _COMMAND
        batch.append(name)
        room -= size
    if batch:
        yield batch


class WorkRepositories:
    def __init__(self, folder: Path) -> None:
        """A folder of our own; made when it is missing."""
        self._folder = folder

    @contextmanager
    def open(self, mirror: Path | None) -> Iterator[WorkRepository]:
        """One that also has the objects of the mirror."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self._folder / (_PREFIX + secrets.token_hex(8))
        try:
            words = ["init", "--quiet", "--bare", "--template="]
            if mirror is not None and "sha256" in (mirror / "config").read_text():
                words.append("--object-format=sha256")
            run_git([*words, "--", str(folder)], cwd=self._folder, timeout_s=LOCAL_S)
            if mirror is not None:
                info = folder / "objects/info"
                info.mkdir(exist_ok=True)
                (info / "alternates").write_text(f"{mirror / 'objects'}\n")
                if (mirror / "shallow").exists():
                    (folder / "shallow").write_bytes((mirror / "shallow").read_bytes())
            yield WorkRepository(folder)
        finally:
            remove_tree(folder)

    def keep(self, work: WorkRepository) -> Path:
        """What was made stays, under another name."""
        place = self._folder / work.folder.name.replace(_PREFIX, _KEPT)
        work.folder.rename(place)
        return place

    def forget(self, kept: Path) -> None:
        """Idempotent."""
        if kept.parent == self._folder and kept.name.startswith(_KEPT):
            remove_tree(kept)

    def sweep(self, kept: Collection[str]) -> None:
        """Removes what a process that was killed has left, and what is not `kept`. Nobody may be
        landing meanwhile."""
        for folder in (*self._folder.glob(f"{_PREFIX}*"), *self._folder.glob(f"{_KEPT}*")):
            if str(folder) not in kept:
                remove_tree(folder)
