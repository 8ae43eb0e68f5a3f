"""Images, and systems on them, of an ordinary user: as with one id, and where files may belong to
others, by the process that has a range of ids."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from carrel.domain.errors import CarrelError, ImageNotFound, TreeUnavailable
from carrel.domain.images import ImageImport, RootImage
from carrel.domain.launching import MountHelper
from carrel.domain.projects import OnProgress, ignore_progress
from carrel.domain.systems import ImageAccount, Part, System
from carrel.domain.trees import Change, Tree, TreeLayer, TreeUsage
from carrel.linux import subid_trial
from carrel.trees.images.store import ImageStore, is_ranged
from carrel.trees.parts import SpacePart
from carrel.trees.ranged.calls import RangeCalls, SentDescriptor
from carrel.trees.ranged.owners import has_others
from carrel.trees.ranged.work import STREAM
from carrel.trees.systems import Systems


class RangedImages:
    """Implements `Images`."""

    def __init__(self, store: ImageStore, calls: RangeCalls) -> None:
        self._store = store
        self._calls = calls

    def take(self, asked: ImageImport, progress: OnProgress = ignore_progress) -> RootImage:
        if subid_trial.usable() is None:
            return self._store.take(asked, progress)
        source = asked.source
        asks: dict[str, Callable[..., object]] = {"progress": progress, "owners": _owners}
        if isinstance(source, Path):
            asked = dataclasses.replace(asked, source=Path(os.path.abspath(source)))
        else:
            asks["read"] = source.read
            asked = dataclasses.replace(asked, source=Path(STREAM), shown=asked.shown or "-")
        try:
            found: RootImage = self._calls.call("take", asked, asks=asks)
        except TreeUnavailable:
            # Who was killed could not tidy up.
            self._store.sweep()
            raise
        return found

    def folder_for(self, image: RootImage, own: tuple[int, int]) -> Path | None:
        if not is_ranged(image.folder):
            return None
        if image.folder.name.endswith("-{}-{}".format(*own)):
            return image.folder
        try:
            found: Path = self._calls.call("as_user", image.image_id, own)
        except ImageNotFound:
            return None
        return found

    def get(self, name: str) -> RootImage:
        return self._store.get(name)

    def list(self) -> list[RootImage]:
        return self._store.list()

    def tag(self, image: str, name: str) -> RootImage:
        return self._store.tag(image, name)

    def remove(self, name: str) -> RootImage:
        return self._store.remove(name)

    def prune(self, budget: int | None, *, pretend: bool = False) -> tuple[RootImage, ...]:
        return self._store.prune(budget, pretend=pretend)

    def hold(self, image: str, holder: str) -> RootImage:
        return self._store.hold(image, holder)

    def release(self, holder: str, image: str = "") -> None:
        self._store.release(holder, image)

    def keep_holders(self, known: Callable[[], Iterable[str]]) -> None:
        self._store.keep_holders(known)


def _owners(folder: str) -> dict[str, tuple[int, int]]:
    """Of what is in it, as the host has them."""
    with os.scandir(folder) as entries:
        found = {one.name: one.stat(follow_symlinks=False) for one in entries}
    return {name: (status.st_uid, status.st_gid) for name, status in found.items()}


class RangedSystems:
    """Implements `carrel.domain.systems.SystemMounts`. `inner` does all of systems with one id."""

    def __init__(self, inner: Systems, calls: RangeCalls, helper: MountHelper) -> None:
        self._inner = inner
        self._calls = calls
        self._asks = mount_asks(helper)

    def part(self, part: Part, space: Path) -> SpacePart:
        return self._inner.part(part, space)

    def account(self, image: Path, wanted: str) -> ImageAccount:
        if not is_ranged(image) or _is_open(image):
            return self._inner.account(image, wanted)
        found: ImageAccount = self._calls.call("account", image, wanted)
        return found

    def ensure(self, system: System, layer: TreeLayer | None = None) -> None:
        self._inner.ensure(system, layer)

    def changes(self, system: System) -> Iterator[Change]:
        if system.first_id is None:
            return self._inner.changes(system)
        found: list[Change] = self._calls.call("changes", system, asks=self._asks)
        return iter(found)

    def usage(self, system: System) -> TreeUsage:
        try:
            return self._inner.usage(system)
        except CarrelError:
            if system.first_id is None:
                raise
            found: TreeUsage = self._calls.call("usage", system)
            return found

    def make_volume(self, system: System, volume: Path, target: str) -> None:
        if system.first_id is None:
            self._inner.make_volume(system, volume, target)
        elif not volume.is_dir():
            self._calls.call("make_volume", system, volume, target)

    def give_back(self, tree: Tree) -> None:
        if has_others(tree):
            self._calls.call("give_back", tree, asks=self._asks)

    def drop(self, system: System) -> None:
        self._inner.drop(system)


def mount_asks(helper: MountHelper) -> dict[str, Callable[..., object]]:
    """What a process without a launcher asks back."""
    return {
        "held": helper.held,
        "open_in": lambda key, path: SentDescriptor(helper.open_in(key, path)),
    }


def _is_open(image: Path) -> bool:
    """Whether we may read who is who in it."""
    return all(
        os.access(image / name, os.R_OK) for name in ("etc/passwd", "etc/group")
    ) and not any((image / name).is_symlink() for name in ("etc", "etc/passwd", "etc/group"))
