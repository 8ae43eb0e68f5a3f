"""A git repository at a ref, for the store of bases; the work is `GitSource`'s."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import msgspec

from carrel.domain.trees import Skipped
from carrel.trees.bases.records import IndexFile
from carrel.trees.bases.views import Update
from carrel.trees.sources.git import GitSource, GitState

_decoder = msgspec.json.Decoder(GitState)


class CheckoutProducer:
    indexes: tuple[IndexFile, ...] = (IndexFile(b".git/index", b""),)

    def __init__(self, source: GitSource) -> None:
        self._source = source

    @cached_property
    def _state(self) -> GitState:
        return self._source.resolve()

    def state(self) -> bytes:
        return msgspec.json.encode(self._state)

    def produce(self, into: Path) -> tuple[Skipped, ...]:
        return self._source.export(self._state, into)

    def update(
        self, before: bytes, find: Callable[[bytes], Path | None], into: Path
    ) -> Update | None:
        old = _decoder.decode(before)
        delta = self._source.export_since(old, self._state, find, into)
        if delta is None:
            return None
        return Update(delta.changed, delta.deleted, delta.skipped)
