"""One turn by Codex that asks: its own program as a server that is spoken to.

Its conversations are those of `codex exec`, which goes on with them and the other way round.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from carrel.agents.answering import Answers
from carrel.agents.children import child
from carrel.agents.frontends import codex_app, lines, requests
from carrel.agents.frontends.codex_questions import nothing_for, question
from carrel.agents.frontends.codex_rpc import CodexRpc
from carrel.agents.frontends.codex_stream import CodexTranslator
from carrel.agents.listening import Inbox, listening
from carrel.agents.permitting import Permissions, permission_of
from carrel.agents.results import failed
from carrel.agents.talking import Talk
from carrel.domain.agents import Seat, Stage, TurnRequest, TurnResult
from carrel.domain.errors import (
    AgentError,
    ContinuationNotFound,
    FrontendNotInstalled,
    Interrupted,
)

OPENING = {"approvalPolicy": "untrusted", "sandbox": "read-only"}
"""It asks for every command that it does not know to be harmless. A conversation that may write
from the start would make the project a trusted one, whose own rules count."""
WALLS = {"type": "dangerFullAccess"}
"""Of its turns: what was allowed is not stopped once more by walls of its own."""


class CodexAskingDriver:
    """Implements `Driver`, for a process of its own: `argv` gets all that this one has."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv

    async def __call__(self, request: TurnRequest, seat: Seat, stage: Stage) -> TurnResult:
        permissions = Permissions(permission_of(request, seat), stage, request.answer_s)
        try:
            async with child(self._argv, seat.workspace, os.environ) as codex:
                talk = Talk(codex, stage, "Codex")
                turn = _Turn(talk, stage, permissions, CodexTranslator(requests.asked_key(request)))
                listens = listening(stage, permissions, turn.inbox, turn.interrupt)
                async with turn.answers, listens:
                    return await turn.run(request, seat)
        except FileNotFoundError as error:
            raise FrontendNotInstalled(f"Codex cannot be started: {error}") from error


class _Turn:
    def __init__(
        self, talk: Talk, stage: Stage, permissions: Permissions, translator: CodexTranslator
    ) -> None:
        self._rpc = CodexRpc(talk, self._hear)
        self._stage = stage
        self._permissions = permissions
        self._translator = translator
        self.answers = Answers()
        self.inbox = Inbox()
        self._thread = ""
        self._turn = ""
        """The one that runs now; Codex may have several below one of ours."""
        self._done: lines.Object = {}
        self._interrupted = False
        self._used: lines.Object = {}
        self._changes: dict[str, lines.Object] = {}

    async def interrupt(self) -> None:
        """Not before it has begun: that would stop nothing."""
        self._interrupted = True
        if self._turn:
            params = {"threadId": self._thread, "turnId": self._turn}
            await self._rpc.post("turn/interrupt", params)

    async def run(self, request: TurnRequest, seat: Seat) -> TurnResult:
        await self._rpc.meet()
        await self._open(request, seat)
        said: str | None = requests.prompt(request, seat)
        images = requests.images(request)
        while said is not None:
            await self._take(said, images)
            if self._done.get("status") == "interrupted":
                return failed(Interrupted("The turn was interrupted."))
            if self._done.get("status") != "completed":
                self._tell({"type": "turn.failed", "error": lines.mapping(self._done, "error")})
                return self._translator.ended(1, "")
            said, images = self.inbox.next(), []
        self._tell(codex_app.completed(self._used))
        return self._translator.ended(0, "")

    async def _open(self, request: TurnRequest, seat: Seat) -> None:
        """Whether this is the conversation that was asked for, whoever conducts the turn sees."""
        how: dict[str, object] = {**OPENING, "cwd": seat.workspace, "model": request.model or None}
        if request.continuation is None:
            opened = await self._rpc.call("thread/start", how)
        else:
            asked = {"threadId": request.continuation.key, "excludeTurns": True}
            try:
                opened = await self._rpc.call("thread/resume", {**how, **asked})
            except AgentError as error:
                raise ContinuationNotFound(
                    f"Codex cannot go on with it: {error.message}"
                ) from error
        self._thread = lines.text(opened, "thread", "id")
        self._tell({"type": "thread.started", "thread_id": self._thread})

    async def _take(self, said: str, images: Sequence[str]) -> None:
        """Until it is done with that."""
        text = {"type": "text", "text": said, "text_elements": []}
        pictures = [{"type": "localImage", "path": path} for path in images]
        self._done = {}
        params = {"threadId": self._thread, "input": [text, *pictures], "sandboxPolicy": WALLS}
        begun = await self._rpc.call("turn/start", params)
        self._turn = lines.text(begun, "turn", "id")
        if self._interrupted:
            await self.interrupt()
        while not self._done:
            await self._rpc.listen()
        self._turn = ""

    def _hear(self, message: lines.Object) -> None:
        """Agents that it starts itself have threads of their own, and ask all the same."""
        if "id" in message:
            self.answers.begin(str(message["id"]), self._decide(message))
            return
        method, params = lines.text(message, "method"), lines.mapping(message, "params")
        if params.get("threadId", self._thread) != self._thread:
            return
        match method:
            case "turn/completed":
                self._done = lines.mapping(params, "turn")
            case "thread/tokenUsage/updated":
                self._used = lines.mapping(params, "tokenUsage", "total")
            case "serverRequest/resolved":
                self.answers.drop(str(params.get("requestId")))
            case "item/agentMessage/delta":
                self._stage.tell(lines.delta(lines.text(params, "delta")))
            case _:
                self._item(method, params)

    def _item(self, method: str, params: lines.Object) -> None:
        item = lines.mapping(params, "item")
        if item.get("type") == "fileChange":
            self._changes[lines.text(item, "id")] = {"changes": item.get("changes")}
        said = codex_app.as_exec(method, params)
        if said is not None:
            self._tell(said)

    def _tell(self, said: lines.Object) -> None:
        for told in self._translator.line(lines.encode(said).encode()):
            self._stage.tell(told)

    async def _decide(self, request: lines.Object) -> None:
        asked = question(request, self._changes)
        if asked is None:
            await self._rpc.answer(request["id"], nothing_for(request))
            return
        allow = await self._permissions.allowed(asked.id, asked.name, asked.input)
        await self._rpc.answer(request["id"], asked.answer(allow))
