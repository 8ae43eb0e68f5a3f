"""What a crash has left on this machine, found by looking in every place where spaces are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from carrel.app.rooms import App
from carrel.domain.cleaning import Stray
from carrel.domain.ids import is_id
from carrel.runtimes.limits.cgroups import Cgroups
from carrel.trees import orphans

GROUP = "control group"
TRIAL = "trial"
TRIALS = ("proof-", ".probe-")
"""How `runtimes.proof` and `trees.drivers` name their folders in the data folder."""


class LocalSweeper:
    """Implements `Sweeper`."""

    def __init__(self, data: Path, app: App, begun_at: float) -> None:
        """`begun_at`: what is older was not made by this daemon."""
        self._data = data
        self._app = app
        self._begun_at = begun_at

    def find(self, known: frozenset[str], removed: frozenset[str]) -> list[Stray]:
        found = orphans.strays(self._data, known, self._app.launcher, before=self._begun_at)
        # What lies in our own folders was made by us, whether or not there is a record of it.
        ours = removed | {stray.space_id for stray in found}
        return [*self._groups(known, ours), *found, *self._trials()]

    def _trials(self) -> Iterator[Stray]:
        """Folders in which an earlier daemon tried what works here."""
        for entry in os.scandir(self._data):
            if entry.name.startswith(TRIALS) and entry.is_dir(follow_symlinks=False):
                changed = entry.stat(follow_symlinks=False).st_ctime
                if changed < self._begun_at:
                    yield Stray(TRIAL, entry.name, entry.path)

    def _groups(self, known: frozenset[str], removed: frozenset[str]) -> Iterator[Stray]:
        """Other data folders have groups in the same place."""
        for name in self._app.enforcement.cgroups.known():
            if is_id(name) and name in removed and name not in known:
                yield Stray(GROUP, name, name)

    def remove(self, stray: Stray) -> None:
        if stray.kind == TRIAL:
            orphans.remove_trial(Path(stray.path))
            return
        if stray.kind != GROUP:
            orphans.remove_stray(stray, self._data, self._app.launcher)
            return
        cgroups: Cgroups = self._app.enforcement.cgroups
        handle = cgroups.load(stray.space_id)
        if handle is not None:
            cgroups.kill(handle)
            cgroups.remove(handle)
