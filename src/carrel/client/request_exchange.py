"""One request, heard over any number of connections: bytes in, bytes out, no socket.

What was heard last is remembered, so that after a lost connection it is gone on with from there.
As long as nothing was heard it is asked for again, by the same name, which makes no second one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from carrel.client.exchange import Talk
from carrel.client.problems import error_from
from carrel.client.request_models import OUTCOMES, RequestFrame, frame_of
from carrel.client.requests import Request
from carrel.domain.errors import CarrelError, DaemonUnavailable
from carrel.domain.requests import FrameKind

PATH = "/v1/requests"
_OWN = ("type", "request_id", "seq", "to", "code", "message", "hint")


class Hearing(Talk):
    """`asked` is what is to be made; None: it was asked for before."""

    def __init__(self, request_id: str, asked: Mapping[str, Any] | None, after: int = 0) -> None:
        super().__init__()
        self.request_id = request_id
        self.outcome: RequestFrame | None = None
        self._asked = asked
        self._last = after
        self._live: tuple[object, ...] = ()
        self._frames: deque[RequestFrame] = deque()

    def connecting(self) -> Request:
        self._begin()
        return Request("GET", PATH, again=False)

    def connected(self, rest: bytes) -> None:
        if self._asked is not None:
            self._say({**self._asked, "type": "generate", "request_id": self.request_id})
        else:
            self._say({"type": "resume", "request_id": self.request_id, "after": self._last})
        if rest:
            self.receive(rest)

    def gone(self) -> Exception:
        return DaemonUnavailable(
            "The daemon went away and did not come back.",
            hint=f"It goes on when the daemon does: carrel request show {self.request_id}",
            request_id=self.request_id,
        )

    def _control(self, message: dict[str, Any]) -> None:
        if message.get("type") == FrameKind.ERROR and message.get("to", "generate") == "":
            raise failure_of(message)
        try:
            frame = frame_of(message)
        except DaemonUnavailable:
            if message.get("type") in list(FrameKind):
                raise
            # Of a newer daemon.
            return
        if frame.request_id == self.request_id and not self.ended:
            self._hear(frame)

    def _hear(self, frame: RequestFrame) -> None:
        # From here on there is something to go on with.
        self._asked = None
        if frame.type in OUTCOMES:
            self.outcome = frame
            self.ended = True
            self.leave()
        elif self._is_repeated(frame):
            return
        self._last = max(self._last, frame.seq)
        self._frames.append(frame)

    def _is_repeated(self, frame: RequestFrame) -> bool:
        """How it stands is told to everybody who comes."""
        if frame.seq:
            return frame.seq <= self._last
        if frame.type not in (FrameKind.QUEUED, FrameKind.PROGRESS):
            return False
        said = (frame.type, frame.place, frame.progress, frame.message)
        before, self._live = self._live, said
        return said == before

    def next(self) -> RequestFrame | None:
        """The first that came and was not taken: who stops in between loses nothing."""
        return self._frames.popleft() if self._frames else None


def failure_of(content: Mapping[str, Any]) -> CarrelError:
    """The error that a frame stands for; `details` has its `step` and whether it is
    `retriable`."""
    problem = {name: value for name, value in content.items() if name not in _OWN}
    own = {"code": content.get("code"), "detail": content.get("message")}
    return error_from({**problem, **own, "hint": content.get("hint") or ""})
