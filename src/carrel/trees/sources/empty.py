"""Nothing as a project: an empty tree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from carrel.domain.trees import Skipped
from carrel.trees.bases.records import IndexFile
from carrel.trees.bases.views import Update


class EmptyProducer:
    indexes: tuple[IndexFile, ...] = ()

    def state(self) -> bytes:
        return b"empty"

    def produce(self, into: Path) -> tuple[Skipped, ...]:
        return ()

    def update(
        self, before: bytes, find: Callable[[bytes], Path | None], into: Path
    ) -> Update | None:
        return None
