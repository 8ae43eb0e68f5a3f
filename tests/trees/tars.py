"""Archives for the tests of both ways, and trees to make them of."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

from carrel.domain.trees import Tree
from carrel.trees.archives import archive
from carrel.trees.extraction import Unpacked, unpack
from tests.conformance.tree_rig import Rig

LINK, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


def packed(rig: Rig, tree: Tree, path: str = ".", *, zstd: bool = True) -> bytes:
    return b"".join(archive(rig.driver, tree, path, zstd=zstd))


def opened(content: bytes) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(content), mode="r:")


def unpacked(rig: Rig, tree: Tree, content: bytes, into: str = ".") -> Unpacked:
    return unpack(rig.driver, tree, io.BytesIO(content), into, max_bytes=1 << 30)


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


def odd_things() -> None:
    os.mkfifo("fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    Path("new-hard").write_text("hard\n")
    os.link("new-hard", "src/new-hard-too")
    with open("tera", "wb") as file:
        file.truncate(20 << 20)
        for place in (0, 5 << 20, 19 << 20):
            file.seek(place)
            file.write(b"data")
    Path("pre-epoch").touch()
    os.utime("pre-epoch", ns=(0, -1_500_000_001))
    os.utime("src", ns=(0, 1_234_567_890_987_654_321))
    os.utime("to-root", ns=(0, 1_000_000_000_000_000_001), follow_symlinks=False)
    Path("x" * 200).mkdir()
    Path("x" * 200, "y" * 200).symlink_to("z" * 200)


class Chunks:
    """What a client sends, as it comes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int, /) -> bytes:
        while not self._rest:
            try:
                self._rest = next(self._pieces)
            except StopIteration:
                return b""
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece
