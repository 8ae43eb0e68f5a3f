"""What was done in a space, and the language in which git's importer is told of it.

The files themselves are read, of the base and of the space's tree, or of commits that our own code
has read: neither the space's index nor its git folder is asked.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from carrel.domain.errors import LandingRefused
from carrel.domain.trees import Change
from carrel.linux.descriptors import Descriptor
from carrel.trees.differences import quoted
from carrel.trees.folders import Root
from carrel.trees.layers import Layers

_FIRST_LINE = 100
"""Bytes in which the first line of a pointer to a large file ends."""
_PIECE = 1 << 20
MAX_CONVERTED = 16 << 20
"""Bytes of a file whose line ends are looked at; larger ones are taken as they are."""
MOST_BYTES = 4 << 30
"""Of all files together that git is given, as they were and as they are: a file of terabytes costs
its space nothing, and git minutes."""
LINK, GITLINK = 0o120000, 0o160000
"""Modes of git's own."""


@dataclass(frozen=True)
class TreeEntry:
    """`size` is that of a file's content."""

    mode: int
    oid: str
    size: int


@dataclass(frozen=True)
class AgentFile:
    """As a commit has it; `oid` as git writes it."""

    mode: int
    oid: bytes


@dataclass(frozen=True)
class AgentCommit:
    """One that was made in a space: who and what as its object has them, and the files that it
    changed; None: it removed them."""

    oid: str
    author: bytes
    encoding: bytes
    message: bytes
    files: Mapping[str, AgentFile | None]


def _nothing(oid: bytes) -> bytes:
    raise KeyError(oid)


@dataclass(frozen=True)
class AgentWork:
    """The oldest commit first; `read` gives the content of a file of theirs."""

    commits: tuple[AgentCommit, ...] = ()
    read: Callable[[bytes], bytes] = _nothing


@dataclass(frozen=True)
class SpaceWork:
    """What a space changed, and where that is read. `merged` are paths of which the agent was
    given the project's version of that commit, and has merged it."""

    changes: Sequence[Change]
    base: Layers
    tree: Root
    sends: Callable[[str, os.stat_result], None]
    agent: AgentWork = AgentWork()
    merged: Mapping[str, str] = field(default_factory=dict)
    landed: str = ""
    """The state of the space that landed on the same branch before, as a commit."""
    landed_commits: Collection[str] = ()
    """The agent's own that did."""

    @property
    def new_commits(self) -> tuple[AgentCommit, ...]:
        return tuple(one for one in self.agent.commits if one.oid not in self.landed_commits)


