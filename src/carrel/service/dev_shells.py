"""Commands that an agent runs by its shell, in the sandbox with the image of its space.

They have the streams of the shell that asked, and are not recorded. What the daemon knows of one is
its id: the launcher keeps it alive, and a later daemon takes it up by that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from carrel.domain.errors import (
    CommandInvalid,
    CommandNotFound,
    RateLimited,
    RunNotFound,
    StateConflict,
)
from carrel.domain.ids import is_id, new_id
from carrel.domain.runtimes import Command, Output, Run
from carrel.domain.systems import CommandPlace
from carrel.lifecycle.table import LIVE
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.shared import Shared

MOST = 64
"""At the same time, of one space: an agent runs a few."""
_SHELL = re.compile(r"bash|zsh|sh")
_GIT = "git"
SHELL_RUN = "sh"
"""What ids of such commands begin with: no others are the agent's to take up, and end."""


@dataclasses.dataclass(frozen=True)
class ShellCall:
    """`argv` begins with the name of a shell."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    terminal: bool = False
    """Its standard input is a terminal that is nobody's, which it takes for its own."""
    person: bool = False
    """Who asks came by SSH. They are counted apart: a connection that broke may leave a command,
    and the agent is not to wait for that."""


class DevShells:
    def __init__(
        self,
        journal: Journal,
        open_spaces: OpenSpaces,
        shared: Shared,
        has: Callable[[Path, str], bool],
        drop: Callable[[Path, str], None],
    ) -> None:
        """`has(folder, run_id)` says whether the sandbox in `folder` has something of a run, which
        `drop` removes; both block."""
        self._journal = journal
        self._open_spaces = open_spaces
        self._locks = shared.locks
        self._has = has
        self._drop = drop
        self._count: Counter[tuple[str, bool]] = Counter()

    @asynccontextmanager
    async def running(
        self, space_id: str, call: ShellCall, streams: tuple[int, int, int]
    ) -> AsyncIterator[Run]:
        """The command, which has these streams, and goes on after the context. Raises what
        `Runtime.run` does."""
        if not call.argv or not (_SHELL.fullmatch(call.argv[0]) or call.argv[0] == _GIT):
            raise CommandInvalid("Only shells and git come this way.", hint="Run: bash -c COMMAND")
        counted = (space_id, call.person)
        if self._count[counted] >= MOST:
            whose = "that came by SSH" if call.person else "of the agent"
            raise RateLimited(f"{MOST} commands {whose} run already.", hint="Let some of them end.")
        self._count[counted] += 1
        try:
            async with self._locks.shared(space_id):
                opened = await self._opened(space_id)
                run = await self._start(opened, call, streams)
            async with self._watched(opened, run):
                yield run
        finally:
            self._count[counted] -= 1
            self._count += Counter()

    @asynccontextmanager
    async def taken_up(self, space_id: str, run_id: str) -> AsyncIterator[Run]:
        """One of this space that an earlier daemon began. Raises `RunNotFound`."""
        opened = await self._opened(space_id)
        mine = is_id(run_id) and run_id.startswith(f"{SHELL_RUN}_")
        if not mine or not await asyncio.to_thread(self._has, opened.sandbox.spec.folder, run_id):
            raise RunNotFound(f"There is no run {run_id[:40]!r}.", hint="Run it again.")
        run = await opened.runtime.attach(opened.at(CommandPlace.DEV), run_id)
        async with self._watched(opened, run):
            yield run

    async def kill(self, space_id: str, run_id: str) -> None:
        """Nobody waits for it any more."""
        opened = await self._opened(space_id)
        await opened.runtime.kill(opened.at(CommandPlace.DEV), run_id)

    async def signal(self, space_id: str, run_id: str, number: int) -> None:
        opened = await self._opened(space_id)
        await opened.runtime.signal(opened.at(CommandPlace.DEV), run_id, number)

    async def _opened(self, space_id: str) -> OpenSpace:
        space = self._journal.get(space_id)
        if space is None or space.state not in LIVE or space.image is None:
            raise StateConflict(
                "The space is stopped, or has no image.", hint="Start it: carrel start SPACE"
            )
        return await self._open_spaces.of(space)

    async def _start(
        self, opened: OpenSpace, call: ShellCall, streams: tuple[int, int, int]
    ) -> Run:
        """By `sh` where the image has no such shell."""
        wanted = Command(
            argv=call.argv,
            env=call.env,
            cwd=call.cwd,
            output=Output.GIVEN,
            streams=streams,
            takes_terminal=call.terminal,
            run_id=new_id(SHELL_RUN),
        )
        try:
            return await self._open_spaces.run(opened, wanted, CommandPlace.DEV)
        except CommandNotFound:
            if call.argv[0] in ("sh", _GIT):
                raise
            plain = dataclasses.replace(
                wanted, argv=("sh", *call.argv[1:]), run_id=new_id(SHELL_RUN)
            )
            return await self._open_spaces.run(opened, plain, CommandPlace.DEV)

    @asynccontextmanager
    async def _watched(self, opened: OpenSpace, run: Run) -> AsyncIterator[None]:
        """One that has ended leaves nothing on disk."""
        try:
            yield
            await asyncio.to_thread(self._drop, opened.sandbox.spec.folder, run.run_id)
        finally:
            run.close()
