"""Takes an image in: finds out what the source is, and makes its root in a folder of our own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from base64 import b32encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from carrel.domain.errors import ImageInvalid
from carrel.domain.images import ImageConfig, ImageImport, ImageNote
from carrel.domain.projects import OnProgress, Progress
from carrel.domain.systems import IdMap
from carrel.linux.descriptors import Descriptor
from carrel.trees.images.archives import LayoutFolder, TarFile, archive_errors, broken, open_tar
from carrel.trees.images.folder_copies import FolderCopy, Owners, as_seen
from carrel.trees.images.layers import add_layer, add_tar
from carrel.trees.images.manifests import ImagePlan, plan_image
from carrel.trees.images.root import RootBuilder

_SHOW_S = 0.1
"""Progress is shown ten times a second."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class TakenImage:
    """What is to be published from `image` in the folder; not `fresh`: it is here already."""

    image_id: str
    config: ImageConfig
    fresh: bool
    entries: int = 0
    size_bytes: int = 0
    made: str = ""
    notes: tuple[ImageNote, ...] = ()


@dataclass(frozen=True)
class TakenIds:
    """`kept`: as whose the files of an image are kept. `owners`: whose those of a folder are."""

    kept: IdMap | None = None
    owners: Owners = as_seen


OWN_NUMBERS = TakenIds()
"""Of images as they are: root's, and those of users with one id."""


def take(
    asked: ImageImport,
    place: Path,
    data: Path,
    known: Callable[[str], bool],
    progress: OnProgress,
    ids: TakenIds = OWN_NUMBERS,
) -> TakenImage:
    """Raises `ImageInvalid`, `TooLarge`, `InsufficientDisk`."""
    return _Taking(asked, place, data, known, _Shown(progress), ids).run()


class _Shown:
    """Counts what is read and made, and tells it now and then."""

    def __init__(self, tell: OnProgress) -> None:
        self._tell = tell
        self._last = 0.0
        self.stage = "reading"
        self.total = 0
        self._read = 0
        self._made = 0

    def begin(self, stage: str, total: int) -> None:
        self.stage, self.total, self._read = stage, total, 0
        self._last = 0.0

    def on_bytes(self, size: int) -> None:
        self._read += size
        self._show()

    def on_entry(self, _entries: int, made: int) -> None:
        self._made = made
        self._show()

    def _show(self) -> None:
        if time.monotonic() - self._last >= _SHOW_S:
            self._last = time.monotonic()
            self._tell(Progress(self.stage, self._read, self.total, self._made))


@dataclass
class _Taking:
    asked: ImageImport
    place: Path
    data: Path
    known: Callable[[str], bool]
    shown: _Shown
    ids: TakenIds

    def run(self) -> TakenImage:
        source = self.asked.source
        with contextlib.ExitStack() as keep:
            if isinstance(source, Path):
                source = _real(source)
                if source.is_dir():
                    return self._folder(source, keep)
            self.shown.begin("reading", _size(source) if isinstance(source, Path) else 0)
            with archive_errors("the archive"):
                archive = open_tar(
                    source, self._spool, self.asked.limits, keep, self.shown.on_bytes
                )
            plan = None
            if archive.files is not None:
                plan = plan_image(
                    archive, self.asked.reference, self.asked.limits, self.shown.on_bytes
                )
            return self._tar(archive) if plan is None else self._layers(plan)

    def _spool(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(self.place / "archive", flags, 0o600)

    def _folder(self, source: Path, keep: contextlib.ExitStack) -> TakenImage:
        if (source / "oci-layout").is_file() and (source / "index.json").is_file():
            files = LayoutFolder(source, keep)
            limits = self.asked.limits
            plan = plan_image(files, self.asked.reference, limits, self.shown.on_bytes)
            assert plan is not None
            return self._layers(plan)
        self.shown.begin("copying", 0)
        with self._builder() as builder:
            digest = FolderCopy(builder, source, self.data, self.ids.owners).run()
            builder.finish()
        return self._taken(builder, (digest,), ImageConfig())

    def _tar(self, archive: TarFile) -> TakenImage:
        self.shown.begin("unpacking", archive.size)
        with self._builder() as builder:
            digest = add_tar(builder, archive, self.shown.on_bytes)
            builder.finish()
        return self._taken(builder, (digest,), ImageConfig())

    def _layers(self, plan: ImagePlan) -> TakenImage:
        ids = [layer.diff_id for layer in plan.layers]
        image_id = image_id_of(ids, plan.config)
        if self.known(image_id):
            return TakenImage(image_id, plan.config, fresh=False)
        self.shown.begin("unpacking", sum(layer.part.size for layer in plan.layers))
        with self._builder() as builder:
            for number, layer in enumerate(plan.layers, start=1):
                add_layer(builder, layer, f"layer {number} of {len(ids)}")
            builder.finish()
        return self._taken(builder, ids, plan.config, plan.made)

    @contextlib.contextmanager
    def _builder(self) -> Iterator[RootBuilder]:
        root = self.place / "image" / "root"
        root.mkdir(mode=0o700, parents=True)
        with Descriptor(os.open(root, _FOLDER)) as opened:
            builder = RootBuilder(opened, self.asked.limits, self.shown.on_entry, self.ids.kept)
            try:
                yield builder
            finally:
                builder.close_folders()

    def _taken(
        self, builder: RootBuilder, parts: Iterable[str], config: ImageConfig, made: str = ""
    ) -> TakenImage:
        if builder.entries == 0:
            raise broken("there are no files in it")
        self.shown.begin("saving", 0)
        return TakenImage(
            image_id=image_id_of(parts, config),
            config=config,
            fresh=True,
            entries=builder.entries,
            size_bytes=builder.bytes_written,
            made=made,
            notes=builder.notes.all(),
        )


def image_id_of(parts: Iterable[str], config: ImageConfig) -> str:
    """Names what is in an image by what decides it."""
    said = msgspec.to_builtins(config)
    if config.health is None:
        # Earlier versions knew of none, and the same image keeps its id.
        del said["health"]
    hashed = hashlib.sha256(msgspec.json.encode((said, list(parts))))
    return f"im_{b32encode(hashed.digest()[:20]).decode().lower()[:26]}"


def _real(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is a loop of links"
        raise ImageInvalid(
            f"{str(path)!r} cannot be imported: {why}.",
            hint="Name an archive, or a folder with a root file system.",
        ) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
