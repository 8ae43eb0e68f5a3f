"""A request in front of this terminal: how far it is, what its agent asks, and Ctrl-C."""

from __future__ import annotations

import os
import select
import shlex
import signal

from carrel.cli.call import Call
from carrel.cli.layout import clean
from carrel.cli.output import is_terminal
from carrel.cli.progress_bar import Bar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any

    from carrel.client.generating import RequestStream
    from carrel.client.request_models import RequestFrame

LOOK_S = 0.5
"""Between two looks at the request while somebody thinks about an answer."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ANSWER_BYTES = 65_536
YES, NO = ("y", "yes", "allow"), ("n", "no", "deny")


class Stopped(Exception):
    """By a signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Stopping:
    """While this is open those signals raise `Stopped`, the first time; then they do what they
    always do."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stopping:
        for number in STOPPING:
            # One that whoever started us has ignored (nohup) stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self.__exit__()
        raise Stopped(number)


class Making:
    """Sees one request to its outcome."""

    def __init__(self, call: Call, stream: RequestStream) -> None:
        self._call = call
        self._stream = stream
        self._bar = Bar(quiet=call.json)
        self._asked: list[RequestFrame] = []
        self._asks = is_terminal(0)
        self._progress = 0.0

    def run(self) -> RequestFrame:
        try:
            for frame in self._frames():
                self._hear(frame)
        finally:
            self._bar.clear()
        outcome = self._stream.outcome
        assert outcome is not None
        return outcome

    def _frames(self) -> Iterator[RequestFrame]:
        while not self._stream.ended:
            if self._asked:
                self._listen()
                yield from self._stream.wait(0)
            else:
                yield from self._stream.wait(None)

    def _hear(self, frame: RequestFrame) -> None:
        if frame.type == "queued":
            self._bar.show(0.0, f"waiting, at place {frame.place}")
        elif frame.type == "accepted":
            self._bar.show(self._progress, f"the workspace is {frame.workspace_path}")
        elif frame.type == "progress":
            self._progress = max(self._progress, frame.progress)
            if not self._asked:
                self._bar.show(self._progress, frame.message)
        elif frame.type == "input_needed":
            self._ask(frame)

    # Questions

    def _ask(self, frame: RequestFrame) -> None:
        self._bar.clear()
        self._call.note(clean(f"? {frame.question}"))
        for number, choice in enumerate(frame.choices, 1):
            self._call.note(clean(f"  {number}. {choice}"))
        if self._asks:
            self._asked.append(frame)
            return
        words = ["carrel", "request", "answer", self._stream.request_id, "--id", frame.id]
        way = "--allow" if frame.permission is not None else "TEXT"
        self._call.note(f"  Answer it: {shlex.join(words)} {way}")

    def _listen(self) -> None:
        """A line that was typed is the answer to what was asked first."""
        places = [0, self._stream.fileno()]
        ready, _, _ = select.select([one for one in places if one >= 0], [], [], LOOK_S)
        if 0 not in ready:
            return
        typed = os.read(0, ANSWER_BYTES)
        if not typed:
            self._asks, self._asked = False, []
            self._call.note("Nobody answers here any more.")
            return
        for line in typed.decode("utf-8", "replace").splitlines():
            if self._asked and line.strip():
                self._answer(self._asked[0], line.strip())

    def _answer(self, frame: RequestFrame, text: str) -> None:
        from carrel.domain.errors import StateConflict

        if text.isdecimal() and 0 < int(text) <= len(frame.choices):
            text = frame.choices[int(text) - 1]
        try:
            if frame.permission is None:
                self._say(frame, text=text)
            elif text.lower() in (*YES, *NO):
                self._say(frame, allow=text.lower() in YES)
            else:
                self._call.note("  allow or deny?")
                return
        except StateConflict as error:
            self._call.note(clean(f"  {error.message}"))
        self._asked.pop(0)

    def _say(self, frame: RequestFrame, text: str = "", allow: bool | None = None) -> None:
        self._stream.answer(text, id=frame.id, allow=allow)
