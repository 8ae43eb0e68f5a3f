"""One call of the tool: a request of the daemon, from asking to its outcome."""

from __future__ import annotations

import time

from carrel.domain.errors import CarrelError, StateConflict
from carrel.mcp.codesmith.answering import answer, as_result, outcome_lines, refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from carrel.client.generating import RequestStream
    from carrel.client.request_models import RequestFrame
    from carrel.mcp.codesmith.calls import Calls
    from carrel.mcp.codesmith.session import Called
    from carrel.mcp.handshake import Message

PROGRESS_S = 5.0
"""Between two reports: clients give up on what is silent for a minute."""
HOLD_S = 600.0
"""For somebody to fetch files that are too much for an answer."""
NOBODY = (
    "Nobody can answer now. Decide it yourself as well as you can; if you cannot, do what can be"
    " done without it and say in your last message what is missing."
)


class Work:
    """One call. `given_up` is said by who reads what the client says."""

    def __init__(self, calls: Calls, called: Called, options: dict[str, Any]) -> None:
        self.given_up = False
        self._calls = calls
        self.called = called
        self._options = options
        self._stream: RequestStream | None = None
        self._progress = -1.0
        self._reported_at = 0.0
        self._said = "asking"
        self._questions: list[str] = []
        self._over = False
        """Nothing of it has to be kept for anybody."""

    def run(self) -> None:
        self._report(0.0)
        try:
            result = self._make()
        except CarrelError as error:
            self._calls.log(f"failed: {error.message} ({error.code})")
            result = refusal(error)
        except Exception:
            self._calls.log.failure()
            result = refusal(CarrelError("Something went wrong here.", hint="See the log."))
        with self._calls.finishing():
            self._calls.end(self, result)
            if self._over:
                self._forget()

    def _make(self) -> Message:
        options: dict[str, Any] = {**self._options, "tied": True}
        if "workspace_path" not in options:
            options["retention"] = {"policy": "ephemeral", "hold_s": HOLD_S}
        with self._calls.client.requests.generate(**options) as stream:
            self._stream = stream
            self._follow(stream)
            return self._ended(stream)

    def _follow(self, stream: RequestStream) -> None:
        told = False
        while not stream.ended:
            if self.given_up and not told:
                told = True
                stream.cancel()
            frames = stream.wait(PROGRESS_S)
            for frame in frames:
                self._hear(stream, frame)
            if not frames and time.monotonic() - self._reported_at >= PROGRESS_S:
                self._report(self._progress)

    def _hear(self, stream: RequestStream, frame: RequestFrame) -> None:
        name = stream.request_id
        if frame.type == "queued":
            self._said = f"waiting for its turn, at place {frame.place}"
            self._report(0.0)
        elif frame.type == "accepted":
            self._calls.log(f"{name}: workspace {frame.workspace_path}")
        elif frame.type == "progress":
            self._said = frame.message
            self._report(frame.progress)
        elif frame.type == "input_needed":
            self._calls.log(f"{name}: asks: {frame.question}")
            self._decline(stream, frame)

    def _decline(self, stream: RequestStream, frame: RequestFrame) -> None:
        """Here is nobody who could answer; somebody elsewhere may have."""
        try:
            if frame.permission is None:
                stream.answer(NOBODY, id=frame.id)
            else:
                stream.answer(id=frame.id, allow=False)
        except StateConflict as error:
            self._calls.log(f"{stream.request_id}: {error.message}")
            return
        self._questions.append(frame.question)

    def _ended(self, stream: RequestStream) -> Message:
        """Files that the answer has whole need not be kept."""
        outcome, name = stream.outcome, stream.request_id
        assert outcome is not None
        for line in outcome_lines(outcome):
            self._calls.log(f"{name}: {line}")
        if outcome.result is None:
            self._over = True
            return refusal(outcome.failure)
        path = self._options.get("workspace_path")
        content, self._over = answer(outcome.result, name, path, self._questions)
        return as_result(content)

    def _forget(self) -> None:
        """Who has the answer does not wait for that."""
        assert self._stream is not None
        try:
            self._stream.done()
        except CarrelError as error:
            self._calls.log(f"{self._stream.request_id}: {error.message}")

    def cancel(self) -> None:
        """Whoever follows it hears of that, and nobody of the outcome."""
        stream = self._stream
        if stream is None:
            # It is not asked for yet; who asks looks whether it is still wanted.
            return
        self._calls.log(f"{stream.request_id}: given up")
        try:
            self._calls.client.requests.cancel(stream.request_id)
        except CarrelError as error:
            self._calls.log(f"{stream.request_id}: {error.message}")

    def _report(self, progress: float) -> None:
        """It grows with every report, as clients may expect, and is never done before it is."""
        if self.called.token is None or self.given_up:
            return
        last, self._reported_at = self._progress, time.monotonic()
        self._progress = progress if progress > last else last + (1 - last) / 1000
        self._calls.mouth.report(
            {
                "jsonrpc": "2.0",
                "method": "notifications/progress",
                "params": {
                    "progressToken": self.called.token,
                    "progress": round(self._progress, 6),
                    "total": 1.0,
                    "message": self._said,
                },
            }
        )
