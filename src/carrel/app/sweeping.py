"""What a crash has left on this machine, found by looking in every place where spaces are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from carrel.app.rooms import App
from carrel.domain.cleaning import Stray
from carrel.domain.ids import is_id
from carrel.runtimes.limits.cgroups import Cgroups
from carrel.trees import orphans

GROUP = "control group"


class LocalSweeper:
    """Implements `Sweeper`."""

    def __init__(self, data: Path, app: App, begun_at: float) -> None:
        """`begun_at`: what is older was not made by this daemon."""
        self._data = data
        self._app = app
        self._begun_at = begun_at

    def find(self, known: frozenset[str], removed: frozenset[str]) -> list[Stray]:
        found = orphans.strays(self._data, known, self._app.launcher, before=self._begun_at)
        return [*found, *self._groups(known, removed)]

    def _groups(self, known: frozenset[str], removed: frozenset[str]) -> Iterator[Stray]:
        """Other data folders have groups in the same place."""
        for name in self._app.enforcement.cgroups.known():
            if is_id(name) and name in removed and name not in known:
                yield Stray(GROUP, name, name)

    def remove(self, stray: Stray) -> None:
        if stray.kind != GROUP:
            orphans.remove_stray(stray, self._data, self._app.launcher)
            return
        cgroups: Cgroups = self._app.enforcement.cgroups
        handle = cgroups.load(stray.space_id)
        if handle is not None:
            cgroups.kill(handle)
            cgroups.remove(handle)
