"""What is kept of removed spaces: a tree's changes in one file, as a contract."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from carrel.domain.trees import Skipped, Tree, TreeDriver


@dataclass(frozen=True)
class Bundle:
    """A file with the changes of a tree: how big it is, how many they are, and what of
    them it does not hold."""

    bytes: int
    changes: int
    skipped: tuple[Skipped, ...] = ()


class Bundler(Protocol):
    """Blocking. Nothing runs in the tree meanwhile."""

    def pack(
        self, driver: TreeDriver, tree: Tree, base_id: str, target: Path, max_bytes: int
    ) -> Bundle:
        """Writes what the tree changed to `target`, which appears when it is complete and
        on the disk. Raises `TooLarge` when it would be bigger, `InsufficientDisk`, other
        `TreeError`s; and then leaves nothing."""
        ...

    def restore(self, driver: TreeDriver, tree: Tree, bundle: Path) -> None:
        """Changes a fresh tree of the same base as that one was changed. Raises
        `TreeDamaged` for a file that is not what was written, before it touches the tree;
        after other errors the tree is to be dropped."""
        ...
