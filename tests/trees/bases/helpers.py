"""Projects to build bases of, and ways to see what bases show."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.domain.trees import Base
from carrel.linux import mounts
from carrel.trees.bases.manifest import read_manifest
from carrel.trees.paths import join
from tests.folders import remove_folder


@dataclass(frozen=True)
class Seen:
    """What a person would notice of one entry."""

    kind: int
    mode: int
    size: int
    content: bytes
    mtime_ns: int


Picture = dict[bytes, Seen]


def request(project: Path, **options: object) -> BaseRequest:
    return BaseRequest(
        Project(ProjectKind.FOLDER, str(project)),
        **options,  # type: ignore[arg-type]
    )


def picture(folder: Path, *, folder_times: bool = False) -> Picture:
    """All entries below a folder, by relative path."""
    found: Picture = {}
    _look(os.fsencode(folder), b"", found, folder_times)
    return found


def _look(top: bytes, path: bytes, found: Picture, folder_times: bool) -> None:
    with os.scandir(os.path.join(top, path)) as entries:
        for entry in entries:
            below = os.path.join(path, entry.name)
            found[below] = _seen(entry.path, folder_times)
            if entry.is_dir(follow_symlinks=False):
                _look(top, below, found, folder_times)


def _seen(path: bytes, folder_times: bool) -> Seen:
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    content, size, mtime_ns = b"", 0, status.st_mtime_ns
    if stat.S_ISREG(status.st_mode):
        size = status.st_size
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
    elif stat.S_ISLNK(status.st_mode):
        content = os.readlink(path)
    elif not folder_times:
        mtime_ns = 0
    return Seen(kind, stat.S_IMODE(status.st_mode), size, content, mtime_ns)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a base. `path` is relative, b"" for the root. `layer` is the folder
    that has it on disk, at the same path below. Files with the same `link_group` are
    one file under several names."""

    path: bytes
    mode: int
    size: int
    mtime_ns: int
    digest: bytes
    layer: Path
    link_group: bytes | None = None

    @property
    def source(self) -> Path:
        return self.layer / os.fsdecode(self.path)


def iter_entries(base: Base) -> Iterator[Entry]:
    """All that a base shows, the root first and each folder before what is in it."""
    manifest = read_manifest(base.folder)
    layers = base.layers[::-1]
    for path, record in manifest.walk():
        layer = layers[record.layer]
        yield Entry(path, record.mode, 0, record.mtime_ns, record.digest, layer)
        for name, item in record.items().items():
            yield Entry(join(path, name), *item[:4], layers[item.layer], item.leader or None)


def listed(base: Base) -> Picture:
    """What the manifest says, with contents from where it says they are."""
    found: Picture = {}
    for entry in iter_entries(base):
        if not entry.path:
            continue
        seen = _seen(os.fsencode(entry.source), False)
        assert stat.S_IFMT(entry.mode) == seen.kind
        assert stat.S_IMODE(entry.mode) == seen.mode, entry.path
        if stat.S_ISREG(entry.mode):
            assert entry.size == seen.size
            assert entry.mtime_ns == seen.mtime_ns
        found[entry.path] = seen
    return found


@contextlib.contextmanager
def mounted(base: Base) -> Iterator[Path]:
    """The base as overlayfs shows it; a flat base in its place."""
    if len(base.layers) == 1:
        yield base.layers[0]
        return
    work = Path(tempfile.mkdtemp(prefix="carrel-mount-", dir=base.folder.parent.parent))
    try:
        for name in ("upper", "work", "view"):
            (work / name).mkdir()
        lowers = mounts.open_layers(base.layers)
        upper, scratch = mounts.open_layers((work / "upper", work / "work"))
        try:
            overlay = mounts.Overlay(tuple(lowers), upper, scratch)
            mounts.mount_overlay(overlay, str(work / "view"))
        finally:
            mounts.close_all([*lowers, upper, scratch])
        try:
            yield work / "view"
        finally:
            mounts.detach_all(str(work / "view"))
    finally:
        remove_folder(work)


def shown(base: Base, *, folder_times: bool = False) -> Picture:
    with mounted(base) as view:
        return picture(view, folder_times=folder_times)


def write(path: Path, content: str | bytes = "content") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def left_in_staging(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "bases" / ".staging").iterdir())


def age(folder: Path, seconds: float = 60) -> None:
    """Lets all files look as if they had been written a while ago, but for the ctime."""
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        times = (status.st_atime_ns, status.st_mtime_ns - int(seconds * 1e9))
        os.utime(path, ns=times, follow_symlinks=False)