class StateImporter:
    """Writes the language of `git fast-import`: files as a commit has them, or as a tree does."""

    def __init__(
        self,
        write: Callable[[bytes], object],
        known: dict[str, tuple[str, bytes]],
        sha256: bool,
        most_bytes: int,
    ) -> None:
        self._write = write
        self._most = self._left = most_bytes
        self._known = known
        self._hash = hashlib.sha256 if sha256 else hashlib.sha1
        self._converted: set[str] = set()
        """Files that the project's repository has with other line ends than its checkout."""

    def begin(self, ref: str, start: str) -> None:
        head = f"commit {ref}\ncommitter carrel <carrel@localhost> 0 +0000\ndata 0\n"
        self._write((head + (f"from {start}\n" if start else "")).encode())

    def put_old(self, path: str, base: Layers) -> None:
        entry = base.find(path)
        if entry is None or entry.is_folder:
            self._delete(path)
        elif stat.S_ISLNK(entry.status.st_mode):
            self._put(path, b"120000", entry.content.root.link(entry.content.path))
        elif entry.is_file:
            with Descriptor(entry.content.root.open_file(entry.content.path)) as file:
                self._look(path, file)
                self._file(path, entry.status.st_mode, file)
        else:
            self._delete(path)

    def put_new(self, path: str, tree: Root, sends: Callable[[str, os.stat_result], None]) -> None:
        status = tree.status(path)
        if status is not None:
            sends(path, status)
        if status is None or stat.S_ISDIR(status.st_mode):
            self._delete(path)
        elif stat.S_ISLNK(status.st_mode):
            self._put(path, b"120000", tree.link(path))
        elif stat.S_ISREG(status.st_mode):
            with Descriptor(tree.open_file(path)) as file:
                self._expect_pointer(path, os.pread(file, _FIRST_LINE, 0))
                self._file(path, status.st_mode, file)
        else:
            self._delete(path)

    def put_entry(self, path: str, entry: TreeEntry | None) -> None:
        """As a commit of the project has it."""
        if entry is None:
            self._delete(path)
            return
        name = quoted(os.fsencode(path))
        self._write(b"M %06o %s %s\n" % (entry.mode, entry.oid.encode(), name))

    def put_file(self, path: str, file: AgentFile | None, read: Callable[[bytes], bytes]) -> None:
        """As a commit of the space's has it."""
        if file is None:
            self._delete(path)
        elif file.mode == LINK:
            self._put(path, b"120000", read(file.oid))
        else:
            kind = b"100755" if file.mode & stat.S_IXUSR else b"100644"
            content = read(file.oid)
            self._expect_pointer(path, content)
            self._put(path, kind, content)

    def _look(self, path: str, file: int) -> None:
        """Whether the repository keeps this file as its checkout has it."""
        oid, pointer = self._known.get(path, ("", b""))
        size = os.fstat(file).st_size
        if not oid or size > MAX_CONVERTED:
            return
        content = os.pread(file, size, 0)
        if pointer and content != pointer:
            raise _in_another_store(path)
        if b"\r\n" not in content or self._name(content) == oid:
            return
        if self._name(content.replace(b"\r\n", b"\n")) == oid:
            self._converted.add(path)

    def _expect_pointer(self, path: str, content: bytes) -> None:
        """A checkout may have pointers to large files: only another pointer takes the place."""
        first = self._known.get(path, ("", b""))[1].partition(b"\n")[0]
        if first and not content.startswith(first):
            raise _in_another_store(path)

    def _name(self, content: bytes) -> str:
        return self._hash(b"blob %d\0" % len(content) + content).hexdigest()

    def _file(self, path: str, mode: int, file: int) -> None:
        kind = b"100755" if mode & stat.S_IXUSR else b"100644"
        size = os.fstat(file).st_size
        self._left -= size
        if self._left < 0:
            raise LandingRefused(
                f"The files are too large together, at {path!r}: up to {self._most >> 20:,} MiB can"
                " be taken, with what they were before.",
                hint="Let git ignore what need not be in the project; copy it: carrel cp",
            )
        if path in self._converted and size <= MAX_CONVERTED:
            self._put(path, kind, os.pread(file, size, 0).replace(b"\r\n", b"\n"))
            return
        self._write(b"M %s inline %s\ndata %d\n" % (kind, quoted(os.fsencode(path)), size))
        for piece in _pieces(file, size, path):
            self._write(piece)
        self._write(b"\n")

    def _put(self, path: str, mode: bytes, content: bytes) -> None:
        name = quoted(os.fsencode(path))
        self._write(b"M %s inline %s\ndata %d\n" % (mode, name, len(content)) + content + b"\n")

    def _delete(self, path: str) -> None:
        self._write(b"D %s\n" % quoted(os.fsencode(path)))


def _in_another_store(path: str) -> LandingRefused:
    return LandingRefused(
        f"The project keeps {path!r} in another store (git LFS), and the space changed it.",
        hint="Take it out with `carrel cp`, and commit it with git in the project.",
    )


def _pieces(file: int, size: int, path: str) -> Iterator[bytes]:
    """Exactly `size` bytes: git was told so."""
    at = 0
    while at < size:
        piece = os.pread(file, min(_PIECE, size - at), at)
        if not piece:
            raise LandingRefused(
                f"{path!r} became shorter while it was read.",
                hint="Wait until nothing writes it, or stop the space, and try again.",
            )
        yield piece
        at += len(piece)
