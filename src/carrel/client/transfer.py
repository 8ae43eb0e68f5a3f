"""Files and folders between this machine and a space, as `cp -r` has it: into a folder that is
there, else under the new name; and the files of a request's result, saved in a folder of this
machine.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

from carrel.client.archives import allowed_mode, own_umask, pack, unpack, unpack_whole
from carrel.client.http import LONG_S, HttpAnswer, operation
from carrel.client.link import Link, StreamedAnswer
from carrel.domain.errors import DaemonUnavailable, PathNotFound, PathWrongKind
from carrel.domain.tar import CHUNK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

    # Their types take longer to load than small files to copy.
    from carrel.api.types.requests import ResultFile, ResultInfo

Watch = Callable[[int], None]
"""Gets the number of bytes of each piece that was moved."""


def ignore_bytes(_count: int) -> None:
    """The listener of callers that do not watch."""


class CopyResult:
    """What was copied: where it is now, and what was left out, with the reason."""

    def __init__(self, target: str, bytes_moved: int = 0) -> None:
        self.target = target
        self.bytes_moved = bytes_moved
        self.skipped: list[tuple[str, str]] = []

    def skip(self, path: str, why: str) -> None:
        self.skipped.append((path, why))


class Saved:
    """What was put into a folder, and what was left out, with the reason."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.files: list[str] = []
        self.skipped: list[tuple[str, str]] = []

    def skip(self, path: str, why: str) -> None:
        self.skipped.append((path, why))


# Out of a space


def download(
    link: Link, space: str, path: str, dest: str, watch: Watch = ignore_bytes
) -> CopyResult:
    """A file or folder. Raises `PathError`s of the space, and `OSError` of this machine."""
    about = link.json(operation("files.stat", space, query=[("path", path)]))
    if about["type"] != "folder":
        return _download_file(link, space, path, dest, about, watch)
    name = _name(path)
    moved = CopyResult(dest)
    if name and os.path.isdir(dest):
        moved.target = os.path.join(dest, name)
        into, rename = dest, (name, name)
    elif name:
        into, becomes = os.path.split(os.path.abspath(dest))
        rename = (name, becomes)
    else:
        os.makedirs(dest, exist_ok=True)
        into, rename = dest, ("", "")
    query: list[tuple[str, object]] = [("path", path), ("plain", _same_machine(link))]
    request = operation("files.read_archive", space, query=query)
    with link.open(request) as stream:
        pieces = _watched(_checked(stream), moved, watch)
        unpack(pieces, into, rename, moved.skip, lambda: tell_copied(link, space, stream))
    return moved


def _download_file(
    link: Link, space: str, path: str, dest: str, about: dict[str, Any], watch: Watch
) -> CopyResult:
    target = os.path.join(dest, _name(path)) if os.path.isdir(dest) else dest
    moved = CopyResult(target)
    with replacing(target) as file, open_file(link, space, path) as stream:
        for piece in _watched(_checked(stream), moved, watch):
            file.write(piece)
        if about["type"] == "file":
            os.fchmod(file.fileno(), allowed_mode(int(about["mode"], 8), own_umask()))
    tell_copied(link, space, stream)
    return moved


def open_file(link: Link, space: str, path: str) -> StreamedAnswer:
    """A file's bytes as they come, to be copied out (see `tell_copied`); the answer is not looked
    at yet."""
    return link.open(operation("files.read", space, query=[("path", path), ("take", True)]))


def tell_copied(link: Link, space: str, stream: StreamedAnswer) -> None:
    """All that came is where it was to go, so that it counts as copied out. A daemon that cannot
    hear or count that will ask before it removes the space: no reason for the copy to fail."""
    ticket = stream.head.headers.get("carrel-copy")
    if ticket:
        request = operation("files.copied", space, content={"copy": ticket})
        with contextlib.suppress(DaemonUnavailable), link.open(request, start=False) as answer:
            answer.read()


def save_export(link: Link, space: str, content: Mapping[str, object], target: str) -> int:
    """The work of a space as one file of this machine. Gives its size."""
    size = 0
    with (
        replacing(target) as file,
        link.open(operation("review.export", space, content=content)) as stream,
    ):
        for piece in _checked(stream):
            size += file.write(piece)
    tell_copied(link, space, stream)
    return size


@contextlib.contextmanager
def replacing(target: str) -> Iterator[Any]:
    """The old file stays until the new one is complete."""
    if os.path.isdir(target):
        raise PathWrongKind(f"{target} is a folder.", hint="Name a file in it.")
    import tempfile

    folder = os.path.dirname(os.path.abspath(target))
    descriptor, name = tempfile.mkstemp(prefix=".carrel-", dir=folder)
    try:
        with open(descriptor, "wb") as file:
            # As a new file would be; the space's mode comes when it is complete.
            os.fchmod(descriptor, 0o666 & ~own_umask())
            yield file
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


# Into a space


