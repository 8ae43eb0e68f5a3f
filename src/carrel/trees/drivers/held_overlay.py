"""Overlays of ordinary users: the launcher mounts and holds them, each in a namespace of
its own that outlives us."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from carrel.domain.errors import TreeDamaged
from carrel.domain.launching import MountHelper, OverlayMount
from carrel.domain.trees import Base, Tree, TreeMount
from carrel.trees.drivers.common import PRIVATE


class HeldOverlay:
    def __init__(self, helper: MountHelper) -> None:
        self._helper = helper

    def mount(self, key: str, folder: Path, base: Base) -> None:
        private = folder / PRIVATE
        self._helper.mount_overlay(
            key,
            OverlayMount(
                lowers=base.layers,
                upper=private / "upper",
                work=private / "work",
                target=folder / "project",
            ),
        )

    def is_mounted(self, tree: Tree) -> bool:
        return tree.tree_id in self._helper.held()

    def open_root(self, tree: Tree) -> int:
        if not self.is_mounted(tree):
            raise TreeDamaged(
                f"The tree {tree.tree_id} is not mounted.",
                hint="It is mounted again by `ensure`.",
            )
        return self._helper.open_in(tree.tree_id, tree.path)

    @contextlib.contextmanager
    def shown(self, tree: Tree) -> Iterator[TreeMount]:
        yield TreeMount(tree.path, namespace=tree.tree_id)

    def unmount(self, tree: Tree) -> None:
        self._helper.release(tree.tree_id)
