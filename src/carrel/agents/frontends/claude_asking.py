"""One turn by Claude Code that asks: its own program, spoken to in both directions.

Beside what it tells of the turn it sends requests, and takes some (`control_request`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from carrel.agents.answering import Answers
from carrel.agents.children import Child, child
from carrel.agents.frontends import lines, requests
from carrel.agents.frontends.claude_stream import ClaudeTranslator
from carrel.agents.listening import Inbox, listening
from carrel.agents.permitting import OWN_TOOLS, Permissions, permission_of
from carrel.agents.talking import Talk
from carrel.domain.agents import Seat, Stage, TurnRequest, TurnResult
from carrel.domain.errors import FrontendNotInstalled

OPTIONS = ("--input-format", "stream-json", "--permission-prompt-tool", "stdio")
"""Beside those of every headless turn."""

DENIED = "Permission was denied."


class ClaudeAskingDriver:
    """Implements `Driver`, for a process of its own: `argv` gets all that this one has."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv

    async def __call__(self, request: TurnRequest, seat: Seat, stage: Stage) -> TurnResult:
        permissions = Permissions(permission_of(request, seat), stage, request.answer_s)
        translator = ClaudeTranslator(requests.asked_key(request))
        try:
            async with child(self._argv, seat.workspace, os.environ) as claude:
                turn = _Turn(claude, stage, permissions, translator)
                listens = listening(stage, permissions, turn.inbox, turn.interrupt)
                async with turn.answers, listens:
                    return await turn.run(requests.prompt(request, seat))
        except FileNotFoundError as error:
            raise FrontendNotInstalled(f"Claude Code cannot be started: {error}") from error


class _Turn:
    def __init__(
        self, claude: Child, stage: Stage, permissions: Permissions, translator: ClaudeTranslator
    ) -> None:
        self._claude = claude
        self._stage = stage
        self._permissions = permissions
        self._translator = translator
        self._talk = Talk(claude, stage, "Claude Code")
        self.answers = Answers()
        self.inbox = Inbox()

    async def interrupt(self) -> None:
        request = {"subtype": "interrupt"}
        await self._talk.send(
            {"type": "control_request", "request_id": "interrupt", "request": request}
        )

    async def run(self, prompt: str) -> TurnResult:
        said: str | None = prompt
        while said is not None:
            message = {"role": "user", "content": said}
            await self._talk.send({"type": "user", "message": message})
            if not await self._follow():
                return await self._ended()
            said = self.inbox.next()
        return self._translator.ended(0, "")

    async def _follow(self) -> bool:
        """Until it has done what it was told; False when it has ended, or gives up."""
        while line := await self._talk.line():
            event = lines.decode(line) or {}
            match event.get("type"):
                case "control_request":
                    self._asked(event)
                case "control_cancel_request":
                    self.answers.drop(lines.text(event, "request_id"))
                case "control_response":
                    continue
                case _:
                    for told in self._translator.line(line):
                        self._stage.tell(told)
            if event.get("type") == "result":
                return not lines.flag(event, "is_error")
        return False

    async def _ended(self) -> TurnResult:
        """It ends by itself once it has given up, else it is ended with the turn."""
        self._claude.stdin.close()
        await self._claude.ending("Claude Code")
        code = self._claude.exited.result() if self._claude.exited.done() else 1
        return self._translator.ended(None if code < 0 else code, self._claude.said)

    def _asked(self, event: lines.Object) -> None:
        id, asked = lines.text(event, "request_id"), lines.mapping(event, "request")
        if asked.get("subtype") == "can_use_tool":
            self.answers.begin(id, self._decide(id, asked))
        else:
            problem = {"subtype": "error", "request_id": id, "error": "This is not supported."}
            self.answers.begin(id, self._respond(problem))

    async def _decide(self, id: str, asked: lines.Object) -> None:
        name, given = lines.text(asked, "tool_name"), asked.get("input", {})
        call = lines.text(asked, "tool_use_id") or id
        own = name.startswith(OWN_TOOLS)
        self._translator.decided(call)
        decision: dict[str, object] = {"behavior": "deny", "message": DENIED}
        if own or await self._permissions.allowed(call, name, given):
            decision = {"behavior": "allow", "updatedInput": given}
        await self._respond({"subtype": "success", "request_id": id, "response": decision})

    async def _respond(self, response: Mapping[str, object]) -> None:
        await self._talk.send({"type": "control_response", "response": response})
