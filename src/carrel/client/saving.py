"""The files of a request's result, put into a folder of this machine.

They are here as a whole before the first is written. What an agent has made is hostile: see
`unpacking`.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
from collections.abc import Iterable
from typing import IO

from carrel.client.request_models import RequestResult, ResultFile, Saved
from carrel.client.unpacking import unpack_whole
from carrel.domain.trees import EntryType

DELETED = "deleted"
_PLAIN, _PROGRAM, _IN_MEMORY = 0o644, 0o755, 1 << 20


def is_whole(result: RequestResult | None) -> bool:
    """Whether the files need not be fetched: the result has all of them in it."""
    if result is None or len(result.files) < result.total_files:
        return False
    return all(one.change == DELETED or one.data is not None for one in result.files)


def buffer() -> IO[bytes]:
    """For an archive on its way."""
    return tempfile.SpooledTemporaryFile(_IN_MEMORY)


def archive_of(files: Iterable[ResultFile]) -> IO[bytes]:
    """Of a result that is whole."""
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
