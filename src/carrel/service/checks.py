"""Checks: a command runs on the result of a landing before anything of the project moves.

It runs in a space that is made for it, like the one that lands: with the same base, runtime,
network, limits and variables, but without keys and without an agent. Nobody else works in that
space, and it is gone afterwards; that of a daemon that died goes when the next one starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from carrel.domain.access import LOCAL
from carrel.domain.environments import NO_SETTINGS
from carrel.domain.errors import CheckFailed, CommandError, SpaceNotFound
from carrel.domain.keys import looks_like_key
from carrel.domain.landing import LandingCheck, PreparedLanding
from carrel.domain.projects import ignore_progress
from carrel.domain.runs import RunRecord, Stream
from carrel.domain.runtimes import Command, ExitReason
from carrel.domain.spaces import Retention, Space
from carrel.domain.systems import Part
from carrel.domain.trees import Tree, TreeDriver
from carrel.service.creation import Creator
from carrel.service.runs import Runs
from carrel.service.shared import Shared
from carrel.service.space_requests import request_again
from carrel.service.spaces import Spaces

LAST_BYTES = 4096
"""Of what it wrote, that an error tells."""
LEFT_S = 7 * 86400.0
"""If even the next daemon could not remove it."""

CheckOut = Callable[[PreparedLanding, TreeDriver, Tree], None]
"""Fills a fresh tree with the result of a landing; blocking."""


@dataclass(frozen=True)
class LandingChecks:
    creator: Creator
    spaces: Spaces
    runs: Runs
    shared: Shared
    check_out: CheckOut

    async def run(self, space: Space, landing: PreparedLanding, check: LandingCheck) -> None:
        """Raises `CheckFailed` with the end of what the command wrote, and what making a space
        raises. The space is gone then, or goes at once if the caller is cancelled."""
        given_up = asyncio.Event()
        try:
            await self.shared.tasks.see_through(self._check(space, landing, check, given_up))
        finally:
            given_up.set()

    async def _check(
        self, space: Space, landing: PreparedLanding, check: LandingCheck, given_up: asyncio.Event
    ) -> None:
        space_id = await self._make(space, landing)
        running = asyncio.create_task(self._run(space_id, check))
        leaving = asyncio.create_task(given_up.wait())
        try:
            await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            for task in (running, leaving):
                task.cancel()
            # Its owner may have given it up.
            with contextlib.suppress(SpaceNotFound):
                await self.spaces.remove(LOCAL, space_id, force=True, grace_s=0.0)

    async def _make(self, space: Space, landing: PreparedLanding) -> str:
        plain = {key: text for key, text in space.env.items() if not looks_like_key(key, text)}
        # Not to be waited for, and whoever may see the space need not see this one.
        wanted = dataclasses.replace(
            request_again(space, "", ""),
            env=plain,
            labels={},
            mcp=(),
            wake=False,
            parent="",
            family="",
            transient=True,
            setting_up=True,
            description=f"Checks the landing of {space.name}.",
            retention=Retention(ttl_s=LEFT_S, discard=True),
        )
        draft = dataclasses.replace(
            self.creator.draft(wanted, space.limits),
            restored_from=space.space_id,
            shows=space.shows,
            tools=space.tools,
            shown=space.shown,
            packages=NO_SETTINGS if space.packages.credentials else space.packages,
            setup=space.setup,
        )

        def fill(driver: TreeDriver, tree: Tree, _parts: tuple[Part, ...]) -> None:
            self.check_out(landing, driver, tree)

        async with self.shared.locks.alone(draft.space_id):
            await self.creator.create(draft, wanted, ignore_progress, fill=fill)
        return draft.space_id

    async def _run(self, space_id: str, check: LandingCheck) -> None:
        command = Command(("/bin/sh", "-c", check.command), timeout_s=check.timeout_s)
        try:
            record = await self.runs.start(space_id, command)
        except CommandError as error:
            raise CheckFailed(
                f"The check cannot run: {error.message}", hint=error.hint, output=""
            ) from error
        record = await self.runs.wait(record.run_id)
        ended = record.exit
        if ended is not None and ended.reason is ExitReason.EXITED and ended.code == 0:
            return
        raise CheckFailed(
            f"Nothing landed: the check {_how(record)}.",
            hint="Have it mended in the space, and land again.",
            exit_code=None if ended is None else ended.code,
            output=await self._output(record),
        )

    async def _output(self, record: RunRecord) -> str:
        said = [await self.runs.last(record, stream, LAST_BYTES) for stream in Stream]
        return "".join(one.decode("utf-8", "replace") for one in said)


def _how(record: RunRecord) -> str:
    ended = record.exit
    if ended is None:
        return f"did not end: {record.failure}" if record.failure else "was given up"
    if ended.reason is ExitReason.EXITED:
        return f"ended with {ended.code}"
    return f"was ended ({ended.reason})"
