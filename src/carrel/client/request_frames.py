"""What the daemon tells of a request, frame by frame, over any number of connections: bytes in,
bytes out, no socket.

The number of the last frame is remembered, and a new connection goes on from there. As long as no
frame came the request is sent again, by the same name, which makes no second one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from carrel.api.types.common import Answer
from carrel.api.types.requests import (
    RequestFailure,
    ResultInfo,
)
from carrel.client.exchange import SocketExchange
from carrel.client.http import HttpRequest
from carrel.client.models import decode
from carrel.client.problems import error_from
from carrel.domain.errors import CarrelError, DaemonUnavailable
from carrel.domain.requests import FrameKind, Workspace

PATH = "/v1/requests"
_OWN = ("type", "request_id", "seq", "to", "code", "message", "hint")
OUTCOMES = (FrameKind.RESULT, FrameKind.ERROR)


class RequestResult(ResultInfo, frozen=True, kw_only=True):
    """With where it is."""

    request_id: str = ""
    space_id: str = ""
    workspace_path: str = ""
    """Empty without the owner's rights."""
    workspace: Workspace = Workspace.NONE
    retained_until: float | None = None
    """Seconds since 1970."""
    series: str = ""
    version: int = 0


class RequestFrame(Answer, frozen=True, kw_only=True):
    """One thing that is heard of a request; which members say something depends on `type`.
    `raw` is all of it as it came."""

    type: FrameKind
    request_id: str = ""
    seq: int = 0
    """It grows; 0: live, and not told again."""
    place: int = 0
    space_id: str = ""
    workspace_path: str = ""
    progress: float = 0.0
    message: str = ""
    file: str = ""
    """Of a progress: this file is new in the workspace."""
    event: dict[str, Any] | None = None
    id: str = ""
    question: str = ""
    choices: tuple[str, ...] = ()
    permission: dict[str, Any] | None = None
    result: RequestResult | None = None
    failure: RequestFailure | None = None
    raw: Mapping[str, Any] = msgspec.field(default_factory=dict)


def frame_of(content: Mapping[str, Any]) -> RequestFrame:
    """Raises `DaemonUnavailable` for what cannot be read."""
    more: dict[str, Any] = {"raw": content}
    if content.get("type") == FrameKind.RESULT:
        more["result"] = decode(content, RequestResult)
    elif content.get("type") == FrameKind.ERROR:
        more["failure"] = decode(content, RequestFailure)
    return msgspec.structs.replace(decode(content, RequestFrame), **more)


class RequestExchange(SocketExchange):
    """`asked` is what is to be made; None: it was asked for before."""

    def __init__(self, request_id: str, asked: Mapping[str, Any] | None, after: int = 0) -> None:
        super().__init__()
        self.request_id = request_id
        self.outcome: RequestFrame | None = None
        self._asked = asked
        self._last = after
        self._live: tuple[object, ...] = ()
        self._frames: deque[RequestFrame] = deque()

    def connecting(self) -> HttpRequest:
        self._begin()
        return HttpRequest("GET", PATH, again=False)

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
