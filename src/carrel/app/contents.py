"""What is in trees, for the service: the trees' own functions behind one contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO

from carrel.domain.files import Files
from carrel.domain.trees import Tree, TreeDriver
from carrel.trees.archives import archive
from carrel.trees.files import open_files
from carrel.trees.unpacking import unpack


class TreeContents:
    """Implements `Contents`."""

    def files(self, driver: TreeDriver, tree: Tree) -> AbstractContextManager[Files]:
        return open_files(driver, tree)

    def archive(self, driver: TreeDriver, tree: Tree, path: str) -> Iterator[bytes]:
        return archive(driver, tree, path)

    def unpack(self, driver: TreeDriver, tree: Tree, stream: BinaryIO, path: str) -> None:
        unpack(driver, tree, stream, path)