def upload(
    link: Link, space: str, source: str, path: str, watch: Watch = ignore_bytes
) -> CopyResult:
    """A file or folder. Raises `PathError`s of the space, and `OSError` of this machine."""
    kind = _kind(link, space, path)
    inside = source in (".", "..") or source.endswith(("/.", "/..", "/"))
    name = os.path.basename(source.rstrip("/"))
    if os.path.isdir(source) and inside and not source.endswith("/"):
        return _upload_contents(link, space, source, path, kind, watch)
    target = posixpath.join(path, name) if kind == "folder" else posixpath.normpath(path)
    moved = CopyResult(target)
    if os.path.isdir(source):
        if kind not in ("folder", ""):
            raise PathWrongKind(f"{path!r} is no folder in the space.", hint="Copy elsewhere.")
        above, own = posixpath.split(target)
        pieces = _packed(link, source, own, moved)
        _put(link, space, above or ".", _watched(pieces, moved, watch))
        return moved
    with open(source, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        pieces = iter(lambda: file.read(CHUNK), b"")
        write_file(link, space, target, _watched(pieces, moved, watch), mode)
    return moved


def _upload_contents(
    link: Link, space: str, source: str, path: str, kind: str, watch: Watch
) -> CopyResult:
    moved = CopyResult(path)
    if not kind:
        content = {"path": path, "parents": False}
        link.json(operation("files.mkdir", space, content=content))
    _put(link, space, path, _watched(_packed(link, source, "", moved), moved, watch))
    return moved


def _packed(link: Link, source: str, name: str, moved: CopyResult) -> Iterator[bytes]:
    return pack(source, name, moved.skip, plain=_same_machine(link))


def write_file(
    link: Link, space: str, path: str, pieces: Iterable[bytes], mode: int | None = None
) -> None:
    query: list[tuple[str, object]] = [("path", path)]
    if mode is not None:
        query.append(("mode", f"{mode:03o}"))
    link.json(operation("files.write", space, query=query, body=pieces, timeout_s=LONG_S))


def _put(link: Link, space: str, path: str, pieces: Iterable[bytes]) -> None:
    link.json(operation("files.write_archive", space, query=[("path", path)], body=pieces))


def _kind(link: Link, space: str, path: str) -> str:
    """Of what is there in the space; empty when nothing is."""
    try:
        about = link.json(operation("files.stat", space, query=[("path", path)]))
    except PathNotFound:
        return ""
    return str(about["type"])


# Both ways


def _same_machine(link: Link) -> bool:
    """Archives are compressed for any other way than the socket of this machine."""
    return bool(link.place.socket)


def _checked(stream: StreamedAnswer) -> Iterator[bytes]:
    if stream.head.status >= 400:
        HttpAnswer(stream.head, stream.read()).check()
    return iter(stream)


def _watched(pieces: Iterable[bytes], moved: CopyResult, watch: Watch) -> Iterator[bytes]:
    for piece in pieces:
        moved.bytes_moved += len(piece)
        watch(len(piece))
        yield piece


def _name(path: str) -> str:
    """The last name of a path in a space; empty for the root."""
    name = posixpath.basename(posixpath.normpath(path))
    return "" if name in (".", "/") else name


# The result of a request. Its files are here as a whole before the first is written: what an agent
# has made is hostile, see `archives`.

DELETED = "deleted"
_PLAIN, _PROGRAM, _IN_MEMORY = 0o644, 0o755, 1 << 20


def is_whole(result: ResultInfo | None) -> bool:
    """Whether the files need not be fetched: the result has all of them in it."""
    if result is None or len(result.files) < result.total_files:
        return False
    return all(one.change == DELETED or one.data is not None for one in result.files)


def buffer() -> IO[bytes]:
    """For an archive on its way."""
    import tempfile

    return tempfile.SpooledTemporaryFile(_IN_MEMORY)


def archive_of(files: Iterable[ResultFile]) -> IO[bytes]:
    """Of a result that is whole."""
    import io
    import tarfile

    from carrel.domain.trees import EntryType

    target = buffer()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for one in files:
            data = one.data
            if one.change == DELETED or data is None:
                continue
            about = tarfile.TarInfo(one.path)
            about.mode = _PROGRAM if one.executable else _PLAIN
            about.mtime = int(time.time())
            if one.type is EntryType.SYMLINK:
                about.type, about.linkname = tarfile.SYMTYPE, os.fsdecode(data)
                archive.addfile(about)
            else:
                about.size = len(data)
                archive.addfile(about, io.BytesIO(data))
    return target


def save(archive: IO[bytes], folder: str | os.PathLike[str], *, replace: bool) -> Saved:
    """Into a folder that is made when it is not there. Raises `PathExists` (unless what is
    there may be replaced), `PathWrongKind`, `ArchiveInvalid` and `OSError`."""
    saved = Saved(os.path.abspath(os.fspath(folder)))
    os.makedirs(saved.folder, exist_ok=True)
    saved.files += unpack_whole(archive, saved.folder, saved.skip, replace=replace)
    return saved
