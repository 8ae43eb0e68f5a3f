"""States of spaces whose files may belong to several users."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from carrel.domain.checkpoints import PartsKept, StateSummary
from carrel.domain.launching import MountHelper
from carrel.domain.systems import Part, System
from carrel.domain.trees import Base, Tree, TreeLayer
from carrel.trees.kept import KeptSide
from carrel.trees.layers import Layers
from carrel.trees.ranged.calls import RangeCalls
from carrel.trees.ranged.images import mount_asks
from carrel.trees.states import SpaceStates


def has_range(part: Part) -> bool:
    system = part if isinstance(part, System) else part.system
    return system.first_id is not None


class RangedStates:
    """Implements `States` and `PartStates`. `inner` does what is about our own files alone."""

    def __init__(
        self,
        inner: SpaceStates,
        calls: RangeCalls,
        helper: MountHelper,
        of: tuple[Tree, Base, tuple[Part, ...]],
    ) -> None:
        self._inner = inner
        self._calls = calls
        self._asks = mount_asks(helper)
        self._of = of

    def _call(
        self, method: str, *arguments: Any, still: Callable[[], object] | None = None, **named: Any
    ) -> Any:
        asks = {**self._asks, **({} if still is None else {"still": still})}
        return self._calls.call("states", method, self._of, arguments, named, asks=asks)

    def take(
        self,
        name: str,
        *,
        agent: bool,
        without: Collection[str] = (),
        max_bytes: int,
        still: Callable[[], AbstractContextManager[object]] = nullcontext,
        parts: bool = True,
    ) -> StateSummary:
        with ExitStack() as stack:

            def stand_still() -> None:
                stack.enter_context(still())

            found: StateSummary = self._call(
                "take",
                name,
                agent=agent,
                without=tuple(without),
                max_bytes=max_bytes,
                parts=parts,
                still=stand_still,
            )
        return found

    def parts_fit(self, max_bytes: int) -> bool:
        return bool(self._call("parts_fit", max_bytes))

    def put_back(self, name: str, *, parts: bool = True) -> bool:
        return bool(self._call("put_back", name, parts=parts))

    def layer(self, name: str) -> TreeLayer | None:
        return self._inner.layer(name)

    def part_layers(self, name: str) -> Mapping[str, TreeLayer]:
        asks = self._asks
        names: dict[str, str] = self._calls.call("part_layers", self._of, name, asks=asks)

        def fill(place: str, layer: Path) -> None:
            self._calls.call("fill_layer", self._of, name, place, layer, asks=asks)

        return {place: TreeLayer(one, partial(fill, place)) for place, one in names.items()}

    def give(self, name: str, other: Tree, parts: Sequence[Part] = (), *, files: bool) -> None:
        self._call("give", name, other, tuple(parts), files=files)

    def keep_only(self, names: Collection[str]) -> None:
        self._inner.keep_only(names)

    def bytes_kept(self) -> int:
        return self._inner.bytes_kept()

    def side(self, name: str, base: Layers) -> AbstractContextManager[KeptSide]:
        return self._inner.side(name, base)

    def has_parts_to_keep(self) -> bool:
        return bool(self._call("has_parts_to_keep"))

    def pack_parts(self, target: Path, max_bytes: int) -> PartsKept:
        found: PartsKept = self._call("pack_parts", target, max_bytes)
        return found

    def unpack_parts(self, source: Path) -> None:
        self._call("unpack_parts", source)
