"""carrel request: has something made, and follows it: how far it is, questions, Ctrl-C."""

from __future__ import annotations

import os
import select
import shlex
import signal

from carrel.cli.call import FAILED, VerbCall, invalid, text_of, without_empty
from carrel.cli.output import StatusLine, clean, is_terminal, tell
from carrel.cli.spec import Argument, Option, Verb
from carrel.cli.terminal import STOP_SIGNALS
from carrel.cli.verbs import turns
from carrel.cli.verbs.requests import FORCE, OUT, check_folder, describe_result, save
from carrel.cli.verbs.spaces import ENV, MCP, NETWORK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any

    from carrel.api.types.requests import RequestInfo
    from carrel.client.request_frames import RequestFrame
    from carrel.client.requests import RequestStream

HOLD_S = 600.0
"""For the files of a workspace that goes at once to be fetched after the result."""
LOOK_S = 0.5
"""Between two looks at the request while somebody thinks about an answer."""
ANSWER_BYTES = 65_536
YES, NO = ("y", "yes", "allow"), ("n", "no", "deny")
CELLS = 20
SIGNALLED = 128


@Verb(
    Argument("instructions"),
    Option("--project PROJECT", "Start from a folder or git URL.", to="project"),
    Option("--agent NAME", "The agent; otherwise as the settings say.", to="frontend"),
    Option("--model TEXT", "The model; otherwise the agent's default.", to="model"),
    Option("--architecture TEXT|@FILE", "Say how to build it."),
    Option("--context TEXT|@FILE...", "Give the agent this to read."),
    Option("--check COMMAND", "Run this there when the agent is done.", to="check"),
    Option("--keep TIME", "Keep the workspace this long."),
    Option("--series NAME", "Make a new version of this series.", to="retention.series"),
    Option("--newest N", "Keep this many versions (10).", to="retention.newest"),
    Option("--older archive|drop", "Archive or drop older versions.", to="retention.older"),
    Option("--timeout TIME", "End the agent after this time.", to="timeout_s"),
    Option("--tier minimal|default|large", "Use this set of limits.", to="tier"),
    NETWORK,
    ENV,
    MCP,
    Option(turns.PERMISSION, "Choose what it may do without asking.", to="permission"),
    Option("--request-id ID", "Name it; the same name starts no second one.", to="request_id"),
    OUT,
    FORCE,
    Option("--detach", "Do not wait: print its id."),
)
def request_new(call: VerbCall) -> int:
    """Have an agent make something in a workspace of its own.

    The verb may be left out: carrel request "…". Instructions of - are read from standard
    input. The exit code is 0 when the result is complete. Ctrl-C cancels the request.
    Questions of the agent are asked here.
    """
    from carrel.client.requests import Requests

    wanted = _content(call)
    instructions = turns.prompt_of(call.text("instructions"))
    check_folder(call.text("out"))
    requests = Requests(call.link)
    if call.flag("detach"):
        return _detach(call, requests.submit(instructions, **wanted))
    # Known before it is sent, so that it can be cancelled at any time.
    wanted.setdefault("request_id", f"cli-{os.urandom(8).hex()}")
    try:
        with StopSignals(), requests.generate(instructions, **wanted) as stream:
            outcome = Follower(call, stream).run()
    except StoppedBySignal as stopped:
        return _cancel(call, wanted["request_id"], stopped.number)
    return _ended(call, outcome)


def _detach(call: VerbCall, request: RequestInfo) -> int:
    if call.json:
        call.show(call.ask("requests.show", request.request_id))
        return 0
    call.say(request.request_id)
    if request.policy == "ephemeral":
        call.note("Its files go with its result: with --keep they stay.")
    return 0


def _cancel(call: VerbCall, request: str, number: int) -> int:
    """What was not asked for yet need not be cancelled."""
    from carrel.domain.errors import RequestNotFound

    try:
        state = call.ask("requests.cancel", request)["state"]
    except RequestNotFound:
        state = "cancelled"
    call.note("Cancelled." if state == "cancelled" else f"It was {state} already.")
    return SIGNALLED + number


def _ended(call: VerbCall, outcome: RequestFrame) -> int:
    """What was refused is an error as any other; what was begun has an outcome."""
    failure = outcome.failure
    if failure is not None and failure.step == "accept":
        from carrel.client.problems import error_from

        raise error_from({**outcome.raw, "detail": failure.message})
    told = dict(outcome.raw)
    if outcome.result is not None and call.text("out"):
        told["saved"] = _save(call, outcome)
    if call.json:
        call.show(told)
    elif outcome.result is not None:
        call.say(describe_result(told))
    elif failure is not None:
        call.note(clean(f"carrel: {failure.message} ({failure.code}, {failure.step})"))
        call.note(clean(f"hint: {failure.hint}")) if failure.hint else None
    return 0 if outcome.result is not None and outcome.result.complete else FAILED


