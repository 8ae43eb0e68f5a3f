"""The process that works on files of several users; `python -m carrel.trees.ranged.work` starts it.

It has all ids of the user, and may do with their files what root may with all. It makes no mounts,
and asks the daemon for what only the launcher has.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from carrel.domain.errors import CarrelError, TreeUnavailable
from carrel.domain.images import IDS, ImageImport, RootImage
from carrel.domain.launching import OverlayMount
from carrel.domain.systems import IdMap, ImageAccount, Part, System
from carrel.domain.trees import Base, Change, Tree, TreeDriver, TreeUsage
from carrel.linux import btrfs, namespaces, subids
from carrel.linux.ids import RANGE
from carrel.trees.bases.disk import SubvolumeLayout
from carrel.trees.bases.store import BaseStore
from carrel.trees.drivers.btrfs import BtrfsDriver
from carrel.trees.drivers.common import tree_errors
from carrel.trees.drivers.copies import CopyDriver, ReflinkDriver
from carrel.trees.drivers.overlay import LAYERS, OverlayDriver
from carrel.trees.folders import Root
from carrel.trees.images.folder_copies import Owners
from carrel.trees.images.store import ImageStore
from carrel.trees.images.taking import TakenIds
from carrel.trees.ranged.calls import AskedBack, ProcessGone, receive, send
from carrel.trees.ranged.owners import give_back
from carrel.trees.shared_layers import SharedLayers
from carrel.trees.states import SpaceStates
from carrel.trees.systems import Systems

IDLE_S = 30.0
"""To begin takes longer than most work; a process that waits takes 30 MB."""
STREAM = "stream"
"""Stands for a source that only the daemon can read."""


class RangedWork:
    """What may be called. `ask` asks the daemon back."""

    def __init__(self, data: Path, first: int, ask: Callable[..., Any]) -> None:
        self._data = data
        self._first = first
        self._host = os.geteuid(), os.getegid()
        self._ask = ask

    # Images

    def take(self, asked: ImageImport) -> RootImage:
        owners = self._owners(str(asked.source))
        if asked.source == Path(STREAM):
            asked = replace(asked, source=_Stream(self._ask))
        kept = IdMap((0, 0), self._host, self._first)
        store = ImageStore(self._data, TakenIds(kept, owners))
        return store.take(asked, lambda step: self._ask("progress", step))

    def _owners(self, source: str) -> Owners:
        """Of a folder of the host. What is the user's own was unpacked by it, and is root's;
        whoever has no number in here has one outside."""
        known: tuple[str, dict[str, tuple[int, int]]] = "", {}

        def owners(path: str, status: os.stat_result) -> tuple[int, int]:
            nonlocal known
            own, first = self._host, self._first
            found = [status.st_uid, status.st_gid]
            if not all(_is_ours(one, mine, first) for one, mine in zip(found, own, strict=True)):
                above, _, name = path.rpartition("/")
                place = os.path.join(source, above) if name else os.path.dirname(source)
                if known[0] != place:
                    known = place, self._ask("owners", place)
                outside = known[1].get(name or os.path.basename(source), (0, 0))
                found = [
                    one if _is_ours(one, mine, first) else other
                    for one, mine, other in zip(found, own, outside, strict=True)
                ]
            uid, gid = (
                0 if one == mine else one - first if _is_ours(one, mine, first) else one
                for one, mine in zip(found, own, strict=True)
            )
            return uid, gid

        return owners

    def as_user(self, image_id: str, own: tuple[int, int]) -> Path:
        return ImageStore(self._data).as_user(image_id, IdMap(own, self._host, self._first))

    # Systems

    @property
    def _systems(self) -> Systems:
        return Systems(_Helper(self._ask), SharedLayers(self._data / LAYERS))

    def account(self, image: Path, wanted: str) -> ImageAccount:
        return self._systems.account(image, wanted)

    def changes(self, system: System) -> list[Change]:
        return list(self._systems.changes(system))

    def usage(self, system: System) -> TreeUsage:
        return self._systems.usage(system)

    def make_volume(self, system: System, volume: Path, target: str) -> None:
        self._systems.make_volume(system, volume, target)

    def give_back(self, tree: Tree) -> int:
        with (
            tree_errors("make files the tree's own"),
            Root(self._driver(tree.driver).open_root(tree)) as root,
        ):
            return give_back(tree, root, self._first)

    # States

    def _states(self, tree: Tree, base: Base, parts: Sequence[Part]) -> SpaceStates:
        return SpaceStates(self._driver(tree.driver), tree, base, parts, self._systems.part)

    def _driver(self, name: str) -> TreeDriver:
        data, helper = self._data, _Helper(self._ask)
        if btrfs.on_btrfs(data):
            return BtrfsDriver(data, BaseStore(data, layout=SubvolumeLayout()))
        bases = BaseStore(data)
        if name == OverlayDriver.name:
            return OverlayDriver(data, bases, helper)
        return {one.name: one for one in (ReflinkDriver, CopyDriver)}[name](data, bases)

    def states(
        self,
        method: str,
        of: tuple[Tree, Base, tuple[Part, ...]],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        if method == "take":
            named = {**named, "still": self._still}
        return getattr(self._states(*of), method)(*arguments, **named)

    @contextmanager
    def _still(self) -> Iterator[None]:
        """Whoever asked ends it."""
        self._ask("still")
        yield

    def part_layers(self, of: tuple[Tree, Base, tuple[Part, ...]], state: str) -> dict[str, str]:
        layers = self._states(*of).part_layers(state)
        return {place: layer.name for place, layer in layers.items()}

    def fill_layer(
        self, of: tuple[Tree, Base, tuple[Part, ...]], state: str, place: str, layer: Path
    ) -> None:
        self._states(*of).part_layers(state)[place].fill(layer)


def _is_ours(number: int, own: int, first: int) -> bool:
    return number == own or first <= number < first + RANGE


class _Stream:
    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def read(self, size: int, /) -> bytes:
        piece: bytes = self._ask("read", size)
        return piece


class _Helper:
    """The launcher, as far as it is needed in here: a `MountHelper` by way of the daemon."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def mount_overlay(self, key: str, mount: OverlayMount) -> None:
        raise TreeUnavailable("This process makes no mounts.")

    def open_in(self, key: str, path: Path) -> int:
        descriptor: int = self._ask("open_in", key, path)
        return descriptor

    def held(self) -> frozenset[str]:
        keys: frozenset[str] = self._ask("held")
        return keys

    def release(self, key: str) -> None:
        raise TreeUnavailable("This process lets go of no mounts.")


def main() -> int:
    channel = socket.socket(fileno=int(sys.argv[1]))
    parent = os.getppid()
    own = subids.enter()
    namespaces.end_with_parent()
    if os.getppid() != parent:
        return 1
    assert IDS == RANGE

    def ask(name: str, *arguments: Any) -> Any:
        send(channel, ("ask", name, arguments))
        (kind, *said), given = receive(channel)
        if kind == "failed":
            raise AskedBack
        return given[0] if kind == "given" else said[0]

    work = RangedWork(Path(sys.argv[2]), own.uid, ask)
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    with suppress(ProcessGone):
        while waiting.poll(IDLE_S * 1000):
            _serve(channel, work)
    return 0


def _serve(channel: socket.socket, work: RangedWork) -> None:
    (name, arguments), _ = receive(channel)
    send(channel, ("begun",))
    try:
        done = getattr(work, name)(*arguments)
    except (CarrelError, OSError) as error:
        send(channel, ("failed", _told(error)))
    except AskedBack:
        send(channel, ("failed", None))
    else:
        send(channel, ("done", done))


def _told(error: CarrelError | OSError) -> Exception:
    try:
        return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]
    except Exception:
        return TreeUnavailable(str(error))


if __name__ == "__main__":
    raise SystemExit(main())
