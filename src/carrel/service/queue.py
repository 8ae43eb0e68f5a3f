"""The queue of landings: in line for each branch of each project, unattended.

Each entry is merged on the result of the one before, checked, and landed or returned with the
reason. What becomes of an entry is written down, and its landing with it before the project is
touched: the next daemon goes on where one was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carrel.domain.access import LOCAL, Caller
from carrel.domain.errors import (
    CarrelError,
    LandingRefused,
    QueueEntryNotFound,
    SpaceNotFound,
    StateConflict,
)
from carrel.domain.events import EventType
from carrel.domain.ids import new_id
from carrel.domain.landing import Landing, LandingState, LandRequest
from carrel.domain.projects import ProjectKind
from carrel.domain.queue import QUEUE_BRANCH, QueueEntry, QueueState
from carrel.domain.store import Forget, Record, Store
from carrel.service.access import require_admin
from carrel.service.journal import Journal
from carrel.service.landing import MOST_LOOKED, Landings
from carrel.service.spaces import Spaces

MOST_WAITING = 1000
MOST_ENDED = 1000
"""That are listed."""
MOST_ATTEMPTS = 5
"""A daemon that was killed each time, or a branch that moves each time, is no reason to go on for
ever."""
MOST_OUTPUT = 4096
_log = logging.getLogger("carrel")


class _Cancelled(CarrelError):
    """Its entry was cancelled before anything moved."""


@dataclass
class _Line:
    """Those that wait for one branch, and who works on them."""

    task: asyncio.Task[None] | None = None
    current: asyncio.Task[None] | None = None
    entry_id: str = ""


class LandingQueue:
    def __init__(self, store: Store, journal: Journal, spaces: Spaces, landings: Landings) -> None:
        self._store = store
        self._journal = journal
        self._spaces = spaces
        self._landings = landings
        self._live: dict[str, QueueEntry] = {}
        """In the order of the lines."""
        self._lines: dict[tuple[str, str], _Line] = {}
        self._closing = False

    async def add(
        self, caller: Caller, words: Sequence[str], request: LandRequest
    ) -> Sequence[QueueEntry]:
        """All of them, or none when something is raised."""
        require_admin(caller)
        request = dataclasses.replace(request, branch=request.branch or QUEUE_BRANCH)
        if len(self._live) + len(words) > MOST_WAITING:
            raise LandingRefused(
                f"At most {MOST_WAITING:,} spaces wait in the queue.", hint="Wait for some to land."
            )
        made = [await self._draft(caller, word, request) for word in dict.fromkeys(words)]
        queued = [self._event(EventType.LANDING_QUEUED, one) for one in made]
        await self._store.write(*made, *queued, Forget(queue_but=MOST_ENDED))
        for one in made:
            self._live[one.entry_id] = one
            self._begin(one)
        return made

    async def _draft(self, caller: Caller, word: str, request: LandRequest) -> QueueEntry:
        space = await self._spaces.existing(caller, word)
        self._landings.check(space, request)
        if space.project.kind is ProjectKind.FOLDER:
            git = os.path.join(space.project.location, ".git")
            if not await asyncio.to_thread(os.path.lexists, git):
                raise LandingRefused(
                    f"The project of {space.name} has no git repository, and so no branch.",
                    hint=f"Land it by itself: carrel land {space.name}",
                )
        for one in self._live.values():
            if not one.ended and (one.space_id, one.branch) == (space.space_id, request.branch):
                raise LandingRefused(
                    f"{space.name} is in line for {request.branch!r} already.",
                    hint=f"Take it out of the line first: carrel queue --cancel {one.entry_id}",
                )
        return QueueEntry(
            entry_id=new_id("qe"),
            space_id=space.space_id,
            name=space.name,
            project=space.project.location,
            request=request,
            created_at=self._journal.clock(),
        )

    async def list(self, caller: Caller, limit: int) -> Sequence[QueueEntry]:
        """Those that wait, in their order, and then those that have ended, the newest first."""
        require_admin(caller)
        waiting = dict(self._live)
        ended = await self._store.queue(live=False, limit=limit)
        for one in ended:
            # It may have ended meanwhile.
            waiting.pop(one.entry_id, None)
        return [*waiting.values(), *ended][:limit]

    async def cancel(self, caller: Caller, entry_id: str) -> QueueEntry:
        """Raises `QueueEntryNotFound`, `StateConflict` for one that lands just now."""
        require_admin(caller)
        entry = self._live.get(entry_id)
        if entry is None or entry.ended:
            raise QueueEntryNotFound(
                f"Nothing in the queue has the id {entry_id[:64]!r}, or it has ended.",
                hint="`carrel queue` lists it.",
            )
        if entry.landing_id:
            raise StateConflict(
                f"{entry.name} lands just now.", hint="Take it back: carrel undo", state="landing"
            )
        line = self._lines.get(_key(entry))
        # Before anything is awaited: who is about to land looks at this.
        cancelled = await self._end(entry, QueueState.CANCELLED)
        if line is not None and line.entry_id == entry_id and line.current is not None:
            line.current.cancel()
        return cancelled

    # Working

    async def take_up(self) -> None:
        """What an earlier daemon had in line. Its landings are settled."""
        landings = {one.landing_id: one for one in await self._store.landings(limit=MOST_LOOKED)}
        for entry in reversed(await self._store.queue(live=True, limit=MOST_WAITING)):
            self._live[entry.entry_id] = entry
            known = landings.get(entry.landing_id)
            if known is not None and known.state is LandingState.LANDED:
                await self._end(entry, QueueState.LANDED)
            elif entry.landing_id:
                # It did not move, or nobody can tell yet: then landing again finds out.
                await self._change(entry, landing_id="")
        for entry in list(self._live.values()):
            self._begin(entry)

    def _begin(self, entry: QueueEntry) -> None:
        line = self._lines.setdefault(_key(entry), _Line())
        if line.task is None and not self._closing:
            line.task = asyncio.create_task(self._work(_key(entry), line))

    async def _work(self, key: tuple[str, str], line: _Line) -> None:
        try:
            while found := [
                one for one in self._live.values() if _key(one) == key and not one.ended
            ]:
                line.entry_id = found[0].entry_id
                line.current = asyncio.create_task(self._land(found[0]))
                await asyncio.wait((line.current,))
                if not line.current.cancelled():
                    line.current.result()
        except CarrelError:
            # Of the store: who comes next in this line begins again, or the next daemon.
            _log.exception("the queue of %s stands still", key[1])
        finally:
            # Nothing is awaited at the end of a line: who comes meanwhile would not be seen.
            if line.current is not None and not line.current.done():
                line.current.cancel()
                await asyncio.wait((line.current,))
            line.task = None
            self._lines.pop(key, None)

    async def _land(self, entry: QueueEntry) -> None:
        # It may have been cancelled before this task began.
        known = self._live.get(entry.entry_id)
        if known is None or known.ended:
            return
        try:
            if entry.attempts >= MOST_ATTEMPTS:
                raise LandingRefused(
                    f"It was tried {entry.attempts} times: each time the branch moved, or the"
                    " daemon ended.",
                    hint="Land it again when less lands there.",
                )
            entry = await self._change(entry, state=QueueState.LANDING, attempts=entry.attempts + 1)
            space = self._journal.staying(entry.space_id)
            if space is None:
                raise SpaceNotFound(f"{entry.name} was removed.", hint="`carrel undelete`")
            self._landings.check(space, entry.request)
            landing = await self._landings.land_now(
                LOCAL, space, entry.request, self._landing_of(entry.entry_id)
            )
            await self._end(self._live[entry.entry_id], QueueState.LANDED)
            _log.info("%s landed as %s", entry.entry_id, landing[0].landing_id)
        except _Cancelled:
            return
        except CarrelError as error:
            await self._failed(entry.entry_id, error)
        except Exception as error:
            _log.exception("the landing of %s failed", entry.entry_id)
            failed = CarrelError(f"{type(error).__name__}: {error}", hint="See the daemon's log.")
            await self._failed(entry.entry_id, failed)

    def _landing_of(self, entry_id: str) -> Callable[[Landing], Record]:
        """Called right before the landing is written down, and with it."""

        def record(landing: Landing) -> Record:
            entry = self._live.get(entry_id)
            if entry is None or entry.ended:
                raise _Cancelled("It was cancelled.")
            changed = dataclasses.replace(entry, landing_id=landing.landing_id)
            self._live[entry_id] = changed
            return changed

        return record

    async def _failed(self, entry_id: str, error: CarrelError) -> None:
        entry = self._live.get(entry_id)
        if entry is None or entry.ended:
            return
        if error.details.get("moved") and entry.attempts < MOST_ATTEMPTS:
            await self._change(entry, landing_id="")
            return
        entry = dataclasses.replace(entry, landing_id="")
        output = str(error.details.get("output", ""))[-MOST_OUTPUT:]
        told = {"code": error.code, "reason": error.message, "hint": error.hint, "output": output}
        await self._end(entry, QueueState.RETURNED, **told)

    async def _change(self, entry: QueueEntry, **changes: object) -> QueueEntry:
        changed = dataclasses.replace(entry, **changes)  # type: ignore[arg-type]
        self._live[entry.entry_id] = changed
        await self._store.write(changed)
        return changed

    async def _end(self, entry: QueueEntry, state: QueueState, **changes: str) -> QueueEntry:
        now = self._journal.clock()
        ended = dataclasses.replace(entry, state=state, ended_at=now, **changes)  # type: ignore[arg-type]
        self._live[entry.entry_id] = ended
        records: list[Record] = [ended]
        if state is not QueueState.LANDED:
            why = {"code": ended.code or "cancelled", "reason": ended.reason or "It was cancelled."}
            records.append(self._event(EventType.LANDING_RETURNED, ended, **why))
        try:
            await self._store.write(*records)
        except BaseException:
            self._live[entry.entry_id] = entry
            raise
        self._live.pop(entry.entry_id, None)
        return ended

    def _event(self, type: EventType, entry: QueueEntry, **data: object) -> Record:
        about = {"entry_id": entry.entry_id, "branch": entry.branch}
        return self._journal.event(type, entry.space_id, **about, **data)

    async def close(self) -> None:
        """The daemon ends; the next one goes on."""
        self._closing = True
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, CarrelError):
                await task


def _key(entry: QueueEntry) -> tuple[str, str]:
    return os.path.realpath(entry.project), entry.branch
