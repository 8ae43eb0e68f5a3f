"""What clients of requests hear, made of the log of a space and of the record. The same log gives
the same frames.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from carrel.domain.hub import QUESTION, envelope_in
from carrel.domain.requests import ChangedFile, Frame, FrameKind, Request, RequestState
from carrel.service.requests.book import PROGRESS

AGENT = "agent."
STATE = "request.state"
PER_MESSAGE = 4
"""Numbers for what is told of one message of the log: each frame has one of its own, so that
who resumes after any of them misses nothing."""
_STEPS = 25.0
"""So many steps of an agent bring its bar two thirds of the way: nobody knows how many come."""


class View:
    """Of one request, from the beginning of its log: what comes earlier counts for the progress
    even if nobody wants to hear it."""

    def __init__(self, request: Request, workspace_path: str) -> None:
        self._request = request
        self._path = workspace_path
        self._steps = 0
        self._reached = 0.0

    def frames(self, body: bytes) -> Iterator[Frame]:
        envelope = envelope_in(body)
        if envelope is None:
            return
        seq = number(self._request.offset + envelope["seq"])
        for place, frame in enumerate(self._of(seq, envelope)):
            yield dataclasses.replace(frame, seq=seq + place)

    def _of(self, seq: int, envelope: Mapping[str, Any]) -> Iterator[Frame]:
        type, payload = envelope["type"], envelope.get("payload") or {}
        ts = envelope.get("ts")
        if type == STATE and payload.get("key") == self._request.key:
            yield from self._moved(seq, payload)
        elif type == QUESTION:
            yield self._frame(
                FrameKind.INPUT_NEEDED,
                seq,
                id=envelope["id"],
                question=payload.get("question", ""),
                choices=payload.get("choices") or [],
            )
        elif type.startswith(AGENT):
            yield from self._done(seq, type.removeprefix(AGENT), {"ts": ts, **payload})

    def live(self, type: str, payload: bytes) -> Iterator[Frame]:
        """Of what is kept nowhere: parts of messages."""
        if type.startswith(AGENT):
            event = {"ts": time.time(), **json.loads(payload)}
            yield self._frame(
                FrameKind.EVENT, 0, event={"type": type.removeprefix(AGENT), **_bare(event)}
            )

    def _moved(self, seq: int, payload: Mapping[str, Any]) -> Iterator[Frame]:
        if payload.get("to") == RequestState.MAKING:
            yield self._frame(
                FrameKind.ACCEPTED,
                seq,
                space_id=self._request.space_id,
                workspace_path=self._path,
            )
        if "progress" in payload:
            yield self._progress(seq, payload["progress"], payload.get("message", ""))

    def making(self, said: str) -> Frame:
        """Of the workspace; told to who is there then."""
        return self._progress(0, PROGRESS[RequestState.MAKING], said)

    def appeared(self, path: str) -> Frame:
        """Told once, while it is new."""
        return self._progress(0, self._share(), path, file=path)

    def _done(self, seq: int, type: str, payload: Mapping[str, Any]) -> Iterator[Frame]:
        event = _bare(payload)
        yield self._frame(FrameKind.EVENT, seq, event={"type": type, **event})
        said = event.get("payload") if isinstance(event.get("payload"), dict) else {}
        assert isinstance(said, dict)
        if type == "permission" and "decision" not in said:
            yield self._frame(
                FrameKind.INPUT_NEEDED,
                seq,
                # As it is known where it is answered; what writes it may be no agent.
                id=str(said.get("id", "")),
                question=f"May the agent use {said.get('name', 'a tool')}?",
                choices=["allow", "deny"],
                permission={"name": said.get("name", ""), "input": said.get("input")},
            )
        elif type in ("tool_call", "message"):
            self._steps += 1
            yield self._progress(seq, self._share(), _shown(type, said))

    def _progress(self, seq: int, share: float, message: str, **more: object) -> Frame:
        # A file is told when it is found, which may be after the next state: no bar goes back.
        self._reached = max(self._reached, share)
        where = {"space_id": self._request.space_id, "workspace_path": self._path}
        return self._frame(
            FrameKind.PROGRESS, seq, progress=self._reached, message=message, **where, **more
        )

    def _share(self) -> float:
        first, last = PROGRESS[RequestState.WORKING], PROGRESS[RequestState.CHECKING]
        return round(first + (last - first) * (1 - math.exp(-self._steps / _STEPS)), 4)

    def _frame(self, kind: FrameKind, seq: int, **data: object) -> Frame:
        return Frame(kind, self._request.request_id, seq, data)


def number(seq: int) -> int:
    """Of the first that is told of a message of the log."""
    return seq * PER_MESSAGE


def outcome(request: Request, path: str, *, content: bool = True) -> Frame:
    """The last that is heard of one that has ended; without `content` its files are only listed.
    `path` is that of its workspace, for those who may know it."""
    about: dict[str, object] = {
        "space_id": request.space_id,
        "workspace_path": path,
        "workspace": str(request.workspace),
        "retained_until": request.retained_until,
    }
    if request.version:
        about |= {"series": request.asked.keeping.series, "version": request.version}
    result, failure = request.result, request.failure
    if result is not None:
        checked = None if result.check is None else dataclasses.asdict(result.check)
        about |= {
            "files": [file_view(file, content=content) for file in result.files],
            "total_files": result.total,
            "summary": result.summary,
            "complete": result.complete,
            "needs_research": list(result.needs_research),
            "check": checked,
            "usage": dataclasses.asdict(result.usage),
        }
        return Frame(FrameKind.RESULT, request.request_id, number(request.seq), about)
    assert failure is not None
    about |= dataclasses.asdict(failure)
    return Frame(FrameKind.ERROR, request.request_id, number(request.seq), about)


def file_view(file: ChangedFile, *, content: bool = True) -> dict[str, object]:
    view: dict[str, object] = {
        "path": file.path,
        "change": file.change,
        "bytes": file.bytes,
        "lines": file.lines,
        "language": file.language,
        "type": str(file.type),
        "executable": file.executable,
    }
    if not content:
        return view
    if file.text is not None:
        view["text"] = file.text
    elif file.base64 is not None:
        view["base64"] = file.base64
    return view


def _bare(event: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is told beside it."""
    return {name: event[name] for name in ("payload", "ts", "run_id") if name in event}


def _shown(type: str, said: Mapping[str, Any]) -> str:
    text = said.get("text", "") if type == "message" else said.get("name", "")
    line = str(text).strip().partition("\n")[0]
    return line[:200]
