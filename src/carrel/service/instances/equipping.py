"""Spaces whose sandboxes show what servers need."""

from __future__ import annotations

from pathlib import Path

from carrel.domain.errors import StateConflict
from carrel.domain.spaces import Space
from carrel.service.desk import Desks
from carrel.service.instances.live import Book
from carrel.service.journal import Journal
from carrel.service.runs import Runs
from carrel.service.shared import Shared

ALWAYS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store")
"""What every sandbox shows."""


class Equipping:
    def __init__(
        self, book: Book, journal: Journal, desks: Desks, runs: Runs, shared: Shared
    ) -> None:
        self._book = book
        self._journal = journal
        self._desks = desks
        self._runs = runs
        self._locks = shared.locks

    async def equip(self, space_id: str, paths: tuple[str, ...]) -> None:
        """Its sandbox shows these from now on. One that does not has to be set up anew, for
        which nothing may run in it: `StateConflict`."""
        if not self._missing(self._journal.current(space_id), paths):
            return
        async with self._locks.alone(space_id):
            space = self._journal.current(space_id)
            missing = self._missing(space, paths)
            self._check(space)
            desk = await self._desks.of(space)
            await desk.runtime.stop(desk.sandbox)
            shows = (*space.shows, *missing)
            await self._journal.write(self._journal.amend(space_id, shows=shows))

    def _missing(self, space: Space, paths: tuple[str, ...]) -> tuple[str, ...]:
        seen = [bind.target for bind in self._desks.binds(space)]
        return tuple(path for path in dict.fromkeys(paths) if not _below(path, (*ALWAYS, *seen)))

    def _check(self, space: Space) -> None:
        served = any(
            live.instance.space_id == space.space_id and live.instance.run_id
            for live in self._book.all()
        )
        if served or self._runs.live_of(space.space_id):
            raise StateConflict(
                f"{space.space_id} was made without this server, and something runs in it.",
                hint="Let it end first, or make a space with --mcp.",
            )


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)
