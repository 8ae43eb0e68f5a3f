"""Calls of the tool that are under way, each in a thread."""

from __future__ import annotations

import contextlib
import json
import threading
import time

from carrel.client.sync import Client
from carrel.domain.errors import Capacity, CarrelError, MessageInvalid, StateConflict
from carrel.mcp.codesmith.server import LAST_S, name_of, plain
from carrel.mcp.codesmith.tool import MOST_FILES, NAME, TEXT_BYTES, TEXTS_BYTES, options_of

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from carrel.api.types.requests import ResultFile
    from carrel.client.request_frames import RequestFrame, RequestResult
    from carrel.client.requests import RequestStream
    from carrel.mcp.codesmith.server import Log, Mouth
    from carrel.mcp.codesmith.session import Called, Message


AT_ONCE = 64
"""Calls, each of which has a thread and a connection. The daemon has them wait for their turn."""


class Calls:
    """Those that are under way, by the ids that their client gave them."""

    def __init__(
        self,
        mouth: Mouth,
        log: Log,
        about: Message,
        usual: Mapping[str, object],
        place: dict[str, Any],
    ) -> None:
        self.mouth = mouth
        self.log = log
        self.about = about
        self.usual = usual
        self.client = Client(**place)
        self._work: dict[int | str, Work] = {}
        self._lock = threading.Lock()
        self._finishing = 0
        self._finished = threading.Condition()

    def begin(self, called: Called) -> None:
        if called.id in self._work:
            # Its answer could not be told from the other's.
            self.log(f"passed over a call whose id is in use: {called.id!r}")
            return
        try:
            if called.name != NAME:
                raise MessageInvalid(
                    f"There is no tool {called.name[:80]!r} here.", hint="List the tools."
                )
            if len(self._work) >= AT_ONCE:
                raise Capacity(f"{AT_ONCE} calls are under way.", hint="Wait for one of them.")
            work = Work(self, called, {**self.usual, **options_of(called.arguments)})
        except CarrelError as error:
            self.log(f"refused: {error.message}")
            self.answer(called, refusal(error))
            return
        self._work[called.id] = work
        threading.Thread(target=work.run, name=f"call {called.id}", daemon=True).start()

    def give_up(self, id: int | str) -> None:
        with self._lock:
            work = self._work.pop(id, None)
        if work is not None:
            work.given_up = True
            # The one that reads is not kept waiting for the daemon.
            threading.Thread(target=work.cancel, name=f"cancel {id}", daemon=True).start()

    def end(self, work: Work, result: Message) -> None:
        """Nobody waits for what was given up, and its id may be another's by now."""
        with self._lock:
            wanted = self._work.get(work.called.id) is work
            if wanted:
                del self._work[work.called.id]
        if wanted:
            self.answer(work.called, result)

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """What is done in it is waited for a moment when the client has gone."""
        with self._finished:
            self._finishing += 1
        try:
            yield
        finally:
            with self._finished:
                self._finishing -= 1
                self._finished.notify_all()

    def finish(self) -> None:
        with self._finished:
            self._finished.wait_for(lambda: not self._finishing, LAST_S)

    def answer(self, called: Called, result: Message) -> None:
        self.mouth.say(response(called, result, self.about))


# One call of the tool: a request of the daemon, from asking to its outcome.

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
            if frame.file:
                self._calls.log(f"{name}: {plain(name_of(frame.file))}")
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


# What the client gets: the result of a request, or why there is none.


def answer(
    result: RequestResult, name: str, path: str | None, questions: Sequence[str]
) -> tuple[Message, bool]:
    """With a workspace of its own the text of what was made is in it, as far as that can be.
    Also whether all of it is: else the rest has to be fetched."""
    files, left = [], 0 if path else TEXTS_BYTES
    whole = True
    for file in result.files[:MOST_FILES]:
        view = _view(file)
        size = len(file.text.encode("utf-8", "replace")) if file.text is not None else 0
        if file.text is not None and size <= min(left, TEXT_BYTES):
            view["text"] = file.text
            left -= size
        elif file.change != "deleted":
            whole = False
        files.append(view)
    whole = whole and result.total_files == len(files)
    missing = [*result.needs_research, *questions]
    content = {
        "files": files,
        "total_files": result.total_files,
        "complete": result.complete and not missing,
        "needs_research": missing,
        "summary": result.summary,
        "workspace_path": path,
        "check": _check(result),
        "request_id": name,
        "notes": [] if whole or path else [_fetching(name)],
    }
    return content, whole or path is not None


def _view(file: ResultFile) -> dict[str, Any]:
    return {
        "path": name_of(file.path),
        "change": file.change,
        "lines": file.lines,
        "bytes": file.bytes,
        "language": file.language,
        "type": str(file.type),
        "executable": file.executable,
    }


def _check(result: RequestResult) -> dict[str, Any] | None:
    found = result.check
    if found is None:
        return None
    return {
        "passed": found.passed,
        "code": found.code,
        "reason": found.reason,
        "output": found.output,
        "seconds": found.seconds,
    }


def _fetching(name: str) -> str:
    return (
        "Not every file has its text here. For ten minutes all of them can be had:"
        f" carrel request fetch {name} --out FOLDER"
    )


def outcome_lines(outcome: RequestFrame) -> Iterator[str]:
    """For people: how it ended, and each file with its lines."""
    result, failure = outcome.result, outcome.failure
    if result is None:
        yield f"failed: {failure.message} ({failure.code})" if failure else "failed"
        return
    for file in result.files:
        yield f"{file.change} {plain(name_of(file.path))}{_lines(file)}"
    if result.total_files > len(result.files):
        yield f"and {result.total_files - len(result.files)} more"
    for one in result.needs_research:
        yield f"missing: {one}"
    if result.check is not None:
        yield f"check: {'passed' if result.check.passed else 'failed'}"
    total = result.total_files
    count = f"{total} {'file' if total == 1 else 'files'}"
    yield f"{'complete' if result.complete else 'not complete'}: {count}"


def _lines(file: ResultFile) -> str:
    if file.lines is None:
        return "" if file.change == "deleted" else f", {file.bytes} bytes"
    return f", {file.lines} {'line' if file.lines == 1 else 'lines'}"


def refusal(error: Any) -> Message:
    """As errors are told everywhere: code, sentence, what to do."""
    content = {"code": error.code, "message": error.message, "hint": error.hint}
    return {**as_result(content), "isError": True}


def as_result(content: Message) -> Message:
    """Also as text, for clients that know nothing else."""
    text = json.dumps(content, ensure_ascii=False)
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": content,
        "isError": False,
    }


def response(called: Called, result: Message, about: Message) -> Message:
    """The answer to a call, as its version of the protocol has it."""
    more = {"resultType": "complete", "_meta": about} if called.modern else {}
    return {"jsonrpc": "2.0", "id": called.id, "result": {**result, **more}}
