"""Following a request: from any number on, as it happens, to its outcome."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncGenerator

from carrel.domain.hub import Replay
from carrel.domain.requests import Frame, FrameKind, Request, RequestState
from carrel.service.requests.book import PROGRESS, Book, Live
from carrel.service.requests.line import Line
from carrel.service.requests.parts import RequestParts
from carrel.service.requests.viewing import View, number, outcome

PAGE = 500
NEAR = 10
MOST_PARTS = 1000
"""Parts of messages that wait for a follower; those beyond are not told."""


class Hearing:
    def __init__(self, parts: RequestParts, book: Book, line: Line) -> None:
        self._parts = parts
        self._book = book
        self._line = line
        self._parts_of: dict[str, list[deque[tuple[str, bytes]]]] = {}
        parts.log.on_kept(book.ring_all)
        parts.log.on_live(self._heard_live)

    def _heard_live(self, space_id: str, type: str, payload: bytes) -> None:
        if queues := self._parts_of.get(space_id):
            for queue in queues:
                queue.append((type, payload))
            live = self._book.in_space(space_id)
            if live is not None:
                self._book.ring(live.key)

    async def follow(self, live: Live, after: int) -> AsyncGenerator[Frame, None]:
        """Ends with the outcome, which is told again however often somebody asks."""
        bell, leave = self._book.listen(live.key)
        self._parts.log.listening(1)
        told = _Told(after)
        try:
            while True:
                bell.clear()
                request = live.request
                for frame in self._waiting(live, told):
                    yield frame
                async for frame in self._log_of(request, told):
                    yield frame
                if request.ended:
                    yield outcome(request)
                    return
                await bell.wait()
        finally:
            leave()
            self._parts.log.listening(-1)
            self._close(told)

    def _waiting(self, live: Live, told: _Told) -> list[Frame]:
        """What is true now, and told only then."""
        request = live.request
        if request.state is RequestState.QUEUED:
            place = self._line.place(live.key)
            if place and told.is_news(place):
                told.place = place
                return [Frame(FrameKind.QUEUED, request.request_id, 0, {"place": place})]
        elif request.state is RequestState.MAKING and live.making not in ("", told.making):
            if not told.accepted:
                # The log is a moment behind, and that comes first.
                return []
            told.making = live.making
            said = {"progress": PROGRESS[request.state], "message": live.making}
            return [Frame(FrameKind.PROGRESS, request.request_id, 0, said)]
        return []

    async def _log_of(self, request: Request, told: _Told) -> AsyncGenerator[Frame, None]:
        if not request.space_id:
            return
        view = self._view(request, told)
        last = number(request.seq) if request.ended else math.inf
        if request.ended:
            await self._parts.log.settled()
        while True:
            bodies, reached = await self._parts.log.log.replay(
                Replay(request.space_id, told.reached, PAGE)
            )
            for body in bodies:
                for frame in view.frames(body):
                    told.accepted = told.accepted or frame.kind is FrameKind.ACCEPTED
                    if told.after < frame.seq < last:
                        yield frame
            if reached == told.reached:
                break
            told.reached = reached
        while told.parts:
            for frame in view.live(*told.parts.popleft()):
                yield frame

    def _view(self, request: Request, told: _Told) -> View:
        """Of the space that it has now."""
        if told.view is None or told.space_id != request.space_id:
            self._close(told)
            told.space_id, told.reached, told.parts = request.space_id, 0, deque(maxlen=MOST_PARTS)
            told.accepted = False
            told.view = View(request, self.path_of(request))
            self._parts_of.setdefault(request.space_id, []).append(told.parts)
        return told.view

    def path_of(self, request: Request) -> str:
        if request.asked.workspace_path:
            space = self._parts.journal.get(request.space_id)
            return space.place if space is not None else request.asked.workspace_path
        return str(self._parts.desks.folder(request.space_id) / "project")

    def _close(self, told: _Told) -> None:
        queues = self._parts_of.get(told.space_id)
        if queues is not None:
            queues[:] = [queue for queue in queues if queue is not told.parts]
            if not queues:
                del self._parts_of[told.space_id]


class _Told:
    """How far one follower is."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.place = 0
        """In the line, as it was told last."""
        self.accepted = False
        """It has heard of its workspace, or knows of it."""
        self.making = ""
        self.space_id = ""
        self.reached = 0
        self.view: View | None = None
        self.parts: deque[tuple[str, bytes]] = deque(maxlen=MOST_PARTS)

    def is_news(self, place: int) -> bool:
        """Far back in a long line not every step is worth a word to everybody."""
        return place != self.place and (
            place <= NEAR or not self.place or abs(self.place - place) * NEAR >= self.place
        )