def _save(call: VerbCall, outcome: RequestFrame) -> dict[str, Any]:
    from carrel.domain.errors import PathError

    name = outcome.request_id
    try:
        saved = save(call, name, call.text("out"))
    except PathError as error:
        error.hint = f"Use --force, or: carrel request fetch {name} --out FOLDER --done"
        raise
    if not call.text("series") and call.number("keep") is None:
        call.ask("requests.done", name)
    if not call.json:
        total = len(saved["files"])
        count = "1 file is" if total == 1 else f"{total} files are"
        call.note(clean(f"{count} in {saved['folder']}"))
    return saved


# What is asked for


def _content(call: VerbCall) -> dict[str, Any]:
    """What is asked for, as the client takes it. `MessageInvalid`, `OSError`."""
    found = call.content()
    found["retention"] = _retention(call, found.get("retention", {}))
    found["architecture"] = text_of(call.text("architecture"))
    found["context"] = _context(call.texts("context"))
    return without_empty(found)


def _context(words: list[str]) -> str | dict[str, str]:
    """Texts as they are; with a file among them, all by name."""
    if not any(word.startswith("@") for word in words):
        return "\n\n".join(words)
    found: dict[str, str] = {}
    for word in words:
        name = os.path.basename(word[1:]) if word.startswith("@") else "context.md"
        stem, ending = os.path.splitext(name)
        for count in range(2, len(words) + 2):
            if name not in found:
                break
            name = f"{stem}-{count}{ending}"
        found[name] = text_of(word)
    return found


def _retention(call: VerbCall, versions: dict[str, Any]) -> dict[str, Any]:
    keep_s = call.number("keep")
    if "series" in versions and keep_s is not None:
        raise invalid(
            "A workspace is kept for a time or as a version, not both.",
            hint="Give --keep or --series.",
        )
    if versions and "series" not in versions:
        raise invalid(
            "--newest and --older work only with a series.", hint="Name the series: --series NAME"
        )
    if keep_s is not None:
        return {"policy": "retain", "seconds": keep_s}
    if versions:
        return {"policy": "versioned", **versions}
    return {"policy": "ephemeral", "hold_s": HOLD_S} if call.text("out") else {}


# To its outcome


class StoppedBySignal(Exception):
    """Somebody ended this program by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class StopSignals:
    """Makes the first signal raise `StoppedBySignal`; the next does what it always does."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in STOP_SIGNALS:
            # One that whoever started us has ignored (nohup) stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self.__exit__()
        raise StoppedBySignal(number)


class Follower:
    """Follows one request to its outcome: shows how far it is, and asks what its agent asks."""

    def __init__(self, call: VerbCall, stream: RequestStream) -> None:
        self._call = call
        self._stream = stream
        self._bar = ProgressBar(quiet=call.json)
        self._asked: list[RequestFrame] = []
        self._asks = is_terminal(0)
        self._progress = 0.0

    def run(self) -> RequestFrame:
        try:
            for frame in self._frames():
                self._take(frame)
        finally:
            self._bar.clear()
        outcome = self._stream.outcome
        assert outcome is not None
        return outcome

    def _frames(self) -> Iterator[RequestFrame]:
        while not self._stream.ended:
            if self._asked:
                self._read_answers()
                yield from self._stream.wait(0)
            else:
                yield from self._stream.wait(None)

    def _take(self, frame: RequestFrame) -> None:
        if frame.type == "queued":
            self._bar.show(0.0, f"waiting, at place {frame.place}")
        elif frame.type == "accepted":
            where = frame.workspace_path or frame.space_id
            self._bar.show(self._progress, f"the workspace is {where}")
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

    def _read_answers(self) -> None:
        """Takes a line that was typed as the answer to what was asked first."""
        places = [0, self._stream.fileno()]
        waiting = select.poll()
        for place in places:
            if place >= 0:
                waiting.register(place, select.POLLIN)
        if 0 not in {place for place, _ in waiting.poll(LOOK_S * 1000)}:
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
                self._stream.answer(text, id=frame.id)
            elif text.lower() in (*YES, *NO):
                self._stream.answer("", id=frame.id, allow=text.lower() in YES)
            else:
                self._call.note("  allow or deny?")
                return
        except StateConflict as error:
            self._call.note(clean(f"  {error.message}"))
        self._asked.pop(0)


class ProgressBar:
    """Shows how far it is on standard error: a bar in a terminal, otherwise a line for every news,
    unless it is `quiet`."""

    def __init__(self, *, quiet: bool) -> None:
        self._line = StatusLine()
        self._quiet = quiet
        self._shown = ""

    def show(self, progress: float, message: str) -> None:
        text = f"{round(progress * 100):3d}%  {clean(message)}"
        if self._line.live:
            done = round(min(1.0, progress) * CELLS)
            self._line.show(f"{'#' * done}{'.' * (CELLS - done)} {text}")
        elif not self._quiet and text != self._shown:
            tell(f"{text}\n")
        self._shown = text

    def clear(self) -> None:
        self._line.clear()
        self._shown = ""
